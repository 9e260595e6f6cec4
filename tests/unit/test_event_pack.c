/* test_event_pack.c - batches of events, byte by byte as Python's msgpack 1.1 writes them */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "comm/event_pack.h"

/* Token ids of all sizes. msgpack.packb of
 *
 *   v = [0, 1, 127, 128, 255, 256, 65535, 65536, 128814, 2**31 - 1]
 *   a = [v[i % 10] for i in range(64)]
 *   b = [i * 7 % 100 for i in range(64)] */
#define IDS_A_10 "00017fcc80ccffcd0100cdffffce00010000ce0001f72ece7fffffff"
#define IDS_A IDS_A_10 IDS_A_10 IDS_A_10 IDS_A_10 IDS_A_10 IDS_A_10 "00017fcc80"
#define IDS_B                                                                                      \
    "00070e151c232a31383f464d545b62050c131a21282f363d444b525960030a11181f262d343b424950575e01080f" \
    "161d242b323940474e555c63060d141b2229"

static void expect(const struct buf *b, const char *hex)
{
    static const char digits[] = "0123456789abcdef";
    assert_int_equal(b->len * 2, strlen(hex));
    for (size_t i = 0; i < b->len; i++) {
        const unsigned char c = (unsigned char)b->data[i];
        if (hex[2 * i] != digits[c >> 4] || hex[2 * i + 1] != digits[c & 15])
            fail_msg("byte %zu is %02x, needed is %.2s", i, c, hex + 2 * i);
    }
}

static void fill_ids(struct page_event *e, bool is_a)
{
    static const int32_t v[10] = {0, 1, 127, 128, 255, 256, 65535, 65536, 128814, INT32_MAX};
    for (int i = 0; i < KV_PAGE_TOKENS; i++) e->ids[i] = is_a ? v[i % 10] : i * 7 % 100;
}

/* [1760000000.25, [["AllBlocksCleared"],
 *    ["BlockStored", [0x1122334455667788, 255], None, a + b, 64, None, "GPU", None],
 *    ["BlockRemoved", [5, 2**64 - 1], "GPU"],
 *    ["BlockStored", [70000], 0xff00, b, 64, None, "GPU", None]], 3] */
static void events_are_arrays_and_runs_are_one(void **state)
{
    (void)state;
    struct buf b = {0};
    struct page_event e[] = {
        {.kind = PAGE_CLEARED},
        {.kind = PAGE_STORED, .page = 0x1122334455667788},
        {.kind = PAGE_STORED, .page = 255, .parent = 0x1122334455667788},
        {.kind = PAGE_REMOVED, .page = 5, .parent = 9},
        {.kind = PAGE_REMOVED, .page = UINT64_MAX},
        {.kind = PAGE_STORED, .page = 70000, .parent = 0xff00},
    };
    fill_ids(&e[1], true);
    fill_ids(&e[2], false);
    fill_ids(&e[5], false);
    assert_int_equal(event_pack(&b, 1760000000.25, e, 6, 3), FATHOM_OK);
    expect(&b,
           "93cb41da39de001000009491b0416c6c426c6f636b73436c656172656498ab426c6f636b53746f72656492"
           "cf1122334455667788ccffc0dc0080" IDS_A IDS_B
           "40c0a3475055c093ac426c6f636b52656d6f7665649205cfffffffffffffffffa347505598ab426c6f636b"
           "53746f72656491ce00011170cdff00dc0040" IDS_B "40c0a3475055c003");
    buf_free(&b);
}

/* [0.0, [["BlockRemoved", list(range(128, 145)), "GPU"]], 200] */
static void more_than_15_pages_and_a_rank_above_127(void **state)
{
    (void)state;
    struct buf b = {0};
    struct page_event e[17];
    memset(e, 0, sizeof e);
    for (unsigned i = 0; i < 17; i++) {
        e[i].kind = PAGE_REMOVED;
        e[i].page = 128 + i;
    }
    assert_int_equal(event_pack(&b, 0, e, 17, 200), FATHOM_OK);
    expect(&b,
           "93cb00000000000000009193ac426c6f636b52656d6f766564dc0011cc80cc81cc82cc83cc84cc85cc86cc"
           "87cc88cc89cc8acc8bcc8ccc8dcc8ecc8fcc90a3475055ccc8");
    buf_free(&b);
}

/* A chain of 1025 pages has more token ids than 16 bits count: dd and 32 bits, 65600. */
static void a_long_chain_is_one_event(void **state)
{
    (void)state;
    enum { N = 1025 };
    struct buf b = {0};
    struct page_event *e = mem_calloc(N, sizeof *e);
    assert_non_null(e);
    for (uint32_t i = 0; i < N; i++)
        e[i] = (struct page_event){
            .kind = PAGE_STORED, .page = 1000000000 + i, .parent = 999999999 + i};
    assert_int_equal(event_pack(&b, 0, e, N, 0), FATHOM_OK);
    const size_t at = 11 + 1 + 12 + 3 + N * (size_t)5 + 5;
    const unsigned char head[] = {0xdd, 0, 1, 0, 0x40};
    assert_int_equal((unsigned char)b.data[10], 0x91);
    assert_memory_equal(b.data + at, head, sizeof head);
    assert_int_equal(b.len, at + 5 + N * KV_PAGE_TOKENS + 1 + 1 + 4 + 1 + 1);
    mem_free(e);
    buf_free(&b);
}

/* No two of them become one event, and every number needs all its bytes. */
static void no_batch_is_longer_than_it_may_be(void **state)
{
    (void)state;
    enum { N = 256 };
    struct page_event *e = mem_calloc(N, sizeof *e);
    assert_non_null(e);
    for (uint32_t i = 0; i < N; i++) {
        e[i] = (struct page_event){
            .kind = PAGE_STORED, .page = UINT64_MAX - i, .parent = UINT64_MAX / 2};
        for (uint32_t k = 0; k < KV_PAGE_TOKENS; k++) e[i].ids[k] = INT32_MAX;
    }
    for (uint32_t n = 1; n <= N; n += N - 1) {
        struct buf b = {0};
        assert_int_equal(event_pack(&b, 0, e, n, UINT32_MAX), FATHOM_OK);
        assert_true(b.len > n * KV_PAGE_TOKENS * (size_t)5);
        assert_true(b.len <= n * (size_t)EVENT_PACK_BYTES);
        buf_free(&b);
    }
    mem_free(e);
}

static void without_memory_it_says_so(void **state)
{
    (void)state;
    struct buf b = {.limit = 20};
    const struct page_event e = {.kind = PAGE_STORED, .page = 1};
    assert_int_equal(event_pack(&b, 0, &e, 1, 0), FATHOM_ELIMIT);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_arrays_and_runs_are_one),
        cmocka_unit_test(more_than_15_pages_and_a_rank_above_127),
        cmocka_unit_test(a_long_chain_is_one_event),
        cmocka_unit_test(no_batch_is_longer_than_it_may_be),
        cmocka_unit_test(without_memory_it_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

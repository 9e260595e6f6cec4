/* test_page_frame.c - frames, greetings and questions to bytes and back, and what is refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/page_frame.h"

enum { PAGE = 4096 };

static fathom_err try_frame(enum frame_type type, uint32_t n_body, uint64_t page_bytes)
{
    unsigned char bytes[FRAME_BYTES];
    struct frame f = {.type = type, .stream = 77, .n_body = n_body}, out;
    frame_write(bytes, &f);
    fathom_err err = frame_read(&out, bytes, page_bytes, NULL);
    if (!err) {
        assert_int_equal(out.type, type);
        assert_int_equal(out.stream, 77);
        assert_int_equal(out.n_body, n_body);
    }
    return err;
}

static void each_type_has_its_bounds(void **state)
{
    (void)state;
    const struct {
        enum frame_type type;
        uint32_t min, max;
    } rows[] = {
        {FRAME_HELLO, HELLO_BYTES, HELLO_BYTES},
        {FRAME_WELCOME, HELLO_BYTES + MAC_BYTES, HELLO_BYTES + MAC_BYTES},
        {FRAME_REFUSE, 0, FRAME_TEXT_MAX},
        {FRAME_PROOF, MAC_BYTES, MAC_BYTES},
        {FRAME_READY, 0, 0},
        {FRAME_WANT, WANT_BYTES, WANT_BYTES},
        {FRAME_PAGE, sizeof(struct tier_header) + PAGE, sizeof(struct tier_header) + PAGE},
        {FRAME_MISS, MISS_BYTES, MISS_BYTES},
        {FRAME_FIND, 16, 16 * FRAME_KEYS_MAX},
        {FRAME_FOUND, 4, 4},
        {FRAME_RELEASE, 16, 16 * FRAME_KEYS_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(try_frame(rows[i].type, rows[i].min, PAGE), FATHOM_OK);
        assert_int_equal(try_frame(rows[i].type, rows[i].max, PAGE), FATHOM_OK);
        assert_int_equal(try_frame(rows[i].type, rows[i].max + 1, PAGE), FATHOM_EFORMAT);
        assert_int_equal(try_frame(rows[i].type, UINT32_MAX, PAGE), FATHOM_EFORMAT);
        if (rows[i].min == 0) continue;
        assert_int_equal(try_frame(rows[i].type, rows[i].min - 1, PAGE), FATHOM_EFORMAT);
    }
    assert_int_equal(try_frame(FRAME_PAGE, sizeof(struct tier_header) + PAGE, 0), FATHOM_EFORMAT);
    assert_int_equal(try_frame(FRAME_PAGE, 0, 0), FATHOM_EFORMAT);
    assert_int_equal(try_frame((enum frame_type)0, 0, PAGE), FATHOM_EFORMAT);
    assert_int_equal(try_frame(FRAME_TYPE_END, 0, PAGE), FATHOM_EFORMAT);
}

static void every_flipped_bit_of_a_frame_is_told(void **state)
{
    (void)state;
    unsigned char bytes[FRAME_BYTES];
    const struct frame f = {.type = FRAME_WANT, .stream = 3, .n_body = WANT_BYTES};
    struct frame out;
    for (int bit = 0; bit < FRAME_BYTES * 8; bit++) {
        frame_write(bytes, &f);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(frame_read(&out, bytes, PAGE, NULL), FATHOM_EFORMAT);
    }
}

static void a_greeting_comes_back_as_it_was(void **state)
{
    (void)state;
    unsigned char bytes[HELLO_BYTES];
    struct page_hello h = {.version = 1,
                           .layout = 2,
                           .page_tokens = 64,
                           .has_secret = true,
                           .has_ucx = true,
                           .page_bytes = 1ull << 40,
                           .nonce = {1, 2, 3},
                           .id = "engine-1"};
    struct page_hello out;
    memset(&h.identity.numerics, 7, sizeof h.identity.numerics);
    hello_write(bytes, &h);
    assert_int_equal(hello_read(&out, bytes, NULL), FATHOM_OK);
    assert_int_equal(identity_compare(&h.identity, &out.identity), IDENTITY_EQUAL);
    assert_true(out.version == 1 && out.layout == 2 && out.page_tokens == 64);
    assert_true(out.has_secret && !out.any_numerics && out.has_ucx);
    assert_true(out.page_bytes == h.page_bytes);
    assert_memory_equal(out.nonce, h.nonce, sizeof h.nonce);
    assert_string_equal(out.id, "engine-1");
    h.id[2] = '\n';
    hello_write(bytes, &h);
    assert_int_equal(hello_read(&out, bytes, NULL), FATHOM_EFORMAT);
    memset(h.id, 'a', sizeof h.id);
    hello_write(bytes, &h);
    assert_int_equal(hello_read(&out, bytes, NULL), FATHOM_EFORMAT);
}

static void a_question_names_a_whole_page(void **state)
{
    (void)state;
    unsigned char bytes[WANT_BYTES];
    struct tier_name name = {.key = {1, 2}, .n_id = 64, .n_answer = 64}, out;
    want_write(bytes, &name);
    assert_int_equal(want_read(&out, bytes, NULL), FATHOM_OK);
    assert_memory_equal(&out, &name, sizeof name);
    for (int i = 0; i < 3; i++) {
        struct tier_name bad = name;
        if (i == 0) bad.n_id = TIER_MAX_ID + 1;
        if (i == 1) bad.n_id = 63;
        if (i == 2) bad.n_answer = 65;
        want_write(bytes, &bad);
        assert_int_equal(want_read(&out, bytes, NULL), FATHOM_EFORMAT);
    }
    unsigned char body[33];
    struct hash128 keys[2] = {{1, 2}, {3, 4}}, read[2];
    uint32_t n;
    find_write(body, keys, 2);
    assert_int_equal(find_read(read, &n, body, 32, NULL), FATHOM_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(read, keys, sizeof keys);
    assert_int_equal(find_read(read, &n, body, 31, NULL), FATHOM_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_type_has_its_bounds),
        cmocka_unit_test(every_flipped_bit_of_a_frame_is_told),
        cmocka_unit_test(a_greeting_comes_back_as_it_was),
        cmocka_unit_test(a_question_names_a_whole_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

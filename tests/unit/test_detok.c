/* test_detok.c - the streaming decoder on random ids and every kind of byte */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "support/tokenizer_data.h"
#include "tokenizer/detok.h"

static struct tokenizer *v3;

static int open_v3(void **state)
{
    (void)state;
    return tokenizer_open_file(&v3, TOKENIZER_V3_JSON, NULL);
}

static int close_v3(void **state)
{
    (void)state;
    tokenizer_close(v3);
    return 0;
}

/* Streams ids and compares with decoding them at once; every push gives whole characters. */
static void expect_stream(const int32_t *ids, size_t n, bool skip_special)
{
    struct detok d;
    struct buf streamed = {0}, whole = {0};
    detok_init(&d, v3, skip_special);
    for (size_t i = 0; i < n; i++) {
        size_t before = streamed.len;
        assert_int_equal(detok_push(&d, ids[i], &streamed), 0);
        assert_true(d.n_held <= 3);
        assert_true(utf8_valid(buf_str(&streamed) + before, streamed.len - before));
    }
    assert_int_equal(detok_flush(&d, &streamed), 0);
    assert_int_equal(d.n_held, 0);
    assert_int_equal(detok_flush(&d, &streamed), 0); /* nothing more */
    assert_int_equal(tokenizer_decode(v3, ids, n, skip_special, &whole), 0);
    assert_int_equal(streamed.len, whole.len);
    assert_string_equal(buf_str(&streamed), buf_str(&whole));
    buf_free(&streamed);
    buf_free(&whole);
}

static void streams_random_ids(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int round = 0; round < 3000; round++) {
        int32_t ids[40];
        size_t n = 1 + rng_below(&rng, 40);
        for (size_t i = 0; i < n; i++) {
            switch (rng_below(&rng, 4)) {
            case 0: ids[i] = (int32_t)rng_below(&rng, 129280); break;
            case 1: ids[i] = (int32_t)rng_below(&rng, 3); break;
            default: ids[i] = 3 + (int32_t)rng_below(&rng, 256); break; /* lone bytes */
            }
        }
        expect_stream(ids, n, round % 2);
    }
}

/* Every sequence of up to four bytes of the kinds that UTF-8 tells apart. */
static void streams_all_byte_kinds(void **state)
{
    (void)state;
    static const char *const bytes[] = {"a",    "\x80", "\x8f", "\x90", "\x9f", "\xa0",
                                        "\xbf", "\xc0", "\xc3", "\xe0", "\xe4", "\xed",
                                        "\xf0", "\xf1", "\xf4", "\xf5", "\xff"};
    enum { N_KIND = sizeof bytes / sizeof bytes[0] };
    int32_t kinds[N_KIND];
    for (int i = 0; i < N_KIND; i++) {
        kinds[i] = tokenizer_find(v3, bytes[i]);
        assert_true(kinds[i] >= 0);
    }
    for (int code = 0; code < N_KIND * N_KIND * N_KIND * N_KIND; code++) {
        int32_t ids[4];
        for (int i = 0, rest = code; i < 4; i++, rest /= N_KIND) ids[i] = kinds[rest % N_KIND];
        expect_stream(ids, 4, false);
    }
}

static void streams_vectors(void **state)
{
    (void)state;
    size_t n;
    struct vector *vectors = data_read_vectors(&n);
    for (size_t i = 0; i < n; i++) expect_stream(vectors[i].ids.ids, vectors[i].ids.n, i % 2);
    data_free_vectors(vectors, n);
}

static void holds_back_half_a_character(void **state)
{
    (void)state;
    struct detok d;
    struct buf out = {0};
    detok_init(&d, v3, true);
    static const char *const bytes[] = {"\xf0", "\x9f", "\x98"};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(detok_push(&d, tokenizer_find(v3, bytes[i]), &out), 0);
        assert_int_equal(out.len, 0);
        assert_int_equal(d.n_held, i + 1);
        assert_int_equal(detok_push(&d, 1, &out), 0); /* a special token leaves it waiting */
        assert_int_equal(detok_push(&d, -1, &out), 0);
        assert_int_equal(d.n_held, i + 1);
    }
    assert_int_equal(detok_push(&d, tokenizer_find(v3, "\x80"), &out), 0);
    assert_string_equal(buf_str(&out), "😀");
    assert_int_equal(detok_push(&d, tokenizer_find(v3, "\xe4"), &out), 0);
    assert_int_equal(detok_push(&d, tokenizer_find(v3, "!"), &out), 0);
    assert_string_equal(buf_str(&out), "😀\xef\xbf\xbd!");
    assert_int_equal(detok_push(&d, tokenizer_find(v3, "\xe4"), &out), 0);
    assert_int_equal(detok_flush(&d, &out), 0);
    assert_string_equal(buf_str(&out), "😀\xef\xbf\xbd!\xef\xbf\xbd");
    buf_free(&out);
}

static void reports_failing_memory(void **state)
{
    (void)state;
    struct detok d;
    struct buf out = {0};
    detok_init(&d, v3, false);
    mem_fail_after(0);
    assert_int_equal(detok_push(&d, 259, &out), FATHOM_ENOMEM);
    mem_fail_after(-1);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_random_ids),     cmocka_unit_test(streams_all_byte_kinds),
        cmocka_unit_test(streams_vectors),        cmocka_unit_test(holds_back_half_a_character),
        cmocka_unit_test(reports_failing_memory),
    };
    return cmocka_run_group_tests(tests, open_v3, close_v3);
}

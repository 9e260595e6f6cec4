/* test_chunk.c - bodies in chunks: what they hold, and which are refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/limits.h"
#include "http/chunk.h"

/* Reads the bytes `step` at a time; returns how many of them belong to the body. */
static size_t read_all(struct chunk_reader *r, const char *bytes, size_t n, size_t step,
                       struct buf *body)
{
    size_t at = 0;
    *r = (struct chunk_reader){0};
    while (at < n && !r->problem && r->state != CHUNK_END) {
        const char *data;
        size_t n_data;
        size_t used = chunk_read(r, bytes + at, n - at < step ? n - at : step, &data, &n_data);
        assert_true(used > 0);
        (void)buf_add(body, data, n_data);
        at += used;
    }
    return at;
}

static void chunks_are_joined(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body, *rest;
    } cases[] = {
        {"0\r\n\r\n", "", ""},
        {"3\r\nabc\r\n0\r\n\r\nGET", "abc", "GET"},
        {"a\r\n0123456789\r\n1;ext=\"x\"\r\nA\r\n00\r\n\r\n", "0123456789A", ""},
        {"0000A\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\nTrailer: x\r\nother\r\n\r\n",
         "\r\n\r\n\r\n\r\n\r\n", ""},
        {"1;\r\nx\r\n0;a;b=c\r\n\r\n\r\n", "x", "\r\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step < 20; step += 6) {
            struct chunk_reader r;
            struct buf body = {0};
            size_t n = read_all(&r, cases[i].text, strlen(cases[i].text), step, &body);
            if (r.problem || r.state != CHUNK_END) fail_msg("%s: %s", cases[i].text, r.problem);
            assert_string_equal(buf_str(&body), cases[i].body);
            assert_string_equal(cases[i].text + n, cases[i].rest);
            buf_free(&body);
        }
    }
}

static void what_is_no_chunk_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"\r\n",
                                        "-5\r\nabc",
                                        "+3\r\nabc",
                                        "0x3\r\nabc",
                                        " 3\r\nabc",
                                        "3 \r\nabc",
                                        "3\nabc",
                                        "3\r\rabc",
                                        "3\r\nabcXX0",
                                        "3\r\nabc\n0",
                                        "3\r\nabc\r\r0",
                                        "g\r\n",
                                        ";x\r\n",
                                        "3\r\nabcd\r\n0",
                                        "0\r\n\n",
                                        "0\r\nA: b\n\r\n",
                                        "0\r\nA\x01\r\n",
                                        "1;\x7f\r\nx",
                                        "1;a\nx\r\n",
                                        "1000000000000000\r\n",
                                        "fffffffffffffffff\r\nabc"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        for (size_t step = 1; step < 20; step += 6) {
            struct chunk_reader r;
            struct buf body = {0};
            (void)read_all(&r, texts[i], strlen(texts[i]), step, &body);
            if (!r.problem) fail_msg("%s: taken", texts[i]);
            buf_free(&body);
        }
    }
    struct chunk_reader r;
    struct buf body = {0};
    (void)read_all(&r, "1;\0\r\n", 5, 5, &body);
    assert_non_null(r.problem);
    (void)read_all(&r, "fffffffffffffff\r\nabc", 20, 5, &body); /* large, and not whole */
    assert_null(r.problem);
    assert_int_equal(r.state, CHUNK_DATA);
    buf_free(&body);
}

static void what_is_passed_over_has_a_bound(void **state)
{
    (void)state;
    for (int trailer = 0; trailer < 2; trailer++) {
        for (size_t more = 0; more < 2; more++) {
            struct chunk_reader r;
            struct buf text = {0}, body = {0};
            (void)buf_add_str(&text, trailer ? "0\r\n" : "1;");
            for (size_t i = 0; i < LIMIT_HTTP_CHUNK_EXTRA_BYTES + more; i++) {
                (void)buf_add_char(&text, 'a');
            }
            (void)buf_add_str(&text, trailer ? "\r\n\r\n" : "\r\nx\r\n0\r\n\r\n");
            (void)read_all(&r, text.data, text.len, 1000, &body);
            assert_int_equal(r.problem != NULL, more);
            buf_free(&text);
            buf_free(&body);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_joined),
        cmocka_unit_test(what_is_no_chunk_is_refused),
        cmocka_unit_test(what_is_passed_over_has_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

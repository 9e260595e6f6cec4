/* test_sse_reader.c - events from bytes, however they are cut */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "bench/sse_reader.h"

/* Writes each event as [data]. */
static fathom_err note(void *arg, const char *data, size_t n)
{
    struct buf *b = arg;
    (void)buf_add_char(b, '[');
    (void)buf_add(b, data, n);
    return buf_add_char(b, ']');
}

static const char stream[] = "data: one\n\n"
                             ": a comment\n"
                             "data:two\r\n\r\n"
                             "event: x\nid: 3\ndata: a\ndata:  b\n\n"
                             "\n\n"
                             "data\r\rdatum: no\n\n"
                             "data: [DONE]\n\n"
                             "data: not ended";
static const char events[] = "[one][two][a\n b][][[DONE]]";

static void events_are_the_same_wherever_the_bytes_are_cut(void **state)
{
    (void)state;
    size_t n = strlen(stream);
    for (size_t step = 1; step <= n; step++) {
        struct sse_reader s;
        struct buf got = {0};
        sse_reader_init(&s);
        for (size_t at = 0; at < n; at += step) {
            size_t part = n - at < step ? n - at : step;
            assert_int_equal(sse_reader_feed(&s, stream + at, part, note, &got), FATHOM_OK);
        }
        assert_string_equal(buf_str(&got), events);
        sse_reader_reset(&s); /* what has not ended is forgotten */
        assert_int_equal(sse_reader_feed(&s, "data: b\n\n", 9, note, &got), FATHOM_OK);
        assert_string_equal(buf_str(&got) + strlen(events), "[b]");
        sse_reader_free(&s);
        buf_free(&got);
    }
}

static fathom_err refuse(void *arg, const char *data, size_t n)
{
    (void)arg;
    (void)data;
    (void)n;
    return FATHOM_EFORMAT;
}

static void an_error_of_the_caller_ends_it(void **state)
{
    (void)state;
    struct sse_reader s;
    sse_reader_init(&s);
    assert_int_equal(sse_reader_feed(&s, "data: x\n\n", 9, refuse, NULL), FATHOM_EFORMAT);
    sse_reader_free(&s);
}

static void a_line_without_end_is_bounded(void **state)
{
    (void)state;
    struct sse_reader s;
    struct buf got = {0};
    char chunk[4096];
    fathom_err err = FATHOM_OK;
    memset(chunk, 'x', sizeof chunk);
    sse_reader_init(&s);
    for (size_t i = 0; !err && i <= SSE_READER_BYTES / sizeof chunk; i++) {
        err = sse_reader_feed(&s, chunk, sizeof chunk, note, &got);
    }
    assert_int_equal(err, FATHOM_ELIMIT);
    sse_reader_free(&s);
    buf_free(&got);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    bool hit = true;
    for (long i = 0; hit; i++) {
        struct sse_reader s;
        struct buf got = {0};
        fathom_err err = FATHOM_OK;
        sse_reader_init(&s);
        mem_fail_after(i);
        for (size_t at = 0; !err && at < strlen(stream); at++) {
            err = sse_reader_feed(&s, stream + at, 1, note, &got);
        }
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        sse_reader_free(&s);
        buf_free(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_the_same_wherever_the_bytes_are_cut),
        cmocka_unit_test(an_error_of_the_caller_ends_it),
        cmocka_unit_test(a_line_without_end_is_bounded),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_reply.c - answers of servers, in one piece and byte by byte */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "router/reply.h"

/* Reads text in pieces of so many bytes; the body goes to *body. Returns how many were taken. */
static size_t read_in(struct reply_reader *a, const char *text, size_t step, struct buf *body,
                      int *n_head)
{
    size_t at = 0, n = strlen(text);
    buf_clear(body);
    *n_head = 0;
    while (at < n && a->state != REPLY_END && !a->problem) {
        size_t end = at + step < n ? at + step : n;
        while (at < end && a->state != REPLY_END && !a->problem) {
            const char *data;
            size_t n_data;
            bool head;
            at += reply_read(a, text + at, end - at, &head, &data, &n_data);
            *n_head += head;
            assert_int_equal(buf_add(body, data, n_data), FATHOM_OK);
        }
    }
    return at;
}

struct row {
    const char *text;
    const char *body;
    int status;
    bool keeps;
    bool to_close; /* whole once the connection is closed */
    size_t n_rest; /* bytes behind it */
};

static void answers_end_where_they_say(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", 200, true, false, 0},
        {"HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabcHTTP", "abc", 200, true, false, 4},
        {"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\nA: b\r\n\r\n", "", 429, true, false, 0},
        {"HTTP/1.1 200\r\nContent-Length: 1\r\nConnection: x, Close\r\n\r\nz", "z", 200, false,
         false, 0},
        {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nz", "z", 200, false, false, 0},
        {"HTTP/1.1 200 OK\r\nA: b\r\n\r\nall that comes", "all that comes", 200, false, true, 0},
        {"HTTP/1.1 204 None\r\n\r\n", "", 204, true, false, 0},
        {"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", "", 304, true, false, 0},
        {"HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "x",
         200, true, false, 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n",
         "abcde", 200, true, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        for (size_t step = 1; step < 200; step = step < 4 ? step + 1 : step * 7) {
            struct reply_reader a = {0};
            struct buf body = {0};
            int n_head;
            size_t used = read_in(&a, r->text, step, &body, &n_head);
            assert_null(a.problem);
            assert_int_equal(n_head, 1);
            assert_int_equal(a.state == REPLY_END, !r->to_close);
            assert_true(reply_close(&a));
            assert_int_equal(used, strlen(r->text) - r->n_rest);
            assert_int_equal(a.status, r->status);
            assert_int_equal(a.keeps, r->keeps);
            assert_string_equal(buf_str(&body), r->body);
            reply_free(&a);
            buf_free(&body);
        }
    }
}

static void header_lines_are_kept_as_they_came(void **state)
{
    (void)state;
    struct reply_reader a = {.has_no_body = true};
    struct buf body = {0};
    int n_head;
    const char *text =
        "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 12\r\nX:\t y \r\n\r\n";
    assert_int_equal(read_in(&a, text, 5, &body, &n_head), strlen(text));
    assert_int_equal(a.state, REPLY_END); /* HEAD: the length is another answer's */
    assert_string_equal(buf_str(&a.fields),
                        "Content-Type: a/b\r\nContent-Length: 12\r\nX:\t y \r\n");
    reply_free(&a);
    buf_free(&body);
}

static void what_is_cut_short_is_not_whole(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct reply_reader a = {0};
        struct buf body = {0};
        int n_head;
        (void)read_in(&a, texts[i], 1000, &body, &n_head);
        assert_null(a.problem);
        assert_false(reply_close(&a));
        assert_int_equal(a.has_begun, i > 0);
        reply_free(&a);
        buf_free(&body);
    }
}

static void what_is_no_answer_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
        "chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: \001\r\n\r\n",
        "\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        for (size_t step = 1; step < 200; step *= 6) {
            struct reply_reader a = {0};
            struct buf body = {0};
            int n_head;
            (void)read_in(&a, texts[i], step, &body, &n_head);
            assert_non_null(a.problem);
            assert_false(reply_close(&a));
            reply_free(&a);
            buf_free(&body);
        }
    }
}

static void a_head_has_a_bound(void **state)
{
    (void)state;
    struct reply_reader a = {0};
    static char line[1002];
    const char *data;
    size_t n_data;
    bool head;
    memset(line, 'a', 1000);
    memcpy(line, "X:", 2);
    memcpy(line + 1000, "\r\n", 2);
    (void)reply_read(&a, "HTTP/1.1 200 OK\r\n", 17, &head, &data, &n_data);
    for (int i = 0; i < 300 && !a.problem; i++)
        (void)reply_read(&a, line, sizeof line, &head, &data, &n_data);
    assert_non_null(a.problem);
    assert_in_range(a.fields.len, REPLY_HEAD_BYTES - 1100, REPLY_HEAD_BYTES);
    reply_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_end_where_they_say),
        cmocka_unit_test(header_lines_are_kept_as_they_came),
        cmocka_unit_test(what_is_cut_short_is_not_whole),
        cmocka_unit_test(what_is_no_answer_is_refused),
        cmocka_unit_test(a_head_has_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

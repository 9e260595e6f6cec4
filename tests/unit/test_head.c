/* test_head.c - heads of requests: what is read, and what is refused and why */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "http/head.h"

/* Scans and parses, the bytes coming `step` at a time; the status that refuses it, 0: none, -1: it
 * is not whole. The head borrows `copy`. */
static int read_head(struct head *h, char *copy, const char *bytes, size_t n, size_t step,
                     struct head_fault *fault)
{
    size_t at = 0, n_head = 0;
    memcpy(copy, bytes, n);
    *fault = (struct head_fault){0};
    for (size_t have = 0; have < n && !n_head && !fault->status;) {
        have = have + step < n ? have + step : n;
        n_head = head_scan(copy, have, &at, fault);
    }
    if (fault->status) return fault->status;
    if (!n_head) return -1;
    assert_true(n_head <= n);
    if (head_parse(h, copy, n_head, fault)) return 0;
    assert_true(fault->status >= 400 && fault->text);
    return fault->status;
}

static void refused(const char *bytes, size_t n, int status, const char *text)
{
    static const size_t steps[] = {1, 7, 100000};
    struct head h;
    struct head_fault fault;
    char copy[1024];
    assert_true(n <= sizeof copy);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int got = read_head(&h, copy, bytes, n, steps[i], &fault);
        if (got != status || (text && !strstr(fault.text, text))) {
            fail_msg("%.60s...: %d %s, wanted %d %s", bytes, got, fault.text ? fault.text : "",
                     status, text ? text : "");
        }
    }
}

#define REFUSED(bytes, status, text) refused(bytes, sizeof(bytes) - 1, status, text)
#define POST "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
#define GET "GET /v1/models HTTP/1.1\r\nHost: x\r\n"

static void what_two_servers_could_read_differently_is_refused(void **state)
{
    (void)state;
    REFUSED(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "both");
    REFUSED(POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", 400, "both");
    REFUSED(POST "Content-Length: 5\r\nContent-Length: 45\r\n\r\n", 400, "more than one Content");
    REFUSED(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400, "more than one Content");
    REFUSED(POST "Content-Length : 45\r\n\r\n", 400, "name of a header");
    REFUSED(POST "Content-Length\t: 45\r\n\r\n", 400, "name of a header");
    REFUSED(POST "Content-Length: 45\0 1\r\n\r\n", 400, "control character");
    REFUSED(POST "Authorization: Bearer keyA\0zzz\r\n\r\n", 400, "control character");
    REFUSED(POST "Content-Length: +45\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length: -1\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length: 0x2d\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length: 45, 45\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length: 4 5\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length: 45x\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length:\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "Content-Length: 18446744073709551616\r\n\r\n", 400, "too large");
    REFUSED(POST "Content-Length: 99999999999999999999999\r\n\r\n", 400, "too large");
    REFUSED(POST "Content-Length:\r\n 45\r\n\r\n", 400, "no decimal number");
    REFUSED(POST "X: y\r\n Transfer-Encoding: chunked\r\n\r\n", 400, "second line");
    REFUSED(POST "X: y\r\n\tz\r\n\r\n", 400, "second line");
    REFUSED("GET / HTTP/1.1\r\n Content-Length: 2\r\nHost: x\r\n\r\n", 400, "second line");
    REFUSED("GET / HTTP/1.1\nHost: x\n\n", 400, "LF without CR");
    REFUSED(GET "X: a\nY: b\r\n\r\n", 400, "LF without CR");
    REFUSED("GET / HTTP/1.1\rHost: x\r\r", 400, "CR without LF");
    REFUSED(GET "X-Request-Id: a\rb\r\n\r\n", 400, "CR without LF");
    REFUSED(GET "X: \x01\r\n\r\n", 400, "control character");
    REFUSED(GET "X: \x7f\r\n\r\n", 400, "control character");
    REFUSED(GET "X: \x1b[31m\r\n\r\n", 400, "control character");
}

static void codings_that_are_not_known_are_refused(void **state)
{
    (void)state;
    REFUSED(POST "Transfer-Encoding: xchunked\r\n\r\n", 501, "only Transfer-Encoding");
    REFUSED(POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "only Transfer-Encoding");
    REFUSED(POST "Transfer-Encoding: chunked, identity\r\n\r\n", 501, "only Transfer-Encoding");
    REFUSED(POST "Transfer-Encoding: identity\r\n\r\n", 501, "only Transfer-Encoding");
    REFUSED(POST "Transfer-Encoding: chunked;q=1\r\n\r\n", 501, "only Transfer-Encoding");
    REFUSED(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 501, "only");
    REFUSED(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "once");
    REFUSED(POST "Transfer-Encoding: chunked, chunked\r\n\r\n", 400, "once");
    REFUSED(POST "Transfer-Encoding:\r\n\r\n", 400, "once");
    REFUSED(POST "Transfer-Encoding: \x0b"
                 "chunked\r\n\r\n",
            400, "control character");
    REFUSED("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0");
    REFUSED(POST "Transfer-Encoding : chunked\r\n\r\n", 400, "name of a header");
    REFUSED(POST "Expect: 999-x\r\n\r\n", 417, "Expect");
}

static void a_head_names_its_host_once(void **state)
{
    (void)state;
    REFUSED("GET / HTTP/1.1\r\n\r\n", 400, "there is no Host");
    REFUSED("GET http://x/ HTTP/1.1\r\n\r\n", 400, "there is no Host");
    REFUSED(GET "Host: x\r\n\r\n", 400, "more than one Host");
    REFUSED(GET "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400, "one Authoriz");
    REFUSED("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, "more than one Host");
    static const char *const wrong[] = {
        "",       "a b",     "a/b", "a@b", "x:80:80",  "x:8a", "x:65536000", "[::1", "[]",
        "[::1]x", "a,\"b\"", "a%0", "%00", "\xc3\xa9", "a\tb", "<a>",        "a?b",  ":80"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[128];
        int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", wrong[i]);
        refused(text, (size_t)n, 400, "Host is no name");
    }
    static const char *const right[] = {"x",
                                        "example.com:8000",
                                        "127.0.0.1:1",
                                        "[::1]:8000",
                                        "[::ffff:1.2.3.4]",
                                        "a_b-c.d",
                                        "x:",
                                        "a%20b"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        char text[128], copy[128];
        struct head h;
        struct head_fault fault;
        int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost:%s \r\n\r\n", right[i]);
        assert_int_equal(read_head(&h, copy, text, (size_t)n, 1, &fault), 0);
        assert_string_equal(h.host, right[i]);
    }
}

static void the_request_line_has_one_form(void **state)
{
    (void)state;
    static const char *const wrong[] = {"GET",
                                        "GET /",
                                        "GET  / HTTP/1.1",
                                        "GET / HTTP/1.1 ",
                                        " GET / HTTP/1.1",
                                        "GET /a b HTTP/1.1",
                                        "GET\t/\tHTTP/1.1",
                                        "GET / http/1.1",
                                        "GET / HTTP/1.1x",
                                        "GET / HTTP/11",
                                        "GET / HTTP/1.",
                                        "GET / HTTP/1.11",
                                        "G\"T / HTTP/1.1",
                                        "G(T / HTTP/1.1",
                                        "GET a HTTP/1.1",
                                        "GET * HTTP/1.1",
                                        "CONNECT a:1 HTTP/1.1",
                                        "GET ftp://x/ HTTP/1.1",
                                        "GET http:///a HTTP/1.1",
                                        "GET http://u@x/a HTTP/1.1",
                                        "GET http://x y/ HTTP/1.1",
                                        "GET /% HTTP/1.1",
                                        "GET /%zz HTTP/1.1",
                                        "GET /%4 HTTP/1.1",
                                        "GET /a%00b HTTP/1.1",
                                        "GET /\xff\xfe HTTP/1.1",
                                        "GET /a\"b HTTP/1.1",
                                        "GET /a#b HTTP/1.1",
                                        "GET /{a} HTTP/1.1",
                                        "GET /a\\b HTTP/1.1",
                                        "GET /?a=%z HTTP/1.1",
                                        "",
                                        "\r\nGET / HTTP/1.1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[128];
        int n = snprintf(text, sizeof text, "%s\r\nHost: x\r\n\r\n", wrong[i]);
        if (i + 1 == sizeof wrong / sizeof wrong[0]) { /* one empty line is passed over, not two */
            n = snprintf(text, sizeof text, "\r\n%s\r\nHost: x\r\n\r\n", wrong[i]);
        }
        refused(text, (size_t)n, 400, NULL);
    }
    REFUSED("\r\n\r\n", 400, "no request line");
    REFUSED("GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505, "HTTP/1.1");
    REFUSED("PRI * HTTP/2.0\r\n\r\n", 505, "HTTP/1.1");
    REFUSED("GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505, "HTTP/1.1");
    REFUSED("GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505, "HTTP/1.1");
    REFUSED("ABCDEFGHIJKLMNOP / HTTP/1.1\r\nHost: x\r\n\r\n", 501, "method");
    REFUSED(GET "no colon\r\n\r\n", 400, "no colon");
    REFUSED(GET ": no name\r\n\r\n", 400, "name of a header");
    REFUSED(GET "a b: c\r\n\r\n", 400, "name of a header");
    REFUSED(GET "a\xc3\xa9: c\r\n\r\n", 400, "name of a header");
}

static void a_target_is_a_path_or_a_url(void **state)
{
    (void)state;
    static const struct {
        const char *line, *path, *query, *host;
    } cases[] = {
        {"GET / HTTP/1.1", "/", "", "field"},
        {"GET /a%20b%2Fc?x=%20&y HTTP/1.1", "/a b/c", "x=%20&y", "field"},
        {"GET /? HTTP/1.1", "/", "", "field"},
        {"GET /a%C2%9B HTTP/1.1", "/a\xc2\x9b", "", "field"},
        {"GET http://x.example:80/version?a HTTP/1.1", "/version", "a", "x.example:80"},
        {"GET HTTPS://x HTTP/1.1", "/", "", "x"},
        {"GET http://x?q HTTP/1.1", "/", "q", "x"},
        {"GET http://[::1]:8/a/../b HTTP/1.1", "/a/../b", "", "[::1]:8"},
        {"OPTIONS * HTTP/1.1", "*", "", "field"},
        {"GET //a HTTP/1.1", "//a", "", "field"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128], copy[128];
        struct head h;
        struct head_fault fault;
        int n = snprintf(text, sizeof text, "%s\r\nHost: field\r\n\r\n", cases[i].line);
        assert_int_equal(read_head(&h, copy, text, (size_t)n, 1, &fault), 0);
        assert_string_equal(h.path, cases[i].path);
        assert_string_equal(h.query, cases[i].query);
        assert_string_equal(h.host, cases[i].host);
    }
}

static void a_head_says_how_its_body_comes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_1_0, chunked, close, wants_continue;
        uint64_t length;
    } cases[] = {
        {GET "\r\n", false, false, false, false, 0},
        {"\r\n" GET "\r\n", false, false, false, false, 0},
        {"GET / HTTP/1.0\r\n\r\n", true, false, true, false, 0},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true, false, true, false, 0},
        {POST "Content-Length: 18446744073709551615\r\n\r\n", false, false, false, false,
         UINT64_MAX},
        {POST "content-length:  007\t\r\n\r\n", false, false, false, false, 7},
        {POST "Transfer-Encoding: Chunked\r\n\r\n", false, true, false, false, 0},
        {POST "Transfer-Encoding: , chunked ,\r\n\r\n", false, true, false, false, 0},
        {POST "Content-Length: 1\r\nExpect: 100-Continue\r\n\r\n", false, false, false, true, 1},
        {POST "Expect: 100-continue\r\n\r\n", false, false, false, false, 0},
        {POST "Connection: Keep-Alive, Close\r\n\r\n", false, false, true, false, 0},
        {POST "Connection: closed\r\n\r\n", false, false, false, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char copy[256];
        struct head h;
        struct head_fault fault;
        const char *text = cases[i].text;
        assert_int_equal(read_head(&h, copy, text, strlen(text), 1, &fault), 0);
        assert_int_equal(h.is_1_0, cases[i].is_1_0);
        assert_int_equal(h.chunked, cases[i].chunked);
        assert_int_equal(h.close, cases[i].close);
        assert_int_equal(h.wants_continue, cases[i].wants_continue);
        assert_true(h.length == cases[i].length);
    }
}

static void fields_and_arguments_are_found(void **state)
{
    (void)state;
    static const char text[] = "GET /a?stream=tr%75e&level=x%2By&bad=%00&long=12345678&=v "
                               "HTTP/1.1\r\nHost: x\r\nA: \t one, two \t\r\na: other\r\nEmpty:\r\n"
                               "High: \xc3\xa9\r\n\r\nGET";
    char copy[256], value[8];
    struct head h;
    struct head_fault fault;
    assert_int_equal(read_head(&h, copy, text, sizeof text - 1, 3, &fault), 0);
    assert_string_equal(h.method, "GET");
    assert_int_equal(h.n_field, 5);
    assert_string_equal(head_find(&h, "A"), "one, two");
    assert_string_equal(head_find(&h, "empty"), "");
    assert_string_equal(head_find(&h, "High"), "\xc3\xa9");
    assert_null(head_find(&h, "B"));
    assert_true(head_query(&h, "stream", value, sizeof value));
    assert_string_equal(value, "true");
    assert_true(head_query(&h, "level", value, sizeof value));
    assert_string_equal(value, "x+y");
    assert_true(head_query(&h, "long", value, sizeof value));
    assert_string_equal(value, "1234567");
    assert_false(head_query(&h, "bad", value, sizeof value));
    assert_false(head_query(&h, "tream", value, sizeof value));
}

static void a_head_has_a_size(void **state)
{
    (void)state;
    enum { MAX = LIMIT_HTTP_HEAD_BYTES };
    struct head h;
    struct head_fault fault;
    char *bytes = mem_alloc(2 * MAX), *copy = mem_alloc(2 * MAX);
    for (int more = 0; more < 2; more++) {
        size_t n = (size_t)MAX + (size_t)more;
        memset(bytes, 'a', n);
        memcpy(bytes, GET "X: ", sizeof GET "X: " - 1);
        memcpy(bytes + n - 4, "\r\n\r\n", 4);
        assert_int_equal(read_head(&h, copy, bytes, n, 1000, &fault), more ? 431 : 0);
    }
    for (int more = 0; more < 2; more++) {
        size_t n = sizeof GET - 1;
        memcpy(bytes, GET, n);
        for (int i = 1; i < HEAD_FIELDS_MAX + more; i++) {
            memcpy(bytes + n, "a:b\r\n", 5);
            n += 5;
        }
        memcpy(bytes + n, "\r\n", 2);
        assert_int_equal(read_head(&h, copy, bytes, n + 2, n, &fault), more ? 431 : 0);
    }
    mem_free(bytes);
    mem_free(copy);
}

static void half_a_head_is_none(void **state)
{
    (void)state;
    static const char text[] = GET "A: b\r\nC: d\r\n\r\n";
    char copy[128];
    struct head h;
    struct head_fault fault;
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        assert_int_equal(read_head(&h, copy, text, n, 1, &fault), -1);
    }
}

static void a_list_has_its_elements(void **state)
{
    (void)state;
    static const char list[] = " , close,\tX-One , x-two\r\nx-three, x-four";
    assert_true(head_lists(list, "Close", 5));
    assert_true(head_lists(list, "x-one: 1", 5)); /* n bytes of it */
    assert_true(head_lists(list, "X-TWO", 5));
    assert_false(head_lists(list, "x-three", 7));
    assert_false(head_lists(list, "x", 1));
    assert_false(head_lists(list, "close ", 6));
    assert_false(head_lists("", "", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_two_servers_could_read_differently_is_refused),
        cmocka_unit_test(codings_that_are_not_known_are_refused),
        cmocka_unit_test(a_head_names_its_host_once),
        cmocka_unit_test(the_request_line_has_one_form),
        cmocka_unit_test(a_target_is_a_path_or_a_url),
        cmocka_unit_test(a_head_says_how_its_body_comes),
        cmocka_unit_test(fields_and_arguments_are_found),
        cmocka_unit_test(a_head_has_a_size),
        cmocka_unit_test(half_a_head_is_none),
        cmocka_unit_test(a_list_has_its_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_host_address.c - hosts that a launcher has started tell each other where host 0 is
 *
 * The library of PMIx is a double (fake_pmix.c), which fails and hangs as it is told to. */
#include "comm/host_address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/pmix_client.h"
#include "comm/tcp_link.h"

enum { PATIENCE_US = 60000000, SHORT_US = 50000 };

static void a_line_is_read_as_it_was_written(void **state)
{
    (void)state;
    struct host_address a = {.port = 65535, .token = {true, {0x0123456789abcdef, 7}}}, b;
    char line[HOST_ADDRESS_BYTES];
    memset(a.host, 'h', HOST_NAME_BYTES - 1); /* the longest name */
    host_address_write(line, &a, true);
    b = (struct host_address){0};
    assert_int_equal(host_address_read(&b, line, NULL), FATHOM_OK);
    assert_string_equal(b.host, a.host);
    assert_int_equal(b.port, 65535);
    assert_true(b.token.is_set && b.token.key.lo == a.token.key.lo && b.token.key.hi == 7);
    host_address_write(line, &a, false); /* a token that both have */
    b.token = (struct pool_secret){.is_set = true, .key = {1, 2}};
    assert_int_equal(host_address_read(&b, line, NULL), FATHOM_OK);
    assert_true(b.token.is_set && b.token.key.lo == 1 && b.token.key.hi == 2);
}

static void what_is_no_line_is_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "",
        " ",
        "host",
        "host 1",
        "host 1 ",
        " 1 -",
        "host 0 -",
        "host 65536 -",
        "host 123456 -",
        "host -1 -",
        "host 1x -",
        "host  1 -",
        "host 1 --",
        "host 1 0123456789abcdef0123456789abcde",
        "host 1 0123456789abcdef0123456789abcdef0",
        "host 1 0123456789ABCDEF0123456789abcdef",
        "host 1 - -",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct host_address a = {0};
        fathom_diag d = {{0}};
        if (host_address_read(&a, lines[i], &d) != FATHOM_EFORMAT) fail_msg("%s", lines[i]);
        assert_non_null(strstr(d.text, "no address, port and token"));
    }
    struct host_address a = {0};
    char line[HOST_NAME_BYTES + 16];
    memset(line, 'h', HOST_NAME_BYTES);
    (void)snprintf(line + HOST_NAME_BYTES, 16, " 1 -");
    assert_int_equal(host_address_read(&a, line, NULL), FATHOM_EFORMAT);
}

#ifdef FATHOM_FAKE_PMIX
static void set(const char *name, const char *value)
{
    assert_int_equal(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

/* A process of a job of two. */
static void be(const char *rank, const char *n_local, const char *does)
{
    set("FAKE_RANK", rank);
    set("FAKE_SIZE", "2");
    set("FAKE_LOCAL", n_local);
    set("FAKE_PMIX", does);
    set("FAKE_TEXT", NULL);
    set("FAKE_PUT", NULL);
    set("FAKE_LEFT", NULL);
}

/* Host 0 tells; the other one finds a socket there, and has the token. */
static void check_meeting(const char *n_local, const char *host, bool has_token)
{
    struct host_address first = {.token = {has_token, {3, 4}}}, other = first;
    be("0", n_local, NULL);
    assert_int_equal(host_address_by_pmix(&first, 0, 2, PATIENCE_US, NULL), FATHOM_OK);
    assert_true(first.listen_fd > 0 && first.port > 0 && first.token.is_set);
    if (host) assert_string_equal(first.host, host);
    assert_non_null(getenv("FAKE_LEFT"));
    char told[HOST_ADDRESS_BYTES];
    (void)snprintf(told, sizeof told, "%s", getenv("FAKE_PUT"));
    assert_int_equal(strstr(told, " -") != NULL, has_token);
    be("1", n_local, NULL);
    set("FAKE_TEXT", told);
    assert_int_equal(host_address_by_pmix(&other, 1, 2, PATIENCE_US, NULL), FATHOM_OK);
    assert_string_equal(other.host, first.host);
    assert_int_equal(other.port, first.port);
    assert_int_equal(other.listen_fd, -1);
    assert_memory_equal(&other.token.key, &first.token.key, sizeof first.token.key);
    assert_int_equal(has_token, first.token.key.lo == 3 && first.token.key.hi == 4);
    struct page_link *link = NULL;
    const uint64_t end_us = clock_now_us() + PATIENCE_US;
    assert_int_equal(tcp_link_dial(&link, "127.0.0.1", other.port, end_us, -1, NULL), FATHOM_OK);
    link->ops->close(link);
    (void)close(first.listen_fd);
}

static void host_0_tells_the_others_where_it_is(void **state)
{
    (void)state;
    check_meeting("2", "127.0.0.1", false);
    check_meeting("2", "127.0.0.1", true);
    check_meeting("1", NULL, false); /* by its name, at every address */
}

static void what_goes_wrong_is_told_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *does, *rank, *text;
        uint32_t node_rank, n_node;
        fathom_err err;
        const char *message;
    } cases[] = {
        {"no_server", "0", NULL, 0, 2, FATHOM_EIO, "the launcher's server: UNREACHABLE"},
        {"no_size", "0", NULL, 0, 2, FATHOM_EIO, "the server has no pmix.job.size: NOT-FOUND"},
        {"put_fails", "0", NULL, 0, 2, FATHOM_EIO, "the address of host 0: ERROR"},
        {"fence_fails", "0", NULL, 0, 2, FATHOM_EIO, "not all 2 processes of job7 came: ERROR"},
        {"no_key", "1", "h 1 -", 1, 2, FATHOM_EIO, "rank 0 has told nothing: NOT-FOUND"},
        {"other_type", "1", "h 1 -", 1, 2, FATHOM_EIO, "no text of this program"},
        {NULL, "1", "a line of another program", 1, 2, FATHOM_EFORMAT, "no address, port and"},
        {NULL, "1", "h 1 -", 0, 2, FATHOM_EINVAL, "this process is rank 1 of PMIx's job job7"},
        {NULL, "1", "h 1 -", 1, 3, FATHOM_EINVAL, "PMIx's job job7 has 2 processes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct host_address a = {0};
        fathom_diag d = {{0}};
        be(cases[i].rank, "2", cases[i].does);
        set("FAKE_TEXT", cases[i].text);
        const fathom_err err =
            host_address_by_pmix(&a, cases[i].node_rank, cases[i].n_node, PATIENCE_US, &d);
        if (err != cases[i].err || !strstr(d.text, cases[i].message))
            fail_msg("%zu: %s: %s", i, cases[i].message, d.text);
        assert_null(strchr(d.text, '\n'));
        assert_int_equal(a.listen_fd, -1);
        const bool has_joined = strcmp(cases[i].does ? cases[i].does : "", "no_server") != 0;
        assert_int_equal(getenv("FAKE_LEFT") != NULL, has_joined);
    }
}

/* The thread that hangs stays, and so does what it may touch. */
static void a_launcher_that_does_not_answer_is_given_up(void **state)
{
    (void)state;
    static const char *const words[] = {"hang_init", "hang_fence", "hang_get"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct host_address a = {0};
        fathom_diag d = {{0}};
        be("1", "2", words[i]);
        set("FAKE_TEXT", "h 1 -");
        assert_int_equal(host_address_by_pmix(&a, 1, 2, SHORT_US, &d), FATHOM_EIO);
        if (!strstr(d.text, "no answer within 50 ms")) fail_msg("%s: %s", words[i], d.text);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_line_is_refused),
#ifdef FATHOM_FAKE_PMIX
        cmocka_unit_test(host_0_tells_the_others_where_it_is),
        cmocka_unit_test(what_goes_wrong_is_told_in_one_line),
        cmocka_unit_test(a_launcher_that_does_not_answer_is_given_up),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

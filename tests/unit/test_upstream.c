/* test_upstream.c - calls of a router on a server that is played here, in the same thread */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "router/upstream.h"
#include "support/patience.h"

static int n_begun, n_end;

static void take_begun(void *arg)
{
    (void)arg;
    n_begun++;
}

static void take_head(void *arg, int status, const struct buf *fields)
{
    (void)arg, (void)fields;
    assert_int_equal(status, 200);
}

static void take_end(void *arg, bool ok, const char *cause)
{
    (void)arg, (void)cause;
    assert_true(ok);
    n_end++;
}

static const struct upstream_ops ops = {.begun = take_begun, .head = take_head, .end = take_end};

static void send_call(struct upstream *u, const char *url)
{
    struct upstream_call *call;
    const struct upstream_request r = {
        .method = "POST", .url = url, .name = "", .fields = "", .ops = &ops};
    assert_int_equal(upstream_send(u, &r, &call), FATHOM_OK);
}

/* Answers the call under way over a new connection, which is returned. */
static int answer(struct upstream *u, int listen_fd)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    const int n_before = n_end;
    uint64_t end_us = 0;
    char request[512];
    int fd = -1;
    for (bool sent = false; n_end == n_before && keep_waiting(&end_us);) {
        upstream_run(u, true);
        if (fd < 0) fd = accept(listen_fd, NULL, NULL);
        if (fd < 0 || sent || recv(fd, request, sizeof request, MSG_DONTWAIT) <= 0) continue;
        sent = send(fd, text, sizeof text - 1, MSG_NOSIGNAL) == sizeof text - 1;
    }
    assert_int_equal(n_end, n_before + 1);
    return fd;
}

/* The connection is reset while it is idle, so the next request cannot even be sent over it. */
static void a_call_whose_kept_link_is_gone_begins_over_a_new_one(void **state)
{
    const struct linger reset = {.l_onoff = 1};
    const struct upstream_setup setup = {.tick_ms = 1000, .dial.connect_timeout_ms = 60000};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    struct upstream *u;
    char url[64];
    (void)state;
    int listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(listen_fd, (const struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(listen_fd, 4), 0);
    assert_int_equal(getsockname(listen_fd, (struct sockaddr *)&a, &n), 0);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/v1", ntohs(a.sin_port));
    assert_int_equal(upstream_open(&u, &setup, NULL), FATHOM_OK);
    send_call(u, url);
    int fd = answer(u, listen_fd);
    assert_int_equal(n_begun, 1);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    (void)close(fd);
    send_call(u, url);
    upstream_run(u, false); /* before it has seen that the link was reset */
    assert_int_equal(n_begun, 2);
    (void)close(answer(u, listen_fd));
    assert_int_equal(n_begun, 2);
    upstream_close(u);
    (void)close(listen_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_whose_kept_link_is_gone_begins_over_a_new_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

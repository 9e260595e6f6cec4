/* test_connection.c - connections without threads: turns, waiting exchanges, and their ends */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "http/connection.h"
#include "http/gate.h"
#include "http/head.h"

/* Exchanges that answer with their path; one of "/wait" waits to be woken. */
struct stage {
    struct connections all;
    int fds[2]; /* ours; the peer's */
    struct connection *waiting;
    int n_begun, n_ended, n_left;
};

struct part {
    struct stage *stage;
    struct connection *c;
    bool waits;
};

static struct part parts[256];

static void *begin(void *arg, struct connection *c, const struct head *h,
                   const struct head_fault *fault, bool *at_once)
{
    struct stage *s = arg;
    struct part *x = &parts[s->n_begun++ % 256];
    (void)fault, (void)at_once;
    *x = (struct part){s, c, h && strcmp(h->path, "/wait") == 0};
    return x;
}

static bool take(void *x, const char *bytes, size_t n)
{
    (void)x, (void)bytes, (void)n;
    return true;
}

static void reply(struct part *x)
{
    struct buf fields = {0}, body = {0};
    (void)buf_add_str(&body, "x");
    connection_reply(x->c, 200, &fields, &body, false);
}

static void answer(void *arg, const char *fault)
{
    struct part *x = arg;
    (void)fault;
    if (x->waits) {
        x->stage->waiting = x->c;
    } else {
        reply(x);
    }
}

static void go_on(void *arg)
{
    reply(arg);
}

static ssize_t read_nothing(void *x, char *bytes, size_t max)
{
    (void)x, (void)bytes, (void)max;
    return CONNECTION_STREAM_END;
}

static void left(void *arg)
{
    struct part *x = arg;
    x->stage->n_left++;
}

static void end(void *arg)
{
    struct part *x = arg;
    x->stage->n_ended++;
    x->stage->waiting = NULL;
}

static const struct connection_ops ops = {begin, take, answer, go_on, read_nothing, left, end};

static void open_stage(struct stage *s)
{
    static const struct gate_limits limits = {.max_connections = 4,
                                              .head_timeout_ms = 60000,
                                              .idle_timeout_ms = 60000,
                                              .body_timeout_ms = 60000,
                                              .unread_timeout_ms = 60000,
                                              .max_unread_bytes = 1 << 20};
    *s = (struct stage){.all = {.ops = &ops, .arg = s}};
    s->all.epoll_fd = epoll_create1(0);
    s->all.wake_fd = eventfd(0, EFD_NONBLOCK);
    assert_int_equal(gate_create(&s->all.gate, &limits), FATHOM_OK);
    assert_int_equal(connections_init(&s->all), FATHOM_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s->fds), 0);
    assert_int_equal(connection_open(&s->all, s->fds[0], ""), FATHOM_OK);
}

static void close_stage(struct stage *s)
{
    connections_free(&s->all);
    assert_int_equal(s->n_begun, s->n_ended);
    assert_int_equal(gate_n(s->all.gate), 0);
    gate_destroy(s->all.gate);
    (void)close(s->all.epoll_fd);
    (void)close(s->all.wake_fd);
    (void)close(s->fds[1]);
}

static void say(struct stage *s, const char *path, int n)
{
    struct buf b = {0};
    for (int i = 0; i < n; i++) (void)buf_printf(&b, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    assert_int_equal(send(s->fds[1], b.data, b.len, 0), b.len);
    buf_free(&b);
}

/* What epoll tells of the connection is taken; returns whether there was anything. */
static bool look(struct stage *s)
{
    struct epoll_event e;
    if (epoll_wait(s->all.epoll_fd, &e, 1, 0) != 1) return false;
    connection_take_event(e.data.ptr, e.events);
    return true;
}

static bool has_mail(struct stage *s)
{
    uint64_t count;
    bool has = read(s->all.wake_fd, &count, sizeof count) == sizeof count;
    if (has) assert_int_equal(write(s->all.wake_fd, &count, sizeof count), sizeof count);
    return has;
}

static void many_requests_take_turns(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s);
    say(&s, "/a", 100);
    assert_true(look(&s));
    int turn = s.n_ended;
    assert_true(turn > 0 && turn < 50);
    say(&s, "/a", 1); /* stays in the socket meanwhile */
    for (int done = turn; done < 100; done += turn) {
        assert_int_equal(s.n_ended, done);
        assert_false(look(&s));
        assert_true(has_mail(&s));
        connections_take_mail(&s.all);
    }
    assert_int_equal(s.n_ended, 100);
    assert_false(has_mail(&s));
    assert_true(look(&s));
    assert_int_equal(s.n_ended, 101);
    close_stage(&s);
}

static void who_waits_is_woken_and_reads_on(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s);
    say(&s, "/wait", 1);
    say(&s, "/a", 2);
    assert_true(look(&s));
    assert_non_null(s.waiting);
    assert_false(look(&s)); /* nothing is read while it waits */
    connection_wake(s.waiting);
    connection_wake(s.waiting);
    connections_take_mail(&s.all);
    assert_int_equal(s.n_ended, 3);
    assert_false(has_mail(&s));
    close_stage(&s);
}

static void who_leaves_while_it_waits_is_told_once(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s);
    say(&s, "/wait", 1);
    assert_true(look(&s));
    (void)shutdown(s.fds[1], SHUT_WR);
    assert_true(look(&s));
    assert_int_equal(s.n_left, 1);
    assert_false(look(&s));
    connection_wake(s.waiting); /* its answer is sent, since it may be read */
    connections_take_mail(&s.all);
    assert_int_equal(s.n_ended, 1);
    assert_true(look(&s)); /* now the end is read */
    assert_int_equal(gate_n(s.all.gate), 0);
    close_stage(&s);
}

/* A wake that comes with the end is not followed into freed memory. */
static void who_is_woken_and_gone_is_freed_once(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s);
    say(&s, "/wait", 1);
    assert_true(look(&s));
    struct connection *c = s.waiting;
    connection_wake(c);
    connection_shut(c);
    assert_true(look(&s));
    assert_int_equal(s.n_ended, 1);
    assert_int_equal(gate_n(s.all.gate), 0);
    connections_take_mail(&s.all);
    assert_int_equal(s.n_begun, 1);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_requests_take_turns),
        cmocka_unit_test(who_waits_is_woken_and_reads_on),
        cmocka_unit_test(who_leaves_while_it_waits_is_told_once),
        cmocka_unit_test(who_is_woken_and_gone_is_freed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

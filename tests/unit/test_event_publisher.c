/* test_event_publisher.c - what is kept of sent batches, endpoints, and over libzmq, where it is
 * there: answers to those who missed some */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "comm/event_backlog.h"
#include "comm/event_publisher.h"
#include "comm/zmq.h"
#include "support/patience.h"

enum { ZMQ_DEALER = 5, ZMQ_ROUTING_ID = 5, ZMQ_RCVHWM = 24, ZMQ_RCVTIMEO = 27 };
enum { TIMEOUT_MS = 120000, LARGE_PAGES = 64 };

/* ---- batches that are kept ------------------------------------------------------------------ */

static void the_last_batches_are_kept(void **state)
{
    (void)state;
    struct event_backlog *b;
    size_t n;
    assert_int_equal(event_backlog_create(&b, 3, 100, NULL), FATHOM_OK);
    assert_int_equal(event_backlog_first(b), event_backlog_end(b));
    for (char i = 0; i < 10; i++) {
        event_backlog_add(b, &i, 1);
        assert_int_equal(event_backlog_end(b), i + 1);
        assert_int_equal(event_backlog_first(b), i < 3 ? 0 : i - 2);
    }
    assert_int_equal(*(const char *)event_backlog_get(b, 8, &n), 8);
    assert_int_equal(n, 1);
    event_backlog_destroy(b);
}

static void so_many_bytes_are_kept_at_most(void **state)
{
    (void)state;
    struct event_backlog *b;
    static const char bytes[101];
    size_t n;
    assert_int_equal(event_backlog_create(&b, 10, 100, NULL), FATHOM_OK);
    event_backlog_add(b, bytes, 40);
    event_backlog_add(b, bytes, 60);
    assert_int_equal(event_backlog_first(b), 0);
    event_backlog_add(b, bytes, 41); /* two have to go */
    assert_int_equal(event_backlog_first(b), 2);
    (void)event_backlog_get(b, 2, &n);
    assert_int_equal(n, 41);
    event_backlog_add(b, bytes, 101); /* has no room by itself */
    assert_int_equal(event_backlog_first(b), 4);
    assert_int_equal(event_backlog_end(b), 4);
    event_backlog_add(b, bytes, 100);
    assert_int_equal(event_backlog_first(b), 4);
    event_backlog_destroy(b);
}

static void a_batch_without_memory_takes_the_older_ones_along(void **state)
{
    (void)state;
    struct event_backlog *b;
    mem_fail_after(1);
    assert_int_equal(event_backlog_create(&b, 3, 100, NULL), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_int_equal(event_backlog_create(&b, 3, 100, NULL), FATHOM_OK);
    event_backlog_add(b, "a", 1);
    mem_fail_after(0);
    event_backlog_add(b, "b", 1);
    mem_fail_after(-1);
    assert_int_equal(event_backlog_first(b), 2);
    assert_int_equal(event_backlog_end(b), 2);
    event_backlog_destroy(b);
}

/* ---- over libzmq ---------------------------------------------------------------------------- */

struct fixture {
    struct zmq_api zmq;
    void *context;
    char dir[32], endpoint[64], replay[64];
};

static bool has_zmq(struct zmq_api *zmq)
{
    fathom_diag d = {{0}};
    if (zmq_load(zmq, &d) == FATHOM_OK) return true;
    print_message("not run: %s\n", d.text);
    return false;
}

static bool open_fixture(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    if (!has_zmq(&f->zmq)) return false;
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/fathom-events-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->endpoint, sizeof f->endpoint, "ipc://%s/pub", f->dir);
    (void)snprintf(f->replay, sizeof f->replay, "ipc://%s/replay", f->dir);
    assert_non_null(f->context = f->zmq.zmq_ctx_new());
    return true;
}

static void close_fixture(struct fixture *f)
{
    assert_int_equal(f->zmq.zmq_ctx_term(f->context), 0);
    (void)unlink(f->endpoint + strlen("ipc://")); /* not all versions of the library do that */
    (void)unlink(f->replay + strlen("ipc://"));
    assert_int_equal(rmdir(f->dir), 0);
}

/* A socket that takes n_hold messages before they are read; name NULL: it has none. */
static void *connect_to(struct fixture *f, const char *endpoint, const char *name, int n_hold)
{
    const int timeout_ms = TIMEOUT_MS, none = 0;
    void *s = f->zmq.zmq_socket(f->context, ZMQ_DEALER);
    assert_non_null(s);
    if (name) assert_int_equal(f->zmq.zmq_setsockopt(s, ZMQ_ROUTING_ID, name, strlen(name)), 0);
    assert_int_equal(f->zmq.zmq_setsockopt(s, ZMQ_RCVHWM, &n_hold, sizeof n_hold), 0);
    assert_int_equal(f->zmq.zmq_setsockopt(s, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms), 0);
    assert_int_equal(f->zmq.zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none), 0);
    assert_int_equal(f->zmq.zmq_connect(s, endpoint), 0);
    return s;
}

/* Frames of a number and a batch; returns the batch's bytes, 0 at the end. */
static int take_answer(struct fixture *f, void *socket, bool has_delimiter, uint64_t *number,
                       char *batch, size_t n_max)
{
    unsigned char text[8];
    *number = 0;
    if (has_delimiter) assert_int_equal(f->zmq.zmq_recv(socket, text, sizeof text, 0), 0);
    assert_int_equal(f->zmq.zmq_recv(socket, text, sizeof text, 0), 8);
    for (int i = 0; i < 8; i++) *number = *number << 8 | text[i];
    const int n = f->zmq.zmq_recv(socket, batch, n_max, 0);
    assert_true(n >= 0 && (size_t)n <= n_max);
    return n;
}

static void ask_from(struct fixture *f, void *socket, bool has_delimiter, unsigned char first)
{
    const unsigned char text[8] = {0, 0, 0, 0, 0, 0, 0, first};
    if (has_delimiter) assert_int_equal(f->zmq.zmq_send(socket, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(f->zmq.zmq_send(socket, text, sizeof text, 0), 8);
}

static void nobody_waits(void *arg)
{
    (void)arg;
}

static struct page_feed *make_feed(uint32_t n_page, uint32_t n_event)
{
    const struct page_feed_config c = {
        .n_page = n_page, .n_key_id = KV_PAGE_TOKENS, .n_event = n_event, .secret = {3, 4}};
    struct page_feed *feed;
    assert_int_equal(page_feed_create(&feed, &c, NULL), FATHOM_OK);
    return feed;
}

/* A batch for each page. */
static void publish(struct event_publisher *p, struct page_feed *feed, uint32_t n,
                    const int32_t *ids)
{
    struct event_publisher_stats s = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t end_us = 0;
        page_feed_publish(feed, i, i > 0 ? i - 1 : UINT32_MAX, 0, 0, ids);
        assert_false(page_feed_tell(feed, 0, 10));
        event_publisher_wake(p);
        do {
            event_publisher_get_stats(p, &s);
        } while (s.n_batch <= i && keep_waiting(&end_us));
        assert_int_equal(s.n_batch, i + 1);
    }
    assert_int_equal(s.n_event[PAGE_STORED], n);
    assert_int_equal(s.n_event[PAGE_CLEARED], 1);
}

/* Batches 0 .. 9 were sent, and 7 .. 9 are kept. */
static void check_answers(struct fixture *f, void *socket, bool has_delimiter)
{
    uint64_t number;
    char batch[4096];
    for (unsigned char first = 0; first <= 11; first++) {
        uint64_t next = first < 7 ? 6 : first;
        ask_from(f, socket, has_delimiter, first);
        for (; take_answer(f, socket, has_delimiter, &number, batch, sizeof batch) > 0; next++) {
            /* behind the array of three, the time and the array of one event */
            const bool is_cleared = memcmp(batch + 11,
                                           "\x91\xb0"
                                           "AllBlocksCleared",
                                           18) == 0;
            assert_int_equal(number, next);
            assert_true(is_cleared == (next == 6));
        }
        assert_true(number == UINT64_MAX);
        assert_int_equal(next, first <= 10 ? 10 : first);
    }
}

/* A lane whose batches are large, and different. */
static void publish_large(struct event_publisher *p, struct page_feed *feed, uint32_t n,
                          const int32_t *ids)
{
    struct event_publisher_stats s = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t end_us = 0;
        for (uint32_t page = 0; page < LARGE_PAGES; page++)
            page_feed_publish(feed, page, page > 0 ? page - 1 : UINT32_MAX, i, 0, ids);
        assert_false(page_feed_tell(feed, i, 2 * LARGE_PAGES));
        event_publisher_wake(p);
        do {
            event_publisher_get_stats(p, &s);
        } while (s.n_event[PAGE_STORED] < LARGE_PAGES * (i + 1) && keep_waiting(&end_us));
        page_feed_void(feed);
    }
}

/* Five whole answers, of which the publisher holds but a few messages for each asker: those who ask
 * and do not read keep nobody from an answer, and get theirs when they do. */
static void answers_wait_for_their_reader_and_are_whole(void **state)
{
    (void)state;
    enum { N = 200, ASKED = 5, N_IDLE = 5 };
    static int32_t ids[KV_PAGE_TOKENS];
    static char batch[PUBLISHER_BATCH_EVENTS * 416];
    struct fixture f;
    struct event_publisher *p;
    struct event_publisher_stats s;
    void *idle[N_IDLE];
    uint64_t number, next;
    if (!open_fixture(&f)) skip();
    const struct event_publisher_config c = {.endpoint = f.endpoint,
                                             .replay_endpoint = f.replay,
                                             .topic = "",
                                             .n_kept = 10 * N,
                                             .hwm = 1,
                                             .n_lane = 1};
    for (int i = 0; i < KV_PAGE_TOKENS; i++) ids[i] = 100000 + i;
    assert_int_equal(event_publisher_open(&p, &c, NULL), FATHOM_OK);
    struct page_feed *feed = make_feed(LARGE_PAGES, 4 * LARGE_PAGES);
    assert_int_equal(event_publisher_start(p, &feed, nobody_waits, NULL, NULL), FATHOM_OK);
    publish_large(p, feed, N, ids);
    for (int i = 0; i < N_IDLE; i++) {
        idle[i] = connect_to(&f, f.replay, NULL, 1);
        ask_from(&f, idle[i], false, 0);
    }
    void *socket = connect_to(&f, f.replay, NULL, 1);
    for (int i = 0; i < ASKED; i++) ask_from(&f, socket, true, 0);
    for (int i = 0; i < ASKED; i++) {
        for (next = 0; take_answer(&f, socket, true, &number, batch, sizeof batch) > 0; next++)
            assert_int_equal(number, next);
        assert_true(number == UINT64_MAX);
        assert_true(next >= N);
    }
    event_publisher_get_stats(p, &s);
    assert_in_range(s.n_replay, ASKED - 1, ASKED); /* none of the idle ones */
    for (int i = 0; i < N_IDLE; i++) assert_int_equal(f.zmq.zmq_close(idle[i]), 0);
    assert_int_equal(f.zmq.zmq_close(socket), 0);
    event_publisher_close(p);
    page_feed_destroy(feed);
    close_fixture(&f);
}

static void who_missed_some_gets_them_or_is_told_to_forget(void **state)
{
    (void)state;
    struct fixture f;
    struct event_publisher *p;
    struct event_publisher_stats s;
    static const int32_t ids[KV_PAGE_TOKENS];
    if (!open_fixture(&f)) skip();
    const struct event_publisher_config c = {.endpoint = f.endpoint,
                                             .replay_endpoint = f.replay,
                                             .topic = "kv",
                                             .n_kept = 3,
                                             .hwm = 10,
                                             .n_lane = 1};
    assert_int_equal(event_publisher_open(&p, &c, NULL), FATHOM_OK);
    struct page_feed *feed = make_feed(64, 16);
    assert_int_equal(event_publisher_start(p, &feed, nobody_waits, NULL, NULL), FATHOM_OK);
    publish(p, feed, 10, ids);
    void *socket = connect_to(&f, f.replay, NULL, 100);
    assert_int_equal(f.zmq.zmq_send(socket, "no number", 9, 0), 9); /* no answer, and no harm */
    check_answers(&f, socket, true);
    check_answers(&f, socket, false);
    event_publisher_get_stats(p, &s);
    assert_true(s.n_replay >= 23); /* the last one of 24 may not be counted yet */
    assert_int_equal(f.zmq.zmq_close(socket), 0);
    event_publisher_close(p);
    page_feed_destroy(feed);
    close_fixture(&f);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct fixture f;
    if (!open_fixture(&f)) skip();
    const struct event_publisher_config c = {.endpoint = f.endpoint,
                                             .replay_endpoint = f.replay,
                                             .topic = "",
                                             .n_kept = 1,
                                             .hwm = 1,
                                             .n_lane = 1};
    for (long n = 0;; n++) {
        struct event_publisher *p;
        mem_fail_after(n);
        const fathom_err err = event_publisher_open(&p, &c, NULL);
        const bool hit = mem_fail_hit();
        mem_fail_after(-1);
        event_publisher_close(p);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        if (!hit) break;
    }
    close_fixture(&f);
}

/* Names of sockets have up to 255 bytes, and are part of what a connection begins with. */
static void whoever_has_a_name_is_answered(void **state)
{
    (void)state;
    struct fixture f;
    struct event_publisher *p;
    char name[256] = "", batch[64];
    uint64_t number;
    static const int32_t ids[KV_PAGE_TOKENS];
    if (!open_fixture(&f)) skip();
    const struct event_publisher_config c = {.endpoint = f.endpoint,
                                             .replay_endpoint = f.replay,
                                             .topic = "kv",
                                             .n_kept = 1,
                                             .hwm = 1,
                                             .n_lane = 1};
    assert_int_equal(event_publisher_open(&p, &c, NULL), FATHOM_OK);
    struct page_feed *feed = make_feed(64, 16);
    assert_int_equal(event_publisher_start(p, &feed, nobody_waits, NULL, NULL), FATHOM_OK);
    publish(p, feed, 1, ids);
    for (size_t n = 1; n < sizeof name; n += 127) {
        memset(name, 'n', n);
        void *socket = connect_to(&f, f.replay, name, 10);
        ask_from(&f, socket, false, 1);
        assert_int_equal(take_answer(&f, socket, false, &number, batch, sizeof batch), 0);
        assert_true(number == UINT64_MAX);
        assert_int_equal(f.zmq.zmq_close(socket), 0);
    }
    event_publisher_close(p);
    page_feed_destroy(feed);
    close_fixture(&f);
}

static void expect_refusal(const char *endpoint, const char *replay, uint32_t n_lane,
                           fathom_err err, const char *part)
{
    struct event_publisher *p;
    fathom_diag d = {{0}};
    const struct event_publisher_config c = {.endpoint = endpoint,
                                             .replay_endpoint = replay,
                                             .topic = "",
                                             .n_kept = 1,
                                             .hwm = 1,
                                             .n_lane = n_lane};
    assert_int_equal(event_publisher_open(&p, &c, &d), err);
    assert_null(p);
    if (!strstr(d.text, part)) fail_msg("%s: %s", endpoint, d.text);
}

static void endpoints_that_are_none_are_refused(void **state)
{
    (void)state;
    struct zmq_api zmq;
    static const char *const bad[] = {"",           "tcp://",      "tcp://*",     "tcp://*:0",
                                      "*:5557",     "tcp://:5557", "inproc://kv", "tcp://*:55x",
                                      "tcp://*:-1", "ipc://"};
    if (!has_zmq(&zmq)) skip();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refusal(bad[i], NULL, 1, FATHOM_EINVAL, "--kv-events-config: endpoint is");
    expect_refusal("tcp://*:65534", NULL, 4, FATHOM_EINVAL, "lane 2 has port 65536");
    expect_refusal("ipc:///none/such/folder/x", NULL, 1, FATHOM_EIO, "cannot be listened on");
    expect_refusal("tcp://localhost:1", "here", 1, FATHOM_EINVAL, "replay_endpoint is \"here\"");
}

static void a_path_that_another_has_is_left_to_it(void **state)
{
    (void)state;
    struct fixture f;
    struct event_publisher *p;
    if (!open_fixture(&f)) skip();
    const struct event_publisher_config c = {
        .endpoint = f.endpoint, .topic = "", .n_kept = 1, .hwm = 1, .n_lane = 1};
    assert_int_equal(event_publisher_open(&p, &c, NULL), FATHOM_OK);
    expect_refusal(f.endpoint, NULL, 1, FATHOM_EIO, "--kv-events-config: another program listens");
    event_publisher_close(p);
    FILE *file = fopen(f.replay + strlen("ipc://"), "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    expect_refusal(f.endpoint, f.replay, 1, FATHOM_EIO, "is there and is no socket");
    assert_int_equal(unlink(f.replay + strlen("ipc://")), 0); /* it is still there */
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_batches_are_kept),
        cmocka_unit_test(so_many_bytes_are_kept_at_most),
        cmocka_unit_test(a_batch_without_memory_takes_the_older_ones_along),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(who_missed_some_gets_them_or_is_told_to_forget),
        cmocka_unit_test(answers_wait_for_their_reader_and_are_whole),
        cmocka_unit_test(whoever_has_a_name_is_answered),
        cmocka_unit_test(endpoints_that_are_none_are_refused),
        cmocka_unit_test(a_path_that_another_has_is_left_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

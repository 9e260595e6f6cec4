/* event_publisher.c - one thread with the sockets of all lanes
 *
 * Invariants: sockets belong to the thread that opens them, and from event_publisher_start on to
 * the publisher's. Batch i of a lane has been sent, and added to the lane's backlog, before batch
 * i + 1 is made; so the backlog's end is the number of the next one.
 *
 * Whoever can reach a ROUTER socket can ask. An answer may have all that the backlog has, so it is
 * sent as it is read: a few messages wait for a connection, and ANSWERS_MAX answers are under way.
 * Further requests wait in their sockets. */
#include "comm/event_publisher.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/event_backlog.h"
#include "comm/event_pack.h"
#include "comm/zmq.h"

#define OPTION "--kv-events-config"

enum { ENDPOINT_BYTES = 256, FRAME_BYTES = 256, NUMBER_BYTES = 8 };
enum {
    KEEPALIVE_S = 60,
    REQUEST_BYTES_MAX = 1024, /* of a frame; a greeting has a name of up to 255 bytes in it */
    ANSWERS_MAX = 64,
    ANSWER_HWM = 64,               /* messages that wait for one connection */
    ANSWER_WAIT_MS = 1,            /* until it is asked again whether there is room for more */
    ANSWER_PATIENCE_US = 10000000, /* who takes nothing for so long finds its answer cut off */
};

/* An answer that is under way. */
struct answer {
    uint32_t lane;
    unsigned char id[FRAME_BYTES]; /* who asked */
    size_t n_id;
    bool has_delimiter; /* an empty frame before the number, as REQ sockets send and need it */
    bool is_done;
    uint64_t next;     /* batch */
    uint64_t moved_us; /* when a message of it was sent last */
};

struct publisher_lane {
    void *pub, *replay; /* NULL: none */
    struct page_feed *feed;
    struct event_backlog *backlog;
};

struct event_publisher {
    struct zmq_api zmq;
    void *context;
    uint32_t n_lane;
    char topic[FRAME_BYTES];
    struct publisher_lane lanes[PUBLISHER_LANES_MAX];
    struct buf batch;                   /* the thread's; has room for every batch */
    struct answer answers[ANSWERS_MAX]; /* n_answer of them, the oldest first */
    uint32_t n_answer;
    void (*wanted)(void *arg);
    void *arg;
    pthread_t thread;
    bool has_thread;
    int wake_fd;
    atomic_bool stops;
    atomic_uint_fast64_t n_event[PAGE_CLEARED + 1], n_batch, n_replay;
};

/* ---- endpoints ------------------------------------------------------------------------------ */

enum { IPC_BYTES = sizeof "ipc://" - 1 };
static bool is_ipc(const char *endpoint)
{
    return strncmp(endpoint, "ipc://", IPC_BYTES) == 0;
}

/* libzmq replaces whatever has the path, be it a file or the socket of another server. Whether a
 * process has the socket, one of another type tells without connecting. */
static fathom_err check_path(const char *path, fathom_diag *d)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct stat st;
    if (lstat(path, &st) != 0 || strlen(path) >= sizeof at.sun_path) return FATHOM_OK;
    if (!S_ISSOCK(st.st_mode))
        FAIL(d, FATHOM_EIO, OPTION ": %s is there and is no socket: give another path", path);
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool is_had = fd >= 0 && (connect(fd, (const struct sockaddr *)&at, sizeof at) == 0 ||
                                    errno == EPROTOTYPE);
    if (fd >= 0) (void)close(fd);
    if (is_had)
        FAIL(d, FATHOM_EIO, OPTION ": another program listens on %s: give another path", path);
    return FATHOM_OK;
}

/* A lane's endpoint of a kind that has one for each. */
static fathom_err write_endpoint(char out[ENDPOINT_BYTES], const char *what, const char *endpoint,
                                 uint32_t lane, fathom_diag *d)
{
    const char *colon = strrchr(endpoint, ':');
    const bool is_path = is_ipc(endpoint) && endpoint[IPC_BYTES];
    char *end = NULL;
    const unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    const bool is_port = strncmp(endpoint, "tcp://", 6) == 0 && colon > endpoint + 6 &&
                         colon[1] >= '0' && colon[1] <= '9' && !*end && port > 0;
    if ((!is_path && !is_port) || strlen(endpoint) + 8 > ENDPOINT_BYTES) {
        FAIL(d, FATHOM_EINVAL,
             OPTION ": %s is \"%.80s\", needed is tcp://HOST:PORT, tcp://*:PORT or ipc://PATH",
             what, endpoint);
    }
    if (is_port && port + lane > UINT16_MAX) {
        FAIL(d, FATHOM_EINVAL, OPTION ": %s %.80s: lane %u has port %lu, needed is 65535 at most",
             what, endpoint, lane, port + lane);
    }
    if (is_port) {
        (void)snprintf(out, ENDPOINT_BYTES, "%.*s:%lu", (int)(colon - endpoint), endpoint,
                       port + lane);
    } else if (lane > 0) {
        (void)snprintf(out, ENDPOINT_BYTES, "%s_dp%u", endpoint, lane);
    } else {
        (void)snprintf(out, ENDPOINT_BYTES, "%s", endpoint);
    }
    return FATHOM_OK;
}

/* vLLM's rule: a name or an address is somebody else's. */
static bool is_own(const char *endpoint)
{
    return strchr(endpoint, '*') || strstr(endpoint, "::") || strstr(endpoint, "//0.0.0.0:") ||
           is_ipc(endpoint);
}

static int set(struct event_publisher *p, void *socket, int option, int value)
{
    return p->zmq.zmq_setsockopt(socket, option, &value, sizeof value);
}

/* A socket whose options are set. MANDATORY: a message of an answer that finds no room is not
 * dropped, but refused. */
static void *make_socket(struct event_publisher *p, int kind, int hwm, bool has_ipv6)
{
    const int64_t n_max = REQUEST_BYTES_MAX;
    void *s = p->zmq.zmq_socket(p->context, kind);
    if (!s) return NULL;
    if (set(p, s, ZMQ_LINGER, 0) == 0 && set(p, s, ZMQ_SNDHWM, hwm) == 0 &&
        set(p, s, ZMQ_IPV6, has_ipv6) == 0 && set(p, s, ZMQ_TCP_KEEPALIVE, 1) == 0 &&
        set(p, s, ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_S) == 0 &&
        (kind == ZMQ_PUB || (set(p, s, ZMQ_ROUTER_MANDATORY, 1) == 0 &&
                             p->zmq.zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &n_max, sizeof n_max) == 0)))
        return s;
    (void)p->zmq.zmq_close(s);
    return NULL;
}

static fathom_err open_socket(struct event_publisher *p, void **out, int kind, const char *endpoint,
                              int hwm, fathom_diag *d)
{
    const bool listens = kind == ZMQ_ROUTER || is_own(endpoint);
    if (is_ipc(endpoint)) TRY(check_path(endpoint + IPC_BYTES, d));
    *out = make_socket(p, kind, hwm, strstr(endpoint, "::") != NULL);
    if (*out &&
        (listens ? p->zmq.zmq_bind(*out, endpoint) : p->zmq.zmq_connect(*out, endpoint)) == 0)
        return FATHOM_OK;
    FAIL(d, FATHOM_EIO, OPTION ": %s cannot be %s: %s", endpoint,
         listens ? "listened on" : "connected to", p->zmq.zmq_strerror(p->zmq.zmq_errno()));
}

static fathom_err open_lane(struct event_publisher *p, const struct event_publisher_config *c,
                            uint32_t i, fathom_diag *d)
{
    struct publisher_lane *l = &p->lanes[i];
    char endpoint[ENDPOINT_BYTES];
    TRY(write_endpoint(endpoint, "endpoint", c->endpoint, i, d));
    TRY(open_socket(p, &l->pub, ZMQ_PUB, endpoint, (int)c->hwm, d));
    TRY(event_backlog_create(&l->backlog, c->n_kept, PUBLISHER_BACKLOG_BYTES, d));
    if (!c->replay_endpoint) return FATHOM_OK;
    TRY(write_endpoint(endpoint, "replay_endpoint", c->replay_endpoint, i, d));
    return open_socket(p, &l->replay, ZMQ_ROUTER, endpoint, ANSWER_HWM, d);
}

static fathom_err open_all(struct event_publisher *p, const struct event_publisher_config *c,
                           fathom_diag *d)
{
    TRY(zmq_load(&p->zmq, d));
    if (buf_reserve(&p->batch, PUBLISHER_BATCH_EVENTS * EVENT_PACK_BYTES) != FATHOM_OK)
        FAIL(d, FATHOM_ENOMEM, "no memory to write events");
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->context = p->zmq.zmq_ctx_new();
    if (!p->context || p->wake_fd < 0)
        FAIL(d, FATHOM_EIO, OPTION ": no sockets: %s", strerror(errno));
    for (uint32_t i = 0; i < p->n_lane; i++) TRY(open_lane(p, c, i, d));
    return FATHOM_OK;
}

fathom_err event_publisher_open(struct event_publisher **out,
                                const struct event_publisher_config *c, fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->n_lane >= 1 && c->n_lane <= PUBLISHER_LANES_MAX && c->n_kept >= 1 && c->hwm >= 1);
    if (strlen(c->topic) >= FRAME_BYTES)
        FAIL(d, FATHOM_EINVAL, OPTION ": topic has %zu bytes, at most %d", strlen(c->topic),
             FRAME_BYTES - 1);
    struct event_publisher *p = mem_calloc(1, sizeof *p);
    if (!p) FAIL(d, FATHOM_ENOMEM, "no memory to publish events");
    p->wake_fd = -1;
    p->n_lane = c->n_lane;
    (void)snprintf(p->topic, sizeof p->topic, "%s", c->topic);
    const fathom_err err = open_all(p, c, d);
    if (err) {
        event_publisher_close(p);
        return err;
    }
    LOG_INFO("kv", "events %s=%s replay=%s topic=\"%s\" lanes=%u: they tell of prompts",
             is_own(c->endpoint) ? "listens" : "connects", c->endpoint,
             c->replay_endpoint ? c->replay_endpoint : "", c->topic, c->n_lane);
    *out = p;
    return FATHOM_OK;
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void write_number(unsigned char out[NUMBER_BYTES], uint64_t number)
{
    for (unsigned i = 0; i < NUMBER_BYTES; i++)
        out[i] = (unsigned char)(number >> 8 * (NUMBER_BYTES - 1 - i));
}

static bool send_frame(struct event_publisher *p, void *socket, const void *bytes, size_t n,
                       bool more)
{
    return p->zmq.zmq_send(socket, bytes, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

static void pack(struct event_publisher *p, const struct page_event *events, uint32_t n,
                 uint32_t lane)
{
    buf_clear(&p->batch);
    const fathom_err err = event_pack(&p->batch, (double)clock_unix_ns() / 1e9, events, n, lane);
    ASSERT(err == FATHOM_OK);
}

/* Sends the events that a lane's feed has in a row, as one batch; returns how many. */
static uint32_t send_batch(struct event_publisher *p, uint32_t lane)
{
    struct publisher_lane *l = &p->lanes[lane];
    unsigned char number[NUMBER_BYTES];
    const struct page_event *events;
    uint32_t n = page_feed_peek(l->feed, &events);
    if (n > PUBLISHER_BATCH_EVENTS) n = PUBLISHER_BATCH_EVENTS;
    if (n == 0) return 0;
    pack(p, events, n, lane);
    write_number(number, event_backlog_end(l->backlog));
    (void)(send_frame(p, l->pub, p->topic, strlen(p->topic), true) &&
           send_frame(p, l->pub, number, sizeof number, true) &&
           send_frame(p, l->pub, p->batch.data, p->batch.len, false));
    event_backlog_add(l->backlog, p->batch.data, p->batch.len);
    for (uint32_t i = 0; i < n; i++) atomic_fetch_add(&p->n_event[events[i].kind], 1);
    atomic_fetch_add(&p->n_batch, 1);
    if (page_feed_drop(l->feed, n)) p->wanted(p->arg);
    return n;
}

/* The frames of a message, of which the first FRAMES_MAX are kept; returns how many it has. */
enum { FRAMES_MAX = 3 };
static unsigned read_frames(struct event_publisher *p, void *socket,
                            unsigned char frames[FRAMES_MAX][FRAME_BYTES], int sizes[FRAMES_MAX])
{
    unsigned char rest[FRAME_BYTES];
    unsigned n = 0;
    int more = 1;
    for (size_t n_more = sizeof more; more; n++) {
        const bool kept = n < FRAMES_MAX;
        const int size =
            p->zmq.zmq_recv(socket, kept ? frames[n] : rest, FRAME_BYTES, ZMQ_DONTWAIT);
        if (size < 0) return 0;
        if (kept) sizes[n] = size;
        if (p->zmq.zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &n_more) != 0) return 0;
    }
    return n;
}

static bool read_request(struct event_publisher *p, uint32_t lane, struct answer *out)
{
    unsigned char frames[FRAMES_MAX][FRAME_BYTES];
    int sizes[FRAMES_MAX] = {0};
    const unsigned n = read_frames(p, p->lanes[lane].replay, frames, sizes);
    if (n < 2 || n > FRAMES_MAX || sizes[0] > FRAME_BYTES || sizes[n - 1] != NUMBER_BYTES ||
        (n == FRAMES_MAX && sizes[1] != 0))
        return false;
    *out = (struct answer){.lane = lane,
                           .n_id = (size_t)sizes[0],
                           .has_delimiter = n == FRAMES_MAX,
                           .moved_us = clock_now_us()};
    memcpy(out->id, frames[0], out->n_id);
    for (unsigned i = 0; i < NUMBER_BYTES; i++) out->next = out->next << 8 | frames[n - 1][i];
    return true;
}

/* False when whoever asked has left, or has no room: then that is so of the first frame. */
static bool send_answer(struct event_publisher *p, const struct answer *a, uint64_t number,
                        const void *bytes, size_t n)
{
    void *socket = p->lanes[a->lane].replay;
    unsigned char text[NUMBER_BYTES];
    write_number(text, number);
    return send_frame(p, socket, a->id, a->n_id, true) &&
           (!a->has_delimiter || send_frame(p, socket, "", 0, true)) &&
           send_frame(p, socket, text, sizeof text, true) && send_frame(p, socket, bytes, n, false);
}

/* The next message of an answer. Batches may leave the backlog before it has come to them: from
 * there on it begins anew, as one that asked for them too late. */
static bool send_next(struct event_publisher *p, struct answer *a)
{
    static const struct page_event cleared = {.kind = PAGE_CLEARED};
    const struct event_backlog *b = p->lanes[a->lane].backlog;
    const uint64_t first = event_backlog_first(b);
    if (a->next < first) {
        pack(p, &cleared, 1, a->lane);
        if (!send_answer(p, a, first - 1, p->batch.data, p->batch.len)) return false;
        a->next = first;
    } else if (a->next < event_backlog_end(b)) {
        size_t n;
        const void *bytes = event_backlog_get(b, a->next, &n);
        if (!send_answer(p, a, a->next, bytes, n)) return false;
        a->next++;
    } else {
        if (!send_answer(p, a, UINT64_MAX, "", 0)) return false;
        a->is_done = true;
        atomic_fetch_add(&p->n_replay, 1);
    }
    return true;
}

/* Goes on with an answer, as far as it is read. */
static void go_on(struct event_publisher *p, struct answer *a, uint64_t now_us)
{
    for (int i = 0; i < ANSWER_HWM && !a->is_done; i++) {
        if (send_next(p, a)) {
            a->moved_us = now_us;
            continue;
        }
        a->is_done = p->zmq.zmq_errno() != EAGAIN || now_us - a->moved_us > ANSWER_PATIENCE_US;
        return;
    }
}

/* Whether another answer to the same asker comes before answer i. */
static bool has_earlier(const struct event_publisher *p, uint32_t i)
{
    const struct answer *a = &p->answers[i];
    for (const struct answer *b = p->answers; b < a; b++) {
        if (b->lane == a->lane && b->n_id == a->n_id && memcmp(b->id, a->id, a->n_id) == 0)
            return true;
    }
    return false;
}

static void go_on_all(struct event_publisher *p)
{
    const uint64_t now_us = clock_now_us();
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_answer; i++) {
        if (has_earlier(p, i)) {
            p->answers[i].moved_us = now_us;
        } else {
            go_on(p, &p->answers[i], now_us);
        }
    }
    for (uint32_t i = 0; i < p->n_answer; i++) {
        if (!p->answers[i].is_done) p->answers[n++] = p->answers[i];
    }
    p->n_answer = n;
}

static void *publish_main(void *arg)
{
    struct event_publisher *p = arg;
    struct zmq_item items[1 + PUBLISHER_LANES_MAX] = {{.fd = p->wake_fd, .events = ZMQ_POLLIN}};
    uint64_t n_wake;
    int n_item = 1;
    os_name_thread("kv-events");
    for (uint32_t i = 0; i < p->n_lane && p->lanes[i].replay; i++)
        items[n_item++] = (struct zmq_item){.socket = p->lanes[i].replay, .events = ZMQ_POLLIN};
    for (bool stops = false; !stops;) {
        const int n = p->n_answer < ANSWERS_MAX ? n_item : 1;
        if (p->zmq.zmq_poll(items, n, p->n_answer > 0 ? ANSWER_WAIT_MS : -1) < 0)
            continue; /* a signal */
        stops = atomic_load(&p->stops);
        if (items[0].revents) (void)!read(p->wake_fd, &n_wake, sizeof n_wake);
        for (uint32_t i = 0; i < p->n_lane; i++) {
            while (send_batch(p, i) > 0) {
            }
        }
        for (int i = 1; i < n && p->n_answer < ANSWERS_MAX; i++) {
            if (items[i].revents && read_request(p, (uint32_t)i - 1, &p->answers[p->n_answer]))
                p->n_answer++;
        }
        go_on_all(p);
    }
    return NULL;
}

fathom_err event_publisher_start(struct event_publisher *p, struct page_feed *const *feeds,
                                 void (*wanted)(void *arg), void *arg, fathom_diag *d)
{
    ASSERT(!p->has_thread);
    p->wanted = wanted;
    p->arg = arg;
    for (uint32_t i = 0; i < p->n_lane; i++) p->lanes[i].feed = feeds[i];
    p->has_thread = pthread_create(&p->thread, NULL, publish_main, p) == 0;
    if (!p->has_thread) FAIL(d, FATHOM_EIO, "the thread that publishes events cannot be started");
    return FATHOM_OK;
}

void event_publisher_wake(struct event_publisher *p)
{
    (void)eventfd_write(p->wake_fd,
                        1); /* it fails when it was woken 2^64 - 2 times, and is awake */
}

void event_publisher_get_stats(const struct event_publisher *p, struct event_publisher_stats *out)
{
    for (int i = 0; i <= PAGE_CLEARED; i++) out->n_event[i] = atomic_load(&p->n_event[i]);
    out->n_batch = atomic_load(&p->n_batch);
    out->n_replay = atomic_load(&p->n_replay);
}

void event_publisher_close(struct event_publisher *p)
{
    if (!p) return;
    if (p->has_thread) {
        atomic_store(&p->stops, true);
        event_publisher_wake(p);
        pthread_join(p->thread, NULL);
    }
    for (uint32_t i = 0; i < p->n_lane; i++) {
        if (p->lanes[i].pub) (void)p->zmq.zmq_close(p->lanes[i].pub);
        if (p->lanes[i].replay) (void)p->zmq.zmq_close(p->lanes[i].replay);
        event_backlog_destroy(p->lanes[i].backlog);
    }
    if (p->context) (void)p->zmq.zmq_ctx_term(p->context);
    if (p->wake_fd >= 0) (void)close(p->wake_fd);
    buf_free(&p->batch);
    mem_free(p);
}

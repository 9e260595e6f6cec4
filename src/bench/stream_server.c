/* stream_server.c - one thread serves, one keeps the pace
 *
 * An exchange is in the list from the end of its body on; the list and `n_due` are under `lock`,
 * the rest of an exchange is its connection's thread's.
 */
#include "bench/stream_server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/stream_pass.h"
#include "http/gate.h"
#include "http/head.h"
#include "http/listen.h"
#include "http/loop.h"

enum { CONNECTIONS = 64, TIMEOUT_MS = 60000, EVENT_BYTES = 256 };

struct exchange {
    struct stream_server *server;
    struct connection *connection;
    bool is_look, has_pass;
    uint32_t n_sent, n_due; /* events; STREAM_EVENTS + 1 with the last one */
    struct exchange *next;
};

struct stream_server {
    struct gate *gate;
    struct loop *loop;
    int listen_fd;
    uint16_t port;
    pthread_t pacer;
    bool has_pacer;
    atomic_bool ends;
    pthread_mutex_t lock;
    struct exchange *first;
};

static void *begin(void *arg, struct connection *c, const struct head *h,
                   const struct head_fault *fault, bool *at_once)
{
    (void)fault;
    (void)at_once;
    struct exchange *x = h ? mem_calloc(1, sizeof *x) : NULL;
    if (!x) return NULL;
    x->server = arg;
    x->connection = c;
    x->is_look = strcmp(h->path, "/load") == 0;
    x->has_pass = head_find(h, STREAM_PASS_HEADER) != NULL;
    return x;
}

static bool take(void *arg, const char *bytes, size_t n)
{
    (void)arg;
    (void)bytes;
    (void)n;
    return true;
}

static void answer_look(struct exchange *x)
{
    struct buf fields = {0}, body = {0};
    fathom_err err = buf_add_str(&fields, "Content-Type: application/json\r\n");
    if (!err) {
        err = buf_add_str(&body, "{\"accepts\":true,\"max_running\":64,\"moves_streams\":true,"
                                 "\"numerics\":\"1\"}");
    }
    if (err) {
        connection_end(x->connection);
    } else {
        connection_reply(x->connection, 200, &fields, &body, false);
    }
    buf_free(&fields);
    buf_free(&body);
}

static void answer(void *arg, const char *fault)
{
    struct exchange *x = arg;
    struct buf fields = {0};
    if (fault || buf_add_str(&fields, "Content-Type: text/event-stream\r\n") != FATHOM_OK) {
        connection_end(x->connection);
    } else if (x->is_look) {
        answer_look(x);
    } else {
        pthread_mutex_lock(&x->server->lock);
        x->n_due = 1;
        x->next = x->server->first;
        x->server->first = x;
        pthread_mutex_unlock(&x->server->lock);
        connection_stream(x->connection, 200, &fields, false);
    }
    buf_free(&fields);
}

static void go_on(void *arg)
{
    (void)arg; /* the stream is read on */
}

static ssize_t read_stream(void *arg, char *bytes, size_t max)
{
    struct exchange *x = arg;
    if (x->n_sent > STREAM_EVENTS) return CONNECTION_STREAM_END;
    pthread_mutex_lock(&x->server->lock);
    bool is_due = x->n_sent < x->n_due;
    pthread_mutex_unlock(&x->server->lock);
    if (!is_due || max < EVENT_BYTES) return 0;
    int n;
    if (x->n_sent == STREAM_EVENTS) {
        n = snprintf(bytes, max, "data: [DONE]\n\n");
    } else {
        n = snprintf(bytes, max,
                     "data: {\"sent_ns\":%llu,\"object\":\"chat.completion.chunk\",\"choices\":"
                     "[{\"index\":0,\"delta\":{\"content\":\" tide\"},\"finish_reason\":null}]}"
                     "\n\n%s",
                     (unsigned long long)clock_now_ns(), x->has_pass ? ": token 7\n\n" : "");
    }
    x->n_sent++;
    return n;
}

static void left(void *arg)
{
    struct exchange *x = arg;
    connection_end(x->connection);
}

static void end(void *arg)
{
    struct exchange *x = arg;
    pthread_mutex_lock(&x->server->lock);
    for (struct exchange **at = &x->server->first; *at; at = &(*at)->next) {
        if (*at != x) continue;
        *at = x->next;
        break;
    }
    pthread_mutex_unlock(&x->server->lock);
    mem_free(x);
}

static const struct connection_ops ops = {.begin = begin,
                                          .take = take,
                                          .answer = answer,
                                          .go_on = go_on,
                                          .read = read_stream,
                                          .left = left,
                                          .end = end};

static void *keep_pace(void *arg)
{
    struct stream_server *s = arg;
    while (!atomic_load(&s->ends)) {
        clock_sleep_us(STREAM_PACE_US);
        pthread_mutex_lock(&s->lock);
        for (struct exchange *x = s->first; x; x = x->next) {
            if (x->n_due > STREAM_EVENTS) continue;
            x->n_due++;
            connection_wake(x->connection);
        }
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static fathom_err open_all(struct stream_server *s, fathom_diag *d)
{
    const struct gate_limits limits = {.max_connections = CONNECTIONS,
                                       .head_timeout_ms = TIMEOUT_MS,
                                       .idle_timeout_ms = TIMEOUT_MS,
                                       .body_timeout_ms = TIMEOUT_MS,
                                       .unread_timeout_ms = TIMEOUT_MS,
                                       .max_unread_bytes = 1 << 20};
    TRY(gate_create(&s->gate, &limits));
    TRY(listen_bind_tcp("127.0.0.1", 0, &s->listen_fd, &s->port, d));
    TRY(listen_begin(s->listen_fd, d));
    const struct loop_setup setup = {.name = "scripted",
                                     .n_thread = 1,
                                     .listen_fd = s->listen_fd,
                                     .gate = s->gate,
                                     .ops = &ops,
                                     .arg = s};
    TRY(loop_open(&s->loop, &setup, d));
    if (pthread_create(&s->pacer, NULL, keep_pace, s) != 0) {
        FAIL(d, FATHOM_EIO, "no thread for the pace of the bench's server");
    }
    s->has_pacer = true;
    return FATHOM_OK;
}

fathom_err stream_server_open(struct stream_server **out, fathom_diag *d)
{
    struct stream_server *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) FAIL(d, FATHOM_ENOMEM, "no memory for the bench's server");
    s->listen_fd = -1;
    (void)pthread_mutex_init(&s->lock, NULL);
    fathom_err err = open_all(s, d);
    if (err) {
        stream_server_close(s);
        return err;
    }
    *out = s;
    return FATHOM_OK;
}

/* The pace ends first: it wakes connections of the loop. */
void stream_server_close(struct stream_server *s)
{
    if (!s) return;
    atomic_store(&s->ends, true);
    if (s->has_pacer) pthread_join(s->pacer, NULL);
    loop_close(s->loop);
    gate_destroy(s->gate);
    if (s->listen_fd >= 0) (void)close(s->listen_fd);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

uint16_t stream_server_port(const struct stream_server *s)
{
    return s->port;
}

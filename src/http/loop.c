/* loop.c - accepting connections and waiting for events
 *
 * A thread listens until there is no place or no descriptor for a connection. Then it pauses, and
 * new connections wait in the system's queue. */
#define _GNU_SOURCE /* accept4 */
#include "http/loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "http/gate.h"

enum {
    EVENTS = 1024,
    ACCEPT_AT_ONCE = 256, /* many, so that new connections do not wait for what others still send */
    BODIES_AT_ONCE = 32,  /* connections that send bodies and get a turn in one round */
    TICK_MS = 250,
    PAUSE_MS = 20,
    SHUT_MS = 1000, /* how long loop_close waits for connections to end */
    TELL_US = 60000000,
};

struct loop_thread {
    struct loop *loop;
    struct connections connections;
    const struct loop_guest *guest; /* NULL: none */
    pthread_t thread;
    bool started;
    bool listens;
    uint32_t next_body; /* which of the connections that send bodies is next, modulo their number */
};

struct loop {
    struct loop_setup setup;
    struct loop_thread *threads; /* [setup.n_thread] */
    atomic_bool ending;
    uint64_t swept_us;            /* used by the first thread only */
    atomic_uint_fast64_t told_us; /* when a lack of descriptors was logged last; 0: never */
};

/* ---- accepting ----------------------------------------------------------------------------- */

static void listen_again(struct loop_thread *self)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.ptr = self};
    if (self->listens) return;
    self->listens =
        epoll_ctl(self->connections.epoll_fd, EPOLL_CTL_ADD, self->loop->setup.listen_fd, &e) == 0;
}

static void pause_listening(struct loop_thread *self)
{
    if (!self->listens) return;
    (void)epoll_ctl(self->connections.epoll_fd, EPOLL_CTL_DEL, self->loop->setup.listen_fd, NULL);
    self->listens = false;
}

/* The client's address; "" for a socket file. */
static void name_remote(char out[REMOTE_BYTES], const struct sockaddr_storage *a)
{
    const void *bytes = a->ss_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
    out[0] = '\0';
    if (a->ss_family != AF_INET && a->ss_family != AF_INET6) return;
    (void)inet_ntop(a->ss_family, bytes, out, REMOTE_BYTES);
}

/* There is no descriptor for a new connection: cuts one of the slowest. */
static void make_room(struct loop *l, int error)
{
    uint64_t now_us = clock_now_us(), told_us = atomic_load(&l->told_us);
    bool dropped = gate_drop_slowest(l->setup.gate, now_us);
    if (told_us && now_us < told_us + TELL_US) return;
    if (!atomic_compare_exchange_strong(&l->told_us, &told_us, now_us)) return;
    LOG_WARN("server", "a connection cannot be taken: %s; %s", strerror(error),
             dropped ? "the slowest is closed for it" : "all are busy, it waits");
}

/* Returns whether there may be more to accept. */
static bool accept_one(struct loop_thread *self)
{
    struct loop *l = self->loop;
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof from;
    char remote[REMOTE_BYTES];
    int one = 1;
    if (gate_is_full(l->setup.gate)) {
        pause_listening(self);
        return false;
    }
    int fd =
        accept4(l->setup.listen_fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EINTR || errno == ECONNABORTED) return true;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
        make_room(l, errno);
        pause_listening(self);
        return false;
    }
    name_remote(remote, &from);
    if (remote[0]) (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fathom_err err = connection_open(&self->connections, fd, remote);
    if (err) LOG_DEBUG("server", "a connection is not taken: %s", fathom_err_text(err));
    return true;
}

/* Accepts at most half of the limit, so that no new connection is cut before it had a turn. */
static void accept_some(struct loop_thread *self)
{
    uint32_t half = gate_max(self->loop->setup.gate) / 2;
    uint32_t n = half < 1 ? 1 : half < ACCEPT_AT_ONCE ? half : ACCEPT_AT_ONCE;
    while (n > 0 && accept_one(self)) n--;
}

/* ---- a thread ------------------------------------------------------------------------------ */

static void sweep(struct loop_thread *self)
{
    struct loop *l = self->loop;
    uint64_t now_us = clock_now_us();
    if (self != &l->threads[0] || now_us - l->swept_us < (uint64_t)TICK_MS * 1000) return;
    l->swept_us = now_us;
    (void)gate_sweep(l->setup.gate, now_us);
}

/* Handles all events but those of connections that send bodies. Returns how many these are; their
 * events are then at the beginning of `events`. */
static uint32_t take_events(struct loop_thread *self, struct epoll_event *events, int n,
                            bool *comes, bool *has_guest)
{
    uint32_t n_body = 0;
    for (int i = 0; i < n; i++) {
        void *who = events[i].data.ptr;
        if (who == self) {
            *comes = true;
        } else if (who == self->guest) {
            *has_guest = true;
        } else if (who != &self->connections) {
            if (connection_sends_body(who)) {
                events[n_body++] = events[i];
            } else {
                connection_take_event(who, events[i].events);
            }
        }
    }
    return n_body;
}

/* Gives some connections that send bodies a turn. Epoll reports the others again in the next round.
 * */
static void take_bodies(struct loop_thread *self, const struct epoll_event *events, uint32_t n_body)
{
    uint32_t n = n_body < BODIES_AT_ONCE ? n_body : BODIES_AT_ONCE;
    for (uint32_t k = 0; k < n; k++) {
        const struct epoll_event *e = &events[(self->next_body + k) % n_body];
        connection_take_event(e->data.ptr, e->events);
    }
    self->next_body += n;
}

static int wait_ms(const struct loop_thread *self)
{
    int ms = self->listens ? TICK_MS : PAUSE_MS;
    if (connections_has_mail(&self->connections)) return 0;
    int guest_ms = self->guest ? self->guest->wait_ms(self->guest->arg) : ms;
    return guest_ms < ms ? guest_ms : ms;
}

static void *thread_main(void *arg)
{
    struct loop_thread *self = arg;
    struct loop *l = self->loop;
    struct epoll_event events[EVENTS];
    os_name_thread(l->setup.name);
    connections_runs_here(&self->connections);
    listen_again(self);
    while (!atomic_load(&l->ending)) {
        bool was_listening = self->listens, comes = false, has_guest = false;
        int n = epoll_wait(self->connections.epoll_fd, events, EVENTS, wait_ms(self));
        uint32_t n_body = take_events(self, events, n, &comes, &has_guest);
        if (comes) accept_some(self);
        take_bodies(self, events, n_body); /* before the mail, which may end one of them */
        if (self->guest) self->guest->run(self->guest->arg, has_guest);
        connections_take_mail(&self->connections);
        if (!was_listening) listen_again(self);
        sweep(self);
    }
    return NULL;
}

/* ---- begin and end ------------------------------------------------------------------------- */

static fathom_err start_thread(struct loop *l, struct loop_thread *self, fathom_diag *d)
{
    struct connections *all = &self->connections;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = all};
    self->loop = l;
    all->ops = l->setup.ops;
    all->arg = l->setup.arg;
    all->gate = l->setup.gate;
    all->tls = l->setup.tls;
    TRY(connections_init(all));
    all->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    all->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (all->epoll_fd < 0 || all->wake_fd < 0 ||
        epoll_ctl(all->epoll_fd, EPOLL_CTL_ADD, all->wake_fd, &e) != 0) {
        FAIL(d, FATHOM_EIO, "no handle to wait for connections with: %s", strerror(errno));
    }
    if (l->setup.guests) {
        self->guest = &l->setup.guests[self - l->threads];
        all->guest = self->guest->arg;
        e.data.ptr = (void *)(uintptr_t)self->guest;
        if (epoll_ctl(all->epoll_fd, EPOLL_CTL_ADD, self->guest->fd, &e) != 0) {
            FAIL(d, FATHOM_EIO, "what an HTTP thread also does cannot be waited for");
        }
    }
    self->started = pthread_create(&self->thread, NULL, thread_main, self) == 0;
    if (!self->started) FAIL(d, FATHOM_EIO, "an HTTP thread cannot be started");
    return FATHOM_OK;
}

fathom_err loop_open(struct loop **out, const struct loop_setup *setup, fathom_diag *d)
{
    fathom_err err = FATHOM_ENOMEM;
    struct loop *l = mem_calloc(1, sizeof *l);
    *out = NULL;
    if (!l) return err;
    l->setup = *setup;
    l->setup.n_thread = 0; /* threads that have been begun */
    l->threads = mem_calloc(setup->n_thread, sizeof *l->threads);
    if (l->threads) err = FATHOM_OK;
    while (!err && l->setup.n_thread < setup->n_thread) {
        struct loop_thread *self = &l->threads[l->setup.n_thread++];
        self->connections.epoll_fd = self->connections.wake_fd = -1;
        err = start_thread(l, self, d);
    }
    if (err) {
        loop_close(l);
        return err;
    }
    *out = l;
    return FATHOM_OK;
}

static void end_thread(struct loop_thread *self)
{
    struct connections *all = &self->connections;
    uint64_t one = 1;
    if (self->started) {
        if (write(all->wake_fd, &one, sizeof one) != sizeof one) LOG_DEBUG("server", "no wake");
        (void)pthread_join(self->thread, NULL);
    }
    connections_free(all);
    if (all->epoll_fd >= 0) (void)close(all->epoll_fd);
    if (all->wake_fd >= 0) (void)close(all->wake_fd);
}

void loop_close(struct loop *l)
{
    if (!l) return;
    if (l->setup.n_thread) gate_shut(l->setup.gate);
    for (int i = 0; i < SHUT_MS && gate_n(l->setup.gate) > 0; i++) clock_sleep_us(1000);
    atomic_store(&l->ending, true);
    for (uint32_t i = 0; i < l->setup.n_thread; i++) end_thread(&l->threads[i]);
    mem_free(l->threads);
    mem_free(l);
}

/* host_hub.c - a thread that greets who has sent a greeting, and one that listens to each host
 *
 *   lock       of all but what is said otherwise
 *   send_lock  of a seat: one frame at a time goes to the host; taken under the lock, never around
 *   links      of a seat: written by the acceptor from EMPTY to JOINED, then only read until
 *              host_hub_gather closes them
 */
#include "comm/host_hub.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/tcp_link.h"

enum { FAREWELL_US = 200000 }; /* for a host to take the last word */
enum { TOLD_US = 60000000 };   /* in which HOST_REFUSALS_TOLD lines tell who was refused */

enum seat_state { SEAT_EMPTY, SEAT_HALF, SEAT_JOINED, SEAT_LOST };

struct seat {
    struct host_hub *hub;
    uint32_t rank;
    enum seat_state state;
    uint64_t session;
    uint32_t n_page;
    struct page_link *links[HOST_LANE_N];
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t send_lock;
};

struct host_hub {
    struct host_hub_config c;
    int fd;
    int stop_fd;
    uint16_t port;
    pthread_t acceptor;
    bool has_acceptor;
    pthread_mutex_t lock;
    bool is_whole;
    _Atomic uint64_t generation;   /* changed under the lock */
    char fault[HOST_TEXT_MAX + 1]; /* of the last generation that ended; "": none has */
    struct seat seats[HOSTS_MAX];  /* [1 .. n_node - 1] */
};

/* ---- losing hosts --------------------------------------------------------------------------- */

static fathom_err send_to(struct seat *s, enum host_frame_type type, const struct link_part *parts,
                          size_t n_part, uint64_t timeout_us, fathom_diag *d)
{
    struct page_link *l = s->links[HOST_LANE_CONTROL];
    pthread_mutex_lock(&s->send_lock);
    fathom_err err = host_send_frame(l, type, atomic_load(&s->hub->generation), parts, n_part,
                                     clock_now_us() + timeout_us, d);
    pthread_mutex_unlock(&s->send_lock);
    return err;
}

/* Under the lock: the seat's links fail from now on; its host is told why, if it still listens. */
static void break_seat(struct seat *s, const char *why)
{
    const struct link_part text = {why, strnlen(why, HOST_TEXT_MAX)};
    if (s->state != SEAT_JOINED) return;
    s->state = SEAT_LOST;
    tcp_link_break(s->links[HOST_LANE_DATA]);
    (void)send_to(s, HOST_LEAVE, &text, 1, FAREWELL_US, NULL);
    tcp_link_break(s->links[HOST_LANE_CONTROL]);
}

/* Under the lock. */
static void lose(struct seat *s, const char *why)
{
    struct host_hub *h = s->hub;
    char text[HOST_TEXT_MAX + 1];
    if (s->state != SEAT_JOINED) return;
    (void)snprintf(text, sizeof text, "host %u of %u is lost: %s", s->rank, h->c.self.n_node, why);
    LOG_WARN("hosts", "%s", text);
    break_seat(s, text);
    if (h->is_whole) {
        h->is_whole = false;
        (void)snprintf(h->fault, sizeof h->fault, "%s", text);
        for (uint32_t r = 1; r < h->c.self.n_node; r++) break_seat(&h->seats[r], text);
    }
    if (h->c.changed) h->c.changed(h->c.arg);
}

void host_hub_lose(struct host_hub *h, uint32_t r, const char *why)
{
    ASSERT(r >= 1 && r < h->c.self.n_node);
    pthread_mutex_lock(&h->lock);
    lose(&h->seats[r], why);
    pthread_mutex_unlock(&h->lock);
}

/* ---- listening to a host -------------------------------------------------------------------- */

/* Until it leaves, or is silent for too long. */
static fathom_err listen_to(struct seat *s, fathom_diag *d)
{
    struct page_link *l = s->links[HOST_LANE_CONTROL];
    for (;;) {
        struct host_frame f;
        char text[HOST_TEXT_MAX + 1];
        const uint64_t end_us = clock_now_us() + HOST_LOST_US;
        TRY(host_receive_frame(l, &f, 0, end_us, d));
        if (f.type == HOST_LEAVE) {
            TRY(host_receive_text(l, &f, text, end_us, d));
            FAIL(d, FATHOM_EPEER, "%s", text);
        }
        if (f.type != HOST_BEAT) {
            FAIL(d, FATHOM_EFORMAT, "a frame of type %d, which no host sends", (int)f.type);
        }
        TRY(send_to(s, HOST_BEAT, NULL, 0, HOST_LOST_US, d));
    }
}

static void *seat_main(void *arg)
{
    struct seat *s = arg;
    fathom_diag d = {{0}};
    os_name_thread("host");
    const fathom_err err = listen_to(s, &d);
    pthread_mutex_lock(&s->hub->lock);
    lose(s, d.text[0] ? d.text : fathom_err_text(err));
    pthread_mutex_unlock(&s->hub->lock);
    return NULL;
}

/* ---- joining -------------------------------------------------------------------------------- */

/* The last word about a host that is what it should be. */
static fathom_err admit(void *arg, const struct host_hello *peer, fathom_diag *d)
{
    struct host_hub *h = arg;
    const uint32_t r = peer->node_rank;
    ASSERT(r >= 1 && r < h->c.self.n_node);
    pthread_mutex_lock(&h->lock);
    const struct seat *s = &h->seats[r];
    const enum seat_state state = s->state;
    const bool is_half = state == SEAT_HALF && s->session == peer->session;
    pthread_mutex_unlock(&h->lock);
    if (state == SEAT_LOST) FAIL(d, FATHOM_EBUSY, "host 0 still ends its last step");
    if (peer->n_page < h->c.n_page_min) {
        FAIL(
            d, FATHOM_EMISMATCH,
            "memory: host %u has room for %u pages of the cache, and the longest request takes %u: "
            "free its memory, or give all hosts a smaller --max-model-len",
            r, peer->n_page, h->c.n_page_min);
    }
    if (state == SEAT_JOINED) {
        FAIL(d, FATHOM_EMISMATCH,
             "--node-rank: host %u is there already: give each host a number of its own", r);
    }
    if (peer->lane == HOST_LANE_CONTROL || is_half) return FATHOM_OK;
    FAIL(d, FATHOM_EBUSY, "host %u has joined twice at once", r);
}

/* Under the lock. */
static void empty_seat(struct seat *s)
{
    for (int i = 0; i < HOST_LANE_N; i++) {
        if (s->links[i]) s->links[i]->ops->close(s->links[i]);
        s->links[i] = NULL;
    }
    s->state = SEAT_EMPTY;
}

/* The acceptor alone makes seats HALF and JOINED, so that what admit has seen still holds. */
static void seat_host(struct host_hub *h, const struct host_hello *peer, struct page_link *link)
{
    struct seat *s = &h->seats[peer->node_rank];
    pthread_mutex_lock(&h->lock);
    if (peer->lane == HOST_LANE_CONTROL) {
        ASSERT(s->state == SEAT_EMPTY || s->state == SEAT_HALF);
        empty_seat(s);
        s->state = SEAT_HALF;
        s->session = peer->session;
        s->n_page = peer->n_page;
        s->links[HOST_LANE_CONTROL] = link;
    } else {
        ASSERT(s->state == SEAT_HALF && !s->has_thread);
        s->links[HOST_LANE_DATA] = link;
        s->state = SEAT_JOINED;
        s->has_thread = pthread_create(&s->thread, NULL, seat_main, s) == 0;
        LOG_INFO("hosts", "host=%u of=%u has joined", s->rank, h->c.self.n_node);
        if (!s->has_thread) lose(s, "its thread cannot be started");
        if (h->c.changed) h->c.changed(h->c.arg);
    }
    pthread_mutex_unlock(&h->lock);
}

/* Lines about who was refused: anybody may dial, and as often as they like. */
struct telling {
    uint64_t since_us;
    unsigned n;
};

static void tell_refused(struct telling *t, const char *why)
{
    const uint64_t now_us = clock_now_us();
    if (t->n == 0 || now_us - t->since_us >= TOLD_US) *t = (struct telling){.since_us = now_us};
    if (t->n == HOST_REFUSALS_TOLD) return;
    t->n++;
    LOG_WARN("hosts", "a host was refused: %s%s", why,
             t->n < HOST_REFUSALS_TOLD ? "" : " (the next ones are not told for a minute)");
}

static void *accept_main(void *arg)
{
    struct host_hub *h = arg;
    struct page_link *link;
    struct tcp_lobby lobby = {0};
    struct telling telling = {0};
    os_name_thread("hosts");
    while ((link = tcp_link_accept_said(&lobby, h->fd, h->stop_fd,
                                        HOST_FRAME_BYTES + HOST_HELLO_BYTES, HOST_GREETING_US))) {
        struct host_hello peer;
        fathom_diag d = {{0}};
        const fathom_err err = host_answer_greeting(link, &h->c.self, &peer, admit, h,
                                                    clock_now_us() + HOST_GREETING_US, &d);
        if (!err) {
            seat_host(h, &peer, link);
            continue;
        }
        if (err != FATHOM_EBUSY) tell_refused(&telling, d.text);
        link->ops->close(link);
    }
    return NULL;
}

/* ---- what the engine calls ------------------------------------------------------------------ */

/* Under the lock. */
static uint32_t first_missing(const struct host_hub *h)
{
    uint32_t r = 1;
    while (r < h->c.self.n_node && h->seats[r].state == SEAT_JOINED) r++;
    return r;
}

/* Joins the threads of lost hosts, which need the lock to end. */
static void clear_lost(struct host_hub *h)
{
    for (uint32_t r = 1; r < h->c.self.n_node; r++) {
        struct seat *s = &h->seats[r];
        pthread_mutex_lock(&h->lock);
        const bool is_lost = s->state == SEAT_LOST;
        pthread_mutex_unlock(&h->lock);
        if (!is_lost) continue;
        if (s->has_thread) pthread_join(s->thread, NULL);
        pthread_mutex_lock(&h->lock);
        s->has_thread = false;
        empty_seat(s);
        pthread_mutex_unlock(&h->lock);
    }
}

/* Under the lock. */
static void write_fault(const struct host_hub *h, char out[HOST_TEXT_MAX + 1])
{
    const uint32_t missing = first_missing(h);
    out[0] = '\0';
    if (h->is_whole) return;
    if (h->fault[0]) {
        (void)snprintf(out, HOST_TEXT_MAX + 1, "%s", h->fault);
    } else if (missing < h->c.self.n_node) {
        (void)snprintf(out, HOST_TEXT_MAX + 1, "host %u of %u has not come", missing,
                       h->c.self.n_node);
    } else {
        (void)snprintf(out, HOST_TEXT_MAX + 1, "%u hosts begin", h->c.self.n_node);
    }
}

fathom_err host_hub_gather(struct host_hub *h, fathom_diag *d)
{
    char text[HOST_TEXT_MAX + 1];
    clear_lost(h);
    pthread_mutex_lock(&h->lock);
    ASSERT(!h->is_whole);
    bool is_whole = first_missing(h) == h->c.self.n_node;
    if (is_whole) {
        atomic_fetch_add(&h->generation, 1);
        h->is_whole = true;
    }
    for (uint32_t r = 1; h->is_whole && r < h->c.self.n_node; r++) {
        fathom_diag why = {{0}};
        if (send_to(&h->seats[r], HOST_GO, NULL, 0, FAREWELL_US, &why)) {
            lose(&h->seats[r], why.text);
        }
    }
    if (h->is_whole) {
        h->fault[0] = '\0';
        LOG_INFO("hosts", "hosts=%u generation=%llu", h->c.self.n_node,
                 (unsigned long long)atomic_load(&h->generation));
    }
    is_whole = h->is_whole;
    write_fault(h, text);
    pthread_mutex_unlock(&h->lock);
    if (is_whole) return FATHOM_OK;
    FAIL(d, FATHOM_EPEER, "%s", text);
}

bool host_hub_is_whole(struct host_hub *h)
{
    pthread_mutex_lock(&h->lock);
    const bool is_whole = h->is_whole;
    pthread_mutex_unlock(&h->lock);
    return is_whole;
}

uint32_t host_hub_n_page(struct host_hub *h)
{
    uint32_t n_page = h->c.self.n_page;
    pthread_mutex_lock(&h->lock);
    for (uint32_t r = 1; r < h->c.self.n_node; r++)
        n_page = h->seats[r].n_page < n_page ? h->seats[r].n_page : n_page;
    pthread_mutex_unlock(&h->lock);
    return n_page;
}

uint64_t host_hub_generation(struct host_hub *h)
{
    return atomic_load(&h->generation);
}

void host_hub_fault(struct host_hub *h, char out[HOST_TEXT_MAX + 1])
{
    pthread_mutex_lock(&h->lock);
    write_fault(h, out);
    pthread_mutex_unlock(&h->lock);
}

fathom_err host_hub_tell_one(struct host_hub *h, uint32_t r, const struct link_part *parts,
                             size_t n_part)
{
    fathom_diag why = {{0}};
    ASSERT(r >= 1 && r < h->c.self.n_node);
    if (!host_hub_is_whole(h)) return FATHOM_EPEER;
    if (send_to(&h->seats[r], HOST_WORK, parts, n_part, HOST_WORK_US, &why) == FATHOM_OK)
        return FATHOM_OK;
    host_hub_lose(h, r, why.text);
    return FATHOM_EPEER;
}

fathom_err host_hub_tell(struct host_hub *h, const struct link_part *parts, size_t n_part)
{
    for (uint32_t r = 1; r < h->c.self.n_node; r++) TRY(host_hub_tell_one(h, r, parts, n_part));
    return FATHOM_OK;
}

struct page_link *host_hub_data(struct host_hub *h, uint32_t r)
{
    ASSERT(r >= 1 && r < h->c.self.n_node && h->seats[r].links[HOST_LANE_DATA]);
    return h->seats[r].links[HOST_LANE_DATA];
}

uint16_t host_hub_port(const struct host_hub *h)
{
    return h->port;
}

/* ---- life ----------------------------------------------------------------------------------- */

fathom_err host_hub_create(struct host_hub **out, const struct host_hub_config *c, fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->self.node_rank == 0 && c->self.n_node >= 2 && c->self.n_node <= HOSTS_MAX);
    struct host_hub *h = mem_calloc(1, sizeof *h);
    if (!h) FAIL(d, FATHOM_ENOMEM, "no memory for the link of %u hosts", c->self.n_node);
    fathom_err err = FATHOM_EIO;
    h->c = *c;
    h->fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    for (uint32_t r = 0; r < HOSTS_MAX; r++) {
        h->seats[r].hub = h;
        h->seats[r].rank = r;
        pthread_mutex_init(&h->seats[r].send_lock, NULL);
    }
    h->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->port = c->port;
    if (c->listen_fd > 0) {
        h->fd = c->listen_fd;
    } else {
        TRY_GOTO(tcp_link_listen(c->host, c->port, &h->fd, &h->port, d), fail);
    }
    h->has_acceptor = h->stop_fd >= 0 && pthread_create(&h->acceptor, NULL, accept_main, h) == 0;
    if (h->has_acceptor) {
        *out = h;
        return FATHOM_OK;
    }
    err = diag_fail(d, FATHOM_EIO, "a thread of the link of hosts cannot be started");
fail:
    host_hub_destroy(h);
    return err;
}

void host_hub_end(struct host_hub *h)
{
    pthread_mutex_lock(&h->lock);
    h->c.changed = NULL;
    h->is_whole = false;
    for (uint32_t r = 1; r < h->c.self.n_node; r++) break_seat(&h->seats[r], "host 0 has ended");
    pthread_mutex_unlock(&h->lock);
}

void host_hub_destroy(struct host_hub *h)
{
    if (!h) return;
    const uint64_t one = 1;
    host_hub_end(h);
    if (h->stop_fd >= 0 && write(h->stop_fd, &one, sizeof one) < 0) {
        LOG_WARN("hosts", "the link of hosts cannot be woken");
    }
    if (h->has_acceptor) pthread_join(h->acceptor, NULL);
    host_hub_end(h); /* those that have joined meanwhile */
    clear_lost(h);
    for (uint32_t r = 0; r < HOSTS_MAX; r++) {
        empty_seat(&h->seats[r]);
        pthread_mutex_destroy(&h->seats[r].send_lock);
    }
    if (h->fd >= 0 && h->fd != h->c.listen_fd) (void)close(h->fd);
    if (h->stop_fd >= 0) (void)close(h->stop_fd);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

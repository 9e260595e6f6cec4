/* gate.c - lists of connections, one for each phase
 *
 * Invariants, under the lock: a pass is in the list of its phase until it is cut, and in none from
 * then on. A list is in order of deadlines, as far as the clocks that the threads have read are. n
 * counts the passes that have entered and not left, n_cut those of them that are cut, n_placed
 * those that are neither cut nor over the limit. unread_bytes is the sum over the list of UNREAD.
 * The fd of a pass is open, because the pass leaves before the fd is closed. */
#include "http/gate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/mem.h"

enum { CLOSING_MS = 2000, BODY_HEAD_START_BYTES = 65536, CUT_MAX = 64 };

struct gate_pass {
    struct gate_pass *prev, *next;
    int fd;
    bool over_limit; /* fixed */
    bool cut;
    enum gate_phase phase;
    uint64_t since_us; /* when it came into its phase; in UNREAD: when something was read last */
    size_t unread_bytes;
    atomic_size_t body_bytes; /* of the body that comes */
};

struct list {
    struct gate_pass *first, *last;
};

struct gate {
    pthread_mutex_t lock;
    struct gate_limits limits;
    struct list lists[GATE_N_PHASE];
    uint32_t n, n_cut, n_placed;
    size_t unread_bytes;
    uint64_t n_late, n_dropped;
    uint64_t n_told, told_us; /* of n_dropped, in the log */
    bool is_shut;
};

fathom_err gate_create(struct gate **out, const struct gate_limits *limits)
{
    struct gate *g = mem_calloc(1, sizeof *g);
    *out = g;
    if (!g) return FATHOM_ENOMEM;
    g->limits = *limits;
    (void)pthread_mutex_init(&g->lock, NULL);
    return FATHOM_OK;
}

void gate_destroy(struct gate *g)
{
    if (!g) return;
    ASSERT(g->n == 0 && g->n_cut == 0 && g->unread_bytes == 0);
    (void)pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

static void lock(struct gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
}

static void unlock(struct gate *g)
{
    DCHECK(g->n_cut + g->n_placed <= g->n);
    (void)pthread_mutex_unlock(&g->lock);
}

/* ---- lists --------------------------------------------------------------------------------- */

static void take_out(struct gate *g, struct gate_pass *p)
{
    struct list *l = &g->lists[p->phase];
    *(p->prev ? &p->prev->next : &l->first) = p->next;
    *(p->next ? &p->next->prev : &l->last) = p->prev;
    p->prev = p->next = NULL;
    ASSERT(g->unread_bytes >= p->unread_bytes);
    g->unread_bytes -= p->unread_bytes;
    p->unread_bytes = 0;
}

static void put_last(struct gate *g, struct gate_pass *p, enum gate_phase phase, uint64_t now_us)
{
    struct list *l = &g->lists[phase];
    p->phase = phase;
    p->since_us = now_us;
    p->prev = l->last;
    *(l->last ? &l->last->next : &l->first) = p;
    l->last = p;
}

/* How long a connection may be in a phase; UINT64_MAX: for ever. */
static uint64_t time_of(const struct gate *g, enum gate_phase phase)
{
    const struct gate_limits *l = &g->limits;
    switch (phase) {
    case GATE_NEW:
    case GATE_HEAD: return (uint64_t)l->head_timeout_ms * 1000;
    case GATE_KEPT: return (uint64_t)l->idle_timeout_ms * 1000;
    case GATE_BODY: return (uint64_t)l->body_timeout_ms * 1000;
    case GATE_UNREAD: return (uint64_t)l->unread_timeout_ms * 1000;
    case GATE_CLOSING: return (uint64_t)CLOSING_MS * 1000;
    case GATE_BUSY:
    case GATE_N_PHASE: break;
    }
    return UINT64_MAX;
}

static void cut(struct gate *g, struct gate_pass *p)
{
    take_out(g, p);
    p->cut = true;
    g->n_cut++;
    g->n_placed -= !p->over_limit;
    (void)shutdown(p->fd, SHUT_RDWR);
}

/* ---- who goes for others ------------------------------------------------------------------- */

/* Among which connections one is to be cut. */
enum whom { WHO_HAS_A_PLACE, WHO_IS_OVER_LIMIT, ANYBODY };

static bool is_one(const struct gate_pass *p, enum whom whom)
{
    return whom == ANYBODY || p->over_limit == (whom == WHO_IS_OVER_LIMIT);
}

/* Whether no bytes wait in the socket for its thread to read. */
static bool is_silent(const struct gate_pass *p)
{
    int n = 0;
    return ioctl(p->fd, FIONREAD, &n) != 0 || n == 0;
}

/* The oldest connection in a phase that is silent. Looks at a few only: connections over the limit,
 * which may have to be skipped, and connections that are not silent are few. */
static struct gate_pass *oldest(const struct gate *g, enum gate_phase phase, enum whom whom)
{
    enum { TRIES = 16 };
    int n = 0;
    for (struct gate_pass *p = g->lists[phase].first; p && n < TRIES; p = p->next) {
        if (!is_one(p, whom)) continue;
        if (is_silent(p)) return p;
        n++;
    }
    return NULL;
}

/* How long a connection has been in its phase. `now_us` was read before the lock was taken, so the
 * connection may have come into its phase after it. */
static uint64_t age_us(const struct gate_pass *p, uint64_t now_us)
{
    return now_us > p->since_us ? now_us - p->since_us : 0;
}

/* Bytes per second. A body that has just begun gets a head start, so that it is not the slowest. */
static uint64_t body_rate(const struct gate_pass *p, uint64_t now_us)
{
    uint64_t ms = age_us(p, now_us) / 1000 + 1000;
    return (atomic_load(&p->body_bytes) + BODY_HEAD_START_BYTES) * 1000 / ms;
}

static struct gate_pass *slowest_body(const struct gate *g, enum whom whom, uint64_t now_us)
{
    struct gate_pass *slowest = NULL;
    uint64_t least = UINT64_MAX;
    for (struct gate_pass *p = g->lists[GATE_BODY].first; p; p = p->next) {
        uint64_t rate = body_rate(p, now_us);
        if (rate >= least || !is_one(p, whom)) continue;
        least = rate;
        slowest = p;
    }
    return slowest && is_silent(slowest) ? slowest : NULL;
}

static bool drop_slowest(struct gate *g, enum whom whom, uint64_t now_us)
{
    struct gate_pass *p = oldest(g, GATE_CLOSING, whom);
    struct gate_pass *mute = oldest(g, GATE_NEW, whom), *kept = oldest(g, GATE_KEPT, whom);
    if (!p) p = mute && kept && kept->since_us < mute->since_us ? kept : mute ? mute : kept;
    if (!p) p = oldest(g, GATE_HEAD, whom);
    if (!p) p = slowest_body(g, whom, now_us);
    if (!p) return false;
    cut(g, p);
    g->n_dropped++;
    return true;
}

bool gate_drop_slowest(struct gate *g, uint64_t now_us)
{
    lock(g);
    bool ok = drop_slowest(g, ANYBODY, now_us);
    unlock(g);
    return ok;
}

/* ---- coming and going ---------------------------------------------------------------------- */

/* With the lock: finds a place, or makes one. Sockets that are cut and still open have descriptors
 * too, so their number is bounded as well. */
static fathom_err make_place(struct gate *g, uint64_t now_us, bool *over_limit)
{
    *over_limit = false;
    if (g->n_cut >= CUT_MAX) return FATHOM_EBUSY;
    if (g->n_placed < g->limits.max_connections) return FATHOM_OK;
    if (drop_slowest(g, WHO_HAS_A_PLACE, now_us)) return FATHOM_OK;
    *over_limit = true;
    if (g->n - g->n_cut - g->n_placed < GATE_OVER_LIMIT_MAX) return FATHOM_OK;
    return drop_slowest(g, WHO_IS_OVER_LIMIT, now_us) ? FATHOM_OK : FATHOM_EBUSY;
}

bool gate_is_full(struct gate *g)
{
    lock(g);
    bool can_drop = g->lists[GATE_CLOSING].first || g->lists[GATE_NEW].first ||
                    g->lists[GATE_KEPT].first || g->lists[GATE_HEAD].first ||
                    g->lists[GATE_BODY].first;
    bool is_full = g->n_placed >= g->limits.max_connections && !can_drop &&
                   g->n - g->n_cut - g->n_placed >= GATE_OVER_LIMIT_MAX;
    is_full |= g->n_cut >= CUT_MAX;
    unlock(g);
    return is_full;
}

fathom_err gate_enter(struct gate *g, int fd, uint64_t now_us, struct gate_pass **out)
{
    struct gate_pass *p = mem_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return FATHOM_ENOMEM;
    p->fd = fd;
    lock(g);
    fathom_err err = make_place(g, now_us, &p->over_limit);
    if (!err) {
        g->n++;
        g->n_placed += !p->over_limit;
        put_last(g, p, GATE_NEW, now_us);
        if (g->is_shut) cut(g, p);
    }
    unlock(g);
    if (err) {
        mem_free(p);
        return err;
    }
    *out = p;
    return FATHOM_OK;
}

void gate_leave(struct gate *g, struct gate_pass *p)
{
    lock(g);
    if (p->cut) {
        g->n_cut--;
    } else {
        take_out(g, p);
        g->n_placed -= !p->over_limit;
    }
    g->n--;
    unlock(g);
    mem_free(p);
}

void gate_move(struct gate *g, struct gate_pass *p, enum gate_phase phase, uint64_t now_us)
{
    ASSERT(phase != GATE_UNREAD);
    lock(g);
    if (!p->cut) {
        take_out(g, p);
        put_last(g, p, phase, now_us);
    }
    if (phase == GATE_BODY) atomic_store(&p->body_bytes, 0);
    unlock(g);
}

void gate_note_body(struct gate_pass *p, size_t n)
{
    atomic_fetch_add(&p->body_bytes, n);
}

/* ---- what is not read ---------------------------------------------------------------------- */

/* The connection in UNREAD with the greatest product of unread bytes and time since its last read.
 * */
static struct gate_pass *worst_reader(struct gate *g, uint64_t now_us)
{
    struct gate_pass *worst = g->lists[GATE_UNREAD].first;
    double most = -1;
    for (struct gate_pass *p = worst; p; p = p->next) {
        double weight = (double)p->unread_bytes * (double)age_us(p, now_us);
        if (weight <= most) continue;
        most = weight;
        worst = p;
    }
    return worst;
}

void gate_note_unread(struct gate *g, struct gate_pass *pass, size_t bytes, uint64_t now_us)
{
    lock(g);
    if (!pass->cut) {
        take_out(g, pass);
        put_last(g, pass, GATE_UNREAD, now_us);
        pass->unread_bytes = bytes;
        g->unread_bytes += bytes;
    }
    while (g->unread_bytes > g->limits.max_unread_bytes) {
        struct gate_pass *p = worst_reader(g, now_us);
        ASSERT(p);
        LOG_WARN("server",
                 "connection %d: cut, since the answers that clients do not read hold "
                 "%zu bytes, of which %zu are its own",
                 p->fd, g->unread_bytes, p->unread_bytes);
        cut(g, p);
        g->n_dropped++;
    }
    unlock(g);
}

/* ---- all connections ----------------------------------------------------------------------- */

bool gate_is_over_limit(const struct gate_pass *p)
{
    return p->over_limit;
}

/* Logs a line for each phase in which connections were late, and once a minute at most a line for
 * those cut to make room: a client that opens thousands of connections must not fill the log. */
static void tell(struct gate *g, const uint32_t *n_late, uint64_t now_us)
{
    static const struct {
        enum log_level level;
        const char *what;
    } lines[GATE_N_PHASE] = {
        [GATE_NEW] = {LOG_LEVEL_DEBUG, "nothing came in time"},
        [GATE_KEPT] = {LOG_LEVEL_DEBUG, "no further request came in time"},
        [GATE_HEAD] = {LOG_LEVEL_INFO, "request headers did not come in time"},
        [GATE_BODY] = {LOG_LEVEL_INFO, "a request body did not come in time"},
        [GATE_UNREAD] = {LOG_LEVEL_WARN, "nothing of an answer was read in time"},
    };
    enum { TELL_US = 60000000 };
    for (int i = 0; i < GATE_N_PHASE; i++) {
        if (!n_late[i] || !lines[i].what) continue;
        log_write(lines[i].level, "server", "%u connections closed: %s", n_late[i], lines[i].what);
    }
    if (g->n_dropped == g->n_told || (g->n_told && now_us < g->told_us + TELL_US)) return;
    LOG_WARN("server", "%llu connections closed to make room for others (limit %u)",
             (unsigned long long)(g->n_dropped - g->n_told), g->limits.max_connections);
    g->n_told = g->n_dropped;
    g->told_us = now_us;
}

uint32_t gate_sweep(struct gate *g, uint64_t now_us)
{
    uint32_t n_late[GATE_N_PHASE] = {0}, n = 0;
    lock(g);
    for (int phase = 0; phase < GATE_N_PHASE; phase++) {
        uint64_t time_us = time_of(g, (enum gate_phase)phase);
        struct gate_pass *p;
        while ((p = g->lists[phase].first) && age_us(p, now_us) >= time_us) {
            cut(g, p);
            n_late[phase]++;
        }
        if (phase != GATE_CLOSING) n += n_late[phase];
    }
    g->n_late += n;
    tell(g, n_late, now_us);
    unlock(g);
    return n;
}

void gate_shut(struct gate *g)
{
    lock(g);
    g->is_shut = true;
    for (int phase = 0; phase < GATE_N_PHASE; phase++) {
        while (g->lists[phase].first) cut(g, g->lists[phase].first);
    }
    unlock(g);
}

void gate_set_max(struct gate *g, uint32_t max_connections)
{
    lock(g);
    g->limits.max_connections = max_connections;
    unlock(g);
}

uint32_t gate_max(struct gate *g)
{
    lock(g);
    uint32_t n = g->limits.max_connections;
    unlock(g);
    return n;
}

uint32_t gate_n(struct gate *g)
{
    lock(g);
    uint32_t n = g->n;
    unlock(g);
    return n;
}

uint64_t gate_n_late(struct gate *g)
{
    lock(g);
    uint64_t n = g->n_late;
    unlock(g);
    return n;
}

uint64_t gate_n_dropped(struct gate *g)
{
    lock(g);
    uint64_t n = g->n_dropped;
    unlock(g);
    return n;
}

size_t gate_unread_bytes(struct gate *g)
{
    lock(g);
    size_t n = g->unread_bytes;
    unlock(g);
    return n;
}

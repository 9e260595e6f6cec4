/* gate.c - the list of connections and their deadlines
 *
 * Invariants, under the lock: the list holds every pass that has entered and not left. `n` is its
 * length. The fd of a pass in the list is open, since the pass leaves before the fd is closed. */
#include "server/http/gate.h"

#include <pthread.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/mem.h"

struct gate_pass {
    struct gate_pass *prev, *next;
    int fd;
    bool over_limit; /* fixed */
    enum gate_phase phase;
    bool answered;        /* it has been in ANSWER */
    bool cut;             /* shut down by the sweep */
    uint64_t deadline_us; /* UINT64_MAX: none */
};

struct gate {
    struct gate_limits limits;
    pthread_mutex_t lock;
    struct gate_pass *first;
    uint32_t n;
    uint64_t n_late;
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
    ASSERT(!g->first && g->n == 0);
    (void)pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

static void set_phase(const struct gate *g, struct gate_pass *p, enum gate_phase phase,
                      uint64_t now_us)
{
    const struct gate_limits *l = &g->limits;
    uint64_t head_ms = p->answered ? l->idle_timeout_ms : l->head_timeout_ms;
    p->phase = phase;
    switch (phase) {
    case GATE_HEAD: p->deadline_us = now_us + head_ms * 1000; break;
    case GATE_BODY: p->deadline_us = now_us + (uint64_t)l->body_timeout_ms * 1000; break;
    case GATE_ANSWER:
        p->deadline_us = UINT64_MAX;
        p->answered = true;
        break;
    }
}

struct gate_pass *gate_enter(struct gate *g, int fd, uint64_t now_us)
{
    struct gate_pass *p = mem_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->fd = fd;
    set_phase(g, p, GATE_HEAD, now_us);
    (void)pthread_mutex_lock(&g->lock);
    p->over_limit = g->n >= g->limits.max_connections;
    p->next = g->first;
    if (g->first) g->first->prev = p;
    g->first = p;
    g->n++;
    if (g->is_shut) (void)shutdown(fd, SHUT_RDWR);
    (void)pthread_mutex_unlock(&g->lock);
    return p;
}

void gate_leave(struct gate *g, struct gate_pass *p)
{
    if (!p) return;
    (void)pthread_mutex_lock(&g->lock);
    if (p->prev) {
        p->prev->next = p->next;
    } else {
        g->first = p->next;
    }
    if (p->next) p->next->prev = p->prev;
    g->n--;
    (void)pthread_mutex_unlock(&g->lock);
    mem_free(p);
}

void gate_move(struct gate *g, struct gate_pass *p, enum gate_phase phase, uint64_t now_us)
{
    if (!p) return;
    (void)pthread_mutex_lock(&g->lock);
    set_phase(g, p, phase, now_us);
    (void)pthread_mutex_unlock(&g->lock);
}

bool gate_is_over_limit(const struct gate_pass *p)
{
    return p && p->over_limit;
}

uint32_t gate_sweep(struct gate *g, uint64_t now_us)
{
    static const char *const what[] = {"request headers", "a request body", ""};
    uint32_t n = 0;
    (void)pthread_mutex_lock(&g->lock);
    for (struct gate_pass *p = g->first; p; p = p->next) {
        if (now_us < p->deadline_us || p->cut) continue;
        bool is_idle = p->phase == GATE_HEAD && p->answered;
        log_write(is_idle ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "server",
                  "connection %d: %s did not come in time: closed", p->fd, what[p->phase]);
        p->cut = true;
        (void)shutdown(p->fd, SHUT_RDWR);
        n++;
    }
    g->n_late += n;
    (void)pthread_mutex_unlock(&g->lock);
    return n;
}

void gate_shut(struct gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    g->is_shut = true;
    for (struct gate_pass *p = g->first; p; p = p->next) (void)shutdown(p->fd, SHUT_RDWR);
    (void)pthread_mutex_unlock(&g->lock);
}

uint32_t gate_n(struct gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    uint32_t n = g->n;
    (void)pthread_mutex_unlock(&g->lock);
    return n;
}

uint64_t gate_n_late(struct gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    uint64_t n = g->n_late;
    (void)pthread_mutex_unlock(&g->lock);
    return n;
}

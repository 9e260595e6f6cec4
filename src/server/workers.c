/* workers.c - places for jobs, and the threads that work on them
 *
 * Invariants, under the lock
 *
 *   1. A place is free, in one queue, at work, or asleep. n_used counts the places that are not
 *      free. n_wait counts those that are neither free nor at work, and `waiting` the same for each
 *      tenant.
 *   2. A queue has a list of places for each tenant, oldest first; n counts the places of all.
 *
 *   free --push--> queued --a thread takes it--> at work --DONE--> free
 *                    ^ ^                          |   |
 *                    | `---------TO_COMPILE-------'   `--TO_WAIT--> asleep
 *                    `---------------------resume---------------------'   */
#include "server/workers.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

enum { TENANTS = 32 }; /* tenants count modulo this number */

struct place {
    struct job *job;
    struct place *next; /* in a queue, or free */
    uint32_t tenant;    /* below TENANTS */
    bool used, at_work;
    bool resumed; /* while its task was at work */
};

struct queue {
    struct place *first[TENANTS], *last[TENANTS];
    uint32_t turn; /* the tenant whose turn is next */
    size_t n;
};

struct worker {
    struct workers *w;
    pthread_t thread;
    bool compiles;
};

struct workers {
    struct workers_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct place *places; /* [n_place] */
    struct place *free;
    size_t n_place, n_used, n_wait;
    size_t waiting[TENANTS];
    struct queue queues[WORK_KIND_COUNT];
    bool ending;
    struct worker *threads;
    unsigned n_thread; /* started */
};

/* ---- queues, with the lock held ------------------------------------------------------------ */

static void enter(struct workers *w, enum work_kind kind, struct place *p)
{
    struct queue *q = &w->queues[kind];
    p->next = NULL;
    if (q->first[p->tenant]) {
        q->last[p->tenant]->next = p;
    } else {
        q->first[p->tenant] = p;
    }
    q->last[p->tenant] = p;
    q->n++;
    (void)pthread_cond_broadcast(&w->changed);
}

/* The oldest place of the tenant whose turn it is; NULL: nobody waits. */
static struct place *leave(struct workers *w, enum work_kind kind)
{
    struct queue *q = &w->queues[kind];
    if (q->n == 0) return NULL;
    while (!q->first[q->turn]) q->turn = (q->turn + 1) % TENANTS;
    struct place *p = q->first[q->turn];
    q->first[q->turn] = p->next;
    q->turn = (q->turn + 1) % TENANTS;
    q->n--;
    return p;
}

static void begin_wait(struct workers *w, struct place *p)
{
    w->n_wait++;
    w->waiting[p->tenant]++;
}

/* The job that a thread takes next; NULL: none. A thread that compiles takes jobs to compile first,
 * unless it is the only thread. */
static struct place *choose(struct workers *w, const struct worker *self, enum work_kind *kind)
{
    struct place *p = NULL;
    bool alone = w->config.n_thread == 1;
    *kind = WORK_COMPILE;
    if (self->compiles && !alone) p = leave(w, WORK_COMPILE);
    if (p) return p;
    *kind = WORK_PREPARE;
    p = leave(w, WORK_PREPARE);
    if (p || !alone) return p;
    *kind = WORK_COMPILE;
    return leave(w, WORK_COMPILE);
}

static void give_back(struct workers *w, struct place *p)
{
    *p = (struct place){.next = w->free};
    w->free = p;
    w->n_used--;
    if (w->n_used == 0) (void)pthread_cond_broadcast(&w->changed);
}

/* After a task that has left something to do. */
static void settle(struct workers *w, struct place *p, enum work_rest rest)
{
    p->at_work = false;
    begin_wait(w, p);
    if (rest == WORK_TO_COMPILE) {
        enter(w, WORK_COMPILE, p);
    } else if (p->resumed) {
        enter(w, WORK_PREPARE, p);
    }
    p->resumed = false;
}

/* ---- threads ------------------------------------------------------------------------------- */

/* One task; gives up the lock meanwhile. */
static void run_task(struct workers *w, struct place *p, enum work_kind kind)
{
    struct job *job = p->job;
    w->n_wait--;
    w->waiting[p->tenant]--;
    p->at_work = true;
    (void)pthread_mutex_unlock(&w->lock);
    enum work_rest rest = w->config.task(job, kind);
    (void)pthread_mutex_lock(&w->lock);
    if (rest != WORK_DONE) {
        settle(w, p, rest);
        return;
    }
    give_back(w, p);
    (void)pthread_mutex_unlock(&w->lock);
    w->config.done(job);
    (void)pthread_mutex_lock(&w->lock);
}

static void *work(void *arg)
{
    struct worker *self = arg;
    struct workers *w = self->w;
    os_name_thread("prepare");
    (void)pthread_mutex_lock(&w->lock);
    while (!w->ending || w->n_used) {
        enum work_kind kind;
        struct place *p = choose(w, self, &kind);
        if (!p) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        run_task(w, p, kind);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

static fathom_err start_threads(struct workers *w, fathom_diag *d)
{
    unsigned n = w->config.n_thread;
    for (; w->n_thread < n; w->n_thread++) {
        struct worker *t = &w->threads[w->n_thread];
        *t = (struct worker){.w = w, .compiles = w->n_thread < (n > 1 ? n / 2 : 1)};
        if (pthread_create(&t->thread, NULL, work, t) == 0) continue;
        FAIL(d, FATHOM_EIO, "thread %u of %u for requests cannot be started", w->n_thread + 1, n);
    }
    return FATHOM_OK;
}

fathom_err workers_create(struct workers **out, const struct workers_config *config, fathom_diag *d)
{
    struct workers *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return FATHOM_ENOMEM;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    w->config = *config;
    w->n_place = config->max + config->n_thread; /* those at work take none of max */
    w->places = mem_calloc(w->n_place, sizeof *w->places);
    w->threads = mem_calloc(config->n_thread, sizeof *w->threads);
    fathom_err err = w->places && w->threads ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < w->n_place && !err; i++) {
        w->places[i].next = w->free;
        w->free = &w->places[i];
    }
    if (!err) err = start_threads(w, d);
    if (err) {
        workers_destroy(w);
        return err;
    }
    *out = w;
    return FATHOM_OK;
}

void workers_stop(struct workers *w)
{
    if (!w) return;
    (void)pthread_mutex_lock(&w->lock);
    w->ending = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_thread; i++) (void)pthread_join(w->threads[i].thread, NULL);
    w->n_thread = 0;
}

void workers_destroy(struct workers *w)
{
    if (!w) return;
    workers_stop(w);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->changed);
    mem_free(w->places);
    mem_free(w->threads);
    mem_free(w);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

/* A tenant may have no more jobs waiting than places are free, so another tenant still finds one.
 * */
static bool has_room(const struct workers *w, uint32_t tenant)
{
    if (w->ending || w->n_wait >= w->config.max || !w->free) return false;
    return w->config.n_tenant <= 1 || w->waiting[tenant] < w->config.max - w->n_wait;
}

fathom_err workers_push(struct workers *w, struct job *job, uint32_t tenant)
{
    fathom_err err = FATHOM_EBUSY;
    tenant %= TENANTS;
    (void)pthread_mutex_lock(&w->lock);
    if (has_room(w, tenant)) {
        struct place *p = w->free;
        w->free = p->next;
        *p = (struct place){.job = job, .tenant = tenant, .used = true};
        w->n_used++;
        begin_wait(w, p);
        enter(w, WORK_PREPARE, p);
        err = FATHOM_OK;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return err;
}

void workers_set_tenants(struct workers *w, size_t n)
{
    (void)pthread_mutex_lock(&w->lock);
    w->config.n_tenant = n;
    (void)pthread_mutex_unlock(&w->lock);
}

void workers_resume(struct workers *w, struct job *job)
{
    size_t i = 0;
    (void)pthread_mutex_lock(&w->lock);
    while (i < w->n_place && !(w->places[i].used && w->places[i].job == job)) i++;
    ASSERT(i < w->n_place);
    if (w->places[i].at_work) {
        w->places[i].resumed = true;
    } else {
        enter(w, WORK_PREPARE, &w->places[i]);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

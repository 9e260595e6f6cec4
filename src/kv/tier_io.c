/* tier_io.c - the threads that read and write records on disk, pull records from other servers, and
 * compute sums of pages
 *
 * Invariants, under the lock
 *
 *   1. Every job that was submitted and not taken back is in a ring, or a thread is doing it. There
 *      are at most TIER_JOBS_MAX of them, so no ring overflows.
 *   2. The page and name of a job belong to the threads until the job is in the ring `done`. A
 *      check, a sum and a write only read the page, so two of them may use it at the same time.
 *
 *   submit --+--> reads, writes --the disk's thread-->+--> done --> take_done
 *            +--> checks, sums --one of n threads---->+
 *            +--> pulls --one of n threads----------->+
 *
 * The disk has one thread, so its jobs are done in order. Several threads compute sums, of one page
 * each, because one thread is slower than the bus to a device.
 *
 * The first fault of a read and the first of a write are logged. The owner counts all of them. */
#include "kv/tier_io.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"

struct ring {
    struct tier_job jobs[TIER_JOBS_MAX];
    uint32_t first;
    uint32_t n;
};

/* What the threads of one kind do, the more urgent kind of job first. */
enum team { TEAM_DISK, TEAM_SUMS, TEAM_PULLS, TEAM_COUNT };
static const enum tier_job_kind team_jobs[TEAM_COUNT][2] = {
    [TEAM_DISK] = {TIER_JOB_READ, TIER_JOB_WRITE},
    [TEAM_SUMS] = {TIER_JOB_CHECK, TIER_JOB_SUM},
    [TEAM_PULLS] = {TIER_JOB_PULL, TIER_JOB_PULL},
};

struct io_threads {
    struct tier_io base; /* first member */
    struct tier_io_config c;
    pthread_t threads[1 + TIER_SUM_THREADS_MAX + TIER_PULL_THREADS_MAX];
    unsigned n_thread;
    bool logged[2];       /* a read, a write: the disk thread's own */
    atomic_uint n_puller; /* pulling threads that have their number */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work[TEAM_COUNT];
    struct ring todo[TIER_JOB_KINDS];
    struct ring done;
    bool closed;
};

static void ring_put(struct ring *r, const struct tier_job *job)
{
    ASSERT(r->n < TIER_JOBS_MAX);
    r->jobs[(r->first + r->n++) % TIER_JOBS_MAX] = *job;
}

static bool ring_take(struct ring *r, struct tier_job *job)
{
    if (r->n == 0) return false;
    *job = r->jobs[r->first];
    r->first = (r->first + 1) % TIER_JOBS_MAX;
    r->n--;
    return true;
}

static enum tier_verdict do_write(struct io_threads *t, const struct tier_job *job, fathom_diag *d)
{
    if (hash_checksum(job->page, t->c.page_bytes) != job->sum) return TIER_BAD_CHECKSUM;
    return tier_disk_write(t->c.disk, job->place, job->order, job->name, job->page, job->sum, d);
}

static enum tier_verdict read_from(struct page_source *s, unsigned worker, struct tier_job *job,
                                   fathom_diag *d)
{
    return s->ops->read(s, worker, job->place, job->name, job->page, &job->sum, d);
}

static void do_disk_job(struct io_threads *t, struct tier_job *job)
{
    fathom_diag d = {{0}};
    bool is_read = job->kind == TIER_JOB_READ;
    ASSERT(t->c.disk);
    job->verdict =
        is_read ? read_from(tier_disk_source(t->c.disk), 0, job, &d) : do_write(t, job, &d);
    if (job->verdict == TIER_GOOD || t->logged[is_read]) return;
    t->logged[is_read] = true;
    LOG_WARN("kv", "offloaded page %s: %s%s%s (later ones are counted in the metrics)",
             is_read ? "not taken" : "not written", tier_verdict_name(job->verdict),
             d.text[0] ? ": " : "", d.text);
}

static void do_sum_job(struct io_threads *t, struct tier_job *job)
{
    uint64_t sum = hash_checksum(job->page, t->c.page_bytes);
    bool is_good = job->kind == TIER_JOB_SUM || sum == job->sum;
    job->sum = sum;
    job->verdict = is_good ? TIER_GOOD : TIER_BAD_CHECKSUM;
}

/* Whether a team is to end. Once the owner has closed, only writes are still done, if there is
 * time. */
static bool is_over(const struct io_threads *t, enum team team)
{
    const struct tier_io_owner *owner = &t->c.owner;
    bool hurry = t->closed && owner->in_hurry && owner->in_hurry(owner->arg);
    return t->closed && (team != TEAM_DISK || hurry || t->todo[TIER_JOB_WRITE].n == 0);
}

/* Waits for the next job; false: the team is to end. */
static bool next_job(struct io_threads *t, enum team team, struct tier_job *job)
{
    pthread_mutex_lock(&t->lock);
    bool any = false;
    while (!is_over(t, team)) {
        any = (!t->closed && ring_take(&t->todo[team_jobs[team][0]], job)) ||
              ring_take(&t->todo[team_jobs[team][1]], job);
        if (any) break;
        pthread_cond_wait(&t->work[team], &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return any;
}

static void do_jobs(struct io_threads *t, enum team team, unsigned worker)
{
    struct tier_job job;
    while (next_job(t, team, &job)) {
        if (team == TEAM_DISK) {
            do_disk_job(t, &job);
        } else if (team == TEAM_PULLS) {
            job.verdict = read_from(t->c.peers, worker, &job, NULL);
        } else {
            do_sum_job(t, &job);
        }
        pthread_mutex_lock(&t->lock);
        bool is_first = t->done.n == 0; /* else the owner was told, and has not looked yet */
        ring_put(&t->done, &job);
        pthread_mutex_unlock(&t->lock);
        if (is_first) t->c.owner.done(t->c.owner.arg);
    }
}

static void *disk_main(void *arg)
{
    os_name_thread("kv-disk");
    do_jobs(arg, TEAM_DISK, 0);
    return NULL;
}

static void *sums_main(void *arg)
{
    os_name_thread("kv-sums");
    do_jobs(arg, TEAM_SUMS, 0);
    return NULL;
}

static void *pulls_main(void *arg)
{
    struct io_threads *t = arg;
    os_name_thread("kv-pull");
    do_jobs(t, TEAM_PULLS, atomic_fetch_add(&t->n_puller, 1));
    return NULL;
}

static void submit(struct tier_io *io, const struct tier_job *job)
{
    struct io_threads *t = (struct io_threads *)io;
    bool is_disk = job->kind == TIER_JOB_READ || job->kind == TIER_JOB_WRITE;
    bool is_pull = job->kind == TIER_JOB_PULL;
    ASSERT(job->name && job->page && (t->c.disk || !is_disk) && (t->c.peers || !is_pull));
    pthread_mutex_lock(&t->lock);
    ASSERT(!t->closed);
    ring_put(&t->todo[job->kind], job);
    pthread_cond_signal(&t->work[is_disk ? TEAM_DISK : is_pull ? TEAM_PULLS : TEAM_SUMS]);
    pthread_mutex_unlock(&t->lock);
}

static bool take_done(struct tier_io *io, struct tier_job *job)
{
    struct io_threads *t = (struct io_threads *)io;
    pthread_mutex_lock(&t->lock);
    bool any = ring_take(&t->done, job);
    pthread_mutex_unlock(&t->lock);
    return any;
}

static void release(struct tier_io *io, uint32_t place, const struct hash128 *key)
{
    struct page_source *peers = ((struct io_threads *)io)->c.peers;
    if (peers && peers->ops->release) peers->ops->release(peers, place, key);
}

static void destroy(struct tier_io *io)
{
    struct io_threads *t = (struct io_threads *)io;
    pthread_mutex_lock(&t->lock);
    t->closed = true;
    for (int i = 0; i < TEAM_COUNT; i++) pthread_cond_broadcast(&t->work[i]);
    pthread_mutex_unlock(&t->lock);
    if (t->c.peers && t->c.peers->ops->stop) t->c.peers->ops->stop(t->c.peers);
    for (unsigned i = 0; i < t->n_thread; i++) pthread_join(t->threads[i], NULL);
    for (int i = 0; i < TEAM_COUNT; i++) pthread_cond_destroy(&t->work[i]);
    pthread_mutex_destroy(&t->lock);
    tier_disk_close(t->c.disk);
    mem_free(t);
}

static const struct tier_io_ops thread_ops = {
    .destroy = destroy, .submit = submit, .take_done = take_done, .release = release};

static bool start(struct io_threads *t, void *(*body)(void *arg))
{
    if (pthread_create(&t->threads[t->n_thread], NULL, body, t) != 0) return false;
    t->n_thread++;
    return true;
}

fathom_err tier_io_create(struct tier_io **out, const struct tier_io_config *c, fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->owner.done && c->page_bytes > 0);
    ASSERT(c->n_sum_thread >= 1 && c->n_sum_thread <= TIER_SUM_THREADS_MAX);
    ASSERT(!c->peers || (c->n_pull_thread >= 1 && c->n_pull_thread <= TIER_PULL_THREADS_MAX));
    struct io_threads *t = mem_calloc(1, sizeof *t);
    if (!t) FAIL(d, FATHOM_ENOMEM, "no memory for the threads of the tiers");
    t->base.ops = &thread_ops;
    t->c = *c;
    pthread_mutex_init(&t->lock, NULL);
    for (int i = 0; i < TEAM_COUNT; i++) pthread_cond_init(&t->work[i], NULL);
    bool ok = !c->disk || start(t, disk_main);
    for (unsigned i = 0; ok && i < c->n_sum_thread; i++) ok = start(t, sums_main);
    for (unsigned i = 0; c->peers && ok && i < c->n_pull_thread; i++) ok = start(t, pulls_main);
    if (!ok) {
        t->c.disk = NULL; /* still the caller's */
        destroy(&t->base);
        FAIL(d, FATHOM_EIO, "a thread of the tiers cannot be started");
    }
    *out = &t->base;
    return FATHOM_OK;
}

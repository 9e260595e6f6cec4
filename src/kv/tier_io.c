/* tier_io.c - the thread that reads and writes records of a directory
 *
 * Invariants, under the lock
 *
 *   1. Every job that was submitted and not taken back is in one of the rings, or is the one that
 *      the thread is doing. Together they are TIER_JOBS_MAX at most, so no ring overflows.
 *   2. The page and name of a job are the thread's until it is in the ring `done`.
 *
 *   submit --> reads, writes --thread--> done --> take_done
 *
 * The first fault of a read and of a write is logged; later ones are only counted, by the owner. */
#include "kv/tier_io.h"

#include <pthread.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"

struct ring {
    struct tier_job jobs[TIER_JOBS_MAX];
    uint32_t first;
    uint32_t n;
};

struct io_thread {
    struct tier_io base; /* first member */
    struct tier_disk *disk;
    void (*done_hook)(void *arg);
    void *done_arg;
    pthread_t thread;
    bool has_thread;
    bool logged[2]; /* by kind; the thread's own */
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct ring todo[2]; /* by kind */
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

static enum tier_verdict do_read(struct io_thread *t, struct tier_job *job, fathom_diag *d)
{
    return tier_disk_read(t->disk, job->place, job->name, job->page, &job->sum, d);
}

static enum tier_verdict do_write(struct io_thread *t, const struct tier_job *job, fathom_diag *d)
{
    uint64_t sum = hash_checksum(job->page, tier_disk_page_bytes(t->disk));
    if (sum != job->sum) return TIER_BAD_CHECKSUM;
    return tier_disk_write(t->disk, job->place, job->order, job->name, job->page, job->sum, d);
}

static void do_job(struct io_thread *t, struct tier_job *job)
{
    fathom_diag d = {{0}};
    bool is_read = job->kind == TIER_JOB_READ;
    job->verdict = is_read ? do_read(t, job, &d) : do_write(t, job, &d);
    if (job->verdict == TIER_GOOD || t->logged[job->kind]) return;
    t->logged[job->kind] = true;
    LOG_WARN("kv", "offloaded page %s: %s%s%s (later ones are counted in the metrics)",
             is_read ? "not taken" : "not written", tier_verdict_name(job->verdict),
             d.text[0] ? ": " : "", d.text);
}

/* The next job: false once the ring is closed and nothing is left to write. */
static bool next_job(struct io_thread *t, struct tier_job *job)
{
    pthread_mutex_lock(&t->lock);
    bool any;
    while (!(any = ring_take(&t->todo[TIER_JOB_READ], job) ||
                   ring_take(&t->todo[TIER_JOB_WRITE], job)) &&
           !t->closed) {
        pthread_cond_wait(&t->work, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return any;
}

static void *thread_main(void *arg)
{
    struct io_thread *t = arg;
    struct tier_job job;
    while (next_job(t, &job)) {
        do_job(t, &job);
        pthread_mutex_lock(&t->lock);
        ring_put(&t->done, &job);
        pthread_mutex_unlock(&t->lock);
        t->done_hook(t->done_arg);
    }
    return NULL;
}

static void submit(struct tier_io *io, const struct tier_job *job)
{
    struct io_thread *t = (struct io_thread *)io;
    ASSERT(job->name && job->page);
    pthread_mutex_lock(&t->lock);
    ASSERT(!t->closed);
    ring_put(&t->todo[job->kind], job);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static bool take_done(struct tier_io *io, struct tier_job *job)
{
    struct io_thread *t = (struct io_thread *)io;
    pthread_mutex_lock(&t->lock);
    bool any = ring_take(&t->done, job);
    pthread_mutex_unlock(&t->lock);
    return any;
}

static void destroy(struct tier_io *io)
{
    struct io_thread *t = (struct io_thread *)io;
    if (t->has_thread) {
        pthread_mutex_lock(&t->lock);
        t->closed = true;
        pthread_cond_signal(&t->work);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
        ASSERT(t->todo[TIER_JOB_READ].n == 0 && t->todo[TIER_JOB_WRITE].n == 0);
    }
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    tier_disk_close(t->disk);
    mem_free(t);
}

static const struct tier_io_ops thread_ops = {
    .destroy = destroy, .submit = submit, .take_done = take_done};

fathom_err tier_io_create(struct tier_io **out, struct tier_disk *disk, void (*done)(void *arg),
                          void *arg, fathom_diag *d)
{
    *out = NULL;
    ASSERT(disk && done);
    struct io_thread *t = mem_calloc(1, sizeof *t);
    if (!t) FAIL(d, FATHOM_ENOMEM, "no memory for the thread of the disk tier");
    t->base.ops = &thread_ops;
    t->done_hook = done;
    t->done_arg = arg;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    if (pthread_create(&t->thread, NULL, thread_main, t) != 0) {
        destroy(&t->base);
        FAIL(d, FATHOM_EIO, "the thread of the disk tier cannot be started");
    }
    t->has_thread = true;
    t->disk = disk;
    *out = &t->base;
    return FATHOM_OK;
}

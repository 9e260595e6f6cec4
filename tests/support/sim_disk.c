/* sim_disk.c - a disk in memory with faults as told, and sums that are late */
#include "support/sim_disk.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"

struct platter {
    uint32_t n_place;
    uint64_t page_bytes;
    uint64_t place_bytes;
    struct tier_header *headers; /* [n_place] */
    unsigned char *pages;        /* [n_place][place_bytes] */
    struct tier_found *found;    /* [n_place] */
};

struct pending {
    struct tier_job job;
    uint32_t delay;
};

struct sim_disk {
    struct tier_io base; /* first member */
    struct platter *platter;
    struct sim_disk_options o;
    uint64_t rng;
    struct pending jobs[TIER_JOBS_MAX];
    uint32_t n_job;
};

struct platter *platter_create(uint32_t n_place, uint64_t page_bytes)
{
    struct platter *p = mem_calloc(1, sizeof *p);
    ASSERT(p);
    p->n_place = n_place;
    p->page_bytes = page_bytes;
    p->place_bytes = direct_round(page_bytes);
    p->headers = mem_calloc(n_place, sizeof *p->headers);
    p->pages = mem_calloc(n_place, p->place_bytes);
    p->found = mem_calloc(n_place, sizeof *p->found);
    ASSERT(p->headers && p->pages && p->found);
    return p;
}

void platter_destroy(struct platter *p)
{
    if (!p) return;
    mem_free(p->headers);
    mem_free(p->pages);
    mem_free(p->found);
    mem_free(p);
}

static int by_order(const void *a, const void *b)
{
    const struct tier_found *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

const struct tier_found *platter_find(struct platter *p, const struct hash128 *owner, uint32_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < p->n_place; i++) {
        const struct tier_header *h = &p->headers[i];
        if (tier_header_judge(h, owner, p->page_bytes) != TIER_GOOD) continue;
        p->found[(*n)++] = (struct tier_found){h->name.key, h->order, i};
    }
    qsort(p->found, *n, sizeof p->found[0], by_order);
    return p->found;
}

unsigned char *platter_page(struct platter *p, uint32_t place)
{
    return p->pages + place * p->place_bytes;
}

static bool one_in_1024(struct sim_disk *s, uint32_t chance)
{
    return rng_below(&s->rng, 1024) < chance;
}

static void write_record(struct sim_disk *s, const struct tier_job *job, bool torn)
{
    struct platter *p = s->platter;
    unsigned char *page = platter_page(p, job->place);
    memcpy(page, job->page, torn ? p->page_bytes / 2 : p->page_bytes);
    if (torn) return;
    tier_header_fill(&p->headers[job->place], &s->o.owner, p->page_bytes, job->order, job->name,
                     job->sum);
    if (one_in_1024(s, s->o.flip_per_1024)) {
        uint64_t bit = rng_below(&s->rng, p->page_bytes * 8);
        page[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static bool is_of_disk(const struct tier_job *job)
{
    return job->kind == TIER_JOB_READ || job->kind == TIER_JOB_WRITE;
}

static enum tier_verdict do_job(struct sim_disk *s, struct tier_job *job)
{
    struct platter *p = s->platter;
    if (is_of_disk(job) && one_in_1024(s, s->o.fail_per_1024)) {
        return rng_next(&s->rng) % 2 ? TIER_BAD_IO : TIER_BAD_TRUNCATED;
    }
    if (job->kind == TIER_JOB_READ) {
        memcpy(job->page, platter_page(p, job->place), p->page_bytes);
        job->sum = hash_checksum(job->page, p->page_bytes);
        return tier_record_judge(&p->headers[job->place], &s->o.owner, p->page_bytes, job->name,
                                 job->page);
    }
    if (job->kind == TIER_JOB_PULL) {
        if (s->o.peer_has) memcpy(job->page, job->name->ids, p->page_bytes);
        job->sum = s->o.peer_has ? hash_checksum(job->page, p->page_bytes) : s->o.peer_busy_us;
        return s->o.peer_has ? TIER_GOOD : TIER_NOT_YET;
    }
    uint64_t sum = hash_checksum(job->page, p->page_bytes);
    bool is_same = sum == job->sum;
    job->sum = sum;
    if (job->kind == TIER_JOB_SUM) return TIER_GOOD;
    if (!is_same) return TIER_BAD_CHECKSUM;
    if (job->kind == TIER_JOB_WRITE) write_record(s, job, false);
    return TIER_GOOD;
}

static void submit(struct tier_io *io, const struct tier_job *job)
{
    struct sim_disk *s = (struct sim_disk *)io;
    ASSERT(s->n_job < TIER_JOBS_MAX);
    ASSERT(!is_of_disk(job) || job->place < s->platter->n_place);
    uint32_t delay = (uint32_t)rng_below(&s->rng, (uint64_t)s->o.max_delay + 1);
    s->jobs[s->n_job++] = (struct pending){*job, delay};
}

/* The first job of the disk, or of the others, when its time has come. */
static bool take_first(struct sim_disk *s, bool of_disk, struct tier_job *job)
{
    uint32_t i = 0;
    while (i < s->n_job && is_of_disk(&s->jobs[i].job) != of_disk) i++;
    if (i == s->n_job) return false;
    if (s->jobs[i].delay > 0) {
        s->jobs[i].delay--;
        return false;
    }
    *job = s->jobs[i].job;
    job->verdict = do_job(s, job);
    s->n_job--;
    memmove(&s->jobs[i], &s->jobs[i + 1], (s->n_job - i) * sizeof s->jobs[0]);
    return true;
}

/* In order: a job is not done before those submitted before it, but the disk's and the others do
 * not wait for each other. */
static bool take_done(struct tier_io *io, struct tier_job *job)
{
    struct sim_disk *s = (struct sim_disk *)io;
    return take_first(s, false, job) || (!s->o.stuck && take_first(s, true, job));
}

static void destroy(struct tier_io *io)
{
    struct sim_disk *s = (struct sim_disk *)io;
    uint32_t i = 0;
    while (i < s->n_job && !is_of_disk(&s->jobs[i].job)) i++;
    if (i < s->n_job && s->jobs[i].job.kind == TIER_JOB_WRITE) {
        write_record(s, &s->jobs[i].job, true);
    }
    mem_free(s);
}

static void release(struct tier_io *io, uint32_t place, const struct hash128 *key)
{
    struct sim_disk *s = (struct sim_disk *)io;
    (void)place;
    s->o.n_released++;
    s->o.released = *key;
}

static const struct tier_io_ops sim_ops = {
    .destroy = destroy, .submit = submit, .take_done = take_done, .release = release};

struct tier_io *sim_disk_create(struct platter *p, const struct sim_disk_options *o)
{
    struct sim_disk *s = mem_calloc(1, sizeof *s);
    ASSERT(s);
    s->base.ops = &sim_ops;
    s->platter = p;
    s->o = *o;
    s->rng = o->seed;
    return &s->base;
}

struct sim_disk_options *sim_disk_options_of(struct tier_io *io)
{
    return &((struct sim_disk *)io)->o;
}

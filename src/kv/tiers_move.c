/* tiers_move.c - which record is in memory, on disk or both, and what is under way between them
 *
 * Invariants
 *
 *   1. An entry is a record that is in memory, on disk or both. It is in the bucket of its key
 *      exactly once, and no two have the same key.
 *   2. A place in memory, or on disk, is free or belongs to one entry.
 *   3. There are five lists. RAM has the entries with a place in memory, and DISK those whose
 *      record is on disk; in both, the entry used last comes first. UNWRITTEN has the entries in
 *      memory that wait to be written, and UNSUMMED those that wait for their sum. COPYING has the
 *      entries whose place in memory is read or written by a copy that the device may not have
 *      done.
 *   4. Places in memory from n_touched on have never been used. The lowest of them is used next,
 *      but only when no place below is free.
 *   5. A place in memory is taken from an entry only if that is READY or FILLED, not COPYING and
 *      not WRITING; a place on disk only if the entry is not READING. So no job or copy writes
 *      where another one reads.
 *   6. This thread reads no page. The threads of tier_io.h compute the sums: of a page that has
 *      arrived (SUMMING), was read (READING), is to be written (WRITING) or goes back to the device
 *      (CHECKING). A page goes back only if its sum was right within the last CHECKED_US, or if it
 *      has come from the device so recently that it has no sum yet.
 *
 * States of an entry's memory, and of its place on disk
 *
 *             keep            synced           a thread is free           done
 *        NONE -----> FILLING -------> FILLED ------------------> SUMMING ------> READY
 *                       +--- renew: NONE
 *
 *             restore, read_ahead           done, its sum is right
 *        NONE --------------------> READING ----------------------> READY
 *                                      +--- not good: NONE, and no place on disk
 *
 *             restore, read_ahead with a peer   done, its sum is right
 *        no entry ------------------> READING ----------------------> READY
 *                                     (pulled) +--- not good: no entry, the pull is lost
 *
 *              restore, read_ahead; last summed long ago          done
 *        READY -----------------------------------------> CHECKING ----> READY
 *          ^                                                 +--- damaged: NONE
 *          +--- evicted (so is FILLED): NONE
 *
 *             has its sum, not on disk     begin_step            done
 *        NONE ------------------> WANTED ----------> WRITING -------> KEPT ---> NONE
 *          ^--------- evicted ------+  ^--- failed: NONE ---+           evicted, not taken
 *
 * An entry without any place is removed. Jobs under way keep their places. There are at most
 * READS_MAX reads, as many pulls, WRITES_MAX writes, CHECKS_MAX checks and SUMS_MAX sums.
 *
 * With a shelf, a record is on it while it is READY or CHECKING. It is put there once it has its
 * sum, and its place in memory is taken only if page_shelf_remove succeeds. */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "kv/tiers_int.h"

#define NEVER UINT64_MAX
#define CHECKED_US 5000000 /* a page that was summed so lately need not be checked again */

enum { READS_MAX = 48, WRITES_MAX = 16, CHECKS_MAX = 64, SUMS_MAX = 64 };
static_assert(2 * READS_MAX + WRITES_MAX + CHECKS_MAX + SUMS_MAX <= TIER_JOBS_MAX,
              "jobs under way");

/* ---- places ---- */

static void give_ram(struct tiers *t, struct tier_entry *e)
{
    ASSERT(e->ram != TIER_NONE && t->n_free_ram < t->c.n_ram);
    ASSERT(!e->links[LIST_COPYING].linked && e->disk_state != DISK_WRITING);
    tier_list_remove(&t->table, LIST_RAM, (uint32_t)(e - t->table.entries));
    t->free_ram[t->n_free_ram++] = e->ram;
    e->ram = TIER_NONE;
    e->ram_state = RAM_NONE;
    e->from_disk = e->pulled = e->lends = false;
    e->lease_us = 0;
}

static void give_disk(struct tiers *t, struct tier_entry *e)
{
    ASSERT(e->disk != TIER_NONE && t->n_free_disk < t->c.n_disk && e->ram_state != RAM_READING);
    tier_list_remove(&t->table, LIST_DISK, (uint32_t)(e - t->table.entries));
    t->free_disk[t->n_free_disk++] = e->disk;
    e->disk = TIER_NONE;
    e->disk_state = DISK_NONE;
}

static unsigned char *page_of(const struct tiers *t, uint32_t place)
{
    ASSERT(place < t->c.n_ram);
    return t->c.ram + place * t->place_bytes;
}

static bool writes_records(const struct tiers *t)
{
    return t->c.n_disk > 0 && (!t->stats.writes_off || t->now_us >= t->again_us);
}

/* Takes an entry out of the queues for sums and writes, and counts it as dropped if it waited to be
 * written. */
static void leave_queues(struct tiers *t, uint32_t i)
{
    struct tier_entry *e = &t->table.entries[i];
    bool waits = e->disk_state == DISK_WANTED;
    if (e->ram_state == RAM_FILLED) waits = e->disk_state == DISK_NONE && writes_records(t);
    tier_list_remove(&t->table, LIST_UNSUMMED, i);
    tier_list_remove(&t->table, LIST_UNWRITTEN, i);
    if (e->disk_state == DISK_WANTED) e->disk_state = DISK_NONE;
    t->stats.n_dropped += waits;
}

/* ---- other servers ---- */

static void put_on_shelf(struct tiers *t, const struct tier_entry *e)
{
    if (!t->c.shelf) return;
    ASSERT(e->ram_state == RAM_READY);
    page_shelf_put(t->c.shelf, e->ram, &t->names[e->ram], page_of(t, e->ram), t->sums[e->ram]);
    if (e->lends && e->lease_us) page_shelf_lend(t->c.shelf, e->ram, e->lease_us, t->now_us);
}

/* False: it stays on the shelf, because another server is reading it. */
static bool take_off_shelf(struct tiers *t, const struct tier_entry *e)
{
    return !t->c.shelf || page_shelf_remove(t->c.shelf, e->ram);
}

static bool is_leased(struct tiers *t, struct tier_entry *e)
{
    if (e->lease_us == 0) return false;
    if (e->lease_us > t->now_us && !page_shelf_is_done(t->c.shelf, e->ram)) return true;
    e->lease_us = 0;
    return false;
}

bool tiers_lease(struct tiers *t, const struct hash128 *key, uint64_t until_us, bool is_new)
{
    uint32_t i = tier_table_search(&t->table, key);
    if (i == TIER_NONE || t->table.entries[i].ram == TIER_NONE) return false;
    if (!t->c.shelf) return true;
    struct tier_entry *e = &t->table.entries[i];
    e->lease_us = until_us;
    e->lends |= is_new;
    if (is_new) page_shelf_lend(t->c.shelf, e->ram, until_us, t->now_us);
    return true;
}

uint64_t tiers_pull_until_us(const struct tiers *t, uint32_t place)
{
    return tier_lacking_until_us(&t->lacking, place);
}

bool tiers_pulls_again(const struct tiers *t)
{
    return tier_lacking_asks(&t->lacking, t->now_us);
}

void tiers_release(struct tiers *t, uint32_t place, const struct hash128 *key)
{
    if (t->c.io->ops->release) t->c.io->ops->release(t->c.io, place, key);
}

void tiers_give_up(struct tiers *t, uint64_t pull)
{
    t->stats.n_pull_lost += tier_lacking_lose(&t->lacking, pull, t->now_us);
}

/* ---- memory is given up ---- */

static bool evict_ram_of(struct tiers *t, bool leased_too)
{
    uint32_t i = t->table.lists[LIST_RAM].tail;
    for (; i != TIER_NONE; i = t->table.entries[i].links[LIST_RAM].prev) {
        struct tier_entry *e = &t->table.entries[i];
        if (e->ram_state != RAM_READY && e->ram_state != RAM_FILLED) continue;
        if (e->links[LIST_COPYING].linked || e->disk_state == DISK_WRITING) continue;
        if ((!leased_too && is_leased(t, e)) || !take_off_shelf(t, e)) continue;
        leave_queues(t, i);
        give_ram(t, e);
        tier_table_tidy(&t->table, i);
        return true;
    }
    return false;
}

/* Frees the place in memory whose record was used the longest ago, among those that no job, copy or
 * server uses. Records with a lease come last. */
static bool evict_ram(struct tiers *t)
{
    return evict_ram_of(t, false) || (t->c.shelf && evict_ram_of(t, true));
}

static bool evict_disk(struct tiers *t)
{
    uint32_t i = t->table.lists[LIST_DISK].tail;
    for (; i != TIER_NONE; i = t->table.entries[i].links[LIST_DISK].prev) {
        struct tier_entry *e = &t->table.entries[i];
        if (e->ram_state == RAM_READING) continue;
        give_disk(t, e);
        tier_table_tidy(&t->table, i);
        return true;
    }
    return false;
}

/* Takes a place in memory for the record `name`; TIER_NONE: all are in use by jobs or copies. */
static uint32_t take_ram(struct tiers *t, const struct tier_name *name)
{
    if (t->n_free_ram == 0 && !evict_ram(t)) return TIER_NONE;
    uint32_t place = t->free_ram[--t->n_free_ram];
    if (place >= t->n_touched) t->n_touched = place + 1;
    t->names[place] = *name;
    return place;
}

/* ---- life ---- */

static fathom_err allocate(struct tiers *t)
{
    TRY(tier_table_init(&t->table, t->c.n_ram + t->c.n_disk));
    t->names = mem_calloc(t->c.n_ram, sizeof *t->names);
    t->sums = mem_calloc(t->c.n_ram, sizeof *t->sums);
    t->checked_us = mem_calloc(t->c.n_ram, sizeof *t->checked_us);
    t->free_ram = mem_alloc_array(t->c.n_ram, sizeof *t->free_ram);
    t->free_disk = mem_alloc_array(t->c.n_disk, sizeof *t->free_disk);
    if (!t->names || !t->sums) return FATHOM_ENOMEM;
    if (!t->checked_us) return FATHOM_ENOMEM;
    if (!t->free_ram || !t->free_disk) return FATHOM_ENOMEM;
    for (uint32_t i = t->c.n_ram; i-- > 0;) t->free_ram[t->n_free_ram++] = i;
    return FATHOM_OK;
}

/* Makes entries for the records that are on disk; of two with the same key, for the later one. */
static fathom_err adopt(struct tiers *t)
{
    bool *taken = mem_calloc(t->c.n_disk, sizeof *taken);
    if (!taken) return FATHOM_ENOMEM;
    for (uint32_t k = t->c.n_found; k-- > 0;) {
        const struct tier_found *f = &t->c.found[k];
        if (tier_table_search(&t->table, &f->key) != TIER_NONE) continue;
        struct tier_entry *e = &t->table.entries[tier_table_take(&t->table, &f->key)];
        ASSERT(f->place < t->c.n_disk && !taken[f->place]);
        e->disk = f->place;
        e->disk_state = DISK_KEPT;
        taken[f->place] = true;
        if (f->order >= t->order) t->order = f->order + 1;
    }
    for (uint32_t k = 0; k < t->c.n_found; k++) {
        uint32_t i = tier_table_search(&t->table, &t->c.found[k].key);
        if (t->table.entries[i].disk == t->c.found[k].place)
            tier_list_touch(&t->table, LIST_DISK, i);
    }
    for (uint32_t i = t->c.n_disk; i-- > 0;) {
        if (!taken[i]) t->free_disk[t->n_free_disk++] = i;
    }
    mem_free(taken);
    return FATHOM_OK;
}

static void count_used(struct tiers *t)
{
    t->stats.n_ram_used = t->c.n_ram - t->n_free_ram;
    t->stats.n_disk_used = t->c.n_disk - t->n_free_disk;
    t->stats.n_unwritten = t->table.lists[LIST_UNWRITTEN].n + t->n_writing;
}

fathom_err tiers_create(struct tiers **out, const struct tiers_config *c, fathom_diag *d)
{
    *out = NULL;
    if (c->n_ram < TIERS_MIN_RAM) {
        FAIL(d, FATHOM_EINVAL, "%u pages of memory for offloading, needed is at least %d", c->n_ram,
             TIERS_MIN_RAM);
    }
    ASSERT(c->io && c->device.page_out && c->device.page_in);
    ASSERT(c->n_disk == 0 || (uintptr_t)c->ram % DIRECT_ALIGN == 0);
    struct tiers *t = mem_calloc(1, sizeof *t);
    if (!t) FAIL(d, FATHOM_ENOMEM, "no memory for the tiers");
    t->c = *c;
    t->place_bytes = direct_round(c->page_bytes);
    uint64_t step_pages = c->step_bytes / c->page_bytes;
    t->step_pages = step_pages > 0 && step_pages < UINT32_MAX ? (uint32_t)step_pages : 1;
    t->n_left = t->step_pages;
    t->stats.n_ram = c->n_ram;
    t->stats.n_disk = c->n_disk;
    if (allocate(t) != FATHOM_OK || adopt(t) != FATHOM_OK) {
        t->c.io = NULL; /* still the caller's */
        tiers_destroy(t);
        FAIL(d, FATHOM_ENOMEM, "no memory for %u page records", c->n_ram + c->n_disk);
    }
    t->c.found = NULL;
    *out = t;
    count_used(t);
    return FATHOM_OK;
}

void tiers_destroy(struct tiers *t)
{
    if (!t) return;
    if (t->c.io) t->c.io->ops->destroy(t->c.io);
    tier_table_fini(&t->table);
    mem_free(t->names);
    mem_free(t->sums);
    mem_free(t->checked_us);
    mem_free(t->free_ram);
    mem_free(t->free_disk);
    mem_free(t);
}

const struct hash128 *tiers_secret(const struct tiers *t)
{
    return &t->c.secret;
}

/* ---- the disk ---- */

static void submit(struct tiers *t, uint32_t i, enum tier_job_kind kind)
{
    const struct tier_entry *e = &t->table.entries[i];
    const struct tier_job job = {.kind = kind,
                                 .entry = i,
                                 .place = e->disk,
                                 .order = kind == TIER_JOB_WRITE ? t->order++ : 0,
                                 .name = &t->names[e->ram],
                                 .page = page_of(t, e->ram),
                                 .sum = t->sums[e->ram]};
    t->c.io->ops->submit(t->c.io, &job);
}

static void want_write(struct tiers *t, uint32_t i)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_READY);
    if (!writes_records(t) || e->disk_state != DISK_NONE) return;
    e->disk_state = DISK_WANTED;
    tier_list_touch(&t->table, LIST_UNWRITTEN, i);
}

static void start_writes(struct tiers *t)
{
    while (t->n_writing < WRITES_MAX && t->table.lists[LIST_UNWRITTEN].n > 0) {
        if (t->n_free_disk == 0 && !evict_disk(t)) return;
        uint32_t i = t->table.lists[LIST_UNWRITTEN].tail;
        struct tier_entry *e = &t->table.entries[i];
        ASSERT(e->ram_state == RAM_READY || e->ram_state == RAM_CHECKING);
        ASSERT(e->disk_state == DISK_WANTED);
        tier_list_remove(&t->table, LIST_UNWRITTEN, i);
        e->disk = t->free_disk[--t->n_free_disk];
        e->disk_state = DISK_WRITING;
        t->n_writing++;
        submit(t, i, TIER_JOB_WRITE);
    }
}

/* Begins to read a record that is only on disk into memory; false: that cannot be begun now. */
static bool start_read(struct tiers *t, uint32_t i, const struct tier_name *name)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_NONE && e->disk_state == DISK_KEPT);
    uint32_t reads_max = t->c.n_ram / 2 < READS_MAX ? t->c.n_ram / 2 : READS_MAX;
    if (t->n_reading == reads_max) return false;
    uint32_t place = take_ram(t, name);
    if (place == TIER_NONE) return false;
    e->ram = place;
    e->ram_state = RAM_READING;
    tier_list_touch(&t->table, LIST_RAM, i);
    t->n_reading++;
    submit(t, i, TIER_JOB_READ);
    return true;
}

static void end_read(struct tiers *t, uint32_t i, enum tier_verdict verdict, uint64_t sum)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_READING && e->disk_state == DISK_KEPT && t->n_reading > 0);
    t->n_reading--;
    if (verdict == TIER_GOOD) {
        t->stats.n_read++;
        e->ram_state = RAM_READY;
        t->sums[e->ram] = sum;
        t->checked_us[e->ram] = t->now_us;
        e->from_disk = true;
        put_on_shelf(t, e);
        return;
    }
    t->stats.n_rejected[verdict]++;
    give_ram(t, e);
    give_disk(t, e);
    tier_table_tidy(&t->table, i);
}

/* Begins to ask another server for a record that these tiers lack; false: that cannot be begun now.
 * */
static bool start_pull(struct tiers *t, const struct tier_name *name, const struct tier_peer *peer)
{
    uint32_t pulls_max = t->c.n_ram / 2 < READS_MAX ? t->c.n_ram / 2 : READS_MAX;
    if (t->n_pulling == pulls_max) return false;
    uint32_t place = take_ram(t, name);
    if (place == TIER_NONE) return false;
    uint32_t i = tier_table_take(&t->table, &name->key);
    struct tier_entry *e = &t->table.entries[i];
    e->ram = place;
    e->ram_state = RAM_READING;
    e->pulled = true;
    tier_list_touch(&t->table, LIST_RAM, i);
    t->n_pulling++;
    const struct tier_job job = {.kind = TIER_JOB_PULL,
                                 .entry = i,
                                 .place = peer->place,
                                 .pull = peer->pull,
                                 .name = &t->names[place],
                                 .page = page_of(t, place)};
    t->c.io->ops->submit(t->c.io, &job);
    return true;
}

static void end_pull(struct tiers *t, const struct tier_job *job)
{
    struct tier_entry *e = &t->table.entries[job->entry];
    ASSERT(e->ram_state == RAM_READING && e->pulled && t->n_pulling > 0);
    t->n_pulling--;
    if (job->verdict == TIER_NOT_YET) {
        tier_lacking_wait(&t->lacking, job->pull, job->place, t->now_us, job->sum);
    } else if (job->verdict != TIER_GOOD) {
        tiers_give_up(t, job->pull);
    }
    if (job->verdict != TIER_GOOD) {
        give_ram(t, e);
        tier_table_tidy(&t->table, job->entry);
        return;
    }
    tier_lacking_came(&t->lacking, job->pull);
    t->stats.n_pulled++;
    e->pulled = false;
    e->ram_state = RAM_READY;
    t->sums[e->ram] = job->sum;
    t->checked_us[e->ram] = t->now_us;
    put_on_shelf(t, e);
    want_write(t, job->entry);
}

/* A page has changed in memory: gives it up. While a copy, a write or another server uses it, only
 * notes that it must be checked again. If the record is on disk too, it will be read from there. */
static void drop_damaged(struct tiers *t, uint32_t i)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_READY);
    t->checked_us[e->ram] = NEVER;
    if (e->links[LIST_COPYING].linked || e->disk_state == DISK_WRITING) return;
    if (!take_off_shelf(t, e)) return; /* the server that reads it checks the sum itself */
    t->stats.n_rejected[TIER_BAD_CHECKSUM]++;
    leave_queues(t, i);
    give_ram(t, e);
    tier_table_tidy(&t->table, i);
}

static void end_write(struct tiers *t, uint32_t i, enum tier_verdict verdict)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_READY || e->ram_state == RAM_CHECKING);
    ASSERT(e->disk_state == DISK_WRITING && t->n_writing > 0);
    t->n_writing--;
    if (verdict == TIER_GOOD) {
        t->stats.n_written++;
        t->n_fault = 0;
        if (t->stats.writes_off) LOG_INFO("kv", "offloaded pages can be written again");
        t->stats.writes_off = false;
        e->disk_state = DISK_KEPT;
        tier_list_touch(&t->table, LIST_DISK, i);
        return;
    }
    give_disk(t, e);
    if (verdict == TIER_BAD_CHECKSUM) { /* nothing was written: the page has changed in memory */
        t->stats.n_dropped++;
        if (e->ram_state == RAM_READY) drop_damaged(t, i); /* else the check under way does it */
        return;
    }
    t->stats.n_write_failed++;
    if (++t->n_fault < TIERS_MAX_FAULTS) return;
    if (!t->stats.writes_off)
        LOG_WARN("kv",
                 "%d writes of offloaded pages failed in a row: they are tried once a minute from "
                 "now on",
                 TIERS_MAX_FAULTS);
    t->stats.writes_off = true;
    t->again_us = t->now_us + TIERS_REST_US;
    for (uint32_t k; (k = t->table.lists[LIST_UNWRITTEN].tail) != TIER_NONE;) {
        tier_list_remove(&t->table, LIST_UNWRITTEN, k);
        t->table.entries[k].disk_state = DISK_NONE;
        t->stats.n_dropped++;
    }
}

/* ---- sums ---- */

static void start_sums(struct tiers *t)
{
    while (t->n_summing < SUMS_MAX && t->table.lists[LIST_UNSUMMED].n > 0) {
        uint32_t i = t->table.lists[LIST_UNSUMMED].tail;
        struct tier_entry *e = &t->table.entries[i];
        ASSERT(e->ram_state == RAM_FILLED);
        tier_list_remove(&t->table, LIST_UNSUMMED, i);
        e->ram_state = RAM_SUMMING;
        t->n_summing++;
        submit(t, i, TIER_JOB_SUM);
    }
}

static void end_sum(struct tiers *t, uint32_t i, uint64_t sum)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_SUMMING && t->n_summing > 0);
    t->n_summing--;
    e->ram_state = RAM_READY;
    t->sums[e->ram] = sum;
    t->checked_us[e->ram] = t->now_us;
    put_on_shelf(t, e);
    want_write(t, i);
}

static bool is_checked(const struct tiers *t, const struct tier_entry *e)
{
    uint64_t at_us = t->checked_us[e->ram];
    return e->ram_state != RAM_READY || (at_us != NEVER && t->now_us - at_us < CHECKED_US);
}

/* Begins to compare a page with its sum; false: that cannot be begun now. */
static bool start_check(struct tiers *t, uint32_t i)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_READY);
    if (t->n_checking == CHECKS_MAX) return false;
    e->ram_state = RAM_CHECKING;
    tier_list_touch(&t->table, LIST_RAM, i);
    t->n_checking++;
    submit(t, i, TIER_JOB_CHECK);
    return true;
}

static void end_check(struct tiers *t, uint32_t i, enum tier_verdict verdict)
{
    struct tier_entry *e = &t->table.entries[i];
    ASSERT(e->ram_state == RAM_CHECKING && t->n_checking > 0);
    t->n_checking--;
    e->ram_state = RAM_READY;
    t->checked_us[e->ram] = t->now_us;
    if (verdict != TIER_GOOD) drop_damaged(t, i);
}

void tiers_begin_step(struct tiers *t, uint64_t now_us, double prefill_page_us)
{
    t->now_us = now_us;
    t->prefill_page_us = prefill_page_us;
    t->n_left = t->step_pages;
    struct tier_job job;
    while (t->c.io->ops->take_done(t->c.io, &job)) {
        ASSERT(job.entry < t->table.n_entry && t->table.entries[job.entry].ram != TIER_NONE);
        switch (job.kind) {
        case TIER_JOB_READ: end_read(t, job.entry, job.verdict, job.sum); break;
        case TIER_JOB_PULL: end_pull(t, &job); break;
        case TIER_JOB_WRITE: end_write(t, job.entry, job.verdict); break;
        case TIER_JOB_CHECK: end_check(t, job.entry, job.verdict); break;
        case TIER_JOB_SUM: end_sum(t, job.entry, job.sum); break;
        }
    }
    start_sums(t);
    start_writes(t);
    count_used(t);
}

/* How many places in memory are in use by jobs or copies, or wait for a sum or a write. Some count
 * twice. */
static uint32_t count_moving(const struct tiers *t)
{
    return t->table.lists[LIST_COPYING].n + t->table.lists[LIST_UNSUMMED].n +
           t->table.lists[LIST_UNWRITTEN].n + t->n_summing + t->n_checking + t->n_writing +
           t->n_reading + t->n_pulling;
}

/* ---- the device ---- */

void tiers_synced(struct tiers *t)
{
    for (uint32_t i; (i = t->table.lists[LIST_COPYING].tail) != TIER_NONE;) {
        struct tier_entry *e = &t->table.entries[i];
        tier_list_remove(&t->table, LIST_COPYING, i);
        if (e->ram_state != RAM_FILLING) continue;
        e->ram_state = RAM_FILLED;
        tier_list_touch(&t->table, LIST_UNSUMMED, i);
    }
    start_sums(t);
    count_used(t);
}

void tiers_renew(struct tiers *t)
{
    for (uint32_t i; (i = t->table.lists[LIST_COPYING].tail) != TIER_NONE;) {
        struct tier_entry *e = &t->table.entries[i];
        tier_list_remove(&t->table, LIST_COPYING, i);
        if (e->ram_state != RAM_FILLING) continue;
        give_ram(t, e);
        tier_table_tidy(&t->table, i);
    }
    t->fault = FATHOM_OK;
    count_used(t);
}

fathom_err tiers_fault(const struct tiers *t)
{
    return t->fault;
}

bool tiers_has_room(const struct tiers *t)
{
    return count_moving(t) < t->c.n_ram;
}

bool tiers_may_copy(const struct tiers *t)
{
    return t->n_left > 0 && tiers_has_room(t);
}

bool tiers_keep_all(const struct tiers *t)
{
    return t->n_free_ram > 0 || writes_records(t);
}

bool tiers_touch(struct tiers *t)
{
    if (t->n_touched == t->c.n_ram) return false;
    mem_touch_pages(page_of(t, t->n_touched), t->c.page_bytes);
    t->n_touched++;
    return true;
}

static void use_entry(struct tiers *t, uint32_t i)
{
    const struct tier_entry *e = &t->table.entries[i];
    if (e->links[LIST_RAM].linked) tier_list_touch(&t->table, LIST_RAM, i);
    if (e->links[LIST_DISK].linked) tier_list_touch(&t->table, LIST_DISK, i);
}

bool tiers_use(struct tiers *t, const struct hash128 *key)
{
    uint32_t i = tier_table_search(&t->table, key);
    if (i != TIER_NONE) use_entry(t, i);
    return i != TIER_NONE;
}

void tiers_keep(struct tiers *t, const struct tier_name *name, uint32_t page, bool overwritten)
{
    uint32_t i = tier_table_search(&t->table, &name->key);
    if (i != TIER_NONE) {
        use_entry(t, i);
        if (t->table.entries[i].ram != TIER_NONE || !overwritten) return;
    }
    if (t->fault) return;
    uint32_t place = take_ram(t, name); /* this evicts no entry that is only on disk */
    if (place == TIER_NONE) {
        t->stats.n_refused++;
        return;
    }
    t->fault = t->c.device.page_out(t->c.device.arg, page, page_of(t, place));
    if (t->fault) {
        t->free_ram[t->n_free_ram++] = place;
        return;
    }
    if (i == TIER_NONE) i = tier_table_take(&t->table, &name->key);
    ASSERT(t->table.entries[i].ram == TIER_NONE);
    t->table.entries[i].ram = place;
    t->table.entries[i].ram_state = RAM_FILLING;
    tier_list_touch(&t->table, LIST_RAM, i);
    tier_list_touch(&t->table, LIST_COPYING, i);
    t->stats.n_kept++;
    if (t->n_left > 0) t->n_left--;
    count_used(t);
}

enum tier_where tiers_find(const struct tiers *t, const struct hash128 *key)
{
    uint32_t i = tier_table_search(&t->table, key);
    if (i == TIER_NONE) return TIER_NOWHERE;
    const struct tier_entry *e = &t->table.entries[i];
    if (e->pulled) return TIER_ASKED_FOR;
    return e->ram_state == RAM_NONE || e->ram_state == RAM_READING ? TIER_ON_DISK : TIER_IN_RAM;
}

static bool has_name(const struct tier_name *a, const struct tier_name *b)
{
    return a->n_id == b->n_id && a->n_answer == b->n_answer &&
           memcmp(a->ids, b->ids, a->n_id * sizeof a->ids[0]) == 0;
}

enum tier_answer tiers_restore(struct tiers *t, const struct tier_name *name, uint32_t page,
                               const struct tier_peer *peer)
{
    uint32_t i = tier_table_search(&t->table, &name->key);
    if (t->fault) return TIER_GONE;
    if (i == TIER_NONE) {
        const struct lacking *l = peer ? tier_lacking_of(&t->lacking, peer->pull) : NULL;
        if (!peer || (l && l->lost)) return TIER_GONE;
        if (!l || t->now_us >= l->again_us) (void)start_pull(t, name, peer);
        return TIER_WAIT;
    }
    struct tier_entry *e = &t->table.entries[i];
    if (e->ram_state == RAM_NONE) (void)start_read(t, i, name);
    if (e->ram_state == RAM_NONE || e->ram_state == RAM_READING) return TIER_WAIT;
    if (!has_name(&t->names[e->ram], name)) {
        t->stats.n_rejected[TIER_BAD_TOKENS]++;
        return TIER_GONE;
    }
    if (!is_checked(t, e)) (void)start_check(t, i);
    if (!is_checked(t, e) || e->ram_state == RAM_CHECKING || t->n_left == 0) return TIER_WAIT;
    /* The place may still be FILLING: the device copies in order, so it is filled before this. */
    t->fault = t->c.device.page_in(t->c.device.arg, page, page_of(t, e->ram));
    if (t->fault) return TIER_GONE;
    if (e->from_disk) {
        t->stats.n_restored_disk++;
    } else {
        t->stats.n_restored_ram++;
    }
    ASSERT(t->n_left > 0);
    e->from_disk = false;
    tier_list_touch(&t->table, LIST_RAM, i);
    tier_list_touch(&t->table, LIST_COPYING, i);
    t->n_left--;
    return TIER_RESTORED;
}

bool tiers_read_ahead(struct tiers *t, const struct tier_name *name, const struct tier_peer *peer)
{
    uint32_t i = tier_table_search(&t->table, &name->key);
    if (i == TIER_NONE) {
        return peer && !tier_lacking_of(&t->lacking, peer->pull) && start_pull(t, name, peer);
    }
    const struct tier_entry *e = &t->table.entries[i];
    if (e->ram_state == RAM_NONE) return start_read(t, i, name);
    return is_checked(t, e) || start_check(t, i);
}

/* ---- whether it pays ---- */

bool tiers_pay(const struct tiers *t, uint32_t n_page, uint32_t n_disk)
{
    if (n_page == 0 || (n_disk > 0 && n_page < TIERS_MIN_DISK_PAGES)) return false;
    return tier_pace_pays(&t->paces[n_disk > 0], t->now_us, t->prefill_page_us);
}

uint64_t tiers_patience_us(const struct tiers *t, uint32_t n_page)
{
    return tier_pace_patience_us(t->prefill_page_us, n_page);
}

void tiers_note_fetch(struct tiers *t, uint32_t n_page, bool from_disk, uint64_t us)
{
    tier_pace_note(&t->paces[from_disk], t->now_us, n_page, us);
    t->stats.n_fetch++;
    t->stats.fetch_us += us;
}

bool tiers_is_busy(const struct tiers *t)
{
    return count_moving(t) > 0;
}

const struct tiers_stats *tiers_get_stats(const struct tiers *t)
{
    return &t->stats;
}

/* tiers.c - which record is in memory, on disk or both, and what is under way between them
 *
 * Invariants
 *
 *   1. An entry is a record that is in memory, on disk or both. It is in the bucket of its key
 *      exactly once, and no two have the same key.
 *   2. A place in memory, or on disk, is free or belongs to one entry.
 *   3. There are four lists. RAM has the entries with a place in memory, and DISK those whose
 * record is on disk; in both the entry used last comes first. UNWRITTEN has the entries in memory
 *      that wait for a write, in order. COPYING has the entries whose place in memory is part of a
 *      copy that the device may not have done.
 *   4. Places in memory from n_touched on have never been taken. The lowest of them is taken next,
 *      and only when no place below is free.
 *   5. A place in memory is given away only when its entry is READY, not COPYING and not WRITING; a
 *      place on disk only when its entry is not READING. So nobody writes where another reads.
 *
 * States of an entry's memory, and of its place on disk
 *
 *             keep            synced                         restore, read_ahead       done
 *        NONE -----> FILLING -------> READY             NONE ----------------> READING ----> READY
 *                                       | evicted         ^                       | not taken
 *                                       v                 |                       v
 *                                      NONE              NONE <-------------------+
 *
 *             READY, not on disk         begin_step            done
 *        NONE ------------------> WANTED ----------> WRITING -------> KEPT ---> NONE
 *          ^--------- evicted ------+  ^--- failed: NONE ---+           evicted, not taken
 *
 * An entry with neither place is gone. Jobs under way hold their places; there are at most
 * READS_MAX reads and WRITES_MAX writes.
 */
#include "kv/tiers.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"

#define NONE UINT32_MAX
#define FRESH_US 60000000 /* older measurements say nothing */

enum { READS_MAX = 48, WRITES_MAX = 16 };
static_assert(READS_MAX + WRITES_MAX <= TIER_JOBS_MAX, "jobs under way");

enum ram_state { RAM_NONE, RAM_FILLING, RAM_READING, RAM_READY };
enum disk_state { DISK_NONE, DISK_WANTED, DISK_WRITING, DISK_KEPT };
enum list { LIST_RAM, LIST_DISK, LIST_UNWRITTEN, LIST_COPYING, LIST_COUNT };

struct link {
    uint32_t prev; /* NONE at the ends */
    uint32_t next;
    bool linked;
};

struct entry {
    struct hash128 key;
    uint32_t next; /* in the bucket, or of the unused entries */
    uint32_t ram;  /* places; NONE: it has none */
    uint32_t disk;
    uint8_t ram_state;
    uint8_t disk_state;
    bool used;
    bool from_disk; /* read, and not restored since */
    struct link links[LIST_COUNT];
};

struct entry_list {
    uint32_t head;
    uint32_t tail;
    uint32_t n;
};

/* What a page of a fetch took lately. */
struct pace {
    double page_us; /* 0: unknown */
    uint64_t seen_us;
};

struct tiers {
    struct tiers_config c;
    uint64_t place_bytes; /* of a page in memory */
    uint32_t n_entry;
    uint32_t n_used;
    struct entry *entries; /* [n_entry] */
    uint32_t unused;       /* entries, linked by next */
    uint32_t *buckets;     /* [bucket_mask + 1] */
    uint32_t bucket_mask;
    struct tier_name *names; /* [n_ram] what a place of memory holds, or is to be filled with */
    uint64_t *sums;          /* [n_ram] of the pages that are READY */
    uint32_t *free_ram;      /* [n_ram] stacks of places */
    uint32_t *free_disk;     /* [n_disk] */
    uint32_t n_free_ram, n_free_disk;
    uint32_t n_touched; /* places of memory that the system has provided */
    struct entry_list lists[LIST_COUNT];
    uint32_t n_reading, n_writing;
    uint32_t n_fault;            /* writes that failed since one did not */
    uint32_t step_pages, n_left; /* copies of a step, and those left of this one's */
    uint64_t order;
    uint64_t now_us;
    double prefill_page_us;
    struct pace paces[2]; /* of fetches from memory alone, and of others */
    fathom_err fault;
    struct tiers_stats stats;
};

/* ---- lists ---- */

static void list_remove(struct tiers *t, enum list which, uint32_t i)
{
    struct entry_list *l = &t->lists[which];
    struct link *k = &t->entries[i].links[which];
    if (!k->linked) return;
    ASSERT(l->n > 0);
    if (k->prev != NONE) {
        t->entries[k->prev].links[which].next = k->next;
    } else {
        l->head = k->next;
    }
    if (k->next != NONE) {
        t->entries[k->next].links[which].prev = k->prev;
    } else {
        l->tail = k->prev;
    }
    k->linked = false;
    l->n--;
}

/* To the front, wherever it was. */
static void list_touch(struct tiers *t, enum list which, uint32_t i)
{
    struct entry_list *l = &t->lists[which];
    ASSERT(t->entries[i].used);
    list_remove(t, which, i);
    t->entries[i].links[which] = (struct link){NONE, l->head, true};
    if (l->head != NONE) {
        t->entries[l->head].links[which].prev = i;
    } else {
        l->tail = i;
    }
    l->head = i;
    l->n++;
}

/* ---- entries ---- */

static uint32_t *bucket_of(const struct tiers *t, const struct hash128 *key)
{
    return &t->buckets[key->lo & t->bucket_mask];
}

static uint32_t search(const struct tiers *t, const struct hash128 *key)
{
    uint32_t i = *bucket_of(t, key);
    while (i != NONE && !hash128_equal(&t->entries[i].key, key)) i = t->entries[i].next;
    return i;
}

static uint32_t entry_take(struct tiers *t, const struct hash128 *key)
{
    uint32_t i = t->unused;
    ASSERT(i != NONE); /* each has a place, and there are as many as places */
    struct entry *e = &t->entries[i];
    t->unused = e->next;
    uint32_t *bucket = bucket_of(t, key);
    *e = (struct entry){.key = *key, .next = *bucket, .ram = NONE, .disk = NONE, .used = true};
    *bucket = i;
    t->n_used++;
    return i;
}

/* Forgets an entry that has neither place any more. */
static void entry_tidy(struct tiers *t, uint32_t i)
{
    struct entry *e = &t->entries[i];
    if (e->ram != NONE || e->disk != NONE) return;
    for (int k = 0; k < LIST_COUNT; k++) ASSERT(!e->links[k].linked);
    uint32_t *link = bucket_of(t, &e->key);
    while (*link != i) link = &t->entries[*link].next;
    *link = e->next;
    *e = (struct entry){.next = t->unused};
    t->unused = i;
    t->n_used--;
}

static void give_ram(struct tiers *t, struct entry *e)
{
    ASSERT(e->ram != NONE && t->n_free_ram < t->c.n_ram);
    ASSERT(!e->links[LIST_COPYING].linked && e->disk_state != DISK_WRITING);
    list_remove(t, LIST_RAM, (uint32_t)(e - t->entries));
    t->free_ram[t->n_free_ram++] = e->ram;
    e->ram = NONE;
    e->ram_state = RAM_NONE;
    e->from_disk = false;
}

static void give_disk(struct tiers *t, struct entry *e)
{
    ASSERT(e->disk != NONE && t->n_free_disk < t->c.n_disk && e->ram_state != RAM_READING);
    list_remove(t, LIST_DISK, (uint32_t)(e - t->entries));
    t->free_disk[t->n_free_disk++] = e->disk;
    e->disk = NONE;
    e->disk_state = DISK_NONE;
}

static unsigned char *page_of(const struct tiers *t, uint32_t place)
{
    ASSERT(place < t->c.n_ram);
    return t->c.ram + place * t->place_bytes;
}

/* Frees the place of memory that was used the longest ago, of those that nobody reads or writes. */
static bool evict_ram(struct tiers *t)
{
    uint32_t i = t->lists[LIST_RAM].tail;
    for (; i != NONE; i = t->entries[i].links[LIST_RAM].prev) {
        struct entry *e = &t->entries[i];
        if (e->ram_state != RAM_READY || e->links[LIST_COPYING].linked) continue;
        if (e->disk_state == DISK_WRITING) continue;
        if (e->disk_state == DISK_WANTED) {
            list_remove(t, LIST_UNWRITTEN, i);
            e->disk_state = DISK_NONE;
            t->stats.n_dropped++;
        }
        give_ram(t, e);
        entry_tidy(t, i);
        return true;
    }
    return false;
}

static bool evict_disk(struct tiers *t)
{
    uint32_t i = t->lists[LIST_DISK].tail;
    for (; i != NONE; i = t->entries[i].links[LIST_DISK].prev) {
        struct entry *e = &t->entries[i];
        if (e->ram_state == RAM_READING) continue;
        give_disk(t, e);
        entry_tidy(t, i);
        return true;
    }
    return false;
}

/* A place of memory for what `name` says; NONE when all are under way. */
static uint32_t take_ram(struct tiers *t, const struct tier_name *name)
{
    if (t->n_free_ram == 0 && !evict_ram(t)) return NONE;
    uint32_t place = t->free_ram[--t->n_free_ram];
    if (place >= t->n_touched) t->n_touched = place + 1;
    t->names[place] = *name;
    return place;
}

/* ---- life ---- */

static fathom_err allocate(struct tiers *t)
{
    uint32_t n_bucket = 1;
    while (n_bucket < t->n_entry) n_bucket *= 2;
    t->bucket_mask = n_bucket - 1;
    t->entries = mem_calloc(t->n_entry, sizeof *t->entries);
    t->buckets = mem_alloc_array(n_bucket, sizeof *t->buckets);
    t->names = mem_calloc(t->c.n_ram, sizeof *t->names);
    t->sums = mem_calloc(t->c.n_ram, sizeof *t->sums);
    t->free_ram = mem_alloc_array(t->c.n_ram, sizeof *t->free_ram);
    t->free_disk = mem_alloc_array(t->c.n_disk, sizeof *t->free_disk);
    if (!t->entries || !t->buckets || !t->names || !t->sums) return FATHOM_ENOMEM;
    if (!t->free_ram || !t->free_disk) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < n_bucket; i++) t->buckets[i] = NONE;
    t->unused = NONE;
    for (uint32_t i = t->n_entry; i-- > 0; t->unused = i) t->entries[i].next = t->unused;
    for (uint32_t i = t->c.n_ram; i-- > 0;) t->free_ram[t->n_free_ram++] = i;
    for (int k = 0; k < LIST_COUNT; k++) t->lists[k] = (struct entry_list){NONE, NONE, 0};
    return FATHOM_OK;
}

/* The records that the disk has kept; of two under one key the one written last. */
static fathom_err adopt(struct tiers *t)
{
    bool *taken = mem_calloc(t->c.n_disk, sizeof *taken);
    if (!taken) return FATHOM_ENOMEM;
    for (uint32_t k = t->c.n_found; k-- > 0;) {
        const struct tier_found *f = &t->c.found[k];
        if (search(t, &f->key) != NONE) continue;
        struct entry *e = &t->entries[entry_take(t, &f->key)];
        ASSERT(f->place < t->c.n_disk && !taken[f->place]);
        e->disk = f->place;
        e->disk_state = DISK_KEPT;
        taken[f->place] = true;
        if (f->order >= t->order) t->order = f->order + 1;
    }
    for (uint32_t k = 0; k < t->c.n_found; k++) {
        uint32_t i = search(t, &t->c.found[k].key);
        if (t->entries[i].disk == t->c.found[k].place) list_touch(t, LIST_DISK, i);
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
    t->stats.n_unwritten = t->lists[LIST_UNWRITTEN].n + t->n_writing;
}

fathom_err tiers_create(struct tiers **out, const struct tiers_config *c, fathom_diag *d)
{
    *out = NULL;
    if (c->n_ram < TIERS_MIN_RAM) {
        FAIL(d, FATHOM_EINVAL, "%u pages of memory for offloading, needed is at least %d", c->n_ram,
             TIERS_MIN_RAM);
    }
    if (c->n_disk > 0 && !c->io) FAIL(d, FATHOM_EINVAL, "%u places of no disk", c->n_disk);
    ASSERT(c->device.page_out && c->device.page_in);
    ASSERT(!c->io || (uintptr_t)c->ram % DIRECT_ALIGN == 0);
    struct tiers *t = mem_calloc(1, sizeof *t);
    if (!t) FAIL(d, FATHOM_ENOMEM, "no memory for the tiers");
    t->c = *c;
    t->place_bytes = direct_round(c->page_bytes);
    t->n_entry = c->n_ram + c->n_disk;
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
    mem_free(t->entries);
    mem_free(t->buckets);
    mem_free(t->names);
    mem_free(t->sums);
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
    const struct entry *e = &t->entries[i];
    const struct tier_job job = {.kind = kind,
                                 .entry = i,
                                 .place = e->disk,
                                 .order = kind == TIER_JOB_WRITE ? t->order++ : 0,
                                 .name = &t->names[e->ram],
                                 .page = page_of(t, e->ram),
                                 .sum = t->sums[e->ram]};
    ASSERT(t->c.io);
    t->c.io->ops->submit(t->c.io, &job);
}

static void want_write(struct tiers *t, uint32_t i)
{
    struct entry *e = &t->entries[i];
    ASSERT(e->ram_state == RAM_READY);
    if (!t->c.io || t->stats.writes_off || e->disk_state != DISK_NONE) return;
    e->disk_state = DISK_WANTED;
    list_touch(t, LIST_UNWRITTEN, i);
}

static void start_writes(struct tiers *t)
{
    while (t->n_writing < WRITES_MAX && t->lists[LIST_UNWRITTEN].n > 0) {
        if (t->n_free_disk == 0 && !evict_disk(t)) return;
        uint32_t i = t->lists[LIST_UNWRITTEN].tail;
        struct entry *e = &t->entries[i];
        ASSERT(e->ram_state == RAM_READY && e->disk_state == DISK_WANTED);
        list_remove(t, LIST_UNWRITTEN, i);
        e->disk = t->free_disk[--t->n_free_disk];
        e->disk_state = DISK_WRITING;
        t->n_writing++;
        submit(t, i, TIER_JOB_WRITE);
    }
}

/* Reads a record that is on disk alone into memory; false when it cannot be begun now. */
static bool start_read(struct tiers *t, uint32_t i, const struct tier_name *name)
{
    struct entry *e = &t->entries[i];
    ASSERT(e->ram_state == RAM_NONE && e->disk_state == DISK_KEPT);
    uint32_t reads_max = t->c.n_ram / 2 < READS_MAX ? t->c.n_ram / 2 : READS_MAX;
    if (t->n_reading == reads_max) return false;
    uint32_t place = take_ram(t, name);
    if (place == NONE) return false;
    e->ram = place;
    e->ram_state = RAM_READING;
    list_touch(t, LIST_RAM, i);
    t->n_reading++;
    submit(t, i, TIER_JOB_READ);
    return true;
}

static void end_read(struct tiers *t, uint32_t i, enum tier_verdict verdict, uint64_t sum)
{
    struct entry *e = &t->entries[i];
    ASSERT(e->ram_state == RAM_READING && e->disk_state == DISK_KEPT && t->n_reading > 0);
    t->n_reading--;
    if (verdict == TIER_GOOD) {
        t->stats.n_read++;
        e->ram_state = RAM_READY;
        t->sums[e->ram] = sum;
        e->from_disk = true;
        return;
    }
    t->stats.n_rejected[verdict]++;
    give_ram(t, e);
    give_disk(t, e);
    entry_tidy(t, i);
}

static void end_write(struct tiers *t, uint32_t i, enum tier_verdict verdict)
{
    struct entry *e = &t->entries[i];
    ASSERT(e->ram_state == RAM_READY && e->disk_state == DISK_WRITING && t->n_writing > 0);
    t->n_writing--;
    if (verdict == TIER_GOOD) {
        t->stats.n_written++;
        t->n_fault = 0;
        e->disk_state = DISK_KEPT;
        list_touch(t, LIST_DISK, i);
        return;
    }
    give_disk(t, e);
    if (verdict == TIER_BAD_CHECKSUM) { /* seen again by who wants the page, and dropped there */
        t->stats.n_dropped++;
        return;
    }
    t->stats.n_write_failed++;
    if (++t->n_fault < TIERS_MAX_FAULTS || t->stats.writes_off) return;
    t->stats.writes_off = true;
    LOG_WARN("kv", "%d writes of offloaded pages failed in a row: no more are tried",
             TIERS_MAX_FAULTS);
    for (uint32_t k; (k = t->lists[LIST_UNWRITTEN].tail) != NONE;) {
        list_remove(t, LIST_UNWRITTEN, k);
        t->entries[k].disk_state = DISK_NONE;
        t->stats.n_dropped++;
    }
}

void tiers_begin_step(struct tiers *t, uint64_t now_us, double prefill_page_us)
{
    t->now_us = now_us;
    t->prefill_page_us = prefill_page_us;
    t->n_left = t->step_pages;
    struct tier_job job;
    while (t->c.io && t->c.io->ops->take_done(t->c.io, &job)) {
        ASSERT(job.entry < t->n_entry && job.place == t->entries[job.entry].disk);
        if (job.kind == TIER_JOB_READ) {
            end_read(t, job.entry, job.verdict, job.sum);
        } else {
            end_write(t, job.entry, job.verdict);
        }
    }
    start_writes(t);
    count_used(t);
}

/* Pages of memory that are under way, or wait for a write; some are counted twice. */
static uint32_t count_moving(const struct tiers *t)
{
    return t->lists[LIST_COPYING].n + t->lists[LIST_UNWRITTEN].n + t->n_writing + t->n_reading;
}

/* ---- the device ---- */

void tiers_synced(struct tiers *t)
{
    for (uint32_t i; (i = t->lists[LIST_COPYING].tail) != NONE;) {
        struct entry *e = &t->entries[i];
        list_remove(t, LIST_COPYING, i);
        if (e->ram_state != RAM_FILLING) continue;
        e->ram_state = RAM_READY;
        t->sums[e->ram] = hash_checksum(page_of(t, e->ram), t->c.page_bytes);
        want_write(t, i);
    }
    start_writes(t);
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
    return t->n_free_ram > 0 || (t->c.io && !t->stats.writes_off);
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
    const struct entry *e = &t->entries[i];
    if (e->links[LIST_RAM].linked) list_touch(t, LIST_RAM, i);
    if (e->links[LIST_DISK].linked) list_touch(t, LIST_DISK, i);
}

bool tiers_use(struct tiers *t, const struct hash128 *key)
{
    uint32_t i = search(t, key);
    if (i != NONE) use_entry(t, i);
    return i != NONE;
}

void tiers_keep(struct tiers *t, const struct tier_name *name, uint32_t page, bool overwritten)
{
    uint32_t i = search(t, &name->key);
    if (i != NONE) {
        use_entry(t, i);
        if (t->entries[i].ram != NONE || !overwritten) return;
    }
    if (t->fault) return;
    uint32_t place = take_ram(t, name); /* an entry that is on disk alone stays */
    if (place == NONE) {
        t->stats.n_refused++;
        return;
    }
    t->fault = t->c.device.page_out(t->c.device.arg, page, page_of(t, place));
    if (t->fault) {
        t->free_ram[t->n_free_ram++] = place;
        return;
    }
    if (i == NONE) i = entry_take(t, &name->key);
    ASSERT(t->entries[i].ram == NONE);
    t->entries[i].ram = place;
    t->entries[i].ram_state = RAM_FILLING;
    list_touch(t, LIST_RAM, i);
    list_touch(t, LIST_COPYING, i);
    t->stats.n_kept++;
    if (t->n_left > 0) t->n_left--;
    count_used(t);
}

enum tier_where tiers_find(const struct tiers *t, const struct hash128 *key)
{
    uint32_t i = search(t, key);
    if (i == NONE) return TIER_NOWHERE;
    uint8_t state = t->entries[i].ram_state;
    return state == RAM_READY || state == RAM_FILLING ? TIER_IN_RAM : TIER_ON_DISK;
}

static bool has_name(const struct tier_name *a, const struct tier_name *b)
{
    return a->n_id == b->n_id && memcmp(a->ids, b->ids, a->n_id * sizeof a->ids[0]) == 0;
}

/* A page that has changed in memory is given up, unless a copy or a write of it is under way. A
 * record that is on disk too is read again. */
static enum tier_answer drop_damaged(struct tiers *t, uint32_t i, const struct tier_name *name)
{
    struct entry *e = &t->entries[i];
    t->stats.n_rejected[TIER_BAD_CHECKSUM]++;
    if (e->links[LIST_COPYING].linked || e->disk_state == DISK_WRITING) return TIER_GONE;
    if (e->disk_state == DISK_WANTED) {
        list_remove(t, LIST_UNWRITTEN, i);
        e->disk_state = DISK_NONE;
        t->stats.n_dropped++;
    }
    bool on_disk = e->disk_state == DISK_KEPT;
    give_ram(t, e);
    entry_tidy(t, i);
    count_used(t);
    if (!on_disk) return TIER_GONE;
    (void)start_read(t, i, name);
    return TIER_WAIT;
}

static bool is_damaged(const struct tiers *t, const struct entry *e)
{
    return e->ram_state == RAM_READY &&
           hash_checksum(page_of(t, e->ram), t->c.page_bytes) != t->sums[e->ram];
}

enum tier_answer tiers_restore(struct tiers *t, const struct tier_name *name, uint32_t page)
{
    uint32_t i = search(t, &name->key);
    if (i == NONE || t->fault) return TIER_GONE;
    struct entry *e = &t->entries[i];
    if (e->ram_state == RAM_NONE) (void)start_read(t, i, name);
    if (e->ram_state == RAM_NONE || e->ram_state == RAM_READING || t->n_left == 0) return TIER_WAIT;
    if (!has_name(&t->names[e->ram], name)) {
        t->stats.n_rejected[TIER_BAD_TOKENS]++;
        return TIER_GONE;
    }
    if (is_damaged(t, e)) return drop_damaged(t, i, name);
    /* A place that is still being filled can be copied from: the device copies in order. */
    t->fault = t->c.device.page_in(t->c.device.arg, page, page_of(t, e->ram));
    if (t->fault) return TIER_GONE;
    if (e->from_disk) {
        t->stats.n_restored_disk++;
    } else {
        t->stats.n_restored_ram++;
    }
    ASSERT(t->n_left > 0);
    e->from_disk = false;
    list_touch(t, LIST_RAM, i);
    list_touch(t, LIST_COPYING, i);
    t->n_left--;
    return TIER_RESTORED;
}

bool tiers_read_ahead(struct tiers *t, const struct tier_name *name)
{
    uint32_t i = search(t, &name->key);
    if (i == NONE) return false;
    return t->entries[i].ram_state != RAM_NONE || start_read(t, i, name);
}

/* ---- whether it pays ---- */

bool tiers_pay(const struct tiers *t, uint32_t n_page, uint32_t n_disk)
{
    if (n_page == 0 || (n_disk > 0 && n_page < TIERS_MIN_DISK_PAGES)) return false;
    const struct pace *p = &t->paces[n_disk > 0];
    bool known = p->page_us > 0 && t->now_us - p->seen_us < FRESH_US && t->prefill_page_us > 0;
    return !known || p->page_us <= t->prefill_page_us;
}

uint64_t tiers_patience_us(const struct tiers *t, uint32_t n_page)
{
    if (t->prefill_page_us <= 0) return 5000000;
    double us = n_page * t->prefill_page_us;
    return us > 1e6 ? (uint64_t)us : 1000000;
}

void tiers_note_fetch(struct tiers *t, uint32_t n_page, bool from_disk, uint64_t us)
{
    struct pace *p = &t->paces[from_disk];
    bool known = p->page_us > 0 && t->now_us - p->seen_us < FRESH_US;
    /* A fetch that brought no page counts as one page. */
    double page_us = (double)us / (n_page > 0 ? n_page : 1);
    p->page_us = known ? p->page_us + 0.25 * (page_us - p->page_us) : page_us;
    p->seen_us = t->now_us;
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

/* ---- check ---- */

static void check_entry(const struct tiers *t, uint32_t i)
{
    const struct entry *e = &t->entries[i];
    ASSERT(search(t, &e->key) == i);
    ASSERT(e->ram != NONE || e->disk != NONE);
    ASSERT((e->ram != NONE) == (e->ram_state != RAM_NONE));
    ASSERT((e->disk != NONE) == (e->disk_state == DISK_WRITING || e->disk_state == DISK_KEPT));
    ASSERT(e->links[LIST_RAM].linked == (e->ram != NONE));
    ASSERT(e->links[LIST_DISK].linked == (e->disk_state == DISK_KEPT));
    ASSERT(e->links[LIST_UNWRITTEN].linked == (e->disk_state == DISK_WANTED));
    ASSERT(e->ram_state != RAM_FILLING || e->links[LIST_COPYING].linked);
    ASSERT(e->ram_state != RAM_READING || e->disk_state == DISK_KEPT);
    if (e->disk_state == DISK_WANTED || e->disk_state == DISK_WRITING) {
        ASSERT(e->ram_state == RAM_READY);
    }
    ASSERT(e->ram == NONE || e->ram < t->n_touched);
    ASSERT(e->ram == NONE || hash128_equal(&t->names[e->ram].key, &e->key));
}

static void check_list(const struct tiers *t, enum list which)
{
    const struct entry_list *l = &t->lists[which];
    uint32_t n = 0;
    uint32_t prev = NONE;
    for (uint32_t i = l->head; i != NONE; i = t->entries[i].links[which].next, n++) {
        ASSERT(n < l->n && t->entries[i].used && t->entries[i].links[which].linked);
        ASSERT(t->entries[i].links[which].prev == prev);
        prev = i;
    }
    ASSERT(n == l->n && l->tail == prev);
}

void tiers_check(const struct tiers *t)
{
    uint32_t n_used = 0, n_ram = 0, n_disk = 0, n_reading = 0, n_writing = 0;
    for (uint32_t i = 0; i < t->n_entry; i++) {
        const struct entry *e = &t->entries[i];
        if (!e->used) continue;
        check_entry(t, i);
        n_used++;
        n_ram += e->ram != NONE;
        n_disk += e->disk != NONE;
        n_reading += e->ram_state == RAM_READING;
        n_writing += e->disk_state == DISK_WRITING;
    }
    ASSERT(n_used == t->n_used);
    ASSERT(n_ram + t->n_free_ram == t->c.n_ram && n_disk + t->n_free_disk == t->c.n_disk);
    ASSERT(n_reading == t->n_reading && n_writing == t->n_writing);
    ASSERT(n_reading <= READS_MAX && n_writing <= WRITES_MAX);
    for (int k = 0; k < LIST_COUNT; k++) check_list(t, (enum list)k);
}

fathom_err tiers_dump(const struct tiers *t, struct buf *out)
{
    static const char *const ram_names[] = {"-", "FILLING", "READING", "READY"};
    static const char *const disk_names[] = {"-", "WANTED", "WRITING", "KEPT"};
    TRY(buf_printf(
        out, "tiers: %u of %u pages in memory, %u of %u on disk, %u reads, %u writes%s\n",
        t->c.n_ram - t->n_free_ram, t->c.n_ram, t->c.n_disk - t->n_free_disk, t->c.n_disk,
        t->n_reading, t->n_writing, t->stats.writes_off ? ", writes are off" : ""));
    uint32_t i = t->lists[LIST_RAM].head;
    for (; i != NONE; i = t->entries[i].links[LIST_RAM].next) {
        const struct entry *e = &t->entries[i];
        TRY(buf_printf(out, "  record %016llx memory=%u %s disk=%s%s\n",
                       (unsigned long long)e->key.lo, e->ram, ram_names[e->ram_state],
                       disk_names[e->disk_state], e->links[LIST_COPYING].linked ? " copying" : ""));
    }
    return FATHOM_OK;
}

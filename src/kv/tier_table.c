/* tier_table.c - entries in buckets by key, and in lists that are linked both ways
 *
 * Invariants
 *
 *   1. A used entry is in the bucket of its key exactly once, and no two have the same key. Every
 *      other one is among the unused.
 *   2. In which lists an entry is follows from its states, but for COPYING: tier_list.
 */
#include "kv/tier_table.h"

#include "base/assert.h"
#include "base/mem.h"

/* ---- life ---- */

fathom_err tier_table_init(struct tier_table *t, uint32_t n_entry)
{
    uint32_t n_bucket = 1;
    while (n_bucket < n_entry) n_bucket *= 2;
    *t = (struct tier_table){.n_entry = n_entry, .bucket_mask = n_bucket - 1};
    t->entries = mem_calloc(n_entry, sizeof *t->entries);
    t->buckets = mem_alloc_array(n_bucket, sizeof *t->buckets);
    if (!t->entries || !t->buckets) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < n_bucket; i++) t->buckets[i] = TIER_NONE;
    t->unused = TIER_NONE;
    for (uint32_t i = n_entry; i-- > 0; t->unused = i) t->entries[i].next = t->unused;
    for (int k = 0; k < LIST_COUNT; k++) {
        t->lists[k] = (struct tier_entries){TIER_NONE, TIER_NONE, 0};
    }
    return FATHOM_OK;
}

void tier_table_fini(struct tier_table *t)
{
    mem_free(t->entries);
    mem_free(t->buckets);
}

/* ---- lists ---- */

void tier_list_remove(struct tier_table *t, enum tier_list which, uint32_t i)
{
    struct tier_entries *l = &t->lists[which];
    struct tier_link *k = &t->entries[i].links[which];
    if (!k->linked) return;
    ASSERT(l->n > 0);
    if (k->prev != TIER_NONE) {
        t->entries[k->prev].links[which].next = k->next;
    } else {
        l->head = k->next;
    }
    if (k->next != TIER_NONE) {
        t->entries[k->next].links[which].prev = k->prev;
    } else {
        l->tail = k->prev;
    }
    k->linked = false;
    l->n--;
}

void tier_list_touch(struct tier_table *t, enum tier_list which, uint32_t i)
{
    struct tier_entries *l = &t->lists[which];
    ASSERT(t->entries[i].used);
    tier_list_remove(t, which, i);
    t->entries[i].links[which] = (struct tier_link){TIER_NONE, l->head, true};
    if (l->head != TIER_NONE) {
        t->entries[l->head].links[which].prev = i;
    } else {
        l->tail = i;
    }
    l->head = i;
    l->n++;
}

/* ---- entries ---- */

static uint32_t *bucket_of(const struct tier_table *t, const struct hash128 *key)
{
    return &t->buckets[key->lo & t->bucket_mask];
}

uint32_t tier_table_search(const struct tier_table *t, const struct hash128 *key)
{
    uint32_t i = *bucket_of(t, key);
    while (i != TIER_NONE && !hash128_equal(&t->entries[i].key, key)) i = t->entries[i].next;
    return i;
}

uint32_t tier_table_take(struct tier_table *t, const struct hash128 *key)
{
    uint32_t i = t->unused;
    ASSERT(i != TIER_NONE);
    struct tier_entry *e = &t->entries[i];
    t->unused = e->next;
    uint32_t *bucket = bucket_of(t, key);
    *e = (struct tier_entry){
        .key = *key, .next = *bucket, .ram = TIER_NONE, .disk = TIER_NONE, .used = true};
    *bucket = i;
    t->n_used++;
    return i;
}

void tier_table_tidy(struct tier_table *t, uint32_t i)
{
    struct tier_entry *e = &t->entries[i];
    if (e->ram != TIER_NONE || e->disk != TIER_NONE) return;
    for (int k = 0; k < LIST_COUNT; k++) ASSERT(!e->links[k].linked);
    uint32_t *link = bucket_of(t, &e->key);
    while (*link != i) link = &t->entries[*link].next;
    *link = e->next;
    *e = (struct tier_entry){.next = t->unused};
    t->unused = i;
    t->n_used--;
}

/* ---- check ---- */

static void check_entry(const struct tier_table *t, uint32_t i)
{
    const struct tier_entry *e = &t->entries[i];
    ASSERT(tier_table_search(t, &e->key) == i);
    ASSERT(e->ram != TIER_NONE || e->disk != TIER_NONE);
    ASSERT((e->ram != TIER_NONE) == (e->ram_state != RAM_NONE));
    ASSERT((e->disk != TIER_NONE) == (e->disk_state == DISK_WRITING || e->disk_state == DISK_KEPT));
    ASSERT(e->links[LIST_RAM].linked == (e->ram != TIER_NONE));
    ASSERT(e->links[LIST_DISK].linked == (e->disk_state == DISK_KEPT));
    ASSERT(e->links[LIST_UNWRITTEN].linked == (e->disk_state == DISK_WANTED));
    ASSERT(e->links[LIST_UNSUMMED].linked == (e->ram_state == RAM_FILLED));
    ASSERT(e->ram_state != RAM_FILLING || e->links[LIST_COPYING].linked);
    ASSERT(e->ram_state != RAM_READING || e->pulled || e->disk_state == DISK_KEPT);
    ASSERT(!e->pulled || e->ram_state == RAM_READING);
    if (e->disk_state == DISK_WANTED || e->disk_state == DISK_WRITING) {
        ASSERT(e->ram_state == RAM_READY || e->ram_state == RAM_CHECKING);
    }
}

static void check_list(const struct tier_table *t, enum tier_list which)
{
    const struct tier_entries *l = &t->lists[which];
    uint32_t n = 0;
    uint32_t prev = TIER_NONE;
    for (uint32_t i = l->head; i != TIER_NONE; i = t->entries[i].links[which].next, n++) {
        ASSERT(n < l->n && t->entries[i].used && t->entries[i].links[which].linked);
        ASSERT(t->entries[i].links[which].prev == prev);
        prev = i;
    }
    ASSERT(n == l->n && l->tail == prev);
}

void tier_table_check(const struct tier_table *t)
{
    uint32_t n_used = 0;
    for (uint32_t i = 0; i < t->n_entry; i++) {
        if (!t->entries[i].used) continue;
        check_entry(t, i);
        n_used++;
    }
    ASSERT(n_used == t->n_used);
    for (int k = 0; k < LIST_COUNT; k++) check_list(t, (enum tier_list)k);
}

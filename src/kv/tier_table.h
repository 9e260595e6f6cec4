/* tier_table.h - the records of the tiers by key, and in lists by use; tiers_move.c moves them
 *
 * An entry is a record that has a place in memory, on disk or both. What its states mean and how it
 * goes from one to another stands in tiers_move.c.
 */
#ifndef FATHOM_KV_TIER_TABLE_H
#define FATHOM_KV_TIER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "fathom/err.h"

#define TIER_NONE UINT32_MAX /* no entry, no place */

enum ram_state {
    RAM_NONE,
    RAM_FILLING,
    RAM_FILLED,
    RAM_SUMMING,
    RAM_READING,
    RAM_READY,
    RAM_CHECKING,
};
enum disk_state { DISK_NONE, DISK_WANTED, DISK_WRITING, DISK_KEPT };
enum tier_list {
    LIST_RAM,       /* a place in memory; the one used last comes first, in the next one too */
    LIST_DISK,      /* KEPT on disk */
    LIST_UNWRITTEN, /* WANTED on disk */
    LIST_UNSUMMED,  /* FILLED */
    LIST_COPYING,   /* a copy of the place in memory may be under way */
    LIST_COUNT
};

struct tier_link {
    uint32_t prev; /* TIER_NONE at the ends */
    uint32_t next;
    bool linked;
};

struct tier_entry {
    struct hash128 key;
    uint32_t next; /* in the bucket, or of the unused entries */
    uint32_t ram;  /* places; TIER_NONE: it has none */
    uint32_t disk;
    uint8_t ram_state;
    uint8_t disk_state;
    bool used;
    bool from_disk;    /* read, and not restored since */
    bool pulled;       /* READING from another server, not from disk */
    bool lends;        /* it is lent on the shelf, or will be once it is there */
    uint64_t lease_us; /* memory is given up for others later than theirs until then; 0: not */
    struct tier_link links[LIST_COUNT];
};

struct tier_entries {
    uint32_t head;
    uint32_t tail;
    uint32_t n;
};

struct tier_table {
    uint32_t n_entry;
    uint32_t n_used;
    struct tier_entry *entries; /* [n_entry] */
    uint32_t unused;            /* entries, linked by next */
    uint32_t *buckets;          /* [bucket_mask + 1] */
    uint32_t bucket_mask;
    struct tier_entries lists[LIST_COUNT];
};

/* tier_table_init - with room for n_entry records. ENOMEM; tier_table_fini accepts that, and
 * zeros. */
fathom_err tier_table_init(struct tier_table *t, uint32_t n_entry);
void tier_table_fini(struct tier_table *t);

/* tier_table_search - the entry of a key; TIER_NONE */
uint32_t tier_table_search(const struct tier_table *t, const struct hash128 *key);

/* tier_table_take - an entry without places for a key that has none. There is room: each entry
 * has a place, and n_entry is the number of places. */
uint32_t tier_table_take(struct tier_table *t, const struct hash128 *key);

/* tier_table_tidy - forget an entry if it has neither place any more; then it is in no list */
void tier_table_tidy(struct tier_table *t, uint32_t i);

/* tier_list_remove - accepts what is not in it. tier_list_touch - to the front, wherever it was. */
void tier_list_remove(struct tier_table *t, enum tier_list which, uint32_t i);
void tier_list_touch(struct tier_table *t, enum tier_list which, uint32_t i);

/* tier_table_check - assert that lists, states and places agree
 *
 * Cost  O(n_entry). */
void tier_table_check(const struct tier_table *t);

#endif

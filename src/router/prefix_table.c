/* prefix_table.c - chains of entries by key, and one list of all by use
 *
 * Invariants: the first n entries are in the list and each is in the chain of its key; `newest` to
 * `oldest` is the order of use; an entry without servers stays until its turn to go has come. */
#include "router/prefix_table.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"

enum { NONE = 0xffffffff };

struct entry {
    uint64_t key;
    uint64_t servers;      /* a bit for each */
    uint32_t next;         /* in the chain of its bucket */
    uint32_t newer, older; /* in the list by use */
};

struct prefix_table {
    struct entry *entries; /* [n_entry] */
    uint32_t *buckets;     /* [n_entry] */
    uint32_t n_entry;
    uint32_t n;
    uint32_t newest, oldest;
};

static uint32_t bucket_of(const struct prefix_table *t, uint64_t key)
{
    return (uint32_t)rng_hash(key) & (t->n_entry - 1);
}

fathom_err prefix_table_create(struct prefix_table **out, uint32_t n_entry)
{
    struct prefix_table *t = mem_calloc(1, sizeof *t);
    *out = t;
    ASSERT(n_entry > 0 && (n_entry & (n_entry - 1)) == 0);
    if (!t) return FATHOM_ENOMEM;
    t->n_entry = n_entry;
    t->newest = t->oldest = NONE;
    t->entries = mem_alloc_array(n_entry, sizeof *t->entries);
    t->buckets = mem_alloc_array(n_entry, sizeof *t->buckets);
    if (!t->entries || !t->buckets) {
        prefix_table_destroy(t);
        *out = NULL;
        return FATHOM_ENOMEM;
    }
    for (uint32_t i = 0; i < n_entry; i++) t->buckets[i] = NONE;
    return FATHOM_OK;
}

void prefix_table_destroy(struct prefix_table *t)
{
    if (!t) return;
    mem_free(t->entries);
    mem_free(t->buckets);
    mem_free(t);
}

static uint32_t find(const struct prefix_table *t, uint64_t key)
{
    uint32_t i = t->buckets[bucket_of(t, key)];
    while (i != NONE && t->entries[i].key != key) i = t->entries[i].next;
    return i;
}

static void take_out(struct prefix_table *t, uint32_t i)
{
    struct entry *e = &t->entries[i];
    *(e->newer == NONE ? &t->newest : &t->entries[e->newer].older) = e->older;
    *(e->older == NONE ? &t->oldest : &t->entries[e->older].newer) = e->newer;
}

static void put_first(struct prefix_table *t, uint32_t i)
{
    struct entry *e = &t->entries[i];
    e->newer = NONE;
    e->older = t->newest;
    *(t->newest == NONE ? &t->oldest : &t->entries[t->newest].newer) = i;
    t->newest = i;
}

static void use(struct prefix_table *t, uint32_t i)
{
    if (t->newest == i) return;
    take_out(t, i);
    put_first(t, i);
}

/* The oldest entry leaves its chain and its list. */
static uint32_t drop_oldest(struct prefix_table *t)
{
    uint32_t i = t->oldest;
    uint32_t *at = &t->buckets[bucket_of(t, t->entries[i].key)];
    while (*at != i) at = &t->entries[*at].next;
    *at = t->entries[i].next;
    take_out(t, i);
    return i;
}

/* A bucket of each key is on its way: they lie anywhere in memory, and none of the first is waited
 * for. */
static void fetch_buckets(const struct prefix_table *t, const uint64_t *keys, size_t n)
{
    for (size_t k = 0; k < n; k++) __builtin_prefetch(&t->buckets[bucket_of(t, keys[k])]);
}

void prefix_table_find(struct prefix_table *t, const uint64_t *keys, size_t n, uint32_t *depth)
{
    uint64_t live = ~0ull;
    for (uint32_t s = 0; s < PREFIX_SERVERS_MAX; s++) depth[s] = 0;
    for (size_t k = 0; k < n && live; k++) {
        uint32_t i = find(t, keys[k]);
        if (i == NONE) return;
        live &= t->entries[i].servers;
        for (uint64_t m = live; m; m &= m - 1) depth[__builtin_ctzll(m)]++;
        use(t, i);
    }
}

static uint32_t add(struct prefix_table *t, uint64_t key)
{
    uint32_t i = t->n < t->n_entry ? t->n++ : drop_oldest(t);
    uint32_t *bucket = &t->buckets[bucket_of(t, key)];
    t->entries[i] = (struct entry){.key = key, .next = *bucket};
    *bucket = i;
    put_first(t, i);
    return i;
}

/* From the last key on, so that of a prompt that does not fit the beginning stays. */
void prefix_table_note(struct prefix_table *t, const uint64_t *keys, size_t n, uint32_t server)
{
    ASSERT(server < PREFIX_SERVERS_MAX);
    fetch_buckets(t, keys, n);
    for (size_t k = n; k-- > 0;) {
        uint32_t i = find(t, keys[k]);
        if (i == NONE) {
            i = add(t, keys[k]);
        } else {
            use(t, i);
        }
        t->entries[i].servers |= 1ull << server;
    }
}

void prefix_table_forget(struct prefix_table *t, uint32_t server)
{
    for (uint32_t i = 0; i < t->n; i++) t->entries[i].servers &= ~(1ull << server);
}

uint32_t prefix_table_n(const struct prefix_table *t)
{
    return t->n;
}

void prefix_table_check(const struct prefix_table *t)
{
    uint32_t n = 0, newer = NONE;
    for (uint32_t i = t->newest; i != NONE; newer = i, i = t->entries[i].older, n++) {
        ASSERT(n < t->n && t->entries[i].newer == newer);
        ASSERT(find(t, t->entries[i].key) == i);
    }
    ASSERT(n == t->n && t->oldest == newer);
}

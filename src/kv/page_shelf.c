/* page_shelf.c - records by key, and who reads them, under one lock
 *
 * Invariants: an item with a record is in the bucket of its key exactly once; one without is in no
 * bucket and has no reader. No two items have the same key, because the tiers have one entry per
 * key. Each released key has one slot in `released` where it may be noted, and replaces the key
 * that was noted there. Lent items form a ring in the order of lent_until_us; items[n_place] is its
 * head. */
#include "kv/page_shelf.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

#define NONE UINT32_MAX

struct item {
    const struct tier_name *name; /* NULL: not there */
    const void *page;
    uint64_t sum;
    uint32_t next; /* in the bucket */
    uint32_t n_reader;
    bool done;
    uint64_t lent_until_us; /* 0: it is not lent, and not in the ring */
    uint32_t lent_prev, lent_next;
};

/* A noted key: its record is not wanted, and is not there yet. */
struct released {
    struct hash128 key;
    uint64_t until_us; /* 0: none */
};

struct page_shelf {
    pthread_mutex_t lock;
    uint32_t n_place;
    uint32_t mask;
    struct item *items; /* [n_place + 1] */
    uint32_t *buckets;  /* [mask + 1] */
    uint64_t n_sent, n_released, n_noted;
    uint32_t n_lent;
    struct released released[SHELF_RELEASED_MAX]; /* by key */
};

fathom_err page_shelf_create(struct page_shelf **out, uint32_t n_place)
{
    *out = NULL;
    struct page_shelf *s = mem_calloc(1, sizeof *s);
    if (!s) return FATHOM_ENOMEM;
    uint32_t n_bucket = 1;
    while (n_bucket < n_place) n_bucket *= 2;
    pthread_mutex_init(&s->lock, NULL);
    s->n_place = n_place;
    s->mask = n_bucket - 1;
    s->items = mem_calloc((size_t)n_place + 1, sizeof *s->items);
    s->buckets = mem_alloc_array(n_bucket, sizeof *s->buckets);
    if (!s->items || !s->buckets) {
        page_shelf_destroy(s);
        return FATHOM_ENOMEM;
    }
    for (uint32_t i = 0; i < n_bucket; i++) s->buckets[i] = NONE;
    s->items[n_place].lent_prev = s->items[n_place].lent_next = n_place;
    *out = s;
    return FATHOM_OK;
}

void page_shelf_destroy(struct page_shelf *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    mem_free(s->items);
    mem_free(s->buckets);
    mem_free(s);
}

static uint32_t *bucket_of(struct page_shelf *s, const struct hash128 *key)
{
    return &s->buckets[key->lo & s->mask];
}

static uint32_t search(struct page_shelf *s, const struct hash128 *key)
{
    uint32_t i = *bucket_of(s, key);
    while (i != NONE && !hash128_equal(&s->items[i].name->key, key)) i = s->items[i].next;
    return i;
}

void page_shelf_put(struct page_shelf *s, uint32_t place, const struct tier_name *name,
                    const void *page, uint64_t sum)
{
    pthread_mutex_lock(&s->lock);
    ASSERT(place < s->n_place && !s->items[place].name);
    ASSERT(search(s, &name->key) == NONE);
    uint32_t *bucket = bucket_of(s, &name->key);
    s->items[place] = (struct item){.name = name, .page = page, .sum = sum, .next = *bucket};
    *bucket = place;
    pthread_mutex_unlock(&s->lock);
}

/* ---- what is lent, with the lock held ---- */

static void take_back(struct page_shelf *s, struct item *item)
{
    if (item->lent_until_us == 0) return;
    ASSERT(s->n_lent > 0 && item->name);
    s->items[item->lent_prev].lent_next = item->lent_next;
    s->items[item->lent_next].lent_prev = item->lent_prev;
    item->lent_until_us = 0;
    s->n_lent--;
}

static struct released *released_of(struct page_shelf *s, const struct hash128 *key)
{
    return &s->released[key->lo % SHELF_RELEASED_MAX];
}

static bool is_released(struct page_shelf *s, const struct hash128 *key, uint64_t now_us)
{
    const struct released *r = released_of(s, key);
    return r->until_us > now_us && hash128_equal(&r->key, key);
}

/* Whether the key was noted as released. If so, it is no longer noted after this. */
static bool is_unwanted(struct page_shelf *s, const struct hash128 *key, uint64_t now_us)
{
    if (!is_released(s, key, now_us)) return false;
    *released_of(s, key) = (struct released){0};
    s->n_released++;
    return true;
}

void page_shelf_release(struct page_shelf *s, const struct hash128 *key, uint64_t until_us)
{
    pthread_mutex_lock(&s->lock);
    uint32_t i = search(s, key);
    if (i == NONE) {
        *released_of(s, key) = (struct released){*key, until_us};
        s->n_noted++;
    } else {
        s->n_released += s->items[i].lent_until_us > 0;
        s->items[i].done = true;
        take_back(s, &s->items[i]);
    }
    pthread_mutex_unlock(&s->lock);
}

void page_shelf_lend(struct page_shelf *s, uint32_t place, uint64_t until_us, uint64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    ASSERT(place < s->n_place && until_us > 0);
    struct item *item = &s->items[place];
    take_back(s, item);
    if (item->name && is_unwanted(s, &item->name->key, now_us)) {
        item->done = true;
    } else if (item->name) {
        uint32_t prev = s->items[s->n_place].lent_prev;
        while (s->items[prev].lent_until_us > until_us) prev = s->items[prev].lent_prev;
        item->done = false;
        item->lent_until_us = until_us;
        item->lent_prev = prev;
        item->lent_next = s->items[prev].lent_next;
        s->items[item->lent_next].lent_prev = place;
        s->items[prev].lent_next = place;
        s->n_lent++;
    }
    pthread_mutex_unlock(&s->lock);
}

uint32_t page_shelf_n_lent(struct page_shelf *s, uint64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    uint32_t first;
    while ((first = s->items[s->n_place].lent_next) != s->n_place &&
           s->items[first].lent_until_us <= now_us) {
        take_back(s, &s->items[first]);
    }
    uint32_t n = s->n_lent;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ---- what is there ---- */

bool page_shelf_remove(struct page_shelf *s, uint32_t place)
{
    pthread_mutex_lock(&s->lock);
    ASSERT(place < s->n_place);
    struct item *item = &s->items[place];
    bool free = item->n_reader == 0;
    if (free && item->name) {
        uint32_t *link = bucket_of(s, &item->name->key);
        while (*link != place) link = &s->items[*link].next;
        *link = item->next;
        take_back(s, item);
        *item = (struct item){0};
    }
    pthread_mutex_unlock(&s->lock);
    return free;
}

static bool is_named(const struct tier_name *a, const struct tier_name *b)
{
    return a->n_id == b->n_id && a->n_answer == b->n_answer && a->n_id <= TIER_MAX_ID &&
           memcmp(a->ids, b->ids, a->n_id * sizeof a->ids[0]) == 0;
}

bool page_shelf_take(struct page_shelf *s, const struct tier_name *name, struct shelf_page *out)
{
    pthread_mutex_lock(&s->lock);
    uint32_t i = search(s, &name->key);
    bool found = i != NONE && is_named(s->items[i].name, name);
    if (found) {
        s->items[i].n_reader++;
        *out = (struct shelf_page){.place = i, .page = s->items[i].page, .sum = s->items[i].sum};
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

void page_shelf_give(struct page_shelf *s, uint32_t place, bool sent)
{
    pthread_mutex_lock(&s->lock);
    ASSERT(place < s->n_place && s->items[place].n_reader > 0);
    s->items[place].n_reader--;
    s->items[place].done |= sent;
    if (sent) take_back(s, &s->items[place]);
    s->n_sent += sent;
    pthread_mutex_unlock(&s->lock);
}

bool page_shelf_is_done(struct page_shelf *s, uint32_t place)
{
    pthread_mutex_lock(&s->lock);
    ASSERT(place < s->n_place);
    bool done = s->items[place].done;
    pthread_mutex_unlock(&s->lock);
    return done;
}

uint32_t page_shelf_count(struct page_shelf *s, const struct hash128 *keys, uint32_t n)
{
    uint32_t k = 0;
    pthread_mutex_lock(&s->lock);
    while (k < n && search(s, &keys[k]) != NONE) k++;
    pthread_mutex_unlock(&s->lock);
    return k;
}

uint64_t page_shelf_n_sent(struct page_shelf *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->n_sent;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool page_shelf_is_released(struct page_shelf *s, const struct hash128 *key, uint64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    bool is = is_released(s, key, now_us);
    pthread_mutex_unlock(&s->lock);
    return is;
}

uint64_t page_shelf_n_noted(struct page_shelf *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->n_noted;
    pthread_mutex_unlock(&s->lock);
    return n;
}

uint64_t page_shelf_n_released(struct page_shelf *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->n_released;
    pthread_mutex_unlock(&s->lock);
    return n;
}

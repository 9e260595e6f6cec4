/* prefix.c - prefix caching: a tree of published pages, found by a hash of page and tokens
 *
 * Invariants
 *
 *   1. A published page is HELD or CACHED, and every CACHED page is published.
 *   2. The parent of a published page, which has the tokens before it, is published; a first page
 *      has none. n_child counts the pages that name a page as their parent.
 *   3. Whoever holds a published page holds its parent: prefix_find walks from the first page on,
 *      and prefix_publish swaps a page for the published one of the same tokens.
 *   4. No two published pages have the same parent (first pages: salt), tokens and place where the
 *      answer begins.
 *   5. A published page is in the bucket of its key exactly once; no other page is in a bucket.
 *   6. With tiers, a published page has the name of its record there: a hash of its tokens, of all
 *      tokens before and of where the answer begins. Offered pages are published; their list has
 *      each once, the shared ones first, then the page that was given longest ago.
 *
 * Eviction takes children before parents. Requests give their last page first, so by 3 a page goes
 * to CACHED no later than its parent, and the pool evicts the page that was given longest ago. A
 * parent therefore stays where its children name it by its page number alone.
 *
 * States of a page here
 *
 *                prefix_publish            page_pool_take evicts it, prefix_end_answer
 *   unpublished ----------------> published ---------------------------------------> unpublished
 *                                        prefix_void: all at once, whatever they name */
#include "kv/prefix.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/layout.h"
#include "kv/page_feed.h"
#include "kv/tiers.h"

#define NO_PAGE UINT32_MAX
#define MARGIN_PART 8 /* of the cache, the part that shall be available without a copy */

/* The key of a page. */
struct key {
    uint64_t salt;      /* 0, except for a first page */
    uint32_t parent;    /* NO_PAGE: a first page */
    uint32_t n_answer;  /* its last n_answer rows are answer rows: 0 .. 64 */
    const int32_t *ids; /* [n_key_id] */
};

struct node {
    uint64_t salt;
    uint32_t parent; /* NO_PAGE: a first page */
    uint32_t n_answer;
    uint32_t n_child;
    uint32_t next; /* in the bucket; NO_PAGE: the last */
    bool published;
    bool offered;
    bool is_new;           /* with lease_us: no other server has it yet */
    uint32_t offered_prev; /* NO_PAGE at the ends */
    uint32_t offered_next;
    uint64_t lease_us;               /* a shared page, and until when; 0: it is not shared */
    struct hash128 name;             /* with tiers */
    int32_t ids[KV_PAGE_TOKENS + 1]; /* n_key_id of them */
};

struct prefix_cache {
    uint32_t n_published;
    uint32_t n_key_id;    /* 64, or 65 with the token after the page */
    uint32_t bucket_mask; /* buckets are a power of two */
    struct page_pool *pool;
    struct node *nodes;     /* of each page */
    uint32_t *buckets;      /* [bucket_mask + 1] first node; NO_PAGE: empty */
    uint32_t *n_seen;       /* [n_page] scratch of prefix_check */
    struct page_feed *feed; /* NULL: none */
    struct tiers *tiers;    /* NULL: none */
    uint32_t first_page;    /* the tiers' number of page 0 */
    uint32_t first_offered, last_offered;
    uint32_t n_offered;
};

/* How many answer rows page i has. They are its last ones. */
static uint32_t count_answer(const struct prefix_text *t, uint32_t i)
{
    uint64_t end = ((uint64_t)i + 1) * KV_PAGE_TOKENS;
    if (end <= t->n_prompt) return 0;
    return end - t->n_prompt < KV_PAGE_TOKENS ? (uint32_t)(end - t->n_prompt) : KV_PAGE_TOKENS;
}

/* The part of the key of page i of a text that does not depend on other pages. */
static struct key part_of(const struct prefix_text *t, uint32_t i)
{
    return (struct key){.parent = NO_PAGE,
                        .n_answer = count_answer(t, i),
                        .ids = t->ids + (size_t)i * KV_PAGE_TOKENS};
}

/* The key of page i of a text, which follows `parent`. */
static struct key key_of(const struct prefix_text *t, uint32_t parent, uint32_t i)
{
    struct key k = part_of(t, i);
    ASSERT((i == 0) == (parent == NO_PAGE));
    k.parent = parent;
    if (parent == NO_PAGE) k.salt = t->salt;
    return k;
}

static struct key key_of_node(const struct node *n)
{
    return (struct key){n->salt, n->parent, n->n_answer, n->ids};
}

static uint32_t *bucket_of(const struct prefix_cache *c, const struct key *k)
{
    uint64_t h = rng_hash(k->salt ^ (uint64_t)k->parent << 32 ^ k->n_answer);
    for (uint32_t i = 0; i < c->n_key_id; i += 2) {
        uint64_t two = 0;
        memcpy(&two, k->ids + i, i + 1 < c->n_key_id ? sizeof two : sizeof k->ids[0]);
        h = rng_hash(h ^ two);
    }
    return &c->buckets[h & c->bucket_mask];
}

static bool has_key(const struct prefix_cache *c, uint32_t page, const struct key *k)
{
    const struct node *n = &c->nodes[page];
    return n->parent == k->parent && n->salt == k->salt && n->n_answer == k->n_answer &&
           memcmp(n->ids, k->ids, c->n_key_id * sizeof n->ids[0]) == 0;
}

/* The page with the key in a bucket that begins with `page`; NO_PAGE: none. */
static uint32_t search(const struct prefix_cache *c, uint32_t page, const struct key *k)
{
    while (page != NO_PAGE && !has_key(c, page, k)) page = c->nodes[page].next;
    return page;
}

/* The name of a page's record in the tiers. */
static struct tier_name name_of(const struct prefix_cache *c, const struct hash128 *hash,
                                const struct key *k)
{
    struct tier_name name = {
        .key = *hash, .n_id = (uint16_t)c->n_key_id, .n_answer = (uint16_t)k->n_answer};
    memcpy(name.ids, k->ids, c->n_key_id * sizeof k->ids[0]);
    return name;
}

static void keep(struct prefix_cache *c, uint32_t page, bool overwritten)
{
    const struct node *n = &c->nodes[page];
    const struct key k = key_of_node(n);
    const struct tier_name name = name_of(c, &n->name, &k);
    tiers_keep(c->tiers, &name, c->first_page + page, overwritten);
    if (n->lease_us) (void)tiers_lease(c->tiers, &n->name, n->lease_us, n->is_new);
}

static void take_back_offer(struct prefix_cache *c, uint32_t page)
{
    struct node *n = &c->nodes[page];
    if (!n->offered) return;
    ASSERT(c->n_offered > 0 && n->published);
    if (n->offered_prev != NO_PAGE) {
        c->nodes[n->offered_prev].offered_next = n->offered_next;
    } else {
        c->first_offered = n->offered_next;
    }
    if (n->offered_next != NO_PAGE) {
        c->nodes[n->offered_next].offered_prev = n->offered_prev;
    } else {
        c->last_offered = n->offered_prev;
    }
    n->offered = false;
    c->n_offered--;
}

/* Unpublishes a page. */
static void take_out(struct prefix_cache *c, uint32_t page)
{
    struct node *n = &c->nodes[page];
    ASSERT(n->published && n->n_child == 0 && !n->offered);
    page_feed_take_out(c->feed, page);
    const struct key k = key_of_node(n);
    uint32_t *link = bucket_of(c, &k);
    while (*link != page) link = &c->nodes[*link].next;
    *link = n->next;
    if (n->parent != NO_PAGE) {
        ASSERT(c->nodes[n->parent].published && c->nodes[n->parent].n_child > 0);
        c->nodes[n->parent].n_child--;
    }
    n->published = false;
    c->n_published--;
}

/* The pool is about to hand the page out for other tokens. */
static void forget(void *arg, uint32_t page)
{
    struct prefix_cache *c = arg;
    take_back_offer(c, page);
    if (c->tiers) keep(c, page, true);
    c->nodes[page].lease_us = 0;
    take_out(c, page);
}

fathom_err prefix_create(struct prefix_cache **out, struct page_pool *pool, bool with_next,
                         fathom_diag *d)
{
    *out = NULL;
    struct prefix_cache *c = mem_calloc(1, sizeof *c);
    if (!c) FAIL(d, FATHOM_ENOMEM, "no memory for the prefix cache");
    uint32_t n_page = page_pool_n_page(pool);
    uint32_t n_bucket = 1;
    while (n_bucket < n_page) n_bucket *= 2;
    c->n_key_id = KV_PAGE_TOKENS + with_next;
    c->bucket_mask = n_bucket - 1;
    c->nodes = mem_calloc(n_page, sizeof *c->nodes);
    c->buckets = mem_alloc_array(n_bucket, sizeof *c->buckets);
    c->n_seen = mem_calloc(n_page, sizeof *c->n_seen);
    if (!c->nodes || !c->buckets || !c->n_seen) {
        prefix_destroy(c);
        FAIL(d, FATHOM_ENOMEM, "no memory for the prefix cache of %u pages", n_page);
    }
    for (uint32_t i = 0; i < n_bucket; i++) c->buckets[i] = NO_PAGE;
    c->first_offered = c->last_offered = NO_PAGE;
    c->pool = pool;
    page_pool_on_evict(pool, forget, c);
    *out = c;
    return FATHOM_OK;
}

void prefix_destroy(struct prefix_cache *c)
{
    if (!c) return;
    if (c->pool) page_pool_on_evict(c->pool, NULL, NULL);
    mem_free(c->nodes);
    mem_free(c->buckets);
    mem_free(c->n_seen);
    mem_free(c);
}

void prefix_attach_tiers(struct prefix_cache *c, struct tiers *tiers, uint32_t first_page)
{
    ASSERT(c->n_published == 0 && !c->tiers);
    c->tiers = tiers;
    c->first_page = first_page;
}

void prefix_attach_feed(struct prefix_cache *c, struct page_feed *feed)
{
    ASSERT(c->n_published == 0 && !c->feed);
    c->feed = feed;
}

uint32_t prefix_n_key_id(const struct prefix_cache *c)
{
    return c->n_key_id;
}

uint32_t prefix_find(const struct prefix_cache *c, const struct prefix_text *t, uint32_t n_id,
                     uint32_t *pages)
{
    uint32_t parent = NO_PAGE;
    uint32_t n = 0;
    for (; (n + 1) * (uint64_t)KV_PAGE_TOKENS < n_id; n++) {
        const struct key k = key_of(t, parent, n);
        parent = search(c, *bucket_of(c, &k), &k);
        if (parent == NO_PAGE) break;
        DCHECK(page_pool_state(c->pool, parent) != PAGE_FREE);
        pages[n] = parent;
    }
    return n;
}

/* The hash from which the name of the page after `page` is made; NO_PAGE: for a first page. */
static struct hash128 name_before(const struct prefix_cache *c, uint64_t salt, uint32_t page)
{
    ASSERT(page == NO_PAGE || c->nodes[page].published);
    return page == NO_PAGE ? tier_key_first(tiers_secret(c->tiers), salt) : c->nodes[page].name;
}

static struct hash128 name_after(const struct prefix_cache *c, const struct hash128 *before,
                                 const struct key *k)
{
    return tier_key_next(tiers_secret(c->tiers), before, k->ids, c->n_key_id, k->n_answer);
}

/* Publishes a page, which only one request holds, under the key k and the record name `name`. */
static void insert(struct prefix_cache *c, uint32_t page, const struct key *k,
                   const struct hash128 *name)
{
    struct node *n = &c->nodes[page];
    ASSERT(!n->published && page_pool_n_holder(c->pool, page) == 1);
    ASSERT(k->parent == NO_PAGE || c->nodes[k->parent].published);
    uint32_t *bucket = bucket_of(c, k);
    *n = (struct node){.salt = k->salt,
                       .parent = k->parent,
                       .n_answer = k->n_answer,
                       .next = *bucket,
                       .published = true,
                       .name = *name};
    memcpy(n->ids, k->ids, c->n_key_id * sizeof n->ids[0]);
    *bucket = page;
    if (k->parent != NO_PAGE) c->nodes[k->parent].n_child++;
    c->n_published++;
    page_feed_publish(c->feed, page, k->parent, k->salt, k->n_answer, n->ids);
    page_pool_keep(c->pool, page, true);
}

/* If a page with this key is published already, gives `page` back and takes that one instead;
 * NO_PAGE: there is none. */
static uint32_t swap_for_twin(struct prefix_cache *c, uint32_t page, const struct key *k)
{
    uint32_t twin = search(c, *bucket_of(c, k), k);
    if (twin == NO_PAGE) return NO_PAGE;
    ASSERT(twin != page && !c->nodes[page].published);
    page_pool_ref(c->pool, twin);
    page_pool_give(c->pool, page);
    return twin;
}

uint32_t prefix_publish(struct prefix_cache *c, const struct prefix_text *t, const uint32_t *pages,
                        uint32_t i)
{
    uint32_t page = pages[i];
    uint32_t parent = i > 0 ? pages[i - 1] : NO_PAGE;
    ASSERT(parent == NO_PAGE || c->nodes[parent].published);
    const struct key k = key_of(t, parent, i);
    uint32_t twin = swap_for_twin(c, page, &k);
    if (twin != NO_PAGE) return twin;
    struct hash128 name = {0};
    if (c->tiers) {
        name = name_before(c, t->salt, parent);
        name = name_after(c, &name, &k);
    }
    insert(c, page, &k, &name);
    return page;
}

void prefix_end_answer(struct prefix_cache *c, uint32_t page)
{
    const struct node *n = &c->nodes[page];
    if (!n->published || n->n_answer == 0 || n->n_child > 0) return;
    if (page_pool_n_holder(c->pool, page) > 1) return;
    take_back_offer(c, page);
    take_out(c, page);
    page_pool_keep(c->pool, page, false);
}

void prefix_void(struct prefix_cache *c)
{
    for (uint32_t page = 0; page < page_pool_n_page(c->pool); page++) {
        if (!c->nodes[page].published) continue;
        ASSERT(page_pool_state(c->pool, page) == PAGE_CACHED);
        page_pool_keep(c->pool, page, false);
        c->nodes[page] = (struct node){0};
    }
    for (uint32_t i = 0; i <= c->bucket_mask; i++) c->buckets[i] = NO_PAGE;
    c->first_offered = c->last_offered = NO_PAGE;
    c->n_published = c->n_offered = 0;
    page_feed_void(c->feed);
}

/* ---- tiers ---- */

struct tiers *prefix_tiers(const struct prefix_cache *c)
{
    return c->tiers;
}

struct prefix_match prefix_find_tiers(const struct prefix_cache *c, const struct prefix_text *t,
                                      uint32_t n_id, const uint32_t *pages, uint32_t n_page)
{
    struct prefix_match m = {0};
    if (!c->tiers) return m;
    struct hash128 name = name_before(c, t->salt, n_page > 0 ? pages[n_page - 1] : NO_PAGE);
    for (uint32_t i = n_page; (i + 1) * (uint64_t)KV_PAGE_TOKENS < n_id; i++, m.n_page++) {
        const struct key k = part_of(t, i);
        name = name_after(c, &name, &k);
        enum tier_where where = tiers_find(c->tiers, &name);
        const bool is_here = where == TIER_IN_RAM || where == TIER_ON_DISK;
        if (!is_here && (!t->peer.is_set || i >= t->peer.end)) break;
        m.n_disk += where == TIER_ON_DISK;
        m.n_peer += !is_here;
    }
    if (m.n_peer == 0 && !tiers_pay(c->tiers, m.n_page, m.n_disk)) return (struct prefix_match){0};
    return m;
}

static const struct tier_peer *peer_of(const struct prefix_peer *p, struct tier_peer *out)
{
    *out = (struct tier_peer){.place = p->place, .pull = p->pull};
    return p->is_set ? out : NULL;
}

/* Asks the tiers to read the pages that follow one they do not have in memory yet. */
static void read_ahead(struct prefix_cache *c, struct hash128 name, const struct prefix_text *t,
                       uint32_t first, uint32_t end)
{
    struct tier_peer peer;
    for (uint32_t i = first; i < end; i++) {
        const struct key k = part_of(t, i);
        name = name_after(c, &name, &k);
        const struct tier_name whole = name_of(c, &name, &k);
        if (!tiers_read_ahead(c->tiers, &whole, peer_of(&t->peer, &peer))) return;
    }
}

enum prefix_fetch prefix_fetch(struct prefix_cache *c, const struct prefix_text *t, uint32_t *pages,
                               uint32_t first, uint32_t end, uint32_t *n_filled)
{
    *n_filled = 0;
    if (!c->tiers) return PREFIX_FETCH_LOST;
    ASSERT(first <= end && (first == 0 || c->nodes[pages[first - 1]].published));
    for (uint32_t i = first; i < end; i++, ++*n_filled) {
        uint32_t parent = i > 0 ? pages[i - 1] : NO_PAGE;
        const struct key k = key_of(t, parent, i);
        uint32_t twin = swap_for_twin(c, pages[i], &k);
        if (twin != NO_PAGE) {
            pages[i] = twin;
            continue;
        }
        struct hash128 name = name_before(c, t->salt, parent);
        name = name_after(c, &name, &k);
        const struct tier_name whole = name_of(c, &name, &k);
        struct tier_peer peer;
        const uint32_t page = c->first_page + pages[i];
        switch (tiers_restore(c->tiers, &whole, page, peer_of(&t->peer, &peer))) {
        case TIER_RESTORED: insert(c, pages[i], &k, &name); break;
        case TIER_WAIT:
            read_ahead(c, name, t, i + 1, end);
            return tiers_find(c->tiers, &name) == TIER_IN_RAM ? PREFIX_FETCH_HERE
                                                              : PREFIX_FETCH_WAIT;
        case TIER_GONE: return PREFIX_FETCH_LOST;
        }
    }
    return PREFIX_FETCHED;
}

void prefix_leave_peer(const struct prefix_cache *c, const struct prefix_text *t)
{
    if (!c->tiers || !t->peer.is_set) return;
    struct hash128 name = name_before(c, t->salt, NO_PAGE);
    for (uint32_t i = 0; i < t->peer.end; i++) {
        const struct key k = part_of(t, i);
        name = name_after(c, &name, &k);
        tiers_release(c->tiers, t->peer.place, &name);
    }
}

void prefix_offer(struct prefix_cache *c, uint32_t page)
{
    struct node *n = &c->nodes[page];
    if (!c->tiers || page_pool_state(c->pool, page) != PAGE_CACHED) return;
    ASSERT(n->published);
    if (n->offered && n->lease_us) return;
    take_back_offer(c, page); /* to the end of the list: it was used last */
    if (tiers_use(c->tiers, &n->name)) return;
    n->offered = true;
    n->offered_prev = c->last_offered;
    n->offered_next = NO_PAGE;
    if (c->last_offered != NO_PAGE) {
        c->nodes[c->last_offered].offered_next = page;
    } else {
        c->first_offered = page;
    }
    c->last_offered = page;
    c->n_offered++;
}

void prefix_share(struct prefix_cache *c, uint32_t page, uint64_t until_us, bool is_new)
{
    struct node *n = &c->nodes[page];
    if (!c->tiers) return;
    ASSERT(n->published && until_us > 0);
    if (tiers_lease(c->tiers, &n->name, until_us, is_new)) return;
    take_back_offer(c, page);
    n->is_new = is_new || (n->lease_us && n->is_new);
    n->lease_us = until_us;
    n->offered = true;
    n->offered_prev = NO_PAGE;
    n->offered_next = c->first_offered;
    if (c->first_offered != NO_PAGE) {
        c->nodes[c->first_offered].offered_prev = page;
    } else {
        c->last_offered = page;
    }
    c->first_offered = page;
    c->n_offered++;
}

uint32_t prefix_n_margin(const struct prefix_cache *c)
{
    return page_pool_n_page(c->pool) / MARGIN_PART;
}

bool prefix_is_due(const struct prefix_cache *c)
{
    if (c->n_offered == 0) return false;
    if (c->nodes[c->first_offered].lease_us) return true;
    uint32_t n_available = page_pool_n_available(c->pool);
    return tiers_keep_all(c->tiers) || n_available < c->n_offered + prefix_n_margin(c);
}

/* A page that is held again will not be evicted soon. If its copy would cost another record its
 * place in memory, the page is skipped; it is offered again when its holder gives it back. */
void prefix_keep_offered(struct prefix_cache *c, uint32_t n)
{
    while (n > 0 && prefix_is_due(c) && tiers_may_copy(c->tiers)) {
        uint32_t page = c->first_offered;
        ASSERT(page != NO_PAGE && c->nodes[page].offered);
        take_back_offer(c, page);
        bool shared = c->nodes[page].lease_us > 0;
        bool held = page_pool_state(c->pool, page) == PAGE_HELD;
        if (held && !shared && !tiers_keep_all(c->tiers)) continue;
        keep(c, page, shared);
        c->nodes[page].lease_us = 0;
        n -= !shared;
    }
}

uint32_t prefix_n_offered(const struct prefix_cache *c)
{
    return c->n_offered;
}

uint32_t prefix_n_page(const struct prefix_cache *c)
{
    return c->n_published;
}

/* Checks the invariants of one published page, and counts it as a child of its parent. */
static void check_node(const struct prefix_cache *c, uint32_t page)
{
    const struct node *n = &c->nodes[page];
    enum page_state state = page_pool_state(c->pool, page);
    ASSERT(state != PAGE_FREE);
    const struct key k = key_of_node(n);
    ASSERT(search(c, *bucket_of(c, &k), &k) == page);
    if (n->parent == NO_PAGE) return;
    ASSERT(n->salt == 0);
    ASSERT(n->parent < page_pool_n_page(c->pool) && c->nodes[n->parent].published);
    ASSERT(state == PAGE_CACHED || page_pool_state(c->pool, n->parent) == PAGE_HELD);
    c->n_seen[n->parent]++;
}

static void check_offered(const struct prefix_cache *c)
{
    uint32_t n = 0;
    uint32_t prev = NO_PAGE;
    for (uint32_t i = c->first_offered; i != NO_PAGE; i = c->nodes[i].offered_next, n++) {
        ASSERT(n < c->n_offered && c->nodes[i].offered && c->nodes[i].published);
        ASSERT(c->nodes[i].offered_prev == prev);
        prev = i;
    }
    ASSERT(n == c->n_offered && c->last_offered == prev);
}

void prefix_check(struct prefix_cache *c)
{
    uint32_t n_published = 0;
    for (uint32_t i = 0; i < page_pool_n_page(c->pool); i++) c->n_seen[i] = 0;
    for (uint32_t i = 0; i < page_pool_n_page(c->pool); i++) {
        if (c->nodes[i].published) {
            check_node(c, i);
            n_published++;
        } else {
            ASSERT(page_pool_state(c->pool, i) != PAGE_CACHED);
        }
    }
    ASSERT(n_published == c->n_published);
    for (uint32_t i = 0; i < page_pool_n_page(c->pool); i++) {
        ASSERT(!c->nodes[i].published || c->nodes[i].n_child == c->n_seen[i]);
    }
    uint32_t n_linked = 0;
    for (uint32_t b = 0; b <= c->bucket_mask; b++) {
        for (uint32_t i = c->buckets[b]; i != NO_PAGE; i = c->nodes[i].next) {
            ASSERT(c->nodes[i].published && n_linked < c->n_published);
            n_linked++;
        }
    }
    ASSERT(n_linked == c->n_published);
    check_offered(c);
    if (c->feed) page_feed_check(c->feed);
}

void prefix_check_chain(const struct prefix_cache *c, const struct prefix_text *t,
                        const uint32_t *pages, uint32_t n)
{
    uint32_t parent = NO_PAGE;
    for (uint32_t i = 0; i < n; i++) {
        const struct key k = key_of(t, parent, i);
        ASSERT(c->nodes[pages[i]].published && has_key(c, pages[i], &k));
        parent = pages[i];
    }
}

fathom_err prefix_dump(const struct prefix_cache *c, struct buf *out)
{
    TRY(buf_printf(out, "prefix cache: %u pages", c->n_published));
    if (c->tiers) TRY(buf_printf(out, ", %u without a copy", c->n_offered));
    TRY(buf_printf(out, "\n"));
    for (uint32_t i = 0; i < page_pool_n_page(c->pool); i++) {
        const struct node *n = &c->nodes[i];
        if (!n->published) continue;
        if (n->parent == NO_PAGE) {
            TRY(buf_printf(out, "  page %u first, salt=%llu", i, (unsigned long long)n->salt));
        } else {
            TRY(buf_printf(out, "  page %u after %u", i, n->parent));
        }
        TRY(buf_printf(out, " children=%u answer=%u%s begins %d %d %d\n", n->n_child, n->n_answer,
                       n->offered ? " offered" : "", (int)n->ids[0], (int)n->ids[1],
                       (int)n->ids[2]));
    }
    return FATHOM_OK;
}

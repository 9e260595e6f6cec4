/* page_feed.c - a list of published pages, a place in it up to which all was told, and a ring
 *
 * Invariants
 *
 *   1. The list has each page once that is published and has no rows of an answer, in the order in
 *      which they were published. So a page comes after its parent.
 *   2. Pages before `next` in the list are told of if they have the salt, and passed over if not.
 *      Those from `next` on are not told of. NO_PAGE: all was looked at.
 *   3. A page is told of when its round is the feed's: STORED was put into the ring after the last
 *      CLEARED, and REMOVED was not.
 *   4. While is_lost, what was told is not what is there, and nothing but CLEARED is put. CLEARED
 *      begins a round: next is the first page, and nothing is told of.
 *   5. tail - head <= the ring's size. Events of [head, tail) are written and not taken.
 *
 * Round 0 is before anything was told. It ends when there is a page to tell of, so the first event
 * of all is CLEARED: who has seen events of another process forgets them.
 *
 * A page waits in the list for room, so STORED is never lost; a quarter of the ring is left to
 * removals, which cannot wait. Both ends of the ring count up for ever. Only the feed's thread
 * writes tail, only the other one head; `waits` is set by the former and taken back by the latter,
 * each after it has looked at or moved its end, so that one of them sees the other. */
#include "kv/page_feed.h"

#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

#define NO_PAGE UINT32_MAX

struct told {
    uint64_t hash;
    uint64_t parent; /* its hash; 0: none */
    uint64_t salt;   /* of its first page */
    uint64_t round;
    const int32_t *ids; /* the cache's; NULL: the page is not in the list */
    uint32_t prev;      /* NO_PAGE at the ends */
    uint32_t next;
};

struct page_feed {
    struct page_feed_config config;
    struct told *pages;        /* [n_page] */
    struct page_event *events; /* [mask + 1] */
    uint64_t mask;
    atomic_uint_fast64_t head, tail;
    atomic_bool waits;
    uint64_t salt;
    uint64_t round;
    bool is_lost;
    uint32_t first, last, next; /* of the list */
    atomic_uint_fast64_t n_overflow;
};

fathom_err page_feed_create(struct page_feed **out, const struct page_feed_config *c,
                            fathom_diag *d)
{
    uint64_t n_event = PAGE_FEED_MIN;
    *out = NULL;
    ASSERT(c->n_event >= PAGE_FEED_MIN && c->n_key_id >= KV_PAGE_TOKENS);
    while (n_event < c->n_event) n_event *= 2;
    struct page_feed *f = mem_calloc(1, sizeof *f);
    if (!f) FAIL(d, FATHOM_ENOMEM, "no memory for events of the prefix cache");
    f->config = *c;
    f->mask = n_event - 1;
    f->is_lost = true;
    f->first = f->last = f->next = NO_PAGE;
    f->pages = mem_calloc(c->n_page, sizeof *f->pages);
    f->events = mem_calloc(n_event, sizeof *f->events);
    if (!f->pages || !f->events) {
        page_feed_destroy(f);
        FAIL(d, FATHOM_ENOMEM, "no memory for %llu events of a prefix cache of %u pages",
             (unsigned long long)n_event, c->n_page);
    }
    *out = f;
    return FATHOM_OK;
}

void page_feed_destroy(struct page_feed *f)
{
    if (!f) return;
    mem_free(f->pages);
    mem_free(f->events);
    mem_free(f);
}

/* ---- the ring ------------------------------------------------------------------------------- */

static uint64_t n_room(const struct page_feed *f)
{
    return f->mask + 1 - (atomic_load(&f->tail) - atomic_load(&f->head));
}

static bool put(struct page_feed *f, enum page_event_kind kind, const struct told *t)
{
    if (n_room(f) == 0) return false;
    const uint64_t tail = atomic_load(&f->tail);
    struct page_event *e = &f->events[tail & f->mask];
    e->kind = kind;
    e->page = t ? t->hash : 0;
    e->parent = t ? t->parent : 0;
    if (kind == PAGE_STORED) memcpy(e->ids, t->ids, sizeof e->ids);
    atomic_store(&f->tail, tail + 1);
    return true;
}

uint32_t page_feed_peek(const struct page_feed *f, const struct page_event **out)
{
    const uint64_t head = atomic_load(&f->head), n = atomic_load(&f->tail) - head;
    const uint64_t n_row = f->mask + 1 - (head & f->mask); /* up to the ring's end */
    *out = &f->events[head & f->mask];
    return (uint32_t)(n < n_row ? n : n_row);
}

bool page_feed_drop(struct page_feed *f, uint32_t n)
{
    ASSERT(n <= atomic_load(&f->tail) - atomic_load(&f->head));
    atomic_fetch_add(&f->head, n);
    return atomic_exchange(&f->waits, false);
}

uint64_t page_feed_n_put(const struct page_feed *f)
{
    return atomic_load(&f->tail);
}

/* ---- the list ------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct page_feed *f, uint64_t before, uint64_t salt,
                        const int32_t *ids)
{
    struct {
        uint64_t before, salt; /* of which one is 0 */
        int32_t ids[KV_PAGE_TOKENS + 2];
    } in = {.before = before, .salt = salt};
    ASSERT(f->config.n_key_id <= KV_PAGE_TOKENS + 1);
    memcpy(in.ids, ids, f->config.n_key_id * sizeof ids[0]);
    const uint64_t h = hash_keyed(&f->config.secret, &in, sizeof in).lo;
    return h ? h : 1;
}

void page_feed_publish(struct page_feed *f, uint32_t page, uint32_t parent, uint64_t salt,
                       uint32_t n_answer, const int32_t *ids)
{
    if (!f || n_answer > 0) return;
    ASSERT(page < f->config.n_page && !f->pages[page].ids);
    const struct told *before = parent == NO_PAGE ? NULL : &f->pages[parent];
    ASSERT(!before || before->ids);
    f->pages[page] =
        (struct told){.hash = before ? hash_of(f, before->hash, 0, ids) : hash_of(f, 0, salt, ids),
                      .parent = before ? before->hash : 0,
                      .salt = before ? before->salt : salt,
                      .ids = ids,
                      .prev = f->last,
                      .next = NO_PAGE};
    if (f->last != NO_PAGE) {
        f->pages[f->last].next = page;
    } else {
        f->first = page;
    }
    f->last = page;
    if (f->next == NO_PAGE) f->next = page;
}

void page_feed_take_out(struct page_feed *f, uint32_t page)
{
    if (!f || !f->pages[page].ids) return;
    struct told *t = &f->pages[page];
    const bool was_told = !f->is_lost && t->round == f->round;
    if (was_told && !put(f, PAGE_REMOVED, t)) {
        f->is_lost = true;
        atomic_fetch_add(&f->n_overflow, 1);
    }
    if (f->next == page) f->next = t->next;
    if (t->prev != NO_PAGE) {
        f->pages[t->prev].next = t->next;
    } else {
        f->first = t->next;
    }
    if (t->next != NO_PAGE) {
        f->pages[t->next].prev = t->prev;
    } else {
        f->last = t->prev;
    }
    *t = (struct told){0};
}

void page_feed_void(struct page_feed *f)
{
    if (!f) return;
    while (f->first != NO_PAGE) {
        struct told *t = &f->pages[f->first];
        f->first = t->next;
        *t = (struct told){0};
    }
    f->last = f->next = NO_PAGE;
    f->is_lost = true;
}

/* Whether events are due. */
static bool is_behind(const struct page_feed *f)
{
    const bool is_new = f->round == 0 && f->first == NO_PAGE;
    return !is_new && (f->is_lost || f->next != NO_PAGE);
}

static bool has_room(const struct page_feed *f)
{
    return n_room(f) > (f->is_lost ? 0 : (f->mask + 1) / 4);
}

static void begin_round(struct page_feed *f)
{
    const bool fits = put(f, PAGE_CLEARED, NULL);
    ASSERT(fits);
    f->round++;
    f->is_lost = false;
    f->next = f->first;
}

static void tell_next(struct page_feed *f)
{
    struct told *t = &f->pages[f->next];
    ASSERT(t->ids && t->round != f->round);
    f->next = t->next;
    if (t->salt != f->salt) return;
    const bool fits = put(f, PAGE_STORED, t);
    ASSERT(fits);
    t->round = f->round;
}

bool page_feed_tell(struct page_feed *f, uint64_t salt, uint32_t n)
{
    f->is_lost |= salt != f->salt;
    f->salt = salt;
    for (; n > 0 && is_behind(f) && has_room(f); n--) {
        if (f->is_lost) {
            begin_round(f);
        } else {
            tell_next(f);
        }
    }
    if (!is_behind(f)) return false;
    if (has_room(f)) return true;
    atomic_store(&f->waits, true);
    return has_room(f); /* which was made meanwhile by one who did not see that it is waited for */
}

uint64_t page_feed_n_overflow(const struct page_feed *f)
{
    return atomic_load(&f->n_overflow);
}

void page_feed_check(const struct page_feed *f)
{
    uint32_t n = 0, n_listed = 0, prev = NO_PAGE;
    bool is_after = false;
    ASSERT(atomic_load(&f->tail) - atomic_load(&f->head) <= f->mask + 1);
    for (uint32_t i = f->first; i != NO_PAGE; prev = i, i = f->pages[i].next, n++) {
        const struct told *t = &f->pages[i];
        ASSERT(n < f->config.n_page && t->ids && t->prev == prev && t->hash);
        is_after |= i == f->next;
        if (!f->is_lost) ASSERT((t->round == f->round) == (!is_after && t->salt == f->salt));
    }
    ASSERT(f->last == prev && is_after == (f->next != NO_PAGE));
    for (uint32_t i = 0; i < f->config.n_page; i++) n_listed += f->pages[i].ids != NULL;
    ASSERT(n_listed == n);
}

/* page_pool.c - the states of pages, and the two lists that pages without a holder are in
 *
 * Invariants
 *
 *   1. A page is in exactly one of FREE, HELD, CACHED.
 *   2. n_holder > 0 if and only if the page is HELD.
 *   3. A FREE page is in the free list and a CACHED page in the cached list, each exactly once;
 *      a HELD page is in neither.
 *   4. A FREE page is not kept; a CACHED page is.
 *   5. n_free + n_cached + HELD pages = n_page.
 *
 * States, and the function of each edge
 *
 *                     take                      ref (n+1), give (n-1)
 *        FREE ------------------------> HELD(n) ----+
 *         ^ ^                            ^  |  ^----+
 *         | +------- give, not kept -----|--+
 *         |                              |  |
 *         | keep(false)      take, ref   |  | give, kept
 *         +---------------- CACHED ------+  |
 *                             ^-------------+
 *
 *   take prefers a FREE page, and without one it evicts the CACHED page that was given longest ago.
 *   ref revives a CACHED page that has been found by its content.
 *
 * Both lists are doubly linked through the page entries. The free list is a stack, so a small load
 * touches few pages; the cached list is a queue. What take returns depends only on the calls before
 * it, so a run can be repeated. */
#include "kv/page_pool.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "kv/layout.h"

#define NO_PAGE UINT32_MAX

struct page {
    uint32_t n_holder;
    uint32_t prev; /* neighbours in the free or the cached list; NO_PAGE at the ends */
    uint32_t next;
    uint8_t state; /* enum page_state */
    bool kept;
};

struct page_list {
    uint32_t head;
    uint32_t tail;
    uint32_t n;
};

struct page_pool {
    uint32_t n_page;
    uint32_t n_page_max;
    struct page *pages; /* [n_page_max] */
    struct page_list free;
    struct page_list cached;
    void (*evicted)(void *arg, uint32_t page);
    void *evicted_arg;
};

static void push_front(struct page_pool *p, struct page_list *l, uint32_t page)
{
    p->pages[page].prev = NO_PAGE;
    p->pages[page].next = l->head;
    if (l->head != NO_PAGE) {
        p->pages[l->head].prev = page;
    } else {
        l->tail = page;
    }
    l->head = page;
    l->n++;
}

static void remove_from(struct page_pool *p, struct page_list *l, uint32_t page)
{
    struct page *g = &p->pages[page];
    ASSERT(l->n > 0 && g->n_holder == 0);
    if (g->prev != NO_PAGE) {
        p->pages[g->prev].next = g->next;
    } else {
        l->head = g->next;
    }
    if (g->next != NO_PAGE) {
        p->pages[g->next].prev = g->prev;
    } else {
        l->tail = g->prev;
    }
    g->prev = g->next = NO_PAGE;
    l->n--;
}

static void free_all(struct page_pool *p)
{
    p->free = (struct page_list){NO_PAGE, NO_PAGE, 0};
    for (uint32_t i = p->n_page; i-- > 0;) push_front(p, &p->free, i);
}

fathom_err page_pool_create(struct page_pool **out, uint32_t n_page, fathom_diag *d)
{
    *out = NULL;
    if (n_page == 0 || n_page > INT32_MAX / KV_PAGE_TOKENS) {
        FAIL(d, FATHOM_EINVAL, "%u pages asked for, needed is 1 to %d", n_page,
             INT32_MAX / KV_PAGE_TOKENS);
    }
    struct page_pool *p = mem_calloc(1, sizeof *p);
    if (!p) FAIL(d, FATHOM_ENOMEM, "no memory for the page pool");
    p->n_page = n_page;
    p->pages = mem_calloc(n_page, sizeof *p->pages);
    if (!p->pages) {
        page_pool_destroy(p);
        FAIL(d, FATHOM_ENOMEM, "no memory for %u page entries", n_page);
    }
    p->n_page_max = n_page;
    p->cached = (struct page_list){NO_PAGE, NO_PAGE, 0};
    free_all(p);
    *out = p;
    return FATHOM_OK;
}

void page_pool_destroy(struct page_pool *p)
{
    if (!p) return;
    mem_free(p->pages);
    mem_free(p);
}

void page_pool_limit(struct page_pool *p, uint32_t n_page)
{
    ASSERT(n_page >= 1 && n_page <= p->n_page_max && p->free.n == p->n_page);
    p->n_page = n_page;
    free_all(p);
}

void page_pool_on_evict(struct page_pool *p, void (*evicted)(void *arg, uint32_t page), void *arg)
{
    ASSERT(!evicted || !p->evicted);
    p->evicted = evicted;
    p->evicted_arg = arg;
}

bool page_pool_take(struct page_pool *p, uint32_t *page)
{
    uint32_t taken;
    if (p->free.n > 0) {
        taken = p->free.head;
        remove_from(p, &p->free, taken);
    } else if (p->cached.n > 0) {
        taken = p->cached.tail;
        remove_from(p, &p->cached, taken);
        if (p->evicted) p->evicted(p->evicted_arg, taken);
        ASSERT(p->pages[taken].state == PAGE_CACHED); /* nobody has revived it meanwhile */
        p->pages[taken].kept = false;
    } else {
        return false;
    }
    ASSERT(p->pages[taken].n_holder == 0 && !p->pages[taken].kept);
    p->pages[taken].state = PAGE_HELD;
    p->pages[taken].n_holder = 1;
    *page = taken;
    return true;
}

void page_pool_ref(struct page_pool *p, uint32_t page)
{
    ASSERT(page < p->n_page);
    struct page *g = &p->pages[page];
    ASSERT(g->state != PAGE_FREE);
    if (g->state == PAGE_CACHED) {
        remove_from(p, &p->cached, page);
        g->state = PAGE_HELD;
    }
    g->n_holder++;
}

void page_pool_give(struct page_pool *p, uint32_t page)
{
    ASSERT(page < p->n_page);
    struct page *g = &p->pages[page];
    ASSERT(g->state == PAGE_HELD);
    if (--g->n_holder > 0) return;
    if (g->kept) {
        g->state = PAGE_CACHED;
        push_front(p, &p->cached, page);
    } else {
        g->state = PAGE_FREE;
        push_front(p, &p->free, page);
    }
}

void page_pool_keep(struct page_pool *p, uint32_t page, bool keep)
{
    ASSERT(page < p->n_page);
    struct page *g = &p->pages[page];
    ASSERT(g->state != PAGE_FREE);
    g->kept = keep;
    if (!keep && g->state == PAGE_CACHED) {
        remove_from(p, &p->cached, page);
        g->state = PAGE_FREE;
        push_front(p, &p->free, page);
    }
}

enum page_state page_pool_state(const struct page_pool *p, uint32_t page)
{
    ASSERT(page < p->n_page);
    return (enum page_state)p->pages[page].state;
}

uint32_t page_pool_n_holder(const struct page_pool *p, uint32_t page)
{
    ASSERT(page < p->n_page);
    return p->pages[page].n_holder;
}

uint32_t page_pool_n_page(const struct page_pool *p)
{
    return p->n_page;
}

uint32_t page_pool_n_free(const struct page_pool *p)
{
    return p->free.n;
}

uint32_t page_pool_n_cached(const struct page_pool *p)
{
    return p->cached.n;
}

uint32_t page_pool_n_available(const struct page_pool *p)
{
    return p->free.n + p->cached.n;
}

static void check_list(const struct page_pool *p, const struct page_list *l, enum page_state state)
{
    uint32_t n = 0;
    uint32_t prev = NO_PAGE;
    for (uint32_t i = l->head; i != NO_PAGE; i = p->pages[i].next) {
        ASSERT(i < p->n_page);
        ASSERT(n < l->n);
        ASSERT(p->pages[i].state == state);
        ASSERT(p->pages[i].prev == prev);
        prev = i;
        n++;
    }
    ASSERT(n == l->n);
    ASSERT(l->tail == prev);
}

void page_pool_check(const struct page_pool *p)
{
    uint32_t n_state[3] = {0, 0, 0};
    for (uint32_t i = 0; i < p->n_page; i++) {
        const struct page *g = &p->pages[i];
        ASSERT(g->state <= PAGE_CACHED);
        ASSERT((g->n_holder > 0) == (g->state == PAGE_HELD));
        ASSERT(g->state != PAGE_FREE || !g->kept);
        ASSERT(g->state != PAGE_CACHED || g->kept);
        n_state[g->state]++;
    }
    check_list(p, &p->free, PAGE_FREE);
    check_list(p, &p->cached, PAGE_CACHED);
    ASSERT(n_state[PAGE_FREE] == p->free.n);
    ASSERT(n_state[PAGE_CACHED] == p->cached.n);
    ASSERT(n_state[PAGE_FREE] + n_state[PAGE_HELD] + n_state[PAGE_CACHED] == p->n_page);
}

fathom_err page_pool_dump(const struct page_pool *p, struct buf *out)
{
    TRY(buf_printf(out, "page pool: %u pages, %u free, %u cached, %u held\n", p->n_page, p->free.n,
                   p->cached.n, p->n_page - p->free.n - p->cached.n));
    for (uint32_t i = 0; i < p->n_page; i++) {
        const struct page *g = &p->pages[i];
        if (g->state == PAGE_FREE) continue;
        TRY(buf_printf(out, "  page %u %s holders=%u%s\n", i,
                       g->state == PAGE_HELD ? "HELD" : "CACHED", g->n_holder,
                       g->kept ? " kept" : ""));
    }
    return FATHOM_OK;
}

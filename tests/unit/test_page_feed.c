/* test_page_feed.c - what a reader of the events holds is what the cache holds: in a long random
 * walk with readers that are slow, with rings that are too small, after resets */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kv/layout.h"
#include "kv/page_feed.h"
#include "kv/prefix.h"

enum { MAX_PAGES = 6, MAX_IDS = MAX_PAGES * KV_PAGE_TOKENS + 1, N_PAGE = 24, N_TEXT = 16 };
enum { N_HOLDER = 4, N_HELD_MAX = 1024 };

/* What a reader holds: blocks under the names that the events give them. */
struct picture {
    struct page_event blocks[N_HELD_MAX];
    uint32_t n;
    uint32_t n_cleared;
};

struct text {
    uint64_t salt; /* beside the epoch's */
    uint32_t n_prompt;
    int32_t ids[MAX_IDS];
};

struct holder {
    const struct text *text; /* NULL: rests */
    uint64_t epoch;
    uint32_t pages[MAX_PAGES];
    uint32_t n;
};

struct fixture {
    struct page_pool *pool;
    struct prefix_cache *cache;
    struct page_feed *feed;
    struct picture picture;
    struct text texts[N_TEXT];
    struct holder holders[N_HOLDER];
    uint64_t epoch;
    uint64_t rng;
};

static void open_fixture(struct fixture *f, uint32_t n_event, bool with_next)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(page_pool_create(&f->pool, N_PAGE, NULL), FATHOM_OK);
    assert_int_equal(prefix_create(&f->cache, f->pool, with_next, NULL), FATHOM_OK);
    const struct page_feed_config c = {.n_page = N_PAGE,
                                       .n_key_id = prefix_n_key_id(f->cache),
                                       .n_event = n_event,
                                       .secret = {1, 2}};
    assert_int_equal(page_feed_create(&f->feed, &c, NULL), FATHOM_OK);
    prefix_attach_feed(f->cache, f->feed);
}

static void close_fixture(struct fixture *f)
{
    prefix_check(f->cache);
    prefix_destroy(f->cache);
    page_feed_destroy(f->feed);
    page_pool_destroy(f->pool);
}

static struct page_event *find_block(struct picture *p, uint64_t page)
{
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->blocks[i].page == page) return &p->blocks[i];
    }
    return NULL;
}

/* A reader is strict: nothing is stored twice or before its parent, nothing removed that it does
 * not hold. */
static void apply(struct picture *p, const struct page_event *e)
{
    switch (e->kind) {
    case PAGE_STORED:
        assert_true(p->n_cleared > 0 && p->n < N_HELD_MAX);
        assert_true(e->page != 0 && !find_block(p, e->page));
        assert_true(e->parent == 0 || find_block(p, e->parent));
        p->blocks[p->n++] = *e;
        break;
    case PAGE_REMOVED: {
        struct page_event *b = find_block(p, e->page);
        assert_non_null(b);
        for (uint32_t i = 0; i < p->n; i++) assert_true(p->blocks[i].parent != e->page);
        *b = p->blocks[--p->n];
        break;
    }
    case PAGE_CLEARED:
        p->n = 0;
        p->n_cleared++;
        break;
    }
}

/* Takes n events at most; whether the feed waited for that. */
static bool take(struct fixture *f, uint32_t n)
{
    const struct page_event *events;
    bool waited = false;
    for (uint32_t k; n > 0 && (k = page_feed_peek(f->feed, &events)) > 0; n -= k) {
        if (k > n) k = n;
        for (uint32_t i = 0; i < k; i++) apply(&f->picture, &events[i]);
        waited |= page_feed_drop(f->feed, k);
    }
    return waited;
}

/* Tells and takes as engine and publisher do, until both have nothing more to do. */
static void settle(struct fixture *f)
{
    bool more = true;
    while (more) {
        more = page_feed_tell(f->feed, f->epoch, 3);
        prefix_check(f->cache);
        more |= take(f, 2);
        const struct page_event *events;
        more |= page_feed_peek(f->feed, &events) > 0;
    }
}

static struct prefix_text text_of(const struct text *t, uint64_t epoch)
{
    return (struct prefix_text){.salt = t->salt ^ epoch, .ids = t->ids, .n_prompt = t->n_prompt};
}

/* Pages of a text that a reader believes to be there. */
static uint32_t count_held(const struct picture *p, const struct text *t)
{
    uint64_t parent = 0;
    uint32_t n = 0;
    for (bool found = true; found && n < MAX_PAGES; n += found) {
        found = false;
        for (uint32_t i = 0; i < p->n && !found; i++) {
            const struct page_event *b = &p->blocks[i];
            found = b->parent == parent &&
                    memcmp(b->ids, t->ids + n * KV_PAGE_TOKENS, sizeof b->ids) == 0;
            if (found) parent = b->page;
        }
    }
    return n;
}

/* The picture is the cache's: for each text without a salt both have as many pages. */
static void compare(struct fixture *f)
{
    for (uint32_t i = 0; i < N_TEXT; i++) {
        struct text plain = f->texts[i];
        plain.salt = 0;
        plain.n_prompt = UINT32_MAX;
        const struct prefix_text t = text_of(&plain, f->epoch);
        uint32_t pages[MAX_PAGES];
        assert_int_equal(count_held(&f->picture, &plain),
                         prefix_find(f->cache, &t, MAX_IDS, pages));
    }
}

static void give_all(struct fixture *f, struct holder *h)
{
    while (h->n > 0) page_pool_give(f->pool, h->pages[--h->n]);
    h->text = NULL;
}

static void begin(struct fixture *f, struct holder *h, const struct text *text)
{
    h->text = text;
    h->epoch = f->epoch;
    const struct prefix_text t = text_of(text, h->epoch);
    h->n = prefix_find(f->cache, &t, MAX_IDS, h->pages);
    for (uint32_t i = 0; i < h->n; i++) page_pool_ref(f->pool, h->pages[i]);
}

/* One page more; without one to be had the holder gives its own. */
static void extend(struct fixture *f, struct holder *h)
{
    if (!h->text) return;
    const struct prefix_text t = text_of(h->text, h->epoch);
    if (h->n == MAX_PAGES || !page_pool_take(f->pool, &h->pages[h->n])) {
        give_all(f, h);
        return;
    }
    h->pages[h->n] = prefix_publish(f->cache, &t, h->pages, h->n);
    h->n++;
}

/* Texts that share beginnings; some with a salt, some with an answer. */
static void make_texts(struct fixture *f, bool plain)
{
    for (uint32_t i = 0; i < N_TEXT; i++) {
        struct text *t = &f->texts[i];
        const uint32_t same = i > 0 ? (uint32_t)rng_below(&f->rng, MAX_IDS) : 0;
        const struct text *like = &f->texts[i > 0 ? rng_below(&f->rng, i) : 0];
        for (uint32_t k = 0; k < MAX_IDS; k++)
            t->ids[k] = k < same ? like->ids[k] : (int32_t)rng_below(&f->rng, 100000);
        t->salt = !plain && i % 5 == 1 ? 77 : 0;
        t->n_prompt = !plain && i % 5 == 2 ? (uint32_t)rng_below(&f->rng, MAX_IDS) : UINT32_MAX;
    }
}

static void do_something(struct fixture *f)
{
    struct holder *h = &f->holders[rng_below(&f->rng, N_HOLDER)];
    const uint64_t what = rng_below(&f->rng, 200);
    if (what == 0) { /* all pages are lost, as when a host is */
        for (int i = 0; i < N_HOLDER; i++) give_all(f, &f->holders[i]);
        prefix_void(f->cache);
    } else if (what == 1) { /* the cache is reset while requests run */
        f->epoch += 1000;
    } else if (what < 20 && h->text) {
        give_all(f, h);
    } else if (what < 150) {
        if (!h->text) begin(f, h, &f->texts[rng_below(&f->rng, N_TEXT)]);
        extend(f, h);
    } else if (what < 180) {
        (void)page_feed_tell(f->feed, f->epoch, (uint32_t)rng_below(&f->rng, 4));
    } else {
        (void)take(f, (uint32_t)rng_below(&f->rng, 6));
    }
    prefix_check(f->cache);
}

static uint64_t walk(uint32_t n_event, bool plain, bool with_next, uint64_t seed)
{
    static struct fixture f;
    open_fixture(&f, n_event, with_next);
    f.rng = seed;
    make_texts(&f, plain);
    for (int i = 0; i < 20000; i++) {
        do_something(&f);
        if (i % 97 > 0) continue;
        settle(&f);
        if (!with_next) compare(&f);
        if (plain && f.epoch == 0) assert_int_equal(f.picture.n, prefix_n_page(f.cache));
    }
    const uint64_t n_overflow = page_feed_n_overflow(f.feed);
    for (int i = 0; i < N_HOLDER; i++) give_all(&f, &f.holders[i]);
    close_fixture(&f);
    return n_overflow;
}

static void a_reader_holds_what_the_cache_holds(void **state)
{
    (void)state;
    assert_int_equal(walk(1024, true, false, 1), 0);
    assert_int_equal(walk(1024, false, false, 2), 0);
    (void)walk(1024, true, true, 3);
}

static void so_it_does_when_the_ring_overflows(void **state)
{
    (void)state;
    assert_true(walk(4, true, false, 4) > 0);
    assert_true(walk(8, false, false, 5) > 0);
    assert_true(walk(16, false, true, 6) > 0);
}

static void fill_text(struct fixture *f, uint32_t i, int32_t first)
{
    for (uint32_t k = 0; k < MAX_IDS; k++) f->texts[i].ids[k] = first + (int32_t)k;
    f->texts[i].n_prompt = UINT32_MAX;
}

static void nothing_is_told_before_there_is_a_page(void **state)
{
    (void)state;
    static struct fixture f;
    const struct page_event *events;
    open_fixture(&f, 8, false);
    prefix_void(f.cache);
    assert_false(page_feed_tell(f.feed, 0, 100));
    assert_int_equal(page_feed_peek(f.feed, &events), 0);
    fill_text(&f, 0, 100);
    begin(&f, &f.holders[0], &f.texts[0]);
    extend(&f, &f.holders[0]);
    extend(&f, &f.holders[0]);
    assert_false(page_feed_tell(f.feed, 0, 100));
    assert_int_equal(page_feed_peek(f.feed, &events), 3);
    assert_int_equal(events[0].kind, PAGE_CLEARED);
    assert_int_equal(events[1].kind, PAGE_STORED);
    assert_int_equal(events[1].parent, 0);
    assert_memory_equal(events[1].ids, f.texts[0].ids, sizeof events[1].ids);
    assert_int_equal(events[2].parent, events[1].page);
    assert_memory_equal(events[2].ids, f.texts[0].ids + KV_PAGE_TOKENS, sizeof events[2].ids);
    (void)take(&f, 8);
    give_all(&f, &f.holders[0]);
    close_fixture(&f);
}

static void a_reset_is_told_while_nothing_else_happens(void **state)
{
    (void)state;
    static struct fixture f;
    open_fixture(&f, 8, false);
    fill_text(&f, 0, 100);
    begin(&f, &f.holders[0], &f.texts[0]);
    extend(&f, &f.holders[0]);
    settle(&f);
    assert_int_equal(f.picture.n, 1);
    f.epoch = 1;
    settle(&f);
    assert_int_equal(f.picture.n, 0);
    assert_int_equal(f.picture.n_cleared, 2);
    extend(&f, &f.holders[0]); /* it began before */
    settle(&f);
    assert_int_equal(f.picture.n, 0);
    begin(&f, &f.holders[1], &f.texts[0]);
    extend(&f, &f.holders[1]);
    settle(&f);
    assert_int_equal(f.picture.n, 1);
    give_all(&f, &f.holders[0]);
    give_all(&f, &f.holders[1]);
    prefix_void(f.cache);
    settle(&f);
    assert_int_equal(f.picture.n, 0);
    close_fixture(&f);
}

/* Pages wait in the cache: a reader that takes nothing for long costs no event that is stored. */
static void who_does_not_read_is_waited_for_by_pages_alone(void **state)
{
    (void)state;
    static struct fixture f;
    open_fixture(&f, 4, false);
    for (uint32_t i = 0; i < N_HOLDER; i++) {
        fill_text(&f, i, (int32_t)(1000 * i));
        begin(&f, &f.holders[i], &f.texts[i]);
        for (int k = 0; k < 5; k++) extend(&f, &f.holders[i]);
        (void)page_feed_tell(f.feed, 0, 100);
    }
    assert_true(page_feed_n_put(f.feed) == 3); /* the rest of the ring is for what cannot wait */
    assert_true(take(&f, 3));                  /* and the feed asks to be called again */
    assert_false(take(&f, 3));
    settle(&f);
    assert_int_equal(f.picture.n, 20);
    assert_int_equal(f.picture.n_cleared, 1);
    assert_int_equal(page_feed_n_overflow(f.feed), 0);
    for (int i = 0; i < N_HOLDER; i++) give_all(&f, &f.holders[i]);
    close_fixture(&f);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    const struct page_feed_config c = {.n_page = 4, .n_key_id = KV_PAGE_TOKENS, .n_event = 4};
    for (long n = 0;; n++) {
        struct page_feed *f = NULL;
        mem_fail_after(n);
        const fathom_err err = page_feed_create(&f, &c, NULL);
        const bool hit = mem_fail_hit();
        mem_fail_after(-1);
        page_feed_destroy(f);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        if (!hit) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_holds_what_the_cache_holds),
        cmocka_unit_test(so_it_does_when_the_ring_overflows),
        cmocka_unit_test(nothing_is_told_before_there_is_a_page),
        cmocka_unit_test(a_reset_is_told_while_nothing_else_happens),
        cmocka_unit_test(who_does_not_read_is_waited_for_by_pages_alone),
        cmocka_unit_test(every_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

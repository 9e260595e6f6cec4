/* test_prefix.c - publishing, finding, twins, eviction from the end of a chain, and a long
 * random walk in which what is found is compared with what was published */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kv/layout.h"
#include "kv/prefix.h"

enum { MAX_PAGES = 8, MAX_IDS = MAX_PAGES * KV_PAGE_TOKENS + 1 };

struct fixture {
    struct page_pool *pool;
    struct prefix_cache *cache;
};

/* What a request has: its tokens and pages. */
struct holder {
    uint64_t salt;
    uint32_t n_prompt; /* struct prefix_text */
    int32_t ids[MAX_IDS];
    uint32_t pages[MAX_PAGES];
    uint32_t n;
};

static struct prefix_text text_of(const struct holder *h)
{
    return (struct prefix_text){.salt = h->salt, .ids = h->ids, .n_prompt = h->n_prompt};
}

static void open_as(struct fixture *f, uint32_t n_page, bool with_next)
{
    assert_int_equal(page_pool_create(&f->pool, n_page, NULL), FATHOM_OK);
    assert_int_equal(prefix_create(&f->cache, f->pool, with_next, NULL), FATHOM_OK);
}

static void open_fixture(struct fixture *f, uint32_t n_page)
{
    open_as(f, n_page, false);
}

static void check(const struct fixture *f)
{
    page_pool_check(f->pool);
    prefix_check(f->cache);
}

static void close_fixture(struct fixture *f)
{
    check(f);
    prefix_destroy(f->cache);
    page_pool_destroy(f->pool);
}

/* Tokens that begin as `like` does, up to the page `same`, and go on otherwise. */
static void fill(struct holder *h, const struct holder *like, uint32_t same, int32_t other)
{
    memset(h, 0, sizeof *h);
    h->n_prompt = UINT32_MAX;
    for (uint32_t i = 0; i < MAX_IDS; i++) {
        h->ids[i] = i < same * KV_PAGE_TOKENS ? like->ids[i] : other + (int32_t)i;
    }
}

/* One more page, computed and published. */
static void extend(struct fixture *f, struct holder *h)
{
    const struct prefix_text t = text_of(h);
    assert_true(page_pool_take(f->pool, &h->pages[h->n]));
    h->pages[h->n] = prefix_publish(f->cache, &t, h->pages, h->n);
    h->n++;
    prefix_check_chain(f->cache, &t, h->pages, h->n);
    check(f);
}

static void hold_found(struct fixture *f, struct holder *h, uint32_t n_page)
{
    const struct prefix_text t = text_of(h);
    h->n = prefix_find(f->cache, &t, n_page * KV_PAGE_TOKENS + 1, h->pages);
    for (uint32_t i = 0; i < h->n; i++) page_pool_ref(f->pool, h->pages[i]);
    check(f);
}

static void give_all(struct fixture *f, struct holder *h)
{
    while (h->n > 0) page_pool_give(f->pool, h->pages[--h->n]);
    check(f);
}

static uint32_t n_found(const struct fixture *f, const struct holder *h)
{
    const struct prefix_text t = text_of(h);
    uint32_t pages[MAX_PAGES];
    return prefix_find(f->cache, &t, MAX_IDS, pages);
}

static void full_pages_are_found_by_their_tokens(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b;
    open_fixture(&f, 8);
    fill(&a, &a, 0, 1000);
    assert_int_equal(n_found(&f, &a), 0);
    for (int i = 0; i < 3; i++) extend(&f, &a);
    assert_int_equal(prefix_n_page(f.cache), 3);
    uint32_t pages[MAX_PAGES];
    const struct prefix_text t = text_of(&a);
    assert_int_equal(prefix_find(f.cache, &t, 64, pages), 0);
    assert_int_equal(prefix_find(f.cache, &t, 65, pages), 1);
    assert_int_equal(prefix_find(f.cache, &t, 192, pages), 2);
    assert_int_equal(prefix_find(f.cache, &t, MAX_IDS, pages), 3);
    assert_memory_equal(pages, a.pages, 3 * sizeof pages[0]);

    fill(&b, &a, 2, 5000);
    assert_int_equal(n_found(&f, &b), 2);
    b = a;
    b.ids[191]++; /* the last token of a page counts as much as the first */
    assert_int_equal(n_found(&f, &b), 2);
    b = a;
    b.ids[0]++;
    assert_int_equal(n_found(&f, &b), 0);

    give_all(&f, &a);
    assert_int_equal(page_pool_n_cached(f.pool), 3);
    assert_int_equal(n_found(&f, &a), 3);
    close_fixture(&f);
}

/* With one page there is one bucket: only the comparison keeps pages apart. */
static void every_token_counts(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b;
    open_fixture(&f, 1);
    fill(&a, &a, 0, 1000);
    extend(&f, &a);
    for (int i = 0; i < KV_PAGE_TOKENS; i++) {
        b = a;
        b.ids[i]++;
        assert_int_equal(n_found(&f, &b), 0);
    }
    b = a;
    b.salt = 1;
    assert_int_equal(n_found(&f, &b), 0);
    assert_int_equal(n_found(&f, &a), 1);
    give_all(&f, &a);
    close_fixture(&f);
}

static void with_the_draft_layer_the_token_after_counts(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b, c;
    open_as(&f, 8, true);
    fill(&a, &a, 0, 1000);
    extend(&f, &a);
    extend(&f, &a);
    assert_int_equal(n_found(&f, &a), 2);
    b = a;
    b.ids[64]++; /* begins the second page */
    assert_int_equal(n_found(&f, &b), 0);
    c = a;
    c.ids[128]++; /* follows the second page */
    assert_int_equal(n_found(&f, &c), 1);
    c.n = 0;
    hold_found(&f, &c, MAX_PAGES);
    extend(&f, &c); /* its own second page: the same tokens, another one after them */
    assert_int_not_equal(c.pages[1], a.pages[1]);
    assert_int_equal(n_found(&f, &c), 2);
    give_all(&f, &a);
    give_all(&f, &c);
    close_fixture(&f);
}

static void a_page_stands_for_all_tokens_before_it(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b;
    open_fixture(&f, 8);
    fill(&a, &a, 0, 1000);
    extend(&f, &a);
    extend(&f, &a);
    fill(&b, &a, 0, 7000);
    memcpy(b.ids + 64, a.ids + 64, 64 * sizeof a.ids[0]); /* the second page's tokens are a's */
    extend(&f, &b);
    assert_int_equal(n_found(&f, &b), 1);
    extend(&f, &b);
    assert_int_not_equal(a.pages[1], b.pages[1]);
    give_all(&f, &a);
    give_all(&f, &b);
    close_fixture(&f);
}

static void salts_are_apart(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b;
    open_fixture(&f, 8);
    fill(&a, &a, 0, 1000);
    extend(&f, &a);
    extend(&f, &a);
    b = a;
    b.salt = 1;
    b.n = 0;
    assert_int_equal(n_found(&f, &b), 0);
    extend(&f, &b);
    extend(&f, &b);
    assert_int_equal(prefix_n_page(f.cache), 4);
    assert_int_equal(n_found(&f, &a), 2);
    assert_int_equal(n_found(&f, &b), 2);
    give_all(&f, &a);
    give_all(&f, &b);
    close_fixture(&f);
}

/* Two requests compute the same page at once: the later one goes on with the earlier one's. */
static void a_twin_gives_way(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b;
    open_fixture(&f, 8);
    fill(&a, &a, 0, 1000);
    b = a;
    extend(&f, &a);
    extend(&f, &b);
    assert_int_equal(a.pages[0], b.pages[0]);
    assert_int_equal(page_pool_n_holder(f.pool, a.pages[0]), 2);
    assert_int_equal(page_pool_n_free(f.pool), 7);
    extend(&f, &b); /* b is ahead now */
    give_all(&f, &a);
    extend(&f, &b);
    give_all(&f, &b);
    assert_int_equal(n_found(&f, &a), 3);
    close_fixture(&f);
}

static void the_longest_unused_goes_first_and_the_end_of_a_chain_before_its_start(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b, c;
    open_fixture(&f, 6);
    fill(&a, &a, 0, 1000);
    fill(&b, &a, 1, 5000); /* shares a's first page */
    fill(&c, &a, 0, 9000);
    for (int i = 0; i < 3; i++) extend(&f, &a);
    hold_found(&f, &b, MAX_PAGES);
    assert_int_equal(b.n, 1);
    extend(&f, &b);
    give_all(&f, &a);
    give_all(&f, &b); /* b's give keeps the shared page fresh */
    assert_int_equal(page_pool_n_cached(f.pool), 4);
    for (int i = 0; i < 2; i++) extend(&f, &c); /* the two that were free */
    extend(&f, &c);
    assert_int_equal(n_found(&f, &a), 2);
    extend(&f, &c);
    assert_int_equal(n_found(&f, &a), 1);
    assert_int_equal(n_found(&f, &b), 2);
    extend(&f, &c);
    assert_int_equal(n_found(&f, &b), 1);
    extend(&f, &c);
    assert_int_equal(n_found(&f, &a), 0);
    uint32_t page;
    assert_false(page_pool_take(f.pool, &page));
    assert_int_equal(n_found(&f, &c), 6);
    give_all(&f, &c);
    close_fixture(&f);
}

/* Of what a page holds: its tokens, all of one id, and which rows are an answer's. */
static uint64_t sum_of_page(const struct holder *h, uint32_t i, uint64_t before)
{
    uint64_t sum = before;
    for (uint32_t p = i * KV_PAGE_TOKENS; p < (i + 1) * KV_PAGE_TOKENS; p += 4) {
        sum = rng_mix(sum, p, (uint64_t)h->ids[p] * 2 + (p >= h->n_prompt));
    }
    return sum;
}

/* Holders come, find, compute some pages and go, in a pool too small for all. What a page holds is
 * known from outside, by a sum over all tokens up to its end. */
static void whatever_happens_a_found_page_holds_the_tokens(void **state)
{
    (void)state;
    enum { N_HOLDER = 6, N_PAGE = 20, N_STEP = 20000 };
    static struct holder holders[N_HOLDER];
    static uint64_t sums[N_PAGE];
    struct fixture f;
    uint64_t rng = 7, n_hit = 0, n_full = 0;
    open_fixture(&f, N_PAGE);
    for (int step = 0; step < N_STEP; step++) {
        struct holder *h = &holders[rng_below(&rng, N_HOLDER)];
        if (h->n == 0) {
            uint64_t tree = rng_next(&rng); /* every page one of two: 2^8 texts of 8 pages */
            h->salt = rng_below(&rng, 4) == 0;
            h->n_prompt = rng_below(&rng, 2) ? UINT32_MAX : 100 * (uint32_t)rng_below(&rng, 3) + 1;
            for (uint32_t i = 0; i < MAX_IDS; i++) {
                h->ids[i] = (int32_t)(tree >> i / KV_PAGE_TOKENS & 1);
            }
            hold_found(&f, h, 1 + (uint32_t)rng_below(&rng, MAX_PAGES));
            n_hit += h->n;
        }
        uint64_t sum = h->salt;
        for (uint32_t i = 0; i < h->n; i++) {
            sum = sum_of_page(h, i, sum);
            assert_true(sums[h->pages[i]] == sum);
        }
        uint32_t page;
        if (h->n == MAX_PAGES || rng_below(&rng, 6) == 0) {
            give_all(&f, h);
        } else if (page_pool_take(f.pool, &page)) {
            sums[page] = sum_of_page(h, h->n, sum);
            const struct prefix_text t = text_of(h);
            h->pages[h->n] = page;
            h->pages[h->n] = prefix_publish(f.cache, &t, h->pages, h->n);
            h->n++;
        } else {
            n_full++;
            give_all(&f, h);
        }
        check(&f);
    }
    assert_true(n_hit > 1000 && n_full > 100);
    for (int i = 0; i < N_HOLDER; i++) give_all(&f, &holders[i]);
    assert_int_equal(page_pool_n_available(f.pool), N_PAGE);
    close_fixture(&f);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct page_pool *pool = NULL;
    assert_int_equal(page_pool_create(&pool, 4, NULL), FATHOM_OK);
    for (long n = 0;; n++) {
        struct prefix_cache *c = NULL;
        mem_fail_after(n);
        fathom_err err = prefix_create(&c, pool, false, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            prefix_destroy(c);
            assert_int_equal(n, 4);
            break;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(c);
    }
    prefix_destroy(NULL);
    page_pool_destroy(pool);
}

static void dump_shows_chains(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a;
    struct buf b = {0};
    open_fixture(&f, 4);
    fill(&a, &a, 0, 1000);
    a.salt = 12;
    extend(&f, &a);
    extend(&f, &a);
    assert_int_equal(prefix_dump(f.cache, &b), FATHOM_OK);
    assert_string_equal(buf_str(&b),
                        "prefix cache: 2 pages\n"
                        "  page 0 first, salt=12 children=1 answer=0 begins 1000 1001 1002\n"
                        "  page 1 after 0 children=0 answer=0 begins 1064 1065 1066\n");
    buf_free(&b);
    give_all(&f, &a);
    close_fixture(&f);
}

/* A page of a prompt stands for whoever's prompt begins like it. A page with rows of an answer
 * stands for the same answer alone, and what follows it too. */
static void a_page_of_an_answer_is_not_a_page_of_a_prompt(void **state)
{
    (void)state;
    struct fixture f;
    struct holder turn, next;
    open_fixture(&f, 8);
    fill(&turn, &turn, 0, 1000);
    turn.n_prompt = 100; /* the second page has 36 rows of a prompt, then 28 of an answer */
    for (int i = 0; i < 4; i++) extend(&f, &turn);
    assert_int_equal(n_found(&f, &turn), 4); /* it goes on after a preemption */
    next = turn;
    next.n = 0;
    next.n_prompt = MAX_IDS;
    assert_int_equal(n_found(&f, &next), 1);
    next.n_prompt = 99;
    assert_int_equal(n_found(&f, &next), 1);
    next.n_prompt = 64;
    assert_int_equal(n_found(&f, &next), 1);
    next.n_prompt = 63;
    assert_int_equal(n_found(&f, &next), 0);

    next.n_prompt = MAX_IDS;
    for (int i = 0; i < 4; i++) extend(&f, &next); /* beside the answer's pages */
    assert_int_equal(next.pages[0], turn.pages[0]);
    for (int i = 1; i < 4; i++) assert_int_not_equal(next.pages[i], turn.pages[i]);
    assert_int_equal(n_found(&f, &turn), 4);
    assert_int_equal(n_found(&f, &next), 4);
    give_all(&f, &next);
    give_all(&f, &turn);
    close_fixture(&f);
}

/* When its request has ended, a page of an answer is as if it had never been; but not while
 * somebody else goes on with it. */
static void pages_of_an_answer_end_with_it(void **state)
{
    (void)state;
    struct fixture f;
    struct holder a, b;
    open_fixture(&f, 8);
    fill(&a, &a, 0, 1000);
    a.n_prompt = 100;
    for (int i = 0; i < 4; i++) extend(&f, &a);
    b = a;
    b.n = 0;
    hold_found(&f, &b, 3);
    for (uint32_t i = a.n; i > 0; i--) prefix_end_answer(f.cache, a.pages[i - 1]);
    give_all(&f, &a);
    assert_int_equal(n_found(&f, &b), 3);
    assert_int_equal(page_pool_n_cached(f.pool), 0);
    for (uint32_t i = b.n; i > 0; i--) prefix_end_answer(f.cache, b.pages[i - 1]);
    give_all(&f, &b);
    assert_int_equal(n_found(&f, &b), 1);
    assert_int_equal(page_pool_n_cached(f.pool), 1);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_pages_are_found_by_their_tokens),
        cmocka_unit_test(every_token_counts),
        cmocka_unit_test(with_the_draft_layer_the_token_after_counts),
        cmocka_unit_test(a_page_stands_for_all_tokens_before_it),
        cmocka_unit_test(salts_are_apart),
        cmocka_unit_test(a_twin_gives_way),
        cmocka_unit_test(a_page_of_an_answer_is_not_a_page_of_a_prompt),
        cmocka_unit_test(pages_of_an_answer_end_with_it),
        cmocka_unit_test(the_longest_unused_goes_first_and_the_end_of_a_chain_before_its_start),
        cmocka_unit_test(whatever_happens_a_found_page_holds_the_tokens),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(dump_shows_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

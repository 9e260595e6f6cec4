/* test_page_pool.c - every edge of the page states, eviction order, and a long random walk
 * against a plain model */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/layout.h"
#include "kv/page_pool.h"

static struct page_pool *make_pool(uint32_t n_page)
{
    struct page_pool *p = NULL;
    assert_int_equal(page_pool_create(&p, n_page, NULL), FATHOM_OK);
    return p;
}

static uint32_t take(struct page_pool *p)
{
    uint32_t page = UINT32_MAX;
    assert_true(page_pool_take(p, &page));
    return page;
}

static void sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    struct page_pool *p = (struct page_pool *)1;
    fathom_diag d = {{0}};
    assert_int_equal(page_pool_create(&p, 0, &d), FATHOM_EINVAL);
    assert_null(p);
    assert_non_null(strstr(d.text, "0 pages"));
    diag_clear(&d);
    assert_int_equal(page_pool_create(&p, INT32_MAX / KV_PAGE_TOKENS + 1, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "33554431"));
    page_pool_destroy(NULL);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    for (long n = 0;; n++) {
        struct page_pool *p = NULL;
        mem_fail_after(n);
        fathom_err err = page_pool_create(&p, 8, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            page_pool_destroy(p);
            assert_true(n >= 2);
            return;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(p);
    }
}

static void pages_run_out_and_come_back(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(3);
    uint32_t a = take(p), b = take(p), c = take(p), none;
    assert_true(a != b && b != c && a != c);
    assert_false(page_pool_take(p, &none));
    assert_int_equal(page_pool_n_available(p), 0);
    page_pool_check(p);
    page_pool_give(p, b);
    assert_int_equal(page_pool_state(p, b), PAGE_FREE);
    assert_int_equal(page_pool_n_free(p), 1);
    assert_int_equal(take(p), b);
    page_pool_check(p);
    page_pool_destroy(p);
}

static void a_limited_pool_gives_its_first_pages(void **state)
{
    struct page_pool *p = make_pool(8);
    uint32_t page;
    (void)state;
    for (uint32_t limit = 3; limit <= 8; limit += 5) {
        page_pool_limit(p, limit);
        page_pool_check(p);
        assert_int_equal(page_pool_n_page(p), limit);
        for (uint32_t i = 0; i < limit; i++) {
            assert_true(page_pool_take(p, &page));
            assert_int_equal(page, i);
        }
        assert_false(page_pool_take(p, &page));
        for (uint32_t i = 0; i < limit; i++) page_pool_give(p, i);
    }
    page_pool_destroy(p);
}

static void the_last_page_given_is_taken_first(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(4);
    assert_int_equal(take(p), 0);
    assert_int_equal(take(p), 1);
    page_pool_give(p, 0);
    page_pool_give(p, 1);
    assert_int_equal(take(p), 1);
    assert_int_equal(take(p), 0);
    assert_int_equal(take(p), 2);
    page_pool_destroy(p);
}

static void a_shared_page_lives_until_its_last_holder(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(2);
    uint32_t a = take(p);
    page_pool_ref(p, a);
    page_pool_ref(p, a);
    assert_int_equal(page_pool_n_holder(p, a), 3);
    page_pool_give(p, a);
    page_pool_give(p, a);
    assert_int_equal(page_pool_state(p, a), PAGE_HELD);
    page_pool_give(p, a);
    assert_int_equal(page_pool_state(p, a), PAGE_FREE);
    page_pool_check(p);
    page_pool_destroy(p);
}

static void note_evicted(void *arg, uint32_t page)
{
    *(uint32_t *)arg = page;
}

static void kept_pages_are_evicted_oldest_first_and_last_of_all(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(3);
    uint32_t evicted = UINT32_MAX;
    page_pool_on_evict(p, note_evicted, &evicted);
    uint32_t a = take(p), b = take(p);
    page_pool_keep(p, a, true);
    page_pool_keep(p, b, true);
    page_pool_give(p, b);
    page_pool_give(p, a);
    assert_int_equal(page_pool_n_cached(p), 2);
    assert_int_equal(page_pool_n_available(p), 3);
    page_pool_check(p);
    assert_int_equal(take(p), 2); /* the FREE one */
    assert_int_equal(evicted, UINT32_MAX);
    assert_int_equal(take(p), b); /* given before a */
    assert_int_equal(evicted, b);
    page_pool_check(p);
    page_pool_give(p, b); /* no longer kept */
    assert_int_equal(page_pool_state(p, b), PAGE_FREE);
    page_pool_destroy(p);
}

static void a_cached_page_is_revived_or_dropped(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(2);
    uint32_t a = take(p);
    page_pool_keep(p, a, true);
    page_pool_give(p, a);
    page_pool_ref(p, a);
    assert_int_equal(page_pool_state(p, a), PAGE_HELD);
    assert_int_equal(page_pool_n_holder(p, a), 1);
    page_pool_check(p);
    page_pool_give(p, a);
    assert_int_equal(page_pool_state(p, a), PAGE_CACHED);
    page_pool_keep(p, a, false);
    assert_int_equal(page_pool_state(p, a), PAGE_FREE);
    page_pool_check(p);
    page_pool_destroy(p);
}

static void dump_lists_what_is_not_free(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(3);
    struct buf b = {0};
    uint32_t a = take(p);
    page_pool_ref(p, a);
    page_pool_keep(p, take(p), true);
    page_pool_give(p, 1);
    assert_int_equal(page_pool_dump(p, &b), FATHOM_OK);
    assert_string_equal(buf_str(&b), "page pool: 3 pages, 1 free, 1 cached, 1 held\n"
                                     "  page 0 HELD holders=2\n"
                                     "  page 1 CACHED holders=0 kept\n");
    buf_free(&b);
    page_pool_destroy(p);
}

enum { WALK_PAGES = 13, WALK_STEPS = 20000 };

static void a_random_walk_agrees_with_a_plain_model(void **state)
{
    (void)state;
    struct page_pool *p = make_pool(WALK_PAGES);
    uint32_t n_holder[WALK_PAGES] = {0};
    bool kept[WALK_PAGES] = {0};
    uint64_t seed = 7;
    for (int i = 0; i < WALK_STEPS; i++) {
        uint32_t page = (uint32_t)rng_below(&seed, WALK_PAGES);
        enum page_state was = page_pool_state(p, page);
        switch (rng_below(&seed, 4)) {
        case 0:
            if (page_pool_n_available(p) == 0) {
                assert_false(page_pool_take(p, &page));
            } else {
                page = take(p);
                assert_int_equal(n_holder[page], 0);
                n_holder[page] = 1;
                kept[page] = false;
            }
            break;
        case 1:
            if (was == PAGE_FREE) break;
            page_pool_ref(p, page);
            n_holder[page]++;
            break;
        case 2:
            if (was != PAGE_HELD) break;
            page_pool_give(p, page);
            n_holder[page]--;
            break;
        default:
            if (was == PAGE_FREE) break;
            kept[page] = !kept[page];
            page_pool_keep(p, page, kept[page]);
        }
        page_pool_check(p);
        for (uint32_t j = 0; j < WALK_PAGES; j++) {
            if (n_holder[j] == 0 && !kept[j]) assert_int_equal(page_pool_state(p, j), PAGE_FREE);
            assert_int_equal(page_pool_n_holder(p, j), n_holder[j]);
        }
    }
    page_pool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_out_of_range_are_refused),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(pages_run_out_and_come_back),
        cmocka_unit_test(a_limited_pool_gives_its_first_pages),
        cmocka_unit_test(the_last_page_given_is_taken_first),
        cmocka_unit_test(a_shared_page_lives_until_its_last_holder),
        cmocka_unit_test(kept_pages_are_evicted_oldest_first_and_last_of_all),
        cmocka_unit_test(a_cached_page_is_revived_or_dropped),
        cmocka_unit_test(dump_lists_what_is_not_free),
        cmocka_unit_test(a_random_walk_agrees_with_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

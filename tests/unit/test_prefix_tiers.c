/* test_prefix_tiers.c - which pages of the cache are copied to memory ahead of need, when, in
 * which order, and that what has a copy is evicted without one
 *
 * The device writes down what is copied. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/prefix.h"
#include "kv/tiers.h"
#include "support/sim_disk.h"

enum { PAGE = 64, N_PAGE = 16, N_RAM = TIERS_MIN_RAM, N_DISK = 64, CHAIN = 8, MAX_OUT = 256 };

struct fixture {
    unsigned char *ram;
    struct platter *platter;
    struct tiers *tiers;
    struct page_pool *pool;
    struct prefix_cache *cache;
    uint32_t out[MAX_OUT]; /* pages, in the order of their copies */
    uint32_t n_out;
};

static struct fixture fixture;

struct chain {
    int32_t ids[CHAIN * KV_PAGE_TOKENS + 1];
    uint32_t pages[CHAIN];
    uint32_t n;
};

static fathom_err page_out(void *arg, uint32_t page, void *to)
{
    struct fixture *f = arg;
    memset(to, (int)page, PAGE);
    assert_true(f->n_out < MAX_OUT);
    f->out[f->n_out++] = page;
    return FATHOM_OK;
}

static fathom_err page_in(void *arg, uint32_t page, const void *from)
{
    (void)arg;
    (void)page;
    (void)from;
    return FATHOM_OK;
}

static int open_fixture(void **state, bool with_disk)
{
    struct fixture *f = &fixture;
    memset(f, 0, sizeof *f);
    f->ram = mem_alloc_aligned(DIRECT_ALIGN, N_RAM * (size_t)DIRECT_ALIGN);
    f->platter = platter_create(N_DISK, PAGE);
    struct tiers_config c = {.page_bytes = PAGE,
                             .n_ram = N_RAM,
                             .ram = f->ram,
                             .step_bytes = 1000 * PAGE,
                             .secret = {3, 4},
                             .device = {page_out, page_in, f}};
    const struct sim_disk_options disk = {.owner = {1, 2}, .seed = 1};
    c.io = sim_disk_create(f->platter, &disk);
    if (with_disk) c.n_disk = N_DISK;
    assert_int_equal(tiers_create(&f->tiers, &c, NULL), FATHOM_OK);
    assert_int_equal(page_pool_create(&f->pool, N_PAGE, NULL), FATHOM_OK);
    assert_int_equal(prefix_create(&f->cache, f->pool, false, NULL), FATHOM_OK);
    prefix_attach_tiers(f->cache, f->tiers, 0);
    *state = f;
    return 0;
}

static int open_with_memory(void **state)
{
    return open_fixture(state, false);
}

static int open_with_disk(void **state)
{
    return open_fixture(state, true);
}

static void check(const struct fixture *f)
{
    page_pool_check(f->pool);
    prefix_check(f->cache);
    tiers_check(f->tiers);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    check(f);
    prefix_destroy(f->cache);
    tiers_destroy(f->tiers);
    page_pool_destroy(f->pool);
    platter_destroy(f->platter);
    mem_free(f->ram);
    return 0;
}

/* A request for a text computes n pages of it. */
static void compute(struct fixture *f, struct chain *c, int32_t text, uint32_t n)
{
    *c = (struct chain){0};
    for (int32_t i = 0; i < CHAIN * KV_PAGE_TOKENS + 1; i++) c->ids[i] = text * 10000 + i;
    for (; c->n < n; c->n++) {
        assert_true(page_pool_take(f->pool, &c->pages[c->n]));
        c->pages[c->n] = prefix_publish(
            f->cache, &(struct prefix_text){.ids = c->ids, .n_prompt = UINT32_MAX}, c->pages, c->n);
    }
    check(f);
}

/* It ends. */
static void give(struct fixture *f, struct chain *c)
{
    while (c->n > 0) {
        uint32_t page = c->pages[--c->n];
        page_pool_give(f->pool, page);
        prefix_offer(f->cache, page);
    }
    check(f);
}

/* Its pages are found in the cache, and held again. */
static void hold(struct fixture *f, struct chain *c, uint32_t n)
{
    uint32_t found =
        prefix_find(f->cache, &(struct prefix_text){.ids = c->ids, .n_prompt = UINT32_MAX},
                    n * KV_PAGE_TOKENS + 1, c->pages);
    assert_int_equal(found, n);
    for (c->n = 0; c->n < n; c->n++) page_pool_ref(f->pool, c->pages[c->n]);
    check(f);
}

/* Between two steps; n copies at most. */
static void copy(struct fixture *f, uint32_t n)
{
    tiers_begin_step(f->tiers, 1, 0);
    prefix_keep_offered(f->cache, n);
    tiers_synced(f->tiers);
    check(f);
}

static void run(struct fixture *f, int32_t text, uint32_t n)
{
    struct chain c;
    compute(f, &c, text, n);
    give(f, &c);
}

/* How many pages of a text that has left the cache are in the tiers. */
static uint32_t n_kept(struct fixture *f, int32_t text)
{
    struct chain c;
    for (int32_t i = 0; i < CHAIN * KV_PAGE_TOKENS + 1; i++) c.ids[i] = text * 10000 + i;
    return prefix_find_tiers(f->cache, &(struct prefix_text){.ids = c.ids, .n_prompt = UINT32_MAX},
                             CHAIN * KV_PAGE_TOKENS + 1, NULL, 0)
        .n_page;
}

static void copies_are_made_a_few_at_a_time_those_evicted_first_before_others(void **state)
{
    struct fixture *f = *state;
    struct chain c;
    compute(f, &c, 1, 5);
    assert_false(prefix_is_due(f->cache)); /* it is held */
    give(f, &c);
    assert_int_equal(prefix_n_offered(f->cache), 5);
    copy(f, 2);
    assert_int_equal(f->n_out, 2);
    assert_int_equal(f->out[0], c.pages[4]);
    assert_int_equal(f->out[1], c.pages[3]);
    assert_int_equal(prefix_n_offered(f->cache), 3);
    assert_true(prefix_is_due(f->cache));
    copy(f, 100);
    assert_int_equal(f->n_out, 5);
    assert_int_equal(f->out[4], c.pages[0]);
    assert_false(prefix_is_due(f->cache));
}

static void what_has_a_copy_is_not_copied_again(void **state)
{
    struct fixture *f = *state;
    struct chain c;
    struct chain other;
    compute(f, &c, 1, 8);
    give(f, &c);
    copy(f, 100);
    hold(f, &c, 8);
    give(f, &c);
    assert_int_equal(prefix_n_offered(f->cache), 0);
    compute(f, &other, 2, 8);
    struct chain last;
    compute(f, &last, 3, 8); /* in place of the first */
    assert_int_equal(f->n_out, 8);
    assert_int_equal(n_kept(f, 1), 8);
    give(f, &other);
    give(f, &last);
}

static void what_has_none_is_copied_when_it_is_evicted(void **state)
{
    struct fixture *f = *state;
    struct chain c;
    struct chain other;
    run(f, 1, 8);
    compute(f, &c, 2, 8);
    copy(f, 3);
    compute(f, &other, 3, 8);
    assert_int_equal(f->n_out, 8);
    assert_int_equal(prefix_n_offered(f->cache), 0);
    assert_false(prefix_is_due(f->cache));
    tiers_synced(f->tiers);
    assert_int_equal(n_kept(f, 1), 8);
    give(f, &c);
    give(f, &other);
    assert_int_equal(prefix_n_offered(f->cache), 16);
}

/* Where a copy costs what is there its place, none is made before pages get short. */
static void full_memory_is_not_given_up_for_what_the_cache_still_has(void **state)
{
    struct fixture *f = *state;
    struct chain c;
    struct chain d;
    assert_int_equal(prefix_n_margin(f->cache), 2);
    run(f, 1, 8);
    run(f, 2, 8);
    copy(f, 100);
    assert_int_equal(f->n_out, N_RAM);
    compute(f, &c, 3, 8); /* in place of 1 */
    give(f, &c);
    assert_int_equal(prefix_n_offered(f->cache), 8);
    copy(f, 100);
    assert_int_equal(f->n_out, N_RAM);
    assert_int_equal(n_kept(f, 1), 8);
    assert_false(prefix_is_due(f->cache));
    compute(f, &d, 4, 8); /* in place of 2 */
    assert_true(prefix_is_due(f->cache));
    copy(f, 100);
    assert_int_equal(f->n_out, N_RAM + 2); /* so two are to be had without a copy */
    assert_int_equal(f->out[N_RAM], c.pages[7]);
    assert_int_equal(f->out[N_RAM + 1], c.pages[6]);
    assert_false(prefix_is_due(f->cache));
    assert_int_equal(n_kept(f, 1), 6);
    give(f, &d);
}

static void a_page_that_is_held_again_keeps_nobody_from_memory(void **state)
{
    struct fixture *f = *state;
    struct chain c;
    struct chain d;
    run(f, 1, 8);
    run(f, 2, 8);
    copy(f, 100);
    compute(f, &c, 3, 8);
    give(f, &c);
    compute(f, &d, 4, 8);
    hold(f, &c, 8);
    assert_true(prefix_is_due(f->cache));
    copy(f, 100);
    assert_int_equal(f->n_out, N_RAM);
    assert_int_equal(prefix_n_offered(f->cache), 0);
    give(f, &c);
    assert_int_equal(prefix_n_offered(f->cache), 8);
    give(f, &d);
}

static void with_a_disk_all_is_copied_in_time(void **state)
{
    struct fixture *f = *state;
    for (int32_t text = 1; text <= 6; text++) {
        run(f, text, 8);
        for (int i = 0; i < 50; i++) copy(f, 100);
        assert_int_equal(prefix_n_offered(f->cache), 0);
        assert_int_equal(tiers_get_stats(f->tiers)->n_written, 8 * text);
    }
    assert_int_equal(n_kept(f, 1), 8);
}

static void what_is_void_is_not_found_and_not_copied(void **state)
{
    struct fixture *f = *state;
    struct chain c;
    run(f, 1, 3);
    copy(f, 1);
    prefix_void(f->cache);
    check(f);
    assert_int_equal(page_pool_n_free(f->pool), N_PAGE);
    assert_int_equal(prefix_n_page(f->cache) + prefix_n_offered(f->cache), 0);
    copy(f, N_PAGE);
    assert_int_equal(f->n_out, 1);
    compute(f, &c, 1, 3); /* the one that was copied is in memory */
    give(f, &c);
    assert_int_equal(prefix_n_offered(f->cache), 2);
}

static void a_dump_tells_what_has_no_copy(void **state)
{
    struct fixture *f = *state;
    struct buf b = {0};
    run(f, 1, 2);
    copy(f, 1);
    assert_int_equal(prefix_dump(f->cache, &b), FATHOM_OK);
    assert_string_equal(
        buf_str(&b), "prefix cache: 2 pages, 1 without a copy\n"
                     "  page 0 first, salt=0 children=1 answer=0 offered begins 10000 10001 10002\n"
                     "  page 1 after 0 children=0 answer=0 begins 10064 10065 10066\n");
    buf_free(&b);
}

#define RAM(f) cmocka_unit_test_setup_teardown(f, open_with_memory, close_fixture)
#define DISK(f) cmocka_unit_test_setup_teardown(f, open_with_disk, close_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RAM(copies_are_made_a_few_at_a_time_those_evicted_first_before_others),
        RAM(what_has_a_copy_is_not_copied_again),
        RAM(what_has_none_is_copied_when_it_is_evicted),
        RAM(full_memory_is_not_given_up_for_what_the_cache_still_has),
        RAM(a_page_that_is_held_again_keeps_nobody_from_memory),
        DISK(with_a_disk_all_is_copied_in_time),
        RAM(what_is_void_is_not_found_and_not_copied),
        RAM(a_dump_tells_what_has_no_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

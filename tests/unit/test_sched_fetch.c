/* test_sched_fetch.c - requests whose first pages are in the tiers
 *
 * What the scheduler makes of records in memory, on a disk that takes its time, and of records that
 * do not come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "kv/tiers.h"
#include "sched/sched.h"
#include "support/sim_disk.h"

enum {
    N_PAGE = 8,
    N_RAM = TIERS_MIN_RAM,
    N_DISK = 32,
    PAGE = KV_PAGE_TOKENS * (int)sizeof(int32_t),
    MAX_REQUESTS = 24,
    MAX_TOKENS = N_PAGE * KV_PAGE_TOKENS,
    TEXT = 4 * KV_PAGE_TOKENS + 10, /* of a long prompt: four pages can be found */
    OUTPUT = 2,
};

struct job {
    struct request r;
    int32_t ids[MAX_TOKENS];
    uint32_t pages[N_PAGE];
};

struct fixture {
    int32_t rows[N_PAGE][KV_PAGE_TOKENS]; /* the token whose row it is */
    unsigned char *ram;
    struct platter *platter;
    struct tier_io *io;
    struct tiers *tiers;
    struct page_pool *pool;
    struct prefix_cache *prefix;
    struct sched *s;
    struct plan plan;
    struct job jobs[MAX_REQUESTS];
    uint32_t n_job;
    uint64_t now_us;
};

static struct fixture fixture;

static fathom_err page_out(void *arg, uint32_t page, void *to)
{
    memcpy(to, ((struct fixture *)arg)->rows[page], PAGE);
    return FATHOM_OK;
}

static fathom_err page_in(void *arg, uint32_t page, const void *from)
{
    memcpy(((struct fixture *)arg)->rows[page], from, PAGE);
    return FATHOM_OK;
}

static int open_with(void **state, uint32_t n_copied)
{
    struct fixture *f = &fixture;
    memset(f, 0, sizeof *f);
    f->ram = mem_alloc_aligned(DIRECT_ALIGN, N_RAM * (size_t)DIRECT_ALIGN);
    f->platter = platter_create(N_DISK, PAGE);
    const struct sim_disk_options disk = {.owner = {1, 2}, .seed = 1};
    const struct sched_config sched = {
        .max_num_batched_tokens = 512, .max_num_seqs = 8, .max_score = 1, .max_flight = 1};
    struct tiers_config c = {.page_bytes = PAGE,
                             .n_ram = N_RAM,
                             .ram = f->ram,
                             .step_bytes = n_copied * PAGE, /* in a step */
                             .secret = {3, 4},
                             .device = {page_out, page_in, f},
                             .io = f->io = sim_disk_create(f->platter, &disk),
                             .n_disk = N_DISK};
    assert_int_equal(tiers_create(&f->tiers, &c, NULL), FATHOM_OK);
    assert_int_equal(page_pool_create(&f->pool, N_PAGE, NULL), FATHOM_OK);
    assert_int_equal(prefix_create(&f->prefix, f->pool, false, NULL), FATHOM_OK);
    prefix_attach_tiers(f->prefix, f->tiers, 0);
    assert_int_equal(sched_create(&f->s, &sched, f->pool, f->prefix, NULL), FATHOM_OK);
    assert_int_equal(plan_init(&f->plan, 8), FATHOM_OK);
    *state = f;
    return 0;
}

static int open_fixture(void **state)
{
    return open_with(state, 100);
}

static int open_one_page_a_step(void **state)
{
    return open_with(state, 1);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    plan_fini(&f->plan);
    sched_destroy(f->s);
    prefix_destroy(f->prefix);
    tiers_destroy(f->tiers);
    page_pool_destroy(f->pool);
    platter_destroy(f->platter);
    mem_free(f->ram);
    return 0;
}

/* A request for the first n_prompt tokens of a text. */
static struct request *add(struct fixture *f, int32_t text, uint32_t n_prompt)
{
    struct job *j = &f->jobs[f->n_job++];
    assert_true(f->n_job <= MAX_REQUESTS);
    for (uint32_t i = 0; i < n_prompt; i++) j->ids[i] = text * 10000 + (int32_t)i;
    j->r = (struct request){.id = f->n_job,
                            .ids = j->ids,
                            .pages = j->pages,
                            .n_prompt = n_prompt,
                            .max_token = n_prompt + OUTPUT};
    sched_add(f->s, &j->r);
    return &j->r;
}

/* Plans, writes the rows of the step, reads all rows before them back, commits. */
static void step_after(struct fixture *f, uint64_t us)
{
    int32_t drawn[8] = {0};
    f->now_us += us;
    tiers_begin_step(f->tiers, f->now_us, 10000);
    prefix_keep_offered(f->prefix, N_PAGE);
    sched_plan(f->s, f->now_us, &f->plan);
    sched_check(f->s);
    for (uint32_t i = 0; i < f->plan.n_entry; i++) {
        const struct plan_entry *e = &f->plan.entries[i];
        const struct request *r = e->request;
        for (uint32_t p = e->first; p < e->first + e->n_token; p++) {
            f->rows[r->pages[p / KV_PAGE_TOKENS]][p % KV_PAGE_TOKENS] = r->ids[p];
        }
        for (uint32_t p = 0; p < e->first; p++) {
            assert_int_equal(f->rows[r->pages[p / KV_PAGE_TOKENS]][p % KV_PAGE_TOKENS], r->ids[p]);
        }
        drawn[i] = 7;
    }
    tiers_synced(f->tiers);
    tiers_check(f->tiers);
    if (f->plan.n_entry > 0) sched_commit(f->s, &f->plan, drawn, f->now_us);
    sched_check(f->s);
}

static void step(struct fixture *f)
{
    step_after(f, 1000);
}

static void finish(struct fixture *f)
{
    for (int i = 0; i < 1000 && sched_any(f->s); i++) step(f);
    assert_null(sched_any(f->s));
}

/* The text's pages in memory, and not in the cache any more. */
static void put_in_ram(struct fixture *f, int32_t text)
{
    (void)add(f, text, TEXT);
    finish(f);
    (void)add(f, 99, MAX_TOKENS - OUTPUT);
    finish(f);
}

/* On disk, and neither in memory nor in the cache. */
static void put_on_disk(struct fixture *f, int32_t text)
{
    put_in_ram(f, text);
    for (int32_t i = 90; i < 93; i++) {
        (void)add(f, i, MAX_TOKENS - OUTPUT);
        finish(f);
        for (int k = 0; k < 50; k++) step(f);
    }
}

static void pages_in_memory_come_back_within_the_plan(void **state)
{
    struct fixture *f = *state;
    put_in_ram(f, 1);
    struct request *r = add(f, 1, TEXT);
    step(f);
    assert_int_equal(r->state, REQUEST_RUNNING);
    assert_int_equal(r->n_cached, 4 * KV_PAGE_TOKENS);
    assert_int_equal(f->plan.n_token, 10);
    assert_int_equal(sched_totals(f->s)->n_hit_token, 4 * KV_PAGE_TOKENS);
    assert_int_equal(sched_totals(f->s)->n_fetched_token, 4 * KV_PAGE_TOKENS);
    (void)add(f, 1, TEXT); /* from the cache */
    step(f);
    assert_int_equal(sched_totals(f->s)->n_hit_token, 8 * KV_PAGE_TOKENS);
    assert_int_equal(sched_totals(f->s)->n_fetched_token, 4 * KV_PAGE_TOKENS);
    finish(f);
    assert_int_equal(tiers_get_stats(f->tiers)->n_restored_ram, 4);
    assert_int_equal(tiers_get_stats(f->tiers)->n_fetch, 1);
}

static void pages_of_another_salt_do_not(void **state)
{
    struct fixture *f = *state;
    put_in_ram(f, 1);
    struct request *r = add(f, 1, TEXT);
    r->cache_salt = 5;
    step(f);
    assert_int_equal(r->n_cached, 0);
    finish(f);
}

static void others_run_while_pages_are_read(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    sim_disk_options_of(f->io)->max_delay = 0;
    sim_disk_options_of(f->io)->stuck = true;
    struct request *r = add(f, 1, TEXT);
    struct request *other = add(f, 2, 20);
    step(f);
    assert_int_equal(r->state, REQUEST_FETCHING);
    assert_int_equal(sched_n_fetching(f->s), 1);
    assert_int_equal(other->state, REQUEST_RUNNING);
    step(f);
    assert_int_equal(other->state, REQUEST_FINISHED);
    step(f);
    assert_int_equal(f->plan.n_entry, 0);
    assert_ptr_equal(sched_any(f->s), r);
    sim_disk_options_of(f->io)->stuck = false;
    step(f);
    assert_int_equal(r->state, REQUEST_RUNNING);
    assert_int_equal(r->n_cached, 4 * KV_PAGE_TOKENS);
    finish(f);
    assert_int_equal(tiers_get_stats(f->tiers)->n_restored_disk, 4);
}

/* One that is held back gets its pages meanwhile, and does not run when it has them. */
static void pages_of_a_held_request_come(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    sim_disk_options_of(f->io)->max_delay = 0;
    struct request *r = add(f, 1, TEXT), *behind = add(f, 2, 20);
    for (int i = 0; i < 20 && r->state != REQUEST_RUNNING; i++) {
        sched_hold_back(f->s, r);
        step(f);
        assert_int_equal(f->plan.n_entry, 0);
        assert_int_equal(behind->state, REQUEST_WAITING);
    }
    assert_int_equal(r->state, REQUEST_RUNNING);
    assert_int_equal(r->n_cached, 4 * KV_PAGE_TOKENS);
    step(f);
    assert_int_equal(f->plan.n_entry, 2);
    finish(f);
}

static void a_request_goes_on_from_where_filling_stops(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    for (uint32_t place = 0; place < N_DISK; place++) { /* the third page of the text */
        int32_t first;
        memcpy(&first, platter_page(f->platter, place), sizeof first);
        if (first == 10000 + 2 * KV_PAGE_TOKENS) platter_page(f->platter, place)[100] ^= 8;
    }
    struct request *r = add(f, 1, TEXT);
    for (int i = 0; i < 20 && r->state != REQUEST_RUNNING; i++) step(f);
    assert_int_equal(r->n_cached, 2 * KV_PAGE_TOKENS);
    assert_int_equal(tiers_get_stats(f->tiers)->n_rejected[TIER_BAD_CHECKSUM], 1);
    finish(f);
}

static void nobody_waits_for_ever(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    sim_disk_options_of(f->io)->stuck = true;
    struct request *r = add(f, 1, TEXT);
    step(f);
    step_after(f, 900000);
    assert_int_equal(r->state, REQUEST_FETCHING);
    step_after(f, 200000);
    assert_int_equal(r->state, REQUEST_RUNNING);
    assert_int_equal(r->n_cached, 0);
    finish(f);
    (void)add(f, 99, MAX_TOKENS - OUTPUT);
    finish(f);
    struct request *third = add(f, 1, TEXT); /* the disk is known to be slow now */
    step(f);
    assert_int_equal(third->state, REQUEST_RUNNING);
    finish(f);
}

static void who_waits_for_pages_can_be_cancelled(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    sim_disk_options_of(f->io)->stuck = true;
    struct request *r = add(f, 1, TEXT);
    step(f);
    assert_int_equal(r->state, REQUEST_FETCHING);
    sched_end(f->s, r, REQUEST_FINISH_CANCEL, f->now_us);
    sched_check(f->s);
    assert_int_equal(page_pool_n_available(f->pool), N_PAGE);
    sim_disk_options_of(f->io)->stuck = false;
    for (int i = 0; i < 20; i++) step(f); /* what was asked for still comes, to memory */
    struct request *again = add(f, 1, TEXT);
    step(f);
    assert_int_equal(again->n_cached, 4 * KV_PAGE_TOKENS);
    finish(f);
}

/* Three pages are left, and an earlier request grows into them and beyond. */
static void who_waits_for_pages_gives_way(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    sim_disk_options_of(f->io)->stuck = true;
    struct request *first = add(f, 2, 2 * KV_PAGE_TOKENS - 1);
    first->max_token = 4 * KV_PAGE_TOKENS;
    struct request *r = add(f, 1, TEXT);
    step(f);
    assert_int_equal(r->state, REQUEST_FETCHING);
    assert_int_equal(r->n_page, 5);
    for (int i = 0; i < 70; i++) step(f);
    assert_int_equal(first->n_page, 4);
    assert_int_equal(r->state, REQUEST_WAITING);
    assert_int_equal(sched_totals(f->s)->n_preempted, 0); /* nothing was computed for it */
    sim_disk_options_of(f->io)->stuck = false;
    finish(f);
    assert_int_equal(r->n_cached, 4 * KV_PAGE_TOKENS);
}

static void two_requests_share_what_one_has_read(void **state)
{
    struct fixture *f = *state;
    put_on_disk(f, 1);
    struct request *a = add(f, 1, 2 * KV_PAGE_TOKENS + 5);
    struct request *b = add(f, 1, 2 * KV_PAGE_TOKENS + 9);
    finish(f);
    assert_int_equal(a->n_cached, 2 * KV_PAGE_TOKENS);
    assert_int_equal(b->n_cached, 2 * KV_PAGE_TOKENS);
    const struct tiers_stats *s = tiers_get_stats(f->tiers);
    assert_int_equal(s->n_read, 2);
    assert_int_equal(s->n_restored_disk + s->n_restored_ram, 2); /* the other took them over */
}

/* Two requests grow until pages run out: the later one is preempted, and its pages overwritten. */
static void a_preempted_request_finds_its_pages(void **state)
{
    struct fixture *f = *state;
    struct request *a = add(f, 1, 3 * KV_PAGE_TOKENS - 1);
    struct request *b = add(f, 2, 3 * KV_PAGE_TOKENS + 10);
    a->max_token = MAX_TOKENS;
    b->max_token = 5 * KV_PAGE_TOKENS;
    while (a->state != REQUEST_FINISHED) step(f);
    assert_int_equal(b->n_preempted, 1);
    assert_int_equal(b->state, REQUEST_WAITING);
    uint64_t n_before = tiers_get_stats(f->tiers)->n_restored_ram;
    uint32_t n_full = (b->n_token - 1) / KV_PAGE_TOKENS;
    step(f);
    assert_int_equal(b->state, REQUEST_RUNNING);
    assert_int_equal(tiers_get_stats(f->tiers)->n_restored_ram - n_before, n_full);
    assert_int_equal(f->plan.n_token, b->n_token - 1 - n_full * KV_PAGE_TOKENS);
    finish(f);
}

/* A request whose first n_page pages, and no more, another server keeps for it: the same text, salt
 * and keys there as here. */
static struct request *add_lent_some(struct fixture *f, int32_t text, uint32_t n_page)
{
    struct request *r = add(f, text, n_page * KV_PAGE_TOKENS + 10);
    r->has_peer = r->peer_lends = true;
    r->peer_end = n_page;
    return r;
}

static struct request *add_lent(struct fixture *f, int32_t text)
{
    return add_lent_some(f, text, 4);
}

/* Choices of one prompt, say. The first one asks for all records before the second one looks, and
 * asks again in each of these long steps; neither computes what is on its way. */
static void who_waits_for_what_another_asks_for_waits_as_long(void **state)
{
    struct fixture *f = *state;
    struct sim_disk_options *peer = sim_disk_options_of(f->io);
    peer->peer_busy_us = 3000000;
    struct request *first = add_lent_some(f, 1, 2);
    struct request *second = add_lent_some(f, 1, 2);
    for (int i = 0; i < 10; i++) {
        step_after(f, 1000000);
        assert_int_equal(first->state, REQUEST_FETCHING);
        assert_int_equal(second->state, REQUEST_FETCHING);
    }
    peer->peer_has = true;
    for (int i = 0; i < 4 && second->state == REQUEST_FETCHING; i++) step(f);
    assert_int_equal(first->n_cached, 2 * KV_PAGE_TOKENS);
    assert_int_equal(second->n_cached, 2 * KV_PAGE_TOKENS);
    finish(f);
    assert_int_equal(tiers_get_stats(f->tiers)->n_pulled, 2);
    assert_int_equal(tiers_get_stats(f->tiers)->n_pull_lost, 0);
    assert_int_equal(peer->n_released, 0); /* each was sent */
}

/* Steps copy one page each, and those of the first request come before: the second one's are here
 * by the time that its server would not be waited for any more. */
static void a_page_that_is_here_is_not_given_up(void **state)
{
    struct fixture *f = *state;
    struct sim_disk_options *peer = sim_disk_options_of(f->io);
    peer->peer_busy_us = 3000000;
    (void)add_lent_some(f, 1, 2);
    struct request *second = add_lent_some(f, 2, 2);
    step_after(f, 1000000);
    peer->peer_has = true;
    step(f);
    assert_int_equal(second->state, REQUEST_FETCHING);
    step_after(f, 2 * TIERS_STALL_US);
    step(f);
    step(f);
    finish(f);
    assert_int_equal(second->n_cached, 2 * KV_PAGE_TOKENS);
    assert_int_equal(tiers_get_stats(f->tiers)->n_pull_lost, 0);
}

/* Once the server says nothing more of being busy, nobody waits for longer. */
static void who_waits_in_vain_for_a_server_computes(void **state)
{
    struct fixture *f = *state;
    struct request *first = add_lent_some(f, 1, 2);
    struct request *second = add_lent_some(f, 1, 2);
    step(f);
    step_after(f, TIERS_STALL_US);
    assert_int_equal(second->state, REQUEST_FETCHING);
    for (int i = 0; i < 4 && second->state == REQUEST_FETCHING; i++) step(f);
    assert_int_equal(first->n_cached, 0);
    finish(f);
    assert_int_equal(tiers_get_stats(f->tiers)->n_pulled, 0);
}

static struct hash128 last_key(const struct request *r)
{
    const struct hash128 secret = {3, 4};
    struct hash128 key = tier_key_first(&secret, r->cache_salt);
    for (int i = 0; i < 4; i++)
        key = tier_key_next(&secret, &key, r->ids + i * KV_PAGE_TOKENS, KV_PAGE_TOKENS, 0);
    return key;
}

static void who_leaves_before_its_pages_come_says_so_to_their_server(void **state)
{
    struct fixture *f = *state;
    const struct sim_disk_options *told = sim_disk_options_of(f->io);
    struct request *waits = add_lent(f, 1);
    struct request *named = add_lent_some(f, 4, 1); /* its own name comes behind its pages' */
    named->has_hand_over = true;
    named->hand_over = (struct hash128){5, 6};
    sched_end(f->s, named, REQUEST_FINISH_CANCEL, f->now_us);
    assert_int_equal(told->n_released, 2);
    assert_true(hash128_equal(&told->released, &named->hand_over));
    sim_disk_options_of(f->io)->n_released = 0;
    sched_end(f->s, waits, REQUEST_FINISH_CANCEL, f->now_us);
    assert_int_equal(told->n_released, 4);
    const struct hash128 last = last_key(waits);
    assert_true(hash128_equal(&told->released, &last));
    put_on_disk(f, 2);
    sim_disk_options_of(f->io)->stuck = true;
    struct request *fetches = add_lent(f, 2);
    step(f);
    assert_int_equal(fetches->state, REQUEST_FETCHING);
    assert_int_equal(told->n_released, 4);
    sched_end(f->s, fetches, REQUEST_FINISH_CANCEL, f->now_us);
    assert_int_equal(told->n_released, 8);
    sched_check(f->s);
    sim_disk_options_of(f->io)->stuck = false;
    struct request *other = add(f, 3, TEXT); /* one of no other server */
    other->has_peer = true;
    sched_end(f->s, other, REQUEST_FINISH_CANCEL, f->now_us);
    assert_int_equal(told->n_released, 8);
    finish(f);
}

/* Once: what comes behind, a preemption or the end, says nothing more. */
static void who_has_its_pages_here_says_so_to_their_server(void **state)
{
    struct fixture *f = *state;
    const struct sim_disk_options *told = sim_disk_options_of(f->io);
    put_in_ram(f, 1);
    struct request *r = add_lent(f, 1);
    step(f);
    assert_int_equal(r->state, REQUEST_RUNNING);
    assert_int_equal(r->n_cached, 4 * KV_PAGE_TOKENS);
    assert_int_equal(told->n_released, 4);
    finish(f);
    assert_int_equal(told->n_released, 4);
}

int main(void)
{
#define CASE_OF(c, open) cmocka_unit_test_setup_teardown(c, open, close_fixture)
#define CASE(c) CASE_OF(c, open_fixture)
    const struct CMUnitTest tests[] = {
        CASE(pages_in_memory_come_back_within_the_plan),
        CASE(pages_of_another_salt_do_not),
        CASE(others_run_while_pages_are_read),
        CASE(pages_of_a_held_request_come),
        CASE(a_request_goes_on_from_where_filling_stops),
        CASE(nobody_waits_for_ever),
        CASE(who_waits_for_pages_can_be_cancelled),
        CASE(who_waits_for_pages_gives_way),
        CASE(two_requests_share_what_one_has_read),
        CASE(a_preempted_request_finds_its_pages),
        CASE(who_waits_for_what_another_asks_for_waits_as_long),
        CASE_OF(a_page_that_is_here_is_not_given_up, open_one_page_a_step),
        CASE(who_waits_in_vain_for_a_server_computes),
        CASE(who_leaves_before_its_pages_come_says_so_to_their_server),
        CASE(who_has_its_pages_here_says_so_to_their_server),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

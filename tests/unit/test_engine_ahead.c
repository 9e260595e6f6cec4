/* test_engine_ahead.c - steps launched while the one before them runs (overlap scheduling)
 *
 * The runner does nothing of a step before somebody waits for it. Answers are the same as with one
 * step after the other, whatever arrives, ends or is cancelled meanwhile, and every page is back in
 * the end. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "support/answers.h"
#include "support/null_runner.h"

enum { N_REQUEST = 24, MAX_LEN = 320, N_VOCAB = 200, N_LOAD = 60, FLIGHT_MAX = 4 };

static struct answer answers[N_REQUEST];
static struct answer wanted[N_REQUEST];

/* What the runner has seen. */
static uint32_t n_ahead;
static uint32_t max_flying;
static uint64_t n_computed;

static struct null_engine_options options_of(uint32_t max_flight)
{
    n_ahead = 0;
    max_flying = 0;
    n_computed = 0;
    return (struct null_engine_options){
        .n_vocab = N_VOCAB,
        .max_model_len = MAX_LEN,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 64,
        .max_queued = N_REQUEST,
        .seed = 3,
        .runner = {.n_page = 40,
                   .max_flight = max_flight,
                   .n_ahead = &n_ahead,
                   .max_flying = &max_flying,
                   .n_computed = &n_computed},
    };
}

static fathom_engine *open_with(const struct null_engine_options *o)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (null_engine_open(&e, o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

static const int32_t prompt[] = {10, 20, 30, 40, 50};

static fathom_request request_of(uint32_t max_tokens)
{
    fathom_request r = {.prompt = prompt, .n_prompt = 5};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = true;
    return r;
}

/* The answer is what the runner's function says. */
static void expect_drawn(const struct answer *a, const fathom_request *r)
{
    int32_t ids[MAX_LEN];
    memcpy(ids, r->prompt, r->n_prompt * sizeof ids[0]);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t state = null_state(ids, r->n_prompt + i);
        ids[r->n_prompt + i] = (int32_t)(state % N_VOCAB);
        assert_int_equal(a->ids[i], ids[r->n_prompt + i]);
        assert_true(a->logprobs[i] == null_logprob(state));
    }
}

static void run_one(fathom_engine *e, const fathom_request *r)
{
    answer_ask(e, &answers[0], r);
    answers_wait(e, 1);
    expect_drawn(&answers[0], r);
    answers_expect_rest(e);
}

static void a_length_is_foreseen_and_nothing_is_computed_in_vain(void **state)
{
    (void)state;
    for (uint32_t max_flight = 1; max_flight <= FLIGHT_MAX; max_flight++) {
        struct null_engine_options o = options_of(max_flight);
        fathom_engine *e = open_with(&o);
        fathom_request r = request_of(200); /* over several pages */
        run_one(e, &r);
        fathom_stats s;
        fathom_get_stats(e, &s);
        assert_int_equal(s.n_step, 200);
        assert_int_equal(s.n_step_ahead, max_flight > 1 ? 199 : 0);
        assert_int_equal(s.n_output_token, 200);
        fathom_close(e);
        assert_int_equal(n_ahead, max_flight > 1 ? 199 : 0);
        assert_int_equal(max_flying, max_flight);
        assert_int_equal(n_computed, 5 + 199);
    }
}

static void after_a_stop(uint32_t max_flight)
{
    struct null_engine_options o = options_of(max_flight);
    fathom_engine *e = open_with(&o);
    fathom_request r = request_of(200);
    run_one(e, &r);
    fathom_close(e);
    /* at every place in and around a page's end; 5 + 59 tokens fill the first page */
    for (uint32_t at = 56; at < 63; at++) {
        o = options_of(max_flight);
        e = open_with(&o);
        int32_t stop = answers[0].ids[at];
        uint32_t first = 0;
        while (answers[0].ids[first] != stop) first++;
        r.sampling.stop_ids = &stop;
        r.sampling.n_stop_id = 1;
        for (int round = 0; round < 2; round++) { /* the second goes on from the first one's page */
            answer_ask(e, &answers[1], &r);
            answers_wait(e, 1);
            assert_int_equal(answers[1].n, first + 1);
            assert_true(answers[1].stopped);
            assert_memory_equal(answers[1].ids, answers[0].ids, (first + 1) * sizeof(int32_t));
            answers_expect_rest(e);
        }
        fathom_close(e);
        assert_int_equal(n_computed, 2 * (5 + first + max_flight - 1));
    }
}

static void after_a_stop_the_steps_ahead_are_in_vain(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= FLIGHT_MAX; n++) after_a_stop(n);
}

/* The same prompt again and again: the pages of those that come later give way to the first's while
 * a step that reads them is under way. */
static void twins_share_their_pages(void **state)
{
    (void)state;
    struct null_engine_options o = options_of(FLIGHT_MAX);
    o.runner.n_page = 12;
    fathom_engine *e = open_with(&o);
    fathom_request r = request_of(150);
    run_one(e, &r);
    wanted[0] = answers[0];
    for (int i = 0; i < 8; i++) answer_ask(e, &answers[i], &r);
    answers_wait(e, 8);
    for (int i = 0; i < 8; i++) answer_expect_same(&answers[i], &wanted[0]);
    answers_expect_rest(e);
    fathom_close(e);
}

static void fill_mask(const void *self, uint32_t *words, size_t n_word)
{
    (void)self;
    memset(words, 0xff, n_word * sizeof *words);
}

static bool accept(void *self, int32_t id)
{
    (void)self;
    return id >= 0;
}

static void nothing(void *self)
{
    (void)self;
}

static const fathom_constraint_ops anything = {.fill_mask = fill_mask,
                                               .accept = accept,
                                               .mark = nothing,
                                               .go_back = nothing,
                                               .destroy = nothing};

static void what_needs_the_ids_before_it_is_not_launched_ahead(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct null_engine_options o = options_of(FLIGHT_MAX);
        o.n_draft = kind == 0 ? 2 : 0;
        fathom_engine *e = open_with(&o);
        fathom_request r = request_of(40);
        if (kind == 1) r.sampling.presence_penalty = 0.5f;
        if (kind == 2) r.constraint = (fathom_constraint){&anything, &answers[0]};
        answer_ask(e, &answers[0], &r);
        answers_wait(e, 1);
        assert_int_equal(answers[0].n, 40);
        assert_int_equal(n_ahead, 0);
        fathom_close(e);
    }
}

/* Whichever launch fails, with or without one under way: everybody is answered. */
static void a_failing_launch_ends_everybody(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 20; n++) {
        struct null_engine_options o = options_of(FLIGHT_MAX);
        o.max_num_seqs = 2;
        o.runner.fail_after = n;
        fathom_engine *e = open_with(&o);
        fathom_request r = request_of(100);
        int n_in = 0;
        for (int i = 0; i < 3; i++) n_in += answer_submit(e, &answers[i], &r, NULL) == FATHOM_OK;
        answers_wait(e, (size_t)n_in);
        for (int i = 0; i < n_in; i++) {
            assert_int_equal(answers[i].finish.finish, FATHOM_FINISH_ERROR);
            assert_true(answers[i].n < n);
        }
        assert_string_equal(fathom_fault(e), "the null device burns");
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static void closing_and_cancelling_while_steps_are_under_way(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct null_engine_options o = options_of(FLIGHT_MAX);
        o.runner.step_us = 300;
        fathom_engine *e = open_with(&o);
        fathom_request r = request_of(200);
        for (int k = 0; k < 12; k++) answer_ask(e, &answers[k], &r);
        while (answers[0].n < 3) (void)answers_take(e, 1000);
        if (i % 2 == 0) {
            for (int k = 0; k < 12; k++) fathom_cancel(e, answers[k].id);
            answers_wait(e, 12);
            answers_expect_rest(e);
        }
        fathom_close(e);
        assert_true(n_ahead > 0);
    }
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct null_engine_options o = options_of(FLIGHT_MAX);
    bool hit = true;
    for (long n = 0; hit; n++) {
        fathom_engine *e = NULL;
        mem_fail_after(n);
        fathom_err err = null_engine_open(&e, &o, NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        fathom_close(e);
    }
}

/* ---- any load -------------------------------------------------------------------------------- */

static uint64_t rng = 7;

static uint32_t between(uint32_t lo, uint32_t hi)
{
    return lo + (uint32_t)rng_below(&rng, (uint64_t)hi - lo + 1);
}

struct load {
    fathom_request requests[N_REQUEST];
    int32_t prompts[N_REQUEST][MAX_LEN];
};

/* Prompts that begin alike; stops, lengths, penalties, alternatives, prompts that are scored. */
static void draw_load(struct load *l)
{
    static const int32_t stop_ids[] = {5, 6, 7};
    uint32_t one_in = between(2, 12); /* requests that are of a special kind */
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        fathom_request *r = &l->requests[i];
        uint32_t n_same = i > 0 && between(0, 1) ? between(0, 150) : 0;
        *r = (fathom_request){.prompt = l->prompts[i], .n_prompt = between(1, 150)};
        for (uint32_t k = 0; k < r->n_prompt; k++) {
            l->prompts[i][k] = k < n_same ? l->prompts[i - 1][k] : (int32_t)between(0, N_VOCAB - 1);
        }
        fathom_sampling *s = &r->sampling;
        fathom_sampling_init(s);
        s->temperature = (float)between(0, 1);
        s->has_seed = true;
        s->seed = i;
        s->max_tokens = between(1, MAX_LEN - r->n_prompt);
        s->min_tokens = between(0, 3) ? 0 : s->max_tokens / 2;
        s->logprobs = true;
        s->n_top_logprobs = between(0, 5) ? 0 : 2;
        s->ignore_eos = between(0, 1);
        s->presence_penalty = between(1, one_in) > 1 ? 0 : 0.5f;
        s->prompt_logprobs = between(1, one_in) == 1;
        s->stop_ids = stop_ids;
        s->n_stop_id = between(0, 1) ? 3 : 0;
    }
}

/* Those that come in a burst, then some of what they say, until all are in and over. */
static void run_load(fathom_engine *e, const struct load *l, bool cancels)
{
    size_t n_open = 0;
    uint32_t n_in = 0;
    while (n_in < N_REQUEST || n_open > 0) {
        uint32_t n_burst = between(0, 3);
        for (; n_burst > 0 && n_in < N_REQUEST; n_burst--, n_in++, n_open++) {
            answer_ask(e, &answers[n_in], &l->requests[n_in]);
        }
        if (n_open > 0) n_open -= answers_take(e, 1000);
        if (!cancels || n_in == 0 || between(0, 15)) continue;
        fathom_cancel(e, answers[between(0, n_in - 1)].id);
    }
}

static void any_load_gives_the_same_answers(void **state)
{
    (void)state;
    static struct load l;
    uint64_t n_cancelled = 0, n_launched = 0, n_preempted = 0, n_hit = 0, n_from_ram = 0;
    bool all_seen = false; /* who meets whom is the threads' affair: it may take more loads */
    for (int i = 0; i < N_LOAD || (!all_seen && i < 20 * N_LOAD); i++) {
        draw_load(&l);
        struct null_engine_options o = options_of(1);
        o.no_prefix_cache = true;
        o.runner.n_page = N_REQUEST * 5;
        fathom_engine *e = open_with(&o);
        run_load(e, &l, false);
        memcpy(wanted, answers, sizeof wanted);
        fathom_close(e);

        o = options_of(between(2, FLIGHT_MAX));
        o.no_prefix_cache = between(0, 3) == 0;
        o.max_num_seqs = between(1, 12);
        o.max_num_batched_tokens = between(o.max_num_seqs, 80);
        o.runner.n_page = between(5, between(5, 40));
        o.runner.step_us = between(0, 1) ? 0 : 30;
        if (!o.no_prefix_cache && between(0, 1)) {
            o.offload.n_ram_page = TIERS_MIN_RAM;
            o.offload.page_bytes = NULL_PAGE_BYTES;
        }
        e = open_with(&o);
        run_load(e, &l, between(0, 1));
        for (int k = 0; k < N_REQUEST; k++) {
            struct answer *a = &answers[k];
            if (a->finish.finish == FATHOM_FINISH_CANCEL) {
                assert_true(a->n <= wanted[k].n);
                assert_memory_equal(a->ids, wanted[k].ids, a->n * sizeof a->ids[0]);
                n_cancelled++;
            } else {
                answer_expect_same(a, &wanted[k]);
            }
        }
        answers_expect_rest(e);
        fathom_stats s;
        fathom_get_stats(e, &s);
        n_preempted += s.n_preempted;
        n_hit += s.n_prefix_hit_token;
        n_from_ram += s.tiers.n_ram_hit;
        for (int k = 0; k < FATHOM_TIER_BAD_COUNT; k++) assert_int_equal(s.tiers.n_bad[k], 0);
        fathom_close(e);
        n_launched += n_ahead;
        all_seen = n_launched > 1000 && n_cancelled > 20 && n_preempted > 5 && n_hit > 1000 &&
                   n_from_ram > 5;
    }
    print_message("launched ahead=%" PRIu64 " cancelled=%" PRIu64 " preempted=%" PRIu64
                  " found=%" PRIu64 " from_ram=%" PRIu64 "\n",
                  n_launched, n_cancelled, n_preempted, n_hit, n_from_ram);
    assert_true(all_seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_length_is_foreseen_and_nothing_is_computed_in_vain),
        cmocka_unit_test(after_a_stop_the_steps_ahead_are_in_vain),
        cmocka_unit_test(twins_share_their_pages),
        cmocka_unit_test(what_needs_the_ids_before_it_is_not_launched_ahead),
        cmocka_unit_test(a_failing_launch_ends_everybody),
        cmocka_unit_test(closing_and_cancelling_while_steps_are_under_way),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(any_load_gives_the_same_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_engine_lanes [ROUNDS [SEED]] - an engine whose requests are on several lanes
 *
 * Answers are what the runner's function says, whatever lane a request is on, and whatever else
 * arrives, ends, is cancelled or preempted there and beside it; and every page is back in the end.
 * A round opens an engine with random numbers of lanes, pages, places, tokens of a step, drafts,
 * steps under way, memory for pages, and lets random requests come and go. In builds with
 * FATHOM_DCHECK the engine looks at the invariants of all lanes after every step. A million steps
 * are about 1000 rounds. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/answers.h"
#include "support/null_runner.h"

enum { N_REQUEST = 32, MAX_LEN = 320, N_VOCAB = 200, N_LANE_MAX = 8, N_BEGINNING = 3 };

static uint64_t n_round = 30, seed = 1;
static struct answer answers[N_REQUEST];
static int32_t prompts[N_REQUEST][MAX_LEN];
static fathom_request requests[N_REQUEST];

static struct null_engine_options options_of(uint32_t n_lane, uint32_t max_flight)
{
    return (struct null_engine_options){
        .n_vocab = N_VOCAB,
        .max_model_len = MAX_LEN,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 96,
        .max_queued = N_REQUEST,
        .seed = 3,
        .runner = {.n_page = 40, .n_lane = n_lane, .max_flight = max_flight},
    };
}

static fathom_engine *open_with(const struct null_engine_options *o)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (null_engine_open(&e, o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

/* Request k of n_prompt ids that begin as others of `beginning` do. */
static fathom_request *make(uint32_t k, uint32_t beginning, uint32_t n_prompt, uint32_t max_tokens)
{
    fathom_request *r = &requests[k];
    for (uint32_t i = 0; i < n_prompt; i++)
        prompts[k][i] = (int32_t)(rng_mix(beginning, i, i < n_prompt - 3 ? 0 : k) % N_VOCAB);
    *r = (fathom_request){.prompt = prompts[k], .n_prompt = n_prompt};
    fathom_sampling_init(&r->sampling);
    r->sampling.temperature = 0;
    r->sampling.max_tokens = max_tokens;
    r->sampling.ignore_eos = true;
    r->sampling.logprobs = true;
    return r;
}

static void expect_drawn(uint32_t k)
{
    const struct answer *a = &answers[k];
    const fathom_request *r = &requests[k];
    int32_t ids[2 * MAX_LEN];
    memcpy(ids, r->prompt, r->n_prompt * sizeof ids[0]);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t state = null_state(ids, r->n_prompt + i);
        ids[r->n_prompt + i] = (int32_t)(state % N_VOCAB);
        assert_int_equal(a->ids[i], ids[r->n_prompt + i]);
        assert_true(a->logprobs[i] == null_logprob(state));
    }
    if (a->finish.finish != FATHOM_FINISH_CANCEL) {
        assert_int_equal(a->finish.finish, FATHOM_FINISH_LENGTH);
        assert_int_equal(a->n, r->sampling.max_tokens);
    }
}

static void a_lane_without_work_holds_up_nobody(void **state)
{
    (void)state;
    for (uint32_t lane = 0; lane < 3; lane++) {
        struct null_engine_options o = options_of(3, 2);
        fathom_engine *e = open_with(&o);
        fathom_request *r = make(0, 1, 5, 200);
        fathom_stats s;
        r->has_lane = true;
        r->lane = lane;
        answer_ask(e, &answers[0], r);
        answers_wait(e, 1);
        expect_drawn(0);
        fathom_get_stats(e, &s);
        assert_int_equal(s.n_step, 200);
        assert_int_equal(s.n_step_ahead, 199);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static void lanes_whose_requests_end_rest_in_the_steps_of_others(void **state)
{
    (void)state;
    struct null_gate gate;
    null_gate_init(&gate);
    struct null_engine_options o = options_of(3, 2);
    o.runner.gate = &gate;
    fathom_engine *e = open_with(&o);
    fathom_stats s;
    /* the first step is held until all have come; all start in the second one */
    answer_ask(e, &answers[0], make(0, 1, 5, 2));
    null_gate_wait(&gate);
    for (uint32_t i = 1; i < 4; i++) {
        fathom_request *r = make(i, 1 + i, 5, 20 * i);
        r->has_lane = true;
        r->lane = i - 1;
        answer_ask(e, &answers[i], r);
    }
    null_gate_open(&gate);
    answers_wait(e, 4);
    for (uint32_t i = 0; i < 4; i++) expect_drawn(i);
    fathom_get_stats(e, &s);
    assert_true(s.n_step <= 62);
    assert_true(s.n_step_ahead >= 58); /* 60 steps, of which two ended lanes that then rested */
    answers_expect_rest(e);
    fathom_close(e);
}

static void a_lane_takes_from_memory_what_another_has_computed(void **state)
{
    (void)state;
    struct null_engine_options o = options_of(2, 2);
    o.offload = (struct offload_config){.n_ram_page = 64, .page_bytes = NULL_PAGE_BYTES};
    fathom_engine *e = open_with(&o);
    fathom_stats s;
    for (uint32_t k = 0; k < 2; k++) {
        fathom_request *r = make(k, 1, 200, 4);
        r->has_lane = true;
        r->lane = k;
        answer_ask(e, &answers[k], r);
        answers_wait(e, 1);
        expect_drawn(k);
        do {
            fathom_get_stats(e, &s); /* it copies while it rests */
        } while (s.tiers.n_uncopied > 0);
    }
    assert_int_equal(answers[0].finish.n_cached, 0);
    assert_int_equal(answers[1].finish.n_cached, 192);
    assert_int_equal(s.tiers.n_ram_hit, 3);
    answers_expect_rest(e);
    fathom_close(e);
}

/* All lanes compute a prompt that is alone, in steps of more tokens than a lane's; the null runner
 * looks whether all of them have all of its rows. Then another one that begins the same. */
static void a_long_prompt_is_computed_by_all_lanes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        const uint32_t n_lane = 2 + i % 3;
        struct null_engine_options o = options_of(n_lane, 1 + i % 2);
        o.share_prompts = 8;
        o.n_draft = i / 4 == 1 ? 2 : 0;
        o.runner.prompt_form = i / 4 == 2;
        o.max_num_batched_tokens = 24;
        fathom_engine *e = open_with(&o);
        fathom_stats s;
        fathom_request *r = make(0, 1, 250, 5);
        r->has_lane = true;
        r->lane = i % n_lane;
        answer_ask(e, &answers[0], r);
        answers_wait(e, 1);
        expect_drawn(0);
        fathom_get_stats(e, &s);
        assert_true(s.n_shared_token > 250 - 24 - 8 * n_lane && s.n_shared_token <= 250);
        assert_true(s.n_step <= 250 / (24 * n_lane) + 3 + 5);
        answers_expect_rest(e);
        make(1, 1, 310, 4); /* of which the lane has three pages */
        requests[1].has_lane = true;
        requests[1].lane = i % n_lane;
        answer_ask(e, &answers[1], &requests[1]);
        answers_wait(e, 1);
        expect_drawn(1);
        assert_int_equal(answers[1].finish.n_cached, 192);
        fathom_get_stats(e, &s);
        assert_true(s.n_shared_token > 250 + 60);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

/* Of two lanes with a prompt each, or where it is not wanted, a prompt stays on its lane. */
static void a_prompt_is_shared_only_by_lanes_without_one(void **state)
{
    (void)state;
    struct null_gate gate;
    null_gate_init(&gate);
    for (uint32_t share = 0; share <= 100; share += 100) {
        struct null_engine_options o = options_of(2, 1);
        o.share_prompts = share;
        o.runner.gate = &gate;
        null_gate_shut(&gate);
        fathom_engine *e = open_with(&o);
        fathom_stats s;
        answer_ask(e, &answers[0], make(0, 1, 5, 2)); /* held until both have come */
        null_gate_wait(&gate);
        for (uint32_t k = 1; k < 3; k++) {
            fathom_request *r = make(k, k, 300, 2);
            r->has_lane = true;
            r->lane = k - 1;
            answer_ask(e, &answers[k], r);
        }
        null_gate_open(&gate);
        answers_wait(e, 3);
        for (uint32_t k = 0; k < 3; k++) expect_drawn(k);
        fathom_get_stats(e, &s);
        assert_int_equal(s.n_shared_token, 0);
        answer_ask(e, &answers[3], make(3, 3, 199, 2)); /* less than 100 for each */
        answers_wait(e, 1);
        answer_ask(e, &answers[4], make(4, 4, 200, 2));
        answers_wait(e, 1);
        fathom_get_stats(e, &s);
        assert_int_equal(s.n_shared_token, share ? 192 : 0);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

/* Two of four lanes have prompts: the second waits for the first, which all lanes compute, and is
 * computed by all. Three would gain nothing. */
static void long_prompts_are_shared_one_after_the_other(void **state)
{
    (void)state;
    struct null_gate gate;
    null_gate_init(&gate);
    for (uint32_t n_prompt = 2; n_prompt <= 3; n_prompt++) {
        struct null_engine_options o = options_of(4, 1);
        o.share_prompts = 8;
        o.max_num_batched_tokens = 24;
        o.runner.gate = &gate;
        null_gate_shut(&gate);
        fathom_engine *e = open_with(&o);
        fathom_stats s;
        answer_ask(e, &answers[0], make(0, 1, 5, 2)); /* held until all have come */
        null_gate_wait(&gate);
        for (uint32_t k = 1; k <= n_prompt; k++) {
            fathom_request *r = make(k, k, 300, 2);
            r->has_lane = true;
            r->lane = 4 - k;
            answer_ask(e, &answers[k], r);
        }
        null_gate_open(&gate);
        answers_wait(e, 1 + n_prompt);
        for (uint32_t k = 0; k <= n_prompt; k++) expect_drawn(k);
        fathom_get_stats(e, &s);
        assert_true(s.n_step <= 1 + 300 / 24 + 3); /* two at once: 2 * 300 / 96, and tails */
        if (n_prompt == 2) assert_true(s.n_shared_token > 2 * (300 - 4 * 8));
        if (n_prompt == 3) assert_int_equal(s.n_shared_token, 0);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

/* A guest whose own requests need the pages has them back, and all answers stay. */
static void guests_give_way(void **state)
{
    (void)state;
    uint64_t n_shared = 0, n_preempted = 0;
    for (uint32_t i = 0; i < 8; i++) {
        struct null_engine_options o = options_of(2, 1 + i % 2);
        o.share_prompts = 4;
        o.max_num_batched_tokens = 16;
        o.runner.n_page = 13;
        o.n_draft = i / 4 ? 2 : 0;
        fathom_engine *e = open_with(&o);
        fathom_stats s;
        for (uint32_t k = 0; k < 16; k++) { /* answers on lane 1, which grow */
            fathom_request *r = make(k, k, k < 5 ? 8 : 220, k < 5 ? 150 : 4);
            r->has_lane = true;
            r->lane = k < 5;
            answer_ask(e, &answers[k], r);
        }
        answers_wait(e, 16);
        for (uint32_t k = 0; k < 16; k++) expect_drawn(k);
        fathom_get_stats(e, &s);
        n_shared += s.n_shared_token;
        n_preempted += s.n_preempted;
        answers_expect_rest(e);
        fathom_close(e);
    }
    assert_true(n_shared > 0 && n_preempted > 0);
}

/* Requests that were preempted compute their prompts and answers once more, with the other lane,
 * while one waits whose prompt is still owed. */
static void answers_are_shared_once_more(void **state)
{
    (void)state;
    struct null_engine_options o = options_of(2, 1);
    o.share_prompts = 10;
    o.runner.n_page = 6;
    o.no_prefix_cache = true;
    fathom_engine *e = open_with(&o);
    fathom_stats s;
    for (uint32_t k = 0; k < 4; k++) {
        fathom_request *r = make(k, k, k < 3 ? 60 : 250, k < 3 ? 200 : 2);
        r->has_lane = true;
        r->lane = 0;
        answer_ask(e, &answers[k], r);
    }
    answers_wait(e, 4);
    for (uint32_t k = 0; k < 4; k++) expect_drawn(k);
    fathom_get_stats(e, &s);
    assert_true(s.n_preempted > 0 && s.n_shared_token > 3 * 60 + 250);
    answers_expect_rest(e);
    fathom_close(e);
}

/* Nothing of a guest's cache goes for a prompt whose beginning the home's cache has, or memory, if
 * little is left of it, nor for any where more tokens are asked for than prompts have. */
static void guests_keep_what_no_prompt_needs(void **state)
{
    enum { N_HOME = 4, N = N_HOME + 4 }; /* the last one begins as the first does */
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct null_engine_options o = options_of(4, 1);
        o.share_prompts = i < 2 ? 12 : 1u << 30;
        o.runner.n_page = 12;
        if (i == 1)
            o.offload = (struct offload_config){.n_ram_page = 99, .page_bytes = NULL_PAGE_BYTES};
        fathom_engine *e = open_with(&o);
        fathom_stats s;
        uint32_t n_cached = 0;
        for (uint32_t k = i == 1 ? 0 : N_HOME - 1; k < N; k++) {
            fathom_request *r = make(k, k + 1 < N ? k : i == 1 ? 0 : N_HOME - 1, 300, 4);
            r->has_lane = true;
            r->lane = k >= N_HOME && k + 1 < N;
            do {
                fathom_get_stats(e, &s);
            } while (s.tiers.n_uncopied > 0);
            n_cached = s.lanes[1].n_page_cached;
            answer_ask(e, &answers[k], r);
            answers_wait(e, 1);
            expect_drawn(k);
        }
        assert_int_equal(answers[N - 1].finish.n_cached, 256);
        assert_true(n_cached > 12 - 5); /* or there would be room for all of it */
        fathom_get_stats(e, &s);
        assert_int_equal(s.lanes[1].n_page_cached, n_cached);
        assert_int_equal(s.n_shared_token > 0, i < 2);
        assert_int_equal(s.tiers.n_ram_hit > 0, i == 1);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static void a_lane_that_is_not_there_is_refused(void **state)
{
    (void)state;
    struct null_engine_options o = options_of(2, 1);
    fathom_engine *e = open_with(&o);
    fathom_diag d = {{0}};
    uint64_t id;
    fathom_request *r = make(0, 1, 5, 2);
    r->has_lane = true;
    r->lane = 2;
    assert_int_equal(fathom_submit(e, r, &id, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "data_parallel_rank is 2, needed is 0 to 1"));
    fathom_close(e);
}

/* Requests come in turn with events, so that steps and arrivals mix; some are cancelled. */
static void run_round(uint64_t *g, uint64_t *n_step, uint64_t *n_ahead, uint64_t *n_preempted,
                      uint64_t *n_shared)
{
    static const uint32_t budgets[] = {1, 3, 9, 24, 96, 300}, places[] = {1, 2, 4, 8, 12};
    struct null_engine_options o =
        options_of(1 + (uint32_t)rng_below(g, N_LANE_MAX), 1 + (uint32_t)rng_below(g, 3));
    o.n_draft = rng_below(g, 3) == 0 ? 2 : 0;
    o.runner.n_wrong = (uint32_t)rng_below(g, 4);
    const bool is_short = rng_below(g, 2); /* of pages, on the lanes with most requests */
    const bool is_uneven = is_short || rng_below(g, 2);
    const uint32_t n_loaded = 1 + (uint32_t)rng_below(g, (o.runner.n_lane + 1) / 2);
    o.runner.n_page = is_short ? 5 + (uint32_t)rng_below(g, 5) : 40;
    o.no_prefix_cache = rng_below(g, 4) == 0;
    o.share_prompts = rng_below(g, 4) ? 1 + (uint32_t)rng_below(g, 30) : 0;
    o.max_num_batched_tokens = budgets[rng_below(g, sizeof budgets / sizeof *budgets)];
    if (!is_short) o.max_num_seqs = places[rng_below(g, sizeof places / sizeof *places)];
    o.admission.tpot_us = rng_below(g, 3) ? 0 : 1 + rng_below(g, 3000);
    o.runner.prompt_form = rng_below(g, 2);
    if (!o.no_prefix_cache && rng_below(g, 2))
        o.offload = (struct offload_config){
            .n_ram_page = 48, .page_bytes = NULL_PAGE_BYTES, .with_next = o.n_draft > 0};
    fathom_engine *e = open_with(&o);
    size_t n_over = 0;
    for (uint32_t k = 0; k < N_REQUEST; k++) {
        const uint32_t n_prompt = 4 + (uint32_t)rng_below(g, 200);
        fathom_request *r =
            make(k, (uint32_t)rng_below(g, N_BEGINNING), n_prompt, 1 + (uint32_t)rng_below(g, 110));
        r->sampling.prompt_logprobs = rng_below(g, 6) == 0;
        r->has_lane = rng_below(g, 8) == 0 || is_uneven;
        const uint32_t n_likely = is_uneven && rng_below(g, 5) ? n_loaded : o.runner.n_lane;
        r->lane = r->has_lane ? (uint32_t)rng_below(g, n_likely) : 0;
        answer_ask(e, &answers[k], r);
        if (rng_below(g, 8) == 0) fathom_cancel(e, answers[rng_below(g, k + 1)].id);
        if (rng_below(g, 4) == 0) n_over += answers_take(e, 1);
    }
    answers_wait(e, N_REQUEST - n_over);
    for (uint32_t k = 0; k < N_REQUEST; k++) expect_drawn(k);
    fathom_stats s;
    fathom_get_stats(e, &s);
    *n_step += s.n_step;
    *n_ahead += s.n_step_ahead;
    *n_preempted += s.n_preempted;
    *n_shared += s.n_shared_token;
    answers_expect_rest(e);
    fathom_close(e);
}

static void whatever_comes_is_answered_as_alone(void **state)
{
    (void)state;
    uint64_t g = seed;
    uint64_t n_step = 0, n_ahead = 0, n_preempted = 0, n_shared = 0;
    for (uint64_t i = 0; i < n_round; i++)
        run_round(&g, &n_step, &n_ahead, &n_preempted, &n_shared);
    print_message("rounds=%" PRIu64 " seed=%" PRIu64 " steps=%" PRIu64 " ahead=%" PRIu64
                  " preempted=%" PRIu64 " shared tokens=%" PRIu64 "\n",
                  n_round, seed, n_step, n_ahead, n_preempted, n_shared);
    assert_true(n_ahead > 0 && n_preempted > 0 && n_shared > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_round = strtoull(argv[1], NULL, 10);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lane_without_work_holds_up_nobody),
        cmocka_unit_test(lanes_whose_requests_end_rest_in_the_steps_of_others),
        cmocka_unit_test(a_lane_takes_from_memory_what_another_has_computed),
        cmocka_unit_test(a_long_prompt_is_computed_by_all_lanes),
        cmocka_unit_test(a_prompt_is_shared_only_by_lanes_without_one),
        cmocka_unit_test(long_prompts_are_shared_one_after_the_other),
        cmocka_unit_test(guests_give_way),
        cmocka_unit_test(answers_are_shared_once_more),
        cmocka_unit_test(guests_keep_what_no_prompt_needs),
        cmocka_unit_test(a_lane_that_is_not_there_is_refused),
        cmocka_unit_test(whatever_comes_is_answered_as_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

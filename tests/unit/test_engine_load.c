/* test_engine_load.c - many requests at once over a runner without a model: the same bits
 * whatever runs beside them, every page back in the end */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "support/answers.h"
#include "support/null_runner.h"

enum { N_REQUEST = 64, MAX_LEN = 640, N_VOCAB = 300 };

struct load {
    fathom_request requests[N_REQUEST];
    int32_t prompts[N_REQUEST][MAX_LEN];
};

static struct load load;
static struct load shared; /* the same, with prompts that begin alike */
static struct answer alone[N_REQUEST];
static struct answer alone_shared[N_REQUEST];
static struct answer answers[N_REQUEST];

static void make_load(struct load *l, uint64_t seed)
{
    static const int32_t stop_ids[] = {5, 6, 7};
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        fathom_request *r = &l->requests[i];
        r->prompt = l->prompts[i];
        r->n_prompt = 1 + (uint32_t)rng_below(&seed, i % 4 ? 60 : 240);
        for (uint32_t k = 0; k < r->n_prompt; k++) {
            l->prompts[i][k] = (int32_t)rng_below(&seed, N_VOCAB);
        }
        fathom_sampling_init(&r->sampling);
        r->sampling.temperature = i % 3 ? 1 : 0;
        r->sampling.has_seed = true;
        r->sampling.seed = i;
        r->sampling.max_tokens = 1 + (uint32_t)rng_below(&seed, 400);
        r->sampling.min_tokens = i % 7 ? 0 : r->sampling.max_tokens / 2;
        r->sampling.presence_penalty = i % 6 ? 0 : 0.5f;
        r->sampling.logprobs = true;
        r->sampling.ignore_eos = i % 2 == 0;
        if (i % 4 == 1) {
            r->sampling.stop_ids = stop_ids;
            r->sampling.n_stop_id = 3;
        }
    }
}

/* Prompts of 240 tokens begin with some or all of one of two texts. */
static void share_beginnings(struct load *l, uint64_t seed)
{
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        fathom_request *r = &l->requests[i];
        uint32_t n = i < 2 ? 0 : (uint32_t)rng_below(&seed, 300);
        r->prompt = l->prompts[i];
        r->n_prompt = 240;
        for (uint32_t k = 0; k < r->n_prompt; k++) {
            l->prompts[i][k] = k < n ? l->prompts[i % 2][k] : (int32_t)rng_below(&seed, N_VOCAB);
        }
    }
}

struct shape {
    uint32_t budget;
    uint32_t n_page;
    uint32_t max_num_seqs;
    bool preempts; /* too few pages for all */
    bool no_prefix_cache;
    uint32_t n_draft;
    uint32_t n_wrong; /* of 8 drafts */
};

static struct null_gate gate;

/* The gate is open. */
static fathom_engine *open_shape(const struct shape *s, uint64_t *n_computed)
{
    struct null_engine_options o = {
        .n_vocab = N_VOCAB,
        .max_model_len = MAX_LEN,
        .max_num_seqs = s->max_num_seqs,
        .max_num_batched_tokens = s->budget,
        .max_queued = N_REQUEST,
        .seed = 9,
        .no_prefix_cache = s->no_prefix_cache,
        .n_draft = s->n_draft,
        .runner = {.n_page = s->n_page,
                   .n_computed = n_computed,
                   .gate = &gate,
                   .n_wrong = s->n_wrong},
    };
    fathom_engine *e = NULL;
    null_gate_init(&gate);
    null_gate_open(&gate);
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    return e;
}

/* All at once, however long submitting takes: the gate is shut. */
static void submit_all(fathom_engine *e, const struct load *l)
{
    null_gate_shut(&gate);
    for (int i = 0; i < N_REQUEST; i++) answer_ask(e, &answers[i], &l->requests[i]);
}

static int run_each_alone(void **state)
{
    (void)state;
    make_load(&load, 11);
    shared = load;
    share_beginnings(&shared, 12);
    const struct shape shape = {
        .budget = 4096, .n_page = 10, .max_num_seqs = 1, .no_prefix_cache = true};
    fathom_engine *e = open_shape(&shape, NULL);
    for (int i = 0; i < N_REQUEST; i++) {
        answer_ask(e, &alone[i], &load.requests[i]);
        answers_wait(e, 1);
        answer_ask(e, &alone_shared[i], &shared.requests[i]);
        answers_wait(e, 1);
    }
    fathom_close(e);
    return 0;
}

static void the_same_bits_whatever_runs_beside(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {.budget = 4096, .n_page = 640, .max_num_seqs = 64},
        {.budget = 64, .n_page = 640, .max_num_seqs = 64, .no_prefix_cache = true},
        {.budget = 16, .n_page = 640, .max_num_seqs = 64},
        {.budget = 1, .n_page = 640, .max_num_seqs = 64},
        {.budget = 64, .n_page = 12, .max_num_seqs = 64, .preempts = true},
        {.budget = 16, .n_page = 10, .max_num_seqs = 8, .preempts = true, .no_prefix_cache = true},
        {.budget = 4096, .n_page = 14, .max_num_seqs = 16, .preempts = true},
    };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        uint64_t n_computed = 0;
        fathom_engine *e = open_shape(&shapes[k], &n_computed);
        uint64_t n_needed = 0;
        submit_all(e, &load);
        null_gate_open(&gate);
        answers_wait(e, N_REQUEST);
        for (int i = 0; i < N_REQUEST; i++) {
            answer_expect_same(&answers[i], &alone[i]);
            n_needed += load.requests[i].n_prompt + answers[i].n - 1;
        }
        answers_expect_rest(e);
        fathom_stats s;
        fathom_get_stats(e, &s);
        fathom_close(e);
        uint64_t n_prompt = 0;
        for (int i = 0; i < N_REQUEST; i++) n_prompt += load.requests[i].n_prompt;
        assert_int_equal(s.n_prompt_token, n_prompt); /* recomputing does not count */
        assert_int_equal(n_computed > n_needed, shapes[k].preempts);
        assert_true(n_computed >= n_needed);
    }
}

/* Two rounds: the second finds what the first has left. */
static void the_same_bits_from_shared_pages(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {.budget = 4096, .n_page = 640, .max_num_seqs = 64},
        {.budget = 16, .n_page = 640, .max_num_seqs = 8},
        {.budget = 64, .n_page = 64, .max_num_seqs = 16},
        {.budget = 64, .n_page = 12, .max_num_seqs = 64, .preempts = true},
        {.budget = 16, .n_page = 10, .max_num_seqs = 8, .preempts = true},
    };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        fathom_engine *e = open_shape(&shapes[k], NULL);
        uint64_t n_cached = 0;
        for (int round = 0; round < 2; round++) {
            submit_all(e, &shared);
            null_gate_open(&gate);
            answers_wait(e, N_REQUEST);
            for (int i = 0; i < N_REQUEST; i++) {
                answer_expect_same(&answers[i], &alone_shared[i]);
                n_cached += answers[i].finish.n_cached;
            }
            answers_expect_rest(e);
        }
        fathom_stats s;
        fathom_get_stats(e, &s);
        fathom_close(e);
        assert_int_equal(s.n_prefix_hit_token, n_cached);
        assert_true(n_cached > 0);
    }
}

/* The null runner's drafts are right exactly if every row of its draft layer is. */
static void the_same_bits_with_drafts_and_all_of_them_right(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {.budget = 4096, .n_page = 640, .max_num_seqs = 64, .n_draft = 1},
        {.budget = 64, .n_page = 640, .max_num_seqs = 16, .n_draft = 4},
        {.budget = 16, .n_page = 640, .max_num_seqs = 8, .n_draft = 2, .no_prefix_cache = true},
        {.budget = 3, .n_page = 640, .max_num_seqs = 8, .n_draft = 2},
        {.budget = 64, .n_page = 12, .max_num_seqs = 64, .n_draft = 3},
        {.budget = 16, .n_page = 10, .max_num_seqs = 8, .n_draft = 4},
        {.budget = 128, .n_page = 64, .max_num_seqs = 16, .n_draft = 4, .n_wrong = 3},
        {.budget = 64, .n_page = 12, .max_num_seqs = 64, .n_draft = 2, .n_wrong = 6},
    };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        const struct shape *shape = &shapes[k];
        fathom_engine *e = open_shape(shape, NULL);
        for (int round = 0; round < 2; round++) {
            submit_all(e, &shared);
            null_gate_open(&gate);
            answers_wait(e, N_REQUEST);
            for (int i = 0; i < N_REQUEST; i++) answer_expect_same(&answers[i], &alone_shared[i]);
        }
        answers_expect_rest(e);
        fathom_stats s;
        fathom_get_stats(e, &s);
        fathom_close(e);
        uint64_t n_draft = 0, n_accepted = 0;
        for (uint32_t i = 0; i < FATHOM_DRAFT_MAX; i++) {
            assert_true(i < shape->n_draft || s.n_draft_token[i] == 0);
            n_draft += s.n_draft_token[i];
            n_accepted += s.n_accepted_token[i];
        }
        /* a request that ends leaves drafts that nobody has judged */
        uint64_t n_left = 2 * N_REQUEST * shape->n_draft;
        assert_true(n_accepted > 500 && n_accepted < n_draft);
        assert_int_equal(n_accepted + n_left >= n_draft, shape->n_wrong == 0);
    }
}

static void random_cancels_leave_no_page_behind(void **state)
{
    (void)state;
    const struct shape shape = {.budget = 64, .n_page = 20, .max_num_seqs = 16, .preempts = true};
    uint64_t rng = 5;
    fathom_engine *e = open_shape(&shape, NULL);
    for (int round = 0; round < 5; round++) {
        size_t n_open = N_REQUEST;
        submit_all(e, &load);
        while (n_open > 0) {
            n_open -= answers_take(e, 1);
            if (!null_gate_holds(&gate)) continue;
            const struct answer *a = &answers[rng_below(&rng, N_REQUEST)];
            if (a->id && rng_below(&rng, 8) == 0) fathom_cancel(e, a->id);
            null_gate_let(&gate, 2); /* the engine is never further ahead */
        }
        null_gate_open(&gate);
        uint32_t n_cancelled = 0;
        for (int i = 0; i < N_REQUEST; i++) {
            const struct answer *a = &answers[i];
            assert_true(a->done && a->n <= alone[i].n);
            assert_memory_equal(a->ids, alone[i].ids, a->n * sizeof a->ids[0]);
            n_cancelled += a->finish.finish == FATHOM_FINISH_CANCEL;
        }
        assert_true(n_cancelled > 0 && n_cancelled < N_REQUEST);
        answers_expect_rest(e);
    }
    fathom_close(e);
}

/* ---- several submitting threads, a polling one, one that looks on ---- */

enum { N_THREAD = 4, PER_THREAD = 40 };

struct crowd {
    fathom_engine *e;
    atomic_uint n_accepted;
    atomic_bool all_in;
};

static void *submit_and_cancel(void *arg)
{
    struct crowd *c = arg;
    uint64_t rng = (uint64_t)(uintptr_t)&rng; /* any order will do */
    for (int i = 0; i < PER_THREAD; i++) {
        fathom_request r = load.requests[rng_below(&rng, N_REQUEST)];
        uint64_t id = 0;
        fathom_err err = fathom_submit(c->e, &r, &id, NULL);
        if (err == FATHOM_EBUSY) {
            clock_sleep_us(200);
            continue;
        }
        if (err == FATHOM_OK) atomic_fetch_add(&c->n_accepted, 1);
        if (rng_below(&rng, 4) == 0) fathom_cancel(c->e, id);
        fathom_stats s;
        fathom_get_stats(c->e, &s);
        fathom_wake(c->e);
    }
    return NULL;
}

static void *poll_all(void *arg)
{
    struct crowd *c = arg;
    unsigned n_finished = 0;
    while (!atomic_load(&c->all_in) || n_finished < atomic_load(&c->n_accepted)) {
        fathom_event events[32];
        size_t n = fathom_poll(c->e, events, 32, 10);
        for (size_t i = 0; i < n; i++) n_finished += events[i].kind == FATHOM_EVENT_FINISH;
    }
    return NULL;
}

static void any_thread_may_submit_cancel_and_look(void **state)
{
    (void)state;
    const struct shape shape = {.budget = 128, .n_page = 30, .max_num_seqs = 16, .preempts = true};
    struct crowd c = {.e = open_shape(&shape, NULL)};
    pthread_t submitters[N_THREAD], poller;
    assert_int_equal(pthread_create(&poller, NULL, poll_all, &c), 0);
    for (int i = 0; i < N_THREAD; i++) {
        assert_int_equal(pthread_create(&submitters[i], NULL, submit_and_cancel, &c), 0);
    }
    for (int i = 0; i < N_THREAD; i++) pthread_join(submitters[i], NULL);
    atomic_store(&c.all_in, true);
    pthread_join(poller, NULL);
    assert_true(atomic_load(&c.n_accepted) > 0);
    answers_expect_rest(c.e);
    fathom_close(c.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits_whatever_runs_beside),
        cmocka_unit_test(the_same_bits_from_shared_pages),
        cmocka_unit_test(the_same_bits_with_drafts_and_all_of_them_right),
        cmocka_unit_test(random_cancels_leave_no_page_behind),
        cmocka_unit_test(any_thread_may_submit_cancel_and_look),
    };
    return cmocka_run_group_tests(tests, run_each_alone, NULL);
}

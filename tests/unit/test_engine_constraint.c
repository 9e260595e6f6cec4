/* test_engine_constraint.c - requests under a constraint, over a runner without a model: what is
 * drawn keeps to it, and is the same with drafts, in chunks and after preemption */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/answers.h"
#include "support/null_runner.h"

enum { EOS = 1, N_VOCAB = 1000, N_REQUEST = 12, PERIOD = 7 };

/* Token k of the output is k + the sum of the tokens before it, modulo PERIOD; after n_word tokens
 * only EOS may come. */
struct place {
    uint32_t n;
    uint64_t sum;
};

struct walk {
    struct place now, marked;
    uint32_t n_word;
    bool is_marked;
    bool never; /* allows nothing */
    uint32_t n_destroyed;
};

static bool may_come(const struct walk *w, int32_t id)
{
    if (w->never) return false;
    if (w->now.n >= w->n_word) return id == EOS;
    return id != EOS && (uint64_t)id % PERIOD == (w->now.sum + w->now.n) % PERIOD;
}

static void fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    assert_true(n_word * 32 >= N_VOCAB);
    memset(words, 0, n_word * sizeof *words);
    for (int32_t id = 0; id < N_VOCAB; id++) {
        if (may_come(state, id)) words[id / 32] |= 1u << (id % 32);
    }
}

static bool accept(void *state, int32_t id)
{
    struct walk *w = state;
    if (!may_come(w, id)) return false;
    w->now.n++;
    w->now.sum += (uint64_t)id;
    return true;
}

static void mark(void *state)
{
    struct walk *w = state;
    w->marked = w->now;
    w->is_marked = true;
}

static void go_back(void *state)
{
    struct walk *w = state;
    assert_true(w->is_marked);
    w->now = w->marked;
}

static void destroy(void *state)
{
    ((struct walk *)state)->n_destroyed++;
}

static const fathom_constraint_ops walk_ops = {
    .fill_mask = fill_mask, .accept = accept, .mark = mark, .go_back = go_back, .destroy = destroy};

/* Free up to so many tokens, then END, unless an id that ends it came before; then free again. */
enum { END = 7, ENDS_EVERY = 90 };
struct bound_place {
    uint32_t n;
    bool is_over;
};

struct bound {
    struct bound_place now, marked;
    uint32_t n_max;
};

static bool is_due(const struct bound *b)
{
    return !b->now.is_over && b->now.n >= b->n_max;
}

static void bound_fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    const bool due = is_due(state);
    memset(words, due ? 0 : 0xff, n_word * sizeof *words);
    if (due) words[END / 32] |= 1u << (END % 32);
}

static bool bound_accept(void *state, int32_t id)
{
    struct bound *b = state;
    if (is_due(b) && id != END) return false;
    b->now.is_over |= id % ENDS_EVERY == END;
    b->now.n++;
    return true;
}

static void bound_mark(void *state)
{
    struct bound *b = state;
    b->marked = b->now;
}

static void bound_go_back(void *state)
{
    struct bound *b = state;
    b->now = b->marked;
}

static void bound_destroy(void *state)
{
    ((struct bound *)state)->n_max = UINT32_MAX;
}

static uint32_t bound_n_free(const void *state)
{
    const struct bound *b = state;
    if (b->now.is_over) return UINT32_MAX;
    return b->now.n < b->n_max ? b->n_max - b->now.n : 0;
}

static const fathom_constraint_ops bound_ops = {.fill_mask = bound_fill_mask,
                                                .accept = bound_accept,
                                                .mark = bound_mark,
                                                .go_back = bound_go_back,
                                                .destroy = bound_destroy,
                                                .n_free = bound_n_free};

static struct answer answers[N_REQUEST];
static struct walk walks[N_REQUEST];
static int32_t prompt[100];

static struct null_engine_options defaults(void)
{
    return (struct null_engine_options){.n_vocab = N_VOCAB,
                                        .max_model_len = 256,
                                        .max_num_seqs = 8,
                                        .max_num_batched_tokens = 512,
                                        .max_queued = 24,
                                        .seed = 3,
                                        .runner = {.n_page = 64}};
}

static fathom_request request(uint32_t i)
{
    for (uint32_t k = 0; k < 100; k++) prompt[k] = (int32_t)(10 + k);
    fathom_request r = {.prompt = prompt, .n_prompt = 40 + 5 * i};
    fathom_sampling_init(&r.sampling);
    r.sampling.has_seed = true;
    r.sampling.seed = i;
    r.sampling.temperature = i % 3 == 0 ? 0 : 1;
    r.sampling.max_tokens = 150;
    return r;
}

/* Every other request is free. */
static void run(const struct null_engine_options *o, fathom_stats *stats)
{
    fathom_engine *e = NULL;
    memset(walks, 0, sizeof walks);
    assert_int_equal(null_engine_open(&e, o, NULL), FATHOM_OK);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        fathom_request r = request(i);
        walks[i].n_word = 100 + i;
        if (i % 2 == 0) r.constraint = (fathom_constraint){&walk_ops, &walks[i]};
        answer_ask(e, &answers[i], &r);
    }
    answers_wait(e, N_REQUEST);
    fathom_get_stats(e, stats);
    fathom_close(e);
}

static void expect_kept(void)
{
    for (uint32_t i = 0; i < N_REQUEST; i += 2) {
        struct walk w = {.n_word = 100 + i};
        assert_int_equal(answers[i].finish.finish, FATHOM_FINISH_STOP);
        assert_int_equal(answers[i].n, 100 + i + 1);
        for (uint32_t k = 0; k < answers[i].n; k++) assert_true(accept(&w, answers[i].ids[k]));
        assert_int_equal(walks[i].n_destroyed, 1);
    }
}

static void what_is_drawn_keeps_to_the_constraint(void **state)
{
    (void)state;
    struct null_engine_options o = defaults();
    fathom_stats s;
    run(&o, &s);
    expect_kept();
    uint64_t n_mask = 0;
    for (uint32_t i = 0; i < N_REQUEST; i += 2) n_mask += answers[i].n;
    assert_int_equal(s.n_mask, n_mask); /* one for each token, none for requests without */
}

static void outputs_do_not_depend_on_drafts_chunks_or_preemption(void **state)
{
    (void)state;
    static struct answer plain[N_REQUEST];
    struct null_engine_options o = defaults();
    fathom_stats s;
    run(&o, &s);
    memcpy(plain, answers, sizeof plain);
    for (uint32_t variant = 0; variant < 6; variant++) {
        o = defaults();
        if (variant != 1) o.n_draft = 1 + variant % 4;
        o.runner.n_wrong = variant % 3 * 2;
        if (variant != 0) o.max_num_batched_tokens = 24;
        if (variant >= 2) o.runner.n_page = 6;
        o.no_prefix_cache = variant == 3;
        run(&o, &s);
        if (variant >= 2) assert_true(s.n_preempted > 0);
        if (o.n_draft) assert_true(s.n_accepted_token[0] > 0);
        expect_kept();
        for (uint32_t i = 0; i < N_REQUEST; i++) {
            assert_int_equal(answers[i].n, plain[i].n);
            assert_memory_equal(answers[i].ids, plain[i].ids, plain[i].n * sizeof(int32_t));
        }
    }
}

static const uint32_t bound_of[N_REQUEST] = {0, 1, 2, 23, 24, 25, 39, 63, 64, 65, 100, 149};

static void run_bound(const struct null_engine_options *o, bool is_bound, fathom_stats *stats)
{
    static struct bound bounds[N_REQUEST];
    fathom_engine *e = NULL;
    assert_int_equal(null_engine_open(&e, o, NULL), FATHOM_OK);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        fathom_request r = request(i);
        r.sampling.ignore_eos = true;
        bounds[i] = (struct bound){.n_max = bound_of[i]};
        if (is_bound) r.constraint = (fathom_constraint){&bound_ops, &bounds[i]};
        answer_ask(e, &answers[i], &r);
    }
    answers_wait(e, N_REQUEST);
    fathom_get_stats(e, stats);
    fathom_close(e);
    for (uint32_t i = 0; is_bound && i < N_REQUEST; i++)
        assert_int_equal(bounds[i].n_max, UINT32_MAX);
}

/* Where the first id stands that ends it by itself, up to `n`. */
static uint32_t find_end(const struct answer *a, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a->ids[i] % ENDS_EVERY != END) i++;
    return i;
}

/* The one token alone is another one, and costs a mask where none is guessed; what follows does not
 * depend on how it is run. Steps are launched ahead of all the others. */
static void what_may_be_anything_needs_no_mask(void **state)
{
    (void)state;
    static struct answer plain[N_REQUEST], bound[N_REQUEST];
    struct null_engine_options o = defaults();
    fathom_stats s;
    uint32_t n_forced = 0;
    run_bound(&o, false, &s);
    memcpy(plain, answers, sizeof plain);
    run_bound(&o, true, &s);
    memcpy(bound, answers, sizeof bound);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        uint32_t at = find_end(&plain[i], bound_of[i]);
        const bool is_forced = at == bound_of[i];
        assert_int_equal(bound[i].n, 150);
        assert_memory_equal(bound[i].ids, plain[i].ids, at * sizeof(int32_t));
        if (is_forced) assert_int_equal(bound[i].ids[at], END);
        if (!is_forced) assert_memory_equal(bound[i].ids, plain[i].ids, 150 * sizeof(int32_t));
        n_forced += is_forced;
    }
    assert_int_equal(s.n_mask, n_forced);
    assert_true(n_forced >= 4 && n_forced < N_REQUEST);
    for (uint32_t variant = 0; variant < 9; variant++) {
        uint32_t n_ahead = 0;
        o = defaults();
        if (variant < 6) o.n_draft = 1 + variant % 4;
        if (variant >= 6) o.runner.max_flight = variant - 4;
        o.runner.n_ahead = &n_ahead;
        o.runner.n_wrong = variant % 3 * 2;
        if (variant % 4 != 0) o.max_num_batched_tokens = 24;
        if (variant % 2 != 0) o.runner.n_page = 6;
        run_bound(&o, true, &s);
        if (variant % 2 != 0) assert_true(s.n_preempted > 0);
        assert_true(o.n_draft ? s.n_accepted_token[0] > 0 : n_ahead > 0);
        assert_true(s.n_mask <= 30 * n_forced); /* of guesses near the one token too */
        for (uint32_t i = 0; i < N_REQUEST; i++) answer_expect_same(&answers[i], &bound[i]);
    }
}

static void a_constraint_that_allows_nothing_ends_its_request_alone(void **state)
{
    (void)state;
    fathom_engine *e = NULL;
    struct null_engine_options o = defaults();
    o.n_draft = 2;
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    memset(walks, 0, sizeof walks);
    for (uint32_t i = 0; i < 2; i++) {
        fathom_request r = request(i);
        walks[i].never = i == 0;
        walks[i].n_word = 9;
        r.constraint = (fathom_constraint){&walk_ops, &walks[i]};
        answer_ask(e, &answers[i], &r);
    }
    answers_wait(e, 2);
    assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_CONSTRAINT);
    assert_int_equal(answers[1].finish.finish, FATHOM_FINISH_STOP);
    assert_int_equal(answers[1].n, 10);
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_page_free, s.n_page);
    assert_int_equal(s.n_backlog_token, 0);
    fathom_close(e);
    assert_int_equal(walks[0].n_destroyed, 1);
    assert_int_equal(walks[1].n_destroyed, 1);
}

static void a_refused_request_leaves_the_constraint_with_its_owner(void **state)
{
    (void)state;
    fathom_engine *e = NULL;
    struct null_engine_options o = defaults();
    o.max_queued = 0;
    o.max_num_seqs = 1;
    o.runner.step_us = 1000;
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    memset(walks, 0, sizeof walks);
    fathom_request r = request(0);
    r.constraint = (fathom_constraint){&walk_ops, &walks[0]};
    walks[0].n_word = 100;
    answer_ask(e, &answers[0], &r);
    r.constraint.state = &walks[1];
    assert_int_equal(answer_submit(e, &answers[1], &r, NULL), FATHOM_EBUSY);
    r.sampling.min_p = 2;
    assert_int_equal(answer_submit(e, &answers[1], &r, NULL), FATHOM_EINVAL);
    assert_int_equal(walks[1].n_destroyed, 0);
    fathom_cancel(e, answers[0].id);
    fathom_close(e); /* with the request in it */
    assert_int_equal(walks[0].n_destroyed, 1);
}

static void min_tokens_and_a_constraint_that_has_ended_agree(void **state)
{
    (void)state;
    fathom_engine *e = NULL;
    struct null_engine_options o = defaults();
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    memset(walks, 0, sizeof walks);
    fathom_request r = request(1);
    r.sampling.min_tokens = 20;
    walks[0].n_word = 30;
    r.constraint = (fathom_constraint){&walk_ops, &walks[0]};
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    assert_int_equal(answers[0].finish.finish, FATHOM_FINISH_STOP);
    assert_int_equal(answers[0].n, 31);
    fathom_close(e);
}

/* Every third request is cancelled, twice, after some of its tokens; what the others say is what
 * they say without that. */
static void cancelled_midway_a_constraint_is_given_back_once(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        fathom_engine *e = NULL;
        struct null_engine_options o = defaults();
        o.n_draft = variant;
        if (variant >= 2) o.runner.n_page = 8;
        o.runner.step_us = 100;
        assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
        memset(walks, 0, sizeof walks);
        for (uint32_t i = 0; i < N_REQUEST; i++) {
            fathom_request r = request(i);
            r.sampling.temperature = 1;
            r.sampling.min_tokens = 60;
            walks[i].n_word = 100 + i;
            r.constraint = (fathom_constraint){&walk_ops, &walks[i]};
            answer_ask(e, &answers[i], &r);
        }
        for (size_t n_done = 0; n_done < N_REQUEST;) {
            n_done += answers_take(e, 20);
            for (uint32_t i = 0; i < N_REQUEST; i += 3) {
                if (answers[i].n >= 2 + 3 * i) fathom_cancel(e, answers[i].id);
            }
        }
        fathom_stats s;
        fathom_get_stats(e, &s);
        assert_int_equal(s.n_page_free, s.n_page);
        assert_int_equal(s.n_backlog_token, 0);
        fathom_close(e);
        for (uint32_t i = 0; i < N_REQUEST; i++) {
            bool cancelled = i % 3 == 0;
            assert_int_equal(walks[i].n_destroyed, 1);
            assert_int_equal(answers[i].finish.finish,
                             cancelled ? FATHOM_FINISH_CANCEL : FATHOM_FINISH_STOP);
            if (!cancelled) assert_int_equal(answers[i].n, 100 + i + 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_drawn_keeps_to_the_constraint),
        cmocka_unit_test(outputs_do_not_depend_on_drafts_chunks_or_preemption),
        cmocka_unit_test(what_may_be_anything_needs_no_mask),
        cmocka_unit_test(a_constraint_that_allows_nothing_ends_its_request_alone),
        cmocka_unit_test(a_refused_request_leaves_the_constraint_with_its_owner),
        cmocka_unit_test(min_tokens_and_a_constraint_that_has_ended_agree),
        cmocka_unit_test(cancelled_midway_a_constraint_is_given_back_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

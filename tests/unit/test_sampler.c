/* test_sampler.c - the sample rows of hand-made plans */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

static const struct model_limits limits = {
    .max_token = 64, .max_request = 4, .max_context = 128, .max_logit_row = 12};
static const struct sequence_limits sequence_limits = {
    .max_model_len = 128, .n_vocab = 50, .n_vocab_used = 48, .eos_ids = {1, 2}, .n_eos = 2};
static const int32_t prompt[] = {10, 20, 30};
static const int32_t stop_ids[] = {7};

struct fixture {
    struct batch_layout l;
    char *host;   /* written */
    char *device; /* holds what the step says is to be copied, and nothing else */
    struct plan_entry entries[4];
    struct plan plan;
    struct sample_shape step;
    struct sample_args args;
};

static int set_up(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    batch_layout_init(&f.l, &limits, 50);
    f.host = mem_alloc_aligned(256, f.l.n_bytes);
    f.device = mem_alloc_aligned(256, f.l.n_bytes);
    f.plan.entries = f.entries;
    *state = &f;
    return f.host && f.device ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (uint32_t i = 0; i < f->plan.n_entry; i++)
        sequence_destroy(sequence_of(f->entries[i].request));
    mem_free(f->host);
    mem_free(f->device);
    return 0;
}

/* A running request with n_output tokens of output, all 9, and an entry for it. */
static struct sequence *add(struct fixture *f, const fathom_sampling *s, uint32_t n_output,
                            bool draws)
{
    fathom_request r = {.prompt = prompt, .n_prompt = 3, .sampling = *s};
    struct sequence *j = NULL;
    assert_int_equal(sequence_create(&j, &r, &sequence_limits, 0, NULL), FATHOM_OK);
    request_enter(&j->request, 0);
    request_admit(&j->request, 0, 0);
    for (uint32_t i = 0; i < n_output; i++) (void)request_push(&j->request, 9);
    f->entries[f->plan.n_entry++] = (struct plan_entry){
        .request = &j->request, .first = j->request.n_token - 1, .n_token = 1, .draws = draws};
    f->plan.n_draw += draws;
    return j;
}

static void send(struct fixture *f, size_t offset, size_t n_bytes)
{
    memcpy(f->device + offset, f->host + offset, n_bytes);
}

/* The rows as a device finds them that is given the step's shape and bytes. */
static const struct sample_row *build(struct fixture *f)
{
    memset(f->device, 0x55, f->l.n_bytes);
    sampler_build(&f->l, &f->plan, f->host, &f->step);
    send(f, 0, f->l.bias);
    for (int i = 0; i < SAMPLE_EXTRA_N; i++) {
        send(f, f->step.extras[i].offset, f->step.extras[i].n_bytes);
    }
    send(f, f->step.masks.offset, f->step.masks.n_bytes);
    memset(f->host, 0x55, f->l.n_bytes);
    sample_locate(&f->l, &f->step, f->device, &f->args);
    return f->args.rows;
}

static void only_entries_that_draw_have_rows(void **state)
{
    struct fixture *f = *state;
    fathom_sampling s;
    fathom_sampling_init(&s);
    s.temperature = 0.5f;
    s.has_seed = true;
    s.seed = 1234;
    add(f, &s, 0, false);
    add(f, &s, 4, true);
    const struct sample_row *rows = build(f);
    assert_int_equal(f->args.n_row, 1);
    assert_int_equal(rows[0].logit_row, 0);
    assert_int_equal(rows[0].position, 7); /* of the token being drawn */
    assert_int_equal(rows[0].seed, 1234);
    assert_true(rows[0].temperature == 0.5f);
    assert_int_equal(rows[0].mask_offset, SAMPLE_NONE);
    assert_int_equal(rows[0].n_vocab_used, 48);
    /* nothing else is wanted, so nothing else is copied */
    assert_null(f->args.history);
    assert_null(f->args.bias);
    assert_null(f->args.ban);
    assert_int_equal(f->step.n_top, 0);
    for (int i = 0; i < SAMPLE_EXTRA_N; i++) assert_int_equal(f->step.extras[i].n_bytes, 0);
}

static void min_tokens_bans_stops_only_as_long_as_needed(void **state)
{
    struct fixture *f = *state;
    fathom_sampling s;
    fathom_sampling_init(&s);
    s.min_tokens = 3;
    s.stop_ids = stop_ids;
    s.n_stop_id = 1;
    add(f, &s, 2, true);
    add(f, &s, 3, true);
    const struct sample_row *rows = build(f);
    assert_int_equal(rows[0].n_ban, 3);
    const int32_t want[] = {7, 1, 2};
    assert_memory_equal(f->args.ban + rows[0].ban_offset, want, sizeof want);
    assert_int_equal(rows[1].n_ban, 0);
    assert_int_equal(f->step.extras[SAMPLE_BAN].n_bytes, sizeof want);
    assert_int_equal(f->step.extras[SAMPLE_BAN].offset, f->l.ban);
}

/* A row for the last known token and one for each draft: as if the drafts before were output. */
static void drafts_have_rows_of_their_own(void **state)
{
    struct fixture *f = *state;
    fathom_sampling s;
    fathom_sampling_init(&s);
    s.frequency_penalty = 1;
    s.min_tokens = 3;
    struct sequence *q = add(f, &s, 1, true);
    struct sequence *other = add(f, &s, 5, true);
    q->request.ids[4] = 41;
    q->request.ids[5] = 42;
    f->entries[0].n_draft = q->request.n_draft = 2;
    f->entries[0].n_token += 2;
    f->plan.n_draw += 2;
    const struct sample_row *rows = build(f);
    assert_int_equal(f->args.n_row, 4);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rows[i].logit_row, i);
        assert_int_equal(rows[i].position, 4 + i);
        assert_int_equal(rows[i].n_prompt, 3);
        assert_int_equal(rows[i].n_output, 1 + i);
        assert_int_equal(rows[i].n_ban, i < 2 ? 2 : 0); /* two of the three are drawn too early */
        assert_int_equal(rows[i].history_offset, 0);
    }
    const int32_t history[] = {10, 20, 30, 9, 41, 42};
    assert_memory_equal(f->args.history, history, sizeof history);
    assert_int_equal(rows[3].logit_row, 3);
    assert_int_equal(rows[3].history_offset, 6);
    assert_int_equal(rows[3].position, other->request.n_token);
    assert_int_equal(f->step.extras[SAMPLE_HISTORY].n_bytes, (6 + 8) * sizeof(int32_t));
    assert_int_equal(f->step.extras[SAMPLE_BAN].n_bytes, 2 * sizeof(int32_t));
}

/* Rows that draw come first; each row knows its logits. */
static void prompt_tokens_are_given_ones_behind_the_draws(void **state)
{
    struct fixture *f = *state;
    fathom_sampling s;
    fathom_sampling_init(&s);
    s.temperature = 0.5f;
    s.frequency_penalty = 1;
    s.prompt_logprobs = true;
    s.n_prompt_top_logprobs = 7;
    struct sequence *q = add(f, &s, 0, true);
    f->entries[0].n_score = f->plan.n_score = q->request.n_to_score;
    assert_int_equal(f->plan.n_score, 2);
    s.prompt_logprobs = false;
    add(f, &s, 1, true);
    const struct sample_row *rows = build(f);
    assert_int_equal(f->args.n_row, 4);
    assert_int_equal(rows[0].logit_row, 2);
    assert_int_equal(rows[0].is_given, 0);
    assert_int_equal(rows[0].n_top, 0);
    assert_int_equal(rows[1].logit_row, 3);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(rows[2 + i].logit_row, i);
        assert_int_equal(rows[2 + i].is_given, 1);
        assert_int_equal(rows[2 + i].given_id, prompt[1 + i]);
        assert_int_equal(rows[2 + i].want_logprob, 1);
        assert_int_equal(rows[2 + i].n_top, 7);
        assert_int_equal(rows[2 + i].n_vocab_used, 48);
        assert_int_equal(rows[2 + i].n_prompt + rows[2 + i].n_output, 0);
    }
    assert_int_equal(f->step.n_top, 7);
}

static void ignored_eos_is_never_banned(void **state)
{
    struct fixture *f = *state;
    fathom_sampling s;
    fathom_sampling_init(&s);
    s.ignore_eos = true;
    add(f, &s, 40, true);
    s.min_tokens = 50;
    s.stop_ids = stop_ids;
    s.n_stop_id = 1;
    add(f, &s, 40, true);
    const struct sample_row *rows = build(f);
    assert_int_equal(rows[0].n_ban, 0);
    assert_int_equal(rows[1].n_ban, 1);
    assert_int_equal(f->args.ban[rows[1].ban_offset], 7);
}

static void bias_rows_lie_one_after_the_other(void **state)
{
    struct fixture *f = *state;
    const fathom_bias bias[] = {{3, 1}, {4, -100}};
    fathom_sampling s;
    fathom_sampling_init(&s);
    s.bias = bias;
    s.n_bias = 2;
    s.n_top_logprobs = 5;
    add(f, &s, 0, true);
    s.n_bias = 1;
    s.n_top_logprobs = 2;
    add(f, &s, 0, true);
    const struct sample_row *rows = build(f);
    assert_int_equal(rows[1].bias_offset, 2);
    assert_int_equal(f->args.bias[1].id, 4);
    assert_true(f->args.bias[1].bias == -100);
    assert_int_equal(f->args.bias[2].id, 3);
    assert_int_equal(f->step.extras[SAMPLE_BIAS].n_bytes, 3 * sizeof(struct sample_bias));
    assert_int_equal(f->step.n_top, 5);
}

static void history_goes_along_with_a_penalty(void **state)
{
    struct fixture *f = *state;
    fathom_sampling s;
    fathom_sampling_init(&s);
    add(f, &s, 5, true);
    s.presence_penalty = 0.5f;
    add(f, &s, 2, true);
    s.presence_penalty = 0;
    s.frequency_penalty = -1;
    add(f, &s, 0, true);
    s.frequency_penalty = 0;
    s.repetition_penalty = 1.1f;
    add(f, &s, 1, true);
    const struct sample_row *rows = build(f);
    assert_int_equal(rows[0].n_prompt + rows[0].n_output, 0);
    assert_int_equal(rows[1].n_prompt, 3);
    assert_int_equal(rows[1].n_output, 2);
    assert_int_equal(rows[2].history_offset, 5);
    assert_int_equal(rows[2].n_output, 0);
    assert_int_equal(rows[3].history_offset, 8);
    const int32_t want[] = {10, 20, 30, 9, 9, 10, 20, 30, 10, 20, 30, 9};
    assert_memory_equal(f->args.history, want, sizeof want);
    assert_int_equal(f->step.extras[SAMPLE_HISTORY].n_bytes, sizeof want);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(only_entries_that_draw_have_rows),
        WITH(min_tokens_bans_stops_only_as_long_as_needed),
        WITH(drafts_have_rows_of_their_own),
        WITH(prompt_tokens_are_given_ones_behind_the_draws),
        WITH(ignored_eos_is_never_banned),
        WITH(bias_rows_lie_one_after_the_other),
        WITH(history_goes_along_with_a_penalty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

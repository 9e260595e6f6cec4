/* test_op_sample.c - one case for each step of op_sample.h, and the distribution */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

enum { V = 1024, ROWS = 40 };

/* Rows to sample, and everything that their offsets point into. */
struct sampling {
    struct backend_config c;
    struct gen *g;
    struct rig ref, dev;
    float *logits; /* [ROWS][V] */
    struct sample_row row[ROWS];
    uint32_t n_row;
    int32_t history[256];
    struct sample_bias bias[64];
    int32_t ban[2 * V];
    uint32_t mask[4 * V / 32];
};

struct result {
    int32_t ids[ROWS];
    float logprobs[ROWS];
    uint32_t ranks[ROWS];
    int32_t top_ids[ROWS][SAMPLE_TOP_MAX];
    float top_logprobs[ROWS][SAMPLE_TOP_MAX];
};

static void open_sampling(struct sampling *s, uint32_t n_row)
{
    memset(s, 0, sizeof *s);
    s->g = gen_create(131);
    gen_config(&s->c, ACT_F32, KV_TYPE_F32, false);
    rig_open_pair(&s->ref, &s->dev, &s->c);
    s->logits = gen_floats(s->g, (size_t)ROWS * V, 2);
    s->n_row = n_row;
    for (uint32_t i = 0; i < n_row; i++)
        s->row[i] = (struct sample_row){.logit_row = i,
                                        .top_p = 1,
                                        .repetition_penalty = 1,
                                        .seed = 7,
                                        .position = i,
                                        .mask_offset = SAMPLE_NONE,
                                        .n_vocab_used = V};
}

static void close_sampling(struct sampling *s)
{
    rig_close_pair(&s->ref, &s->dev);
    gen_destroy(s->g);
}

static void run(struct sampling *s, struct rig *r, struct result *out)
{
    rig_write(r, BUFFER_LOGITS, ROWS, V, s->logits);
    memset(out, 0xff, sizeof *out);
    void *rows = rig_put(r, s->row, s->n_row * sizeof *s->row);
    void *history = rig_put(r, s->history, sizeof s->history);
    void *bias = rig_put(r, s->bias, sizeof s->bias);
    void *ban = rig_put(r, s->ban, sizeof s->ban);
    void *mask = rig_put(r, s->mask, sizeof s->mask);
    struct result *device = rig_put(r, out, sizeof *out);
    struct sample_args args = {.logits = r->buffer[BUFFER_LOGITS],
                               .n_row = s->n_row,
                               .rows = rows,
                               .history = history,
                               .bias = bias,
                               .ban = ban,
                               .mask = mask,
                               .ids = device->ids,
                               .logprobs = device->logprobs,
                               .ranks = device->ranks,
                               .top_ids = device->top_ids[0],
                               .top_logprobs = device->top_logprobs[0]};
    op_ok(r, r->ops->sample(r->b, &args), "sample");
    rig_get(r, out, device, sizeof *out);
    rig_drop(r, rows);
    rig_drop(r, history);
    rig_drop(r, bias);
    rig_drop(r, ban);
    rig_drop(r, mask);
    rig_drop(r, device);
}

/* Both backends; the same ids and nearly the same log-probabilities. */
static void run_both(struct sampling *s, struct result *out)
{
    struct result want;
    run(s, &s->ref, &want);
    run(s, &s->dev, out);
    for (uint32_t i = 0; i < s->n_row; i++) {
        assert_int_equal(out->ids[i], want.ids[i]);
        if (s->row[i].want_logprob && isfinite(want.logprobs[i]))
            assert_true(fabsf(out->logprobs[i] - want.logprobs[i]) < 1e-4f);
        assert_int_equal(out->ranks[i], want.ranks[i]);
        for (uint32_t k = 0; k < s->row[i].n_top; k++) {
            assert_int_equal(out->top_ids[i][k], want.top_ids[i][k]);
            if (isfinite(want.top_logprobs[i][k]))
                assert_true(fabsf(out->top_logprobs[i][k] - want.top_logprobs[i][k]) < 1e-4f);
        }
    }
}

static int32_t argmax(const float *x, uint32_t n)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] > x[best]) best = (int32_t)i;
    }
    return best;
}

static double logsumexp(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i]);
    return log(sum);
}

static void test_greedy_and_logprobs(void **state)
{
    (void)state;
    struct sampling s;
    struct result out;
    open_sampling(&s, 6);
    for (uint32_t i = 0; i < 6; i++) s.row[i].want_logprob = 1, s.row[i].n_top = i * 4;
    s.row[1].n_vocab_used = 100; /* the rest is never drawn; the sum is over all */
    s.logits[1 * V + 100] = 5;
    s.logits[2 * V + 3] = s.logits[2 * V + 700] = 20; /* a tie */
    s.logits[3 * V + 9] = NAN;
    s.row[4].logit_row = 2;
    run_both(&s, &out);
    for (uint32_t i = 0; i < 6; i++) {
        const float *x = s.logits + (size_t)s.row[i].logit_row * V;
        if (i == 3) continue;
        double lse = logsumexp(x, V);
        assert_int_equal(out.ids[i], argmax(x, s.row[i].n_vocab_used));
        assert_true(fabs((double)out.logprobs[i] - ((double)x[out.ids[i]] - lse)) < 1e-4);
        for (uint32_t k = 0; k < s.row[i].n_top; k++) {
            assert_true(
                fabs((double)out.top_logprobs[i][k] - ((double)x[out.top_ids[i][k]] - lse)) < 1e-4);
            if (k > 0) assert_true(x[out.top_ids[i][k]] <= x[out.top_ids[i][k - 1]]);
        }
    }
    assert_int_equal(out.ids[2], 3);
    assert_int_equal(out.ids[4], 3);
    assert_int_equal(out.top_ids[2][0], 3);
    assert_int_equal(out.top_ids[2][1], 700);
    assert_int_not_equal(out.ids[3], 9);
    close_sampling(&s);
}

/* Nothing is drawn for a given token: the shape of the row does not count, only the raw logits. */
static void test_given_tokens(void **state)
{
    (void)state;
    struct sampling s;
    struct result out;
    open_sampling(&s, 6);
    for (uint32_t i = 0; i < 6; i++) {
        s.row[i].want_logprob = 1;
        s.row[i].n_top = 3;
        if (i == 0) continue; /* one that draws comes first */
        s.row[i].is_given = 1;
        s.row[i].given_id = (int32_t)(i * 200);
        s.row[i].temperature = 1;
        s.row[i].n_ban = 1;
        s.ban[0] = (int32_t)(i * 200);
    }
    s.logits[1 * V + 200] = 50;                       /* the likeliest */
    s.logits[2 * V + 7] = s.logits[2 * V + 400] = 40; /* a tie: the lower id comes first */
    s.logits[3 * V + 600] = NAN;                      /* impossible */
    s.row[4].n_vocab_used = 700;                      /* never drawn, and as likely as it is */
    s.logits[4 * V + 800] = 50;
    run_both(&s, &out);
    for (uint32_t i = 1; i < 6; i++) assert_int_equal(out.ids[i], i * 200);
    assert_int_equal(out.ranks[0], 1);
    assert_int_equal(out.ranks[1], 1);
    assert_int_equal(out.top_ids[1][0], 200);
    assert_int_equal(out.ranks[2], 2);
    assert_int_equal(out.ranks[3], V);
    assert_true(out.logprobs[3] == -INFINITY);
    assert_int_equal(out.ranks[4], 1);
    assert_int_equal(out.top_ids[4][0], 800);
    assert_true(out.logprobs[4] > -1e-3f && out.top_logprobs[4][0] == out.logprobs[4]);
    const float *x = s.logits + 5 * V;
    double lse = logsumexp(x, V);
    assert_true(fabs((double)out.logprobs[5] - ((double)x[1000] - lse)) < 1e-4);
    uint32_t rank = 1;
    for (uint32_t i = 0; i < V; i++) rank += x[i] > x[1000];
    assert_int_equal(out.ranks[5], rank);
    close_sampling(&s);
}

static void test_mask_ban_bias(void **state)
{
    (void)state;
    struct sampling s;
    struct result out;
    open_sampling(&s, 8);
    uint32_t words = V / 32;
    s.mask[70 / 32] = 1u << 70 % 32; /* row 0: only 70 */
    s.row[0].mask_offset = 0;
    s.mask[words + 2] = 0xffu; /* row 1: 64 .. 71, of which 64 .. 70 are banned */
    s.row[1].mask_offset = words;
    for (int i = 0; i < 7; i++) s.ban[i] = 64 + i;
    s.row[1].n_ban = 7;
    s.row[2].mask_offset = words; /* all that is allowed is banned: the lowest allowed */
    for (int i = 0; i < 8; i++) s.ban[16 + i] = 64 + i;
    s.row[2].ban_offset = 16, s.row[2].n_ban = 8;
    for (int i = 0; i < V; i++) s.ban[V + i] = i;
    s.row[3].ban_offset = V, s.row[3].n_ban = V; /* all is banned, no mask: 0 */
    s.row[4].mask_offset = 2 * words;            /* nothing is allowed: 0 */
    s.bias[5] = (struct sample_bias){500, 100};
    s.row[5].bias_offset = 5, s.row[5].n_bias = 1; /* lifted over all */
    s.bias[6] = (struct sample_bias){64, 100};
    s.row[6].bias_offset = 6, s.row[6].n_bias = 1; /* a bias does not lift a ban */
    s.row[6].n_ban = 1;
    s.bias[7] = (struct sample_bias){argmax(s.logits + 7 * V, V), -100};
    s.row[7].bias_offset = 7, s.row[7].n_bias = 1;
    for (uint32_t i = 0; i < 8; i++) s.row[i].want_logprob = 1;
    run_both(&s, &out);
    assert_int_equal(out.ids[0], 70);
    assert_int_equal(out.ids[1], 71);
    assert_int_equal(out.ids[2], 64);
    assert_int_equal(out.ids[3], 0);
    assert_int_equal(out.ids[4], 0);
    assert_int_equal(out.ids[5], 500);
    assert_int_not_equal(out.ids[6], 64);
    assert_int_not_equal(out.ids[7], s.bias[7].id);
    /* log-probabilities are of the raw logits */
    double lse = logsumexp(s.logits + 5 * V, V);
    assert_true(fabs((double)out.logprobs[5] - ((double)s.logits[5 * V + 500] - lse)) < 1e-4);
    close_sampling(&s);
}

static void test_penalties(void **state)
{
    (void)state;
    struct sampling s;
    struct result out;
    open_sampling(&s, 7);
    for (uint32_t i = 0; i < 7; i++) {
        float *x = s.logits + (size_t)i * V;
        for (int k = 0; k < V; k++) x[k] = -8;
        x[10] = 4, x[11] = 3, x[12] = 2; /* 10 wins unless it is punished */
        s.row[i].history_offset = 8;
    }
    const int32_t history[] = {10, 20, 20, 10, 10, 11};
    memcpy(s.history + 8, history, sizeof history);
    for (uint32_t i = 0; i < 7; i++) s.row[i].n_prompt = 1, s.row[i].n_output = 5;
    s.row[0].repetition_penalty = 1.5f;                        /* 10: 2.67, 11: 2, 12: 2 */
    s.row[1].repetition_penalty = 3;                           /* 10: 1.33, 11: 1, 12: 2 */
    s.row[2].presence_penalty = 1.5f;                          /* 10: 2.5, 11: 1.5, 12: 2 */
    s.row[3].frequency_penalty = 1.2f;                         /* 10: 1.6, 11: 1.8, 12: 2 */
    s.row[4].n_output = 0, s.row[4].presence_penalty = 100;    /* the prompt is not punished */
    s.row[5].n_output = 0, s.row[5].repetition_penalty = 1.5f; /* here it is: 10: 2.67, 11: 3 */
    for (int k = 0; k < V; k++) s.logits[6 * V + k] = -8;      /* negative logits are multiplied */
    s.logits[6 * V + 10] = -1, s.logits[6 * V + 12] = -1.5f;
    s.row[6].repetition_penalty = 2;
    run_both(&s, &out);
    const int32_t want[] = {10, 12, 10, 12, 10, 11, 12};
    for (int i = 0; i < 7; i++) assert_int_equal(out.ids[i], want[i]);
    close_sampling(&s);
}

/* Draws ROWS positions at a time and counts; every draw must be one of the first `n_allowed` ids of
 * the descending order, and each of those must come. */
static void expect_support(struct sampling *s, uint32_t n_allowed)
{
    struct result out;
    bool seen[V] = {false};
    const float *x = s->logits;
    for (int round = 0; round < (op_wants_few() ? 2 : 4); round++) {
        for (uint32_t i = 0; i < s->n_row; i++) s->row[i].position = (uint64_t)round * ROWS + i;
        run_both(s, &out);
        for (uint32_t i = 0; i < s->n_row; i++) {
            uint32_t n_better = 0, id = (uint32_t)out.ids[i];
            for (uint32_t k = 0; k < V; k++) n_better += x[k] > x[id] || (x[k] == x[id] && k < id);
            if (n_better >= n_allowed) fail_msg("drew the %u-th of %u", n_better, n_allowed);
            seen[n_better] = true;
        }
    }
    for (uint32_t k = 0; k < n_allowed; k++) assert_true(seen[k]);
}

static void test_cutoffs(void **state)
{
    (void)state;
    struct sampling s;
    open_sampling(&s, ROWS);
    /* probabilities 0.3 0.3 0.2 0.1 0.1 of ids 900 .. 904, nothing elsewhere */
    const double p[] = {0.3, 0.3, 0.2, 0.1, 0.1};
    for (int k = 0; k < V; k++) s.logits[k] = -60;
    for (int k = 0; k < 5; k++) s.logits[900 + k] = (float)log(p[k]);
    for (uint32_t i = 0; i < ROWS; i++) s.row[i].logit_row = 0, s.row[i].temperature = 1;
    const struct {
        int32_t top_k;
        float top_p, min_p;
        uint32_t n_allowed;
    } cases[] = {
        {0, 1, 0, 5},     {1, 1, 0, 1},     {2, 1, 0, 2},     {4, 1, 0, 4},     {-1, 0.5f, 0, 2},
        {0, 0.29f, 0, 1}, {0, 0.65f, 0, 3}, {0, 0.85f, 0, 4}, {0, 1e-6f, 0, 1}, {0, 1, 0.5f, 3},
        {0, 1, 0.9f, 2},  {0, 1, 0.2f, 5},  {3, 0.7f, 0, 2},  {4, 1, 0.5f, 3},  {0, 0.95f, 0.5f, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint32_t k = 0; k < ROWS; k++) {
            s.row[k].top_k = cases[i].top_k;
            s.row[k].top_p = cases[i].top_p;
            s.row[k].min_p = cases[i].min_p;
        }
        expect_support(&s, cases[i].n_allowed);
    }
    close_sampling(&s);
}

/* The draw is keyed: rows that share (seed, position) and logits draw the same, wherever they
 * stand; and the Gumbel rule, written out. */
static void test_keyed_draws(void **state)
{
    (void)state;
    struct sampling s;
    struct result out, again;
    open_sampling(&s, ROWS);
    for (uint32_t i = 0; i < ROWS; i++) {
        s.row[i].temperature = 0.7f;
        s.row[i].seed = i % 3;
        s.row[i].position = i / 10;
        s.row[i].logit_row = 5;
    }
    run_both(&s, &out);
    run(&s, &s.dev, &again);
    op_same_bits("the same draws", &out.ids, &again.ids, s.n_row * sizeof *out.ids);
    for (uint32_t i = 0; i < ROWS; i++) {
        double best_value = -INFINITY;
        int32_t best = 0;
        for (uint32_t k = 0; k < V; k++) {
            double u = (double)rng_unit(rng_mix(s.row[i].seed, s.row[i].position, k));
            double value = (double)(s.logits[5 * V + k] / 0.7f) - log(-log(u));
            if (value > best_value) best_value = value, best = (int32_t)k;
        }
        assert_int_equal(out.ids[i], best);
    }
    close_sampling(&s);
}

/* What one row does to its logits is not seen by another row of the same ones. */
static void test_shared_logits(void **state)
{
    (void)state;
    struct sampling s;
    struct result alone, shared;
    open_sampling(&s, ROWS);
    for (uint32_t i = 1; i < ROWS; i++) memcpy(s.logits + (size_t)i * V, s.logits, V * 4);
    for (int k = 0; k < 8; k++) s.bias[k] = (struct sample_bias){k * 3, 5};
    for (int k = 0; k < 8; k++) s.ban[k] = k * 5;
    for (uint32_t i = 0; i < ROWS; i++) {
        s.row[i].want_logprob = 1;
        s.row[i].temperature = i % 3 ? 0.8f : 0;
        s.row[i].n_bias = i % 2 * 8;
        s.row[i].n_ban = i % 4 < 2 ? 8 : 0;
    }
    run_both(&s, &alone);
    for (uint32_t i = 0; i < ROWS; i++) s.row[i].logit_row = 7;
    run_both(&s, &shared);
    op_same_bits("ids", &shared.ids, &alone.ids, sizeof alone.ids);
    op_same_bits("log-probabilities", &shared.logprobs, &alone.logprobs, sizeof alone.logprobs);
    close_sampling(&s);
}

/* Thousands of draws from four ids: frequencies within five standard deviations. */
static void test_distribution(void **state)
{
    (void)state;
    const uint64_t n_round = op_wants_few() ? 10 : 100;
    struct sampling s;
    struct result out;
    uint32_t count[4] = {0};
    const double p[] = {0.5, 0.25, 0.2, 0.05};
    open_sampling(&s, ROWS);
    for (int k = 0; k < V; k++) s.logits[k] = -80;
    for (int k = 0; k < 4; k++) s.logits[k] = 2 * (float)log(p[k]); /* at temperature 2 */
    for (uint32_t i = 0; i < ROWS; i++) s.row[i].logit_row = 0, s.row[i].temperature = 2;
    for (uint64_t round = 0; round < n_round; round++) {
        for (uint32_t i = 0; i < ROWS; i++) s.row[i].position = round * ROWS + i;
        run(&s, &s.dev, &out);
        for (uint32_t i = 0; i < ROWS; i++) {
            assert_in_range(out.ids[i], 0, 3);
            count[out.ids[i]]++;
        }
    }
    for (int k = 0; k < 4; k++) {
        double n = (double)n_round * ROWS;
        assert_true(fabs(count[k] - n * p[k]) < 5 * sqrt(n * p[k] * (1 - p[k])));
    }
    close_sampling(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_and_logprobs), cmocka_unit_test(test_mask_ban_bias),
        cmocka_unit_test(test_penalties),           cmocka_unit_test(test_cutoffs),
        cmocka_unit_test(test_keyed_draws),         cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_given_tokens),        cmocka_unit_test(test_shared_logits),
    };
    return OP_MAIN(argc, argv, tests);
}

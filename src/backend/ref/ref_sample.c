/* ref_sample.c - logits to tokens: the order of the steps is op_sample.h's
 *
 * Probabilities are in double. After min_p and after top_k the probabilities of what is left are
 * taken to sum to 1 again, so top_p is a share of what top_k left.
 */
#include "backend/ref/ref_int.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"

static double log_sum_exp(const float *x, uint32_t n)
{
    DCHECK(n >= 1);
    double top = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) top = (double)x[i] > top ? (double)x[i] : top;
    if (isinf(top)) return top;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* x_i - logsumexp; -inf where nothing is possible at all */
static float logprob_of(float x, double lse)
{
    return isinf(x) || isinf(lse) ? (x == INFINITY ? 0.0f : -INFINITY) : (float)((double)x - lse);
}

static void list_top(struct scored *sorted, const float *x, uint32_t n, double lse,
                     const struct sample_args *a, uint32_t i_row, uint32_t n_top)
{
    DCHECK(n_top <= SAMPLE_TOP_MAX);
    for (uint32_t i = 0; i < n; i++) sorted[i] = (struct scored){x[i], (int32_t)i};
    ref_sort_scored(sorted, n);
    for (uint32_t i = 0; i < n_top && i < n; i++) {
        a->top_ids[(size_t)i_row * SAMPLE_TOP_MAX + i] = sorted[i].id;
        a->top_logprobs[(size_t)i_row * SAMPLE_TOP_MAX + i] = logprob_of(sorted[i].score, lse);
    }
}

static uint32_t place_of(const float *x, uint32_t n, uint32_t id)
{
    uint32_t place = 1;
    for (uint32_t i = 0; i < n; i++) {
        place += id >= n || x[i] > x[id] || (x[i] == x[id] && i < id);
    }
    return place;
}

static bool mask_allows(const struct sample_row *row, const uint32_t *mask, uint32_t id)
{
    if (row->mask_offset == SAMPLE_NONE) return true;
    ASSERT(mask);
    return mask[row->mask_offset + id / 32] >> (id % 32) & 1;
}

/* Each of `ids` that is new among those before it: a token counts once for the penalty. */
static bool first_of_its_kind(const int32_t *ids, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++) {
        if (ids[j] == ids[i]) return false;
    }
    return true;
}

static void apply_penalties(const struct sample_row *row, const int32_t *history, float *x,
                            uint32_t n)
{
    ASSERT(history);
    uint32_t n_history = row->n_prompt + row->n_output;
    const int32_t *ids = history + row->history_offset;
    for (uint32_t i = 0; i < n_history && row->repetition_penalty != 1; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= n || !first_of_its_kind(ids, i)) continue;
        float *logit = &x[ids[i]];
        *logit = *logit > 0 ? *logit / row->repetition_penalty : *logit * row->repetition_penalty;
    }
    const int32_t *output = ids + row->n_prompt;
    for (uint32_t i = 0; i < row->n_output; i++) {
        if (output[i] < 0 || (uint32_t)output[i] >= n || !first_of_its_kind(output, i)) continue;
        uint32_t count = 0;
        for (uint32_t j = 0; j < row->n_output; j++) count += output[j] == output[i];
        x[output[i]] -= row->frequency_penalty * (float)count + row->presence_penalty;
    }
}

/* Mask, bans, bias, penalties: x becomes what is drawn from. */
static void shape_logits(const struct sample_args *a, const struct sample_row *row, float *x,
                         uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!mask_allows(row, a->mask, i)) x[i] = -INFINITY;
    }
    ASSERT(a->ban || row->n_ban == 0);
    ASSERT(a->bias || row->n_bias == 0);
    for (uint32_t i = 0; i < row->n_ban; i++) {
        int32_t id = a->ban[row->ban_offset + i];
        if (id >= 0 && (uint32_t)id < n) x[id] = -INFINITY;
    }
    for (uint32_t i = 0; i < row->n_bias; i++) {
        struct sample_bias bias = a->bias[row->bias_offset + i];
        if (bias.id >= 0 && (uint32_t)bias.id < n) x[bias.id] += bias.bias;
    }
    if (row->n_prompt + row->n_output > 0) apply_penalties(row, a->history, x, n);
}

static int32_t fallback(const struct sample_row *row, const uint32_t *mask, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (mask_allows(row, mask, i)) return (int32_t)i;
    }
    return 0;
}

/* How many of the sorted scores (already divided by the temperature) stay. */
static uint32_t keep_likely(const struct sample_row *row, const struct scored *sorted, uint32_t n)
{
    DCHECK(n >= 1 && row->temperature > 0);
    double top = sorted[0].score;
    uint32_t n_keep = 0;
    while (n_keep < n && !isinf(sorted[n_keep].score) &&
           exp((double)sorted[n_keep].score - top) >= (double)row->min_p)
        n_keep++;
    if (n_keep == 0) n_keep = 1; /* the largest always stays */
    if (row->top_k > 0 && n_keep > (uint32_t)row->top_k) n_keep = (uint32_t)row->top_k;
    if (row->top_p >= 1) return n_keep;

    double total = 0;
    double sum = 0;
    for (uint32_t i = 0; i < n_keep; i++) total += exp((double)sorted[i].score - top);
    for (uint32_t i = 0; i < n_keep; i++) {
        sum += exp((double)sorted[i].score - top);
        if (sum >= (double)row->top_p * total) return i + 1;
    }
    return n_keep;
}

static int32_t draw(struct ref_backend *r, const struct sample_row *row, const float *x, uint32_t n)
{
    DCHECK(n >= 1);
    struct scored *sorted = r->scored;
    for (uint32_t i = 0; i < n; i++) {
        float score = row->temperature > 0 ? x[i] / row->temperature : x[i];
        sorted[i] = (struct scored){score, (int32_t)i};
    }
    ref_sort_scored(sorted, n);
    if (row->temperature <= 0) return sorted[0].id;

    uint32_t n_keep = keep_likely(row, sorted, n);
    int32_t best = sorted[0].id;
    double best_value = -INFINITY;
    for (uint32_t i = 0; i < n_keep; i++) {
        uint64_t bits = rng_mix(row->seed, row->position, (uint64_t)sorted[i].id);
        double gumbel = -log(-log((double)rng_unit(bits)));
        double value = (double)sorted[i].score + gumbel;
        if (value > best_value || (value == best_value && sorted[i].id < best)) {
            best_value = value;
            best = sorted[i].id;
        }
    }
    return best;
}

static int32_t take_id(struct ref_backend *r, const struct sample_args *a,
                       const struct sample_row *row, float *x, uint32_t n)
{
    bool any = false;
    if (row->is_given) return row->given_id;
    shape_logits(a, row, x, n);
    for (uint32_t j = 0; j < n; j++) any |= x[j] > -INFINITY;
    return any ? draw(r, row, x, n) : fallback(row, a->mask, n);
}

fathom_err ref_sample(struct backend *b, const struct sample_args *a)
{
    op_check_sample(&ref_of(b)->c, a);
    ASSERT(a->logits->kind == BUFFER_LOGITS);
    struct ref_backend *r = ref_of(b);
    for (uint32_t i = 0; i < a->n_row; i++) {
        const struct sample_row *row = &a->rows[i];
        if (r->peers.sums.group &&
            logit_row_owner(row->logit_row, r->peers.sums.n_rank) != r->peers.sums.rank)
            continue;
        float *x = a->logits->value + (size_t)row->logit_row * a->logits->width;
        float *raw = r->wide;
        uint32_t n = r->c.n_vocab;
        ASSERT(row->n_vocab_used >= 1 && row->n_vocab_used <= n);
        ASSERT(row->n_top <= SAMPLE_TOP_MAX);
        ASSERT(row->logit_row < a->logits->n_row);
        for (uint32_t j = 0; j < n; j++) {
            raw[j] = isnan(x[j]) ? -INFINITY : x[j];
            x[j] = raw[j];
        }
        double lse = row->want_logprob || row->n_top > 0 ? log_sum_exp(raw, n) : 0;
        if (row->n_top > 0) list_top(r->scored, raw, n, lse, a, i, row->n_top);

        a->ids[i] = take_id(r, a, row, x, row->n_vocab_used);
        memcpy(x, raw, n * sizeof *x); /* for a row that shares it */
        a->logprobs[i] = 0;
        a->ranks[i] = 0;
        if (!row->want_logprob) continue;
        uint32_t id = (uint32_t)a->ids[i];
        a->logprobs[i] = id < n ? logprob_of(raw[id], lse) : -INFINITY;
        a->ranks[i] = place_of(raw, n, id);
    }
    return r->peers.sums.group && a->n_row > 0 ? host_share_draws(&r->peers.sums, a) : FATHOM_OK;
}

/* cpu_sample.c - logits to tokens (op_sample.h)
 *
 * Nothing of the size of the vocabulary is sorted. top_k finds the n-th largest by bisection. top_p
 * finds the step of 1/32 nat in which its limit falls and sorts that step's ids alone. The draw is
 * the largest of score + gumbel; an id whose uniform number cannot win is passed over before any
 * logarithm (can_win).
 */
#include "backend/cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_topk.h"
#include "base/assert.h"
#include "base/rng.h"

enum { N_STEP = 1024, STEPS_PER_NAT = 32 };

struct scored {
    float score;
    int32_t id;
};

struct sample_scratch {
    float *raw;            /* [V] the logits as they came, NaN as -inf */
    float *shaped;         /* [V] after mask, bias and penalties */
    float *score;          /* [V padded] of the ids that are left: logits over temperature */
    float *mass;           /* [V padded] exp(score - largest) */
    int32_t *id;           /* [V] the ids that are left, ascending */
    uint32_t *keys;        /* [V]; also counts of output ids */
    struct scored *sorted; /* [V] */
    double *step;          /* [N_STEP] mass of a step */
};

static size_t lay_out(const struct cpu_backend *cpu, struct sample_scratch *s, uint8_t *base)
{
    uint32_t n = pad32(cpu->c.n_vocab);
    struct carver c = {.base = base};
    s->raw = carve(&c, n, sizeof *s->raw);
    s->shaped = carve(&c, n, sizeof *s->shaped);
    s->score = carve(&c, n, sizeof *s->score);
    s->mass = carve(&c, n, sizeof *s->mass);
    s->id = carve(&c, n, sizeof *s->id);
    s->keys = carve(&c, n, sizeof *s->keys);
    s->sorted = carve(&c, n, sizeof *s->sorted);
    s->step = carve(&c, N_STEP, sizeof *s->step);
    return c.used;
}

size_t cpu_sample_worker_bytes(const struct cpu_backend *cpu)
{
    struct sample_scratch s;
    return lay_out(cpu, &s, NULL);
}

/* ---- log-probabilities of the raw logits ---- */

static double log_sum_exp(const struct cpu_kernels *k, const float *x, uint32_t n)
{
    DCHECK(n >= 1);
    float top = k->max(x, n);
    return isinf(top) ? top : (double)top + log((double)k->sum_exp(x, top, n));
}

static float logprob_of(float x, double lse)
{
    if (isinf(x) || isinf(lse)) return x == INFINITY ? 0.0f : -INFINITY;
    return (float)((double)x - lse);
}

static uint32_t place_of(const float *x, uint32_t n, uint32_t id)
{
    uint32_t place = 1;
    if (id >= n) return n + 1;
    for (uint32_t i = 0; i < id; i++) place += x[i] >= x[id];
    for (uint32_t i = id + 1; i < n; i++) place += x[i] > x[id];
    return place;
}

/* The n_top largest, descending, ties to the lower id, by insertion. */
static void list_top(const float *x, uint32_t n, double lse, uint32_t n_top, int32_t *ids,
                     float *logprobs)
{
    DCHECK(n_top >= 1 && n_top <= SAMPLE_TOP_MAX);
    uint32_t n_listed = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_listed == n_top && x[i] <= x[ids[n_top - 1]]) continue;
        uint32_t at = n_listed < n_top ? n_listed++ : n_top - 1;
        for (; at > 0 && x[i] > x[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)i;
    }
    for (uint32_t i = 0; i < n_listed; i++) logprobs[i] = logprob_of(x[ids[i]], lse);
}

/* ---- mask, bans, bias, penalties ---- */

static bool mask_allows(const struct sample_row *row, const uint32_t *mask, uint32_t id)
{
    if (row->mask_offset == SAMPLE_NONE) return true;
    ASSERT(mask);
    return mask[row->mask_offset + id / 32] >> (id % 32) & 1;
}

static bool is_shaped(const struct sample_row *row)
{
    return row->mask_offset != SAMPLE_NONE || row->n_ban > 0 || row->n_bias > 0 ||
           row->repetition_penalty != 1 || row->presence_penalty != 0 ||
           row->frequency_penalty != 0;
}

/* An id counts once for the repetition penalty, however often it stands in the history. */
static void penalize(const struct sample_row *row, const int32_t *history, float *x, uint32_t n,
                     uint32_t *count)
{
    ASSERT(history);
    const int32_t *ids = history + row->history_offset;
    uint32_t n_history = row->n_prompt + row->n_output;
    memset(count, 0, n * sizeof *count);
    for (uint32_t i = 0; i < n_history && row->repetition_penalty != 1; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= n || count[ids[i]]++ > 0) continue;
        float *logit = &x[ids[i]];
        *logit = *logit > 0 ? *logit / row->repetition_penalty : *logit * row->repetition_penalty;
    }
    const int32_t *output = ids + row->n_prompt;
    memset(count, 0, n * sizeof *count);
    for (uint32_t i = 0; i < row->n_output; i++) {
        if (output[i] >= 0 && (uint32_t)output[i] < n) count[output[i]]++;
    }
    for (uint32_t i = 0; i < row->n_output; i++) {
        if (output[i] < 0 || (uint32_t)output[i] >= n || count[output[i]] == 0) continue;
        x[output[i]] -= row->frequency_penalty * (float)count[output[i]] + row->presence_penalty;
        count[output[i]] = 0;
    }
}

/* A word at a time: most are all 0 or all 1. */
static void apply_mask(const uint32_t *words, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32) {
        uint32_t word = words[i / 32];
        uint32_t n_bit = n - i < 32 ? n - i : 32;
        if (word == UINT32_MAX) continue;
        for (uint32_t k = 0; k < n_bit; k++) x[i + k] = word >> k & 1 ? x[i + k] : -INFINITY;
    }
}

static void shape(const struct sample_args *a, const struct sample_row *row, float *x, uint32_t n,
                  uint32_t *count)
{
    ASSERT(a->mask || row->mask_offset == SAMPLE_NONE);
    ASSERT(a->ban || row->n_ban == 0);
    ASSERT(a->bias || row->n_bias == 0);
    if (row->mask_offset != SAMPLE_NONE) apply_mask(a->mask + row->mask_offset, x, n);
    for (uint32_t i = 0; i < row->n_ban; i++) {
        int32_t id = a->ban[row->ban_offset + i];
        if (id >= 0 && (uint32_t)id < n) x[id] = -INFINITY;
    }
    for (uint32_t i = 0; i < row->n_bias; i++) {
        struct sample_bias bias = a->bias[row->bias_offset + i];
        if (bias.id >= 0 && (uint32_t)bias.id < n) x[bias.id] += bias.bias;
    }
    bool penalties =
        row->repetition_penalty != 1 || row->presence_penalty != 0 || row->frequency_penalty != 0;
    if (penalties && row->n_prompt + row->n_output > 0) penalize(row, a->history, x, n, count);
}

static int32_t fallback(const struct sample_row *row, const uint32_t *mask, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (mask_allows(row, mask, i)) return (int32_t)i;
    }
    return 0;
}

/* ---- what is left ---- */

/* min_p: ids and scores of what stays, ascending; returns how many. The largest always stays. */
static uint32_t keep_min_p(const struct sample_row *row, const float *x, uint32_t n,
                           const struct cpu_kernels *k, struct sample_scratch *s, float *top)
{
    DCHECK(row->temperature > 0);
    uint32_t n_left = 0;
    *top = k->max(x, n) / row->temperature;
    double least = row->min_p > 0 ? (double)*top + log((double)row->min_p) : -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float score = x[i] / row->temperature;
        bool stays = (score >= *top) | ((double)score >= least && score > -INFINITY);
        s->score[n_left] = score;
        s->id[n_left] = (int32_t)i;
        n_left += stays;
    }
    return n_left;
}

static uint32_t keep_top_k(const struct cpu_kernels *k, uint32_t top_k, uint32_t n,
                           struct sample_scratch *s)
{
    DCHECK(top_k >= 1 && top_k <= n);
    uint32_t n_equal;
    uint32_t n_left = 0;
    k->order_keys(s->score, n, s->keys);
    uint32_t least = topk_least(k, s->keys, n, top_k, &n_equal);
    for (uint32_t i = 0; i < n; i++) {
        if (s->keys[i] < least || (s->keys[i] == least && n_equal == 0)) continue;
        n_equal -= s->keys[i] == least;
        s->score[n_left] = s->score[i];
        s->id[n_left++] = s->id[i];
    }
    return n_left;
}

static bool comes_before(struct scored a, struct scored b)
{
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

/* A heap whose root comes last, then the roots from the end: sorted in place. */
static void sift_down(struct scored *v, uint32_t at, uint32_t n)
{
    struct scored moving = v[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_before(v[child], v[child + 1])) child++;
        if (!comes_before(moving, v[child])) break;
        v[at] = v[child];
    }
    v[at] = moving;
}

static void sort_scored(struct scored *v, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) sift_down(v, i, n);
    for (uint32_t end = n; end > 1;) {
        struct scored last = v[0];
        v[0] = v[--end];
        v[end] = last;
        sift_down(v, 0, end);
    }
}

static uint32_t step_of(float score, float top)
{
    float step = (top - score) * STEPS_PER_NAT;
    return step < N_STEP - 1 ? (uint32_t)step : N_STEP - 1;
}

/* top_p: whole steps below the one in which the limit falls, and of that one the best ids until
 * the limit is reached. s->mass holds exp(score - top). */
static uint32_t keep_top_p(float top_p, uint32_t n, float top, struct sample_scratch *s)
{
    DCHECK(n >= 1);
    double total = 0;
    memset(s->step, 0, N_STEP * sizeof *s->step);
    for (uint32_t i = 0; i < n; i++) {
        s->step[step_of(s->score[i], top)] += (double)s->mass[i];
        total += (double)s->mass[i];
    }
    double limit = (double)top_p * total;
    double sum = 0;
    uint32_t last = 0;
    for (; last + 1 < N_STEP && sum + s->step[last] < limit; last++) sum += s->step[last];

    uint32_t n_sorted = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (step_of(s->score[i], top) == last)
            s->sorted[n_sorted++] = (struct scored){s->score[i], s->id[i]};
    }
    sort_scored(s->sorted, n_sorted);
    struct scored least = {-INFINITY, 0};
    for (uint32_t i = 0; i < n_sorted; i++) {
        least = s->sorted[i];
        sum += exp((double)least.score - (double)top);
        if (sum >= limit) break;
    }
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct scored candidate = {s->score[i], s->id[i]};
        if (n_sorted > 0 && comes_before(least, candidate)) continue;
        if (n_sorted == 0 && step_of(candidate.score, top) > last) continue;
        s->score[n_left] = s->score[i];
        s->mass[n_left] = s->mass[i];
        s->id[n_left++] = s->id[i];
    }
    return n_left;
}

/* ---- the draw ---- */

/* score + gumbel reaches best only if -log(unit) <= exp(score - best), and -log(unit) is at least
 * 1 - unit. mass is exp(score - top), factor exp(top - best). */
static bool can_win(float unit, float mass, float factor)
{
    return 1 - unit <= mass * factor * 1.001f;
}

static double perturbed(float score, float unit)
{
    return (double)score - log(-log((double)unit));
}

static int32_t draw(const struct sample_row *row, uint32_t n, float top,
                    const struct sample_scratch *s)
{
    DCHECK(n >= 1);
    uint64_t key = rng_hash(rng_hash(row->seed) ^ row->position); /* as in rng_mix */
    uint32_t first = 0;
    while (first + 1 < n && s->score[first] < top) first++;
    uint32_t best = first;
    double value = perturbed(s->score[best], rng_unit(rng_hash(key ^ (uint64_t)s->id[best])));
    float factor = (float)exp((double)top - value);
    for (uint32_t i = 0; i < n; i++) {
        float unit = rng_unit(rng_hash(key ^ (uint64_t)s->id[i]));
        if (!can_win(unit, s->mass[i], factor) || i == first) continue;
        double v = perturbed(s->score[i], unit);
        if (v > value || (v == value && i < best)) {
            best = i;
            value = v;
            factor = (float)exp((double)top - value);
        }
    }
    return s->id[best];
}

static int32_t choose(const struct cpu_kernels *k, const struct sample_row *row, const float *x,
                      uint32_t n, struct sample_scratch *s)
{
    if (row->temperature <= 0) {
        float top = k->max(x, n);
        uint32_t i = 0;
        while (x[i] < top) i++;
        return (int32_t)i;
    }
    float top;
    uint32_t n_left = keep_min_p(row, x, n, k, s, &top);
    if (row->top_k > 0 && n_left > (uint32_t)row->top_k)
        n_left = keep_top_k(k, (uint32_t)row->top_k, n_left, s);
    k->exp_row(s->score, top, n_left, s->mass);
    if (row->top_p < 1) n_left = keep_top_p(row->top_p, n_left, top, s);
    return draw(row, n_left, top, s);
}

static int32_t take_id(const struct cpu_backend *cpu, const struct sample_args *a,
                       const struct sample_row *row, struct sample_scratch *s)
{
    uint32_t n = row->n_vocab_used;
    const float *x = s->raw;
    if (is_shaped(row)) {
        x = memcpy(s->shaped, s->raw, n * sizeof *x);
        shape(a, row, s->shaped, n, s->keys);
    }
    bool any = cpu->k->max(x, n) > -INFINITY;
    return any ? choose(cpu->k, row, x, n, s) : fallback(row, a->mask, n);
}

struct sample_task {
    struct cpu_backend *cpu;
    const struct sample_args *a;
};

static void sample_row(void *arg, size_t i, size_t n_item, unsigned worker)
{
    const struct sample_task *task = arg;
    const struct cpu_backend *cpu = task->cpu;
    const struct sample_args *a = task->a;
    const struct sample_row *row = &a->rows[i];
    const struct host_rank *peer = &cpu->peers.sums;
    if (peer->group && logit_row_owner(row->logit_row, peer->n_rank) != peer->rank) return;
    const float *x = a->logits->value + (size_t)row->logit_row * a->logits->stride;
    bool tells = row->want_logprob || row->n_top > 0;
    uint32_t n = tells ? cpu->c.n_vocab : row->n_vocab_used;
    struct sample_scratch s;
    double lse = 0;
    (void)n_item;
    lay_out(cpu, &s, worker_scratch(cpu, worker));
    ASSERT(row->n_vocab_used >= 1 && row->n_vocab_used <= cpu->c.n_vocab);
    ASSERT(row->n_top <= SAMPLE_TOP_MAX);
    ASSERT(row->logit_row < a->logits->n_row);
    for (uint32_t j = 0; j < n; j++) s.raw[j] = isnan(x[j]) ? -INFINITY : x[j];
    if (tells) lse = log_sum_exp(cpu->k, s.raw, n);
    if (row->n_top > 0)
        list_top(s.raw, n, lse, row->n_top, a->top_ids + i * SAMPLE_TOP_MAX,
                 a->top_logprobs + i * SAMPLE_TOP_MAX);
    a->ids[i] = row->is_given ? row->given_id : take_id(cpu, a, row, &s);
    a->logprobs[i] = 0;
    a->ranks[i] = 0;
    if (!row->want_logprob) return;
    uint32_t id = (uint32_t)a->ids[i];
    a->logprobs[i] = id < n ? logprob_of(s.raw[id], lse) : -INFINITY;
    a->ranks[i] = place_of(s.raw, n, id);
}

fathom_err cpu_sample(struct backend *b, const struct sample_args *a)
{
    op_check_sample(&cpu_of(b)->c, a);
    ASSERT(a->logits->kind == BUFFER_LOGITS);
    struct sample_task task = {.cpu = cpu_of(b), .a = a};
    cpu_items(cpu_of(b), a->n_row, sample_row, &task);
    struct host_rank *peer = &cpu_of(b)->peers.sums;
    if (!peer->group || a->n_row == 0) return FATHOM_OK;
    return host_share_draws(peer, a);
}

/* sequence.c - a request checked, copied into one block, and told as events */
#include "engine/sequence.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"

static_assert((int)FATHOM_TOP_LOGPROBS_MAX == (int)SAMPLE_TOP_MAX, "alternatives of a token");
static_assert((int)LIMIT_TOP_LOGPROBS == (int)SAMPLE_TOP_MAX, "alternatives of a token");

/* Temperatures below this divide logits into infinity; they mean greedy. */
#define MIN_TEMPERATURE 1e-5f

/* Repetition penalties beyond this, or below one over it, make logits infinite; they mean as much.
 */
#define MAX_REPETITION 1e6f

void fathom_sampling_init(fathom_sampling *s)
{
    *s = (fathom_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

/* ---- checks ---- */

static fathom_err check_range(const char *name, float value, bool ok, const char *range,
                              fathom_diag *d)
{
    if (ok) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s is %g, needed is %s", name, (double)value, range);
}

static fathom_err check_id(const char *name, uint32_t i, int32_t id, uint32_t n_vocab,
                           fathom_diag *d)
{
    if (id >= 0 && (uint32_t)id < n_vocab) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s[%u] is %d, needed is 0 to %u", name, i, (int)id, n_vocab - 1);
}

static fathom_err check_array(const char *name, const void *items, uint32_t n, uint32_t max,
                              fathom_diag *d)
{
    if (n > max) FAIL(d, FATHOM_EINVAL, "%s has %u entries, allowed are %u", name, n, max);
    if (n > 0 && !items) FAIL(d, FATHOM_EINVAL, "%s is NULL and has %u entries", name, n);
    return FATHOM_OK;
}

static fathom_err check_numbers(const fathom_sampling *s, fathom_diag *d)
{
    TRY(check_range("temperature", s->temperature, s->temperature >= 0 && isfinite(s->temperature),
                    "a finite number, 0 or more", d));
    TRY(check_range("top_p", s->top_p, s->top_p > 0 && s->top_p <= 1, "(0, 1]", d));
    TRY(check_range("min_p", s->min_p, s->min_p >= 0 && s->min_p <= 1, "[0, 1]", d));
    if (s->top_k < -1) {
        FAIL(d, FATHOM_EINVAL, "top_k is %d, needed is -1 (off), 0 (off) or more", (int)s->top_k);
    }
    TRY(check_range("repetition_penalty", s->repetition_penalty,
                    s->repetition_penalty > 0 && isfinite(s->repetition_penalty),
                    "a finite number above 0", d));
    TRY(check_range("presence_penalty", s->presence_penalty,
                    s->presence_penalty >= -2 && s->presence_penalty <= 2, "[-2, 2]", d));
    TRY(check_range("frequency_penalty", s->frequency_penalty,
                    s->frequency_penalty >= -2 && s->frequency_penalty <= 2, "[-2, 2]", d));
    if (s->n_top_logprobs > FATHOM_TOP_LOGPROBS_MAX) {
        FAIL(d, FATHOM_EINVAL, "n_top_logprobs is %u, needed is 0 to %d", s->n_top_logprobs,
             FATHOM_TOP_LOGPROBS_MAX);
    }
    if (s->n_prompt_top_logprobs > FATHOM_TOP_LOGPROBS_MAX) {
        FAIL(d, FATHOM_EINVAL, "n_prompt_top_logprobs is %u, needed is 0 to %d",
             s->n_prompt_top_logprobs, FATHOM_TOP_LOGPROBS_MAX);
    }
    if (s->max_tokens > 0 && s->min_tokens > s->max_tokens) {
        FAIL(d, FATHOM_EINVAL, "min_tokens is %u, needed is 0 to max_tokens, %u", s->min_tokens,
             s->max_tokens);
    }
    return FATHOM_OK;
}

static fathom_err check_lists(const fathom_sampling *s, const struct sequence_limits *l,
                              fathom_diag *d)
{
    TRY(check_array("bias", s->bias, s->n_bias, LIMIT_LOGIT_BIAS, d));
    for (uint32_t i = 0; i < s->n_bias; i++) {
        TRY(check_id("bias", i, s->bias[i].id, l->n_vocab, d));
        float bias = s->bias[i].bias;
        TRY(check_range("bias", bias, bias >= -100 && bias <= 100, "[-100, 100]", d));
    }
    TRY(check_array("stop_ids", s->stop_ids, s->n_stop_id, LIMIT_STOP_TOKENS, d));
    for (uint32_t i = 0; i < s->n_stop_id; i++) {
        TRY(check_id("stop_ids", i, s->stop_ids[i], l->n_vocab, d));
    }
    return FATHOM_OK;
}

/* Output that was drawn elsewhere. */
static fathom_err check_output(const fathom_request *r, const struct sequence_limits *l,
                               fathom_diag *d)
{
    uint32_t n_room = l->max_model_len - r->n_prompt;
    uint32_t n_max = r->sampling.max_tokens ? r->sampling.max_tokens : n_room;
    if (r->n_output == 0) return FATHOM_OK;
    TRY(check_array("output", r->output, r->n_output, n_max - 1, d));
    if (r->sampling.prompt_logprobs) {
        FAIL(d, FATHOM_EINVAL, "a request with output has no prompt_logprobs: they were told");
    }
    for (uint32_t i = 0; i < r->n_output; i++) {
        TRY(check_id("output", i, r->output[i], l->n_vocab, d));
    }
    return FATHOM_OK;
}

static uint32_t count_lanes(const struct sequence_limits *l)
{
    return l->n_lane ? l->n_lane : 1;
}

fathom_err sequence_check(const fathom_request *r, const struct sequence_limits *l, fathom_diag *d)
{
    if (r->n_prompt == 0 || !r->prompt) {
        FAIL(d, FATHOM_EINVAL, "the prompt is empty, needed is at least 1 token");
    }
    if (r->n_prompt >= l->max_model_len) {
        FAIL(d, FATHOM_ELIMIT,
             "the prompt has %u tokens and the maximum model length is %u tokens, the answer "
             "included. Shorten the prompt",
             r->n_prompt, l->max_model_len);
    }
    if (r->sampling.max_tokens > l->max_model_len - r->n_prompt) {
        FAIL(d, FATHOM_ELIMIT,
             "the prompt has %u tokens and max_tokens is %u: together over the maximum model "
             "length, %u tokens. Give max_tokens %u at most",
             r->n_prompt, r->sampling.max_tokens, l->max_model_len, l->max_model_len - r->n_prompt);
    }
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        TRY(check_id("prompt", i, r->prompt[i], l->n_vocab, d));
    }
    TRY(check_output(r, l, d));
    if (r->priority != 0 && !l->priorities) {
        FAIL(
            d, FATHOM_EINVAL,
            "priority is %d, and requests run in the order of arrival: leave it out, or start with "
            "--scheduling-policy priority",
            (int)r->priority);
    }
    const uint32_t n_lane = count_lanes(l);
    if (r->has_lane && (r->lane >= n_lane || r->n_lane > n_lane - r->lane)) {
        FAIL(d, FATHOM_EINVAL, "data_parallel_rank is %u, needed is 0 to %u",
             r->lane + (r->n_lane ? r->n_lane - 1 : 0), n_lane - 1);
    }
    TRY(check_numbers(&r->sampling, d));
    return check_lists(&r->sampling, l, d);
}

/* ---- the block ---- */

/* Sizes of a sequence's arrays, in the order in which they lie behind the struct. */
struct sequence_sizes {
    size_t n_stop; /* the caller's, then EOS unless it is ignored */
    size_t n_bias;
    size_t n_page;
    size_t n_token;
    size_t n_logprob;
    size_t n_top;
    size_t n_score;
    size_t n_prompt_top;
    size_t n_joined;
    size_t n_bytes;
};

static void measure(struct sequence_sizes *z, const fathom_request *r,
                    const struct sequence_limits *l)
{
    const fathom_sampling *s = &r->sampling;
    size_t n_output = s->max_tokens ? s->max_tokens : l->max_model_len - r->n_prompt;
    ASSERT(r->n_prompt >= 1 && r->n_prompt < l->max_model_len);
    z->n_stop = s->n_stop_id + (s->ignore_eos ? 0 : l->n_eos);
    z->n_bias = s->n_bias;
    z->n_token = r->n_prompt + n_output;
    z->n_page = request_n_page((uint32_t)z->n_token);
    z->n_logprob = s->logprobs || s->n_top_logprobs ? n_output : 0;
    z->n_top = n_output * s->n_top_logprobs;
    z->n_score = s->prompt_logprobs ? r->n_prompt - 1 : 0;
    z->n_prompt_top = z->n_score * s->n_prompt_top_logprobs;
    z->n_joined = (n_output + 31) / 32;
    z->n_bytes = sizeof(struct sequence) + z->n_stop * sizeof(int32_t) +
                 z->n_bias * sizeof(struct sample_bias) + z->n_page * sizeof(uint32_t) +
                 z->n_token * sizeof(int32_t) + z->n_logprob * sizeof(float) +
                 z->n_top * sizeof(fathom_logprob) + z->n_score * sizeof(struct prompt_score) +
                 z->n_prompt_top * sizeof(fathom_logprob) + z->n_joined * sizeof(uint32_t);
}

static_assert(_Alignof(struct sample_bias) <= 4 && _Alignof(fathom_logprob) <= 4 &&
                  _Alignof(struct prompt_score) <= 4,
              "the arrays behind a sequence lie at multiples of 4");

static void *carve(char **end, size_t n, size_t size)
{
    void *start = *end;
    *end += n * size;
    return n ? start : NULL;
}

static float clamp(float value, float lo, float hi)
{
    return value < lo ? lo : value > hi ? hi : value;
}

static void fill_row(struct sequence *q, const fathom_sampling *s, const struct sequence_limits *l)
{
    q->row = (struct sample_row){
        .temperature = s->temperature < MIN_TEMPERATURE ? 0 : s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .repetition_penalty = clamp(s->repetition_penalty, 1 / MAX_REPETITION, MAX_REPETITION),
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .seed = s->seed,
        .n_top = s->n_top_logprobs,
        .want_logprob = s->logprobs || s->n_top_logprobs,
        .n_bias = s->n_bias,
        .mask_offset = SAMPLE_NONE,
        .n_vocab_used = l->n_vocab_used,
    };
    q->has_seed = s->has_seed;
}

fathom_err sequence_create(struct sequence **out, const fathom_request *r,
                           const struct sequence_limits *l, uint64_t now_us, fathom_diag *d)
{
    *out = NULL;
    const fathom_sampling *s = &r->sampling;
    struct sequence_sizes z;
    measure(&z, r, l);
    struct sequence *q = mem_alloc(z.n_bytes);
    if (!q) FAIL(d, FATHOM_ENOMEM, "no memory for a request of %zu bytes", z.n_bytes);
    memset(q, 0, sizeof *q);
    char *end = (char *)(q + 1);
    int32_t *stop_ids = carve(&end, z.n_stop, sizeof(int32_t));
    q->bias = carve(&end, z.n_bias, sizeof(struct sample_bias));
    q->request.pages = carve(&end, z.n_page, sizeof(uint32_t));
    q->request.ids = carve(&end, z.n_token, sizeof(int32_t));
    q->logprobs = carve(&end, z.n_logprob, sizeof(float));
    q->tops = carve(&end, z.n_top, sizeof(fathom_logprob));
    q->scores = carve(&end, z.n_score, sizeof(struct prompt_score));
    q->prompt_tops = carve(&end, z.n_prompt_top, sizeof(fathom_logprob));
    q->joined = carve(&end, z.n_joined, sizeof(uint32_t));
    memset(q->joined, 0, z.n_joined * sizeof(uint32_t));
    ASSERT(end == (char *)q + z.n_bytes);

    memcpy(q->request.ids, r->prompt, r->n_prompt * sizeof(int32_t));
    for (uint32_t i = 0; i < r->n_output; i++) q->request.ids[r->n_prompt + i] = r->output[i];
    for (uint32_t i = 0; i < s->n_stop_id; i++) stop_ids[i] = s->stop_ids[i];
    for (size_t i = s->n_stop_id; i < z.n_stop; i++) stop_ids[i] = l->eos_ids[i - s->n_stop_id];
    for (uint32_t i = 0; i < s->n_bias; i++) {
        q->bias[i] = (struct sample_bias){s->bias[i].id, s->bias[i].bias};
    }
    q->request.stop_ids = stop_ids;
    q->request.n_stop_id = (uint32_t)z.n_stop;
    q->request.n_prompt = r->n_prompt;
    q->request.n_given = q->n_published = q->n_polled = r->n_output;
    q->request.max_token = (uint32_t)z.n_token;
    q->request.n_to_score = (uint32_t)z.n_score;
    q->n_prompt_top = s->n_prompt_top_logprobs;
    q->request.min_output = s->min_tokens;
    q->request.cache_salt = r->cache_salt;
    q->request.priority = r->priority;
    q->request.tenant = r->tenant;
    q->first_lane = r->has_lane ? r->lane : 0;
    q->end_lane = r->has_lane ? r->lane + (r->n_lane ? r->n_lane : 1) : count_lanes(l);
    q->lane = q->first_lane;
    q->user = r->user;
    q->submitted_us = now_us;
    draft_pace_init(&q->pace);
    q->constraint.owner = r->constraint;
    fill_row(q, s, l);
    *out = q;
    return FATHOM_OK;
}

void sequence_destroy(struct sequence *q)
{
    if (!q) return;
    struct constraint *c = &q->constraint;
    if (constraint_is_set(c)) c->owner.ops->destroy(c->owner.state);
    mem_free(q);
}

void sequence_give_back(struct sequence *q)
{
    q->constraint = (struct constraint){0};
}

/* ---- events ---- */

uint32_t sequence_n_event(const struct sequence *q)
{
    return request_n_scored(&q->request) + request_n_output(&q->request);
}

static void set_top(fathom_event *out, const fathom_logprob *tops, uint32_t i, uint32_t n_top)
{
    ASSERT(n_top <= SAMPLE_TOP_MAX && (n_top == 0 || tops));
    out->n_top = n_top;
    if (n_top) memcpy(out->top, tops + (size_t)i * n_top, n_top * sizeof out->top[0]);
}

static void fill_prompt_event(const struct sequence *q, uint32_t i, fathom_event *out)
{
    ASSERT(q->scores);
    out->kind = FATHOM_EVENT_PROMPT;
    out->token = q->request.ids[1 + i];
    out->logprob = q->scores[i].logprob;
    out->place = q->scores[i].place;
    set_top(out, q->prompt_tops, i, q->n_prompt_top);
}

static void fill_token_event(const struct sequence *q, uint32_t i, fathom_event *out)
{
    const struct request *r = &q->request;
    uint32_t n_output = q->n_published - r->n_to_score;
    ASSERT(i < n_output);
    out->kind = FATHOM_EVENT_TOKEN;
    out->token = r->ids[r->n_prompt + i];
    out->is_stop = q->is_over && r->finish == REQUEST_FINISH_STOP && i + 1 == n_output;
    out->is_joined = q->joined[i / 32] >> i % 32 & 1;
    out->logprob = q->logprobs ? q->logprobs[i] : 0;
    out->n_cached = r->n_cached;
    set_top(out, q->tops, i, q->row.n_top);
}

void sequence_event(const struct sequence *q, uint32_t i, fathom_event *out)
{
    uint32_t n_to_score = q->request.n_to_score;
    ASSERT(i < q->n_published);
    memset(out, 0, sizeof *out);
    out->id = q->request.id;
    out->user = q->user;
    out->stop_id = -1;
    if (i < n_to_score) {
        fill_prompt_event(q, i, out);
    } else {
        fill_token_event(q, i - n_to_score, out);
    }
}

static fathom_finish finish_of(enum request_finish finish)
{
    switch (finish) {
    case REQUEST_FINISH_NONE: return FATHOM_FINISH_NONE;
    case REQUEST_FINISH_STOP: return FATHOM_FINISH_STOP;
    case REQUEST_FINISH_LENGTH: return FATHOM_FINISH_LENGTH;
    case REQUEST_FINISH_CANCEL: return FATHOM_FINISH_CANCEL;
    case REQUEST_FINISH_EXPIRED: return FATHOM_FINISH_EXPIRED;
    case REQUEST_FINISH_CONSTRAINT: return FATHOM_FINISH_CONSTRAINT;
    case REQUEST_FINISH_ERROR: return FATHOM_FINISH_ERROR;
    case REQUEST_FINISH_LOST: return FATHOM_FINISH_LOST;
    case REQUEST_FINISH_UNWANTED: return FATHOM_FINISH_UNWANTED;
    }
    return FATHOM_FINISH_ERROR;
}

static uint64_t since(uint64_t start_us, uint64_t end_us)
{
    return end_us > start_us ? end_us - start_us : 0;
}

void sequence_finish_event(const struct sequence *q, fathom_event *out)
{
    const struct request *r = &q->request;
    ASSERT(r->state == REQUEST_FINISHED && r->finish != REQUEST_FINISH_NONE);
    memset(out, 0, sizeof *out);
    out->kind = FATHOM_EVENT_FINISH;
    out->id = r->id;
    out->user = q->user;
    out->token = -1;
    out->finish = finish_of(r->finish);
    out->stop_id = r->finish == REQUEST_FINISH_STOP ? r->ids[r->n_token - 1] : -1;
    out->n_prompt = r->n_prompt;
    out->n_output = request_n_output(r);
    out->n_cached = r->n_cached;
    uint64_t scheduled_us = r->scheduled_us ? r->scheduled_us : r->finished_us;
    out->queue_us = since(q->submitted_us, scheduled_us);
    out->first_us = r->first_us ? since(q->submitted_us, r->first_us) : 0;
    out->total_us = since(q->submitted_us, r->finished_us);
}

/* ---- the constraint ---- */

uint32_t constraint_n_free(const struct constraint *c)
{
    if (!constraint_is_set(c)) return UINT32_MAX;
    return c->owner.ops->n_free ? c->owner.ops->n_free(c->owner.state) : 0;
}

void constraint_fill(const struct constraint *c, uint32_t *words, size_t n_word)
{
    ASSERT(constraint_is_set(c));
    c->owner.ops->fill_mask(c->owner.state, words, n_word);
}

bool constraint_try(struct constraint *c, int32_t id)
{
    ASSERT(constraint_is_set(c));
    if (c->n_ahead == 0) c->owner.ops->mark(c->owner.state);
    if (!c->owner.ops->accept(c->owner.state, id)) return false;
    c->n_ahead++;
    return true;
}

void constraint_return(struct constraint *c)
{
    ASSERT(constraint_is_set(c));
    if (c->n_ahead > 0) c->owner.ops->go_back(c->owner.state);
    c->n_ahead = 0;
}

bool constraint_push(struct constraint *c, int32_t id)
{
    constraint_return(c);
    return c->owner.ops->accept(c->owner.state, id);
}

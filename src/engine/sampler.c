/* sampler.c - the rows of the sample operator, and their masks */
#include "engine/sampler.h"

#include <string.h>

#include "base/assert.h"
#include "base/limits.h"
#include "engine/sequence.h"

static_assert(LIMIT_STOP_TOKENS + 2 * 8 <= BATCH_BAN_MAX, "bans of one request");

void sampler_begin(struct sampler *s, const struct batch_layout *l, void *host)
{
    *s = (struct sampler){.host = host, .l = l};
}

static void add_bias(struct sampler *s, const struct sequence *q, struct sample_row *row)
{
    struct sample_bias *bias = (struct sample_bias *)((char *)s->host + s->l->bias);
    ASSERT(row->n_bias <= LIMIT_LOGIT_BIAS);
    row->bias_offset = s->n_bias;
    for (uint32_t i = 0; i < row->n_bias; i++) bias[s->n_bias++] = q->bias[i];
}

/* Adds the stop ids as bans of a request's first row, while they do not count. The later rows use
 * the same bans, or none. */
static void add_bans(struct sampler *s, const struct request *r, struct sample_row *row)
{
    int32_t *ban = (int32_t *)((char *)s->host + s->l->ban);
    row->ban_offset = s->n_ban;
    if (row->n_output >= r->min_output) return;
    ASSERT(r->n_stop_id <= BATCH_BAN_MAX);
    for (uint32_t i = 0; i < r->n_stop_id; i++) ban[s->n_ban++] = r->stop_ids[i];
    row->n_ban = r->n_stop_id;
}

static bool has_penalty(const struct sample_row *row)
{
    return row->repetition_penalty != 1 || row->presence_penalty != 0 ||
           row->frequency_penalty != 0;
}

bool sampler_reads_ids(const struct sequence *q, uint32_t n_behind)
{
    return has_penalty(&q->row) || constraint_n_free(&q->constraint) <= n_behind;
}

/* How many tokens, from `position` on, may be any token, whatever the tokens before them are. */
static uint32_t count_free(const struct sequence *q, uint32_t position)
{
    const uint32_t n_known = q->request.n_token + q->constraint.n_ahead;
    ASSERT(position >= n_known);
    const uint32_t n_gone = position - n_known;
    const uint32_t n_free = constraint_n_free(&q->constraint);
    return n_free > n_gone ? n_free - n_gone : 0;
}

/* Copies the request's first n_id ids. All its rows share this copy; each reads as many ids as
 * stand before its own position. */
static void add_history(struct sampler *s, const struct request *r, uint32_t n_id,
                        struct sample_row *row)
{
    int32_t *history = (int32_t *)((char *)s->host + s->l->history);
    ASSERT(s->n_history + n_id <= (size_t)s->l->max_request * s->l->max_context);
    row->history_offset = s->n_history;
    memcpy(history + s->n_history, r->ids, n_id * sizeof(int32_t));
    s->n_history += n_id;
}

static struct sample_row *take_rows(struct sampler *s, uint32_t n)
{
    struct sample_row *rows = (struct sample_row *)((char *)s->host + s->l->rows) + s->n_row;
    ASSERT(s->n_row + n <= s->l->max_logit_row);
    s->n_row += n;
    return rows;
}

void sampler_add(struct sampler *s, const struct sequence *q, uint32_t logit_row, uint32_t position,
                 uint32_t n, bool plain)
{
    const struct request *r = &q->request;
    struct sample_row *rows = take_rows(s, n);
    struct sample_row first = q->row;
    ASSERT(n >= 1 && position >= r->n_prompt);
    if (plain) first.n_top = first.want_logprob = 0;
    first.n_output = position - r->n_prompt;
    add_bias(s, q, &first);
    add_bans(s, r, &first);
    bool penalty = has_penalty(&first);
    const uint32_t n_free = count_free(q, position);
    if (penalty) add_history(s, r, position + n - 1, &first);
    for (uint32_t i = 0; i < n; i++) {
        struct sample_row *row = &rows[i];
        *row = first;
        row->logit_row = logit_row + i;
        row->position = position + i;
        if (first.n_output + i >= r->min_output) row->n_ban = 0;
        if (i >= n_free) row->mask_offset = s->n_mask++ * s->l->n_mask_word;
        row->n_prompt = penalty ? r->n_prompt : 0;
        row->n_output = penalty ? first.n_output + i : 0;
    }
    if (first.n_top > s->n_top) s->n_top = first.n_top;
}

/* Adds rows that give the log-probabilities of the prompt tokens first + 1 .. first + n. */
static void add_prompt(struct sampler *s, const struct sequence *q, uint32_t logit_row,
                       uint32_t first, uint32_t n)
{
    struct sample_row *rows = take_rows(s, n);
    ASSERT(first + n <= q->request.n_to_score);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (struct sample_row){.logit_row = logit_row + i,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .n_top = q->n_prompt_top,
                                      .want_logprob = 1,
                                      .is_given = 1,
                                      .given_id = q->request.ids[first + 1 + i],
                                      .mask_offset = SAMPLE_NONE,
                                      .n_vocab_used = q->row.n_vocab_used};
    }
    if (q->n_prompt_top > s->n_top) s->n_top = q->n_prompt_top;
}

void sampler_end(const struct sampler *s, struct sample_shape *out)
{
    const struct batch_layout *l = s->l;
    size_t mask_bytes = l->n_mask_word * sizeof(uint32_t);
    ASSERT(s->n_bias <= l->max_request * (uint32_t)LIMIT_LOGIT_BIAS);
    ASSERT(s->n_ban <= l->max_request * (uint32_t)BATCH_BAN_MAX);
    ASSERT(s->n_history <= (size_t)l->max_request * l->max_context);
    ASSERT(s->n_mask <= s->n_row && s->n_row <= l->max_logit_row);
    *out = (struct sample_shape){
        .n_row = s->n_row,
        .n_top = s->n_top,
        .extras = {[SAMPLE_BIAS] = {l->bias, s->n_bias * sizeof(struct sample_bias)},
                   [SAMPLE_BAN] = {l->ban, s->n_ban * sizeof(int32_t)},
                   [SAMPLE_HISTORY] = {l->history, s->n_history * sizeof(int32_t)}},
        .masks = {l->mask, s->n_mask * mask_bytes},
    };
}

uint32_t *sampler_mask(const struct batch_layout *l, void *host, uint32_t i)
{
    ASSERT(i < l->max_logit_row);
    return (uint32_t *)((char *)host + l->mask) + (size_t)i * l->n_mask_word;
}

void sampler_build(const struct batch_layout *l, const struct plan *plan, void *host,
                   struct sample_shape *out)
{
    struct sampler s;
    sampler_begin(&s, l, host);
    uint32_t logit_row = 0;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        struct sequence *q = sequence_of(e->request);
        logit_row += e->n_score;
        if (!e->draws) continue;
        uint32_t position = e->first + e->n_token - e->n_draft; /* of the token drawn first */
        if (constraint_is_set(&q->constraint)) constraint_return(&q->constraint);
        ASSERT(!plan->is_ahead || !sampler_reads_ids(q, position - e->request->n_token));
        sampler_add(&s, q, logit_row, position, 1 + e->n_draft, false);
        logit_row += 1 + e->n_draft;
    }
    ASSERT(s.n_row == plan->n_draw && logit_row == plan->n_draw + plan->n_score);
    logit_row = 0;
    for (uint32_t i = 0; plan->n_score > 0 && i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        const struct sequence *q = sequence_of(e->request);
        add_prompt(&s, q, logit_row, request_n_scored(&q->request), e->n_score);
        logit_row += e->n_score + (e->draws ? 1 + e->n_draft : 0);
    }
    ASSERT(s.n_row == plan->n_draw + plan->n_score);
    sampler_end(&s, out);
}

/* Writes the masks of one entry, from number `first` on; returns how many it has. */
static uint32_t fill_entry(const struct batch_layout *l, const struct plan_entry *e, void *host,
                           uint32_t first)
{
    const struct request *r = e->request;
    struct constraint *c = &sequence_of(e->request)->constraint;
    constraint_return(c);
    const uint32_t n_free = constraint_n_free(c);
    if (n_free > e->n_draft) return 0;
    for (uint32_t i = 0; i <= e->n_draft; i++) {
        if (i > 0 && !constraint_try(c, r->ids[r->n_token + i - 1])) break;
        if (i < n_free) continue;
        constraint_fill(c, sampler_mask(l, host, first + i - n_free), l->n_mask_word);
    }
    constraint_return(c);
    return e->n_draft + 1 - n_free;
}

uint32_t sampler_fill_masks(const struct batch_layout *l, const struct plan *plan, void *host)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        if (!e->draws || !constraint_is_set(&sequence_of(e->request)->constraint)) continue;
        n += fill_entry(l, e, host, n);
    }
    ASSERT(n <= plan->n_draw);
    return n;
}

#include "engine/sampler.h"

#include <string.h>

#include "base/assert.h"
#include "base/limits.h"
#include "engine/sequence.h"

static_assert(LIMIT_STOP_TOKENS + 2 * 8 <= BATCH_BAN_MAX, "bans of one request");

/* Where the next row's part of the three shared arrays begins, in elements. */
struct cursor {
    void *block;
    const struct batch_layout *l;
    uint32_t n_bias;
    uint32_t n_ban;
    uint32_t n_history;
};

static void add_bias(struct cursor *c, const struct sequence *q, struct sample_row *row)
{
    struct sample_bias *bias = (struct sample_bias *)((char *)c->block + c->l->bias);
    row->bias_offset = c->n_bias;
    for (uint32_t i = 0; i < row->n_bias; i++) bias[c->n_bias++] = q->bias[i];
}

static void add_bans(struct cursor *c, const struct sequence *q, struct sample_row *row)
{
    const struct request *r = &q->request;
    int32_t *ban = (int32_t *)((char *)c->block + c->l->ban);
    row->ban_offset = c->n_ban;
    if (request_n_output(r) < r->min_output) {
        for (uint32_t i = 0; i < r->n_stop_id; i++) ban[c->n_ban++] = r->stop_ids[i];
    }
    row->n_ban = c->n_ban - row->ban_offset;
}

static bool has_penalty(const struct sample_row *row)
{
    return row->repetition_penalty != 1 || row->presence_penalty != 0 ||
           row->frequency_penalty != 0;
}

static void add_history(struct cursor *c, const struct sequence *q, struct sample_row *row)
{
    if (!has_penalty(row)) return;
    const struct request *r = &q->request;
    int32_t *history = (int32_t *)((char *)c->block + c->l->history);
    row->history_offset = c->n_history;
    row->n_prompt = r->n_prompt;
    row->n_output = request_n_output(r);
    memcpy(history + c->n_history, r->ids, r->n_token * sizeof(int32_t));
    c->n_history += r->n_token;
}

void sampler_build(const struct batch_layout *l, const struct plan *plan, void *host, void *device,
                   struct sampler_step *out)
{
    struct cursor c = {.block = host, .l = l};
    struct sample_row *rows = (struct sample_row *)((char *)host + l->rows);
    uint32_t n_row = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        if (!plan->entries[i].draws) continue;
        const struct sequence *q = sequence_of(plan->entries[i].request);
        struct sample_row *row = &rows[n_row];
        *row = q->row;
        row->logit_row = n_row++;
        row->position = q->request.n_token;
        add_bias(&c, q, row);
        add_bans(&c, q, row);
        add_history(&c, q, row);
        if (row->n_top > out->n_top) out->n_top = row->n_top;
    }
    ASSERT(n_row <= l->max_request);
    ASSERT(c.n_bias <= l->max_request * (uint32_t)LIMIT_LOGIT_BIAS);
    ASSERT(c.n_ban <= l->max_request * (uint32_t)BATCH_BAN_MAX);

    char *base = device;
    struct sample_args *a = &out->args;
    a->n_row = n_row;
    a->rows = (const struct sample_row *)(base + l->rows);
    if (c.n_history) a->history = (const int32_t *)(base + l->history);
    if (c.n_bias) a->bias = (const struct sample_bias *)(base + l->bias);
    if (c.n_ban) a->ban = (const int32_t *)(base + l->ban);
    out->extras[0] = (struct block_range){l->bias, c.n_bias * sizeof(struct sample_bias)};
    out->extras[1] = (struct block_range){l->ban, c.n_ban * sizeof(int32_t)};
    out->extras[2] = (struct block_range){l->history, c.n_history * sizeof(int32_t)};
}

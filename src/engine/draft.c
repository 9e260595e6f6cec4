/* draft.c - passes of the draft layer, from targets to drafts */
#include "engine/draft.h"

#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

fathom_err drafter_init(struct drafter *d, uint32_t max_draft, uint32_t max_num_seqs)
{
    ASSERT(max_draft <= FATHOM_DRAFT_MAX && max_num_seqs >= 1);
    *d = (struct drafter){.max_draft = max_draft};
    if (max_draft == 0) return FATHOM_OK;
    d->targets = mem_calloc(max_num_seqs, sizeof *d->targets);
    return d->targets ? plan_init(&d->plan, max_num_seqs) : FATHOM_ENOMEM;
}

void drafter_fini(struct drafter *d)
{
    mem_free(d->targets);
    plan_fini(&d->plan);
    *d = (struct drafter){0};
}

static int32_t *array(void *host, size_t offset)
{
    return (int32_t *)((char *)host + offset);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many drafts r gets: as many as pay, fit into its length, and are made at positions that its
 * pages hold. The first is made at the position of the last computed row, each other one a position
 * later. */
static uint32_t count_wanted(const struct drafter *d, struct request *r)
{
    if (r->state != REQUEST_RUNNING) return 0;
    ASSERT(r->n_draft == 0 && request_gap(r) == 1);
    ASSERT(r->n_page * (uint32_t)KV_PAGE_TOKENS >= r->n_computed);
    uint32_t n_row_ahead = r->n_page * (uint32_t)KV_PAGE_TOKENS - r->n_computed;
    uint32_t n = draft_pace_next(&sequence_of(r)->pace, d->max_draft);
    return least(least(n, request_draft_room(r)), n_row_ahead + 1);
}

/* Writes the sample rows of the next drafts, one for each target, in their order. */
static void draw_next(const struct drafter *d, const struct batch_layout *l, void *host,
                      struct step *step)
{
    struct sampler s;
    sampler_begin(&s, l, host);
    for (uint32_t i = 0; i < d->n_target; i++) {
        const struct request *q = d->targets[i].request;
        sampler_add(&s, sequence_of(d->targets[i].request), i, q->n_token + q->n_draft, 1, true);
    }
    sampler_end(&s, &step->sampler);
    ASSERT(step->sampler.n_row == step->batch.n_logit_row);
}

void drafter_begin(struct drafter *d, const struct plan *plan, const struct batch_layout *l,
                   void *host, struct step *step)
{
    int32_t *next_ids = array(host, l->next_ids);
    int32_t *logit_rows = array(host, l->logit_rows);
    ASSERT(d->max_draft > 0 && step->pass == STEP_MODEL);
    ASSERT(plan->n_token == step->batch.n_token);
    d->n_target = 0;
    memset(next_ids, 0, plan->n_token * sizeof *next_ids); /* some requests may have ended */
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        struct request *q = e->request;
        uint32_t row = e->i_token + q->n_computed - 1 - e->first;
        /* What follows a wrong draft is not known and does not matter: its row is not kept. */
        for (uint32_t k = 0; k < e->n_token && e->first + k + 1 < q->n_token; k++)
            next_ids[e->i_token + k] = q->ids[e->first + k + 1];
        uint32_t n_wanted = e->draws ? count_wanted(d, q) : 0;
        if (n_wanted == 0) continue;
        ASSERT(n_wanted <= d->max_draft && row < e->i_token + e->n_token);
        logit_rows[d->n_target] = (int32_t)row;
        d->targets[d->n_target++] = (struct draft_target){q, n_wanted, (int32_t)row};
        q->is_held = true;
    }
    step->pass = STEP_DRAFT;
    step->batch.n_logit_row = d->n_target;
    draw_next(d, l, host, step);
}

uint32_t drafter_fill_masks(const struct drafter *d, const struct batch_layout *l, void *host)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_target; i++) {
        const struct constraint *c = &sequence_of(d->targets[i].request)->constraint;
        if (constraint_n_free(c) > 0) continue;
        constraint_fill(c, sampler_mask(l, host, n++), l->n_mask_word);
    }
    return n;
}

void drafter_drop(struct drafter *d, const struct request *r)
{
    for (uint32_t i = 0; i < d->n_target; i++) {
        if (d->targets[i].request == r) d->targets[i].request = NULL;
    }
}

/* A draft that the constraint does not allow is dropped, and its request gets no more drafts. The
 * constraint stays ahead of the known tokens, at the position where the next draft is drawn. */
void drafter_take(struct drafter *d, const int32_t *ids)
{
    for (uint32_t i = 0; i < d->n_target; i++) {
        struct request *q = d->targets[i].request;
        if (!q) continue;
        struct constraint *c = &sequence_of(q)->constraint;
        if (constraint_is_set(c) && !constraint_try(c, ids[i])) {
            d->targets[i].n_wanted = q->n_draft;
            continue;
        }
        ASSERT(q->n_draft < d->targets[i].n_wanted && q->n_draft < request_draft_room(q));
        q->ids[q->n_token + q->n_draft++] = ids[i];
    }
}

bool drafter_continue(struct drafter *d, const struct batch_layout *l, uint32_t max_context,
                      void *host, struct step *step)
{
    struct plan *plan = &d->plan;
    int32_t *next_ids = array(host, l->next_ids);
    int32_t *hidden_rows = array(host, l->hidden_rows);
    uint32_t n = 0;
    ASSERT(step->pass != STEP_MODEL);
    plan->max_context = max_context;
    for (uint32_t i = 0; i < d->n_target; i++) {
        struct draft_target target = d->targets[i];
        struct request *q = target.request;
        if (!q) continue;
        ASSERT(q->n_draft <= target.n_wanted);
        q->is_held = q->n_draft < target.n_wanted;
        if (!q->is_held) continue;
        ASSERT(q->n_draft >= 1);
        uint32_t first = q->n_computed + q->n_draft - 1;
        plan->entries[n] = (struct plan_entry){
            .request = q, .first = first, .n_token = 1, .draws = true, .i_draw = n};
        ASSERT(first >= q->n_prompt); /* answer rows */
        next_ids[n] = q->ids[first + 1];
        hidden_rows[n] = target.row;
        target.row = (int32_t)n;
        d->targets[n++] = target;
    }
    d->n_target = plan->n_entry = plan->n_token = plan->n_draw = n;
    plan->n_score = 0;
    if (n == 0) return false;
    step->pass = STEP_DRAFT_ROWS;
    step->prefix_bytes = batch_build(l, plan, host, &step->batch);
    draw_next(d, l, host, step);
    return true;
}

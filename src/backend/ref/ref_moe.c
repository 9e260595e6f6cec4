/* ref_moe.c - router, moe and moe_ep: equations in op_moe.h */
#include "backend/ref/ref_int.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

/* G = the sum of the two largest b of a group; its only one, if it has one */
static double group_score(const float *biased, uint32_t n)
{
    DCHECK(n > 0);
    float first = -INFINITY;
    float second = -INFINITY;
    for (uint32_t e = 0; e < n; e++) {
        if (biased[e] > first) {
            second = first;
            first = biased[e];
        } else if (biased[e] > second) {
            second = biased[e];
        }
    }
    return n > 1 ? first + second : first;
}

/* The largest of n values that is not taken yet; ties to the lower index. */
static uint32_t take_largest(const float *value, bool *taken, uint32_t n)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        if (taken[i]) continue;
        if (best == n || value[i] > value[best]) best = i;
    }
    ASSERT(best < n);
    taken[best] = true;
    return best;
}

/* b of all but the topk_group best groups becomes -inf */
static void keep_best_groups(const struct ref_backend *r, float *biased)
{
    const struct backend_config *c = &r->c;
    uint32_t width = c->n_expert / c->n_group;
    ASSERT(width > 0);
    float *score = r->route_group;
    bool *kept = r->route_taken;
    for (uint32_t g = 0; g < c->n_group; g++) {
        score[g] = group_score(biased + (size_t)g * width, width);
        kept[g] = false;
    }
    for (uint32_t i = 0; i < c->topk_group; i++) take_largest(score, kept, c->n_group);
    for (uint32_t e = 0; e < c->n_expert; e++) {
        if (!kept[e / width]) biased[e] = -INFINITY;
    }
}

static void route_token(struct ref_backend *r, const struct moe_weight *w, const float *x,
                        int32_t *chosen, float *weight)
{
    const struct backend_config *c = &r->c;
    ASSERT(c->n_expert_used <= c->n_expert);
    float *s = r->wide;
    float *biased = r->route_biased;
    bool *taken = r->route_taken;
    ref_matvec(&w->router, 0, c->n_expert, x, s);
    for (uint32_t e = 0; e < c->n_expert; e++) {
        s[e] = ref_sigmoid(s[e]);
        biased[e] = s[e] + w->router_bias.value[e];
    }
    keep_best_groups(r, biased);
    for (uint32_t e = 0; e < c->n_expert; e++) taken[e] = false;
    for (uint32_t i = 0; i < c->n_expert_used; i++) take_largest(biased, taken, c->n_expert);

    double sum = 0;
    uint32_t n = 0;
    for (uint32_t e = 0; e < c->n_expert; e++) {
        if (!taken[e]) continue;
        chosen[n++] = (int32_t)e;
        sum += (double)s[e];
    }
    ASSERT(n == c->n_expert_used);
    for (uint32_t i = 0; i < n; i++) {
        double part = (double)s[chosen[i]] / (c->norm_topk ? sum : 1);
        weight[i] = (float)(part * (double)c->routed_scale);
    }
}

fathom_err ref_router(struct backend *b, const struct router_args *a)
{
    op_check_router(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_MOE);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    struct ref_backend *r = ref_of(b);
    uint32_t n_live = a->n_live ? (uint32_t)*a->n_live : a->n_token;
    for (uint32_t t = 0; t < a->n_token; t++) {
        size_t at = (size_t)t * a->route->width;
        uint32_t like = t < n_live ? t : 0;
        route_token(r, &a->w->moe, a->x->value + (size_t)like * a->x->width, a->route->index + at,
                    a->route->value + at);
    }
    return FATHOM_OK;
}

/* y[t] = sum over chosen e that are here, ascending, of weight_e * ffn_e(x[t]); + shared(x[t]) */
fathom_err ref_moe(struct backend *b, const struct moe_args *a)
{
    op_check_moe(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_MOE && a->w->moe.n_expert == backend_held_experts(&ref_of(b)->c));
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct ref_backend *r = ref_of(b);
    const struct moe_weight *w = &a->w->moe;
    const uint32_t hidden = r->c.hidden,
                   first = parallel_first_expert(&r->c.parallel, r->c.n_expert);
    ASSERT(first + w->n_expert <= r->c.n_expert);
    float *part = r->part;
    for (uint32_t t = 0; t < a->n_token; t++) {
        const int32_t *chosen = a->route->index + (size_t)t * a->route->width;
        const float *weight = a->route->value + (size_t)t * a->route->width;
        float *y = a->y->value + (size_t)t * a->y->width;
        const float *x = a->x->value + (size_t)t * a->x->width;
        memset(y, 0, hidden * sizeof *y);
        for (uint32_t i = 0; i < r->c.n_expert_used; i++) {
            ASSERT(chosen[i] >= 0 && (uint32_t)chosen[i] < r->c.n_expert);
            const uint32_t e = (uint32_t)chosen[i] - first; /* wraps below it */
            if (e >= w->n_expert) continue;
            ref_ffn_row(r, &w->experts[e], x, part);
            for (uint32_t d = 0; d < hidden; d++) y[d] += weight[i] * part[d];
        }
        if (r->c.shared_inner == 0) continue;
        ref_ffn_row(r, &w->shared, x, part);
        for (uint32_t d = 0; d < hidden; d++) y[d] += part[d];
    }
    return FATHOM_OK;
}

/* part = what this rank's experts make of row i of a rank: chosen e ascending */
static void make_part(struct ref_backend *r, const struct moe_ep_args *a, uint32_t rank, uint32_t i,
                      float *part)
{
    const struct host_ep *e = &r->ep;
    const int32_t *chosen = host_ep_chosen(e, rank, i);
    const float *weight = host_ep_weight(e, rank, i);
    memset(part, 0, r->c.hidden * sizeof *part);
    for (uint32_t k = 0; k < r->c.n_expert_used; k++) {
        ASSERT(chosen[k] >= 0 && (uint32_t)chosen[k] < r->c.n_expert);
        const uint16_t place = a->place[chosen[k]];
        if (expert_rank(place) != e->rank) continue;
        ASSERT(expert_index(place) < a->w->moe.n_expert);
        ref_ffn_row(r, &a->w->moe.experts[expert_index(place)], host_ep_x(e, rank, i), r->part);
        for (uint32_t d = 0; d < r->c.hidden; d++) part[d] += weight[k] * r->part[d];
    }
}

/* y of row i: the ranks' parts, ascending, and the shared expert's */
static void sum_parts(struct ref_backend *r, const struct moe_ep_args *a, uint32_t i)
{
    const uint32_t hidden = r->c.hidden;
    const size_t row = host_ep_row(&r->ep, i);
    const bool is_shared = r->c.shared_inner > 0;
    if (is_shared) ref_ffn_row(r, &a->w->moe.shared, a->x->value + row * a->x->width, r->part);
    host_ep_sum_row(&r->ep, i, a->route->index + row * a->route->width, r->c.n_expert_used,
                    is_shared ? r->part : NULL, a->y->value + row * a->y->width, hidden);
}

fathom_err ref_moe_ep(struct backend *b, const struct moe_ep_args *a)
{
    op_check_moe_ep(&ref_of(b)->c, a);
    ASSERT(a->w->kind == REF_MOE);
    ASSERT(a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    ASSERT(a->y->kind == BUFFER_DELTA);
    struct ref_backend *r = ref_of(b);
    struct host_ep *e = &r->ep;
    ASSERT(parallel_moves_rows(&r->c.parallel) &&
           a->w->moe.n_expert == backend_held_experts(&r->c));
    const size_t route_stride = a->route->width * sizeof(float);
    const struct host_ep_rows lane = {.x = a->x->value,
                                      .x_stride = a->x->width * sizeof(float),
                                      .chosen = a->route->index,
                                      .chosen_stride = route_stride,
                                      .weight = a->route->value,
                                      .weight_stride = route_stride};
    host_ep_open(e, &r->peers.experts, &r->c.parallel, a, &lane, lane.x_stride, r->c.n_expert_used,
                 ref_ep_rows(&r->c), r->ep_part, r->c.hidden);
    for (uint32_t t = 0; t < a->n_token; t++) {
        float *y = a->y->value + (size_t)t * a->y->width;
        if (host_ep_is_other(e, t)) memset(y, 0, r->c.hidden * sizeof *y);
    }
    for (uint32_t row0 = 0;; row0 += e->n_run) {
        TRY(host_ep_meet(e, row0));
        for (uint32_t rank = 0; rank < e->n_rank; rank++) {
            for (uint32_t i = 0; i < host_ep_run(e, rank); i++)
                make_part(r, a, rank, i, r->ep_part + (e->first[rank] + i) * e->stride);
        }
        TRY(host_ep_swap(e));
        for (uint32_t i = 0; i < host_ep_run(e, e->rank); i++) sum_parts(r, a, i);
        if (host_ep_is_last(e)) return FATHOM_OK;
    }
}

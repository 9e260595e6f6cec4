/* host_ep.c - rounds of moe_ep */
#include "backend/host_ep.h"

#include "base/assert.h"
#include "base/fail.h"

void host_ep_open(struct host_ep *e, struct host_rank *peer, const struct moe_ep_args *a,
                  uint32_t n_run, const float *part, size_t stride)
{
    const uint32_t n_live = a->n_live ? (uint32_t)*a->n_live : a->n_token;
    ASSERT(n_run >= 1 && part);
    *e = (struct host_ep){.peer = peer,
                          .a = a,
                          .n_rank = peer->group ? peer->n_rank : 1,
                          .rank = peer->group ? peer->rank : 0,
                          .n_run = n_run,
                          .stride = stride};
    ASSERT(e->n_rank <= PARALLEL_RANKS_MAX);
    e->all[e->rank] = (struct host_ep_rank){.x = a->x,
                                            .route = a->route,
                                            .n_token = n_live < a->n_token ? n_live : a->n_token,
                                            .part = part};
}

fathom_err host_ep_meet(struct host_ep *e, uint32_t row0)
{
    const struct host_place place = {.op = "moe_ep", .layer = e->a->layer, .n_row = row0};
    const void *const *all = NULL;
    e->row0 = row0;
    if (e->peer->group) TRY(host_meet(e->peer, &place, &e->all[e->rank], &all));
    e->first[0] = 0;
    for (uint32_t r = 0; r < e->n_rank; r++) {
        if (r != e->rank) {
            ASSERT(all); /* other ranks are in a group */
            e->all[r] = *(const struct host_ep_rank *)all[r];
        }
        e->first[r + 1] = e->first[r] + host_ep_run(e, r);
    }
    return FATHOM_OK;
}

fathom_err host_ep_swap(struct host_ep *e)
{
    return e->peer->group ? host_part(e->peer) : FATHOM_OK;
}

bool host_ep_is_last(const struct host_ep *e)
{
    for (uint32_t r = 0; r < e->n_rank; r++) {
        if (e->all[r].n_token > e->row0 + e->n_run) return false;
    }
    return true;
}

uint32_t host_ep_run(const struct host_ep *e, uint32_t rank)
{
    ASSERT(rank < e->n_rank);
    const uint32_t n = e->all[rank].n_token;
    const uint32_t left = n > e->row0 ? n - e->row0 : 0;
    return left < e->n_run ? left : e->n_run;
}

void host_ep_sum_row(const struct host_ep *e, uint32_t i, const int32_t *chosen, uint32_t n_used,
                     const float *last, float *sum, uint32_t n)
{
    const float *parts[PARALLEL_RANKS_MAX + 1];
    uint64_t ranks = 0;
    uint32_t n_part = 0;
    _Static_assert(PARALLEL_RANKS_MAX <= 64, "a bit a rank");
    ASSERT(i < host_ep_run(e, e->rank));
    for (uint32_t k = 0; k < n_used; k++)
        ranks |= UINT64_C(1) << expert_rank(e->a->place[chosen[k]]);
    for (uint32_t r = 0; r < e->n_rank; r++) {
        if (!(ranks >> r & 1)) continue;
        parts[n_part++] = e->all[r].part + (e->first[e->rank] + i) * e->stride;
    }
    if (last) parts[n_part++] = last;
    host_sum_row(sum, parts, n_part, n);
}

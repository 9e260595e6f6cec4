/* host_ep.c - rounds of moe_ep */
#include "backend/host_ep.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

/* Rows from row `first` on. */
static struct host_ep_rows rows_from(const struct host_ep_rows *r, size_t first)
{
    struct host_ep_rows from = *r;
    from.x = (const char *)r->x + first * r->x_stride;
    from.chosen = (const char *)r->chosen + first * r->chosen_stride;
    from.weight = (const char *)r->weight + first * r->weight_stride;
    return from;
}

void host_ep_open(struct host_ep *e, struct host_rank *peer, const struct parallel *p,
                  const struct moe_ep_args *a, const struct host_ep_rows *lane, size_t x_bytes,
                  uint32_t n_used, uint32_t n_run, const float *part, size_t stride)
{
    const struct row_run run = parallel_lane_rows(p, a->n_token);
    const uint32_t n_live = a->n_live ? (uint32_t)*a->n_live : a->n_token;
    const uint32_t n_behind = n_live > run.first ? n_live - run.first : 0;
    const struct host_ep_rows own = rows_from(lane, run.first);
    ASSERT(n_run >= 1 && part);
    *e = (struct host_ep){.peer = peer,
                          .a = a,
                          .n_rank = peer->group ? peer->n_rank : 1,
                          .rank = peer->group ? peer->rank : 0,
                          .run = run,
                          .n_run = n_run,
                          .n_used = n_used,
                          .x_bytes = x_bytes,
                          .own = own,
                          .part = part,
                          .stride = stride};
    ASSERT(e->n_rank <= PARALLEL_RANKS_MAX);
    e->all[e->rank] = (struct host_ep_rank){
        .rows = own, .n_token = n_behind < run.n ? n_behind : run.n, .part = part};
}

/* Results of a round lie by rank and row. */
static void count_results(struct host_ep *e)
{
    ASSERT(e->n_rank >= 1 && e->stride > 0);
    e->first[0] = 0;
    e->starts[0] = 0;
    for (uint32_t r = 0; r < e->n_rank; r++) {
        e->first[r + 1] = e->first[r] + host_ep_run(e, r);
        e->starts[r + 1] = e->first[r + 1] * e->stride * sizeof(float);
    }
}

/* ---- over several processes ----------------------------------------------------------------- */

/* A meeting that is over when all have seen what the others show. */
static fathom_err show(struct host_ep *e, uint32_t row0, const void *own, size_t n_bytes,
                       const size_t *starts, const void **out)
{
    const struct host_place place = {
        .op = "moe_ep", .layer = e->a->layer, .n_row = row0, .n_bytes = n_bytes, .starts = starts};
    const void *const *all;
    ASSERT(n_bytes > 0);
    TRY(host_meet(e->peer, &place, own, &all));
    for (uint32_t r = 0; r < e->n_rank; r++) out[r] = all[r];
    return host_part(e->peer);
}

static fathom_err share_counts(struct host_ep *e)
{
    const uint32_t own = e->all[e->rank].n_token;
    const struct host_place place = {.op = "moe_ep", .layer = e->a->layer, .n_bytes = sizeof own};
    const void *const *all;
    TRY(host_meet(e->peer, &place, &own, &all));
    for (uint32_t r = 0; r < e->n_rank; r++) memcpy(&e->all[r].n_token, all[r], sizeof own);
    return host_part(e->peer);
}

/* Where the three arrays of a packed row lie. */
static void locate(const struct host_ep *e, struct host_ep_rows *out, const void *pack)
{
    const size_t used = e->n_used * sizeof(int32_t), row = e->x_bytes + 2 * used;
    ASSERT(e->x_bytes % sizeof(float) == 0);
    *out = (struct host_ep_rows){.x = pack,
                                 .x_stride = row,
                                 .chosen = (const char *)pack + e->x_bytes,
                                 .chosen_stride = row,
                                 .weight = (const char *)pack + e->x_bytes + used,
                                 .weight_stride = row};
}

/* This rank's rows of the round, one behind the other. */
static void pack_rows(const struct host_ep *e, unsigned char *pack)
{
    const size_t used = e->n_used * sizeof(int32_t), row = e->x_bytes + 2 * used;
    const struct host_ep_rows *own = &e->own;
    for (uint32_t i = 0; i < host_ep_run(e, e->rank); i++) {
        const size_t from = e->row0 + i;
        unsigned char *to = pack + i * row;
        memcpy(to, (const char *)own->x + from * own->x_stride, e->x_bytes);
        memcpy(to + e->x_bytes, (const char *)own->chosen + from * own->chosen_stride, used);
        memcpy(to + e->x_bytes + used, (const char *)own->weight + from * own->weight_stride, used);
    }
}

static fathom_err meet_far(struct host_ep *e, const struct host_net *net, uint32_t row0)
{
    const void *all[PARALLEL_RANKS_MAX];
    const size_t row = e->x_bytes + 2 * e->n_used * sizeof(int32_t);
    unsigned char *pack = net->packs + (e->rank - net->first) * net->pack_bytes;
    uint32_t most = 0;
    e->row0 = row0;
    if (row0 == 0) TRY(share_counts(e));
    count_results(e);
    for (uint32_t r = 0; r < e->n_rank; r++) {
        const uint32_t n = host_ep_run(e, r);
        most = n > most ? n : most;
    }
    if (most == 0) return FATHOM_OK; /* nobody has rows */
    ASSERT(most * row <= net->pack_bytes);
    pack_rows(e, pack);
    TRY(show(e, row0, pack, most * row, NULL, all));
    for (uint32_t r = 0; r < e->n_rank; r++) {
        e->all[r].row0 = 0;
        locate(e, &e->all[r].rows, all[r]);
    }
    return FATHOM_OK;
}

static fathom_err swap_far(struct host_ep *e)
{
    const void *all[PARALLEL_RANKS_MAX];
    const size_t n_bytes = e->starts[e->n_rank];
    if (n_bytes == 0) return FATHOM_OK;
    TRY(show(e, e->row0, e->part, n_bytes, e->starts, all));
    for (uint32_t r = 0; r < e->n_rank; r++) e->all[r].part = all[r];
    return FATHOM_OK;
}

/* ---- rounds --------------------------------------------------------------------------------- */

fathom_err host_ep_meet(struct host_ep *e, uint32_t row0)
{
    const struct host_place place = {.op = "moe_ep", .layer = e->a->layer, .n_row = row0};
    const struct host_net *net = host_rank_net(e->peer);
    const void *const *all = NULL;
    if (net) return meet_far(e, net, row0);
    e->row0 = e->all[e->rank].row0 = row0;
    if (e->peer->group) TRY(host_meet(e->peer, &place, &e->all[e->rank], &all));
    for (uint32_t r = 0; r < e->n_rank; r++) {
        if (r == e->rank) continue;
        ASSERT(all); /* other ranks are in a group */
        e->all[r] = *(const struct host_ep_rank *)all[r];
    }
    count_results(e);
    return FATHOM_OK;
}

fathom_err host_ep_swap(struct host_ep *e)
{
    if (host_rank_net(e->peer)) return swap_far(e);
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

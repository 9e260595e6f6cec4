/* op_moe.h - router and experts: arguments and meaning */
#ifndef FATHOM_BACKEND_OP_MOE_H
#define FATHOM_BACKEND_OP_MOE_H

#include <stdint.h>

#include "backend/op_dense.h"
#include "base/tensor_view.h"

struct moe_tensors {
    struct tensor_view router;         /* [E][D] */
    struct tensor_view router_bias;    /* [E] f32 */
    struct ffn_tensors shared;         /* absent without shared experts */
    const struct ffn_tensors *experts; /* [backend_held_experts], in their order there */
};

/* router - which experts, with which weight
 *
 *   s = sigmoid(router x[t])                                   [E]
 *   b = s + router_bias
 *   a group's score is the sum of its two largest b (its only one, if it has one); the topk_group
 *   best groups stay, the rest of b becomes -inf
 *   the n_expert_used experts with the largest b are chosen, ties to the lower index
 *   weight_e = s_e / (sum of the chosen s, if norm_topk) * routed_scale
 *
 *   w      prepare_moe; x NORMED
 *   n_live of the batch: rows from there on are routed as row 0 is, so that padding reads no expert
 *          that no other row does
 *   route  ROUTE: chosen experts in ascending index. buffer_read gives f32
 *          [n_row][2 * n_expert_used]: the experts' indexes, then their weights.
 * Numerics all in f32: x and the router weight are not rounded to a narrower type.
 */
struct router_args {
    const struct weight *w;
    const struct buffer *x;
    struct buffer *route;
    uint32_t n_token;
    const int32_t *n_live; /* device; NULL: all rows are live */
};

/* moe - y[t] = sum over chosen experts e of weight_e * ffn_e(x[t]) + shared(x[t])
 *
 *   y  DELTA, overwritten (a partial sum over ranks; where experts are whole, of those chosen
 *      experts that this rank has, and of its part of the shared one)
 * Numerics experts are added in ascending index, the shared expert last, in f32.
 */
struct moe_args {
    const struct weight *w;
    const struct buffer *x;
    const struct buffer *route;
    struct buffer *y;
    uint32_t n_token;
};

/* moe_ep - moe over experts that live on other ranks too
 *
 *   y[t] = sum over ranks r of p_r + shared(x[t])
 *   p_r  = sum over chosen experts e of rank r of weight_e * ffn_e(x[t])
 *
 * Every lane (parallel.h) has rows of its own, and takes part with none too. Its ranks all have
 * them, and each brings a run of them (parallel_lane_rows): the sums of these, and +0 in the
 * others, so that y is a partial sum over the lane's ranks, and adding it up is no rounding.
 *
 *   w      prepare_moe; x NORMED, route ROUTE: the lane's rows
 *   y      DELTA, the lane's rows, overwritten; of a lane of one rank the whole sum
 *   n_token  the lane's rows, 0 .. n_most; of each lane another number
 *   n_most   rows that any lane may have, 1 .. max_token: equal on all ranks
 *   n_live of the batch: rows from there on are sent nowhere and have no result
 *   lane_rows  [lanes], host: the rows of each lane, as n_token; equal on all ranks. NULL: they are
 *            not known, or others in each replay of a recording
 *   place  u16 [E], device: parallel.h; equal on all ranks. Numbers ascend with experts
 *   layer  as the cache counts layers: equal on all ranks that come
 * Numerics in f32: experts in ascending index within p_r, ranks ascending, the shared expert last.
 *          A rank that has none of a row's experts takes no part in its sum. So a row's bits depend
 *          on the row and the places, not on the rank that brings it.
 * Needs    on several ranks: all make this call, layer by layer in the same order.
 */
struct moe_ep_args {
    const struct weight *w;
    const struct buffer *x;
    const struct buffer *route;
    struct buffer *y;
    uint32_t n_token;
    uint32_t n_most;
    const uint32_t *lane_rows;
    const int32_t *n_live; /* device; NULL: all rows are live */
    const uint16_t *place;
    uint32_t layer;
};

#endif

/* op_check.h - what an operator needs, as far as the host can tell without reading device memory
 *
 * op_check_embed, op_check_reduce_norm, op_check_spread_rows, op_check_mla_front,
 * op_check_share_rows, op_check_index_topk, op_check_mla_attend, op_check_mla_out, op_check_ffn,
 * op_check_router, op_check_moe, op_check_moe_ep, op_check_head, op_check_mtp_front,
 * op_check_sample - ASSERT what the operator's doc comment (op_*.h) asks of its arguments
 *
 * They check pointers that must be there, counts against the sizes of *c, the layer, and the layout
 * of the cache. Arguments that fail are a fault of the caller and end the process. An operator of
 * every backend calls its check first.
 * Cost  a few comparisons a call, whatever the size of the step.
 */
#ifndef FATHOM_BACKEND_OP_CHECK_H
#define FATHOM_BACKEND_OP_CHECK_H

#include "backend/backend.h"

void op_check_embed(const struct backend_config *c, const struct embed_args *a);
void op_check_spread_rows(const struct backend_config *c, const struct spread_rows_args *a);
void op_check_reduce_norm(const struct backend_config *c, const struct reduce_norm_args *a);
void op_check_mla_front(const struct backend_config *c, const struct mla_front_args *a);
void op_check_share_rows(const struct backend_config *c, const struct share_rows_args *a);
void op_check_index_topk(const struct backend_config *c, const struct index_topk_args *a);
void op_check_mla_attend(const struct backend_config *c, const struct mla_attend_args *a);
void op_check_mla_out(const struct backend_config *c, const struct mla_out_args *a);
void op_check_ffn(const struct backend_config *c, const struct ffn_args *a);
void op_check_router(const struct backend_config *c, const struct router_args *a);
void op_check_moe(const struct backend_config *c, const struct moe_args *a);
void op_check_moe_ep(const struct backend_config *c, const struct moe_ep_args *a);
void op_check_head(const struct backend_config *c, const struct head_args *a);
void op_check_mtp_front(const struct backend_config *c, const struct mtp_front_args *a);
void op_check_sample(const struct backend_config *c, const struct sample_args *a);

#endif

/* op_attn.h - multi-head latent attention with the lightning indexer: arguments and meaning
 *
 * The meaning is written in the absorbed form. mla_front multiplies the query by the key half of
 * kv_b. mla_attend attends over the cached latent rows (576 wide, one key for all heads). mla_out
 * multiplies by the value half.
 *
 * Answer rows and prompt rows (batch.h) may have a form each. A form is an order of the same sums:
 * it computes the same values up to rounding, and other bits. The expanded form leaves kv_b out of
 * mla_front and mla_out, and makes keys and values of each head of the cached rows instead. The
 * backend chooses the forms once, by its configuration and the device. From then on a row's form
 * depends on its kind, on its position and on nothing else of the step. A backend whose prompt rows
 * have other bits than answer rows says so (caps.prompt_form). The engine answers for the kinds:
 * it puts each row where it belongs, and shares no cache row between requests that would compute
 * it in different forms. The rows of QUERY and LATENT are the backend's own business between the
 * three operators; buffer_read gives those of answer rows as described here.
 */
#ifndef FATHOM_BACKEND_OP_ATTN_H
#define FATHOM_BACKEND_OP_ATTN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/batch.h"
#include "base/tensor_view.h"

struct buffer;
struct weight;

struct mla_tensors {
    struct tensor_view q_a;       /* [q_lora][D] */
    struct tensor_view q_a_norm;  /* [q_lora] */
    struct tensor_view q_b;       /* [H * 192][q_lora]; per head 128 nope, 64 rope */
    struct tensor_view kv_a;      /* [576][D]; 512 latent, 64 rope */
    struct tensor_view kv_a_norm; /* [512] */
    struct tensor_view kv_b;      /* [H * 256][512]; per head 128 key rows, 128 value rows */
    struct tensor_view o;         /* [D][H * 128] */
    /* absent (n_row 0) without an indexer; replicated on every rank */
    struct tensor_view index_q_b;      /* [index_n_head * 128][q_lora] */
    struct tensor_view index_k;        /* [128][D] */
    struct tensor_view index_k_weight; /* [128] LayerNorm */
    struct tensor_view index_k_bias;   /* [128] */
    struct tensor_view index_head;     /* [index_n_head][D] */
};

/* mla_front - everything before attention scores
 *
 *   qa   = rmsnorm(q_a x);  q = q_b qa;  rope on the last 64 of each head
 *   kv   = kv_a x;  c = rmsnorm(kv[0:512]);  k_pe = rope(kv[512:576])
 *   the cache row of slot[t] in `layer` becomes [c ; k_pe], in the cache's type
 *   query[t,h] = [ W_UK,h^T q_nope ; q_pe ]               [576]; W_UK,h: head h's key rows of kv_b
 *   with an indexer:
 *     ki = layernorm(index_k x), rope on the FIRST 64 (half-split), Hadamard(128) / sqrt(128),
 *          quantized to e4m3 with a power-of-two scale (f32 kept for KV_TYPE_F32), stored as the
 *          index key of slot[t] - always, also when no query is wanted
 *     qi = index_q_b qa, the same rope and Hadamard, per head e4m3 with a power-of-two scale qs
 *          (no quantization for KV_TYPE_F32)
 *     w  = (index_head x) * index_n_head^-1/2 * 128^-1/2 * qs
 *
 *   x      NORMED; query QUERY, written. Through buffer_read a row is H*576 values; asked for
 *          index_n_head * 129 more, it goes on with qi as the products take it
 *          [index_n_head][128] and w [index_n_head].
 *   owned  x holds own rows alone (op_dense.h): what follows from a row before the query's heads is
 *          computed by its owner and sent to all; qi and w are of own rows
 *   want_index_query  false: qi and w are not needed (no request beyond index_topk)
 * Numerics norms, rope and angles in f32; x and qa rounded to enum act_type as products' inputs.
 */
struct mla_front_args {
    const struct weight *w;
    const struct batch *batch;
    const struct kv_cache *kv;
    uint32_t layer;
    bool want_index_query;
    bool owned;
    const struct buffer *x;
    struct buffer *query;
};

/* share_rows - of a layer's cache, rows of one request from the lanes that have them to all others
 *
 *   pages  i32, device: of this rank's lane, the page of the request's positions 64*j .. 64*j + 63
 *   share  host, equal on all lanes but for `request`: position by position in order, whose row it
 *          is. The ranks of that lane have it, alike, and rank t of every other lane writes what
 *          rank t of it has: latent row, and index key if the cache has one
 * Numerics bits are copied.
 * Needs    one segment more than lanes at most; all make this call, layer by layer in the same
 *          order.
 * Cost     n_row rows and keys stored, once on each rank of the other lanes; over hosts packed and
 *          sent besides.
 * Errors   EPEER: a rank or a host is lost.
 */
struct share_rows_args {
    const struct kv_cache *kv;
    uint32_t layer;
    const int32_t *pages;
    const struct batch_share *share;
};

/* index_topk - for each token the cache rows that it attends to
 *
 *   I(t, s) = ks_s * sum_h w[t,h] * max(0, qi[t,h] . ki_s)      s <= pos[t]
 *   select[t] = the min(index_topk, pos[t] + 1) positions with the largest I, ties to the lower
 *   position, in ascending position
 *
 *   query  QUERY of mla_front with want_index_query
 *   owned  as in mla_front: a row is selected for by its owner, and sent to all
 *   select SELECT: per token a count and slots (page * 64 + offset). buffer_read gives f32
 *          [n_row][1 + index_topk]: the count, then slots, -1 beyond the count.
 * Edge     pos[t] < index_topk: all visible rows, whatever the scores.
 * Numerics f32 accumulation in a fixed order; a NaN score counts as -inf.
 */
struct index_topk_args {
    const struct batch *batch;
    const struct kv_cache *kv;
    uint32_t layer;
    bool owned;
    const struct buffer *query;
    struct buffer *select;
};

/* mla_attend - attention of each token over its rows
 *
 *   out[t,h] = sum_s softmax_s( softmax_scale * query[t,h] . k_s ) * v_s
 *
 *   w       the layer's, whose kv_b rows in expanded form need; may be NULL without prompt rows
 *   select  rows of index_topk, or NULL: every position <= pos[t]
 *   out     LATENT, written: [512] per head
 *   left_to_out  the next operator is the mla_out whose z is out, and nothing else reads it: a
 *           backend may end the sums there, and buffer_read of out says nothing
 * Numerics f32 scores, softmax and sums, in fixed groups of 64 rows in ascending position, so a
 *          token that sees the same rows through `select` and without it gets the same bits.
 * Cost     2*H*(576+512) flop per row seen.
 */
struct mla_attend_args {
    const struct weight *w;
    const struct batch *batch;
    const struct kv_cache *kv;
    uint32_t layer;
    const struct buffer *query;
    const struct buffer *select;
    struct buffer *out;
    bool left_to_out;
};

/* mla_out - y[t] = o [ W_UV,h z[t,h] of every head h ]; W_UV,h: the head's value rows of kv_b
 *
 *   z  LATENT of mla_attend over the same batch
 *   y  DELTA, overwritten (a partial sum over ranks)
 */
struct mla_out_args {
    const struct weight *w;
    const struct batch *batch;
    const struct buffer *z;
    struct buffer *y;
};

#endif

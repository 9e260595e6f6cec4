/* op_dense.h - embedding, norm, dense FFN, head, MTP front: arguments and meaning
 *
 * Numerics of every matrix product W x, here and in op_attn.h and op_moe.h unless said otherwise: W
 * is decoded exactly and x rounded to enum act_type. Sums are f32, in a fixed order. The scale of a
 * 128 x 128 block is applied to the f32 partial sum.
 */
#ifndef FATHOM_BACKEND_OP_DENSE_H
#define FATHOM_BACKEND_OP_DENSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tensor_view.h"

struct batch;
struct buffer;
struct weight;

/* embed - x[t] = table[ids[t]], and for a negative id table[drawn[~ids[t]]]
 *
 *   table  prepare_linear of [V][D]
 *   ids    i32 [T], device, below V
 *   drawn  i32, device, in [0, V): what an earlier sample has drawn; NULL: no id is negative
 *   x      RESIDUAL, written
 * Numerics exact: the table's values. Cost T*D values read.
 */
struct embed_args {
    const struct weight *table;
    const int32_t *ids;
    const int32_t *drawn;
    uint32_t n_token;
    struct buffer *x;
};

/* embed_id - the id of token t */
static inline int32_t embed_id(const struct embed_args *a, size_t t)
{
    return a->ids[t] < 0 ? a->drawn[~a->ids[t]] : a->ids[t];
}

/* Which rows of a step a rank has of the residual and of a norm. With owners (backend_ops.own_rows)
 * a row of prompts is normed, and what follows from it alone computed, by one rank.
 *   ALL   all rows, before and after
 *   OWN   own rows: their norms are rows 0 .. n_own - 1 of `out`, in the order of the step
 *   BACK  own rows of the residual before, all rows of both after */
enum spread { SPREAD_ALL, SPREAD_OWN, SPREAD_BACK };

/* reduce_norm - x[t] += sum over ranks of delta[t];
 *               out[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * weight
 *
 *   x       RESIDUAL, read and written; equal on all ranks that have a row
 *   delta   DELTA, this rank's partial sum, or NULL: nothing is added
 *   weight  prepare_vector of [D]
 *   out     NORMED, written; equal on all ranks that have a row
 *   spread  OWN and BACK need a step whose rows have owners; BACK a delta
 *   begins  x[t] is the sum over ranks itself; what x held is not read. Needs a delta.
 *   layer   for messages: whose norm, as the cache counts layers
 *   reader  prepare_mla, prepare_ffn or prepare_moe: its operators alone read `out` until it is
 *           written again, so a backend may leave out forms of the rows that they do not take, and
 *           buffer_read of it says nothing; NULL: anybody reads it
 * Numerics f32 throughout; the residual is kept in f32 or bf16 as the backend says in docs. The sum
 *          over ranks is formed first, in f32, rank by rank in ascending order, each rank's own
 *          part in its place: all ranks get the same bits, which depend on no other row.
 * Edge     on one rank the sum is delta.
 */
struct reduce_norm_args {
    struct buffer *x;
    const struct buffer *delta;
    const struct weight *weight;
    struct buffer *out;
    uint32_t n_token;
    bool begins;
    uint32_t layer;
    enum spread spread;
    const struct weight *reader;
};

/* spread_rows - own rows of a norm, and of a route, to all ranks
 *
 *   w           prepare_ffn or prepare_moe, which reads them: a backend sends what it takes of them
 *   from, to    NORMED: own rows as reduce_norm leaves them; all n_token rows, written
 *   from_route, to_route  ROUTE, likewise; NULL: none
 */
struct spread_rows_args {
    const struct weight *w;
    const struct buffer *from;
    struct buffer *to;
    const struct buffer *from_route;
    struct buffer *to_route;
    uint32_t n_token;
};

struct ffn_tensors {
    struct tensor_view gate; /* [inner][D] */
    struct tensor_view up;   /* [inner][D] */
    struct tensor_view down; /* [D][inner] */
};

/* ffn - y[t] = down( silu(gate x[t]) * (up x[t]) )
 *
 *   w  prepare_ffn; x NORMED; y DELTA, overwritten (a partial sum over ranks)
 * Numerics the product of silu and up in f32, rounded to enum act_type before down.
 */
struct ffn_args {
    const struct weight *w;
    const struct buffer *x;
    struct buffer *y;
    uint32_t n_token;
};

/* head - logits[i] = W hidden[rows[i]]
 *
 *   w      prepare_linear of [V][D], or of this rank's rows of it, in their order
 *   hidden NORMED, read
 *   rows   i32 [n_row], device: token indexes
 *   logits LOGITS, rows 0 .. n_row-1 written; of several ranks, row i whole on its owner
 *          (logit_row_owner), undefined elsewhere
 */
struct head_args {
    const struct weight *w;
    const struct buffer *hidden;
    const int32_t *rows;
    uint32_t n_row;
    struct buffer *logits;
};

/* mtp_front - the draft layer's input
 *
 *   y[t] = eh_proj [ rmsnorm(table[next_ids[t]]; enorm) ; rmsnorm(hidden[rows[t]]; hnorm) ]
 *
 *   hidden   NORMED: the target's output after the final norm (or the draft's own, normed)
 *   next_ids i32 [T], device: the token at position pos[t] + 1
 *   rows     i32 [T], device; NULL: row t for token t
 *   eh_proj  prepare_linear of [D][2D], of n ranks this one's 2D/n columns; enorm, hnorm
 *            prepare_vector of [D]
 *   y        DELTA, written (a partial sum over ranks): the residual that begins
 */
struct mtp_front_args {
    const struct weight *table;
    const struct weight *enorm;
    const struct weight *hnorm;
    const struct weight *eh_proj;
    const int32_t *next_ids;
    const struct buffer *hidden;
    const int32_t *rows;
    struct buffer *y;
    uint32_t n_token;
};

#endif

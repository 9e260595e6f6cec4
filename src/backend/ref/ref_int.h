/* ref_int.h - the reference backend's own types
 *
 * ref says what every operator means. Values are f32. Every sum of products is taken in double, in
 * ascending order over a fixed number of lanes, and rounded to f32 once. So its result is the exact
 * one to within the last bit. One thread, plain loops, no packing: weights are decoded to f32 when
 * they are prepared. An operator has run when its call returns.
 */
#ifndef FATHOM_BACKEND_REF_INT_H
#define FATHOM_BACKEND_REF_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/host_device.h"
#include "backend/host_ep.h"
#include "backend/host_group.h"
#include "backend/host_share.h"
#include "backend/op_check.h"
#include "base/assert.h"

/* Rows of f32, but i32 in SELECT (count, slots) and ROUTE (experts; their weights in `value`). */
struct buffer {
    enum buffer_kind kind;
    uint32_t n_row;
    uint32_t width; /* values per row */
    float *value;   /* [n_row][width]; ROUTE: the weights */
    int32_t *index; /* [n_row][width]; SELECT and ROUTE only */
};

struct matrix {
    float *value; /* f32 [n_row][n_col] */
    uint32_t n_row;
    uint32_t n_col;
    enum input_code input[ACT_INT8 + 1]; /* how inputs are quantized, by activation type */
};

struct ffn_weight {
    struct matrix gate;
    struct matrix up;
    struct matrix down;
};

enum { MLA_N_MATRIX = 12 };

struct mla_weight {
    union {
        struct {
            struct matrix q_a, q_a_norm, q_b;
            struct matrix kv_a, kv_a_norm, kv_b;
            struct matrix o;
            struct matrix index_q_b, index_k, index_k_weight, index_k_bias, index_head;
        };
        struct matrix all[MLA_N_MATRIX];
    };
};

struct moe_weight {
    struct matrix router, router_bias;
    struct ffn_weight shared;
    struct ffn_weight *experts; /* [n_expert] that this rank has */
    uint32_t n_expert;
};

enum ref_kind { REF_VECTOR, REF_LINEAR, REF_MLA, REF_FFN, REF_MOE };

struct weight {
    enum ref_kind kind;
    uint64_t n_bytes;
    union {
        struct matrix matrix; /* VECTOR: one row */
        struct mla_weight mla;
        struct ffn_weight ffn;
        struct moe_weight moe;
    };
};

struct scored {
    float score;
    int32_t id;
};

struct ref_backend {
    struct backend base;
    struct backend_config c;
    struct host_fences fences;
    struct host_peers peers;
    /* Scratch, sized at creation; its content lives inside one operator. The three rows are as
     * wide as the widest of the model. */
    float *x;              /* the input of a product, rounded to the activation type */
    float *x_scale;        /* of each 128 codes of x */
    float *wide;           /* one inner row */
    float *wide2;          /* and another */
    float *part;           /* [hidden] one expert's output */
    float *head;           /* [max_logit_row][this rank's rows of the head], of several ranks */
    float *ep_part;        /* [ranks * ref_ep_rows][hidden], with whole experts */
    struct host_ep ep;     /* moe_ep under way */
    float *score;          /* [n_head][max_context] */
    double *sum;           /* [n_head][512] */
    float *route_biased;   /* [n_expert] */
    float *route_group;    /* [n_group] */
    bool *route_taken;     /* [n_expert] */
    struct scored *scored; /* [max(max_context, n_vocab)] */
};

static inline struct ref_backend *ref_of(struct backend *b)
{
    DCHECK(b);
    return (struct ref_backend *)b;
}

/* ref_ep_rows - rows of a rank in a round of moe_ep */
static inline uint32_t ref_ep_rows(const struct backend_config *c)
{
    return c->max_token < 64 ? c->max_token : 64;
}

/* ---- ref_math.c ---- */

/* ref_dot - sum of a[i] * b[i], rounded once to f32 */
float ref_dot(const float *a, const float *b, uint32_t n);

/* ref_matvec - y[r] = W[r] . x for rows [row0, row0 + n_row) */
void ref_matvec(const struct matrix *w, uint32_t row0, uint32_t n_row, const float *x, float *y);

/* ref_round - out[i] = in[i] rounded to the activation type, ACT_FP8 and ACT_INT8 to bf16; in and
 * out may be the same */
void ref_round(enum act_type act, const float *in, uint32_t n, float *out);

/* ref_product - y = W x, x rounded as an input of W; overwrites r->x */
void ref_product(struct ref_backend *r, const struct matrix *w, const float *x, float *y);

void ref_rmsnorm(const float *x, const float *weight, uint32_t n, float eps, float *out);
void ref_layernorm(const float *x, const float *weight, const float *bias, uint32_t n, float eps,
                   float *out);

/* ref_rope - rotate x[64] by the angles of pos */
void ref_rope(const struct backend_config *c, bool interleaved, int32_t pos, float *x);

/* ref_hadamard - x = H x / sqrt(n) in Sylvester order; n a power of two <= 128 */
void ref_hadamard(float *x, uint32_t n);

float ref_silu(float x);
float ref_sigmoid(float x);

/* ref_fp8_group - the power-of-two scale of 128 values, and their codes: x ~ code * scale */
float ref_fp8_group(const float x[KV_FP8_GROUP], uint8_t code[KV_FP8_GROUP]);

/* ref_sort_scored - larger score first, ties to the lower id */
void ref_sort_scored(struct scored *v, uint32_t n);

/* ---- ref_weight.c ---- */

fathom_err ref_prepare_vector(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d);
fathom_err ref_prepare_linear(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d);
fathom_err ref_prepare_mla(struct backend *b, const struct mla_tensors *t, struct weight **out,
                           fathom_diag *d);
fathom_err ref_prepare_ffn(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                           fathom_diag *d);
fathom_err ref_prepare_moe(struct backend *b, const struct moe_tensors *t, struct weight **out,
                           fathom_diag *d);
void ref_weight_destroy(struct backend *b, struct weight *w);
uint64_t ref_weight_bytes(const struct weight *w);

/* ---- operators: ref_dense.c ref_mla.c ref_index.c ref_moe.c ref_sample.c ---- */

fathom_err ref_embed(struct backend *b, const struct embed_args *a);
fathom_err ref_reduce_norm(struct backend *b, const struct reduce_norm_args *a);
fathom_err ref_ffn(struct backend *b, const struct ffn_args *a);
fathom_err ref_head(struct backend *b, const struct head_args *a);
fathom_err ref_mtp_front(struct backend *b, const struct mtp_front_args *a);
fathom_err ref_mla_front(struct backend *b, const struct mla_front_args *a);
fathom_err ref_index_topk(struct backend *b, const struct index_topk_args *a);
fathom_err ref_mla_attend(struct backend *b, const struct mla_attend_args *a);
fathom_err ref_mla_out(struct backend *b, const struct mla_out_args *a);
fathom_err ref_router(struct backend *b, const struct router_args *a);
fathom_err ref_moe(struct backend *b, const struct moe_args *a);
fathom_err ref_moe_ep(struct backend *b, const struct moe_ep_args *a);
fathom_err ref_sample(struct backend *b, const struct sample_args *a);

/* ref_ffn_row - y = down( silu(gate x) * (up x) ); overwrites r->x, r->wide and r->wide2 */
void ref_ffn_row(struct ref_backend *r, const struct ffn_weight *w, const float *x, float *y);

/* ref_write_index_key - the index key of x goes to `slot` of `layer` */
void ref_write_index_key(struct ref_backend *r, const struct mla_weight *w,
                         const struct kv_cache *kv, uint32_t layer, int32_t slot, int32_t pos,
                         const float *x);

/* ref_index_query - the index query and weights of one token
 *
 *   query  f32 [index_n_head][128], then f32 [index_n_head] weights */
void ref_index_query(struct ref_backend *r, const struct mla_weight *w, int32_t pos,
                     const float *qa, const float *x, float *query);

/* ref_slot - slot of position pos of a request */
static inline int32_t ref_slot(const struct batch *batch, int32_t request, int32_t pos)
{
    DCHECK(request >= 0 && pos >= 0);
    DCHECK((uint32_t)pos / KV_PAGE_TOKENS < batch->page_stride);
    const int32_t *pages = batch->page_table + (size_t)request * batch->page_stride;
    return pages[pos / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + pos % KV_PAGE_TOKENS;
}

#endif

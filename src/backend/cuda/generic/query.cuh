/* query.cuh - what follows the query products: what kernels are given, and the rotary parts */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_QUERY_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_QUERY_CUH

#include "backend/cuda/generic/index_lanes.cuh"
#include "backend/cuda/launch.cuh"

enum {
    NOPE = NOPE_DIM,
    HEAD = QUERY_DIM,
    ABSORB_FEW_MAX = 64, /* tokens up to which one launch makes the queries */
};

struct query_args {
    const float *query; /* [T][n_query]: heads of 192, then index heads of 128 */
    uint32_t n_query, n_head, n_token;
    const bf16 *kv_b;    /* fast path: [H][256][512], the keys' rows first */
    const float *kv_b_f; /* float path */
    const int32_t *pos;
    float freq[KV_ROPE / 2];
    bool interleaved, index_interleaved, quantize;
    bool reads_ahead; /* pos, before the wait: a recorded step (launch.cuh) */
    bf16 *h;          /* [T][n_head][576], fast path */
    float *f;
    uint32_t n_index_head;    /* 0: no index queries */
    const float *head_weight; /* [T][n_index_head], raw; n_head_part of them to be added */
    uint32_t n_head_part;
    float weight_scale;  /* n_index_head^-1/2 * 128^-1/2 */
    uint8_t *index_q;    /* codes, fast path */
    float *index_f;      /* values (codes when quantizing), float path */
    float *index_weight; /* [T][n_index_head], written */
    struct expanded_rows expanded;
    uint32_t n_absorb_token; /* the first so many tokens are absorbed here */
    uint32_t n_absorb;       /* blocks of query_kernel that absorb; the others rotate */
    uint32_t n_pass;         /* a warp rotates so many times four heads */
    uint32_t first, end;     /* tokens that query_kernel rotates */
    uint32_t n_rotate;       /* heads of attention that it does */
    float *angles;           /* of angles_kernel: row [T][n_query], sines and cosines first */
};

static __device__ __forceinline__ void store_query(const struct query_args &a, size_t at, float v)
{
    if (a.h) {
        a.h[at] = float_to_bf16(v);
    } else {
        a.f[at] = v;
    }
}

/* The parts' sum, the same in the eight lanes: each adds every eighth in ascending order
 * (index_head.cuh). */
static __device__ __forceinline__ float head_weight(const struct query_args &a, size_t row)
{
    const size_t stride = (size_t)a.n_token * a.n_index_head;
    DCHECK(row < stride && a.n_head_part >= 1);
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t i = threadIdx.x % INDEX_LANES; i < a.n_head_part; i += INDEX_LANES)
        sum += a.head_weight[i * stride + row];
    return index_sum(sum);
}

enum { ROTATE_HEADS = WARP / INDEX_LANES, ROTATE_WARPS = 4 };
static_assert((int)KV_INDEX_DIM == INDEX_LANES * INDEX_EACH, "eight lanes hold an index query");
static_assert((int)KV_ROPE == 2 * WARP, "a pair a lane");

/* A rotary pair of an attention query, rounded, and in expanded form the rest of it. */
static __device__ __forceinline__ void store_rotated(const struct query_args &a, uint32_t token,
                                                     uint32_t head, bool expanded, uint32_t one,
                                                     uint32_t two, float u, float v)
{
    const size_t row = (size_t)token * a.n_head * KV_ROW;
    const size_t to = row + (expanded ? head * HEAD + NOPE : head * KV_ROW + KV_LATENT);
    store_query(a, to + one, u);
    store_query(a, to + two, v);
    if (!expanded) return;
    const uint32_t at = head * HEAD + threadIdx.x % WARP * 4;
    const float4 x = *(const float4 *)(a.query + (size_t)token * a.n_query + at);
    *(uint2 *)(a.h + row + at) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

/* The rotary parts of four attention queries, a pair a lane. */
static __device__ __forceinline__ void
rotate_query(const struct query_args &a, const struct angles &x, uint32_t token, uint32_t head0)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t one = a.interleaved ? 2 * lane : lane;
    const uint32_t two = a.interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2;
    const bool expanded = is_expanded(a.expanded, token, a.pos);
    float u[ROTATE_HEADS] = {}, v[ROTATE_HEADS] = {};
#pragma unroll
    for (uint32_t k = 0; k < ROTATE_HEADS; k++) {
        const uint32_t head = min(head0 + k, a.n_head - 1);
        const float *from = a.query + (size_t)token * a.n_query + head * HEAD + NOPE;
        u[k] = from[one];
        v[k] = from[two];
    }
#pragma unroll
    for (uint32_t k = 0; k < ROTATE_HEADS; k++) {
        if (head0 + k >= a.n_head) break;
        rotate(u[k], v[k], x.s, x.c);
        store_rotated(a, token, head0 + k, expanded, one, two, u[k], v[k]);
    }
}

/* Four index queries: rope, Hadamard, codes; their weights take the scales. */
static __device__ __forceinline__ void rotate_index_heads(const struct query_args &a,
                                                          const struct angles &x, uint32_t token,
                                                          uint32_t head0)
{
    const uint32_t lane = threadIdx.x % WARP, head = head0 + lane / INDEX_LANES;
    const bool present = head < a.n_index_head;
    const size_t row = (size_t)token * a.n_index_head + (present ? head : 0);
    float v[INDEX_EACH], weight;
    load_index(v, a.query + (size_t)token * a.n_query + a.n_head * HEAD +
                      (present ? head : 0) * KV_INDEX_DIM);
    weight = head_weight(a, row);
    float s[4], c[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        s[k] = shfl(x.s, index_pair(k, a.index_interleaved));
        c[k] = shfl(x.c, index_pair(k, a.index_interleaved));
    }
    rotate_index(v, s, c, a.index_interleaved);
    hadamard(v);
    const float scale = a.quantize ? index_scale(v) : 1.0f;
    if (!present) return;
    if (a.index_q) store_index_codes(a.index_q + row * KV_INDEX_DIM, v, scale);
    if (a.index_f && a.quantize) {
#pragma unroll
        for (int i = 0; i < INDEX_EACH; i++) v[i] = e4m3_to_float(float_to_e4m3(v[i] / scale));
    }
    if (a.index_f) store_index_values(a.index_f + row * KV_INDEX_DIM, v);
    if (lane % INDEX_LANES == 0) a.index_weight[row] = weight * a.weight_scale * scale;
}

/* Warp number i of those that rotate: heads of one token, n_pass times four of attention or of the
 * index. */
static __device__ __forceinline__ void rotate_heads(const struct query_args &a, uint32_t i)
{
    const uint32_t each = a.n_pass * ROTATE_HEADS, n_rotary = ceil_div(a.n_rotate, each);
    const uint32_t n_job = n_rotary + ceil_div(a.n_index_head, each);
    const uint32_t token = a.first + i / n_job, job = i % n_job;
    if (!a.reads_ahead) dependency_wait();
    const struct angles x = angles_at(a.freq, a.pos[min(token, a.end - 1)]);
    dependency_wait();
    if (token >= a.end) return;
    for (uint32_t k = 0; k < each; k += ROTATE_HEADS) {
        if (job < n_rotary) {
            rotate_query(a, x, token, job * each + k);
        } else {
            rotate_index_heads(a, x, token, (job - n_rotary) * each + k);
        }
    }
}

/* query_fast.cu, of the fast path:
 *
 * absorb_fast - absorbs q's tokens: many in a launch of its own, few in that of query_fast, whose
 *               blocks for them it leaves in q->n_absorb
 * query_fast - rotates in n_rotate blocks, and absorbs in q.n_absorb more
 * absorb_prompts - absorbs the prompt rows that are not in expanded form */
fathom_err absorb_fast(struct cuda_backend *c, struct query_args *q);
fathom_err query_fast(struct cuda_backend *c, const struct query_args &q, uint32_t n_rotate);
fathom_err absorb_prompts(struct cuda_backend *c, const struct query_args &q);

#endif

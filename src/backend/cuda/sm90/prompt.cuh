/* prompt.cuh - attention of prompt rows in expanded form, docs/kernels/prompt_attend.md: what its
 * kernels share
 *
 * Rows of a prompt attend to keys [k_nope ; k_pe] of 192 values and values of 128, a head's own but
 * for k_pe. They are made of the cached latents by kv_b for a step's requests, in scratch: whole
 * tiles of 128 context rows a request, from its first position on, zeros behind its last. */
#ifndef FATHOM_BACKEND_CUDA_SM90_PROMPT_CUH
#define FATHOM_BACKEND_CUDA_SM90_PROMPT_CUH

#include "backend/cuda/kv.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    PROMPT_TILE = 128,       /* query rows of a tile, context rows of a tile: keys of a block */
    PROMPT_GROUP_ROWS = 64,  /* of a warpgroup */
    PROMPT_SLAB_VALUES = 64, /* columns of a permuted tile: 128 bytes */
    PROMPT_HEAD_BYTES = KV_B_ROWS * 2, /* of a context row: the key, then the value */
};
static_assert((int)PROMPT_TILE == (int)PROMPT_CONTEXT_TILE, "scratch.h counts tiles of so many");

/* Neighbouring rows of a request, the first at position pos; row: of its context in scratch. */
struct prompt_tile {
    int32_t token, n, pos, row;
};

/* Positions pos to pos + n - 1 of a request of the step: the tile's first n rows in scratch. */
struct prompt_context {
    int32_t request, pos, n;
};
static_assert(sizeof(struct prompt_tile) <= PROMPT_ENTRY_BYTES &&
                  sizeof(struct prompt_context) <= PROMPT_ENTRY_BYTES,
              "scratch.h");

/* What the requests of a pass have to do, made on the device. */
struct prompt_plan {
    int32_t n_tile, n_context;
    int32_t section; /* heads whose keys and values stay in L2 together */
    uint32_t next;   /* entry of the walk that no block has taken yet */
};
static_assert(sizeof(struct prompt_plan) <= PROMPT_ENTRY_BYTES, "scratch.h");

/* The rows of a step, and a pass over some of its requests and heads. */
struct prompt_args {
    const bf16 *query; /* [T][query_stride]: heads of 192 */
    bf16 *out;         /* [T][out_stride]: heads of 128 */
    size_t query_stride, out_stride;
    uint8_t *codes;     /* [T][n_head * 128]: of what `out` has, a head a group; NULL: not wanted */
    float *codes_scale; /* [T][n_head] */
    const int32_t *pos, *request, *first, *page_table;
    const int32_t *slots, *counts; /* [T][topk], [T]: rows selected; NULL: all up to pos */
    uint32_t page_stride, topk;
    uint32_t n_token, n_request;         /* of the step */
    uint32_t first_token, first_request; /* with rows of prompts */
    uint32_t max_context;
    int32_t end; /* rows at positions below */
    struct kv_layer kv;
    const bf16 *kv_b; /* [H][256][512] */
    uint32_t n_head;
    float scale;
};

struct prompt_pass {
    uint32_t request0, n_request;
    uint32_t head0, n_head;
    uint32_t n_context; /* context tiles at most */
    uint32_t n_block;   /* multiprocessors */
    struct prompt_plan *plan;
    struct prompt_tile *tiles; /* the heaviest first */
    struct prompt_context *contexts;
    bf16 *latent; /* [context rows][512] */
    bf16 *rope;   /* [context rows][64] */
    bf16 *kv;     /* [context rows][n_head][256] */
    uint4 *mask;  /* [T][mask_stride]: a bit a position, 128 a key block; NULL: all up to pos */
    uint32_t mask_stride;
};

/* prompt_expand.cu: latents and rotary keys of the pass's contexts; then keys and values of its
 * heads */
fathom_err prompt_gather(struct cuda_backend *c, const struct prompt_args &a,
                         const struct prompt_pass &p);
fathom_err prompt_expand(struct cuda_backend *c, const struct prompt_args &a,
                         const struct prompt_pass &p);
fathom_err prompt_expand_init(struct cuda_backend *c);

/* prompt_mask.cu: the masks of the step's prompt rows at positions below a.end, the first
 * mask_stride key blocks of each */
fathom_err prompt_mask(struct cuda_backend *c, const struct prompt_args &a,
                       const struct prompt_pass &p);

/* prompt_attend_sm90 - out of every row of a prompt at a position below `end`
 *
 * Needs    a cache of BF16 or FP8 rows; kv_b in bf16; rows of requests first_request and after
 * Numerics a row's bits depend on its position, its query, the rows before it and which of them
 *          are selected alone
 * prompt_attend_sm90_init - raises the kernels' limits; once before */
fathom_err prompt_attend_sm90(struct cuda_backend *c, const struct prompt_args &a);
fathom_err prompt_attend_sm90_init(struct cuda_backend *c);

struct prompt_ring {
    uint32_t stage, parity;
};

template <int N> static __device__ __forceinline__ void ring_next(struct prompt_ring &r)
{
    if (++r.stage == N) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* Lane t of a quad has x[k] of column pair k' = t of four groups; it gets the four pairs of group
 * t, 16 bytes side by side. */
static __device__ __forceinline__ void quad_transpose(uint32_t (&x)[4])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = shfl_xor(odd ? x[i] : x[i + 1], 1);
        x[i] = odd ? other : x[i];
        x[i + 1] = odd ? x[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t other = shfl_xor(high ? x[i] : x[i + 2], 2);
        x[i] = high ? other : x[i];
        x[i + 2] = high ? x[i + 2] : other;
    }
}

#endif

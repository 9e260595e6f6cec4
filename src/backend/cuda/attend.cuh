/* attend.cuh - what the kernels of mla_attend are given; docs/kernels/attend.md */
#ifndef FATHOM_BACKEND_CUDA_ATTEND_CUH
#define FATHOM_BACKEND_CUDA_ATTEND_CUH

#include "backend/cuda/kv.cuh"

struct attend_args {
    const bf16 *h;  /* [T][H][576] */
    const float *f; /* the same, float path */
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride, n_head;
    int32_t skip_below; /* tokens at positions below are left out */
    bool reads_ahead;   /* recorded, without slots: old rows may be read before the wait */
    bool query_early;   /* h is there before the wait */
    const int32_t *slots, *counts; /* NULL: every position up to pos */
    uint32_t topk;
    struct kv_layer kv;
    float scale;
    float *part_out, *part_stat; /* [T][n_part][H][512], [..][2]: units left apart */
    uint32_t n_part;             /* units that a token has room for */
    const struct buffer *left;   /* out, if units may be left to the kernel that reads it */
    bf16 *out_h;                 /* [T][H][512] */
    float *out_f;
};

/* Groups of a token's rows, from the first on, that the step does not write: its request has no
 * more tokens of it than there are. 0 where they may not be read before the wait. */
static __device__ __forceinline__ int old_groups(const struct attend_args &a, uint32_t token)
{
    if (!a.reads_ahead) return 0;
    return max(a.pos[token] + 1 - (int)gridDim.y, 0) / ATTEND_GROUP;
}

/* The rows that a token sees. */
static __device__ __forceinline__ int row_count(const struct attend_args &a, uint32_t token)
{
    const int n = a.slots ? a.counts[token] : a.pos[token] + 1;
    DCHECK(n >= 1 && (!a.slots || (uint32_t)n <= a.topk));
    return n;
}

/* The cache row of the i-th row that a token sees. */
static __device__ __forceinline__ int row_slot(const struct attend_args &a, uint32_t token, int i)
{
    DCHECK(i >= 0 && i < row_count(a, token));
    if (a.slots) return a.slots[(size_t)token * a.topk + i];
    return kv_slot(a.page_table + (size_t)a.request[token] * a.page_stride, i);
}

/* Rows of a batch (batch.h): each kind has an order of sums of its own where heads are many. */
enum attend_rows { ATTEND_ANSWER_ROWS, ATTEND_PROMPT_ROWS };

/* attend_sm90 - out_h for n_token tokens of one kind and of contexts up to max_context
 * Needs  a cache of BF16 or FP8 rows; h, and part_out and part_stat as scratch.h sizes them.
 * attend_sm90_init - raises the kernels' limits; once before */
fathom_err attend_sm90(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                       uint32_t n_token, uint32_t max_context);
fathom_err attend_sm90_init(struct cuda_backend *c);

/* generic/attend_fast.cu: on sm_90, rows in expanded form, and the others in absorbed form: of
 * answers, then of prompts */
fathom_err attend_fast(struct cuda_backend *c, const struct mla_attend_args *a,
                       const struct attend_args &k);

#endif

/* index_score.cuh - what the kernels that make index scores are given */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_INDEX_SCORE_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_INDEX_SCORE_CUH

#include "backend/cuda/kv.cuh"

struct score_args {
    const uint8_t *q;    /* [T][heads][128], fast path */
    const float *f;      /* the same, float path */
    const float *weight; /* [T][heads] */
    uint32_t n_head, first_token, n_token, topk;
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride;
    struct kv_layer kv;
    uint32_t n_page; /* of the cache */
    float *score;    /* [n_token][stride] */
    uint32_t stride;
};

enum { SCORE_KEYS = 128 }; /* of a block */
static_assert(SCORE_KEYS % KV_PAGE_TOKENS == 0, "a block's keys begin with a page");

/* Whether scores decide, and keys from `first` on are among those that the token sees. */
static __device__ __forceinline__ bool wants_scores(const struct score_args &a, uint32_t token,
                                                    int first)
{
    return a.pos[token] >= (int)a.topk && first <= a.pos[token];
}

/* index_score_fast.cu: scores on the tensor cores, of what index_score_takes says that they take */
bool index_score_takes(const struct score_args &s);
fathom_err index_score_fast(struct cuda_backend *c, const struct score_args &s,
                            uint32_t max_context);

#endif

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

#endif

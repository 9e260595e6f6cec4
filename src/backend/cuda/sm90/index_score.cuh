/* index_score.cuh - index scores on the FP8 tensor cores of sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_INDEX_SCORE_CUH
#define FATHOM_BACKEND_CUDA_SM90_INDEX_SCORE_CUH

#include "backend/cuda/generic/index_score.cuh"

enum {
    SCORE90_HEADS = 64,           /* the only number of heads it takes */
    SCORE90_TOKENS_MAX = 1 << 17, /* of a call */
};

/* index_score_sm90_init - raises the kernel's limits
 *
 * Needs    to be called once for a device, before index_score_sm90
 * Errors   what the runtime says */
gpu_error index_score_sm90_init(void);

/* index_score_sm90 - scores of every key that a token sees, for tokens that see more than topk
 *
 * max_context  largest position and one: what a row of scores has room for
 *
 * Needs    n_head of SCORE90_HEADS, at most SCORE90_TOKENS_MAX tokens, keys of e4m3; q and weight
 *          aligned to 16 bytes
 * Edge     scores of keys that a token does not see are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics a score's bits depend on the query, the weights and the key alone */
fathom_err index_score_sm90(struct cuda_backend *c, const struct score_args &a,
                            uint32_t max_context);

#endif

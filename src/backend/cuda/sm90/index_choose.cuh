/* index_choose.cuh - index scores and the choice of the largest for few tokens, on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_INDEX_CHOOSE_CUH
#define FATHOM_BACKEND_CUDA_SM90_INDEX_CHOOSE_CUH

#include "backend/cuda/generic/index_score.cuh"
#include "backend/cuda/generic/index_topk.cuh"

/* index_choose_init - raises the kernels' limits, and finds how many clusters the device holds
 *
 * Needs    to be called once for a device, before the others
 * Errors   what the runtime says */
gpu_error index_choose_init(struct sm90_limits *limits);

/* index_choose_takes - whether the kernels are the ones for these tokens, of n_request requests and
 * of contexts up to max_context */
bool index_choose_takes(const struct cuda_backend *c, const struct score_args &s,
                        uint32_t n_request, uint32_t max_context);

/* index_choose - the rows that tokens attend to, ascending, and their counts
 *
 * reads_ahead  in a recorded step: keys that the step does not write are read before the wait
 *
 * Needs    what index_choose_takes says yes to, and k of the same tokens; s.q and s.weight aligned
 *          to 16 bytes; rows of scores, for contexts above 8192 or more than 16 tokens
 * Edge     a token that sees no more than topk rows has all of them, and no scores
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what a launch gives
 * Numerics scores have the bits of index_score_sm90, so what is chosen is the same
 * Cost     132 bytes a key and token; docs/kernels/attention_ops.md has times */
fathom_err index_choose(struct cuda_backend *c, const struct score_args &s,
                        const struct topk_args &k, uint32_t max_context, bool reads_ahead);

#endif

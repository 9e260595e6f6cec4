/* index_choose.cuh - the choice of the largest index scores, for few tokens of long contexts */
#ifndef FATHOM_BACKEND_CUDA_SM90_INDEX_CHOOSE_CUH
#define FATHOM_BACKEND_CUDA_SM90_INDEX_CHOOSE_CUH

#include "backend/cuda/generic/index_topk.cuh"

/* index_choose_init - raises the kernel's limits, and finds how many clusters the device holds
 *
 * Needs    to be called once for a device, before the others
 * Errors   what the runtime says */
gpu_error index_choose_init(struct sm90_limits *limits);

/* index_choose_takes - whether the kernel is the one for so many tokens, of contexts up to
 * max_context */
bool index_choose_takes(const struct cuda_backend *c, uint32_t n_token, uint32_t max_context);

/* index_choose - the rows that tokens attend to, ascending, and their counts
 *
 * reads_ahead  in a recorded step: the step's arrays are read before the wait
 *
 * Needs    what index_choose_takes says yes to; the scores of the tokens from the first on
 * Edge     a token that sees no more than topk rows has all of them, and its scores are not read
 * Errors   what a launch gives
 * Numerics chooses what topk_kernel does
 * Cost     4 bytes a score, and some us a digit; docs/kernels/attention_ops.md has times */
fathom_err index_choose(struct cuda_backend *c, const struct topk_args &k, uint32_t n_token,
                        uint32_t max_context, bool reads_ahead);

#endif

/* index_score_alone.cuh - index scores of tokens that share no keys, on sm_90a */
#ifndef FATHOM_BACKEND_CUDA_SM90_INDEX_SCORE_ALONE_CUH
#define FATHOM_BACKEND_CUDA_SM90_INDEX_SCORE_ALONE_CUH

#include "backend/cuda/generic/index_score.cuh"

/* index_score_alone_init - raises the kernel's limits
 *
 * Needs    to be called once for a device, before the others
 * Errors   what the runtime says */
gpu_error index_score_alone_init(void);

/* index_score_alone_takes - whether the kernel is the one for these tokens, of n_request requests:
 * with more of a request index_score_sm90 is faster, which reads a request's keys once */
bool index_score_alone_takes(const struct cuda_backend *c, const struct score_args &s,
                             uint32_t n_request);

/* index_score_alone - scores of every key that a token sees, for tokens that see more than topk
 *
 * max_context  largest position and one: what a row of scores has room for
 * n_step       tokens of the step, which writes keys of so many positions at most
 * reads_ahead  in a recorded step: keys that the step does not write are read before the wait
 *
 * Needs    what index_score_alone_takes says yes to; s.q and s.weight aligned to 16 bytes
 * Edge     scores of keys that a token does not see are not written
 * Errors   cudaErrorInvalidValue if a tensor map cannot be made, or what the launch gives
 * Numerics a score has the bits of index_score_sm90
 * Cost     132 bytes a key and token, at up to 3.9 TB/s; docs/kernels/attention_ops.md has times */
fathom_err index_score_alone(struct cuda_backend *c, const struct score_args &s,
                             uint32_t max_context, uint32_t n_step, bool reads_ahead);

#endif

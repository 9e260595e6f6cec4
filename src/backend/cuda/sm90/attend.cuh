/* attend.cuh - what attention's kernels of sm_90 share: kinds of rows, units and how they merge */
#ifndef FATHOM_BACKEND_CUDA_SM90_ATTEND_CUH
#define FATHOM_BACKEND_CUDA_SM90_ATTEND_CUH

#include "backend/cuda/attend.cuh"
#include "backend/cuda/ptx.cuh"

/* attend_heads - out_h of n_token tokens of one kind that see up to `rows` rows, for models of at
 * least ATTEND_HEADS heads a device
 * attend_heads_init - raises the kernels' limits; once before
 * attend_combine - out_h of the units in part_out and part_stat */
fathom_err attend_heads(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                        uint32_t n_token, uint32_t rows);
fathom_err attend_heads_init(struct cuda_backend *c);
fathom_err attend_combine(struct cuda_backend *c, struct attend_args a, uint32_t n_token);

/* Groups of each unit of an answer's token that sees n_group of them */
static __device__ __forceinline__ int unit_groups(const struct attend_args &a, int n_group)
{
    return a.n_head < ATTEND_HEADS ? (int)ATTEND_UNIT : (int)attend_heads_unit((uint32_t)n_group);
}

/* Weights of a merge of (max a, sum a) with (max b, sum b), maxima being powers of two; a may be
 * empty (-inf). */
struct merge {
    float max, wa, wb;
};

static __device__ __forceinline__ struct merge merge_of(float a, float b)
{
    struct merge m;
    m.max = fmaxf(a, b);
    m.wa = exp2_approx(a - m.max);
    m.wb = exp2_approx(b - m.max);
    return m;
}

static __device__ __forceinline__ float merged(const struct merge &m, float a, float b)
{
    return fmaf(b, m.wb, a * m.wa);
}

#endif

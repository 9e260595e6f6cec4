/* attend.cuh - what attention's kernels of sm_90 share: kinds of rows, units and how they merge */
#ifndef FATHOM_BACKEND_CUDA_SM90_ATTEND_CUH
#define FATHOM_BACKEND_CUDA_SM90_ATTEND_CUH

#include "backend/cuda/attend.cuh"
#include "backend/cuda/ptx.cuh"

/* attend_heads - out_h of n_token tokens of one kind that see up to `rows` rows, for models of at
 * least ATTEND_HEADS heads a device
 * attend_heads_init - raises the kernels' limits; once before
 * attend_combine - out_h of the units in part_out and part_stat, unless they are left to mla_out */
fathom_err attend_heads(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                        uint32_t n_token, uint32_t rows);
fathom_err attend_heads_init(struct cuda_backend *c);
fathom_err attend_combine(struct cuda_backend *c, struct attend_args a, uint32_t n_token);

/* attend_pair, attend_pair_init - the same where attend_by_pairs says so */
fathom_err attend_pair(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                       uint32_t n_token, uint32_t rows);
fathom_err attend_pair_init(struct cuda_backend *c);

/* Whether two blocks share a token: 128 heads, and rows that are widened */
static __host__ __device__ __forceinline__ bool attend_by_pairs(uint32_t n_head, enum kv_type type)
{
    return n_head % ATTEND_PAIR_HEADS == 0 && type == KV_TYPE_FP8;
}

/* Groups of each unit of an answer's token that sees n_group of them */
static __device__ __forceinline__ int unit_groups(const struct attend_args &a, int n_group)
{
    if (a.n_head < ATTEND_HEADS) return (int)ATTEND_UNIT;
    if (attend_by_pairs(a.n_head, a.kv.type)) return (int)attend_pair_unit((uint32_t)n_group);
    return (int)attend_heads_unit((uint32_t)n_group);
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

/* Where a column of a unit lies in part_out. Where heads are few, a lane has four times four of 64
 * columns, and a warp writes its lanes' fours side by side. */
static __device__ __forceinline__ uint32_t part_place(const struct attend_args &a, uint32_t column)
{
    if (a.n_head >= ATTEND_HEADS) return column;
    const uint32_t lane = column % 64 / 16, four = column % 16 / 4;
    return column / 64 * 64 + four * 16 + lane * 4 + column % 4;
}

/* Columns 2 pair and the next of a head's result, rounded: its units merged in ascending order. */
static __device__ __forceinline__ uint32_t merge_units(const struct attend_args &a, uint32_t token,
                                                       uint32_t head, uint32_t pair)
{
    enum { AHEAD = 8 };
    const int n_group = (row_count(a, token) + ATTEND_GROUP - 1) / ATTEND_GROUP;
    const int unit = unit_groups(a, n_group), n_unit = (n_group + unit - 1) / unit;
    const uint32_t place = part_place(a, 2 * pair);
    DCHECK((uint32_t)n_unit <= a.n_part);
    float2 o = make_float2(0.0f, 0.0f);
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n_unit; i += AHEAD) {
        float2 parts[AHEAD], stats[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) { /* independent loads first */
            if (i + k >= n_unit) break;
            size_t row = ((size_t)token * a.n_part + (size_t)(i + k)) * a.n_head + head;
            stats[k] = *(const float2 *)(a.part_stat + row * 2);
            parts[k] = *(const float2 *)(a.part_out + row * KV_LATENT + place);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (i + k >= n_unit) break;
            const struct merge m = merge_of(top, stats[k].x);
            sum = merged(m, sum, stats[k].y);
            top = m.max;
            o.x = merged(m, o.x, parts[k].x);
            o.y = merged(m, o.y, parts[k].y);
        }
    }
    const float inverse = 1.0f / sum;
    return pack_bf16(o.x * inverse, o.y * inverse);
}

#endif

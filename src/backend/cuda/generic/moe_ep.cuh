/* moe_ep.cuh - what a round of moe_ep is, and what its kernels make of rows, over peers' memory
 * (moe_ep.cu) and over a net (moe_ep_net.cu) */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_MOE_EP_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_MOE_EP_CUH

#include "backend/cuda/generic/moe.cuh"
#include "backend/cuda/peers.cuh"

enum { SEND_THREADS = 256, SUM_THREADS = 128, SUM_AHEAD = 8, ROW_ARRAYS_MAX = 4 };

/* Bytes of a row: own rows lie at `from`, rows of all ranks go to `to`, NULL: nowhere. */
struct ep_array {
    const char *from;
    char *to;
    uint32_t n_byte;
};

struct ep_args {
    struct ep_array array[ROW_ARRAYS_MAX]; /* input, experts, weights */
    uint32_t n_array, n_input;             /* n_input of them are the input */
    uint32_t row_units;                    /* PEER_UNITs of the arrays of a row */
    uint32_t n_place, n_own;               /* own rows of the round, as the host knows */
    uint32_t row0;                         /* the first of them, among the lane's */
    uint32_t layer;
    const int32_t *n_live; /* of the lane; NULL: all */
    const uint16_t *place; /* parallel.h */
    uint32_t n_used, rows_per_token;
    int32_t shared;          /* its number among the stacks; -1: it is not there */
    int32_t *experts;        /* [token][rows_per_token]: of this rank, or -1 */
    float *weights;          /* [token][n_used] */
    const float *shared_out; /* [own row], or NULL */
    float *y;                /* [the lane's row] */
    uint32_t n;
    uint32_t n_other, other; /* rows that this rank does not bring, as many are before `other` */
    uint32_t n_brought;      /* and behind these */
};

/* Own rows of the round. */
static __device__ __forceinline__ uint32_t live_rows(const struct ep_args &a)
{
    const uint32_t live = a.n_live ? (uint32_t)*a.n_live : a.row0 + a.n_own;
    return live <= a.row0 ? 0 : min(live - a.row0, a.n_own);
}

static __device__ __forceinline__ const int32_t *route_of(const struct ep_args &a, uint32_t i)
{
    return (const int32_t *)a.array[a.n_input].from + (size_t)i * a.n_used;
}

/* A bit for each rank that has an expert of own row i. */
static __device__ __forceinline__ uint64_t ranks_of(const struct ep_args &a, uint32_t i)
{
    const int32_t *experts = route_of(a, i);
    uint64_t ranks = 0;
    static_assert(PARALLEL_RANKS_MAX <= 64, "a bit a rank");
    for (uint32_t k = 0; k < a.n_used; k++) ranks |= 1ull << (a.place[experts[k]] >> 8);
    return ranks;
}

/* PEER_UNITs of the first n arrays of a row. */
static __host__ __device__ __forceinline__ uint32_t units_of(const struct ep_args &a, uint32_t n)
{
    uint32_t n_unit = 0;
    for (uint32_t k = 0; k < n; k++) n_unit += ceil_div(a.array[k].n_byte, PEER_UNIT);
    return n_unit;
}

/* The array that a unit of a row lies in, and which unit of it that becomes. */
static __device__ __forceinline__ uint32_t find_array(const struct ep_args &a, uint32_t n_array,
                                                      uint32_t *unit)
{
    uint32_t k = 0;
    while (k < n_array && *unit >= ceil_div(a.array[k].n_byte, PEER_UNIT))
        *unit -= ceil_div(a.array[k++].n_byte, PEER_UNIT);
    return k;
}

static __device__ __forceinline__ uint32_t unit_bytes(const struct ep_array &r, uint32_t unit)
{
    const uint32_t left = r.n_byte - unit * PEER_UNIT;
    return left < PEER_UNIT ? left : PEER_UNIT;
}

static __device__ __forceinline__ uint4 own_unit(const struct ep_array &r, uint32_t i,
                                                 uint32_t unit)
{
    return peer_unit(r.from + (size_t)i * r.n_byte + (size_t)unit * PEER_UNIT, unit_bytes(r, unit));
}

/* A thread's columns of a row: 16 bytes as they travel. Sums of rows that are rounded to bf16 are
 * rounded too, to half the bytes; else they are f32. */
template <enum row_form FORM> struct ep_wire {
    static constexpr bool ROUNDED = FORM != ROWS_FLOAT;
    static constexpr uint32_t QUADS = ROUNDED ? 2 : 1, COLUMNS = QUADS * 4;
    static constexpr uint32_t BLOCK_COLUMNS = SUM_THREADS * COLUMNS;
    static constexpr uint32_t COLUMN_BYTES = PEER_UNIT / COLUMNS;
};

/* The quads of a row that begin at `from`. */
static __device__ __forceinline__ void load_quads(const float4 *from, float4 (&v)[1])
{
    v[0] = from[0];
}

static __device__ __forceinline__ void load_quads(const float4 *from, float4 (&v)[2])
{
    v[0] = from[0];
    v[1] = from[1];
}

static __device__ __forceinline__ void load_quads(const uint2 *from, uint2 (&v)[2])
{
    const uint4 both = *(const uint4 *)from;
    v[0] = make_uint2(both.x, both.y);
    v[1] = make_uint2(both.z, both.w);
}

/* The sum of a token's experts here, in ascending order, from column i on; false: it has none. */
template <enum row_form FORM>
static __device__ __forceinline__ bool sum_experts(const struct ep_args &a, uint32_t token,
                                                   const typename row_value<FORM>::type *rows,
                                                   uint32_t i, float4 (&sum)[ep_wire<FORM>::QUADS])
{
    constexpr uint32_t QUADS = ep_wire<FORM>::QUADS;
    const int32_t *experts = a.experts + (size_t)token * a.rows_per_token;
    const float *weights = a.weights + (size_t)token * a.n_used;
    const typename row_value<FORM>::type *from =
        rows + ((size_t)token * a.rows_per_token * a.n + i) / 4;
    bool any = false;
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) sum[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t k0 = 0; k0 < a.n_used; k0 += SUM_AHEAD) {
        typename row_value<FORM>::type v[SUM_AHEAD][QUADS];
        float w[SUM_AHEAD];
        bool here[SUM_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < SUM_AHEAD; k++)
            here[k] = k0 + k < a.n_used && experts[k0 + k] >= 0;
#pragma unroll
        for (uint32_t k = 0; k < SUM_AHEAD; k++) {
            if (!here[k]) continue;
            load_quads(from + (size_t)(k0 + k) * (a.n / 4), v[k]);
            w[k] = weights[k0 + k];
        }
#pragma unroll
        for (uint32_t k = 0; k < SUM_AHEAD; k++) {
            if (!here[k]) continue;
            any = true;
#pragma unroll
            for (uint32_t q = 0; q < QUADS; q++) {
                const float4 x = read_row<FORM>(v[k][q]);
                sum[q].x = fmaf(w[k], x.x, sum[q].x);
                sum[q].y = fmaf(w[k], x.y, sum[q].y);
                sum[q].z = fmaf(w[k], x.z, sum[q].z);
                sum[q].w = fmaf(w[k], x.w, sum[q].w);
            }
        }
    }
    return any;
}

/* The shared expert's part of own row `row` from column i on, or zeros. */
template <enum row_form FORM>
static __device__ __forceinline__ float4 shared_quad(const struct ep_args &a, uint32_t rank,
                                                     const typename row_value<FORM>::type *rows,
                                                     uint32_t row, uint32_t i)
{
    if (a.shared >= 0) {
        const size_t at = ((size_t)rank * a.n_place + row) * a.rows_per_token + a.n_used;
        return read_row<FORM>(rows[(at * a.n + i) / 4]);
    }
    return *(const float4 *)(a.shared_out + (size_t)row * a.n + i);
}

/* A row that another rank of the lane brings. */
template <uint32_t QUADS>
static __device__ __forceinline__ void leave_zeros(const struct ep_args &a, uint32_t k, uint32_t i)
{
    const uint32_t row = k < a.other ? k : k + a.n_brought;
    float4 *const y = (float4 *)(a.y + (size_t)row * a.n + i);
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) y[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* The sum of own row `row`, with the shared expert's part, to y. */
template <enum row_form FORM>
static __device__ __forceinline__ void
leave_sum(const struct ep_args &a, uint32_t rank, const typename row_value<FORM>::type *rows,
          uint32_t row, uint32_t i, float4 (&sum)[ep_wire<FORM>::QUADS])
{
    float4 *const y = (float4 *)(a.y + (size_t)(a.row0 + row) * a.n + i);
    const bool has_shared = a.shared >= 0 || a.shared_out;
#pragma unroll
    for (uint32_t q = 0; q < ep_wire<FORM>::QUADS; q++) {
        if (has_shared) sum[q] = peer_add(sum[q], shared_quad<FORM>(a, rank, rows, row, i + 4 * q));
        y[q] = sum[q];
    }
}

/* Places of each rank in a round that have rows, as the host knows: those from there on have none.
 */
struct ep_counts {
    uint32_t n[PARALLEL_RANKS_MAX];
};

/* cuda_net_rows - a round's rows to the ranks of all hosts, and those of all to where the experts
 * read
 * cuda_net_sums - what experts here have made of them to the rows' ranks, and own rows' sums */
fathom_err cuda_net_rows(struct cuda_backend *c, const struct ep_args *k,
                         const struct ep_counts *rows);
fathom_err cuda_net_sums(struct cuda_backend *c, const struct ep_args *k,
                         const struct ep_counts *rows, enum row_form form);

#endif

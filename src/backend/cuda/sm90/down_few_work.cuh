/* down_few_work.cuh - what down_few.cu's kernels and those for packed weights share: a block's view
 * of its work, the route, and the inputs from gate and up */
#ifndef FATHOM_BACKEND_CUDA_SM90_DOWN_FEW_WORK_CUH
#define FATHOM_BACKEND_CUDA_SM90_DOWN_FEW_WORK_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/down_args.cuh"
#include "backend/cuda/sm90/stage.cuh"
#include "backend/cuda/sm90/u4.cuh"

enum {
    BM = TILE_ROWS, /* outputs of a tile */
    COLS = 8,
    CONSUMERS = 128, /* a warpgroup */
    CONSUMER_WARPS = CONSUMERS / WARP,
    IN_BYTES = COLS * K_LINE_BYTES,
    AHEAD = 5, /* K lines of inputs that a warp makes at a time */
    BYTES_MAX = SHARED_MAX,
};
static_assert((int)DOWN_K_LINES_MAX <= (int)WARP, "a lane of the loading warp has a K line");
static_assert(IN_BYTES % 1024 == 0, "atoms of operands");

/* The start of a block's shared memory; weights and the inputs of all K lines follow. */
struct alignas(1024) down_shared {
    float w_scale[DOWN_K_LINES_MAX];
    float in_scale[DOWN_K_LINES_MAX];
    uint64_t full[DOWN_K_LINES_MAX];
    uint64_t empty[DOWN_K_LINES_MAX];
    uint64_t made;
};

struct down_work {
    struct down_args a;
    uint32_t n_k_line;     /* of a row */
    uint32_t n_all;        /* of all rows */
    uint32_t k_part_lines; /* of a part */
    uint32_t n_stage;
    uint32_t in_bytes; /* of a block, of packed weights */
    struct u4_form u4; /* of U4 */
};

/* A block's view of its shared memory, and what it makes. */
struct down_block {
    struct down_shared *s;
    uint32_t stages;
    uint32_t inputs;
    uint32_t token;
    uint32_t col; /* tile */
};

/* Of a row of the token; a row past the route's is the last expert's. Read past L1: this kernel has
 * not waited for who wrote them. */
static __device__ __forceinline__ int expert_of_row(const struct down_work &w,
                                                    const struct down_block &b, uint32_t row)
{
    if (row >= w.a.n_used) return (int)w.a.n_expert - 1;
    const int expert = *(const volatile int32_t *)&w.a.experts[b.token * w.a.n_used + row];
    DCHECK(expert >= 0 && (uint32_t)expert < w.a.n_expert);
    return expert;
}

static __device__ __forceinline__ float weight_of_row(const struct down_work &w,
                                                      const struct down_block &b, uint32_t row)
{
    if (row >= w.a.n_used) return 1.0f;
    return *(const volatile float *)&w.a.weights[b.token * w.a.n_used + row];
}

/* A lane's four values of K line i of gate and up. */
static __device__ __forceinline__ const float *gate_of(const struct down_work &w,
                                                       const struct down_block &b, uint32_t i)
{
    const size_t row = (size_t)b.token * w.a.rows_per_token + i / w.n_k_line;
    return w.a.gate_up + row * 2 * w.a.k + i % w.n_k_line * K_LINE_BYTES + threadIdx.x % WARP * 4;
}

/* Where the codes of K line i go. */
static __device__ __forceinline__ uint8_t *input_of(const struct down_block &b, uint32_t i)
{
    return (uint8_t *)b.s + (b.inputs - smem_address(b.s)) + i * IN_BYTES;
}

/* A lane's four codes of K line i, and its scale. Returns the codes. */
static __device__ __forceinline__ uint32_t store_fp8(const struct down_block &b, uint32_t i,
                                                     const float4 &v, float *scale)
{
    const uint32_t codes = quantize_group(v, scale), lane = threadIdx.x % WARP;
    *(uint32_t *)(input_of(b, i) + lane * 4) = codes;
    if (lane == 0) b.s->in_scale[i] = *scale;
    return codes;
}

/* Every WARPS-th K line's values, a lane's four of each, to `store`. */
template <uint32_t WARPS, typename STORE>
static __device__ __forceinline__ void make_lines(const struct down_work &w,
                                                  const struct down_block &b, const STORE &store)
{
    const uint32_t warp = threadIdx.x / WARP;
    for (uint32_t first = warp; first < w.n_all; first += AHEAD * WARPS) {
        float4 gate[AHEAD], up[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = first + j * WARPS;
            if (i >= w.n_all) continue;
            const float *g = gate_of(w, b, i);
            gate[j] = *(const float4 *)g;
            up[j] = *(const float4 *)(g + w.a.k);
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t i = first + j * WARPS;
            if (i < w.n_all) store(i, swiglu(gate[j], up[j]));
        }
    }
}

/* A launch whose blocks have so many threads and bytes of shared memory. */
typedef void (*down_kernel)(struct down_work);
static cudaError_t launch_down(down_kernel kernel, const struct down_work &w, uint32_t n_thread,
                               uint32_t n_byte, cudaStream_t stream)
{
    ASSERT(n_byte <= BYTES_MAX);
    return gpu_launch({dim3(w.a.n_token, ceil_div(w.a.n, BM)), 1, n_thread, n_byte, true}, stream,
                      kernel, w);
}

/* down_few_packed - down_few for packed weights, of w.a
 * down_few_packed_init - down_few_init's part for them */
gpu_error down_few_packed_init(void);
gpu_error down_few_packed(struct down_work w, gpu_stream stream);

#endif

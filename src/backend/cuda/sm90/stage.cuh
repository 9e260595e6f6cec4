/* stage.cuh - what the FP8 products of sm_90a share: waiting for a stage, tensor maps */
#ifndef FATHOM_BACKEND_CUDA_SM90_STAGE_CUH
#define FATHOM_BACKEND_CUDA_SM90_STAGE_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/product.cuh"
#include "backend/cuda/sm90/ptx90.cuh"
#include "backend/cuda/sm90/wgmma.cuh"

enum {
    PIECE_BYTES = 16, /* of one copy without a tensor map */
    K_LINE_PIECES = K_LINE_BYTES / PIECE_BYTES,
    TENSOR_BOX_MAX = 256,   /* a side of a tensor map's box */
    SHARED_MAX = 227 << 10, /* shared memory of a block of sm_90 */
};
static_assert((int)K_LINE_BYTES == (int)FP8_GROUP, "a K line has one scale");

/* Waits until the phase of this parity is over; CLUSTER: for arrivals of other blocks, whose writes
 * are then seen. Built with PRODUCT_WAIT_TRIES_MAX, a lost arrival ends the kernel instead of
 * stopping the device. */
template <bool CLUSTER = false>
static __device__ __forceinline__ void wait_phase(uint64_t *barrier, uint32_t parity)
{
    const uint32_t at = smem_address(barrier);
    DCHECK(parity <= 1);
    for (uint32_t n = 0;; n++) {
        if (CLUSTER ? mbarrier_try_wait_cluster(at, parity) : mbarrier_try_wait(at, parity)) return;
#ifdef PRODUCT_WAIT_TRIES_MAX
        if (n == PRODUCT_WAIT_TRIES_MAX) *(volatile int *)NULL = 0;
#endif
    }
}

/* Products of codes, K = 32: of e4m3, or of int8 with exact sums. */
template <int N>
static __device__ __forceinline__ void code_start(float (&c)[N], uint64_t a, uint64_t b)
{
    wgmma_e4m3_start(c, a, b);
}

template <int N>
static __device__ __forceinline__ void code_start(int (&c)[N], uint64_t a, uint64_t b)
{
    wgmma_s8_start(c, a, b);
}

template <int N>
static __device__ __forceinline__ void code_add(float (&c)[N], uint64_t a, uint64_t b)
{
    wgmma_e4m3_add(c, a, b);
}

template <int N>
static __device__ __forceinline__ void code_add(int (&c)[N], uint64_t a, uint64_t b)
{
    wgmma_s8_add(c, a, b);
}

/* Those of a K line; ADDS: to what is there. */
template <bool ADDS, typename SUM, int N>
static __device__ __forceinline__ void line_start(SUM (&c)[N], uint64_t a, uint64_t b)
{
    if constexpr (ADDS) {
        code_add(c, a, b);
    } else {
        code_start(c, a, b);
    }
#pragma unroll
    for (uint64_t i = 2; i < K_LINE_BYTES / 16; i += 2) code_add(c, a + i, b + i);
}

/* A K line's sum as a float, exactly. */
static __device__ __forceinline__ float line_value(float sum)
{
    return sum;
}

/* An addition puts it behind the leading bit of 1.5 * 2^23; a conversion is a quarter as fast. */
static __device__ __forceinline__ float line_value(int sum)
{
    const float base = 0x1.8p23f;
    static_assert(K_LINE_BYTES * 128 * 128 < 1 << 22, "a K line's sum fits");
    return __uint_as_float(__float_as_uint(base) + (uint32_t)sum) - base;
}

/* Lets a kernel's blocks have n_byte of shared memory, and gives it all of a multiprocessor's:
 * blocks that find less beside those of the kernel in front would wait for these to leave. */
template <typename KERNEL> static inline cudaError_t raise_shared(KERNEL *kernel, uint32_t n_byte)
{
    ASSERT(n_byte <= SHARED_MAX);
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_byte);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

static inline PFN_cuTensorMapEncodeTiled_v12000 find_encode(void)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                     cudaEnableDefault, &result);
    if (e != cudaSuccess || result != cudaDriverEntryPointSuccess) return NULL;
    return (PFN_cuTensorMapEncodeTiled_v12000)found;
}

/* Map of slabs of `rows` rows of k bytes, row_stride bytes from row to row, cut into permuted boxes
 * of box_rows x 128 bytes. */
static inline cudaError_t make_strided_map(CUtensorMap *map, const void *data, uint32_t k,
                                           size_t row_stride, uint32_t rows, uint32_t n_slab,
                                           size_t slab_stride, uint32_t box_rows)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    if (!encode) return cudaErrorNotSupported;
    ASSERT((uintptr_t)data % 16 == 0 && k % 16 == 0 && slab_stride % 16 == 0 &&
           row_stride % 16 == 0 && k <= row_stride);
    ASSERT(box_rows >= 1 && box_rows <= TENSOR_BOX_MAX && n_slab >= 1);
    const cuuint64_t size[3] = {k, rows, n_slab};
    const cuuint64_t stride[2] = {row_stride, slab_stride};
    const cuuint32_t box[3] = {K_LINE_BYTES, box_rows, 1};
    const cuuint32_t step[3] = {1, 1, 1};
    CUresult e = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)data, size, stride, box,
                        step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return e == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The same with rows one after the other. */
static inline cudaError_t make_map(CUtensorMap *map, const void *data, uint32_t k, uint32_t rows,
                                   uint32_t n_slab, size_t slab_stride, uint32_t box_rows)
{
    return make_strided_map(map, data, k, k, rows, n_slab, slab_stride, box_rows);
}

/* Copies K line k_line of tile `tile` of a tiled matrix of rows of n_k_line. */
static __device__ __forceinline__ void weight_load(uint32_t dst, const char *w, uint32_t barrier,
                                                   uint32_t n_k_line, uint32_t k_line,
                                                   uint32_t tile)
{
    DCHECK(k_line < n_k_line);
    bulk_load(dst, w + ((size_t)tile * n_k_line + k_line) * TILE_BYTES, TILE_BYTES, barrier);
}

#endif

/* stage.cuh - what the FP8 products of sm_90a share: waiting for a stage, tensor maps */
#ifndef FATHOM_BACKEND_CUDA_SM90_STAGE_CUH
#define FATHOM_BACKEND_CUDA_SM90_STAGE_CUH

#include <cudaTypedefs.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/ptx90.cuh"
#include "backend/cuda/sm90/wgmma.cuh"

enum {
    PIECE_BYTES = 16, /* of one copy without a tensor map */
    K_LINE_PIECES = K_LINE_BYTES / PIECE_BYTES,
    STACK_MATRICES = 2048,  /* experts of a stack at most */
    TENSOR_BOX_MAX = 256,   /* a side of a tensor map's box */
    SHARED_MAX = 227 << 10, /* shared memory of a block of sm_90 */
};
static_assert((int)STACK_MATRICES > (int)EXPERTS_MAX, "the shared expert is one more");
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

/* Map of slabs of `rows` rows of k bytes, `pitch` bytes apart, cut into permuted boxes of box_rows
 * x 128 bytes. */
static inline cudaError_t make_pitched_map(CUtensorMap *map, const void *data, uint64_t k,
                                           uint64_t pitch, uint32_t rows, uint32_t n_slab,
                                           size_t slab_stride, uint32_t box_rows)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    if (!encode) return cudaErrorNotSupported;
    ASSERT((uintptr_t)data % 16 == 0 && pitch % 16 == 0 && slab_stride % 16 == 0 && k <= pitch);
    ASSERT(box_rows >= 1 && box_rows <= TENSOR_BOX_MAX && n_slab >= 1);
    const cuuint64_t size[3] = {k, rows, n_slab};
    const cuuint64_t stride[2] = {pitch, slab_stride};
    const cuuint32_t box[3] = {K_LINE_BYTES, box_rows, 1};
    const cuuint32_t step[3] = {1, 1, 1};
    CUresult e = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)data, size, stride, box,
                        step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return e == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The same of rows one after the other. */
static inline cudaError_t make_map(CUtensorMap *map, const void *data, uint32_t k, uint32_t rows,
                                   uint32_t n_slab, size_t slab_stride, uint32_t box_rows)
{
    return make_pitched_map(map, data, k, k, rows, n_slab, slab_stride, box_rows);
}

#endif

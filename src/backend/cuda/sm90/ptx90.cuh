/* ptx90.cuh - inline PTX of sm_90a, one instruction a function: barriers in shared memory,
 * clusters, bulk tensor copies
 *
 * Addresses of type uint32_t are shared memory addresses of this block, or of a block of the
 * cluster where the name says so.
 */
#ifndef FATHOM_BACKEND_CUDA_SM90_PTX90_CUH
#define FATHOM_BACKEND_CUDA_SM90_PTX90_CUH

#include <cuda.h>

#include "backend/cuda/ptx.cuh"

/* ---- barriers in shared memory ---- */

static __device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t n_arrival)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrival)
                 : "memory");
}

/* Initial values are seen by the other blocks of the cluster and by bulk copies. */
static __device__ __forceinline__ void mbarrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* One arrival; the phase also waits for n_byte bytes of bulk copies. */
static __device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t n_byte)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
        "r"(n_byte)
        : "memory");
}

/* One arrival, which was counted at init, once this thread's cp_async copies so far have landed. */
static __device__ __forceinline__ void mbarrier_arrive_cp_async(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Whether the phase of this parity is over; may sleep a little before it says no. */
static __device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* The same without a sleep. */
static __device__ __forceinline__ bool mbarrier_test_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* As mbarrier_try_wait, for a barrier at which cluster_store counts: what was stored is seen. */
static __device__ __forceinline__ bool mbarrier_try_wait_cluster(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* True in one lane of a warp that has all its lanes here. */
static __device__ __forceinline__ bool elect_lane(void)
{
    uint32_t chosen;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(chosen));
    return chosen != 0;
}

/* ---- clusters ---- */

static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t cluster_rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(cluster_rank));
    return cluster_rank;
}

/* The same place in the shared memory of block `cluster_rank` of the cluster. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t cluster_rank)
{
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(mapped)
                 : "r"(address), "r"(cluster_rank));
    return mapped;
}

/* Two values into the shared memory of a block of the cluster; their 8 bytes count at a barrier of
 * that block. Both addresses are from cluster_address. */
static __device__ __forceinline__ void cluster_store(uint32_t address_in_cluster,
                                                     uint32_t barrier_in_cluster, float x, float y)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%2, %3}, [%1];" ::"r"(address_in_cluster),
                 "r"(barrier_in_cluster), "f"(x), "f"(y)
                 : "memory");
}

/* Four values and 16 bytes likewise. */
static __device__ __forceinline__ void cluster_store_4(uint32_t address_in_cluster,
                                                       uint32_t barrier_in_cluster, int4 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 "
                 "[%0], {%2, %3, %4, %5}, [%1];" ::"r"(address_in_cluster),
                 "r"(barrier_in_cluster), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* v, which is the same in all lanes, in a way that the compiler knows it: what a loop around
 * warpgroup products goes by has to be (docs/kernels/product_fp8.md). */
static __device__ __forceinline__ uint32_t warp_uniform(uint32_t v)
{
    return __reduce_max_sync(FULL_MASK, v);
}

/* Between blocks of a grid: what the thread has done and seen comes before the store; what comes
 * before a store comes before what follows the load that sees it. */
static __device__ __forceinline__ void grid_store_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t grid_load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Every thread of the cluster is there, and those that wait see barriers that mbarrier_init_fence
 * has told. What was written besides is not told: with release the compiler waits for the thread's
 * accesses of memory, half a microsecond. */
static __device__ __forceinline__ void cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* Two halves as floats, exactly, the lower one first */
static __device__ __forceinline__ float2 f16x2_to_float2(uint32_t v)
{
    float2 r;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n"
        "}"
        : "=f"(r.x), "=f"(r.y)
        : "r"(v));
    return r;
}

/* ---- copies into shared memory ---- */

/* 4 bytes, kept in L1 with their cache line */
static __device__ __forceinline__ void cp_async_4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

/* n_byte, a multiple of 16, both addresses aligned to 16; they count at the barrier. */
static __device__ __forceinline__ void bulk_load(uint32_t dst, const void *src, uint32_t n_byte,
                                                 uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(n_byte), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The box at (x, y, z); its bytes count at the barrier, those outside the tensor as zeros. */
static __device__ __forceinline__ void tensor_load(uint32_t dst, const CUtensorMap *map,
                                                   uint32_t barrier, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Shared memory written by cp_async or plain stores, and known to have landed, is seen by the
 * warpgroup products and bulk copies that follow. */
static __device__ __forceinline__ void async_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- from registers to shared memory ---- */

/* Four matrices of 8 x 8 values of 2 bytes, the converse of ldmatrix_x4: lane i gives the place of
 * row i % 8 of matrix i / 8, and has of each the values of row i / 4, columns 2 (i % 4) and on. */
static __device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1,
                                                   uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}

/* The same with rows for columns: lane l's address is that of column l % 8. */
static __device__ __forceinline__ void stmatrix_x4_turned(uint32_t address, uint32_t r0,
                                                          uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(r0), "r"(r1), "r"(r2), "r"(r3)
        : "memory");
}

/* ---- copies out of shared memory: one group of them at a time ---- */

/* n_byte, a multiple of 16; both addresses aligned to 16 */
static __device__ __forceinline__ void bulk_store(void *dst, uint32_t src, uint32_t n_byte)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(n_byte)
                 : "memory");
}

/* A box to (x, y, z); what is outside the tensor is not written. */
static __device__ __forceinline__ void tensor_store(const CUtensorMap *map, uint32_t src, int x,
                                                    int y, int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
            map),
        "r"(src), "r"(x), "r"(y), "r"(z)
        : "memory");
}

static __device__ __forceinline__ void bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until the sources of this thread's stores may be written again. */
static __device__ __forceinline__ void bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Until this thread's stores are done. */
static __device__ __forceinline__ void bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif

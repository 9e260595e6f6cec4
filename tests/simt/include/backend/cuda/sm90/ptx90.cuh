/* ptx90.cuh - what src/backend/cuda/sm90/ptx90.cuh spells as instructions, on the simulated GPU
 *
 * A barrier is told in its eight bytes as the hardware does: arrivals and bytes that the phase
 * still waits for, and the phase's parity. Products are done when they are started and stores when
 * their source is waited for. Addresses in a cluster are told relative to this block's shared
 * memory, as its own are. */
#ifndef FATHOM_TESTS_SIMT_PTX90_CUH
#define FATHOM_TESTS_SIMT_PTX90_CUH

#include <cuda.h>

#include "backend/cuda/ptx.cuh"

/* ---- barriers in shared memory ---- */

struct simt_barrier {
    int16_t n_arrival, n_left;
    int32_t bytes_and_parity; /* twice the bytes, plus the parity */
};
static_assert(sizeof(simt_barrier) == 8, "a barrier has eight bytes");

static inline simt_barrier *simt_barrier_at(uint32_t address)
{
    return (simt_barrier *)simt_place(address);
}

SIMT_UNSEEN static void simt_barrier_update(uint32_t barrier, int n_arrival, int n_byte)
{
    simt_barrier *b = simt_barrier_at(barrier);
    if (n_arrival) race_arrive(b);
    if (b->n_left < n_arrival) simt_fault("more arrivals at a barrier than it waits for");
    b->n_left = (int16_t)(b->n_left - n_arrival);
    b->bytes_and_parity += 2 * n_byte;
    if (b->n_left || b->bytes_and_parity / 2) return;
    b->n_left = b->n_arrival;
    b->bytes_and_parity ^= 1;
    race_phase_over(b);
}

SIMT_UNSEEN static void mbarrier_init(uint32_t barrier, uint32_t n_arrival)
{
    race_barrier_init(simt_barrier_at(barrier));
    *simt_barrier_at(barrier) = {(int16_t)n_arrival, (int16_t)n_arrival, 0};
}

static inline void mbarrier_init_fence(void)
{
}

static inline void mbarrier_arrive(uint32_t barrier)
{
    simt_barrier_update(barrier, 1, 0);
}

SIMT_UNSEEN static void mbarrier_arrive_expect(uint32_t barrier, uint32_t n_byte)
{
    simt_barrier_at(barrier)->bytes_and_parity += 2 * (int32_t)n_byte;
    simt_barrier_update(barrier, 1, 0);
}

static inline void mbarrier_arrive_cp_async(uint32_t barrier)
{
    simt_copy_commit();
    simt_copy_wait(0);
    simt_barrier_update(barrier, 1, 0);
}

SIMT_UNSEEN static bool mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
    bool over = ((uint32_t)simt_barrier_at(barrier)->bytes_and_parity & 1) != parity;
    if (over)
        race_wait(simt_barrier_at(barrier));
    else
        simt_pause();
    return over;
}

static inline bool mbarrier_test_wait(uint32_t barrier, uint32_t parity)
{
    return mbarrier_try_wait(barrier, parity);
}

static inline bool mbarrier_try_wait_cluster(uint32_t barrier, uint32_t parity)
{
    return mbarrier_try_wait(barrier, parity);
}

static inline bool elect_lane(void)
{
    return threadIdx.x % SIMT_WARP == 0;
}

/* ---- clusters ---- */

static inline uint32_t cluster_rank(void)
{
    return simt_cluster_rank();
}

static inline uint32_t cluster_address(uint32_t address, uint32_t cluster_rank)
{
    return address + (cluster_rank - simt_cluster_rank()) * SIMT_SHARED_BYTES;
}

template <typename T>
SIMT_UNSEEN static void simt_cluster_store(uint32_t address_in_cluster, uint32_t barrier_in_cluster,
                                           const T &v)
{
    if (address_in_cluster % sizeof v) simt_fault("a store that is not aligned");
    race_copy(simt_place(address_in_cluster), sizeof v, simt_place(barrier_in_cluster));
    memcpy(simt_place(address_in_cluster), &v, sizeof v);
    simt_barrier_update(barrier_in_cluster, 0, -(int)sizeof v);
}

static inline void cluster_store(uint32_t address_in_cluster, uint32_t barrier_in_cluster, float x,
                                 float y)
{
    simt_cluster_store(address_in_cluster, barrier_in_cluster, make_float2(x, y));
}

static inline void cluster_store_4(uint32_t address_in_cluster, uint32_t barrier_in_cluster, int4 v)
{
    simt_cluster_store(address_in_cluster, barrier_in_cluster, v);
}

static inline uint32_t warp_uniform(uint32_t v)
{
    if (v != __shfl_sync(FULL_MASK, v, 0)) simt_fault("a value that lanes do not have in common");
    return v;
}

/* Blocks run one after the other. */
SIMT_UNSEEN static void grid_store_release(uint32_t *p, uint32_t v)
{
    *p = v;
}

SIMT_UNSEEN static uint32_t grid_load_acquire(const uint32_t *p)
{
    if (!*p) simt_fault("a block waits for what no block before it has left");
    return *p;
}

static inline void cluster_arrive_relaxed(void)
{
    simt_cluster_arrive(false);
}

static inline void cluster_wait(void)
{
    simt_cluster_wait();
}

static inline float2 f16x2_to_float2(uint32_t v)
{
    return {f32_from_f16((uint16_t)v), f32_from_f16((uint16_t)(v >> 16))};
}

/* ---- copies into shared memory ---- */

static inline void cp_async_4(uint32_t dst, const void *src)
{
    simt_copy_later(simt_place(dst), src, 4, true);
}

SIMT_UNSEEN static void bulk_load(uint32_t dst, const void *src, uint32_t n_byte, uint32_t barrier)
{
    if (n_byte % 16 || (uintptr_t)src % 16 || (uintptr_t)simt_place(dst) % 16)
        simt_fault("a bulk copy that is not aligned to 16 bytes");
    race_copy(simt_place(dst), n_byte, simt_place(barrier));
    memcpy(simt_place(dst), src, n_byte);
    simt_barrier_update(barrier, 0, -(int)n_byte);
}

static inline void tensor_map_prefetch(const CUtensorMap *)
{
}

/* An address of a permuted tile: bits 4 to 6 are turned by bits 7 to 9. */
static inline uint32_t simt_permuted(uint32_t address)
{
    return address ^ (address >> 7 & 7) << 4;
}

SIMT_UNSEEN static void tensor_load(uint32_t dst, const CUtensorMap *map, uint32_t barrier, int x,
                                    int y, int z)
{
    const uint32_t piece = 16;
    if (dst % 1024) simt_fault("a permuted tile that is not aligned to 1024 bytes");
    if (x < 0 || map->box[0] % piece) simt_fault("a tile whose rows are no whole pieces");
    race_copy(simt_place(dst), map->box[0] * map->box[1], simt_place(barrier));
    for (uint32_t row = 0; row < map->box[1]; row++) {
        for (uint32_t i = 0; i < map->box[0]; i += piece) {
            const uint64_t at[3] = {(uint64_t)x + i, (uint64_t)y + row, (uint64_t)z};
            char *to = simt_place(simt_permuted(dst + row * map->box[0] + i));
            uint64_t n = 0; /* of its bytes are there */
            if (at[0] < map->size[0] && at[1] < map->size[1] && at[2] < map->size[2])
                n = map->size[0] - at[0] < piece ? map->size[0] - at[0] : piece;
            memset(to, 0, piece);
            if (n == 0) continue;
            memcpy(to, map->data + at[0] + at[1] * map->stride[0] + at[2] * map->stride[1], n);
        }
    }
    simt_barrier_update(barrier, 0, -(int)(map->box[0] * map->box[1]));
}

static inline void async_proxy_fence(void)
{
}

/* ---- copies out of shared memory ---- */

static inline void bulk_store(void *dst, uint32_t src, uint32_t n_byte)
{
    if ((uintptr_t)dst % 16 || src % 16 || n_byte % 16) simt_fault("a store of no whole pieces");
    simt_store_later(dst, simt_place(src), n_byte);
}

static inline void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    const unsigned lane = threadIdx.x % SIMT_WARP;
    const uint32_t r[4] = {r0, r1, r2, r3};
    const char *all = simt_warp_exchange(&address, sizeof address);
    for (unsigned m = 0; m < 4; m++) {
        char *at = simt_place(simt_lane<uint32_t>(all, m * 8 + lane / 4));
        if ((uintptr_t)at % 16) simt_fault("a row of a matrix that is not aligned");
        memcpy(at + lane % 4 * 4, &r[m], 4);
    }
    (void)simt_warp_exchange(NULL, 0);
}

static inline void stmatrix_x4_turned(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                      uint32_t r3)
{
    const unsigned lane = threadIdx.x % SIMT_WARP;
    const uint32_t r[4] = {r0, r1, r2, r3};
    const char *all = simt_warp_exchange(&address, sizeof address);
    for (unsigned m = 0; m < 4; m++) {
        for (unsigned i = 0; i < 2; i++) {
            char *at = simt_place(simt_lane<uint32_t>(all, m * 8 + lane % 4 * 2 + i));
            const uint16_t value = (uint16_t)(r[m] >> 16 * i);
            if ((uintptr_t)at % 16) simt_fault("a row of a matrix that is not aligned");
            memcpy(at + lane / 4 * 2, &value, sizeof value);
        }
    }
    (void)simt_warp_exchange(NULL, 0);
}

static inline void tensor_store(const CUtensorMap *map, uint32_t src, int x, int y, int z)
{
    const uint32_t piece = 16;
    if (src % 1024) simt_fault("a permuted tile that is not aligned to 1024 bytes");
    for (uint32_t row = 0; row < map->box[1]; row++) {
        for (uint32_t i = 0; i < map->box[0]; i += piece) {
            uint64_t at[3] = {(uint64_t)x + i, (uint64_t)y + row, (uint64_t)z};
            if (at[0] >= map->size[0] || at[1] >= map->size[1] || at[2] >= map->size[2]) continue;
            char *to = (char *)map->data + at[0] + at[1] * map->stride[0] + at[2] * map->stride[1];
            simt_store_later(to, simt_place(simt_permuted(src + row * map->box[0] + i)), piece);
        }
    }
}

static inline void bulk_commit(void)
{
}

static inline void bulk_wait_read(void)
{
    simt_store_wait();
}

static inline void bulk_wait(void)
{
    simt_store_wait();
}

#endif

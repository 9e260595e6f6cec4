/* peers.cuh - what kernels do with other ranks' memory: stores, looks, waits
 *
 * A value travels as 16 bytes of f32 whose words are none of them ARMED: -0.0, which is sent as
 * +0.0. The receiver looks until no word is ARMED, takes the values and arms the place again. What
 * has no word to spare (codes, ids) travels beside a flag that is stored with release.
 *
 *   place   ARMED --peer's store--> full --taken, by the kernel of the same call--> ARMED
 *
 * Looks are relaxed loads of the system's scope, which no L1 answers. peer_wait_more is the only
 * place where a kernel waits for another device; every wait ends, with what was waited for or with
 * a fault that names it. Kernels that wait must not have __shared__ variables: the simulated GPU
 * has those once for all devices. */
#ifndef FATHOM_BACKEND_CUDA_PEERS_CUH
#define FATHOM_BACKEND_CUDA_PEERS_CUH

#include "backend/cuda/ptx.cuh"

extern "C" {
#include "backend/cuda/peers.h"
}

#define PEER_ARMED 0x80000000u
#define PEER_BOUND_NS 2000000000ull

/* What a thread waits for. */
struct peer_wait {
    enum peer_op op;
    uint32_t layer, epoch, row;
    uint32_t n_look;
    uint64_t since;
};

static __device__ __forceinline__ struct peer_wait peer_wait_begin(enum peer_op op, uint32_t layer,
                                                                   uint32_t epoch, uint32_t row)
{
    struct peer_wait w = {op, layer, epoch, row, 0, 0};
    return w;
}

/* The first of a rank's threads to give up tells the host and ends the kernel. */
static __device__ __noinline__ void peer_lost(const struct peers &p, const struct peer_wait &w,
                                              uint32_t rank)
{
    if (atomicOr(p.lost, 1u) != 0) return;
    p.fault->op = w.op;
    p.fault->layer = w.layer;
    p.fault->epoch = w.epoch;
    p.fault->row = w.row;
    p.fault->rank = rank;
    system_fence();
    p.fault->is_told = 1;
    system_fence();
    kernel_trap();
}

/* What was looked for from a rank has not come yet. */
static __device__ __forceinline__ void peer_wait_more(const struct peers &p, struct peer_wait &w,
                                                      uint32_t rank)
{
    look_later("a row", w.epoch, w.row, rank);
    if (w.n_look++ % 64) return;
    const uint64_t now = global_nanoseconds();
    if (w.since == 0)
        w.since = now;
    else if (now - w.since > p.bound_ns)
        peer_lost(p, w, rank);
}

/* As it travels: never ARMED */
static __device__ __forceinline__ float4 peer_value(const float4 &v)
{
    return make_float4(v.x + 0.0f, v.y + 0.0f, v.z + 0.0f, v.w + 0.0f);
}

static __device__ __forceinline__ void peer_send(char *to, const float4 &v)
{
    peer_store(to, make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                              __float_as_uint(v.w)));
}

static __device__ __forceinline__ bool peer_has_come(const uint4 &v)
{
    return v.x != PEER_ARMED && v.y != PEER_ARMED && v.z != PEER_ARMED && v.w != PEER_ARMED;
}

static __device__ __forceinline__ float4 peer_floats(const uint4 &v)
{
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

static __device__ __forceinline__ void peer_arm(char *at)
{
    *(uint4 *)at = make_uint4(PEER_ARMED, PEER_ARMED, PEER_ARMED, PEER_ARMED);
}

/* Takes 16 bytes that a rank sends to `at`. */
static __device__ __forceinline__ float4 peer_take(const struct peers &p, struct peer_wait &w,
                                                   char *at, uint32_t rank)
{
    uint4 v = peer_load(at);
    while (!peer_has_come(v)) {
        peer_wait_more(p, w, rank);
        v = peer_load(at);
    }
    peer_arm(at);
    return peer_floats(v);
}

/* Takes what every other rank r sends to at + r * stride and adds, in rank order, its own in its
 * place. All looks are under way at once. */
static __device__ __forceinline__ float4 peer_take_sum(const struct peers &p, struct peer_wait &w,
                                                       char *at, size_t stride, const float4 &own)
{
    uint4 got[PEERS_MAX];
    uint32_t missing = ((1u << p.world) - 1) & ~(1u << p.rank);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (uint32_t r = 0; r < PEERS_MAX; r++) {
        if (missing >> r & 1) got[r] = peer_load(at + r * stride);
    }
    for (;;) {
#pragma unroll
        for (uint32_t r = 0; r < PEERS_MAX; r++) {
            if ((missing >> r & 1) && peer_has_come(got[r])) missing &= ~(1u << r);
        }
        if (!missing) break;
        peer_wait_more(p, w, (uint32_t)__ffs((int)missing) - 1);
#pragma unroll
        for (uint32_t r = 0; r < PEERS_MAX; r++) {
            if (missing >> r & 1) got[r] = peer_load(at + r * stride);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < PEERS_MAX; r++) {
        if (r >= p.world) break;
        if (r != p.rank) peer_arm(at + r * stride);
        const float4 v = r == p.rank ? own : peer_floats(got[r]);
        sum = r == 0 ? v : make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    return sum;
}

/* By one block of a call in which a rank may have nothing to wait for: it goes on once all ranks
 * have begun. */
static __device__ __forceinline__ void peers_meet(const struct peers &p, enum peer_op op)
{
    uint32_t *const count = p.epochs + p.at.epoch_meet;
    const uint32_t epoch = *count, r = threadIdx.x;
    const uint64_t turn = p.at.meet + (uint64_t)(epoch % 2) * p.world * PEER_UNIT;
    if (r < p.world && r != p.rank) {
        struct peer_wait w = peer_wait_begin(op, 0, epoch, 0);
        peer_store_8(p.base[r] + turn + p.rank * PEER_UNIT, (uint64_t)epoch + 1);
        while (peer_load_8(p.base[p.rank] + turn + r * PEER_UNIT) != (uint64_t)epoch + 1)
            peer_wait_more(p, w, r);
    }
    __syncthreads();
    if (threadIdx.x == 0) *count = epoch + 1;
}

#endif

/* peers.cuh - what kernels do with other ranks' memory: stores, looks, waits
 *
 * A value travels as 16 bytes of f32, or of pairs of bf16, whose words are none of them ARMED:
 * -0.0, which is sent as +0.0. The receiver looks until no word is ARMED, takes the values and arms
 * the place again. What has no word to spare (codes, ids) travels beside a flag that is stored with
 * release.
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
    p.report->op = w.op;
    p.report->layer = w.layer;
    p.report->epoch = w.epoch;
    p.report->row = w.row;
    p.report->peer = p.peer0 + rank;
    system_fence();
    p.report->is_lost = 1;
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

/* Of a launch one wait counts, that of the first thread of the first block that waits. The clock is
 * read where it ends; the rest comes behind all that others wait for.
 *
 * peer_wait_end - what peer_wait_count wants; `counts` is the same for a whole block */
static __device__ __forceinline__ uint64_t peer_wait_end(bool counts)
{
    return counts ? global_nanoseconds() : 0;
}

static __device__ __forceinline__ void peer_wait_count(const struct peers &p,
                                                       const struct peer_wait &w, uint64_t end)
{
    if (end == 0 || w.n_look == 0) return;
    atomicAdd((unsigned long long *)&p.waits->n, 1ull);
    atomicAdd((unsigned long long *)&p.waits->ns, (unsigned long long)(end - w.since));
}

/* By one thread, once a step: what this rank has waited, to the host. */
static __device__ __forceinline__ void peer_tell_waits(const struct peers &p)
{
    p.report->n = atomicAdd((unsigned long long *)&p.waits->n, 0ull);
    p.report->ns = atomicAdd((unsigned long long *)&p.waits->ns, 0ull);
    p.report->n_told = p.report->n_told + 1;
}

/* As it travels: never ARMED */
static __device__ __forceinline__ float4 peer_value(const float4 &v)
{
    return make_float4(v.x + 0.0f, v.y + 0.0f, v.z + 0.0f, v.w + 0.0f);
}

static __device__ __forceinline__ uint4 peer_words(const float4 &v)
{
    return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                      __float_as_uint(v.w));
}

static __device__ __forceinline__ void peer_send(char *to, const float4 &v)
{
    peer_store(to, peer_words(v));
}

static __device__ __forceinline__ uint32_t peer_pair(float lo, float hi)
{
    const uint32_t pair = pack_bf16(lo, hi);
    return pair == PEER_ARMED ? 0 : pair; /* a -0 behind a +0 */
}

static __device__ __forceinline__ float4 peer_pairs(uint32_t x, uint32_t y)
{
    return make_float4(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u),
                       __uint_as_float(y << 16), __uint_as_float(y & 0xffff0000u));
}

static __device__ __forceinline__ float4 peer_add(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* 16 bytes as they travel: four values of f32, or eight that are rounded to bf16.
 *
 * peer_pack - never ARMED; peer_unpack - what they say */
static __device__ __forceinline__ uint4 peer_pack(const float4 (&v)[1])
{
    return peer_words(peer_value(v[0]));
}

static __device__ __forceinline__ uint4 peer_pack(const float4 (&v)[2])
{
    return make_uint4(peer_pair(v[0].x, v[0].y), peer_pair(v[0].z, v[0].w),
                      peer_pair(v[1].x, v[1].y), peer_pair(v[1].z, v[1].w));
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

static __device__ __forceinline__ void peer_unpack(const uint4 &v, float4 (&to)[1])
{
    to[0] = peer_floats(v);
}

static __device__ __forceinline__ void peer_unpack(const uint4 &v, float4 (&to)[2])
{
    to[0] = peer_pairs(v.x, v.y);
    to[1] = peer_pairs(v.z, v.w);
}

static __device__ __forceinline__ void peer_arm(char *at)
{
    *(uint4 *)at = make_uint4(PEER_ARMED, PEER_ARMED, PEER_ARMED, PEER_ARMED);
}

/* The first n_byte, a multiple of 4, of a PEER_UNIT; what is behind them is zero.
 *
 * peer_unit - read by this rank's own loads; peer_unit_put - written by its stores */
static __device__ __forceinline__ uint4 peer_unit(const char *from, uint32_t n_byte)
{
    uint32_t v[4] = {0, 0, 0, 0};
    if (n_byte == PEER_UNIT && (uintptr_t)from % PEER_UNIT == 0) return *(const uint4 *)from;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (i * 4 < n_byte) v[i] = *(const uint32_t *)(from + (size_t)i * 4);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ void peer_unit_put(char *to, uint32_t n_byte, const uint4 &v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    if (n_byte == PEER_UNIT && (uintptr_t)to % PEER_UNIT == 0) {
        *(uint4 *)to = v;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (i * 4 < n_byte) *(uint32_t *)(to + (size_t)i * 4) = words[i];
    }
}

/* Takes 16 bytes that a rank sends to `at`. */
static __device__ __forceinline__ uint4 peer_take_words(const struct peers &p, struct peer_wait &w,
                                                        char *at, uint32_t rank)
{
    uint4 v = peer_load(at);
    while (!peer_has_come(v)) {
        peer_wait_more(p, w, rank);
        v = peer_load(at);
    }
    peer_arm(at);
    return v;
}

static __device__ __forceinline__ float4 peer_take(const struct peers &p, struct peer_wait &w,
                                                   char *at, uint32_t rank)
{
    return peer_floats(peer_take_words(p, w, at, rank));
}

/* A thread's values of a row travel as UNITS times 16 bytes, `step` bytes apart, of which n_unit
 * are in the row. Takes those that every other rank r sends to at + r * stride, and makes v the sum
 * of what they and `own`, this rank's, say, in rank order. Looks at AT_ONCE of a thread's units of
 * each rank are under way. */
template <int UNITS, int QUADS, uint32_t WORLD, int AT_ONCE>
static __device__ __forceinline__ void
peer_take_sums(const struct peers &p, struct peer_wait &w, char *at, size_t step, size_t stride,
               int n_unit, const uint4 (&own)[UNITS], float4 (&v)[UNITS * QUADS])
{
    static_assert(UNITS % AT_ONCE == 0, "all are looked for");
    const uint32_t rank = p.rank;
#pragma unroll
    for (int j0 = 0; j0 < UNITS; j0 += AT_ONCE) {
        uint4 got[AT_ONCE][WORLD - 1]; /* of the k-th of the others */
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
            for (uint32_t k = 0; k < WORLD - 1; k++) {
                if (j0 + e < n_unit)
                    got[e][k] = peer_load(at + (j0 + e) * step + (k + (k >= rank)) * stride);
            }
        }
        for (;;) {
            uint32_t missing = WORLD;
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
                for (uint32_t k = 0; k < WORLD - 1; k++) {
                    if (j0 + e < n_unit && !peer_has_come(got[e][k])) missing = k;
                }
            }
            if (missing == WORLD) break;
            peer_wait_more(p, w, missing + (missing >= rank));
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
#pragma unroll
                for (uint32_t k = 0; k < WORLD - 1; k++) {
                    if (j0 + e < n_unit && !peer_has_come(got[e][k]))
                        got[e][k] = peer_load(at + (j0 + e) * step + (k + (k >= rank)) * stride);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            float4 *const sum = v + (j0 + e) * QUADS;
            if (j0 + e >= n_unit) break;
#pragma unroll
            for (uint32_t r = 0; r < WORLD; r++) {
                const uint32_t before = r > 0 ? r - 1 : 0, behind = r < WORLD - 1 ? r : r - 1;
                float4 u[QUADS];
                if (r != rank) peer_arm(at + (j0 + e) * step + r * stride);
                peer_unpack(r == rank  ? own[j0 + e]
                            : r < rank ? got[e][behind]
                                       : got[e][before],
                            u);
#pragma unroll
                for (int q = 0; q < QUADS; q++) /* +0 in front: no sum is -0 */
                    sum[q] = r == 0 ? peer_value(u[q]) : peer_add(sum[q], u[q]);
            }
        }
    }
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
        peer_wait_count(p, w, peer_wait_end(r == (p.rank + 1) % p.world));
    }
    __syncthreads();
    if (threadIdx.x == 0) *count = epoch + 1;
}

#endif

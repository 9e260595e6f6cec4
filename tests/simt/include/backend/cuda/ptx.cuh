/* ptx.cuh - what src/backend/cuda/ptx.cuh spells as instructions, on the simulated GPU
 *
 * Fragments as there, from the definitions of mma and ldmatrix: lane = 4*g + t. */
#ifndef FATHOM_TESTS_SIMT_PTX_CUH
#define FATHOM_TESTS_SIMT_PTX_CUH

#include <cuda_fp8.h>

#include "backend/cuda/port.cuh"
#include "simt/simt_link.h"

extern "C" {
#include "base/dtype.h"
}

static inline uint32_t abs_difference_x4(uint32_t a, uint32_t b)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 8) {
        const int d = (int)(a >> i & 255) - (int)(b >> i & 255);
        r |= (uint32_t)(d < 0 ? -d : d) << i;
    }
    return r;
}

SIMT_WITHIN static inline float simt_bf16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &word, sizeof v);
    return v;
}

/* What a lane brings to a product. */
struct simt_fragment {
    uint32_t a[4], b[2];
};

/* c[row][col] += sum over k, rounded once, so that the order of k does not show; element(word, j):
 * the j-th of n_word values of a register */
template <typename SUM, typename ELEMENT>
SIMT_UNSEEN static void simt_mma(SUM c[4], const simt_fragment &mine, int n_word, ELEMENT element)
{
    const char *all = simt_warp_exchange(&mine, sizeof mine);
    const unsigned lane = threadIdx.x % SIMT_WARP, g = lane / 4, t = lane % 4;
    double sum[4] = {(double)c[0], (double)c[1], (double)c[2], (double)c[3]};
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned k = 0; k < 4; k++) {
            const auto left = simt_lane<simt_fragment>(all, g * 4 + k);
            const uint32_t right[2] = {simt_lane<simt_fragment>(all, 8 * t + k).b[half],
                                       simt_lane<simt_fragment>(all, 8 * t + 4 + k).b[half]};
            for (int j = 0; j < n_word; j++) {
                const double a[2] = {(double)element(left.a[half * 2], j),
                                     (double)element(left.a[half * 2 + 1], j)};
                const double b[2] = {(double)element(right[0], j), (double)element(right[1], j)};
                for (unsigned i = 0; i < 4; i++) sum[i] += a[i / 2] * b[i % 2];
            }
        }
    }
    for (unsigned i = 0; i < 4; i++) c[i] = (SUM)sum[i];
}

static inline void mma_e4m3(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1)
{
    simt_mma(c, {{a0, a1, a2, a3}, {b0, b1}}, 4,
             [](uint32_t w, int j) SIMT_UNWATCHED { return simt_e4m3((uint8_t)(w >> 8 * j)); });
}

static inline void mma_s8(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                          uint32_t b1)
{
    simt_mma(c, {{a0, a1, a2, a3}, {b0, b1}}, 4,
             [](uint32_t w, int j) SIMT_UNWATCHED { return (int8_t)(w >> 8 * j); });
}

static inline void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1)
{
    simt_mma(c, {{a0, a1, a2, a3}, {b0, b1}}, 2,
             [](uint32_t w, int j) SIMT_UNWATCHED { return simt_bf16((uint16_t)(w >> 16 * j)); });
}

static inline void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1)
{
    simt_mma(c, {{a0, a1, a2, a3}, {b0, b1}}, 2,
             [](uint32_t w, int j) { return f32_from_f16((uint16_t)(w >> 16 * j)); });
}

/* Two values of 16 bits at once */
template <typename TO_FLOAT, typename OF_FLOAT>
static inline uint32_t simt_mul_x2(uint32_t a, uint32_t b, TO_FLOAT to_float, OF_FLOAT of_float)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) {
        const float product = to_float((uint16_t)(a >> i)) * to_float((uint16_t)(b >> i));
        r |= (uint32_t)of_float(product) << i;
    }
    return r;
}

static inline uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    return simt_mul_x2(a, b, f32_from_f16, f16_from_f32);
}

static inline uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    return simt_mul_x2(a, b, f32_from_bf16, bf16_from_f32);
}

static inline uint32_t mul_bf16x2_low(uint32_t a, uint32_t b)
{
    return mul_bf16x2(a, (b & 0xffff) * 0x10001);
}

static inline uint32_t mul_bf16x2_high(uint32_t a, uint32_t b)
{
    return mul_bf16x2(a, (b >> 16) * 0x10001);
}

static inline uint32_t select_bits(uint32_t a, uint32_t b, uint32_t pick)
{
    return (b & pick) | (a & ~pick);
}

static inline uint32_t and_or(uint32_t v, uint32_t mask, uint32_t more)
{
    return (v & mask) | more;
}

static inline uint32_t rotate_left(uint32_t v, uint32_t n)
{
    return n ? v << n | v >> (32 - n) : v;
}

static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t pick)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = both >> (pick >> 4 * i & 7) * 8 & 0xff;
        const bool is_sign = pick >> 4 * i & 8;
        r |= (is_sign ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return r;
}

#include "backend/cuda/e4m3_soft.cuh"

static inline uint32_t e4m3x2_to_f16x2(uint16_t v)
{
    return f16_from_f32(simt_e4m3((uint8_t)v)) |
           (uint32_t)f16_from_f32(simt_e4m3((uint8_t)(v >> 8))) << 16;
}

static inline void e4m3x4_to_f16x2(uint32_t codes, uint32_t *lo, uint32_t *hi)
{
    const uint16_t low = (uint16_t)codes, high = (uint16_t)(codes >> 16);
    *lo = e4m3x2_to_f16x2(low);
    *hi = e4m3x2_to_f16x2(high);
}

static inline uint32_t pack_f16(float lo, float hi)
{
    return f16_from_f32(lo) | (uint32_t)f16_from_f32(hi) << 16;
}

static inline float exp2_approx(float x)
{
    return exp2f(x);
}

static inline float reciprocal_approx(float x)
{
    const float y = 1.0f / x;
    return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
}

static inline void memory_touch(const void *)
{
}

/* Places in shared memory are told relative to its dynamic part. */
static inline uint32_t smem_address(const void *p)
{
    return (uint32_t)(int32_t)((const char *)p - (const char *)simt_shared());
}

SIMT_WITHIN static inline char *simt_place(uint32_t address)
{
    return (char *)simt_shared() + (int32_t)address;
}

static inline void cp_async_16(uint32_t dst, const void *src, bool valid)
{
    simt_copy_later(simt_place(dst), src, 16, valid);
}

static inline void cp_async_commit(void)
{
    simt_copy_commit();
}

template <int N> static inline void cp_async_wait(void)
{
    simt_copy_wait(N);
}

/* Lane i gives the place of row i % 8 of matrix i / 8; lane 4*g + t gets of each matrix the two
 * values at row g, columns 2t and 2t+1, or transposed those at rows 2t and 2t+1, column g. */
static inline void simt_ldmatrix(uint32_t r[4], uint32_t address, bool transposed)
{
    const char *all = simt_warp_exchange(&address, sizeof address);
    const unsigned lane = threadIdx.x % SIMT_WARP, g = lane / 4, t = lane % 4;
    for (unsigned m = 0; m < 4; m++) {
        uint16_t v[2];
        for (unsigned j = 0; j < 2; j++) {
            unsigned row = transposed ? 2 * t + j : g, col = transposed ? g : 2 * t + j;
            const char *at = simt_place(simt_lane<uint32_t>(all, m * 8 + row));
            if ((uintptr_t)at % 16) simt_fault("a row of a matrix that is not aligned");
            memcpy(&v[j], at + col * 2, 2);
        }
        r[m] = v[0] | (uint32_t)v[1] << 16;
    }
    (void)simt_warp_exchange(NULL, 0); /* nobody writes before all have read */
}

static inline void ldmatrix_x4(uint32_t r[4], uint32_t address)
{
    simt_ldmatrix(r, address, false);
}

static inline void ldmatrix_x4_trans(uint32_t r[4], uint32_t address)
{
    simt_ldmatrix(r, address, true);
}

static inline uint4 load_stream(const void *p)
{
    if ((uintptr_t)p % 16) simt_fault("16 bytes that are not aligned");
    uint4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint4 load_past_l1(const void *p)
{
    if ((uintptr_t)p % 16) simt_fault("16 bytes that are not aligned");
    uint4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void prefetch_l2(const void *)
{
}

/* ---- between devices ---- */

SIMT_UNSEEN static void peer_store(void *p, uint4 v)
{
    simt_peer_store(p, &v, sizeof v, false);
}

SIMT_UNSEEN static uint4 peer_load(const void *p)
{
    uint4 v;
    simt_peer_load(&v, p, sizeof v, false);
    return v;
}

SIMT_UNSEEN static void peer_store_8(void *p, uint64_t v)
{
    simt_peer_store(p, &v, sizeof v, false);
}

SIMT_UNSEEN static uint64_t peer_load_8(const void *p)
{
    uint64_t v;
    simt_peer_load(&v, p, sizeof v, false);
    return v;
}

SIMT_UNSEEN static void peer_store_release(void *p, uint32_t v)
{
    simt_peer_store(p, &v, sizeof v, true);
}

SIMT_UNSEEN static uint32_t peer_load_acquire(const void *p)
{
    uint32_t v;
    simt_peer_load(&v, p, sizeof v, true);
    return v;
}

static inline void system_fence(void)
{
    simt_peer_fence();
}

static inline uint64_t global_nanoseconds(void)
{
    return simt_nanoseconds();
}

static inline void look_later(const char *what, uint32_t epoch, uint32_t row, uint32_t rank)
{
    simt_poll({what, epoch, row, rank});
}

static inline void kernel_trap(void)
{
    simt_trap();
}

static inline void dependency_wait(void)
{
}

static inline void dependency_release(void)
{
}

#endif

/* u4.cuh - packed U4 matrices (pack4.h) as the products of sm_90a take them
 *
 * A code less its zero is a whole number of -16 to 15, and the byte of its sign and magnitude is
 * the E4M3 code of that number times 2^-9: the subnormal numbers and the two binades above them are
 * equally far apart. So a weight of a plain product goes to the tensor cores exactly, with its zero
 * taken off, and what is left is a scale a group. The experts' codes go there as they are stored,
 * which takes fewer instructions: a group's zero, times the sum of its inputs, is taken off by
 * itself. Sums of inputs are made where the inputs are (input_sum of common.cuh). Whoever
 * multiplies the one or the other makes the same sums of the same values, so a row has the same
 * bits in all kernels.
 *
 * Scales of every type are read by the same instructions, whose constants are the launch's: a
 * branch on the type would keep the compiler from running products beside other work. */
#ifndef FATHOM_BACKEND_CUDA_SM90_U4_CUH
#define FATHOM_BACKEND_CUDA_SM90_U4_CUH

#include "backend/cuda/sm90/ptx90.cuh"
#include "backend/cuda/unpack4.cuh"

enum { U4_BEHIND_BASE = 0x4b000000 }; /* the float 2^23 */

/* How a matrix's scales and zeros are read. */
struct u4_form {
    uint32_t scale_bytes;
    uint32_t scales_at; /* the upper half of the first */
    uint32_t shift;     /* of that, with its sign above it, to where a float has it */
    uint32_t mask;      /* of the float's upper half */
    uint32_t low_mask;  /* a lower half as well, in front; 0: none */
    float factor;       /* then makes it 512 times the scale */
    uint32_t zeros_at;
    uint32_t zero_step; /* times a stored zero; 0: none is */
    uint32_t zero_base; /* and this: what u4_codes takes, or the float 2^23 + the zero */
};

/* u4_form_of - of a matrix whose zeros are taken off its codes, or `behind` its products
 *
 * Needs    p of U4: its scales are F32, F16 or BF16 */
static __host__ __device__ inline struct u4_form u4_form_of(const struct pack4 &p, bool behind)
{
    struct u4_form f = {};
    const bool is_f16 = p.scale_type == DTYPE_F16; /* its exponents are 112 less */
    f.low_mask = p.scale_type == DTYPE_F32 ? 0xffffu : 0;
    f.scale_bytes = f.low_mask ? 4 : 2;
    f.scales_at = PACK4_CODE_BYTES + f.scale_bytes - 2;
    f.shift = is_f16 ? 13 : 16;
    f.mask = is_f16 ? 0x8fffe000u : 0xffff0000u;
    f.factor = is_f16 ? 0x1p121f : 512.0f;
    /* else of scales: what is read is nothing, but where codes are, a warp may be writing */
    f.zeros_at = p.has_zero ? pack4_zeros_at(&p) : PACK4_CODE_BYTES;
    const uint32_t step = behind ? 1u : 0u - 0x01010101u;
    f.zero_step = p.has_zero ? step : 0;
    f.zero_base = (behind ? U4_BEHIND_BASE : 0x80808080u) + (p.has_zero ? 0 : PACK4_ZERO * step);
    return f;
}

/* 512 times scale i of a tile's [group][64], exactly: F16's subnormal numbers go by way of F32's.
 */
static __device__ __forceinline__ float u4_scale(const struct u4_form &f, const char *tile,
                                                 uint32_t i)
{
    const char *at = tile + f.scales_at + i * f.scale_bytes;
    const uint32_t high = (uint32_t)(int32_t) * (const int16_t *)at << f.shift & f.mask;
    const uint32_t low = *(const uint16_t *)(at - 2) & f.low_mask;
    return __uint_as_float(high | low) * f.factor;
}

/* What u4_codes takes for the zero of scale i. */
static __device__ __forceinline__ uint32_t u4_zero(const struct u4_form &f, const char *tile,
                                                   uint32_t i)
{
    return ((const uint8_t *)tile)[f.zeros_at + i] * f.zero_step + f.zero_base;
}

/* That of a zero which is taken off behind, negated. */
static __device__ __forceinline__ float u4_zero_behind(uint32_t zero)
{
    return __uint_as_float(U4_BEHIND_BASE) - __uint_as_float(zero);
}

/* E4M3 codes of 2^-9 times (code - zero), of four bytes of codes. */
static __device__ __forceinline__ uint32_t u4_codes(uint32_t codes, uint32_t zero)
{
    const uint32_t v = codes + zero; /* 128 more than each */
    return abs_difference_x4(v, 0x80808080u) | (~v & 0x80808080u);
}

/* The same of a word of a tile: rows g (the low four bits) and g + 8. */
static __device__ __forceinline__ void u4_rows(uint32_t word, const uint32_t (&zero)[2],
                                               uint32_t (&out)[2])
{
    const uint32_t low = 0x0f0f0f0fu;
    out[0] = u4_codes(word & low, zero[0]);
    out[1] = u4_codes(word >> 4 & low, zero[1]);
}

/* The same codes as they are stored: E4M3 of 2^-9 times each. */
static __device__ __forceinline__ void u4_rows_stored(uint32_t word, uint32_t (&out)[2])
{
    const uint32_t low = 0x0f0f0f0fu;
    out[0] = word & low;
    out[1] = word >> 4 & low;
}

/* Begins the products of a group's inputs with its codes as they are stored. */
template <int STEPS, int N>
static __device__ __forceinline__ void u4_start_stored(float (&c)[N], const uint32_t (&a)[STEPS][4],
                                                       uint64_t x)
{
    wgmma_e4m3_start(c, a[0], x);
#pragma unroll
    for (int u = 1; u < STEPS; u++) wgmma_e4m3_add(c, a[u], x + 2 * (uint64_t)u);
}

/* A group of stored codes: what all products of them with a row are multiplied by, its scale times
 * 512, and what its sum of inputs is. All who multiply stored codes add both by u4_add_zero and
 * u4_add_codes, in this order, and get the same bits. */
struct u4_stored {
    float scale;
    float zero;
};

static __device__ __forceinline__ struct u4_stored u4_stored_of(const struct u4_form &f,
                                                                const char *tile, uint32_t i)
{
    const float scale = u4_scale(f, tile, i);
    const struct u4_stored g = {scale, scale * u4_zero_behind(u4_zero(f, tile, i))};
    return g;
}

static __device__ __forceinline__ float u4_add_zero(float sum, const struct u4_stored &g,
                                                    float inputs)
{
    return fmaf(g.zero, inputs, sum);
}

static __device__ __forceinline__ float u4_add_codes(float sum, const struct u4_stored &g, float c,
                                                     float in_scale)
{
    return fmaf(c, g.scale * in_scale, sum);
}

/* A warp's 16 rows of a tile as the tensor cores take them from shared memory (product.cuh), where
 * `to` has its first: lane 4 g + t has the words of rows g and g + 8. */
template <int G>
static __device__ __forceinline__ void u4_turn_rows(const struct u4_form &f, const char *tile,
                                                    const uint4 (&words)[2], uint8_t *to)
{
    const uint32_t lane = threadIdx.x % WARP, row = threadIdx.x / WARP % 4 * 16 + lane / 4;
    const uint32_t word[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                              words[1].x, words[1].y, words[1].z, words[1].w};
    to += lane / 4 * PACK4_COLS + lane % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < G; i++) {
        const uint32_t at = i * PACK4_ROWS + row;
        const uint32_t zero[2] = {u4_zero(f, tile, at), u4_zero(f, tile, at + 8)};
#pragma unroll
        for (uint32_t v = i * 8 / G; v < (i + 1) * 8 / G; v++) {
            uint32_t codes[2];
            u4_rows(word[v], zero, codes);
            uint8_t *piece = to + (v ^ lane / 4) * 16;
            *(uint32_t *)piece = codes[0];
            *(uint32_t *)(piece + 8 * PACK4_COLS) = codes[1];
        }
    }
}

/* ---- tiles that are turned where they lie ---- */

/* Room for a tile both ways: 2 KB a warp, in whose second half its packed rows arrive. Scales and
 * zeros follow. A warp turns its own rows. */
enum { U4_TURNED_BYTES = PACK4_ROWS * PACK4_COLS, U4_PACKED_AT = 1024 };

/* Copies a tile there; the barrier expects its bytes. */
static __device__ __forceinline__ void u4_load_to_turn(uint32_t to, const char *tile,
                                                       uint32_t tile_bytes, uint32_t barrier)
{
    for (uint32_t i = 0; i < 4; i++)
        bulk_load(to + i * 2048 + U4_PACKED_AT, tile + i * 1024, 1024, barrier);
    bulk_load(to + U4_TURNED_BYTES, tile + PACK4_CODE_BYTES, tile_bytes - PACK4_CODE_BYTES,
              barrier);
}

/* Where u4_scale finds that tile's scales. */
static __device__ __forceinline__ const char *u4_turned_tile(const uint8_t *at)
{
    return (const char *)at + U4_TURNED_BYTES - PACK4_CODE_BYTES;
}

/* Turns this warp's rows; before they are multiplied all four warps meet. */
template <int G>
static __device__ __forceinline__ void u4_turn_in_place(const struct u4_form &f, uint8_t *at)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint8_t *rows = at + threadIdx.x / WARP % 4 * 2048;
    const uint4 *from = (const uint4 *)(rows + U4_PACKED_AT) + lane;
    const uint4 words[2] = {from[0], from[WARP]};
    __syncwarp();
    u4_turn_rows<G>(f, u4_turned_tile(at), words, rows);
}

#endif

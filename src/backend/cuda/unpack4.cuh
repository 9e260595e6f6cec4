/* unpack4.cuh - elements of packed matrices (pack4.h), decoded one at a time or a word at a time */
#ifndef FATHOM_BACKEND_CUDA_UNPACK4_CUH
#define FATHOM_BACKEND_CUDA_UNPACK4_CUH

#include "backend/cuda/common.cuh"

extern "C" {
#include "backend/cuda/pack4.h"
}

static_assert((int)PACK4_COLS == (int)SCALE_BLOCK, "a tile has a K line of inputs");

/* The f16 of these bits, which is finite: its exponent is 112 less than a float's. */
static __device__ __forceinline__ float f16_bits_to_float(uint32_t h)
{
    const float v = __uint_as_float((h & 0x7fffu) << 13) * 0x1p112f;
    return h & 0x8000u ? -v : v;
}

/* Scale i of a tile's [group][64]. */
static __device__ __forceinline__ float pack4_scale(const struct pack4 &p, const char *tile,
                                                    uint32_t i)
{
    const char *at = tile + PACK4_CODE_BYTES;
    switch (p.scale_type) {
    case DTYPE_F32: return ((const float *)at)[i];
    case DTYPE_F16: return f16_bits_to_float(((const uint16_t *)at)[i]);
    case DTYPE_BF16: return __uint_as_float((uint32_t)((const uint16_t *)at)[i] << 16);
    case DTYPE_F8_E4M3: {
        const uint32_t e = ((const uint8_t *)at)[i]; /* its bias of 18 to a float's */
        if (e == E2M1_SCALE_NAN) return __uint_as_float(0x7fc00000);
        return __uint_as_float(e ? (e + ((127 - 18) << 3)) << 20 : 0);
    }
    default: {
        const uint32_t e = ((const uint8_t *)at)[i]; /* 2^-127 is no normal number */
        return __uint_as_float(e ? e << 23 : 1u << 22);
    }
    }
}

static __device__ __forceinline__ float pack4_zero(const struct pack4 &p, const char *tile,
                                                   uint32_t i)
{
    return p.has_zero ? (float)((const uint8_t *)tile)[pack4_zeros_at(&p) + i] : (float)PACK4_ZERO;
}

static __device__ __forceinline__ float e2m1_to_float(uint32_t code)
{
    const uint32_t e = code >> 1 & 3, m = code & 1;
    const float v = e ? __uint_as_float((e + 126) << 23 | m << 22) : 0.5f * (float)m;
    return code & 8 ? -v : v;
}

static __device__ __forceinline__ float e2m1_value_at(const char *tile, uint32_t row, uint32_t col)
{
    const uint64_t words = *(const uint64_t *)(tile + pack4_e2m1_at(row, col, col % 8 / 2));
    uint32_t code = 0;
    for (uint32_t i = 1; i < 16; i *= 2)
        if (words & pack4_e2m1_bits(row % 16, col % 32, i)) code |= i;
    return e2m1_to_float(code);
}

/* Element (row, col) of a packed matrix of n_k_line K lines; global: what its row's scales are
 * multiplied by besides, of E2M1. */
static __device__ __forceinline__ float pack4_value(const struct pack4 &p, const char *data,
                                                    uint32_t n_k_line, const float *global,
                                                    uint32_t row, uint32_t col)
{
    const uint32_t i_tile = row / PACK4_ROWS * n_k_line + col / PACK4_COLS;
    const char *tile = data + (size_t)i_tile * p.tile_bytes;
    const uint32_t r = row % PACK4_ROWS, c = col % PACK4_COLS;
    const uint32_t i = pack4_scale_index(&p, c / (PACK4_COLS / p.n_group), r);
    const float scale = pack4_scale(p, tile, i);
    if (p.is_e2m1) return e2m1_value_at(tile, r, c) * (scale * global[row / PACK4_ROWS]);
    uint32_t shift;
    const uint32_t at = pack4_code_at(r, c, &shift);
    const uint32_t code = ((const uint8_t *)tile)[at] >> shift & 15;
    return ((float)code - pack4_zero(p, tile, i)) * scale;
}

#endif

/* u4.cuh - packed U4 matrices (pack4.h) as the products of sm_90a take them
 *
 * A code less its zero is a whole number of -16 to 15, and the byte of its sign and magnitude is
 * the E4M3 code of that number times 2^-9: the subnormal numbers and the two binades above them are
 * equally far apart. So a weight goes to the tensor cores exactly, with its zero taken off, and
 * what is left is a scale a group. Scales of every type are read by the same instructions, whose
 * constants are the launch's: a branch on the type would keep the compiler from running products
 * beside other work. */
#ifndef FATHOM_BACKEND_CUDA_SM90_U4_CUH
#define FATHOM_BACKEND_CUDA_SM90_U4_CUH

#include "backend/cuda/unpack4.cuh"

/* How a matrix's scales and zeros are read. */
struct u4_form {
    uint32_t scale_bytes;
    uint32_t shift;    /* of a scale's upper half but its sign, to where a float has it */
    uint32_t low_mask; /* of its lower half, if it has one */
    float factor;      /* then makes it 512 times the scale */
    uint32_t zeros_at;
    uint32_t zero_mask; /* of a stored zero; 0: none is */
    uint32_t zero;      /* then this one */
};

/* u4_form_of - Needs p of U4: its scales are F32, F16 or BF16 */
static __host__ __device__ inline struct u4_form u4_form_of(const struct pack4 &p)
{
    struct u4_form f = {2, 16, 0, 512.0f, 0, 0, PACK4_ZERO};
    if (p.scale_type == DTYPE_F16) { /* its exponents are 112 less */
        f.shift = 13;
        f.factor = 0x1p121f;
    }
    if (p.scale_type == DTYPE_F32) {
        f.scale_bytes = 4;
        f.low_mask = 0xffffu;
    }
    if (p.has_zero) {
        f.zeros_at = pack4_zeros_at(&p);
        f.zero_mask = 0xffu;
        f.zero = 0;
    }
    return f;
}

/* 512 times scale i of a tile's [group][64], exactly: F16's subnormal numbers go by way of F32's.
 */
static __device__ __forceinline__ float u4_scale(const struct u4_form &f, const char *tile,
                                                 uint32_t i)
{
    const char *at = tile + PACK4_CODE_BYTES + i * f.scale_bytes;
    const uint32_t low = *(const uint16_t *)at;
    const uint32_t high = *(const uint16_t *)(at + f.scale_bytes - 2);
    const uint32_t bits = (high & 0x7fffu) << f.shift | (high & 0x8000u) << 16 | (low & f.low_mask);
    return __uint_as_float(bits) * f.factor;
}

/* What u4_codes takes for the zero of scale i. */
static __device__ __forceinline__ uint32_t u4_zero(const struct u4_form &f, const char *tile,
                                                   uint32_t i)
{
    const uint32_t stored = ((const uint8_t *)tile)[f.zeros_at + i];
    return 0x80808080u - ((stored & f.zero_mask) + f.zero) * 0x01010101u;
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

#endif

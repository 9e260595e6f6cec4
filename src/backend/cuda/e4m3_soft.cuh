/* e4m3_soft.cuh - e4m3 on GPUs before sm_89, by way of f16, which holds every code
 *
 * For ptx.cuh alone, whose mul_f16x2 and mma_f16 it uses. */
#ifndef FATHOM_BACKEND_CUDA_E4M3_SOFT_CUH
#define FATHOM_BACKEND_CUDA_E4M3_SOFT_CUH

/* Two codes as two f16, exactly; NaN stays NaN. Exponent and mantissa, moved to where f16 has
 * them, are 2^-8 of the value, subnormal ones too. */
static __device__ __forceinline__ uint32_t soft_e4m3x2_to_f16x2(uint16_t codes)
{
    const uint32_t v = (uint32_t)(codes & 0xff) << 8 | (uint32_t)(codes & 0xff00) << 16;
    const uint32_t magnitude = (v & 0x7f007f00) >> 1;
    const uint32_t scaled = mul_f16x2((v & 0x80008000) | magnitude, 0x5c005c00); /* 2^8 */
    const uint32_t nan = (magnitude + 0x00800080) & 0x40004000; /* all seven bits were set */
    return scaled | nan | (nan - (nan >> 4));
}

/* c += a * b, e4m3 in, f32 sums; K = 32: the first two codes of every register, then the last two,
 * which is K in another order for a and b alike. */
static __device__ __forceinline__ void soft_mma_e4m3(float c[4], uint32_t a0, uint32_t a1,
                                                     uint32_t a2, uint32_t a3, uint32_t b0,
                                                     uint32_t b1)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int shift = 16 * i;
        mma_f16(c, soft_e4m3x2_to_f16x2((uint16_t)(a0 >> shift)),
                soft_e4m3x2_to_f16x2((uint16_t)(a1 >> shift)),
                soft_e4m3x2_to_f16x2((uint16_t)(a2 >> shift)),
                soft_e4m3x2_to_f16x2((uint16_t)(a3 >> shift)),
                soft_e4m3x2_to_f16x2((uint16_t)(b0 >> shift)),
                soft_e4m3x2_to_f16x2((uint16_t)(b1 >> shift)));
    }
}

#endif

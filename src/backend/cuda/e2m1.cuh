/* e2m1.cuh - packed E2M1 matrices (pack4.h) as bf16 weights: the left operand of products on the
 * tensor cores, 16 outputs a warp
 *
 * The bits of a code, as a bf16 has them, are 2^-126 times its value, its one subnormal number
 * included. A product of bf16 times the group's scale takes them back into reach: its result has
 * six bits and is the weight times 2^-11 (scales of E4M3) or 2^-16 (exponents), exactly. What is
 * missing comes to the sum with the scale of the whole matrix. */
#ifndef FATHOM_BACKEND_CUDA_E2M1_CUH
#define FATHOM_BACKEND_CUDA_E2M1_CUH

#include "backend/cuda/unpack4.cuh"

/* A lane's weights of 16 columns: pairs of columns 2 t and the next of rows g and g + 8, and the
 * same eight columns on. */
struct e2m1_step {
    uint32_t v[4];
};

/* Codes of words v, which is even, and v + 1. */
static __device__ __forceinline__ void e2m1_codes(uint32_t first, uint32_t second,
                                                  struct e2m1_step (&out)[2])
{
    const uint32_t bits = (uint32_t)E2M1_BITS;
    const uint32_t fourth =
        select_bits(rotate_left(second, E2M1_SECOND_LEFT), first, (uint32_t)E2M1_OF_FIRST);
    const uint32_t words[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        out[i].v[0] = words[i] & bits;
        out[i].v[1] = words[i] << 4 & bits;
        out[i].v[2] = rotate_left(words[i], 26) & bits;
    }
    out[0].v[3] = fourth << 6 & bits;
    out[1].v[3] = rotate_left(fourth, 28) & bits;
}

/* Scales of groups of 16 (G = 8 of a K line: E4M3) or of 32 (G = 4: exponents): the two of rows g
 * and g + 8 as bf16, of the even or the odd one of two groups, whose bytes are one word. */
template <int G>
static __device__ __forceinline__ uint32_t e2m1_scales(uint32_t bytes, uint32_t odd)
{
    static_assert(G == 8 || G == 4, "groups of 16 or 32");
    if (G == 8) { /* five bits of exponent, 97 less than a bf16's */
        return and_or(odd ? bytes >> 4 : bytes << 4, 0x0ff00ff0u, 0x70007000u);
    }
    return ((odd ? bytes >> 1 : bytes << 7) & 0x7f807f80u) + 0x37003700u; /* 110 more */
}

/* Words of them: of all groups of a K line */
static __device__ __forceinline__ void e2m1_load_scales(const char *from, uint32_t (&words)[4])
{
    const uint4 v = *(const uint4 *)from;
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
}

static __device__ __forceinline__ void e2m1_load_scales(const char *from, uint32_t (&words)[2])
{
    const uint2 v = *(const uint2 *)from;
    words[0] = v.x;
    words[1] = v.y;
}

/* What sums of these weights are multiplied by. */
template <int G> static __device__ __forceinline__ constexpr float e2m1_factor(void)
{
    return G == 8 ? 0x1p11f : 0x1p16f;
}

/* Times the scales of rows g and g + 8. */
static __device__ __forceinline__ void e2m1_scale(struct e2m1_step &s, uint32_t scales)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        s.v[i] = mul_bf16x2_low(s.v[i], scales);
        s.v[i + 1] = mul_bf16x2_high(s.v[i + 1], scales);
    }
}

/* The weights of words `i` and i + 1 of a K line, from the word of scales that is theirs; of groups
 * of 32 theirs is the even or the odd one. */
template <int G>
static __device__ __forceinline__ void e2m1_weights(uint32_t first, uint32_t second, uint32_t bytes,
                                                    uint32_t odd, struct e2m1_step (&out)[2])
{
    e2m1_codes(first, second, out);
    const uint32_t scales = e2m1_scales<G>(bytes, G == 8 ? 0 : odd % 2);
    e2m1_scale(out[0], scales);
    e2m1_scale(out[1], G == 8 ? e2m1_scales<G>(bytes, 1) : scales);
}

/* Where a lane's words of a tile are, and the scales of its rows; `warp`: which 16 rows. */
struct e2m1_lane {
    uint32_t words;
    uint32_t scales;
};

template <int G>
static __device__ __forceinline__ struct e2m1_lane e2m1_lane_of(uint32_t warp, uint32_t lane)
{
    return {warp * 1024 + lane * 16, PACK4_CODE_BYTES + (warp * 8 + lane / 4) * 2 * G};
}

/* A lane's weights of a whole K line. */
enum { E2M1_STEPS = PACK4_COLS / 16 };

template <int G>
static __device__ __forceinline__ void e2m1_line(const char *tile, const struct e2m1_lane &lane,
                                                 struct e2m1_step (&out)[E2M1_STEPS / 2][2])
{
    const uint4 lo = *(const uint4 *)(tile + lane.words);
    const uint4 hi = *(const uint4 *)(tile + lane.words + 512);
    const uint32_t words[E2M1_STEPS] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    uint32_t scales[G / 2];
    e2m1_load_scales(tile + lane.scales, scales);
#pragma unroll
    for (uint32_t i = 0; i < E2M1_STEPS / 2; i++)
        e2m1_weights<G>(words[2 * i], words[2 * i + 1], scales[i * G / 8], i, out[i]);
}

#endif

/* wgmma.cuh - what src/backend/cuda/sm90/wgmma.cuh spells as instructions, on the simulated GPU:
 * products are done when they are started, and keep others from writing until they are waited for
 */
#ifndef FATHOM_TESTS_SIMT_WGMMA_CUH
#define FATHOM_TESTS_SIMT_WGMMA_CUH

#include "backend/cuda/sm90/ptx90.cuh"

template <int N> static inline void registers_raise(void)
{
}

template <int N> static inline void registers_lower(void)
{
}

/* ---- warpgroup products ---- */

static inline uint64_t wgmma_operand(uint32_t address)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

static inline uint64_t wgmma_operand_turned(uint32_t address, uint32_t next)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static inline void wgmma_fence(void)
{
}

static inline void wgmma_commit(void)
{
    race_reads_commit();
}

/* Where byte k of row `row` of an operand is; 16 bytes lie together. */
SIMT_WITHIN static inline const char *simt_operand_place(uint64_t operand, uint32_t row, uint32_t k)
{
    uint32_t start = (uint32_t)(operand & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(operand >> 32 & 0x3fff) << 4;
    return simt_place(simt_permuted(start + row / 8 * stride + row % 8 * 128 + k));
}

/* 32 bytes of an operand's row, decoded: 32 values of e4m3 or 16 of bf16, */
template <int VALUES> struct simt_operand_row {
    float v[VALUES];

    SIMT_WITHIN inline void decode(uint32_t at, const void *from, uint32_t n_byte)
    {
        for (uint32_t i = 0; i < n_byte * VALUES / 32; i++) {
            uint16_t pair = 0;
            memcpy(&pair, (const char *)from + i * (32 / VALUES), 32 / VALUES);
            v[at * VALUES / 32 + i] = VALUES == 32 ? simt_e4m3((uint8_t)pair) : simt_bf16(pair);
        }
    }
};

/* or of int8. */
enum { SIMT_S8 = -32 };
template <> struct simt_operand_row<SIMT_S8> {
    int8_t v[32];

    SIMT_WITHIN inline void decode(uint32_t at, const void *from, uint32_t n_byte)
    {
        memcpy(v + at, from, n_byte);
    }
};

/* Of the lanes that read the same row one tells so. */
template <int VALUES>
SIMT_WITHIN static inline simt_operand_row<VALUES> simt_shared_row(uint64_t operand, uint32_t row,
                                                                   bool tells)
{
    simt_operand_row<VALUES> out;
    for (uint32_t k = 0; k < 32; k += 16) {
        const char *from = simt_operand_place(operand, row, k);
        out.decode(k, from, 16);
        if (tells) race_read_on(from, 16);
    }
    return out;
}

/* Rows g and g + 8 of the warp's 16 of the 64-row operand. */
template <int VALUES> struct simt_operand_rows {
    simt_operand_row<VALUES> of[2];
};

template <int VALUES> SIMT_UNSEEN static simt_operand_rows<VALUES> simt_left_rows(uint64_t operand)
{
    const uint32_t row = threadIdx.x / SIMT_WARP % 4 * 16 + threadIdx.x % SIMT_WARP / 4;
    const bool tells = threadIdx.x % 4 == 0;
    return {{simt_shared_row<VALUES>(operand, row, tells),
             simt_shared_row<VALUES>(operand, row + 8, tells)}};
}

/* The same from the registers of the four lanes that hold them. */
template <int VALUES>
SIMT_UNSEEN static simt_operand_rows<VALUES> simt_left_rows(const uint32_t (&a)[4])
{
    struct words {
        uint32_t v[4];
    };
    const words mine = {{a[0], a[1], a[2], a[3]}};
    const char *all = simt_warp_exchange(&mine, sizeof mine);
    simt_operand_rows<VALUES> out;
    for (uint32_t t = 0; t < 4; t++) {
        const words from = simt_lane<words>(all, threadIdx.x % SIMT_WARP / 4 * 4 + t);
        for (uint32_t i = 0; i < 4; i++) out.of[i % 2].decode(i / 2 * 16 + t * 4, &from.v[i], 4);
    }
    return out;
}

/* Sums of 64 rows x 2 N columns, each rounded once, as simt_mma's. A lane's sums of eight columns
 * are one vector: much of a run's time is spent here. */
template <int VALUES, int N>
SIMT_UNSEEN static void simt_wgmma(float (&c)[N], const simt_operand_rows<VALUES> &rows, uint64_t b)
{
    typedef float floats __attribute__((vector_size(16)));
    typedef double doubles __attribute__((vector_size(32)));
    const bool tells = threadIdx.x % SIMT_WARP < 4;
    doubles left[VALUES];
    for (uint32_t k = 0; k < VALUES; k++) {
        const double first = rows.of[0].v[k], second = rows.of[1].v[k];
        left[k] = (doubles){first, first, second, second};
    }
    for (uint32_t j = 0; j < N / 4; j++) {
        float *at = c + (size_t)4 * j;
        const uint32_t col = 8 * j + 2 * (threadIdx.x % 4);
        const auto even = simt_shared_row<VALUES>(b, col, tells);
        const auto odd = simt_shared_row<VALUES>(b, col + 1, tells);
        doubles sum = {at[0], at[1], at[2], at[3]};
        for (uint32_t k = 0; k < VALUES; k++) {
            const floats right = {even.v[k], odd.v[k], even.v[k], odd.v[k]};
            sum += left[k] * __builtin_convertvector(right, doubles);
        }
        for (uint32_t i = 0; i < 4; i++) at[i] = (float)sum[i];
    }
}

/* Sums wrap around, as those of instructions without .satfinite. */
template <int N> SIMT_UNSEEN static void wgmma_s8_add(int (&c)[N], uint64_t a, uint64_t b)
{
    const simt_operand_rows<SIMT_S8> rows = simt_left_rows<SIMT_S8>(a);
    const bool tells = threadIdx.x % SIMT_WARP < 4;
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t col = i / 4 * 8 + 2 * (threadIdx.x % 4) + i % 2;
        const simt_operand_row<SIMT_S8> right = simt_shared_row<SIMT_S8>(b, col, tells);
        uint32_t sum = (uint32_t)c[i];
        for (uint32_t k = 0; k < 32; k++) sum += (uint32_t)(rows.of[i / 2 % 2].v[k] * right.v[k]);
        c[i] = (int)sum;
    }
}

template <int N> static inline void wgmma_s8_start(int (&c)[N], uint64_t a, uint64_t b)
{
    for (int &x : c) x = 0;
    wgmma_s8_add(c, a, b);
}

template <int N, typename A>
static inline void wgmma_e4m3_add(float (&c)[N], const A &a, uint64_t b)
{
    simt_wgmma<32>(c, simt_left_rows<32>(a), b);
}

template <int N, typename A>
static inline void wgmma_e4m3_start(float (&c)[N], const A &a, uint64_t b)
{
    for (float &x : c) x = 0.0f;
    wgmma_e4m3_add(c, a, b);
}

template <int N, typename A>
static inline void wgmma_bf16_add(float (&c)[N], const A &a, uint64_t b)
{
    simt_wgmma<16>(c, simt_left_rows<16>(a), b);
}

template <int N, typename A>
static inline void wgmma_bf16_start(float (&c)[N], const A &a, uint64_t b)
{
    for (float &x : c) x = 0.0f;
    wgmma_bf16_add(c, a, b);
}

/* Rows of a turned operand are values of K; the quad's lanes bring their values of a. */
SIMT_UNSEEN static void wgmma_bf16_add_turned(float (&c)[64], const uint32_t (&a)[4], uint64_t b)
{
    const uint32_t lane = threadIdx.x % SIMT_WARP, g = lane / 4, t = lane % 4;
    const uint32_t start = (uint32_t)(b & 0x3fff) << 4, next = (uint32_t)(b >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(b >> 32 & 0x3fff) << 4;
    float rows[2][16];
    const char *all = simt_warp_exchange(a, sizeof a);
    for (uint32_t k = 0; k < 16; k++) {
        uint32_t v[4];
        memcpy(v, all + (g * 4 + k % 8 / 2) * SIMT_EXCHANGE_BYTES, sizeof v);
        for (uint32_t r = 0; r < 2; r++)
            rows[r][k] = simt_bf16((uint16_t)(v[k / 8 * 2 + r] >> k % 2 * 16));
    }
    for (uint32_t k = 0; k < 16; k++) {
        for (uint32_t j = 0; j < 16; j++) {
            const uint32_t col = 8 * j + 2 * t;
            const char *from = simt_place(simt_permuted(start + col / 64 * next + k / 8 * stride +
                                                        k % 8 * 128 + col % 64 * 2));
            uint16_t v[2];
            memcpy(v, from, sizeof v);
            if (g == 0) race_read_on(from, sizeof v);
            for (uint32_t i = 0; i < 2; i++) {
                c[4 * j + i] += rows[0][k] * simt_bf16(v[i]);
                c[4 * j + 2 + i] += rows[1][k] * simt_bf16(v[i]);
            }
        }
    }
}

template <int LEFT, typename SUM, int N> static inline void wgmma_wait_but(SUM (&)[N])
{
    race_reads_end(LEFT);
}

template <typename SUM, int N> static inline void wgmma_wait(SUM (&)[N])
{
    race_reads_end(0);
}

#endif

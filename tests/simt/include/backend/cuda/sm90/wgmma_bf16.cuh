/* wgmma_bf16.cuh - what src/backend/cuda/sm90/wgmma_bf16.cuh spells as instructions, on the
 * simulated GPU */
#ifndef FATHOM_TESTS_SIMT_WGMMA_BF16_CUH
#define FATHOM_TESTS_SIMT_WGMMA_BF16_CUH

#include "backend/cuda/sm90/wgmma.cuh"

/* The 16 values of K of a row of an operand; of the lanes that read the same one tells so. */
SIMT_UNSEEN static void simt_bf16_row(float (&out)[16], uint64_t operand, uint32_t row, bool tells)
{
    for (uint32_t k = 0; k < 32; k += 16) {
        const char *from = simt_operand_place(operand, row, k);
        for (uint32_t i = 0; i < 8; i++) {
            uint16_t v;
            memcpy(&v, from + 2 * i, 2);
            out[k / 2 + i] = simt_bf16(v);
        }
        if (tells) race_read_on(from, 16);
    }
}

/* The 16 values of K of a column of a turned one */
SIMT_UNSEEN static void simt_bf16_column(float (&out)[16], uint64_t operand, uint32_t column)
{
    const bool tells = threadIdx.x % SIMT_WARP < 4;
    const uint32_t start = (uint32_t)(operand & 0x3fff) << 4;
    const uint32_t next = (uint32_t)(operand >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(operand >> 32 & 0x3fff) << 4;
    for (uint32_t k = 0; k < 16; k++) {
        uint16_t v;
        const char *from = simt_place(simt_permuted(start + column / 64 * next + k / 8 * stride +
                                                    k % 8 * 128 + column % 64 * 2));
        memcpy(&v, from, 2);
        out[k] = simt_bf16(v);
        if (tells) race_read_on(from, 2);
    }
}

template <int N, typename COLUMN>
SIMT_UNSEEN static void simt_bf16_product(float (&c)[N], const float (&rows)[2][16], COLUMN column)
{
    const uint32_t t = threadIdx.x % 4;
    float col[16];
    for (uint32_t j = 0; j < N / 4; j++) {
        for (uint32_t i = 0; i < 2; i++) {
            column(col, 8 * j + 2 * t + i);
            for (uint32_t k = 0; k < 16; k++) {
                c[4 * j + i] += rows[0][k] * col[k];
                c[4 * j + 2 + i] += rows[1][k] * col[k];
            }
        }
    }
}

SIMT_UNSEEN static void simt_bf16_rows(float (&rows)[2][16], uint64_t a)
{
    const uint32_t first = threadIdx.x / SIMT_WARP % 4 * 16 + threadIdx.x % SIMT_WARP / 4;
    simt_bf16_row(rows[0], a, first, threadIdx.x % 4 == 0);
    simt_bf16_row(rows[1], a, first + 8, threadIdx.x % 4 == 0);
}

SIMT_UNSEEN static void wgmma_scores(float (&c)[32], uint64_t a, uint64_t b, bool adds)
{
    float rows[2][16];
    simt_bf16_rows(rows, a);
    if (!adds) {
        for (float &x : c) x = 0.0f;
    }
    simt_bf16_product(c, rows, [b](float(&out)[16], uint32_t row) {
        simt_bf16_row(out, b, row, threadIdx.x % SIMT_WARP < 4);
    });
}

SIMT_UNSEEN static void wgmma_add_columns(float (&c)[128], uint64_t a, uint64_t b)
{
    float rows[2][16];
    simt_bf16_rows(rows, a);
    simt_bf16_product(c, rows, [b](float(&out)[16], uint32_t at) { simt_bf16_column(out, b, at); });
}

SIMT_UNSEEN static void wgmma_add_columns(float (&c)[128], const uint32_t (&a)[4], uint64_t b)
{
    const char *all = simt_warp_exchange(a, sizeof a);
    const uint32_t g = threadIdx.x % SIMT_WARP / 4;
    float rows[2][16];
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t words[4];
        memcpy(words, all + (g * 4 + t) * SIMT_EXCHANGE_BYTES, sizeof words);
        for (uint32_t i = 0; i < 4; i++) {
            float *to = &rows[i % 2][i / 2 * 8 + 2 * t];
            to[0] = simt_bf16((uint16_t)words[i]);
            to[1] = simt_bf16((uint16_t)(words[i] >> 16));
        }
    }
    simt_bf16_product(c, rows, [b](float(&out)[16], uint32_t at) { simt_bf16_column(out, b, at); });
}

#endif

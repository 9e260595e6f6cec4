/* k_parts.h - how the sum over K is cut, the same in every product kernel
 *
 * A K line is 128 bytes of a row of weights: 128 values of FP8, 64 of BF16. K is cut into parts of
 * whole K lines. A part is summed K line by K line, and parts are added in ascending order. The cut
 * depends on the number of K lines alone, so a kernel may give parts to different warps or blocks,
 * or walk through them, and get the same bits. */
#ifndef FATHOM_BACKEND_CUDA_K_PARTS_H
#define FATHOM_BACKEND_CUDA_K_PARTS_H

#include <stdint.h>

enum { K_LINE_BYTES = 128, K_PART_LINES_MIN = 3 };

/* k_part_count - the largest of 8, 4, 2 that divides n_k_line and leaves parts of at least
 * K_PART_LINES_MIN K lines; else 1 */
static inline uint32_t k_part_count(uint32_t n_k_line)
{
    for (uint32_t n = 8; n > 1; n /= 2) {
        if (n_k_line % n == 0 && n_k_line / n >= K_PART_LINES_MIN) return n;
    }
    return 1;
}

/* fp8_k_part_count - the parts of a product of FP8 weights on sm_90: one of experts whose tiles are
 * enough for one token, so that sums of many rows need no room for a second sum */
static inline uint32_t fp8_k_part_count(uint32_t n_output, uint32_t n_k_line, int is_mapped)
{
    enum { OUTPUTS_ONE_PART = 4096 };
    return is_mapped && n_output >= OUTPUTS_ONE_PART ? 1 : k_part_count(n_k_line);
}

/* bf16_k_part_count - the parts of a product of BF16 weights: as many as keep a GPU busy with few
 * rows of inputs, by the outputs of the matrix; mapped: one, tasks being many */
static inline uint32_t bf16_k_part_count(uint32_t n_output, uint32_t n_k_line, int is_mapped)
{
    enum { OUTPUTS_ONE_PART = 8192, OUTPUTS_TWO_PARTS = 4096 };
    if (is_mapped || n_output >= OUTPUTS_ONE_PART) return 1;
    const uint32_t n = k_part_count(n_k_line);
    return n > 2 && n_output >= OUTPUTS_TWO_PARTS ? 2 : n;
}

/* The router cuts its K into parts of so many K lines. Each part writes a row of scores a token,
 * with room for a multiple of 32 experts. */
enum { ROUTER_K_PART_LINES = 16 };

/* Tokens of a block that maps experts to rows. */
enum { ROUTER_MAP_TOKENS = 64 };

/* router_k_part_count - parts of a row of n_col BF16 weights */
static inline uint32_t router_k_part_count(uint32_t n_col)
{
    return (n_col / 64 + ROUTER_K_PART_LINES - 1) / ROUTER_K_PART_LINES;
}

/* router_score_pitch - floats from a token's scores to the next token's */
static inline uint32_t router_score_pitch(uint32_t n_expert)
{
    return (n_expert + 31) / 32 * 32;
}

#endif

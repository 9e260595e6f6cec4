/* shares.h - how the sum over K is cut, the same in every product kernel
 *
 * K is cut into lines of 128 bytes of weights and the lines into shares; a share is summed line by
 * line, and shares are added in ascending order. The cut depends on the number of lines alone, so
 * a kernel may give shares to different warps or blocks, or walk through them, and get the same
 * bits. */
#ifndef FATHOM_BACKEND_CUDA_SHARES_H
#define FATHOM_BACKEND_CUDA_SHARES_H

#include <stdint.h>

enum { SHARE_LINES_MIN = 3 };

/* The largest of 8, 4, 2 that divides n_line and leaves at least SHARE_LINES_MIN lines, else 1. */
static inline uint32_t share_count(uint32_t n_line)
{
    for (uint32_t n = 8; n > 1; n /= 2) {
        if (n_line % n == 0 && n_line / n >= SHARE_LINES_MIN) return n;
    }
    return 1;
}

/* The router cuts its K into shares of so many lines; each writes a row of scores a token, with
 * room for a multiple of 32 experts. */
enum { ROUTER_SHARE_LINES = 16 };

/* Tokens of a block that maps experts to rows. */
enum { ROUTER_MAP_TOKENS = 64 };

static inline uint32_t router_share_count(uint32_t n_col)
{
    return (n_col / 64 + ROUTER_SHARE_LINES - 1) / ROUTER_SHARE_LINES;
}

static inline uint32_t router_score_pitch(uint32_t n_expert)
{
    return (n_expert + 31) / 32 * 32;
}

#endif

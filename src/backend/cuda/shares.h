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

#endif

/* pack4.h - codes of four bits in device memory: tiles, with scales and zeros behind their codes
 *
 * A tile has 64 rows and one K line of 128 columns; the K lines of the same rows lie one after the
 * other. Its codes come first, PACK4_CODE_BYTES, as the tensor cores take the 64-row operand from
 * registers: 16 rows a warp, of which lane 4 g + t has rows g and g + 8. Its words v = 0 .. 7, four
 * in each half of the warp's 1024 bytes, hold columns 16 v + 4 t to 16 v + 4 t + 3: byte b has row
 * g in the low four bits and row g + 8 in the high ones. Then come [group][64] scales in the type
 * of the checkpoint and, if zeros are stored, as many bytes of them. Rows and columns past the end
 * are codes of 0 with scales of 0. Plain C and in every build. */
#ifndef FATHOM_BACKEND_CUDA_PACK4_H
#define FATHOM_BACKEND_CUDA_PACK4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tensor_view.h"
#include "base/weight_form.h"

enum {
    PACK4_ROWS = 64,
    PACK4_COLS = 128,
    PACK4_CODE_BYTES = PACK4_ROWS * PACK4_COLS / 2,
    PACK4_ZERO = 8, /* of U4 without zeros */
    PACK4_ZERO_MAX = 16,
};

/* How a matrix is packed. */
struct pack4 {
    uint32_t tile_bytes;   /* 0: it is not */
    uint32_t n_group;      /* scales of a row in a tile: 1, 2, 4, 8 */
    enum dtype scale_type; /* F32, F16, BF16; of E2M1 F8_E4M3 or U8 */
    bool is_e2m1;          /* else U4 */
    bool has_zero;
};

#if defined(__CUDACC__) || defined(__HIP__)
#define PACK4_EVERYWHERE __host__ __device__
#else
#define PACK4_EVERYWHERE
#endif

/* Where the code of a tile's element lies: its byte, and by how many bits it is shifted. */
static PACK4_EVERYWHERE inline uint32_t pack4_code_at(uint32_t row, uint32_t col, uint32_t *shift)
{
    const uint32_t word = col / 16, lane = row % 8 * 4 + col % 16 / 4;
    *shift = row % 16 / 8 * 4;
    return row / 16 * 1024 + word / 4 * 512 + lane * 16 + word % 4 * 4 + col % 4;
}

/* Where the first scale and the first zero of a tile lie. */
static PACK4_EVERYWHERE inline uint32_t pack4_scale_bytes(const struct pack4 *p)
{
    return p->scale_type == DTYPE_F32 ? 4 : p->is_e2m1 ? 1 : 2;
}

static PACK4_EVERYWHERE inline uint32_t pack4_zeros_at(const struct pack4 *p)
{
    return PACK4_CODE_BYTES + p->n_group * PACK4_ROWS * pack4_scale_bytes(p);
}

/* pack4_of - how a matrix of this form is packed; tile_bytes is 0 for forms that are not: those of
 * other codes, and of groups that are neither 16 (E2M1), 32, 64 nor a multiple of 128 columns */
struct pack4 pack4_of(const struct weight_form *f);

/* pack4_tile_rows - rows of tiles of a matrix of n_row rows; each has ceil(n_col / 128) K lines
 * pack4_bytes - of the whole matrix */
static inline size_t pack4_tile_rows(uint32_t n_row)
{
    return (n_row + PACK4_ROWS - 1) / PACK4_ROWS;
}

static inline size_t pack4_bytes(const struct pack4 *p, uint32_t n_row, uint32_t n_col)
{
    return pack4_tile_rows(n_row) * ((n_col + PACK4_COLS - 1) / PACK4_COLS) * p->tile_bytes;
}

/* pack4_rows - the tiles of rows [row0, row0 + 64) of a view with a source, or of those it has
 *
 *   out  [K line][p->tile_bytes], written whole
 * pack4_global - what every scale of the view is multiplied by besides: of E2M1, else 1 */
void pack4_rows(const struct pack4 *p, const struct tensor_view *v, uint32_t row0, uint8_t *out);
float pack4_global(const struct tensor_view *v);

#endif

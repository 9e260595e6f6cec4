/* pack4.h - codes of four bits in device memory: tiles, with scales and zeros behind their codes
 *
 * A tile has 64 rows and one K line of 128 columns; the K lines of the same rows lie one after the
 * other. Its codes come first, PACK4_CODE_BYTES, as the tensor cores take the 64-row operand from
 * registers: 16 rows a warp, of which lane 4 g + t has rows g and g + 8. Its words v = 0 .. 7, four
 * in each half of the warp's 1024 bytes, hold columns 16 v + 4 t to 16 v + 4 t + 3: byte b has row
 * g in the low four bits and row g + 8 in the high ones. Then come [group][64] scales in the type
 * of the checkpoint and, if zeros are stored, as many bytes of them. Rows and columns past the end
 * are codes of 0 with scales of 0. Plain C and in every build.
 *
 * E2M1 is multiplied as bf16. Word v of lane 4 g + t has columns 16 v + 2 t, the next one and those
 * eight on, whose bits lie apart, where few instructions make two weights of them (e2m1.cuh). A
 * code's sign, exponent and mantissa become bits 15, 8, 7 and 6 of a bf16, 2^-126 times the value:
 * of a lane's four pairs of columns three come of a word alone, rotated left by 0, 4 and 26; what
 * bits they leave in words v and v + 1 have the fourth of both. Scales are a byte, [16 rows][g]
 * [group / 2][row g, row g + 8][group % 2]: those of lane's two rows lie together. */
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
    uint32_t n_group;      /* scales of a row in a tile: 1, 2, 4; of E2M1 8 (E4M3) or 4 */
    enum dtype scale_type; /* F32, F16, BF16; of E2M1 F8_E4M3 or U8 */
    bool is_e2m1;          /* else U4 */
    bool has_zero;
};

#if defined(__CUDACC__) || defined(__HIP__)
#define PACK4_EVERYWHERE __host__ __device__
#else
#define PACK4_EVERYWHERE
#endif

/* Where the code of a tile's element lies, of U4: its byte, and how many bits it is shifted by. */
static PACK4_EVERYWHERE inline uint32_t pack4_code_at(uint32_t row, uint32_t col, uint32_t *shift)
{
    const uint32_t word = col / 16, lane = row % 8 * 4 + col % 16 / 4;
    *shift = row % 16 / 8 * 4;
    return row / 16 * 1024 + word / 4 * 512 + lane * 16 + word % 4 * 4 + col % 4;
}

enum {
    /* sign, exponent and mantissa of two bf16; and bits of word v among fourth pairs */
    E2M1_BITS = (int)0x81c081c0,
    E2M1_OF_FIRST = 0x06030603,
    E2M1_SECOND_LEFT = 2, /* how far word v + 1 is rotated to lie beside them */
    /* scales of E4M3 have an exponent of five bits instead of four, and no subnormal numbers: this
     * more than E4M3's bits, 2^18 times the value with a bias of 0 */
    E2M1_SCALE_BIAS = 11 << 3,
    E2M1_SCALE_NAN = 255,
    E2M1_EXPONENT_MAX = 144, /* of other scales: 2^17 and more, which no weight has, are that */
};

/* The bits of an E2M1 code in two words of a tile, word v, which is even, below: column `col` of
 * 32, row `row` of 16. */
static PACK4_EVERYWHERE inline uint64_t pack4_e2m1_bits(uint32_t row, uint32_t col, uint32_t code)
{
    const uint32_t pair = col % 16 / 8 * 2 + row / 8, second = col / 16;
    uint64_t bits = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = (i == 3 ? 15 : 6 + i) + col % 2 * 16;
        uint32_t word = second, from;
        switch (pair) {
        case 0: from = at; break;
        case 1: from = at - 4; break;
        case 2: from = (at + 6) % 32; break;
        default:
            from = (second ? at + 4 : at - 6) % 32;
            word = !(E2M1_OF_FIRST >> from & 1);
            if (word) from = (from - E2M1_SECOND_LEFT) % 32;
        }
        bits |= (uint64_t)(code >> i & 1) << (from + 32 * word);
    }
    return bits;
}

/* Where those words lie: of 32 columns from `col` on, of lane 4 (row % 8) + t. */
static PACK4_EVERYWHERE inline uint32_t pack4_e2m1_at(uint32_t row, uint32_t col, uint32_t t)
{
    return row / 16 * 1024 + col / 64 * 512 + (row % 8 * 4 + t) * 16 + col % 64 / 32 * 8;
}

/* The byte of an E4M3 scale that is not negative, and of an exponent. */
static PACK4_EVERYWHERE inline uint8_t pack4_e4m3_scale(uint8_t e4m3)
{
    if (e4m3 >= 8) return (uint8_t)(e4m3 == 127 ? E2M1_SCALE_NAN : e4m3 + E2M1_SCALE_BIAS);
    const uint32_t top = e4m3 >= 4 ? 2 : e4m3 >= 2 ? 1 : 0; /* e4m3 * 2^-9 */
    return (uint8_t)(e4m3 ? (9 + top) << 3 | (e4m3 << (3 - top) & 7) : 0);
}

static PACK4_EVERYWHERE inline uint8_t pack4_exponent_scale(uint32_t exponent)
{
    if (exponent == 255) return E2M1_EXPONENT_MAX + 1; /* not a number, in products infinite */
    return (uint8_t)(exponent > E2M1_EXPONENT_MAX ? E2M1_EXPONENT_MAX : exponent);
}

/* Where the first scale and the first zero of a tile lie, and which scale a row has. */
static PACK4_EVERYWHERE inline uint32_t pack4_scale_bytes(const struct pack4 *p)
{
    return p->scale_type == DTYPE_F32 ? 4 : p->is_e2m1 ? 1 : 2;
}

static PACK4_EVERYWHERE inline uint32_t pack4_zeros_at(const struct pack4 *p)
{
    return PACK4_CODE_BYTES + p->n_group * PACK4_ROWS * pack4_scale_bytes(p);
}

static PACK4_EVERYWHERE inline uint32_t pack4_scale_index(const struct pack4 *p, uint32_t group,
                                                          uint32_t row)
{
    if (!p->is_e2m1) return group * PACK4_ROWS + row;
    return (row / 16 * 8 + row % 8) * 2 * p->n_group + group / 2 * 4 + row % 16 / 8 * 2 + group % 2;
}

/* pack4_of - how a matrix of this form is packed; tile_bytes is 0 for forms that are not: those of
 * other codes, of E2M1 in groups that are neither 16 with scales of E4M3 nor 32 with exponents, and
 * of U4 in groups that are neither 32, 64 nor a multiple of 128 columns */
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

/* feedback.c - codes of rows with feedback */
#include "quantize/feedback.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "quantize/moments.h"
#include "quantize/tile.h"

/* Codes of one input; `difference` is what they add to the numbers they stand for. Returns those
 * that are clipped. */
static uint64_t code_input(const struct feedback_rows *rows, uint32_t input, float diagonal,
                           const float sum[FEEDBACK_ROWS], float difference[FEEDBACK_ROWS],
                           uint8_t *codes)
{
    const uint32_t n_group = rows->n_col / rows->group, group = input / rows->group;
    uint64_t n_clipped = 0;
    for (uint32_t r = 0; r < rows->n_row; r++) {
        const struct codes_scale *s = &rows->scales[(size_t)r * n_group + group];
        const float w = rows->w[(size_t)r * rows->n_col + input];
        const float moved = w - sum[r] / diagonal, q = codes_nearest(moved, s, rows->is_u4);
        difference[r] = (q - (float)s->zero) * s->scale - w;
        codes[(size_t)r * rows->n_col + input] = (uint8_t)(int)q;
        n_clipped += codes_is_clipped(moved, s, q);
    }
    return n_clipped;
}

/* Places [first, end), the last first; sums of the places before them within the block follow. */
static uint64_t code_block(const struct feedback *f, const struct feedback_rows *rows,
                           uint32_t first, uint32_t end, float *sums, float *differences,
                           uint8_t *codes)
{
    const size_t stride = moments_stride(rows->n_col);
    uint64_t n_clipped = 0;
    for (uint32_t s = end; s-- > first;) {
        const float *line = f->factor + s * stride;
        float *difference = differences + (size_t)(s - first) * FEEDBACK_ROWS;
        n_clipped += code_input(rows, f->order[s], line[s], sums + (size_t)s * FEEDBACK_ROWS,
                                difference, codes);
        for (uint32_t k = first; k < s; k++) {
            float *to = sums + (size_t)k * FEEDBACK_ROWS;
            for (int r = 0; r < FEEDBACK_ROWS; r++) to[r] += line[k] * difference[r];
        }
    }
    return n_clipped;
}

uint64_t feedback_codes(const struct feedback *f, const struct feedback_rows *rows, float *sums,
                        float *differences, uint8_t *codes)
{
    const size_t stride = moments_stride(rows->n_col);
    uint64_t n_clipped = 0;
    static_assert((int)FEEDBACK_ROWS == (int)TILE_COLS, "a row is a lane");
    ASSERT(rows->n_row >= 1 && rows->n_row <= FEEDBACK_ROWS);
    ASSERT(rows->n_col % MOMENTS_ALIGN == 0 && rows->n_col % rows->group == 0);
    memset(sums, 0, (size_t)rows->n_col * FEEDBACK_ROWS * sizeof *sums);
    memset(differences, 0, (size_t)FEEDBACK_BLOCK * FEEDBACK_ROWS * sizeof *differences);
    for (uint32_t end = rows->n_col; end > 0;) {
        const uint32_t first = end > FEEDBACK_BLOCK ? end - FEEDBACK_BLOCK : 0;
        n_clipped += code_block(f, rows, first, end, sums, differences, codes);
        for (uint32_t k = 0; k < first; k += TILE_ROWS) {
            tile_add((float(*)[TILE_COLS])(sums + (size_t)k * FEEDBACK_ROWS),
                     f->factor + first * stride + k, stride, 1, differences, FEEDBACK_ROWS,
                     end - first);
        }
        end = first;
    }
    return n_clipped;
}

double feedback_error(const struct feedback_rows *rows, const uint8_t *codes)
{
    const uint32_t n_group = rows->n_col / rows->group;
    double sum = 0;
    for (size_t i = 0; i < (size_t)rows->n_row * rows->n_col; i++) {
        const size_t r = i / rows->n_col, c = i % rows->n_col;
        const struct codes_scale *s = &rows->scales[r * n_group + c / rows->group];
        const float q = rows->is_u4 ? (float)codes[i] : (float)(int8_t)codes[i];
        const double off = (double)((q - (float)s->zero) * s->scale - rows->w[i]);
        sum += off * off;
    }
    return sum;
}

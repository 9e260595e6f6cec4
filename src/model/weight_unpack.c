/* weight_unpack.c - codes and scales out of the words that packed formats keep them in
 *
 * N = n_row outputs, K = n_col inputs, G inputs share a scale. Words are 32 bits, eight codes each,
 * the first in the lowest four bits.
 */
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"
#include "model/weight_formats.h"
#include "model/weight_unpack_int.h"

static uint32_t word_at(const uint8_t *data, uint64_t i)
{
    uint32_t word;
    memcpy(&word, data + 4 * i, sizeof word);
    return word;
}

static uint32_t nibble(uint32_t word, uint32_t i)
{
    DCHECK(i < 8);
    return word >> (4 * i) & 15;
}

static uint32_t n_block(const struct weight_source *s)
{
    return s->form.block_col ? s->n_col / s->form.block_col : 1;
}

/* Which nibble of a word AWQ keeps its k-th output in. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* [K][N / 8], along outputs */
void unpack_awq(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n, uint8_t *out)
{
    const uint32_t stride = s->n_row / 8, place = awq_place[row % 8];
    DCHECK(row < s->n_row && col + n <= s->n_col);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = word_at(s->code_data, (uint64_t)(col + i) * stride + row / 8);
        out[i] = (uint8_t)nibble(word, place);
    }
}

/* [K / 8][N], along inputs */
void unpack_gptq(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                 uint8_t *out)
{
    DCHECK(row < s->n_row && col + n <= s->n_col);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word = word_at(s->code_data, (uint64_t)((col + i) / 8) * s->n_row + row);
        out[i] = (uint8_t)nibble(word, (col + i) % 8);
    }
}

/* [N][K / 8], along inputs */
void unpack_words(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                  uint8_t *out)
{
    const uint64_t first = (uint64_t)row * ((s->n_col + 7) / 8);
    DCHECK(row < s->n_row && col + n <= s->n_col);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)nibble(word_at(s->code_data, first + (col + i) / 8), (col + i) % 8);
}

/* Bytes [N][K / 2], the even input low. */
void unpack_pairs(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                  uint8_t *out)
{
    const uint8_t *data = s->code_data + (uint64_t)row * (s->n_col / 2);
    DCHECK(row < s->n_row && col + n <= s->n_col);
    for (uint32_t i = 0; i < n; i++) out[i] = data[(col + i) / 2] >> 4 * ((col + i) % 2) & 15;
}

/* The same in two's complement, as codes whose zero is 8. */
void unpack_signed_pairs(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                         uint8_t *out)
{
    unpack_pairs(s, row, col, n, out);
    for (uint32_t i = 0; i < n; i++) out[i] ^= 8;
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* Scales [K / G][N], zeros [K / G][N / 8] in AWQ's order. */
float scale_of_awq(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    DCHECK(row < s->n_row && block < n_block(s));
    uint32_t word = word_at(s->zero_data, (uint64_t)block * (s->n_row / 8) + row / 8);
    *zero = (int)nibble(word, awq_place[row % 8]);
    return weight_scale_value(s->form.scale_type, s->scale_data, (uint64_t)block * s->n_row + row);
}

/* The same in plain order; what is stored may be one less than the zero. */
float scale_of_gptq(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    DCHECK(row < s->n_row && block < n_block(s));
    uint32_t word = word_at(s->zero_data, (uint64_t)block * (s->n_row / 8) + row / 8);
    *zero = (int)nibble(word, row % 8) + s->zero_add;
    return weight_scale_value(s->form.scale_type, s->scale_data, (uint64_t)block * s->n_row + row);
}

/* Scales [N][K / G], zeros [ceil(N / 8)][K / G] or none, which is 8. */
float scale_of_packed(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    const uint32_t n = n_block(s);
    DCHECK(row < s->n_row && block < n);
    *zero = 8;
    if (s->zero_data) {
        uint32_t word = word_at(s->zero_data, (uint64_t)(row / 8) * n + block);
        *zero = (int)nibble(word, row % 8);
    }
    return weight_scale_value(s->form.scale_type, s->scale_data, (uint64_t)row * n + block);
}

/* Scales [N][K / G], times or divided by the matrix's one. */
float scale_of_fp4(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    const uint32_t n = n_block(s);
    DCHECK(row < s->n_row && block < n);
    *zero = 0;
    float scale = weight_scale_value(s->form.scale_type, s->scale_data, (uint64_t)row * n + block);
    return s->global_divides ? scale / s->global : scale * s->global;
}

/* pack4.c - matrices of four-bit codes to the tiles that the device has them in */
#include "backend/cuda/pack4.h"

#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "base/assert.h"

struct pack4 pack4_of(const struct weight_form *f)
{
    const uint32_t block = f->block_col;
    const bool is_e2m1 = f->code == CODE_E2M1;
    struct pack4 p = {.scale_type = f->scale_type, .is_e2m1 = is_e2m1, .has_zero = f->has_zero};
    if ((f->code != CODE_U4 && !is_e2m1) || f->block_row != 1) return (struct pack4){0};
    switch (f->scale_type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        if (is_e2m1) return (struct pack4){0};
        break;
    case DTYPE_F8_E4M3:
    case DTYPE_U8:
        if (!is_e2m1) return (struct pack4){0};
        break;
    default: return (struct pack4){0};
    }
    if (is_e2m1 ? block != (f->scale_type == DTYPE_U8 ? 32 : 16)
                : block % PACK4_COLS && block != 64 && block != 32)
        return (struct pack4){0};
    p.n_group = block % PACK4_COLS ? PACK4_COLS / block : 1;
    p.tile_bytes = pack4_zeros_at(&p) + (p.has_zero ? p.n_group * PACK4_ROWS : 0);
    return p;
}

float pack4_global(const struct tensor_view *v)
{
    const struct weight_source *s = v->source;
    if (s->form.scale_type != DTYPE_F8_E4M3) return 1;
    return s->global_divides ? 1 / s->global : s->global;
}

/* A scale less what pack4_global says, in its type: nothing is rounded that has not been. */
static void put_scale(const struct pack4 *p, const struct weight_source *s, float scale,
                      uint8_t *to)
{
    uint16_t half;
    int exponent;
    switch (p->scale_type) {
    case DTYPE_F32: memcpy(to, &scale, sizeof scale); break;
    case DTYPE_F16:
        half = f16_from_f32(scale);
        memcpy(to, &half, sizeof half);
        break;
    case DTYPE_BF16:
        half = bf16_from_f32(scale);
        memcpy(to, &half, sizeof half);
        break;
    case DTYPE_F8_E4M3:
        *to = pack4_e4m3_scale(
            e4m3_from_f32(s->global_divides ? scale * s->global : scale / s->global));
        break;
    default:
        (void)frexpf(scale, &exponent);
        *to = pack4_exponent_scale(isnan(scale) ? 255 : (uint32_t)(exponent + 126));
    }
}

/* ---- E2M1 ---- */

enum { WIDE_COLS = 32 }; /* of two words */

/* pack4_e2m1_bits of every code and place. */
struct e2m1_places {
    uint64_t bits[2][WIDE_COLS][16];
};

static void find_places(struct e2m1_places *p)
{
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t col = 0; col < WIDE_COLS; col++)
            for (uint32_t code = 0; code < 16; code++)
                p->bits[half][col][code] = pack4_e2m1_bits(half * 8, col, code);
}

/* A group of a row: a scale of 0 makes codes of 0, and a sign goes to the codes. */
static void pack_e2m1_group(const struct pack4 *p, const struct weight_source *s,
                            const struct e2m1_places *places, float scale, const uint8_t *codes,
                            uint32_t group, uint32_t row, uint8_t *tile)
{
    const uint32_t n = PACK4_COLS / p->n_group, flip = scale < 0 ? 8 : 0;
    if (scale == 0) return;
    put_scale(p, s, fabsf(scale), tile + PACK4_CODE_BYTES + pack4_scale_index(p, group, row));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t col = group * n + i;
        uint8_t *to = tile + pack4_e2m1_at(row, col, col % 8 / 2);
        uint64_t words;
        memcpy(&words, to, sizeof words);
        words |= places->bits[row % 16 / 8][col % WIDE_COLS][codes[i] ^ flip];
        memcpy(to, &words, sizeof words);
    }
}

static void pack_e2m1_row(const struct pack4 *p, const struct tensor_view *v,
                          const struct e2m1_places *places, uint32_t row, uint8_t *out)
{
    const struct weight_source *s = v->source;
    const uint32_t group = PACK4_COLS / p->n_group;
    uint8_t codes[PACK4_COLS / 4];
    ASSERT(group <= sizeof codes);
    for (uint32_t c = 0; c < v->n_col; c += group) {
        const uint32_t n = v->n_col - c < group ? v->n_col - c : group;
        const uint32_t from_row = v->source_row0 + row, from = v->source_col0 + c;
        int zero;
        memset(codes, 0, sizeof codes);
        s->codes(s, from_row, from, n, codes);
        pack_e2m1_group(p, s, places, s->scale(s, from_row, from / s->form.block_col, &zero), codes,
                        c / group % p->n_group, row % PACK4_ROWS,
                        out + (size_t)(c / PACK4_COLS) * p->tile_bytes);
    }
}

/* ---- U4 ---- */

static void pack_row(const struct pack4 *p, const struct tensor_view *v, uint32_t row,
                     uint32_t row_in_tile, uint8_t *out)
{
    const struct weight_source *s = v->source;
    const uint32_t group = PACK4_COLS / p->n_group, block = s->form.block_col;
    const uint32_t scale_bytes = pack4_scale_bytes(p), zeros = pack4_zeros_at(p);
    uint8_t codes[PACK4_COLS];
    for (uint32_t c0 = 0; c0 < v->n_col; c0 += PACK4_COLS, out += p->tile_bytes) {
        const uint32_t n = v->n_col - c0 < PACK4_COLS ? v->n_col - c0 : PACK4_COLS;
        s->codes(s, v->source_row0 + row, v->source_col0 + c0, n, codes);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t shift, at = pack4_code_at(row_in_tile, i, &shift);
            out[at] |= (uint8_t)(codes[i] << shift);
        }
        for (uint32_t g = 0; g * group < n; g++) {
            const uint32_t col = v->source_col0 + c0 + g * group;
            const uint32_t at = g * PACK4_ROWS + row_in_tile;
            int zero = 0;
            float scale = s->scale(s, v->source_row0 + row, block ? col / block : 0, &zero);
            ASSERT(zero >= 0 && zero <= PACK4_ZERO_MAX);
            put_scale(p, s, scale, out + PACK4_CODE_BYTES + at * scale_bytes);
            if (p->has_zero) out[zeros + at] = (uint8_t)zero;
        }
    }
}

void pack4_rows(const struct pack4 *p, const struct tensor_view *v, uint32_t row0, uint8_t *out)
{
    ASSERT(p->tile_bytes > 0 && v->source && row0 < v->n_row && row0 % PACK4_ROWS == 0);
    memset(out, 0, (size_t)((v->n_col + PACK4_COLS - 1) / PACK4_COLS) * p->tile_bytes);
    const uint32_t n = v->n_row - row0 < PACK4_ROWS ? v->n_row - row0 : PACK4_ROWS;
    if (!p->is_e2m1) {
        for (uint32_t i = 0; i < n; i++) pack_row(p, v, row0 + i, i, out);
        return;
    }
    struct e2m1_places places;
    find_places(&places);
    for (uint32_t i = 0; i < n; i++) pack_e2m1_row(p, v, &places, row0 + i, out);
}

bool backend_cuda_takes(const struct weight_form *f)
{
    switch (f->code) {
    case CODE_WIDE: return true;
    case CODE_E4M3:
        if (f->scale_type == DTYPE_NONE) return false;
        return f->block_col == 0
                   ? f->block_row <= 1
                   : f->block_row == TENSOR_SCALE_BLOCK && f->block_col == TENSOR_SCALE_BLOCK;
    case CODE_I8: return true;
    case CODE_U4:
    case CODE_E2M1: return pack4_of(f).tile_bytes > 0;
    }
    return false;
}

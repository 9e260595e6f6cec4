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
    if (block % PACK4_COLS == 0)
        p.n_group = 1;
    else if (block == 64 || block == 32 || (block == 16 && is_e2m1))
        p.n_group = PACK4_COLS / block;
    else
        return (struct pack4){0};
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
        *to = e4m3_from_f32(s->global_divides ? scale * s->global : scale / s->global);
        break;
    default: (void)frexpf(scale, &exponent); *to = (uint8_t)(exponent + 126);
    }
}

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
    for (uint32_t i = 0; i < PACK4_ROWS && row0 + i < v->n_row; i++)
        pack_row(p, v, row0 + i, i, out);
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

/* tensor_view.c - the one decoder of a tensor's elements, and the maker of those without data */
#include "base/tensor_view.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"

bool tensor_view_is_float(const struct tensor_view *v)
{
    if (v->source) return true;
    return v->dtype == DTYPE_F32 || v->dtype == DTYPE_F16 || v->dtype == DTYPE_BF16 ||
           v->dtype == DTYPE_F8_E4M3 || (v->dtype == DTYPE_I8 && (v->scale || !v->data));
}

/* n stored elements, which may be unaligned, before their scale. */
static void decode(enum dtype t, const uint8_t *raw, uint32_t n, float *out)
{
    uint16_t half;
    switch (t) {
    case DTYPE_F32: memcpy(out, raw, n * sizeof *out); break;
    case DTYPE_BF16:
        for (uint32_t i = 0; i < n; i++) {
            memcpy(&half, raw + 2 * (size_t)i, sizeof half);
            out[i] = f32_from_bf16(half);
        }
        break;
    case DTYPE_F16:
        for (uint32_t i = 0; i < n; i++) {
            memcpy(&half, raw + 2 * (size_t)i, sizeof half);
            out[i] = f32_from_f16(half);
        }
        break;
    case DTYPE_F8_E4M3:
        for (uint32_t i = 0; i < n; i++) out[i] = f32_from_e4m3(raw[i]);
        break;
    case DTYPE_I8:
        for (uint32_t i = 0; i < n; i++) out[i] = (float)(int8_t)raw[i];
        break;
    default: ASSERT(!"a type that is a float");
    }
}

static void check_range(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n)
{
    ASSERT(row < v->n_row);
    ASSERT(col0 <= v->n_col && n <= v->n_col - col0);
}

static float made_scale(const struct tensor_view *v)
{
    if (v->generate_std <= 0) return 1;
    if (v->dtype == DTYPE_I8) return v->generate_std * 4 / 127;
    return v->dtype == DTYPE_F8_E4M3 ? ue8m0_round_up(v->generate_std * 8 / 448) : 1;
}

static uint32_t block_or_128(uint32_t n)
{
    return n ? n : TENSOR_SCALE_BLOCK;
}

float tensor_view_scale(const struct tensor_view *v, uint32_t row, uint32_t col)
{
    ASSERT(!v->source);
    if (!v->data) return made_scale(v);
    if (!v->scale) return 1;
    uint64_t block_row = ((uint64_t)v->scale_row0 + row) / block_or_128(v->scale_block_row);
    uint32_t block_col = (v->scale_col0 + col) / block_or_128(v->scale_block_col);
    return v->scale[block_row * v->scale_stride + block_col];
}

/* A row of a source, group by group: a scale and a zero hold for a block of its columns. */
static void decode_source(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                          float *out)
{
    const struct weight_source *s = v->source;
    uint8_t codes[TENSOR_SCALE_BLOCK];
    const uint32_t block = s->form.block_col ? s->form.block_col : s->n_col;
    row += v->source_row0;
    col0 += v->source_col0;
    for (uint32_t i = 0, m; i < n; i += m) {
        uint32_t col = col0 + i;
        int zero = 0;
        m = n - i < TENSOR_SCALE_BLOCK ? n - i : TENSOR_SCALE_BLOCK;
        if (m > block - col % block) m = block - col % block;
        float scale = s->scale(s, row, col / block, &zero);
        s->codes(s, row, col, m, codes);
        for (uint32_t k = 0; k < m; k++) {
            float value =
                s->form.code == CODE_U4 ? (float)((int)codes[k] - zero) : e2m1_value(codes[k]);
            out[i + k] = value * scale;
        }
    }
}

void tensor_view_row(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                     float *out)
{
    ASSERT(v->data || v->source);
    check_range(v, row, col0, n);
    if (v->source) {
        decode_source(v, row, col0, n, out);
        return;
    }
    size_t at = (row * v->row_stride + col0) * dtype_size(v->dtype);
    decode(v->dtype, (const uint8_t *)v->data + at, n, out);
    if (!v->scale) return;
    const uint32_t block = block_or_128(v->scale_block_col);
    for (uint32_t i = 0; i < n;) {
        uint32_t left = block - (v->scale_col0 + col0 + i) % block;
        uint32_t end = n - i < left ? n : i + left;
        float scale = tensor_view_scale(v, row, col0 + i);
        for (; i < end; i++) out[i] *= scale;
    }
}

void tensor_view_make(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                      void *raw)
{
    ASSERT(!v->data && !v->source);
    check_range(v, row, col0, n);
    float scale = made_scale(v);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t state =
            rng_mix(v->generate_seed, v->generate_row0 + row, v->generate_col0 + col0 + i);
        float f = rng_normal(&state) * v->generate_std / scale;
        switch (v->dtype) {
        case DTYPE_F32: ((float *)raw)[i] = f; break;
        case DTYPE_BF16: ((uint16_t *)raw)[i] = bf16_from_f32(f); break;
        case DTYPE_F16: ((uint16_t *)raw)[i] = f16_from_f32(f); break;
        case DTYPE_F8_E4M3: ((uint8_t *)raw)[i] = e4m3_from_f32(f); break;
        case DTYPE_I8: ((int8_t *)raw)[i] = (int8_t)lrintf(fminf(fmaxf(f, -127), 127)); break;
        default: ASSERT(!"a type that is a float");
        }
    }
}

void tensor_view_make_row(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                          float *out)
{
    float raw[TENSOR_SCALE_BLOCK]; /* room for any type */
    float scale = made_scale(v);
    for (uint32_t i = 0; i < n; i += TENSOR_SCALE_BLOCK) {
        uint32_t m = n - i < TENSOR_SCALE_BLOCK ? n - i : TENSOR_SCALE_BLOCK;
        tensor_view_make(v, row, col0 + i, m, raw);
        decode(v->dtype, (const uint8_t *)raw, m, out + i);
        for (uint32_t j = 0; j < m; j++) out[i + j] *= scale;
    }
}

/* tensor_view.c - the one decoder of a tensor's elements, and the maker of those without data */
#include "base/tensor_view.h"

#include <string.h>

#include "base/assert.h"
#include "base/rng.h"

bool tensor_view_is_float(const struct tensor_view *v)
{
    return v->dtype == DTYPE_F32 || v->dtype == DTYPE_F16 || v->dtype == DTYPE_BF16 ||
           v->dtype == DTYPE_F8_E4M3;
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
    if (v->dtype != DTYPE_F8_E4M3 || v->generate_std <= 0) return 1;
    return ue8m0_round_up(v->generate_std * 8 / 448);
}

float tensor_view_scale(const struct tensor_view *v, uint32_t row, uint32_t col)
{
    if (!v->data) return made_scale(v);
    if (!v->scale) return 1;
    uint64_t block_row = ((uint64_t)v->scale_row0 + row) / TENSOR_SCALE_BLOCK;
    return v->scale[block_row * v->scale_stride + (v->scale_col0 + col) / TENSOR_SCALE_BLOCK];
}

void tensor_view_row(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                     float *out)
{
    ASSERT(v->data);
    check_range(v, row, col0, n);
    size_t at = (row * v->row_stride + col0) * dtype_size(v->dtype);
    decode(v->dtype, (const uint8_t *)v->data + at, n, out);
    if (!v->scale) return;
    for (uint32_t i = 0; i < n;) {
        uint32_t end = i + TENSOR_SCALE_BLOCK - (v->scale_col0 + col0 + i) % TENSOR_SCALE_BLOCK;
        float scale = tensor_view_scale(v, row, col0 + i);
        for (; i < n && i < end; i++) out[i] *= scale;
    }
}

void tensor_view_make(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n,
                      void *raw)
{
    ASSERT(!v->data);
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

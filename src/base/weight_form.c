/* weight_form.c - names and sizes of the ways in which weights are coded */
#include "base/weight_form.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"

bool weight_form_equal(const struct weight_form *a, const struct weight_form *b)
{
    return a->code == b->code && a->type == b->type && a->scale_type == b->scale_type &&
           a->block_row == b->block_row && a->block_col == b->block_col &&
           a->has_zero == b->has_zero;
}

static uint64_t n_block(uint32_t n, uint32_t block)
{
    return block == 0 ? 1 : n / block + (n % block != 0);
}

uint64_t weight_form_bytes(const struct weight_form *f, uint32_t n_row, uint32_t n_col)
{
    uint64_t n = (uint64_t)n_row * n_col;
    uint64_t n_scale = n_block(n_row, f->block_row) * n_block(n_col, f->block_col);
    switch (f->code) {
    case CODE_WIDE: n *= dtype_size(f->type); break;
    case CODE_E4M3:
    case CODE_I8: break;
    case CODE_U4:
    case CODE_E2M1: n = (n + 1) / 2; break;
    }
    if (f->has_zero) n += (n_scale + 1) / 2;
    return f->scale_type == DTYPE_NONE ? n : n + n_scale * dtype_size(f->scale_type);
}

static const char *name_blocks(char out[24], const struct weight_form *f)
{
    if (f->block_row == 0) {
        (void)snprintf(out, 24, "tensor");
    } else if (f->block_col == 0) {
        (void)snprintf(out, 24, "channel");
    } else if (f->block_row == 1) {
        (void)snprintf(out, 24, "g%u", f->block_col);
    } else {
        (void)snprintf(out, 24, "%ux%u", f->block_row, f->block_col);
    }
    return out;
}

const char *weight_form_text(char out[WEIGHT_FORM_TEXT_BYTES], const struct weight_form *f)
{
    static const char *const codes[] = {
        [CODE_E4M3] = "e4m3", [CODE_I8] = "i8", [CODE_U4] = "u4", [CODE_E2M1] = "e2m1"};
    char blocks[24];
    if (f->code == CODE_WIDE || f->scale_type == DTYPE_NONE) {
        (void)snprintf(out, WEIGHT_FORM_TEXT_BYTES, "%s",
                       f->code == CODE_WIDE ? dtype_name(f->type) : codes[f->code]);
    } else {
        (void)snprintf(out, WEIGHT_FORM_TEXT_BYTES, "%s %s %s%s", codes[f->code],
                       name_blocks(blocks, f),
                       f->scale_type == DTYPE_U8 ? "E8M0" : dtype_name(f->scale_type),
                       f->has_zero ? " + zero" : "");
    }
    return out;
}

float e2m1_value(uint8_t code)
{
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    ASSERT(code < 16);
    return values[code];
}

float weight_scale_value(enum dtype type, const void *data, uint64_t i)
{
    const uint8_t *at = (const uint8_t *)data + i * dtype_size(type);
    uint16_t half;
    float value;
    switch (type) {
    case DTYPE_F32: memcpy(&value, at, sizeof value); return value;
    case DTYPE_F16: memcpy(&half, at, sizeof half); return f32_from_f16(half);
    case DTYPE_BF16: memcpy(&half, at, sizeof half); return f32_from_bf16(half);
    case DTYPE_F8_E4M3: return f32_from_e4m3(*at);
    case DTYPE_U8: return *at == 255 ? NAN : ldexpf(1, *at - 127);
    default: ASSERT(!"a type of scales"); return 0;
    }
}

/* ---- made up --------------------------------------------------------------------------------- */

static void make_codes(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                       uint8_t *out)
{
    uint64_t bits = 0;
    DCHECK(row < s->n_row && col + n <= s->n_col);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = col + i;
        if (i == 0 || c % 16 == 0) bits = rng_mix(s->made_seed, row, c / 16);
        out[i] = bits >> 4 * (c % 16) & 15;
    }
}

/* The value nearest to one, 0.75 to 1.25, that a type of scales holds. */
static float near_one(enum dtype type, uint8_t bits)
{
    const float f = 0.75f + (float)bits / 512;
    switch (type) {
    case DTYPE_F16: return f32_from_f16(f16_from_f32(f));
    case DTYPE_BF16: return f32_from_bf16(bf16_from_f32(f));
    case DTYPE_F8_E4M3: return f32_from_e4m3(e4m3_from_f32(f));
    case DTYPE_U8: return 1;
    default: return f;
    }
}

/* `global` is a power of two, so a scale has the bits of its type. */
static float make_scale(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    const uint64_t bits = rng_mix(~s->made_seed, row, block);
    DCHECK(row < s->n_row && (s->form.block_col == 0 || block < s->n_col / s->form.block_col));
    *zero = s->form.has_zero ? 6 + (int)(bits >> 8 & 3) : 8;
    return near_one(s->form.scale_type, bits & 255) * s->global;
}

void weight_source_make(struct weight_source *out, const struct weight_form *form, uint32_t n_row,
                        uint32_t n_col, uint64_t seed, float std)
{
    /* of codes spread evenly: sixteen integers, the values of E2M1 */
    const float code_std = form->code == CODE_U4 ? 4.61f : 2.93f;
    ASSERT((form->code == CODE_U4 || form->code == CODE_E2M1) && form->block_row == 1 && std > 0);
    ASSERT(form->block_col == 0 || n_col % form->block_col == 0);
    *out = (struct weight_source){
        .form = *form,
        .n_row = n_row,
        .n_col = n_col,
        .global = exp2f(roundf(log2f(std / code_std))),
        .is_made = true,
        .made_seed = seed,
        .codes = make_codes,
        .scale = make_scale,
    };
}

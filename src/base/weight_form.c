/* weight_form.c - names and sizes of the ways in which weights are coded */
#include "base/weight_form.h"

#include <stdio.h>

#include "base/assert.h"

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

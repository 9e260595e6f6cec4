/* weight_formats.c - which format a module's tensors are, and whether they are sound */
#include "model/weight_formats.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weight_unpack_int.h"

static const char *const suffixes[N_PART] = {
    [PART_WEIGHT] = "weight",
    [PART_SCALE_INV] = "weight_scale_inv",
    [PART_SCALE] = "weight_scale",
    [PART_SCALE_2] = "weight_scale_2",
    [PART_QWEIGHT] = "qweight",
    [PART_QZEROS] = "qzeros",
    [PART_SCALES] = "scales",
    [PART_G_IDX] = "g_idx",
    [PART_PACKED] = "weight_packed",
    [PART_PACKED_SHAPE] = "weight_shape",
    [PART_ZERO_POINT] = "weight_zero_point",
    [PART_PACKED_G_IDX] = "weight_g_idx",
    [PART_GLOBAL_SCALE] = "weight_global_scale",
    [PART_OFFSET] = "weight_offset",
};

/* ---- checks ---------------------------------------------------------------------------------- */

enum { SHAPE_BYTES = 64 };

static const char *format_shape(char out[SHAPE_BYTES], uint32_t n_dim, uint32_t n_row,
                                uint32_t n_col)
{
    if (n_dim == 1) {
        (void)snprintf(out, SHAPE_BYTES, "[%u]", n_col);
    } else {
        (void)snprintf(out, SHAPE_BYTES, "[%u, %u]", n_row, n_col);
    }
    return out;
}

fathom_err weight_check_shape(const struct tensor *t, uint32_t n_dim, uint32_t n_row,
                              uint32_t n_col, fathom_diag *d)
{
    char shape[SHAPE_BYTES];
    ASSERT(n_dim == 1 || n_dim == 2);
    if (t->n_dim != n_dim) {
        FAIL(d, FATHOM_EMISMATCH, "%s: it has %u dimensions, needed is %s", t->name, t->n_dim,
             format_shape(shape, n_dim, n_row, n_col));
    }
    for (uint32_t i = 0; i < n_dim; i++) {
        uint32_t need = n_dim == 2 && i == 0 ? n_row : n_col;
        if (t->dim[i] == need) continue;
        FAIL(d, FATHOM_EMISMATCH, "%s: dim[%u] is %llu, needed is %u", t->name, i,
             (unsigned long long)t->dim[i], need);
    }
    return FATHOM_OK;
}

static fathom_err check_type(const struct tensor *t, enum dtype type, fathom_diag *d)
{
    if (t->dtype == type) return FATHOM_OK;
    FAIL(d, FATHOM_EMISMATCH, "%s: dtype is %s, needed is %s", t->name, t->dtype_name,
         dtype_name(type));
}

static fathom_err check_scale_type(const struct tensor *t, fathom_diag *d)
{
    if (t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16) return FATHOM_OK;
    FAIL(d, FATHOM_EMISMATCH, "%s: dtype is %s, needed is F32, F16 or BF16", t->name,
         t->dtype_name);
}

/* A tensor that the format cannot do without. */
static fathom_err check_present(const struct weight_found *f, enum weight_part_name part,
                                fathom_diag *d)
{
    if (f->part[part]) return FATHOM_OK;
    FAIL(d, FATHOM_EMISMATCH, "%s: the module has no \"%s\", which %s weights have",
         f->part[f->format->code]->name, suffixes[part], f->format->name);
}

/* Inputs that share a scale, of a tensor with a column or row (`dim`) for each group. */
static fathom_err find_group(const struct tensor *scales, uint32_t dim, uint32_t n_col,
                             uint32_t *group, fathom_diag *d)
{
    uint64_t n = scales->n_dim == 2 ? scales->dim[dim] : 0;
    if (n >= 1 && n <= n_col && n_col % n == 0) {
        *group = n_col / (uint32_t)n;
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EMISMATCH,
         "%s: dim[%u] is %llu groups, needed is a number of groups that divides the %u inputs",
         scales->name, dim, (unsigned long long)n, n_col);
}

/* ---- u4 -------------------------------------------------------------------------------------- */

static bool is_awq(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    const struct tensor *q = f->part[PART_QWEIGHT];
    return q && !(q->n_dim == 2 && q->dim[0] == n_col / 8 && q->dim[1] == n_row);
}

static bool is_gptq(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    (void)n_row;
    (void)n_col;
    return f->part[PART_QWEIGHT] != NULL;
}

/* scales [K / G][N] and qzeros [K / G][N / 8] */
static fathom_err shape_q(struct weight_found *f, uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    uint32_t group;
    const struct tensor *scales = f->part[PART_SCALES], *zeros = f->part[PART_QZEROS];
    TRY(check_type(f->part[PART_QWEIGHT], DTYPE_I32, d));
    if (n_row % 8 != 0 || n_col % 8 != 0) {
        FAIL(d, FATHOM_EMISMATCH, "%s: words of eight codes cannot hold a matrix of %u x %u",
             f->part[PART_QWEIGHT]->name, n_row, n_col);
    }
    TRY(check_present(f, PART_SCALES, d));
    TRY(check_present(f, PART_QZEROS, d));
    TRY(check_scale_type(scales, d));
    TRY(find_group(scales, 0, n_col, &group, d));
    TRY(weight_check_shape(scales, 2, n_col / group, n_row, d));
    TRY(check_type(zeros, DTYPE_I32, d));
    TRY(weight_check_shape(zeros, 2, n_col / group, n_row / 8, d));
    f->form = (struct weight_form){.code = CODE_U4,
                                   .scale_type = scales->dtype,
                                   .block_row = 1,
                                   .block_col = group,
                                   .has_zero = true};
    return FATHOM_OK;
}

static fathom_err shape_awq(struct weight_found *f, const struct model_config *config,
                            uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    (void)config;
    TRY(weight_check_shape(f->part[PART_QWEIGHT], 2, n_col, n_row / 8, d));
    return shape_q(f, n_row, n_col, d);
}

static fathom_err shape_gptq(struct weight_found *f, const struct model_config *config,
                             uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    (void)config;
    const struct tensor *order = f->part[PART_G_IDX];
    TRY(weight_check_shape(f->part[PART_QWEIGHT], 2, n_col / 8, n_row, d));
    if (order) {
        TRY(check_type(order, DTYPE_I32, d));
        TRY(weight_check_shape(order, 1, 1, n_col, d));
    }
    return shape_q(f, n_row, n_col, d);
}

static bool is_packed(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    (void)n_row;
    (void)n_col;
    return f->part[PART_PACKED] && f->part[PART_PACKED]->dtype != DTYPE_U8;
}

static fathom_err shape_packed(struct weight_found *f, const struct model_config *config,
                               uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    uint32_t group;
    const struct tensor *codes = f->part[PART_PACKED], *zeros = f->part[PART_ZERO_POINT];
    const struct tensor *scales = f->part[PART_SCALE];
    TRY(check_type(codes, DTYPE_I32, d));
    if (codes->n_dim == 2 && codes->dim[0] == n_row && codes->dim[1] == (n_col + 3) / 4) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: 8 bits in words are not read, needed are 4: use the int-quantized release",
             codes->name);
    }
    TRY(weight_check_shape(codes, 2, n_row, (n_col + 7) / 8, d));
    TRY(check_present(f, PART_SCALE, d));
    TRY(check_scale_type(scales, d));
    TRY(find_group(scales, 1, n_col, &group, d));
    TRY(weight_check_shape(scales, 2, n_row, n_col / group, d));
    if (f->part[PART_PACKED_G_IDX]) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: inputs in an order of their own (act-order) are not read: quantize again with "
             "actorder \"static\" or none",
             f->part[PART_PACKED_G_IDX]->name);
    }
    if (zeros) {
        TRY(check_type(zeros, DTYPE_I32, d));
        TRY(weight_check_shape(zeros, 2, (n_row + 7) / 8, n_col / group, d));
    }
    if (zeros && config->quant_symmetric) {
        FAIL(d, FATHOM_EMISMATCH,
             "%s: zeros of weights that config.json calls symmetric: one of the two is wrong",
             zeros->name);
    }
    f->form = (struct weight_form){.code = CODE_U4,
                                   .scale_type = scales->dtype,
                                   .block_row = 1,
                                   .block_col = group,
                                   .has_zero = zeros != NULL};
    return FATHOM_OK;
}

static bool is_w4afp8(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    const struct tensor *w = f->part[PART_WEIGHT];
    (void)n_row;
    return w && w->dtype == DTYPE_I8 && w->n_dim == 2 && 2 * w->dim[1] == n_col;
}

static fathom_err shape_w4afp8(struct weight_found *f, const struct model_config *config,
                               uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    uint32_t group;
    (void)config;
    TRY(weight_check_shape(f->part[PART_WEIGHT], 2, n_row, n_col / 2, d));
    TRY(check_present(f, PART_SCALE_INV, d));
    const struct tensor *scales = f->part[PART_SCALE_INV];
    TRY(check_scale_type(scales, d));
    TRY(find_group(scales, 1, n_col, &group, d));
    TRY(weight_check_shape(scales, 2, n_row, n_col / group, d));
    f->form = (struct weight_form){
        .code = CODE_U4, .scale_type = scales->dtype, .block_row = 1, .block_col = group};
    return FATHOM_OK;
}

/* ---- e2m1 ------------------------------------------------------------------------------------ */

static bool is_mxfp4(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    (void)n_row;
    (void)n_col;
    return f->part[PART_PACKED] && !f->part[PART_GLOBAL_SCALE];
}

static bool is_nvfp4_packed(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    (void)n_row;
    (void)n_col;
    return f->part[PART_PACKED] != NULL;
}

static bool is_nvfp4(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    const struct tensor *w = f->part[PART_WEIGHT];
    (void)n_row;
    (void)n_col;
    return w && w->dtype == DTYPE_U8;
}

static fathom_err shape_fp4(struct weight_found *f, const struct model_config *config,
                            uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    const struct weight_format *format = f->format;
    const bool is_mx = format->global == N_PART;
    const uint32_t group = is_mx ? 32 : 16;
    (void)config;
    const struct tensor *codes = f->part[format->code];
    if (n_col % group != 0) {
        FAIL(d, FATHOM_EMISMATCH, "%s: groups of %u do not divide the %u inputs", codes->name,
             group, n_col);
    }
    TRY(weight_check_shape(codes, 2, n_row, n_col / 2, d));
    TRY(check_present(f, PART_SCALE, d));
    TRY(check_type(f->part[PART_SCALE], is_mx ? DTYPE_U8 : DTYPE_F8_E4M3, d));
    TRY(weight_check_shape(f->part[PART_SCALE], 2, n_row, n_col / group, d));
    if (!is_mx) {
        TRY(check_present(f, format->global, d));
        const struct tensor *global = f->part[format->global];
        TRY(check_type(global, DTYPE_F32, d));
        if (global->n_bytes != sizeof(float)) {
            FAIL(d, FATHOM_EMISMATCH, "%s: it has %llu bytes, needed is one F32", global->name,
                 (unsigned long long)global->n_bytes);
        }
    }
    f->form = (struct weight_form){.code = CODE_E2M1,
                                   .scale_type = f->part[PART_SCALE]->dtype,
                                   .block_row = 1,
                                   .block_col = group};
    return FATHOM_OK;
}

/* ---- a byte or more for each element --------------------------------------------------------- */

static bool is_int8(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    const struct tensor *w = f->part[PART_WEIGHT];
    (void)n_row;
    (void)n_col;
    return w && w->dtype == DTYPE_I8;
}

static bool is_fp8(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    const struct tensor *w = f->part[PART_WEIGHT];
    (void)n_row;
    (void)n_col;
    return w && w->dtype == DTYPE_F8_E4M3;
}

static bool is_plain(const struct weight_found *f, uint32_t n_row, uint32_t n_col)
{
    (void)n_row;
    (void)n_col;
    return f->part[PART_WEIGHT] != NULL;
}

static uint32_t n_block128(uint32_t n)
{
    return n / TENSOR_SCALE_BLOCK + (n % TENSOR_SCALE_BLOCK != 0);
}

/* The geometry of `weight_scale`: one for all, one a row, or one for each square of 128. */
static fathom_err shape_scale(struct weight_found *f, uint32_t n_row, uint32_t n_col,
                              fathom_diag *d)
{
    const struct tensor *s = f->part[PART_SCALE];
    TRY(check_scale_type(s, d));
    f->form.scale_type = s->dtype;
    if (s->n_bytes == dtype_size(s->dtype)) return FATHOM_OK;
    if (s->dim[0] == n_row && (s->n_dim == 1 || (s->n_dim == 2 && s->dim[1] == 1))) {
        f->form.block_row = 1;
        return FATHOM_OK;
    }
    f->form.block_row = f->form.block_col = TENSOR_SCALE_BLOCK;
    return weight_check_shape(s, 2, n_block128(n_row), n_block128(n_col), d);
}

static fathom_err shape_bytes(struct weight_found *f, const struct model_config *config,
                              uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    const struct tensor *w = f->part[PART_WEIGHT], *s = f->part[PART_SCALE_INV];
    char shape[SHAPE_BYTES];
    (void)config;
    if (w->dtype == DTYPE_I8 && w->n_dim == 2 && 2 * w->dim[0] == n_row && w->dim[1] == n_col) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: two outputs of 4 bits in a byte (ModelSlim's W4A8) are not read: use the W8A8 "
             "release",
             w->name);
    }
    TRY(weight_check_shape(w, 2, n_row, n_col, d));
    f->form = (struct weight_form){.code = w->dtype == DTYPE_I8 ? CODE_I8 : CODE_E4M3,
                                   .scale_type = DTYPE_F32};
    if (!s && f->part[PART_SCALE]) return shape_scale(f, n_row, n_col, d);
    if (!s) {
        FAIL(d, FATHOM_EMISMATCH,
             "%s_scale_inv: missing; needed is F32 %s, because the weight is %s", w->name,
             format_shape(shape, 2, n_block128(n_row), n_block128(n_col)), w->dtype_name);
    }
    f->form.block_row = f->form.block_col = TENSOR_SCALE_BLOCK;
    TRY(check_type(s, DTYPE_F32, d));
    return weight_check_shape(s, 2, n_block128(n_row), n_block128(n_col), d);
}

static fathom_err shape_plain(struct weight_found *f, const struct model_config *config,
                              uint32_t n_row, uint32_t n_col, fathom_diag *d)
{
    const struct tensor *w = f->part[PART_WEIGHT];
    (void)config;
    if (w->dtype != DTYPE_F32 && w->dtype != DTYPE_F16 && w->dtype != DTYPE_BF16) {
        FAIL(d, FATHOM_EMISMATCH, "%s: dtype is %s, needed is F8_E4M3, BF16, F16 or F32", w->name,
             w->dtype_name);
    }
    f->form = (struct weight_form){.code = CODE_WIDE, .type = w->dtype};
    return weight_check_shape(w, 2, n_row, n_col, d);
}

/* ---- the formats ----------------------------------------------------------------------------- */

/* The first that claims a module has it. */
static const struct weight_format formats[] = {
    {"awq", PART_QWEIGHT, PART_SCALES, PART_QZEROS, N_PART, false, is_awq, shape_awq, unpack_awq,
     scale_of_awq},
    {"gptq", PART_QWEIGHT, PART_SCALES, PART_QZEROS, N_PART, false, is_gptq, shape_gptq,
     unpack_gptq, scale_of_gptq},
    {"pack-quantized", PART_PACKED, PART_SCALE, PART_ZERO_POINT, N_PART, false, is_packed,
     shape_packed, unpack_words, scale_of_packed},
    {"mxfp4", PART_PACKED, PART_SCALE, N_PART, N_PART, false, is_mxfp4, shape_fp4, unpack_pairs,
     scale_of_fp4},
    {"nvfp4-pack-quantized", PART_PACKED, PART_SCALE, N_PART, PART_GLOBAL_SCALE, true,
     is_nvfp4_packed, shape_fp4, unpack_pairs, scale_of_fp4},
    {"nvfp4", PART_WEIGHT, PART_SCALE, N_PART, PART_SCALE_2, false, is_nvfp4, shape_fp4,
     unpack_pairs, scale_of_fp4},
    {"w4afp8", PART_WEIGHT, PART_SCALE_INV, N_PART, N_PART, false, is_w4afp8, shape_w4afp8,
     unpack_signed_pairs, scale_of_packed},
    {"int8", PART_WEIGHT, N_PART, N_PART, N_PART, false, is_int8, shape_bytes, NULL, NULL},
    {"fp8", PART_WEIGHT, N_PART, N_PART, N_PART, false, is_fp8, shape_bytes, NULL, NULL},
    {"plain", PART_WEIGHT, N_PART, N_PART, N_PART, false, is_plain, shape_plain, NULL, NULL},
};

static void find_parts(struct weight_found *out, const struct checkpoint *c, const char *name)
{
    char path[256];
    size_t n = strlen(name) - strlen(suffixes[PART_WEIGHT]);
    ASSERT(n + 32 < sizeof path && strcmp(name + n, suffixes[PART_WEIGHT]) == 0);
    memcpy(path, name, n);
    for (int i = 0; i < N_PART; i++) {
        memcpy(path + n, suffixes[i], strlen(suffixes[i]) + 1);
        out->part[i] = checkpoint_find(c, path);
    }
}

/* Two sets of codes under one name. */
static fathom_err check_one_code(const struct weight_found *f, fathom_diag *d)
{
    static const enum weight_part_name codes[] = {PART_WEIGHT, PART_QWEIGHT, PART_PACKED};
    const struct tensor *first = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const struct tensor *t = f->part[codes[i]];
        if (t && first) {
            FAIL(d, FATHOM_EMISMATCH, "%s: the checkpoint has %s as well; needed is one of them",
                 first->name, t->name);
        }
        if (t) first = t;
    }
    return FATHOM_OK;
}

fathom_err weight_format_find(struct weight_found *out, const struct checkpoint *c,
                              const struct model_config *config, const char *name, uint32_t n_row,
                              uint32_t n_col, fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    find_parts(out, c, name);
    TRY(check_one_code(out, d));
    for (size_t i = 0; i < sizeof formats / sizeof *formats && !out->format; i++) {
        if (formats[i].claims(out, n_row, n_col)) out->format = &formats[i];
    }
    return out->format ? out->format->shape(out, config, n_row, n_col, d) : FATHOM_OK;
}

/* ---- contents -------------------------------------------------------------------------------- */

static uint64_t n_element(const struct tensor *t)
{
    return t->n_bytes / dtype_size(t->dtype);
}

static fathom_err check_scales(const struct tensor *t, bool above_zero, fathom_diag *d)
{
    for (uint64_t i = 0; i < n_element(t); i++) {
        float value = weight_scale_value(t->dtype, t->data, i);
        if (value >= 0 && value <= FLT_MAX && !(above_zero && value == 0)) continue;
        FAIL(d, FATHOM_EFORMAT, "%s: scale %llu is %g, needed is a number %s zero", t->name,
             (unsigned long long)i, (double)value, above_zero ? "above" : "not below");
    }
    return FATHOM_OK;
}

static fathom_err check_offsets(const struct tensor *t, fathom_diag *d)
{
    const uint8_t *bytes = t->data;
    for (uint64_t i = 0; i < t->n_bytes; i++) {
        if (bytes[i] == 0) continue;
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: offsets that are not zero are not read: use a checkpoint with symmetric weights",
             t->name);
    }
    return FATHOM_OK;
}

static fathom_err check_order(const struct tensor *t, uint32_t n_col, uint32_t group,
                              fathom_diag *d)
{
    for (uint32_t i = 0; i < n_col; i++) {
        int32_t at;
        memcpy(&at, (const uint8_t *)t->data + 4 * (size_t)i, sizeof at);
        if (at == (int32_t)(i / group)) continue;
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: input %u is of group %d, in order it is of group %u; act-order is not read: "
             "quantize again with desc_act=false or static groups",
             t->name, i, at, i / group);
    }
    return FATHOM_OK;
}

const struct tensor *weight_format_scale(const struct weight_found *f)
{
    if (f->form.scale_type == DTYPE_NONE) return NULL;
    if (f->format->scale != N_PART) return f->part[f->format->scale];
    return f->part[f->part[PART_SCALE_INV] ? PART_SCALE_INV : PART_SCALE];
}

bool weight_format_uses(const struct weight_found *f, enum weight_part_name part)
{
    const struct weight_format *format = f->format;
    if (!format || !f->part[part]) return false;
    return part == format->code || part == format->zero || part == format->global ||
           f->part[part] == weight_format_scale(f) || part == PART_G_IDX ||
           part == PART_PACKED_SHAPE || part == PART_OFFSET;
}

fathom_err weight_format_check_values(const struct weight_found *f, uint32_t n_col, fathom_diag *d)
{
    const struct tensor *scale = weight_format_scale(f);
    const enum weight_part_name global = f->format->global;
    if (scale) TRY(check_scales(scale, false, d));
    if (global != N_PART) TRY(check_scales(f->part[global], true, d));
    if (f->part[PART_OFFSET] && scale) TRY(check_offsets(f->part[PART_OFFSET], d));
    if (!f->part[PART_G_IDX] || f->form.code != CODE_U4) return FATHOM_OK;
    return check_order(f->part[PART_G_IDX], n_col, f->form.block_col, d);
}

static const uint8_t *data_of(const struct weight_found *f, enum weight_part_name part)
{
    return part != N_PART && f->part[part] ? f->part[part]->data : NULL;
}

void weight_format_source(struct weight_source *out, const struct weight_found *f,
                          const struct model_config *config, uint32_t n_row, uint32_t n_col)
{
    const struct weight_format *format = f->format;
    ASSERT(format->codes && f->part[format->code] && f->part[format->scale]);
    const uint8_t *global = data_of(f, format->global);
    *out = (struct weight_source){
        .form = f->form,
        .n_row = n_row,
        .n_col = n_col,
        .code_data = data_of(f, format->code),
        .scale_data = data_of(f, format->scale),
        .zero_data = data_of(f, format->zero),
        .zero_add = format->codes == unpack_gptq && !config->gptq_v2,
        .global = global ? weight_scale_value(DTYPE_F32, global, 0) : 1,
        .global_divides = format->global_divides,
        .codes = format->codes,
        .scale = format->read_scale,
    };
}

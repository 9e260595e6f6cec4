/* test_tensor_view.c - the value of every element, in every type, wherever a view begins */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tensor_view.h"
#include "support/death.h"

enum { N_ROW = 300, N_COL = 330, N_SCALE_ROW = 4, N_SCALE_COL = 4 };

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};
enum { N_TYPE = sizeof types / sizeof *types };

static float scales[N_SCALE_ROW][N_SCALE_COL];

/* Bytes of a whole matrix, from an odd address on when `shift` is odd. */
static uint8_t *random_bytes(enum dtype t, size_t shift)
{
    size_t n = (size_t)N_ROW * N_COL * dtype_size(t);
    uint8_t *memory = mem_alloc(n + 8);
    uint64_t seed = (uint64_t)t + shift;
    assert_non_null(memory);
    for (size_t i = 0; i < n; i++) memory[shift + i] = (uint8_t)rng_next(&seed);
    for (int r = 0; r < N_SCALE_ROW; r++) {
        for (int c = 0; c < N_SCALE_COL; c++)
            scales[r][c] = 0.37f * (float)(1 + r * N_SCALE_COL + c);
    }
    return memory;
}

/* The element as the comment of struct tensor_view says, by itself. */
static float expected(const struct tensor_view *v, uint32_t r, uint32_t c)
{
    const uint8_t *at = (const uint8_t *)v->data + (r * v->row_stride + c) * dtype_size(v->dtype);
    uint32_t bits = 0;
    float f;
    memcpy(&bits, at, dtype_size(v->dtype));
    if (v->dtype == DTYPE_F32)
        f = f32_from_bits(bits);
    else if (v->dtype == DTYPE_F8_E4M3)
        f = f32_from_e4m3((uint8_t)bits);
    else
        f = v->dtype == DTYPE_F16 ? f32_from_f16((uint16_t)bits) : f32_from_bf16((uint16_t)bits);
    if (!v->scale) return f;
    return f * v->scale[(v->scale_row0 + r) / 128 * v->scale_stride + (v->scale_col0 + c) / 128];
}

static void check_run(const struct tensor_view *v, uint32_t row, uint32_t col0, uint32_t n)
{
    float out[N_COL + 1];
    for (uint32_t i = 0; i <= N_COL; i++) out[i] = 12345;
    tensor_view_row(v, row, col0, n, out);
    for (uint32_t i = 0; i < n; i++) {
        float want = expected(v, row, col0 + i);
        if (f32_bits(out[i]) != f32_bits(want) && !(want != want && out[i] != out[i]))
            fail_msg("%s row %u column %u of a view at (%u, %u): %a, want %a", dtype_name(v->dtype),
                     row, col0 + i, v->scale_row0, v->scale_col0, (double)out[i], (double)want);
    }
    assert_true(out[n] == 12345); /* nothing behind the run is written */
}

/* A part of a larger matrix that begins anywhere in its scale blocks, at any address. */
static void every_type_and_offset(void **state)
{
    (void)state;
    const uint32_t offsets[] = {0, 1, 63, 127};
    for (int t = 0; t < N_TYPE; t++) {
        for (size_t shift = 0; shift < 4; shift++) {
            uint8_t *memory = random_bytes(types[t], shift);
            for (int k = 0; k < 32; k++) {
                uint32_t r0 = offsets[k / 4 % 4], c0 = offsets[k % 4];
                size_t at = ((size_t)r0 * N_COL + c0) * dtype_size(types[t]);
                struct tensor_view v = {.data = memory + shift + at,
                                        .dtype = types[t],
                                        .n_row = N_ROW - r0,
                                        .n_col = N_COL - c0,
                                        .row_stride = N_COL,
                                        .scale = k < 16 ? &scales[0][0] : NULL,
                                        .scale_stride = N_SCALE_COL,
                                        .scale_row0 = r0,
                                        .scale_col0 = c0};
                const uint32_t rows[] = {0, 1, 64, 128, v.n_row - 1};
                for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                    check_run(&v, rows[i], 0, v.n_col);
                    check_run(&v, rows[i], 1, 1);
                    check_run(&v, rows[i], 100, 60);
                    check_run(&v, rows[i], v.n_col - 1, 1);
                    check_run(&v, rows[i], v.n_col, 0);
                }
            }
            mem_free(memory);
        }
    }
}

static struct tensor_view made(enum dtype t)
{
    return (struct tensor_view){.dtype = t,
                                .n_row = 40,
                                .n_col = 300,
                                .row_stride = 300,
                                .generate_seed = 9,
                                .generate_std = 0.02f};
}

/* The values of made elements are those of the elements, and runs of them fit together. */
static void made_elements_have_values(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        struct tensor_view v = made(types[t]);
        float raw[300], value[300], part[300];
        tensor_view_make(&v, 7, 0, 300, raw);
        tensor_view_make_row(&v, 7, 0, 300, value);
        tensor_view_make_row(&v, 7, 100, 150, part);
        assert_memory_equal(value + 100, part, 150 * sizeof *part);
        float scale = tensor_view_scale(&v, 7, 0);
        struct tensor_view stored = v;
        stored.data = raw;
        stored.n_row = 1;
        tensor_view_row(&stored, 0, 0, 300, part);
        double square = 0;
        for (int i = 0; i < 300; i++) {
            assert_true(part[i] * scale == value[i]);
            square += (double)value[i] * (double)value[i];
        }
        assert_true(square / 300 > 0.0003 && square / 300 < 0.0005);
        v.generate_seed = 10;
        tensor_view_make_row(&v, 7, 0, 300, part);
        assert_memory_not_equal(value, part, sizeof part);
    }
}

static void made_codes_are_all_codes_and_keep_the_deviation(void **state)
{
    (void)state;
    static const struct weight_form forms[] = {
        {CODE_U4, DTYPE_NONE, DTYPE_F16, 1, 64, true},
        {CODE_U4, DTYPE_NONE, DTYPE_BF16, 1, 0, false},
        {CODE_E2M1, DTYPE_NONE, DTYPE_F8_E4M3, 1, 16, false},
        {CODE_E2M1, DTYPE_NONE, DTYPE_U8, 1, 32, false},
    };
    enum { N = 8192 };
    static float value[N], part[N];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct weight_source s;
        weight_source_make(&s, &forms[i], 8, N, 5, 0.02f);
        const struct tensor_view v = {.n_row = 8, .n_col = N, .source = &s};
        const struct tensor_view right = {
            .n_row = 2, .n_col = N / 2, .source = &s, .source_row0 = 3, .source_col0 = N / 2};
        tensor_view_row(&v, 3, 0, N, value);
        tensor_view_row(&right, 0, 0, N / 2, part);
        assert_memory_equal(value + N / 2, part, N / 2 * sizeof *part);
        double square = 0;
        unsigned seen = 0;
        uint8_t codes[N];
        s.codes(&s, 3, 0, N, codes);
        for (int k = 0; k < N; k++) {
            square += (double)value[k] * (double)value[k];
            seen |= 1u << codes[k];
        }
        assert_int_equal(seen, 0xffff);
        assert_true(sqrt(square / N) > 0.01 && sqrt(square / N) < 0.04);
    }
}

/* ---- scales of rows, of matrices, and codes unpacked on demand ---- */

static void scales_may_belong_to_rows_or_to_all(void **state)
{
    (void)state;
    int8_t codes[3 * 300];
    const float row_scale[3] = {0.5f, 3.0f, 0.0f};
    float row[300];
    for (int i = 0; i < 900; i++) codes[i] = (int8_t)(i * 7);
    struct tensor_view v = {.data = codes,
                            .dtype = DTYPE_I8,
                            .n_row = 3,
                            .n_col = 300,
                            .row_stride = 300,
                            .scale = row_scale,
                            .scale_stride = 1,
                            .scale_block_row = 1,
                            .scale_block_col = TENSOR_SCALE_WHOLE};
    assert_true(tensor_view_is_float(&v) && !tensor_view_is_block128(&v));
    for (uint32_t r = 0; r < 3; r++) {
        tensor_view_row(&v, r, 100, 200, row);
        for (uint32_t c = 0; c < 200; c++)
            assert_true(row[c] == (float)codes[r * 300 + 100 + c] * row_scale[r]);
    }
    v.scale_block_row = TENSOR_SCALE_WHOLE;
    tensor_view_row(&v, 2, 0, 300, row);
    for (uint32_t c = 0; c < 300; c++) assert_true(row[c] == (float)codes[600 + c] * 0.5f);
    v.scale = NULL;
    assert_false(tensor_view_is_float(&v));
}

static void made_codes(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                       uint8_t *out)
{
    (void)s;
    for (uint32_t i = 0; i < n; i++) out[i] = (uint8_t)((row * 3 + col + i) % 16);
}

static float made_scale(const struct weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    (void)s;
    *zero = (int)((row + block) % 17);
    return 0.25f + (float)row + (float)block / 8;
}

static void codes_of_a_source_have_a_zero_and_a_scale_of_their_group(void **state)
{
    (void)state;
    float row[320];
    struct weight_source s = {.form = {.code = CODE_U4,
                                       .scale_type = DTYPE_F16,
                                       .block_row = 1,
                                       .block_col = 32,
                                       .has_zero = true},
                              .n_row = 8,
                              .n_col = 512,
                              .codes = made_codes,
                              .scale = made_scale};
    struct tensor_view v = {
        .n_row = 4, .n_col = 320, .source = &s, .source_row0 = 3, .source_col0 = 64};
    assert_true(tensor_view_is_float(&v));
    assert_false(tensor_takes_fp8(&v)); /* 320 is no multiple of 128 */
    tensor_view_row(&v, 2, 5, 300, row);
    for (uint32_t c = 0; c < 300; c++) {
        uint32_t at = 64 + 5 + c, block = at / 32;
        float want = (float)((int)((5 * 3 + at) % 16) - (int)((5 + block) % 17)) *
                     (5.25f + (float)block / 8);
        assert_true(row[c] == want);
    }
    s.form.code = CODE_E2M1;
    s.form.block_col = 0; /* one group */
    tensor_view_row(&v, 0, 0, 320, row);
    assert_true(row[1] == e2m1_value((9 + 65) % 16) * 3.25f);
}

static void forms_have_names_and_sizes(void **state)
{
    (void)state;
    static const struct {
        struct weight_form form;
        const char *text;
        uint64_t bytes; /* of 256 x 512 */
    } cases[] = {
        {{.code = CODE_WIDE, .type = DTYPE_BF16}, "BF16", 262144},
        {{CODE_E4M3, DTYPE_NONE, DTYPE_F32, 128, 128, false}, "e4m3 128x128 F32", 131072 + 32},
        {{CODE_E4M3, DTYPE_NONE, DTYPE_BF16, 0, 0, false}, "e4m3 tensor BF16", 131072 + 2},
        {{CODE_I8, DTYPE_NONE, DTYPE_F32, 1, 0, false}, "i8 channel F32", 131072 + 1024},
        {{CODE_U4, DTYPE_NONE, DTYPE_F16, 1, 64, true}, "u4 g64 F16 + zero", 65536 + 4096 + 1024},
        {{CODE_E2M1, DTYPE_NONE, DTYPE_U8, 1, 32, false}, "e2m1 g32 E8M0", 65536 + 4096},
        {{.code = CODE_I8}, "i8", 131072},
    };
    char text[WEIGHT_FORM_TEXT_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(weight_form_text(text, &cases[i].form), cases[i].text);
        assert_int_equal(weight_form_bytes(&cases[i].form, 256, 512), cases[i].bytes);
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            assert_int_equal(weight_form_equal(&cases[i].form, &cases[k].form), i == k);
    }
}

/* ---- views and runs that are refused ---- */

struct misuse {
    struct tensor_view view;
    uint32_t row, col0, n;
    bool make;
};

static void misuse(void *arg)
{
    const struct misuse *m = arg;
    float out[512];
    if (m->make)
        tensor_view_make(&m->view, m->row, m->col0, m->n, out);
    else
        tensor_view_row(&m->view, m->row, m->col0, m->n, out);
}

static void misuse_ends_the_process(void **state)
{
    (void)state;
    static const float data[64];
    const struct tensor_view v = {
        .data = data, .dtype = DTYPE_F32, .n_row = 4, .n_col = 16, .row_stride = 16};
    struct tensor_view ints = v;
    ints.dtype = DTYPE_I32;
    struct misuse all[] = {
        {.view = made(DTYPE_BF16), .n = 16},     {.view = v, .row = 4, .n = 1},
        {.view = v, .col0 = 17, .n = 0},         {.view = v, .col0 = 1, .n = 16},
        {.view = v, .col0 = 1, .n = UINT32_MAX}, {.view = ints, .n = 1},
        {.view = v, .n = 1, .make = true},
    };
    const char *const says[] = {
        "v->data", "row < v->n_row",         "col0 <= v->n_col", "n <= v->n_col - col0",
        "n_col",   "a type that is a float", "!v->data"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char said[512];
        assert_true(dies_of_assert(misuse, &all[i], said, sizeof said));
        if (!strstr(said, says[i])) fail_msg("\"%s\" does not say \"%s\"", said, says[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_offset),
        cmocka_unit_test(made_elements_have_values),
        cmocka_unit_test(made_codes_are_all_codes_and_keep_the_deviation),
        cmocka_unit_test(scales_may_belong_to_rows_or_to_all),
        cmocka_unit_test(codes_of_a_source_have_a_zero_and_a_scale_of_their_group),
        cmocka_unit_test(forms_have_names_and_sizes),
        cmocka_unit_test(misuse_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

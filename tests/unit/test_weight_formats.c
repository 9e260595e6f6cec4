/* test_weight_formats.c - modules that are not sound: each fault by its message, and headers at
 * random, whose matrices must decode inside their tensors or be refused */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weight_formats.h"
#include "support/safetensors_write.h"

enum { N = 16, K = 256, PARTS_MAX = 5 };

struct part {
    const char *suffix, *dtype;
    uint32_t n_dim;
    uint64_t dim[2];
    uint8_t fill; /* of every byte */
};

/* Looks for [N][K] among these parts and decodes it. */
static fathom_err look(const struct part *parts, size_t n_part, bool symmetric, fathom_diag *d)
{
    struct safetensors_writer w = {0};
    struct buf file = {0};
    struct checkpoint *c;
    struct weight_found found;
    struct weight_source source;
    const struct model_config config = {.quant_symmetric = symmetric};
    uint8_t codes[K];
    int zero;
    for (size_t i = 0; i < n_part; i++) {
        const struct part *p = &parts[i];
        char name[64], bytes[1 << 15];
        size_t n = dtype_size(dtype_parse(p->dtype));
        for (uint32_t k = 0; k < p->n_dim; k++) n *= p->dim[k];
        assert_true(n <= sizeof bytes);
        memset(bytes, p->fill, sizeof bytes);
        (void)snprintf(name, sizeof name, "x.%s", p->suffix);
        safetensors_add(&w, name, p->dtype, p->n_dim, p->dim, bytes, n);
    }
    safetensors_finish(&w, 0, &file);
    const fathom_bundle_file held = {"model.safetensors", (unsigned char *)file.data, file.len};
    const fathom_bundle bundle = {.name = "b", .files = &held, .n_file = 1};
    if (checkpoint_open_bundle(&c, &bundle, d)) fail_msg("%s", d->text);
    fathom_err err = weight_format_find(&found, c, &config, "x.weight", N, K, d);
    if (!err && found.format) err = weight_format_check_values(&found, K, d);
    if (!err && found.format && found.format->codes) {
        weight_format_source(&source, &found, &config, N, K);
        for (uint32_t r = 0; r < N; r++) {
            source.codes(&source, r, 0, K, codes);
            for (uint32_t i = 0; i < K; i++) assert_in_range(codes[i], 0, 15);
            uint32_t n_block = source.form.block_col ? K / source.form.block_col : 1;
            for (uint32_t i = 0; i < n_block; i++)
                assert_true(isfinite(source.scale(&source, r, i, &zero)));
        }
    }
    checkpoint_close(c);
    buf_free(&file);
    return err;
}

#define AWQ                                                                                        \
    {"qweight", "I32", 2, {K, N / 8}, 0x12},                                                       \
    {                                                                                              \
        "qzeros", "I32", 2, {4, N / 8}, 0x34                                                       \
    }
#define PACKED                                                                                     \
    {                                                                                              \
        "weight_packed", "I32", 2, {N, K / 8}, 0x12                                                \
    }

static void every_fault_has_its_message(void **state)
{
    (void)state;
    static const struct {
        struct part parts[PARTS_MAX];
        const char *message; /* NULL: sound */
        bool symmetric;
    } cases[] = {
        {{AWQ, {"scales", "F16", 2, {4, N}, 0}}, NULL, false},
        {{AWQ}, "x.qweight: the module has no \"scales\", which awq weights have", false},
        {{AWQ, {"scales", "F16", 2, {3, N}, 0}}, "x.scales: dim[0] is 3 groups", false},
        {{AWQ, {"scales", "F16", 2, {4, N - 1}, 0}}, "x.scales: dim[1] is 15, needed is 16", false},
        {{AWQ, {"scales", "I32", 2, {4, N}, 0}}, "dtype is I32, needed is F32, F16 or", false},
        {{AWQ, {"scales", "F16", 2, {4, N}, 0xff}}, "x.scales: scale 0 is", false},
        {{AWQ, {"scales", "F16", 2, {2, N}, 0}}, "x.qzeros: dim[0] is 4, needed is 2", false},
        {{{"qweight", "I32", 2, {N / 8, K}, 0}}, "x.qweight: dim[0] is 2, needed is 256", false},
        {{{"qweight", "I32", 2, {K / 8, N}, 0},
          {"qzeros", "I32", 2, {2, N / 8}, 0x77},
          {"scales", "F16", 2, {2, N}, 0},
          {"g_idx", "I32", 1, {K}, 0}},
         "x.g_idx: input 128 is of group 0, in order it is of group 1; act-order is not read",
         false},
        {{AWQ, {"weight", "BF16", 2, {N, K}, 0}}, "the checkpoint has x.qweight as well", false},
        {{PACKED, {"weight_scale", "BF16", 2, {N, 2}, 0x3f}}, NULL, true},
        {{PACKED, {"weight_scale", "BF16", 2, {N, 2}, 0xbf}},
         "x.weight_scale: scale 0 is -",
         false},
        {{PACKED,
          {"weight_scale", "BF16", 2, {N, 2}, 0x3f},
          {"weight_zero_point", "I32", 2, {N / 8, 2}, 0}},
         "x.weight_zero_point: zeros of weights that config.json calls symmetric",
         true},
        {{PACKED, {"weight_scale", "BF16", 2, {N, 2}, 0x3f}, {"weight_g_idx", "I32", 1, {K}, 0}},
         "x.weight_g_idx: inputs in an order of their own",
         false},
        {{{"weight_packed", "I32", 2, {N, K / 4}, 0}}, "8 bits in words are not read", false},
        {{{"weight", "I8", 2, {N, K}, 1},
          {"weight_scale", "F32", 2, {N, 1}, 0x3f},
          {"weight_offset", "F32", 2, {N, 1}, 1}},
         "x.weight_offset: offsets that are not zero are not read",
         false},
        {{{"weight", "I8", 2, {N / 2, K}, 1}, {"weight_scale", "F32", 2, {N, 1}, 0x3f}},
         "x.weight: two outputs of 4 bits in a byte (ModelSlim's W4A8) are not read",
         false},
        {{{"weight", "F8_E4M3", 2, {N, K}, 1}, {"weight_scale", "F32", 2, {N, 1}, 0xff}},
         "x.weight_scale: scale 0 is",
         false},
        {{{"weight_packed", "U8", 2, {N, K / 2}, 1}, {"weight_scale", "U8", 2, {N, 3}, 1}},
         "x.weight_scale: dim[1] is 3, needed is 8",
         false},
        {{{"weight", "I8", 2, {K, N}, 1}}, "x.weight: dim[0] is 256, needed is 16", false},
        {{{"weight", "I8", 2, {N, K}, 1}, {"weight_scale", "F32", 2, {N - 1, 1}, 0}},
         "x.weight_scale: dim[0] is 15, needed is 1",
         false},
        {{{"weight", "U8", 2, {N, K / 2}, 1},
          {"weight_scale", "F8_E4M3", 2, {N, K / 16}, 0x30},
          {"weight_scale_2", "F32", 1, {1}, 0}},
         "x.weight_scale_2: scale 0 is 0, needed is a number above zero",
         false},
        {{{"weight_packed", "U8", 2, {N, K / 2}, 1}, {"weight_scale", "U8", 2, {N, K / 32}, 255}},
         "x.weight_scale: scale 0 is nan",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        fathom_diag d = {{0}};
        while (n < PARTS_MAX && cases[i].parts[n].suffix) n++;
        fathom_err err = look(cases[i].parts, n, cases[i].symmetric, &d);
        if (!cases[i].message && err) fail_msg("case %zu: %s", i, d.text);
        if (cases[i].message && !(err && strstr(d.text, cases[i].message)))
            fail_msg("case %zu gives \"%s\", needed is \"%s\"", i, d.text, cases[i].message);
    }
}

static void headers_at_random_decode_inside_or_are_refused(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"weight",           "weight_scale",
                                           "weight_scale_inv", "weight_scale_2",
                                           "qweight",          "qzeros",
                                           "scales",           "g_idx",
                                           "weight_packed",    "weight_zero_point",
                                           "weight_g_idx",     "weight_global_scale",
                                           "weight_offset",    "weight_shape"};
    static const char *const types[] = {"F32", "F16", "BF16", "F8_E4M3", "I8", "U8", "I32", "I64"};
    static const uint64_t dims[] = {0, 1, 2, 4, 8, 15, N, 32, 64, 128, K};
    enum { N_SUFFIX = sizeof suffixes / sizeof *suffixes, N_DIM = sizeof dims / sizeof *dims };
    uint64_t seed = 7;
    size_t n_sound = 0;
    for (int round = 0; round < 30000; round++) {
        struct part parts[PARTS_MAX];
        fathom_diag d = {{0}};
        size_t n = 1 + rng_below(&seed, PARTS_MAX - 1);
        uint32_t first = (uint32_t)rng_below(&seed, N_SUFFIX);
        for (size_t i = 0; i < n; i++) {
            parts[i] = (struct part){.suffix = suffixes[(first + i) % N_SUFFIX],
                                     .dtype = types[rng_below(&seed, 8)],
                                     .n_dim = (uint32_t)rng_below(&seed, 3),
                                     .fill = (uint8_t)rng_below(&seed, 256)};
            for (int k = 0; k < 2; k++) parts[i].dim[k] = dims[rng_below(&seed, N_DIM)];
            while (parts[i].n_dim == 2 && parts[i].dim[0] * parts[i].dim[1] > N * K)
                parts[i].dim[0] /= 2;
        }
        n_sound += look(parts, n, false, &d) == FATHOM_OK;
    }
    assert_true(n_sound > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_has_its_message),
        cmocka_unit_test(headers_at_random_decode_inside_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_bad_checkpoints.c - the index of what is wrong with a quantized checkpoint: a fixture for
 * each kind, and the message that names what, where, what was seen and what is needed
 *
 * A fixture is a whole checkpoint in memory: config.json, maybe an index, and one module x of 16
 * outputs and 256 inputs. It goes the way that a server's goes until something refuses it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weight_formats.h"
#include "model/weights_int.h"
#include "support/json_tree.h"
#include "support/safetensors_write.h"

#define DATA FATHOM_SOURCE_DIR "/tests/data/checkpoint/"

enum { N = 16, K = 256, PARTS_MAX = 5 };

struct part {
    const char *suffix, *dtype;
    uint32_t n_dim;
    uint64_t dim[2];
    uint8_t fill; /* of every byte */
};

struct fixture {
    const char *kind;  /* what is wrong, in the words of the format's description */
    const char *quant; /* quantization_config; NULL: none */
    struct part parts[PARTS_MAX];
    const char *index; /* weight_map of model.safetensors.index.json; NULL: no such file */
    uint32_t n_rank;   /* 0: one */
    fathom_err err;
    const char *message; /* the end of it, without the checkpoint's name */
};

#define AWQ_CONFIG "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64}"
#define GPTQ_CONFIG "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128}"
#define CT_CONFIG(more)                                                                            \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "                  \
    "\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 4, \"group_size\": 128" more "}}}}"
#define AWQ                                                                                        \
    {"qweight", "I32", 2, {K, N / 8}, 0x12},                                                       \
    {                                                                                              \
        "qzeros", "I32", 2, {4, N / 8}, 0x34                                                       \
    }
#define GPTQ                                                                                       \
    {"qweight", "I32", 2, {K / 8, N}, 0}, {"qzeros", "I32", 2, {2, N / 8}, 0x77},                  \
    {                                                                                              \
        "scales", "F16", 2, {2, N}, 0                                                              \
    }
#define PACKED                                                                                     \
    {                                                                                              \
        "weight_packed", "I32", 2, {N, K / 8}, 0x12                                                \
    }
#define SCALE                                                                                      \
    {                                                                                              \
        "weight_scale", "BF16", 2, {N, 2}, 0x3f                                                    \
    }

static const struct fixture fixtures[] = {
    /* the method, by config.json */
    {"act-order of config_groups",
     CT_CONFIG(", \"actorder\": \"group\""),
     {{0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "\"actorder\" of \"g\" is \"group\", which is not read: quantize again with"},
    {"gemv layout of AWQ",
     "{\"quant_method\": \"awq\", \"version\": \"gemv\"}",
     {{0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "\"version\" of \"quantization_config\" is \"gemv\", needed is \"gemm\": convert"},
    {"3 bits of GPTQ",
     "{\"quant_method\": \"gptq\", \"bits\": 3}",
     {{0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "\"bits\" of \"quantization_config\" is 3, needed is 4: choose a release of 4 bits"},
    {"3 bits of AWQ",
     "{\"quant_method\": \"awq\", \"bits\": 3}",
     {{0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "\"bits\" of \"quantization_config\" is 3, needed is 4: choose a release of 4 bits"},
    {"online rotation of compressed-tensors",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
     "\"transform_config\": {\"config_groups\": {\"u\": {}}}}",
     {{0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "\"transform_config\" of \"quantization_config\" is given, which is not read (online "
     "rotations"},
    {"method that is not read",
     "{\"quant_method\": \"hqq\"}",
     {{0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "the quantization method \"hqq\" is not read; needed is fp8, awq, gptq, compressed-tensors"},
    /* a module's tensors */
    {"act-order of g_idx",
     GPTQ_CONFIG,
     {GPTQ, {"g_idx", "I32", 1, {K}, 0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "x.g_idx: input 128 is of group 0, in order it is of group 1; act-order is not read"},
    {"act-order of weight_g_idx",
     CT_CONFIG(""),
     {PACKED, SCALE, {"weight_g_idx", "I32", 1, {K}, 0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "x.weight_g_idx: inputs in an order of their own"},
    {"offset that is not zero",
     NULL,
     {{"weight", "I8", 2, {N, K}, 1},
      {"weight_scale", "F32", 2, {N, 1}, 0x3f},
      {"weight_offset", "F32", 2, {N, 1}, 1}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "x.weight_offset: offsets that are not zero are not read: use a checkpoint with symmetric"},
    {"online rotation of queries",
     NULL,
     {{"weight", "BF16", 2, {N, K}, 0}, {"q_rot", "BF16", 2, {N, N}, 0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "x.q_rot: rotations while the model runs are not read: use a release whose rotations are "
     "folded"},
    {"norm bias",
     NULL,
     {{"weight", "BF16", 2, {N, K}, 0}, {"input_layernorm.bias", "BF16", 1, {N}, 0}},
     NULL,
     0,
     FATHOM_EUNSUPPORTED,
     "x.input_layernorm.bias: a bias of a norm is not read"},
    {"weight and packed: two forms of one matrix",
     CT_CONFIG(""),
     {PACKED, SCALE, {"weight", "BF16", 2, {N, K}, 0}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.weight: the checkpoint has x.weight_packed as well; needed is one of them"},
    {"group that does not divide the inputs, AWQ",
     AWQ_CONFIG,
     {AWQ, {"scales", "F16", 2, {3, N}, 0}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.scales: dim[0] is 3 groups, needed is a number of groups that divides the 256"},
    {"group that does not divide the inputs, packed",
     CT_CONFIG(""),
     {PACKED, {"weight_scale", "BF16", 2, {N, 3}, 0x3f}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.weight_scale: dim[1] is 3 groups, needed is a number of groups that divides the 256 "
     "inputs"},
    {"NaN scale, AWQ",
     AWQ_CONFIG,
     {AWQ, {"scales", "F16", 2, {4, N}, 0xff}},
     NULL,
     0,
     FATHOM_EFORMAT,
     "x.scales: scale 0 is"},
    {"NaN scale, packed",
     CT_CONFIG(""),
     {PACKED, {"weight_scale", "BF16", 2, {N, 2}, 0xff}},
     NULL,
     0,
     FATHOM_EFORMAT,
     "x.weight_scale: scale 0 is"},
    {"NaN scale, FP8",
     NULL,
     {{"weight", "F8_E4M3", 2, {N, K}, 1}, {"weight_scale", "F32", 2, {N, 1}, 0xff}},
     NULL,
     0,
     FATHOM_EFORMAT,
     "x.weight_scale: scale 0 is"},
    {"NaN scale, MXFP4",
     NULL,
     {{"weight_packed", "U8", 2, {N, K / 2}, 1}, {"weight_scale", "U8", 2, {N, K / 32}, 255}},
     NULL,
     0,
     FATHOM_EFORMAT,
     "x.weight_scale: scale 0 is nan"},
    {"truncated scale, AWQ",
     AWQ_CONFIG,
     {AWQ, {"scales", "F16", 2, {4, N - 1}, 0}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.scales: dim[1] is 15, needed is 16"},
    {"truncated scale, int8",
     NULL,
     {{"weight", "I8", 2, {N, K}, 1}, {"weight_scale", "F32", 2, {N - 1, 1}, 0}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.weight_scale: dim[0] is 15, needed is 1"},
    {"swapped outputs and inputs, GPTQ",
     GPTQ_CONFIG,
     {{"qweight", "I32", 2, {N / 8, K}, 0}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.qweight: dim[0] is 2, needed is 256"},
    {"swapped outputs and inputs, int8",
     NULL,
     {{"weight", "I8", 2, {K, N}, 1}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.weight: dim[0] is 256, needed is 16"},
    {"zero point of symmetric weights",
     CT_CONFIG(", \"symmetric\": true"),
     {PACKED, SCALE, {"weight_zero_point", "I32", 2, {N / 8, 2}, 0}},
     NULL,
     0,
     FATHOM_EMISMATCH,
     "x.weight_zero_point: zeros of weights that config.json calls symmetric"},
    /* files and ranks */
    {"absent tensor in the index",
     NULL,
     {{"weight", "BF16", 2, {N, K}, 0}},
     "{\"x.weight\": \"model-1.safetensors\", \"x.gone\": \"model-1.safetensors\"}",
     0,
     FATHOM_EFORMAT,
     "x.gone"},
    {"group cut by a rank",
     AWQ_CONFIG,
     {AWQ, {"scales", "F16", 2, {4, N}, 0}},
     NULL,
     2,
     FATHOM_EINVAL,
     "mlp.shared_experts.down_proj.weight: a rank has 160 of its 320 inputs, which cuts a group of "
     "64"},
};

/* Every kind that must be refused; a fixture's kind begins with one of these. */
static const char *const kinds[] = {
    "act-order",
    "gemv",
    "3 bits",
    "offset",
    "online rotation",
    "weight and packed",
    "group that does not divide",
    "NaN scale",
    "truncated scale",
    "swapped",
    "absent tensor",
    "zero point of symmetric weights",
    "group cut by a rank",
    "norm bias",
    "method that is not read",
};

static void add_module(struct safetensors_writer *w, const struct fixture *f)
{
    for (size_t i = 0; i < PARTS_MAX && f->parts[i].suffix; i++) {
        const struct part *p = &f->parts[i];
        char name[64], bytes[1 << 15];
        size_t n = dtype_size(dtype_parse(p->dtype));
        for (uint32_t k = 0; k < p->n_dim; k++) n *= p->dim[k];
        assert_true(n <= sizeof bytes);
        memset(bytes, p->fill, sizeof bytes);
        (void)snprintf(name, sizeof name, "x.%s", p->suffix);
        safetensors_add(w, name, p->dtype, p->n_dim, p->dim, bytes, n);
    }
}

static void make_config(struct buf *out, const char *quant)
{
    json_t *o = json_tree_of_file(DATA "config_v3.json");
    (void)json_object_del(o, "quantization_config");
    if (quant)
        assert_int_equal(json_object_set_new(o, "quantization_config", json_tree_of(quant)), 0);
    assert_int_equal(json_write(out, o), 0);
    json_decref(o);
}

static fathom_err read_module(struct checkpoint *c, const struct model_config *config,
                              fathom_diag *d)
{
    struct weight_found found;
    fathom_err err = weights_check_names(c, d);
    if (!err) err = weight_format_find(&found, c, config, "x.weight", N, K, d);
    if (!err && found.format) err = weight_format_check_values(&found, K, d);
    return err;
}

/* A rank's part of a model of this config, of weights that are as the config says. */
static fathom_err cut(struct model_config *config, uint32_t n_rank, fathom_diag *d)
{
    const struct weight_use use = {.backend_name = "cpu", .parallel = {.tp = {0, n_rank}}};
    config->moe_inner = 320;
    return weights_check_served(NULL, config, &use, d);
}

static fathom_err serve(const struct fixture *f, fathom_diag *d)
{
    struct safetensors_writer w = {0};
    struct buf shard = {0}, config_text = {0}, index = {0};
    struct checkpoint *c = NULL;
    struct model_config config;
    add_module(&w, f);
    safetensors_finish(&w, 0, &shard);
    make_config(&config_text, f->quant);
    assert_int_equal(buf_printf(&index, "{\"weight_map\": %s}", f->index ? f->index : "{}"), 0);
    const fathom_bundle_file files[] = {
        {"config.json", (unsigned char *)config_text.data, config_text.len},
        {f->index ? "model-1.safetensors" : "model.safetensors", (unsigned char *)shard.data,
         shard.len},
        {"model.safetensors.index.json", (unsigned char *)index.data, index.len}};
    const fathom_bundle bundle = {.name = "b", .files = files, .n_file = f->index ? 3 : 2};
    fathom_err err = checkpoint_open_bundle(&c, &bundle, d);
    if (!err) err = model_config_load(&config, c, d);
    if (!err) err = model_config_check_quant(&config, d);
    if (!err && f->n_rank) err = cut(&config, f->n_rank, d);
    if (!err) err = read_module(c, &config, d);
    checkpoint_close(c);
    buf_free(&index);
    buf_free(&config_text);
    buf_free(&shard);
    return err;
}

static void each_fixture_is_refused_with_its_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        const struct fixture *f = &fixtures[i];
        fathom_diag d = {{0}};
        fathom_err err = serve(f, &d);
        if (!strstr(d.text, f->message) || err != f->err) {
            fail_msg("%s: %s \"%s\"\n  needed is %s \"%s\"", f->kind, fathom_err_name(err), d.text,
                     fathom_err_name(f->err), f->message);
        }
    }
}

static void each_kind_has_a_fixture(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t n = 0;
        for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
            n += strncmp(fixtures[i].kind, kinds[k], strlen(kinds[k])) == 0;
        }
        if (n == 0) fail_msg("%s: there is no fixture", kinds[k]);
    }
}

/* What the fixtures are made from is sound, so that each is refused for its fault alone. */
static void what_they_are_made_from_is_sound(void **state)
{
    (void)state;
    static const struct fixture sound[] = {
        {"awq", AWQ_CONFIG, {AWQ, {"scales", "F16", 2, {4, N}, 0}}, NULL, 0, FATHOM_OK, ""},
        {"gptq", GPTQ_CONFIG, {GPTQ}, NULL, 0, FATHOM_OK, ""},
        {"packed", CT_CONFIG(""), {PACKED, SCALE}, NULL, 0, FATHOM_OK, ""},
        {"index",
         NULL,
         {{"weight", "BF16", 2, {N, K}, 0}},
         "{\"x.weight\": \"model-1.safetensors\"}",
         0,
         FATHOM_OK,
         ""},
    };
    for (size_t i = 0; i < sizeof sound / sizeof *sound; i++) {
        fathom_diag d = {{0}};
        if (serve(&sound[i], &d)) fail_msg("%s: %s", sound[i].kind, d.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_they_are_made_from_is_sound),
        cmocka_unit_test(each_fixture_is_refused_with_its_message),
        cmocka_unit_test(each_kind_has_a_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

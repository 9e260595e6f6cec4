/* test_quant_convert.c - names of schemes and targets, sizes, and a conversion that runs out of
 * memory at any place */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "quantize/calibration.h"
#include "quantize/convert.h"
#include "support/safetensors_write.h"

#define PILOT FATHOM_SOURCE_DIR "/models/pilot"

static void names_mean_schemes(void **state)
{
    (void)state;
    struct quant_scheme s;
    assert_true(quant_scheme_of(&s, "w4a16", 64, "mse"));
    assert_true(s.code == CODE_U4 && s.group == 64 && !s.asymmetric && s.method == METHOD_MSE);
    assert_true(quant_scheme_of(&s, "w4a16_asym", 32, "rtn"));
    assert_true(s.asymmetric && s.method == METHOD_RTN);
    assert_true(quant_scheme_of(&s, "fp8", 128, "rtn"));
    assert_true(s.code == CODE_E4M3 && s.is_block && s.group == 0);
    assert_false(quant_scheme_of(&s, "w3a16", 128, "rtn"));
    assert_false(quant_scheme_of(&s, "w8a8", 128, "awq"));
    assert_true(quant_scheme_of(&s, "w8a8", 128, "gptq"));
    assert_true(s.method == METHOD_GPTQ && quant_method_calibrates(s.method));
    assert_true(quant_scheme_of(&s, "w4a16", 128, "scale"));
    assert_true(s.method == METHOD_SCALE && quant_method_calibrates(s.method));
    assert_false(quant_scheme_of(&s, "fp8", 128, "scale")); /* nothing to choose */
    assert_false(quant_method_calibrates(METHOD_MSE));
    for (unsigned bit = 1; bit < TARGET_LINEAR; bit <<= 1) {
        assert_int_equal(quant_target_of(quant_target_name(bit)), bit);
    }
    assert_int_equal(quant_target_of("linear"), TARGET_LINEAR);
    assert_int_equal(quant_target_of("head"), 0);
}

static void parts_have_the_sizes_of_their_shapes(void **state)
{
    (void)state;
    struct quant_scheme s;
    (void)quant_scheme_of(&s, "w4a16", 32, "rtn");
    struct plan_parts p = plan_parts_of(&s, 100, 96);
    assert_true(p.codes == 100 * 12 * 4 && p.scales == 100 * 3 * 2 && !p.zeros && p.shape == 16);
    (void)quant_scheme_of(&s, "w4a16_asym", 32, "rtn");
    p = plan_parts_of(&s, 100, 96);
    assert_true(p.zeros == 13 * 3 * 4);
    (void)quant_scheme_of(&s, "w8a8", 32, "rtn");
    p = plan_parts_of(&s, 100, 96);
    assert_true(p.codes == 9600 && p.scales == 400 && !p.zeros && !p.shape);
    (void)quant_scheme_of(&s, "fp8", 32, "rtn");
    p = plan_parts_of(&s, 576, 7168);
    assert_true(p.codes == 576 * 7168 && p.scales == 5 * 56 * 4);
}

enum { ROWS = 70 };

/* Files of calibration as a model might give them: every expert of a layer gets rows in turn. */
static fathom_err make_rows(void *arg, const char *dir, fathom_diag *d)
{
    const struct model_config *c = arg;
    static float rows[ROWS * 256];
    static uint16_t experts[ROWS * 4];
    uint64_t rng = 1;
    assert_int_equal(c->hidden, 256);
    assert_int_equal(c->n_expert_used, 4);
    for (int i = 0; i < ROWS * 256; i++) rows[i] = rng_normal(&rng);
    for (int i = 0; i < ROWS * 4; i++) experts[i] = (uint16_t)(i % 4 ? i % 16 : 0);
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        char path[LIMIT_PATH_BYTES];
        struct new_file f;
        const struct calibration_shape s = {
            ROWS, 256, model_config_layer_is_moe(c, layer) ? c->n_expert_used : 0};
        TRY(calibration_path(path, dir, layer));
        TRY(new_file_begin(&f, path, d));
        fathom_err err = calibration_write(&f, &s, 0, ROWS, rows, experts, d);
        if (err) {
            new_file_drop(&f);
            return err;
        }
        TRY(new_file_end(&f, d));
    }
    return FATHOM_OK;
}

static fathom_err convert(const char *out, const char *method, long fail_after, bool is_dry)
{
    struct checkpoint *c = NULL;
    struct model_config config;
    struct convert_result result;
    fathom_diag d = {{0}};
    assert_int_equal(checkpoint_open(&c, PILOT, &d), FATHOM_OK);
    assert_int_equal(model_config_load(&config, c, &d), FATHOM_OK);
    struct convert_order order = {.source = c,
                                  .config = &config,
                                  .out = out,
                                  .targets = TARGET_EXPERTS,
                                  .n_thread = 1,
                                  .is_dry = is_dry};
    const struct convert_calibration calibration = {
        .text = "rows", .n_row = ROWS, .make = make_rows, .arg = &config};
    assert_true(quant_scheme_of(&order.scheme, "w4a16", 128, method));
    if (quant_method_calibrates(order.scheme.method)) order.calibration = &calibration;
    mem_fail_after(fail_after);
    fathom_err err = convert_run(&result, &order, &d);
    const bool hit = mem_fail_hit();
    mem_fail_after(-1);
    if (hit) {
        if (err != FATHOM_ENOMEM) fail_msg("after %ld: %s", fail_after, d.text);
        assert_true(d.text[0]);
    } else if (err) {
        fail_msg("after %ld: %s", fail_after, d.text);
    }
    checkpoint_close(c);
    if (!err && order.calibration && !is_dry) {
        assert_int_equal(result.sums[0].n_tuned, 336);
        assert_int_equal(result.sums[0].n_few, 315); /* all but expert 0 */
    }
    return err;
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    char dir[LIMIT_PATH_BYTES], out[LIMIT_PATH_BYTES];
    temp_dir_create(dir);
    (void)snprintf(out, sizeof out, "%.4000s/out", dir);
    for (long n = 0; convert(out, "rtn", n, true) != FATHOM_OK; n += 1 + n / 16) {
        assert_false(path_exists(out));
    }
    static const char *const methods[] = {"rtn", "scale", "gptq"};
    for (int i = 0; i < 3; i++) {
        for (long n = 0; convert(out, methods[i], n, false) != FATHOM_OK; n += 1 + n / 4) {
            char config[LIMIT_PATH_BYTES];
            assert_int_equal(path_join(config, sizeof config, out, "config.json"), FATHOM_OK);
            assert_false(path_exists(config));
            if (path_exists(out)) temp_dir_remove(out);
        }
        temp_dir_remove(out);
    }
    temp_dir_remove(dir);
}

/* Calibration's files are another order's, or were cut. */
static void rows_of_another_shape_are_refused(void **state)
{
    (void)state;
    char dir[LIMIT_PATH_BYTES];
    struct calibration_layer l;
    struct model_config config = {.hidden = 256,
                                  .n_layer = 2,
                                  .n_dense_layer = 1,
                                  .moe_layer_freq = 1,
                                  .n_expert_used = 4,
                                  .n_expert = 16};
    fathom_diag d = {{0}};
    const struct calibration_shape dense = {ROWS, 256, 0}, more = {ROWS + 1, 256, 0};
    temp_dir_create(dir);
    assert_int_equal(make_rows(&config, dir, &d), FATHOM_OK);
    assert_int_equal(calibration_open(&l, dir, 0, &dense, &d), FATHOM_OK);
    calibration_close(&l);
    assert_int_equal(calibration_open(&l, dir, 0, &more, &d), FATHOM_EFORMAT);
    assert_non_null(strstr(d.text, "quantize_rows_0 has 35840 bytes, needed are 36352"));
    assert_int_equal(calibration_open(&l, dir, 2, &dense, &d), FATHOM_ENOTFOUND);
    assert_int_equal(calibration_remove(dir, 2, &d), FATHOM_OK);
    assert_int_equal(calibration_open(&l, dir, 0, &dense, &d), FATHOM_ENOTFOUND);
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_mean_schemes),
        cmocka_unit_test(parts_have_the_sizes_of_their_shapes),
        cmocka_unit_test(running_out_of_memory_is_an_error),
        cmocka_unit_test(rows_of_another_shape_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

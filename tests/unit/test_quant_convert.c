/* test_quant_convert.c - names of schemes and targets, sizes, and a conversion that runs out of
 * memory at any place */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
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
    assert_false(quant_scheme_of(&s, "w8a8", 128, "gptq"));
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

static fathom_err convert(const char *out, long fail_after, bool is_dry)
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
                                  .is_dry = is_dry,
                                  .calibration_text = ""};
    assert_true(quant_scheme_of(&order.scheme, "w4a16", 128, "rtn"));
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
    return err;
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    char dir[LIMIT_PATH_BYTES], out[LIMIT_PATH_BYTES];
    temp_dir_create(dir);
    (void)snprintf(out, sizeof out, "%.4000s/out", dir);
    for (long n = 0; convert(out, n, true) != FATHOM_OK; n += 1 + n / 16) {
        assert_false(path_exists(out));
    }
    for (long n = 0; convert(out, n, false) != FATHOM_OK; n += 1 + n / 4) {
        char config[LIMIT_PATH_BYTES];
        assert_int_equal(path_join(config, sizeof config, out, "config.json"), FATHOM_OK);
        assert_false(path_exists(config));
        if (path_exists(out)) temp_dir_remove(out);
    }
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_mean_schemes),
        cmocka_unit_test(parts_have_the_sizes_of_their_shapes),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

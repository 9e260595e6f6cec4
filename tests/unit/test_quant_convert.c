/* test_quant_convert.c - names of schemes and targets, sizes, and a conversion that runs out of
 * memory at any place, or whose source is cut */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/crash.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "quantize/calibration.h"
#include "quantize/convert.h"
#include "support/death.h"
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

/* ---- a source that is cut while it is read --------------------------------------------------- */

struct cut {
    char source[LIMIT_PATH_BYTES], out[LIMIT_PATH_BYTES];
    char path[LIMIT_PATH_BYTES]; /* of the shard that is cut */
    uint64_t left;               /* once so many bytes of the source are left to convert; */
    off_t n;                     /* to so many bytes, below 0: so many less */
    bool is_done;
};

static void cut_once(void *arg, const struct convert_progress *p)
{
    struct cut *c = arg;
    struct file_stamp stamp;
    if (c->is_done || p->total_bytes - p->done_bytes > c->left) return;
    c->is_done = true;
    assert_int_equal(file_stamp_of(c->path, &stamp), FATHOM_OK);
    assert_int_equal(truncate(c->path, c->n < 0 ? (off_t)stamp.size + c->n : c->n), 0);
}

static fathom_err copy_file(void *arg, const char *name)
{
    const struct cut *c = arg;
    char from[LIMIT_PATH_BYTES];
    struct file_map m;
    TRY(path_join(from, sizeof from, PILOT, name));
    TRY(file_map_open(&m, from, NULL));
    save_file(c->source, name, m.data, m.size);
    file_map_close(&m);
    return FATHOM_OK;
}

/* A copy of the pilot in a new folder, of which a shard is to be cut. */
static void cut_begin(struct cut *c, char dir[LIMIT_PATH_BYTES], const char *shard, uint64_t left,
                      off_t n)
{
    *c = (struct cut){.left = left, .n = n};
    temp_dir_create(dir);
    (void)snprintf(c->source, sizeof c->source, "%.4000s/source", dir);
    (void)snprintf(c->out, sizeof c->out, "%.4000s/out", dir);
    assert_int_equal(dir_each_file(PILOT, copy_file, c, NULL), FATHOM_OK);
    assert_int_equal(path_join(c->path, sizeof c->path, c->source, shard), FATHOM_OK);
}

static fathom_err convert_cut(struct cut *c, fathom_diag *d)
{
    struct checkpoint *source = NULL;
    struct model_config config;
    struct convert_result result;
    assert_int_equal(checkpoint_open(&source, c->source, d), FATHOM_OK);
    assert_int_equal(model_config_load(&config, source, d), FATHOM_OK);
    struct convert_order order = {.source = source,
                                  .config = &config,
                                  .out = c->out,
                                  .targets = TARGET_EXPERTS,
                                  .n_thread = 2,
                                  .on_progress = cut_once,
                                  .progress_arg = c};
    assert_true(quant_scheme_of(&order.scheme, "w4a16", 128, "rtn"));
    fathom_err err = convert_run(&result, &order, d);
    checkpoint_close(source);
    return err;
}

static void assert_names(const char *said, const struct cut *c, const char *what)
{
    char want[LIMIT_PATH_BYTES + 128];
    (void)snprintf(want, sizeof want, "%s%s", c->path, what);
    if (!strstr(said, want)) fail_msg("\"%s\" does not say \"%s\"", said, want);
}

static void a_source_cut_while_it_is_copied_is_named(void **state)
{
    (void)state;
    char dir[LIMIT_PATH_BYTES];
    struct cut c;
    fathom_diag d = {{0}};
    cut_begin(&c, dir, "model-00003-of-000003.safetensors", 2 << 20, 0);
    assert_int_equal(convert_cut(&c, &d), FATHOM_EIO);
    assert_names(d.text, &c, ": cannot be read at byte ");
    temp_dir_remove(dir);
}

/* The end of a page that a file ends in reads as zeros once it is cut off. */
static void a_source_that_lost_its_last_bytes_is_named(void **state)
{
    (void)state;
    char dir[LIMIT_PATH_BYTES], made[LIMIT_PATH_BYTES];
    struct cut c;
    fathom_diag d = {{0}};
    cut_begin(&c, dir, "model-00003-of-000003.safetensors", UINT64_MAX, -16);
    assert_int_equal(convert_cut(&c, &d), FATHOM_EFORMAT);
    assert_names(d.text, &c,
                 " was written to since the conversion began (4194528 bytes, now 4194512): ");
    assert_int_equal(path_join(made, sizeof made, c.out, "config.json"), FATHOM_OK);
    assert_false(path_exists(made));
    temp_dir_remove(dir);
}

static void convert_in_child(void *arg)
{
    fathom_diag d = {{0}};
    crash_install("1.2.3");
    _exit(10 + (int)convert_cut(arg, &d));
}

static void a_source_cut_while_it_is_quantized_is_named(void **state)
{
    (void)state;
    char dir[LIMIT_PATH_BYTES], said[8192];
    struct cut c;
    cut_begin(&c, dir, "model-00002-of-000003.safetensors", 16 << 20, 8 << 20);
    const int status = run_child(convert_in_child, &c, said, sizeof said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_names(said, &c, ": cannot be read at byte ");
    assert_non_null(strstr(said, ": the file was cut while it was read, or its disk fails\n"));
    assert_null(strstr(said, "a fault of its own"));
    temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_mean_schemes),
        cmocka_unit_test(parts_have_the_sizes_of_their_shapes),
        cmocka_unit_test(running_out_of_memory_is_an_error),
        cmocka_unit_test(rows_of_another_shape_are_refused),
        cmocka_unit_test(a_source_cut_while_it_is_copied_is_named),
        cmocka_unit_test(a_source_that_lost_its_last_bytes_is_named),
        cmocka_unit_test(a_source_cut_while_it_is_quantized_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_quantized.c - every matrix of a quantized checkpoint, as it decodes, bit for bit
 *
 *   test_quantized MODEL_DIR GOLDEN
 *
 * GOLDEN is a safetensors file with float32 tensors under the names of linear weights
 * (tools/make_quantized_models.py writes one for each checkpoint). All of it must be in the
 * model, on one rank and on each of two; what the model has besides is not looked at. */
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
#include "model/config.h"
#include "model/weights_int.h"

static struct {
    struct checkpoint *model;
    struct model_config config;
    struct file_map map;
    struct safetensors golden;
    const char *golden_path;
} test;

static int open_all(void **state)
{
    fathom_diag d = {{0}};
    (void)state;
    if (model_config_load(&test.config, test.model, &d)) fail_msg("%s", d.text);
    if (file_map_open(&test.map, test.golden_path, &d)) fail_msg("%s", d.text);
    if (safetensors_parse(&test.golden, test.map.data, test.map.size, "golden", &d))
        fail_msg("%s", d.text);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    safetensors_free(&test.golden);
    file_map_close(&test.map);
    checkpoint_close(test.model);
    return 0;
}

struct compare {
    struct model_weights w;
    size_t n;
};

static const struct tensor *find_golden(const char *name)
{
    for (size_t i = 0; i < test.golden.n_tensor; i++) {
        if (strcmp(test.golden.tensors[i].name, name) == 0) return &test.golden.tensors[i];
    }
    return NULL;
}

static fathom_err compare_one(void *arg, const struct weight_need *need)
{
    struct compare *k = arg;
    const struct tensor *golden = find_golden(need->name);
    if (!golden) return FATHOM_OK;
    const struct tensor_view *v = weights_view_of(&k->w, need, &test.config);
    struct weight_part part = weights_part(need, &k->w.parallel);
    assert_int_equal(golden->dim[0], need->n_row);
    assert_int_equal(golden->dim[1], need->n_col);
    float *row = mem_alloc_array(part.n_col, sizeof *row);
    assert_non_null(row);
    for (uint32_t r = 0; r < part.n_row; r++) {
        uint64_t first = (uint64_t)(part.row0 + r) * need->n_col + part.col0;
        const uint8_t *want = (const uint8_t *)golden->data + 4 * first;
        tensor_view_row(v, r, 0, part.n_col, row);
        if (memcmp(row, want, 4 * (size_t)part.n_col) != 0)
            fail_msg("%s: row %u differs", need->name, part.row0 + r);
    }
    mem_free(row);
    k->n++;
    return FATHOM_OK;
}

static void compare_rank(struct parallel parallel)
{
    struct compare k = {.n = 0};
    fathom_diag d = {{0}};
    if (weights_bind(&k.w, test.model, &test.config, &parallel, &d)) fail_msg("%s", d.text);
    assert_int_equal(weights_walk(&test.config, k.w.n_mtp, compare_one, &k), FATHOM_OK);
    assert_int_equal(k.n, test.golden.n_tensor);
    weights_release(&k.w);
}

static void every_matrix_has_its_golden_values(void **state)
{
    (void)state;
    compare_rank(parallel_one());
}

static void parts_of_ranks_are_parts_of_the_whole(void **state)
{
    (void)state;
    struct parallel p = parallel_one();
    p.tp.size = 2;
    for (p.tp.rank = 0; p.tp.rank < 2; p.tp.rank++) {
        fathom_diag d = {{0}};
        struct model_weights w;
        fathom_err err = weights_bind(&w, test.model, &test.config, &p, &d);
        weights_release(&w);
        if (err == FATHOM_EINVAL && strstr(d.text, "which cuts a group of")) return;
        assert_int_equal(err, FATHOM_OK);
        compare_rank(p);
    }
}

int main(int argc, char **argv)
{
    fathom_diag d = {{0}};
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL_DIR GOLDEN\n", argv[0]);
        return 2;
    }
    test.golden_path = argv[2];
    if (checkpoint_open(&test.model, argv[1], &d)) {
        fprintf(stderr, "%s\n", d.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_matrix_has_its_golden_values),
        cmocka_unit_test(parts_of_ranks_are_parts_of_the_whole),
    };
    return cmocka_run_group_tests_name("quantized", tests, open_all, close_all);
}

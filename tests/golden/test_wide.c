/* test_wide.c - any model against a reference's logits
 *
 *   test_wide MODEL_DIR REFERENCE BACKEND ACT KV CHUNK LIMIT TOTAL_LIMIT [MAX_TOKENS]
 *
 * REFERENCE is a safetensors file with, for texts 0, 1, ..., tensors "i.ids" and "i.logits" of the
 * last positions (tools/make_wide_model.py makes one with its model). Texts are fed in steps of
 * CHUNK tokens; those of more than MAX_TOKENS are passed over. The relative L2 error of the
 * position in the middle must stay within LIMIT, that of all positions together within TOTAL_LIMIT.
 * Rounding can turn the choice of an expert or a row; that moves the few positions where candidates
 * are that close. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "golden/golden.h"
#include "golden/wide_model.h"
#include "support/safetensors_write.h"

static struct {
    uint32_t chunk;
    double limit;
    double total_limit;
    uint32_t max_token;
    struct golden_reference reference;
    struct golden_model model;
} test;

static double error_of(const float *got, const float *want, size_t n)
{
    double difference = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        double delta = (double)got[i] - (double)want[i];
        if (isnan(delta)) return INFINITY;
        difference += delta * delta;
        square += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / square);
}

/* Logits of the positions that the reference kept. */
static float *feed(struct golden_model *m, const struct golden_text *text)
{
    size_t n_vocab = m->config.n_vocab;
    uint32_t kept0 = text->n_token - text->n_kept;
    float *out = mem_alloc_array(text->n_kept * n_vocab, sizeof *out);
    assert_non_null(out);
    golden_restart(m);
    for (uint32_t at = 0; at < text->n_token; at += test.chunk) {
        uint32_t n = text->n_token - at < test.chunk ? text->n_token - at : test.chunk;
        bool wanted = at + n > kept0;
        golden_step(m, text->ids + at, NULL, n, wanted ? m->logits : NULL, NULL);
        for (uint32_t t = 0; wanted && t < n; t++) {
            if (at + t < kept0) continue;
            memcpy(out + (at + t - kept0) * n_vocab, m->logits + t * n_vocab,
                   n_vocab * sizeof *out);
        }
    }
    return out;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The error of the position in the middle; INFINITY if any logit is NaN. */
static double median_error(const float *got, const struct golden_text *text, size_t n_vocab)
{
    double errors[64];
    assert_in_range(text->n_kept, 1, 64);
    for (uint32_t i = 0; i < text->n_kept; i++)
        errors[i] = error_of(got + i * n_vocab, text->logits + i * n_vocab, n_vocab);
    qsort(errors, text->n_kept, sizeof errors[0], ascending);
    return errors[text->n_kept / 2];
}

static void test_texts(void **state)
{
    (void)state;
    struct golden_text text;
    int n_checked = 0;
    size_t n_vocab = test.model.config.n_vocab;
    for (int i = 0; golden_text_load(&test.reference, i, &text); i++) {
        if (text.n_token > test.max_token) {
            golden_text_free(&text);
            continue;
        }
        float *got = feed(&test.model, &text);
        double total = error_of(got, text.logits, text.n_kept * n_vocab);
        double median = median_error(got, &text, n_vocab);
        print_message("  text %d, %5u tokens: relative L2 %.2e, median position %.2e\n", i,
                      text.n_token, total, median);
        mem_free(got);
        golden_text_free(&text);
        if (!(median <= test.limit)) fail_msg("median %.3e is over %.1e", median, test.limit);
        if (!(total <= test.total_limit)) fail_msg("%.3e is over %.1e", total, test.total_limit);
        n_checked++;
    }
    assert_true(n_checked > 0);
}

static void open_model(const char *dir, const char *backend, enum act_type act, enum kv_type kv)
{
    char whole[LIMIT_PATH_BYTES];
    bool is_header = wide_model_is_header(dir);
    if (is_header) {
        temp_dir_create(whole);
        wide_model_write(dir, whole);
        dir = whole;
    }
    golden_open_dir(&test.model, dir, false, backend, act, kv, test.chunk);
    if (is_header) temp_dir_remove(whole); /* what is mapped stays */
}

int main(int argc, char **argv)
{
    static const char *const kv_names[] = {"f32", "bf16", "fp8"};
    static const char *const act_names[] = {"f32", "bf16", "fp8"};
    static const enum act_type acts[] = {ACT_F32, ACT_BF16, ACT_FP8};
    int kv = 0, act = 0;
    while (argc >= 9 && kv < 3 && strcmp(argv[5], kv_names[kv]) != 0) kv++;
    while (argc >= 9 && act < 3 && strcmp(argv[4], act_names[act]) != 0) act++;
    if (argc < 9 || argc > 10 || kv == 3 || act == 3) {
        fprintf(stderr,
                "usage: %s MODEL_DIR REFERENCE BACKEND f32|bf16|fp8 f32|bf16|fp8 CHUNK LIMIT "
                "TOTAL_LIMIT [MAX_TOKENS]\n",
                argv[0]);
        return 2;
    }
    if (golden_skip(argv[3])) return GOLDEN_SKIPPED;
    test.chunk = (uint32_t)strtoul(argv[6], NULL, 10);
    test.limit = strtod(argv[7], NULL);
    test.total_limit = strtod(argv[8], NULL);
    test.max_token = argc == 10 ? (uint32_t)strtoul(argv[9], NULL, 10) : UINT32_MAX;
    golden_reference_open(&test.reference, argv[2]);
    open_model(argv[1], argv[3], acts[act], (enum kv_type)kv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts)};
    int failed = cmocka_run_group_tests_name("wide", tests, NULL, NULL);
    golden_close(&test.model);
    golden_reference_close(&test.reference);
    return failed;
}

/* test_wide.c - any model against a reference's logits
 *
 *   test_wide MODEL_DIR REFERENCE BACKEND ACT KV CHUNK LIMIT SPARSE_LIMIT
 *
 * REFERENCE is a safetensors file with, for texts 0, 1, ..., tensors "i.ids" and "i.logits" of the
 * last positions (tools/make_wide_model.py makes one with its model). Texts are fed in steps of
 * CHUNK tokens. The relative L2 error must stay within LIMIT; beyond index_topk tokens within
 * SPARSE_LIMIT, for there a row chosen the other way, of many that score alike, is an error too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "golden/golden.h"

static struct {
    uint32_t chunk;
    double limit;
    double sparse_limit;
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

static void test_texts(void **state)
{
    (void)state;
    struct golden_text text;
    int i = 0;
    for (; golden_text_load(&test.reference, i, &text); i++) {
        bool sparse = test.model.config.has_indexer && text.n_token > test.model.config.index_topk;
        double limit = sparse ? test.sparse_limit : test.limit;
        float *got = feed(&test.model, &text);
        size_t n = (size_t)text.n_kept * test.model.config.n_vocab;
        double error = error_of(got, text.logits, n);
        print_message("  text %d, %5u tokens: relative L2 %.2e (limit %.0e)\n", i, text.n_token,
                      error, limit);
        mem_free(got);
        golden_text_free(&text);
        if (!(error <= limit)) fail_msg("text %d: %.3e is over %.1e", i, error, limit);
    }
    assert_true(i > 0);
}

int main(int argc, char **argv)
{
    static const char *const kv_names[] = {"f32", "bf16", "fp8"};
    static const char *const act_names[] = {"f32", "bf16", "fp8"};
    static const enum act_type acts[] = {ACT_F32, ACT_BF16, ACT_FP8};
    int kv = 0, act = 0;
    while (argc == 9 && kv < 3 && strcmp(argv[5], kv_names[kv]) != 0) kv++;
    while (argc == 9 && act < 3 && strcmp(argv[4], act_names[act]) != 0) act++;
    if (argc != 9 || kv == 3 || act == 3) {
        fprintf(stderr,
                "usage: %s MODEL_DIR REFERENCE BACKEND f32|bf16|fp8 f32|bf16|fp8 CHUNK LIMIT "
                "SPARSE_LIMIT\n",
                argv[0]);
        return 2;
    }
    if (golden_skip(argv[3])) return GOLDEN_SKIPPED;
    test.chunk = (uint32_t)strtoul(argv[6], NULL, 10);
    test.limit = strtod(argv[7], NULL);
    test.sparse_limit = strtod(argv[8], NULL);
    golden_reference_open(&test.reference, argv[2]);
    golden_open_dir(&test.model, argv[1], false, argv[3], acts[act], (enum kv_type)kv, test.chunk);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts)};
    int failed = cmocka_run_group_tests_name("wide", tests, NULL, NULL);
    golden_close(&test.model);
    golden_reference_close(&test.reference);
    return failed;
}

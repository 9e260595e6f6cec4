/* test_golden.c - the whole model against an independent float32 implementation
 *
 *   test_golden BACKEND ACT KV CHUNK LIMIT [TOKENS]
 *   for example: test_golden ref f32 f32 128 2e-5
 *
 * tests/data/pilot holds, for six texts, the logits of the last positions, the MTP layer's logits
 * of the same positions and the log-probability of every next token. Each text is fed in steps of
 * CHUNK tokens; the relative L2 error of logits must stay within LIMIT. MTP logits come a layer
 * later: their position in the middle must stay within twice as much, all together within four
 * times. Where two experts are as good as equal, rounding turns a whole position. The longest text
 * (3303 tokens) is far beyond index_topk (256), so sparse attention is part of it, and of the next
 * ones (306) too. With TOKENS only texts up to that length are read; steps of other sizes and
 * greedy continuations need one of 306.
 *
 * The MTP layer at position i reads token i + 1 of the text. At the last position the text has
 * none; the reference read id 0 there, so that row is compared too, with id 0.
 */
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

enum { ID_AFTER_TEXT = 0, N_CONTINUE = 32, LENGTH_SPARSE = 306 /* of texts 1 and 2 */ };

static struct {
    const char *backend;
    enum act_type act;
    enum kv_type kv;
    uint32_t chunk;
    double limit;
    uint32_t max_token; /* of a text */
    struct golden_reference reference;
    struct golden_model model;
} test;

/* ---- measures ---- */

enum { KEPT_MAX = 64 }; /* positions of a text */

/* Relative L2 errors, |got - want| / |want| */
struct error {
    double all;    /* of the whole matrix */
    double median; /* of the row in the middle */
    double worst;  /* of the worst row */
};

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static struct error error_of(const float *got, const float *want, uint32_t n_row, size_t n)
{
    double rows[KEPT_MAX], difference = 0, square = 0;
    assert_in_range(n_row, 1, KEPT_MAX);
    for (uint32_t r = 0; r < n_row; r++) {
        double row_difference = 0, row_square = 0;
        for (size_t i = r * n; i < (r + 1) * n; i++) {
            double delta = (double)got[i] - (double)want[i];
            if (isnan(delta)) return (struct error){INFINITY, INFINITY, INFINITY};
            row_difference += delta * delta;
            row_square += (double)want[i] * (double)want[i];
        }
        rows[r] = sqrt(row_difference / row_square);
        difference += row_difference;
        square += row_square;
    }
    qsort(rows, n_row, sizeof rows[0], ascending);
    return (struct error){sqrt(difference / square), rows[n_row / 2], rows[n_row - 1]};
}

static double logprob_of(const float *logits, uint32_t n, int32_t id)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) top = fmax(top, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - top);
    return (double)logits[id] - top - log(sum);
}

static int32_t argmax(const float *logits, uint32_t n)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = (int32_t)i;
    }
    return best;
}

static void check_error(const char *what, struct error e, double limit, double median_limit)
{
    print_message("  %-16s relative L2 %.2e; of a position: median %.2e, worst %.2e\n", what, e.all,
                  e.median, e.worst);
    if (!(e.all <= limit)) fail_msg("%s: %.3e is over %.1e", what, e.all, limit);
    if (!(e.median <= median_limit))
        fail_msg("%s: median %.3e is over %.1e", what, e.median, median_limit);
}

/* The largest logit is the reference's wherever it leads by more than rounding can turn. */
static void check_argmax(const float *got, const float *want, uint32_t n_row, uint32_t n_vocab)
{
    uint32_t n_same = 0;
    for (uint32_t r = 0; r < n_row; r++) {
        const float *g = got + (size_t)r * n_vocab;
        const float *w = want + (size_t)r * n_vocab;
        int32_t a = argmax(g, n_vocab), b = argmax(w, n_vocab);
        double lead = (double)w[b] - (double)w[a];
        n_same += a == b;
        if (lead > 10 * test.limit * fabs((double)w[b]))
            fail_msg("row %u: largest is %d, the reference's %d leads by %g", r, a, b, lead);
    }
    print_message("  %-16s the same in %u of %u\n", "argmax", n_same, n_row);
}

/* ---- texts ---- */

struct outputs {
    float *logits; /* [n_token][n_vocab] */
    float *mtp;
};

static struct outputs feed(struct golden_model *m, const struct golden_text *text, uint32_t chunk)
{
    size_t n_vocab = m->config.n_vocab;
    struct outputs out = {mem_alloc_array(text->n_token * n_vocab, sizeof(float)),
                          mem_alloc_array(text->n_token * n_vocab, sizeof(float))};
    int32_t *next = mem_alloc_array(text->n_token, sizeof *next);
    assert_true(out.logits && out.mtp && next);
    memcpy(next, text->ids + 1, (text->n_token - 1) * sizeof *next);
    next[text->n_token - 1] = ID_AFTER_TEXT;

    golden_restart(m);
    for (uint32_t at = 0; at < text->n_token; at += chunk) {
        uint32_t n = text->n_token - at < chunk ? text->n_token - at : chunk;
        golden_step(m, text->ids + at, next + at, n, out.logits + at * n_vocab,
                    out.mtp + at * n_vocab);
    }
    mem_free(next);
    return out;
}

static void drop(struct outputs out)
{
    mem_free(out.logits);
    mem_free(out.mtp);
}

static void check_logprobs(const struct golden_text *text, const float *logits, uint32_t n_vocab)
{
    double worst = 0, square = 0;
    for (uint32_t p = 0; p + 1 < text->n_token; p++) {
        double got = logprob_of(logits + (size_t)p * n_vocab, n_vocab, text->ids[p + 1]);
        double delta = got - (double)text->logprob_of_next[p];
        worst = fmax(worst, fabs(delta));
        square += delta * delta;
    }
    double rms = sqrt(square / (text->n_token - 1));
    print_message("  %-16s root mean square error %.2e, largest %.2e\n", "logprob of next", rms,
                  worst);
    if (!(rms <= 10 * test.limit)) fail_msg("logprobs: %.3e is over %.1e", rms, 10 * test.limit);
}

static void test_texts(void **state)
{
    (void)state;
    uint32_t n_vocab = test.model.config.n_vocab;
    for (int i = 0; i < GOLDEN_N_TEXT; i++) {
        struct golden_text text;
        assert_true(golden_text_load(&test.reference, i, &text));
        if (text.n_token > test.max_token) {
            golden_text_free(&text);
            continue;
        }
        struct outputs out = feed(&test.model, &text, test.chunk);
        size_t skip = (size_t)(text.n_token - text.n_kept) * n_vocab;
        print_message("text %d, %u tokens\n", i, text.n_token);
        check_error("logits", error_of(out.logits + skip, text.logits, text.n_kept, n_vocab),
                    test.limit, test.limit);
        check_error("MTP logits", error_of(out.mtp + skip, text.mtp_logits, text.n_kept, n_vocab),
                    4 * test.limit, 2 * test.limit);
        check_argmax(out.logits + skip, text.logits, text.n_kept, n_vocab);
        check_logprobs(&text, out.logits, n_vocab);
        drop(out);
        golden_text_free(&text);
    }
}

/* A text a little longer than index_topk, cut into steps in three ways: the same bits. */
static void test_chunks(void **state)
{
    (void)state;
    const uint32_t chunks[] = {1, 7};
    struct golden_text text;
    assert_true(golden_text_load(&test.reference, 1, &text));
    assert_true(text.n_token > test.model.config.index_topk);
    size_t bytes = (size_t)text.n_token * test.model.config.n_vocab * sizeof(float);
    struct outputs whole = feed(&test.model, &text, test.chunk);
    for (int i = 0; i < 2; i++) {
        struct outputs part = feed(&test.model, &text, chunks[i]);
        assert_true(memcmp(part.logits, whole.logits, bytes) == 0);
        assert_true(memcmp(part.mtp, whole.mtp, bytes) == 0);
        drop(part);
    }
    drop(whole);
    golden_text_free(&text);
}

/* The logits behind a text's last token. */
static const float *read_text(struct golden_model *m, const struct golden_text *text)
{
    const float *last = NULL;
    golden_restart(m);
    for (uint32_t at = 0; at < text->n_token; at += m->max_token) {
        uint32_t n = text->n_token - at < m->max_token ? text->n_token - at : m->max_token;
        golden_step(m, text->ids + at, NULL, n, m->logits, NULL);
        last = m->logits + (size_t)(n - 1) * m->config.n_vocab;
    }
    return last;
}

/* Whether two tokens are so close in ref's logits that an error within the limit may exchange them.
 */
static bool is_tie(const float *logits, uint32_t n, int32_t a, int32_t b)
{
    double square = 0;
    for (uint32_t i = 0; i < n; i++) square += (double)logits[i] * (double)logits[i];
    return fabs((double)logits[a] - (double)logits[b]) < 2 * test.limit * sqrt(square / n);
}

static void check_continuation(struct golden_model *ref, const struct golden_text *text)
{
    const uint32_t n_vocab = ref->config.n_vocab;
    const float *want = read_text(ref, text);
    const float *got = read_text(&test.model, text);
    for (int i = 0; i < N_CONTINUE; i++) {
        int32_t token = argmax(want, n_vocab);
        int32_t other = argmax(got, n_vocab);
        if (token != other && is_tie(want, n_vocab, token, other)) return;
        if (token != other) fail_msg("token %d: %d, ref %d", i, other, token);
        golden_step(ref, &token, NULL, 1, ref->logits, NULL);
        golden_step(&test.model, &token, NULL, 1, test.model.logits, NULL);
        want = ref->logits;
        got = test.model.logits;
    }
}

/* The greedy continuation of a text is that of ref in float32, up to a tie. */
static void test_continuation(void **state)
{
    (void)state;
    struct golden_model ref;
    golden_open(&ref, "ref", ACT_F32, KV_TYPE_F32, 64);
    const int texts[] = {0, 1, 3, 4};
    for (int i = 0; i < 4; i++) {
        struct golden_text text;
        assert_true(golden_text_load(&test.reference, texts[i], &text));
        check_continuation(&ref, &text);
        golden_text_free(&text);
    }
    golden_close(&ref);
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s BACKEND f32|bf16|fp8 f32|bf16|fp8 CHUNK LIMIT [TOKENS]\n", program);
    return 2;
}

int main(int argc, char **argv)
{
    static const char *const kv_names[] = {"f32", "bf16", "fp8"};
    int kv = 0;
    if (argc != 6 && argc != 7) return usage(argv[0]);
    while (kv < 3 && strcmp(argv[3], kv_names[kv]) != 0) kv++;
    test.backend = argv[1];
    test.act = strcmp(argv[2], "bf16") == 0  ? ACT_BF16
               : strcmp(argv[2], "fp8") == 0 ? ACT_FP8
                                             : ACT_F32;
    test.kv = (enum kv_type)kv;
    test.chunk = (uint32_t)strtoul(argv[4], NULL, 10);
    test.limit = strtod(argv[5], NULL);
    test.max_token = argc == 7 ? (uint32_t)strtoul(argv[6], NULL, 10) : UINT32_MAX;
    if (kv == 3 || test.chunk == 0 || !(test.limit > 0)) return usage(argv[0]);

    if (golden_skip(test.backend)) return GOLDEN_SKIPPED;
    golden_reference_open(&test.reference, GOLDEN_PILOT_REFERENCE);
    golden_open(&test.model, test.backend, test.act, test.kv, test.chunk > 7 ? test.chunk : 7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_continuation),
    };
    size_t n_test = test.max_token < LENGTH_SPARSE ? 1 : sizeof tests / sizeof *tests;
    int failed = _cmocka_run_group_tests("golden", tests, n_test, NULL, NULL);
    golden_close(&test.model);
    golden_reference_close(&test.reference);
    return failed;
}

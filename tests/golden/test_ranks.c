/* test_ranks MODEL BACKEND RANKS ACT KV LIMIT [[TEXTSx]LENGTH] - several ranks compute what one
 * computes
 *
 * RANKS is a number; with an e behind it routed experts are whole on ranks.
 *
 * One model on one rank and on RANKS ranks, each a thread with a device of its own where the
 * backend has devices, over TEXTS (2) texts of LENGTH tokens, a multiple of 4, in one step and in
 * steps of other sizes. Logits of several ranks lie within LIMIT of one rank's (relative, the
 * median row), those of the draft layer within twice that; records of pages and logits have the
 * same bits on all ranks, and whatever the steps. Logits are those of each text's last rows. Each
 * rank has less of the model than one rank alone; in float32 the order of the sums shows. Where
 * inputs of products are rounded it need not: most rows may be equal.
 *
 * MODEL is a directory; one without weights gets generated ones. FILE:N is a config.json cut to N
 * layers. The test is skipped where there are fewer GPUs than ranks. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"
#ifdef FATHOM_SIM_BACKENDS
#include "simt/simt_fault.h"
#endif
#include "op/backends.h"

/* Of a text: tokens, and rows whose logits are compared at most. */
enum { TEXTS = 2, TEXTS_MAX = 16, LENGTH = 80, LENGTH_MAX = 4096, KEPT = 80 };
enum { N_KEPT_MAX = TEXTS_MAX * KEPT };
enum { SEED = 3, SKIPPED = 77, N_CUT_MAX = 4 };

static struct {
    const char *backend;
    uint32_t n_rank;
    bool experts_whole;
    enum act_type act;
    enum kv_type kv;
    double limit;
    uint32_t n_text, length, n_page;
    struct checkpoint *checkpoint;
    struct model_config config;
} test;

struct rank {
    struct backend *b;
    struct model *model;
    struct kv_cache kv;
    int32_t *arrays; /* of a step, the device's: see fill_arrays */
    float *rows;     /* [n_rows()][V] of a step */
    float *logits;   /* [2][n_rows()][V]: of the model and of the draft layer, own rows */
    pthread_t thread;
    const uint32_t *cuts;
    uint32_t n_cut;
    fathom_err err;
};

static void must(fathom_err err, const fathom_diag *d)
{
    if (err != FATHOM_OK) fail_msg("%s: %s", fathom_err_name(err), d->text);
}

static int32_t id_at(uint32_t text, uint32_t pos)
{
    return (int32_t)(rng_mix(SEED, text, pos) % test.config.n_vocab);
}

/* Arrays of a step, [length] for each text, then pages and where requests begin. */
enum { ARRAY_IDS, ARRAY_NEXT, ARRAY_POS, ARRAY_REQUEST, ARRAY_SLOT, ARRAY_ROWS, N_TOKEN_ARRAY };

static size_t n_int(void)
{
    return (size_t)N_TOKEN_ARRAY * test.n_text * test.length + test.n_page + test.n_text + 1;
}

static uint32_t n_kept(void)
{
    return test.length < KEPT ? test.length : KEPT;
}

static uint32_t n_rows(void)
{
    return test.n_text * n_kept();
}

static size_t page_bytes(const struct rank *r)
{
    return test.n_page * r->kv.layout.page_bytes;
}

static struct parallel parallel_of(uint32_t i, uint32_t n)
{
    return (struct parallel){.tp = {i, n}, .experts_whole = test.experts_whole && n > 1};
}

static void open_rank(struct rank *r, uint32_t i, uint32_t n)
{
    fathom_diag d = {{0}};
    struct model_place place = {.parallel = parallel_of(i, n), .n_thread = 1, .device = (int)i};
    struct model_limits limits = {.act = test.act,
                                  .kv_type = test.kv,
                                  .max_token = test.n_text * test.length,
                                  .max_request = test.n_text,
                                  .max_context = test.n_page / test.n_text * KV_PAGE_TOKENS,
                                  .max_logit_row = n_rows(),
                                  .with_mtp = true};
    struct backend_config c;
    model_backend_config(&c, &test.config, &limits, &place);
    must(backend_create_named(&r->b, test.backend, &c, &d), &d);
    r->kv = (struct kv_cache){.n_page = test.n_page, .layout = c.kv};
}

static void load_rank(struct rank *r, uint32_t i, uint32_t n)
{
    fathom_diag d = {{0}};
    const struct model_loading as_stored = {0};
    const struct parallel p = parallel_of(i, n);
    struct model_limits limits = {.with_mtp = true};
    struct model_weights w;
    must(r->b->ops->bind_thread(r->b), &d);
    if (checkpoint_n_shard(test.checkpoint) > 0)
        must(weights_bind(&w, test.checkpoint, &test.config, &p, &d), &d);
    else
        must(weights_generate(&w, &test.config, SEED, &p, &d), &d);
    must(model_create(&r->model, r->b, &test.config, &w, &limits, &as_stored, &d), &d);
    weights_release(&w);
    void *arrays;
    must(r->b->ops->alloc(r->b, page_bytes(r), "pages", &r->kv.base, &d), &d);
    must(r->b->ops->alloc(r->b, n_int() * sizeof *r->arrays, "batch", &arrays, &d), &d);
    r->arrays = arrays;
    r->rows = mem_calloc((size_t)n_rows() * test.config.n_vocab, sizeof *r->rows);
    r->logits = mem_calloc((size_t)2 * n_rows() * test.config.n_vocab, sizeof *r->logits);
    assert_true(r->rows && r->logits);
}

static void close_rank(struct rank *r)
{
    must(r->b->ops->bind_thread(r->b), &(fathom_diag){{0}});
    model_destroy(r->model);
    r->b->ops->release(r->b, r->kv.base);
    r->b->ops->release(r->b, r->arrays);
    r->b->ops->destroy(r->b);
    mem_free(r->rows);
    mem_free(r->logits);
}

/* The arrays of a step of n tokens of each text from `pos` on; the number of its logit rows. */
static uint32_t fill_arrays(int32_t *a, uint32_t pos, uint32_t n)
{
    const uint32_t m = test.n_text * test.length, stride = test.n_page / test.n_text;
    uint32_t n_row = 0;
    int32_t *pages = a + (size_t)N_TOKEN_ARRAY * m, *first = pages + test.n_page;
    for (uint32_t i = 0; i < test.n_page; i++) pages[i] = (int32_t)((i + 2) % test.n_page);
    for (uint32_t t = 0; t < test.n_text * n; t++) {
        uint32_t text = t / n, p = pos + t % n;
        a[ARRAY_IDS * m + t] = id_at(text, p);
        a[ARRAY_NEXT * m + t] = id_at(text, p + 1);
        a[ARRAY_POS * m + t] = (int32_t)p;
        a[ARRAY_REQUEST * m + t] = (int32_t)text;
        a[ARRAY_SLOT * m + t] = pages[text * stride + p / KV_PAGE_TOKENS] * KV_PAGE_TOKENS +
                                (int32_t)(p % KV_PAGE_TOKENS);
        if (p + n_kept() >= test.length) a[ARRAY_ROWS * m + n_row++] = (int32_t)t;
    }
    for (uint32_t i = 0; i <= test.n_text; i++) first[i] = (int32_t)(i * n);
    return n_row;
}

/* This rank's logits of a pass to their places. */
static fathom_err keep_logits(struct rank *r, uint32_t rank, const int32_t *a, uint32_t n_row,
                              int pass)
{
    const uint32_t n_vocab = test.config.n_vocab, m = test.n_text * test.length;
    if (n_row == 0) return FATHOM_OK;
    fathom_err err =
        r->b->ops->buffer_read(r->b, model_logits(r->model), 0, n_row, n_vocab, r->rows);
    for (uint32_t i = 0; i < n_row && !err; i++) {
        if (test.n_rank > 1 && logit_row_owner(i, test.n_rank) != rank) continue;
        const int32_t t = a[ARRAY_ROWS * m + i];
        const size_t text = (size_t)a[ARRAY_REQUEST * m + t];
        const size_t place =
            text * n_kept() + (size_t)a[ARRAY_POS * m + t] + n_kept() - test.length;
        memcpy(r->logits + ((size_t)pass * n_rows() + place) * n_vocab,
               r->rows + (size_t)i * n_vocab, n_vocab * sizeof *r->rows);
    }
    return err;
}

/* One step: n tokens of each text from `pos` on. */
static fathom_err step(struct rank *r, uint32_t rank, uint32_t pos, uint32_t n)
{
    const uint32_t m = test.n_text * test.length;
    int32_t *a = mem_calloc(n_int(), sizeof *a), *device = r->arrays;
    assert_non_null(a);
    const uint32_t n_row = fill_arrays(a, pos, n);
    fathom_err err = r->b->ops->copy_in(r->b, device, a, n_int() * sizeof *a);
    if (!err) err = r->b->ops->sync(r->b);
    struct batch batch = {.n_token = test.n_text * n,
                          .n_request = test.n_text,
                          .n_logit_row = n_row,
                          .max_context = pos + n,
                          .page_stride = test.n_page / test.n_text,
                          .ids = device + ARRAY_IDS * m,
                          .pos = device + ARRAY_POS * m,
                          .request = device + ARRAY_REQUEST * m,
                          .slot = device + ARRAY_SLOT * m,
                          .page_table = device + (size_t)N_TOKEN_ARRAY * m,
                          .first = device + (size_t)N_TOKEN_ARRAY * m + test.n_page,
                          .logit_rows = device + ARRAY_ROWS * m};
    for (int pass = 0; pass < 2 && !err; pass++) {
        if (pass) batch.next_ids = device + ARRAY_NEXT * m;
        err = pass ? model_mtp(r->model, &batch, &r->kv) : model_forward(r->model, &batch, &r->kv);
        if (!err) err = keep_logits(r, rank, a, n_row, pass);
    }
    if (!err) err = r->b->ops->sync(r->b);
    mem_free(a);
    return err;
}

static struct rank *ranks;

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    uint32_t pos = 0;
    r->err = r->b->ops->bind_thread(r->b);
    for (uint32_t i = 0; i < r->n_cut && !r->err; i++) {
        r->err = step(r, (uint32_t)(r - ranks), pos, r->cuts[i]);
        pos += r->cuts[i];
    }
    return NULL;
}

static uint8_t *read_pages(struct rank *r)
{
    uint8_t *pages = mem_calloc(1, page_bytes(r));
    assert_non_null(pages);
    must(r->b->ops->bind_thread(r->b), &(fathom_diag){{0}});
    must(r->b->ops->copy_out(r->b, pages, r->kv.base, page_bytes(r)), &(fathom_diag){{0}});
    must(r->b->ops->sync(r->b), &(fathom_diag){{0}});
    return pages;
}

static void clear_rank(struct rank *r)
{
    uint8_t *pages = mem_calloc(1, page_bytes(r));
    assert_non_null(pages);
    must(r->b->ops->bind_thread(r->b), &(fathom_diag){{0}});
    must(r->b->ops->copy_in(r->b, r->kv.base, pages, page_bytes(r)), &(fathom_diag){{0}});
    must(r->b->ops->sync(r->b), &(fathom_diag){{0}});
    mem_free(pages);
    memset(r->logits, 0, (size_t)2 * n_rows() * test.config.n_vocab * sizeof(float));
}

/* All ranks over both texts, in steps of cuts; the logits come together in rank 0's. */
static void run(uint32_t n, const uint32_t *cuts, uint32_t n_cut)
{
    const size_t n_value = (size_t)2 * n_rows() * test.config.n_vocab;
    uint8_t *first = NULL;
    for (uint32_t i = 0; i < n; i++) {
        ranks[i].cuts = cuts;
        ranks[i].n_cut = n_cut;
        clear_rank(&ranks[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (uint32_t i = 0; i < n; i++) pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (ranks[i].err) fail_msg("rank %u: %s", i, ranks[i].b->ops->fault(ranks[i].b));
    }
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *pages = read_pages(&ranks[i]);
        if (i == 0) first = pages;
        assert_memory_equal(pages, first, page_bytes(&ranks[i]));
        for (size_t k = 0; i > 0 && k < n_value; k++) ranks[0].logits[k] += ranks[i].logits[k];
        if (i > 0) mem_free(pages);
    }
    mem_free(first);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Relative errors of rows, ascending; the number of rows. */
static uint32_t row_errors(const float *got, const float *want, double errors[N_KEPT_MAX])
{
    const uint32_t n_vocab = test.config.n_vocab, n = n_rows();
    for (uint32_t t = 0; t < n; t++) {
        double diff = 0, square = 0;
        for (uint32_t i = 0; i < n_vocab; i++) {
            double w = (double)want[(size_t)t * n_vocab + i];
            double e = (double)got[(size_t)t * n_vocab + i] - w;
            diff += e * e;
            square += w * w;
        }
        assert_true(square > 0);
        errors[t] = sqrt(diff / square);
    }
    qsort(errors, n, sizeof *errors, by_size);
    return n;
}

static void check_close(const float *got, const float *want, const char *what, double limit)
{
    double errors[N_KEPT_MAX];
    const uint32_t n = row_errors(got, want, errors);
    uint32_t n_equal = 0;
    while (n_equal < n && errors[n_equal] == 0) n_equal++;
    print_message("%s: median %.2g, largest %.2g, %u of %u rows equal\n", what, errors[n / 2],
                  errors[n - 1], n_equal, n);
    assert_true(errors[n / 2] <= limit);
    if (test.act == ACT_F32) assert_true(n_equal < n / 2);
}

/* Rounding costs several ranks what it costs one. */
static void check_exact(const float *several, const float *one, const float *exact,
                        const char *what)
{
    double of_several[N_KEPT_MAX], of_one[N_KEPT_MAX];
    const uint32_t n = row_errors(several, exact, of_several);
    (void)row_errors(one, exact, of_one);
    print_message("%s from float32: median of one rank %.3g, of several %.3g\n", what,
                  of_one[n / 2], of_several[n / 2]);
    assert_true(of_several[n / 2] <= 1.25 * of_one[n / 2]);
}

/* What one rank computes: its logits; the bytes of its weights. */
static uint64_t run_alone(const char *backend, enum act_type act, enum kv_type kv, float *logits)
{
    const char *const its_backend = test.backend;
    const enum act_type its_act = test.act;
    const enum kv_type its_kv = test.kv;
    const uint32_t n_rank = test.n_rank, whole[] = {test.length};
    test.backend = backend;
    test.act = act;
    test.kv = kv;
    test.n_rank = 1;
    memset(ranks, 0, sizeof *ranks);
    open_rank(&ranks[0], 0, 1);
    load_rank(&ranks[0], 0, 1);
    run(1, whole, 1);
    memcpy(logits, ranks[0].logits, (size_t)2 * n_rows() * test.config.n_vocab * sizeof *logits);
    const uint64_t n_bytes = model_weights_bytes(ranks[0].model);
    close_rank(&ranks[0]);
    test.backend = its_backend;
    test.act = its_act;
    test.kv = its_kv;
    test.n_rank = n_rank;
    return n_bytes;
}

static void open_ranks(uint32_t n, uint64_t whole_bytes)
{
    struct backend *backends[PARALLEL_RANKS_MAX];
    fathom_diag d = {{0}};
    memset(ranks, 0, n * sizeof *ranks);
    for (uint32_t i = 0; i < n; i++) {
        open_rank(&ranks[i], i, n);
        backends[i] = ranks[i].b;
    }
    must(backend_join(backends, n, &d), &d);
    for (uint32_t i = 0; i < n; i++) {
        load_rank(&ranks[i], i, n);
        assert_true(model_weights_bytes(ranks[i].model) < whole_bytes);
    }
}

static void several_ranks_compute_what_one_does(void **state)
{
    (void)state;
    const uint32_t length = test.length, whole[] = {length};
    const uint32_t cut[N_CUT_MAX] = {length / 4, 1, length / 2 - 1, (length + 1) / 4};
    const uint32_t n = test.n_rank;
    const size_t n_value = (size_t)n_rows() * test.config.n_vocab;
    ranks = mem_calloc(n, sizeof *ranks);
    float *want = mem_alloc_array(2 * n_value, sizeof *want);
    float *exact = mem_alloc_array(2 * n_value, sizeof *exact);
    assert_true(ranks && want && exact);
    const bool is_rounded = test.act != ACT_F32 && checkpoint_n_shard(test.checkpoint) > 0;
    if (is_rounded) (void)run_alone("cpu", ACT_F32, KV_TYPE_F32, exact);
    const uint64_t whole_bytes = run_alone(test.backend, test.act, test.kv, want);
    open_ranks(n, whole_bytes);
    run(n, whole, 1);
    const float *got = ranks[0].logits;
    check_close(got, want, "logits", test.limit);
    check_close(got + n_value, want + n_value, "draft layer", 2 * test.limit);
    if (is_rounded) {
        check_exact(got, want, exact, "logits");
        check_exact(got + n_value, want + n_value, exact + n_value, "draft layer");
    }
    memcpy(want, got, 2 * n_value * sizeof *want);
    run(n, cut, N_CUT_MAX);
    assert_memory_equal(got, want, 2 * n_value * sizeof *want);
    for (uint32_t i = 0; i < n; i++) close_rank(&ranks[i]);
    mem_free(exact);
    mem_free(want);
    mem_free(ranks);
}

/* A directory of a model as MODEL says. */
static void open_model(const char *name)
{
    fathom_diag d = {{0}};
    const char *colon = strrchr(name, ':');
    if (colon) {
        static const char key[] = "\"num_hidden_layers\": ";
        static char text[16384];
        char dir[] = "/tmp/test_ranks.XXXXXX", path[sizeof dir + 16];
        (void)snprintf(text, sizeof text, "%.*s", (int)(colon - name), name);
        FILE *f = fopen(text, "r");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        (void)fclose(f);
        char *at = strstr(text, key);
        assert_non_null(at);
        *at = 0;
        assert_non_null(mkdtemp(dir));
        (void)snprintf(path, sizeof path, "%s/config.json", dir);
        f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "%s%s%s%s", text, key, colon + 1, strchr(at + 1, ','));
        (void)fclose(f);
        must(checkpoint_open_files(&test.checkpoint, dir, NULL, &d), &d);
        must(model_config_load(&test.config, test.checkpoint, &d), &d);
        (void)unlink(path);
        (void)rmdir(dir);
        return;
    }
    if (strstr(name, "pilot"))
        must(checkpoint_open(&test.checkpoint, name, &d), &d);
    else
        must(checkpoint_open_files(&test.checkpoint, name, NULL, &d), &d);
    must(model_config_load(&test.config, test.checkpoint, &d), &d);
}

int main(int argc, char **argv)
{
    if (argc != 7 && argc != 8) {
        print_error("usage: test_ranks MODEL BACKEND RANKS f32|bf16|fp8 f32|bf16|fp8 LIMIT "
                    "[[TEXTSx]LENGTH]\n");
        return 2;
    }
    test.backend = argv[2];
    char *end;
    test.n_rank = (uint32_t)strtoul(argv[3], &end, 10);
    test.experts_whole = *end == 'e';
    test.act = argv[4][0] == 'b' ? ACT_BF16 : argv[4][1] == 'p' ? ACT_FP8 : ACT_F32;
    test.kv = argv[5][0] == 'b' ? KV_TYPE_BF16 : argv[5][1] == 'p' ? KV_TYPE_FP8 : KV_TYPE_F32;
    test.limit = strtod(argv[6], NULL);
    test.n_text = TEXTS;
    test.length = argc > 7 ? (uint32_t)strtoul(argv[7], &end, 10) : LENGTH;
    if (argc > 7 && *end == 'x') {
        test.n_text = test.length;
        test.length = (uint32_t)strtoul(end + 1, NULL, 10);
    }
    assert_true(test.n_text >= 1 && test.n_text <= TEXTS_MAX);
    assert_true(test.length % 4 == 0 && test.length <= LENGTH_MAX);
    test.n_page = test.n_text * ((test.length + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
#ifdef FATHOM_TESTS_SIMT_FAULT_H
    simt_set_devices((int)test.n_rank);
#endif
    if (strcmp(test.backend, "cuda") == 0 && backend_cuda_count() < (int)test.n_rank) {
        print_message("skipped: %u GPUs are needed, there are %d\n", test.n_rank,
                      backend_cuda_count());
        return SKIPPED;
    }
    open_model(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(several_ranks_compute_what_one_does)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    checkpoint_close(test.checkpoint);
    return n_failed;
}

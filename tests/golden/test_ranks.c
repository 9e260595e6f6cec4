/* test_ranks DIR BACKEND RANKS ACT KV LIMIT - several ranks of a process compute what one computes
 *
 * One model on one rank and on RANKS ranks, each a thread, over two texts in one step, in steps of
 * other sizes, and alone. Logits of several ranks lie within LIMIT of one rank's (relative, the
 * median row); records of pages and logits have the same bits on all ranks, and whatever the steps.
 * A directory without weights gets generated ones. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"
#include "op/backends.h"

enum { N_TEXT = 2, LENGTH = 80, N_PAGE = 4, N_TOKEN = N_TEXT * LENGTH, SEED = 3 };

static struct {
    const char *dir, *backend;
    uint32_t n_rank;
    enum act_type act;
    enum kv_type kv;
    double limit;
    struct checkpoint *checkpoint;
    struct model_config config;
} test;

/* What a rank has; arrays are the host's, as these backends' device is. */
struct rank {
    struct backend *b;
    struct model *model;
    struct kv_cache kv;
    float *logits; /* [2][N_TOKEN][V]: of the model and of the draft layer, own rows */
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

static void open_rank(struct rank *r, uint32_t i, uint32_t n)
{
    fathom_diag d = {{0}};
    struct model_place place = {.parallel = {.tp = {i, n}}, .n_thread = 1};
    struct model_limits limits = {.act = test.act,
                                  .kv_type = test.kv,
                                  .max_token = N_TOKEN,
                                  .max_request = N_TEXT,
                                  .max_context = 2 * KV_PAGE_TOKENS,
                                  .max_logit_row = N_TOKEN,
                                  .with_mtp = true};
    struct backend_config c;
    model_backend_config(&c, &test.config, &limits, &place);
    must(backend_create_named(&r->b, test.backend, &c, &d), &d);
    r->kv = (struct kv_cache){.n_page = N_PAGE, .layout = c.kv};
}

static void load_rank(struct rank *r, uint32_t i, uint32_t n)
{
    fathom_diag d = {{0}};
    const struct model_loading as_stored = {0};
    const struct parallel p = {.tp = {i, n}};
    struct model_limits limits = {.with_mtp = true};
    struct model_weights w;
    if (checkpoint_n_shard(test.checkpoint) > 0)
        must(weights_bind(&w, test.checkpoint, &test.config, &p, &d), &d);
    else
        must(weights_generate(&w, &test.config, SEED, &p, &d), &d);
    must(model_create(&r->model, r->b, &test.config, &w, &limits, &as_stored, &d), &d);
    weights_release(&w);
    must(r->b->ops->alloc(r->b, N_PAGE * r->kv.layout.page_bytes, "pages", &r->kv.base, &d), &d);
    r->logits = mem_calloc((size_t)2 * N_TOKEN * test.config.n_vocab, sizeof *r->logits);
    assert_non_null(r->logits);
}

static void close_rank(struct rank *r)
{
    model_destroy(r->model);
    r->b->ops->release(r->b, r->kv.base);
    r->b->ops->destroy(r->b);
    mem_free(r->logits);
}

/* One step: n tokens of each text from `pos` on. */
static fathom_err step(struct rank *r, uint32_t rank, uint32_t pos, uint32_t n)
{
    int32_t ids[N_TOKEN], next[N_TOKEN], at[N_TOKEN], request[N_TOKEN], slot[N_TOKEN];
    int32_t rows[N_TOKEN];
    int32_t first[N_TEXT + 1];
    static const int32_t pages[N_TEXT * 2] = {2, 0, 1, 3};
    const uint32_t n_vocab = test.config.n_vocab;
    for (uint32_t t = 0; t < N_TEXT * n; t++) {
        uint32_t text = t / n, p = pos + t % n;
        ids[t] = id_at(text, p);
        next[t] = id_at(text, p + 1);
        at[t] = (int32_t)p;
        request[t] = (int32_t)text;
        slot[t] =
            pages[text * 2 + p / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + (int32_t)(p % KV_PAGE_TOKENS);
        rows[t] = (int32_t)t;
    }
    for (uint32_t i = 0; i <= N_TEXT; i++) first[i] = (int32_t)(i * n);
    struct batch batch = {.n_token = N_TEXT * n,
                          .n_request = N_TEXT,
                          .n_logit_row = N_TEXT * n,
                          .max_context = pos + n,
                          .page_stride = 2,
                          .ids = ids,
                          .pos = at,
                          .request = request,
                          .slot = slot,
                          .page_table = pages,
                          .first = first,
                          .logit_rows = rows};
    for (int pass = 0; pass < 2; pass++) {
        if (pass) batch.next_ids = next;
        fathom_err err =
            pass ? model_mtp(r->model, &batch, &r->kv) : model_forward(r->model, &batch, &r->kv);
        for (uint32_t t = 0; t < N_TEXT * n && !err; t++) {
            uint32_t text = t / n, p = pos + t % n;
            if (logit_row_owner(t, test.n_rank) != rank && test.n_rank > 1) continue;
            size_t to = ((size_t)pass * N_TOKEN + text * LENGTH + p) * n_vocab;
            err =
                r->b->ops->buffer_read(r->b, model_logits(r->model), t, 1, n_vocab, r->logits + to);
        }
        if (err) return err;
    }
    return FATHOM_OK;
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

/* All ranks over both texts, in steps of cuts; the logits come together in rank 0's. */
static void run(uint32_t n, const uint32_t *cuts, uint32_t n_cut)
{
    const size_t n_value = (size_t)2 * N_TOKEN * test.config.n_vocab;
    for (uint32_t i = 0; i < n; i++) {
        ranks[i].cuts = cuts;
        ranks[i].n_cut = n_cut;
        memset(ranks[i].kv.base, 0, N_PAGE * ranks[i].kv.layout.page_bytes);
        memset(ranks[i].logits, 0, n_value * sizeof(float));
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (ranks[i].err) fail_msg("rank %u: %s", i, ranks[i].b->ops->fault(ranks[i].b));
        assert_memory_equal(ranks[i].kv.base, ranks[0].kv.base,
                            N_PAGE * ranks[0].kv.layout.page_bytes);
        for (size_t k = 0; i > 0 && k < n_value; k++) ranks[0].logits[k] += ranks[i].logits[k];
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_close(const float *got, const float *want, const char *what, double limit)
{
    double errors[N_TOKEN];
    const uint32_t n_vocab = test.config.n_vocab;
    for (uint32_t t = 0; t < N_TOKEN; t++) {
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
    qsort(errors, N_TOKEN, sizeof *errors, by_size);
    print_message("%s: median %.2g, largest %.2g\n", what, errors[N_TOKEN / 2],
                  errors[N_TOKEN - 1]);
    assert_true(errors[N_TOKEN / 2] <= limit);
    assert_true(errors[N_TOKEN - 1] > 0); /* that the sums were formed in parts at all */
}

static void several_ranks_compute_what_one_does(void **state)
{
    (void)state;
    static const uint32_t whole[] = {LENGTH}, cut[] = {17, 1, 46, 16};
    const uint32_t n = test.n_rank;
    const size_t n_value = (size_t)N_TOKEN * test.config.n_vocab;
    fathom_diag d = {{0}};
    ranks = mem_calloc(n, sizeof *ranks);
    float *want = mem_alloc_array(2 * n_value, sizeof *want);
    assert_true(ranks && want);
    test.n_rank = 1;
    open_rank(&ranks[0], 0, 1);
    load_rank(&ranks[0], 0, 1);
    run(1, whole, 1);
    memcpy(want, ranks[0].logits, 2 * n_value * sizeof *want);
    close_rank(&ranks[0]);

    test.n_rank = n;
    memset(ranks, 0, n * sizeof *ranks);
    struct backend *backends[PARALLEL_RANKS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        open_rank(&ranks[i], i, n);
        backends[i] = ranks[i].b;
    }
    must(backend_join(backends, n, &d), &d);
    for (uint32_t i = 0; i < n; i++) load_rank(&ranks[i], i, n);
    run(n, whole, 1);
    check_close(ranks[0].logits, want, "logits", test.limit);
    check_close(ranks[0].logits + n_value, want + n_value, "draft layer", 2 * test.limit);
    memcpy(want, ranks[0].logits, 2 * n_value * sizeof *want);
    run(n, cut, 4);
    assert_memory_equal(ranks[0].logits, want, 2 * n_value * sizeof *want);
    for (uint32_t i = 0; i < n; i++) close_rank(&ranks[i]);
    mem_free(want);
    mem_free(ranks);
}

int main(int argc, char **argv)
{
    fathom_diag d = {{0}};
    if (argc != 7) {
        print_error("usage: test_ranks DIR BACKEND RANKS f32|bf16|fp8 f32|bf16|fp8 LIMIT\n");
        return 2;
    }
    test.dir = argv[1];
    test.backend = argv[2];
    test.n_rank = (uint32_t)strtoul(argv[3], NULL, 10);
    test.act = argv[4][0] == 'b' ? ACT_BF16 : argv[4][1] == 'p' ? ACT_FP8 : ACT_F32;
    test.kv = argv[5][0] == 'b' ? KV_TYPE_BF16 : argv[5][1] == 'p' ? KV_TYPE_FP8 : KV_TYPE_F32;
    test.limit = strtod(argv[6], NULL);
    must(checkpoint_open_files(&test.checkpoint, test.dir, NULL, &d), &d);
    if (strstr(test.dir, "pilot")) {
        checkpoint_close(test.checkpoint);
        must(checkpoint_open(&test.checkpoint, test.dir, &d), &d);
    }
    must(model_config_load(&test.config, test.checkpoint, &d), &d);
    const struct CMUnitTest tests[] = {cmocka_unit_test(several_ranks_compute_what_one_does)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    checkpoint_close(test.checkpoint);
    return n_failed;
}

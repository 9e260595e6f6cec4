/* test_ranks_dp MODEL BACKEND RANKS ACT KV LIMIT [LENGTH] - ranks with texts of their own compute
 * what one does
 *
 * One model on one rank, and on RANKS ranks of which each has whole experts and some of N_TEXT
 * texts of LENGTH tokens, a multiple of 8; of "2x4" ranks four share the texts of each of two
 * lanes. A rank is a thread with a device of its own where the backend has devices. Logits lie
 * within LIMIT of one rank's (relative, the median row), those of
 * the draft layer within twice that. Whichever lane a text is on, however it is cut into steps, and
 * while lanes have nothing of their own to do: its logits and its pages have the same bits, and its
 * pages have them on all ranks of its lane.
 *
 * MODEL is a directory; one without weights gets generated ones. The test is skipped where there
 * are fewer GPUs than ranks. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
#ifdef FATHOM_SIM_BACKENDS
#include "simt/simt_fault.h"
#endif
#include "op/backends.h"

/* Of texts that are as long as they may be. */
enum { N_TEXT = 5, LENGTH = 72, N_PAGE = 2, N_STEP_MAX = 8, SEED = 3, N_TOKEN = N_TEXT * LENGTH };
enum { SKIPPED = 77 };

/* Tokens of a text in a step: eighths of its length, and some more or less. */
struct part {
    int eighths, more;
};

/* How texts lie on lanes and are cut: text i is on lane (by[i] % lanes), and its step s has
 * cut[i][s]. */
struct plan {
    const char *name;
    uint32_t n_step;
    uint32_t by[N_TEXT];
    struct part cut[N_TEXT][N_STEP_MAX];
};

static const struct plan plans[] = {
    {"in turn, whole", 1, {0, 1, 2, 3, 4}, {{{8, 0}}, {{8, 0}}, {{8, 0}}, {{8, 0}}, {{8, 0}}}},
    {"all on one", 1, {0, 0, 0, 0, 0}, {{{8, 0}}, {{8, 0}}, {{8, 0}}, {{8, 0}}, {{8, 0}}}},
    {"all on the last, one after the other",
     5,
     {7, 7, 7, 7, 7},
     {{{8, 0}},
      {{0, 0}, {8, 0}},
      {{0, 0}, {0, 0}, {8, 0}},
      {{0, 0}, {0, 0}, {0, 0}, {8, 0}},
      {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {8, 0}}}},
    {"in steps of other sizes",
     8,
     {1, 0, 0, 3, 2},
     {{{0, 1}, {7, -2}, {0, 1}, {1, 0}},
      {{0, 0}, {0, 0}, {5, 0}, {3, 0}},
      {{8, 0}},
      {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}},
      {{0, 0}, {0, 0}, {0, 0}, {8, -1}, {0, 0}, {0, 1}}}},
};
enum { N_PLAN = sizeof plans / sizeof *plans };

static struct {
    const char *backend;
    uint32_t n_rank;
    uint32_t n_share; /* ranks of a lane */
    enum act_type act;
    enum kv_type kv;
    double limit;
    uint32_t length, n_token; /* of a text, of all */
    struct checkpoint *checkpoint;
    struct model_config config;
} test;

/* Arrays of a step, as they are on the device. */
struct arrays {
    int32_t ids[N_TOKEN], next[N_TOKEN], pos[N_TOKEN], request[N_TOKEN], slot[N_TOKEN];
    int32_t rows[N_TOKEN], pages[N_TEXT * N_PAGE], first[N_TEXT + 1];
};

struct rank {
    struct backend *b;
    struct model *model;
    struct kv_cache kv;
    struct arrays a;
    struct arrays *device;
    uint32_t text[N_TOKEN]; /* of a row */
    struct batch batch;
    float *row; /* [V] */
    const struct plan *plan;
    uint32_t rank;
    pthread_t thread;
    fathom_err err;
};

static struct rank ranks[PARALLEL_RANKS_MAX];
static float *logits; /* [2][N_TEXT][LENGTH][V] of the model and of the draft layer */

static void must(fathom_err err, const fathom_diag *d)
{
    if (err != FATHOM_OK) fail_msg("%s: %s", fathom_err_name(err), d->text);
}

static uint32_t n_tokens(const struct plan *plan, uint32_t text, uint32_t s)
{
    const struct part *p = &plan->cut[text][s];
    return (uint32_t)((int)(test.length / 8) * p->eighths + p->more);
}

static int32_t id_at(uint32_t text, uint32_t pos)
{
    return (int32_t)(rng_mix(SEED, text, pos) % test.config.n_vocab);
}

static size_t pages_bytes(const struct rank *r)
{
    return r->kv.n_page * r->kv.layout.page_bytes;
}

/* Rank i of n. */
static struct parallel part_of(uint32_t i, uint32_t n)
{
    struct parallel p = parallel_one();
    p.tp.size = test.n_share;
    p.dp.size = n / test.n_share;
    p.experts_whole = p.dp.size > 1;
    parallel_be(&p, i);
    return p;
}

static void open_ranks(uint32_t n)
{
    fathom_diag d = {{0}};
    struct backend *backends[PARALLEL_RANKS_MAX];
    const struct model_limits limits = {.act = test.act,
                                        .kv_type = test.kv,
                                        .max_token = test.n_token,
                                        .max_request = N_TEXT,
                                        .max_context = N_PAGE * KV_PAGE_TOKENS,
                                        .max_logit_row = test.n_token,
                                        .with_mtp = true};
    for (uint32_t i = 0; i < n; i++) {
        struct model_place place = {.parallel = part_of(i, n), .n_thread = 1, .device = (int)i};
        struct backend_config c;
        model_backend_config(&c, &test.config, &limits, &place);
        ranks[i] = (struct rank){.rank = i};
        must(backend_create_named(&ranks[i].b, test.backend, &c, &d), &d);
        ranks[i].kv = (struct kv_cache){.n_page = N_TEXT * N_PAGE, .layout = c.kv};
        backends[i] = ranks[i].b;
    }
    if (n > 1) must(backend_join(backends, n, &d), &d);
    for (uint32_t i = 0; i < n; i++) {
        const struct parallel p = part_of(i, n);
        struct model_weights w;
        const struct model_loading as_stored = {0};
        struct rank *r = &ranks[i];
        void *device;
        must(r->b->ops->bind_thread(r->b), &d);
        if (checkpoint_n_shard(test.checkpoint) > 0)
            must(weights_bind(&w, test.checkpoint, &test.config, &p, &d), &d);
        else
            must(weights_generate(&w, &test.config, SEED, &p, &d), &d);
        must(model_create(&r->model, r->b, &test.config, &w, &limits, &as_stored, &d), &d);
        weights_release(&w);
        must(r->b->ops->alloc(r->b, pages_bytes(r), "pages", &r->kv.base, &d), &d);
        must(r->b->ops->alloc(r->b, sizeof r->a, "batch", &device, &d), &d);
        r->device = device;
        r->row = mem_calloc(test.config.n_vocab, sizeof *r->row);
        assert_non_null(r->row);
    }
}

static void close_ranks(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct rank *r = &ranks[i];
        must(r->b->ops->bind_thread(r->b), &(fathom_diag){{0}});
        model_destroy(r->model);
        r->b->ops->release(r->b, r->kv.base);
        r->b->ops->release(r->b, r->device);
        r->b->ops->destroy(r->b);
        mem_free(r->row);
    }
}

/* Its lane's rows of step `s`. */
static void fill_step(struct rank *r, uint32_t n_rank, uint32_t s)
{
    struct arrays *a = &r->a;
    uint32_t n = 0, n_request = 0, max_context = 0;
    for (uint32_t i = 0; i < N_TEXT; i++) {
        uint32_t pos = 0;
        const uint32_t n_new = n_tokens(r->plan, i, s);
        if (r->plan->by[i] % (n_rank / test.n_share) != r->rank / test.n_share) continue;
        if (n_new == 0) continue;
        for (uint32_t k = 0; k < s; k++) pos += n_tokens(r->plan, i, k);
        a->first[n_request] = (int32_t)n;
        for (uint32_t k = 0; k < N_PAGE; k++)
            a->pages[n_request * N_PAGE + k] = (int32_t)(i * N_PAGE + k);
        for (const uint32_t end = pos + n_new; pos < end; pos++, n++) {
            a->ids[n] = id_at(i, pos);
            a->next[n] = id_at(i, pos + 1);
            a->pos[n] = (int32_t)pos;
            a->request[n] = (int32_t)n_request;
            a->slot[n] = (int32_t)(i * N_PAGE * KV_PAGE_TOKENS + pos);
            a->rows[n] = (int32_t)n;
            r->text[n] = i;
        }
        if (pos > max_context) max_context = pos;
        a->first[++n_request] = (int32_t)n;
    }
    struct arrays *to = r->device;
    r->batch = (struct batch){.n_token = n,
                              .n_request = n_request,
                              .n_logit_row = n,
                              .n_most = test.n_token,
                              .max_context = max_context,
                              .page_stride = N_PAGE,
                              .ids = to->ids,
                              .next_ids = to->next,
                              .pos = to->pos,
                              .request = to->request,
                              .slot = to->slot,
                              .page_table = to->pages,
                              .first = to->first,
                              .logit_rows = to->rows};
}

static fathom_err step(struct rank *r)
{
    const struct backend_ops *ops = r->b->ops;
    const size_t n_vocab = test.config.n_vocab;
    fathom_err err = ops->copy_in(r->b, r->device, &r->a, sizeof r->a);
    if (!err) err = ops->sync(r->b);
    for (int pass = 0; pass < 2 && !err; pass++) {
        err = pass ? model_mtp(r->model, &r->batch, &r->kv)
                   : model_forward(r->model, &r->batch, &r->kv);
        for (uint32_t t = r->rank % test.n_share; t < r->batch.n_token && !err; t += test.n_share) {
            const size_t row =
                ((size_t)pass * N_TEXT + r->text[t]) * test.length + (size_t)r->a.pos[t];
            err = ops->buffer_read(r->b, model_logits(r->model), t, 1, (uint32_t)n_vocab, r->row);
            memcpy(logits + row * n_vocab, r->row, n_vocab * sizeof *r->row);
        }
    }
    return err ? err : ops->sync(r->b);
}

static uint32_t n_running;

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    r->err = r->b->ops->bind_thread(r->b);
    for (uint32_t s = 0; s < r->plan->n_step && !r->err; s++) {
        fill_step(r, n_running, s);
        r->err = step(r);
    }
    return NULL;
}

static void clear_pages(struct rank *r)
{
    uint8_t *zero = mem_calloc(1, pages_bytes(r));
    assert_non_null(zero);
    must(r->b->ops->bind_thread(r->b), &(fathom_diag){{0}});
    must(r->b->ops->copy_in(r->b, r->kv.base, zero, pages_bytes(r)), &(fathom_diag){{0}});
    must(r->b->ops->sync(r->b), &(fathom_diag){{0}});
    mem_free(zero);
}

/* Those of a text, from each rank of its lane. */
static void read_pages(uint32_t lane, uint32_t text, uint8_t *to)
{
    const size_t bytes = pages_bytes(&ranks[0]) / N_TEXT;
    uint8_t *other = mem_alloc(bytes);
    assert_non_null(other);
    for (uint32_t i = 0; i < test.n_share; i++) {
        struct rank *r = &ranks[lane * test.n_share + i];
        const void *from = (const uint8_t *)r->kv.base + text * bytes;
        must(r->b->ops->bind_thread(r->b), &(fathom_diag){{0}});
        must(r->b->ops->copy_out(r->b, i == 0 ? to : other, from, bytes), &(fathom_diag){{0}});
        must(r->b->ops->sync(r->b), &(fathom_diag){{0}});
        if (i > 0 && memcmp(other, to, bytes) != 0)
            fail_msg("text %u: other pages on rank %u of lane %u", text, i, lane);
    }
    mem_free(other);
}

/* Logits of a plan, and the records of all texts' pages: [N_TEXT * N_PAGE] (mem_free). */
static uint8_t *run(const struct plan *plan, uint32_t n)
{
    const size_t bytes = pages_bytes(&ranks[0]);
    uint8_t *pages = mem_calloc(1, bytes);
    assert_non_null(pages);
    n_running = n;
    for (uint32_t i = 0; i < n; i++) {
        clear_pages(&ranks[i]);
        ranks[i].plan = plan;
    }
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (uint32_t i = 0; i < n; i++) pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (ranks[i].err) fail_msg("rank %u: %s", i, ranks[i].b->ops->fault(ranks[i].b));
    }
    for (uint32_t i = 0; i < N_TEXT; i++)
        read_pages(plan->by[i] % (n / test.n_share), i, pages + i * bytes / N_TEXT);
    return pages;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_close(const float *got, const float *want, const char *what, double limit)
{
    static double errors[N_TOKEN];
    const size_t n_vocab = test.config.n_vocab;
    uint32_t n_equal = 0;
    for (uint32_t t = 0; t < test.n_token; t++) {
        double diff = 0, square = 0;
        for (size_t i = t * n_vocab; i < (t + 1) * n_vocab; i++) {
            const double w = (double)want[i], e = (double)got[i] - w;
            diff += e * e;
            square += w * w;
        }
        assert_true(square > 0);
        errors[t] = sqrt(diff / square);
        n_equal += errors[t] == 0;
    }
    qsort(errors, test.n_token, sizeof *errors, by_size);
    print_message("%s: median %.2g, largest %.2g, %u of %u rows equal\n", what,
                  errors[test.n_token / 2], errors[test.n_token - 1], n_equal, test.n_token);
    assert_true(errors[test.n_token / 2] <= limit);
}

static void ranks_with_texts_of_their_own_compute_what_one_does(void **state)
{
    (void)state;
    const size_t n_value = (size_t)test.n_token * test.config.n_vocab;
    const uint32_t n = test.n_rank;
    logits = mem_alloc_array(2 * n_value, sizeof *logits);
    float *want = mem_alloc_array(2 * n_value, sizeof *want);
    assert_true(logits && want);
    const uint32_t n_share = test.n_share;
    test.n_share = 1;
    open_ranks(1);
    mem_free(run(&plans[0], 1));
    memcpy(want, logits, 2 * n_value * sizeof *want);
    const uint64_t whole_bytes = model_weights_bytes(ranks[0].model);
    close_ranks(1);

    test.n_share = n_share;
    open_ranks(n);
    for (uint32_t i = 0; i < n; i++) assert_true(model_weights_bytes(ranks[i].model) < whole_bytes);
    uint8_t *first = NULL;
    for (int i = 0; i < N_PLAN; i++) {
        memset(logits, 0xff, 2 * n_value * sizeof *logits);
        uint8_t *pages = run(&plans[i], n);
        if (i == 0) {
            check_close(logits, want, "logits", test.limit);
            check_close(logits + n_value, want + n_value, "draft layer", 2 * test.limit);
            memcpy(want, logits, 2 * n_value * sizeof *want);
            first = pages;
            continue;
        }
        if (memcmp(logits, want, 2 * n_value * sizeof *want) != 0)
            fail_msg("%s: other logits than %s", plans[i].name, plans[0].name);
        if (memcmp(pages, first, pages_bytes(&ranks[0])) != 0)
            fail_msg("%s: other pages than %s", plans[i].name, plans[0].name);
        mem_free(pages);
    }
    close_ranks(n);
    mem_free(first);
    mem_free(want);
    mem_free(logits);
}

int main(int argc, char **argv)
{
    if (argc != 7 && argc != 8) {
        print_error("usage: test_ranks_dp MODEL BACKEND RANKS f32|bf16|fp8 f32|bf16|fp8 LIMIT "
                    "[LENGTH]\n");
        return 2;
    }
    test.backend = argv[2];
    char *share;
    test.n_rank = (uint32_t)strtoul(argv[3], &share, 10);
    test.n_share = *share == 'x' ? (uint32_t)strtoul(share + 1, NULL, 10) : 1;
    test.n_rank *= test.n_share;
    test.act = argv[4][0] == 'b' ? ACT_BF16 : argv[4][1] == 'p' ? ACT_FP8 : ACT_F32;
    test.kv = argv[5][0] == 'b' ? KV_TYPE_BF16 : argv[5][1] == 'p' ? KV_TYPE_FP8 : KV_TYPE_F32;
    test.limit = strtod(argv[6], NULL);
    test.length = argc > 7 ? (uint32_t)strtoul(argv[7], NULL, 10) : LENGTH;
    test.n_token = N_TEXT * test.length;
    assert_true(test.length >= 8 && test.length % 8 == 0 && test.length <= LENGTH);
#ifdef FATHOM_TESTS_SIMT_FAULT_H
    simt_set_devices((int)test.n_rank);
#endif
    if (strcmp(test.backend, "cuda") == 0 && backend_cuda_count() < (int)test.n_rank) {
        print_message("skipped: %u GPUs are needed, there are %d\n", test.n_rank,
                      backend_cuda_count());
        return SKIPPED;
    }
    fathom_diag d = {{0}};
    if (strstr(argv[1], "pilot"))
        must(checkpoint_open(&test.checkpoint, argv[1], &d), &d);
    else
        must(checkpoint_open_files(&test.checkpoint, argv[1], NULL, &d), &d);
    must(model_config_load(&test.config, test.checkpoint, &d), &d);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_texts_of_their_own_compute_what_one_does)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    checkpoint_close(test.checkpoint);
    return n_failed;
}

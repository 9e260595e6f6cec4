/* model_bench.c - one rank's slice of a model with generated weights, on one GPU: step times
 *
 *   bench_model CONFIG.json [--world N] [--layers N] [--context N] [--eager] [--once] TOKENS...
 *
 * A positive count of tokens is a decode step of as many requests with `context` tokens each; a
 * count written pN is a prefill step of one request's first N tokens. Collectives are left out, and
 * routing is what random weights give: near uniform. Prints one line a step size: median and
 * smallest of 20 replays of a recorded step, CUDA backend.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"

enum { MAX_TOKEN = 4096, MAX_REQUEST = 64, REPEAT = 20 };

static void die(const char *what, const fathom_diag *d)
{
    fprintf(stderr, "bench_model: %s: %s\n", what, d->text);
    exit(1);
}

struct bench {
    struct backend *b;
    struct model *m;
    struct kv_cache kv;
    int32_t *host; /* the batch's arrays, one block */
    int32_t *device;
    uint32_t context;
    uint32_t page_stride;
    bool eager;
    bool once; /* one eager step and no times: for a profiler */
};

/* Arrays of a step in one block: ids, next ids, pos, request, slot, first, rows, page table. */
static struct batch make_batch(struct bench *s, uint32_t n_token, bool prefill)
{
    uint32_t n_request = prefill ? 1 : n_token;
    uint64_t state = 7;
    int32_t *h = s->host;
    int32_t *d = s->device;
    size_t t = MAX_TOKEN;
    struct batch b = {
        .n_token = n_token,
        .n_request = n_request,
        .n_answer_token = prefill ? 0 : n_token,
        .n_answer_request = prefill ? 0 : n_request,
        .n_logit_row = n_request,
        .max_context = prefill ? n_token : s->context,
        .page_stride = s->page_stride,
        .ids = d,
        .next_ids = d + t,
        .pos = d + 2 * t,
        .request = d + 3 * t,
        .slot = d + 4 * t,
        .first = d + 5 * t,
        .logit_rows = d + 5 * t + MAX_REQUEST + 1,
        .page_table = d + 5 * t + 2 * MAX_REQUEST + 2,
    };
    int32_t *pages = h + 5 * t + 2 * MAX_REQUEST + 2;
    for (uint32_t r = 0; r < n_request; r++) {
        for (uint32_t p = 0; p < s->page_stride; p++) {
            pages[r * s->page_stride + p] = (int32_t)((r * s->page_stride + p) % s->kv.n_page);
        }
        h[5 * t + r] = prefill ? 0 : (int32_t)r;
        h[5 * t + MAX_REQUEST + 1 + r] = prefill ? (int32_t)n_token - 1 : (int32_t)r;
    }
    h[5 * t + n_request] = (int32_t)n_token;
    for (uint32_t i = 0; i < n_token; i++) {
        uint32_t r = prefill ? 0 : i;
        uint32_t pos = prefill ? i : s->context - 1;
        h[i] = (int32_t)rng_below(&state, 100000);
        h[t + i] = (int32_t)rng_below(&state, 100000);
        h[2 * t + i] = (int32_t)pos;
        h[3 * t + i] = (int32_t)r;
        h[4 * t + i] = pages[r * s->page_stride + pos / 64] * 64 + (int32_t)(pos % 64);
    }
    return b;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(struct bench *s, fathom_err err)
{
    if (err == FATHOM_OK) return;
    fprintf(stderr, "bench_model: %s: %s\n", fathom_err_name(err), s->b->ops->fault(s->b));
    exit(1);
}

static void run(struct bench *s, uint32_t n_token, bool prefill)
{
    const struct backend_ops *ops = s->b->ops;
    struct batch batch = make_batch(s, n_token, prefill);
    size_t n = 5 * (size_t)MAX_TOKEN + 2 * MAX_REQUEST + 2 + (size_t)MAX_REQUEST * s->page_stride;
    check(s, ops->copy_in(s->b, s->device, s->host, n * 4));
    check(s, model_forward(s->m, &batch, &s->kv));
    check(s, ops->sync(s->b));
    if (s->once) return;
    struct graph *g = NULL;
    if (!s->eager) {
        check(s, ops->graph_begin(s->b));
        check(s, model_forward(s->m, &batch, &s->kv));
        check(s, ops->graph_end(s->b, &g));
    }
    double ms[REPEAT];
    for (int i = -3; i < REPEAT; i++) {
        uint64_t start = clock_now_ns();
        check(s, g ? ops->graph_launch(s->b, g) : model_forward(s->m, &batch, &s->kv));
        check(s, ops->sync(s->b));
        if (i >= 0) ms[i] = (double)(clock_now_ns() - start) / 1e6;
    }
    if (g) ops->graph_destroy(s->b, g);
    qsort(ms, REPEAT, sizeof *ms, compare);
    printf("model %s tokens %u context %u: median %.3f ms, min %.3f, max %.3f\n",
           prefill ? "prefill" : "decode", n_token, batch.max_context, ms[REPEAT / 2], ms[0],
           ms[REPEAT - 1]);
    fflush(stdout);
}

static void open_model(struct bench *s, const char *path, uint32_t world, uint32_t n_layer)
{
    fathom_diag d = {{0}};
    struct file_map map;
    struct model_config config;
    struct model_weights weights;
    struct backend_config bc;
    if (file_map_open(&map, path, &d)) die("config", &d);
    if (model_config_parse(&config, map.data, map.size, &d)) die("config", &d);
    if (n_layer) config.n_layer = n_layer;
    struct model_limits limits = {.act = ACT_FP8,
                                  .kv_type = KV_TYPE_FP8,
                                  .max_token = MAX_TOKEN,
                                  .max_request = MAX_REQUEST,
                                  .max_context = s->context < MAX_TOKEN ? MAX_TOKEN : s->context,
                                  .max_logit_row = MAX_REQUEST};
    const struct model_place place = {.parallel = {.tp = {.size = world}, .is_slice = world > 1}};
    const struct model_loading as_stored = {0};
    model_backend_config(&bc, &config, &limits, &place);
    if (backend_cuda_create(&s->b, &bc, &d)) die("backend", &d);
    if (weights_generate(&weights, &config, 1, &place.parallel, &d)) die("weights", &d);
    uint64_t start = clock_now_us();
    if (model_create(&s->m, s->b, &config, &weights, &limits, &as_stored, &d)) die("model", &d);
    printf("model weights %.1f GB, made in %.1f s\n", (double)model_weights_bytes(s->m) / 1e9,
           (double)(clock_now_us() - start) / 1e6);
    s->page_stride = (limits.max_context + 63) / 64;
    s->kv.layout = bc.kv;
    s->kv.n_page = MAX_REQUEST * ((s->context + 63) / 64);
    if (s->kv.n_page < s->page_stride) s->kv.n_page = s->page_stride;
    size_t n = 5 * (size_t)MAX_TOKEN + 2 * MAX_REQUEST + 2 + (size_t)MAX_REQUEST * s->page_stride;
    s->host = mem_calloc(n, 4);
    if (s->b->ops->alloc(s->b, n * 4, "batch", (void **)&s->device, &d)) die("batch", &d);
    size_t bytes = (size_t)s->kv.n_page * s->kv.layout.page_bytes;
    if (s->b->ops->alloc(s->b, bytes, "cache", &s->kv.base, &d)) die("cache", &d);
}

int main(int argc, char **argv)
{
    struct bench s = {.context = 2048};
    uint32_t world = 8, n_layer = 0;
    if (argc < 3) return 2;
    int i = 2;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--eager") == 0) {
            s.eager = true;
        } else if (strcmp(argv[i], "--once") == 0) {
            s.once = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--world") == 0) {
            world = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--layers") == 0) {
            n_layer = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--context") == 0) {
            s.context = (uint32_t)strtoul(argv[++i], NULL, 10);
        }
    }
    open_model(&s, argv[1], world, n_layer);
    for (; i < argc; i++) {
        bool prefill = argv[i][0] == 'p';
        run(&s, (uint32_t)strtoul(argv[i] + prefill, NULL, 10), prefill);
    }
    return 0;
}

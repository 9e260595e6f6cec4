/* ops_bench.c - the operators of one rank's slice on one GPU, at shapes of one's choice
 *
 *   bench_ops CONFIG.json [--world N] [--experts N] [--repeat N] [--op NAME] SHAPE...
 *
 * A shape is T:CONTEXT, decodes of T requests, or pT:CONTEXT, the last T tokens of one prompt.
 * --op times one operator and runs the others once. Fewer experts than the model's make it start
 * sooner; then moe and router are not the model's.
 * What `fathom bench kernels` prints, without the rest of the program: for a profiler. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/os.h"
#include "bench/op_bench.h"
#include "model/config.h"

enum { MAX_SHAPE = 32, FLUSH_BYTES = 128 << 20, MEASURE_BYTES = 1 << 30 };

static void die(const char *what, const fathom_diag *d)
{
    fprintf(stderr, "bench_ops: %s: %s\n", what, d->text);
    exit(1);
}

static void print_line(void *arg, const struct op_bench_row *row)
{
    (void)arg;
    printf("%-12s %s %5u tokens, context %6u: %9.2f us, in a train %9.2f, %8.1f GB/s, %7.2f "
           "TFLOP/s, floor %.2f\n",
           row->op, row->shape.is_prefill ? "prefill" : "decode ", row->shape.n_token,
           row->shape.context, row->us, row->train_us, row->bytes / row->us / 1e3,
           row->flop / row->us / 1e6, row->floor_us);
    (void)fflush(stdout);
}

static bool read_shape(struct op_bench_shape *out, const char *text)
{
    char *end;
    out->is_prefill = text[0] == 'p';
    out->n_token = (uint32_t)strtoul(text + (out->is_prefill ? 1 : 0), &end, 10);
    if (*end != ':') return false;
    out->context = (uint32_t)strtoul(end + 1, &end, 10);
    return *end == '\0' && out->n_token > 0;
}

static void read_config(struct model_config *config, const char *path)
{
    fathom_diag d = {{0}};
    struct file_map map;
    if (file_map_open(&map, path, &d)) die("config", &d);
    if (model_config_parse(config, map.data, map.size, &d)) die("config", &d);
    file_map_close(&map);
}

int main(int argc, char **argv)
{
    struct model_limits limits = {.act = ACT_FP8, .kv_type = KV_TYPE_FP8};
    struct model_place place = {.parallel = {.tp = {.size = 8}, .is_slice = true}};
    struct op_bench_options options = {
        .n_warm_up = 3, .n_repeat = 20, .flush_bytes = FLUSH_BYTES, .measure_bytes = MEASURE_BYTES};
    struct op_bench_shape shapes[MAX_SHAPE];
    struct model_config config;
    struct backend_config c;
    struct backend *b;
    struct op_bench *p;
    fathom_diag d = {{0}};
    int n = 0;
    if (argc < 3) return 2;
    read_config(&config, argv[1]);
    for (int i = 2; i < argc; i++) {
        uint32_t value = i + 1 < argc ? (uint32_t)strtoul(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--world") == 0) {
            place.parallel.tp.size = value, i++;
        } else if (strcmp(argv[i], "--experts") == 0) {
            config.n_expert = value, i++;
        } else if (strcmp(argv[i], "--repeat") == 0) {
            options.n_repeat = value, i++;
        } else if (strcmp(argv[i], "--op") == 0 && i + 1 < argc) {
            options.only = argv[++i];
        } else if (n == MAX_SHAPE || !read_shape(&shapes[n], argv[i])) {
            return 2;
        } else {
            const struct op_bench_shape *s = &shapes[n++];
            uint32_t n_request = s->is_prefill ? 1 : s->n_token;
            if (s->n_token > limits.max_token) limits.max_token = s->n_token;
            if (s->context > limits.max_context) limits.max_context = s->context;
            if (n_request > limits.max_request) limits.max_request = n_request;
        }
    }
    limits.max_logit_row = limits.max_request;
    op_bench_config(&c, &config, &limits, &place);
    if (backend_cuda_create(&b, &c, &d)) die("backend", &d);
    if (op_bench_create(&p, b, &config, &limits, &place, &options, &d)) die("layers", &d);
    for (int i = 0; i < n; i++) {
        if (op_bench_run(p, &shapes[i], print_line, NULL, &d)) die("run", &d);
    }
    op_bench_destroy(p);
    return 0;
}

/* cmd_bench_kernels.c - fathom bench kernels: every operator by itself, as CSV */
#include <stdio.h>

#include "backend/backend.h"
#include "base/fail.h"
#include "bench/op_bench.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "engine/settings.h"
#include "model/config.h"

enum { PREFILL_TOKENS = 4096, DECODES = 64, LONG_CONTEXT = 8192 };

static fathom_err load_config(struct model_config *config, const struct invocation *v,
                              fathom_diag *d)
{
    struct checkpoint *c = NULL;
    if (v->model->is_config) {
        const fathom_bundle_file *file = &v->model->config_file;
        return model_config_parse(config, (const char *)file->data, file->size, d);
    }
    TRY(model_source_open_files(&c, v->model, v->settings, d));
    fathom_err err = model_config_load(config, c, d);
    checkpoint_close(c);
    return err;
}

static fathom_err make_backend(struct backend **out, const struct engine_settings *s,
                               const struct model_config *config, fathom_diag *d)
{
    struct backend_config c;
    op_bench_config(&c, config, &s->limits, &s->place);
    switch (s->backend) {
    case FATHOM_BACKEND_REF: return backend_ref_create(out, &c, d);
    case FATHOM_BACKEND_CUDA: return backend_cuda_create(out, &c, d);
    default: return backend_cpu_create(out, &c, d);
    }
}

static void print_line(void *arg, const struct op_bench_row *row)
{
    (void)arg;
    printf("%s,%s,%u,%u,%.2f,%.2f,%.1f,%.2f,%.2f,%.3f\n", row->op,
           row->shape.is_prefill ? "prefill" : "decode", row->shape.n_token, row->shape.context,
           row->us, row->train_us, row->bytes / row->us / 1e3, row->flop / row->us / 1e6,
           row->floor_us, row->floor_us / row->us);
    (void)fflush(stdout);
}

/* Decodes in a short and in a long context, and pieces of prompts, as far as the limits go. */
static fathom_err run_shapes(struct op_bench *p, const struct model_limits *l, fathom_diag *d)
{
    static const uint32_t decodes[] = {1, 8, 64};
    static const uint32_t contexts[] = {2048, LONG_CONTEXT};
    static const uint32_t prefills[] = {512, PREFILL_TOKENS};
    printf("operator,step,tokens,context,us,train_us,gb_s,tflop_s,floor_us,floor_share\n");
    for (int k = 0; k < 2; k++) {
        uint32_t context = contexts[k] < l->max_context ? contexts[k] : l->max_context;
        if (k > 0 && contexts[k - 1] >= l->max_context) break;
        for (int i = 0; i < 3; i++) {
            struct op_bench_shape shape = {decodes[i], context, false};
            if (shape.n_token > l->max_request) continue;
            TRY(op_bench_run(p, &shape, print_line, NULL, d));
        }
    }
    for (int i = 0; i < 2; i++) {
        struct op_bench_shape shape = {prefills[i], prefills[i], true};
        if (shape.n_token > l->max_token || shape.context > l->max_context) continue;
        TRY(op_bench_run(p, &shape, print_line, NULL, d));
    }
    return FATHOM_OK;
}

fathom_err cmd_bench_kernels(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct model_config config;
    struct engine_settings settings;
    struct backend *b = NULL;
    struct op_bench *p = NULL;
    struct backend_caps caps;
    fathom_options o;
    TRY(load_config(&config, v, d));
    TRY(model_config_check_quant(&config, d));
    engine_options(&o, s, v->model);
    o.dummy = true; /* also where the model has weights: they are generated */
    if (o.max_num_seqs == 0) o.max_num_seqs = DECODES;
    if (o.max_model_len == 0) {
        o.max_model_len = config.max_position < LONG_CONTEXT ? config.max_position : LONG_CONTEXT;
    }
    if (o.max_num_batched_tokens == 0) {
        o.max_num_batched_tokens =
            o.max_model_len < PREFILL_TOKENS ? o.max_model_len : PREFILL_TOKENS;
    }
    TRY(settings_resolve(&settings, &o, &config, d));
    TRY(make_backend(&b, &settings, &config, d));
    b->ops->get_caps(b, &caps);
    struct op_bench_options options = {.n_warm_up = (uint32_t)s->num_iters_warmup,
                                       .n_repeat = (uint32_t)s->num_iters,
                                       .flush_bytes = (size_t)128 << 20,
                                       .measure_bytes = (size_t)1 << 30};
    if (!caps.graphs) {
        options.flush_bytes = (size_t)64 << 20;
        options.measure_bytes = (size_t)256 << 20;
    }
    const struct model_config stored = settings_stored(&settings, &config);
    TRY(op_bench_create(&p, b, &stored, &settings.limits, &settings.place, &options, d));
    printf("# backend %s, %s; rank %u of %u; a copy moves %.1f GB/s\n", caps.name, caps.device,
           settings.place.parallel.tp.rank, settings.place.parallel.tp.size,
           op_bench_bandwidth(p) / 1e9);
    fathom_err err = run_shapes(p, &settings.limits, d);
    op_bench_destroy(p);
    return err;
}

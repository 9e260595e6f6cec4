/* cmd_bench.c - fathom bench latency and fathom bench throughput: the engine in this process */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/new_file.h"
#include "base/os.h"
#include "bench/latency.h"
#include "bench/mixed.h"
#include "bench/throughput.h"
#include "cli/bench_cli.h"

static void print_spread(const char *name, const char *unit, const struct spread *s)
{
    print_row(name, "%.2f %s (%.2f to %.2f)", s->median, unit, s->min, s->max);
}

static void print_experts(const struct latency_result *r, uint32_t n_expert)
{
    if (r->n_expert_layer == 0) return;
    print_row("experts hit", "%.1f of %u a layer by %.1f tokens, by choice at random %.1f; %u seen",
              r->experts_hit, n_expert, r->experts_tokens, r->experts_uniform, r->n_expert_layer);
    print_row("busiest expert", "%.1f tokens", r->experts_busiest);
}

static void print_result(const struct latency_options *o, const struct latency_result *r)
{
    print_row("batch", "%u requests, %u tokens in, %u out; %u runs after %u", o->n_request,
              o->n_input, o->n_output, o->n_repeat, o->n_warm_up);
    print_spread("prefill", "ms", &r->prefill_ms);
    print_spread("prefill rate", "tok/s", &r->prefill_tok_s);
    if (o->n_output > 1) {
        print_spread("step", "ms", &r->step_ms);
        print_spread("step, cpu", "ms", &r->step_cpu_ms);
        print_row("step tokens", "%.1f: requests that began first end first", r->step_tokens);
        print_spread("output rate", "tok/s", &r->output_tok_s);
    }
    print_spread("whole", "ms", &r->total_ms);
    if (r->host_us_per_step > 0) {
        print_row("host", "%.1f us a step, %.0f %% of them launched ahead", r->host_us_per_step,
                  r->ahead_share * 100);
    }
}

static void print_mixed(const struct mixed_options *o, const struct mixed_result *r)
{
    print_row("mixed", "%u decodes beside a prompt of %u tokens; %zu steps of both", o->n_decode,
              o->n_prompt, r->step_ms.n);
    print_row("mixed step", "%.2f ms; %.2f of decodes and %.2f of a chunk alone are %.2f",
              r->step_ms.median, r->decode_ms.median, r->chunk_ms.median, mixed_parts_ms(r));
    print_row("mixed ITL", "%.2f ms at 99 %%, %.2f at most", r->step_ms.p99, r->step_ms.max);
    print_spread("mixed prompt", "ms", &r->beside_ms);
    print_spread("prompt alone", "ms", &r->alone_ms);
}

/* Prompts beside as many decodes as the batch has; json: the object of the result. */
static fathom_err run_mixed(fathom_engine *e, const struct latency_options *o, uint32_t n_prompt,
                            struct buf *json, fathom_diag *d)
{
    const struct mixed_options mixed = {.n_decode = o->n_request,
                                        .n_input = o->n_input,
                                        .n_prompt = n_prompt,
                                        .n_warm_up = o->n_warm_up,
                                        .n_repeat = o->n_repeat,
                                        .seed = o->seed};
    struct mixed_result r;
    TRY(mixed_run(e, &mixed, &r, d));
    print_mixed(&mixed, &r);
    return mixed_write_json(json, &mixed, &r);
}

fathom_err cmd_bench_latency(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct latency_options o = {.n_request = (uint32_t)s->batch_size,
                                .n_input = (uint32_t)s->input_len,
                                .n_output = (uint32_t)s->output_len,
                                .n_warm_up = (uint32_t)s->num_iters_warmup,
                                .n_repeat = (uint32_t)s->num_iters,
                                .seed = (uint64_t)s->bench.seed,
                                .skip_experts = s->skip_experts};
    struct latency_result r;
    fathom_options options;
    fathom_engine *e = NULL;
    struct buf json = {0}, mixed = {0};
    fathom_err err;
    const uint32_t n_mixed = (uint32_t)s->mixed_input_len;
    engine_options(&options, s, v->model);
    const uint32_t n_lane = options.data_parallel > 1 ? options.data_parallel : 1;
    if (options.max_num_seqs == 0) { /* a prompt that lanes share is a request of each */
        options.max_num_seqs = (o.n_request + n_lane - 1) / n_lane + (n_mixed > 0) + (n_lane > 1);
    }
    if (s->output_json) TRY_GOTO(path_check_writable(s->output_json, true, d), done);
    TRY_GOTO(engine_open(&e, &options, d), done);
    TRY_GOTO(latency_run(e, &o, &r, d), done);
    print_result(&o, &r);
    print_experts(&r, fathom_get_info(e)->n_expert);
    if (n_mixed > 0) TRY_GOTO(run_mixed(e, &o, n_mixed, &mixed, d), done);
    if (s->output_json) {
        TRY_GOTO(latency_write_json(&json, &o, &r, &mixed, fathom_get_info(e)), done);
        TRY_GOTO(file_save(s->output_json, buf_str(&json), json.len, d), done);
    }
done:
    buf_free(&json);
    buf_free(&mixed);
    fathom_close(e);
    return err;
}

/* ---- throughput -------------------------------------------------------------------------- */

static void print_throughput(const struct throughput_result *r, const struct dataset_options *o)
{
    double s = r->seconds > 0 ? r->seconds : 1;
    print_row("workload", "%s, %zu requests, %.1f tokens in and %.1f out on average, seed %llu",
              dataset_kind_name(o->kind), r->n_request, (double)r->n_input / (double)r->n_request,
              (double)r->n_output / (double)r->n_request, (unsigned long long)o->seed);
    print_row("time", "%.3f s", r->seconds);
    print_row("cached", "%llu of %llu prompt tokens were found in the prefix cache",
              (unsigned long long)r->n_cached, (unsigned long long)r->n_input);
    printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
           (double)r->n_request / s, (double)(r->n_input + r->n_output) / s,
           (double)r->n_output / s);
    printf("Total num prompt tokens:  %llu\nTotal num output tokens:  %llu\n",
           (unsigned long long)r->n_input, (unsigned long long)r->n_output);
}

fathom_err cmd_bench_throughput(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct bench_tokenizer t = {0};
    struct dataset dataset = {0};
    struct dataset_options o;
    struct throughput_result r;
    struct buf json = {0};
    fathom_options options;
    fathom_engine *e = NULL;
    fathom_err err;
    engine_options(&options, s, v->model);
    if (s->output_json) TRY_GOTO(path_check_writable(s->output_json, true, d), done);
    TRY_GOTO(
        bench_tokenizer_open(&t, s->bench.tokenizer ? s->bench.tokenizer : v->model->name, v, d),
        done);
    TRY_GOTO(bench_dataset(&o, s, t.adds_bos ? 1 : 0, d), done);
    o.n += (size_t)s->bench.num_warmups;
    TRY_GOTO(dataset_create(&dataset, &o, t.tokenizer, d), done);
    TRY_GOTO(engine_open(&e, &options, d), done);
    int32_t bos_id = t.adds_bos ? fathom_get_info(e)->bos_id : -1;
    size_t n_warm_up = (size_t)s->bench.num_warmups;
    if (n_warm_up) {
        TRY_GOTO(throughput_run(&r, e, dataset.items, n_warm_up, t.tokenizer, bos_id, d), done);
    }
    TRY_GOTO(throughput_run(&r, e, dataset.items + n_warm_up, dataset.n - n_warm_up, t.tokenizer,
                            bos_id, d),
             done);
    print_throughput(&r, &o);
    if (s->output_json) {
        TRY_GOTO(throughput_write_json(&json, &r, fathom_get_info(e)), done);
        TRY_GOTO(file_save(s->output_json, buf_str(&json), json.len, d), done);
    }
done:
    buf_free(&json);
    dataset_destroy(&dataset);
    bench_tokenizer_close(&t);
    fathom_close(e);
    return err;
}

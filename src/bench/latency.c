/* latency.c - one batch of equal requests, start to end */
#include "bench/latency.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"

enum { MAX_REQUEST = 65536, EVENTS = 256 };

/* Those that `vllm bench latency` writes. */
static const struct percentile_list percentiles = {.at = {10, 25, 50, 75, 90, 99}, .n = 6};

/* One run: when the last first token came, and when the last token did. */
struct run {
    double prefill_ms;
    double step_ms;
    double total_ms;
    double prefill_cpu_ms; /* processor time of the process */
    double step_cpu_ms;
};

/* What the engine did in some steps. */
struct steps {
    uint64_t n;
    uint64_t n_ahead;
    uint64_t n_token;
    uint64_t busy_us;
    uint64_t wait_us;
};

/* What all runs share. */
struct bench {
    fathom_engine *e;
    const struct latency_options *o;
    uint64_t state; /* of the generator of ids */
    int32_t *ids;   /* [n_input] */
    bool *started;  /* [n_request] whether the first token came */
    fathom_event *events;
    struct steps decodes; /* from the last first token on, of all runs since it was cleared */
    bool watches;         /* experts, from the last first token on */
};

static fathom_err submit_all(struct bench *b, fathom_diag *d)
{
    const struct latency_options *o = b->o;
    uint32_t n_vocab = fathom_get_info(b->e)->n_vocab;
    for (uint32_t i = 0; i < o->n_request; i++) {
        for (uint32_t k = 0; k < o->n_input; k++) {
            b->ids[k] = (int32_t)rng_below(&b->state, n_vocab);
        }
        b->started[i] = false;
        fathom_request r = {.prompt = b->ids, .n_prompt = o->n_input, .user = &b->started[i]};
        fathom_sampling_init(&r.sampling);
        r.sampling.temperature = 0;
        r.sampling.ignore_eos = true;
        r.sampling.max_tokens = o->n_output;
        uint64_t id;
        TRY(fathom_submit(b->e, &r, &id, d));
    }
    return FATHOM_OK;
}

/* Adds what the engine did since `from`. */
static void add_steps(struct bench *b, const fathom_stats *from)
{
    fathom_stats now;
    fathom_get_stats(b->e, &now);
    b->decodes.n += now.n_step - from->n_step;
    b->decodes.n_ahead += now.n_step_ahead - from->n_step_ahead;
    b->decodes.n_token += now.n_output_token - from->n_output_token;
    b->decodes.busy_us += now.busy_us - from->busy_us;
    b->decodes.wait_us += now.wait_us - from->wait_us;
}

/* Whether this token is the last one of the first tokens. */
static bool ends_prefill(struct bench *b, const fathom_event *ev, uint32_t *n_started)
{
    bool *started = ev->user;
    if (ev->kind != FATHOM_EVENT_TOKEN || *started) return false;
    *started = true;
    return ++*n_started == b->o->n_request;
}

static fathom_err run_once(struct bench *b, struct run *out, fathom_diag *d)
{
    const struct latency_options *o = b->o;
    uint64_t start_us = clock_now_us();
    uint64_t first_us = start_us;
    const uint64_t start_cpu_us = clock_process_cpu_us();
    uint64_t first_cpu_us = start_cpu_us;
    fathom_stats at_first = {0};
    TRY(submit_all(b, d));
    uint32_t n_started = 0;
    uint32_t n_finished = 0;
    while (n_finished < o->n_request) {
        size_t n = fathom_poll(b->e, b->events, EVENTS, -1);
        for (size_t i = 0; i < n; i++) {
            const fathom_event *ev = &b->events[i];
            if (ends_prefill(b, ev, &n_started)) {
                first_cpu_us = clock_process_cpu_us();
                fathom_get_stats(b->e, &at_first);
                fathom_watch_experts(b->e, b->watches);
            }
            if (ev->kind != FATHOM_EVENT_FINISH) continue;
            if (ev->finish == FATHOM_FINISH_ERROR) {
                FAIL(d, FATHOM_EDEVICE, "the engine failed: %s", fathom_fault(b->e));
            }
            n_finished++;
            uint64_t request_first_us = start_us + ev->first_us;
            if (request_first_us > first_us) first_us = request_first_us;
        }
    }
    uint64_t end_us = clock_now_us();
    if (n_started == o->n_request) add_steps(b, &at_first);
    out->prefill_ms = (double)(first_us - start_us) / 1e3;
    out->total_ms = (double)(end_us - start_us) / 1e3;
    out->prefill_cpu_ms = (double)(first_cpu_us - start_cpu_us) / 1e3;
    if (o->n_output > 1)
        out->step_cpu_ms =
            (double)(clock_process_cpu_us() - first_cpu_us) / 1e3 / (o->n_output - 1);
    out->step_ms = o->n_output > 1 ? (double)(end_us - first_us) / 1e3 / (o->n_output - 1) : 0;
    return FATHOM_OK;
}

/* The last run once more: its ids are those that the generator gives from `state` on. */
static fathom_err watch_run(struct bench *b, uint64_t state, struct latency_result *out,
                            fathom_diag *d)
{
    const fathom_info *info = fathom_get_info(b->e);
    struct run run;
    fathom_stats s;
    if (info->n_expert == 0 || b->o->n_output == 1 || b->o->skip_experts) return FATHOM_OK;
    b->state = state;
    b->watches = true;
    TRY(run_once(b, &run, d));
    fathom_watch_experts(b->e, false);
    fathom_get_stats(b->e, &s);
    if (s.n_expert_choice == 0) return FATHOM_OK;
    const double n_choice = (double)s.n_expert_choice;
    out->n_expert_layer = (uint32_t)s.n_expert_choice;
    out->experts_tokens = (double)s.n_expert_token / n_choice;
    out->experts_hit = (double)s.n_expert_hit / n_choice;
    out->experts_busiest = (double)s.n_expert_busiest / n_choice;
    out->experts_uniform = s.expert_uniform / n_choice;
    return FATHOM_OK;
}

static void summarise_runs(const struct latency_options *o, const struct run *runs, double *scratch,
                           struct latency_result *out)
{
    uint32_t n = o->n_repeat;
    for (uint32_t i = 0; i < n; i++) scratch[i] = runs[i].prefill_ms;
    out->prefill_ms = spread_of(scratch, n);
    for (uint32_t i = 0; i < n; i++) scratch[i] = runs[i].step_ms;
    out->step_ms = spread_of(scratch, n);
    for (uint32_t i = 0; i < n; i++) scratch[i] = runs[i].total_ms;
    out->total_ms = spread_of(scratch, n);
    for (uint32_t i = 0; i < n; i++) scratch[i] = runs[i].prefill_cpu_ms;
    out->prefill_cpu_ms = spread_of(scratch, n);
    for (uint32_t i = 0; i < n; i++) scratch[i] = runs[i].step_cpu_ms;
    out->step_cpu_ms = spread_of(scratch, n);
    for (uint32_t i = 0; i < n; i++) scratch[i] = out->latencies_s[i] = runs[i].total_ms / 1e3;
    summarise(&out->latency_s, scratch, n, &percentiles);
    double n_prompt = (double)o->n_request * o->n_input;
    for (uint32_t i = 0; i < n; i++) scratch[i] = n_prompt * 1e3 / runs[i].prefill_ms;
    out->prefill_tok_s = spread_of(scratch, n);
    for (uint32_t i = 0; i < n; i++) {
        scratch[i] = runs[i].step_ms > 0 ? o->n_request * 1e3 / runs[i].step_ms : 0;
    }
    out->output_tok_s = spread_of(scratch, n);
}

/* Of a device that works apart the engine waits for most of the time. */
static void summarise_steps(const struct steps *s, struct latency_result *out)
{
    if (s->n == 0) return;
    if (s->wait_us > s->busy_us / 2)
        out->host_us_per_step = (double)(s->busy_us - s->wait_us) / (double)s->n;
    out->step_tokens = (double)s->n_token / (double)s->n;
    out->ahead_share = (double)s->n_ahead / (double)s->n;
}

fathom_err latency_run(fathom_engine *e, const struct latency_options *o,
                       struct latency_result *out, fathom_diag *d)
{
    *out = (struct latency_result){0};
    if (o->n_request == 0 || o->n_request > MAX_REQUEST || o->n_input == 0 || o->n_output == 0 ||
        o->n_repeat == 0 || o->n_repeat > LATENCY_RUNS_MAX) {
        FAIL(d, FATHOM_EINVAL, "batch %u (1 to %d), input %u, output %u, repeats %u (1 to %d)",
             o->n_request, MAX_REQUEST, o->n_input, o->n_output, o->n_repeat, LATENCY_RUNS_MAX);
    }
    struct bench b = {.e = e, .o = o, .state = o->seed};
    b.ids = mem_alloc_array(o->n_input, sizeof *b.ids);
    b.started = mem_alloc_array(o->n_request, sizeof *b.started);
    b.events = mem_alloc_array(EVENTS, sizeof *b.events);
    struct run *runs = mem_calloc(o->n_repeat, sizeof *runs);
    double *scratch = mem_calloc(o->n_repeat, sizeof *scratch);
    bool has_memory = b.ids && b.started && b.events && runs && scratch;
    fathom_err err = has_memory ? FATHOM_OK : FATHOM_ENOMEM;
    struct run warm;
    uint64_t state = b.state;
    for (uint32_t i = 0; !err && i < o->n_warm_up; i++) err = run_once(&b, &warm, d);
    b.decodes = (struct steps){0};
    for (uint32_t i = 0; !err && i < o->n_repeat; i++) {
        state = b.state;
        err = run_once(&b, &runs[i], d);
    }
    if (!err) {
        summarise_runs(o, runs, scratch, out);
        summarise_steps(&b.decodes, out);
        err = watch_run(&b, state, out, d);
    }
    mem_free(b.ids);
    mem_free(b.started);
    mem_free(b.events);
    mem_free(runs);
    mem_free(scratch);
    return err;
}

static void write_spread(struct buf *b, const char *name, const struct spread *s)
{
    (void)buf_printf(b, ", \"%s\": {\"min\": %.3f, \"median\": %.3f, \"max\": %.3f}", name, s->min,
                     s->median, s->max);
}

/* What vLLM writes, under its names. */
static void write_latencies(struct buf *b, const struct latency_options *o,
                            const struct latency_result *r)
{
    (void)buf_printf(b, ", \"avg_latency\": %.6f, \"latencies\": [", r->latency_s.mean);
    for (uint32_t i = 0; i < o->n_repeat; i++) {
        (void)buf_printf(b, "%s%.6f", i ? ", " : "", r->latencies_s[i]);
    }
    (void)buf_add_str(b, "], \"percentiles\": {");
    for (size_t i = 0; i < percentiles.n; i++) {
        (void)buf_printf(b, "%s\"%.0f\": %.6f", i ? ", " : "", percentiles.at[i],
                         r->latency_s.percentiles[i]);
    }
    (void)buf_add_str(b, "}");
}

fathom_err latency_write_json(struct buf *b, const struct latency_options *o,
                              const struct latency_result *r, const struct buf *mixed,
                              const fathom_info *info)
{
    (void)buf_printf(
        b,
        "{\"model_type\": \"%s\", \"backend\": \"%s\", \"batch\": %u, \"input_len\": %u, "
        "\"output_len\": %u, \"repeats\": %u",
        info->model_type, info->backend, o->n_request, o->n_input, o->n_output, o->n_repeat);
    write_spread(b, "prefill_ms", &r->prefill_ms);
    write_spread(b, "step_ms", &r->step_ms);
    write_spread(b, "total_ms", &r->total_ms);
    write_spread(b, "prefill_tok_s", &r->prefill_tok_s);
    write_spread(b, "output_tok_s", &r->output_tok_s);
    write_spread(b, "prefill_cpu_ms", &r->prefill_cpu_ms);
    write_spread(b, "step_cpu_ms", &r->step_cpu_ms);
    write_latencies(b, o, r);
    (void)buf_printf(b, ", \"host_us_per_step\": %.1f, \"ahead_share\": %.3f", r->host_us_per_step,
                     r->ahead_share);
    (void)buf_printf(b, ", \"experts_hit\": %.2f, \"experts_uniform\": %.2f", r->experts_hit,
                     r->experts_uniform);
    (void)buf_printf(b, ", \"experts_busiest\": %.2f, \"experts_tokens\": %.2f", r->experts_busiest,
                     r->experts_tokens);
    (void)buf_printf(b, ", \"step_tokens\": %.2f", r->step_tokens);
    if (mixed->len > 0) (void)buf_printf(b, ", \"mixed\": %s", mixed->data);
    return buf_add_str(b, "}\n");
}

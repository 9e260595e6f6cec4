/* serve_run.c - a benchmark of a server: warm-up, repeats, what is asked around them */
#include "bench/serve_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "bench/scrape.h"

enum { WARM_UP_IN_FLIGHT = 64, RETRY_US = 1000000 };

/* One repeat under way. */
struct repeat {
    const struct serve_options *o;
    struct buf common;
    struct dataset dataset; /* the first request, the warm-up, those that count */
    double *due_s;          /* [dataset.n] */
    char salt[32];          /* "" for none */
};

static void say(const struct serve_options *o, const char *line)
{
    if (o->say) o->say(o->arg, line);
}

fathom_err serve_find_model(char **name, char **root, const struct http_target *t, fathom_diag *d)
{
    struct buf body = {0};
    json_t *list = NULL;
    long status = 0;
    fathom_err err;
    *name = *root = NULL;
    TRY_GOTO(http_get(t, "/v1/models", &body, &status, d), done);
    if (status != 200) {
        err = diag_fail(d, FATHOM_EIO, "%s/v1/models: HTTP %ld: %.300s", t->base_url, status,
                        buf_str(&body));
        goto done;
    }
    TRY_GOTO(json_read(buf_str(&body), body.len, "/v1/models", &list, d), done);
    const json_t *first = json_array_get(json_object_get(list, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    const char *stands_for = json_string_value(json_object_get(first, "root"));
    if (!id) {
        err = diag_fail(d, FATHOM_EFORMAT, "%s/v1/models names no model; use --model", t->base_url);
        goto done;
    }
    *name = mem_strdup(id);
    *root = stands_for ? mem_strdup(stands_for) : NULL;
    if (!*name || (stands_for && !*root)) err = FATHOM_ENOMEM;
done:
    json_decref(list);
    buf_free(&body);
    return err;
}

/* ---- one repeat -------------------------------------------------------------------------- */

/* Sends n items from `from`. With due_s NULL they are all due at once. */
static fathom_err send_items(const struct repeat *r, struct load_run *run, size_t from, size_t n,
                             const double *due_s, size_t max_in_flight, fathom_diag *d)
{
    const struct serve_options *o = r->o;
    struct load_options load = {
        .target = &o->target,
        .path = o->path,
        .is_chat = o->shape.is_chat,
        .common = &r->common,
        .items = r->dataset.items + from,
        .n = n,
        .due_s = due_s,
        .max_in_flight = max_in_flight,
        .salt = r->salt[0] ? r->salt : NULL,
        .salt_each = o->cache == CACHE_OFF,
        .first = from,
        .watch = from > o->n_warm_up ? o->watch : NULL,
        .watch_arg = o->arg,
    };
    return load_run_requests(run, &load, d);
}

/* A request that must succeed, tried again until the server is ready. */
static fathom_err send_first(const struct repeat *r, fathom_diag *d)
{
    uint64_t until_us = clock_now_us() + (uint64_t)(r->o->ready_timeout_s * 1e6);
    for (;;) {
        struct load_run run;
        fathom_err err = send_items(r, &run, 0, 1, r->due_s, 1, d);
        bool ok = !err && run.records[0].outcome == LOAD_OK;
        if (!err && !ok && clock_now_us() >= until_us) {
            err = diag_fail(d, FATHOM_EIO, "the first request to %s%s failed: %s: %.600s",
                            r->o->target.base_url, r->o->path,
                            load_outcome_name(run.records[0].outcome), run.records[0].message);
        }
        load_run_free(&run);
        if (ok || err) return err;
        clock_sleep_us(RETRY_US);
    }
}

/* Requests that do not count: their failures do, since those that count would fail too. */
static fathom_err send_uncounted(const struct repeat *r, size_t from, size_t n, const char *what,
                                 fathom_diag *d)
{
    size_t bound = r->o->max_in_flight;
    struct load_run run;
    if (n == 0) return FATHOM_OK;
    if (bound == 0 || bound > WARM_UP_IN_FLIGHT) bound = WARM_UP_IN_FLIGHT;
    say(r->o, what);
    fathom_err err = send_items(r, &run, from, n, r->due_s, bound, d);
    for (size_t i = 0; !err && i < run.n; i++) {
        const struct load_record *record = &run.records[i];
        if (record->outcome == LOAD_OK) continue;
        err = diag_fail(d, FATHOM_EIO, "%s: request %zu of %zu failed: %s: %.600s", what, i + 1, n,
                        load_outcome_name(record->outcome), record->message);
    }
    load_run_free(&run);
    return err;
}

/* The server's metrics; a server without them is no error. */
static void read_metrics(const struct serve_options *o, struct scrape *out)
{
    struct buf body = {0};
    long status = 0;
    memset(out, 0, sizeof *out);
    fathom_err err = http_get(&o->target, "/metrics", &body, &status, NULL);
    if (!err && status == 200) scrape_parse(out, buf_str(&body), body.len);
    buf_free(&body);
}

/* CACHE_ON sends the prompts once before, for one token each. */
static fathom_err fill_cache(struct repeat *r, size_t from, fathom_diag *d)
{
    const struct serve_options *o = r->o;
    if (o->cache != CACHE_ON) return FATHOM_OK;
    uint32_t *asked = mem_alloc_array(o->dataset.n, sizeof *asked);
    if (!asked) return FATHOM_ENOMEM;
    for (size_t i = 0; i < o->dataset.n; i++) {
        asked[i] = r->dataset.items[from + i].n_output;
        r->dataset.items[from + i].n_output = 1;
    }
    fathom_err err = send_uncounted(r, from, o->dataset.n, "filling the cache", d);
    for (size_t i = 0; i < o->dataset.n; i++) r->dataset.items[from + i].n_output = asked[i];
    mem_free(asked);
    return err;
}

static fathom_err prepare(struct repeat *r, size_t i, fathom_diag *d)
{
    const struct serve_options *o = r->o;
    struct dataset_options dataset = o->dataset;
    dataset.n += 1 + o->n_warm_up;
    dataset.seed += i;
    TRY(request_shape_write(&r->common, &o->shape, d));
    TRY(dataset_create(&r->dataset, &dataset, o->tokenizer, d));
    r->due_s = mem_calloc(r->dataset.n, sizeof *r->due_s);
    if (!r->due_s) return FATHOM_ENOMEM;
    if (o->cache != CACHE_AUTO) {
        (void)snprintf(r->salt, sizeof r->salt, "%016llx", (unsigned long long)rng_entropy());
    }
    return FATHOM_OK;
}

static fathom_err run_repeat(struct load_run *run, struct figures *f, const struct serve_options *o,
                             size_t i, fathom_diag *d)
{
    struct repeat r = {.o = o};
    size_t from = 1 + o->n_warm_up;
    struct scrape before;
    struct scrape after;
    fathom_err err;
    memset(run, 0, sizeof *run);
    TRY_GOTO(prepare(&r, i, d), done);
    if (i == 0) TRY_GOTO(send_first(&r, d), done);
    TRY_GOTO(send_uncounted(&r, 1, o->n_warm_up, "warm-up", d), done);
    TRY_GOTO(fill_cache(&r, from, d), done);
    struct arrival_options arrival = o->arrival;
    arrival.seed = rng_mix(o->dataset.seed + i, 9, 0);
    arrival_times(r.due_s, o->dataset.n, &arrival);
    read_metrics(o, &before);
    TRY_GOTO(send_items(&r, run, from, o->dataset.n, r.due_s, o->max_in_flight, d), done);
    read_metrics(o, &after);
    enum dataset_kind kind = o->dataset.kind;
    struct figures_options figures = {
        .percentiles = &o->percentiles,
        .goodput = o->goodput,
        .tokenizer = o->tokenizer,
        .cache_expected = o->cache == CACHE_ON || kind == DATASET_PREFIX_REPETITION ||
                          kind == DATASET_SONNET || o->dataset.n_prefix > 0,
    };
    TRY_GOTO(figures_compute(f, run, &figures), done);
    scrape_difference(&f->server, &before, &after);
done:
    buf_free(&r.common);
    dataset_destroy(&r.dataset);
    mem_free(r.due_s);
    return err;
}

/* ---- all repeats ------------------------------------------------------------------------- */

static const char *const repeated_names[REPEATED_COUNT] = {
    [REPEATED_OUTPUT_RATE] = "output_throughput",
    [REPEATED_TOTAL_RATE] = "total_token_throughput",
    [REPEATED_REQUEST_RATE] = "request_throughput",
    [REPEATED_TTFT_MEDIAN] = "median_ttft_ms",
    [REPEATED_TTFT_P99] = "p99_ttft_ms",
    [REPEATED_TPOT_MEDIAN] = "median_tpot_ms",
    [REPEATED_ITL_MEDIAN] = "median_itl_ms",
    [REPEATED_ITL_P99] = "p99_itl_ms",
    [REPEATED_E2EL_MEDIAN] = "median_e2el_ms",
    [REPEATED_E2EL_P99] = "p99_e2el_ms",
};

const char *repeated_name(enum repeated r)
{
    return repeated_names[r];
}

static double repeated_value(const struct figures *f, enum repeated r)
{
    const struct summary *m = f->metrics;
    switch (r) {
    case REPEATED_OUTPUT_RATE: return f->output_rate;
    case REPEATED_TOTAL_RATE: return f->total_rate;
    case REPEATED_REQUEST_RATE: return f->request_rate;
    case REPEATED_TTFT_MEDIAN: return m[METRIC_TTFT].median;
    case REPEATED_TTFT_P99: return m[METRIC_TTFT].p99;
    case REPEATED_TPOT_MEDIAN: return m[METRIC_TPOT].median;
    case REPEATED_ITL_MEDIAN: return m[METRIC_ITL].median;
    case REPEATED_ITL_P99: return m[METRIC_ITL].p99;
    case REPEATED_E2EL_MEDIAN: return m[METRIC_E2EL].median;
    case REPEATED_E2EL_P99: return m[METRIC_E2EL].p99;
    case REPEATED_COUNT: break;
    }
    return 0;
}

/* Spreads over the repeats, and which of them has the median output rate. */
static size_t spread_repeats(struct serve_result *out, const struct figures *all, double *scratch)
{
    size_t n = out->n_repeat;
    for (int k = 0; k < REPEATED_COUNT; k++) {
        for (size_t i = 0; i < n; i++) scratch[i] = repeated_value(&all[i], (enum repeated)k);
        out->spread[k] = spread_of(scratch, n);
    }
    double median = out->spread[REPEATED_OUTPUT_RATE].median;
    size_t i = 0;
    while (i + 1 < n && all[i].output_rate != median) i++;
    return i;
}

fathom_err serve_run(struct serve_result *out, const struct serve_options *o, fathom_diag *d)
{
    size_t n = o->n_repeat;
    memset(out, 0, sizeof *out);
    struct load_run *runs = mem_calloc(n, sizeof *runs);
    struct figures *all = mem_calloc(n, sizeof *all);
    double *scratch = mem_calloc(n, sizeof *scratch);
    fathom_err err = runs && all && scratch ? FATHOM_OK : FATHOM_ENOMEM;
    out->n_repeat = n;
    out->load_average = os_load();
    for (size_t i = 0; !err && i < n; i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "run %zu of %zu", i + 1, n);
        if (n > 1) say(o, line);
        err = run_repeat(&runs[i], &all[i], o, i, d);
    }
    if (!err) {
        size_t i = spread_repeats(out, all, scratch);
        out->figures = all[i];
        out->run = runs[i];
        memset(&runs[i], 0, sizeof runs[i]);
    }
    for (size_t i = 0; runs && i < n; i++) load_run_free(&runs[i]);
    mem_free(runs);
    mem_free(all);
    mem_free(scratch);
    return err;
}

void serve_result_free(struct serve_result *r)
{
    load_run_free(&r->run);
    memset(r, 0, sizeof *r);
}

/* ---- the workload in words --------------------------------------------------------------- */

static void write_lengths(struct buf *b, const struct dataset_options *s)
{
    (void)buf_printf(b, "%s", dataset_kind_name(s->kind));
    switch (s->kind) {
    case DATASET_RANDOM:
        if (s->n_prefix) (void)buf_printf(b, ", %u shared tokens and", s->n_prefix);
        (void)buf_printf(b, " %u in, %u out", s->n_input, s->n_output);
        if (s->range_ratio > 0) (void)buf_printf(b, " (within %.0f %%)", s->range_ratio * 100);
        break;
    case DATASET_PREFIX_REPETITION:
        (void)buf_printf(b, ", %u prefixes of %u and %u in, %u out", s->n_group, s->n_prefix,
                         s->n_input, s->n_output);
        break;
    case DATASET_SONNET:
        (void)buf_printf(b, " %u in, of these %u shared, %u out", s->n_input, s->n_prefix,
                         s->n_output);
        break;
    case DATASET_SHAREGPT:
    case DATASET_CUSTOM:
    case DATASET_KIND_COUNT:
        (void)buf_printf(b, " %s", s->path);
        if (s->n_output) (void)buf_printf(b, ", %u out", s->n_output);
        break;
    }
}

static void write_arrivals(struct buf *b, const struct serve_options *o)
{
    const struct arrival_options *a = &o->arrival;
    static const char *const ramps[] = {"", "linearly", "exponentially"};
    if (a->ramp != RAMP_NONE) {
        (void)buf_printf(b, "; from %g to %g requests/s, %s", a->ramp_start, a->ramp_end,
                         ramps[a->ramp]);
    } else if (isinf(a->rate)) {
        (void)buf_add_str(b, "; all due at once");
    } else {
        (void)buf_printf(b, "; %g requests/s", a->rate);
    }
    if ((a->ramp != RAMP_NONE || !isinf(a->rate)) && a->burstiness == 1) {
        (void)buf_add_str(b, ", Poisson");
    } else if (a->ramp != RAMP_NONE || !isinf(a->rate)) {
        (void)buf_printf(b, ", gamma of shape %g", a->burstiness);
    }
    if (o->max_in_flight) (void)buf_printf(b, "; at most %zu in flight", o->max_in_flight);
}

fathom_err serve_workload_write(struct buf *out, const struct serve_options *o)
{
    static const char *const caches[] = {"prompts as they are", "cache warm", "cache off"};
    write_lengths(out, &o->dataset);
    (void)buf_printf(out, "; %zu requests", o->dataset.n);
    if (o->n_repeat > 1) (void)buf_printf(out, ", %zu times", o->n_repeat);
    (void)buf_printf(out, " after %zu, seed %llu", o->n_warm_up + 1,
                     (unsigned long long)o->dataset.seed);
    write_arrivals(out, o);
    if (o->shape.temperature > SAMPLING_UNSET) {
        (void)buf_printf(out, "; temperature %g", o->shape.temperature);
    }
    (void)buf_printf(out, "%s; %s", o->shape.ignore_eos ? ", past EOS" : ", to EOS",
                     caches[o->cache]);
    return buf_status(out);
}

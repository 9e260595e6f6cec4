/* serve_result.c - a run of requests as text for a terminal and as JSON */
#include "bench/serve_result.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/os.h"

enum { NAME_BYTES = 64, KEY_BYTES = 256, COLUMNS = 50 };

static const char *const titles[METRIC_COUNT] = {"Time to First Token",
                                                 "Time per Output Token (excl. 1st token)",
                                                 "Inter-token Latency", "End-to-end Latency"};
static const char *const short_titles[METRIC_COUNT] = {"TTFT", "TPOT", "ITL", "E2EL"};

fathom_err serve_metrics_chosen(const char *list, unsigned *out, fathom_diag *d)
{
    *out = 0;
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        enum metric m = metric_find(at, n);
        if (m == METRIC_COUNT) {
            bool wait = n == 17 && strncmp(at, "client_queue_time", n) == 0;
            FAIL(d, FATHOM_EINVAL,
                 "--percentile-metrics: \"%.*s\" is none of ttft, tpot, itl, e2el%s", (int)n, at,
                 wait ? "; it is always told, as wait in the client" : "");
        }
        *out |= 1u << m;
        at += n;
        if (*at == ',') at++;
    }
    return FATHOM_OK;
}

/* "p99" or "p99.9" */
static const char *percentile_name(char out[NAME_BYTES], char letter, double at)
{
    (void)snprintf(out, NAME_BYTES, "%c%.15g", letter, at);
    return out;
}

/* ---- JSON -------------------------------------------------------------------------------- */

/* One object that is being filled; `failed` stays once it is set. */
struct members {
    json_t *object;
    bool failed;
};

static void add(struct members *m, const char *key, json_t *value)
{
    if (json_object_set_new(m->object, key, value) != 0) m->failed = true;
}

static void add_text(struct members *m, const char *key, const char *value)
{
    add(m, key, value ? json_string(value) : json_null());
}

static void add_real(struct members *m, const char *key, double value)
{
    add(m, key, json_real(isfinite(value) ? value : 0));
}

static void add_count(struct members *m, const char *key, uint64_t value)
{
    add(m, key, json_integer((json_int_t)value));
}

/* "name=value": the name, and where the value begins. */
static fathom_err split_metadata(char key[KEY_BYTES], const char **value, const char *pair,
                                 fathom_diag *d)
{
    const char *equals = strchr(pair, '=');
    if (!equals || equals == pair || equals - pair >= KEY_BYTES) {
        FAIL(d, FATHOM_EINVAL, "--metadata %s: needed is NAME=VALUE", pair);
    }
    (void)snprintf(key, KEY_BYTES, "%.*s", (int)(equals - pair), pair);
    *value = equals + 1;
    return FATHOM_OK;
}

fathom_err serve_metadata_check(const struct serve_description *about, fathom_diag *d)
{
    char key[KEY_BYTES];
    const char *value;
    for (size_t i = 0; i < about->n_metadata; i++) {
        TRY(split_metadata(key, &value, about->metadata[i], d));
    }
    return FATHOM_OK;
}

static fathom_err add_metadata(struct members *m, const struct serve_description *about,
                               fathom_diag *d)
{
    char key[KEY_BYTES];
    const char *value;
    for (size_t i = 0; i < about->n_metadata; i++) {
        TRY(split_metadata(key, &value, about->metadata[i], d));
        add_text(m, key, value);
    }
    return FATHOM_OK;
}

static void add_load(struct members *m, const struct serve_options *o)
{
    const struct arrival_options *a = &o->arrival;
    static const char *const ramps[] = {"none", "linear", "exponential"};
    if (isinf(a->rate)) {
        add_text(m, "request_rate", "inf");
    } else {
        add_real(m, "request_rate", a->rate);
    }
    add_real(m, "burstiness", a->burstiness);
    add(m, "max_concurrency",
        o->max_in_flight ? json_integer((json_int_t)o->max_in_flight) : json_null());
    if (a->ramp == RAMP_NONE) return;
    add_text(m, "ramp_up_strategy", ramps[a->ramp]);
    add_real(m, "ramp_up_start_rps", a->ramp_start);
    add_real(m, "ramp_up_end_rps", a->ramp_end);
}

static void add_rates(struct members *m, const struct figures *f, const struct goodput_limits *g)
{
    add_real(m, "duration", f->seconds);
    add_count(m, "completed", f->n_completed);
    add_count(m, "failed", f->n_failed);
    add_count(m, "total_input_tokens", f->n_input);
    add_count(m, "total_output_tokens", f->n_output);
    add_real(m, "request_throughput", f->request_rate);
    add(m, "request_goodput", g->any ? json_real(f->good_rate) : json_null());
    add_real(m, "output_throughput", f->output_rate);
    add_real(m, "total_token_throughput", f->total_rate);
    add_real(m, "max_output_tokens_per_s", f->peak_output_rate);
    add_count(m, "max_concurrent_requests", f->peak_in_flight);
}

static void add_metric(struct members *m, enum metric metric, const struct summary *s,
                       const struct percentile_list *p)
{
    char key[NAME_BYTES];
    char number[NAME_BYTES];
    const struct {
        const char *what;
        double value;
    } parts[] = {{"mean", s->mean}, {"median", s->median}, {"std", s->std}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        (void)snprintf(key, sizeof key, "%s_%s_ms", parts[i].what, metric_name(metric));
        add_real(m, key, parts[i].value);
    }
    for (size_t i = 0; i < p->n; i++) {
        (void)snprintf(key, sizeof key, "%.24s_%s_ms", percentile_name(number, 'p', p->at[i]),
                       metric_name(metric));
        add_real(m, key, s->percentiles[i]);
    }
}

/* Each request, in the order in which they were due. */
static void add_details(struct members *m, const struct load_run *run)
{
    json_t *lists[] = {json_array(), json_array(), json_array(), json_array(),
                       json_array(), json_array(), json_array()};
    static const char *const keys[] = {"input_lens",  "output_lens",     "ttfts", "itls",
                                       "start_times", "generated_texts", "errors"};
    for (size_t i = 0; i < run->n; i++) {
        const struct load_record *r = &run->records[i];
        bool ok = r->outcome == LOAD_OK;
        json_t *gaps = json_array();
        for (uint32_t k = 0; k < r->n_gap; k++) {
            if (json_array_append_new(gaps, json_real(r->gap_us[k] / 1e6)) != 0) m->failed = true;
        }
        double ttft = r->first_us ? (double)(r->first_us - r->start_us) / 1e6 : 0;
        json_t *text = r->text ? json_stringn(r->text, r->n_text) : json_string("");
        json_t *values[] = {
            json_integer(r->n_input),
            json_integer(ok ? figures_output_tokens(r, r->first_us ? r->n_gap + 1 : 0) : 0),
            json_real(ttft),
            gaps,
            json_real((double)r->start_us / 1e6),
            text ? text : json_string(""),
            json_string(r->message ? r->message : ""),
        };
        for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++) {
            if (json_array_append_new(lists[k], values[k]) != 0) m->failed = true;
        }
    }
    for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++) add(m, keys[k], lists[k]);
}

static void add_failures(struct members *m, const struct figures *f)
{
    struct members kinds = {json_object(), false};
    for (int k = 0; k < LOAD_OUTCOME_COUNT; k++) {
        if (k == LOAD_OK || f->n_outcome[k] == 0) continue;
        add_count(&kinds, load_outcome_name((enum load_outcome)k), f->n_outcome[k]);
    }
    if (kinds.failed) m->failed = true;
    add(m, "failures", kinds.object);
    if (f->first_message) add_text(m, "first_failure", f->first_message);
}

/* What the checks saw. */
static void add_checks(struct members *m, const struct figures *f)
{
    struct members c = {json_object(), false};
    add_real(&c, "mean_in_flight", f->mean_in_flight);
    add_real(&c, "throughput_times_latency", f->little);
    add(&c, "littles_law_holds", json_boolean(f->little_holds));
    add_real(&c, "client_busy_share", f->busy_share);
    add_real(&c, "client_longest_busy_ms", f->longest_busy_ms);
    add(&c, "client_saturated", json_boolean(f->client_is_limit));
    add_real(&c, "mean_client_wait_ms", f->client_wait_ms_mean);
    add_real(&c, "max_client_wait_ms", f->client_wait_ms_max);
    add_count(&c, "input_tokens_by_own_tokenizer", f->n_own_input);
    add_count(&c, "output_tokens_by_own_tokenizer", f->n_own_output);
    add_count(&c, "output_tokens_asked_for", f->n_asked);
    add_count(&c, "answers_without_usage", f->n_without_usage);
    add_count(&c, "answers_without_text", f->n_silent);
    add_count(&c, "cached_input_tokens", f->n_cached);
    add(&c, "cached_unasked", json_boolean(f->is_cached));
    if (c.failed) m->failed = true;
    add(m, "checks", c.object);
}

static void add_server(struct members *m, const struct server_view *v)
{
    struct members s = {json_object(), false};
    if (v->has_queue) add_real(&s, "mean_queue_ms", v->queue_ms);
    if (v->has_prefix) add_real(&s, "prefix_hit_share", v->prefix_hit_share);
    if (v->has_drafts) add_real(&s, "draft_accept_share", v->draft_accept_share);
    if (v->has_preemptions) add_real(&s, "preemptions", v->n_preempted);
    if (s.failed) m->failed = true;
    add(m, "server_metrics", s.object);
}

static void add_spreads(struct members *m, const struct serve_result *r)
{
    struct members all = {json_object(), false};
    for (int k = 0; k < REPEATED_COUNT; k++) {
        const struct spread *s = &r->spread[k];
        add(&all, repeated_name((enum repeated)k),
            json_pack("{s:f, s:f, s:f}", "min", s->min, "median", s->median, "max", s->max));
    }
    if (all.failed) m->failed = true;
    add_count(m, "repeats", r->n_repeat);
    add(m, "spread", all.object);
}

static void add_workload(struct members *m, const struct serve_result *r,
                         const struct serve_options *o)
{
    static const char *const caches[] = {"auto", "on", "off"};
    const struct dataset_options *s = &o->dataset;
    char machine[MACHINE_TEXT_BYTES];
    struct buf line = {0};
    if (serve_workload_write(&line, o) != FATHOM_OK) m->failed = true;
    add_text(m, "workload", buf_str(&line));
    buf_free(&line);
    add_text(m, "dataset_name", dataset_kind_name(s->kind));
    add_count(m, "input_len", s->n_input);
    add_count(m, "output_len", s->n_output);
    add_count(m, "prefix_len", s->n_prefix);
    add_count(m, "seed", s->seed);
    add_count(m, "num_warmups", o->n_warm_up);
    add_text(m, "cache", caches[o->cache]);
    add(m, "ignore_eos", json_boolean(o->shape.ignore_eos));
    add_text(m, "base_url", o->target.base_url);
    add_text(m, "endpoint", o->path);
    add_text(m, "client_machine", os_machine_text(machine));
    add_real(m, "client_load_average", r->load_average);
}

fathom_err serve_result_json(json_t **out, const struct serve_result *r,
                             const struct serve_options *o, const struct serve_description *about,
                             fathom_diag *d)
{
    struct members m = {json_object(), false};
    unsigned chosen;
    fathom_err err;
    *out = NULL;
    TRY_GOTO(serve_metrics_chosen(about->metrics, &chosen, d), done);
    add_text(&m, "date", about->date);
    add_text(&m, "endpoint_type", about->backend);
    add_text(&m, "backend", about->backend);
    add_text(&m, "label", about->label);
    add_text(&m, "model_id", about->model);
    add_text(&m, "tokenizer_id", about->tokenizer);
    add_count(&m, "num_prompts", o->dataset.n);
    TRY_GOTO(add_metadata(&m, about, d), done);
    add_load(&m, o);
    add_rates(&m, &r->figures, &o->goodput);
    if (about->detailed) add_details(&m, &r->run);
    for (int k = 0; k < METRIC_COUNT; k++) {
        if (!(chosen >> k & 1u)) continue;
        add_metric(&m, (enum metric)k, &r->figures.metrics[k], &o->percentiles);
    }
    add_workload(&m, r, o);
    add_failures(&m, &r->figures);
    add_checks(&m, &r->figures);
    add_server(&m, &r->figures.server);
    add_spreads(&m, r);
    if (m.failed) err = FATHOM_ENOMEM;
done:
    if (err) {
        json_decref(m.object);
    } else {
        *out = m.object;
    }
    return err;
}

/* ---- the table --------------------------------------------------------------------------- */

static void head(struct buf *b, const char *title, char fill)
{
    char line[COLUMNS + 1];
    size_t n = strlen(title);
    size_t at = n < COLUMNS ? (COLUMNS - n) / 2 : 0;
    memset(line, fill, COLUMNS);
    line[COLUMNS] = '\0';
    memcpy(line + at, title, n < COLUMNS ? n : COLUMNS);
    (void)buf_printf(b, "%s\n", line);
}

static void row_count(struct buf *b, const char *name, uint64_t value)
{
    (void)buf_printf(b, "%-40s %-10llu\n", name, (unsigned long long)value);
}

static void row_real(struct buf *b, const char *name, double value)
{
    (void)buf_printf(b, "%-40s %-10.2f\n", name, value);
}

static void rows_of_metric(struct buf *b, enum metric k, const struct summary *s,
                           const struct percentile_list *p)
{
    char name[NAME_BYTES];
    char number[NAME_BYTES];
    head(b, titles[k], '-');
    (void)snprintf(name, sizeof name, "Mean %s (ms):", short_titles[k]);
    row_real(b, name, s->mean);
    (void)snprintf(name, sizeof name, "Median %s (ms):", short_titles[k]);
    row_real(b, name, s->median);
    for (size_t i = 0; i < p->n; i++) {
        (void)snprintf(name, sizeof name, "%.24s %s (ms):", percentile_name(number, 'P', p->at[i]),
                       short_titles[k]);
        row_real(b, name, s->percentiles[i]);
    }
}

static void rows_of_server(struct buf *b, const struct figures *f)
{
    const struct server_view *v = &f->server;
    if (v->has_queue) row_real(b, "Mean queue time, by the server (ms):", v->queue_ms);
    if (v->has_prefix) row_real(b, "Prompt tokens found in cache (%):", 100 * v->prefix_hit_share);
    if (v->has_drafts) row_real(b, "Drafts accepted (%):", 100 * v->draft_accept_share);
    if (v->has_preemptions && v->n_preempted > 0) row_real(b, "Preemptions:", v->n_preempted);
}

static void rows_of_checks(struct buf *b, const struct figures *f)
{
    head(b, "Checks", '-');
    rows_of_server(b, f);
    row_real(b, "Mean wait in the client (ms):", f->client_wait_ms_mean);
    row_real(b, "Mean requests in flight:", f->mean_in_flight);
    row_real(b, "Throughput x latency (Little's law):", f->little);
    row_real(b, "Client busy (% of a core):", 100 * f->busy_share);
    row_real(b, "Client longest busy at once (ms):", f->longest_busy_ms);
    for (int k = 0; k < LOAD_OUTCOME_COUNT; k++) {
        char name[NAME_BYTES];
        if (k == LOAD_OK || f->n_outcome[k] == 0) continue;
        (void)snprintf(name, sizeof name, "Failed, %s:", load_outcome_name((enum load_outcome)k));
        row_count(b, name, f->n_outcome[k]);
    }
}

static void rows_of_spread(struct buf *b, const struct serve_result *r)
{
    if (r->n_repeat < 2) return;
    head(b, "Spread over runs: min, median, max", '-');
    for (int k = 0; k < REPEATED_COUNT; k++) {
        const struct spread *s = &r->spread[k];
        (void)buf_printf(b, "%-24s %10.2f %10.2f %10.2f\n", repeated_name((enum repeated)k), s->min,
                         s->median, s->max);
    }
}

fathom_err serve_warnings_write(struct buf *out, const struct figures *f)
{
    if (!f->little_holds) {
        (void)buf_printf(out,
                         "Little's law does not hold: %.2f requests were in flight, completed "
                         "requests account for %.2f. Failed requests, or a clock, are in the "
                         "figures.\n",
                         f->mean_in_flight, f->little);
    }
    if (f->client_is_limit) {
        (void)buf_printf(out,
                         "The client was busy for %.0f %% of the time: these figures are its own "
                         "limit, not the server's.\n",
                         100 * f->busy_share);
    }
    if (f->is_cached) {
        (void)buf_printf(out,
                         "%.0f %% of the prompt tokens came from the server's prefix cache: "
                         "these prompts had been sent before (use another --seed, or --cache "
                         "off), or a server that prefills had computed them.\n",
                         f->n_input ? 100.0 * (double)f->n_cached / (double)f->n_input : 0);
    }
    if (f->tokens_differ) {
        (void)buf_printf(out,
                         "The server counted %llu prompt tokens, our tokenizer %llu: a chat "
                         "template, or --tokenizer is not the model's.\n",
                         (unsigned long long)f->n_input, (unsigned long long)f->n_own_input);
    }
    if (f->n_without_usage) {
        (void)buf_printf(out,
                         "%zu answers came without usage: their tokens are by our tokenizer.\n",
                         f->n_without_usage);
    }
    if (f->n_silent) {
        (void)buf_printf(out, "%zu answers had no text: they are in no latency figure.\n",
                         f->n_silent);
    }
    if (f->n_completed && f->n_output * 100 < f->n_asked * 98) {
        (void)buf_printf(out,
                         "Answers ended after %.1f of %.1f tokens asked for: --ignore-eos makes "
                         "runs comparable.\n",
                         (double)f->n_output / (double)f->n_completed,
                         (double)f->n_asked / (double)f->n_completed);
    }
    if (f->first_message) (void)buf_printf(out, "The first failure: %.400s\n", f->first_message);
    return buf_status(out);
}

static void rows_of_rates(struct buf *b, const struct figures *f, const struct serve_options *o)
{
    head(b, " Serving Benchmark Result ", '=');
    row_count(b, "Successful requests:", f->n_completed);
    row_count(b, "Failed requests:", f->n_failed);
    if (o->max_in_flight) row_count(b, "Maximum request concurrency:", o->max_in_flight);
    if (!isinf(o->arrival.rate)) row_real(b, "Request rate configured (RPS):", o->arrival.rate);
    row_real(b, "Benchmark duration (s):", f->seconds);
    row_count(b, "Total input tokens:", f->n_input);
    row_count(b, "Total generated tokens:", f->n_output);
    row_real(b, "Request throughput (req/s):", f->request_rate);
    if (o->goodput.any) row_real(b, "Request goodput (req/s):", f->good_rate);
    row_real(b, "Output token throughput (tok/s):", f->output_rate);
    row_real(b, "Peak output token throughput (tok/s):", f->peak_output_rate);
    row_real(b, "Peak concurrent requests:", (double)f->peak_in_flight);
    row_real(b, "Total Token throughput (tok/s):", f->total_rate);
}

fathom_err serve_result_table(struct buf *out, const struct serve_result *r,
                              const struct serve_options *o, const struct serve_description *about,
                              fathom_diag *d)
{
    const struct figures *f = &r->figures;
    char machine[MACHINE_TEXT_BYTES];
    unsigned chosen;
    TRY(serve_metrics_chosen(about->metrics, &chosen, d));
    rows_of_rates(out, f, o);
    for (int k = 0; k < METRIC_COUNT; k++) {
        if (!(chosen >> k & 1u)) continue;
        rows_of_metric(out, (enum metric)k, &f->metrics[k], &o->percentiles);
    }
    rows_of_checks(out, f);
    rows_of_spread(out, r);
    head(out, "", '=');
    (void)buf_add_str(out, "workload  ");
    TRY(serve_workload_write(out, o));
    (void)buf_printf(out, "\nserver    %s%s, model %s\n", o->target.base_url, o->path,
                     about->model);
    (void)buf_printf(out, "client    %s, load average %.2f\n", os_machine_text(machine),
                     r->load_average);
    return serve_warnings_write(out, f);
}

fathom_err serve_file_name(struct buf *out, const struct serve_options *o,
                           const struct serve_description *about)
{
    const char *slash = strrchr(about->model, '/');
    (void)buf_add_str(out, about->label ? about->label : about->backend);
    if (o->arrival.ramp != RAMP_NONE) {
        (void)buf_printf(out, "-ramp-up-%s-%gqps-%gqps",
                         o->arrival.ramp == RAMP_LINEAR ? "linear" : "exponential",
                         o->arrival.ramp_start, o->arrival.ramp_end);
    } else if (isinf(o->arrival.rate)) {
        (void)buf_add_str(out, "-infqps");
    } else {
        double rate = o->arrival.rate;
        (void)buf_printf(out, rate == floor(rate) ? "-%.1fqps" : "-%.15gqps", rate);
    }
    if (o->max_in_flight) (void)buf_printf(out, "-concurrency%zu", o->max_in_flight);
    (void)buf_printf(out, "-%s-%s.json", slash ? slash + 1 : about->model, about->date);
    return buf_status(out);
}

/* bench_options.c - from the command line to what a benchmark needs */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench_cli.h"

/* ---- dataset ----------------------------------------------------------------------------- */

/* The first that is given. */
static uint32_t either(int64_t general, int64_t own)
{
    return (uint32_t)(general > 0 ? general : own);
}

fathom_err bench_dataset(struct dataset_options *out, const struct settings *s, uint32_t n_added,
                         fathom_diag *d)
{
    const struct bench_settings *b = &s->bench;
    *out = (struct dataset_options){
        .kind = dataset_kind_find(b->dataset_name),
        .n = (size_t)b->num_prompts,
        .path = b->dataset_path,
        .in_order = b->disable_shuffle,
        .n_added = n_added,
        .seed = (uint64_t)b->seed,
    };
    switch (out->kind) {
    case DATASET_RANDOM:
        out->n_input = either(b->input_len, b->random_input_len);
        out->n_output = either(b->output_len, b->random_output_len);
        out->n_prefix = (uint32_t)b->random_prefix_len;
        out->range_ratio = b->random_range_ratio;
        break;
    case DATASET_PREFIX_REPETITION:
        out->n_input = (uint32_t)b->prefix_repetition_suffix_len;
        out->n_output = either(b->output_len, b->prefix_repetition_output_len);
        out->n_prefix = (uint32_t)b->prefix_repetition_prefix_len;
        out->n_group = (uint32_t)b->prefix_repetition_num_prefixes;
        break;
    case DATASET_SONNET:
        out->n_input = either(b->input_len, b->sonnet_input_len);
        out->n_output = either(b->output_len, b->sonnet_output_len);
        out->n_prefix = (uint32_t)b->sonnet_prefix_len;
        break;
    case DATASET_SHAREGPT: out->n_output = either(b->output_len, b->sharegpt_output_len); break;
    case DATASET_CUSTOM: out->n_output = either(b->output_len, b->custom_output_len); break;
    case DATASET_KIND_COUNT: break;
    }
    if (b->input_len > 0 && out->kind != DATASET_RANDOM && out->kind != DATASET_SONNET) {
        FAIL(d, FATHOM_EINVAL, "--input-len: %s prompts have lengths of their own; leave it out",
             b->dataset_name);
    }
    return FATHOM_OK;
}

/* ---- server and load --------------------------------------------------------------------- */

/* A number above 0; the whole of `text`. */
static bool read_positive(const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && *out > 0;
}

static fathom_err read_arrival(struct arrival_options *out, const struct bench_settings *b,
                               fathom_diag *d)
{
    out->burstiness = b->burstiness;
    out->rate = INFINITY;
    if (b->request_rate && !read_positive(b->request_rate, &out->rate)) {
        FAIL(d, FATHOM_EINVAL, "--request-rate: \"%s\" is neither a number above 0 nor inf",
             b->request_rate);
    }
    if (!b->ramp_up_strategy || strcmp(b->ramp_up_strategy, "none") == 0) return FATHOM_OK;
    out->ramp = strcmp(b->ramp_up_strategy, "linear") == 0 ? RAMP_LINEAR : RAMP_EXPONENTIAL;
    out->ramp_start = b->ramp_up_start_rps;
    out->ramp_end = b->ramp_up_end_rps;
    if (!isinf(out->rate)) {
        FAIL(d, FATHOM_EINVAL,
             "--ramp-up-strategy and --request-rate: a ramp has its own rates; leave one out");
    }
    return FATHOM_OK;
}

static fathom_err read_percentiles(struct percentile_list *out, const char *list, fathom_diag *d)
{
    out->n = 0;
    for (const char *at = list; *at;) {
        char *end;
        double value = strtod(at, &end);
        bool known = end != at && (*end == ',' || *end == '\0') && value >= 0 && value <= 100;
        if (!known || out->n == PERCENTILE_MAX) {
            FAIL(d, FATHOM_EINVAL,
                 "--metric-percentiles: \"%s\" is not a list of at most %d numbers from 0 to 100",
                 list, PERCENTILE_MAX);
        }
        out->at[out->n++] = value;
        at = *end == ',' ? end + 1 : end;
    }
    return FATHOM_OK;
}

static fathom_err read_goodput(struct goodput_limits *out, const struct string_list *list,
                               fathom_diag *d)
{
    for (int m = 0; m < METRIC_COUNT; m++) out->ms[m] = -1;
    for (size_t i = 0; i < list->n; i++) {
        const char *item = list->items[i];
        size_t n = strcspn(item, ":");
        enum metric m = metric_find(item, n);
        double limit;
        if (m == METRIC_COUNT || item[n] != ':' || !read_positive(item + n + 1, &limit)) {
            FAIL(d, FATHOM_EINVAL,
                 "--goodput: \"%s\" is not NAME:MILLISECONDS with ttft, tpot, itl or e2el", item);
        }
        out->ms[m] = limit;
        out->any = true;
    }
    return FATHOM_OK;
}

static double unless(double value, double unset)
{
    return value == unset ? SAMPLING_UNSET : value;
}

static void set_shape(struct bench_serve *out, const struct bench_settings *b)
{
    out->options.shape = (struct request_shape){
        .is_chat = strcmp(b->backend, "openai-chat") == 0,
        .model = b->served_model_name ? b->served_model_name : out->about.model,
        .ignore_eos = b->ignore_eos,
        .temperature = unless(b->temperature, -1),
        .top_p = unless(b->top_p, -1),
        .top_k = unless((double)b->top_k, -2),
        .min_p = unless(b->min_p, -1),
        .frequency_penalty = unless(b->frequency_penalty, -3),
        .presence_penalty = unless(b->presence_penalty, -3),
        .repetition_penalty = unless(b->repetition_penalty, -3),
        .logprobs = unless((double)b->logprobs, -1),
        .extra = b->extra_body,
    };
}

static fathom_err set_target(struct bench_serve *out, const struct invocation *v, fathom_diag *d)
{
    const struct bench_settings *b = &v->settings->bench;
    bool is_chat = strcmp(b->backend, "openai-chat") == 0;
    bool is_v6 = strchr(b->host, ':') && b->host[0] != '[';
    const char *path = b->endpoint ? b->endpoint
                       : is_chat   ? "/v1/chat/completions"
                                   : "/v1/completions";
    int n = b->base_url ? snprintf(out->base_url, sizeof out->base_url, "%s", b->base_url)
                        : snprintf(out->base_url, sizeof out->base_url, "http://%s%s%s:%lld",
                                   is_v6 ? "[" : "", b->host, is_v6 ? "]" : "", (long long)b->port);
    int n_path = snprintf(out->path, sizeof out->path, "%s%s", path[0] == '/' ? "" : "/", path);
    if (n < 0 || (size_t)n >= sizeof out->base_url || (size_t)n_path >= sizeof out->path) {
        FAIL(d, FATHOM_EINVAL, "--base-url or --endpoint is too long");
    }
    if (strncmp(out->base_url, "http://", 7) != 0 && strncmp(out->base_url, "https://", 8) != 0) {
        FAIL(d, FATHOM_EINVAL, "--base-url: \"%s\" begins with neither http:// nor https://",
             out->base_url);
    }
    while (n > 0 && out->base_url[n - 1] == '/') out->base_url[--n] = '\0';
    out->options.path = out->path;
    out->options.target = (struct http_target){
        .base_url = out->base_url,
        .api_key = b->api_key ? b->api_key : v->environment->api_key,
        .headers = b->header.items,
        .n_header = b->header.n,
        .insecure = b->insecure,
        .timeout_s = b->request_timeout,
    };
    return FATHOM_OK;
}

/* ---- what is shown while it runs --------------------------------------------------------- */

static void end_progress(struct bench_serve *b)
{
    if (b->is_progress_shown) fprintf(stderr, "\r\033[K");
    b->is_progress_shown = false;
}

static void say(void *arg, const char *line)
{
    end_progress(arg);
    fprintf(stderr, "%s\n", line);
}

static void watch(void *arg, const struct load_progress *p)
{
    enum { WIDTH = 28 };
    static const char full[] = "############################";
    static const char empty[] = "............................";
    struct bench_serve *b = arg;
    int n = p->n ? (int)(p->n_done * WIDTH / p->n) : WIDTH;
    double rate = p->seconds > 0 ? (double)p->n_event / p->seconds : 0;
    fprintf(stderr, "\r\033[K%.*s%.*s %zu/%zu  %zu in flight  %.0f tok/s  %.0f s", n, full,
            WIDTH - n, empty, p->n_done, p->n, p->n_in_flight, rate, p->seconds);
    if (p->n_failed) fprintf(stderr, "  %zu failed", p->n_failed);
    b->is_progress_shown = true;
    if (p->n_done == p->n) end_progress(b);
}

/* ---- all together ------------------------------------------------------------------------ */

static void set_date(char *out, size_t n)
{
    time_t now = (time_t)clock_unix_s();
    struct tm t;
    out[0] = '\0';
    if (localtime_r(&now, &t)) (void)strftime(out, n, "%Y%m%d-%H%M%S", &t);
}

static enum cache_mode cache_of(const char *name)
{
    if (strcmp(name, "on") == 0) return CACHE_ON;
    return strcmp(name, "off") == 0 ? CACHE_OFF : CACHE_AUTO;
}

static fathom_err set_options(struct bench_serve *out, const struct invocation *v, fathom_diag *d)
{
    const struct bench_settings *b = &v->settings->bench;
    struct serve_options *o = &out->options;
    TRY(read_arrival(&o->arrival, b, d));
    TRY(read_percentiles(&o->percentiles, b->metric_percentiles, d));
    TRY(read_goodput(&o->goodput, &b->goodput, d));
    unsigned chosen;
    TRY(serve_metrics_chosen(b->percentile_metrics, &chosen, d));
    o->n_warm_up = (size_t)b->num_warmups;
    o->max_in_flight = (size_t)b->max_concurrency;
    o->cache = cache_of(b->cache);
    o->n_repeat = (size_t)b->repeat;
    o->ready_timeout_s = b->ready_check_timeout;
    o->say = say;
    o->watch = isatty(STDERR_FILENO) && !b->disable_tqdm ? watch : NULL;
    o->arg = out;
    return FATHOM_OK;
}

/* Of a model that the server has named: by what its name stands for, if that is here too. */
static fathom_err open_tokenizer(struct bench_serve *out, const char *model,
                                 const struct invocation *v, fathom_diag *d)
{
    const char *given = v->settings->bench.tokenizer;
    fathom_diag ignored = {{0}};
    if (!given && out->found_root &&
        bench_tokenizer_open(&out->tokenizer, out->found_root, v, &ignored) == FATHOM_OK) {
        return FATHOM_OK;
    }
    bench_tokenizer_close(&out->tokenizer);
    return bench_tokenizer_open(&out->tokenizer, given ? given : model, v, d);
}

fathom_err bench_serve_open(struct bench_serve *out, const struct invocation *v, fathom_diag *d)
{
    const struct bench_settings *b = &v->settings->bench;
    memset(out, 0, sizeof *out);
    set_date(out->date, sizeof out->date);
    TRY(set_target(out, v, d));
    TRY(set_options(out, v, d));
    if (!b->model) {
        TRY(serve_find_model(&out->found_model, &out->found_root, &out->options.target, d));
    }
    const char *model = b->model ? b->model : out->found_model;
    TRY(open_tokenizer(out, model, v, d));
    out->options.tokenizer = out->tokenizer.tokenizer;
    out->about = (struct serve_description){
        .backend = b->backend,
        .label = b->label,
        .model = model,
        .tokenizer = out->tokenizer.name,
        .date = out->date,
        .metadata = b->metadata.items,
        .n_metadata = b->metadata.n,
        .metrics = b->percentile_metrics,
        .detailed = b->save_detailed,
    };
    TRY(serve_metadata_check(&out->about, d));
    set_shape(out, b);
    bool adds_bos = out->tokenizer.adds_bos && !out->options.shape.is_chat;
    return bench_dataset(&out->options.dataset, v->settings, adds_bos ? 1 : 0, d);
}

void bench_serve_close(struct bench_serve *b)
{
    end_progress(b);
    bench_tokenizer_close(&b->tokenizer);
    mem_free(b->found_model);
    mem_free(b->found_root);
    memset(b, 0, sizeof *b);
}

fathom_err bench_write_result(struct buf *out, const struct bench_serve *b,
                              const struct serve_result *r, fathom_diag *d)
{
    json_t *result = NULL;
    TRY(serve_result_json(&result, r, &b->options, &b->about, d));
    fathom_err err = json_write_python(out, result);
    json_decref(result);
    return err ? err : buf_add_char(out, '\n');
}

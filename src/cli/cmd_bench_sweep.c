/* cmd_bench_sweep.c - fathom bench sweep: a server under loads of many kinds, one after another */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "bench/sweep.h"
#include "cli/bench_cli.h"

static fathom_err make_points(struct sweep_point **out, size_t *n, const struct bench_settings *s,
                              fathom_diag *d)
{
    struct sweep_list concurrencies = {.n = 0};
    struct sweep_list rates = {.n = 0};
    struct sweep_list inputs;
    struct sweep_list outputs;
    if (s->concurrencies) {
        TRY(sweep_list_read(&concurrencies, s->concurrencies, "--concurrency", true, d));
    }
    if (s->request_rates) {
        TRY(sweep_list_read(&rates, s->request_rates, "--request-rate", false, d));
    }
    TRY(sweep_list_read(&inputs, s->input_lens, "--input-len", true, d));
    TRY(sweep_list_read(&outputs, s->output_lens, "--output-len", true, d));
    return sweep_points_make(out, n, &inputs, &outputs, &concurrencies, &rates, d);
}

/* The options of one point. */
static fathom_err set_point(struct bench_serve *b, const struct sweep_point *p, size_t i,
                            const struct bench_settings *s, fathom_diag *d)
{
    struct serve_options *o = &b->options;
    if (o->dataset.kind != DATASET_RANDOM && o->dataset.kind != DATASET_SONNET) {
        FAIL(d, FATHOM_EINVAL, "--dataset-name %s: a sweep sets lengths; use random or sonnet",
             dataset_kind_name(o->dataset.kind));
    }
    o->dataset.n = s->num_prompts_sweep ? (size_t)s->num_prompts_sweep : sweep_requests(p);
    o->dataset.n_input = p->n_input;
    o->dataset.n_output = p->n_output;
    o->dataset.seed = (uint64_t)s->seed + i * o->n_repeat; /* no prompt comes twice */
    o->arrival.rate = p->rate;
    o->max_in_flight = p->concurrency ? p->concurrency : (size_t)s->max_concurrency;
    return FATHOM_OK;
}

/* The result that an earlier sweep left; NULL in *out when there is none. One of another workload
 * is an error: it would stand in the same table. */
static fathom_err read_earlier(json_t **out, const char *path, const struct bench_serve *b,
                               fathom_diag *d)
{
    struct buf line = {0};
    fathom_err err = FATHOM_OK;
    *out = NULL;
    if (!path_exists(path)) return FATHOM_OK;
    TRY_GOTO(json_read_file(path, out, d), done);
    TRY_GOTO(serve_workload_write(&line, &b->options), done);
    const char *workload = json_string_value(json_object_get(*out, "workload"));
    const char *model = json_string_value(json_object_get(*out, "model_id"));
    if (!workload || strcmp(workload, buf_str(&line)) != 0 || !model ||
        strcmp(model, b->about.model) != 0) {
        err = diag_fail(d, FATHOM_EINVAL,
                        "%s is a result of another workload (%s, model %s); use another "
                        "--result-dir",
                        path, workload ? workload : "unknown", model ? model : "unknown");
    }
done:
    buf_free(&line);
    if (err) {
        json_decref(*out);
        *out = NULL;
    }
    return err;
}

static fathom_err measure(json_t **out, const struct bench_serve *b, const char *path,
                          fathom_diag *d)
{
    struct serve_result r = {0};
    struct buf json = {0};
    fathom_err err;
    TRY_GOTO(serve_run(&r, &b->options, d), done);
    TRY_GOTO(bench_write_result(&json, b, &r, d), done);
    TRY_GOTO(new_file_save(path, buf_str(&json), json.len, d), done);
    TRY_GOTO(serve_result_json(out, &r, &b->options, &b->about, d), done);
    buf_clear(&json);
    TRY_GOTO(serve_warnings_write(&json, &r.figures), done);
    if (json.len) printf("%s", buf_str(&json));
done:
    buf_free(&json);
    serve_result_free(&r);
    return err;
}

static double real_of(const json_t *result, const char *key)
{
    return json_number_value(json_object_get(result, key));
}

static void print_head(void)
{
    printf("%-26s %9s %10s %10s %10s %10s %10s %7s\n", "point", "req/s", "out tok/s", "tok/s",
           "TTFT p50", "ITL p50", "E2EL p50", "failed");
}

static void print_point(const struct sweep_point *p, const json_t *r, bool is_earlier)
{
    printf("%-26s %9.2f %10.1f %10.1f %10.1f %10.2f %10.1f %7.0f%s\n", p->name,
           real_of(r, "request_throughput"), real_of(r, "output_throughput"),
           real_of(r, "total_token_throughput"), real_of(r, "median_ttft_ms"),
           real_of(r, "median_itl_ms"), real_of(r, "median_e2el_ms"), real_of(r, "failed"),
           is_earlier ? "  (measured before)" : "");
    (void)fflush(stdout);
}

static fathom_err run_points(struct bench_serve *b, const struct sweep_point *points, size_t n,
                             const struct bench_settings *s, const char *dir, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    char file[SWEEP_NAME_BYTES + 8];
    struct buf csv = {0};
    bool is_first = true;
    fathom_err err;
    TRY_GOTO(sweep_csv_head(&csv), done);
    for (size_t i = 0; i < n; i++) {
        json_t *result;
        TRY_GOTO(set_point(b, &points[i], i, s, d), done);
        (void)snprintf(file, sizeof file, "%s.json", points[i].name);
        TRY_GOTO(path_join(path, sizeof path, dir, file), done);
        TRY_GOTO(read_earlier(&result, path, b, d), done);
        bool is_earlier = result != NULL;
        if (!is_earlier) {
            if (!is_first) clock_sleep_us((uint64_t)(s->pause * 1e6));
            is_first = false;
            TRY_GOTO(measure(&result, b, path, d), done);
        }
        print_point(&points[i], result, is_earlier);
        err = sweep_csv_row(&csv, result);
        json_decref(result);
        if (err) goto done;
        TRY_GOTO(path_join(path, sizeof path, dir, "sweep.csv"), done);
        TRY_GOTO(new_file_save(path, buf_str(&csv), csv.len, d), done);
    }
    printf("rows      %s\nreport    fathom bench report %s/*.json\n", path, dir);
done:
    buf_free(&csv);
    return err;
}

fathom_err cmd_bench_sweep(const struct invocation *v, fathom_diag *d)
{
    const struct bench_settings *s = &v->settings->bench;
    const char *dir = s->result_dir ? s->result_dir : "results";
    struct settings own = *v->settings;
    struct invocation one = {&own, v->environment, v->model, v->status};
    struct bench_serve b = {.is_progress_shown = false};
    struct sweep_point *points = NULL;
    size_t n;
    fathom_err err;
    /* What bench serve alone has, and what the points set. */
    own.bench.request_rate = NULL;
    own.bench.ramp_up_strategy = NULL;
    own.bench.input_len = 0;
    own.bench.output_len = 0;
    TRY_GOTO(make_points(&points, &n, s, d), done);
    TRY_GOTO(bench_serve_open(&b, &one, d), done);
    b.options.say = NULL; /* a row a point is enough */
    TRY_GOTO(os_make_dir(dir, d), done);
    print_head();
    TRY_GOTO(run_points(&b, points, n, s, dir, d), done);
done:
    mem_free(points);
    bench_serve_close(&b);
    return err;
}

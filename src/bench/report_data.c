/* report_data.c - results of benchmarks as points, points as series */
#include "bench/report_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"

/* Lengths that differ by less belong to one series: means of what was drawn. */
static const double length_tolerance = 0.03;

/* ---- one result -------------------------------------------------------------------------- */

static const char *const field_names[REPORT_FIELD_COUNT] = {
    [REPORT_REQUEST_RATE] = "request_throughput",
    [REPORT_OUTPUT_RATE] = "output_throughput",
    [REPORT_TOTAL_RATE] = "total_token_throughput",
    [REPORT_TTFT_MEDIAN] = "median_ttft_ms",
    [REPORT_TTFT_P99] = "p99_ttft_ms",
    [REPORT_TPOT_MEDIAN] = "median_tpot_ms",
    [REPORT_ITL_MEDIAN] = "median_itl_ms",
    [REPORT_ITL_P99] = "p99_itl_ms",
    [REPORT_E2EL_MEDIAN] = "median_e2el_ms",
    [REPORT_E2EL_P99] = "p99_e2el_ms",
};

static void read_value(struct report_value *out, const json_t *result, const char *name)
{
    const json_t *own = json_object_get(result, name);
    const json_t *spread = json_object_get(json_object_get(result, "spread"), name);
    if (json_is_object(spread)) {
        out->value = json_number_value(json_object_get(spread, "median"));
        out->lo = json_number_value(json_object_get(spread, "min"));
        out->hi = json_number_value(json_object_get(spread, "max"));
        out->has = true;
    } else if (json_is_number(own)) {
        out->value = out->lo = out->hi = json_number_value(own);
        out->has = true;
    }
    if (!isfinite(out->value) || out->value < 0 || out->lo > out->value || out->hi < out->value) {
        *out = (struct report_value){.has = false};
    }
}

static void copy_text(char *out, size_t n, const json_t *object, const char *key,
                      const char *otherwise)
{
    const char *text = json_string_value(json_object_get(object, key));
    (void)snprintf(out, n, "%s", text && *text ? text : otherwise);
}

/* A length: as the file states it, else the mean of what was counted. */
static uint32_t read_length(const json_t *result, const char *stated, const char *prefix,
                            const char *total)
{
    double length = json_number_value(json_object_get(result, stated));
    if (prefix) length += json_number_value(json_object_get(result, prefix));
    double completed = json_number_value(json_object_get(result, "completed"));
    if (length <= 0 && completed > 0) {
        length = json_number_value(json_object_get(result, total)) / completed;
    }
    return length > 0 && length < UINT32_MAX ? (uint32_t)(length + 0.5) : 0;
}

/* The client's machine, and how busy it was with anything. */
static void read_client(struct report_point *p, const json_t *result)
{
    const json_t *load = json_object_get(result, "client_load_average");
    const char *machine = json_string_value(json_object_get(result, "client_machine"));
    if (!machine || !*machine) return;
    (void)snprintf(p->client, sizeof p->client, "%s", machine);
    size_t n = strlen(p->client);
    if (json_is_number(load)) {
        (void)snprintf(p->client + n, sizeof p->client - n, ", load average %.1f before",
                       json_number_value(load));
    }
}

static void read_checks(struct report_point *p, const json_t *result)
{
    const json_t *checks = json_object_get(result, "checks");
    p->is_checked = json_is_object(checks);
    p->little_holds = json_is_true(json_object_get(checks, "littles_law_holds"));
    p->client_is_limit = json_is_true(json_object_get(checks, "client_saturated"));
    p->is_cached = json_is_true(json_object_get(checks, "cached_unasked"));
}

static void read_point(struct report_point *p, const json_t *result)
{
    char backend[REPORT_NAME_BYTES];
    const json_t *rate = json_object_get(result, "request_rate");
    const char *dataset = json_string_value(json_object_get(result, "dataset_name"));
    bool is_random = dataset && strcmp(dataset, "random") == 0;
    copy_text(backend, sizeof backend, result, "backend", "unnamed");
    copy_text(p->engine, sizeof p->engine, result, "label", backend);
    copy_text(p->model, sizeof p->model, result, "model_id", "unnamed");
    copy_text(p->workload, sizeof p->workload, result, "workload", "");
    read_client(p, result);
    copy_text(p->date, sizeof p->date, result, "date", "");
    p->n_input =
        read_length(result, "input_len", is_random ? "prefix_len" : NULL, "total_input_tokens");
    p->n_output = read_length(result, "output_len", NULL, "total_output_tokens");
    double concurrency = json_number_value(json_object_get(result, "max_concurrency"));
    p->concurrency = concurrency > 0 && concurrency < 1e9 ? (uint32_t)concurrency : 0;
    p->rate =
        json_is_number(rate) && json_number_value(rate) > 0 ? json_number_value(rate) : INFINITY;
    p->n_completed = (uint64_t)json_number_value(json_object_get(result, "completed"));
    p->n_failed = (uint64_t)json_number_value(json_object_get(result, "failed"));
    double repeats = json_number_value(json_object_get(result, "repeats"));
    p->n_repeat = repeats > 1 && repeats < 1e6 ? (uint32_t)repeats : 1;
    for (int f = 0; f < REPORT_FIELD_COUNT; f++) read_value(&p->values[f], result, field_names[f]);
    read_checks(p, result);
}

fathom_err report_data_add(struct report_data *r, const json_t *result, const char *what,
                           fathom_diag *d)
{
    static const char *const needed[] = {"completed", "request_throughput", "output_throughput"};
    if (!json_is_object(result)) {
        FAIL(d, FATHOM_EFORMAT, "%s: %s, needed is a result of bench serve", what,
             json_type_text(result));
    }
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (json_is_number(json_object_get(result, needed[i]))) continue;
        FAIL(d, FATHOM_EFORMAT, "%s is not a result of bench serve: it has no number \"%s\"", what,
             needed[i]);
    }
    TRY(mem_grow(&r->points, &r->cap_point, r->n_point + 1, sizeof *r->points));
    struct report_point *p = &r->points[r->n_point++];
    memset(p, 0, sizeof *p);
    read_point(p, result);
    return FATHOM_OK;
}

/* ---- files ------------------------------------------------------------------------------- */

static fathom_err add_value(struct report_data *r, const json_t *value, const char *what,
                            fathom_diag *d)
{
    size_t i;
    json_t *one;
    if (!json_is_array(value)) return report_data_add(r, value, what, d);
    json_array_foreach (value, i, one) TRY(report_data_add(r, one, what, d));
    return FATHOM_OK;
}

static fathom_err add_lines(struct report_data *r, const char *text, size_t n, const char *path,
                            fathom_diag *d)
{
    char what[4096 + 32];
    const char *end = text + n;
    for (size_t i = 1; text < end; i++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        size_t blank = 0;
        while (text + blank < stop && strchr(" \t\r", text[blank])) blank++;
        if (text + blank < stop) {
            json_t *value;
            (void)snprintf(what, sizeof what, "%s, line %zu", path, i);
            TRY(json_read(text, (size_t)(stop - text), what, &value, d));
            fathom_err err = add_value(r, value, what, d);
            json_decref(value);
            TRY(err);
        }
        text = stop + 1;
    }
    return FATHOM_OK;
}

fathom_err report_data_add_file(struct report_data *r, const char *path, fathom_diag *d)
{
    struct file_map map;
    json_t *value = NULL;
    fathom_diag whole = {{0}};
    TRY(file_map_open(&map, path, d));
    fathom_err err = json_read(map.data, map.size, path, &value, &whole);
    if (!err) {
        err = add_value(r, value, path, d);
    } else if (err == FATHOM_EFORMAT && map.size && memchr(map.data, '\n', map.size)) {
        err = add_lines(r, map.data, map.size, path, d);
    } else {
        err = diag_fail(d, err, "%s", whole.text);
    }
    json_decref(value);
    file_map_close(&map);
    return err;
}

/* ---- series ------------------------------------------------------------------------------ */

static bool near_length(uint32_t a, uint32_t b)
{
    double larger = a > b ? a : b;
    return fabs((double)a - (double)b) <= length_tolerance * larger;
}

static bool same_series(const struct report_point *a, const struct report_point *b)
{
    return strcmp(a->engine, b->engine) == 0 && strcmp(a->model, b->model) == 0 &&
           near_length(a->n_input, b->n_input) && near_length(a->n_output, b->n_output);
}

static int compare_numbers(double a, double b)
{
    return (a > b) - (a < b);
}

/* Engine, model, lengths; then the load. */
static int compare_points(const void *va, const void *vb)
{
    const struct report_point *a = va;
    const struct report_point *b = vb;
    int order = strcmp(a->engine, b->engine);
    if (!order) order = strcmp(a->model, b->model);
    if (!order) order = compare_numbers(a->n_input, b->n_input);
    if (!order) order = compare_numbers(a->n_output, b->n_output);
    if (!order) order = compare_numbers(isinf(a->rate) ? 0 : 1, isinf(b->rate) ? 0 : 1);
    if (!order) order = compare_numbers(a->rate, b->rate);
    if (!order) order = compare_numbers(a->concurrency, b->concurrency);
    return order ? order : strcmp(a->date, b->date);
}

static int compare_series(const void *va, const void *vb)
{
    const struct report_point *a = va;
    const struct report_point *b = vb;
    return a->series != b->series ? compare_numbers((double)a->series, (double)b->series)
                                  : compare_points(va, vb);
}

fathom_err report_data_arrange(struct report_data *r)
{
    r->series = mem_calloc(r->n_point ? r->n_point : 1, sizeof *r->series);
    if (!r->series) return FATHOM_ENOMEM;
    if (r->n_point == 0) return FATHOM_OK;
    qsort(r->points, r->n_point, sizeof *r->points, compare_points);
    for (size_t i = 0; i < r->n_point; i++) {
        struct report_point *p = &r->points[i];
        size_t s = 0;
        while (s < r->n_series && !same_series(r->series[s].first, p)) s++;
        p->series = s;
        if (s == r->n_series) r->series[r->n_series++].first = p;
        r->series[s].n_point++;
    }
    qsort(r->points, r->n_point, sizeof *r->points, compare_series);
    size_t at = 0;
    for (size_t s = 0; s < r->n_series; s++) {
        r->series[s].first = &r->points[at];
        at += r->series[s].n_point;
    }
    return FATHOM_OK;
}

void report_data_free(struct report_data *r)
{
    mem_free(r->points);
    mem_free(r->series);
    memset(r, 0, sizeof *r);
}

/* sweep.c - lists of settings, the points that they make, and a row for each */
#include "bench/sweep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

enum { REQUESTS_LEAST = 10, REQUESTS_EACH = 5, SECONDS_OF_RATE = 30 };

/* ---- lists ------------------------------------------------------------------------------- */

/* One item: a number, A-B or A-B/STEP; *at is left at its end. */
static bool read_item(const char **at, double *first, double *last, double *step)
{
    char *end;
    *first = strtod(*at, &end);
    if (end == *at) return false;
    *last = *first;
    *step = 1;
    if (*end == '-') {
        const char *from = end + 1;
        *last = strtod(from, &end);
        if (end == from) return false;
    }
    if (*end == '/') {
        const char *from = end + 1;
        *step = strtod(from, &end);
        if (end == from) return false;
    }
    *at = end;
    return *end == ',' || *end == '\0';
}

static bool is_usable(double value, bool whole)
{
    if (isinf(value)) return value > 0 && !whole;
    return value > 0 && value < 1e9 && (!whole || value == floor(value));
}

fathom_err sweep_list_read(struct sweep_list *out, const char *text, const char *what, bool whole,
                           fathom_diag *d)
{
    out->n = 0;
    for (const char *at = text; *at;) {
        double first;
        double last;
        double step;
        const char *item = at;
        if (!read_item(&at, &first, &last, &step) || !is_usable(first, whole) || last < first ||
            !(step > 0) || (isinf(last) && last != first)) {
            FAIL(d, FATHOM_EINVAL,
                 "%s: \"%s\" is not a list such as 1,2,4-8,10-100/10 of %s above 0", what, item,
                 whole ? "whole numbers" : "numbers");
        }
        size_t n_step = isinf(first) ? 0 : (size_t)((last - first) / step + 1e-9);
        for (size_t i = 0; i <= n_step; i++) {
            double value = isinf(first) ? first : first + (double)i * step;
            if (out->n == SWEEP_LIST_MAX || !is_usable(value, whole)) {
                FAIL(d, FATHOM_EINVAL, "%s: \"%s\" makes more than %d values, or one of no use",
                     what, item, SWEEP_LIST_MAX);
            }
            out->values[out->n++] = value;
        }
        if (*at == ',') at++;
    }
    return FATHOM_OK;
}

/* ---- points ------------------------------------------------------------------------------ */

static void name_point(struct sweep_point *p)
{
    int n = snprintf(p->name, sizeof p->name, "in%u-out%u", p->n_input, p->n_output);
    size_t room = sizeof p->name - (size_t)n;
    if (p->concurrency) {
        (void)snprintf(p->name + n, room, "-c%u", p->concurrency);
    } else {
        (void)snprintf(p->name + n, room, "-r%g", p->rate);
    }
}

fathom_err sweep_points_make(struct sweep_point **out, size_t *n, const struct sweep_list *inputs,
                             const struct sweep_list *outputs,
                             const struct sweep_list *concurrencies, const struct sweep_list *rates,
                             fathom_diag *d)
{
    size_t n_load = concurrencies->n + rates->n;
    *n = 0;
    *out = NULL;
    if (n_load == 0 || inputs->n == 0 || outputs->n == 0) {
        FAIL(d, FATHOM_EINVAL,
             "a sweep needs --concurrency or --request-rate, --input-len and --output-len");
    }
    struct sweep_point *points = mem_calloc(inputs->n * outputs->n * n_load, sizeof *points);
    if (!points) return FATHOM_ENOMEM;
    for (size_t i = 0; i < inputs->n; i++) {
        for (size_t k = 0; k < outputs->n; k++) {
            for (size_t l = 0; l < n_load; l++) {
                bool by_rate = l >= concurrencies->n;
                struct sweep_point *p = &points[(*n)++];
                p->n_input = (uint32_t)inputs->values[i];
                p->n_output = (uint32_t)outputs->values[k];
                p->concurrency = by_rate ? 0 : (uint32_t)concurrencies->values[l];
                p->rate = by_rate ? rates->values[l - concurrencies->n] : INFINITY;
                name_point(p);
            }
        }
    }
    *out = points;
    return FATHOM_OK;
}

size_t sweep_requests(const struct sweep_point *p)
{
    double n = p->concurrency   ? (double)p->concurrency * REQUESTS_EACH
               : isinf(p->rate) ? 0
                                : p->rate * SECONDS_OF_RATE;
    return n > REQUESTS_LEAST ? (size_t)n : REQUESTS_LEAST;
}

/* ---- rows -------------------------------------------------------------------------------- */

/* Members of a result in the order of the columns; a dot goes into an object. */
static const char *const columns[] = {
    "label",
    "backend",
    "model_id",
    "dataset_name",
    "input_len",
    "output_len",
    "max_concurrency",
    "request_rate",
    "num_prompts",
    "repeats",
    "completed",
    "failed",
    "duration",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "mean_ttft_ms",
    "median_ttft_ms",
    "spread.p99_ttft_ms.median",
    "mean_tpot_ms",
    "median_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "spread.p99_itl_ms.median",
    "mean_e2el_ms",
    "median_e2el_ms",
    "spread.p99_e2el_ms.median",
    "spread.output_throughput.min",
    "spread.output_throughput.max",
    "spread.median_ttft_ms.min",
    "spread.median_ttft_ms.max",
    "spread.median_itl_ms.min",
    "spread.median_itl_ms.max",
    "server_metrics.mean_queue_ms",
    "server_metrics.prefix_hit_share",
    "checks.mean_client_wait_ms",
    "checks.mean_in_flight",
    "checks.littles_law_holds",
    "checks.client_busy_share",
    "date",
    "workload",
};

static const json_t *find_member(const json_t *object, const char *path)
{
    char key[64];
    for (;;) {
        size_t n = strcspn(path, ".");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, path);
        object = json_object_get(object, key);
        if (path[n] == '\0') return object;
        path += n + 1;
    }
}

static void add_text_cell(struct buf *out, const char *text)
{
    (void)buf_add_char(out, '"');
    for (; *text; text++) {
        if (*text == '"') (void)buf_add_char(out, '"');
        (void)buf_add_char(out, *text == '\n' || *text == '\r' ? ' ' : *text);
    }
    (void)buf_add_char(out, '"');
}

static void add_cell(struct buf *out, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING: add_text_cell(out, json_string_value(value)); break;
    case JSON_INTEGER: (void)buf_printf(out, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: (void)buf_printf(out, "%.6g", json_real_value(value)); break;
    case JSON_TRUE: (void)buf_add_str(out, "true"); break;
    case JSON_FALSE: (void)buf_add_str(out, "false"); break;
    case JSON_NULL:
    case JSON_OBJECT:
    case JSON_ARRAY: break;
    }
}

fathom_err sweep_csv_head(struct buf *out)
{
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        (void)buf_printf(out, "%s%s", i ? "," : "", columns[i]);
    }
    return buf_add_char(out, '\n');
}

fathom_err sweep_csv_row(struct buf *out, const json_t *result)
{
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        const json_t *value = find_member(result, columns[i]);
        if (i) (void)buf_add_char(out, ',');
        if (value) add_cell(out, value);
    }
    return buf_add_char(out, '\n');
}

/* prometheus.c - counts values by bounds, writes families and samples */
#include "server/prometheus.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

enum { NUMBER_BYTES = 40 };

void histogram_init(struct histogram *h, const uint64_t *bounds, uint32_t n, double n_per_unit)
{
    ASSERT(n <= HISTOGRAM_BOUNDS_MAX);
    h->n_per_unit = n_per_unit;
    h->n_bound = n;
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(i == 0 || bounds[i] > bounds[i - 1]);
        h->bounds[i] = bounds[i];
    }
    for (uint32_t i = 0; i <= n; i++) atomic_init(&h->counts[i], 0);
    atomic_init(&h->sum, 0);
}

void histogram_init_125(struct histogram *h, uint64_t max)
{
    static const uint64_t steps[] = {1, 2, 5};
    uint64_t bounds[HISTOGRAM_BOUNDS_MAX];
    uint32_t n = 0;
    for (uint64_t power = 1; power <= max && n + 3 <= HISTOGRAM_BOUNDS_MAX; power *= 10) {
        for (int i = 0; i < 3; i++) {
            if (power * steps[i] <= max) bounds[n++] = power * steps[i];
        }
    }
    histogram_init(h, bounds, n, 1);
}

void histogram_observe(struct histogram *h, uint64_t value)
{
    uint32_t i = 0;
    while (i < h->n_bound && value > h->bounds[i]) i++;
    atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum, value, memory_order_relaxed);
}

/* ---- text ---------------------------------------------------------------------------------- */

static const char *const type_names[] = {"counter", "gauge", "histogram"};

void prometheus_family(struct buf *b, const char *name, enum prometheus_type type, const char *help)
{
    (void)buf_printf(b, "# HELP %s ", name);
    for (const char *c = help; *c; c++) {
        if (*c == '\n') {
            (void)buf_add_str(b, "\\n");
        } else if (*c == '\\') {
            (void)buf_add_str(b, "\\\\");
        } else {
            (void)buf_add_char(b, *c);
        }
    }
    (void)buf_printf(b, "\n# TYPE %s %s\n", name, type_names[type]);
}

void prometheus_label(struct buf *labels, const char *name, const char *value)
{
    (void)buf_printf(labels, "%s%s=\"", labels->len ? "," : "", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\n') {
            (void)buf_add_str(labels, "\\n");
            continue;
        }
        if (*c == '\\' || *c == '"') (void)buf_add_char(labels, '\\');
        (void)buf_add_char(labels, *c);
    }
    (void)buf_add_char(labels, '"');
}

/* The shortest of 15 or 17 digits that reads back as the same number; "1.0" for a whole one, as
 * Prometheus' own libraries write it. */
static void write_number(char text[NUMBER_BYTES], double value)
{
    if (isnan(value) || isinf(value)) {
        (void)snprintf(text, NUMBER_BYTES, "%s",
                       isnan(value) ? "NaN" : (value > 0 ? "+Inf" : "-Inf"));
        return;
    }
    (void)snprintf(text, NUMBER_BYTES, "%.15g", value);
    if (strtod(text, NULL) != value) (void)snprintf(text, NUMBER_BYTES, "%.17g", value);
    size_t n = strlen(text);
    if (!strpbrk(text, ".e") && n + 3 <= NUMBER_BYTES) memcpy(text + n, ".0", 3);
}

static void write_name(struct buf *b, const char *name, const char *suffix,
                       const struct buf *labels)
{
    (void)buf_printf(b, "%s%s", name, suffix);
    if (labels && labels->len) (void)buf_printf(b, "{%s}", buf_str(labels));
}

void prometheus_count(struct buf *b, const char *name, const struct buf *labels, uint64_t value)
{
    write_name(b, name, "", labels);
    (void)buf_printf(b, " %llu\n", (unsigned long long)value);
}

void prometheus_value(struct buf *b, const char *name, const struct buf *labels, double value)
{
    char text[NUMBER_BYTES];
    write_number(text, value);
    write_name(b, name, "", labels);
    (void)buf_printf(b, " %s\n", text);
}

static void write_bucket(struct buf *b, const char *name, const struct buf *labels,
                         const char *bound, uint64_t n)
{
    bool more = labels && labels->len;
    (void)buf_printf(b, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, more ? buf_str(labels) : "",
                     more ? "," : "", bound, (unsigned long long)n);
}

void prometheus_histogram(struct buf *b, const char *name, const struct buf *labels,
                          struct histogram *h)
{
    char text[NUMBER_BYTES];
    uint64_t n = 0;
    for (uint32_t i = 0; i < h->n_bound; i++) {
        n += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        write_number(text, (double)h->bounds[i] / h->n_per_unit);
        write_bucket(b, name, labels, text, n);
    }
    n += atomic_load_explicit(&h->counts[h->n_bound], memory_order_relaxed);
    write_bucket(b, name, labels, "+Inf", n);
    write_number(text, (double)atomic_load_explicit(&h->sum, memory_order_relaxed) / h->n_per_unit);
    write_name(b, name, "_sum", labels);
    (void)buf_printf(b, " %s\n", text);
    write_name(b, name, "_count", labels);
    (void)buf_printf(b, " %llu\n", (unsigned long long)n);
}

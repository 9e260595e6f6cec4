/* report_section.c - which series are drawn together, and their charts */
#include "bench/report_section.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

/* ---- series that belong together --------------------------------------------------------- */

/* In what two series differ. */
static unsigned difference(const struct report_series *a, const struct report_series *b)
{
    unsigned bits = 0;
    if (strcmp(a->first->engine, b->first->engine) != 0) bits |= DIFFER_ENGINE;
    if (strcmp(a->first->model, b->first->model) != 0) bits |= DIFFER_MODEL;
    if (a->first->n_input != b->first->n_input) bits |= DIFFER_INPUT;
    if (a->first->n_output != b->first->n_output) bits |= DIFFER_OUTPUT;
    return bits;
}

/* Adds the series that differ from series i in `bit` alone; false when there are none, or when an
 * earlier one has them all. */
static bool gather(struct section *s, const struct report_data *r, size_t i, unsigned bit)
{
    *s = (struct section){.series = {i}, .n = 1, .differ = bit};
    for (size_t k = 0; k < r->n_series; k++) {
        if (k == i || difference(&r->series[i], &r->series[k]) != bit) continue;
        if (k < i) return false;
        if (s->n < SECTION_SERIES) s->series[s->n++] = k;
    }
    return s->n > 1;
}

static bool is_shown(const struct section *all, size_t n, size_t series)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < all[i].n; k++) {
            if (all[i].series[k] == series) return true;
        }
    }
    return false;
}

size_t sections_make(struct section *out, const struct report_data *r)
{
    static const unsigned bits[] = {DIFFER_ENGINE, DIFFER_MODEL, DIFFER_INPUT, DIFFER_OUTPUT};
    size_t n = 0;
    if (r->n_series <= SECTION_SERIES) {
        out[0] = (struct section){.n = r->n_series};
        for (size_t i = 0; i < r->n_series; i++) {
            out[0].series[i] = i;
            out[0].differ |= difference(&r->series[0], &r->series[i]);
        }
        return 1;
    }
    for (size_t b = 0; b < sizeof bits / sizeof bits[0]; b++) {
        for (size_t i = 0; i < r->n_series && n < REPORT_SECTIONS_MAX; i++) {
            if (gather(&out[n], r, i, bits[b])) n++;
        }
    }
    for (size_t i = 0; i < r->n_series && n < REPORT_SECTIONS_MAX; i++) {
        if (!is_shown(out, n, i)) out[n++] = (struct section){.series = {i}, .n = 1};
    }
    return n;
}

/* ---- names ------------------------------------------------------------------------------- */

void part_end(struct buf *html, struct buf *part)
{
    if (buf_status(part) != FATHOM_OK) html->failed = true;
    buf_free(part);
}

static void add_word(struct buf *out, const char *text)
{
    if (out->len) (void)buf_add_str(out, ", ");
    (void)buf_add_str(out, text);
}

static void add_length(struct buf *out, uint32_t n, const char *what)
{
    if (out->len) (void)buf_add_str(out, ", ");
    number_add(out, n);
    (void)buf_printf(out, " %s", what);
}

void series_name(struct buf *out, const struct report_series *s, unsigned differ)
{
    const struct report_point *p = s->first;
    if (differ & DIFFER_ENGINE) add_word(out, p->engine);
    if (differ & DIFFER_MODEL) add_word(out, p->model);
    if (differ & DIFFER_INPUT) add_length(out, p->n_input, "in");
    if (differ & DIFFER_OUTPUT) add_length(out, p->n_output, "out");
}

void section_common(struct buf *out, const struct report_data *r, const struct section *s)
{
    series_name(out, &r->series[s->series[0]],
                ~s->differ & (DIFFER_ENGINE | DIFFER_MODEL | DIFFER_INPUT | DIFFER_OUTPUT));
}

void section_title(struct buf *out, const struct report_data *r, const struct section *s)
{
    if (s->n == 1) {
        section_common(out, r, s);
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        struct buf name = {0};
        series_name(&name, &r->series[s->series[i]], s->differ);
        (void)buf_printf(out, "%s%s", i ? " against " : "", buf_str(&name));
        part_end(out, &name);
    }
}

/* ---- lines ------------------------------------------------------------------------------- */

/* What stands on an axis. */
enum axis {
    AXIS_CONCURRENCY,
    AXIS_OFFERED,  /* rate asked for */
    AXIS_SERVED,   /* rate kept */
    AXIS_USER_RATE /* tokens a second of one stream */
};

/* One chart to be drawn: up to two figures over an axis. */
struct plot {
    const char *name;
    const char *title;
    const char *y_label;
    const char *y_unit;
    enum axis x;
    struct {
        enum report_field field;
        const char *name; /* "" for a chart of one figure */
    } figures[2];
    size_t n_figure;
    bool is_zoomed; /* drawn once more for low concurrencies */
};

static const char *const axis_names[] = {"requests in flight", "requests/s offered",
                                         "requests/s served", "tokens/s of one stream"};

static const struct plot plots[] = {
    {"throughput",
     "Throughput over concurrency",
     "tokens a second",
     "tok/s",
     AXIS_CONCURRENCY,
     {{REPORT_OUTPUT_RATE, "output"}, {REPORT_TOTAL_RATE, "total"}},
     2,
     true},
    {"itl",
     "Inter-token latency over concurrency",
     "time between tokens",
     "ms",
     AXIS_CONCURRENCY,
     {{REPORT_ITL_MEDIAN, "median"}, {REPORT_ITL_P99, "p99"}},
     2,
     true},
    {"ttft",
     "Time to first token over concurrency",
     "TTFT",
     "ms",
     AXIS_CONCURRENCY,
     {{REPORT_TTFT_MEDIAN, "median"}, {REPORT_TTFT_P99, "p99"}},
     2,
     true},
    {"ttlt",
     "Time to last token over concurrency",
     "TTLT",
     "ms",
     AXIS_CONCURRENCY,
     {{REPORT_E2EL_MEDIAN, "median"}, {REPORT_E2EL_P99, "p99"}},
     2,
     true},
    {"frontier",
     "What a user gets against what the server gives",
     "output of the server",
     "tok/s",
     AXIS_USER_RATE,
     {{REPORT_OUTPUT_RATE, ""}},
     1,
     false},
    {"served",
     "Served against offered rate",
     "requests served a second",
     "req/s",
     AXIS_OFFERED,
     {{REPORT_REQUEST_RATE, ""}},
     1,
     false},
    {"rate-throughput",
     "Throughput over served rate",
     "tokens a second",
     "tok/s",
     AXIS_SERVED,
     {{REPORT_OUTPUT_RATE, "output"}, {REPORT_TOTAL_RATE, "total"}},
     2,
     false},
    {"offered-throughput",
     "Throughput over offered rate",
     "tokens a second",
     "tok/s",
     AXIS_OFFERED,
     {{REPORT_OUTPUT_RATE, "output"}, {REPORT_TOTAL_RATE, "total"}},
     2,
     false},
    {"rate-ttft",
     "Time to first token over offered rate",
     "TTFT",
     "ms",
     AXIS_OFFERED,
     {{REPORT_TTFT_MEDIAN, "median"}, {REPORT_TTFT_P99, "p99"}},
     2,
     false},
    {"rate-ttlt",
     "Time to last token over offered rate",
     "TTLT",
     "ms",
     AXIS_OFFERED,
     {{REPORT_E2EL_MEDIAN, "median"}, {REPORT_E2EL_P99, "p99"}},
     2,
     false},
    {"served-ttft",
     "Time to first token over served rate",
     "TTFT",
     "ms",
     AXIS_SERVED,
     {{REPORT_TTFT_MEDIAN, "median"}, {REPORT_TTFT_P99, "p99"}},
     2,
     false},
    {"served-ttlt",
     "Time to last token over served rate",
     "TTLT",
     "ms",
     AXIS_SERVED,
     {{REPORT_E2EL_MEDIAN, "median"}, {REPORT_E2EL_P99, "p99"}},
     2,
     false},
    {"rate-itl",
     "Inter-token latency over offered rate",
     "time between tokens",
     "ms",
     AXIS_OFFERED,
     {{REPORT_ITL_MEDIAN, "median"}, {REPORT_ITL_P99, "p99"}},
     2,
     false},
};

/* Where a point stands on an axis; NAN when it does not belong there. */
static double place(const struct report_point *p, enum axis x)
{
    const struct report_value *tpot = &p->values[REPORT_TPOT_MEDIAN];
    bool by_concurrency = isinf(p->rate) && p->concurrency;
    switch (x) {
    case AXIS_CONCURRENCY: return by_concurrency ? p->concurrency : NAN;
    case AXIS_OFFERED: return isinf(p->rate) ? NAN : p->rate;
    case AXIS_SERVED: return isinf(p->rate) ? NAN : p->values[REPORT_REQUEST_RATE].value;
    case AXIS_USER_RATE:
        return by_concurrency && tpot->has && tpot->value > 0 ? 1000 / tpot->value : NAN;
    }
    return NAN;
}

/* Appends a point. Points come by rising load; of two of one load the later holds. */
static void add_point(struct chart_line *l, const struct chart_point *p, bool same_load)
{
    if (same_load && l->n) l->n--;
    if (l->n < CHART_POINTS) l->points[l->n++] = *p;
}

static void fill_line(struct chart_line *l, const struct report_series *s, const struct plot *plot,
                      size_t figure, double x_max)
{
    const struct report_point *last = NULL;
    l->n = 0;
    for (size_t i = 0; i < s->n_point; i++) {
        const struct report_point *p = &s->first[i];
        const struct report_value *v = &p->values[plot->figures[figure].field];
        double x = place(p, plot->x);
        if (!isfinite(x) || x > x_max || !v->has) continue;
        bool same = last && last->concurrency == p->concurrency && last->rate == p->rate;
        add_point(l, &(struct chart_point){x, v->value, v->lo, v->hi}, same);
        last = p;
    }
}

static void name_line(struct buf *html, struct chart_line *l, const struct report_series *s,
                      unsigned differ, const char *figure)
{
    struct buf name = {0};
    series_name(&name, s, differ);
    (void)snprintf(l->name, sizeof l->name, "%s%s%s", buf_str(&name),
                   name.len && *figure ? ", " : "", figure);
    if (!l->name[0]) (void)snprintf(l->name, sizeof l->name, "%s", s->first->engine);
    part_end(html, &name);
}

/* ---- charts ------------------------------------------------------------------------------ */

/* The report under way. */
struct sheet {
    struct buf *out;
    const struct report_data *data;
    const struct section *section;
    size_t i_section;
    struct chart chart;
    struct buf caption;
    struct buf title;
};

/* Figures [first, first + n) of a plot, up to x_max. */
static fathom_err draw(struct sheet *h, const struct plot *plot, size_t first, size_t n,
                       double x_max)
{
    struct chart *c = &h->chart;
    c->n_line = 0;
    for (size_t k = first; k < first + n; k++) {
        for (size_t i = 0; i < h->section->n; i++) {
            const struct report_series *s = &h->data->series[h->section->series[i]];
            struct chart_line *l = &c->lines[c->n_line];
            fill_line(l, s, plot, k, x_max);
            if (l->n == 0) continue;
            name_line(h->out, l, s, h->section->differ, plot->figures[k].name);
            l->colour = h->section->n == 1 ? (unsigned)k : (unsigned)i;
            l->is_dashed = k > 0;
            c->n_line++;
        }
    }
    if (!chart_has_range(c)) return FATHOM_OK;
    buf_clear(&h->title);
    (void)buf_add_str(&h->title, plot->title);
    if (n == 1 && plot->n_figure == 2) {
        (void)buf_printf(&h->title, ": %s", plot->figures[first].name);
    }
    int n_id = snprintf(c->id, sizeof c->id, "s%zu-%s-%zu%zu", h->i_section, plot->name, first, n);
    if (isfinite(x_max)) {
        (void)buf_printf(&h->title, ", up to %.0f", x_max);
        (void)snprintf(c->id + n_id, sizeof c->id - (size_t)n_id, "-%.0f", x_max);
    }
    TRY(buf_status(&h->title));
    c->title = buf_str(&h->title);
    c->x_label = axis_names[plot->x];
    c->y_label = plot->y_label;
    c->y_unit = plot->y_unit;
    c->caption = buf_str(&h->caption);
    c->has_diagonal = plot->x == AXIS_OFFERED && plot->figures[0].field == REPORT_REQUEST_RATE;
    c->x_is_count = plot->x == AXIS_CONCURRENCY;
    return chart_write(h->out, c);
}

/* Many series and two figures each would be a tangle: then a chart for each figure. */
static fathom_err draw_plot(struct sheet *h, const struct plot *plot, double x_max)
{
    fathom_err err = FATHOM_OK;
    if (h->section->n <= 2) return draw(h, plot, 0, plot->n_figure, x_max);
    for (size_t k = 0; !err && k < plot->n_figure; k++) err = draw(h, plot, k, 1, x_max);
    return err;
}

/* Does a zoom show more than the whole does: three points at least, and far less than all? */
static bool is_zoom_useful(const struct sheet *h, uint32_t zoom)
{
    size_t n_within = 0;
    double largest = 0;
    for (size_t i = 0; i < h->section->n; i++) {
        const struct report_series *s = &h->data->series[h->section->series[i]];
        size_t n_here = 0;
        for (size_t k = 0; k < s->n_point; k++) {
            double x = place(&s->first[k], AXIS_CONCURRENCY);
            if (!isfinite(x)) continue;
            if (x <= zoom) n_here++;
            if (x > largest) largest = x;
        }
        if (n_here > n_within) n_within = n_here;
    }
    return n_within >= 3 && largest >= 2.0 * zoom;
}

fathom_err section_write(struct buf *out, const struct report_data *r, const uint32_t *zooms,
                         size_t n_zoom, const struct section *s, size_t i)
{
    struct sheet h = {.out = out, .data = r, .section = s, .i_section = i};
    size_t n_plot = sizeof plots / sizeof plots[0];
    fathom_err err = FATHOM_OK;
    h.chart.lines = mem_calloc(CHART_LINES, sizeof *h.chart.lines);
    if (!h.chart.lines) return FATHOM_ENOMEM;
    section_common(&h.caption, r, s);
    (void)buf_add_str(out, "<div class=\"charts\">\n");
    for (size_t p = 0; !err && p < n_plot; p++) err = draw_plot(&h, &plots[p], INFINITY);
    for (size_t z = 0; !err && z < n_zoom; z++) {
        if (!is_zoom_useful(&h, zooms[z])) continue;
        for (size_t p = 0; !err && p < n_plot; p++) {
            if (plots[p].is_zoomed) err = draw_plot(&h, &plots[p], zooms[z]);
        }
    }
    (void)buf_add_str(out, "</div>\n");
    if (!err) err = buf_status(&h.caption);
    if (!err) err = buf_status(&h.title);
    mem_free(h.chart.lines);
    buf_free(&h.caption);
    buf_free(&h.title);
    return err ? err : buf_status(out);
}

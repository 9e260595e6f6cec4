/* chart.h - a line chart as SVG for an HTML page, with its legend and its table
 *
 * Colours are classes (c0 .. c7) that the style sheet gives meaning, so that one drawing serves
 * light, dark and paper. Lines also differ by the shape of their marks and by dashes, for readers
 * who do not see the colours. The table holds every value that is drawn.
 */
#ifndef FATHOM_BENCH_CHART_H
#define FATHOM_BENCH_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"

enum { CHART_LINES = 16, CHART_POINTS = 256, CHART_COLOURS = 8, CHART_NAME_BYTES = 160 };

struct chart_point {
    double x;
    double y;
    double lo; /* of repeats; equal to y for none */
    double hi;
};

struct chart_line {
    char name[CHART_NAME_BYTES];
    unsigned colour; /* taken modulo CHART_COLOURS */
    bool is_dashed;
    struct chart_point points[CHART_POINTS]; /* in the order in which they are joined */
    size_t n;
};

struct chart {
    char id[64]; /* unique in the report */
    const char *title;
    const char *x_label;
    const char *y_label;
    const char *y_unit; /* "ms" is drawn in seconds when the values are large; NULL: none */
    const char *caption;
    bool has_diagonal;        /* the line y = x, for what is offered and served */
    bool x_is_count;          /* ticks stand at the values measured */
    struct chart_line *lines; /* [CHART_LINES] */
    size_t n_line;
};

/* html_add - text with & < > " ' escaped, ill-formed UTF-8 replaced */
void html_add(struct buf *out, const char *text);

/* number_add - three digits or more, whole numbers from 10 on as they are, thousands in groups:
 * "0.52", "31.4", "64", "1,234" */
void number_add(struct buf *out, double value);

/* chart_has_range - whether two values of x are there, so that a line can be drawn */
bool chart_has_range(const struct chart *c);

/* chart_write - a figure: title, legend, drawing, caption, table. Needs chart_has_range. */
fathom_err chart_write(struct buf *out, const struct chart *c);

#endif

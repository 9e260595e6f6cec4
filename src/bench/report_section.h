/* report_section.h - which series of a report are drawn together, and their charts */
#ifndef FATHOM_BENCH_REPORT_SECTION_H
#define FATHOM_BENCH_REPORT_SECTION_H

#include "bench/chart.h"
#include "bench/report_data.h"

enum { SECTION_SERIES = 6, REPORT_SECTIONS_MAX = 64 };

/* What tells the series of a section apart; bits. */
enum { DIFFER_ENGINE = 1, DIFFER_MODEL = 2, DIFFER_INPUT = 4, DIFFER_OUTPUT = 8 };

/* Series that are drawn together. */
struct section {
    size_t series[SECTION_SERIES];
    size_t n;
    unsigned differ;
};

/* sections_make - all series when they are few; else those that differ in one thing, and the rest
 * one by one
 * Returns  how many, at most REPORT_SECTIONS_MAX. */
size_t sections_make(struct section *out, const struct report_data *r);

/* section_title - "input 1,024 against 4,096", or what the one series is */
void section_title(struct buf *out, const struct report_data *r, const struct section *s);

/* section_common - what all series of the section have: "pilot, fathom, 1,024 in, 256 out" */
void section_common(struct buf *out, const struct report_data *r, const struct section *s);

/* series_name - what tells a series from the others of its section; "" when it is alone */
void series_name(struct buf *out, const struct report_series *s, unsigned differ);

/* section_write - the charts of a section
 *
 *   zooms  [n_zoom] charts over concurrency once more up to these
 *   i      its number, for the names of its charts */
fathom_err section_write(struct buf *out, const struct report_data *r, const uint32_t *zooms,
                         size_t n_zoom, const struct section *s, size_t i);

/* part_end - release a text that was made for the report; when it failed, so has the report */
void part_end(struct buf *html, struct buf *part);

#endif

/* report.h - one HTML page from the results of benchmarks: charts, tables, checks
 *
 * The HTML stands alone: no script is needed to read it, nothing is fetched. Series that differ in
 * one thing (engine, model, length of input or of output) are drawn together.
 */
#ifndef FATHOM_BENCH_REPORT_H
#define FATHOM_BENCH_REPORT_H

#include "base/buf.h"
#include "bench/report_data.h"

enum { REPORT_ZOOM_MAX = 4 };

struct report_options {
    const char *title;
    const char *made;                /* when, and by what */
    uint32_t zooms[REPORT_ZOOM_MAX]; /* charts over concurrency once more up to these */
    size_t n_zoom;
};

/* report_write - the HTML page
 *
 *   r  arranged
 * Errors  EINVAL when there is no point; ENOMEM. */
fathom_err report_write(struct buf *out, const struct report_data *r,
                        const struct report_options *o, fathom_diag *d);

#endif

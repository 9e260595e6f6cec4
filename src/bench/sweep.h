/* sweep.h - lists of settings, the points that they make, and a row for each
 *
 * Every pair of an input and an output length is measured with every concurrency (all requests due
 * at once) and with every request rate. A point has a name, which its file has too: a sweep that is
 * run again takes up where it was ended.
 */
#ifndef FATHOM_BENCH_SWEEP_H
#define FATHOM_BENCH_SWEEP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

enum { SWEEP_LIST_MAX = 256, SWEEP_NAME_BYTES = 96 };

struct sweep_list {
    double values[SWEEP_LIST_MAX];
    size_t n;
};

struct sweep_point {
    uint32_t n_input;
    uint32_t n_output;
    uint32_t concurrency;        /* 0: none, there is a rate */
    double rate;                 /* requests a second; INFINITY: all at once */
    char name[SWEEP_NAME_BYTES]; /* "in1024-out256-c8", "in1024-out256-r2.5" */
};

/* sweep_list_read - "1,2,4-8,10-100/10": numbers, ranges in steps of 1, ranges in steps
 *
 *   what  names the list in messages
 *   whole only whole numbers
 * Errors  EINVAL: the item, and what is accepted; more than SWEEP_LIST_MAX values. */
fathom_err sweep_list_read(struct sweep_list *out, const char *text, const char *what, bool whole,
                           fathom_diag *d);

/* sweep_points_make - all points, by length, then concurrencies, then rates
 *
 *   out  to be released with mem_free
 * Errors  EINVAL when there is neither a concurrency nor a rate; ENOMEM. */
fathom_err sweep_points_make(struct sweep_point **out, size_t *n, const struct sweep_list *inputs,
                             const struct sweep_list *outputs,
                             const struct sweep_list *concurrencies, const struct sweep_list *rates,
                             fathom_diag *d);

/* sweep_requests - how many a point takes when nobody says: five for each in flight, or 30 seconds
 * of the rate, and 10 at least */
size_t sweep_requests(const struct sweep_point *p);

/* sweep_csv_head, sweep_csv_row - a table of results; a row has the values of the median run and,
 * where there is one, the spread over the repeats */
fathom_err sweep_csv_head(struct buf *out);
fathom_err sweep_csv_row(struct buf *out, const json_t *result);

#endif

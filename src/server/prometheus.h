/* prometheus.h - histograms that any thread may feed, and the text form of metrics
 *
 * The text is Prometheus' exposition format 0.0.4: a family is a HELP line, a TYPE line and its
 * samples, all of one name, in one place. Errors of writing stay in the buffer (buf_status).
 */
#ifndef FATHOM_SERVER_PROMETHEUS_H
#define FATHOM_SERVER_PROMETHEUS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define PROMETHEUS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* ---- histograms ---------------------------------------------------------------------------- */

enum { HISTOGRAM_BOUNDS_MAX = 32 };

/* Counts of values by the smallest bound that is not below them. Values and bounds are integers in
 * a unit of their own (microseconds, tokens); the unit that is told (seconds) has `n_per_unit` of
 * them. Counts and sum are updated one by one without a lock: a reader may see a value in one and
 * not yet in the other. All else is fixed. */
struct histogram {
    double n_per_unit;
    uint32_t n_bound;
    uint64_t bounds[HISTOGRAM_BOUNDS_MAX];                 /* ascending */
    atomic_uint_fast64_t counts[HISTOGRAM_BOUNDS_MAX + 1]; /* the last: above all bounds */
    atomic_uint_fast64_t sum;
};

/* histogram_init - n ascending bounds, at most HISTOGRAM_BOUNDS_MAX */
void histogram_init(struct histogram *h, const uint64_t *bounds, uint32_t n, double n_per_unit);

/* histogram_init_125 - bounds 1, 2, 5, 10, 20, 50 ... up to max; told as they are */
void histogram_init_125(struct histogram *h, uint64_t max);

/* histogram_observe - count one value. Any thread; no lock, no allocation. */
void histogram_observe(struct histogram *h, uint64_t value);

/* ---- text ---------------------------------------------------------------------------------- */

enum prometheus_type { PROMETHEUS_COUNTER, PROMETHEUS_GAUGE, PROMETHEUS_HISTOGRAM };

/* prometheus_family - the HELP and TYPE lines; samples of `name` follow */
void prometheus_family(struct buf *b, const char *name, enum prometheus_type type,
                       const char *help);

/* prometheus_label - append name="value" to a list of labels, with a comma where one is needed;
 * backslash, quote and line feed of the value are escaped */
void prometheus_label(struct buf *labels, const char *name, const char *value);

/* prometheus_count, prometheus_value - one sample; labels as prometheus_label makes them */
void prometheus_count(struct buf *b, const char *name, const struct buf *labels, uint64_t value);
void prometheus_value(struct buf *b, const char *name, const struct buf *labels, double value);

/* prometheus_histogram - the samples of a histogram: name_bucket, cumulative and up to +Inf,
 * name_sum, name_count. The count is that of the buckets as they are written, so the buckets never
 * contradict it. */
void prometheus_histogram(struct buf *b, const char *name, const struct buf *labels,
                          struct histogram *h);

#endif

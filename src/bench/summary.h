/* summary.h - what is said of many numbers: mean, median, deviation, percentiles */
#ifndef FATHOM_BENCH_SUMMARY_H
#define FATHOM_BENCH_SUMMARY_H

#include <stddef.h>

enum { PERCENTILE_MAX = 16 };

/* The percentiles to compute, each within 0 .. 100. */
struct percentile_list {
    double at[PERCENTILE_MAX];
    size_t n;
};

/* All 0 when n is 0. */
struct summary {
    size_t n;
    double mean;
    double median;
    double std; /* of the population: divided by n */
    double min;
    double max;
    double p99;
    double percentiles[PERCENTILE_MAX]; /* as the list has them */
};

/* Smallest, median and largest of a few runs. */
struct spread {
    double min;
    double median; /* the lower of the two middle ones */
    double max;
};

/* percentile_of - between the two nearest of n ascending values, in proportion (the definition of
 * numpy.percentile); 0 when n is 0 */
double percentile_of(const double *sorted, size_t n, double percent);

/* summarise - sorts `values` and describes them */
void summarise(struct summary *out, double *values, size_t n, const struct percentile_list *p);

/* spread_of - sorts `values`, n >= 1 */
struct spread spread_of(double *values, size_t n);

#endif

/* summary.c - mean, median, deviation, percentiles */
#include "bench/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double percentile_of(const double *sorted, size_t n, double percent)
{
    if (n == 0) return 0;
    double at = percent / 100 * (double)(n - 1);
    size_t below = (size_t)at;
    if (below + 1 >= n) return sorted[n - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

void summarise(struct summary *out, double *values, size_t n, const struct percentile_list *p)
{
    memset(out, 0, sizeof *out);
    if (n == 0) return;
    qsort(values, n, sizeof *values, compare_doubles);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    double mean = sum / (double)n;
    double square = 0;
    for (size_t i = 0; i < n; i++) square += (values[i] - mean) * (values[i] - mean);
    out->n = n;
    out->mean = mean;
    out->std = sqrt(square / (double)n);
    out->median = percentile_of(values, n, 50);
    out->p99 = percentile_of(values, n, 99);
    out->min = values[0];
    out->max = values[n - 1];
    for (size_t i = 0; i < p->n; i++) out->percentiles[i] = percentile_of(values, n, p->at[i]);
}

struct spread spread_of(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return (struct spread){values[0], values[(n - 1) / 2], values[n - 1]};
}

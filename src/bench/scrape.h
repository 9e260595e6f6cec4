/* scrape.h - what a server's /metrics say of a run
 *
 * Counters and histograms are read before and after; the differences belong to the run, when
 * nobody else used the server. Names are vLLM's, which fathom has too, and SGLang's.
 */
#ifndef FATHOM_BENCH_SCRAPE_H
#define FATHOM_BENCH_SCRAPE_H

#include <stdbool.h>
#include <stddef.h>

#include "bench/figures.h"

enum scrape_series {
    SCRAPE_QUEUE_SECONDS,
    SCRAPE_QUEUE_COUNT,
    SCRAPE_PREFIX_QUERIES,
    SCRAPE_PREFIX_HITS,
    SCRAPE_DRAFTED,
    SCRAPE_ACCEPTED,
    SCRAPE_PREEMPTIONS,
    SCRAPE_SERIES_COUNT,
};

/* One reading; a series that the server does not have is absent. */
struct scrape {
    double value[SCRAPE_SERIES_COUNT];
    bool has[SCRAPE_SERIES_COUNT];
};

/* scrape_parse - the sums of the series over their labels
 *
 *   text  n bytes in Prometheus' text form; lines that are not of it are skipped */
void scrape_parse(struct scrape *out, const char *text, size_t n);

/* scrape_difference - what happened between two readings */
void scrape_difference(struct server_view *out, const struct scrape *before,
                       const struct scrape *after);

#endif

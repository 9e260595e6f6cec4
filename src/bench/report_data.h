/* report_data.h - results of benchmarks as points, and points as series
 *
 * A series is what one line of a chart shows: one engine, one model, one input and one output
 * length. Files of `fathom bench serve`, of `fathom bench sweep` and of `vllm bench serve` are read
 * alike; a file may hold one result, an array of them, or one a line.
 */
#ifndef FATHOM_BENCH_REPORT_DATA_H
#define FATHOM_BENCH_REPORT_DATA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

enum report_field {
    REPORT_REQUEST_RATE,
    REPORT_OUTPUT_RATE,
    REPORT_TOTAL_RATE,
    REPORT_TTFT_MEDIAN,
    REPORT_TTFT_P99,
    REPORT_TPOT_MEDIAN,
    REPORT_ITL_MEDIAN,
    REPORT_ITL_P99,
    REPORT_E2EL_MEDIAN,
    REPORT_E2EL_P99,
    REPORT_FIELD_COUNT,
};

/* A figure and its spread over repeats; lo and hi are equal to it for one run. */
struct report_value {
    bool has;
    double value;
    double lo;
    double hi;
};

enum { REPORT_NAME_BYTES = 96, REPORT_TEXT_BYTES = 512 };

struct report_point {
    char engine[REPORT_NAME_BYTES]; /* the label, else the backend */
    char model[REPORT_NAME_BYTES];
    char workload[REPORT_TEXT_BYTES]; /* "" when the file does not say */
    char client[REPORT_TEXT_BYTES];
    char date[32];
    uint32_t n_input; /* tokens; of the mean prompt where the file does not say */
    uint32_t n_output;
    uint32_t concurrency; /* 0: no bound */
    double rate;          /* INFINITY: all at once */
    uint64_t n_completed;
    uint64_t n_failed;
    uint32_t n_repeat;
    struct report_value values[REPORT_FIELD_COUNT];
    bool is_checked; /* the file has checks: */
    bool little_holds;
    bool client_is_limit;
    bool is_cached;
    size_t series; /* index into report_data.series */
};

struct report_series {
    const struct report_point *first; /* any of its points: engine, model, lengths */
    size_t n_point;
};

struct report_data {
    struct report_point *points; /* by series, then concurrency, then rate */
    size_t n_point;
    size_t cap_point;
    struct report_series *series;
    size_t n_series;
};

/* report_data_add - one result
 *
 * Errors  EFORMAT for an object that is none, naming the member that is missing; ENOMEM. */
fathom_err report_data_add(struct report_data *r, const json_t *result, const char *what,
                           fathom_diag *d);

/* report_data_add_file - all results of a file
 * Errors  those of the file; EFORMAT with file and line. */
fathom_err report_data_add_file(struct report_data *r, const char *path, fathom_diag *d);

/* report_data_arrange - sort the points and find the series; called once, after the last add.
 * ENOMEM. */
fathom_err report_data_arrange(struct report_data *r);
void report_data_free(struct report_data *r); /* accepts a zeroed struct */

#endif

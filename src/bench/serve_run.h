/* serve_run.h - a benchmark of a server: first request, warm-up, load, repeats
 *
 * Each repeat has prompts of its own (seed, seed + 1, ...): what the server keeps of one does not
 * help the next. Prompts of the first request and of the warm-up are never those that count.
 */
#ifndef FATHOM_BENCH_SERVE_RUN_H
#define FATHOM_BENCH_SERVE_RUN_H

#include "bench/arrival.h"
#include "bench/completion_json.h"
#include "bench/dataset.h"
#include "bench/figures.h"
#include "bench/http_target.h"
#include "bench/load.h"

enum cache_mode {
    CACHE_AUTO, /* prompts as they are */
    CACHE_ON,   /* every prompt is sent once before it counts */
    CACHE_OFF,  /* each request has a cache_salt of its own */
};

/* What is said while it runs: one line, without its end. */
typedef void serve_say(void *arg, const char *line);

struct serve_options {
    struct http_target target;
    const char *path;
    struct request_shape shape;
    struct dataset_options dataset; /* n: requests that count, of one repeat */
    struct arrival_options arrival; /* its seed is the dataset's */
    const struct tokenizer *tokenizer;
    size_t n_warm_up;
    size_t max_in_flight; /* 0: no bound */
    enum cache_mode cache;
    size_t n_repeat; /* >= 1 */
    struct percentile_list percentiles;
    struct goodput_limits goodput;
    double ready_timeout_s;
    serve_say *say;    /* may be NULL */
    load_watch *watch; /* may be NULL */
    void *arg;         /* of both */
};

/* Figures that the spread over repeats is kept of. */
enum repeated {
    REPEATED_OUTPUT_RATE,
    REPEATED_TOTAL_RATE,
    REPEATED_REQUEST_RATE,
    REPEATED_TTFT_MEDIAN,
    REPEATED_TTFT_P99,
    REPEATED_TPOT_MEDIAN,
    REPEATED_ITL_MEDIAN,
    REPEATED_ITL_P99,
    REPEATED_E2EL_MEDIAN,
    REPEATED_E2EL_P99,
    REPEATED_COUNT,
};

/* repeated_name - as in results: "output_throughput" ... */
const char *repeated_name(enum repeated r);

struct serve_result {
    struct figures figures; /* of the repeat with the median output rate */
    struct load_run run;    /* the requests of that repeat */
    struct spread spread[REPEATED_COUNT];
    size_t n_repeat;
    double load_average; /* of the client's machine before the first repeat; negative: not known */
};

/* serve_find_model - the first model that the server lists
 *
 *   name  of it, and
 *   root  what it says the name stands for, a directory or a repository; NULL: nothing. Both are to
 *         be released with mem_free, also after an error
 * Errors  EIO with the cause, EFORMAT. */
fathom_err serve_find_model(char **name, char **root, const struct http_target *t, fathom_diag *d);

/* serve_run - released with serve_result_free, also after an error
 * Errors  those of the dataset and the load; EIO when the first request fails: with its message. */
fathom_err serve_run(struct serve_result *out, const struct serve_options *o, fathom_diag *d);
void serve_result_free(struct serve_result *r); /* accepts a zeroed struct */

/* serve_workload_write - one line: what was sent and how, without which a figure says nothing */
fathom_err serve_workload_write(struct buf *out, const struct serve_options *o);

#endif

/* load.h - requests to a server as they are due, and when each token of the answers came
 *
 * One thread, libcurl's multi interface over epoll: thousands of streams without a thread for each.
 * A request is due at its time; it is sent then, or, with a bound on requests in flight, when one
 * of those is over. The clock of a request starts when it is sent: the wait before belongs to the
 * client and is kept apart.
 */
#ifndef FATHOM_BENCH_LOAD_H
#define FATHOM_BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bench/dataset_items.h"
#include "bench/http_target.h"
#include "fathom/err.h"

enum load_outcome {
    LOAD_OK,
    LOAD_CONNECT,   /* no connection */
    LOAD_TIMEOUT,   /* no end within the target's time */
    LOAD_BUSY,      /* HTTP 429 */
    LOAD_REFUSED,   /* another HTTP status from 400 */
    LOAD_FAILED,    /* HTTP status from 500 */
    LOAD_CUT,       /* the stream ended before its end was said */
    LOAD_ERROR,     /* the stream told of an error */
    LOAD_MALFORMED, /* what came is not such a stream */
    LOAD_OUTCOME_COUNT,
};

/* load_outcome_name - for tables and files: "no connection", "429 busy" ... */
const char *load_outcome_name(enum load_outcome o);

/* One request. Times are microseconds from the start of the run. */
struct load_record {
    uint64_t due_us;
    uint64_t start_us; /* sent */
    uint64_t first_us; /* first event with text; 0: none had any */
    uint64_t last_us;  /* last event with text */
    uint64_t end_us;   /* the answer was over */
    uint32_t n_asked;  /* output tokens asked for */
    uint32_t n_input;  /* by our tokenizer */
    bool has_usage;    /* the server's counts: */
    uint32_t n_usage_input;
    uint32_t n_usage_output;
    uint32_t n_cached;
    uint32_t n_gap;   /* events with text after the first */
    uint32_t *gap_us; /* [n_gap], from each event to the next */
    enum load_outcome outcome;
    long status;   /* of HTTP; 0: none */
    char *message; /* of a failure, else NULL */
    char *text;    /* of the answer; NULL for none */
    size_t n_text;
};

struct load_progress {
    size_t n_done;
    size_t n;
    size_t n_in_flight;
    size_t n_failed;
    size_t n_event; /* with text, so far */
    double seconds;
};

typedef void load_watch(void *arg, const struct load_progress *p);

struct load_options {
    const struct http_target *target;
    const char *path;
    bool is_chat;
    const struct buf *common;         /* of request_shape_write */
    const struct dataset_item *items; /* [n] */
    size_t n;
    const double *due_s;  /* [n], ascending */
    size_t max_in_flight; /* 0: no bound */
    const char *salt;     /* cache_salt of all requests; NULL: none */
    bool salt_each;       /* each adds its number to it, counted from: */
    size_t first;
    load_watch *watch; /* called some times a second; NULL: not */
    void *watch_arg;
};

/* What a run was, besides its requests. */
struct load_run {
    struct load_record *records; /* [n], in the order of the items */
    size_t n;
    double seconds;        /* from the start to the last end */
    double mean_in_flight; /* over that time, by the loop's own count */
    size_t max_in_flight;
    double busy_share;      /* processor time of this thread over that time */
    double longest_busy_ms; /* longest stretch without looking at the sockets: what times may be
                               late by */
};

/* load_run_requests - send all, return when all are over; failed requests are records too
 *
 *   out  released with load_run_free, also after an error
 * Errors  ENOMEM; EIO when the system gives no descriptors; EINVAL of the target's headers. */
fathom_err load_run_requests(struct load_run *out, const struct load_options *o, fathom_diag *d);
void load_run_free(struct load_run *r); /* accepts a zeroed struct */

#endif

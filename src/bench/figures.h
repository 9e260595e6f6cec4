/* figures.h - from the requests of a run to its figures, and whether they can be true
 *
 *   TTFT  sent to first event with text, milliseconds
 *   TPOT  first to last event with text, over the output tokens after the first
 *   ITL   from one event with text to the next, over all requests; an event may carry more than one
 *         token
 *   E2EL  sent to last event with text (also called TTLT)
 *
 * Only requests that succeeded count, but in the failures and in the share of success.
 */
#ifndef FATHOM_BENCH_FIGURES_H
#define FATHOM_BENCH_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/load.h"
#include "bench/summary.h"
#include "tokenizer/tokenizer.h"

enum metric { METRIC_TTFT, METRIC_TPOT, METRIC_ITL, METRIC_E2EL, METRIC_COUNT };

/* metric_name - "ttft"; metric_find - of n bytes, METRIC_COUNT for none */
const char *metric_name(enum metric m);
enum metric metric_find(const char *name, size_t n);

/* Limits that a request must keep to count as good; negative: no limit. */
struct goodput_limits {
    double ms[METRIC_COUNT];
    bool any;
};

/* What the server's metrics said of the run; counts are differences of two readings. */
struct server_view {
    bool has_queue;
    double queue_ms; /* mean wait for the scheduler */
    bool has_prefix;
    double prefix_hit_share; /* of the prompt tokens looked up */
    bool has_drafts;
    double draft_accept_share;
    bool has_preemptions;
    double n_preempted;
};

struct figures {
    double seconds;
    size_t n_completed;
    size_t n_failed;
    size_t n_outcome[LOAD_OUTCOME_COUNT];
    const char *first_message; /* of a failure; borrowed of the run, NULL: none */
    size_t n_silent;           /* completed without any text: in no latency figure */
    uint64_t n_input;          /* tokens, the server's counts where it gave them */
    uint64_t n_output;
    uint64_t n_asked;     /* output tokens asked for, of completed requests */
    uint64_t n_own_input; /* the same requests by our tokenizer */
    uint64_t n_own_output;
    size_t n_without_usage; /* completed requests that the server gave no counts for */
    bool tokens_differ;     /* the two counts of prompt tokens are more than 2 % apart */
    uint64_t n_cached;      /* prompt tokens from the server's cache, where it said so */
    double request_rate;    /* completed a second */
    double good_rate;       /* of these within the limits */
    double output_rate;     /* tokens a second */
    double total_rate;
    double peak_output_rate; /* of the best second */
    size_t peak_in_flight;
    struct summary metrics[METRIC_COUNT];
    double client_wait_ms_mean; /* due to sent: the client's own queue */
    double client_wait_ms_max;

    /* the checks */
    double mean_in_flight; /* measured by the loop */
    double little;         /* completed a second times mean seconds in flight */
    bool little_holds;     /* the two are within 5 % */
    double busy_share;
    double longest_busy_ms;
    bool client_is_limit; /* busy for more than 80 %: the figures are the client's, not the server's
                           */
    bool is_cached;       /* more than 1 % of the prompts came from the cache, unasked */
    struct server_view server;
};

struct figures_options {
    const struct percentile_list *percentiles;
    struct goodput_limits goodput;
    const struct tokenizer *tokenizer; /* counts outputs that come without usage; NULL: they count
                                          one token an event */
    bool cache_expected;               /* the workload shares prefixes, or is sent again */
};

/* figures_compute - ENOMEM */
fathom_err figures_compute(struct figures *out, const struct load_run *run,
                           const struct figures_options *o);

/* figures_output_tokens - output tokens of a request: the server's count, else own_count */
uint32_t figures_output_tokens(const struct load_record *r, uint32_t own_count);

#endif

/* latency.h - one batch of equal requests, start to end: prefill time, step time, tokens per second
 *
 * All requests of a batch are submitted at once and run to their last token; nothing else runs.
 * Prompts are random ids, so a prefix is never found again; but for the prompts of the last run,
 * which is run once more, untimed, to count the experts that its steps choose.
 */
#ifndef FATHOM_BENCH_LATENCY_H
#define FATHOM_BENCH_LATENCY_H

#include <stdint.h>

#include "base/buf.h"
#include "bench/summary.h"
#include "fathom/fathom.h"

enum { LATENCY_RUNS_MAX = 1000 };

struct latency_options {
    uint32_t n_request; /* the batch, >= 1 */
    uint32_t n_input;   /* tokens of each prompt, >= 1 */
    uint32_t n_output;  /* tokens of each answer, >= 1 */
    uint32_t n_warm_up; /* runs that are not counted */
    uint32_t n_repeat;  /* runs that are, 1 .. LATENCY_RUNS_MAX */
    uint64_t seed;
    bool skip_experts; /* they are not counted: the last work of the device is a timed run */
};

struct latency_result {
    struct spread prefill_ms; /* submit to the last request's first token */
    struct spread step_ms;    /* from there on, per step; 0 when n_output is 1 */
    struct spread total_ms;
    struct spread prefill_cpu_ms; /* processor time of the process meanwhile, */
    struct spread step_cpu_ms;    /* which others on the machine delay less */
    struct spread output_tok_s;   /* of the steps: n_request / step time */
    struct spread prefill_tok_s;
    double host_us_per_step; /* engine time of a decode step outside the wait for the device, mean;
                                 0  when the host computes itself */
    double step_tokens;      /* of a decode step, mean: requests that began first end first */
    double ahead_share;      /* of the decode steps: those launched while the one before ran */
    /* of the last run's decode steps, which are run once more for it, mean of layers and steps */
    double experts_tokens;    /* tokens of such a step */
    double experts_hit;       /* experts that any token of a step chose in a layer; 0: none has any
                                 experts, or there was no decode step */
    double experts_uniform;   /* the same if each token chose at random */
    double experts_busiest;   /* tokens of the expert that most chose */
    uint32_t n_expert_layer;  /* layers that chose, of all those steps */
    struct summary latency_s; /* of the runs, at 10, 25, 50, 75, 90 and 99 percent */
    double latencies_s[LATENCY_RUNS_MAX]; /* [n_repeat], in the order in which they ran */
};

/* latency_run - errors of fathom_submit, EDEVICE when the engine fails, ENOMEM */
fathom_err latency_run(fathom_engine *e, const struct latency_options *o,
                       struct latency_result *out, fathom_diag *d);

/* latency_write_json - one object on one line, options included. avg_latency, latencies and
 * percentiles are vLLM's: seconds from the submission of a batch to its last token. mixed: what
 * mixed_write_json wrote, or empty. */
fathom_err latency_write_json(struct buf *b, const struct latency_options *o,
                              const struct latency_result *r, const struct buf *mixed,
                              const fathom_info *info);

#endif

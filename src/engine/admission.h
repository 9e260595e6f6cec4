/* admission.h - which requests are taken, and how a step is shared, from measured rates
 *
 * Admission control answers overload when a request comes. The request is refused when the prompt
 * tokens that wait would pass their limit, or when its first token is expected later than promised
 * (--slo-ttft-ms). The promised pace of running requests (--slo-tpot-ms) bounds how many requests
 * may run, and how many prompt tokens a step may compute beside their decodes.
 *
 * The model: a step takes fixed_us for the decodes that are in it and token_us for each prompt
 * token. Both are fitted to the latest steps, whose weights fall by 1/16 a step. A request holds
 * its place for hold_us, an average over requests that have ended. A quantity that has not been
 * measured, or not for a while, refuses nobody. A request that nobody is ahead of is never refused.
 *
 * Pure: no lock, no clock; time is an argument. Rates belong to one thread and are copied by value.
 */
#ifndef FATHOM_ENGINE_ADMISSION_H
#define FATHOM_ENGINE_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "sched/sched.h"

struct admission_config {
    uint32_t max_num_seqs;
    uint32_t max_num_batched_tokens;
    uint64_t max_queued_tokens; /* prompt tokens that wait to be computed; 0: no limit */
    uint64_t ttft_us;           /* promised from submission to first token; 0: nothing is */
    uint64_t tpot_us;           /* promised from token to token; 0: nothing is */
};

/* What has been measured; zeroed: nothing yet. */
struct admission_rates {
    double fixed_us;  /* of a step, for its decodes; 0: unknown */
    double n_decode;  /* decodes of the steps that fixed_us is from */
    double token_us;  /* of a prompt token; 0: unknown */
    double hold_us;   /* from a request's first step to its end; 0: unknown */
    uint32_t n_place; /* requests that ran when one more found no pages; 0: pages suffice */
    uint64_t token_seen_us;
    /* sums over steps of weight, prompt tokens x, duration y, x^2, xy, decodes */
    double w, x, y, xx, xy, d;
};

struct admission_step {
    uint32_t n_decode;
    uint32_t n_prefill; /* tokens */
    uint64_t us;
    uint32_t n_running;
    bool short_of_pages;
};

/* What lies before a request that comes now. */
struct admission_load {
    uint32_t n_live;          /* requests that run or wait */
    uint64_t n_backlog_token; /* of their prompts, not computed yet */
    uint64_t now_us;
};

enum admission_verdict { ADMISSION_TAKEN, ADMISSION_TOKENS, ADMISSION_TTFT };

/* admission_note_step, admission_note_end - a step has been made; a request that ran has ended */
void admission_note_step(struct admission_rates *r, const struct admission_step *step,
                         uint64_t now_us);
void admission_note_end(struct admission_rates *r, uint64_t held_us);

/* admission_bounds - of the next step, so that it takes tpot_us at most. Without that promise, or
 * before anything is known, the configuration's own limits. At least one request may run, and at
 * least ADMISSION_MIN_PREFILL prompt tokens go along, so that nobody starves. */
enum { ADMISSION_MIN_PREFILL = 16 };
struct sched_bounds admission_bounds(const struct admission_config *c,
                                     const struct admission_rates *r);

/* admission_first_token_us - when a request of n_prompt tokens may expect its first token: places
 * and prompt tokens ahead of it, then its own. 0 when nothing is known. */
uint64_t admission_first_token_us(const struct admission_config *c, const struct admission_rates *r,
                                  const struct admission_load *load, uint32_t n_prompt);

/* admission_judge - whether a request of n_prompt tokens is taken
 *
 *   d  when it is not: what stands against it, in numbers, and the flag */
enum admission_verdict admission_judge(const struct admission_config *c,
                                       const struct admission_rates *r,
                                       const struct admission_load *load, uint32_t n_prompt,
                                       fathom_diag *d);

/* admission_retry_us - when a refused request may be taken; 0 when nothing is known */
uint64_t admission_retry_us(const struct admission_config *c, const struct admission_rates *r,
                            const struct admission_load *load);

/* admission_has_expired - a request submitted then and not started yet cannot keep the promise */
bool admission_has_expired(const struct admission_config *c, uint64_t submitted_us,
                           uint64_t now_us);

#endif

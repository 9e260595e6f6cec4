/* null_runner.h - a step runner without a model
 *
 * Its cache holds one number a row, made from the token and the position. What it draws is a hash
 * of all rows that a request sees through its page table. So the output is a pure function of the
 * ids before it, which null_draw computes directly, and any row that is lost, shared, stale or not
 * computed changes it. The draft layer has rows of its own, one token ahead, and draws from them
 * what the next step will. So its drafts are right exactly if all of its rows are.
 *
 * With max_flight above 1 nothing of a step is done before somebody waits for it, from the block as
 * it is then. The block that comes next is spoiled first. Calls of another thread than the one that
 * the runner is bound to end the process.
 */
#ifndef FATHOM_TESTS_SUPPORT_NULL_RUNNER_H
#define FATHOM_TESTS_SUPPORT_NULL_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

/* Holds the device, so that a test says what happens while a step runs, instead of being quick.
 * Each part of a step, and each wait for copies of pages, comes to the gate and ends when it is
 * let. Outlives its engines, of which one at a time has it; while an engine is closed the gate is
 * open or the engine rests. */
struct null_gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t n_come;
    uint64_t n_let;
};

/* null_gate_init - shut; needs no end. null_gate_shut - whatever comes next is held. */
void null_gate_init(struct null_gate *g);
void null_gate_shut(struct null_gate *g);
void null_gate_open(struct null_gate *g);

/* null_gate_let - n more may end. null_gate_wait - until one is held: what came before it has been
 * published. null_gate_holds - whether one is. */
void null_gate_let(struct null_gate *g, uint64_t n);
void null_gate_wait(struct null_gate *g);
bool null_gate_holds(struct null_gate *g);

struct null_options {
    uint32_t n_page;        /* of a lane */
    uint32_t n_lane;        /* 0: 1. Of several each has a null runner of its own, and the first one
                               the gate, times, failures and counts but n_computed */
    uint32_t fail_after;    /* launches that succeed before one fails; 0: none fails */
    atomic_bool *burns;     /* if not NULL: when it is true, a launch fails */
    uint32_t step_us;       /* time that a step takes, */
    uint32_t token_us;      /* and that each token of more than one of a request adds */
    uint32_t max_flight;    /* steps that may be under way; 0: 1 */
    struct null_gate *gate; /* if not NULL: each part of a step waits there before its time */
    uint32_t n_part;        /* in so many parts, each a sign of progress; 0: progress is not told */
    uint32_t n_wrong;       /* of 8 drafts, those that are wrong all the same */
    bool prompt_form;       /* say that rows of prompts have other bits, though they have not */
    bool skip_attention;    /* draw without reading the cache: to measure the host alone */
    uint64_t *n_computed;   /* if not NULL: counts the tokens computed */
    uint32_t *n_ahead;      /* if not NULL: counts the launches while a step was under way */
    uint32_t *max_flying;   /* if not NULL: the most steps that were under way at once */
    uint32_t *max_mixed;    /* if not NULL: the most tokens of a step of more than one request */
};

enum { NULL_PAGE_BYTES = 64 * 2 * 8 }; /* a row of the model's and one of the draft layer's */

/* null_engine_open - an engine over a null runner: n_vocab is the whole vocabulary, EOS is id 1 */
struct null_engine_options {
    uint32_t n_vocab;
    uint32_t max_model_len;
    uint32_t max_num_seqs;
    uint32_t max_num_batched_tokens;
    uint32_t max_queued;
    struct admission_config admission;
    bool priorities;
    uint64_t seed;
    bool no_prefix_cache;
    struct offload_config offload; /* page_bytes is NULL_PAGE_BYTES */
    uint32_t n_draft;
    uint32_t share_prompts;     /* of several lanes; 0: none is shared */
    uint32_t max_score;         /* 0: 4 */
    struct null_options runner; /* n_page is the engine's too */
};

fathom_err null_engine_open(fathom_engine **out, const struct null_engine_options *o,
                            fathom_diag *d);

/* null_state - the hash of the rows of ids[0 .. n) */
uint64_t null_state(const int32_t *ids, uint32_t n);

/* null_draw - the token that follows when `state` is what a row's request sees; row as
 * sampler_build makes it, with the arrays that its offsets point into */
int32_t null_draw(uint64_t state, const struct sample_row *row, const int32_t *history,
                  const struct sample_bias *bias, const int32_t *ban, const uint32_t *mask);

/* null_logprob - what is reported for the draw from `state` */
float null_logprob(uint64_t state);

#endif

/* sequence.h - a request as the engine holds it: the scheduler's part, how to sample, and the
 * events that the caller has not read yet
 *
 * A sequence is one block of memory. The submitting thread allocates it and the polling thread
 * releases it. Its arrays have room for the longest output, so nothing grows while it runs; memory
 * of a large block that is never touched costs only address space. Events are not stored. They are
 * made from these arrays when they are polled, so a slow poller neither loses events nor stops the
 * engine.
 */
#ifndef FATHOM_ENGINE_SEQUENCE_H
#define FATHOM_ENGINE_SEQUENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/op_sample.h"
#include "engine/draft_pace.h"
#include "fathom/fathom.h"
#include "sched/request.h"

/* Lists that a sequence can be in, each at most once (mailbox.c). */
enum sequence_list {
    SEQUENCE_LIST_NEW,
    SEQUENCE_LIST_CANCEL,
    SEQUENCE_LIST_READY,
    SEQUENCE_LIST_COUNT
};

struct sequence_link {
    struct sequence *prev;
    struct sequence *next;
    bool linked;
};

/* The log-probability of a prompt token, given those before it. */
struct prompt_score {
    float logprob;
    uint32_t place; /* among all tokens, 1: the likeliest */
};

/* A request's constraint (a grammar, say), and its position: how many tokens it has consumed.
 * Zeroed: there is no constraint.
 *
 *   AT_END --constraint_try--> AHEAD --constraint_return, constraint_push--> AT_END
 *
 * AT_END: it has consumed exactly the tokens of the output. AHEAD: drafts too. A preemption does
 * not move it, because tokens that were drawn stay drawn. */
struct constraint {
    fathom_constraint owner;
    uint32_t n_ahead; /* drafts consumed; 0: AT_END */
};

struct sequence {
    struct request request; /* first member: the scheduler's entries point at it */

    /* fixed at submission */
    void *user;
    uint64_t submitted_us;
    struct sample_row row;    /* the constant part of the request's sample rows */
    bool has_seed;            /* row.seed is the caller's */
    struct sample_bias *bias; /* [row.n_bias] */
    uint32_t n_prompt_top;    /* alternatives of each prompt token */

    /* written by the engine: a value for each prompt token from the second on, or for each drawn
     * token. The poller reads them up to n_published. */
    struct prompt_score *scores; /* [request.n_to_score], NULL when that is 0 */
    fathom_logprob *prompt_tops; /* [request.n_to_score][n_prompt_top], NULL when that is 0 */
    float *logprobs;             /* [max output], NULL when not asked for */
    fathom_logprob *tops;        /* [max output][row.n_top], NULL when row.n_top is 0 */
    struct draft_pace pace;
    struct constraint constraint;

    /* the engine's */
    uint32_t n_owed;               /* prompt tokens that count in the backlog */
    uint32_t lane;                 /* the lane that it is on */
    uint32_t first_lane, end_lane; /* it may be on the lanes first_lane .. end_lane - 1 */

    /* the mailbox's, under its lock */
    uint32_t entry;
    uint32_t n_published; /* PROMPT, then TOKEN events that may be polled */
    uint32_t n_polled;
    uint32_t *joined; /* [max output / 32, rounded up] a bit for each published token: it was drawn
                         in the same step as the token before */
    bool is_over;     /* the request is FINISHED: after the last token comes the FINISH event */
    struct sequence_link links[SEQUENCE_LIST_COUNT];
};

/* What a submitted request is checked against. */
struct sequence_limits {
    uint32_t max_model_len;
    uint32_t n_vocab;
    uint32_t n_vocab_used;
    int32_t eos_ids[8];
    uint32_t n_eos;
    uint32_t n_lane; /* 0: 1 */
    bool priorities;
};

/* sequence_of - the sequence around a request of the scheduler */
static inline struct sequence *sequence_of(struct request *r)
{
    return (struct sequence *)r;
}

/* sequence_check - whether a request can be served; errors as fathom_submit documents them */
fathom_err sequence_check(const fathom_request *r, const struct sequence_limits *l, fathom_diag *d);

/* sequence_create - a copy of a checked request, state NEW; its id, entry and (without has_seed)
 * seed are the mailbox's to give. ENOMEM. sequence_destroy accepts NULL and destroys the
 * constraint, which sequence_give_back takes out before. */
fathom_err sequence_create(struct sequence **out, const fathom_request *r,
                           const struct sequence_limits *l, uint64_t now_us, fathom_diag *d);
void sequence_destroy(struct sequence *q);
void sequence_give_back(struct sequence *q);

/* sequence_n_event - PROMPT and TOKEN events there are so far */
uint32_t sequence_n_event(const struct sequence *q);

/* sequence_event, sequence_finish_event - PROMPT or TOKEN event `i`, and the last one */
void sequence_event(const struct sequence *q, uint32_t i, fathom_event *out);
void sequence_finish_event(const struct sequence *q, fathom_event *out);

/* ---- the constraint of a sequence ----------------------------------------------------------- */

/* constraint_is_set - the functions below need it, but for constraint_n_free */
static inline bool constraint_is_set(const struct constraint *c)
{
    return c->owner.ops != NULL;
}

/* constraint_n_free - how many tokens, from the constraint's position on, may be any token; without
 * a constraint, all of them */
uint32_t constraint_n_free(const struct constraint *c);

/* constraint_fill - write the mask of the tokens that are allowed next */
void constraint_fill(const struct constraint *c, uint32_t *words, size_t n_word);

/* constraint_try - consume a draft; false: it is not allowed here */
bool constraint_try(struct constraint *c, int32_t id);

/* constraint_return - go back to the end of the known tokens */
void constraint_return(struct constraint *c);

/* constraint_push - go back, then consume a token that was drawn; false: it is not allowed */
bool constraint_push(struct constraint *c, int32_t id);

#endif

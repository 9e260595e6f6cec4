/* answers.h - submit requests and collect what comes back, with the order of events asserted */
#ifndef FATHOM_TESTS_SUPPORT_ANSWERS_H
#define FATHOM_TESTS_SUPPORT_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/fathom.h"

enum { ANSWER_TOKENS_MAX = 2048 };

struct answer {
    uint64_t id;
    uint32_t n; /* tokens so far, those that it was given and the stop token included */
    int32_t ids[ANSWER_TOKENS_MAX];
    float logprobs[ANSWER_TOKENS_MAX];
    uint32_t n_prompt; /* prompt tokens told of so far, from the second on */
    struct {
        int32_t id;
        float logprob;
        uint32_t place;
        uint32_t n_top;
        fathom_logprob top[2]; /* of n_top, the first ones */
    } prompt[ANSWER_TOKENS_MAX];
    uint64_t hash; /* of all alternatives and of the prompt: ids, bits, places, in order */
    bool stopped;  /* the last token had is_stop */
    bool done;
    fathom_event finish;
};

/* answer_submit - fathom_submit with *a as the user pointer; *a is emptied first */
fathom_err answer_submit(fathom_engine *e, struct answer *a, const fathom_request *r,
                         fathom_diag *d);

/* answer_ask - the same; fails the test when the request is refused */
void answer_ask(fathom_engine *e, struct answer *a, const fathom_request *r);

/* answers_take - one fathom_poll; events go to their answers. Returns how many requests finished.
 */
size_t answers_take(fathom_engine *e, int timeout_ms);

/* answers_wait - poll until n more requests have finished */
void answers_wait(fathom_engine *e, size_t n);

/* answer_expect_same - ids, log-probabilities, alternatives and how it ended, bit by bit */
void answer_expect_same(const struct answer *a, const struct answer *want);

/* answers_expect_rest - no request is left, every page is free, the engine's invariants hold */
void answers_expect_rest(fathom_engine *e);

#endif

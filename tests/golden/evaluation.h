/* evaluation.h - the pilot's 384 prompts with the greedy text of the reference, as token ids */
#ifndef FATHOM_TESTS_GOLDEN_EVALUATION_H
#define FATHOM_TESTS_GOLDEN_EVALUATION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"
#include "support/answers.h"
#include "tokenizer/tokenizer.h"

struct evaluation_case {
    const char *kind;
    const char *reference; /* the text expected */
    struct token_list prompt;
};

struct evaluation {
    struct tokenizer *tokenizer;
    json_t *root;
    struct evaluation_case *cases;
    size_t n;
};

/* evaluation_open - fails the running test, naming the message, on an error */
void evaluation_open(struct evaluation *ev);
void evaluation_close(struct evaluation *ev);

/* evaluation_matches - whether the answer's tokens, the stop token left out, spell the reference;
 * prints both texts when not */
bool evaluation_matches(const struct evaluation *ev, size_t i, const struct answer *a);

#endif

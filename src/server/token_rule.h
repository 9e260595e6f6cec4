/* token_rule.h - tokens that an output may not have: allowed_token_ids, bad_words
 *
 * A rule is a set of ids that may come, and sequences of ids that may not: the last id of one is
 * barred where the output ends in those before it. A word is barred as it stands and behind a
 * space, each in the tokens that the tokenizer makes of it.
 */
#ifndef FATHOM_SERVER_TOKEN_RULE_H
#define FATHOM_SERVER_TOKEN_RULE_H

#include "fathom/fathom.h"
#include "server/api/api_request.h"
#include "tokenizer/tokenizer.h"

struct token_rule;

struct rule_source {
    const struct tokenizer *tokenizer;
    uint32_t n_vocab; /* ids of the model, which a tokenizer may have more of */
};

/* token_rule_create - *out is NULL when the request bars nothing
 *
 *   r  its words and ids are copied
 * Errors  EINVAL: a word is no token, or more than LIMIT_BAD_WORD_TOKENS; ENOMEM. */
fathom_err token_rule_create(struct token_rule **out, const struct api_request *r,
                             const struct rule_source *from, struct api_error *e);
void token_rule_destroy(struct token_rule *rule); /* accepts NULL */

/* token_rule_constrain - a constraint for one output: what the rule leaves of what another allows
 *
 *   rule   copied
 *   c      the other one, or ops NULL; becomes the new one, which owns it
 * Errors  ENOMEM: *c is as it was. */
fathom_err token_rule_constrain(const struct token_rule *rule, fathom_constraint *c);

#endif

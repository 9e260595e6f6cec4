/* thinking_budget.h - reasoning that ends after so many tokens: thinking_token_budget
 *
 * Once so many tokens stand behind <think>, those of the prompt among them, nothing may come but
 * </think>, or the server's closing and </think>; what follows is free again. The engine knows of
 * it as of any constraint, and up to there nothing is slower. A grammar or a rule of the same
 * request holds all the while: where it does not let the closing go on, </think> comes, and where
 * it does not let that come, within a character, it is awaited.
 *
 * Reasoning begins with the prompt, or by a <think> that the answer begins with. Tags are the
 * tokens, not texts spelled like them.
 */
#ifndef FATHOM_SERVER_THINKING_BUDGET_H
#define FATHOM_SERVER_THINKING_BUDGET_H

#include "chat/chat.h"
#include "fathom/fathom.h"
#include "tokenizer/token_list.h"

struct thinking_budget {
    uint32_t n_token;
    int32_t begin, end;               /* <think>, </think>; -1: no such token */
    int32_t calls;                    /* ends reasoning too; -1: none */
    const struct token_list *closing; /* before a forced `end`; NULL: nothing */
    int32_t turn;                     /* behind which the answer begins; -1: no such token */
};

/* Whose tags they are. */
struct thinking_source {
    const struct chat_style *style;
    const struct tokenizer *tokenizer;
    uint32_t n_vocab; /* ids of the model, which a tokenizer may have more of */
};

/* thinking_budget_init - of n_token tokens
 *
 *   closing  borrowed; may be NULL
 *   tools    the request's; may be NULL */
void thinking_budget_init(struct thinking_budget *b, uint32_t n_token,
                          const struct thinking_source *from, const struct token_list *closing,
                          const json_t *tools);

/* thinking_budget_opens - whether a prompt ends in reasoning, by the last tag of its last turn */
bool thinking_budget_opens(const struct thinking_budget *b, const struct token_list *prompt);

/* thinking_budget_constrain - a constraint for one output: what the budget leaves of what another
 * allows
 *
 *   b         copied, with its closing
 *   thinking  the output begins in reasoning; without a tag in the prompt the model may write
 *             <think> first, which does not count
 *   c         the other one, or ops NULL; becomes the new one, which owns it
 * Needs   b->end >= 0.
 * Errors  ENOMEM: *c is as it was. */
fathom_err thinking_budget_constrain(const struct thinking_budget *b,
                                     const struct token_list *prompt, bool thinking,
                                     fathom_constraint *c);

#endif

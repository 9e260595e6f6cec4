/* logprob.h - log-probabilities of tokens in the forms of OpenAI, vLLM and SGLang */
#ifndef FATHOM_SERVER_API_LOGPROB_H
#define FATHOM_SERVER_API_LOGPROB_H

#include "fathom/fathom.h"
#include "tokenizer/tokenizer.h"

/* Entries that wait to be written, as JSON without the outer brackets; a zeroed struct is empty.
 * Chat uses `tokens` alone. */
struct logprob_list {
    struct buf tokens;
    struct buf values;
    struct buf top;
    struct buf offsets;
    size_t n;
};

/* logprob_list_clear keeps the memory, logprob_list_free releases it; both leave an empty list. */
void logprob_list_clear(struct logprob_list *l);
void logprob_list_free(struct logprob_list *l);

/* How a token is named. */
struct logprob_style {
    const struct tokenizer *tokenizer;
    bool as_ids;       /* "token_id:123" */
    bool skip_special; /* special tokens have no text, so they do not move the offset */
    bool with_text;    /* SGLang's form */
};

/* A position in a text; a zeroed struct is its beginning. */
struct text_place {
    uint32_t n_char; /* whole characters; invalid UTF-8 counts as U+FFFD, as it is in the text */
    uint8_t n_part;  /* bytes of the next character that have come */
    char part[4];
};

/* logprob_add_chat - {"token","logprob","bytes","top_logprobs"} of the event's token */
fathom_err logprob_add_chat(struct logprob_list *l, const struct logprob_style *s,
                            const fathom_event *e);

/* logprob_add_completion - one entry in each of the four arrays
 *
 *   n_top  alternatives asked for, the event may have more; 0 gives null in top_logprobs
 *   at     where this token begins; advanced past it */
fathom_err logprob_add_completion(struct logprob_list *l, const struct logprob_style *s,
                                  const fathom_event *e, uint32_t n_top, struct text_place *at);

/* logprob_add_first - the same for a prompt's first token, which has no log-probability: null */
fathom_err logprob_add_first(struct logprob_list *l, const struct logprob_style *s, int32_t id,
                             struct text_place *at);

/* logprob_add_prompt - a prompt token in vLLM's form, to l->tokens: an object of the token and up
 * to n_top alternatives by their ids, {"5":{"logprob","rank","decoded_token"}}. A comma stands
 * before it, since null comes first. `rank` is the token's place. */
fathom_err logprob_add_prompt(struct logprob_list *l, const struct logprob_style *s,
                              const fathom_event *e, uint32_t n_top);

/* logprob_add_sglang - a token in SGLang's form: [logprob,id,text] to l->tokens, its alternatives
 * likewise in an array to l->top. A prompt's first token, whose place is 0 and of which nothing is
 * known, has null for both. */
fathom_err logprob_add_sglang(struct logprob_list *l, const struct logprob_style *s,
                              const fathom_event *e);

/* logprob_write_* - the object, or null for an empty list. Errors stay in b. */
void logprob_write_chat(struct buf *b, const struct logprob_list *l);
void logprob_write_completion(struct buf *b, const struct logprob_list *l);

/* logprob_count_char - characters of UTF-8 text */
uint32_t logprob_count_char(const char *text, size_t n);

#endif

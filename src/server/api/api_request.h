/* api_request.h - reads the body of a request that has a prompt into a struct
 *
 * Pure: no engine, no tokenizer, no clock. A table says for every field which endpoints have it,
 * its type and its range. A field that is known, not supported and would change the answer is
 * refused. A field that no endpoint has is passed over with a warning; if the bounds are strict, it
 * is refused. So nothing is ignored silently. Requests of all APIs whose prompt is made of messages
 * come out as chats.
 */
#ifndef FATHOM_SERVER_API_REQUEST_H
#define FATHOM_SERVER_API_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/api_error.h"
#include "base/json_arena.h"
#include "base/limits.h"
#include "fathom/fathom.h"
#include "server/api/answer_rule.h"

/* The endpoints that have a prompt; those from API_COUNT_TOKENS on do not use the engine. */
enum api_kind {
    API_CHAT,
    API_COMPLETION,
    API_RESPONSES,
    API_MESSAGES,
    API_GENERATE,   /* token ids in and out */
    API_SGLANG,     /* SGLang's own: text or ids in, both out */
    API_INVOCATION, /* SageMaker's: becomes API_CHAT or API_COMPLETION by what the body has */
    API_COUNT_TOKENS,
    API_INPUT_TOKENS, /* counts tokens as API_COUNT_TOKENS does, for responses */
    API_TOKENIZE,
    API_TOKENIZE_CHAT, /* what API_TOKENIZE becomes when messages come in */
    API_DETOKENIZE,
};

/* api_answers - whether the model goes on from the prompt */
static inline bool api_answers(enum api_kind api)
{
    return api < API_COUNT_TOKENS;
}

/* api_is_chat - whether messages come in, and a parser reads what the model says */
static inline bool api_is_chat(enum api_kind api)
{
    return api != API_COMPLETION && api != API_GENERATE && api != API_SGLANG &&
           api != API_TOKENIZE && api != API_DETOKENIZE;
}

/* api_is_anthropic - whether errors have Anthropic's form */
static inline bool api_is_anthropic(enum api_kind api)
{
    return api == API_MESSAGES || api == API_COUNT_TOKENS;
}

/* api_length_name - the name of the field that bounds the answer, for messages of errors */
static inline const char *api_length_name(enum api_kind api)
{
    if (api == API_RESPONSES) return "max_output_tokens";
    return api == API_SGLANG ? "max_new_tokens" : "max_tokens";
}

enum api_switch { API_UNSET, API_ON, API_OFF };

/* One prompt of a completion: text, or token ids. */
struct api_prompt {
    const char *text; /* borrowed from root; NULL: ids */
    size_t n_text;
    int32_t *ids; /* owned */
    size_t n_id;
};

/* What a client calls a request; "": not given. */
struct api_id {
    char text[LIMIT_REQUEST_ID_BYTES + 1];
};

/* Not given: temperature, top_p, min_p and repetition_penalty are negative, top_k is
 * API_TOP_K_UNSET, max_tokens is -1. */
enum { API_TOP_K_UNSET = -2 };
#define API_NO_BUDGET UINT32_MAX

/* Warnings about what was passed over: printable ASCII for a header, with "; " between them. */
enum { API_WARNINGS_BYTES = 512 };
struct api_warnings {
    char text[API_WARNINGS_BYTES]; /* "": nothing */
    uint32_t n;
    uint32_t n_untold; /* how many of them are not in the text, for lack of room */
};

/* What a request of /v1/responses has beyond a chat's. */
struct responses_request {
    struct buf echo;  /* members of the response object that repeat the request, each with a comma
                         in front */
    struct buf items; /* stored: what the request brought as a JSON array of items */
    bool store;
    bool summary; /* reasoning is told as a summary, in full */
};

/* Which servers compute a prompt and go on with it: kv_transfer_params, or bootstrap_host and
 * bootstrap_port. */
struct api_transfer {
    bool lends;     /* another server goes on with the prompt */
    bool takes;     /* another server has computed the prompt */
    bool is_shared; /* both servers get the same request, and the role of each says which it is */
    char host[256]; /* the server that has computed it */
    uint16_t port;
    uint64_t name; /* a name that the requests to both servers share; 0: none */
};

/* A parsed request. Its JSON lies in two arenas, which release it: `tools` and the value of `rule`
 * live as long as the request, everything else until api_request_drop_body. sampling.stop_ids and
 * sampling.bias point into this struct, so it must not be moved once parsed. Released with
 * api_request_free. */
struct api_request {
    enum api_kind api;
    struct json_arena *body_arena; /* of the body and all that is made of it */
    struct json_arena *kept_arena; /* of `tools` and the rule's value; NULL: none */
    json_t *root;                  /* the body; NULL once api_request_drop_body has been called */
    char *model;                   /* NULL: not given */

    json_t *messages;             /* chat; in the form of chat.h */
    json_t *response_format;      /* chat; the field, if it has a schema */
    json_t *tools;                /* chat; NULL: none, or tool_choice is none */
    json_t *allowed_tools;        /* chat; names of the tools to show; NULL: all */
    enum api_switch thinking;     /* chat */
    unsigned thinking_precedence; /* of the field that set it: the most specific field wins */
    uint32_t thinking_budget;     /* most tokens of reasoning; API_NO_BUDGET: no limit */
    bool add_generation_prompt;   /* chat */
    bool continue_final_message;  /* chat */
    bool include_reasoning;       /* chat; false: the answer does not contain the reasoning */
    bool hide_thinking;           /* messages: reasoning blocks come without their text */

    struct responses_request *responses; /* responses; owned; else NULL */

    struct api_prompt *prompts; /* completion, generate, sglang */
    size_t n_prompt;
    struct api_request
        *each;            /* sglang; owned; [n_prompt] what each prompt has for itself instead of
                               * this one: rule, sampling and what ends it, log-probabilities;
                               * NULL: nothing */
    struct api_id *ids;   /* sglang; owned; [n_prompt] what prompts are called; NULL: no list */
    bool has_prompt_list; /* they came as a list, which may have one element */
    bool echo;
    bool add_special_tokens;
    const char *suffix; /* completion; borrowed from root; NULL: none */
    size_t n_suffix;
    int32_t truncate; /* tokens of a prompt that are kept; 0: all, -1: as many as fit */
    bool truncate_right;

    bool stream;
    bool include_usage;
    bool continuous_usage;
    uint32_t n;      /* choices of each prompt; 0: the prompt is only counted */
    uint32_t n_told; /* how many of them, the likeliest, are told; n: all */
    int32_t priority;
    int32_t data_parallel_rank; /* the rank that is to compute it; -1: not given */
    uint32_t best_of;
    int64_t max_tokens;
    bool include_stop;
    bool skip_special_tokens;
    bool return_token_ids;
    bool return_token_strs; /* tokenize */
    bool tokens_as_ids;     /* "token_id:123" for the token's text in logprobs */
    bool prompt_logprobs;   /* told in the form of vLLM; echo with logprobs is OpenAI's */
    uint32_t n_prompt_logprobs;
    uint32_t prompt_logprobs_from; /* sglang; the first token of a prompt that is told */
    bool logprob_texts;            /* sglang; tokens are told with their texts */
    uint64_t cache_salt;
    char request_id[LIMIT_REQUEST_ID_BYTES + 1]; /* "": not given */

    struct answer_rule rule;

    fathom_sampling sampling;
    fathom_bias bias[LIMIT_LOGIT_BIAS];
    int32_t stop_ids[LIMIT_STOP_TOKENS];
    char *stops[LIMIT_STOP_STRINGS];
    size_t stop_lens[LIMIT_STOP_STRINGS];
    size_t n_stop;
    char *bad_words[LIMIT_BAD_WORDS];
    size_t n_bad_word;
    int32_t *resume; /* owned; [n_resume] tokens of the answer that another server has sent already;
                      * NULL: none */
    uint32_t n_resume;
    struct api_transfer transfer;
    uint32_t *allowed_ids; /* owned; a bit for each id of the vocabulary; NULL: all */
    size_t n_allowed_word;
    bool asks_generation_prompt; /* add_generation_prompt: true was written out */
    bool has_stream_options;
    bool has_top_logprobs;
    struct api_warnings warnings;
};

/* What the values of some fields depend on. */
struct api_bounds {
    uint32_t n_vocab;
    bool strict;        /* what is not known is refused */
    bool tokens_as_ids; /* of a request that does not say */
    /* Appends the items of a conversation up to a stored response, in order; 400 in *e when there
     * is no such response. NULL: none are stored. */
    fathom_err (*recall)(void *arg, const char *id, json_t *items, struct api_error *e);
    void *recall_arg;
};

/* api_request_parse - read a request body (request_parse.c)
 *
 *   r     written; valid for api_request_free whatever is returned
 *   body  n bytes
 *   e     set on error: status 400 (500 out of memory), the path of the field, the value seen and
 *         what is accepted
 * Errors  EINVAL, EFORMAT (not JSON; a tree that is too large for its text), EBUSY (429: the trees
 *         of other requests leave no room), ENOMEM. */
fathom_err api_request_parse(struct api_request *r, enum api_kind api, const char *body, size_t n,
                             const struct api_bounds *bounds, struct api_error *e);

/* api_is_request_id - whether s can be a part of an answer's id: letters, digits, "-_.:", up to
 * LIMIT_REQUEST_ID_BYTES */
bool api_is_request_id(const char *s);

/* api_request_of - the request by which a prompt is answered: its own one, or else r */
static inline const struct api_request *api_request_of(const struct api_request *r, size_t i_prompt)
{
    return r->each ? &r->each[i_prompt] : r;
}

/* api_request_n_rule - how many `rule` there are: 1, or one for each prompt */
static inline size_t api_request_n_rule(const struct api_request *r)
{
    return r->each ? r->n_prompt : 1;
}

/* api_request_drop_body - release the JSON of the body, with messages and prompt texts; tools and
 * the rule stay. Nobody else may hold a reference to a part of it. A second call does nothing. */
void api_request_drop_body(struct api_request *r);

void api_request_free(struct api_request *r); /* accepts zeroed and half-parsed */

#endif

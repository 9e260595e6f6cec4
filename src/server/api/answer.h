/* answer.h - turns events of the engine into the bytes of one answer
 *
 * Pure: no thread, no socket, no clock. An answer holds the choices of one request (prompts times
 * n). If it is streamed, text is appended to `out` as soon as it can no longer be part of a stop
 * string or an unfinished character, and the connection takes it from there. If it is sent whole,
 * `out` stays empty until answer_close writes the body.
 *
 *   choice:  OPEN --answer_token--> OPEN --stop string | answer_finish--> ENDED
 *   answer:  answer_open, tokens and finishes in any order over the choices, then answer_close
 *            once all have ended, or answer_fail at any time
 *
 * Invariants: n_open is the number of choices that have not ended; after answer_close or
 * answer_fail (`closed`) nothing more is written.
 */
#ifndef FATHOM_SERVER_API_ANSWER_H
#define FATHOM_SERVER_API_ANSWER_H

#include "base/api_error.h"
#include "chat/chat.h"
#include "fathom/fathom.h"
#include "server/api/api_request.h"
#include "server/api/logprob.h"
#include "server/api/text.h"

/* What kind of text is pending in a stream. */
enum answer_part { PART_NONE, PART_REASONING, PART_CONTENT, PART_ARGUMENTS };

enum { ANSWER_ID_BYTES = 16 + LIMIT_REQUEST_ID_BYTES };

struct answer;
struct answer_form;

struct choice {
    struct answer *answer;
    uint32_t index;
    uint32_t i_prompt;
    bool begun; /* its first chunk has been written */
    bool ended;
    const char *finish_reason; /* static; NULL while open */
    int32_t stop_id;           /* the stop token that ended it, or -1 */
    uint32_t n_token;          /* its tokens, with the stop token, without any after the end */
    uint32_t n_reasoning;
    uint32_t n_told;    /* sglang, streamed: tokens when its last event was written */
    uint64_t ended_us;  /* sglang: age_us when it ended */
    double sum_logprob; /* of its tokens; decides which choices are told (best_of) */

    struct text_stream text;
    struct chat_parser *parser; /* chat; NULL: all text is content */

    /* sent whole: everything so far; streamed: what the next chunk will hold */
    struct buf reasoning;
    struct buf content;
    struct buf calls;     /* whole: JSON of the finished calls, comma between */
    struct buf arguments; /* of the call i_call */
    uint32_t i_call;
    enum answer_part part;          /* streamed: which of the buffers is pending */
    struct text_place place;        /* completion: where the next token begins */
    struct text_place prompt_place; /* the same for the prompt that it echoes */
    bool echoes_special;            /* the echoed prompt is the client's text, special tokens too */
    struct logprob_list logprobs;
    struct buf ids; /* token ids, comma between, if asked for */
};

/* One prompt of the request. */
struct answer_prompt {
    uint32_t n_token;
    uint32_t n_cached;
    struct buf ids;             /* comma between, if asked for */
    struct logprob_list scores; /* of its tokens, if asked for: in vLLM's form, or in SGLang's */
};

struct answer_setup {
    const struct answer_form *form;
    const struct api_request *request; /* borrowed, outlives the answer */
    const struct token_list *prompts;  /* [chat: 1, completion: n_prompt]; for answer_open */
    const struct tokenizer *tokenizer; /* borrowed */
    const struct chat_style *style;    /* borrowed; chat */
    const fathom_info *info;           /* borrowed */
    const char *model;                 /* borrowed; the name that is told back */
    bool thinking;                     /* chat: the prompt ends inside reasoning */
    bool stream_pieces;                /* sglang: see server_options */
    uint64_t nonce;                    /* random; ids are made from it */
    const char *request_id;            /* for answer_open; NULL or "": the client gave none */
    int64_t created;                   /* seconds since 1970 */
};

/* The functions that write an answer in the form of one API. What the model says comes as the
 * events of chat.h; the text of a completion is all content. */
struct answer_form {
    const char *id_prefix;
    /* before the first choice; NULL: nothing to do */
    fathom_err (*open)(struct answer *a);
    /* release what open and the events have put into a->own; NULL: there is nothing */
    void (*free)(struct answer *a);
    /* size of what `free` would release; NULL: 0 */
    size_t (*bytes)(const struct answer *a);
    /* streamed: the engine has taken the request; NULL: nothing to write */
    fathom_err (*start)(struct answer *a);
    /* a new choice; NULL: nothing to do */
    fathom_err (*begin)(struct choice *c);
    /* what a choice says next */
    fathom_err (*take)(struct choice *c, const struct chat_event *e);
    /* streamed: a token has been taken, write what is pending */
    fathom_err (*flush)(struct choice *c);
    /* the choice has ended, nothing is pending, finish_reason is set */
    fathom_err (*end)(struct choice *c);
    /* all choices have ended and all counts are known: the body, or the end of the stream */
    fathom_err (*close)(struct answer *a);
    /* streamed: the error as an event, and the end of the stream */
    fathom_err (*fail)(struct answer *a, const struct api_error *e);
    /* streamed: write bytes that only show that the server is alive */
    fathom_err (*keep_alive)(struct answer *a);
};

extern const struct answer_form answer_form_chat;
extern const struct answer_form answer_form_completion;
extern const struct answer_form answer_form_responses;
extern const struct answer_form answer_form_tokenize;
extern const struct answer_form answer_form_detokenize;
extern const struct answer_form answer_form_messages;
extern const struct answer_form answer_form_generate;
extern const struct answer_form answer_form_sglang;
extern const struct answer_form answer_form_count;
extern const struct answer_form answer_form_input_tokens;

/* answer_form_of - the form that answers of an API have (answer_form.c) */
const struct answer_form *answer_form_of(enum api_kind api);

struct answer {
    struct answer_setup setup;
    const struct answer_form *form;
    struct stop_set *stops; /* [api_request_n_rule] */
    struct choice *choices;
    size_t n_choice;
    size_t n_open;
    struct answer_prompt *prompts;
    size_t n_prompt;
    char id[ANSWER_ID_BYTES];
    uint64_t age_us;  /* of the request, at the event at hand */
    struct buf head;  /* chat, completion: how every chunk begins */
    struct buf piece; /* scratch */
    void *own;        /* belongs to the form */
    struct buf out;
    bool closed;
};

/* answer_open - prepare the choices; a zeroed struct is valid for answer_free
 * Needs   s->request stays where it is.
 * Errors  ENOMEM. */
fathom_err answer_open(struct answer *a, const struct answer_setup *s);
void answer_free(struct answer *a);

/* answer_start - streamed: the engine has taken the request, which some forms tell at once
 * Errors  ENOMEM. */
fathom_err answer_start(struct answer *a);

/* answer_prompt_token - a PROMPT event of choice i
 * Errors  ENOMEM. */
fathom_err answer_prompt_token(struct answer *a, size_t i, const fathom_event *e);

/* answer_token - a TOKEN event of choice i; ignored once the choice has ended
 *
 *   stopped  set when a stop string ended the choice: the engine may forget the request
 * Errors  ENOMEM. */
fathom_err answer_token(struct answer *a, size_t i, const fathom_event *e, bool *stopped);

/* answer_finish - a FINISH event of choice i with STOP, LENGTH, or (after a stop string) CANCEL */
fathom_err answer_finish(struct answer *a, size_t i, const fathom_event *e);

/* answer_close - all choices have ended: write the body, or the end of the stream */
fathom_err answer_close(struct answer *a);

/* answer_fail - streamed: tell the error as an event and end the stream; whole: nothing */
fathom_err answer_fail(struct answer *a, const struct api_error *e);

/* answer_count - tokens over all prompts and choices */
struct answer_usage {
    uint64_t n_prompt;
    uint64_t n_cached;
    uint64_t n_output;
    uint64_t n_reasoning;
};
struct answer_usage answer_count(const struct answer *a);

/* answer_choice_bytes - memory for what choice i has said, and for its prompt's log-probabilities
 * answer_bytes        - memory for the rest: what is to be sent, and what the form keeps */
size_t answer_choice_bytes(const struct answer *a, size_t i);
size_t answer_bytes(const struct answer *a);

/* answer_drop_text - release what the bytes of a closed answer were made from; `out` and the counts
 * stay */
void answer_drop_text(struct answer *a);

/* answer_keep_alive - streamed: bytes for a client that has waited long */
fathom_err answer_keep_alive(struct answer *a);

/* ---- for the forms ------------------------------------------------------------------------- */

/* answer_is_streamed - whether text is sent as it comes, not as one body at the end */
bool answer_is_streamed(const struct answer *a);

/* answer_repeats - streamed: whether each event repeats all that came before it. Events are then
 * left out for a client that does not keep up, so that what waits for it is bounded. */
bool answer_repeats(const struct answer *a);

/* answer_logprob_style - how the request wants tokens of a prompt and its choices to be named */
struct logprob_style answer_logprob_style(const struct answer *a, size_t i_prompt);

/* answer_request_of - the request by which a choice is made: api_request_of its prompt */
const struct api_request *answer_request_of(const struct choice *c);

/* answer_add_score - add a token of prompt i to its log-probabilities, in the form of the
 * request */
fathom_err answer_add_score(struct answer *a, size_t i, const fathom_event *e);

/* answer_write_text - write the buffer's text as a JSON string */
void answer_write_text(struct buf *b, const struct buf *text);

/* answer_write_id - write an id, in quotes, for the i-th item of a choice; it differs from all
 * others */
void answer_write_id(struct buf *b, const struct choice *c, const char *prefix, uint32_t i);

#endif

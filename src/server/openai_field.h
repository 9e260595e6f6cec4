/* openai_field.h - the table of request fields and the readers of their types; within
 * openai_parse alone */
#ifndef FATHOM_SERVER_OPENAI_FIELD_H
#define FATHOM_SERVER_OPENAI_FIELD_H

#include "server/openai_parse.h"

enum { CHAT = 1 << OPENAI_CHAT, COMPLETION = 1 << OPENAI_COMPLETION, BOTH = CHAT | COMPLETION };

/* What a reader works on. */
struct field_context {
    struct openai_request *r;
    const struct openai_bounds *bounds;
    struct api_error *e;
};

struct field;

/* A reader takes the value of a member that is present and not null. */
typedef fathom_err field_read(struct field_context *x, const struct field *f, json_t *v);

struct field {
    const char *name;
    unsigned apis;
    field_read *read;
    size_t offset; /* of the member that the reader writes, if it writes one */
    double lo, hi; /* accepted range of a number */
    bool lo_open;  /* lo itself is not accepted */
    const char *note;
};

extern const struct field openai_fields[];
extern const size_t openai_fields_n;

/* Readers by type; each writes the member at f->offset. */
field_read field_flag;        /* bool */
field_read field_real;        /* float within the range */
field_read field_count;       /* uint32_t within the range */
field_read field_int;         /* int32_t within the range */
field_read field_none;        /* accepted, no effect */
field_read field_refuse;      /* not supported: f->note says what instead */
field_read field_refuse_true; /* the same, but false is fine */

/* Readers of one field each. */
field_read field_model;
field_read field_seed;
field_read field_cache_salt;
field_read field_max_tokens;
field_read field_stop;
field_read field_stop_token_ids;
field_read field_logit_bias;
field_read field_chat_logprobs;
field_read field_completion_logprobs;
field_read field_top_logprobs;
field_read field_stream_options;
field_read field_response_format;
field_read field_best_of;
field_read field_suffix;
field_read field_messages;
field_read field_tools;
field_read field_tool_choice;
field_read field_reasoning_effort;
field_read field_thinking;
field_read field_template_kwargs;
field_read field_modalities;
field_read field_add_generation_prompt;
field_read field_prompt;

/* field_integer - v as an integer; 3.0 counts as 3. *ok tells whether it is one. */
int64_t field_integer(const json_t *v, bool *ok);

/* field_wrong_type - the 400 for a value of another type; path is printf-like */
fathom_err field_wrong_type(struct field_context *x, const char *path, const json_t *v,
                            const char *want);

/* field_out_of_range - the 400 for a number outside lo .. hi */
fathom_err field_out_of_range(struct field_context *x, const char *path, const json_t *v, double lo,
                              double hi, bool lo_open);

#endif

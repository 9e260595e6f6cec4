/* request_field.h - the fields of a request: a table for each family of endpoints, and readers of
 * types and of single fields; for server/api alone
 *
 * A field that another API calls by another name or gives another form is turned into the field of
 * a chat, and read by the chat's reader (field_pass).
 */
#ifndef FATHOM_SERVER_API_REQUEST_FIELD_H
#define FATHOM_SERVER_API_REQUEST_FIELD_H

#include "server/api/api_request.h"

enum {
    CHAT = 1 << API_CHAT,
    COMPLETION = 1 << API_COMPLETION,
    BOTH = CHAT | COMPLETION,
    MESSAGES = 1 << API_MESSAGES,
    COUNT = 1 << API_COUNT_TOKENS,
    GENERATE = 1 << API_GENERATE,
    SAMPLING = BOTH | GENERATE,
    SGLANG = 1 << API_SGLANG,
    RESPONSES = 1 << API_RESPONSES,
    INPUT = 1 << API_INPUT_TOKENS,
    TOKENIZE = 1 << API_TOKENIZE,
    DETOKENIZE = 1 << API_DETOKENIZE,
};

/* What a reader works on. */
struct field_context {
    struct api_request *r;
    const struct api_bounds *bounds;
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

/* The fields of some endpoints. Each field has a reader; `check` has the rules over several
 * fields. */
struct field_table {
    const struct field *fields; /* [n] */
    size_t n;
    fathom_err (*check)(struct field_context *x); /* called once all are read; makes r->messages */
};

extern const struct field_table openai_table;          /* chat, completion, tokenize, detokenize; of
                                                  * generate the members of sampling_params */
extern const struct field_table generate_table;        /* generate */
extern const struct field_table sglang_table;          /* sglang */
extern const struct field_table sglang_sampling_table; /* sglang; of sampling_params */
extern const struct field_table anthropic_table;       /* messages, count */
extern const struct field_table responses_table;       /* responses: others are refused */

/* field_set_defaults - make *r a request in which no field is given (request_parse.c) */
void field_set_defaults(struct api_request *r, enum api_kind api);

/* field_name_prompt - put the number of the prompt before an error's message; returns err
 * (request_parse.c) */
fathom_err field_name_prompt(struct api_error *e, fathom_err err, size_t i_prompt);

/* field_table_of - the table of an API, and its endpoint's path (request_parse.c) */
const struct field_table *field_table_of(enum api_kind api, const char **path);

/* field_find - the field of this name that an endpoint has; NULL: none */
const struct field *field_find(const struct field_table *t, const char *name, enum api_kind api);

/* field_pass - read a value as the field of this name of a chat (openai_field.c) */
fathom_err field_pass(struct field_context *x, const char *name, json_t *v);

/* field_pass_tools - read an array of another API's tools. For each, `read` appends none, one or
 * several tools of a chat to `tools`. */
typedef fathom_err field_read_tool(struct field_context *x, const char *path, const json_t *tool,
                                   json_t *tools);
fathom_err field_pass_tools(struct field_context *x, const json_t *v, field_read_tool *read);

/* anthropic_read_messages - system and messages as the messages of a chat (anthropic_input.c) */
fathom_err anthropic_read_messages(struct field_context *x, const json_t *system,
                                   const json_t *messages);

/* responses_function_name - the name under which the model sees a function of a namespace: a new
 * string; NULL: out of memory (responses_input.c) */
json_t *responses_function_name(const json_t *space, const json_t *name);

/* responses_read_items - items as the messages of a chat (responses_input.c)
 *
 *   instructions  a string, or NULL
 *   before        items of the conversation so far, in order; input: of this request */
fathom_err responses_read_items(struct field_context *x, const json_t *instructions,
                                const json_t *before, const json_t *input);

/* field_warn - add a warning that something is passed over; printf-like. Returns FATHOM_OK. */
fathom_err field_warn(struct field_context *x, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* field_is_off - whether a value says that something is not wanted: false, or empty */
bool field_is_off(const json_t *v);

/* field_allow_tools - read a tool_choice of type allowed_tools
 *
 *   path   of the object with `mode`, auto or required, and `tools`
 *   inner  member of a tool that has its name; NULL: the tool itself */
fathom_err field_allow_tools(struct field_context *x, const char *path, const json_t *v,
                             const char *inner);

/* field_check_keys - pass over members of an object that are neither null nor among `keys` (which
 * ends in NULL) with a warning; strict: refuse them */
fathom_err field_check_keys(struct field_context *x, const char *path, const json_t *object,
                            const char *const *keys);

/* field_flag_in - read an optional boolean member of an object; if it is absent or null, *out
 * stays */
fathom_err field_flag_in(struct field_context *x, const char *parent, const json_t *object,
                         const char *key, bool *out);

/* field_take_unknown - handle a member whose name is no field of this endpoint. If another endpoint
 * has such a field, which would change the answer, it is refused. Otherwise it is passed over with
 * a warning (strict: refused).
 *
 *   parent  the field of which it is a member, sampling_params; NULL: the body */
fathom_err field_take_unknown(struct field_context *x, const char *parent, const char *key,
                              const json_t *v);

/* field_id - read a client's id of a request into out. A text that is not a valid id is passed over
 * with a warning (strict: refused), and out stays. */
fathom_err field_id(struct field_context *x, const struct field *f, json_t *v,
                    char out[LIMIT_REQUEST_ID_BYTES + 1]);

/* Readers by type; each writes the member at f->offset. */
field_read field_flag;   /* bool */
field_read field_real;   /* float within the range */
field_read field_count;  /* uint32_t within the range */
field_read field_int;    /* int32_t within the range */
field_read field_none;   /* accepted, no effect */
field_read field_later;  /* does nothing: the table's check reads it */
field_read field_object; /* accepted, no effect, but an object */
field_read field_refuse; /* not supported, unless false or empty: f->note says what to do instead */
field_read field_idle;   /* no effect, with a warning, for which f->note gives the reason; strict:
                          * refused */

/* Readers of one field each that several tables, or a table of another file, name. */
field_read field_model;
field_read field_seed;
field_read field_cache_salt;
field_read field_resume;
field_read field_request_id;
field_read field_kv_transfer; /* the four of transfer_field.c */
field_read field_bootstrap_host;
field_read field_bootstrap_port;
field_read field_bootstrap_room;
field_read field_max_tokens;
field_read field_stop;
field_read field_stop_token_ids;
field_read field_logit_bias;
field_read field_top_logprobs;
field_read field_stream_options;
field_read field_response_format;
field_read field_guided_json;
field_read field_guided_regex;
field_read field_separate_reasoning;
field_read field_guided_choice;
field_read field_guided_grammar;
field_read field_structural_tag;
field_read field_structured_outputs;
field_read field_messages;
field_read field_tools;
field_read field_tool_choice;
field_read field_parallel_tool_calls;
field_read field_reasoning_effort;
field_read field_thinking;
field_read field_thinking_budget;
field_read field_template_kwargs;
field_read field_modalities;
field_read field_verbosity;
field_read field_add_generation_prompt;
field_read field_prompt;
field_read field_text;
field_read field_tokens;
field_read field_sampling_params;

/* field_read_integer - v as an integer within the range */
fathom_err field_read_integer(struct field_context *x, const struct field *f, const json_t *v,
                              int64_t *out);

/* field_integer - v as an integer; 3.0 counts as 3, as do "3" and "3.0", which templates make of
 * numbers. *ok tells whether it is one. */
int64_t field_integer(const json_t *v, bool *ok);

/* field_number - v as a number; "0.5" counts as 0.5 */
double field_number(const json_t *v, bool *ok);

/* field_boolean - v as a boolean, in *out. 0 and 1 count, and YAML's words in upper or lower case.
 * Returns whether it is one. */
bool field_boolean(const json_t *v, bool *out);

/* Where a value stands in the body: "messages[2].content[0]". */
struct field_place {
    char path[API_PARAM_BYTES];
};
struct field_place field_element(const char *parent, size_t i);
struct field_place field_member(const char *parent, const char *member);

/* field_get_string - a member that must be a string, borrowed */
fathom_err field_get_string(struct field_context *x, const char *path, const json_t *object,
                            const char *key, json_t **out);

/* field_push - append a new reference to a list; value NULL: ENOMEM */
fathom_err field_push(json_t *list, json_t *value);

/* field_pass_tool_type - pass over a tool of a type that does not run here; strict: refuse it */
fathom_err field_pass_tool_type(struct field_context *x, const char *path, const char *type);

/* field_pass_new - field_pass of a new reference, which is released; v NULL: ENOMEM */
fathom_err field_pass_new(struct field_context *x, const char *name, json_t *v);

/* field_wrong_type - the 400 for a value of another type; path is printf-like */
fathom_err field_wrong_type(struct field_context *x, const char *path, const json_t *v,
                            const char *want);

/* field_out_of_range - the 400 for a number outside lo .. hi */
fathom_err field_out_of_range(struct field_context *x, const char *path, const json_t *v, double lo,
                              double hi, bool lo_open);

/* field_too_many - the 400 for more elements than `limit` in an array or object */
fathom_err field_too_many(struct field_context *x, const char *path, size_t n, size_t limit);

#endif

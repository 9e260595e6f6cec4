/* request_parse.c - reads a request body: finds the table of its API, reads each member by it, and
 * applies the rules that every API shares */
#include "server/api/api_request.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/api/request_field.h"

void field_set_defaults(struct api_request *r, enum api_kind api)
{
    memset(r, 0, sizeof *r);
    r->api = api;
    r->n = api_answers(api) ? 1 : 0;
    r->max_tokens = -1;
    r->data_parallel_rank = -1;
    r->skip_special_tokens = true;
    r->add_special_tokens = true;
    r->add_generation_prompt = true;
    r->include_reasoning = true;
    r->thinking_budget = API_NO_BUDGET;
    fathom_sampling_init(&r->sampling);
    r->sampling.temperature = -1.0f;
    r->sampling.top_p = -1.0f;
    r->sampling.top_k = API_TOP_K_UNSET;
    r->sampling.min_p = -1.0f;
    r->sampling.repetition_penalty = -1.0f;
}

static const struct endpoint {
    const char *path;
    const struct field_table *table;
    const struct field_table *inner; /* of sampling_params; NULL: has none */
} endpoints[] = {
    [API_CHAT] = {"/v1/chat/completions", &openai_table, NULL},
    [API_COMPLETION] = {"/v1/completions", &openai_table, NULL},
    [API_RESPONSES] = {"/v1/responses", &responses_table, NULL},
    [API_MESSAGES] = {"/v1/messages", &anthropic_table, NULL},
    [API_GENERATE] = {"/inference/v1/generate", &generate_table, &openai_table},
    [API_SGLANG] = {"/generate", &sglang_table, &sglang_sampling_table},
    [API_INVOCATION] = {"/invocations", &openai_table, NULL},
    [API_COUNT_TOKENS] = {"/v1/messages/count_tokens", &anthropic_table, NULL},
    [API_INPUT_TOKENS] = {"/v1/responses/input_tokens", &responses_table, NULL},
    [API_TOKENIZE] = {"/tokenize", &openai_table, NULL},
    [API_DETOKENIZE] = {"/detokenize", &openai_table, NULL},
};

const struct field_table *field_table_of(enum api_kind api, const char **path)
{
    *path = endpoints[api].path;
    return endpoints[api].table;
}

enum { NAME_BYTES = 48 };

/* How many letters to add, drop or change to turn a into b; long names: more than NAME_BYTES. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[NAME_BYTES + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > NAME_BYTES || m > NAME_BYTES) return NAME_BYTES + 1;
    for (unsigned k = 0; k <= m; k++) row[k] = k;
    for (size_t i = 0; i < n; i++) {
        unsigned diagonal = row[0]++;
        for (size_t k = 1; k <= m; k++) {
            unsigned least = diagonal + (a[i] != b[k - 1]);
            if (row[k] + 1 < least) least = row[k] + 1;
            if (row[k - 1] + 1 < least) least = row[k - 1] + 1;
            diagonal = row[k];
            row[k] = least;
        }
    }
    return row[m];
}

/* The field that a misspelt one may stand for, NULL when none is near. */
static const char *find_near(const struct field_table *t, const char *name, enum api_kind api)
{
    const char *best = NULL;
    unsigned least = 3;
    for (size_t i = 0; i < t->n; i++) {
        const struct field *f = &t->fields[i];
        unsigned d = distance(name, f->name);
        if (d >= least || !(f->apis & (1u << api)) || f->read == field_refuse) continue;
        least = d;
        best = f->name;
    }
    return best;
}

static bool has_no_effect(const struct field *f)
{
    return f->read == field_none || f->read == field_object || f->read == field_idle;
}

/* Where a field that is unknown here would have an effect: another endpoint, or a field of this
 * one. NULL: nowhere, or its value says that it is not wanted. */
static const char *find_owner(const char *key, const json_t *v, enum api_kind api)
{
    static const enum api_kind kinds[] = {API_CHAT, API_COMPLETION, API_RESPONSES, API_MESSAGES};
    const char *owner = NULL;
    if (!api_answers(api)) return NULL;
    const struct field_table *t = endpoints[api].inner;
    const struct field *inner = t ? field_find(t, key, api) : NULL;
    if (inner && has_no_effect(inner)) return NULL;
    if (inner && inner->read != field_refuse) return "sampling_params";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct field *f = field_find(endpoints[kinds[i]].table, key, kinds[i]);
        if (!f) continue;
        if (has_no_effect(f)) return NULL;
        if (f->read == field_refuse && field_is_off(v)) continue;
        if (!owner) owner = endpoints[kinds[i]].path;
    }
    return owner;
}

static fathom_err refuse_unknown(struct field_context *x, const char *name, const char *tail,
                                 const char *other)
{
    return api_error_set(x->e, 400, "unknown_parameter", name, "%s is no field of %s; %s%s%s", name,
                         endpoints[x->r->api].path, tail, other, *tail == 'd' ? "?" : "");
}

fathom_err field_take_unknown(struct field_context *x, const char *parent, const char *key,
                              const json_t *v)
{
    enum api_kind api = x->r->api;
    const struct field_table *t = parent ? endpoints[api].inner : endpoints[api].table;
    const char *owner = find_owner(key, v, api);
    const char *near = NULL;
    char name[NAME_BYTES + 1];
    (void)snprintf(name, sizeof name, "%s%s%s", parent ? parent : "", parent ? "." : "", key);
    if (owner) {
        return api_error_set(x->e, 400, "unknown_parameter", name,
                             "%s is no field of %s; %s has it", name, endpoints[api].path, owner);
    }
    if (x->r->warnings.n_untold == 0) near = find_near(t, key, api); /* else nobody would see it */
    if (x->bounds->strict && near) return refuse_unknown(x, name, "did you mean ", near);
    if (x->bounds->strict) return refuse_unknown(x, name, "leave it out", "");
    if (near) {
        return field_warn(x, "%s is no field of %s, did you mean %s?", name, endpoints[api].path,
                          near);
    }
    return field_warn(x, "%s is no field of %s", name, endpoints[api].path);
}

static fathom_err read_fields(struct field_context *x)
{
    const char *key;
    json_t *value;
    json_object_foreach (x->r->root, key, value) {
        if (json_is_null(value)) continue;
        const struct field *f = field_find(endpoints[x->r->api].table, key, x->r->api);
        TRY(f ? f->read(x, f, value) : field_take_unknown(x, NULL, key, value));
    }
    return FATHOM_OK;
}

/* ---- rules over several fields ------------------------------------------------------------- */

static fathom_err check_output_length(struct api_request *r, struct api_error *e)
{
    const char *least = r->api == API_SGLANG ? "min_new_tokens" : "min_tokens";
    if (r->max_tokens == 0 && !r->echo && r->api != API_SGLANG) {
        return api_error_set(e, 400, "invalid_value", "max_tokens",
                             "max_tokens is 0, needed is at least 1 (0 only with echo)");
    }
    bool is_less = r->max_tokens >= 0 && r->sampling.min_tokens > (uint64_t)r->max_tokens;
    if (is_less && r->transfer.lends) { /* a proxy lowered max_tokens, as another server answers */
        r->sampling.min_tokens = (uint32_t)r->max_tokens;
    } else if (is_less) {
        return api_error_set(e, 400, "invalid_value", least,
                             "%s is %u, more than %s, which is %lld", least, r->sampling.min_tokens,
                             api_length_name(r->api), (long long)r->max_tokens);
    }
    return FATHOM_OK;
}

static fathom_err check_choices(struct api_request *r, struct api_error *e)
{
    r->n_told = r->n;
    if (r->best_of && r->best_of < r->n) {
        return api_error_set(e, 400, "invalid_value", "best_of",
                             "best_of is %u and n is %u, needed is at least n", r->best_of, r->n);
    }
    if (r->best_of > r->n && r->stream) {
        return api_error_set(e, 400, "invalid_value", "best_of",
                             "best_of is more than n, so what is told is known at the end: it "
                             "cannot be streamed");
    }
    if (r->best_of) r->n = r->best_of;
    size_t n_prompt = api_is_chat(r->api) ? 1 : r->n_prompt;
    if (n_prompt * r->n > LIMIT_CHOICES) {
        return api_error_set(e, 400, "invalid_value", "n",
                             "%zu prompts times n = %u are %zu choices, at most %d are taken",
                             n_prompt, r->n, n_prompt * r->n, LIMIT_CHOICES);
    }
    return FATHOM_OK;
}

/* Two fields may ask for log-probabilities of prompt tokens: the engine tells what suffices for
 * both.
 */
static fathom_err check_prompt_logprobs(struct api_request *r, struct api_error *e)
{
    fathom_sampling *s = &r->sampling;
    bool echoed = r->echo && s->logprobs;
    bool has_place = !r->stream || r->api == API_SGLANG;
    if (r->n_prompt_logprobs == 0 && !has_place) r->prompt_logprobs = false;
    if (r->prompt_logprobs && !has_place) {
        return api_error_set(e, 400, "invalid_value", "prompt_logprobs",
                             "prompt_logprobs cannot be streamed; leave stream out");
    }
    s->prompt_logprobs = r->prompt_logprobs || echoed;
    s->n_prompt_top_logprobs = r->n_prompt_logprobs;
    if (echoed && s->n_top_logprobs > r->n_prompt_logprobs) {
        s->n_prompt_top_logprobs = s->n_top_logprobs;
    }
    return FATHOM_OK;
}

static json_t *find_tool(const json_t *tools, const json_t *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        if (json_equal(json_object_get(json_object_get(tool, "function"), "name"), name)) {
            return tool;
        }
    }
    return NULL;
}

/* Keeps only the allowed tools: the others are not shown to the model. */
static fathom_err keep_allowed(struct api_request *r, struct api_error *e)
{
    json_t *kept = json_array();
    fathom_err err = kept ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; i < json_array_size(r->allowed_tools) && !err; i++) {
        const json_t *name = json_array_get(r->allowed_tools, i);
        json_t *tool = find_tool(r->tools, name);
        err = tool ? field_push(kept, json_incref(tool))
                   : api_error_set(e, 400, "invalid_value", "tool_choice",
                                   "tool_choice allows \"%.64s\", which is none of the tools",
                                   json_string_value(name));
    }
    if (!err) r->tools = json_array_size(kept) ? kept : NULL;
    return err; /* the rest of the arrays is released with the body's arena */
}

fathom_err field_name_prompt(struct api_error *e, fathom_err err, size_t i_prompt)
{
    const struct api_error was = *e;
    if (!was.status) return err;
    *e = (struct api_error){0};
    return api_error_set(e, was.status, was.code, was.param, "prompt %zu: %s", i_prompt,
                         was.diag.text);
}

static fathom_err check_own(struct api_request *own, struct api_error *e)
{
    own->n_told = own->n;
    TRY(answer_rule_check(&own->rule, NULL, e));
    TRY(check_output_length(own, e));
    return check_prompt_logprobs(own, e);
}

/* Checks what each prompt has for itself, by the rules that hold for a request. */
static fathom_err check_each(const struct api_request *r, struct api_error *e)
{
    for (size_t i = 0; r->each && i < r->n_prompt; i++) {
        fathom_err err = check_own(&r->each[i], e);
        if (err) return field_name_prompt(e, err, i);
    }
    return FATHOM_OK;
}

static fathom_err check_together(struct field_context *x)
{
    struct api_request *r = x->r;
    struct api_error *e = x->e;
    TRY(endpoints[r->api].table->check(x));
    if (r->rule.tool_choice == TOOL_CHOICE_NONE) r->tools = NULL;
    if (r->allowed_tools) TRY(keep_allowed(r, e));
    TRY(answer_rule_check(&r->rule, r->tools, e));
    TRY(check_output_length(r, e));
    TRY(check_prompt_logprobs(r, e));
    TRY(check_choices(r, e));
    TRY(check_each(r, e));
    if (r->has_stream_options && !r->stream) {
        return api_error_set(e, 400, "invalid_value", "stream_options",
                             "stream_options is only taken when stream is true");
    }
    if (r->has_top_logprobs && !r->sampling.logprobs) {
        return api_error_set(e, 400, "invalid_value", "top_logprobs",
                             "top_logprobs is only taken when logprobs is true");
    }
    return FATHOM_OK;
}

/* ---- entry --------------------------------------------------------------------------------- */

static fathom_err parse_body(struct api_request *r, const char *body, size_t n,
                             const struct api_bounds *bounds, struct api_error *e)
{
    if (n == 0) {
        return api_error_set(e, 400, NULL, NULL,
                             "the request body is empty, a JSON object is "
                             "needed");
    }
    fathom_diag d;
    diag_clear(&d);
    /* where an API has arrays of token ids */
    static const char *const id_keys[] = {"prompt", "tokens", "token_ids", "input_ids", NULL};
    fathom_err err = json_read_with_ids(body, n, "request body", id_keys, &r->root, &d);
    if (err) return api_error_from(e, err, NULL, &d);
    if (!json_is_plain_object(r->root)) {
        return api_error_set(e, 400, "invalid_type", NULL,
                             "the request body is %s, needed is an object",
                             json_type_text(r->root));
    }
    if (r->api == API_INVOCATION) {
        const json_t *messages = json_object_get(r->root, "messages");
        r->api = messages && !json_is_null(messages) ? API_CHAT : API_COMPLETION;
    }
    if (r->api == API_RESPONSES || r->api == API_INPUT_TOKENS) {
        r->responses = mem_calloc(1, sizeof *r->responses);
        if (!r->responses) return FATHOM_ENOMEM;
    }
    struct field_context x = {r, bounds, e};
    TRY(read_fields(&x));
    return check_together(&x);
}

static struct answer_rule *rule_of(struct api_request *r, size_t i)
{
    return r->each ? &r->each[i].rule : &r->rule;
}

static bool has_value(struct api_request *r)
{
    size_t i = 0;
    while (i < api_request_n_rule(r) && !rule_of(r, i)->value) i++;
    return i < api_request_n_rule(r);
}

/* Copies what must outlive the body: the tools, which the answer's parser reads, and the values of
 * rules. The answer's grammar is made from both, and its compilation may have to wait. */
static fathom_err keep_parts(struct api_request *r, struct api_error *e)
{
    const json_t *tools = r->tools;
    bool is_kept;
    if (!tools && !has_value(r)) return FATHOM_OK;
    TRY(json_arena_create(&r->kept_arena, LIMIT_TOOLS_BYTES));
    struct json_arena *before = json_arena_enter(r->kept_arena);
    if (tools) r->tools = json_copy_tree(tools);
    is_kept = !tools == !r->tools;
    for (size_t i = 0; i < api_request_n_rule(r); i++) {
        struct answer_rule *rule = rule_of(r, i);
        const json_t *value = rule->value;
        if (value) rule->value = is_kept ? json_copy_tree(value) : NULL;
        is_kept = is_kept && !value == !rule->value;
    }
    (void)json_arena_enter(before);
    if (is_kept) return FATHOM_OK;
    if (json_arena_fault(r->kept_arena) != JSON_ARENA_OVER) return FATHOM_ENOMEM;
    return api_error_set(e, 400, "invalid_value", r->tools ? r->rule.param : "tools",
                         "tools and the schema of the answer take more than %d MiB of memory, "
                         "which is the limit: send fewer, or simpler schemas",
                         LIMIT_TOOLS_BYTES >> 20);
}

/* Writes the error if an arena was full, or over its limit. */
static void tell_fault(const struct json_arena *a, size_t n, struct api_error *e)
{
    if (json_arena_fault(a) == JSON_ARENA_FULL) {
        (void)api_error_set(e, 429, "server_busy", NULL,
                            "%zu bytes of requests are parsed at the moment, which is the limit; "
                            "try again later",
                            json_arenas_used());
    }
    if (json_arena_fault(a) == JSON_ARENA_OVER) {
        (void)api_error_set(e, 400, "invalid_value", NULL,
                            "the request body of %zu bytes takes more than the %zu bytes of memory "
                            "that are allowed (%d for each byte and %d MiB): send fewer and longer "
                            "values",
                            n, json_arena_limit(a), LIMIT_JSON_FACTOR,
                            LIMIT_JSON_LEAST_BYTES >> 20);
    }
}

fathom_err api_request_parse(struct api_request *r, enum api_kind api, const char *body, size_t n,
                             const struct api_bounds *bounds, struct api_error *e)
{
    field_set_defaults(r, api);
    r->tokens_as_ids = bounds->tokens_as_ids;
    fathom_err err = json_arena_create(&r->body_arena, LIMIT_JSON_LEAST_BYTES);
    if (err) return api_error_from(e, err, NULL, NULL);
    json_arena_note_text(r->body_arena, n);
    struct json_arena *before = json_arena_enter(r->body_arena);
    err = parse_body(r, body, n, bounds, e);
    (void)json_arena_enter(before);
    if (!err) err = keep_parts(r, e);
    if (!err) return FATHOM_OK;
    r->tools = NULL; /* they lie in an arena that may go before the request */
    for (size_t i = 0; i < api_request_n_rule(r); i++) rule_of(r, i)->value = NULL;
    tell_fault(r->body_arena, n, e);
    tell_fault(r->kept_arena, n, e);
    return api_error_from(e, err, NULL, NULL);
}

/* openapi.c - the tables of fields as JSON schemas */
#include "server/api/openapi.h"

#include <math.h>
#include <string.h>

#include "server/api/request_field.h"

/* ---- fields -------------------------------------------------------------------------------- */

static void write_range(struct buf *b, const struct field *f)
{
    (void)buf_printf(b, ",\"%s\":%.10g", f->lo_open ? "exclusiveMinimum" : "minimum", f->lo);
    if (!isinf(f->hi)) (void)buf_printf(b, ",\"maximum\":%.10g", f->hi);
}

/* Writes the schema of what a reader takes. A field whose reader is not listed takes more than one
 * type, so its schema is empty. */
static void write_schema(struct buf *b, const struct field *f)
{
    static const struct {
        field_read *read;
        const char *type;
        bool has_range;
    } types[] = {
        {field_flag, "boolean", false},
        {field_real, "number", true},
        {field_count, "integer", true},
        {field_int, "integer", true},
        {field_max_tokens, "integer", true},
        {field_thinking_budget, "integer", true},
        {field_top_logprobs, "integer", true},
        {field_seed, "integer", false},
        {field_model, "string", false},
        {field_cache_salt, "string", false},
        {field_text, "string", false},
        {field_verbosity, "string", false},
        {field_reasoning_effort, "string", false},
        {field_guided_regex, "string", false},
        {field_guided_grammar, "string", false},
        {field_messages, "array", false},
        {field_tools, "array", false},
        {field_tokens, "array", false},
        {field_resume, "array", false},
        {field_guided_choice, "array", false},
        {field_modalities, "array", false},
        {field_parallel_tool_calls, "boolean", false},
        {field_separate_reasoning, "boolean", false},
        {field_add_generation_prompt, "boolean", false},
        {field_object, "object", false},
        {field_logit_bias, "object", false},
        {field_stream_options, "object", false},
        {field_response_format, "object", false},
        {field_structured_outputs, "object", false},
        {field_template_kwargs, "object", false},
        {field_sampling_params, "object", false},
    };
    (void)buf_add_char(b, '{');
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].read != f->read) continue;
        (void)buf_printf(b, "\"type\":\"%s\"", types[i].type);
        if (types[i].has_range) write_range(b, f);
        break;
    }
    (void)buf_add_char(b, '}');
}

static void write_fields(struct buf *b, enum api_kind api, const struct field_table *t)
{
    bool any = false;
    for (size_t i = 0; i < t->n; i++) {
        const struct field *f = &t->fields[i];
        if (!(f->apis & (1u << api)) || f->read == field_refuse) continue;
        (void)buf_printf(b, "%s\"%s\":", any ? "," : "", f->name);
        write_schema(b, f);
        any = true;
    }
}

/* ---- paths --------------------------------------------------------------------------------- */

#define ANY_OBJECT "{\"application/json\":{\"schema\":{\"type\":\"object\"}}}"
#define ERRORS                                                                                     \
    ",\"4XX\":{\"description\":\"the request is refused\",\"content\":" ANY_OBJECT "},"            \
    "\"5XX\":{\"description\":\"the server cannot answer\",\"content\":" ANY_OBJECT "}}"

/* Writes the schema of a body. */
static void write_body(struct buf *b, enum api_kind api, const char *needed)
{
    const char *path;
    const struct field_table *t = field_table_of(api, &path);
    (void)buf_printf(b, "{\"type\":\"object\",\"required\":[%s],\"properties\":{", needed);
    write_fields(b, api, t);
    (void)buf_add_str(b, "}}");
}

void openapi_write_post(struct buf *b, enum api_kind api)
{
    static const char *const needed[] = {
        [API_CHAT] = "\"messages\"",
        [API_COMPLETION] = "\"prompt\"",
        [API_RESPONSES] = "\"input\"",
        [API_MESSAGES] = "\"messages\",\"max_tokens\"",
        [API_GENERATE] = "\"token_ids\"",
        [API_SGLANG] = "",
        [API_COUNT_TOKENS] = "\"messages\"",
        [API_INPUT_TOKENS] = "\"input\"",
        [API_TOKENIZE] = "",
        [API_TOKENIZE_CHAT] = "",
        [API_DETOKENIZE] = "\"tokens\"",
    };
    const char *path;
    (void)field_table_of(api, &path);
    (void)buf_printf(b,
                     "\"%s\":{\"post\":{\"requestBody\":{\"required\":true,\"content\":{"
                     "\"application/json\":{\"schema\":",
                     path);
    if (api == API_INVOCATION) {
        (void)buf_add_str(b, "{\"anyOf\":[");
        write_body(b, API_CHAT, needed[API_CHAT]);
        (void)buf_add_char(b, ',');
        write_body(b, API_COMPLETION, needed[API_COMPLETION]);
        (void)buf_add_str(b, "]}");
    } else {
        write_body(b, api, needed[api]);
    }
    (void)buf_add_str(b, "}}},\"responses\":{\"200\":{\"description\":\"the answer, or a stream "
                         "of its events\",\"content\":{\"application/json\":{\"schema\":{\"type\":"
                         "\"object\"}},\"text/event-stream\":{}}}" ERRORS "}}");
}

static void write_bare(struct buf *b, const char *method, const char *type, bool has_id)
{
    (void)buf_printf(b, "\"%s\":{", method);
    if (has_id) {
        (void)buf_add_str(b, "\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,"
                             "\"schema\":{\"type\":\"string\"}}],");
    }
    const char *end = strchr(type, ';');
    (void)buf_printf(b,
                     "\"responses\":{\"200\":{\"description\":\"the answer\",\"content\":{"
                     "\"%.*s\":{}}}" ERRORS "}",
                     (int)(end ? end - type : (long)strlen(type)), type);
}

void openapi_write_plain(struct buf *b, const char *path, const char *type, bool get, bool post)
{
    bool has_id = path[strlen(path) - 1] == '/';
    (void)buf_printf(b, "\"%s%s\":{", path, has_id ? "{id}" : "");
    if (get) write_bare(b, "get", type, has_id);
    if (get && post) (void)buf_add_char(b, ',');
    if (post) write_bare(b, "post", type, has_id);
    (void)buf_add_char(b, '}');
}

/* One operation whose parameters begin with the id of a response. */
static void write_kept(struct buf *b, const char *method, const char *more_parameters)
{
    (void)buf_printf(b,
                     "\"%s\":{\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,"
                     "\"schema\":{\"type\":\"string\"}}%s],\"responses\":{\"200\":{\"description\":"
                     "\"the answer\",\"content\":" ANY_OBJECT "}" ERRORS "}",
                     method, more_parameters);
}

void openapi_write_responses(struct buf *b)
{
    (void)buf_add_str(b, ",\"/v1/responses/{id}\":{");
    write_kept(b, "get", "");
    (void)buf_add_char(b, ',');
    write_kept(b, "delete", "");
    (void)buf_add_str(b, "},\"/v1/responses/{id}/cancel\":{");
    write_kept(b, "post", "");
    (void)buf_add_str(b, "},\"/v1/responses/{id}/input_items\":{");
    write_kept(b, "get",
               ",{\"name\":\"limit\",\"in\":\"query\",\"schema\":{\"type\":\"integer\","
               "\"minimum\":1,\"maximum\":100}},"
               "{\"name\":\"order\",\"in\":\"query\",\"schema\":{\"enum\":[\"asc\",\"desc\"]}},"
               "{\"name\":\"after\",\"in\":\"query\",\"schema\":{\"type\":\"string\"}}");
    (void)buf_add_char(b, '}');
}

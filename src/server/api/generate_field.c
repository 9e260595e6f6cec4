/* generate_field.c - the fields of /inference/v1/generate: token ids in, token ids out
 *
 * sampling_params holds what a completion has beside its prompt; the table of openai_field.c says
 * which fields those are, and reads them.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/request_field.h"

fathom_err field_sampling_params(struct field_context *x, const struct field *f, json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    json_object_foreach (v, key, value) {
        const struct field *inner = field_find(&openai_table, key, API_GENERATE);
        if (json_is_null(value)) continue;
        TRY(inner ? inner->read(x, inner, value) : field_take_unknown(x, f->name, key, value));
    }
    return FATHOM_OK;
}

static fathom_err read_output_mode(struct field_context *x, const struct field *f, json_t *v)
{
    const char *s = json_string_value(v);
    if (s && strcmp(s, "tokens") == 0) return FATHOM_OK;
    return api_error_set(
        x->e, 400, "unsupported_value", f->name,
        "output_mode is only supported as \"tokens\": /v1/completions takes ids and "
        "tells text");
}

/* The defaults of vLLM's SamplingParams; those of the model are for requests of text. */
static void set_neutral(fathom_sampling *s)
{
    if (s->temperature < 0) s->temperature = 1;
    if (s->top_p < 0) s->top_p = 1;
    if (s->min_p < 0) s->min_p = 0;
    if (s->repetition_penalty < 0) s->repetition_penalty = 1;
    if (s->top_k == API_TOP_K_UNSET) s->top_k = 0;
}

static fathom_err check(struct field_context *x)
{
    struct api_request *r = x->r;
    r->tokens_as_ids = true;
    set_neutral(&r->sampling);
    if (r->prompts) return FATHOM_OK;
    return api_error_set(x->e, 400, "missing_required_parameter", "token_ids",
                         "token_ids is missing, an array of token ids is needed");
}

#define AT(member) offsetof(struct api_request, member)

static const struct field fields[] = {
    {"model", GENERATE, field_model, 0, 0, 0, false, NULL},
    {"token_ids", GENERATE, field_tokens, 0, 0, 0, false, NULL},
    {"sampling_params", GENERATE, field_sampling_params, 0, 0, 0, false, NULL},
    {"stream", GENERATE, field_flag, AT(stream), 0, 0, false, NULL},
    {"stream_options", GENERATE, field_stream_options, 0, 0, 0, false, NULL},
    {"request_id", GENERATE, field_request_id, 0, 0, 0, false, NULL},
    {"priority", GENERATE, field_int, AT(priority), INT32_MIN, INT32_MAX, false, NULL},
    {"data_parallel_rank", GENERATE, field_int, AT(data_parallel_rank), 0, INT32_MAX, false, NULL},
    {"cache_salt", GENERATE, field_cache_salt, 0, 0, 0, false, NULL},
    {"kv_transfer_params", GENERATE, field_kv_transfer, 0, 0, 0, false, NULL},
    {"return_token_ids", GENERATE, field_flag, AT(return_token_ids), 0, 0, false, NULL},
    {"output_mode", GENERATE, read_output_mode, 0, 0, 0, false, NULL},
    {"parse_context", GENERATE, field_none, 0, 0, 0, false, NULL}, /* of another output_mode */
    {"reasoning_ended", GENERATE, field_none, 0, 0, 0, false, NULL},
    {"reasoning_parser_kwargs", GENERATE, field_none, 0, 0, 0, false, NULL},
    {"token_offsets", GENERATE, field_none, 0, 0, 0, false, NULL},
    {"features", GENERATE, field_refuse, 0, 0, 0, false, "prompts are text"},
    {"content_parts", GENERATE, field_refuse, 0, 0, 0, false, "prompts are text"},
    {"ec_transfer_params", GENERATE, field_refuse, 0, 0, 0, false, "prompts are text"},
    {"session_id", GENERATE, field_none, 0, 0, 0, false, NULL},
};

const struct field_table generate_table = {fields, sizeof fields / sizeof fields[0], check};

#include "bench/stream_chunk.h"

#include <string.h>

#include "base/fail.h"
#include "base/json.h"

/* Adds a string member that is not empty; says whether there was one. */
static bool take_text(const json_t *object, const char *key, struct buf *text)
{
    const json_t *value = json_object_get(object, key);
    size_t n = json_string_length(value);
    if (n == 0) return false;
    (void)buf_add(text, json_string_value(value), n);
    return true;
}

/* A delta of a chat. Reasoning may come under either name, or under both with the same text. */
static bool take_delta(const json_t *delta, struct buf *text)
{
    bool any = take_text(delta, "reasoning_content", text);
    if (!any) any = take_text(delta, "reasoning", text);
    if (take_text(delta, "content", text)) any = true;
    size_t i;
    json_t *call;
    json_array_foreach (json_object_get(delta, "tool_calls"), i, call) {
        const json_t *function = json_object_get(call, "function");
        if (take_text(function, "name", text)) any = true;
        if (take_text(function, "arguments", text)) any = true;
    }
    return any;
}

static uint32_t count_of(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 && value <= UINT32_MAX ? (uint32_t)value : 0;
}

static void take_usage(struct stream_chunk *out, const json_t *usage)
{
    if (!json_is_object(usage)) return;
    out->has_usage = true;
    out->n_input = count_of(usage, "prompt_tokens");
    out->n_output = count_of(usage, "completion_tokens");
    out->n_cached = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

fathom_err stream_chunk_read(struct stream_chunk *out, const char *data, size_t n, struct buf *text,
                             fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        out->is_end = true;
        return FATHOM_OK;
    }
    json_t *chunk;
    TRY(json_read(data, n, "event", &chunk, d));
    const json_t *error = json_object_get(chunk, "error");
    size_t i;
    json_t *choice;
    fathom_err err = FATHOM_OK;
    if (!json_is_object(chunk)) {
        err = diag_fail(d, FATHOM_EFORMAT, "event: %s, needed is an object", json_type_text(chunk));
    } else if (error && !json_is_null(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        (void)diag_fail(d, FATHOM_EIO, "%s", message ? message : "an error without a message");
        out->is_error = true;
    }
    json_array_foreach (json_object_get(chunk, "choices"), i, choice) {
        if (take_text(choice, "text", text)) out->has_text = true;
        if (take_delta(json_object_get(choice, "delta"), text)) out->has_text = true;
        if (json_is_string(json_object_get(choice, "finish_reason"))) out->has_stop = true;
    }
    take_usage(out, json_object_get(chunk, "usage"));
    json_decref(chunk);
    return err ? err : buf_status(text);
}

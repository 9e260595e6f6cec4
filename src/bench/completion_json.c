/* completion_json.c - bodies of requests written, events of streams read */
#include "bench/completion_json.h"

#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"

/* ---- requests ------------------------------------------------------------------------------- */

static json_t *number(double value)
{
    return value == floor(value) ? json_integer((json_int_t)value) : json_real(value);
}

/* Sets a member; false when out of memory. */
static bool set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static bool set_sampling(json_t *body, const struct request_shape *s)
{
    const struct {
        const char *key;
        double value;
    } members[] = {
        {"temperature", s->temperature},
        {"top_p", s->top_p},
        {"top_k", s->top_k},
        {"min_p", s->min_p},
        {"frequency_penalty", s->frequency_penalty},
        {"presence_penalty", s->presence_penalty},
        {"repetition_penalty", s->repetition_penalty},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (members[i].value <= SAMPLING_UNSET) continue;
        if (!set(body, members[i].key, number(members[i].value))) return false;
    }
    if (s->ignore_eos && !set(body, "ignore_eos", json_true())) return false;
    if (s->logprobs <= SAMPLING_UNSET) return true;
    if (!s->is_chat) return set(body, "logprobs", number(s->logprobs));
    return set(body, "logprobs", json_true()) && set(body, "top_logprobs", number(s->logprobs));
}

fathom_err request_shape_write(struct buf *out, const struct request_shape *s, fathom_diag *d)
{
    json_t *extra = NULL;
    json_t *body = json_object();
    fathom_err err = FATHOM_OK;
    if (s->extra) TRY_GOTO(json_read(s->extra, strlen(s->extra), "--extra-body", &extra, d), done);
    if (extra && !json_is_object(extra)) {
        err = diag_fail(d, FATHOM_EINVAL, "--extra-body: %s, needed is an object",
                        json_type_text(extra));
        goto done;
    }
    if (!set(body, "model", json_string(s->model)) || !set(body, "stream", json_true()) ||
        !set(body, "stream_options", json_pack("{s:b}", "include_usage", 1)) ||
        !set_sampling(body, s) || (extra && json_object_update(body, extra) != 0)) {
        err = FATHOM_ENOMEM;
        goto done;
    }
    err = json_write(out, body);
done:
    json_decref(extra);
    json_decref(body);
    return err;
}

fathom_err request_body_write(struct buf *out, const struct buf *common, bool is_chat,
                              const struct dataset_item *item, const char *salt)
{
    (void)buf_add_str(out,
                      is_chat ? "{\"messages\":[{\"role\":\"user\",\"content\":" : "{\"prompt\":");
    (void)json_write_string(out, item->prompt, item->n_byte);
    if (is_chat) (void)buf_add_str(out, "}]");
    (void)buf_printf(out, ",\"%s\":%u", is_chat ? "max_completion_tokens" : "max_tokens",
                     item->n_output);
    if (salt) {
        (void)buf_add_str(out, ",\"cache_salt\":");
        (void)json_write_string(out, salt, strlen(salt));
    }
    (void)buf_add_char(out, ',');
    (void)buf_add(out, common->data + 1, common->len - 1);
    return buf_status(out);
}

/* ---- events of a stream ---------------------------------------------------------------------- */

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

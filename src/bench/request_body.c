#include "bench/request_body.h"

#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"

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

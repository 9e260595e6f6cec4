/* request_option.c - fields that hold options: streaming, thinking, verbosity */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/request_field.h"

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(s, *words) == 0) return true;
    }
    return false;
}

fathom_err field_flag_in(struct field_context *x, const char *parent, const json_t *object,
                         const char *key, bool *out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return FATHOM_OK;
    if (field_boolean(v, out)) return FATHOM_OK;
    return field_wrong_type(x, field_member(parent, key).path, v, "a boolean");
}

fathom_err field_stream_options(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    static const char *const keys[] = {"include_usage", "continuous_usage_stats",
                                       "include_obfuscation", NULL};
    TRY(field_check_keys(x, f->name, v, keys));
    x->r->has_stream_options = json_object_size(v) > 0;
    TRY(field_flag_in(x, f->name, v, "include_usage", &x->r->include_usage));
    TRY(field_flag_in(x, f->name, v, "continuous_usage_stats", &x->r->continuous_usage));
    if (!x->r->include_usage) x->r->continuous_usage = false;
    return FATHOM_OK;
}

fathom_err field_modalities(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of strings");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        if (json_is_string(item) && strcmp(json_string_value(item), "text") == 0) continue;
        return api_error_set(x->e, 400, "unsupported_value", f->name,
                             "modalities[%zu] is not supported; only \"text\" is", i);
    }
    return FATHOM_OK;
}

fathom_err field_verbosity(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const words[] = {"low", "medium", "high", NULL};
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    const char *s = json_string_value(v);
    if (!is_one_of(s, words)) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "%s is \"%.40s\", needed is low, medium or high", f->name, s);
    }
    if (strcmp(s, "medium") == 0) return FATHOM_OK;
    if (!x->bounds->strict) {
        return field_warn(x, "%s is \"%s\", which changes nothing: ask for it in a message",
                          f->name, s);
    }
    return api_error_set(x->e, 400, "unsupported_value", f->name,
                         "%s is only supported as \"medium\": ask for it in a message", f->name);
}

fathom_err field_add_generation_prompt(struct field_context *x, const struct field *f, json_t *v)
{
    TRY(field_flag(x, f, v));
    x->r->asks_generation_prompt = x->r->add_generation_prompt;
    return FATHOM_OK;
}

/* ---- thinking ------------------------------------------------------------------------------ */

/* Three kinds of fields switch thinking; if several are given, the later one in this list wins. */
enum { PRECEDENCE_EFFORT = 1, PRECEDENCE_THINKING, PRECEDENCE_KWARGS };

static void set_thinking(struct api_request *r, unsigned precedence, bool on)
{
    if (precedence < r->thinking_precedence) return;
    r->thinking_precedence = precedence;
    r->thinking = on ? API_ON : API_OFF;
}

fathom_err field_reasoning_effort(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const off[] = {"none", "minimal", NULL};
    static const char *const on[] = {"low", "medium", "high", "xhigh", "max", NULL};
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    const char *s = json_string_value(v);
    bool is_on = is_one_of(s, on);
    if (!is_on && !is_one_of(s, off)) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "reasoning_effort is \"%.40s\", needed is none or minimal (no "
                             "thinking), low, medium, high, xhigh or max (thinking)",
                             s);
    }
    set_thinking(x->r, PRECEDENCE_EFFORT, is_on);
    return FATHOM_OK;
}

/* If several fields give a budget, the smallest wins; -1 means none. */
fathom_err field_thinking_budget(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t n;
    TRY(field_read_integer(x, f, v, &n));
    if (n >= 0 && n < x->r->thinking_budget) x->r->thinking_budget = (uint32_t)n;
    return FATHOM_OK;
}

fathom_err field_thinking(struct field_context *x, const struct field *f, json_t *v)
{
    const struct field budget_tokens = {.name = "thinking.budget_tokens",
                                        .lo = api_is_anthropic(x->r->api) ? 1 : -1,
                                        .hi = INFINITY};
    bool on;
    if (field_boolean(v, &on)) {
        set_thinking(x->r, PRECEDENCE_THINKING, on);
        return FATHOM_OK;
    }
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "a boolean or an object");
    json_t *budget = json_object_get(v, "budget_tokens");
    if (budget && !json_is_null(budget)) TRY(field_thinking_budget(x, &budget_tokens, budget));
    const json_t *type = json_object_get(v, "type");
    if (!json_is_string(type)) return field_wrong_type(x, "thinking.type", type, "a string");
    const char *s = json_string_value(type);
    if (strcmp(s, "auto") == 0 || strcmp(s, "adaptive") == 0) return FATHOM_OK;
    bool is_on = strcmp(s, "enabled") == 0;
    if (!is_on && strcmp(s, "disabled") != 0) {
        return api_error_set(x->e, 400, "invalid_value", "thinking.type",
                             "thinking.type is \"%.40s\", needed is enabled, disabled or auto", s);
    }
    set_thinking(x->r, PRECEDENCE_THINKING, is_on);
    return FATHOM_OK;
}

fathom_err field_template_kwargs(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"enable_thinking", "thinking", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_check_keys(x, f->name, v, keys));
    for (size_t i = 0; keys[i]; i++) {
        const json_t *value = json_object_get(v, keys[i]);
        if (!value || json_is_null(value)) continue;
        bool on = false;
        TRY(field_flag_in(x, f->name, v, keys[i], &on));
        set_thinking(x->r, PRECEDENCE_KWARGS, on);
    }
    return FATHOM_OK;
}

/* answer_rule.c - the parts of a rule, their check, and the grammar they ask for */
#include "server/api/answer_rule.h"

#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

fathom_err answer_rule_set_content(struct answer_rule *r, enum answer_content content,
                                   const char *field, const char *param, json_t *value,
                                   struct api_error *e)
{
    if (r->content != ANSWER_CONTENT_NONE) {
        return api_error_set(e, 400, "invalid_value", field,
                             "%s and %s both say what the answer must be, only one may", r->param,
                             param);
    }
    r->content = content;
    r->field = field;
    r->param = param;
    r->value = json_incref(value);
    return FATHOM_OK;
}

void answer_rule_rename(struct answer_rule *r, const char *field, const char *param)
{
    if (r->content == ANSWER_CONTENT_NONE) return;
    r->field = field;
    r->param = param;
}

fathom_err answer_rule_set_tool(struct answer_rule *r, const char *name, size_t n)
{
    mem_free(r->tool_name);
    r->tool_name = mem_strndup(name, n);
    r->tool_choice = TOOL_CHOICE_NAMED;
    return r->tool_name ? FATHOM_OK : FATHOM_ENOMEM;
}

static const json_t *function_of(const json_t *tools, size_t i)
{
    return json_object_get(json_array_get(tools, i), "function");
}

static bool has_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *own = json_string_value(json_object_get(function_of(tools, i), "name"));
        if (own && strcmp(own, name) == 0) return true;
    }
    return false;
}

static bool has_strict_tool(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        if (json_is_true(json_object_get(function_of(tools, i), "strict"))) return true;
    }
    return false;
}

static bool must_call(const struct answer_rule *r)
{
    return r->tool_choice == TOOL_CHOICE_REQUIRED || r->tool_choice == TOOL_CHOICE_NAMED;
}

fathom_err answer_rule_check(struct answer_rule *r, const json_t *tools, struct api_error *e)
{
    if (!must_call(r)) return FATHOM_OK;
    if (json_array_size(tools) == 0) {
        return api_error_set(e, 400, "invalid_value", "tool_choice",
                             "tool_choice demands a call and there are no tools");
    }
    if (r->tool_choice == TOOL_CHOICE_NAMED && !has_tool(tools, r->tool_name)) {
        return api_error_set(e, 400, "invalid_value", "tool_choice",
                             "tool_choice names \"%.64s\", which is none of the tools",
                             r->tool_name);
    }
    if (r->content != ANSWER_CONTENT_NONE && r->of_messages) {
        json_decref(r->value);
        r->value = NULL;
        r->content = ANSWER_CONTENT_NONE;
    }
    if (r->content != ANSWER_CONTENT_NONE) {
        return api_error_set(e, 400, "invalid_value", "tool_choice",
                             "tool_choice demands a call and %s says what the content must be: an "
                             "answer cannot be both",
                             r->field);
    }
    return FATHOM_OK;
}

bool answer_rule_grammar(const struct answer_rule *r, const json_t *tools,
                         enum chat_encoding markup, bool thinking, struct answer_grammar *out,
                         struct call_grammar *calls)
{
    bool may_call = r->tool_choice != TOOL_CHOICE_NONE && json_array_size(tools) > 0;
    *out = (struct answer_grammar){.thinking = thinking, .content = r->content, .value = r->value};
    *calls = (struct call_grammar){.markup = markup,
                                   .tools = tools,
                                   .name = r->tool_name,
                                   .parallel = !r->one_call && !r->tool_name,
                                   .strict_only = !must_call(r)};
    if (may_call) out->calls = calls;
    if (must_call(r) || r->content != ANSWER_CONTENT_NONE) return true;
    out->content = ANSWER_CONTENT_TEXT;
    return may_call && (r->one_call || has_strict_tool(tools));
}

void answer_rule_free(struct answer_rule *r)
{
    json_decref(r->value);
    mem_free(r->tool_name);
    *r = (struct answer_rule){0};
}

/* request_constraint.c - the fields of OpenAI's and vLLM's APIs that say what an answer must be:
 * response_format, guided_*, structured_outputs, tool_choice, parallel_tool_calls; and SGLang's */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "server/api/request_field.h"

static fathom_err not_supported(struct field_context *x, const char *path, const char *instead)
{
    return api_error_set(x->e, 400, "unsupported_parameter", path, "%s is not supported: %s", path,
                         instead);
}

/* ---- contents ------------------------------------------------------------------------------ */

/* Takes a schema, or a string that holds one. Paths are static. */
static fathom_err set_schema(struct field_context *x, const char *field, const char *path,
                             json_t *v)
{
    struct answer_rule *rule = &x->r->rule;
    if (json_is_plain_object(v)) {
        return answer_rule_set_content(rule, ANSWER_CONTENT_SCHEMA, field, path, v, x->e);
    }
    if (!json_is_string(v)) return field_wrong_type(x, path, v, "an object (a JSON schema)");
    json_t *schema = NULL;
    fathom_diag d;
    diag_clear(&d);
    fathom_err err = json_read(json_string_value(v), json_string_length(v), path, &schema, &d);
    if (!err && !json_is_plain_object(schema))
        err = field_wrong_type(x, path, schema, "a JSON schema");
    if (err) {
        (void)api_error_from(x->e, err, path, &d);
    } else {
        err = answer_rule_set_content(rule, ANSWER_CONTENT_SCHEMA, field, path, schema, x->e);
    }
    json_decref(schema);
    return err;
}

static fathom_err set_regex(struct field_context *x, const char *field, const char *path, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, path, v, "a string");
    return answer_rule_set_content(&x->r->rule, ANSWER_CONTENT_REGEX, field, path, v, x->e);
}

static fathom_err set_choice(struct field_context *x, const char *field, const char *path,
                             json_t *v)
{
    if (!json_is_array(v)) return field_wrong_type(x, path, v, "an array of strings");
    return answer_rule_set_content(&x->r->rule, ANSWER_CONTENT_CHOICE, field, path, v, x->e);
}

static fathom_err set_grammar(struct field_context *x, const char *field, const char *path,
                              json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, path, v, "a string (a grammar)");
    return answer_rule_set_content(&x->r->rule, ANSWER_CONTENT_EBNF, field, path, v, x->e);
}

/* Takes only those members of an object that make a structural tag. */
static fathom_err set_tag_members(struct field_context *x, const char *field, const char *path,
                                  const json_t *v)
{
    json_t *tag =
        json_pack("{s:O*, s:O*, s:O*}", "format", json_object_get(v, "format"), "structures",
                  json_object_get(v, "structures"), "triggers", json_object_get(v, "triggers"));
    if (!tag) return FATHOM_ENOMEM;
    fathom_err err =
        answer_rule_set_content(&x->r->rule, ANSWER_CONTENT_TAG, field, path, tag, x->e);
    json_decref(tag);
    return err;
}

/* Takes a structural tag, or a string that holds one. */
static fathom_err set_tag(struct field_context *x, const char *field, const char *path, json_t *v)
{
    static const char *const keys[] = {"type", "format", "structures", "triggers", NULL};
    static const char what[] = "an object (a structural tag)";
    json_t *own = NULL;
    fathom_diag d;
    diag_clear(&d);
    if (json_is_string(v)) {
        fathom_err err = json_read(json_string_value(v), json_string_length(v), path, &own, &d);
        if (err) return api_error_from(x->e, err, path, &d);
        v = own;
    }
    fathom_err err = json_is_plain_object(v) ? field_check_keys(x, path, v, keys)
                                             : field_wrong_type(x, path, v, what);
    if (!err) err = set_tag_members(x, field, path, v);
    json_decref(own);
    return err;
}

static fathom_err set_object(struct field_context *x, const char *field, const char *path)
{
    return answer_rule_set_content(&x->r->rule, ANSWER_CONTENT_OBJECT, field, path, NULL, x->e);
}

fathom_err field_guided_json(struct field_context *x, const struct field *f, json_t *v)
{
    return set_schema(x, f->name, f->name, v);
}

fathom_err field_guided_regex(struct field_context *x, const struct field *f, json_t *v)
{
    return set_regex(x, f->name, f->name, v);
}

fathom_err field_guided_choice(struct field_context *x, const struct field *f, json_t *v)
{
    return set_choice(x, f->name, f->name, v);
}

fathom_err field_guided_grammar(struct field_context *x, const struct field *f, json_t *v)
{
    return set_grammar(x, f->name, f->name, v);
}

fathom_err field_structural_tag(struct field_context *x, const struct field *f, json_t *v)
{
    return set_tag(x, f->name, f->name, v);
}

/* SGLang's: false has reasoning told with the answer's text. */
fathom_err field_separate_reasoning(struct field_context *x, const struct field *f, json_t *v)
{
    bool on;
    if (!field_boolean(v, &on)) return field_wrong_type(x, f->name, v, "a boolean");
    if (on) return FATHOM_OK;
    return api_error_set(x->e, 400, "unsupported_value", f->name,
                         "%s is false, only true is supported: start the server with "
                         "--reasoning-parser none",
                         f->name);
}

/* ---- response_format ----------------------------------------------------------------------- */

#define FORMAT "response_format"

/* {"name": .., "description": .., "strict": .., "schema": ..}. Outputs always follow the schema;
 * "strict": false only ignores keywords that are not supported. */
static fathom_err read_json_schema(struct field_context *x, const json_t *v)
{
    static const char schema_path[] = FORMAT ".json_schema.schema";
    static const char *const keys[] = {"name", "description", "strict", "schema", NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, FORMAT ".json_schema", v, "an object");
    TRY(field_check_keys(x, FORMAT ".json_schema", v, keys));
    const json_t *name = json_object_get(v, "name");
    if (name && !json_is_string(name)) {
        return field_wrong_type(x, FORMAT ".json_schema.name", name, "a string");
    }
    const json_t *strict = json_object_get(v, "strict");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict)) {
        return field_wrong_type(x, FORMAT ".json_schema.strict", strict, "a boolean");
    }
    json_t *schema = json_object_get(v, "schema");
    if (!schema) {
        return api_error_set(x->e, 400, "missing_required_parameter", schema_path,
                             "%s is missing, a JSON schema is needed", schema_path);
    }
    if (!json_is_plain_object(schema)) {
        return field_wrong_type(x, schema_path, schema, "an object (a JSON schema)");
    }
    x->r->rule.options.lenient = json_is_false(strict);
    return set_schema(x, FORMAT, schema_path, schema);
}

/* {"type": "json_object"}; clients of some servers add a schema for the object. */
static fathom_err read_json_object(struct field_context *x, const char *field, const json_t *v)
{
    json_t *schema = json_object_get(v, "schema");
    if (!schema || json_is_null(schema)) return set_object(x, field, field);
    return set_schema(x, field, FORMAT ".schema", schema);
}

fathom_err field_response_format(struct field_context *x, const struct field *f, json_t *v)
{
    static const char *const keys[] = {"type",       "json_schema", "schema", "format",
                                       "structures", "triggers",    NULL};
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    const json_t *type = json_object_get(v, "type");
    if (!json_is_string(type)) return field_wrong_type(x, FORMAT ".type", type, "a string");
    const char *name = json_string_value(type);
    TRY(field_check_keys(x, FORMAT, v, keys));
    if (strcmp(name, "text") == 0) return FATHOM_OK;
    if (x->r->rule.content == ANSWER_CONTENT_NONE) x->r->rule.of_messages = true;
    if (strcmp(name, "json_object") == 0) return read_json_object(x, f->name, v);
    if (strcmp(name, "json_schema") == 0) {
        x->r->response_format = json_incref(v);
        return read_json_schema(x, json_object_get(v, "json_schema"));
    }
    if (strcmp(name, "structural_tag") == 0) return set_tag_members(x, f->name, FORMAT, v);
    return api_error_set(x->e, 400, "unsupported_value", FORMAT ".type",
                         "response_format.type is \"%.40s\", which is not supported; text, "
                         "json_object, json_schema and structural_tag are",
                         name);
}

/* ---- structured_outputs -------------------------------------------------------------------- */

#define OUTPUTS "structured_outputs"

static fathom_err set_object_if(struct field_context *x, const char *field, const char *path,
                                json_t *v)
{
    bool on;
    if (!field_boolean(v, &on)) return field_wrong_type(x, path, v, "a boolean");
    return on ? set_object(x, field, path) : FATHOM_OK;
}

/* White space as Python's json.dumps writes it. */
static fathom_err set_space(struct field_context *x, const char *field, const char *path, json_t *v)
{
    bool on;
    (void)field;
    if (!field_boolean(v, &on)) return field_wrong_type(x, path, v, "a boolean");
    if (on) x->r->rule.options.space = GRAMMAR_SPACE_ONE;
    return FATHOM_OK;
}

static fathom_err set_nothing(struct field_context *x, const char *field, const char *path,
                              json_t *v)
{
    (void)x, (void)field, (void)path, (void)v;
    return FATHOM_OK;
}

static fathom_err refuse_member(struct field_context *x, const char *field, const char *path,
                                json_t *v)
{
    (void)field, (void)v;
    return not_supported(x, path, "use disable_any_whitespace");
}

static const struct {
    const char *name;
    const char *path;
    fathom_err (*set)(struct field_context *x, const char *field, const char *path, json_t *v);
} outputs[] = {
    {"json", OUTPUTS ".json", set_schema},
    {"regex", OUTPUTS ".regex", set_regex},
    {"choice", OUTPUTS ".choice", set_choice},
    {"json_object", OUTPUTS ".json_object", set_object_if},
    {"disable_any_whitespace", OUTPUTS ".disable_any_whitespace", set_space},
    {"disable_fallback", OUTPUTS ".disable_fallback", set_nothing},
    {"disable_additional_properties", OUTPUTS ".disable_additional_properties", set_nothing},
    {"grammar", OUTPUTS ".grammar", set_grammar},
    {"structural_tag", OUTPUTS ".structural_tag", set_tag},
    {"whitespace_pattern", OUTPUTS ".whitespace_pattern", refuse_member},
};

fathom_err field_structured_outputs(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    bool was_set = x->r->rule.content != ANSWER_CONTENT_NONE;
    const char *keys[sizeof outputs / sizeof outputs[0] + 1] = {NULL};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        keys[i] = outputs[i].name;
        json_t *item = json_object_get(v, outputs[i].name);
        if (!item || json_is_null(item)) continue;
        TRY(outputs[i].set(x, f->name, outputs[i].path, item));
    }
    TRY(field_check_keys(x, f->name, v, keys));
    if (was_set || x->r->rule.content != ANSWER_CONTENT_NONE) return FATHOM_OK;
    return api_error_set(x->e, 400, "invalid_value", f->name,
                         "structured_outputs says nothing of the answer; json, regex, choice, "
                         "grammar, structural_tag or json_object is needed");
}

/* ---- tools --------------------------------------------------------------------------------- */

/* Reads the names of a list of tools into `names`. */
static fathom_err read_allowed(struct field_context *x, const char *path, const json_t *list,
                               const char *inner, json_t *names)
{
    if (!json_is_array(list)) return field_wrong_type(x, path, list, "an array of tools");
    if (json_array_size(list) > LIMIT_TOOLS) {
        return field_too_many(x, path, json_array_size(list), LIMIT_TOOLS);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct field_place at = field_element(path, i);
        const json_t *tool = json_array_get(list, i);
        const json_t *space = json_object_get(tool, "namespace");
        json_t *name;
        if (inner) tool = json_object_get(tool, inner);
        TRY(field_get_string(x, at.path, tool, "name", &name));
        name = json_is_string(space) ? responses_function_name(space, name) : json_incref(name);
        TRY(field_push(names, name));
    }
    return FATHOM_OK;
}

fathom_err field_allow_tools(struct field_context *x, const char *path, const json_t *v,
                             const char *inner)
{
    const json_t *mode = json_object_get(v, "mode");
    if (mode && !json_is_null(mode)) TRY(field_pass(x, "tool_choice", (json_t *)mode));
    if (x->r->rule.tool_choice == TOOL_CHOICE_NONE) {
        return api_error_set(x->e, 400, "invalid_value", "tool_choice",
                             "%s.mode is \"none\", needed is auto or required", path);
    }
    json_t *names = json_array();
    if (!names) return FATHOM_ENOMEM;
    fathom_err err = read_allowed(x, field_member(path, "tools").path, json_object_get(v, "tools"),
                                  inner, names);
    if (err) {
        json_decref(names);
        return err;
    }
    json_decref(x->r->allowed_tools);
    x->r->allowed_tools = names;
    return FATHOM_OK;
}

static fathom_err read_named_tool(struct field_context *x, const json_t *v)
{
    const json_t *type = json_object_get(v, "type");
    const char *s = type ? json_string_value(type) : "function";
    if (!s) return field_wrong_type(x, "tool_choice.type", type, "a string");
    if (strcmp(s, "allowed_tools") == 0) {
        return field_allow_tools(x, "tool_choice.allowed_tools",
                                 json_object_get(v, "allowed_tools"), "function");
    }
    if (strcmp(s, "function") != 0) {
        return api_error_set(x->e, 400, "unsupported_value", "tool_choice.type",
                             "tool_choice.type is \"%.40s\", only \"function\" is supported", s);
    }
    const json_t *name = json_object_get(json_object_get(v, "function"), "name");
    if (!json_is_string(name)) {
        return field_wrong_type(x, "tool_choice.function.name", name, "a string");
    }
    return answer_rule_set_tool(&x->r->rule, json_string_value(name), json_string_length(name));
}

fathom_err field_tool_choice(struct field_context *x, const struct field *f, json_t *v)
{
    static const struct {
        const char *name;
        enum tool_choice choice;
    } words[] = {
        {"auto", TOOL_CHOICE_AUTO}, {"none", TOOL_CHOICE_NONE}, {"required", TOOL_CHOICE_REQUIRED}};
    if (json_is_plain_object(v)) return read_named_tool(x, v);
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string or an object");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(json_string_value(v), words[i].name) != 0) continue;
        x->r->rule.tool_choice = words[i].choice;
        return FATHOM_OK;
    }
    return api_error_set(x->e, 400, "invalid_value", f->name,
                         "tool_choice is \"%.40s\", needed is auto, none, required or a function",
                         json_string_value(v));
}

fathom_err field_parallel_tool_calls(struct field_context *x, const struct field *f, json_t *v)
{
    bool on;
    if (!field_boolean(v, &on)) return field_wrong_type(x, f->name, v, "a boolean");
    x->r->rule.one_call = !on;
    return FATHOM_OK;
}

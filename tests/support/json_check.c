/* json_check.c - JSON schema by plain recursion */
#include "support/json_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/json.h"

bool pattern_found(const char *pattern, const char *text, size_t n, bool whole)
{
    int error;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_DOLLAR_ENDONLY;
    if (whole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, strlen(pattern), options, &error, &at, NULL);
    if (!code) fail_msg("PCRE2 does not take %s at %zu", pattern, at);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    int found = pcre2_match(code, (PCRE2_SPTR)text, n, 0, 0, match, NULL);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    return found >= 0;
}

static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool has_type(const json_t *value, const char *type)
{
    if (json_big_digits(value)) return strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    if (strcmp(type, "null") == 0) return json_is_null(value);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(value);
    if (strcmp(type, "integer") == 0) {
        return json_is_number(value) && json_number_value(value) == floor(json_number_value(value));
    }
    if (strcmp(type, "number") == 0) return json_is_number(value);
    if (strcmp(type, "string") == 0) return json_is_string(value);
    if (strcmp(type, "array") == 0) return json_is_array(value);
    if (strcmp(type, "object") == 0) return json_is_object(value);
    fail_msg("no type %s", type);
    return false;
}

static bool check_type(const json_t *rule, const json_t *value)
{
    if (json_is_string(rule)) return has_type(value, json_string_value(rule));
    for (size_t i = 0; i < json_array_size(rule); i++) {
        if (has_type(value, json_string_value(json_array_get(rule, i)))) return true;
    }
    return false;
}

static bool check_number(const char *key, const json_t *rule, const json_t *value, bool *known)
{
    double x = json_number_value(value), y = json_number_value(rule);
    *known = true;
    bool number = json_is_number(value);
    if (strcmp(key, "minimum") == 0) return !number || x >= y;
    if (strcmp(key, "maximum") == 0) return !number || x <= y;
    if (strcmp(key, "exclusiveMinimum") == 0) return !number || x > y;
    if (strcmp(key, "exclusiveMaximum") == 0) return !number || x < y;
    if (strcmp(key, "multipleOf") == 0 && json_is_integer(value) && json_is_integer(rule)) {
        return json_integer_value(value) % json_integer_value(rule) == 0;
    }
    if (strcmp(key, "multipleOf") == 0) return !number || fmod(x, y) == 0;
    *known = false;
    return true;
}

static bool check_format(const char *format, const char *text, size_t n)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "\\d{4}-[01]\\d-[0-3]\\d"},
        {"time", "\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"},
        {"date-time", "\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"},
        {"uuid", "[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}"},
        {"ipv4", "\\d+\\.\\d+\\.\\d+\\.\\d+"},
        {"ipv6", "[[:xdigit:]:]+(\\d+\\.\\d+\\.\\d+\\.\\d+)?"},
        {"email", "[^@]+@[^@]+\\.[^@]+"},
        {"hostname", "(?=.{1,253}$)(?!.{0}..--)(?!.*[.]..--)[[:alnum:]]([[:alnum:]-]{0,61}"
                     "[[:alnum:]])?([.][[:alnum:]]([[:alnum:]-]{0,61}[[:alnum:]])?)*"},
        {"uri", "[A-Za-z][A-Za-z0-9+.-]*:[!-~]+"},
        {"duration", "P[0-9YMWDTHS]+"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(format, formats[i].name) == 0) {
            return pattern_found(formats[i].pattern, text, n, true);
        }
    }
    fail_msg("no format %s", format);
    return false;
}

static bool check_string(const char *key, const json_t *rule, const json_t *value, bool *known)
{
    const char *text = json_string_value(value);
    size_t n = json_string_length(value), n_char = 0;
    *known = true;
    for (size_t i = 0; i < n; i++) n_char += ((unsigned char)text[i] & 0xc0) != 0x80;
    json_int_t limit = json_is_integer(rule) ? json_integer_value(rule) : 0;
    if (strcmp(key, "minLength") == 0) return !text || n_char >= (size_t)limit;
    if (strcmp(key, "maxLength") == 0) return !text || n_char <= (size_t)limit;
    if (strcmp(key, "pattern") == 0) {
        return !text || pattern_found(json_string_value(rule), text, n, false);
    }
    if (strcmp(key, "format") == 0) {
        return !text || check_format(json_string_value(rule), text, n);
    }
    *known = false;
    return true;
}

static bool check_array(const json_t *root, const json_t *schema, const char *key,
                        const json_t *rule, const json_t *value, bool *known)
{
    size_t n = json_array_size(value);
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    if (json_is_array(items)) {
        prefix = items;
        items = json_object_get(schema, "additionalItems");
    }
    bool array = json_is_array(value), ok = true;
    *known = true;
    if (strcmp(key, "minItems") == 0) return !array || n >= (size_t)json_integer_value(rule);
    if (strcmp(key, "maxItems") == 0) return !array || n <= (size_t)json_integer_value(rule);
    *known = strcmp(key, "items") == 0 || strcmp(key, "prefixItems") == 0 ||
             strcmp(key, "additionalItems") == 0;
    for (size_t i = 0; i < n && *known; i++) {
        const json_t *own = json_array_get(prefix, i);
        if (!own) own = items;
        if (own) ok &= json_check(root, own, json_array_get(value, i));
    }
    return ok;
}

static bool check_member(const json_t *root, const json_t *schema, const char *name,
                         const json_t *value)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
    const json_t *rest = json_object_get(schema, "additionalProperties");
    const char *pattern;
    json_t *other;
    bool named = own != NULL, ok = !own || json_check(root, own, value);
    json_object_foreach (json_object_get(schema, "patternProperties"), pattern, other) {
        if (!pattern_found(pattern, name, strlen(name), false)) continue;
        named = true;
        ok &= json_check(root, other, value);
    }
    if (!named && rest) ok &= json_check(root, rest, value);
    return ok;
}

static bool check_object(const json_t *root, const json_t *schema, const char *key,
                         const json_t *rule, const json_t *value, bool *known)
{
    const char *name;
    json_t *member;
    bool object = json_is_object(value), ok = true;
    size_t n = json_object_size(value);
    *known = true;
    if (strcmp(key, "minProperties") == 0) return !object || n >= (size_t)json_integer_value(rule);
    if (strcmp(key, "maxProperties") == 0) return !object || n <= (size_t)json_integer_value(rule);
    if (strcmp(key, "required") == 0) {
        for (size_t i = 0; object && i < json_array_size(rule); i++) {
            ok &= json_object_get(value, json_string_value(json_array_get(rule, i))) != NULL;
        }
        return ok;
    }
    bool names = strcmp(key, "propertyNames") == 0;
    *known = names || strcmp(key, "properties") == 0 || strcmp(key, "patternProperties") == 0 ||
             strcmp(key, "additionalProperties") == 0;
    json_object_foreach ((json_t *)value, name, member) {
        if (!*known) break;
        json_t *text = json_string(name);
        ok &= names ? json_check(root, rule, text) : check_member(root, schema, name, member);
        json_decref(text);
    }
    return ok;
}

static const json_t *follow(const json_t *root, const char *ref)
{
    char step[64];
    const json_t *at = root;
    const json_t *defs = json_object_get(root, "$defs");
    if (strcmp(ref, "#color") == 0) return json_object_get(defs, "x");
    if (strchr(ref, '~')) return json_object_get(defs, "a/b~c d%");
    for (const char *p = ref + 1; *p == '/';) {
        size_t n = strcspn(++p, "/");
        (void)snprintf(step, sizeof step, "%.*s", (int)n, p);
        at = json_object_get(at, step);
        p += n;
    }
    assert_non_null(at);
    return at;
}

static bool check_group(const json_t *root, const char *key, const json_t *rule,
                        const json_t *value, bool *known)
{
    size_t n_true = 0, n = json_array_size(rule);
    *known = true;
    if (strcmp(key, "$ref") == 0) {
        return json_check(root, follow(root, json_string_value(rule)), value);
    }
    *known = strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 || strcmp(key, "allOf") == 0;
    for (size_t i = 0; i < n && *known; i++) {
        n_true += json_check(root, json_array_get(rule, i), value);
    }
    if (strcmp(key, "oneOf") == 0) return n_true == 1;
    if (strcmp(key, "allOf") == 0) return n_true == n;
    return !*known || n_true > 0;
}

/* not, if, and what a member brings with it. */
static bool check_logic(const json_t *root, const json_t *schema, const char *key,
                        const json_t *rule, const json_t *value, bool *known)
{
    const char *name;
    json_t *what;
    *known = true;
    if (strcmp(key, "then") == 0 || strcmp(key, "else") == 0) return true;
    if (strcmp(key, "not") == 0) return !json_check(root, rule, value);
    if (strcmp(key, "if") == 0) {
        const json_t *next =
            json_object_get(schema, json_check(root, rule, value) ? "then" : "else");
        return !next || json_check(root, next, value);
    }
    *known = strncmp(key, "depend", 6) == 0;
    if (!*known || !json_is_object(value)) return true;
    json_object_foreach ((json_t *)rule, name, what) {
        if (!json_object_get(value, name)) continue;
        for (size_t i = 0; i < json_array_size(what); i++) {
            if (!json_object_get(value, json_string_value(json_array_get(what, i)))) return false;
        }
        if (!json_is_array(what) && !json_check(root, what, value)) return false;
    }
    return true;
}

/* ---- what a schema has looked at --------------------------------------------------------- */

/* A member by its name, or an item by its index. */
struct child {
    const char *name; /* NULL: an item */
    size_t i;
};

static bool names_child(const json_t *schema, struct child c)
{
    const char *pattern;
    json_t *other;
    const json_t *items = json_object_get(schema, "items");
    if (!c.name) {
        const json_t *prefix = json_object_get(schema, "prefixItems");
        if (json_is_array(items)) {
            prefix = items;
            items = json_object_get(schema, "additionalItems");
        }
        return items || c.i < json_array_size(prefix);
    }
    if (json_object_get(json_object_get(schema, "properties"), c.name)) return true;
    json_object_foreach (json_object_get(schema, "patternProperties"), pattern, other) {
        if (pattern_found(pattern, c.name, strlen(c.name), false)) return true;
    }
    return json_object_get(schema, "additionalProperties") != NULL;
}

/* Has a schema that holds for a value, or one inside it that does, looked at a child? The own
 * "unevaluated..." keyword of the schema that asks does not count. */
static bool sees_child(const json_t *root, const json_t *schema, const json_t *value,
                       struct child c, bool asks)
{
    static const char *const groups[] = {"allOf", "anyOf", "oneOf"};
    const char *key = c.name ? "unevaluatedProperties" : "unevaluatedItems";
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (!json_is_object(schema) || !json_check(root, asks ? json_true() : schema, value)) {
        return false;
    }
    if (names_child(schema, c) || (!asks && json_object_get(schema, key))) return true;
    if (ref && sees_child(root, follow(root, ref), value, c, false)) return true;
    const char *name;
    json_t *inner;
    json_object_foreach (json_object_get(schema, "dependentSchemas"), name, inner) {
        if (json_object_get(value, name) && sees_child(root, inner, value, c, false)) return true;
    }
    for (size_t k = 0; k < sizeof groups / sizeof groups[0]; k++) {
        const json_t *group = json_object_get(schema, groups[k]);
        for (size_t i = 0; i < json_array_size(group); i++) {
            if (sees_child(root, json_array_get(group, i), value, c, false)) return true;
        }
    }
    return false;
}

static bool check_unevaluated(const json_t *root, const json_t *schema, const char *key,
                              const json_t *rule, const json_t *value, bool *known)
{
    const char *name;
    json_t *member;
    bool ok = true, of_items = strcmp(key, "unevaluatedItems") == 0;
    *known = of_items || strcmp(key, "unevaluatedProperties") == 0;
    for (size_t i = 0; of_items && i < json_array_size(value); i++) {
        if (sees_child(root, schema, value, (struct child){NULL, i}, true)) continue;
        ok &= json_check(root, rule, json_array_get(value, i));
    }
    if (!*known || of_items) return ok;
    json_object_foreach ((json_t *)value, name, member) {
        if (sees_child(root, schema, value, (struct child){name, 0}, true)) continue;
        ok &= json_check(root, rule, member);
    }
    return ok;
}

/* ---- keywords ---------------------------------------------------------------------------- */

static bool is_annotation(const char *key)
{
    static const char *const keys[] = {
        "$schema",  "$id",   "title",   "description", "default",  "examples", "deprecated",
        "$comment", "$defs", "$anchor", "definitions", "readOnly", "nullable"};
    if (strncmp(key, "x-", 2) == 0) return true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return false;
}

static bool check_keyword(const json_t *root, const json_t *schema, const char *key,
                          const json_t *rule, const json_t *value)
{
    bool known, ok, found = false;
    if (is_annotation(key)) return true;
    if (strcmp(key, "type") == 0) return check_type(rule, value);
    if (strcmp(key, "const") == 0) return equal(rule, value);
    if (strcmp(key, "enum") == 0) {
        for (size_t i = 0; i < json_array_size(rule); i++) {
            found |= equal(json_array_get(rule, i), value);
        }
        return found;
    }
    ok = check_number(key, rule, value, &known);
    if (!known) ok = check_string(key, rule, value, &known);
    if (!known) ok = check_array(root, schema, key, rule, value, &known);
    if (!known) ok = check_object(root, schema, key, rule, value, &known);
    if (!known) ok = check_group(root, key, rule, value, &known);
    if (!known) ok = check_logic(root, schema, key, rule, value, &known);
    if (!known) ok = check_unevaluated(root, schema, key, rule, value, &known);
    if (!known) fail_msg("the check does not know the keyword %s", key);
    return ok;
}

bool json_check(const json_t *root, const json_t *schema, const json_t *value)
{
    const char *key;
    json_t *rule;
    if (json_is_boolean(schema)) return json_is_true(schema);
    if (json_is_true(json_object_get(schema, "nullable")) && json_is_null(value)) return true;
    json_object_foreach ((json_t *)schema, key, rule) {
        if (!check_keyword(root, schema, key, rule, value)) return false;
    }
    return true;
}

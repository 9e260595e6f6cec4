/* schema_string.c - strings under patterns, formats and lengths
 *
 * All of it is decided on code points, where conjunction is the product of two automata; the result
 * is then written as bytes of JSON.
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/utf8.h"
#include "grammar/regex.h"
#include "grammar/schema_int.h"

#define YEAR "(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])"
#define FOURTH "(?:0[48]|[2468][048]|[13579][26])" /* 04, 08, ... 96 */
#define DATE                                                                                       \
    "(?:" YEAR                                                                                     \
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"          \
    "|02-(?:0[1-9]|1\\d|2[0-8]))|(?:\\d\\d" FOURTH "|" FOURTH "00)-02-29)"
#define CLOCK "(?:[01]\\d|2[0-3]):[0-5]\\d"
#define TIME CLOCK ":[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" CLOCK ")"
#define N "\\d{1,6}"
#define DURATION_TIME "T(?:" N "H(?:" N "M(?:" N "S)?)?|" N "M(?:" N "S)?|" N "S)"
#define DURATION_DATE "(?:" N "Y(?:" N "M(?:" N "D)?)?|" N "M(?:" N "D)?|" N "D)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
/* Of a host name: up to 5 + rest characters, and no "--" in the third and fourth place, which would
 * be the mark of a coded name (xn--) that an automaton cannot check. */
#define HOST(rest)                                                                                 \
    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,2}[A-Za-z0-9]|[A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-"    \
    "z0-9])[A-Za-z0-9-]{0," rest "}[A-Za-z0-9])?"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define H "[0-9A-Fa-f]"
#define G H "{1,4}"
#define URI_PLAIN "A-Za-z0-9._~!$&'()*+,;="
#define URI_CHAR(more) "(?:[" URI_PLAIN more "-]|%" H H ")"
#define URI_TAIL(more) "(?:/" URI_CHAR(":@" more) "*)*"
#define URI_PATH URI_TAIL("")

/* Characters beyond ASCII that RFC 3987 takes. */
#define WIDE "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\U00010000-\\U0001fffd"
#define WIDE_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\u0080-\\ud7ff\\ue000-\\U0010ffff-]+"
#define WIDE_LABEL "[A-Za-z0-9" WIDE "]{1,63}"
#define URI_END(more) "(?:\\?" URI_CHAR(":@/?" more) "*)?(?:#" URI_CHAR(":@/?" more) "*)?"
#define URI_HOST(more) URI_CHAR(more) "+(?::\\d{1,5})?" URI_TAIL(more)
#define URI_SCHEME "[A-Za-z][A-Za-z0-9+.-]*:"
/* clang-format off */
#define ANY_URI(more)                                                                              \
    URI_SCHEME "(?://(?:" URI_CHAR(":" more) "*@)?" URI_HOST(more)                                 \
    "|/?" URI_CHAR(":@" more) "+" URI_TAIL(more) ")" URI_END(more)
#define REFERENCE(more)                                                                            \
    "(?://" URI_HOST(more) "|/?" URI_CHAR("@" more) "+" URI_TAIL(more) "|/)?" URI_END(more)
/* clang-format on */
#define TEMPLATE_PART "(?:[A-Za-z0-9_]|%" H H ")+"
#define TEMPLATE_NAME TEMPLATE_PART "(?:\\." TEMPLATE_PART ")*(?::[1-9]\\d{0,3}|\\*)?"
#define POINTER "(?:/(?:[^/~]|~[01])*)*"

/* What is enforced may be narrower than what the name stands for, never wider. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:" DURATION_DATE "(?:" DURATION_TIME ")?|" DURATION_TIME "|" N "W)"},
    {"email", ATOM "(?:\\." ATOM ")*@" LABEL "(?:\\." LABEL ")+"},
    /* 3 * 63 + 2 or 8 * 30 + 7 characters at most; 253 are possible */
    {"idn-email", WIDE_ATOM "(?:\\." WIDE_ATOM ")*@" WIDE_LABEL "(?:\\." WIDE_LABEL ")+"},
    {"hostname", HOST("58") "(?:\\." HOST("58") "){0,2}|" HOST("25") "(?:\\." HOST("25") "){0,7}"},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    {"ipv6",
     "(?:" G ":){7}" G "|(?:" G ":){1,7}:|(?:" G ":){1,6}:" G "|(?:" G ":){1,5}(?::" G
     "){1,2}|(?:" G ":){1,4}(?::" G "){1,3}|(?:" G ":){1,3}(?::" G "){1,4}|(?:" G ":){1,2}(?::" G
     "){1,5}|" G ":(?::" G "){1,6}|:(?:(?::" G "){1,7}|:)|(?:(?:" G ":){6}|::(?:" G ":){0,5}|" G
     "::(?:" G ":){0,4}|(?:" G ":){2}:(?:" G ":){0,3}|(?:" G ":){3}:(?:" G ":){0,2}|(?:" G
     ":){4}:(?:" G ":)?|(?:" G ":){5}:)" OCTET "(?:\\." OCTET "){3}"},
    {"uri", ANY_URI("")},
    {"iri", ANY_URI(WIDE)},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|" POINTER ")"},
    {"uri-reference", ANY_URI("") "|" REFERENCE("")},
    {"iri-reference", ANY_URI(WIDE) "|" REFERENCE(WIDE)},
    {"uri-template", "(?:[!#$&()*+,./0-9:;=?@A-Z_a-z~'" WIDE "\\[\\]-]|%" H H
                     "|\\{[+#./;?&]?" TEMPLATE_NAME "(?:," TEMPLATE_NAME ")*\\})*"},
    {"regex", "\\^?(?:(?:[A-Za-z0-9 _,;:/@#%&=!<>~\"'-]|\\.|\\\\[dDwWsS.])[*+?]?)*\\$?"},
    {"uuid", H "{8}-" H "{4}-" H "{4}-" H "{4}-" H "{12}"},
};

fathom_err string_too_large(struct schema_compiler *c)
{
    FAIL(c->d, FATHOM_ELIMIT,
         "schema %s: the patterns, formats and lengths of a string together need more than %d "
         "states",
         buf_str(&c->path), SCHEMA_STATES_MAX);
}

/* *d becomes what both *d and `other` accept; other is freed. */
static fathom_err restrict_to(struct schema_compiler *c, struct dfa *d, struct dfa *other)
{
    struct dfa both;
    fathom_err err = dfa_intersect(&both, d, other, SCHEMA_STATES_MAX, &c->b->budget);
    dfa_free(other);
    if (err == FATHOM_ELIMIT) return string_too_large(c);
    TRY(err);
    dfa_free(d);
    *d = both;
    return FATHOM_OK;
}

fathom_err pattern_build(struct schema_compiler *c, const char *pattern, struct dfa *out)
{
    fathom_diag why = {""};
    fathom_err err =
        regex_compile(out, pattern, strlen(pattern), REGEX_SEARCH, &c->b->budget, &why);
    if (err) FAIL(c->d, err, "schema %s: %s", buf_str(&c->path), why.text);
    return FATHOM_OK;
}

fathom_err pattern_matches(struct schema_compiler *c, const char *pattern, const char *name,
                           bool *out)
{
    struct dfa d;
    *out = false;
    TRY(schema_spend(c, strlen(name) * UNITS_VALUE));
    TRY(pattern_build(c, pattern, &d));
    *out = dfa_accepts_text(&d, name, strlen(name));
    dfa_free(&d);
    return FATHOM_OK;
}

/* The strings among the values of f. */
static fathom_err build_values(struct schema_compiler *c, const struct schema_flat *f,
                               struct dfa *out)
{
    struct nfa n;
    nfa_init(&n, SCHEMA_STATES_MAX * 8, &c->b->budget);
    uint32_t start = nfa_state(&n), end = nfa_state(&n);
    for (size_t i = 0; i < json_array_size(f->values); i++) {
        const json_t *value = json_array_get(f->values, i);
        if (!json_is_string(value)) continue;
        size_t size = json_string_length(value);
        nfa_link(&n, nfa_text(&n, start, json_string_value(value), size), NFA_EPSILON, end);
    }
    fathom_err err = n.err;
    if (!err) err = dfa_build(out, &n, start, end, DFA_WHOLE, SCHEMA_STATES_MAX, NULL);
    nfa_free(&n);
    return err == FATHOM_ELIMIT ? string_too_large(c) : err;
}

bool format_is_known(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(name, formats[i].name) == 0) return true;
    }
    return strcmp(name, "idn-hostname") == 0; /* to be refused */
}

static fathom_err build_format(struct schema_compiler *c, const char *name, struct dfa *out)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(name, formats[i].name) != 0) continue;
        const char *pattern = formats[i].pattern;
        return regex_compile(out, pattern, strlen(pattern), REGEX_FULL, &c->b->budget, c->d);
    }
    if (c->b->options.lenient) return dfa_lengths(out, 0, UINT32_MAX, 2, NULL);
    FAIL(c->d, FATHOM_EUNSUPPORTED, "schema %s: the \"format\" \"%s\" is not supported",
         buf_str(&c->path), name);
}

static fathom_err build_negated(struct schema_compiler *c, struct dfa *out, struct dfa *d)
{
    fathom_err err = dfa_negate(out, d, &c->b->budget);
    dfa_free(d);
    return err;
}

/* One rule of a string. */
static fathom_err build_rule(struct schema_compiler *c, const json_t *rule, struct dfa *out)
{
    const char *pattern = json_string_value(json_object_get(rule, "pattern"));
    const char *format = json_string_value(json_object_get(rule, "format"));
    const char *avoided = json_string_value(json_object_get(rule, WORD_NOT_PATTERN));
    struct schema_flat values = {.values = json_object_get(rule, WORD_NOT_VALUES)};
    struct dfa d;
    if (pattern) return pattern_build(c, pattern, out);
    if (format) return build_format(c, format, out);
    TRY(avoided ? pattern_build(c, avoided, &d) : build_values(c, &values, &d));
    return build_negated(c, out, &d);
}

/* The rules and lengths of f, without its values. */
static fathom_err build_rules(struct schema_compiler *c, const struct schema_flat *f,
                              struct dfa *out)
{
    fathom_err err =
        dfa_lengths(out, f->min_length, f->max_length, SCHEMA_STATES_MAX, &c->b->budget);
    if (err == FATHOM_ELIMIT) return string_too_large(c);
    for (size_t i = 0; i < json_array_size(f->string_rules) && !err; i++) {
        const json_t *rule = json_array_get(f->string_rules, i);
        struct dfa d;
        err = build_rule(c, rule, &d);
        if (!err) err = restrict_to(c, out, &d);
    }
    if (err) dfa_free(out);
    return err;
}

fathom_err schema_build_string(struct schema_compiler *c, const struct schema_flat *f,
                               struct dfa *out)
{
    *out = (struct dfa){0};
    return f->values ? build_values(c, f, out) : build_rules(c, f, out);
}

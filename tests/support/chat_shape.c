/* chat_shape.c - answers with tool calls, written out in every form */
#include "support/chat_shape.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "chat/chat_int.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- what is said ------------------------------------------------------------------------ */

/* Calls, as JSON: what a parser must give back. */
static const char *const call_sets[] = {
    "[{\"name\": \"now\", \"arguments\": {}}]",
    "[{\"name\": \"get_weather\", \"arguments\": {\"location\": \"San Francisco\"}}]",
    "[{\"name\": \"calc\", \"arguments\": {\"a\": -1500.25, \"b\": 0, \"c\": 123456789012}}]",
    "[{\"name\": \"flags\", \"arguments\": {\"t\": true, \"f\": false, \"n\": null}}]",
    "[{\"name\": \"find\", \"arguments\": {\"filter\": {\"tags\": [\"a\", {\"deep\": [1, [2, "
    "[3]]]}],"
    " \"none\": {}}, \"list\": [], \"limit\": 5}}]",
    "[{\"name\": \"say\", \"arguments\": {\"q\": \"\\\"hi\\\" \\\\ a\\n\\n b\\t.\", \"empty\": "
    "\"\","
    " \"blank\": \" \"}}]",
    "[{\"name\": \"ort\", \"arguments\": {\"Stadt\": \"K\xC3\xB6ln\", \"\xE5\x9F\x8E\xE5\xB8\x82\":"
    " \"\xE5\x8C\x97\xE4\xBA\xAC\", \"e\": \"\xF0\x9F\x99\x82\"}}]",
    "[{\"name\": \"html\", \"arguments\": {\"a\": \"<b>1 < 2</b> </parameter> {\\\"a\\\": [}\","
    " \"fence\": \"```json\\n{}\\n```\", \"half\": \"<\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9C </\"}}]",
    "[{\"name\": \"text\", \"arguments\": {\"number\": \"12\", \"true\": \"true\", \"null\": "
    "\"null\","
    " \"object\": \"{}\"}}]",
    "[{\"name\": \"order\", \"arguments\": {\"z\": 1, \"a\": \"x\", \"m\": [true, \"y\"]}}]",
    "[{\"name\": \"get_weather\", \"arguments\": {\"location\": \"Paris\"}},"
    " {\"name\": \"get_weather\", \"arguments\": {\"location\": \"Tokyo\", \"days\": 3}}]",
    "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"web-search\", \"arguments\": {\"q\":"
    " [\"x\", \"y\"]}}, {\"name\": \"ns.now_2\", \"arguments\": {}}]",
    "[{\"name\": \"a\", \"arguments\": {\"i\": 1}}, {\"name\": \"b\", \"arguments\": {\"i\": 2}},"
    " {\"name\": \"a\", \"arguments\": {\"i\": 3}}, {\"name\": \"b\", \"arguments\": {}},"
    " {\"name\": \"c\", \"arguments\": {\"s\": \"}\"}}, {\"name\": \"c\", \"arguments\": {\"s\": "
    "\"{\"}},"
    " {\"name\": \"c\", \"arguments\": {\"s\": \"]\"}}, {\"name\": \"d\", \"arguments\": {\"i\": "
    "8}}]",
};

static const char *const leads[] = {"", "Let me look.", "Two\nlines: <b>5 < 6</b> & [x]",
                                    "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C"};
static const char *const trails[] = {"", "\n", "Done. </b>"};
static const char *const thoughts[] = {NULL, "First,\nI call <it>.", ""};

/* ---- how it is written -------------------------------------------------------------------- */

enum spacing {
    SPACING_OFFICIAL,
    SPACING_TIGHT,
    SPACING_AIRY,
    SPACING_BARE,
    SPACING_OPEN,
    N_SPACING
};

/* V3.2: how an argument's type is told. V3, V3.1: how the JSON is laid out. */
enum form { FORM_OFFICIAL, FORM_SWAPPED, FORM_TYPED, FORM_QUOTED, N_FORM };

struct knobs {
    enum chat_encoding markup;
    enum spacing spacing;
    enum form form;
};

static void add(struct buf *b, const char *s)
{
    ASSERT(buf_add_str(b, s) == FATHOM_OK);
}

static void add_json(struct buf *b, const json_t *v, size_t flags)
{
    char *s = json_dumps(v, flags | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    ASSERT(s);
    add(b, s);
    free(s);
}

/* White space between tags. */
static const char *gap(const struct knobs *k)
{
    if (k->spacing == SPACING_TIGHT) return "";
    return k->spacing == SPACING_AIRY ? " \n\t " : "\n";
}

static void write_parameter(struct buf *b, const struct knobs *k, const char *key,
                            const json_t *value)
{
    bool string = json_is_string(value) && k->form != FORM_QUOTED;
    const char *flag = string ? "true" : "false";
    add(b, "<" CHAT_DSML "parameter");
    if (k->form == FORM_SWAPPED) ASSERT(buf_printf(b, " string=\"%s\"", flag) == FATHOM_OK);
    ASSERT(buf_printf(b, " name=\"%s\"", key) == FATHOM_OK);
    if (k->form == FORM_OFFICIAL || k->form == FORM_QUOTED) {
        const char *equals = k->spacing == SPACING_AIRY ? " = " : "=";
        ASSERT(buf_printf(b, " string%s\"%s\"", equals, flag) == FATHOM_OK);
    }
    add(b, k->spacing == SPACING_AIRY ? " >" : ">");
    if (string) {
        ASSERT(buf_add(b, json_string_value(value), json_string_length(value)) == FATHOM_OK);
    } else {
        add_json(b, value, 0);
    }
    add(b, "</" CHAT_DSML "parameter>");
}

static void write_dsml(struct shape *s, const struct knobs *k)
{
    struct buf *b = &s->text;
    size_t i;
    json_t *call, *value;
    const char *key;
    bool outer = k->spacing != SPACING_BARE;
    if (k->spacing == SPACING_OFFICIAL) add(b, "\n\n");
    if (outer) add(b, "<" CHAT_DSML "function_calls>");
    json_array_foreach (s->calls, i, call) {
        if (outer || i) add(b, gap(k));
        const char *name = json_string_value(json_object_get(call, "name"));
        ASSERT(buf_printf(b, "<" CHAT_DSML "invoke name=\"%s\">", name) == FATHOM_OK);
        s->begins[i] = b->len;
        json_object_foreach (json_object_get(call, "arguments"), key, value) {
            add(b, gap(k));
            write_parameter(b, k, key, value);
        }
        s->ends[i] = b->len;
        add(b, gap(k));
        add(b, "</" CHAT_DSML "invoke>");
    }
    if (!outer || k->spacing == SPACING_OPEN) return;
    add(b, gap(k));
    add(b, "</" CHAT_DSML "function_calls>");
}

static size_t json_layout(enum form form)
{
    switch (form) {
    case FORM_SWAPPED: return JSON_COMPACT;
    case FORM_TYPED: return JSON_INDENT(2);
    case FORM_QUOTED: return JSON_ENSURE_ASCII;
    default: return 0;
    }
}

static void write_json_call(struct shape *s, const struct knobs *k, size_t i)
{
    struct buf *b = &s->text;
    const json_t *call = json_array_get(s->calls, i);
    const char *name = json_string_value(json_object_get(call, "name"));
    bool v3 = k->markup == CHAT_ENCODING_V3, kimi = k->markup == CHAT_ENCODING_KIMI_K2;
    bool fence = v3 ? k->spacing != SPACING_TIGHT : k->spacing == SPACING_AIRY;
    add(b, kimi ? CHAT_KIMI_CALL_BEGIN : CHAT_CALL_BEGIN);
    if (v3) add(b, "function" CHAT_CALL_SEP);
    if (kimi && k->spacing != SPACING_TIGHT) add(b, CHAT_FUNCTIONS);
    add(b, name);
    if (kimi) ASSERT(buf_printf(b, ":%zu", 9 + i) == FATHOM_OK);
    if (!v3) add(b, kimi ? CHAT_KIMI_ARGUMENTS : CHAT_CALL_SEP);
    if (fence) add(b, "\n```json\n");
    s->begins[i] = b->len + (v3 && !fence); /* there { ends the name */
    add_json(&s->args[i], json_object_get(call, "arguments"), json_layout(k->form));
    add(b, buf_str(&s->args[i]));
    s->ends[i] = b->len;
    if (fence) add(b, "\n```");
    add(b, kimi ? CHAT_KIMI_CALL_END : CHAT_CALL_END);
}

static void write_json(struct shape *s, const struct knobs *k)
{
    struct buf *b = &s->text;
    bool outer = k->spacing != SPACING_BARE, kimi = k->markup == CHAT_ENCODING_KIMI_K2;
    if (outer) add(b, kimi ? CHAT_SECTION_BEGIN : CHAT_CALLS_BEGIN);
    for (size_t i = 0; i < json_array_size(s->calls); i++) {
        if (k->spacing == SPACING_AIRY)
            add(b, " \n");
        else if (i && k->markup == CHAT_ENCODING_V3)
            add(b, gap(k));
        write_json_call(s, k, i);
    }
    if (k->spacing == SPACING_AIRY) add(b, "\n");
    if (outer && k->spacing != SPACING_OPEN) add(b, kimi ? CHAT_SECTION_END : CHAT_CALLS_END);
}

/* ---- tools -------------------------------------------------------------------------------- */

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "object";
    case JSON_ARRAY: return "array";
    case JSON_STRING: return "string";
    case JSON_INTEGER: return "integer";
    case JSON_REAL: return "number";
    case JSON_NULL: return "null";
    default: return "boolean";
    }
}

/* The schema of a tool: what all its calls use. */
static json_t *make_parameters(const json_t *calls, const json_t *name)
{
    json_t *properties = json_object(), *call, *value;
    const char *key;
    size_t i;
    json_array_foreach (calls, i, call) {
        if (!json_equal(json_object_get(call, "name"), name)) continue;
        json_object_foreach (json_object_get(call, "arguments"), key, value) {
            json_t *schema = json_pack("{s:s}", "type", type_name(value));
            ASSERT(json_object_set_new(properties, key, schema) == 0);
        }
    }
    return json_pack("{s:s,s:o}", "type", "object", "properties", properties);
}

/* A tool may stand here more than once, with the same schema. */
static json_t *make_tools(const json_t *calls)
{
    json_t *tools = json_array(), *call;
    size_t i;
    json_array_foreach (calls, i, call) {
        json_t *name = json_object_get(call, "name");
        json_t *function =
            json_pack("{s:O,s:o}", "name", name, "parameters", make_parameters(calls, name));
        json_t *tool = json_pack("{s:s,s:o}", "type", "function", "function", function);
        ASSERT(json_array_append_new(tools, tool) == 0);
    }
    return tools;
}

/* ---- shapes ------------------------------------------------------------------------------- */

size_t shape_count(enum chat_encoding markup)
{
    (void)markup;
    return COUNT(call_sets) * N_SPACING * N_FORM;
}

/* Calls, spacing and form are all combined; what stands around them goes round with strides that
 * make each meet each of the others. */
void shape_make(struct shape *out, enum chat_encoding markup, size_t number)
{
    ASSERT(number < shape_count(markup));
    size_t set = number % COUNT(call_sets), rest = number / COUNT(call_sets);
    struct knobs k = {.markup = markup,
                      .spacing = (enum spacing)(rest % N_SPACING),
                      .form = (enum form)(rest / N_SPACING)};
    size_t lead = number % COUNT(leads), trail = (number / 5) % COUNT(trails);
    size_t thought = (number / 7) % COUNT(thoughts);

    memset(out, 0, sizeof *out);
    out->markup = markup;
    out->calls = json_loads(call_sets[set], 0, NULL);
    ASSERT(out->calls && json_array_size(out->calls) <= SHAPE_CALLS_MAX);
    out->tools = make_tools(out->calls);
    out->thinking = thoughts[thought] != NULL;
    if (out->thinking) {
        add(&out->reasoning, thoughts[thought]);
        add(&out->text, thoughts[thought]);
        add(&out->text, CHAT_THINK_END);
    }
    add(&out->content, leads[lead]);
    add(&out->text, leads[lead]);
    if (markup == CHAT_ENCODING_V32)
        write_dsml(out, &k);
    else
        write_json(out, &k);
    add(&out->text, trails[trail]);
    if (trails[trail][0] != '\n') add(&out->content, trails[trail]);
    (void)snprintf(out->label, sizeof out->label, "%s %zu: calls %zu, spacing %d, form %d",
                   chat_encoding_name(markup), number, set, k.spacing, k.form);
}

void shape_free(struct shape *s)
{
    json_decref(s->calls);
    json_decref(s->tools);
    buf_free(&s->text);
    buf_free(&s->reasoning);
    buf_free(&s->content);
    for (size_t i = 0; i < SHAPE_CALLS_MAX; i++) buf_free(&s->args[i]);
}

/* parser_v32.c - calls of V3.2: DSML, whose parameters become a JSON object
 *
 *   <D function_calls>
 *       (<D invoke name="N">
 *           (<D parameter name="K" string="B"> value </D parameter>)*
 *       </D invoke>)+
 *   </D function_calls>                        (written here with a space after D)
 *
 *   [invoke tag] --> INVOKE --parameter tag, string--> STRING ----------.
 *                     | | ^ `--parameter tag, other--> VALUE --> or VALUE_LONG
 *                     | |  `------------ </D parameter> -----------'
 *                     |  `--{, first thing--> ARGS --}--> AFTER --</D invoke>--> TEXT, after_call
 *                     `--</D invoke>, a tag that implies it, anything else--> TEXT, after_call
 *
 * A string streams as it comes. Another value is held until its end to see whether it is JSON; one
 * longer than PARSER_VALUE_MAX is judged by its first PARSER_VALUE_MAX bytes and then streams. The
 * first </D parameter> ends a value, wherever it stands, as in the official parser.
 */
#include <string.h>

#include "chat/parser_int.h"

#define TAG_OPEN "<" CHAT_DSML "function_calls>"
#define TAG_CLOSE "</" CHAT_DSML "function_calls>"
#define TAG_INVOKE "<" CHAT_DSML "invoke"
#define TAG_INVOKE_END "</" CHAT_DSML "invoke>"
#define TAG_PARAMETER "<" CHAT_DSML "parameter"
#define TAG_PARAMETER_END "</" CHAT_DSML "parameter>"

/* ---- tags ------------------------------------------------------------------------------- */

enum string_flag { STRING_OPEN, STRING_TRUE, STRING_FALSE };

struct tag {
    const char *name; /* not terminated; NULL: none */
    size_t n_name;
    enum string_flag string;
    size_t end; /* window position after the tag */
};

static size_t skip_blank(const char *s, size_t n, size_t i)
{
    while (i < n && memchr(" \n\t\r", s[i], 4)) i++;
    return i;
}

static bool equals(const char *s, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(s, text, n) == 0;
}

/* key="value" pairs and white space; false: something else, or no name. Unknown keys are ignored.
 */
static bool read_attributes(const char *s, size_t n, struct tag *tag)
{
    for (size_t i = skip_blank(s, n, 0); i < n; i = skip_blank(s, n, i)) {
        const char *key = s + i;
        while (i < n && ((s[i] >= 'a' && s[i] <= 'z') || s[i] == '_')) i++;
        size_t n_key = (size_t)(s + i - key);
        i = skip_blank(s, n, i);
        if (n_key == 0 || i == n || s[i] != '=') return false;
        i = skip_blank(s, n, i + 1);
        if (i == n || s[i] != '"') return false;
        const char *value = s + i + 1;
        const char *quote = memchr(value, '"', n - i - 1);
        if (!quote) return false;
        size_t n_value = (size_t)(quote - value);
        i += n_value + 2;
        if (equals(key, n_key, "name")) {
            tag->name = value;
            tag->n_name = n_value;
        } else if (equals(key, n_key, "string")) {
            if (equals(value, n_value, "true")) tag->string = STRING_TRUE;
            if (equals(value, n_value, "false")) tag->string = STRING_FALSE;
        }
    }
    return tag->name && tag->n_name <= PARSER_NAME_MAX;
}

/* A tag with attributes: `prefix`, white space, attributes, '>'. */
static enum look look_tag(const struct chat_parser *p, size_t at, const char *prefix,
                          struct tag *tag)
{
    enum look look = parser_look(p, at, prefix);
    if (look != LOOK_YES) return look;
    size_t from = at + strlen(prefix);
    bool quoted = false;
    for (size_t i = from;; i++) {
        if (i - at > PARSER_TAG_MAX) return LOOK_NO;
        if (i == p->window.len) return LOOK_MORE;
        char c = *parser_at(p, i);
        if (i == from && !memchr(" \n\t\r", c, 4)) return LOOK_NO;
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == '<') return LOOK_NO;
        if (c != '>') continue;
        *tag = (struct tag){.end = i + 1};
        return read_attributes(parser_at(p, from), i - from, tag) ? LOOK_YES : LOOK_NO;
    }
}

static enum look look_invoke(const struct chat_parser *p, size_t at, struct tag *tag)
{
    enum look look = look_tag(p, at, TAG_INVOKE, tag);
    return look == LOOK_YES && tag->n_name == 0 ? LOOK_NO : look;
}

static enum look look_mark(const struct chat_parser *p, size_t at, enum parser_mark *mark,
                           size_t *end)
{
    struct tag tag;
    enum look call = look_invoke(p, at, &tag);
    if (call == LOOK_YES) {
        *mark = MARK_CALL;
        *end = tag.end;
        return LOOK_YES;
    }
    enum look open = parser_look(p, at, TAG_OPEN);
    if (open == LOOK_YES) {
        *mark = MARK_OPEN;
        *end = at + strlen(TAG_OPEN);
        return LOOK_YES;
    }
    enum look close = p->in_block ? parser_look(p, at, TAG_CLOSE) : LOOK_NO;
    if (close == LOOK_YES) {
        *mark = MARK_CLOSE;
        *end = at + strlen(TAG_CLOSE);
        return LOOK_YES;
    }
    bool more = call == LOOK_MORE || open == LOOK_MORE || close == LOOK_MORE;
    return more ? LOOK_MORE : LOOK_NO;
}

/* The end tag of a call, or a tag that can only stand after one. */
static enum look look_end(const struct chat_parser *p, size_t at)
{
    enum parser_mark mark;
    size_t end;
    enum look own = parser_look(p, at, TAG_INVOKE_END);
    if (own == LOOK_YES) return LOOK_YES;
    enum look other = look_mark(p, at, &mark, &end);
    return other == LOOK_NO ? own : other;
}

/* ---- the object ------------------------------------------------------------------------- */

static void put_args(struct chat_parser *p, const char *text)
{
    parser_put(p, CHAT_EVENT_TOOL_ARGS, text, strlen(text));
}

static void end_object(struct chat_parser *p)
{
    put_args(p, p->any_argument ? "}" : "{}");
    parser_end_call(p);
}

static const json_t *find_properties(const json_t *tools, const char *name, size_t n)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        const json_t *f_name = json_object_get(f, "name");
        if (json_string_length(f_name) != n) continue;
        if (n == 0 || memcmp(json_string_value(f_name), name, n) != 0) continue;
        return json_object_get(json_object_get(f, "parameters"), "properties");
    }
    return NULL;
}

static bool type_is_string(const json_t *type)
{
    if (json_is_string(type)) return strcmp(json_string_value(type), "string") == 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        if (type_is_string(json_array_get(type, i))) return true;
    }
    return !json_is_array(type);
}

/* What the markup leaves open the schema says: a string, unless it names other types only. */
static bool is_string(const struct chat_parser *p, const struct tag *tag)
{
    if (tag->string != STRING_OPEN) return tag->string == STRING_TRUE;
    const char *key;
    json_t *schema;
    json_object_foreach ((json_t *)p->properties, key, schema) {
        if (equals(tag->name, tag->n_name, key)) {
            return type_is_string(json_object_get(schema, "type"));
        }
    }
    return true;
}

static void begin_invoke(struct chat_parser *p, size_t at, size_t end)
{
    struct tag tag;
    (void)look_invoke(p, at, &tag);
    p->properties = find_properties(p->tools, tag.name, tag.n_name);
    p->any_argument = false;
    parser_begin_call(p, tag.name, tag.n_name);
    parser_commit(p, end);
    p->part = PART_INVOKE;
}

static enum step begin_parameter(struct chat_parser *p, const struct tag *tag)
{
    bool string = is_string(p, tag);
    put_args(p, p->any_argument ? ", \"" : "{\"");
    parser_put_escaped(p, tag->name, tag->n_name);
    put_args(p, string ? "\": \"" : "\": ");
    p->any_argument = true;
    p->n_scanned = 0;
    parser_commit(p, tag->end);
    p->part = string ? PART_STRING : PART_VALUE;
    return STEP_AGAIN;
}

static enum step invoke_step(struct chat_parser *p)
{
    struct tag tag;
    size_t at = p->pos;
    enum look look = parser_skip_space(p, &at);
    if (look == LOOK_YES && *parser_at(p, at) == '{' && !p->any_argument) {
        parser_commit(p, at);
        args_scan_init(&p->scan);
        p->part = PART_ARGS;
        return STEP_AGAIN;
    }
    bool own = false;
    if (look == LOOK_YES) {
        enum look parameter = look_tag(p, at, TAG_PARAMETER, &tag);
        if (parameter == LOOK_YES) return begin_parameter(p, &tag);
        own = parser_look(p, at, TAG_INVOKE_END) == LOOK_YES;
        look = look_end(p, at);
        if (look == LOOK_NO) look = parameter;
    }
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    end_object(p);
    if (look == LOOK_MORE) return parser_drop_rest(p);
    if (own) parser_commit(p, at + strlen(TAG_INVOKE_END));
    return parser_to_text(p, true);
}

static enum step after_step(struct chat_parser *p)
{
    size_t at = p->pos;
    enum look look = parser_skip_space(p, &at);
    if (look == LOOK_YES) look = parser_look(p, at, TAG_INVOKE_END);
    if (look == LOOK_MORE) return p->finished ? parser_drop_rest(p) : STEP_MORE;
    if (look == LOOK_YES) parser_commit(p, at + strlen(TAG_INVOKE_END));
    return parser_to_text(p, true);
}

/* ---- values ----------------------------------------------------------------------------- */

/* Moves *at to a </D parameter>. MORE: to where one may begin, or to the end of the window; a
 * stream that has ended is cut there. NO: there is none up to `max`, where *at stops. */
static enum look find_value_end(const struct chat_parser *p, size_t *at, size_t max)
{
    for (; *at < p->window.len; ++*at) {
        if (*at > max) return LOOK_NO;
        if (*parser_at(p, *at) != '<') continue;
        enum look look = parser_look(p, *at, TAG_PARAMETER_END);
        if (look != LOOK_NO) break;
    }
    if (*at == p->window.len) return *at > max ? LOOK_NO : LOOK_MORE;
    enum look look = parser_look(p, *at, TAG_PARAMETER_END);
    if (look == LOOK_MORE && p->finished && !parser_is_cut(p, *at)) *at = p->window.len;
    return look;
}

static enum step end_parameter(struct chat_parser *p, size_t at)
{
    parser_commit(p, at + strlen(TAG_PARAMETER_END));
    p->part = PART_INVOKE;
    return STEP_AGAIN;
}

static enum step end_cut_short(struct chat_parser *p)
{
    end_object(p);
    return parser_drop_rest(p);
}

static enum step string_step(struct chat_parser *p)
{
    size_t at = p->pos;
    enum look look = find_value_end(p, &at, SIZE_MAX);
    parser_put_escaped(p, parser_at(p, p->pos), at - p->pos);
    parser_commit(p, at);
    if (look != LOOK_YES && !p->finished) return STEP_MORE;
    put_args(p, "\"");
    return look == LOOK_YES ? end_parameter(p, at) : end_cut_short(p);
}

/* JSON text as it is, but for control characters in strings; continues p->scan. */
static void put_json(struct chat_parser *p, const char *s, size_t n)
{
    while (n > 0) {
        size_t used;
        enum args_stop stop = args_scan_run(&p->scan, s, n, &used);
        parser_put(p, CHAT_EVENT_TOOL_ARGS, s, used);
        if (stop == ARGS_STOP_CONTROL) parser_put_escaped(p, s + used, 1);
        if (stop == ARGS_STOP_MARK) parser_put(p, CHAT_EVENT_TOOL_ARGS, s + used, 1);
        if (stop == ARGS_STOP_CONTROL || stop == ARGS_STOP_MARK) {
            args_scan_skip(&p->scan, s[used]);
            used++;
        }
        s += used;
        n -= used;
    }
}

static void put_quoted(struct chat_parser *p, const char *s, size_t n)
{
    put_args(p, "\"");
    parser_put_escaped(p, s, n);
    put_args(p, "\"");
}

/* What stands for a JSON constant in other spellings; NULL: nothing does. */
static const char *find_constant(const char *s, size_t n)
{
    size_t i = skip_blank(s, n, 0);
    while (n > i && memchr(" \n\t\r", s[n - 1], 4)) n--;
    if (equals(s + i, n - i, "True")) return "true";
    if (equals(s + i, n - i, "False")) return "false";
    if (equals(s + i, n - i, "None") || n == i) return "null";
    return NULL;
}

/* A whole value, or with `cut` the beginning of one. */
static void put_value(struct chat_parser *p, const char *s, size_t n, bool cut)
{
    const char *constant = find_constant(s, n);
    args_scan_init(&p->scan);
    args_scan_text(&p->scan, s, n);
    bool json = args_scan_complete(&p->scan) || (cut && p->scan.valid);
    if (constant) {
        put_args(p, constant);
    } else if (json) {
        args_scan_init(&p->scan);
        put_json(p, s, n);
        parser_put_close(p);
    } else {
        put_quoted(p, s, n);
    }
}

static enum step begin_long_value(struct chat_parser *p)
{
    const char *s = parser_at(p, p->pos);
    args_scan_init(&p->scan);
    args_scan_text(&p->scan, s, PARSER_VALUE_MAX);
    if (p->scan.valid) {
        args_scan_init(&p->scan);
        put_json(p, s, PARSER_VALUE_MAX);
        p->part = PART_VALUE_LONG;
    } else {
        put_args(p, "\"");
        parser_put_escaped(p, s, PARSER_VALUE_MAX);
        p->part = PART_STRING;
    }
    parser_commit(p, p->pos + PARSER_VALUE_MAX);
    return STEP_AGAIN;
}

static enum step value_step(struct chat_parser *p)
{
    size_t at = p->pos + p->n_scanned;
    enum look look = find_value_end(p, &at, p->pos + PARSER_VALUE_MAX);
    if (look == LOOK_NO) return begin_long_value(p);
    p->n_scanned = at - p->pos;
    if (look == LOOK_MORE && !p->finished) return STEP_MORE;
    put_value(p, parser_at(p, p->pos), at - p->pos, look == LOOK_MORE);
    return look == LOOK_YES ? end_parameter(p, at) : end_cut_short(p);
}

static enum step value_long_step(struct chat_parser *p)
{
    size_t at = p->pos;
    enum look look = find_value_end(p, &at, SIZE_MAX);
    put_json(p, parser_at(p, p->pos), at - p->pos);
    parser_commit(p, at);
    if (look != LOOK_YES && !p->finished) return STEP_MORE;
    parser_put_close(p);
    return look == LOOK_YES ? end_parameter(p, at) : end_cut_short(p);
}

static enum step step_v32(struct chat_parser *p)
{
    switch (p->part) {
    case PART_INVOKE: return invoke_step(p);
    case PART_STRING: return string_step(p);
    case PART_VALUE: return value_step(p);
    case PART_VALUE_LONG: return value_long_step(p);
    case PART_ARGS: return parser_args_step(p, look_end);
    default: return after_step(p);
    }
}

const struct markup parser_markup_v32 = {
    .n_newline = 2, .look_mark = look_mark, .begin = begin_invoke, .step = step_v32};

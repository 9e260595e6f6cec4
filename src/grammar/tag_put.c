/* tag_put.c - structural tags: formats within one another, free text in which tags begin
 *
 *   {"type": "structural_tag", "format": format}
 *   {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [text]}
 *
 *   const_string value   json_schema json_schema   grammar grammar   regex pattern
 *   any_text excludes    sequence, or elements     optional, star, plus content
 *   repeat min max content                         tag begin content end
 *   triggered_tags triggers tags excludes at_least_one stop_after_first
 *   tags_with_separator tags separator at_least_one stop_after_first
 *
 * Free text within a tag goes up to the first of the tag's ends: who draws it draws the end too, so
 * ends are handed down to what stands last in a tag.
 */
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar_int.h"
#include "grammar/tag_int.h"

enum { DEPTH_MAX = 64, REPEAT_MAX = 4096, UNITS_FORMAT = 200 };

struct writer {
    struct grammar_builder *b;
    fathom_diag *d;
    struct buf path; /* of the format, for messages */
    uint32_t depth;
};

/* The texts that end a tag: one of a list. n 0: there is no tag around. */
struct ends {
    const json_t *list; /* a string, or an array of them */
    size_t n;
};

static const struct ends no_ends = {NULL, 0};

#define WRONG(w, ...) FAIL((w)->d, FATHOM_EINVAL, __VA_ARGS__)

/* " format.elements[1]"; "" of the whole. */
static const char *place(struct writer *w)
{
    return buf_str(&w->path);
}

/* Into a member; *mark is the way back for leave. */
static fathom_err enter(struct writer *w, const char *name, size_t *mark)
{
    *mark = w->path.len;
    return buf_printf(&w->path, "%c%s", w->path.len ? '.' : ' ', name);
}

static fathom_err enter_element(struct writer *w, const char *name, size_t i, size_t *mark)
{
    TRY(enter(w, name, mark));
    return buf_printf(&w->path, "[%zu]", i);
}

static void leave(struct writer *w, size_t mark)
{
    if (mark < w->path.len) buf_truncate(&w->path, mark);
}

/* ---- members ---------------------------------------------------------------------------- */

static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static fathom_err get_text(struct writer *w, const json_t *o, const char *name, const json_t **out)
{
    *out = json_object_get(o, name);
    if (is_text(*out)) return FATHOM_OK;
    WRONG(w, "structural tag%s: \"%s\" is %s, a string is needed", place(w), name,
          json_is_string(*out) ? "a string with a NUL"
          : *out               ? json_type_text(*out)
                               : "missing");
}

static fathom_err get_array(struct writer *w, const json_t *o, const char *name, const json_t **out)
{
    *out = json_object_get(o, name);
    if (json_is_array(*out) && json_array_size(*out) > 0) return FATHOM_OK;
    WRONG(w, "structural tag%s: \"%s\" is %s, an array of at least one element is needed", place(w),
          name,
          !*out                 ? "missing"
          : json_is_array(*out) ? "an empty array"
                                : json_type_text(*out));
}

static fathom_err get_flag(struct writer *w, const json_t *o, const char *name, bool *out)
{
    const json_t *v = json_object_get(o, name);
    *out = json_is_true(v);
    if (!v || json_is_boolean(v)) return FATHOM_OK;
    WRONG(w, "structural tag%s: \"%s\" is %s, a boolean is needed", place(w), name,
          json_type_text(v));
}

/* A list of strings that are not empty; NULL: it has none. */
static fathom_err check_texts(struct writer *w, const json_t *list, const char *name)
{
    if (list && !json_is_array(list)) {
        WRONG(w, "structural tag%s: \"%s\" is %s, an array of strings is needed", place(w), name,
              json_type_text(list));
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_array_get(list, i);
        if (is_text(text) && json_string_length(text) > 0) continue;
        WRONG(w, "structural tag%s: %s[%zu] is %s, a string is needed", place(w), name, i,
              json_is_string(text) ? "empty, or has a NUL" : json_type_text(text));
    }
    return FATHOM_OK;
}

/* Whether a name is one of those that blanks separate. */
static bool is_one_of(const char *name, const char *names)
{
    size_t n = strlen(name);
    while (*names) {
        size_t len = strcspn(names, " ");
        if (len == n && memcmp(names, name, n) == 0) return true;
        names += len;
        names += strspn(names, " ");
    }
    return false;
}

static fathom_err check_members(struct writer *w, const json_t *o, const char *names)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)o, name, value) {
        if (is_one_of(name, names)) continue;
        FAIL(w->d, FATHOM_EUNSUPPORTED, "structural tag%s: \"%.60s\" is not supported", place(w),
             name);
    }
    return FATHOM_OK;
}

static const json_t *end_of(const struct ends *ends, size_t i)
{
    return json_is_array(ends->list) ? json_array_get(ends->list, i) : ends->list;
}

/* The ends of a tag; one that is empty is none to wait for. */
static fathom_err get_ends(struct writer *w, const json_t *tag, struct ends *out)
{
    *out = (struct ends){json_object_get(tag, "end"), 1};
    if (is_text(out->list)) return FATHOM_OK;
    if (!json_is_array(out->list)) return get_text(w, tag, "end", &out->list);
    out->n = json_array_size(out->list);
    if (out->n == 0) WRONG(w, "structural tag%s: \"end\" is an empty array", place(w));
    return check_texts(w, out->list, "end");
}

/* ---- texts ------------------------------------------------------------------------------ */

/* The state that a markup begins with; its next states follow it byte by byte. */
static uint32_t put_chain(struct writer *w, const json_t *text, uint32_t *to)
{
    uint32_t apart = grammar_add_state(w->b);
    *to = grammar_put_markup(w->b, apart, json_string_value(text));
    return w->b->nfa.err ? 0 : *to - (uint32_t)json_string_length(text);
}

static uint32_t put_ends(struct writer *w, uint32_t from, const struct ends *ends)
{
    uint32_t to = grammar_add_state(w->b);
    if (ends->n == 0) grammar_join(w->b, from, to);
    for (size_t i = 0; i < ends->n; i++) {
        const char *end = json_string_value(end_of(ends, i));
        grammar_join(w->b, grammar_put_markup(w->b, from, end), to);
    }
    return to;
}

/* What free text waits for, under construction. */
struct waiting {
    struct tag_awaited *list;
    size_t n, cap;
};

static fathom_err await(struct waiting *x, const json_t *text, size_t n, uint32_t chain)
{
    TRY(mem_grow(&x->list, &x->cap, x->n + 1, sizeof *x->list));
    x->list[x->n++] = (struct tag_awaited){json_string_value(text), n, chain};
    return FATHOM_OK;
}

static fathom_err await_excluded(struct waiting *x, const json_t *texts)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        TRY(await(x, text, json_string_length(text), TAG_NOWHERE));
    }
    return FATHOM_OK;
}

static fathom_err await_ends(struct writer *w, struct waiting *x, const struct ends *ends,
                             uint32_t to)
{
    for (size_t i = 0; i < ends->n; i++) {
        const json_t *end = end_of(ends, i);
        uint32_t after, chain = put_chain(w, end, &after);
        grammar_join(w->b, after, to);
        TRY(await(x, end, json_string_length(end), chain));
    }
    return FATHOM_OK;
}

/* Whether free text in a tag knows its end: an empty one can come at once. */
static bool is_awaited(const struct ends *ends)
{
    return ends->n > 0 && json_string_length(end_of(ends, 0)) > 0;
}

static fathom_err put_any_text(struct writer *w, uint32_t from, const json_t *f,
                               const struct ends *ends, uint32_t *to)
{
    struct waiting x = {0};
    uint32_t free;
    const json_t *excludes = json_object_get(f, "excludes");
    TRY(check_members(w, f, "type excludes"));
    TRY(check_texts(w, excludes, "excludes"));
    *to = grammar_add_state(w->b);
    fathom_err err = await_excluded(&x, excludes);
    if (!err && is_awaited(ends)) err = await_ends(w, &x, ends, *to);
    if (!err) err = tag_put_text(w->b, from, x.list, x.n, &free, w->d);
    if (!err && !is_awaited(ends)) grammar_join(w->b, free, *to);
    mem_free(x.list);
    return err;
}

/* ---- JSON, grammars, patterns ----------------------------------------------------------- */

static fathom_err put_schema(struct writer *w, uint32_t from, const json_t *o, const char *name,
                             uint32_t *to)
{
    const json_t *schema = json_object_get(o, name);
    struct buf path = {0};
    json_t *own = NULL;
    fathom_err err = FATHOM_OK;
    size_t mark;
    TRY(enter(w, name, &mark));
    err = buf_printf(&path, "structural tag%s", place(w));
    if (!err && json_is_string(schema)) {
        err = json_read(json_string_value(schema), json_string_length(schema), buf_str(&path), &own,
                        w->d);
        schema = own;
    }
    if (!err && !json_is_plain_object(schema) && !json_is_boolean(schema)) {
        err = diag_fail(w->d, FATHOM_EINVAL, "structural tag%s is %s, a JSON schema is needed",
                        place(w), schema ? json_type_text(schema) : "missing");
    }
    if (!err) err = grammar_put_schema_at(w->b, from, schema, buf_str(&path), to, w->d);
    buf_free(&path);
    json_decref(own);
    leave(w, mark);
    return err;
}

static fathom_err put_json_schema(struct writer *w, uint32_t from, const json_t *f, uint32_t *to)
{
    const json_t *style = json_object_get(f, "style");
    bool any_order;
    TRY(check_members(w, f, "type json_schema style any_order"));
    TRY(get_flag(w, f, "any_order", &any_order));
    bool plain = !style || (json_is_string(style) && strcmp(json_string_value(style), "json") == 0);
    if (!plain || any_order) {
        FAIL(w->d, FATHOM_EUNSUPPORTED, "structural tag%s: a %s is not supported", place(w),
             plain ? "json_schema in any_order" : "json_schema of another style than json");
    }
    return put_schema(w, from, f, "json_schema", to);
}

static fathom_err put_leaf(struct writer *w, uint32_t from, const json_t *f, const char *type,
                           uint32_t *to)
{
    const json_t *text;
    if (strcmp(type, "json_schema") == 0) return put_json_schema(w, from, f, to);
    if (strcmp(type, "const_string") == 0) {
        TRY(check_members(w, f, "type value"));
        TRY(get_text(w, f, "value", &text));
        *to = grammar_put_markup(w->b, from, json_string_value(text));
        return FATHOM_OK;
    }
    if (strcmp(type, "grammar") == 0) {
        TRY(check_members(w, f, "type grammar"));
        TRY(get_text(w, f, "grammar", &text));
        return grammar_put_ebnf(w->b, from, json_string_value(text), json_string_length(text), to,
                                w->d);
    }
    ASSERT(strcmp(type, "regex") == 0);
    TRY(check_members(w, f, "type pattern"));
    TRY(get_text(w, f, "pattern", &text));
    return grammar_put_regex(w->b, from, json_string_value(text), json_string_length(text), to,
                             w->d);
}

/* ---- compositions ----------------------------------------------------------------------- */

static fathom_err put_format(struct writer *w, uint32_t from, const json_t *f,
                             const struct ends *ends, uint32_t *to);

static fathom_err put_member(struct writer *w, uint32_t from, const json_t *o, const char *name,
                             const struct ends *ends, uint32_t *to)
{
    size_t mark;
    TRY(enter(w, name, &mark));
    fathom_err err = put_format(w, from, json_object_get(o, name), ends, to);
    leave(w, mark);
    return err;
}

/* One after the other, or one of them. */
static fathom_err put_elements(struct writer *w, uint32_t from, const json_t *f, bool all,
                               const struct ends *ends, uint32_t *to)
{
    const json_t *list;
    uint32_t at = from;
    TRY(check_members(w, f, "type elements"));
    TRY(get_array(w, f, "elements", &list));
    size_t n = json_array_size(list), mark;
    *to = grammar_add_state(w->b);
    for (size_t i = 0; i < n; i++) {
        const struct ends *own = all && i + 1 < n ? &no_ends : ends;
        TRY(enter_element(w, "elements", i, &mark));
        TRY(put_format(w, all ? at : from, json_array_get(list, i), own, &at));
        leave(w, mark);
        if (!all || i + 1 == n) grammar_join(w->b, at, *to);
    }
    return FATHOM_OK;
}

/* lo to hi times; hi UINT32_MAX: without an end. */
static fathom_err put_times(struct writer *w, uint32_t from, const json_t *f, uint32_t lo,
                            uint32_t hi, uint32_t *to)
{
    uint32_t n_copy = hi != UINT32_MAX ? hi : lo ? lo : 1, at = from, inner = from;
    *to = grammar_add_state(w->b);
    for (uint32_t i = 0; i < n_copy && !w->b->nfa.err; i++) {
        inner = grammar_add_state(w->b);
        grammar_join(w->b, at, inner);
        if (i >= lo) grammar_join(w->b, at, *to);
        TRY(put_member(w, inner, f, "content", &no_ends, &at));
    }
    if (hi == UINT32_MAX) grammar_join(w->b, at, inner);
    grammar_join(w->b, at, *to);
    return FATHOM_OK;
}

static fathom_err put_repeat(struct writer *w, uint32_t from, const json_t *f, uint32_t *to)
{
    const json_t *min = json_object_get(f, "min"), *max = json_object_get(f, "max");
    TRY(check_members(w, f, "type min max content"));
    json_int_t lo = json_integer_value(min), hi = json_integer_value(max);
    if (!json_is_integer(min) || !json_is_integer(max) || lo < 0 || lo > REPEAT_MAX ||
        (hi != -1 && hi < lo) || hi > REPEAT_MAX) {
        WRONG(w,
              "structural tag%s: \"min\" and \"max\" are needed, from 0 to %d and in order; -1 for "
              "no most",
              place(w), REPEAT_MAX);
    }
    return put_times(w, from, f, (uint32_t)lo, hi < 0 ? UINT32_MAX : (uint32_t)hi, to);
}

/* ---- tags ------------------------------------------------------------------------------- */

/* Of a tag, from behind its begin to behind its end. */
static fathom_err put_inside(struct writer *w, uint32_t from, const json_t *tag, uint32_t *to)
{
    struct ends ends;
    TRY(get_ends(w, tag, &ends));
    if (!json_object_get(tag, "schema")) {
        TRY(check_members(w, tag, "type begin content end"));
        return put_member(w, from, tag, "content", &ends, to);
    }
    TRY(check_members(w, tag, "begin schema end"));
    TRY(put_schema(w, from, tag, "schema", to));
    *to = put_ends(w, *to, &ends);
    return FATHOM_OK;
}

static fathom_err check_tag(struct writer *w, const json_t *tag, const json_t **begin)
{
    const json_t *type = json_object_get(tag, "type");
    if (!json_is_plain_object(tag)) {
        WRONG(w, "structural tag%s is %s, a tag (an object) is needed", place(w),
              tag ? json_type_text(tag) : "missing");
    }
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "tag") != 0)) {
        FAIL(w->d, FATHOM_EUNSUPPORTED, "structural tag%s: only a \"tag\" is supported here",
             place(w));
    }
    return get_text(w, tag, "begin", begin);
}

static fathom_err put_tag(struct writer *w, uint32_t from, const json_t *tag, uint32_t *to)
{
    const json_t *begin;
    TRY(check_tag(w, tag, &begin));
    return put_inside(w, grammar_put_markup(w->b, from, json_string_value(begin)), tag, to);
}

/* The tags of a list, each with the chain of its begin when chains are wanted. */
static fathom_err put_tags(struct writer *w, uint32_t from, const json_t *o, const char *name,
                           uint32_t to, uint32_t *chains)
{
    const json_t *list = json_object_get(o, name);
    size_t mark;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *tag = json_array_get(list, i), *begin;
        uint32_t at;
        TRY(enter_element(w, name, i, &mark));
        TRY(check_tag(w, tag, &begin));
        if (chains) {
            chains[i] = put_chain(w, begin, &at);
        } else {
            at = grammar_put_markup(w->b, from, json_string_value(begin));
        }
        TRY(put_inside(w, at, tag, &at));
        grammar_join(w->b, at, to);
        leave(w, mark);
    }
    return FATHOM_OK;
}

static fathom_err put_separated(struct writer *w, uint32_t from, const json_t *f, uint32_t *to)
{
    const json_t *list, *separator;
    bool at_least_one, one;
    TRY(check_members(w, f, "type tags separator at_least_one stop_after_first"));
    TRY(get_array(w, f, "tags", &list));
    TRY(get_text(w, f, "separator", &separator));
    TRY(get_flag(w, f, "at_least_one", &at_least_one));
    TRY(get_flag(w, f, "stop_after_first", &one));
    uint32_t first = grammar_add_state(w->b), last = grammar_add_state(w->b);
    *to = grammar_add_state(w->b);
    grammar_join(w->b, from, first);
    TRY(put_tags(w, first, f, "tags", last, NULL));
    if (!one)
        grammar_join(w->b, grammar_put_markup(w->b, last, json_string_value(separator)), first);
    grammar_join(w->b, last, *to);
    if (!at_least_one) grammar_join(w->b, from, *to);
    return FATHOM_OK;
}

/* Whether a begins with b. */
static bool begins_with(const json_t *a, const json_t *b)
{
    size_t n = json_string_length(b);
    return json_string_length(a) >= n && memcmp(json_string_value(a), json_string_value(b), n) == 0;
}

/* Each tag is awaited by each trigger that it begins with; it needs one. */
static fathom_err await_tags(struct writer *w, struct waiting *x, const json_t *triggers,
                             const json_t *tags, const uint32_t *chains)
{
    for (size_t i = 0; i < json_array_size(tags); i++) {
        const json_t *begin = json_object_get(json_array_get(tags, i), "begin");
        bool found = false;
        for (size_t k = 0; k < json_array_size(triggers); k++) {
            const json_t *trigger = json_array_get(triggers, k);
            if (!begins_with(begin, trigger)) continue;
            TRY(await(x, trigger, json_string_length(trigger), chains[i]));
            found = true;
        }
        if (found) continue;
        WRONG(w, "structural tag%s: the begin \"%.60s\" begins with none of the triggers", place(w),
              json_string_value(begin));
    }
    return FATHOM_OK;
}

/* Triggers that no tag begins with occur in no text. */
static fathom_err await_idle(struct waiting *x, const json_t *triggers, const json_t *tags)
{
    for (size_t k = 0; k < json_array_size(triggers); k++) {
        const json_t *trigger = json_array_get(triggers, k);
        bool used = false;
        for (size_t i = 0; i < json_array_size(tags); i++) {
            used |= begins_with(json_object_get(json_array_get(tags, i), "begin"), trigger);
        }
        if (!used) TRY(await(x, trigger, json_string_length(trigger), TAG_NOWHERE));
    }
    return FATHOM_OK;
}

struct triggered {
    const json_t *f, *tags, *triggers, *excludes;
    const char *name; /* of the tags: structures in the older form */
    bool at_least_one, one;
};

static fathom_err put_triggered_text(struct writer *w, uint32_t from, const struct triggered *t,
                                     const struct ends *ends, uint32_t to, struct waiting *x,
                                     uint32_t *chains)
{
    struct grammar_builder *b = w->b;
    uint32_t text = grammar_add_state(b), after = grammar_add_state(b), free;
    bool awaited = is_awaited(ends);
    TRY(put_tags(w, 0, t->f, t->name, after, chains));
    TRY(await_tags(w, x, t->triggers, t->tags, chains));
    TRY(await_idle(x, t->triggers, t->tags));
    TRY(await_excluded(x, t->excludes));
    if (awaited) TRY(await_ends(w, x, ends, to));
    if (!b->nfa.err) TRY(tag_put_text(b, text, x->list, x->n, &free, w->d));
    if (b->nfa.err) return FATHOM_OK;
    if (!awaited) grammar_join(b, free, to);
    for (size_t i = 0; i < json_array_size(t->tags) && t->at_least_one; i++) {
        grammar_join(b, from, chains[i]);
    }
    if (!t->at_least_one) grammar_join(b, from, text);
    grammar_join(b, t->one ? put_ends(w, after, awaited ? ends : &no_ends) : after,
                 t->one ? to : text);
    return FATHOM_OK;
}

static fathom_err put_triggered(struct writer *w, uint32_t from, const json_t *f,
                                const struct ends *ends, uint32_t *to)
{
    struct triggered t = {.f = f, .name = json_object_get(f, "structures") ? "structures" : "tags"};
    struct waiting x = {0};
    TRY(check_members(w, f,
                      "type triggers tags structures excludes at_least_one stop_after_first"));
    TRY(get_array(w, f, t.name, &t.tags));
    TRY(get_array(w, f, "triggers", &t.triggers));
    TRY(check_texts(w, t.triggers, "triggers"));
    t.excludes = json_object_get(f, "excludes");
    TRY(check_texts(w, t.excludes, "excludes"));
    TRY(get_flag(w, f, "at_least_one", &t.at_least_one));
    TRY(get_flag(w, f, "stop_after_first", &t.one));
    TRY(budget_spend(&w->b->budget, (uint64_t)json_array_size(t.tags) *
                                        json_array_size(t.triggers) * UNITS_FORMAT));
    *to = grammar_add_state(w->b);
    uint32_t *chains = mem_calloc(json_array_size(t.tags), sizeof *chains);
    fathom_err err = FATHOM_ENOMEM;
    if (chains) err = put_triggered_text(w, from, &t, ends, *to, &x, chains);
    mem_free(chains);
    mem_free(x.list);
    return err;
}

/* ---- formats ---------------------------------------------------------------------------- */

/* What does not draw the ends itself. */
static fathom_err put_other(struct writer *w, uint32_t from, const json_t *f, const char *type,
                            uint32_t *to)
{
    static const struct {
        const char *type;
        uint32_t lo, hi;
    } times[] = {{"optional", 0, 1}, {"star", 0, UINT32_MAX}, {"plus", 1, UINT32_MAX}};
    static const char *const leaves[] = {"const_string", "json_schema", "grammar", "regex"};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (strcmp(type, times[i].type) != 0) continue;
        TRY(check_members(w, f, "type content"));
        return put_times(w, from, f, times[i].lo, times[i].hi, to);
    }
    for (size_t i = 0; i < sizeof leaves / sizeof leaves[0]; i++) {
        if (strcmp(type, leaves[i]) == 0) return put_leaf(w, from, f, type, to);
    }
    if (strcmp(type, "repeat") == 0) return put_repeat(w, from, f, to);
    if (strcmp(type, "tag") == 0) return put_tag(w, from, f, to);
    if (strcmp(type, "tags_with_separator") == 0) return put_separated(w, from, f, to);
    FAIL(w->d, FATHOM_EUNSUPPORTED, "structural tag%s: the type \"%.40s\" is not supported",
         place(w), type);
}

static fathom_err put_known(struct writer *w, uint32_t from, const json_t *f,
                            const struct ends *ends, uint32_t *to)
{
    const char *type = json_string_value(json_object_get(f, "type"));
    if (!type) {
        WRONG(w, "structural tag%s is %s, an object with a \"type\" is needed", place(w),
              json_is_plain_object(f) ? "without a \"type\""
              : f                     ? json_type_text(f)
                                      : "missing");
    }
    if (strcmp(type, "any_text") == 0) return put_any_text(w, from, f, ends, to);
    if (strcmp(type, "triggered_tags") == 0) return put_triggered(w, from, f, ends, to);
    if (strcmp(type, "sequence") == 0) return put_elements(w, from, f, true, ends, to);
    if (strcmp(type, "or") == 0) return put_elements(w, from, f, false, ends, to);
    TRY(put_other(w, from, f, type, to));
    *to = put_ends(w, *to, ends);
    return FATHOM_OK;
}

static fathom_err put_format(struct writer *w, uint32_t from, const json_t *f,
                             const struct ends *ends, uint32_t *to)
{
    if (++w->depth > DEPTH_MAX) {
        FAIL(w->d, FATHOM_ELIMIT, "structural tag: formats nested deeper than %d", DEPTH_MAX);
    }
    TRY(budget_spend(&w->b->budget, UNITS_FORMAT));
    TRY(put_known(w, from, f, ends, to));
    w->depth--;
    return FATHOM_OK;
}

/* The older form: tags with schemas, in free text. */
static fathom_err put_structures(struct writer *w, uint32_t from, const json_t *tag, uint32_t *to)
{
    TRY(check_members(w, tag, "type structures triggers"));
    return put_triggered(w, from, tag, &no_ends, to);
}

fathom_err grammar_put_tag(struct grammar_builder *b, uint32_t from, const json_t *tag,
                           uint32_t *to, fathom_diag *d)
{
    struct writer w = {.b = b, .d = d};
    bool older = json_object_get(tag, "structures") && !json_object_get(tag, "format");
    fathom_err err =
        older ? put_structures(&w, from, tag, to) : check_members(&w, tag, "type format");
    if (!err && !older) err = put_member(&w, from, tag, "format", &no_ends, to);
    buf_free(&w.path);
    return err;
}

static fathom_err draw_tag(struct grammar_builder *b, uint32_t from, const void *what, uint32_t *to,
                           fathom_diag *d)
{
    return grammar_put_tag(b, from, what, to, d);
}

fathom_err grammar_from_tag(struct grammar **out, const struct grammar_vocab *v, const json_t *tag,
                            const struct grammar_options *options, fathom_diag *d)
{
    return grammar_compile(out, v, options, draw_tag, tag, NULL, d);
}

/* call_grammar.c - tool calls as each release writes them
 *
 *   V3, R1  CALLS_BEGIN call ("\n" call)* CALLS_END
 *           call = CALL_BEGIN "function" SEP name "\n```json\n" object "\n```" CALL_END
 *   V3.1    CALLS_BEGIN call+ CALLS_END          call = CALL_BEGIN name SEP object CALL_END
 *   Kimi    SECTION_BEGIN call+ SECTION_END
 *           call = CALL_BEGIN "functions." name ":" number ARGUMENTS object CALL_END
 *   V3.2    "\n\n" <D function_calls> "\n" call+ </D function_calls>
 *           call  = <D invoke name="N"> "\n" (param "\n")+ </D invoke> "\n"; "\n" without params
 *           param = <D parameter name="K" string="B"> value </D parameter>
 *
 * A tool whose arguments are not held to its schema takes any object, or any parameters.
 *
 * A V3.2 string is raw text, so what a schema says of it is decided on its characters. The lengths
 * of a text that has no other rule are counted up to RAW_LENGTH_MAX and not beyond.
 */
#include "chat/call_grammar.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "chat/chat_int.h"
#include "chat/parser_int.h"
#include "grammar/schema.h"

#define TAG_PARAMETER_END "</" CHAT_DSML "parameter>"

enum { RAW_LENGTH_MAX = 256 };

struct tool {
    const char *name;
    const json_t *parameters; /* NULL: none */
    bool is_loose;            /* any arguments */
    char path[96];            /* for messages */
};

struct writer {
    struct grammar_builder *b;
    fathom_diag *d;
};

/* What ends a name where it is read again, and how a message calls it. */
struct name_ends {
    const char *bytes, *words;
};

static const struct name_ends v32_ends = {"\"", "quote"};

static fathom_err check_name(struct writer *w, const char *path, const char *name,
                             const struct name_ends *ends)
{
    const size_t n = strcspn(name, ends->bytes);
    if (!name[n] && n <= PARSER_NAME_MAX) return FATHOM_OK;
    FAIL(w->d, FATHOM_EUNSUPPORTED,
         "%s: \"%.60s\" is no name that a call of this model can hold: needed is one without %s, "
         "of at most %d bytes",
         path, name, ends->words, PARSER_NAME_MAX);
}

static uint32_t markup(struct writer *w, uint32_t from, const char *text)
{
    return grammar_put_markup(w->b, from, text);
}

static uint32_t text(struct writer *w, uint32_t from, const char *s)
{
    return grammar_put_text(w->b, from, s, strlen(s));
}

/* ---- arguments as JSON ------------------------------------------------------------------ */

static fathom_err put_object(struct writer *w, uint32_t from, const struct tool *t, uint32_t *to)
{
    struct schema_compiler c;
    if (t->is_loose) {
        *to = grammar_put_json(w->b, from, GRAMMAR_JSON_OBJECT);
        return FATHOM_OK;
    }
    if (!t->parameters) {
        *to = text(w, from, "{}");
        return FATHOM_OK;
    }
    struct schema_flat f;
    schema_flat_init(&f);
    *to = grammar_add_state(w->b);
    fathom_err err = schema_open(&c, w->b, t->parameters, t->path, w->d);
    if (!err) err = schema_flat_merge(&c, &f, t->parameters);
    f.types &= SCHEMA_TYPE_OBJECT;
    if (!err) err = schema_put_flat(&c, from, &f, *to);
    if (!err) err = schema_finish(&c);
    schema_flat_free(&f);
    schema_close(&c);
    return err;
}

static fathom_err put_call_v3(struct writer *w, uint32_t from, const struct tool *t, uint32_t *to)
{
    uint32_t at = markup(w, from, CHAT_CALL_BEGIN "function" CHAT_CALL_SEP);
    at = text(w, text(w, at, t->name), "\n```json\n");
    TRY(put_object(w, at, t, &at));
    *to = markup(w, text(w, at, "\n```"), CHAT_CALL_END);
    return FATHOM_OK;
}

static fathom_err put_call_v31(struct writer *w, uint32_t from, const struct tool *t, uint32_t *to)
{
    uint32_t at = text(w, markup(w, from, CHAT_CALL_BEGIN), t->name);
    TRY(put_object(w, markup(w, at, CHAT_CALL_SEP), t, &at));
    *to = markup(w, at, CHAT_CALL_END);
    return FATHOM_OK;
}

static fathom_err put_call_kimi(struct writer *w, uint32_t from, const struct tool *t, uint32_t *to)
{
    static const char number[] = "0|[1-9][0-9]{0,5}";
    uint32_t at = text(w, markup(w, from, CHAT_KIMI_CALL_BEGIN), CHAT_FUNCTIONS);
    at = text(w, text(w, at, t->name), ":");
    TRY(grammar_put_regex(w->b, at, number, sizeof number - 1, &at, w->d));
    TRY(put_object(w, markup(w, at, CHAT_KIMI_ARGUMENTS), t, &at));
    *to = markup(w, at, CHAT_KIMI_CALL_END);
    return FATHOM_OK;
}

/* ---- arguments as DSML ------------------------------------------------------------------ */

/* The texts in which neither tag occurs; the second may be NULL. */
static fathom_err free_of(struct writer *w, struct dfa *out, const char *first, const char *second)
{
    struct grammar_budget *budget = grammar_builder_budget(w->b);
    const char *const tags[] = {first, second};
    struct nfa n;
    struct dfa found;
    nfa_init(&n, 256, budget);
    uint32_t start = nfa_state(&n), last = nfa_state(&n);
    nfa_any(&n, start, start);
    for (size_t k = 0; k < 2 && tags[k]; k++) {
        nfa_link(&n, nfa_text(&n, start, tags[k], strlen(tags[k])), NFA_EPSILON, last);
    }
    nfa_any(&n, last, last);
    fathom_err err = n.err;
    if (!err) err = dfa_build(&found, &n, start, last, DFA_OPEN, 256, NULL);
    nfa_free(&n);
    TRY(err);
    err = dfa_negate(out, &found, budget);
    dfa_free(&found);
    return err;
}

/* A text that must not hold the closing tag. */
static fathom_err without_tag(struct writer *w, struct dfa *d)
{
    struct dfa other, both;
    TRY(free_of(w, &other, TAG_PARAMETER_END, NULL));
    fathom_err err =
        dfa_intersect(&both, d, &other, SCHEMA_STATES_MAX, grammar_builder_budget(w->b));
    dfa_free(&other);
    TRY(err);
    dfa_free(d);
    *d = both;
    return FATHOM_OK;
}

struct value {
    struct writer *w;
    uint32_t from; /* inside the tag's quotes, before true or false */
    uint32_t to;   /* after the closing tag */
};

/* The strings that constraints without alternatives allow, raw. */
static fathom_err put_raw(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct value *v = arg;
    struct writer *w = v->w;
    struct dfa d;
    if (!(schema_types(f) & SCHEMA_TYPE_STRING)) return FATHOM_OK;
    uint32_t at = text(w, v->from, "true\">");
    if (f->min_length > RAW_LENGTH_MAX && !f->string_rules) f->min_length = 0;
    if (f->max_length > RAW_LENGTH_MAX && !f->string_rules) f->max_length = UINT32_MAX;
    bool bounded = f->min_length > 0 || f->max_length != UINT32_MAX;
    if (!f->values && !f->string_rules && !bounded) {
        grammar_join(w->b, grammar_put_until(w->b, at, TAG_PARAMETER_END), v->to);
        return FATHOM_OK;
    }
    TRY(schema_keep_allowed(c, f));
    TRY(schema_build_string(c, f, &d));
    fathom_err err = without_tag(w, &d);
    if (!err && !dfa_is_empty(&d)) {
        at = grammar_put_dfa(w->b, at, &d);
        grammar_join(w->b, markup(w, at, TAG_PARAMETER_END), v->to);
    }
    dfa_free(&d);
    if (err != FATHOM_ELIMIT) return err;
    FAIL(c->d, err, "schema %s: the rules of a string together need more than %d states",
         buf_str(&c->path), SCHEMA_STATES_MAX);
}

/* All other values, as JSON. */
static fathom_err put_plain(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct value *v = arg;
    f->types = schema_types(f) & ~(unsigned)SCHEMA_TYPE_STRING;
    if (!f->types) return FATHOM_OK;
    uint32_t end = grammar_add_state(v->w->b), at = text(v->w, v->from, "false\">");
    TRY(schema_put_flat(c, at, f, end));
    grammar_join(v->w->b, markup(v->w, end, TAG_PARAMETER_END), v->to);
    return FATHOM_OK;
}

static fathom_err put_parameter(struct writer *w, struct schema_compiler *c, uint32_t from,
                                const struct schema_member *m, uint32_t to)
{
    struct schema_flat f;
    schema_flat_init(&f);
    uint32_t at = text(w, markup(w, from, "<" CHAT_DSML "parameter name=\""), m->name);
    struct value v = {w, text(w, at, "\" string=\""), grammar_add_state(w->b)};
    size_t mark = schema_enter(c, "properties");
    fathom_err err = check_name(w, buf_str(&c->path), m->name, &v32_ends);
    (void)schema_enter(c, m->name);
    if (!err) err = schema_flat_merge(c, &f, m->schema);
    if (!err) err = schema_flat_each(c, &f, put_raw, &v);
    if (!err) err = schema_flat_each(c, &f, put_plain, &v);
    if (!err) schema_leave(c, mark);
    grammar_join(w->b, text(w, v.to, "\n"), to);
    schema_flat_free(&f);
    return err;
}

struct body {
    struct writer *w;
    uint32_t from, to;
};

/* The parameters of an object, in order. Row c of states is where c of them have been written; the
 * last row stands for all higher counts too, unless `max` is reached there. */
struct parameters {
    struct body *body;
    const struct schema_members *m;
    uint32_t min, max; /* UINT32_MAX: no end */
    uint32_t n_row;
    uint32_t *at, *next; /* [n_row] before a parameter, and after it */
};

/* The row after one more parameter; false when there may be no more. */
static bool next_row(const struct parameters *p, uint32_t row, uint32_t *out)
{
    *out = row + 1 < p->n_row ? row + 1 : row;
    return row != p->max;
}

/* Parameter i from the states `at` to the states `next`, or past it. It is drawn once for all rows
 * that it leads to the same one from. */
static fathom_err put_one_of(struct parameters *p, struct schema_compiler *c, size_t i)
{
    struct writer *w = p->body->w;
    const struct schema_member *m = &p->m->list[i];
    for (uint32_t row = 0; row < p->n_row; row++) {
        p->next[row] = grammar_add_state(w->b);
        if (!m->required) grammar_join(w->b, p->at[row], p->next[row]);
    }
    for (uint32_t row = 0, to; row < p->n_row; row++) {
        uint32_t begin = grammar_add_state(w->b), after;
        if (!next_row(p, row, &to)) break;
        for (uint32_t from = row; from < p->n_row; from++) {
            if (next_row(p, from, &after) && after == to) grammar_join(w->b, p->at[from], begin);
        }
        TRY(put_parameter(w, c, begin, m, p->next[to]));
        if (to + 1 == p->n_row) break;
    }
    uint32_t *before = p->at;
    p->at = p->next;
    p->next = before;
    return FATHOM_OK;
}

/* "\n" alone when there are none. */
static fathom_err put_all_of(struct parameters *p, struct schema_compiler *c)
{
    struct writer *w = p->body->w;
    p->at = mem_alloc_array(p->n_row, sizeof *p->at);
    p->next = mem_alloc_array(p->n_row, sizeof *p->next);
    fathom_err err = p->at && p->next ? FATHOM_OK : FATHOM_ENOMEM;
    for (uint32_t row = 0; row < p->n_row && !err; row++) p->at[row] = grammar_add_state(w->b);
    if (!err) grammar_join(w->b, p->body->from, p->at[0]);
    for (size_t i = 0; i < p->m->n && !err; i++) err = put_one_of(p, c, i);
    for (uint32_t row = p->min; row < p->n_row && !err; row++) {
        uint32_t end = row ? p->at[row] : text(w, p->at[row], "\n");
        grammar_join(w->b, end, p->body->to);
    }
    mem_free(p->at);
    mem_free(p->next);
    return err;
}

/* Two rows, none and some, when the parameters themselves keep the bounds. */
static fathom_err plan_rows(struct parameters *p, struct schema_compiler *c,
                            const struct schema_flat *f)
{
    uint32_t n = (uint32_t)p->m->n;
    p->min = f->min_properties;
    p->max = f->max_properties < n ? f->max_properties : UINT32_MAX;
    uint32_t highest = p->max != UINT32_MAX ? p->max : p->min > 1 ? p->min : 1;
    if ((n + 1) * ((uint64_t)highest + 1) > SCHEMA_COUNT_MAX) {
        FAIL(c->d, FATHOM_ELIMIT,
             "schema %s: %u properties with minProperties %u and maxProperties %u, together too "
             "many to be counted",
             buf_str(&c->path), n, f->min_properties, f->max_properties);
    }
    p->n_row = highest + 1;
    return FATHOM_OK;
}

static fathom_err put_members(struct schema_compiler *c, struct schema_flat *f, void *arg)
{
    struct schema_members m;
    struct parameters p = {.body = arg, .m = &m};
    if (!(schema_types(f) & SCHEMA_TYPE_OBJECT)) return FATHOM_OK;
    if (f->values) {
        FAIL(c->d, FATHOM_EUNSUPPORTED, "schema %s: \"enum\" of the arguments is not supported",
             buf_str(&c->path));
    }
    TRY(schema_members_collect(c, f, &m));
    bool possible = !f->never && f->min_properties <= m.n && f->min_properties <= f->max_properties;
    fathom_err err = possible ? plan_rows(&p, c, f) : FATHOM_OK;
    if (possible && !err) err = put_all_of(&p, c);
    schema_members_free(&m);
    return err;
}

/* Parameters of any names: raw text, or JSON but for strings. */
static fathom_err put_any_parameters(struct writer *w, uint32_t from, uint32_t to)
{
    static const enum grammar_json values[] = {GRAMMAR_JSON_OBJECT, GRAMMAR_JSON_ARRAY,
                                               GRAMMAR_JSON_NUMBER};
    static const char *const words[] = {"true", "false", "null"};
    struct grammar_builder *b = w->b;
    uint32_t next = grammar_add_state(b), after = grammar_add_state(b), name, plain, end;
    grammar_join(b, text(w, from, "\n"), to);
    grammar_join(b, from, next);
    uint32_t at = markup(w, next, "<" CHAT_DSML "parameter name=\"");
    TRY(grammar_put_regex(b, at, "[^\"\\n]+", 7, &name, w->d));
    name = text(w, name, "\" string=\"");
    at = grammar_put_until(b, text(w, name, "true\">"), TAG_PARAMETER_END);
    grammar_join(b, at, after);
    plain = text(w, name, "false\">");
    end = grammar_add_state(b);
    for (size_t i = 0; i < 3; i++) {
        grammar_join(b, grammar_put_json(b, plain, values[i]), end);
        grammar_join(b, text(w, plain, words[i]), end);
    }
    grammar_join(b, markup(w, end, TAG_PARAMETER_END), after);
    at = text(w, after, "\n");
    grammar_join(b, at, next);
    grammar_join(b, at, to);
    return FATHOM_OK;
}

/* The parameters that a schema describes. */
static fathom_err put_parameters(struct writer *w, const struct tool *t, struct body *body)
{
    struct schema_compiler c;
    struct schema_flat f;
    json_t *none = t->parameters ? NULL : json_object();
    const json_t *schema = t->parameters ? t->parameters : none;
    if (!schema) return FATHOM_ENOMEM;
    schema_flat_init(&f);
    fathom_err err = schema_open(&c, w->b, schema, t->path, w->d);
    if (!err) err = schema_flat_merge(&c, &f, schema);
    if (!err) err = schema_flat_each(&c, &f, put_members, body);
    if (!err) err = schema_finish(&c);
    schema_flat_free(&f);
    schema_close(&c);
    json_decref(none);
    return err;
}

static fathom_err put_call_v32(struct writer *w, uint32_t from, const struct tool *t, uint32_t *to)
{
    uint32_t at = text(w, markup(w, from, "<" CHAT_DSML "invoke name=\""), t->name);
    struct body body = {w, text(w, at, "\">\n"), grammar_add_state(w->b)};
    TRY(t->is_loose ? put_any_parameters(w, body.from, body.to) : put_parameters(w, t, &body));
    *to = markup(w, body.to, "</" CHAT_DSML "invoke>\n");
    return FATHOM_OK;
}

/* ---- the block -------------------------------------------------------------------------- */

struct block {
    const char *lead, *open, *between, *close;
    const char *begins[2]; /* what text before it does not hold */
    const struct name_ends *ends;
    fathom_err (*put_call)(struct writer *w, uint32_t from, const struct tool *t, uint32_t *to);
};

static const struct name_ends v3_ends = {"\n`{<", "line break, `, { and <"};
static const struct name_ends other_ends = {"<", "<"};

static const struct block blocks[CHAT_ENCODING_COUNT] = {
    [CHAT_ENCODING_V3] = {"",
                          CHAT_CALLS_BEGIN,
                          "\n",
                          CHAT_CALLS_END,
                          {CHAT_CALLS_BEGIN, CHAT_CALL_BEGIN},
                          &v3_ends,
                          put_call_v3},
    [CHAT_ENCODING_R1] = {"",
                          CHAT_CALLS_BEGIN,
                          "\n",
                          CHAT_CALLS_END,
                          {CHAT_CALLS_BEGIN, CHAT_CALL_BEGIN},
                          &v3_ends,
                          put_call_v3},
    [CHAT_ENCODING_V31] = {"",
                           CHAT_CALLS_BEGIN,
                           "",
                           CHAT_CALLS_END,
                           {CHAT_CALLS_BEGIN, CHAT_CALL_BEGIN},
                           &other_ends,
                           put_call_v31},
    [CHAT_ENCODING_V32] = {"\n\n",
                           "<" CHAT_DSML "function_calls>\n",
                           "",
                           "</" CHAT_DSML "function_calls>",
                           {"<" CHAT_DSML, NULL},
                           &v32_ends,
                           put_call_v32},
    [CHAT_ENCODING_KIMI_K2] = {"",
                               CHAT_SECTION_BEGIN,
                               "",
                               CHAT_SECTION_END,
                               {CHAT_SECTION_BEGIN, CHAT_KIMI_CALL_BEGIN},
                               &other_ends,
                               put_call_kimi},
    [CHAT_ENCODING_KIMI_K2_THINKING] = {"",
                                        CHAT_SECTION_BEGIN,
                                        "",
                                        CHAT_SECTION_END,
                                        {CHAT_SECTION_BEGIN, CHAT_KIMI_CALL_BEGIN},
                                        &other_ends,
                                        put_call_kimi},
};

static fathom_err put_tools(struct writer *w, const struct call_grammar *calls, uint32_t from,
                            uint32_t to)
{
    bool found = false;
    for (size_t i = 0; i < json_array_size(calls->tools); i++) {
        const json_t *function = json_object_get(json_array_get(calls->tools, i), "function");
        const json_t *parameters = json_object_get(function, "parameters");
        struct tool t = {.name = json_string_value(json_object_get(function, "name"))};
        uint32_t end;
        if (calls->name && strcmp(calls->name, t.name) != 0) continue;
        if (json_is_plain_object(parameters)) t.parameters = parameters;
        (void)snprintf(t.path, sizeof t.path, "tools[%zu].function.name", i);
        TRY(check_name(w, t.path, t.name, blocks[calls->markup].ends));
        t.is_loose = calls->strict_only && !json_is_true(json_object_get(function, "strict"));
        (void)snprintf(t.path, sizeof t.path, "tools[%zu].function.parameters#", i);
        TRY(blocks[calls->markup].put_call(w, from, &t, &end));
        grammar_join(w->b, end, to);
        found = true;
    }
    if (found) return FATHOM_OK;
    if (!calls->name) FAIL(w->d, FATHOM_EINVAL, "a tool call is required and there are no tools");
    FAIL(w->d, FATHOM_EINVAL, "tool_choice names \"%s\", which is none of the tools", calls->name);
}

/* From before the opening marker to after the closing one. */
static fathom_err put_block(struct writer *w, const struct call_grammar *calls, uint32_t from,
                            uint32_t *to)
{
    const struct block *block = &blocks[calls->markup];
    struct grammar_builder *b = w->b;
    uint32_t first = grammar_add_state(b), last = grammar_add_state(b);
    grammar_join(b, markup(w, from, block->open), first);
    TRY(put_tools(w, calls, first, last));
    if (calls->parallel) grammar_join(b, text(w, last, block->between), first);
    *to = markup(w, last, block->close);
    return FATHOM_OK;
}

fathom_err call_grammar_put(struct grammar_builder *b, uint32_t from,
                            const struct call_grammar *calls, uint32_t *to, fathom_diag *d)
{
    struct writer w = {b, d};
    TRY(chat_check_tools(calls->tools, "tools", d));
    return put_block(&w, calls, text(&w, from, blocks[calls->markup].lead), to);
}

fathom_err call_grammar_put_text(struct grammar_builder *b, uint32_t from,
                                 const struct call_grammar *calls, uint32_t *to, fathom_diag *d)
{
    struct writer w = {b, d};
    const char *const *begins = blocks[calls->markup].begins;
    struct dfa plain;
    uint32_t end;
    TRY(chat_check_tools(calls->tools, "tools", d));
    TRY(free_of(&w, &plain, begins[0], begins[1]));
    uint32_t at = grammar_put_dfa(b, from, &plain);
    dfa_free(&plain);
    TRY(put_block(&w, calls, at, &end));
    *to = grammar_add_state(b);
    grammar_join(b, at, *to);
    grammar_join(b, end, *to);
    return FATHOM_OK;
}

/* option_value.c - from the text of a value to its place in struct settings */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"

static void *field_of(struct settings *s, const struct option *o)
{
    return (char *)s + o->field;
}

/* Is `word` one of the words of "a|b|c"? A NULL list has none. */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, word, n) == 0 && (p[n] == '\0' || p[n] == '|')) return true;
    }
    return false;
}

const char *option_keep(struct settings *s, const char *text)
{
    if (!s->texts) s->texts = json_array();
    json_t *copy = s->texts ? json_string_nocheck(text) : NULL;
    if (!copy || json_array_append_new(s->texts, copy) != 0) return NULL;
    return json_string_value(copy);
}

/* ---- numbers and choices ----------------------------------------------------------------- */

/* The factor that a letter after a number stands for; 0 for none that is known. */
static double unit_factor(const char *letter)
{
    static const char letters[] = "kKmMgGtT";
    static const double factors[] = {1e3, 0x1p10, 1e6, 0x1p20, 1e9, 0x1p30, 1e12, 0x1p40};
    if (letter[0] == '\0') return 1;
    const char *at = strchr(letters, letter[0]);
    return at && letter[1] == '\0' ? factors[at - letters] : 0;
}

static fathom_err read_number(const struct option *o, const char *text, double *out, fathom_diag *d)
{
    char *end;
    if (list_has(o->choices, text)) { /* a word for the least number */
        *out = o->lo;
        return FATHOM_OK;
    }
    errno = 0;
    double value = strtod(text, &end);
    double factor = o->kind == OPTION_COUNT ? unit_factor(end) : (*end == '\0');
    bool whole = o->kind != OPTION_COUNT || value * factor == floor(value * factor);
    if (end == text || errno || !factor || !whole || !isfinite(value)) {
        FAIL(d, FATHOM_EINVAL, "--%s: \"%s\" is not %s", o->name, text,
             o->kind == OPTION_COUNT ? "a whole number (such as 4096, 4k = 4000 or 4K = 4096)"
                                     : "a number");
    }
    value *= factor;
    if (value < o->lo || value > o->hi) {
        FAIL(d, FATHOM_EINVAL, "--%s: %s is out of range, needed is %.15g to %.15g", o->name, text,
             o->lo, o->hi);
    }
    *out = value;
    return FATHOM_OK;
}

static fathom_err check_choice(const struct option *o, const char *text, fathom_diag *d)
{
    if (list_has(o->choices, text) || list_has(o->refused, text)) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--%s: \"%s\" is none of %s", o->name, text, o->choices);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static fathom_err read_object(const struct option *o, const char *text, json_t **out,
                              fathom_diag *d)
{
    char what[OPTION_NAME_BYTES + 2];
    (void)snprintf(what, sizeof what, "--%s", o->name);
    fathom_err err = json_read(text, strlen(text), what, out, d);
    if (err) return err == FATHOM_EFORMAT ? FATHOM_EINVAL : err;
    if (json_is_object(*out)) return FATHOM_OK;
    err = diag_fail(d, FATHOM_EINVAL, "--%s: %s, needed is an object such as {\"key\": value}",
                    o->name, json_type_text(*out));
    json_decref(*out);
    return err;
}

static fathom_err check_json(const struct option *o, const char *text, fathom_diag *d)
{
    json_t *root;
    TRY(read_object(o, text, &root, d));
    json_decref(root);
    return FATHOM_OK;
}

static fathom_err add_item(struct string_list *list, const struct option *o, const char *text,
                           fathom_diag *d)
{
    if (list->n == STRING_LIST_MAX) {
        FAIL(d, FATHOM_EINVAL, "--%s: more than %d values", o->name, STRING_LIST_MAX);
    }
    list->items[list->n++] = text;
    return FATHOM_OK;
}

/* A value of a list, or a JSON array of several. */
static fathom_err add_items(struct settings *s, const struct option *o, const char *text,
                            struct string_list *list, fathom_diag *d)
{
    json_t *array = text[0] == '[' ? json_loads(text, 0, NULL) : NULL;
    size_t i;
    json_t *item;
    fathom_err err = FATHOM_OK;
    if (!json_is_array(array)) {
        json_decref(array);
        return add_item(list, o, text, d);
    }
    json_array_foreach (array, i, item) {
        const char *kept = json_is_string(item) ? option_keep(s, json_string_value(item)) : NULL;
        if (!json_is_string(item)) {
            err = diag_fail(d, FATHOM_EINVAL, "--%s: item %zu is %s, needed is a string", o->name,
                            i, json_type_text(item));
        } else if (!kept) {
            err = FATHOM_ENOMEM;
        } else {
            err = add_item(list, o, kept, d);
        }
        if (err) break;
    }
    json_decref(array);
    return err;
}

/* What a key is set to: JSON, or the text itself. */
static json_t *read_loosely(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    return value ? value : json_string(text);
}

/* Sets the key that path[0 .. n) names below root, making the objects between. */
static fathom_err set_below(json_t *root, const char *path, size_t n, const char *text,
                            const struct option *o, fathom_diag *d)
{
    json_t *at = root;
    for (;;) {
        const char *dot = memchr(path, '.', n);
        size_t len = dot ? (size_t)(dot - path) : n;
        bool append = !dot && len > 1 && path[len - 1] == '+';
        json_t *next = json_object_getn(at, path, append ? len - 1 : len);
        if (len == 0) FAIL(d, FATHOM_EINVAL, "--%s.: a key is missing after the dot", o->name);
        if (!dot && !append) {
            return json_object_setn_new(at, path, len, read_loosely(text)) ? FATHOM_ENOMEM
                                                                           : FATHOM_OK;
        }
        if (!next || (append ? !json_is_array(next) : !json_is_object(next))) {
            next = append ? json_array() : json_object();
            if (json_object_setn_new(at, path, append ? len - 1 : len, next)) return FATHOM_ENOMEM;
        }
        if (append) {
            return json_array_append_new(next, read_loosely(text)) ? FATHOM_ENOMEM : FATHOM_OK;
        }
        at = next;
        path = dot + 1;
        n -= len + 1;
    }
}

fathom_err option_set_key(struct option_walk *w, const struct option *o, const char *path,
                          size_t path_len, const char *text)
{
    json_t *root = NULL;
    struct buf whole = {0};
    fathom_err err;
    const char *now = o->field == NO_FIELD ? NULL : *(const char **)field_of(w->settings, o);
    if (now) {
        TRY(read_object(o, now, &root, w->diag));
    } else if (!(root = json_object())) {
        return FATHOM_ENOMEM;
    }
    TRY_GOTO(set_below(root, path, path_len, text, o, w->diag), done);
    TRY_GOTO(json_write(&whole, root), done);
    const char *kept = option_keep(w->settings, buf_str(&whole));
    err = kept ? option_set(w, o, kept) : FATHOM_ENOMEM;
done:
    json_decref(root);
    buf_free(&whole);
    return err;
}

/* ---- into the settings ------------------------------------------------------------------- */

static fathom_err store(struct settings *s, const struct option *o, const char *text,
                        fathom_diag *d)
{
    double number = 0;
    if (o->kind == OPTION_COUNT || o->kind == OPTION_NUMBER) {
        TRY(read_number(o, text, &number, d));
    }
    if (o->kind == OPTION_CHOICE) TRY(check_choice(o, text, d));
    if (o->kind == OPTION_JSON) TRY(check_json(o, text, d));
    if (o->field == NO_FIELD) return FATHOM_OK;
    void *field = field_of(s, o);
    switch (o->kind) {
    case OPTION_HELP:
    case OPTION_FLAG: *(bool *)field = strcmp(text, "true") == 0; break;
    case OPTION_TEXT:
    case OPTION_JSON:
    case OPTION_CHOICE: *(const char **)field = text; break;
    case OPTION_COUNT: *(int64_t *)field = (int64_t)number; break;
    case OPTION_NUMBER: *(double *)field = number; break;
    case OPTION_LIST: return add_items(s, o, text, field, d);
    }
    return FATHOM_OK;
}

fathom_err option_refuse(struct option_walk *w, const char *line)
{
    if (w->n_refused++) return buf_printf(w->notes, "%s\n", line);
    (void)diag_fail(w->diag, FATHOM_EINVAL, "%s", line);
    return FATHOM_OK;
}

/* The answer to an option that has no effect or is refused. */
static fathom_err answer(struct option_walk *w, const struct option *o, const char *value)
{
    const char *no = o->kind == OPTION_FLAG && strcmp(value, "false") == 0 ? "no-" : "";
    const char *shown = o->kind == OPTION_FLAG || o->kind == OPTION_JSON || o->secret ? "" : value;
    const char *from = w->origin ? w->origin : "";
    bool refused = o->answer == ANSWER_REFUSE || list_has(o->refused, value);
    if ((o->answer == ANSWER_USE && !refused) || list_has(o->plain, value)) return FATHOM_OK;
    struct buf line = {0};
    (void)buf_printf(&line, "%s%s--%s%s%s%s %s: %s", from, *from ? ": " : "", no, o->name,
                     *shown ? " " : "", shown, refused ? "is refused" : "has no effect", o->reason);
    fathom_err err = buf_status(&line);
    if (!err && refused) {
        err = option_refuse(w, buf_str(&line));
    } else if (!err) {
        err = buf_printf(w->notes, "%s\n", buf_str(&line));
    }
    buf_free(&line);
    return err;
}

fathom_err option_set(struct option_walk *w, const struct option *o, const char *text)
{
    TRY(store(w->settings, o, text, w->diag));
    option_heed_origin(w, o);
    return answer(w, o, text);
}

void option_clear(struct settings *s, const struct option *o)
{
    if (o->field != NO_FIELD) memset(field_of(s, o), 0, sizeof(struct string_list));
}

void settings_init(struct settings *s)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (o->field == NO_FIELD || !o->fallback) continue;
        fathom_err err = store(s, o, o->fallback, NULL);
        ASSERT(err == FATHOM_OK);
    }
}

void settings_free(struct settings *s)
{
    json_decref(s->texts);
    memset(s, 0, sizeof *s);
}

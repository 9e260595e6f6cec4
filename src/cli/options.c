/* options.c - from argv to struct settings, by the table */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "cli/speculative.h"

enum { NAME_BYTES = 64 };

/* One walk over argv. */
struct parser {
    struct settings *settings;
    enum command command;
    int argc;
    char **argv;
    int next; /* argument to look at */
    struct buf *notes;
    fathom_diag *diag;
};

enum command command_find(const char *name)
{
    int c = 0;
    while (c < COMMAND_COUNT && strcmp(command_info((enum command)c)->name, name) != 0) c++;
    return (enum command)c;
}

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

/* ---- values ------------------------------------------------------------------------------ */

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
    if (list_has(o->choices, text)) return FATHOM_OK;
    if (list_has(o->refused, text)) {
        FAIL(d, FATHOM_EINVAL, "--%s %s is refused: %s", o->name, text, o->reason);
    }
    FAIL(d, FATHOM_EINVAL, "--%s: \"%s\" is none of %s", o->name, text, o->choices);
}

/* Checks one value of an option and stores it where the table says. */
static fathom_err set_value(struct settings *s, const struct option *o, const char *text,
                            fathom_diag *d)
{
    double number = 0;
    if (o->kind == OPTION_COUNT || o->kind == OPTION_NUMBER) {
        TRY(read_number(o, text, &number, d));
    }
    if (o->kind == OPTION_CHOICE) TRY(check_choice(o, text, d));
    if (o->field == NO_FIELD) return FATHOM_OK;
    void *field = field_of(s, o);
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)field = strcmp(text, "true") == 0; break;
    case OPTION_TEXT:
    case OPTION_CHOICE: *(const char **)field = text; break;
    case OPTION_COUNT: *(int64_t *)field = (int64_t)number; break;
    case OPTION_NUMBER: *(double *)field = number; break;
    case OPTION_LIST: {
        struct string_list *list = field;
        if (list->n == STRING_LIST_MAX) {
            FAIL(d, FATHOM_EINVAL, "--%s: more than %d values", o->name, STRING_LIST_MAX);
        }
        list->items[list->n++] = text;
        break;
    }
    }
    return FATHOM_OK;
}

void settings_init(struct settings *s)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (o->field == NO_FIELD || !o->fallback) continue;
        fathom_err err = set_value(s, o, o->fallback, NULL);
        ASSERT(err == FATHOM_OK);
    }
}

/* ---- names ------------------------------------------------------------------------------- */

/* Edits (insert, delete, replace) that turn a into b; both shorter than NAME_BYTES. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[NAME_BYTES];
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++) row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (diagonal + 1 < best) best = diagonal + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static bool has_command(const struct option *o, enum command c)
{
    return (o->commands >> c & 1u) != 0;
}

/* The option of this command nearest in spelling; NULL when none is near. */
static const struct option *nearest_option(const char *name, enum command c)
{
    const struct option *found = NULL;
    unsigned best = (unsigned)strlen(name) / 3 + 1;
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (!has_command(o, c)) continue;
        unsigned distance = edit_distance(name, o->name);
        if (distance < best || (distance == best && !found)) {
            best = distance;
            found = o;
        }
    }
    return found;
}

static const struct option *option_by_name(const char *name)
{
    for (size_t i = 0; i < option_table_n; i++) {
        if (strcmp(option_table[i].name, name) == 0) return &option_table[i];
    }
    return NULL;
}

static const struct option *option_by_alias(const char *spelling)
{
    for (size_t i = 0; i < option_table_n; i++) {
        const char *alias = option_table[i].alias;
        if (alias && strcmp(alias, spelling) == 0) return &option_table[i];
    }
    return NULL;
}

static fathom_err unknown_option(const struct parser *p, const char *spelling, const char *name)
{
    const char *command = command_info(p->command)->name;
    const struct option *elsewhere = option_by_name(name);
    if (elsewhere) {
        FAIL(p->diag, FATHOM_EINVAL, "%s: `fathom %s` does not have this option", spelling,
             command);
    }
    const struct option *near = nearest_option(name, p->command);
    if (near) {
        FAIL(p->diag, FATHOM_EINVAL, "%s: unknown option; the nearest is --%s", spelling,
             near->name);
    }
    FAIL(p->diag, FATHOM_EINVAL, "%s: unknown option; `fathom %s --help` lists them", spelling,
         command);
}

/* Splits an argument into an option, whether it is negated, and the value after '='. */
static fathom_err find_option(const struct parser *p, const char *arg, const struct option **out,
                              bool *negated, const char **value)
{
    const char *equals = strchr(arg, '=');
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    char spelling[NAME_BYTES];
    if (n >= sizeof spelling) FAIL(p->diag, FATHOM_EINVAL, "%.60s...: unknown option", arg);
    memcpy(spelling, arg, n);
    spelling[n] = '\0';
    *value = equals ? equals + 1 : NULL;
    *negated = false;

    char name[NAME_BYTES] = "";
    const struct option *o = option_by_alias(spelling);
    if (!o && strncmp(spelling, "--", 2) == 0) {
        for (size_t i = 2; i <= n; i++) name[i - 2] = spelling[i] == '_' ? '-' : spelling[i];
        o = option_by_name(name);
        if (!o && strncmp(name, "no-", 3) == 0) {
            o = option_by_name(name + 3);
            *negated = o != NULL;
        }
    }
    if (!o || !has_command(o, p->command)) return unknown_option(p, spelling, name);
    if (*negated && o->kind != OPTION_FLAG) return unknown_option(p, spelling, name);
    *out = o;
    return FATHOM_OK;
}

/* ---- the walk ---------------------------------------------------------------------------- */

/* The answer to an option that has no effect or is refused. */
static fathom_err answer(const struct parser *p, const struct option *o, const char *value)
{
    const char *no = o->kind == OPTION_FLAG && strcmp(value, "false") == 0 ? "no-" : "";
    const char *shown = o->kind == OPTION_FLAG ? "" : value;
    if (o->answer == ANSWER_USE || list_has(o->plain, value)) return FATHOM_OK;
    if (o->answer == ANSWER_REFUSE) {
        FAIL(p->diag, FATHOM_EINVAL, "--%s%s%s%s is refused: %s", no, o->name, *shown ? " " : "",
             shown, o->reason);
    }
    return buf_printf(p->notes, "--%s%s%s%s has no effect: %s\n", no, o->name, *shown ? " " : "",
                      shown, o->reason);
}

/* An argument that starts with '-' and is neither "-" nor a negative number. */
static bool looks_like_option(const char *arg)
{
    if (arg[0] != '-' || arg[1] == '\0') return false;
    return !(arg[1] == '.' || (arg[1] >= '0' && arg[1] <= '9'));
}

static fathom_err take_list(struct parser *p, const struct option *o, const char *value)
{
    memset(field_of(p->settings, o), 0, sizeof(struct string_list));
    if (value) return set_value(p->settings, o, value, p->diag);
    if (p->next == p->argc || looks_like_option(p->argv[p->next])) {
        FAIL(p->diag, FATHOM_EINVAL, "--%s needs a value: %s", o->name, o->argument);
    }
    while (p->next < p->argc && !looks_like_option(p->argv[p->next])) {
        TRY(set_value(p->settings, o, p->argv[p->next++], p->diag));
    }
    return FATHOM_OK;
}

static fathom_err take_option(struct parser *p, const char *arg)
{
    const struct option *o = NULL;
    const char *value = NULL;
    bool negated = false;
    TRY(find_option(p, arg, &o, &negated, &value));
    if (o->kind == OPTION_LIST) return take_list(p, o, value);
    if (o->kind == OPTION_FLAG) {
        if (value && strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
            FAIL(p->diag, FATHOM_EINVAL, "--%s takes no value; --no-%s turns it off", o->name,
                 o->name);
        }
        bool on = (value == NULL || strcmp(value, "true") == 0) != negated;
        value = on ? "true" : "false";
    } else if (!value) {
        if (p->next == p->argc || looks_like_option(p->argv[p->next])) {
            FAIL(p->diag, FATHOM_EINVAL, "--%s needs a value: %s", o->name, o->argument);
        }
        value = p->argv[p->next++];
    }
    TRY(set_value(p->settings, o, value, p->diag));
    return answer(p, o, value);
}

static fathom_err take_plain(struct parser *p, const char *arg, bool *model_given)
{
    struct string_list *rest = &p->settings->rest;
    if (command_info(p->command)->takes_model && !*model_given) {
        p->settings->model = arg;
        *model_given = true;
        return FATHOM_OK;
    }
    if (p->command != COMMAND_HELP || rest->n == 1) {
        FAIL(p->diag, FATHOM_EINVAL, "\"%s\": one argument too many for `fathom %s`", arg,
             command_info(p->command)->name);
    }
    rest->items[rest->n++] = arg;
    return FATHOM_OK;
}

fathom_err options_parse(struct settings *s, enum command command, int argc, char **argv,
                         struct buf *notes, fathom_diag *d)
{
    struct parser p = {s, command, argc, argv, 0, notes, d};
    bool plain_only = false;
    bool model_given = false;
    settings_init(s);
    while (p.next < argc && !s->help) {
        const char *arg = argv[p.next++];
        if (!plain_only && strcmp(arg, "--") == 0) {
            plain_only = true;
        } else if (!plain_only && looks_like_option(arg)) {
            TRY(take_option(&p, arg));
        } else {
            TRY(take_plain(&p, arg, &model_given));
        }
    }
    return s->help ? FATHOM_OK : speculative_parse(s->speculative_config, &s->n_draft, d);
}

/* option_name.c - from what was typed to a row of the table */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "cli/options_int.h"

/* Edits (insert, delete, replace) that turn a into b; both shorter than OPTION_NAME_BYTES. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[OPTION_NAME_BYTES];
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

bool option_has_command(const struct option *o, enum command c)
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
        if (!option_has_command(o, c)) continue;
        unsigned distance = edit_distance(name, o->name);
        if (distance < best || (distance == best && !found)) {
            best = distance;
            found = o;
        }
    }
    return found;
}

const struct option *option_by_name(const char *name)
{
    for (size_t i = 0; i < option_table_n; i++) {
        if (strcmp(option_table[i].name, name) == 0) return &option_table[i];
    }
    return NULL;
}

const struct option *option_of_command(const char *name, enum command c)
{
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (option_has_command(o, c) && strcmp(o->name, name) == 0) return o;
    }
    return NULL;
}

/* That of the command; without one, that which others have. */
static const struct option *option_by_alias(const char *spelling, enum command c)
{
    const struct option *elsewhere = NULL;
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (!o->alias || strcmp(o->alias, spelling) != 0) continue;
        if (option_has_command(o, c)) return o;
        elsewhere = o;
    }
    return elsewhere;
}

/* The only option of the command whose name begins like this; NULL and their names in *several when
 * there are more, NULL alone when there is none. */
static const struct option *option_by_beginning(const char *name, enum command c,
                                                struct buf *several)
{
    const struct option *found = NULL;
    size_t n = strlen(name);
    unsigned count = 0;
    for (size_t i = 0; n && i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (!option_has_command(o, c) || strncmp(o->name, name, n) != 0) continue;
        (void)buf_printf(several, "%s--%s", count++ ? ", " : "", o->name);
        found = o;
    }
    if (count == 1) buf_free(several);
    return count == 1 ? found : NULL;
}

#define ALL_LAYERS "a GPU holds all layers; --backend says what computes"
#define NO_SPLIT "weights are not split between device and host"
#define ALWAYS_SO "leave it out: there is one way"
#define SAMPLING "requests say it; --override-generation-config is for those that do not"

/* Spellings of other servers, with dashes, and what there is instead. SGLang's are rows of
 * `fathom serve`. */
static const char *foreign_spelling(const char *spelling)
{
    static const struct {
        const char *spelling, *advice;
    } known[] = {{"-m", "the model is the first argument"},
                 {"-hf", "the model is the first argument; `fathom pull org/name` brings it"},
                 {"--hf-repo", "the model is the first argument; `fathom pull org/name` brings it"},
                 {"-ngl", ALL_LAYERS},
                 {"--gpu-layers", ALL_LAYERS},
                 {"--n-gpu-layers", ALL_LAYERS},
                 {"-ncmoe", NO_SPLIT},
                 {"--n-cpu-moe", NO_SPLIT},
                 {"--cpu-moe", NO_SPLIT},
                 {"-ot", NO_SPLIT},
                 {"--override-tensor", NO_SPLIT},
                 {"-c", "use --max-model-len"},
                 {"--ctx-size", "use --max-model-len"},
                 {"-np", "use --max-num-seqs"},
                 {"--parallel", "use --max-num-seqs"},
                 {"-b", "use --max-num-batched-tokens"},
                 {"-ub", "use --max-num-batched-tokens"},
                 {"--batch-size", "use --max-num-batched-tokens"},
                 {"-ctk", "use --kv-cache-dtype"},
                 {"--cache-type-k", "use --kv-cache-dtype"},
                 {"-t", "use --threads"},
                 {"--threads-batch", "use --threads"},
                 {"-a", "use --served-model-name"},
                 {"--alias", "use --served-model-name"},
                 {"-fa", ALWAYS_SO},
                 {"--flash-attn", ALWAYS_SO},
                 {"--jinja", ALWAYS_SO},
                 {"--no-mmap", ALWAYS_SO},
                 {"--metrics", ALWAYS_SO},
                 {"--temp", SAMPLING},
                 {"--top-p", SAMPLING},
                 {"--min-p", SAMPLING},
                 {"--reasoning-budget", "requests say it, as thinking_token_budget"},
                 {"--chat-template-kwargs", "use --default-chat-template-kwargs"},
                 {"--max-batch-size", "use --max-num-seqs"},
                 {"--max-num-tokens", "use --max-num-batched-tokens"},
                 {"--max-seq-len", "use --max-model-len"},
                 {"--kv-cache-free-gpu-memory-fraction", "use --gpu-memory-utilization"},
                 {"--tool-parser", "use --tool-call-parser"},
                 {"--extra-llm-api-options", "give flags, or a file of them as --config"},
                 {"--model-path", "the model is the first argument"},
                 {"--context-length", "use --max-model-len"},
                 {"--mem-fraction-static", "use --gpu-memory-utilization"},
                 {"--tp", "use --tensor-parallel-size"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].spelling, spelling) == 0) return known[i].advice;
    }
    return strncmp(spelling, "--kt-", 5) == 0 ? NO_SPLIT : NULL; /* KTransformers' */
}

static fathom_err unknown_option(const struct option_walk *w, const char *spelling,
                                 const char *plain, const char *name)
{
    const char *command = command_info(w->command)->name;
    const char *advice = foreign_spelling(plain);
    if (advice && option_of_command("max-num-seqs", w->command))
        FAIL(w->diag, FATHOM_EINVAL, "%s: unknown option; %s", spelling, advice);
    if (option_by_name(name)) {
        FAIL(w->diag, FATHOM_EINVAL, "%s: `fathom %s` does not have this option", spelling,
             command);
    }
    const struct option *near = nearest_option(name, w->command);
    if (near) {
        FAIL(w->diag, FATHOM_EINVAL, "%s: unknown option; the nearest is --%s", spelling,
             near->name);
    }
    FAIL(w->diag, FATHOM_EINVAL, "%s: unknown option; `fathom %s --help` lists them", spelling,
         command);
}

/* An option of command c without its own spelling: --no-x, a beginning, nothing. To serve, whole
 * names of other servers are no beginnings. */
static fathom_err find_loosely(const struct option_walk *w, enum command c, const char *spelling,
                               const char *plain, const char *name, struct option_match *out)
{
    struct buf several = {0};
    if (c == COMMAND_SERVE && foreign_spelling(plain)) {
        return unknown_option(w, spelling, plain, name);
    }
    bool no = strncmp(name, "no-", 3) == 0;
    const struct option *o = no ? option_of_command(name + 3, c) : NULL;
    if (!o && !option_by_name(name)) o = option_by_beginning(name, c, &several);
    if (!o && no && !several.len) o = option_by_beginning(name + 3, c, &several);
    out->negated = no && o && strncmp(o->name, "no-", 3) != 0;
    out->option = o;
    fathom_err err = FATHOM_OK;
    if (several.len) {
        err = diag_fail(w->diag, FATHOM_EINVAL, "%s: may be %s; write it out", spelling,
                        buf_str(&several));
    } else if (!o || !option_has_command(o, c) || (out->negated && o->kind != OPTION_FLAG)) {
        err = unknown_option(w, spelling, plain, name);
    }
    buf_free(&several);
    return err;
}

/* -O3 is -O 3, and -O.key is a key of --compilation-config. */
static void find_letter_o(const char *arg, const char *spelling, struct option_match *out)
{
    if (strncmp(spelling, "-O", 2) != 0) return;
    if (out->path) out->option = option_by_name("compilation-config");
    if (spelling[2] < '0' || spelling[2] > '9') return;
    out->option = option_by_name("optimization-level");
    out->value = arg + 2;
}

/* The option of command c that arg spells; name is what stands between "--" and the first dot or
 * '='. */
static fathom_err find_of(const struct option_walk *w, enum command c, const char *arg,
                          const char *spelling, const char *name, struct option_match *out)
{
    char dashed[OPTION_NAME_BYTES + 2];
    (void)snprintf(dashed, sizeof dashed, "--%s", name);
    const char *plain = name[0] ? dashed : spelling;
    out->option = option_by_alias(plain, c);
    find_letter_o(arg, spelling, out);
    if (!out->option && name[0]) out->option = option_of_command(name, c);
    if (out->option && option_has_command(out->option, c)) return FATHOM_OK;
    return find_loosely(w, c, spelling, plain, name, out);
}

bool option_reads_serve(enum command c)
{
    return c == COMMAND_SERVE || c == COMMAND_PLAN || c == COMMAND_DOCTOR;
}

/* The name of --a_b.c=d is a-b: it ends at the first dot or '='. */
fathom_err option_find(const struct option_walk *w, const char *arg, struct option_match *out)
{
    char spelling[OPTION_NAME_BYTES];
    char name[OPTION_NAME_BYTES] = "";
    const char *equals = strchr(arg, '=');
    size_t whole = equals ? (size_t)(equals - arg) : strlen(arg);
    const char *dot = memchr(arg, '.', whole);
    size_t n = dot ? (size_t)(dot - arg) : whole;
    if (n >= OPTION_NAME_BYTES) FAIL(w->diag, FATHOM_EINVAL, "%.60s...: unknown option", arg);
    memcpy(spelling, arg, n);
    spelling[n] = '\0';
    if (strncmp(spelling, "--", 2) == 0) {
        for (size_t i = 2; i <= n; i++) name[i - 2] = spelling[i] == '_' ? '-' : spelling[i];
    }
    const struct option_match as_given = {.value = equals ? equals + 1 : NULL,
                                          .path = dot ? dot + 1 : NULL,
                                          .path_len = dot ? whole - n - 1 : 0};
    *out = as_given;
    fathom_err err = find_of(w, w->command, arg, spelling, name, out);
    if (err && option_reads_serve(w->command)) {
        struct option_match of_serve = as_given;
        struct option_walk other = *w;
        other.diag = NULL;
        if (!find_of(&other, COMMAND_SERVE, arg, spelling, name, &of_serve)) {
            if (w->diag) w->diag->text[0] = '\0';
            *out = of_serve;
            err = FATHOM_OK;
        }
    }
    TRY(err);
    if (dot && out->option->kind != OPTION_JSON) {
        FAIL(w->diag, FATHOM_EINVAL, "--%s is no JSON object, so it has no key \"%.*s\"",
             out->option->name, (int)out->path_len, out->path);
    }
    return FATHOM_OK;
}

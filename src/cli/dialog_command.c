/* dialog_command.c - what a line that begins with '/' does in `fathom run` */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/os.h"
#include "cli/dialog.h"

struct chat_command {
    const char *name;
    const char *argument; /* "" none; in brackets: may be left out */
    const char *help;
    fathom_err (*act)(struct dialog *c, const char *argument, fathom_diag *d); /* NULL: leave */
};

/* ---- settings ----------------------------------------------------------------------------- */

/* A number within [lo, hi], all of the text. */
static bool read_number(const char *text, double lo, double hi, double *out)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || *end || errno || !(x >= lo && x <= hi)) return false;
    *out = x;
    return true;
}

static fathom_err set_temperature(struct dialog *c, const char *text, fathom_diag *d)
{
    double x;
    if (!read_number(text, -1, 2, &x) || (x < 0 && x != -1)) {
        FAIL(d, FATHOM_EINVAL, "temperature is \"%s\", needed is 0 to 2, or -1: the model's", text);
    }
    c->temperature = x;
    return FATHOM_OK;
}

static fathom_err set_top_p(struct dialog *c, const char *text, fathom_diag *d)
{
    double x;
    if (!read_number(text, -1, 1, &x) || (x <= 0 && x != -1)) {
        FAIL(d, FATHOM_EINVAL, "top_p is \"%s\", needed is above 0 and up to 1, or -1: the model's",
             text);
    }
    c->top_p = x;
    return FATHOM_OK;
}

static fathom_err set_max_tokens(struct dialog *c, const char *text, fathom_diag *d)
{
    double x;
    if (!read_number(text, 0, UINT32_MAX, &x) || x != (uint32_t)x) {
        FAIL(d, FATHOM_EINVAL, "max_tokens is \"%s\", needed is a whole number; 0: the context",
             text);
    }
    c->max_tokens = (uint32_t)x;
    return FATHOM_OK;
}

static fathom_err set_seed(struct dialog *c, const char *text, fathom_diag *d)
{
    double x;
    if (!read_number(text, -1, 9e15, &x) || x != (double)(int64_t)x) {
        FAIL(d, FATHOM_EINVAL, "seed is \"%s\", needed is a whole number; -1: another each time",
             text);
    }
    c->has_seed = x >= 0;
    c->seed = c->has_seed ? (uint64_t)x : 0;
    return FATHOM_OK;
}

static const struct setting {
    const char *name;
    fathom_err (*set)(struct dialog *c, const char *text, fathom_diag *d);
} settings[] = {{"temperature", set_temperature},
                {"top_p", set_top_p},
                {"max_tokens", set_max_tokens},
                {"seed", set_seed}};

static void show_settings(const struct dialog *c)
{
    fprintf(stderr, "temperature %g, top_p %g (-1: the model's), max_tokens %u (0: the context), ",
            c->temperature, c->top_p, c->max_tokens);
    if (c->has_seed) fprintf(stderr, "seed %llu, ", (unsigned long long)c->seed);
    fprintf(stderr, "thinking %s\nsystem: %s\n", c->thinking ? "on" : "off",
            *dialog_system(c) ? dialog_system(c) : "none");
}

/* ---- commands ------------------------------------------------------------------------------ */

static fathom_err act_new(struct dialog *c, const char *argument, fathom_diag *d)
{
    (void)argument, (void)d;
    dialog_reset(c);
    return FATHOM_OK;
}

static fathom_err act_retry(struct dialog *c, const char *argument, fathom_diag *d)
{
    (void)argument;
    return dialog_retry(c, d);
}

static fathom_err act_undo(struct dialog *c, const char *argument, fathom_diag *d)
{
    (void)argument;
    if (!dialog_undo(c)) FAIL(d, FATHOM_EINVAL, "there is no message to take back");
    return FATHOM_OK;
}

static fathom_err act_think(struct dialog *c, const char *argument, fathom_diag *d)
{
    (void)argument, (void)d;
    c->thinking = true;
    fprintf(stderr, "thinking is on\n");
    return FATHOM_OK;
}

static fathom_err act_nothink(struct dialog *c, const char *argument, fathom_diag *d)
{
    (void)argument, (void)d;
    c->thinking = false;
    fprintf(stderr, "thinking is off\n");
    return FATHOM_OK;
}

static fathom_err act_set(struct dialog *c, const char *argument, fathom_diag *d)
{
    if (!*argument) {
        show_settings(c);
        return FATHOM_OK;
    }
    size_t n = strcspn(argument, " ");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strlen(settings[i].name) != n || strncmp(settings[i].name, argument, n) != 0) continue;
        return settings[i].set(c, argument + n + strspn(argument + n, " "), d);
    }
    FAIL(d, FATHOM_EINVAL,
         "there is no \"%.*s\" to set; there are temperature, top_p, max_tokens, "
         "seed",
         (int)n, argument);
}

static fathom_err act_file(struct dialog *c, const char *argument, fathom_diag *d)
{
    struct file_map map;
    struct buf text = {.limit = LIMIT_HTTP_BODY_BYTES};
    TRY(file_map_open(&map, argument, d));
    fathom_err err = buf_add(&text, map.data, map.size);
    if (err) {
        err = diag_fail(d, err, "%s is longer than %d bytes", argument, LIMIT_HTTP_BODY_BYTES);
    } else if (memchr(buf_str(&text), '\0', text.len)) {
        err = diag_fail(d, FATHOM_EINVAL, "%s is not text: it has a NUL byte", argument);
    } else {
        err = dialog_ask(c, buf_str(&text), d);
    }
    buf_free(&text);
    file_map_close(&map);
    return err;
}

static fathom_err act_save(struct dialog *c, const char *argument, fathom_diag *d)
{
    return dialog_save(c, argument, d);
}

static fathom_err act_help(struct dialog *c, const char *argument, fathom_diag *d);

static const struct chat_command commands[] = {
    {"new", "", "start a new chat", act_new},
    {"retry", "", "answer the last message again", act_retry},
    {"undo", "", "take the last message and its answer back", act_undo},
    {"think", "", "let the model reason before it answers", act_think},
    {"nothink", "", "answer at once", act_nothink},
    {"system", "[TEXT]", "the system message from now on; nothing: none", dialog_set_system},
    {"set", "[NAME VALUE]", "temperature, top_p, max_tokens or seed; nothing: show them", act_set},
    {"file", "PATH", "send the text of a file as a message", act_file},
    {"save", "PATH", "write the chat to a file, as JSON", act_save},
    {"load", "PATH", "go on with a chat from a file", dialog_load},
    {"help", "", "this list", act_help},
    {"quit", "", "leave; so does Ctrl-D", NULL},
    {"exit", "", "the same", NULL},
};

enum { N_COMMAND = sizeof commands / sizeof commands[0] };

static fathom_err act_help(struct dialog *c, const char *argument, fathom_diag *d)
{
    (void)c, (void)argument, (void)d;
    for (size_t i = 0; i < N_COMMAND; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "/%s %s", commands[i].name, commands[i].argument);
        fprintf(stderr, "%-20s %s\n", name, commands[i].help);
    }
    fprintf(stderr, "Ctrl-C ends an answer, or empties the line. A line that ends in \\ goes on in "
                    "the next one; a line of \"\"\" begins and ends a text of several lines.\n");
    return FATHOM_OK;
}

fathom_err dialog_command(struct dialog *c, const char *line, bool *over, fathom_diag *d)
{
    size_t n = strcspn(line + 1, " ");
    const char *argument = line + 1 + n + strspn(line + 1 + n, " ");
    for (size_t i = 0; i < N_COMMAND; i++) {
        const struct chat_command *k = &commands[i];
        if (strlen(k->name) != n || strncmp(k->name, line + 1, n) != 0) continue;
        if (!*k->argument && *argument) {
            FAIL(d, FATHOM_EINVAL, "/%s takes nothing after it", k->name);
        }
        if (*k->argument && *k->argument != '[' && !*argument) {
            FAIL(d, FATHOM_EINVAL, "/%s needs a %s", k->name, k->argument);
        }
        if (k->act) return k->act(c, argument, d);
        *over = true;
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EINVAL, "there is no command \"/%.*s\"; /help lists them", (int)n, line + 1);
}

size_t dialog_command_complete(const char *typed, size_t n, struct buf *out)
{
    const char *common = NULL;
    size_t n_common = 0, n_found = 0;
    for (size_t i = 0; i < N_COMMAND; i++) {
        const char *name = commands[i].name;
        if (strncmp(name, typed + 1, n - 1) != 0) continue;
        size_t k = 0;
        while (common && k < n_common && common[k] == name[k]) k++;
        n_common = common ? k : strlen(name);
        common = name;
        n_found++;
    }
    if (common) (void)buf_add(out, common + (n - 1), n_common - (n - 1));
    if (n_found == 1) (void)buf_add_char(out, ' ');
    return n_found;
}

/* main.c - from argv to a subcommand, and from its error to a status
 *
 * Status 0: done. 1: something failed. 2: the command line is wrong.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "cli/cli.h"

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 };

typedef fathom_err command_function(const struct invocation *v, fathom_diag *d);

static command_function *const functions[COMMAND_COUNT] = {
    [COMMAND_SERVE] = cmd_serve,     [COMMAND_RUN] = cmd_run,
    [COMMAND_INSPECT] = cmd_inspect, [COMMAND_TOKENIZE] = cmd_tokenize,
    [COMMAND_PLAN] = cmd_plan,       [COMMAND_BENCH] = cmd_bench,
    [COMMAND_HELP] = cmd_help,       [COMMAND_VERSION] = cmd_version,
};

static int fail(fathom_err err, const fathom_diag *d, int status)
{
    fprintf(stderr, "fathom: %s\n", d->text[0] ? d->text : fathom_err_text(err));
    return status;
}

static int print_help(FILE *to, enum command c)
{
    struct buf b = {0};
    fathom_err err = options_write_help(&b, c);
    if (!err) (void)fputs(buf_str(&b), to);
    buf_free(&b);
    return err ? STATUS_FAILED : STATUS_OK;
}

/* The command of the first argument; the usual spellings of help and version are commands too. */
static enum command find_command(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return COMMAND_HELP;
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) return COMMAND_VERSION;
    return command_find(word);
}

static void set_log_level(const char *name)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i <= LOG_LEVEL_DEBUG; i++) {
        if (strcmp(names[i], name) == 0) log_set_level((enum log_level)i);
    }
}

static int run_command(enum command c, struct settings *s, fathom_diag *d)
{
    struct environment environment;
    struct model_source model;
    struct invocation v = {s, &environment, NULL};
    environment_read(&environment);
    set_log_level(s->log_level);
    if (command_info(c)->takes_model) {
        fathom_err err = model_source_find(&model, s, &environment, d);
        if (err) return fail(err, d, STATUS_FAILED);
        v.model = &model;
    }
    fathom_err err = functions[c](&v, d);
    return err ? fail(err, d, STATUS_FAILED) : STATUS_OK;
}

int main(int argc, char **argv)
{
    fathom_diag d = {{0}};
    if (argc < 2) {
        (void)print_help(stderr, COMMAND_COUNT);
        return STATUS_USAGE;
    }
    enum command c = find_command(argv[1]);
    if (c == COMMAND_COUNT) {
        fprintf(stderr, "fathom: \"%s\" is no command; `fathom help` lists them\n", argv[1]);
        return STATUS_USAGE;
    }
    const char *kind = command_info(c)->kind;
    int n_word = 2;
    if (kind && argc > 2 && argv[2][0] != '-') {
        if (strcmp(argv[2], kind) != 0) {
            fprintf(stderr, "fathom: %s %s: there is only `fathom %s %s`\n", argv[1], argv[2],
                    argv[1], kind);
            return STATUS_USAGE;
        }
        n_word = 3;
    }
    struct settings s;
    struct buf notes = {0};
    fathom_err err = options_parse(&s, c, argc - n_word, argv + n_word, &notes, &d);
    if (!err && !s.help && notes.len) fprintf(stderr, "%s", buf_str(&notes));
    buf_free(&notes);
    if (err) return fail(err, &d, STATUS_USAGE);
    return s.help ? print_help(stdout, c) : run_command(c, &s, &d);
}

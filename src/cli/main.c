/* main.c - from argv to a subcommand, and from its error to a status
 *
 * Status 0: done. 1: something failed. 2: the command line is wrong. 3: doctor's warnings.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/fail.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/ray.h"

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 };

typedef fathom_err command_function(const struct invocation *v, fathom_diag *d);

static command_function *const functions[COMMAND_COUNT] = {
    [COMMAND_SERVE] = cmd_serve,
    [COMMAND_RUN] = cmd_run,
    [COMMAND_RUN_BATCH] = cmd_run_batch,
    [COMMAND_INSPECT] = cmd_inspect,
    [COMMAND_TOKENIZE] = cmd_tokenize,
    [COMMAND_PLAN] = cmd_plan,
    [COMMAND_DOCTOR] = cmd_doctor,
    [COMMAND_EVALUATE] = cmd_evaluate,
    [COMMAND_QUANTIZE] = cmd_quantize,
    [COMMAND_BENCH_LATENCY] = cmd_bench_latency,
    [COMMAND_BENCH_KERNELS] = cmd_bench_kernels,
    [COMMAND_BENCH_THROUGHPUT] = cmd_bench_throughput,
    [COMMAND_BENCH_SERVE] = cmd_bench_serve,
    [COMMAND_BENCH_SWEEP] = cmd_bench_sweep,
    [COMMAND_BENCH_TRANSFER] = cmd_bench_transfer,
    [COMMAND_BENCH_ROUTER] = cmd_bench_router,
    [COMMAND_BENCH_REPORT] = cmd_bench_report,
    [COMMAND_ROUTER] = cmd_router,
    [COMMAND_PULL] = cmd_pull,
    [COMMAND_CHAT] = cmd_chat,
    [COMMAND_COMPLETE] = cmd_complete,
    [COMMAND_HEALTH] = cmd_health,
    [COMMAND_HELP] = cmd_help,
    [COMMAND_VERSION] = cmd_version,
};

static int fail(fathom_err err, const fathom_diag *d, int status)
{
    fprintf(stderr, "fathom: %s\n", d->text[0] ? d->text : fathom_err_text(err));
    return status;
}

/* A file that is opened takes the lowest free descriptor: that of a standard stream that is closed,
 * and then what is printed stands in it. Such a descriptor is taken here, for what its stream is
 * not used for, so that the stream fails as if it were closed. */
static void take_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

/* The status of what has printed: a disk that is full of it, or a reader that is gone, is a failure
 * like any other. */
static int end_output(int status)
{
    const int cause = fflush(stdout) == 0 ? 0 : errno;
    if (!cause && !ferror(stdout)) return status;
    fprintf(stderr, "fathom: standard output cannot be written%s%s\n", cause ? ": " : "",
            cause ? strerror(cause) : "");
    return STATUS_FAILED;
}

static int print_help(FILE *to, enum command c, const char *topic)
{
    struct buf b = {0};
    fathom_diag d = {{0}};
    fathom_err err = options_write_help(&b, c, topic, &d);
    if (!err) (void)fputs(buf_str(&b), to);
    buf_free(&b);
    return err ? fail(err, &d, STATUS_USAGE) : end_output(STATUS_OK);
}

/* The command of the first words, of which *n_used belong to it; the usual spellings of help and
 * version are commands too. What begins with an option or a path is a command line of serve without
 * its name, as `docker run IMAGE --model MODEL` has it. */
static enum command find_command(const char *const *words, size_t n, size_t *n_used)
{
    *n_used = 1;
    if (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0) return COMMAND_HELP;
    if (strcmp(words[0], "--version") == 0 || strcmp(words[0], "-V") == 0) return COMMAND_VERSION;
    if ((words[0][0] == '-' && words[0][1]) || strchr(words[0], '/')) {
        *n_used = 0;
        return COMMAND_SERVE;
    }
    return command_find(words, n, n_used);
}

/* Commands of other servers' programs, and what there is instead. */
static const char *foreign_command(const char *word)
{
    static const struct {
        const char *word, *advice;
    } known[] = {{"launch_server", "`fathom serve` takes SGLang's flags"},
                 {"launch-server", "`fathom serve` takes SGLang's flags"},
                 {"download", "`fathom pull org/name` brings a checkpoint"},
                 {"list", "`hf cache ls` lists what is there"},
                 {"ls", "`hf cache ls` lists what is there"},
                 {"collect-env", "`fathom doctor` looks at the machine"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].word, word) == 0) return known[i].advice;
    }
    return "`fathom help` lists them";
}

static int answer_ray(const char *const *words, size_t n)
{
    struct buf line = {0};
    (void)ray_write_answer(&line, words, n);
    fprintf(stderr, "fathom: %s\n", buf_str(&line));
    buf_free(&line);
    return STATUS_USAGE;
}

/* `fathom bench --help`: what may follow. Anything else: says what would have been a command. */
static int unknown_command(const char *const *words, size_t n)
{
    const char *word = words[0], *next = n > 1 ? words[1] : NULL;
    struct buf names = {0};
    if (strcmp(words[0], "ray") == 0) return answer_ray(words + 1, n - 1);
    (void)command_names(&names, word);
    if (!names.len) {
        fprintf(stderr, "fathom: \"%s\" is no command; %s\n", word, foreign_command(word));
    } else if (next && (strcmp(next, "--help") == 0 || strcmp(next, "-h") == 0)) {
        buf_free(&names);
        return print_help(stdout, COMMAND_COUNT, word);
    } else if (next) {
        fprintf(stderr, "fathom: %s %s: after \"%s\" comes one of %s\n", word, next, word,
                buf_str(&names));
    } else {
        fprintf(stderr, "fathom: %s: what follows is missing, one of %s\n", word, buf_str(&names));
    }
    buf_free(&names);
    return STATUS_USAGE;
}

static void set_log_level(const char *name)
{
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = {{"error", LOG_LEVEL_ERROR},  {"warn", LOG_LEVEL_WARN},
                 {"info", LOG_LEVEL_INFO},    {"debug", LOG_LEVEL_DEBUG},
                 {"warning", LOG_LEVEL_WARN}, {"critical", LOG_LEVEL_ERROR},
                 {"trace", LOG_LEVEL_DEBUG}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0) log_set_level(names[i].level);
    }
}

static int run_command(enum command c, const struct settings *s, const struct environment *e,
                       fathom_diag *d)
{
    struct model_source model;
    int status = STATUS_OK;
    struct invocation v = {s, e, NULL, &status};
    set_log_level(s->log_level);
    if (command_info(c)->takes_model && c != COMMAND_DOCTOR) { /* which tells more of a bad one */
        fathom_err err = model_source_find(&model, s, e, d);
        if (err) return fail(err, d, STATUS_FAILED);
        v.model = &model;
    }
    fathom_err err = functions[c](&v, d);
    if (v.model) model_source_close(v.model);
    if (err) return fail(err, d, STATUS_FAILED);
    /* A server's lines are for whoever looks: it has served, whether they were read or not. */
    const bool has_served = (c == COMMAND_SERVE && !s->dry_run) || c == COMMAND_ROUTER;
    return has_served ? status : end_output(status);
}

/* The options of a command, then the command. */
static int parse_and_run(enum command c, int argc, char **argv)
{
    struct environment environment;
    struct settings s = {0};
    struct buf notes = {0};
    fathom_diag d = {{0}};
    environment_read(&environment);
    const struct option_input in = {argc, argv, environment.variables, environment.n_variable,
                                    &environment.launcher};
    fathom_err err = options_parse(&s, c, &in, &notes, &d);
    if (!err && (c == COMMAND_SERVE || c == COMMAND_RUN_BATCH || c == COMMAND_BENCH_LATENCY ||
                 c == COMMAND_BENCH_THROUGHPUT)) {
        err = environment_tell(&notes);
    }
    int status = err ? fail(err, &d, STATUS_USAGE) : STATUS_OK;
    if (!s.help && notes.len) fprintf(stderr, "%s", buf_str(&notes));
    buf_free(&notes);
    if (!err) {
        status =
            s.help ? print_help(stdout, c, s.help_topic) : run_command(c, &s, &environment, &d);
    }
    settings_free(&s);
    return status;
}

int main(int argc, char **argv)
{
    take_closed_streams();
    crash_install(FATHOM_VERSION);
    if (argc < 2) {
        (void)print_help(stderr, COMMAND_COUNT, NULL);
        return STATUS_USAGE;
    }
    const char *const *words = (const char *const *)(argv + 1);
    const size_t n = (size_t)argc - 1;
    size_t n_word;
    enum command c = find_command(words, n, &n_word);
    if (c == COMMAND_COUNT) return unknown_command(words, n);
    int n_before = 1 + (int)n_word;
    return parse_and_run(c, argc - n_before, argv + n_before);
}

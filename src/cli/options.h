/* options.h - the command line as data
 *
 * One table (option_table.c) holds every option: its name, argument, default, help, the commands
 * that have it, and the answer it gets. Parsing, --help and docs/cli.md are made from the table.
 *
 * An operator brings command lines written for vLLM. Each of its flags gets one of three answers:
 * it works; it is accepted without effect and one line says why; it is refused and one line says
 * why. Nothing is ignored in silence.
 *
 * An option may also stand in a file (--config) or in the environment. The command line holds over
 * the file, the file over the environment, the environment over the default.
 */
#ifndef FATHOM_CLI_OPTIONS_H
#define FATHOM_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "fathom/err.h"

enum command {
    COMMAND_SERVE,
    COMMAND_RUN,
    COMMAND_RUN_BATCH,
    COMMAND_CHAT,
    COMMAND_COMPLETE,
    COMMAND_INSPECT,
    COMMAND_TOKENIZE,
    COMMAND_PLAN,
    COMMAND_DOCTOR,
    COMMAND_EVALUATE,
    COMMAND_QUANTIZE,
    COMMAND_BENCH_LATENCY,
    COMMAND_BENCH_KERNELS,
    COMMAND_BENCH_THROUGHPUT,
    COMMAND_BENCH_SERVE,
    COMMAND_BENCH_SWEEP,
    COMMAND_BENCH_TRANSFER,
    COMMAND_BENCH_ROUTER,
    COMMAND_BENCH_REPORT,
    COMMAND_ROUTER,
    COMMAND_PULL,
    COMMAND_HEALTH,
    COMMAND_HELP,
    COMMAND_VERSION,
    COMMAND_COUNT,
};

struct command_info {
    const char *name;               /* one word, or two: "bench serve" */
    const char *arguments;          /* "[MODEL] [options]" */
    const char *help;               /* one line */
    bool takes_model;               /* the first plain argument is the model */
    uint16_t rest_least, rest_most; /* further plain arguments: settings.rest */
};

/* command_info - the table row of a command */
const struct command_info *command_info(enum command c);

/* command_find - the command whose words words[0 .. n) begin with; COMMAND_COUNT when there is none
 *
 *   n_used  words of its name, 0 when there is none */
enum command command_find(const char *const *words, size_t n, size_t *n_used);

/* command_names - append what may follow `word` in a name of two words: "latency, throughput";
 * nothing when it begins none */
fathom_err command_names(struct buf *out, const char *word);

enum option_kind {
    OPTION_FLAG,   /* --x, --no-x */
    OPTION_TEXT,   /* any string */
    OPTION_CHOICE, /* one of `choices` */
    OPTION_COUNT,  /* an integer within lo .. hi; 4k is 4000, 4K is 4096, also m M g G */
    OPTION_NUMBER, /* a decimal number within lo .. hi */
    OPTION_LIST,   /* one or more strings, up to the next option */
    OPTION_JSON,   /* a JSON object; --x.key value sets one key of it, --x.key+ value appends */
    OPTION_HELP,   /* a flag that may be followed by a topic */
};

enum option_answer {
    ANSWER_USE,    /* it works */
    ANSWER_NOTE,   /* accepted without effect; `reason` says why, unless the value is `plain` */
    ANSWER_REFUSE, /* refused with `reason`, unless the value is `plain` */
};

enum option_group {
    GROUP_MODEL,
    GROUP_MEMORY,
    GROUP_SERVER,
    GROUP_SECURITY,
    GROUP_LOG,
    GROUP_CHAT,
    GROUP_COMMAND, /* what only one command has */
    GROUP_TARGET,  /* the server that is measured */
    GROUP_DATASET, /* what it is sent */
    GROUP_LOAD,    /* how fast */
    GROUP_RESULT,  /* what is kept */
    GROUP_PARALLEL,
    GROUP_SGLANG,  /* flags of SGLang that have other names here */
    GROUP_FOREIGN, /* flags of vLLM that have no effect or are refused */
    GROUP_COUNT,
};

enum { NO_FIELD = -1 };

struct option {
    const char *name;     /* "max-model-len" */
    const char *alias;    /* a short spelling with its dashes, "-tp"; NULL: none */
    const char *argument; /* "N"; NULL for a flag */
    const char *fallback; /* the default, as it would be typed; NULL: none */
    const char *help;
    const char *choices; /* "auto|float32|bfloat16"; of a number: words for `lo` */
    const char *refused; /* choices known elsewhere and refused with `reason`: "half|float16" */
    const char *plain;   /* the value that needs no answer: "1" for --tensor-parallel-size */
    const char *reason;
    double lo, hi;
    enum option_kind kind;
    enum option_answer answer;
    enum option_group group;
    bool secret;       /* a secret: one that holds nothing is refused */
    bool adds;         /* a list to which a second one on the command line adds */
    unsigned commands; /* bit 1 << enum command */
    int field;         /* offset in struct settings, or NO_FIELD */
};

extern const struct option option_table[];
extern const size_t option_table_n;

/* settings_init - every option at its default. settings_free accepts settings that were zeroed. */
void settings_init(struct settings *s);
void settings_free(struct settings *s);

/* An option that the environment gives: VARIABLE=value. */
struct option_variable {
    const char *variable; /* for messages */
    const char *option;   /* its name in the table */
    const char *value;
};

/* What options_parse reads. */
struct option_input {
    int argc;                                /* arguments after the command */
    char **argv;                             /* [argc] */
    const struct option_variable *variables; /* those that the command does not have are skipped */
    size_t n_variable;
    const struct launcher *launcher; /* which gave some of these; NULL: none */
};

/* options_parse - from the environment, then a file, then the command line
 *
 *   s      written; settings_init is done here. The caller frees it, after an error too.
 *   notes  a line for each option that was accepted without effect, and for each that was refused
 *          beside the first
 * Forms: --name value, --name=value, --name, --no-name, alias. In a name _ may stand for -, and a
 * beginning that fits one name alone stands for that name. --name.key value sets one key of an
 * option that is a JSON object. After "--" everything is plain. With --help the rest is not
 * checked.
 * Errors  EINVAL: unknown option (with the nearest known one), bad value (with what is accepted),
 *         refused option (with the reason); EFORMAT, EIO, ENOTFOUND: the file; ENOMEM. */
fathom_err options_parse(struct settings *s, enum command command, const struct option_input *in,
                         struct buf *notes, fathom_diag *d);

/* option_by_name - the first of this name in the table, NULL when there is none; others of the same
 * name belong to other commands. option_of_command - that which the command has, or NULL. */
const struct option *option_by_name(const char *name);
const struct option *option_of_command(const char *name, enum command c);
bool option_has_command(const struct option *o, enum command c);

/* options_write_help - what `fathom --help` and `fathom COMMAND --help` print; COMMAND_COUNT for
 * the overview
 *
 *   topic  NULL: all; a group's name; or part of an option's name. Of the overview: the first word
 *          of the commands that are told
 * Errors  EINVAL: the topic is neither. */
fathom_err options_write_help(struct buf *out, enum command command, const char *topic,
                              fathom_diag *d);

/* options_write_markdown, options_write_flags - docs/cli.md and docs/flags.md */
fathom_err options_write_markdown(struct buf *out);
fathom_err options_write_flags(struct buf *out);

/* options_write_man - the manual page fathom-COMMAND(1); fathom(1) for COMMAND_COUNT */
fathom_err options_write_man(struct buf *out, enum command command);

/* options_write_completion - what bash sources to complete commands, options and their choices */
fathom_err options_write_completion(struct buf *out);

/* ---- variables that operators bring from vLLM, each with its answer ------------------------- */

struct environment_row {
    const char *pattern; /* a name, or a beginning and '*' */
    bool acts;
    const char *text; /* what it does, or why it does nothing */
};

extern const struct environment_row environment_table[];
extern const size_t environment_table_n;

/* environment_find - the first row that a variable's name (n bytes) fits; NULL: none */
const struct environment_row *environment_find(const char *name, size_t n);

/* environment_notes - one line for each row without effect that `variables` ("NAME=value", ended by
 * NULL) fit; one for names that begin with FATHOM_ and are no option's */
fathom_err environment_notes(struct buf *notes, char *const *variables);

#endif

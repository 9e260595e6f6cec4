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

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "cli/bench_settings.h"
#include "cli/compilation.h"
#include "fathom/err.h"

enum command {
    COMMAND_SERVE,
    COMMAND_RUN,
    COMMAND_INSPECT,
    COMMAND_TOKENIZE,
    COMMAND_PLAN,
    COMMAND_DOCTOR,
    COMMAND_BENCH_LATENCY,
    COMMAND_BENCH_KERNELS,
    COMMAND_BENCH_THROUGHPUT,
    COMMAND_BENCH_SERVE,
    COMMAND_BENCH_SWEEP,
    COMMAND_BENCH_REPORT,
    COMMAND_HELP,
    COMMAND_VERSION,
    COMMAND_COUNT,
};

struct command_info {
    const char *name;      /* one word, or two: "bench serve" */
    const char *arguments; /* "[MODEL] [options]" */
    const char *help;      /* one line */
    bool takes_model;      /* the first plain argument is the model */
    bool takes_rest;       /* plain arguments go to settings.rest */
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

/* What the command line says; options that were not given hold their defaults. Strings belong to
 * argv, to the environment, to the table or to `texts`. */
struct settings {
    json_t *texts; /* an array that owns what neither argv nor the table holds; NULL: nothing */
    const char *config; /* the file of options, or NULL */
    const char *model;
    const char *backend;
    const char *dtype;
    const char *kv_cache_dtype;
    const char *quantization; /* NULL: not given */
    const char *load_format;
    int64_t tensor_parallel_size;
    int64_t rank_slice;    /* -1: not given */
    int64_t threads;       /* 0: all processors */
    int64_t max_model_len; /* 0: the checkpoint's */
    int64_t max_num_seqs;  /* 0: the engine's default, here and below */
    int64_t max_num_batched_tokens;
    int64_t max_queued;
    int64_t max_num_queued_tokens;
    int64_t slo_ttft_ms;
    int64_t slo_tpot_ms;
    const char *scheduling_policy;
    int64_t kv_cache_memory_bytes;
    double gpu_memory_utilization;
    bool enable_prefix_caching;
    int64_t kv_offload_ram;
    const char *kv_offload_dir; /* NULL: none */
    int64_t kv_offload_dir_size;
    const char *compilation_config; /* NULL: not given */
    int64_t optimization_level;     /* -1: not given */
    bool enforce_eager;
    bool async_scheduling;
    struct compilation compilation; /* what the first two say */
    const char *speculative_config; /* NULL: not given */
    uint32_t n_draft;               /* what it says; 0: none */
    int64_t seed;                   /* -1: from the system */

    const char *tokenizer_mode;
    const char *tool_call_parser;
    const char *special_tokens_in_text;
    const char *reasoning_parser;

    const char *host;
    int64_t port;
    struct string_list served_model_name;
    struct string_list api_key;
    const char *uds;       /* NULL: host and port */
    const char *root_path; /* NULL: none; so is everything down to ssl_cert_reqs */
    const char *api_key_file;
    const char *admin_socket;
    const char *ssl_certfile;
    const char *ssl_keyfile;
    const char *ssl_ca_certs;
    const char *ssl_cert_reqs;
    bool open_metrics;
    bool tokenizer_info;
    bool allow_credentials;
    struct string_list allowed_origins;
    struct string_list allowed_methods;
    struct string_list allowed_headers;
    double drain_timeout; /* seconds */
    double stall_timeout; /* seconds; 0: as the backend needs */
    int64_t max_connections;
    int64_t max_stored_responses; /* 0: none are kept */
    int64_t max_stored_response_bytes;
    double stored_response_ttl; /* seconds */
    bool enable_log_requests;
    bool disable_log_requests;
    bool disable_uvicorn_access_log;
    const char *access_log; /* NULL: none */
    const char *generation_config;
    const char *log_level;

    const char *prompt; /* NULL: a chat in the terminal */
    const char *system;
    bool thinking;
    double temperature; /* negative: the checkpoint's, here and below */
    double top_p;
    int64_t max_tokens; /* 0: up to the context */

    const char *text; /* NULL: standard input */
    bool decode;
    bool tensors;
    int64_t memory_bytes; /* 0: this machine's */

    int64_t batch_size;
    int64_t input_len;
    int64_t output_len;
    int64_t num_iters_warmup;
    int64_t num_iters;
    const char *output_json; /* NULL: none */
    struct bench_settings bench;

    bool verify;
    bool json;

    bool markdown;
    bool flags;
    bool dry_run;
    bool help;
    const char *help_topic;  /* what --help is asked about; NULL: all */
    struct string_list rest; /* plain arguments after the model */
};

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
    const char *choices; /* "auto|float32|bfloat16" */
    const char *refused; /* choices known elsewhere and refused with `reason`: "half|float16" */
    const char *plain;   /* the value that needs no answer: "1" for --tensor-parallel-size */
    const char *reason;
    double lo, hi;
    enum option_kind kind;
    enum option_answer answer;
    enum option_group group;
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
};

/* options_parse - from the environment, then a file, then the command line
 *
 *   s      written; settings_init is done here. The caller frees it, after an error too.
 *   notes  a line for each option that was accepted without effect, and for each that was refused
 *          beside the first
 * Forms: --name value, --name=value, --name, --no-name, alias; _ may stand for - in a name, and a
 * beginning that fits one name alone for the name; --name.key value for an option that is a JSON
 * object; after "--" everything is plain. With --help the rest is not checked.
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
 *   topic  NULL: all; a group's name; or part of an option's name
 * Errors  EINVAL: the topic is neither. */
fathom_err options_write_help(struct buf *out, enum command command, const char *topic,
                              fathom_diag *d);

/* options_write_markdown, options_write_flags - docs/cli.md and docs/flags.md */
fathom_err options_write_markdown(struct buf *out);
fathom_err options_write_flags(struct buf *out);

#endif

/* cli.h - what the subcommands share */
#ifndef FATHOM_CLI_CLI_H
#define FATHOM_CLI_CLI_H

#include "base/limits.h"
#include "base/os.h"
#include "base/size_text.h"
#include "chat/chat.h"
#include "cli/command_line.h"
#include "cli/options.h"
#include "cli/print.h"
#include "fathom/err.h"
#include "fathom/fathom.h"
#include "http/supervisor.h"
#include "trace/setup.h"

struct checkpoint;
struct tokenizer;

enum { ENVIRONMENT_VARIABLES_MAX = 256, ENVIRONMENT_NAME_BYTES = 72, ENVIRONMENT_LEVEL_BYTES = 16 };

/* What is read from the environment; environment.c alone does. */
struct environment {
    char hf_home[LIMIT_PATH_BYTES]; /* $HF_HOME, else huggingface in $XDG_CACHE_HOME or ~/.cache; ""
                                     * without any */
    char hub_cache[LIMIT_PATH_BYTES]; /* of its repositories: $HF_HUB_CACHE,
                                       * $HUGGINGFACE_HUB_CACHE, else hub in hf_home; likewise */
    char history[LIMIT_PATH_BYTES];   /* of `fathom run`, in $XDG_STATE_HOME, else ~/.local/state */
    struct option_variable variables[ENVIRONMENT_VARIABLES_MAX]; /* vLLM's first, then FATHOM_* */
    size_t n_variable;
    const char *port;      /* $FATHOM_PORT, of the server that `fathom health` asks; NULL: none */
    const char *api_key;   /* of a server under test: $OPENAI_API_KEY, $FATHOM_API_KEY,
                            $VLLM_API_KEY; NULL: none */
    const char *hub_token; /* $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN; NULL: none */
    const char *hub_token_path;          /* $HF_TOKEN_PATH; NULL: token in hf_home */
    char hub_endpoint[LIMIT_PATH_BYTES]; /* $HF_ENDPOINT, or of ModelScope; "": the hub's own */
    bool modelscope;                     /* $VLLM_USE_MODELSCOPE */
    struct launcher launcher;            /* of several hosts */
    struct supervisor supervisor;        /* of the process's: $NOTIFY_SOCKET and so on */
    struct trace_words traces;           /* $OTEL_...; without an endpoint */
    char names[ENVIRONMENT_VARIABLES_MAX][ENVIRONMENT_NAME_BYTES];
    char level[ENVIRONMENT_LEVEL_BYTES];
};

/* environment_read - an empty variable counts as unset. What it holds points into it: it is not
 * copied. */
void environment_read(struct environment *e);

/* environment_tell - environment_notes of the process's variables */
fathom_err environment_tell(struct buf *notes);

/* models/pilot, linked into the program (pilot_bundle.S): the bundle "pilot". Its data are in
 * read-only memory, each file on a 64-byte boundary. */
extern const fathom_bundle pilot_bundle;

/* The checkpoint that MODEL means: a directory, the bundle, or a config.json alone. */
struct model_source {
    char dir[LIMIT_PATH_BYTES];  /* "" for the bundle and for a file */
    const fathom_bundle *bundle; /* NULL: none */
    bool is_config;              /* MODEL is a file: a config without weights, in `config` */
    struct file_map config_map;
    struct buf config_text; /* with --hf-overrides in it; empty: as the file has it */
    fathom_bundle_file config_file;
    fathom_bundle config;
    const char *name; /* MODEL as given, without trailing slashes */
    char name_text[LIMIT_PATH_BYTES];
};

/* model_source_find - "pilot" is the bundle, a file is a config; anything else goes to
 * checkpoint_resolve, whose errors it has. model_source_close accepts a zeroed struct. */
fathom_err model_source_find(struct model_source *m, const struct settings *s,
                             const struct environment *e, fathom_diag *d);
void model_source_close(struct model_source *m);

/* settings_want_dummy - whether weights are made up: --load-format dummy */
bool settings_want_dummy(const struct settings *s);

/* model_source_open - its files; the caller closes the checkpoint. EINVAL for a config alone. With
 * --load-format dummy the weights are not looked at and need not be there. */
fathom_err model_source_open(struct checkpoint **out, const struct model_source *m,
                             const struct settings *s, fathom_diag *d);

/* model_source_open_files - without its weights, whatever the load format */
fathom_err model_source_open_files(struct checkpoint **out, const struct model_source *m,
                                   const struct settings *s, fathom_diag *d);

/* A checkpoint's way with text. */
struct text_model {
    struct tokenizer *tokenizer;
    struct chat_style style;
    char model_type[32];
    int32_t n_vocab_used; /* ids that are tokens: of the tokenizer, within the model's */
};

struct checkpoint;

/* text_tokenizer_open - from tokenizer.json, or else Kimi's tiktoken.model */
fathom_err text_tokenizer_open(struct tokenizer **out, struct checkpoint *c, fathom_diag *d);

/* text_model_open - tokenizer and chat style, as the command line may override it. Closed with
 * text_model_close, which accepts a zeroed struct.
 * Errors  those of the checkpoint, the config and the tokenizer. */
fathom_err text_model_open(struct text_model *out, const struct model_source *m,
                           const struct settings *s, fathom_diag *d);
void text_model_close(struct text_model *t);

/* engine_options - the library's options from the command line's */
void engine_options(fathom_options *out, const struct settings *s, const struct model_source *m);

/* engine_open - fathom_open, with its progress on a terminal */
fathom_err engine_open(fathom_engine **out, const fathom_options *o, fathom_diag *d);

/* What a subcommand is given. */
struct invocation {
    const struct settings *settings;
    const struct environment *environment;
    struct model_source *model; /* found already, for commands that take one */
    int *status;                /* of the process when the command succeeds; 0 */
};

/* The subcommands. What they say goes to standard output; an error is returned with a message. */
fathom_err cmd_serve(const struct invocation *v, fathom_diag *d);
fathom_err cmd_run_batch(const struct invocation *v, fathom_diag *d);
fathom_err cmd_run(const struct invocation *v, fathom_diag *d);
fathom_err cmd_inspect(const struct invocation *v, fathom_diag *d);
fathom_err cmd_tokenize(const struct invocation *v, fathom_diag *d);
fathom_err cmd_plan(const struct invocation *v, fathom_diag *d);
fathom_err cmd_doctor(const struct invocation *v, fathom_diag *d);
fathom_err cmd_evaluate(const struct invocation *v, fathom_diag *d);
fathom_err cmd_quantize(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_latency(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_kernels(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_throughput(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_serve(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_sweep(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_transfer(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_router(const struct invocation *v, fathom_diag *d);
fathom_err cmd_bench_report(const struct invocation *v, fathom_diag *d);
fathom_err cmd_chat(const struct invocation *v, fathom_diag *d);
fathom_err cmd_complete(const struct invocation *v, fathom_diag *d);
fathom_err cmd_health(const struct invocation *v, fathom_diag *d);
fathom_err cmd_pull(const struct invocation *v, fathom_diag *d);
fathom_err cmd_router(const struct invocation *v, fathom_diag *d);
fathom_err cmd_help(const struct invocation *v, fathom_diag *d);
fathom_err cmd_version(const struct invocation *v, fathom_diag *d);

#endif

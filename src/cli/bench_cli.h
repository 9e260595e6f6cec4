/* bench_cli.h - what the bench subcommands share */
#ifndef FATHOM_CLI_BENCH_CLI_H
#define FATHOM_CLI_BENCH_CLI_H

#include "bench/serve_result.h"
#include "cli/cli.h"

/* A tokenizer that counts. */
struct bench_tokenizer {
    struct tokenizer *tokenizer;
    bool adds_bos; /* a completion's prompt gets one token more */
    const char *name;
};

/* bench_tokenizer_open - from a directory, a tokenizer.json, org/name of the cache, or "pilot";
 * released with bench_tokenizer_close, which accepts a zeroed struct
 * Errors  ENOTFOUND with what to give instead; those of the file. */
fathom_err bench_tokenizer_open(struct bench_tokenizer *out, const char *name,
                                const struct invocation *v, fathom_diag *d);
void bench_tokenizer_close(struct bench_tokenizer *t);

/* bench_dataset - what the command line says of the prompts
 *
 *   n_added  tokens that are put in front of every prompt
 * Errors  EINVAL. */
fathom_err bench_dataset(struct dataset_options *out, const struct settings *s, uint32_t n_added,
                         fathom_diag *d);

/* A benchmark of a server, ready to run. */
struct bench_serve {
    struct serve_options options;
    struct serve_description about;
    struct bench_tokenizer tokenizer;
    char *found_model, *found_root; /* as the server tells; NULL: the command line had a model */
    char base_url[1024];
    char path[256];
    char date[32];
    bool is_progress_shown; /* a line on the terminal is to be ended */
};

/* bench_serve_open - released with bench_serve_close, also after an error
 * Errors  EINVAL of the command line; those of the tokenizer and of asking for the model. */
fathom_err bench_serve_open(struct bench_serve *out, const struct invocation *v, fathom_diag *d);
void bench_serve_close(struct bench_serve *b); /* accepts a zeroed struct */

/* bench_write_result - a result as one line of JSON */
fathom_err bench_write_result(struct buf *out, const struct bench_serve *b,
                              const struct serve_result *r, fathom_diag *d);

#endif

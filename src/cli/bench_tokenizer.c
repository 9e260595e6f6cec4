/* bench_tokenizer.c - the tokenizer that a benchmark counts with, without the rest of a model */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/os.h"
#include "cli/bench_cli.h"
#include "tokenizer/tokenizer.h"

/* A file of the model: of the bundle, or mapped. */
struct model_file {
    struct file_map map;
    const char *data;
    size_t n;
};

static fathom_err open_file(struct model_file *out, const struct model_source *m, const char *name,
                            fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    memset(out, 0, sizeof *out);
    for (size_t i = 0; m->bundle && i < m->bundle->n_file; i++) {
        if (strcmp(m->bundle->files[i].name, name) != 0) continue;
        out->data = (const char *)m->bundle->files[i].data;
        out->n = m->bundle->files[i].size;
    }
    if (m->bundle) return out->data ? FATHOM_OK : FATHOM_ENOTFOUND;
    TRY(path_join(path, sizeof path, m->dir, name));
    TRY(file_map_open(&out->map, path, d));
    out->data = out->map.data;
    out->n = out->map.size;
    return FATHOM_OK;
}

/* add_bos_token of tokenizer_config.json; a model without the file adds none. */
static fathom_err read_adds_bos(struct bench_tokenizer *t, const struct model_source *m,
                                fathom_diag *d)
{
    struct model_file file;
    json_t *config = NULL;
    if (open_file(&file, m, "tokenizer_config.json", NULL) != FATHOM_OK) return FATHOM_OK;
    fathom_err err = json_read(file.data, file.n, "tokenizer_config.json", &config, d);
    if (!err) err = json_get_bool(config, "add_bos_token", false, &t->adds_bos, d);
    json_decref(config);
    file_map_close(&file.map);
    return err;
}

static fathom_err open_ranks(struct bench_tokenizer *out, const struct model_source *m,
                             fathom_diag *d)
{
    struct model_file ranks, config;
    TRY(open_file(&ranks, m, "tiktoken.model", NULL));
    fathom_err err = open_file(&config, m, "tokenizer_config.json", d);
    if (!err) {
        struct tokenizer_ranks r = {ranks.data, ranks.n, config.data, config.n, "tiktoken.model"};
        err = tokenizer_open_ranks(&out->tokenizer, &r, d);
        file_map_close(&config.map);
    }
    file_map_close(&ranks.map);
    return err;
}

/* What m holds, which stays open. */
static fathom_err open_from(struct bench_tokenizer *out, const struct model_source *m,
                            fathom_diag *d, fathom_diag *cause)
{
    struct model_file file;
    if (m->is_config) return tokenizer_open_file(&out->tokenizer, m->name, d);
    fathom_err err = open_file(&file, m, "tokenizer.json", cause);
    if (err == FATHOM_ENOTFOUND) {
        fathom_err other = open_ranks(out, m, d);
        if (other != FATHOM_ENOTFOUND) return other;
    }
    TRY(err);
    err = tokenizer_open(&out->tokenizer, file.data, file.n, "tokenizer.json", d);
    file_map_close(&file.map);
    return err ? err : read_adds_bos(out, m, d);
}

fathom_err bench_tokenizer_open(struct bench_tokenizer *out, const char *name,
                                const struct invocation *v, fathom_diag *d)
{
    struct settings s = {.model = name};
    struct model_source m = {.bundle = NULL};
    fathom_diag cause = {{0}};
    memset(out, 0, sizeof *out);
    out->name = name;
    fathom_err err = model_source_find(&m, &s, v->environment, &cause);
    if (!err) err = open_from(out, &m, d, &cause);
    if (err && cause.text[0]) {
        err = diag_fail(d, err,
                        "no tokenizer to make and count prompts with: %s; give --tokenizer DIR, "
                        "where a tokenizer.json is",
                        cause.text);
    }
    model_source_close(&m);
    return err;
}

void bench_tokenizer_close(struct bench_tokenizer *t)
{
    tokenizer_close(t->tokenizer);
    memset(t, 0, sizeof *t);
}

/* text_model.c - the checkpoint's tokenizer and chat style */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

/* The chat template stands in tokenizer_config.json or in a file of its own, chat_template.jinja.
 *
 * tokenizer_config.json's: a string, or a list of named ones of which "default" is
 * taken. *out is borrowed from the tree, NULL when there is none. */
static void find_template(const json_t *config, const char **out)
{
    const json_t *t = json_object_get(config, "chat_template");
    size_t i;
    json_t *entry;
    *out = json_string_value(t);
    json_array_foreach (t, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) {
            *out = json_string_value(json_object_get(entry, "template"));
        }
    }
}

/* A new reference; NULL when there is none. What a server reads of it once the weights are loaded
 * is looked at here. */
static fathom_err read_config(json_t **out, struct checkpoint *c, fathom_diag *d)
{
    const char *text;
    bool adds_bos;
    size_t n;
    fathom_diag fault = {{0}};
    fathom_err err = checkpoint_file(c, "tokenizer_config.json", &text, &n, d);
    if (err == FATHOM_ENOTFOUND) return FATHOM_OK;
    TRY(err);
    TRY(json_read(text, n, "tokenizer_config.json", out, d));
    if (!json_is_object(*out)) {
        FAIL(d, FATHOM_EFORMAT, "tokenizer_config.json is %s, needed is an object",
             json_type_text(*out));
    }
    err = json_get_bool(*out, "add_bos_token", false, &adds_bos, &fault);
    if (err) FAIL(d, err, "tokenizer_config.json: %s", fault.text);
    return FATHOM_OK;
}

/* *out is the caller's, NULL when there is none. */
static fathom_err read_template(char **out, struct checkpoint *c, fathom_diag *d)
{
    const char *text;
    size_t n;
    fathom_err err = checkpoint_file(c, "chat_template.jinja", &text, &n, d);
    if (err == FATHOM_ENOTFOUND) return FATHOM_OK;
    TRY(err);
    *out = mem_alloc(n + 1);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "out of memory for chat_template.jinja");
    memcpy(*out, text, n);
    (*out)[n] = '\0';
    return FATHOM_OK;
}

static fathom_err choose_style(struct text_model *t, struct checkpoint *c, const struct settings *s,
                               fathom_diag *d)
{
    json_t *config = NULL;
    const char *chat_template = NULL;
    char *copy = NULL;
    struct chat_overrides overrides = {s->tokenizer_mode, s->tool_call_parser, s->reasoning_parser};
    fathom_err err;
    TRY_GOTO(read_config(&config, c, d), done);
    find_template(config, &chat_template);
    if (!chat_template) TRY_GOTO(read_template(&copy, c, d), done);
    err = chat_style_choose(&t->style, t->model_type, t->tokenizer, copy ? copy : chat_template,
                            &overrides, d);
done:
    json_decref(config);
    mem_free(copy);
    return err;
}

fathom_err text_tokenizer_open(struct tokenizer **out, struct checkpoint *c, fathom_diag *d)
{
    struct tokenizer_ranks ranks = {.what = "tiktoken.model"};
    const char *json;
    size_t n;
    *out = NULL;
    fathom_err err = checkpoint_file(c, "tokenizer.json", &json, &n, d);
    if (!err) return tokenizer_open(out, json, n, "tokenizer.json", d);
    if (err != FATHOM_ENOTFOUND) return err;
    err = checkpoint_file(c, "tiktoken.model", &ranks.text, &ranks.n, d);
    if (err == FATHOM_ENOTFOUND) {
        FAIL(d, err, "%s: tokenizer.json is missing", checkpoint_where(c));
    }
    TRY(err);
    err = checkpoint_file(c, "tokenizer_config.json", &ranks.config, &ranks.n_config, d);
    if (err == FATHOM_ENOTFOUND) {
        FAIL(d, err,
             "%s: tokenizer_config.json is missing, which names the special tokens of "
             "tiktoken.model",
             checkpoint_where(c));
    }
    TRY(err);
    return tokenizer_open_ranks(out, &ranks, d);
}

fathom_err text_model_open(struct text_model *out, const struct model_source *m,
                           const struct settings *s, fathom_diag *d)
{
    struct checkpoint *c = NULL;
    struct model_config config;
    fathom_err err;
    memset(out, 0, sizeof *out);
    TRY_GOTO(model_source_open(&c, m, s, d), done);
    TRY_GOTO(model_config_load(&config, c, d), done);
    (void)snprintf(out->model_type, sizeof out->model_type, "%s", config.model_type);
    TRY_GOTO(text_tokenizer_open(&out->tokenizer, c, d), done);
    out->n_vocab_used = tokenizer_n_token(out->tokenizer);
    if (out->n_vocab_used > (int32_t)config.n_vocab) out->n_vocab_used = (int32_t)config.n_vocab;
    TRY_GOTO(choose_style(out, c, s, d), done);
done:
    checkpoint_close(c);
    if (err) text_model_close(out);
    return err;
}

void text_model_close(struct text_model *t)
{
    tokenizer_close(t->tokenizer);
    memset(t, 0, sizeof *t);
}

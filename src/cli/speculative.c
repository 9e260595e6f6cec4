/* speculative.c - the value of --speculative-config, and of the options that stand in for it */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"
#include "fathom/fathom.h"

#define OPTION "--speculative-config"

static fathom_err check_method(const char *option, const char *name, fathom_diag *d)
{
    if (strcmp(name, "deepseek_mtp") == 0 || strcmp(name, "mtp") == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         "%s: method is \"%.40s\"; drafts come from the model's own MTP layer alone: give "
         "\"deepseek_mtp\"",
         option, name);
}

static fathom_err read_method(const json_t *v, fathom_diag *d)
{
    if (json_is_string(v)) return check_method(OPTION, json_string_value(v), d);
    FAIL(d, FATHOM_EINVAL, OPTION ": method is %s, needed is \"deepseek_mtp\"", json_type_text(v));
}

static fathom_err read_count(const json_t *v, uint32_t *n, fathom_diag *d)
{
    if (!json_is_integer(v)) {
        FAIL(d, FATHOM_EINVAL, OPTION ": num_speculative_tokens is %s, needed is 1 to %d",
             json_type_text(v), FATHOM_DRAFT_MAX);
    }
    long long count = json_integer_value(v);
    if (count < 1 || count > FATHOM_DRAFT_MAX) {
        FAIL(d, FATHOM_EINVAL, OPTION ": num_speculative_tokens is %lld, needed is 1 to %d", count,
             FATHOM_DRAFT_MAX);
    }
    *n = (uint32_t)count;
    return FATHOM_OK;
}

/* Keys of vLLM's that say how another drafter would run. */
static bool is_passed_over(const char *key)
{
    static const char *const keys[] = {"draft_tensor_parallel_size",
                                       "disable_padded_drafter_batch",
                                       "disable_logprobs",
                                       "disable_by_batch_size",
                                       "enforce_eager",
                                       "max_model_len",
                                       "quantization",
                                       "code_revision",
                                       "draft_load_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return false;
}

static fathom_err read_model(const json_t *v, const char *model, fathom_diag *d)
{
    const char *name = json_string_value(v);
    if (name && model && strcmp(name, model) == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         OPTION ": model is %.200s; drafts come from MODEL's own MTP layer alone: leave it out",
         name ? name : json_type_text(v));
}

static fathom_err read_keys(json_t *root, const char *model, uint32_t *n_draft, struct buf *notes,
                            fathom_diag *d)
{
    const char *key;
    json_t *v;
    if (!json_is_object(root)) {
        FAIL(d, FATHOM_EINVAL, OPTION " is %s, needed is an object", json_type_text(root));
    }
    json_object_foreach (root, key, v) {
        if (strcmp(key, "method") == 0) {
            TRY(read_method(v, d));
        } else if (strcmp(key, "num_speculative_tokens") == 0) {
            TRY(read_count(v, n_draft, d));
        } else if (strcmp(key, "model") == 0) {
            TRY(read_model(v, model, d));
        } else if (is_passed_over(key)) {
            TRY(buf_printf(notes,
                           OPTION ": \"%s\" has no effect: drafts come from MODEL's own MTP "
                                  "layer, which runs as MODEL does\n",
                           key));
        } else {
            FAIL(d, FATHOM_EINVAL,
                 OPTION ": \"%.40s\" is not known; there are method and num_speculative_tokens",
                 key);
        }
    }
    if (*n_draft > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, OPTION ": num_speculative_tokens is missing, needed is 1 to %d",
         FATHOM_DRAFT_MAX);
}

/* --spec-method and --spec-tokens */
static fathom_err take_short(const struct speculative_given *given, uint32_t *n_draft,
                             fathom_diag *d)
{
    *n_draft = given->n_token;
    if (!given->method) return FATHOM_OK;
    TRY(check_method("--spec-method", given->method, d));
    if (given->n_token > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--spec-method: give --spec-tokens too, 1 to %d", FATHOM_DRAFT_MAX);
}

fathom_err speculative_parse(const struct speculative_given *given, uint32_t *n_draft,
                             struct buf *notes, fathom_diag *d)
{
    const char *text = given->config;
    json_t *root = NULL;
    if (!text) return take_short(given, n_draft, d);
    *n_draft = 0;
    if (given->method || given->n_token > 0) {
        FAIL(d, FATHOM_EINVAL, OPTION " and %s say the same: leave one of them out",
             given->method ? "--spec-method" : "--spec-tokens");
    }
    TRY(json_read(text, strlen(text), OPTION, &root, d));
    fathom_err err = read_keys(root, given->model, n_draft, notes, d);
    json_decref(root);
    return err;
}

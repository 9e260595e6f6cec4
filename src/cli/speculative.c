/* speculative.c - the value of --speculative-config */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"
#include "fathom/fathom.h"

#define OPTION "--speculative-config"

static fathom_err check_method(const json_t *v, fathom_diag *d)
{
    if (!json_is_string(v)) {
        FAIL(d, FATHOM_EINVAL, OPTION ": method is %s, needed is \"deepseek_mtp\"",
             json_type_text(v));
    }
    const char *name = json_string_value(v);
    if (strcmp(name, "deepseek_mtp") == 0 || strcmp(name, "mtp") == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         OPTION ": method is \"%.40s\"; drafts come from the model's own MTP layer alone: give "
                "\"deepseek_mtp\"",
         name);
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

static fathom_err read_keys(json_t *root, uint32_t *n_draft, fathom_diag *d)
{
    const char *key;
    json_t *v;
    if (!json_is_object(root)) {
        FAIL(d, FATHOM_EINVAL, OPTION " is %s, needed is an object", json_type_text(root));
    }
    json_object_foreach (root, key, v) {
        if (strcmp(key, "method") == 0) {
            TRY(check_method(v, d));
        } else if (strcmp(key, "num_speculative_tokens") == 0) {
            TRY(read_count(v, n_draft, d));
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

fathom_err speculative_parse(const char *text, uint32_t *n_draft, fathom_diag *d)
{
    json_t *root = NULL;
    *n_draft = 0;
    if (!text) return FATHOM_OK;
    TRY(json_read(text, strlen(text), OPTION, &root, d));
    fathom_err err = read_keys(root, n_draft, d);
    json_decref(root);
    return err;
}

/* reasoning_config.c - the value of --reasoning-config */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"

#define OPTION "--reasoning-config"
#define BEGIN "<think>"
#define END "</think>"

static fathom_err read_begin(const char *s, fathom_diag *d)
{
    if (strcmp(s, BEGIN) == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         OPTION ": reasoning_start_str is \"%.40s\"; reasoning of this family begins with " BEGIN,
         s);
}

static fathom_err read_end(struct settings *settings, const char *s, fathom_diag *d)
{
    const size_t n = strlen(s), n_end = strlen(END);
    const char *tag = strstr(s, END);
    if (!tag || tag + n_end != s + n || strstr(s, BEGIN)) {
        FAIL(d, FATHOM_EINVAL,
             OPTION ": reasoning_end_str is \"%.80s\", needed is " END ", or words and " END
                    " behind them",
             s);
    }
    if (tag == s) return FATHOM_OK;
    struct buf closing = {0};
    fathom_err err = buf_add(&closing, s, n - n_end);
    if (!err) settings->reasoning_closing = option_keep(settings, buf_str(&closing));
    buf_free(&closing);
    return settings->reasoning_closing ? err : FATHOM_ENOMEM;
}

static fathom_err read_keys(struct settings *settings, json_t *root, fathom_diag *d)
{
    const char *key;
    json_t *v;
    if (!json_is_object(root)) {
        FAIL(d, FATHOM_EINVAL, OPTION " is %s, needed is an object", json_type_text(root));
    }
    json_object_foreach (root, key, v) {
        const bool begins = strcmp(key, "reasoning_start_str") == 0;
        if (!begins && strcmp(key, "reasoning_end_str") != 0) {
            FAIL(d, FATHOM_EINVAL,
                 OPTION ": \"%.40s\" is not known; there are reasoning_start_str and "
                        "reasoning_end_str",
                 key);
        }
        const char *s = json_string_value(v);
        if (json_is_null(v) || (s && !*s)) continue; /* vLLM's word for the usual ones */
        if (!s) {
            FAIL(d, FATHOM_EINVAL, OPTION ": %s is %s, needed is a string", key, json_type_text(v));
        }
        TRY(begins ? read_begin(s, d) : read_end(settings, s, d));
    }
    return FATHOM_OK;
}

fathom_err reasoning_parse(struct settings *s, fathom_diag *d)
{
    const char *text = s->reasoning_config;
    json_t *root = NULL;
    if (!text) return FATHOM_OK;
    TRY(json_read(text, strlen(text), OPTION, &root, d));
    fathom_err err = read_keys(s, root, d);
    json_decref(root);
    return err;
}

/* option_file.c - options from a file (--config) */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"

/* The text that would be typed for a value; lives as long as the settings. */
static fathom_err value_text(struct option_walk *w, const json_t *value, const char **out)
{
    struct buf b = {0};
    fathom_err err = FATHOM_OK;
    if (json_is_string(value)) {
        err = buf_add_str(&b, json_string_value(value));
    } else if (json_is_real(value)) {
        err = buf_printf(&b, "%.15g", json_real_value(value));
    } else {
        err = json_write(&b, value);
    }
    *out = err ? NULL : option_keep(w->settings, buf_str(&b));
    buf_free(&b);
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

/* `no-x: true` is --no-x; `no-x: false` says nothing, as in vLLM. */
static fathom_err take_flag(struct option_walk *w, const struct option_match *m,
                            const json_t *value)
{
    const char *no = m->negated ? "no-" : "";
    if (!json_is_boolean(value)) {
        FAIL(w->diag, FATHOM_EINVAL, "%s%s is %s, needed is true or false", no, m->option->name,
             json_type_text(value));
    }
    if (m->negated && !json_is_true(value)) return FATHOM_OK;
    return option_set(w, m->option, json_is_true(value) && !m->negated ? "true" : "false");
}

static fathom_err take_list(struct option_walk *w, const struct option *o, const json_t *value)
{
    const char *text;
    size_t i;
    json_t *item;
    option_clear(w->settings, o);
    if (!json_is_array(value)) {
        TRY(value_text(w, value, &text));
        return option_set(w, o, text);
    }
    json_array_foreach (value, i, item) {
        TRY(value_text(w, item, &text));
        TRY(option_set(w, o, text));
    }
    return FATHOM_OK;
}

static fathom_err take_key(struct option_walk *w, const char *key, const json_t *value)
{
    struct option_match m;
    struct buf spelling = {0};
    const char *text;
    TRY(buf_printf(&spelling, "--%s", key));
    fathom_err err = option_find(w, buf_str(&spelling), &m);
    buf_free(&spelling);
    if (err) return err;
    const struct option *o = m.option;
    if (m.path || m.value || o->kind == OPTION_HELP || strcmp(o->name, "config") == 0) {
        FAIL(w->diag, FATHOM_EINVAL, "\"%s\" cannot stand in a file of options", key);
    }
    bool nothing = json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
    if (o->secret && nothing) {
        FAIL(w->diag, FATHOM_EINVAL,
             "%s holds nothing: whoever gives keys wants the server closed; give one, or leave the "
             "line out",
             o->name);
    }
    if (json_is_null(value)) return FATHOM_OK;
    if (o->kind == OPTION_FLAG) return take_flag(w, &m, value);
    if (o->kind == OPTION_LIST) return take_list(w, o, value);
    TRY(value_text(w, value, &text));
    return option_set(w, o, text);
}

fathom_err option_read_file(struct option_walk *w, const char *path)
{
    json_t *root = NULL;
    const char *key;
    json_t *value;
    size_t n = strlen(path);
    fathom_err err;
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        TRY_GOTO(json_read_file(path, &root, w->diag), done);
    } else {
        TRY_GOTO(yaml_read_file(path, &root, w->diag), done);
    }
    if (!json_is_object(root)) {
        err = diag_fail(w->diag, FATHOM_EINVAL, "it is %s, needed are lines such as \"port: 8000\"",
                        json_type_text(root));
        goto done;
    }
    json_object_foreach (root, key, value) TRY_GOTO(take_key(w, key, value), done);
done:
    json_decref(root);
    return err;
}

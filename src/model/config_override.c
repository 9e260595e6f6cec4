/* config_override.c - puts members of one object into another */
#include "model/config_override.h"

#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"

#define OPTION "--hf-overrides"

static fathom_err check_object(const json_t *value, const char *what, fathom_diag *d)
{
    if (json_is_object(value)) return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "%s: the text is %s, an object is needed", what, json_type_text(value));
}

static fathom_err put_all(json_t *config, json_t *overrides, bool tells, fathom_diag *d)
{
    const char *key;
    json_t *value;
    json_object_foreach (overrides, key, value) {
        if (tells && !json_object_get(config, key)) {
            LOG_WARN("model",
                     OPTION ": config.json has no \"%.64s\"; if nothing reads it, it has no effect",
                     key);
        }
        if (json_object_set(config, key, value) != 0)
            FAIL(d, FATHOM_ENOMEM, "out of memory for config.json");
    }
    return FATHOM_OK;
}

fathom_err config_override(struct buf *out, const char *text, size_t n, const char *overrides,
                           bool tells, fathom_diag *d)
{
    json_t *config = NULL, *others = NULL;
    fathom_err err;
    TRY_GOTO(json_read(text, n, "config.json", &config, d), done);
    TRY_GOTO(json_read(overrides, strlen(overrides), OPTION, &others, d), done);
    TRY_GOTO(check_object(config, "config.json", d), done);
    TRY_GOTO(check_object(others, OPTION, d), done);
    TRY_GOTO(put_all(config, others, tells, d), done);
    err = json_write(out, config);
done:
    json_decref(config);
    json_decref(others);
    return err;
}

fathom_err checkpoint_override(struct checkpoint *c, const char *overrides, bool tells,
                               fathom_diag *d)
{
    struct buf b = {0};
    const char *text;
    size_t n;
    if (!overrides) return FATHOM_OK;
    fathom_err err = checkpoint_file(c, "config.json", &text, &n, d);
    if (err == FATHOM_ENOTFOUND) FAIL(d, err, "%s: there is no config.json", checkpoint_where(c));
    if (!err) err = config_override(&b, text, n, overrides, tells, d);
    if (!err) err = checkpoint_replace(c, "config.json", &b, d);
    buf_free(&b);
    return err;
}

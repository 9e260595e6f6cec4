/* request_defaults.c - the values of --override-generation-config and
 * --default-chat-template-kwargs: what holds for requests that do not say */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"

#define SAMPLING "--override-generation-config"
#define KEYWORDS "--default-chat-template-kwargs"

/* Reads what an option holds, key by key; null is as if it were not there. */
static fathom_err read_object(const char *option, const char *text, struct settings *s,
                              fathom_err (*read)(struct settings *s, const char *key,
                                                 const json_t *v, fathom_diag *d),
                              fathom_diag *d)
{
    const char *key;
    json_t *v, *root = NULL;
    fathom_err err = FATHOM_OK;
    if (!text) return FATHOM_OK;
    TRY(json_read(text, strlen(text), option, &root, d));
    if (!json_is_object(root)) {
        err = diag_fail(d, FATHOM_EINVAL, "%s is %s, needed is an object", option,
                        json_type_text(root));
    }
    json_object_foreach (root, key, v) {
        if (!err && !json_is_null(v)) err = read(s, key, v, d);
    }
    json_decref(root);
    return err;
}

static fathom_err read_sampling(struct settings *s, const char *key, const json_t *v,
                                fathom_diag *d)
{
    fathom_sampling *p = &s->sampling;
    const struct {
        const char *name;
        float *to;
        double lo, hi;
        bool above; /* lo itself is out */
    } keys[] = {{"temperature", &p->temperature, 0, 2, false},
                {"top_p", &p->top_p, 0, 1, true},
                {"min_p", &p->min_p, 0, 1, false},
                {"repetition_penalty", &p->repetition_penalty, 0, INFINITY, true}};
    const double x = json_number_value(v);
    if (!json_is_number(v)) {
        FAIL(d, FATHOM_EINVAL, SAMPLING ": %.40s is %s, needed is a number", key,
             json_type_text(v));
    }
    if (strcmp(key, "top_k") == 0) {
        if (x != rint(x) || x < -1 || x > INT32_MAX) {
            FAIL(d, FATHOM_EINVAL, SAMPLING ": top_k is %g, needed is -1 (off) or from 1", x);
        }
        p->top_k = x < 1 ? 0 : (int32_t)x;
        return FATHOM_OK;
    }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i].name) != 0) continue;
        const double lo = keys[i].lo, hi = keys[i].hi, above = keys[i].above ? (double)FLT_MIN : 0;
        if (x < lo || x > hi || (keys[i].above && x == lo)) {
            char most[32] = "";
            if (isfinite(hi)) (void)snprintf(most, sizeof most, " to %g", hi);
            FAIL(d, FATHOM_EINVAL, SAMPLING ": %s is %g, needed is %s%g%s", key, x,
                 keys[i].above ? "more than " : "", lo, most);
        }
        *keys[i].to = (float)fmin(fmax(x, lo + above), (double)FLT_MAX);
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EINVAL,
         SAMPLING ": %.40s is not known here; there are temperature, top_p, top_k, min_p and "
                  "repetition_penalty",
         key);
}

static fathom_err read_keyword(struct settings *s, const char *key, const json_t *v, fathom_diag *d)
{
    if (strcmp(key, "thinking") != 0 && strcmp(key, "enable_thinking") != 0) {
        FAIL(d, FATHOM_EINVAL,
             KEYWORDS ": %.40s is not known here; there are thinking and enable_thinking", key);
    }
    if (!json_is_boolean(v)) {
        FAIL(d, FATHOM_EINVAL, KEYWORDS ": %s is %s, needed is true or false", key,
             json_type_text(v));
    }
    s->thinking = json_is_true(v);
    return FATHOM_OK;
}

fathom_err request_defaults_parse(struct settings *s, fathom_diag *d)
{
    s->sampling = (fathom_sampling){
        .temperature = -1, .top_p = -1, .top_k = -1, .min_p = -1, .repetition_penalty = -1};
    TRY(read_object(SAMPLING, s->override_generation_config, s, read_sampling, d));
    return read_object(KEYWORDS, s->default_chat_template_kwargs, s, read_keyword, d);
}

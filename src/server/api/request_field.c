/* request_field.c - errors and paths of fields, readers by type, and readers of single fields */
#include "server/api/request_field.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"

static void *member(const struct field_context *x, const struct field *f)
{
    return (char *)x->r + f->offset;
}

const struct field *field_find(const struct field_table *t, const char *name, enum api_kind api)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct field *f = &t->fields[i];
        if ((f->apis & (1u << api)) && strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}

/* ---- errors -------------------------------------------------------------------------------- */

fathom_err field_wrong_type(struct field_context *x, const char *path, const json_t *v,
                            const char *want)
{
    const char *seen = json_type_text(v);
    if (json_is_string(v) && json_string_length(v) == 0) seen = "an empty string";
    if (json_is_array(v) && json_array_size(v) == 0) seen = "an empty array";
    return api_error_set(x->e, 400, "invalid_type", path, "%s is %s, needed is %s", path, seen,
                         want);
}

fathom_err field_out_of_range(struct field_context *x, const char *path, const json_t *v, double lo,
                              double hi, bool lo_open)
{
    char seen[40], range[80];
    bool is_integer;
    int64_t i = field_integer(v, &is_integer);
    if (json_is_integer(v) || (is_integer && !json_is_real(v))) {
        (void)snprintf(seen, sizeof seen, "%lld", (long long)i);
    } else {
        (void)snprintf(seen, sizeof seen, "%g", field_number(v, &is_integer));
    }
    if (isinf(hi)) {
        (void)snprintf(range, sizeof range, "%s %.10g", lo_open ? "more than" : "at least", lo);
    } else if (lo_open) {
        (void)snprintf(range, sizeof range, "more than %.10g, up to %.10g", lo, hi);
    } else {
        (void)snprintf(range, sizeof range, "%.10g to %.10g", lo, hi);
    }
    return api_error_set(x->e, 400, "invalid_value", path, "%s is %s, needed is %s", path, seen,
                         range);
}

fathom_err field_warn(struct field_context *x, const char *fmt, ...)
{
    struct api_warnings *w = &x->r->warnings;
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++) { /* it goes into a header, and may quote the request */
        if (*c < 0x20 || *c >= 0x7f) *c = '?';
    }
    size_t n = strlen(w->text);
    w->n++;
    if (n + strlen(text) + 3 > sizeof w->text) {
        w->n_untold++;
    } else {
        (void)snprintf(w->text + n, sizeof w->text - n, "%s%s", n ? "; " : "", text);
    }
    return FATHOM_OK;
}

struct field_place field_element(const char *parent, size_t i)
{
    struct field_place p;
    (void)snprintf(p.path, sizeof p.path, "%.96s[%zu]", parent, i);
    return p;
}

struct field_place field_member(const char *parent, const char *member)
{
    struct field_place p;
    (void)snprintf(p.path, sizeof p.path, "%.80s.%.40s", parent, member);
    return p;
}

fathom_err field_get_string(struct field_context *x, const char *path, const json_t *object,
                            const char *key, json_t **out)
{
    *out = json_object_get(object, key);
    if (json_is_string(*out)) return FATHOM_OK;
    return field_wrong_type(x, field_member(path, key).path, *out, "a string");
}

fathom_err field_pass_tool_type(struct field_context *x, const char *path, const char *type)
{
    const struct field_place at = field_member(path, "type");
    if (!x->bounds->strict) {
        return field_warn(x, "%s is \"%.60s\", a tool that does not run here", at.path, type);
    }
    return api_error_set(x->e, 400, "unsupported_value", at.path,
                         "%s is \"%.60s\", a tool that does not run here; only functions of the "
                         "client are supported",
                         at.path, type);
}

fathom_err field_push(json_t *list, json_t *value)
{
    return json_array_append_new(list, value) == 0 ? FATHOM_OK : FATHOM_ENOMEM;
}

/* Passes over an unknown member with a warning; strict: refuses it. */
static fathom_err pass_unknown(struct field_context *x, const char *path)
{
    if (!x->bounds->strict) return field_warn(x, "%s is not known here", path);
    return api_error_set(x->e, 400, "unsupported_parameter", path,
                         "%s is not known here; leave it out", path);
}

fathom_err field_check_keys(struct field_context *x, const char *path, const json_t *object,
                            const char *const *keys)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value) {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0) i++;
        if (keys[i] || json_is_null(value)) continue;
        TRY(pass_unknown(x, field_member(path, key).path));
    }
    return FATHOM_OK;
}

/* ---- readers by type ----------------------------------------------------------------------- */

enum { NUMBER_TEXT_MAX = 32 };

/* The text of a string that holds a decimal number, with blanks around it; strtod alone would
 * accept more, such as "inf". NULL: v is no such text. */
static const char *number_text(const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n == 0 || n > NUMBER_TEXT_MAX || strspn(s, " +-.0123456789eE") != n) return NULL;
    return s;
}

/* Whether a number has been read up to the blanks behind it. */
static bool is_read(const char *s, const char *end)
{
    return end != s && end[strspn(end, " ")] == '\0';
}

double field_number(const json_t *v, bool *ok)
{
    const char *s = number_text(v);
    char *end = NULL;
    *ok = json_is_number(v);
    if (*ok || !s) return json_number_value(v);
    double d = strtod(s, &end);
    *ok = is_read(s, end) && isfinite(d);
    return d;
}

int64_t field_integer(const json_t *v, bool *ok)
{
    const char *s = number_text(v);
    char *end = NULL;
    *ok = true;
    if (json_is_integer(v)) return json_integer_value(v);
    errno = 0;
    int64_t i = s ? strtoll(s, &end, 10) : 0;
    if (s && errno == 0 && is_read(s, end)) return i;
    double d = field_number(v, ok);
    *ok = *ok && d == rint(d) && fabs(d) < 9e15;
    return *ok ? (int64_t)d : 0;
}

bool field_boolean(const json_t *v, bool *out)
{
    static const char *const words[] = {"0", "false", "f", "no",  "n", "off",
                                        "1", "true",  "t", "yes", "y", "on"};
    enum { N_WORD = sizeof words / sizeof words[0] };
    const double d = json_is_number(v) ? json_number_value(v) : -1;
    *out = json_is_true(v) || d == 1;
    if (json_is_boolean(v) || d == 0 || d == 1) return true;
    for (size_t i = 0; json_is_string(v) && i < N_WORD; i++) {
        *out = i >= N_WORD / 2;
        if (strcasecmp(words[i], json_string_value(v)) != 0) continue;
        return strlen(words[i]) == json_string_length(v); /* no NUL and more behind it */
    }
    return false;
}

fathom_err field_flag(struct field_context *x, const struct field *f, json_t *v)
{
    if (field_boolean(v, member(x, f))) return FATHOM_OK;
    return field_wrong_type(x, f->name, v, "a boolean");
}

fathom_err field_real(struct field_context *x, const struct field *f, json_t *v)
{
    bool ok;
    double d = field_number(v, &ok);
    if (!ok) return field_wrong_type(x, f->name, v, "a number");
    if (!(d >= f->lo && d <= f->hi) || (f->lo_open && d == f->lo)) {
        return field_out_of_range(x, f->name, v, f->lo, f->hi, f->lo_open);
    }
    /* as a float, a tiny number must not become an excluded bound, nor a huge one infinite */
    if (f->lo_open) d = fmax(d, f->lo + (double)FLT_MIN);
    *(float *)member(x, f) = (float)fmin(d, (double)FLT_MAX);
    return FATHOM_OK;
}

fathom_err field_read_integer(struct field_context *x, const struct field *f, const json_t *v,
                              int64_t *out)
{
    bool ok;
    *out = field_integer(v, &ok);
    if (!ok) return field_wrong_type(x, f->name, v, "an integer");
    if ((double)*out < f->lo || (double)*out > f->hi) {
        return field_out_of_range(x, f->name, v, f->lo, f->hi, false);
    }
    return FATHOM_OK;
}

fathom_err field_count(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(field_read_integer(x, f, v, &i));
    *(uint32_t *)member(x, f) = (uint32_t)i;
    return FATHOM_OK;
}

fathom_err field_int(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(field_read_integer(x, f, v, &i));
    *(int32_t *)member(x, f) = (int32_t)i;
    return FATHOM_OK;
}

fathom_err field_none(struct field_context *x, const struct field *f, json_t *v)
{
    (void)x, (void)f, (void)v;
    return FATHOM_OK;
}

fathom_err field_later(struct field_context *x, const struct field *f, json_t *v)
{
    (void)x, (void)f, (void)v;
    return FATHOM_OK;
}

fathom_err field_object(struct field_context *x, const struct field *f, json_t *v)
{
    return json_is_plain_object(v) ? FATHOM_OK : field_wrong_type(x, f->name, v, "an object");
}

bool field_is_off(const json_t *v)
{
    return json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_plain_object(v) && json_object_size(v) == 0);
}

fathom_err field_refuse(struct field_context *x, const struct field *f, json_t *v)
{
    if (field_is_off(v)) return FATHOM_OK;
    return api_error_set(x->e, 400, "unsupported_parameter", f->name, "%s is not supported: %s",
                         f->name, f->note);
}

fathom_err field_idle(struct field_context *x, const struct field *f, json_t *v)
{
    if (x->bounds->strict) return field_refuse(x, f, v);
    return field_is_off(v) ? FATHOM_OK : field_warn(x, "%s changes nothing: %s", f->name, f->note);
}

/* ---- readers of one field ------------------------------------------------------------------ */

fathom_err field_model(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    if (strlen(json_string_value(v)) != json_string_length(v)) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "model holds a NUL character, needed is a served name");
    }
    mem_free(x->r->model);
    x->r->model = mem_strndup(json_string_value(v), json_string_length(v));
    return x->r->model ? FATHOM_OK : FATHOM_ENOMEM;
}

/* As with vLLM, a seed of -1 means that there is none. */
fathom_err field_seed(struct field_context *x, const struct field *f, json_t *v)
{
    bool ok;
    int64_t seed = field_integer(v, &ok);
    if (!ok) return field_wrong_type(x, f->name, v, "an integer");
    x->r->sampling.has_seed = seed != -1;
    x->r->sampling.seed = (uint64_t)seed;
    return FATHOM_OK;
}

/* Salts only keep requests apart, so a hash of the text is enough. 0 means that there is no
 * salt. */
fathom_err field_cache_salt(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, f->name, v, "a string");
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n == 0) {
        return api_error_set(x->e, 400, "invalid_value", f->name,
                             "%s is empty, needed is at least one character", f->name);
    }
    uint64_t h = 1;
    for (size_t i = 0; i < n; i++) h = rng_hash(h ^ (unsigned char)s[i]);
    x->r->cache_salt = h ? h : 1;
    return FATHOM_OK;
}

fathom_err field_resume(struct field_context *x, const struct field *f, json_t *v)
{
    struct api_request *r = x->r;
    if (!json_is_array(v)) return field_wrong_type(x, f->name, v, "an array of token ids");
    size_t n = json_array_size(v);
    if (n == 0) return FATHOM_OK;
    r->resume = mem_alloc_array(n, sizeof *r->resume);
    if (!r->resume) return FATHOM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct field_place at = field_element(f->name, i);
        const json_t *item = json_array_get(v, i);
        bool ok;
        int64_t id = field_integer(item, &ok);
        if (!ok) return field_wrong_type(x, at.path, item, "a token id");
        if (id < 0 || id >= x->bounds->n_vocab) {
            return field_out_of_range(x, at.path, item, 0, (double)x->bounds->n_vocab - 1, false);
        }
        r->resume[i] = (int32_t)id;
    }
    r->n_resume = (uint32_t)n;
    return FATHOM_OK;
}

/* max_completion_tokens is the newer name and wins when both are given. A completion that only
 * echoes its prompt may ask for 0; check_output_length knows. */
fathom_err field_max_tokens(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(field_read_integer(x, f, v, &i));
    bool newer = strcmp(f->name, "max_completion_tokens") == 0;
    if (!newer) {
        const json_t *other = json_object_get(x->r->root, "max_completion_tokens");
        if (other && !json_is_null(other)) return FATHOM_OK;
    }
    x->r->max_tokens = i;
    return FATHOM_OK;
}

static fathom_err add_stop(struct field_context *x, const char *path, const json_t *v)
{
    if (!json_is_string(v)) return field_wrong_type(x, path, v, "a string");
    size_t n = json_string_length(v);
    if (n == 0) {
        return api_error_set(x->e, 400, "invalid_value", path,
                             "%s is an empty string, which would stop at once", path);
    }
    if (n > LIMIT_STOP_BYTES) {
        return api_error_set(x->e, 400, "invalid_value", path,
                             "%s is %zu bytes long, at most %d are taken", path, n,
                             LIMIT_STOP_BYTES);
    }
    struct api_request *r = x->r;
    r->stops[r->n_stop] = mem_strndup(json_string_value(v), n);
    if (!r->stops[r->n_stop]) return FATHOM_ENOMEM;
    r->stop_lens[r->n_stop++] = n;
    return FATHOM_OK;
}

fathom_err field_too_many(struct field_context *x, const char *path, size_t n, size_t limit)
{
    return api_error_set(x->e, 400, "invalid_value", path,
                         "%s has %zu entries, at most %zu are taken", path, n, limit);
}

fathom_err field_stop(struct field_context *x, const struct field *f, json_t *v)
{
    if (json_is_string(v)) return add_stop(x, f->name, v);
    if (!json_is_array(v))
        return field_wrong_type(x, f->name, v, "a string or an array of strings");
    size_t n = json_array_size(v);
    if (n > LIMIT_STOP_STRINGS) return field_too_many(x, f->name, n, LIMIT_STOP_STRINGS);
    for (size_t i = 0; i < n; i++) {
        char path[48];
        (void)snprintf(path, sizeof path, "%s[%zu]", f->name, i);
        TRY(add_stop(x, path, json_array_get(v, i)));
    }
    return FATHOM_OK;
}

/* A key of logit_bias: decimal digits. -1 when it is not an id of the vocabulary. */
static int64_t read_id_key(const char *key, uint32_t n_vocab)
{
    int64_t id = 0;
    if (!*key) return -1;
    for (const char *c = key; *c; c++) {
        if (*c < '0' || *c > '9') return -1;
        id = id * 10 + (*c - '0');
        if (id >= n_vocab) return -1;
    }
    return id;
}

/* A bias outside the range counts as the end of the range. */
fathom_err field_logit_bias(struct field_context *x, const struct field *f, json_t *v)
{
    if (!json_is_plain_object(v)) {
        return field_wrong_type(x, f->name, v, "an object of token ids and numbers");
    }
    size_t n = json_object_size(v);
    if (n > LIMIT_LOGIT_BIAS) return field_too_many(x, f->name, n, LIMIT_LOGIT_BIAS);
    const char *key;
    json_t *value;
    uint32_t i = 0;
    json_object_foreach (v, key, value) {
        char path[64];
        (void)snprintf(path, sizeof path, "logit_bias[\"%.24s\"]", key);
        int64_t id = read_id_key(key, x->bounds->n_vocab);
        if (id < 0) {
            return api_error_set(x->e, 400, "invalid_value", path,
                                 "%s: the key is not a token id, needed is 0 to %u", path,
                                 x->bounds->n_vocab - 1);
        }
        bool ok;
        double bias = field_number(value, &ok);
        if (!ok) return field_wrong_type(x, path, value, "a number");
        bias = fmin(fmax(bias, f->lo), f->hi);
        x->r->bias[i++] = (fathom_bias){(int32_t)id, (float)bias};
    }
    x->r->sampling.bias = x->r->bias;
    x->r->sampling.n_bias = i;
    return FATHOM_OK;
}

fathom_err field_top_logprobs(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t i;
    TRY(field_read_integer(x, f, v, &i));
    x->r->sampling.n_top_logprobs = (uint32_t)i;
    x->r->has_top_logprobs = i > 0;
    return FATHOM_OK;
}

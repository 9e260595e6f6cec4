/* compilation.c - the values of --compilation-config and -O */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"

#define OPTION "--compilation-config"

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, names[i]) == 0) return true;
    }
    return false;
}

/* A recording is of a whole step, whatever mode asks for one. */
static fathom_err read_mode(const json_t *v, struct compilation *out, struct buf *notes,
                            fathom_diag *d)
{
    static const char *const modes[] = {"FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE",
                                        "PIECEWISE"};
    const char *name = json_is_string(v) ? json_string_value(v) : "";
    out->no_graphs = strcmp(name, "NONE") == 0;
    if (out->no_graphs) return FATHOM_OK;
    if (!is_one_of(name, modes, sizeof modes / sizeof *modes)) {
        FAIL(d, FATHOM_EINVAL,
             OPTION ": cudagraph_mode is %.40s, needed is NONE, FULL, FULL_DECODE_ONLY, "
                    "FULL_AND_PIECEWISE or PIECEWISE",
             *name ? name : json_type_text(v));
    }
    if (strstr(name, "PIECEWISE") == NULL) return FATHOM_OK;
    return buf_printf(notes,
                      OPTION ": cudagraph_mode %s is taken as FULL: steps are recorded "
                             "whole\n",
                      name);
}

static fathom_err read_count(const json_t *v, const char *key, long long least, long long most,
                             uint32_t *out, fathom_diag *d)
{
    if (!json_is_integer(v)) {
        FAIL(d, FATHOM_EINVAL, OPTION ": %s is %s, needed is %lld to %lld", key, json_type_text(v),
             least, most);
    }
    long long n = json_integer_value(v);
    if (n < least || n > most) {
        FAIL(d, FATHOM_EINVAL, OPTION ": %s is %lld, needed is %lld to %lld", key, n, least, most);
    }
    *out = (uint32_t)n;
    return FATHOM_OK;
}

static fathom_err read_sizes(const json_t *v, struct compilation *out, fathom_diag *d)
{
    if (!json_is_array(v) || json_array_size(v) > COMPILATION_SIZES_MAX) {
        FAIL(d, FATHOM_EINVAL,
             OPTION ": cudagraph_capture_sizes is %s, needed is an array of at most %d counts of "
                    "tokens",
             json_is_array(v) ? "too long" : json_type_text(v), COMPILATION_SIZES_MAX);
    }
    out->n_size = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        TRY(read_count(json_array_get(v, i), "a size of cudagraph_capture_sizes", 1,
                       COMPILATION_SIZE_LIMIT, &out->sizes[out->n_size], d));
        out->n_size++;
    }
    if (out->n_size == 0) out->no_graphs = true; /* nothing is to be captured */
    return FATHOM_OK;
}

static fathom_err read_keys(const json_t *root, struct compilation *out, struct buf *notes,
                            fathom_diag *d)
{
    const char *key;
    json_t *v;
    if (json_is_integer(root)) { /* as older command lines have it: a level of -O */
        uint32_t level;
        TRY(read_count(root, "the level", 0, 3, &level, d));
        out->no_graphs = level == 0;
        return FATHOM_OK;
    }
    if (!json_is_object(root)) {
        FAIL(d, FATHOM_EINVAL, OPTION " is %s, needed is an object, or a level of 0 to 3",
             json_type_text(root));
    }
    json_object_foreach ((json_t *)(uintptr_t)root, key, v) {
        if (json_is_null(v)) continue;
        if (strcmp(key, "cudagraph_mode") == 0) {
            TRY(read_mode(v, out, notes, d));
        } else if (strcmp(key, "cudagraph_capture_sizes") == 0) {
            TRY(read_sizes(v, out, d));
        } else if (strcmp(key, "cudagraph_num_of_warmups") == 0) {
            TRY(read_count(v, key, 0, 100, &out->n_warm_up, d));
        } else {
            TRY(buf_printf(notes,
                           OPTION ": \"%.40s\" has no effect: kernels are compiled ahead of "
                                  "time\n",
                           key));
        }
    }
    return FATHOM_OK;
}

fathom_err compilation_parse(const char *text, int64_t level, struct compilation *out,
                             struct buf *notes, fathom_diag *d)
{
    json_t *root = NULL;
    *out = (struct compilation){0};
    if (text) {
        TRY(json_read(text, strlen(text), OPTION, &root, d));
        fathom_err err = read_keys(root, out, notes, d);
        json_decref(root);
        TRY(err);
    }
    if (level == 0) out->no_graphs = true;
    return FATHOM_OK;
}

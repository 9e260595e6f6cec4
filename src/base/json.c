#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

fathom_err json_read(const char *text, size_t n, const char *what, json_t **out, fathom_diag *d)
{
    json_error_t e;
    *out = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (*out) return FATHOM_OK;
    if (json_error_code(&e) == json_error_out_of_memory) {
        FAIL(d, FATHOM_ENOMEM, "%s: out of memory while parsing JSON", what);
    }
    FAIL(d, FATHOM_EFORMAT, "%s: not valid JSON at line %d column %d (byte %d): %s", what, e.line,
         e.column, e.position, e.text);
}

fathom_err json_read_file(const char *path, json_t **out, fathom_diag *d)
{
    struct file_map map;
    *out = NULL;
    TRY(file_map_open(&map, path, d));
    fathom_err err = json_read(map.data, map.size, path, out, d);
    file_map_close(&map);
    return err;
}

fathom_err json_write_string(struct buf *b, const char *s, size_t n)
{
    size_t start = 0;
    (void)buf_add_char(b, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        (void)buf_add(b, s + start, i - start);
        start = i + 1;
        switch (c) {
        case '"': (void)buf_add_str(b, "\\\""); break;
        case '\\': (void)buf_add_str(b, "\\\\"); break;
        case '\n': (void)buf_add_str(b, "\\n"); break;
        case '\r': (void)buf_add_str(b, "\\r"); break;
        case '\t': (void)buf_add_str(b, "\\t"); break;
        case '\b': (void)buf_add_str(b, "\\b"); break;
        case '\f': (void)buf_add_str(b, "\\f"); break;
        default: (void)buf_printf(b, "\\u%04x", c); break;
        }
    }
    (void)buf_add(b, s + start, n - start);
    (void)buf_add_char(b, '"');
    return buf_status(b);
}

/* The shortest decimal that reads back as v, spelled as Python's repr: an exponent below 1e-4 and
 * from 1e16 on, ".0" on whole numbers. */
static void write_real(struct buf *b, double v)
{
    char text[40];
    int precision = 1;
    for (; precision <= 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision - 1, v);
        if (strtod(text, NULL) == v) break;
    }
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - 1 - exponent;
        (void)buf_printf(b, "%.*f", decimals > 0 ? decimals : 0, v);
        if (decimals <= 0) (void)buf_add_str(b, ".0");
        return;
    }
    *strchr(text, 'e') = '\0';
    (void)buf_printf(b, "%se%c%02d", text, exponent < 0 ? '-' : '+', abs(exponent));
}

struct spelling {
    const char *comma;
    const char *colon;
};

static void write_value(struct buf *b, const json_t *v, const struct spelling *sp);

static void write_object(struct buf *b, const json_t *v, const struct spelling *sp)
{
    const char *key;
    json_t *member;
    bool first = true;
    (void)buf_add_char(b, '{');
    json_object_foreach ((json_t *)v, key, member) {
        if (!first) (void)buf_add_str(b, sp->comma);
        first = false;
        (void)json_write_string(b, key, strlen(key));
        (void)buf_add_str(b, sp->colon);
        write_value(b, member, sp);
    }
    (void)buf_add_char(b, '}');
}

static void write_array(struct buf *b, const json_t *v, const struct spelling *sp)
{
    (void)buf_add_char(b, '[');
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (i) (void)buf_add_str(b, sp->comma);
        write_value(b, json_array_get(v, i), sp);
    }
    (void)buf_add_char(b, ']');
}

/* Recursion is bounded by the parser's depth limit. */
static void write_value(struct buf *b, const json_t *v, const struct spelling *sp)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: write_object(b, v, sp); break;
    case JSON_ARRAY: write_array(b, v, sp); break;
    case JSON_STRING:
        (void)json_write_string(b, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER: (void)buf_printf(b, "%lld", (long long)json_integer_value(v)); break;
    case JSON_REAL: write_real(b, json_real_value(v)); break;
    case JSON_TRUE: (void)buf_add_str(b, "true"); break;
    case JSON_FALSE: (void)buf_add_str(b, "false"); break;
    case JSON_NULL: (void)buf_add_str(b, "null"); break;
    }
}

fathom_err json_write(struct buf *b, const json_t *value)
{
    write_value(b, value, &(struct spelling){",", ":"});
    return buf_status(b);
}

fathom_err json_write_python(struct buf *b, const json_t *value)
{
    write_value(b, value, &(struct spelling){", ", ": "});
    return buf_status(b);
}

const char *json_type_text(const json_t *value)
{
    if (!value) return "absent";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

/* Finds a member; *present is false when it is absent or null and need not be there. */
static fathom_err find(const json_t *object, const char *key, bool required, const char *want,
                       json_t **value, fathom_diag *d)
{
    *value = json_object_get(object, key);
    if (*value && json_is_null(*value)) *value = NULL;
    if (!*value && required) FAIL(d, FATHOM_EFORMAT, "\"%s\" is missing (%s is needed)", key, want);
    return FATHOM_OK;
}

fathom_err json_get_i64(const json_t *object, const char *key, bool required, int64_t lo,
                        int64_t hi, int64_t *out, fathom_diag *d)
{
    json_t *v;
    TRY(find(object, key, required, "an integer", &v, d));
    if (!v) return FATHOM_OK;
    int64_t i;
    if (json_is_integer(v)) {
        i = json_integer_value(v);
    } else if (json_is_real(v) && json_real_value(v) == rint(json_real_value(v)) &&
               fabs(json_real_value(v)) < 9e15) {
        i = (int64_t)json_real_value(v);
    } else {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %s, an integer is needed", key, json_type_text(v));
    }
    if (i < lo || i > hi) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %lld, needed is %lld to %lld", key, (long long)i,
             (long long)lo, (long long)hi);
    }
    *out = i;
    return FATHOM_OK;
}

fathom_err json_get_f64(const json_t *object, const char *key, bool required, double *out,
                        fathom_diag *d)
{
    json_t *v;
    TRY(find(object, key, required, "a number", &v, d));
    if (!v) return FATHOM_OK;
    if (!json_is_number(v)) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %s, a number is needed", key, json_type_text(v));
    }
    *out = json_number_value(v);
    return FATHOM_OK;
}

fathom_err json_get_bool(const json_t *object, const char *key, bool required, bool *out,
                         fathom_diag *d)
{
    json_t *v;
    TRY(find(object, key, required, "a boolean", &v, d));
    if (!v) return FATHOM_OK;
    if (!json_is_boolean(v)) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %s, a boolean is needed", key, json_type_text(v));
    }
    *out = json_is_true(v);
    return FATHOM_OK;
}

fathom_err json_get_str(const json_t *object, const char *key, bool required, const char **out,
                        fathom_diag *d)
{
    json_t *v;
    TRY(find(object, key, required, "a string", &v, d));
    if (!v) return FATHOM_OK;
    if (!json_is_string(v)) {
        FAIL(d, FATHOM_EFORMAT, "\"%s\" is %s, a string is needed", key, json_type_text(v));
    }
    *out = json_string_value(v);
    return FATHOM_OK;
}

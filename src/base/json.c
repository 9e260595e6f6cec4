/* json.c - JSON out, and typed access to jansson's trees */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

static int copy_members(json_t *to, const json_t *from)
{
    int failed = 0;
    for (void *i = json_object_iter((json_t *)from); i && !failed;
         i = json_object_iter_next((json_t *)from, i)) {
        failed =
            json_object_setn_new_nocheck(to, json_object_iter_key(i), json_object_iter_key_len(i),
                                         json_copy_tree(json_object_iter_value(i)));
    }
    return failed;
}

static int copy_elements(json_t *to, const json_t *from)
{
    int failed = 0;
    for (size_t i = 0; i < json_array_size(from) && !failed; i++) {
        failed = json_array_append_new(to, json_copy_tree(json_array_get(from, i)));
    }
    return failed;
}

json_t *json_copy_tree(const json_t *value)
{
    bool is_array = json_is_array(value);
    if (!is_array && !json_is_object(value)) return json_copy((json_t *)value);
    json_t *copy = is_array ? json_array() : json_object();
    if (!copy) return NULL;
    if ((is_array ? copy_elements(copy, value) : copy_members(copy, value)) == 0) return copy;
    json_decref(copy);
    return NULL;
}

json_t *json_copy_level(const json_t *value)
{
    json_t *copy = json_copy((json_t *)value);
    if (json_object_size(copy) == json_object_size(value) &&
        json_array_size(copy) == json_array_size(value)) {
        return copy;
    }
    json_decref(copy);
    return NULL;
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

/* A decimal: 0.d1d2d3... times ten to the power `point`. */
struct decimal {
    char digits[24];
    int n_digit;
    int point;
};

/* Adds one to the last digit of "d.ddde+x"; false when that would add a digit. */
static bool step_up(char *text)
{
    for (char *p = strchr(text, 'e') - 1; p >= text; p--) {
        if (*p == '.') continue;
        if (*p != '9') {
            ++*p;
            return true;
        }
        *p = '0';
    }
    return false;
}

/* The shortest decimal that reads back as v >= 0, the nearest to v among these. Below a power of
 * two doubles are denser than above it. So the nearest decimal of some length may read back as
 * another double while the next one up still reads back as v. */
static void shortest_decimal(struct decimal *out, double v)
{
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v) break;
        if (step_up(text) && strtod(text, NULL) == v) break;
    }
    out->n_digit = 0;
    char *p = text;
    for (; *p != 'e'; p++) {
        if (*p != '.') out->digits[out->n_digit++] = *p;
    }
    out->point = (int)strtol(p + 1, NULL, 10) + 1;
}

/* Python's repr: the shortest decimal, with an exponent below 1e-4 and from 1e16 on, and ".0" on
 * whole numbers. */
static void write_real(struct buf *b, double v)
{
    struct decimal x = {{0}, 0, 0};
    shortest_decimal(&x, fabs(v));
    size_t n = (size_t)x.n_digit;
    if (signbit(v)) (void)buf_add_char(b, '-');
    if (x.point <= -4 || x.point > 16) {
        int exponent = x.point - 1;
        (void)buf_add_char(b, x.digits[0]);
        if (n > 1) (void)buf_add_char(b, '.');
        (void)buf_add(b, x.digits + 1, n - 1);
        (void)buf_printf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (x.point <= 0) {
        (void)buf_printf(b, "0.%.*s", -x.point, "0000");
        (void)buf_add(b, x.digits, n);
    } else if (x.n_digit <= x.point) {
        (void)buf_add(b, x.digits, n);
        (void)buf_printf(b, "%.*s.0", x.point - x.n_digit, "0000000000000000");
    } else {
        (void)buf_add(b, x.digits, (size_t)x.point);
        (void)buf_add_char(b, '.');
        (void)buf_add(b, x.digits + x.point, n - (size_t)x.point);
    }
}

struct spelling {
    const char *comma;
    const char *colon;
    bool sorted;
};

static void write_value(struct buf *b, const json_t *v, const struct spelling *sp);

static void write_member(struct buf *b, const char *key, const json_t *member, bool first,
                         const struct spelling *sp)
{
    if (!first) (void)buf_add_str(b, sp->comma);
    (void)json_write_string(b, key, strlen(key));
    (void)buf_add_str(b, sp->colon);
    write_value(b, member, sp);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_sorted_members(struct buf *b, const json_t *v, const struct spelling *sp)
{
    const char *key;
    json_t *member;
    size_t n = 0;
    const char **keys = mem_alloc_array(json_object_size(v), sizeof *keys);
    if (!keys) {
        b->failed = true;
        return;
    }
    json_object_foreach ((json_t *)v, key, member) keys[n++] = key;
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 0; i < n; i++)
        write_member(b, keys[i], json_object_get(v, keys[i]), i == 0, sp);
    mem_free(keys);
}

static void write_object(struct buf *b, const json_t *v, const struct spelling *sp)
{
    const char *digits = json_big_digits(v);
    if (digits) {
        (void)buf_add_str(b, digits);
        return;
    }
    size_t n_id = 0;
    const int32_t *ids = json_ids(v, &n_id);
    for (size_t i = 0; i < n_id; i++) (void)buf_printf(b, "%s%d", i ? sp->comma : "[", (int)ids[i]);
    if (ids) {
        (void)buf_add_char(b, ']');
        return;
    }
    const char *key;
    json_t *member;
    (void)buf_add_char(b, '{');
    if (sp->sorted) {
        write_sorted_members(b, v, sp);
    } else {
        bool first = true;
        json_object_foreach ((json_t *)v, key, member) {
            write_member(b, key, member, first, sp);
            first = false;
        }
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
    write_value(b, value, &(struct spelling){",", ":", false});
    return buf_status(b);
}

fathom_err json_write_python(struct buf *b, const json_t *value)
{
    write_value(b, value, &(struct spelling){", ", ": ", false});
    return buf_status(b);
}

fathom_err json_write_sorted(struct buf *b, const json_t *value)
{
    write_value(b, value, &(struct spelling){",", ":", true});
    return buf_status(b);
}

const char *json_type_text(const json_t *value)
{
    if (!value) return "absent";
    size_t n;
    if (json_big_digits(value)) return "an integer beyond 64 bits";
    if (json_ids(value, &n)) return "an array";
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
    if (json_is_null(*value)) *value = NULL;
    if (!*value && required) FAIL(d, FATHOM_EFORMAT, "\"%s\" is missing (%s is needed)", key, want);
    return FATHOM_OK;
}

fathom_err json_get_i64(const json_t *object, const char *key, bool required, int64_t lo,
                        int64_t hi, int64_t *out, fathom_diag *d)
{
    json_t *v;
    TRY(find(object, key, required, "an integer", &v, d));
    if (!v) return FATHOM_OK;
    int64_t i = json_integer_value(v);
    double real = json_real_value(v);
    if (json_is_real(v) && real == rint(real) && fabs(real) < 9e15) {
        i = (int64_t)real;
    } else if (!json_is_integer(v)) {
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

/* ---- values in disguise -------------------------------------------------------------------- */

#define BIG_KEY "\xff"
#define IDS_KEY "\xfe"

/* The string of an object of one member with this key; NULL: it is something else. */
static json_t *disguised(const json_t *value, const char *key)
{
    if (!json_is_object(value) || json_object_size(value) != 1) return NULL;
    return json_object_get(value, key);
}

bool json_is_plain_object(const json_t *value)
{
    return json_is_object(value) && !disguised(value, BIG_KEY) && !disguised(value, IDS_KEY);
}

static json_t *disguise(const char *key, json_t *string)
{
    json_t *v = json_object();
    if (v && json_object_set_new_nocheck(v, key, string) == 0) return v;
    if (!v) json_decref(string);
    json_decref(v);
    return NULL;
}

const char *json_big_digits(const json_t *value)
{
    return json_string_value(disguised(value, BIG_KEY));
}

json_t *json_big_create(const char *digits)
{
    return disguise(BIG_KEY, json_string_nocheck(digits));
}

json_t *json_ids_create(const char *bytes, size_t n)
{
    return disguise(IDS_KEY, json_stringn_nocheck(bytes, n * sizeof(int32_t)));
}

/* Jansson's strings stand at the begin of an allocation, aligned for any number. */
const int32_t *json_ids(const json_t *value, size_t *n)
{
    const json_t *string = disguised(value, IDS_KEY);
    *n = json_string_length(string) / sizeof(int32_t);
    return (const int32_t *)(const void *)json_string_value(string);
}

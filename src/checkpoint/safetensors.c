/* safetensors.c - the header of a file checked, and its tensors listed */
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"

enum { LENGTH_BYTES = 8 };

/* Element types of the format that no operator takes. Their tensors are listed with their bytes
 * and fail only where one is needed. */
static const struct {
    const char *name;
    uint32_t bits;
} foreign_types[] = {
    {"BOOL", 8},    {"F4", 4},   {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16},        {"U32", 32},        {"U64", 64},
    {"F64", 64},    {"C64", 64}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

/* What every step of the parse needs to know. */
struct parse {
    const unsigned char *data; /* first byte after the header */
    uint64_t n_data;
    const char *where;
    fathom_diag *d;
};

static uint64_t read_u64_le(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Finds the JSON text; *text has *n_text bytes, the data follow. */
static fathom_err find_header(struct parse *p, const unsigned char *file, size_t n,
                              const char **text, size_t *n_text)
{
    static const char lfs[] = "version https://git-lfs";
    if (n >= sizeof lfs - 1 && memcmp(file, lfs, sizeof lfs - 1) == 0) {
        FAIL(p->d, FATHOM_EFORMAT,
             "%s: this is a Git LFS pointer, not the file itself: run `git lfs pull`", p->where);
    }
    if (n < LENGTH_BYTES) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: the file has %zu bytes, a safetensors file at least %d",
             p->where, n, LENGTH_BYTES);
    }
    uint64_t length = read_u64_le(file);
    if (length > LIMIT_SAFETENSORS_HEADER_BYTES) {
        FAIL(p->d, FATHOM_EFORMAT,
             "%s: header length is %" PRIu64 " bytes, at most %d are allowed: not a safetensors "
             "file?",
             p->where, length, LIMIT_SAFETENSORS_HEADER_BYTES);
    }
    if (length > n - LENGTH_BYTES) {
        FAIL(p->d, FATHOM_EFORMAT,
             "%s: the header needs %" PRIu64 " bytes, the file has %zu after the length: truncated",
             p->where, length, n - LENGTH_BYTES);
    }
    *text = (const char *)file + LENGTH_BYTES;
    *n_text = (size_t)length;
    p->data = file + LENGTH_BYTES + length;
    p->n_data = n - LENGTH_BYTES - length;
    return FATHOM_OK;
}

static fathom_err read_header(const struct parse *p, const char *text, size_t n, json_t **out)
{
    TRY(json_read_strict(text, n, p->where, out, p->d));
    if (json_is_object(*out)) return FATHOM_OK;
    fathom_err err = diag_fail(p->d, FATHOM_EFORMAT, "%s: the header is %s, an object is needed",
                               p->where, json_type_text(*out));
    json_decref(*out);
    *out = NULL;
    return err;
}

static fathom_err read_type(const struct parse *p, const json_t *entry, struct tensor *t,
                            uint32_t *bits)
{
    const json_t *type = json_object_get(entry, "dtype");
    if (!json_is_string(type)) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: \"dtype\" is %s, a string is needed", p->where, t->name,
             json_type_text(type));
    }
    const char *name = json_string_value(type);
    t->dtype = dtype_parse(name);
    if (t->dtype != DTYPE_NONE) {
        t->dtype_name = dtype_name(t->dtype);
        *bits = 8 * (uint32_t)dtype_size(t->dtype);
        return FATHOM_OK;
    }
    for (size_t i = 0; i < sizeof foreign_types / sizeof *foreign_types; i++) {
        if (strcmp(foreign_types[i].name, name) != 0) continue;
        t->dtype_name = foreign_types[i].name;
        *bits = foreign_types[i].bits;
        return FATHOM_OK;
    }
    FAIL(p->d, FATHOM_EFORMAT, "%s: %s: dtype \"%s\" is not known", p->where, t->name, name);
}

/* Reads "shape" and gives the bytes that it needs at `bits` per element. */
static fathom_err read_shape(const struct parse *p, const json_t *entry, struct tensor *t,
                             uint32_t bits, uint64_t *need_bytes)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: \"shape\" is %s, an array is needed", p->where, t->name,
             json_type_text(shape));
    }
    size_t n_dim = json_array_size(shape);
    if (n_dim > LIMIT_TENSOR_DIMS) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: %zu dimensions, at most %d are allowed", p->where,
             t->name, n_dim, LIMIT_TENSOR_DIMS);
    }
    t->n_dim = (uint32_t)n_dim;
    uint64_t n_bit = bits;
    bool overflow = false;
    for (size_t i = 0; i < n_dim; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            FAIL(p->d, FATHOM_EFORMAT, "%s: %s: shape[%zu] is %s, a count is needed", p->where,
                 t->name, i, json_is_integer(dim) ? "negative" : json_type_text(dim));
        }
        t->dim[i] = (uint64_t)json_integer_value(dim);
        overflow |= __builtin_mul_overflow(n_bit, t->dim[i], &n_bit);
    }
    if (overflow) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: the shape has more elements than a file can hold",
             p->where, t->name);
    }
    if (n_bit % 8 != 0) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: %s elements do not fill whole bytes", p->where, t->name,
             t->dtype_name);
    }
    *need_bytes = n_bit / 8;
    return FATHOM_OK;
}

static fathom_err read_range(const struct parse *p, const json_t *entry, struct tensor *t,
                             uint64_t need_bytes)
{
    const json_t *range = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(range, 0);
    const json_t *last = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < 0) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: \"data_offsets\" is not a pair of byte positions",
             p->where, t->name);
    }
    uint64_t begin = (uint64_t)json_integer_value(first);
    uint64_t end = (uint64_t)json_integer_value(last);
    if (begin > end) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: data_offsets are reversed: [%" PRIu64 ", %" PRIu64 "]",
             p->where, t->name, begin, end);
    }
    if (end > p->n_data) {
        FAIL(p->d, FATHOM_EFORMAT,
             "%s: %s: data end at byte %" PRIu64 ", the file has %" PRIu64
             ": truncated, download it again",
             p->where, t->name, end, p->n_data);
    }
    if (end - begin != need_bytes) {
        FAIL(p->d, FATHOM_EFORMAT,
             "%s: %s: data_offsets hold %" PRIu64 " bytes, dtype %s and shape need %" PRIu64,
             p->where, t->name, end - begin, t->dtype_name, need_bytes);
    }
    t->data = p->data + begin;
    t->n_bytes = need_bytes;
    return FATHOM_OK;
}

static fathom_err read_entry(const struct parse *p, const json_t *entry, struct tensor *t)
{
    uint32_t bits = 0;
    uint64_t need_bytes = 0;
    if (!json_is_object(entry)) {
        FAIL(p->d, FATHOM_EFORMAT, "%s: %s: the entry is %s, an object is needed", p->where,
             t->name, json_type_text(entry));
    }
    TRY(read_type(p, entry, t, &bits));
    TRY(read_shape(p, entry, t, bits, &need_bytes));
    return read_range(p, entry, t, need_bytes);
}

static bool is_metadata(const char *name)
{
    return strcmp(name, "__metadata__") == 0;
}

/* Allocates room for every entry and its name. */
static fathom_err reserve(const struct parse *p, const json_t *header, struct safetensors *s)
{
    const char *name;
    json_t *entry;
    size_t n_tensor = 0, n_name_bytes = 0;
    json_object_foreach ((json_t *)header, name, entry) {
        n_tensor++;
        n_name_bytes += strlen(name) + 1;
    }
    s->tensors = mem_calloc(n_tensor, sizeof *s->tensors);
    s->names = mem_alloc(n_name_bytes);
    if (s->tensors && s->names) return FATHOM_OK;
    FAIL(p->d, FATHOM_ENOMEM, "%s: out of memory for the header of %zu tensors", p->where,
         n_tensor);
}

static fathom_err read_entries(const struct parse *p, const json_t *header, struct safetensors *s)
{
    const char *name;
    json_t *entry;
    char *copy = s->names;
    json_object_foreach ((json_t *)header, name, entry) {
        if (is_metadata(name)) {
            if (json_is_object(entry)) continue;
            FAIL(p->d, FATHOM_EFORMAT, "%s: \"__metadata__\" is %s, an object is needed", p->where,
                 json_type_text(entry));
        }
        struct tensor *t = &s->tensors[s->n_tensor];
        size_t n = strlen(name) + 1;
        t->name = memcpy(copy, name, n);
        copy += n;
        TRY(read_entry(p, entry, t));
        s->n_tensor++;
    }
    return FATHOM_OK;
}

/* By position, an empty tensor before a full one that begins at the same byte. */
static int compare_position(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data) return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

static fathom_err check_overlap(const struct parse *p, struct safetensors *s)
{
    if (s->n_tensor == 0) return FATHOM_OK;
    qsort(s->tensors, s->n_tensor, sizeof *s->tensors, compare_position);
    for (size_t i = 1; i < s->n_tensor; i++) {
        const struct tensor *before = &s->tensors[i - 1], *t = &s->tensors[i];
        if ((uintptr_t)before->data + before->n_bytes <= (uintptr_t)t->data) continue;
        FAIL(p->d, FATHOM_EFORMAT, "%s: the data of %s and %s overlap", p->where, before->name,
             t->name);
    }
    return FATHOM_OK;
}

fathom_err safetensors_parse(struct safetensors *out, const void *data, size_t n, const char *where,
                             fathom_diag *d)
{
    struct parse p = {.where = where, .d = d};
    json_t *header = NULL;
    const char *text = NULL;
    size_t n_text = 0;
    fathom_err err;
    memset(out, 0, sizeof *out);

    TRY_GOTO(find_header(&p, data, n, &text, &n_text), done);
    TRY_GOTO(read_header(&p, text, n_text, &header), done);
    TRY_GOTO(reserve(&p, header, out), done);
    TRY_GOTO(read_entries(&p, header, out), done);
    TRY_GOTO(check_overlap(&p, out), done);
done:
    json_decref(header);
    if (err) safetensors_free(out);
    return err;
}

void safetensors_free(struct safetensors *s)
{
    mem_free(s->tensors);
    mem_free(s->names);
    memset(s, 0, sizeof *s);
}

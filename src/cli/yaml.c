/* yaml.c - a YAML file as JSON values, over libyaml */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/fail.h"
#include "base/os.h"
#include "cli/options_int.h"

enum { DEPTH_MAX = 64, FILE_BYTES_MAX = 1 << 20, VALUES_MAX = 1 << 16 };

/* One file on its way. */
struct reader {
    const char *path;
    yaml_document_t *document;
    unsigned n_value; /* made so far: anchors may multiply */
    fathom_diag *diag;
};

static fathom_err fail_at(const struct reader *r, const yaml_mark_t *at, const char *what)
{
    FAIL(r->diag, FATHOM_EFORMAT, "%s: line %zu column %zu: %s", r->path, at->line + 1,
         at->column + 1, what);
}

static bool is_one_of(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(text, words[i]) == 0) return true;
    }
    return false;
}

/* A scalar without quotes. */
static json_t *plain_value(const char *text)
{
    static const char *const nulls[] = {"", "~", "null"};
    static const char *const trues[] = {"true", "yes", "on"};
    static const char *const falses[] = {"false", "no", "off"};
    char *end;
    if (is_one_of(text, nulls, 3)) return json_null();
    if (is_one_of(text, trues, 3)) return json_true();
    if (is_one_of(text, falses, 3)) return json_false();
    if (strspn(text, "+-.0123456789eE") != strlen(text)) return json_string(text);
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (*end == '\0' && end != text && !errno) return json_integer(whole);
    errno = 0;
    double number = strtod(text, &end);
    return *end == '\0' && end != text && !errno ? json_real(number) : json_string(text);
}

static fathom_err read_scalar(struct reader *r, const yaml_node_t *n, json_t **out)
{
    const char *text = (const char *)n->data.scalar.value;
    if (strlen(text) != n->data.scalar.length) return fail_at(r, &n->start_mark, "a NUL in a text");
    bool is_plain = n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    *out = is_plain ? plain_value(text) : json_string(text);
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

static fathom_err read_node(struct reader *r, int id, unsigned depth, json_t **out);

static fathom_err read_sequence(struct reader *r, const yaml_node_t *n, unsigned depth,
                                json_t *array)
{
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        json_t *item = NULL;
        TRY(read_node(r, *i, depth, &item));
        if (json_array_append_new(array, item) != 0) return FATHOM_ENOMEM;
    }
    return FATHOM_OK;
}

static fathom_err read_mapping(struct reader *r, const yaml_node_t *n, unsigned depth,
                               json_t *object)
{
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(r->document, p->key);
        json_t *value = NULL;
        if (!key || key->type != YAML_SCALAR_NODE) {
            return fail_at(r, &n->start_mark, "a key is no plain text");
        }
        const char *name = (const char *)key->data.scalar.value;
        if (json_object_get(object, name))
            return fail_at(r, &key->start_mark, "this key comes twice");
        TRY(read_node(r, p->value, depth, &value));
        if (json_object_set_new(object, name, value) != 0) return FATHOM_ENOMEM;
    }
    return FATHOM_OK;
}

static fathom_err read_node(struct reader *r, int id, unsigned depth, json_t **out)
{
    const yaml_node_t *n = yaml_document_get_node(r->document, id);
    if (depth == DEPTH_MAX) return fail_at(r, &n->start_mark, "nested deeper than 64 levels");
    if (++r->n_value > VALUES_MAX) return fail_at(r, &n->start_mark, "more than 65536 values");
    fathom_err err = FATHOM_ENOMEM;
    switch (n->type) {
    case YAML_SEQUENCE_NODE:
        *out = json_array();
        if (*out) err = read_sequence(r, n, depth + 1, *out);
        break;
    case YAML_MAPPING_NODE:
        *out = json_object();
        if (*out) err = read_mapping(r, n, depth + 1, *out);
        break;
    case YAML_SCALAR_NODE:
    case YAML_NO_NODE: return read_scalar(r, n, out);
    }
    if (!err) return FATHOM_OK;
    json_decref(*out);
    *out = NULL;
    return err;
}

static fathom_err parser_failed(const yaml_parser_t *p, const char *path, fathom_diag *d)
{
    if (p->error == YAML_MEMORY_ERROR) FAIL(d, FATHOM_ENOMEM, "%s: out of memory", path);
    FAIL(d, FATHOM_EFORMAT, "%s: line %zu column %zu: %s", path, p->problem_mark.line + 1,
         p->problem_mark.column + 1, p->problem ? p->problem : "this is no YAML");
}

static fathom_err read_document(yaml_parser_t *p, const char *path, json_t **out, fathom_diag *d)
{
    yaml_document_t document;
    struct reader r = {.path = path, .document = &document, .diag = d};
    if (!yaml_parser_load(p, &document)) return parser_failed(p, path, d);
    fathom_err err = FATHOM_OK;
    if (yaml_document_get_root_node(&document)) {
        err = read_node(&r, 1, 0, out);
    } else {
        *out = json_null();
    }
    yaml_document_delete(&document);
    return err;
}

/* Nothing but the end may follow the first document. */
static fathom_err check_end(yaml_parser_t *p, const char *path, fathom_diag *d)
{
    yaml_document_t next;
    if (!yaml_parser_load(p, &next)) return parser_failed(p, path, d);
    bool at_end = yaml_document_get_root_node(&next) == NULL;
    yaml_document_delete(&next);
    if (!at_end) FAIL(d, FATHOM_EFORMAT, "%s: it has several documents, needed is one", path);
    return FATHOM_OK;
}

fathom_err yaml_read_file(const char *path, json_t **out, fathom_diag *d)
{
    struct file_map map;
    yaml_parser_t parser;
    fathom_err err;
    *out = NULL;
    TRY(file_map_open(&map, path, d));
    if (map.size > FILE_BYTES_MAX) {
        file_map_close(&map);
        FAIL(d, FATHOM_EFORMAT, "%s: larger than 1 MiB", path);
    }
    if (!yaml_parser_initialize(&parser)) {
        file_map_close(&map);
        return FATHOM_ENOMEM;
    }
    yaml_parser_set_input_string(&parser, map.data ? map.data : (const void *)"", map.size);
    TRY_GOTO(read_document(&parser, path, out, d), done);
    if (!json_is_null(*out)) err = check_end(&parser, path, d);
done:
    if (err) {
        json_decref(*out);
        *out = NULL;
    }
    yaml_parser_delete(&parser);
    file_map_close(&map);
    return err;
}

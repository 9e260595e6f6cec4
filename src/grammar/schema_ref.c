/* schema_ref.c - "$ref": pointers and anchors within the schema */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "grammar/schema_int.h"

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One step of a JSON pointer, unescaped; returns the position after it. */
static size_t read_step(const char *pointer, struct buf *step)
{
    size_t i = 0;
    buf_clear(step);
    for (; pointer[i] && pointer[i] != '/'; i++) {
        char c = pointer[i];
        int high = c == '%' ? hex_digit(pointer[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(pointer[i + 2]) : -1;
        if (c == '~' && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
            c = pointer[++i] == '0' ? '~' : '/';
        } else if (low >= 0) {
            c = (char)(high << 4 | low);
            i += 2;
        }
        (void)buf_add_char(step, c);
    }
    return i;
}

static const json_t *find_step(const json_t *at, const char *step)
{
    if (json_is_plain_object(at)) return json_object_get(at, step);
    size_t index = 0;
    if (!json_is_array(at) || !*step) return NULL;
    for (; *step >= '0' && *step <= '9' && index < SIZE_MAX / 16; step++) {
        index = index * 10 + (size_t)(*step - '0');
    }
    return *step ? NULL : json_array_get(at, index);
}

static const json_t *find_pointer(const json_t *root, const char *pointer)
{
    struct buf step = {0};
    const json_t *at = root;
    while (at && *pointer == '/') {
        pointer++;
        pointer += read_step(pointer, &step);
        at = step.failed ? NULL : find_step(at, buf_str(&step));
    }
    buf_free(&step);
    return *pointer ? NULL : at;
}

static const json_t *find_anchor(const json_t *at, const char *name, uint64_t *n_value)
{
    const json_t *found = NULL;
    ++*n_value;
    if (json_is_plain_object(at)) {
        const char *key;
        json_t *value;
        const char *own = json_string_value(json_object_get(at, "$anchor"));
        const char *id = json_string_value(json_object_get(at, "$id"));
        if (own && strcmp(own, name) == 0) return at;
        if (id && id[0] == '#' && strcmp(id + 1, name) == 0) return at;
        json_object_foreach ((json_t *)at, key, value) {
            if (!found) found = find_anchor(value, name, n_value);
        }
    }
    for (size_t i = 0; i < json_array_size(at) && !found; i++) {
        found = find_anchor(json_array_get(at, i), name, n_value);
    }
    return found;
}

fathom_err schema_resolve(struct schema_compiler *c, const json_t *ref, const json_t **out)
{
    const char *text = json_string_value(ref);
    if (!text) {
        FAIL(c->d, FATHOM_EINVAL, "schema %s: \"$ref\" is %s, a string is needed",
             buf_str(&c->path), json_type_text(ref));
    }
    const char *id = json_string_value(json_object_get(c->root, "$id"));
    size_t n_id = id ? strcspn(id, "#") : 0;
    const char *fragment = text;
    if (n_id > 0 && strncmp(text, id, n_id) == 0) fragment += n_id;
    if (*fragment != '#' && *fragment != '\0') {
        FAIL(c->d, FATHOM_EUNSUPPORTED,
             "schema %s: \"$ref\": \"%s\" leads outside the schema; only \"#...\" is supported",
             buf_str(&c->path), text);
    }
    if (*fragment == '#') fragment++;
    uint64_t n_value = 0;
    *out = *fragment == '/' || *fragment == '\0' ? find_pointer(c->root, fragment)
                                                 : find_anchor(c->root, fragment, &n_value);
    TRY(schema_spend(c, strlen(fragment) * UNITS_TEXT + n_value * UNITS_VALUE));
    if (*out) return FATHOM_OK;
    FAIL(c->d, FATHOM_EINVAL, "schema %s: \"$ref\": \"%s\" leads to nothing", buf_str(&c->path),
         text);
}

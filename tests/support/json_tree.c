/* json_tree.c - trees of JSON texts, or the test fails */
#include "support/json_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

json_t *json_tree_of_bytes(const char *text, size_t n)
{
    json_t *root = NULL;
    fathom_diag d = {{0}};
    if (json_read(text, n, "text", &root, &d)) fail_msg("%s: %.*s", d.text, (int)n, text);
    return root;
}

json_t *json_tree_of(const char *text)
{
    return json_tree_of_bytes(text, strlen(text));
}

json_t *json_tree_of_file(const char *path)
{
    json_t *root = NULL;
    fathom_diag d = {{0}};
    if (json_read_file(path, &root, &d)) fail_msg("%s", d.text);
    return root;
}

void json_tree_expect(const json_t *object, const char *key, const char *want)
{
    json_t *value = json_tree_of(want);
    if (!json_equal(json_object_get(object, key), value)) {
        fail_msg("%s is %s, not %s", key, json_dumps(json_object_get(object, key), JSON_ENCODE_ANY),
                 want);
    }
    json_decref(value);
}

/* json_tree.h - trees of JSON texts; every function fails the running test when it cannot do what
 * it says */
#ifndef FATHOM_SUPPORT_JSON_TREE_H
#define FATHOM_SUPPORT_JSON_TREE_H

#include <jansson.h>
#include <stddef.h>

/* json_tree_of, json_tree_of_bytes, json_tree_of_file - the caller's to give back */
json_t *json_tree_of(const char *text);
json_t *json_tree_of_bytes(const char *text, size_t n);
json_t *json_tree_of_file(const char *path);

/* json_tree_expect - the member of an object equals what a JSON text says */
void json_tree_expect(const json_t *object, const char *key, const char *want);

#endif

/* json.h - JSON in and out, over jansson's trees
 *
 * Jansson owns the tree and keeps the order of keys. This file reads and writes it: strict UTF-8,
 * limits, errors with a position, typed access with the path in the message, Python's spelling on
 * output. Ownership follows jansson: a `new` reference is released with json_decref, a borrowed one
 * is not.
 */
#ifndef FATHOM_BASE_JSON_H
#define FATHOM_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

/* json_read - parse a whole text
 *
 *   text  n bytes, not necessarily terminated
 *   what  names the input in the message ("config.json", "request body")
 *   out   new reference
 * Errors  EFORMAT with line, column and byte, or nested deeper than LIMIT_JSON_DEPTH; ENOMEM.
 *         Integers beyond 64 bits are kept as below. Duplicate keys: the last one holds.
 * A mark before the text is passed over (utf8_mark). Any value may stand at the top; trailing bytes
 * other than white space are an error.
 * Within an arena (json_arena.h) a tree that is too large for its text, and an object of more than
 * LIMIT_JSON_MEMBERS, are ELIMIT; EBUSY when the trees of all arenas leave no room.
 */
fathom_err json_read(const char *text, size_t n, const char *what, json_t **out, fathom_diag *d);

/* json_read_strict - the same, but a key that comes twice and a NUL in a string are EFORMAT */
fathom_err json_read_strict(const char *text, size_t n, const char *what, json_t **out,
                            fathom_diag *d);

/* json_read_with_ids - json_read, but arrays of token ids within the members `id_keys` (ends in
 * NULL) of the object at the top are json_ids */
fathom_err json_read_with_ids(const char *text, size_t n, const char *what,
                              const char *const *id_keys, json_t **out, fathom_diag *d);

/* json_read_file - json_read for a file; EIO or ENOTFOUND when it cannot be read */
fathom_err json_read_file(const char *path, json_t **out, fathom_diag *d);

/* json_copy_level - a new value with the same members; NULL when out of memory, where jansson's
 * json_copy leaves members out */
json_t *json_copy_level(const json_t *value);

/* json_copy_tree - a new value with copies of all below it; NULL when out of memory
 * Needs   a tree as the reader makes it, without json_ids. Recursion is bounded by its depth. */
json_t *json_copy_tree(const json_t *value);

/* json_write - compact: no white space, non-ASCII raw, key order kept */
fathom_err json_write(struct buf *b, const json_t *value);

/* json_write_python - the bytes of Python's json.dumps(value, ensure_ascii=False): separators
 * ", " and ": ", floats as repr() spells them */
fathom_err json_write_python(struct buf *b, const json_t *value);

/* json_write_sorted - compact like json_write, and the members of objects in the order of their
 * keys' bytes: Python's separators=(",", ":") and sort_keys=True */
fathom_err json_write_sorted(struct buf *b, const json_t *value);

/* json_write_string - s (n bytes of UTF-8) as a quoted JSON string, escapes as json.dumps does */
fathom_err json_write_string(struct buf *b, const char *s, size_t n);

/* json_type_text - "an object", "a string", "null" ... for messages */
const char *json_type_text(const json_t *value);

/* json_get_* - member `key` of an object, for configuration files
 *
 * Absent or null leaves *out as it is and succeeds, unless required. A value of another type is
 * EFORMAT, naming key and type. Integers written as 1.0 are taken; out-of-range is EFORMAT.
 */
fathom_err json_get_i64(const json_t *object, const char *key, bool required, int64_t lo,
                        int64_t hi, int64_t *out, fathom_diag *d);
fathom_err json_get_f64(const json_t *object, const char *key, bool required, double *out,
                        fathom_diag *d);
fathom_err json_get_bool(const json_t *object, const char *key, bool required, bool *out,
                         fathom_diag *d);
/* borrowed string */
fathom_err json_get_str(const json_t *object, const char *key, bool required, const char **out,
                        fathom_diag *d);

/* ---- integers that do not fit in 64 bits, which jansson has no value for -----------------------
 *
 * Tool arguments and schemas are passed through, and what they hold may be of any size. Such an
 * integer is kept as an object of one member whose key is no UTF-8, so that nothing in a text can
 * look like it. The writers above spell its digits again. A caller that wants a number, a string or
 * an array finds another type; a caller that takes any object asks json_is_plain_object.
 */

/* json_is_plain_object - whether it is an object, and none in whose disguise another value is */
bool json_is_plain_object(const json_t *value);

/* json_big_create - a new reference; NULL when out of memory */
json_t *json_big_create(const char *digits);

/* json_big_digits - the integer as it was written; NULL for any other value */
const char *json_big_digits(const json_t *value);

/* ---- token ids -------------------------------------------------------------------------------
 *
 * An array of one or more integers from 0 to INT32_MAX and nothing else, which may be long, in the
 * same disguise. It is written as the array that it was.
 */

/* json_ids_create - n >= 1 ids of 4 bytes, copied; NULL when out of memory */
json_t *json_ids_create(const char *bytes, size_t n);

/* json_ids - the ids, borrowed, and their number; NULL for any other value */
const int32_t *json_ids(const json_t *value, size_t *n);

#endif

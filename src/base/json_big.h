/* json_big.h - integers that do not fit in 64 bits, which jansson has no value for
 *
 * Tool arguments and schemas are passed through, and what they hold may be of any size. Such an
 * integer is kept as an object of one member whose key is no UTF-8, so that nothing in a text can
 * look like it; the writers of json.h spell its digits again. To whoever wants a number, a string
 * or an array it is of another type; who takes any object asks json_big_digits first.
 */
#ifndef FATHOM_BASE_JSON_BIG_H
#define FATHOM_BASE_JSON_BIG_H

#include <jansson.h>

/* json_big_create - a new reference; NULL when out of memory */
json_t *json_big_create(const char *digits);

/* json_big_digits - the integer as it was written; NULL for any other value */
const char *json_big_digits(const json_t *value);

#endif

/* json_check.h - a small validator of JSON schema, written apart from the one under test
 *
 * It judges a parsed value; keywords it does not know fail the test, so that nothing is passed by
 * not being looked at. Patterns run in PCRE2. */
#ifndef FATHOM_SUPPORT_JSON_CHECK_H
#define FATHOM_SUPPORT_JSON_CHECK_H

#include <jansson.h>
#include <stdbool.h>

/* json_check - does a value satisfy a schema, whose references lead into root? */
bool json_check(const json_t *root, const json_t *schema, const json_t *value);

/* pattern_found - does a pattern of PCRE2 occur in a text? whole: is it all of the text? Asserts
 * that the pattern compiles. */
bool pattern_found(const char *pattern, const char *text, size_t n, bool whole);

#endif

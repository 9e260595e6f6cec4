/* exposition.h - reads Prometheus' text form and says what is wrong with it */
#ifndef FATHOM_TESTS_EXPOSITION_H
#define FATHOM_TESTS_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>

/* exposition_check - the whole of a scrape
 *
 * Every family has one HELP line, one TYPE line and its samples right behind, in one place. Names
 * and labels are well-formed. No sample comes twice. The buckets of a histogram ascend in bound,
 * never fall in count, end in +Inf and agree with _count.
 *
 *   why  what is wrong and where; written when the result is false */
bool exposition_check(const char *text, char *why, size_t why_bytes);

/* exposition_value - the value of the first sample whose line begins with `name` and has `part`
 * among its labels ("": any); -1 when there is none */
double exposition_value(const char *text, const char *name, const char *part);

#endif

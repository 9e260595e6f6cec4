/* pretok_kimi.h - the pattern of Kimi's tokenizer as a hand-written scan
 *
 *   a run of Han characters
 *   letters and marks that are not Han, with one other character before them: capitals, then small
 *   ones, and 's 't 're 've 'm 'll 'd after them
 *   one to three numbers; signs with a space before and line ends after; white space
 *
 * The pattern takes the difference of two classes, which PCRE2 does not know.
 * Source  the pattern string in the .c file.
 */
#ifndef FATHOM_TOKENIZER_PRETOK_KIMI_H
#define FATHOM_TOKENIZER_PRETOK_KIMI_H

#include <stdbool.h>
#include <stddef.h>

#include "tokenizer/pretok_pattern.h"

struct kimi_scanner;

/* kimi_pattern - the pattern as tokenization_kimi.py spells it */
struct pretok_pattern kimi_pattern(void);

/* kimi_scanner_knows - whether these are that one pattern */
bool kimi_scanner_knows(const struct pretok_pattern *patterns, size_t n);

fathom_err kimi_scanner_create(struct kimi_scanner **out);
void kimi_scanner_destroy(struct kimi_scanner *s); /* accepts NULL */

/* kimi_scanner_split - as pretok_split; linear in n */
fathom_err kimi_scanner_split(const struct kimi_scanner *scanner, const char *s, size_t n,
                              pretok_emit *emit, void *arg);

#endif

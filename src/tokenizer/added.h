/* added.h - finding added tokens in raw text: leftmost, and of those the longest
 *
 * Filled once (added_put, then added_sort), only read afterwards.
 */
#ifndef FATHOM_TOKENIZER_ADDED_H
#define FATHOM_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "tokenizer/vocab.h"

/* Invariants: ids are sorted by their bytes; may_start has a bit for each pair of bytes that some
 * token starts with (a token of one byte: for every pair that starts so). */
struct added_set {
    uint32_t *ids; /* [n] */
    uint32_t n;
    size_t cap;
    int only_first; /* the byte that all tokens start with; -1 if they differ */
    uint64_t may_start[1024];
};

/* added_free - release and zero; accepts an empty set */
void added_free(struct added_set *a);

/* added_put - a token of the vocabulary; not an empty one */
fathom_err added_put(struct added_set *a, uint32_t id);

/* added_sort - make the set ready; on EINVAL *twin is an id whose bytes occur twice */
fathom_err added_sort(struct added_set *a, const struct vocab *v, uint32_t *twin);

/* added_find - id of the token of exactly these bytes; -1 if there is none */
int32_t added_find(const struct added_set *a, const struct vocab *v, const char *s, size_t n);

/* added_next - the first token in s[from .. n)
 *
 *   at  where it starts
 * Returns its id, or -1 when no token follows. */
int32_t added_next(const struct added_set *a, const struct vocab *v, const char *s, size_t n,
                   size_t from, size_t *at);

#endif

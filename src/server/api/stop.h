/* stop.h - stop strings, found in a stream that comes in pieces
 *
 * The stop string that is complete first ends the text. If several end at the same byte, the
 * longest one counts. The result depends on the bytes alone, never on how they are cut into pieces.
 *
 * The longest suffix of the stream that is a proper prefix of a stop string is held back. Patterns
 * are whole characters of UTF-8, so a held part begins at a character.
 */
#ifndef FATHOM_SERVER_API_STOP_H
#define FATHOM_SERVER_API_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/limits.h"

/* The patterns of one request; immutable once made, shared by its choices. */
struct stop_set {
    struct stop_pattern *patterns;
    size_t n;
};

/* stop_set_create - n >= 0 patterns of lens[i] >= 1 bytes, copied; n <= LIMIT_STOP_STRINGS
 * Errors  ENOMEM; *s is then empty. */
fathom_err stop_set_create(struct stop_set *s, const char *const *texts, const size_t *lens,
                           size_t n);
void stop_set_destroy(struct stop_set *s);

/* stop_set_text - pattern i, terminated */
const char *stop_set_text(const struct stop_set *s, size_t i, size_t *n);

/* The state of one stream. Invariant: held.len is the largest of matched[], and each matched[i] is
 * less than the length of pattern i. */
struct stop_matcher {
    const struct stop_set *set; /* borrowed; NULL: none */
    struct buf held;
    uint32_t matched[LIMIT_STOP_STRINGS]; /* bytes of each pattern that the stream ends with */
};

/* stop_matcher_init - begin a stream. set is borrowed; if it is NULL or empty, all text passes.
 * stop_matcher_free accepts a zeroed struct. */
void stop_matcher_init(struct stop_matcher *m, const struct stop_set *set);
void stop_matcher_free(struct stop_matcher *m);

/* stop_push - take n bytes of the stream, append to *out what cannot be part of a stop string
 *
 *   include  leave the stop string itself in the text
 *   hit      index of the pattern found, or -1; once found nothing more may be pushed
 * Errors  ENOMEM. */
fathom_err stop_push(struct stop_matcher *m, const char *text, size_t n, bool include,
                     struct buf *out, int *hit);

/* stop_flush - end the stream: the text that was held back is appended to *out */
fathom_err stop_flush(struct stop_matcher *m, struct buf *out);

#endif

/* buf.h - a growing byte string with a cap
 *
 * Invariants: data[len] == 0 whenever data != NULL; len < cap; len <= limit. A zeroed struct is
 * an empty buffer without a limit. Once an append fails, `failed` stays set and later appends do
 * nothing, so a caller may append many times and check once.
 */
#ifndef FATHOM_BASE_BUF_H
#define FATHOM_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "fathom/err.h"

struct buf {
    char *data; /* NULL until the first append */
    size_t len;
    size_t cap;
    size_t limit; /* largest len allowed; 0: none */
    bool failed;
    bool over_limit; /* the failure was the limit, not memory */
};

/* buf_add - append n bytes; ENOMEM, or ELIMIT past the limit */
fathom_err buf_add(struct buf *b, const void *bytes, size_t n);
fathom_err buf_add_str(struct buf *b, const char *s);
fathom_err buf_add_char(struct buf *b, char c);
fathom_err buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* buf_reserve - make room for n more bytes */
fathom_err buf_reserve(struct buf *b, size_t n);

/* buf_str - the bytes as a C string; "" when empty. Valid until the next append. */
const char *buf_str(const struct buf *b);

/* buf_status - OK, or the reason why an append failed */
fathom_err buf_status(const struct buf *b);

/* buf_clear    - forget the bytes, keep the memory
 * buf_truncate - keep the first n bytes, n <= len
 * buf_consume  - drop the first n bytes
 * buf_free     - release and zero, the limit too
 * buf_steal    - hand the memory to the caller, who releases it with mem_free; NULL when empty */
void buf_clear(struct buf *b);
void buf_truncate(struct buf *b, size_t n);
void buf_consume(struct buf *b, size_t n);
void buf_free(struct buf *b);
char *buf_steal(struct buf *b);

#endif

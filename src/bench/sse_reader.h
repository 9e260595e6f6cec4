/* sse_reader.h - server-sent events from pieces of bytes
 *
 * Lines end with LF, CR LF or CR; the `data` lines of an event are joined with LF; comments and
 * fields of other names are dropped. An event ends with an empty line; what follows the last empty
 * line is no event.
 *
 * Invariants: `line` holds the bytes of a line that has not ended; `data` those of the event so
 * far, with a LF after each of its lines; both are bounded by SSE_READER_BYTES.
 */
#ifndef FATHOM_BENCH_SSE_READER_H
#define FATHOM_BENCH_SSE_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"

enum { SSE_READER_BYTES = 16 << 20 };

/* sse_reader_event - called for each event that has data; what it returns ends sse_reader_feed
 * unless 0 */
typedef fathom_err sse_reader_event(void *arg, const char *data, size_t n);

struct sse_reader {
    struct buf line;
    struct buf data;
    bool after_cr; /* a LF that comes now belongs to the CR before it */
};

/* sse_reader_init, sse_reader_free - sse_reader_free accepts a zeroed struct; sse_reader_reset
 * starts a new stream in the memory of the last */
void sse_reader_init(struct sse_reader *s);
void sse_reader_reset(struct sse_reader *s);
void sse_reader_free(struct sse_reader *s);

/* sse_reader_feed - the next n bytes; the events that they complete are handed over in order
 * Errors  those of `event`; ENOMEM; ELIMIT for a line or event over SSE_READER_BYTES. */
fathom_err sse_reader_feed(struct sse_reader *s, const char *bytes, size_t n,
                           sse_reader_event *event, void *arg);

#endif

/* stream_chunk.h - one event of a stream of completions or chats, as far as a clock needs it */
#ifndef FATHOM_BENCH_STREAM_CHUNK_H
#define FATHOM_BENCH_STREAM_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

struct stream_chunk {
    bool is_end;    /* "[DONE]" */
    bool is_error;  /* an object `error`; its message is in the diag */
    bool has_text;  /* content, reasoning or part of a tool call; the role alone is none */
    bool has_stop;  /* a finish reason */
    bool has_usage; /* with the counts below */
    uint32_t n_input;
    uint32_t n_output;
    uint32_t
        n_cached; /* prompt tokens found in the server's prefix cache; 0 when it does not say */
};

/* stream_chunk_read - what an event says
 *
 *   data  n bytes, the event's data
 *   text  content, reasoning and arguments of tool calls are appended
 * Errors  EFORMAT for what is no JSON object; ENOMEM; ELIMIT of *text. */
fathom_err stream_chunk_read(struct stream_chunk *out, const char *data, size_t n, struct buf *text,
                             fathom_diag *d);

#endif

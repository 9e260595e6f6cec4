/* completion_json.h - the JSON of completions and chats: what a request says, what an event does */
#ifndef FATHOM_BENCH_COMPLETION_JSON_H
#define FATHOM_BENCH_COMPLETION_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "bench/dataset_items.h"
#include "fathom/err.h"

enum { SAMPLING_UNSET = -100 };

/* ---- requests: one shape for all, a prompt and a length for each ------------------------------
 */

/* What every request of a run says. Numbers that are SAMPLING_UNSET are not sent. */
struct request_shape {
    bool is_chat;
    const char *model;
    bool ignore_eos;
    double temperature;
    double top_p;
    double top_k;
    double min_p;
    double frequency_penalty;
    double presence_penalty;
    double repetition_penalty;
    double logprobs;
    const char *extra; /* JSON object whose members are added and win; NULL: none */
};

/* request_shape_write - the members common to all requests as one JSON object
 * Errors  EFORMAT, EINVAL of `extra`; ENOMEM. */
fathom_err request_shape_write(struct buf *out, const struct request_shape *s, fathom_diag *d);

/* request_body_write - a whole body
 *
 *   common   what request_shape_write wrote
 *   salt     value of cache_salt; NULL: none */
fathom_err request_body_write(struct buf *out, const struct buf *common, bool is_chat,
                              const struct dataset_item *item, const char *salt);

/* ---- events of a stream ---------------------------------------------------------------------- */

/* One event of a stream of completions or chats, as far as a clock needs it. */
struct stream_chunk {
    bool is_end;    /* "[DONE]" */
    bool is_error;  /* an object `error`; its message is in the diag */
    bool has_text;  /* content, reasoning or part of a tool call; the role alone is none */
    bool has_stop;  /* a finish reason */
    bool has_usage; /* with the counts below */
    uint32_t n_input;
    uint32_t n_output;
    uint32_t n_cached; /* prompt tokens found in the server's prefix cache, as far as it says */
};

/* stream_chunk_read - what an event says
 *
 *   data  n bytes, the event's data
 *   text  content, reasoning and arguments of tool calls are appended
 * Errors  EFORMAT for what is no JSON object; ENOMEM; ELIMIT of *text. */
fathom_err stream_chunk_read(struct stream_chunk *out, const char *data, size_t n, struct buf *text,
                             fathom_diag *d);

#endif

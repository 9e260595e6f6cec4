/* context.h - which trace a request belongs to, as its header `traceparent` says
 *
 * Source  W3C, Trace Context, section 3.2.
 */
#ifndef FATHOM_TRACE_CONTEXT_H
#define FATHOM_TRACE_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

enum { TRACE_ID_BYTES = 16, TRACE_SPAN_ID_BYTES = 8 };

/* Zeroed: of none. */
struct trace_context {
    uint8_t trace_id[TRACE_ID_BYTES];
    uint8_t span_id[TRACE_SPAN_ID_BYTES]; /* of the span that the request was sent in */
    bool is_set;
    bool is_sampled; /* whoever sent it records its spans */
};

/* trace_context_read - from the header's text; NULL: there is none
 * Returns false, and zeroes *out, for what is none: that request begins a trace of its own. */
bool trace_context_read(struct trace_context *out, const char *header);

#endif

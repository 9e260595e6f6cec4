/* sse.h - framing of server-sent events
 *
 * An event is "data: ", one line of JSON, and a blank line. JSON written by base/json has no raw
 * line feed, so a payload is always one line.
 */
#ifndef FATHOM_SERVER_API_SSE_H
#define FATHOM_SERVER_API_SSE_H

#include "base/buf.h"

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

/* sse_begin, sse_end - around the JSON of one event. Errors stay in b (buf_status). */
void sse_begin(struct buf *b);
void sse_end(struct buf *b);

/* sse_begin_named - sse_begin of an event with a name, for clients that tell events by it */
void sse_begin_named(struct buf *b, const char *name);

/* sse_done - "data: [DONE]", the end of an OpenAI stream */
void sse_done(struct buf *b);

/* sse_idle - an empty line, which keeps proxies from closing a silent stream: it ends no event, and
 * clients that take every other line for one, as SGLang's benchmark does, skip it too */
void sse_idle(struct buf *b);

#endif

/* stream_follow.h - a stream as it passes: its tokens are noted, and what a second server sends
 * again is left out
 *
 * The stream is one with a pass (stream_pass.h). Its events leave whole, and the comments that tell
 * tokens do not leave. When its server is lost, `tokens` is what another one needs to go on behind
 * the last of them; it will send the events since then once more, and as many as have left are left
 * out. Both servers make the same events, so counting is enough; empty lines and pings, which a
 * clock makes, do not count.
 *
 *   FOLLOWING --follow_break--> FOLLOWING: another server's bytes come next
 *   FOLLOWING --an event that ends streams--> ENDED
 */
#ifndef FATHOM_ROUTER_STREAM_FOLLOW_H
#define FATHOM_ROUTER_STREAM_FOLLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

/* A zeroed struct is at the begin of a stream. */
struct stream_follow {
    struct buf part; /* of an event that is not whole */
    int32_t *tokens; /* [n_token] told so far */
    size_t n_token;
    size_t cap_token;
    uint32_t n_left; /* events that have left since the last token was told */
    uint32_t n_seen; /* of them this server has sent so many */
    bool fails;      /* the server has told that it cannot go on; the error behind has not left */
};

/* follow_feed - bytes of the server; what is to leave is appended to `out`
 * Errors  ENOMEM; ELIMIT: an event is larger than an answer may be. */
fathom_err follow_feed(struct stream_follow *f, const char *bytes, size_t n, struct buf *out);

/* follow_flush - the stream has ended: what is left of it leaves */
fathom_err follow_flush(struct stream_follow *f, struct buf *out);

/* follow_break - the server is lost */
void follow_break(struct stream_follow *f);

/* follow_free - accepts a zeroed struct, and leaves one */
void follow_free(struct stream_follow *f);

#endif

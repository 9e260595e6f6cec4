/* stream_follow.h - follows a stream on its way to the client, so that another server can go on
 * with it
 *
 * The stream has a pass (stream_pass.h), so its server tells each token in a comment. These
 * comments are noted in `tokens` and not sent to the client; events are sent to it whole. When the
 * server is lost, another one gets `tokens` and goes on behind the last of them. It sends the
 * events since that token once more, and as many as the client has got already are left out. Both
 * servers make the same events, so counting them is enough. Empty lines and pings do not count,
 * because they depend on a clock.
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

/* Zeroed: at the beginning of a stream. */
struct stream_follow {
    struct buf part; /* the beginning of an event that is not whole yet */
    int32_t *tokens; /* [n_token] told so far */
    size_t n_token;
    size_t cap_token;
    uint32_t n_left; /* events sent to the client since the last token was told */
    uint32_t n_seen; /* events that this server has sent since then */
    bool fails;      /* the server says that it cannot go on: nothing more is sent to the client */
};

/* follow_feed - take bytes of the server, and append to `out` what the client is to get
 * Errors  ENOMEM; ELIMIT: an event is larger than an answer may be. */
fathom_err follow_feed(struct stream_follow *f, const char *bytes, size_t n, struct buf *out);

/* follow_flush - the stream has ended: append the rest to `out` */
fathom_err follow_flush(struct stream_follow *f, struct buf *out);

/* follow_break - the server is lost: the next bytes come from another one */
void follow_break(struct stream_follow *f);

/* follow_free - accepts a zeroed struct, and leaves one */
void follow_free(struct stream_follow *f);

#endif

/* stream_server.h - a server without a model: each request gets the same stream, at the same pace
 *
 * GET /load tells a fathom whose streams can go on elsewhere. Anything else is read to its end and
 * gets STREAM_EVENTS events as a chat has them: the first at once, the others STREAM_PACE_US apart,
 * then "[DONE]". Each event tells when it was written ("sent_ns", clock_now_ns), and a request with
 * a pass (base/stream_pass.h) is told its tokens. What a client sees later is the way's.
 */
#ifndef FATHOM_BENCH_STREAM_SERVER_H
#define FATHOM_BENCH_STREAM_SERVER_H

#include <stdint.h>

#include "fathom/err.h"

enum { STREAM_EVENTS = 8, STREAM_PACE_US = 1000 };

struct stream_server;

/* stream_server_open - listens at a free port of this machine; stream_server_close accepts NULL
 * Errors  EIO: the port, a thread; ENOMEM. */
FATHOM_MUST_CHECK fathom_err stream_server_open(struct stream_server **out, fathom_diag *d);
void stream_server_close(struct stream_server *s);

/* stream_server_port - the TCP port it listens on */
uint16_t stream_server_port(const struct stream_server *s);

#endif

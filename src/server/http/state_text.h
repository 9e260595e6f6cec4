/* state_text.h - what the server and its engine are doing, for an operator */
#ifndef FATHOM_SERVER_HTTP_STATE_TEXT_H
#define FATHOM_SERVER_HTTP_STATE_TEXT_H

#include "base/buf.h"
#include "server/http/route.h"

/* state_write - counters, and a line for each request in flight: ids and numbers, nothing of what
 * was said. Any thread.
 * Errors  ENOMEM. */
fathom_err state_write(const struct route_env *env, struct buf *out);

#endif

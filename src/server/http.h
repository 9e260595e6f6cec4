/* http.h - the HTTP side: listening, routes, request bodies, replies
 *
 * Only this file, job.c, tls.c and admin.c know libmicrohttpd.
 *
 * One exchange is one request on a connection:
 *
 *   (headers) --> RECEIVING --body complete--> answered at once        (models, health, errors)
 *                                         \--> job, suspended --> answered   (chats, completions)
 *   answered --> MHD tells completion --> end_exchange: job_detach, log line, free
 *
 * The body is always read to its end before a reply (but for one that announces too much), so that
 * the connection can be kept.
 */
#ifndef FATHOM_SERVER_HTTP_H
#define FATHOM_SERVER_HTTP_H

#include "server/state.h"

/* http_open - bind, listen and start the HTTP threads; sets http, listen_fd, port
 * Errors  EINVAL (address), EIO (port taken and the like), ENOMEM. */
fathom_err http_open(struct server *s, fathom_diag *d);

/* http_close - close everything. Needs no connection suspended, and none that could be. Until then
 * connections are taken: MHD_quiesce_daemon races with the threads of its own pool, which ends the
 * process. */
void http_close(struct server *s);

#endif

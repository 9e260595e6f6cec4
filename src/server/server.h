/* server.h - OpenAI's API over HTTP for one open engine
 *
 *   HTTP threads        read requests, write answers; never wait for anything else
 *   workers             parse the body, render the chat, tokenise, submit
 *   the poll thread     takes the engine's events and turns them into the bytes of answers
 *
 * A connection is suspended while its answer has nothing to send, so thousands of streams need a
 * few threads.
 */
#ifndef FATHOM_SERVER_SERVER_H
#define FATHOM_SERVER_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "chat/chat.h"
#include "fathom/fathom.h"
#include "server/server_options.h"

struct server;

/* server_create - listen and start the threads; requests are answered from here on
 *
 *   e  open engine; the server alone polls it from now to server_destroy
 *   t  the checkpoint's tokenizer
 *   style  how its chats are written and read; copied
 * Errors  EINVAL (no model name, a bad address), EIO (the port is taken, no permission: named),
 *         ENOMEM. */
FATHOM_MUST_CHECK fathom_err server_create(struct server **out, const struct server_options *o,
                                           fathom_engine *e, const struct tokenizer *t,
                                           const struct chat_style *style, fathom_diag *d);

/* server_port - the TCP port it listens on */
uint16_t server_port(const struct server *s);

/* server_check_address - whether a server could listen there now
 * Errors  EINVAL, EIO as of server_create. */
fathom_err server_check_address(const char *host, uint16_t port, fathom_diag *d);

/* server_run - wait until server_stop or a fatal error of the engine; then refuse new requests and
 * let the running ones end (up to drain_timeout_ms; a second server_stop cuts it short). What still
 * runs then is cancelled by server_destroy.
 *
 * Errors  EDEVICE when the engine has failed, with its message, or is stuck. */
FATHOM_MUST_CHECK fathom_err server_run(struct server *s, fathom_diag *d);

/* server_is_stuck - the engine makes no progress: fathom_close would wait for it, maybe for ever */
bool server_is_stuck(struct server *s);

/* server_stop - end server_run; a signal handler may call it, and a second call hurries */
void server_stop(struct server *s);

/* server_destroy - cancel what still runs, close all connections, end the threads; accepts NULL.
 * The engine stays open. */
void server_destroy(struct server *s);

#endif

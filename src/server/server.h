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

struct batch;
struct server;
struct server_claim;
struct key_list;

/* server_claim_make - take the sockets, the files and the certificates of these options, before
 * there is anything to serve: clients are refused until server_create, other servers from now on
 *
 * The caller frees it once the server, if there is one, is destroyed; server_claim_free accepts
 * NULL.
 * Errors  EINVAL (a bad address or certificate), EIO (the port is taken, no permission: named),
 *         ENOMEM. */
FATHOM_MUST_CHECK fathom_err server_claim_make(struct server_claim **out,
                                               const struct server_options *o, fathom_diag *d);
void server_claim_free(struct server_claim *c);

/* server_claim_inner_port - where other hosts hand requests on; 0: nowhere */
uint16_t server_claim_inner_port(const struct server_claim *c);

/* server_create - listen and start the threads; requests are answered from here on
 *
 *   e  open engine; the server alone polls it from now to server_destroy
 *   t  the checkpoint's tokenizer
 *   style  how its chats are written and read; copied
 * Errors  EINVAL (no model name), EIO, ENOMEM; those of server_claim_make without o->claim. */
FATHOM_MUST_CHECK fathom_err server_create(struct server **out, const struct server_options *o,
                                           fathom_engine *e, const struct tokenizer *t,
                                           const struct chat_style *style, fathom_diag *d);

/* server_port - the TCP port it listens on */
uint16_t server_port(const struct server *s);

/* server_check_address - whether a server could listen there now
 * Errors  EINVAL, EIO as of server_claim_make. */
fathom_err server_check_address(const char *host, uint16_t port, fathom_diag *d);

/* server_batch - where requests come from with o->no_port (batch_api.h); else NULL. The server's:
 * server_destroy gives up what is not taken. */
struct batch *server_batch(struct server *s);

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

/* What server_reload puts in the place of what the server has; a NULL stays as it is. Texts are
 * borrowed for the call. */
struct server_reload {
    const struct key_list *keys;
    const char *tls_certificate; /* PEM, with tls_key */
    const char *tls_key;
    const char *tls_client_ca; /* with both; NULL then: no certificate is asked of clients */
};

/* server_reload - keys, certificates, and the access log's file, opened anew by its name
 *
 * Each is told in the log: replaced, or kept and why. Requests under way go on as they began. One
 * thread at a time. */
void server_reload(struct server *s, const struct server_reload *r);

/* server_log_state - what the engine is doing and each request in flight, as lines of the log */
void server_log_state(struct server *s);

/* server_destroy - cancel what still runs, close all connections, end the threads; accepts NULL.
 * The engine stays open. */
void server_destroy(struct server *s);

#endif

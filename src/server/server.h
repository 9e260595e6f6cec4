/* server.h - OpenAI's API over HTTP for one open engine
 *
 *   HTTP threads        read requests, write answers; never wait for anything else
 *   workers             parse the body, render the chat, tokenise, submit
 *   the poll thread     takes the engine's events and turns them into the bytes of answers
 *   the watch thread    sees clients leave while their connection waits
 *
 * A connection is suspended while its answer has nothing to send, so thousands of streams need a
 * few threads.
 */
#ifndef FATHOM_SERVER_SERVER_H
#define FATHOM_SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "chat/chat.h"
#include "fathom/fathom.h"

struct server;

/* A zeroed struct with model_names is valid: 0 and NULL mean the default. What it points to is
 * borrowed and outlives the server. */
struct server_options {
    const char *host;         /* address or name to listen on; NULL: 127.0.0.1 */
    uint16_t port;            /* 0: one that is free (server_port tells) */
    const char *uds;          /* path of a socket to listen on instead; NULL: none */
    const char *admin_socket; /* path of the socket for operators (admin.h); NULL: none */
    const char *root_path;    /* prefix that a proxy leaves on paths; NULL: none */

    const char *const *model_names; /* names that requests may use; the first is told in lists */
    size_t n_model_name;            /* >= 1 */
    const char *const *api_keys;    /* any of them is taken; none: no key is needed */
    size_t n_api_key;
    bool open_metrics;          /* /metrics needs no key */
    const char *const *origins; /* pages that may ask from a browser; "*": all; none: no CORS */
    size_t n_origin;
    const char *const *cors_methods; /* that a preflight is told; "*": those of the route */
    size_t n_cors_method;
    const char *const *cors_headers; /* likewise; "*": those that it asks for */
    size_t n_cors_header;
    bool allow_credentials;
    const char *tls_certificate; /* PEM text; NULL: plain HTTP */
    const char *tls_key;         /* PEM text, with tls_certificate */
    const char *tls_client_ca;   /* PEM text: clients must bring a certificate of these; NULL: no */
    bool tls_client_optional;    /* they need not, but what they bring must be right */
    const char *access_log;      /* file, "-": standard output; NULL: none */

    bool thinking;            /* for chats that do not say */
    bool tools_first_message; /* see chat.h */
    bool markup_in_messages;  /* what messages spell like a control token becomes one */
    bool neutral_sampling;    /* do not take defaults from generation_config.json */
    bool tokenizer_info;      /* GET /tokenizer_info shows tokenizer_config.json */
    bool hide_requests;       /* no log line for each request */

    bool keep_no_responses;        /* of /v1/responses */
    uint32_t max_stored_responses; /* and these: limits.h */
    uint64_t max_stored_bytes;
    uint32_t stored_response_s;

    uint32_t n_http_thread;       /* 2 */
    uint32_t n_worker;            /* 2 */
    uint32_t max_connections;     /* 4096; requests on more: 503 */
    uint32_t max_preparing;       /* requests that wait for a worker; 1024; more: 429 */
    uint32_t max_held_bytes;      /* bodies received and not yet parsed; 1 GiB; more: 429 */
    uint32_t comment_interval_ms; /* comment lines on a silent stream; 10000 */
    uint32_t drain_timeout_ms;    /* server_run: how long requests may go on after a stop; 30000 */
    uint32_t stall_timeout_ms;    /* /health: the engine may stand still so long; 4000 */
    uint32_t head_timeout_ms;     /* this and the next two: limits.h */
    uint32_t idle_timeout_ms;
    uint32_t body_timeout_ms;
};

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

/* server_run - wait until server_stop or a fatal error of the engine; then refuse new requests and
 * let the running ones end (up to drain_timeout_ms; a second server_stop cuts it short). What still
 * runs then is cancelled by server_destroy.
 *
 * Errors  EDEVICE when the engine has failed, with its message, or is stuck. */
FATHOM_MUST_CHECK fathom_err server_run(struct server *s, fathom_diag *d);

/* server_is_stuck - the engine makes no progress: fathom_close would wait for it, maybe for ever */
bool server_is_stuck(struct server *s);

/* server_stop - end server_run; may be called from a signal handler, and again to hurry */
void server_stop(struct server *s);

/* server_destroy - cancel what still runs, close all connections, end the threads; accepts NULL.
 * The engine stays open. */
void server_destroy(struct server *s);

#endif

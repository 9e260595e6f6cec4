/* server_options.h - what a server is told when it is made */
#ifndef FATHOM_SERVER_SERVER_OPTIONS_H
#define FATHOM_SERVER_SERVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stream_pass.h"
#include "fathom/fathom.h"
#include "http/supervisor.h"
#include "http/tls.h"
#include "trace/setup.h"

/* A zeroed struct with model_names is valid: 0 and NULL mean the default. What it points to is
 * borrowed and outlives the server. */
struct server_options {
    struct server_claim *claim;   /* made of these options before; NULL: server_create makes one */
    const char *host;             /* address or name to listen on; NULL: 127.0.0.1 */
    uint16_t port;                /* 0: one that is free (server_port tells) */
    bool no_port;                 /* nothing is listened on: requests come by server_batch */
    const char *uds;              /* path of a socket to listen on instead; NULL: none */
    struct supervisor supervisor; /* with a socket in it: that is listened on instead */
    const char *admin_socket;     /* path of the socket for operators (admin.h); NULL: none */
    const char *root_path;        /* prefix that a proxy leaves on paths; NULL: none */

    const char *const *model_names; /* names that requests may use; the first is told in lists */
    size_t n_model_name;            /* >= 1 */
    const char *model_root;         /* what they stand for, told in lists; NULL: the first name */
    const char *const *api_keys;    /* any of them is taken; none: no key is needed */
    const char *const *key_tenants; /* whose each is: struct key_list */
    size_t n_api_key;
    enum {
        PREFIXES_AUTO, /* PREFIXES_BY_KEY with several tenants, else PREFIXES_ALL */
        PREFIXES_ALL,  /* requests of all keys find each other's cached prompts */
        PREFIXES_BY_KEY,
    } prefix_sharing;
    bool open_metrics;          /* /metrics needs no key */
    const char *const *origins; /* pages that may ask from a browser; "*": all; none: no CORS */
    size_t n_origin;
    const char *const *cors_methods; /* that a preflight is told; "*": those of the route */
    size_t n_cors_method;
    const char *const *cors_headers; /* likewise; "*": those that it asks for */
    size_t n_cors_header;
    bool allow_credentials;
    struct tls_setup tls;
    const char *const *allowed_hosts; /* names of this server; see http/host_names.h */
    size_t n_allowed_host;
    const char *access_log;    /* file, "-": standard output; NULL: none */
    struct trace_words traces; /* where spans of requests go; zeroed: nowhere */

    /* of a model over hosts that each have a port: how many there are, whose requests go to their
     * own lanes. 0: one port, for all lanes */
    uint32_t n_host;
    const char *inner_host; /* with it, where the other hosts hand requests on; NULL: everywhere */
    uint16_t inner_port;    /* 0: one that is free (server_claim_inner_port tells) */
    uint64_t inner_key[2];  /* that they bring: host_pass.h */

    struct pool_secret pool_secret; /* whose streams are resumable here */
    bool fail_lost_pages; /* a request whose pages another server does not give is answered 503 */

    bool strict_fields;              /* refuse fields that are not known */
    bool stream_pieces;              /* events of /generate do not repeat those before */
    bool thinking;                   /* for chats that do not say */
    const char *thinking_closing;    /* before the </think> that a budget forces; NULL: none */
    bool tools_first_message;        /* see chat.h */
    bool markup_in_messages;         /* what messages spell like a control token becomes one */
    bool neutral_sampling;           /* do not take defaults from generation_config.json */
    const fathom_sampling *sampling; /* defaults before either; negative values: none. NULL: none */
    bool always_usage;               /* streams tell it, asked for or not */
    bool tokens_as_ids;              /* log-probabilities name tokens "token_id:N" */
    bool high_priority_first;        /* of requests' priority; else the lowest */
    bool no_docs;                    /* GET /docs and /openapi.json are 404 */
    bool tokenizer_info;             /* GET /tokenizer_info shows tokenizer_config.json */
    bool hide_requests;              /* no log line for each request */

    bool keep_no_responses;        /* of /v1/responses */
    uint32_t max_stored_responses; /* and these: limits.h */
    uint64_t max_stored_bytes;
    uint32_t stored_response_s;

    uint32_t n_http_thread;    /* 2 */
    uint32_t n_worker;         /* 2 */
    uint32_t max_connections;  /* 4096; requests on more: 503 */
    uint32_t max_preparing;    /* requests that wait for a worker; 1024; more: 429 */
    uint32_t max_held_bytes;   /* bodies received and not yet parsed; 1 GiB; more: 429 */
    uint32_t max_answer_bytes; /* of answers not yet read; 1 GiB; more: 429, slow readers cut */
    uint32_t idle_line_ms;     /* between empty lines on a silent stream; 10000 */
    uint32_t drain_timeout_ms; /* server_run: how long requests may go on after a stop; 30000 */
    uint32_t stall_timeout_ms; /* /health: the engine may stand still so long; 4000 */
    uint32_t head_timeout_ms;  /* this and the next two: limits.h */
    uint32_t idle_timeout_ms;
    uint32_t body_timeout_ms;
    uint32_t unread_timeout_ms; /* for a client to read some of an answer; likewise */
    uint32_t max_unread_bytes;  /* of answers that clients do not read; likewise */
};

#endif

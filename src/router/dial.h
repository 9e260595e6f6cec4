/* dial.h - a connection as libcurl makes it: names, TLS, time-outs
 *
 * Each is made by a multi handle of its own, which has no other to tidy up. Whoever dials waits:
 * the sockets are in an epoll of his, and due_us says when libcurl wants to be called besides.
 *
 *   begin --> MAKING --dial_go_on: settled--> the caller's, or cause --dial_end--> (nothing)
 */
#ifndef FATHOM_ROUTER_DIAL_H
#define FATHOM_ROUTER_DIAL_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

/* Whom to trust, and what to show. */
struct dial_setup {
    bool insecure; /* certificates are not checked */
    /* PEM files, borrowed, which each connection reads anew: the authorities of servers'
     * certificates, NULL: the system's; a certificate that they may ask for, its key, NULL: none */
    const char *ca_path, *cert_path, *key_path;
    uint32_t connect_timeout_ms;
};

/* Where to; borrowed, but event, which is only handed on. */
struct dial_target {
    const char *origin; /* "http://host:port"; it outlives the dial */
    const char *name;   /* of the server's certificate; "": the host's */
    CURLSH *share;      /* of names and sessions */
    int epoll_fd;
    void *event; /* data.ptr of the sockets there */
};

enum { DIAL_SOCKETS = 8 }; /* that one waits for, of which there may be two families' */

/* Zeroed: none. */
struct dial {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *address;
    int epoll_fd;
    void *event;
    uint64_t due_us; /* when libcurl wants to be called; UINT64_MAX: not */
    int sockets[DIAL_SOCKETS];
    uint32_t n_socket;
    char cause
        [CURL_ERROR_SIZE]; /* why it cannot be made; of an address that has not answered, too */
};

/* dial_begin - false: out of memory; dial_end is called in any case */
bool dial_begin(struct dial *d, const struct dial_setup *s, const struct dial_target *t);

/* dial_go_on - one of its sockets has an event, or due_us has come
 *
 *   fd  the connection, which is libcurl's; -1: it cannot be made, and cause says why
 * Returns false while it is being made. */
bool dial_go_on(struct dial *d, int *fd);

/* dial_end - libcurl lets the connection go; a second call does nothing */
void dial_end(struct dial *d);

#endif

/* dial.h - a connection as libcurl makes it: names, TLS, time-outs
 *
 * Each connection has a multi handle of its own. The caller waits: the sockets are in the caller's
 * epoll, and due_us says when libcurl wants to be called without an event.
 *
 *   dial_begin --> MAKING --dial_go_on returns true--> MADE, or FAILED with a cause --dial_end-->
 */
#ifndef FATHOM_ROUTER_DIAL_H
#define FATHOM_ROUTER_DIAL_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

/* How to check the servers' certificates, and which certificate to show them. */
struct dial_setup {
    bool insecure; /* certificates are not checked */
    /* PEM files, borrowed; each connection reads them anew. ca_path: the authorities that sign the
     * servers' certificates (NULL: the system's). cert_path, key_path: a certificate for servers
     * that ask for one, and its key (NULL: none) */
    const char *ca_path, *cert_path, *key_path;
    uint32_t connect_timeout_ms;
};

/* Where to connect. All but `event` is borrowed. */
struct dial_target {
    const char *origin; /* "http://host:port"; it outlives the dial */
    const char *name;   /* of the server's certificate; "": the host's */
    CURLSH *share;      /* of names and sessions */
    int epoll_fd;
    void *event; /* data.ptr of the sockets in the epoll */
};

enum { DIAL_SOCKETS = 8 }; /* sockets of one connection: libcurl may try two families at once */

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
    char cause[CURL_ERROR_SIZE]; /* why it cannot be made, or why an address did not answer */
};

/* dial_begin - false: out of memory. Call dial_end in any case. */
bool dial_begin(struct dial *d, const struct dial_setup *s, const struct dial_target *t);

/* dial_go_on - to be called when one of its sockets has an event, or due_us has come
 *
 *   fd  the connection, which belongs to libcurl; -1: it cannot be made, and `cause` says why
 * Returns false while it is being made. */
bool dial_go_on(struct dial *d, int *fd);

/* dial_end - free what libcurl has, the connection too; a second call does nothing */
void dial_end(struct dial *d);

#endif

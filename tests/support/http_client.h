/* http_client.h - a plain HTTP/1.1 client over one socket, for tests of the server */
#ifndef FATHOM_TESTS_HTTP_CLIENT_H
#define FATHOM_TESTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct http_client {
    int fd;
    struct buf in; /* received, not consumed */
};

struct http_reply {
    int status;
    struct buf head; /* status line and headers */
    struct buf body; /* chunks joined */
    bool ended;      /* the body came to its proper end */
};

/* http_client_open - connect to 127.0.0.1:port; reads fail after 2 minutes. Returns false if
 * refused. */
bool http_client_open(struct http_client *c, uint16_t port);
void http_client_close(struct http_client *c);

/* http_client_send - method, path, extra header lines ("A: b\r\n", may be ""), body (NULL: none) */
bool http_client_send(struct http_client *c, const char *method, const char *path,
                      const char *headers, const char *body);
bool http_client_send_bytes(struct http_client *c, const void *bytes, size_t n);

/* http_client_read - one whole reply; false when the connection broke before its end */
bool http_client_read(struct http_client *c, struct http_reply *r, bool is_head);

/* http_client_wait_for - read until `text` is among the received bytes */
bool http_client_wait_for(struct http_client *c, const char *text);

/* http_client_at_end - the server has closed the connection */
bool http_client_at_end(struct http_client *c);

void http_reply_free(struct http_reply *r);

/* http_reply_header - value of a header, copied to out; false when absent */
bool http_reply_header(const struct http_reply *r, const char *name, char *out, size_t bytes);

#endif

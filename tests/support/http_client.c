/* http_client.c - HTTP/1.1 over one socket */
#include "support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

bool http_client_open(struct http_client *c, uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval limit = {.tv_sec = 120}; /* only a hang takes so long */
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *c = (struct http_client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (c->fd < 0) return false;
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(c->fd, (struct sockaddr *)&at, sizeof at) == 0) return true;
    http_client_close(c);
    return false;
}

void http_client_close(struct http_client *c)
{
    if (c->fd >= 0) (void)close(c->fd);
    c->fd = -1;
    buf_free(&c->in);
}

bool http_client_send_bytes(struct http_client *c, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n) {
        ssize_t sent = send(c->fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool http_client_send(struct http_client *c, const char *method, const char *path,
                      const char *headers, const char *body)
{
    struct buf b = {0};
    (void)buf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, headers);
    if (body) {
        (void)buf_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                         strlen(body));
    }
    (void)buf_add_str(&b, "\r\n");
    if (body) (void)buf_add_str(&b, body);
    bool ok = http_client_send_bytes(c, buf_str(&b), b.len);
    buf_free(&b);
    return ok;
}

static bool receive(struct http_client *c)
{
    char bytes[65536];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    return n > 0 && buf_add(&c->in, bytes, (size_t)n) == FATHOM_OK;
}

bool http_client_wait_for(struct http_client *c, const char *text)
{
    while (!strstr(buf_str(&c->in), text)) {
        if (!receive(c)) return false;
    }
    return true;
}

bool http_client_at_end(struct http_client *c)
{
    char byte;
    return recv(c->fd, &byte, 1, 0) == 0;
}

/* The offset just past `text` in what has been received, reading on as needed; 0: never came. */
static size_t find_past(struct http_client *c, size_t from, const char *text)
{
    for (;;) {
        const char *at = c->in.len > from ? strstr(c->in.data + from, text) : NULL;
        if (at) return (size_t)(at - c->in.data) + strlen(text);
        if (!receive(c)) return 0;
    }
}

static bool need(struct http_client *c, size_t n)
{
    while (c->in.len < n) {
        if (!receive(c)) return false;
    }
    return true;
}

static bool take(struct http_client *c, size_t n, struct buf *out)
{
    if (!need(c, n) || buf_add(out, c->in.data, n) != FATHOM_OK) return false;
    buf_consume(&c->in, n);
    return true;
}

static bool read_chunks(struct http_client *c, struct buf *body)
{
    for (;;) {
        size_t past = find_past(c, 0, "\r\n");
        if (!past) return false;
        size_t n = strtoul(c->in.data, NULL, 16);
        buf_consume(&c->in, past);
        if (n && !take(c, n, body)) return false;
        if (!need(c, 2)) return false;
        buf_consume(&c->in, 2);
        if (n == 0) return true;
    }
}

bool http_client_read(struct http_client *c, struct http_reply *r, bool is_head)
{
    char value[64];
    *r = (struct http_reply){0};
    size_t past = find_past(c, 0, "\r\n\r\n");
    if (!past || !take(c, past, &r->head)) return false;
    r->status = atoi(r->head.data + strlen("HTTP/1.1 "));
    r->ended = is_head || r->status == 204;
    if (r->ended) return true;
    if (http_reply_header(r, "Content-Length", value, sizeof value)) {
        r->ended = take(c, strtoul(value, NULL, 10), &r->body);
    } else if (http_reply_header(r, "Transfer-Encoding", value, sizeof value)) {
        r->ended = read_chunks(c, &r->body);
    }
    return r->ended;
}

void http_reply_free(struct http_reply *r)
{
    buf_free(&r->head);
    buf_free(&r->body);
}

bool http_reply_header(const struct http_reply *r, const char *name, char *out, size_t bytes)
{
    size_t n = strlen(name);
    for (const char *line = strstr(buf_str(&r->head), "\r\n"); line;
         line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, n) != 0 || line[2 + n] != ':') continue;
        const char *value = line + 2 + n + 1;
        while (*value == ' ') value++;
        (void)snprintf(out, bytes, "%.*s", (int)strcspn(value, "\r"), value);
        return true;
    }
    return false;
}

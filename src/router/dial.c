/* dial.c - how libcurl is told to connect, and what it waits for */
#include "router/dial.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/assert.h"
#include "base/clock.h"

enum { KEEP_IDLE_S = 5, KEEP_INTERVAL_S = 2, ADDRESS_BYTES = 600 };

/* ---- what it waits for ----------------------------------------------------------------------- */

/* libcurl's CURL_POLL_ bits for epoll; a socket is watched until it says CURL_POLL_REMOVE. */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct dial *d = arg;
    struct epoll_event e = {.data.ptr = d->event};
    uint32_t i = 0;
    (void)easy, (void)known;
    while (i < d->n_socket && d->sockets[i] != fd) i++;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        if (i < d->n_socket) d->sockets[i] = d->sockets[--d->n_socket];
        return 0;
    }
    if (what & CURL_POLL_IN) e.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) e.events |= EPOLLOUT;
    bool is_new = i == d->n_socket;
    if (is_new && d->n_socket == DIAL_SOCKETS) return 0; /* the connection's time-out ends it */
    if (is_new) d->sockets[d->n_socket++] = fd;
    (void)epoll_ctl(d->epoll_fd, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
    return 0;
}

static int set_timer(CURLM *multi, long ms, void *arg)
{
    struct dial *d = arg;
    (void)multi;
    d->due_us = ms < 0 ? UINT64_MAX : clock_now_us() + (uint64_t)ms * 1000;
    return 0;
}

/* ---- how it is made -------------------------------------------------------------------------- */

/* Whom it connects to, and whom with. */
static bool set_address(struct dial *d, const struct dial_target *t)
{
    const char *host = strstr(t->origin, "://") + 3, *port = strrchr(host, ':');
    char url[ADDRESS_BYTES], address[ADDRESS_BYTES];
    if (!*t->name) return curl_easy_setopt(d->easy, CURLOPT_URL, t->origin) == CURLE_OK;
    (void)snprintf(url, sizeof url, "https://%s%s", t->name, port);
    (void)snprintf(address, sizeof address, "::%s", host);
    d->address = curl_slist_append(NULL, address);
    return d->address && curl_easy_setopt(d->easy, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(d->easy, CURLOPT_CONNECT_TO, d->address) == CURLE_OK;
}

static bool set_files(CURL *easy, const struct dial_setup *s)
{
    const struct {
        CURLoption option;
        const char *path;
    } files[] = {{CURLOPT_CAINFO, s->ca_path},
                 {CURLOPT_SSLCERT, s->cert_path},
                 {CURLOPT_SSLKEY, s->key_path}};
    if (s->ca_path) (void)curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    for (size_t i = 0; i < 3; i++) {
        if (files[i].path && curl_easy_setopt(easy, files[i].option, files[i].path) != CURLE_OK)
            return false;
    }
    return true;
}

bool dial_begin(struct dial *d, const struct dial_setup *s, const struct dial_target *t)
{
    *d = (struct dial){.multi = curl_multi_init(),
                       .easy = curl_easy_init(),
                       .epoll_fd = t->epoll_fd,
                       .event = t->event,
                       .due_us = UINT64_MAX};
    CURL *easy = d->easy;
    if (!d->multi || !easy || !set_address(d, t) || !set_files(easy, s)) return false;
    (void)curl_easy_setopt(easy, CURLOPT_SHARE, t->share);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, (long)KEEP_IDLE_S);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, (long)KEEP_INTERVAL_S);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)s->connect_timeout_ms);
    (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, s->insecure ? 0L : 1L);
    (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, s->insecure ? 0L : 2L);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, d->cause);
    (void)curl_multi_setopt(d->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    (void)curl_multi_setopt(d->multi, CURLMOPT_SOCKETDATA, d);
    (void)curl_multi_setopt(d->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    (void)curl_multi_setopt(d->multi, CURLMOPT_TIMERDATA, d);
    return curl_multi_add_handle(d->multi, easy) == CURLM_OK;
}

/* libcurl finds out itself which of its sockets it can go on with. */
bool dial_go_on(struct dial *d, int *fd)
{
    int sockets[DIAL_SOCKETS], running, n_left;
    const uint32_t n = d->n_socket;
    ASSERT(d->multi && d->easy);
    memcpy(sockets, d->sockets, sizeof sockets);
    if (clock_now_us() >= d->due_us) d->due_us = UINT64_MAX; /* it sets the next one */
    for (uint32_t i = 0; i < n; i++) {
        (void)curl_multi_socket_action(d->multi, sockets[i], 0, &running);
    }
    (void)curl_multi_socket_action(d->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    CURLMsg *m = curl_multi_info_read(d->multi, &n_left);
    if (!m || m->msg != CURLMSG_DONE) return false;
    const CURLcode code = m->data.result;
    curl_socket_t made = CURL_SOCKET_BAD;
    if (code == CURLE_OK) (void)curl_easy_getinfo(d->easy, CURLINFO_ACTIVESOCKET, &made);
    *fd = made == CURL_SOCKET_BAD ? -1 : made;
    if (*fd < 0 && !d->cause[0])
        (void)snprintf(d->cause, sizeof d->cause, "%s", curl_easy_strerror(code));
    return true;
}

void dial_end(struct dial *d)
{
    if (d->easy && d->multi) (void)curl_multi_remove_handle(d->multi, d->easy);
    curl_easy_cleanup(d->easy);
    curl_slist_free_all(d->address);
    if (d->multi) (void)curl_multi_cleanup(d->multi);
    d->address = NULL;
    d->easy = NULL;
    d->multi = NULL;
    d->due_us = UINT64_MAX;
}

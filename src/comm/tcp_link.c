/* tcp_link.c - sockets that do not block, and poll
 *
 * Time in which this process stood still is not time that the other side has had: a machine that
 * stops for some seconds stops both. So it is waited in pieces, and one that took much longer than
 * asked moves the deadline.
 */
#include "comm/tcp_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"

enum { POLL_MS_MAX = 500, STILL_US = 250000, BUFFER_BYTES = 4 << 20 };

/* A machine that has gone without a word, as one without power does, leaves idle connections that
 * the system would keep for two hours. */
enum { KEEP_IDLE_S = 10, KEEP_INTERVAL_S = 5, KEEP_PROBES = 3 };

struct tcp_link {
    struct page_link base; /* first member */
    int fd;
    int stop_fd;
    bool near;
};

static int timeout_ms(uint64_t deadline_us)
{
    uint64_t now_us = clock_now_us();
    if (deadline_us <= now_us) return 0;
    uint64_t ms = (deadline_us - now_us + 999) / 1000;
    return ms < POLL_MS_MAX ? (int)ms : POLL_MS_MAX;
}

/* As poll; 0: nothing came for a piece of the time that is left. */
static int poll_piece(struct pollfd *p, nfds_t n, uint64_t *deadline_us)
{
    const int ms = timeout_ms(*deadline_us);
    const uint64_t due_us = clock_now_us() + (uint64_t)ms * 1000;
    const int n_ready = poll(p, n, ms);
    const uint64_t now_us = clock_now_us();
    if (n_ready == 0 && now_us > due_us + STILL_US && *deadline_us < UINT64_MAX - now_us)
        *deadline_us += now_us - due_us;
    return n_ready;
}

/* Until the socket is ready. */
static fathom_err wait_for(int fd, int stop_fd, short events, uint64_t deadline_us, fathom_diag *d)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = stop_fd, .events = POLLIN}};
        int n = poll_piece(p, stop_fd >= 0 ? 2 : 1, &deadline_us);
        if (n < 0 && errno != EINTR) FAIL(d, FATHOM_EIO, "poll: %s", strerror(errno));
        if (n > 0 && p[1].revents) FAIL(d, FATHOM_EIO, "it is being stopped");
        if (n > 0) return FATHOM_OK;
        if (n == 0 && clock_now_us() >= deadline_us) FAIL(d, FATHOM_EIO, "it took too long");
    }
}

static fathom_err tcp_send(struct page_link *base, const struct link_part *parts, size_t n,
                           uint64_t deadline_us, fathom_diag *d)
{
    struct tcp_link *l = (struct tcp_link *)base;
    struct iovec v[LINK_PARTS_MAX];
    ASSERT(n >= 1 && n <= LINK_PARTS_MAX);
    for (size_t i = 0; i < n; i++) v[i] = (struct iovec){(void *)parts[i].bytes, parts[i].n};
    for (size_t i = 0; i < n;) {
        struct msghdr m = {.msg_iov = v + i, .msg_iovlen = n - i};
        ssize_t sent = sendmsg(l->fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            FAIL(d, FATHOM_EIO, "it cannot be sent to: %s", strerror(errno));
        }
        if (sent < 0) {
            TRY(wait_for(l->fd, l->stop_fd, POLLOUT, deadline_us, d));
            continue;
        }
        size_t left = (size_t)sent;
        for (; i < n && left >= v[i].iov_len; i++) left -= v[i].iov_len;
        if (i < n) v[i] = (struct iovec){(char *)v[i].iov_base + left, v[i].iov_len - left};
    }
    return FATHOM_OK;
}

static fathom_err tcp_receive(struct page_link *base, void *to, size_t n, uint64_t deadline_us,
                              fathom_diag *d)
{
    struct tcp_link *l = (struct tcp_link *)base;
    for (size_t got = 0; got < n;) {
        ssize_t k = recv(l->fd, (char *)to + got, n - got, 0);
        if (k == 0) FAIL(d, FATHOM_EIO, "it has closed the connection");
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            FAIL(d, FATHOM_EIO, "the connection broke: %s", strerror(errno));
        }
        if (k < 0) {
            TRY(wait_for(l->fd, l->stop_fd, POLLIN, deadline_us, d));
        } else {
            got += (size_t)k;
        }
    }
    return FATHOM_OK;
}

static fathom_err tcp_await(struct page_link *base, uint64_t deadline_us, fathom_diag *d)
{
    const struct tcp_link *l = (const struct tcp_link *)base;
    TRY(wait_for(l->fd, l->stop_fd, POLLIN, deadline_us, d));
    if (tcp_link_is_broken(base)) FAIL(d, FATHOM_EIO, "it has closed the connection");
    return FATHOM_OK;
}

fathom_err tcp_link_wait(const struct page_link *base, int fd, uint64_t deadline_us, fathom_diag *d)
{
    const struct tcp_link *l = (const struct tcp_link *)base;
    for (;;) {
        struct pollfd p[3] = {{.fd = fd, .events = POLLIN},
                              {.fd = l->fd, .events = POLLIN},
                              {.fd = l->stop_fd, .events = POLLIN}};
        int n = poll_piece(p, l->stop_fd >= 0 ? 3 : 2, &deadline_us);
        if (n < 0 && errno != EINTR) FAIL(d, FATHOM_EIO, "poll: %s", strerror(errno));
        if (n > 0 && p[2].revents) FAIL(d, FATHOM_EIO, "it is being stopped");
        if (n > 0 && p[0].revents) return FATHOM_OK;
        if (n > 0) FAIL(d, FATHOM_EIO, "it has closed the connection");
        if (n == 0 && clock_now_us() >= deadline_us) FAIL(d, FATHOM_EIO, "it took too long");
    }
}

static bool tcp_is_near(const struct page_link *base)
{
    return ((const struct tcp_link *)base)->near;
}

static void tcp_close(struct page_link *base)
{
    struct tcp_link *l = (struct tcp_link *)base;
    (void)close(l->fd);
    mem_free(l);
}

static const struct page_link_ops tcp_ops = {.send = tcp_send,
                                             .receive = tcp_receive,
                                             .await = tcp_await,
                                             .is_near = tcp_is_near,
                                             .close = tcp_close};

static bool is_loopback(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
    }
    const struct in6_addr *a = &((const struct sockaddr_in6 *)at)->sin6_addr;
    if (at->ss_family != AF_INET6) return false;
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* Takes the descriptor; NULL: out of memory, and it is closed. */
static struct page_link *make(int fd, int stop_fd)
{
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof at;
    const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEP_PROBES},
                   {SOL_SOCKET, SO_SNDBUF, BUFFER_BYTES}};
    struct tcp_link *l = mem_calloc(1, sizeof *l);
    if (!l) {
        (void)close(fd);
        return NULL;
    }
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    }
    l->base.ops = &tcp_ops;
    l->fd = fd;
    l->stop_fd = stop_fd;
    l->near = getpeername(fd, (struct sockaddr *)&at, &n) == 0 && is_loopback(&at);
    return &l->base;
}

static fathom_err look_up(const char *host, uint16_t port, int flags, struct addrinfo **out,
                          fathom_diag *d)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    char service[8];
    (void)snprintf(service, sizeof service, "%u", port);
    int why = getaddrinfo(host, service, &hints, out);
    if (why == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s is no address: %s", host, gai_strerror(why));
}

static fathom_err dial_one(const struct addrinfo *a, int *out, uint64_t deadline_us, int stop_fd,
                           fathom_diag *d)
{
    int error = 0;
    socklen_t n = sizeof error;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) FAIL(d, FATHOM_EIO, "socket: %s", strerror(errno));
    fathom_err err = FATHOM_OK;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        error = errno;
        if (error == EINPROGRESS) {
            error = 0;
            err = wait_for(fd, stop_fd, POLLOUT, deadline_us, d);
            if (!err) (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
        }
    }
    if (!err && error) err = diag_fail(d, FATHOM_EIO, "%s", strerror(error));
    if (err) {
        (void)close(fd);
    } else {
        *out = fd;
    }
    return err;
}

fathom_err tcp_link_dial(struct page_link **out, const char *host, uint16_t port,
                         uint64_t deadline_us, int stop_fd, fathom_diag *d)
{
    struct addrinfo *list = NULL;
    fathom_diag cause = {{0}};
    fathom_err err = look_up(host, port, 0, &list, &cause);
    int fd = -1;
    *out = NULL;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        diag_clear(&cause);
        err = dial_one(a, &fd, deadline_us, stop_fd, &cause);
    }
    if (list) freeaddrinfo(list);
    if (fd < 0) FAIL(d, FATHOM_EIO, "%s", err ? cause.text : "no address");
    *out = make(fd, stop_fd);
    return *out ? FATHOM_OK : FATHOM_ENOMEM;
}

fathom_err tcp_link_listen(const char *host, uint16_t port, int *fd, uint16_t *out_port,
                           fathom_diag *d)
{
    struct addrinfo *list = NULL;
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof at;
    int one = 1;
    *fd = -1;
    TRY(look_up(host, port, AI_PASSIVE, &list, d));
    for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (s < 0) continue;
        (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, SOMAXCONN) == 0) {
            *fd = s;
        } else {
            int why = errno;
            (void)close(s);
            errno = why;
        }
    }
    int why = errno;
    freeaddrinfo(list);
    if (*fd < 0) {
        FAIL(d, FATHOM_EIO, "cannot listen on %s port %u: %s%s", host, port, strerror(why),
             why == EADDRINUSE ? "; another program has it, choose another port" : "");
    }
    (void)getsockname(*fd, (struct sockaddr *)&at, &n);
    *out_port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                               : ((struct sockaddr_in *)&at)->sin_port);
    return FATHOM_OK;
}

/* A connection; -1: none can be had now. */
static int accept_one(int fd)
{
    int s = accept(fd, NULL, NULL);
    if (s < 0 && errno != EAGAIN && errno != EINTR) clock_sleep_us(10000);
    if (s >= 0) (void)fcntl(s, F_SETFD, FD_CLOEXEC);
    if (s >= 0) (void)fcntl(s, F_SETFL, O_NONBLOCK);
    return s;
}

struct page_link *tcp_link_accept(int fd, int stop_fd)
{
    while (wait_for(fd, stop_fd, POLLIN, UINT64_MAX, NULL) == FATHOM_OK) {
        int s = accept_one(fd);
        struct page_link *l = s >= 0 ? make(s, stop_fd) : NULL;
        if (l) return l;
    }
    return NULL;
}

/* ---- the lobby ---- */

static int leave_lobby(struct tcp_lobby *l, uint32_t i)
{
    ASSERT(i < l->n);
    const int s = l->fds[i];
    l->n--;
    memmove(&l->fds[i], &l->fds[i + 1], (l->n - i) * sizeof l->fds[0]);
    memmove(&l->until_us[i], &l->until_us[i + 1], (l->n - i) * sizeof l->until_us[0]);
    return s;
}

/* Can be read, and so is woken for, once n_byte have come. */
static void enter_lobby(struct tcp_lobby *l, int s, int n_byte, uint64_t until_us)
{
    (void)setsockopt(s, SOL_SOCKET, SO_RCVLOWAT, &n_byte, sizeof n_byte);
    if (l->n == TCP_LOBBY_MAX) (void)close(leave_lobby(l, 0));
    l->fds[l->n] = s;
    l->until_us[l->n++] = until_us;
}

/* Who has said enough, or has left; -1: nobody. */
static int take_spoken(struct tcp_lobby *l, const struct pollfd *p)
{
    const int one = 1;
    uint32_t i = 0;
    while (i < l->n && !p[i].revents) i++;
    if (i == l->n) return -1;
    const int s = leave_lobby(l, i);
    (void)setsockopt(s, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    return s;
}

struct page_link *tcp_link_accept_said(struct tcp_lobby *l, int fd, int stop_fd, int n_byte,
                                       uint64_t wait_us)
{
    for (;;) {
        struct pollfd p[2 + TCP_LOBBY_MAX] = {{.fd = fd, .events = POLLIN},
                                              {.fd = stop_fd, .events = POLLIN}};
        for (uint32_t i = 0; i < l->n; i++)
            p[2 + i] = (struct pollfd){.fd = l->fds[i], .events = POLLIN};
        const int n = poll(p, 2 + l->n, l->n > 0 ? timeout_ms(l->until_us[0]) : -1);
        if ((n < 0 && errno != EINTR) || (n > 0 && p[1].revents)) break;
        if (n < 0) continue;
        const int spoken = take_spoken(l, p + 2);
        struct page_link *link = spoken >= 0 ? make(spoken, stop_fd) : NULL;
        if (link) return link;
        while (l->n > 0 && clock_now_us() >= l->until_us[0]) (void)close(leave_lobby(l, 0));
        const int s = n > 0 && p[0].revents ? accept_one(fd) : -1;
        if (s >= 0) enter_lobby(l, s, n_byte, clock_now_us() + wait_us);
    }
    while (l->n > 0) (void)close(leave_lobby(l, 0));
    return NULL;
}

void tcp_link_break(struct page_link *l)
{
    ASSERT(l->ops == &tcp_ops);
    (void)shutdown(((struct tcp_link *)l)->fd, SHUT_RDWR);
}

bool tcp_link_is_broken(const struct page_link *l)
{
    char byte;
    ASSERT(l->ops == &tcp_ops);
    const ssize_t n = recv(((const struct tcp_link *)l)->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* listen.c - binds sockets of TCP and socket files */
#include "http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fail.h"

static int set_option(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* Two sockets that both may reuse an address can be bound to it as long as neither listens, so this
 * one may not while it is bound only. Connections of a process before that are still closing keep
 * an address from a socket that may not: then it is bound as one that may, which another process
 * that came as far would be told by listen_begin alone. */
static int bind_one(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) return -1;
    if (a->ai_family == AF_INET6) (void)set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    bool bound = bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (!bound && errno == EADDRINUSE) {
        (void)set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        bound = bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        int why = errno;
        (void)set_option(fd, SOL_SOCKET, SO_REUSEADDR, 0);
        errno = why;
    }
    if (bound) return fd;
    int why = errno;
    (void)close(fd);
    errno = why;
    return -1;
}

fathom_err listen_bind_tcp(const char *host, uint16_t port, int *fd, uint16_t *out_port,
                           fathom_diag *d)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];
    *fd = -1;
    (void)snprintf(service, sizeof service, "%u", port);
    int why = getaddrinfo(host, service, &hints, &list);
    if (why != 0) {
        FAIL(d, FATHOM_EINVAL, "--host %s is no address of this machine: %s", host,
             gai_strerror(why));
    }
    for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) *fd = bind_one(a);
    int error = errno;
    freeaddrinfo(list);
    if (*fd < 0) {
        FAIL(d, FATHOM_EIO, "cannot listen on %s port %u: %s%s", host, port, strerror(error),
             error == EADDRINUSE ? "; another program has it, choose another --port" : "");
    }
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(*fd, (struct sockaddr *)&at, &n) != 0) {
        FAIL(d, FATHOM_EIO, "the port cannot be read back: %s", strerror(errno));
    }
    *out_port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                               : ((struct sockaddr_in *)&at)->sin_port);
    return FATHOM_OK;
}

/* Whether a process has the socket, listening or not: one of another type tells of it without
 * connecting. */
static bool is_had(const struct sockaddr_un *at)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int status = fd >= 0 ? connect(fd, (const struct sockaddr *)at, sizeof *at) : -1;
    bool had = status == 0 || errno == EPROTOTYPE;
    if (fd >= 0) (void)close(fd);
    return had;
}

/* Removes a socket file that an earlier process has left behind. */
static fathom_err clear_path(const struct sockaddr_un *at, fathom_diag *d)
{
    struct stat st;
    if (lstat(at->sun_path, &st) != 0) return FATHOM_OK;
    if (!S_ISSOCK(st.st_mode)) {
        FAIL(d, FATHOM_EIO, "%s is there and is no socket; choose another path", at->sun_path);
    }
    if (is_had(at)) FAIL(d, FATHOM_EIO, "another program listens on %s", at->sun_path);
    (void)unlink(at->sun_path);
    return FATHOM_OK;
}

/* Nobody can connect before listen, so there is no moment of a wider mode. */
fathom_err listen_bind_unix(const char *path, int *fd, fathom_diag *d)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    *fd = -1;
    if (strlen(path) >= sizeof at.sun_path) {
        FAIL(d, FATHOM_EINVAL, "%s: a socket's path has at most %zu characters", path,
             sizeof at.sun_path - 1);
    }
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    TRY(clear_path(&at, d));
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd >= 0 && bind(*fd, (const struct sockaddr *)&at, sizeof at) == 0 &&
        chmod(path, S_IRUSR | S_IWUSR) == 0) {
        return FATHOM_OK;
    }
    int why = errno;
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
    FAIL(d, FATHOM_EIO, "cannot listen on %s: %s", path, strerror(why));
}

fathom_err listen_begin(int fd, fathom_diag *d)
{
    (void)set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1); /* so that a restart need not wait */
    if (listen(fd, SOMAXCONN) == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "the port that was free at start cannot be listened on: %s",
         strerror(errno));
}

bool listen_is_on_loopback(int fd)
{
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n) != 0) return false;
    if (at.ss_family == AF_INET) {
        return ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr) >> 24 == 127;
    }
    const struct in6_addr *a = &((struct sockaddr_in6 *)&at)->sin6_addr;
    if (at.ss_family != AF_INET6) return false;
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

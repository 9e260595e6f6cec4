/* supervisor.c - datagrams to the service manager, and the socket that it hands over */
#include "http/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"

enum { FIRST_FD = 3 };

void supervisor_tell(const struct supervisor *s, const char *lines)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t n = s->notify_socket ? strlen(s->notify_socket) : 0;
    if (n == 0 || n >= sizeof at.sun_path) return;
    memcpy(at.sun_path, s->notify_socket, n + 1);
    if (at.sun_path[0] == '@') at.sun_path[0] = '\0'; /* of the abstract name space */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t n_at = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (fd < 0 || sendto(fd, lines, strlen(lines), MSG_NOSIGNAL, (struct sockaddr *)&at, n_at) < 0)
        LOG_DEBUG("server", "the service manager cannot be told: %s", strerror(errno));
    if (fd >= 0) (void)close(fd);
}

/* Nobody else may inherit it, and reading from it does not wait. */
static bool adopt(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

fathom_err supervisor_take_socket(const struct supervisor *s, int *fd, uint16_t *port,
                                  fathom_diag *d)
{
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    socklen_t n_at = sizeof at;
    int type = 0;
    socklen_t n_type = sizeof type;
    *fd = -1;
    if (s->n_socket != 1) {
        FAIL(d, FATHOM_EINVAL,
             "LISTEN_FDS is %u, needed is one socket: one Listen line in its unit", s->n_socket);
    }
    if (getsockopt(FIRST_FD, SOL_SOCKET, SO_TYPE, &type, &n_type) != 0 || type != SOCK_STREAM ||
        getsockname(FIRST_FD, (struct sockaddr *)&at, &n_at) != 0 || !adopt(FIRST_FD)) {
        FAIL(
            d, FATHOM_EINVAL,
            "LISTEN_FDS is 1 and descriptor 3 is no stream socket: ListenStream is what is needed");
    }
    *fd = FIRST_FD;
    *port = at.ss_family == AF_INET6  ? ntohs(((struct sockaddr_in6 *)&at)->sin6_port)
            : at.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&at)->sin_port)
                                      : 0;
    return FATHOM_OK;
}

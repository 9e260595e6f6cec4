/* tcp_link.h - links over TCP sockets
 *
 * On a TCP link one thread may send while another one receives. */
#ifndef FATHOM_COMM_TCP_LINK_H
#define FATHOM_COMM_TCP_LINK_H

#include "comm/page_link.h"

/* tcp_link_dial - connect to a server
 *
 *   stop_fd  when it can be read, calls on the link give up; borrowed by the link
 * Errors  EIO: no such host, refused, or not by the deadline. ENOMEM. */
fathom_err tcp_link_dial(struct page_link **out, const char *host, uint16_t port,
                         uint64_t deadline_us, int stop_fd, fathom_diag *d);

/* tcp_link_listen - a socket that listens; the caller closes it
 *
 *   port, out_port  0: any free one, and which
 * Errors  EINVAL: host is no address of this machine. EIO: the port is taken. */
fathom_err tcp_link_listen(const char *host, uint16_t port, int *fd, uint16_t *out_port,
                           fathom_diag *d);

/* tcp_link_accept - wait for a connection; NULL: stop_fd can be read. Connections that fail are
 * skipped. */
struct page_link *tcp_link_accept(int fd, int stop_fd);

/* Accepted connections over which too few bytes have come yet, oldest first. Zeroed: none. */
enum { TCP_LOBBY_MAX = 32 };
struct tcp_lobby {
    uint32_t n;
    int fds[TCP_LOBBY_MAX];
    uint64_t until_us[TCP_LOBBY_MAX];
};

/* tcp_link_accept_said - like tcp_link_accept, but returns only a connection over which n_byte
 * bytes have come, or that the other side has closed. Silent connections wait in the lobby, so that
 * they hold up no other. One is closed after wait_us, or when the lobby is full and it is the
 * oldest. When NULL is returned the lobby is empty. */
struct page_link *tcp_link_accept_said(struct tcp_lobby *l, int fd, int stop_fd, int n_byte,
                                       uint64_t wait_us);

/* tcp_link_wait - wait until another descriptor can be read, on a link over which nothing should
 * come
 *
 * Errors  EIO: too late, stopped, or the other side has left. */
fathom_err tcp_link_wait(const struct page_link *l, int fd, uint64_t deadline_us, fathom_diag *d);

/* tcp_link_break - make sends and receives on a link fail, those under way too; any thread. The
 * link must still be closed. */
void tcp_link_break(struct page_link *l);

/* tcp_link_is_broken - whether the other side has closed the link, or it has failed. Does not wait;
 * any thread. */
bool tcp_link_is_broken(const struct page_link *l);

#endif

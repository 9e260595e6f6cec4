/* tls.h - certificates, and sessions over sockets that do not block
 *
 * A session keeps the certificates that it began with, so they can be replaced while others go on.
 */
#ifndef FATHOM_HTTP_TLS_H
#define FATHOM_HTTP_TLS_H

#include <stdbool.h>
#include <sys/types.h>

#include "fathom/err.h"

struct tls;         /* what new sessions begin with; any thread may use it */
struct tls_session; /* one connection's; of one thread */

/* What a port shows and asks for; texts are borrowed. */
struct tls_setup {
    const char *certificate; /* PEM; NULL: plain HTTP */
    const char *key;         /* PEM, with certificate */
    const char *client_ca;   /* PEM: clients must bring a certificate of these; NULL: no */
    bool client_optional;    /* they need not, but what they bring must be right */
    const char *ciphers;     /* a priority string of GnuTLS; NULL: its defaults */
    bool only_1_3;           /* not 1.2 */
};

/* PEM texts, borrowed. */
struct tls_texts {
    const char *certificate;
    const char *key;
    const char *client_ca; /* NULL: no client is asked for a certificate */
};

/* tls_check - can the setup's PEM texts, ciphers and version be served? A certificate that has
 * ended or soon will is told in the log.
 * Errors  EINVAL: one is no PEM, the key belongs to another certificate, there are no such ciphers;
 *         ENOMEM. */
fathom_err tls_check(const struct tls_setup *o, fathom_diag *d);

/* tls_check_client - can these be shown to servers (certificate and key, or neither), and theirs be
 * checked by client_ca? As tls_check, in the words of `fathom router`. */
fathom_err tls_check_client(const struct tls_texts *texts, fathom_diag *d);

/* tls_create - NULL in *out when the setup has no certificate; tls_destroy accepts NULL
 *
 *   o  borrowed for this call
 * Needs   all sessions closed, for tls_destroy.
 * Errors  those of tls_check. */
fathom_err tls_create(struct tls **out, const struct tls_setup *o, fathom_diag *d);
void tls_destroy(struct tls *t);

/* tls_replace - sessions from now on begin with these; on an error nothing has changed
 * Errors  those of tls_check. */
fathom_err tls_replace(struct tls *t, const struct tls_texts *texts, fathom_diag *d);

/* tls_open - a session on a socket, which it does not own; tls_close accepts NULL
 * Errors  ENOMEM. */
fathom_err tls_open(struct tls *t, int fd, struct tls_session **out);
void tls_close(struct tls_session *s);

enum { TLS_READ = -1, TLS_WRITE = -2, TLS_BROKEN = -3 };

/* tls_shake_hands - go on with the handshake
 * Returns 0: done; TLS_READ or TLS_WRITE: again when the socket can be read or written; TLS_BROKEN.
 * Cost    a signature, some 1 ms, in one of its calls. */
int tls_shake_hands(struct tls_session *s);

/* tls_receive - Returns bytes; 0: the peer has ended; TLS_READ, TLS_BROKEN
 * tls_has_more - bytes have come that the socket does not show any more */
ssize_t tls_receive(struct tls_session *s, void *bytes, size_t n);
bool tls_has_more(const struct tls_session *s);

/* tls_send - Returns bytes taken; TLS_WRITE: none, again with the same bytes when the socket can be
 * written, wherever in memory they are by then; TLS_BROKEN */
ssize_t tls_send(struct tls_session *s, const void *bytes, size_t n);

/* tls_end - tell the peer that no more is sent; not waited for */
void tls_end(struct tls_session *s);

/* tls_client_is_known - may this client ask? Always, unless client certificates are asked for.
 * Needs   hands shaken. */
bool tls_client_is_known(const struct tls_session *s);

#endif

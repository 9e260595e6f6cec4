/* connection.h - connections: from bytes to requests, and from answers to bytes
 *
 *   HANDSHAKE --TLS--> HEAD --head--> BODY --its end--> WAIT --reply--> ANSWER --sent--> HEAD
 *                        |             |                                   |
 *                        |             +--a wrong chunk--> WAIT            +--> CLOSING, OVER
 *                        +--refused, or no body--> WAIT
 *
 *   HANDSHAKE  the TLS handshake; without TLS a connection begins in HEAD
 *   HEAD       a head is read, or waited for
 *   BODY       a body is read and handed to the exchange
 *   WAIT       the exchange makes its answer, perhaps on another thread; nothing is read
 *   ANSWER     the answer is sent, as fast as the client reads
 *   CLOSING    the last answer is sent, but its request has not been read to the end. For a moment
 *              what still comes is read and dropped: if the socket were closed at once, the client
 *              could lose the answer
 *   OVER       it is freed once its event has been handled
 *
 * A connection belongs to one thread, whose epoll watches it (loop.h). Other threads may call only
 * connection_wake and connection_shut. A connection knows neither routes nor jobs: an exchange,
 * made by the functions of connection_ops, gives a request its meaning.
 *
 * Requests that come before the one ahead of them is answered have to wait: at most a block of them
 * here, the rest in the socket. A connection that sends many requests at once takes turns with the
 * others. A client that closes its side within a head or a body has left, and the connection ends.
 * If it does so while its exchange works, connection_ops.left is called.
 */
#ifndef FATHOM_HTTP_CONNECTION_H
#define FATHOM_HTTP_CONNECTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "fathom/err.h"

struct connection;
struct gate;
struct head;
struct head_fault;
struct tls;

/* The functions of an exchange, that is one request and its answer. The connection's thread calls
 * them. `x` is what begin has returned. */
struct connection_ops {
    /* A head has come, or has been refused: then head is NULL and fault says why. Both are borrowed
     * for the call.
     *   at_once  set to true: answer now, and do not read the body
     * Returns NULL when out of memory: the connection ends. */
    void *(*begin)(void *arg, struct connection *c, const struct head *head,
                   const struct head_fault *fault, bool *at_once);
    /* Bytes of the body. Returns false: the connection ends. */
    bool (*take)(void *x, const char *bytes, size_t n);
    /* The request has been read, or its body is malformed (fault says why; NULL: it is not). Call
     * connection_reply, connection_stream or connection_end, now or in go_on. */
    void (*answer)(void *x, const char *fault);
    /* Called after connection_wake, perhaps once more often than that. */
    void (*go_on)(void *x);
    /* Bytes of a stream: their number, at most max; 0: none yet, go on after connection_wake;
     * CONNECTION_STREAM_END, CONNECTION_STREAM_BROKEN. */
    ssize_t (*read)(void *x, char *bytes, size_t max);
    /* The client has closed its sending side before it has its answer. */
    void (*left)(void *x);
    /* The answer has been sent, or the connection is gone: free x. */
    void (*end)(void *x);
};

enum { CONNECTION_STREAM_END = -1, CONNECTION_STREAM_BROKEN = -2 };

enum { CONNECTION_BLOCK_BYTES = 65536, CONNECTION_STREAM_BYTES = 16384, REMOTE_BYTES = 46 };

/* The connections of one thread. */
struct connections {
    const struct connection_ops *ops;
    void *arg;
    void *guest; /* NULL: none */
    struct gate *gate;
    struct tls *tls; /* NULL: none */
    int epoll_fd;
    int wake_fd; /* eventfd, readable when there is mail */
    char *block;
    char *stream_block;
    struct connection *first;
    char date[48]; /* header line of the second date_s */
    int64_t date_s;

    pthread_t thread; /* with has_thread: it looks for mail before it waits */
    bool has_thread;
    pthread_mutex_t mail_lock;
    struct connection *mail, *last_mail; /* connections to wake; under mail_lock, as n_mail */
    size_t n_mail;
};

/* connections_init - an empty set. The caller has set ops, arg, gate and tls; these, epoll_fd and
 * wake_fd are borrowed
 * connections_free - end all connections
 * Errors  ENOMEM. */
fathom_err connections_init(struct connections *all);
void connections_free(struct connections *all);

/* connections_take_mail - go on with the connections that were woken
 * connections_has_mail - whether there are such
 * connections_runs_here - called by the thread that serves the connections. It must call
 * connections_has_mail before it waits, because what it wakes itself makes wake_fd not readable */
void connections_take_mail(struct connections *all);
bool connections_has_mail(const struct connections *all);
void connections_runs_here(struct connections *all);

/* connection_open - make a connection for an accepted socket, which it closes, also on an error;
 * remote is the client's address, "" for none
 * Errors  EBUSY: the gate has no place; ENOMEM, EIO. */
fathom_err connection_open(struct connections *all, int fd, const char *remote);

/* connection_sends_body - whether the client is sending a body, or bytes that CLOSING drops */
bool connection_sends_body(const struct connection *c);

/* connection_take_event - handle an event of epoll; the connection may be freed by it */
void connection_take_event(struct connection *c, uint32_t events);

/* connection_reply - answer with a whole body
 *
 *   fields  header lines, each ended by CR LF; Date, Content-Length and Connection are added
 *   body    moved; NULL: none
 *   close   end the connection afterwards */
void connection_reply(struct connection *c, int status, const struct buf *fields, struct buf *body,
                      bool close);

/* connection_reply_head - answer a HEAD request for another server: `fields` has the
 * Content-Length, if that is known */
void connection_reply_head(struct connection *c, int status, const struct buf *fields, bool close);

/* connection_stream - answer with what ops.read gives */
void connection_stream(struct connection *c, int status, const struct buf *fields, bool close);

/* connection_end - end the connection without an answer, or within one */
void connection_end(struct connection *c);

/* connection_wake - have ops.go_on or ops.read called again
 * connection_shut - end the connection, even while it waits to write
 * Both from any thread, until the connection's thread has returned from ops.end. */
void connection_wake(struct connection *c);
void connection_shut(struct connection *c);

void *connection_guest(const struct connection *c);        /* of its thread: loop.h */
const char *connection_remote(const struct connection *c); /* "": none */
bool connection_is_over_limit(const struct connection *c);
bool connection_client_is_known(const struct connection *c); /* tls_client_is_known */

#endif

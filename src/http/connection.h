/* connection.h - connections: from bytes to requests, and from answers to bytes
 *
 *   HANDSHAKE --TLS--> HEAD --head--> BODY --its end--> WAIT --reply--> ANSWER --sent--> HEAD
 *                        |             |                                   |
 *                        |             +--a wrong chunk--> WAIT            +--> CLOSING, OVER
 *                        +--refused, or no body--> WAIT
 *
 *   HANDSHAKE  hands are shaken; without TLS a connection begins in HEAD
 *   HEAD       a head is read, or waited for
 *   BODY       a body is read; what it says goes to the exchange
 *   WAIT       the exchange makes its answer, perhaps elsewhere; nothing is read
 *   ANSWER     the answer is sent, as fast as the client reads
 *   CLOSING    the last answer is out, and the request behind it is not read to its end: what still
 *              comes is dropped for a moment, since closing at once could take the answer from the
 *              client
 *   OVER       it is freed once its event has been taken
 *
 * A connection belongs to one thread, whose epoll tells of it (loop.h). Other threads may call
 * connection_wake and connection_shut, nothing else. It knows no route and no job: what a request
 * means is its exchange's, by the calls of connection_ops.
 *
 * Requests that come before the answer to the one ahead wait, at most a block of them here and the
 * rest in the socket; a connection that sends many at once takes turns with the others. A peer that
 * ends its side within a head or a body has left, and so has one that does while its exchange
 * waits, which connection_ops.left is told.
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

/* The exchange of a request and its answer; all calls come from the connection's thread. `x` is
 * what begin has returned. */
struct connection_ops {
    /* A head has come, or is refused (head is NULL, fault says why). It is borrowed for the call.
     *   at_once  set it to have the answer before the body, which then is not read
     * Returns NULL when out of memory: the connection ends. */
    void *(*begin)(void *arg, struct connection *c, const struct head *head,
                   const struct head_fault *fault, bool *at_once);
    /* Bytes of the body. Returns false: the connection ends. */
    bool (*take)(void *x, const char *bytes, size_t n);
    /* The request is whole; fault: its body is wrong from here on (NULL: it is not). Call
     * connection_reply, connection_stream or connection_end, now or in go_on. */
    void (*answer)(void *x, const char *fault);
    /* After connection_wake; it may come once more than that was called. */
    void (*go_on)(void *x);
    /* Bytes of a stream: their number, at most max; 0: none yet, go on after connection_wake;
     * CONNECTION_STREAM_END, CONNECTION_STREAM_BROKEN. */
    ssize_t (*read)(void *x, char *bytes, size_t max);
    /* The client has closed its sending side before it has its answer. */
    void (*left)(void *x);
    /* The answer is out, or the connection is gone; x is not used any more. */
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
    struct connection *mail, *last_mail; /* that have been woken; under mail_lock, as n_mail */
    size_t n_mail;
};

/* connections_init - none yet; epoll_fd and wake_fd are borrowed, as are ops, arg, gate and tls,
 * which the caller has set
 * connections_free - ends those that are there
 * Errors  ENOMEM. */
fathom_err connections_init(struct connections *all);
void connections_free(struct connections *all);

/* connections_take_mail - those that were woken go on
 * connections_has_mail - there are such
 * connections_runs_here - this thread calls connections_has_mail before it waits: who is woken by
 * it needs no event */
void connections_take_mail(struct connections *all);
bool connections_has_mail(const struct connections *all);
void connections_runs_here(struct connections *all);

/* connection_open - a socket that has been accepted, which is closed with the connection, or when
 * there is an error; remote is the client's address, "" for none
 * Errors  EBUSY: the gate has no place; ENOMEM, EIO. */
fathom_err connection_open(struct connections *all, int fd, const char *remote);

/* connection_sends_body - it is within a body, or within what is passed over before it ends */
bool connection_sends_body(const struct connection *c);

/* connection_take_event - what epoll has told of it; it may be freed */
void connection_take_event(struct connection *c, uint32_t events);

/* connection_reply - answer with a whole body
 *
 *   fields  header lines, each ended by CR LF; Date, Content-Length and Connection are added
 *   body    moved; NULL: none
 *   close   end the connection afterwards */
void connection_reply(struct connection *c, int status, const struct buf *fields, struct buf *body,
                      bool close);

/* connection_reply_head - answer to HEAD that has been made elsewhere: `fields` tell how long the
 * body would be, if that is known */
void connection_reply_head(struct connection *c, int status, const struct buf *fields, bool close);

/* connection_stream - answer with what ops.read gives */
void connection_stream(struct connection *c, int status, const struct buf *fields, bool close);

/* connection_end - no answer, or no more of it */
void connection_end(struct connection *c);

/* connection_wake - ops.go_on or ops.read is called again; connection_shut - the connection ends,
 * though it may be waiting to write. From any thread, until the connection's thread has returned
 * from ops.end. */
void connection_wake(struct connection *c);
void connection_shut(struct connection *c);

void *connection_guest(const struct connection *c);        /* of its thread: loop.h */
const char *connection_remote(const struct connection *c); /* "": none */
bool connection_is_over_limit(const struct connection *c);
bool connection_client_is_known(const struct connection *c); /* tls_client_is_known */

#endif

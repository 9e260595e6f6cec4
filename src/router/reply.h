/* reply.h - an answer of HTTP/1.1, as a server sends it, read strictly
 *
 *   HEAD --its end--> LENGTH, CHUNKS, TO_CLOSE --the body's end--> END
 *    ^ |       +---- a head without a body ------------------------^
 *    +-+ an interim answer (1xx) is passed over
 *
 * What is not HTTP/1.1, or says its length in two ways, is refused.
 */
#ifndef FATHOM_ROUTER_REPLY_H
#define FATHOM_ROUTER_REPLY_H

#include "base/buf.h"
#include "http/chunk.h"

enum { REPLY_HEAD_BYTES = 1 << 18 };

/* A zeroed struct, but for has_no_body, is at the begin of an answer. */
struct reply_reader {
    enum {
        REPLY_HEAD,
        REPLY_LENGTH,   /* `left` bytes of the body have not come */
        REPLY_CHUNKS,   /* chunk.h */
        REPLY_TO_CLOSE, /* the body ends with the connection */
        REPLY_END,
    } state;
    bool has_no_body; /* the request's method is HEAD: set it before */
    bool has_begun;   /* some of it has come */
    bool keeps;       /* the connection may be used again behind END */
    int status;
    struct buf fields; /* behind HEAD: header lines as they came, each ended by CR LF */
    uint64_t left;
    struct chunk_reader chunk;
    const char *problem; /* why the answer is refused; NULL: it is not */
};

/* reply_read - take some of the bytes
 *
 *   head          set: its head has become whole with them
 *   data, n_data  bytes of the body among them, which are borrowed; n_data may be 0
 * Returns how many were taken, less than n only when the answer has ended, is refused, or a head
 *         or some data were found. */
size_t reply_read(struct reply_reader *a, const char *bytes, size_t n, bool *head,
                  const char **data, size_t *n_data);

/* reply_close - the server has closed the connection; returns whether the answer is whole */
bool reply_close(struct reply_reader *a);

/* reply_free - its memory; it is zeroed then */
void reply_free(struct reply_reader *a);

#endif

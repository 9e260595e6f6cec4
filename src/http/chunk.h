/* chunk.h - bodies in chunks (RFC 9112, 7.1), read strictly
 *
 *   SIZE --;--> EXTENSION --CR LF--> DATA --its bytes--> DATA_END --CR LF--> SIZE
 *   SIZE --CR LF--> DATA                    a size of 0: --CR LF--> TRAILER --empty line--> END
 *
 * Extensions and trailers are passed over; both have a bound for a whole body.
 */
#ifndef FATHOM_HTTP_CHUNK_H
#define FATHOM_HTTP_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A zeroed struct is at the begin of a body. */
struct chunk_reader {
    enum {
        CHUNK_SIZE,
        CHUNK_EXTENSION,
        CHUNK_SIZE_LF, /* after the CR that ends size and extension */
        CHUNK_DATA,
        CHUNK_DATA_CR,
        CHUNK_DATA_LF,
        CHUNK_TRAILER,
        CHUNK_TRAILER_LF,
        CHUNK_END,
    } state;
    uint64_t left;       /* bytes of the chunk that have not come */
    unsigned n_digit;    /* of its size so far */
    uint32_t n_skipped;  /* bytes of extensions and trailers, of the whole body */
    bool in_trailer;     /* the line of a trailer has begun */
    const char *problem; /* why the body is refused; NULL: it is not */
};

/* chunk_read - take some of the bytes
 *
 *   data, n_data  bytes of the body among them, which are borrowed; n_data may be 0
 * Returns how many were taken, less than n only when the body has ended, is refused, or some data
 *         were found. */
size_t chunk_read(struct chunk_reader *r, const char *bytes, size_t n, const char **data,
                  size_t *n_data);

#endif

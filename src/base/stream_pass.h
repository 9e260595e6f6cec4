/* stream_pass.h - the header by which a router makes a stream resumable on another server
 *
 *   X-Fathom-Stream: 0123456789abcdef-1763800000[-MAC]
 *
 * A number and a time stand for all that a server would else choose by itself: the answer's ids,
 * its time, and the seed of a request that gives none. Two servers that get the same pass with the
 * same request make the same bytes. A server that has a pool's secret takes a pass with its MAC
 * alone; one without takes passes from its own machine alone. The answer's header of this name says
 * that the pass is taken, and that the stream tells its tokens.
 */
#ifndef FATHOM_BASE_STREAM_PASS_H
#define FATHOM_BASE_STREAM_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

#define STREAM_PASS_HEADER "X-Fathom-Stream"
#define STREAM_PASS_TAKEN "taken"

enum { STREAM_PASS_BYTES = 80 }; /* of the header's value, at most, with a NUL */

/* What the servers of a pool share. */
struct pool_secret {
    bool is_set;
    struct hash128 key;
};

struct stream_pass {
    bool is_on;
    uint64_t nonce;
    int64_t created; /* seconds since 1970 */
};

/* pool_secret_set - the secret is these bytes, without line ends behind them */
void pool_secret_set(struct pool_secret *s, const char *text, size_t n);

/* stream_pass_write - the header's value; with the MAC when there is a secret */
void stream_pass_write(char out[STREAM_PASS_BYTES], const struct stream_pass *p,
                       const struct pool_secret *s);

/* stream_pass_read - read a header's value
 *
 *   text     NULL: no pass
 *   is_near  it comes from this machine
 * Returns whether there is a pass that holds; else *p is off. */
bool stream_pass_read(struct stream_pass *p, const char *text, const struct pool_secret *s,
                      bool is_near);

#endif

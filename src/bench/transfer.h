/* transfer.h - records of pages from one server to another, without models
 *
 * The same threads, frames and checks as between servers: what a network and two machines can do.
 */
#ifndef FATHOM_BENCH_TRANSFER_H
#define FATHOM_BENCH_TRANSFER_H

#include "base/stream_pass.h"
#include "fathom/err.h"

struct transfer_options {
    const char *host; /* to listen on, or of the one that gives */
    uint16_t port;    /* to listen on 0: any free one */
    struct pool_secret secret;
    uint64_t page_bytes; /* of a record */
};

struct transfer_giver;

/* transfer_giver_create - listen, and give made-up records to transfer_take of the same page_bytes
 * Errors  EINVAL, EIO: the address; ENOMEM. */
fathom_err transfer_giver_create(struct transfer_giver **out, const struct transfer_options *o,
                                 fathom_diag *d);
void transfer_giver_destroy(struct transfer_giver *g); /* accepts NULL */
uint16_t transfer_giver_port(const struct transfer_giver *g);

struct transfer_result {
    uint64_t n_record;
    double seconds;
    double gb_s;         /* 1e9 bytes of pages */
    double cpu_s_per_gb; /* of this process, both sides of it */
};

enum { TRANSFER_LANES_MAX = 8 };

/* transfer_take - ask for records over n lanes at once, each judged as servers do, for so long
 * Errors  EIO: it cannot be reached, or a record was not whole; EMISMATCH: it may not share; ENOMEM. */
fathom_err transfer_take(struct transfer_result *out, const struct transfer_options *o,
                         unsigned n_lane, uint64_t us, fathom_diag *d);

#endif

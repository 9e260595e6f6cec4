/* transfer_bench.h - how fast page records go from server to server */
#ifndef FATHOM_BENCH_TRANSFER_BENCH_H
#define FATHOM_BENCH_TRANSFER_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/stream_pass.h"
#include "fathom/err.h"

struct transfer_bench_options {
    uint64_t page_bytes;
    bool ucx;
    struct pool_secret secret;
    double seconds;
    const char *host; /* NULL: this process gives the records, over loopback */
    uint16_t port;
};

struct transfer_bench_row {
    unsigned n_lane;
    uint64_t n_page;
    double gb_s;
    double cpu_s_gb; /* processor time of this process for each GB */
};

enum { TRANSFER_LANES_MAX = 8 };

struct transfer_bench;

/* transfer_bench_open - the other side, and connections to it
 *
 * Errors  EINVAL: the address; ENOTFOUND: UCX; EIO, EMISMATCH; ENOMEM. */
fathom_err transfer_bench_open(struct transfer_bench **out, const struct transfer_bench_options *o,
                               fathom_diag *d);
void transfer_bench_close(struct transfer_bench *b); /* accepts NULL */

/* transfer_bench_run - lanes that read for a while, each a record after another
 *
 *   n_lane  1 to TRANSFER_LANES_MAX
 * Errors  EIO: a record did not come, or was not what it should be. */
fathom_err transfer_bench_run(struct transfer_bench *b, unsigned n_lane,
                              struct transfer_bench_row *out, fathom_diag *d);

/* transfer_bench_listen - give records at o's address until the process ends; returns at an error
 *
 *   told  called once it listens, with the port */
fathom_err transfer_bench_listen(const struct transfer_bench_options *o,
                                 void (*told)(const char *host, uint16_t port), fathom_diag *d);

#endif

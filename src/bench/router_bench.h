/* router_bench.h - what a router adds to a request and to a token
 *
 * A server without a model (stream_server.h), a router before it and one client, all in this
 * process over loopback. Each round asks the server itself and by way of the router, in turns, over
 * connections that stay open, with a prompt that nobody has seen.
 */
#ifndef FATHOM_BENCH_ROUTER_BENCH_H
#define FATHOM_BENCH_ROUTER_BENCH_H

#include <stdint.h>

#include "fathom/err.h"

/* Microseconds. A difference is that of a round; medians of differences are no differences of
 * medians. */
struct router_bench_row {
    uint64_t n_byte; /* of a request's body */
    uint32_t n_round;
    double direct_us, routed_us;   /* from the request to the first event: medians */
    double added_us, added_p90_us; /* routed less direct */
    double token_direct_us, token_routed_us, token_added_us; /* written to seen: medians */
    double added_cpu_us; /* processor time of the process, of a whole request */
};

enum { ROUTER_BENCH_TOKEN_BYTES = 4 }; /* of a prompt's text, about */

struct router_bench;

/* router_bench_open - the server, the router and connections; router_bench_close accepts NULL
 * Errors  EIO: a port, a thread; ENOMEM. */
FATHOM_MUST_CHECK fathom_err router_bench_open(struct router_bench **out, fathom_diag *d);
void router_bench_close(struct router_bench *b);

/* router_bench_run - rounds of prompts of n_token tokens, after a few that do not count
 * Errors  EIO: a request was not answered, or not whole; ENOMEM. */
FATHOM_MUST_CHECK fathom_err router_bench_run(struct router_bench *b, uint64_t n_token,
                                              uint32_t n_round, struct router_bench_row *out,
                                              fathom_diag *d);

#endif

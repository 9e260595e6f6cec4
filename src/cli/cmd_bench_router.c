/* cmd_bench_router.c - fathom bench router: what a router adds to requests and tokens */
#include <stdio.h>

#include "base/fail.h"
#include "bench/router_bench.h"
#include "bench/stream_server.h"
#include "cli/cli.h"

enum { TOKENS_FIRST = 1000, TOKENS_LAST = 64000, TOKENS_STEP = 4 };

static fathom_err run_row(struct router_bench *b, uint64_t n_token, uint32_t n_round,
                          fathom_diag *d)
{
    struct router_bench_row r;
    TRY(router_bench_run(b, n_token, n_round, &r, d));
    printf("%6llu %8llu %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n",
           (unsigned long long)n_token, (unsigned long long)r.n_byte, r.direct_us, r.routed_us,
           r.added_us, r.added_p90_us, r.token_direct_us, r.token_routed_us, r.token_added_us,
           r.added_cpu_us);
    (void)fflush(stdout);
    return FATHOM_OK;
}

fathom_err cmd_bench_router(const struct invocation *v, fathom_diag *d)
{
    const uint64_t n_token = (uint64_t)v->settings->bench.prompt_tokens;
    const uint32_t n_round = (uint32_t)v->settings->bench.rounds;
    struct router_bench *b = NULL;
    TRY(router_bench_open(&b, d));
    print_row("rounds", "%u a row; a server without a model and a router within this process",
              n_round);
    print_row("", "%d events a request, %d us apart; medians in us", STREAM_EVENTS, STREAM_PACE_US);
    printf("                first event                         an event behind it\n"
           "tokens    bytes   direct   routed    added      p90   direct   routed    added  "
           "added cpu\n");
    fathom_err err = FATHOM_OK;
    if (n_token) err = run_row(b, n_token, n_round, d);
    for (uint64_t n = TOKENS_FIRST; !n_token && n <= TOKENS_LAST && !err; n *= TOKENS_STEP)
        err = run_row(b, n, n_round, d);
    router_bench_close(b);
    return err;
}

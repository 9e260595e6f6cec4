/* cmd_bench_transfer.c - fathom bench transfer: pages between two servers, in one process or two */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "bench/transfer.h"
#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/tls_files.h"

/* "HOST:PORT" */
static fathom_err read_peer(char *host, size_t size, uint16_t *port, const char *text,
                            fathom_diag *d)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    const long n = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || colon == text || (size_t)(colon - text) >= size || *end != '\0' || n < 1 ||
        n > UINT16_MAX) {
        FAIL(d, FATHOM_EINVAL, "--peer: \"%.80s\" is no HOST:PORT", text);
    }
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    *port = (uint16_t)n;
    return FATHOM_OK;
}

/* 1, 2, 4 ... lanes, a row each. */
static fathom_err take(const struct transfer_options *o, unsigned n_lane_max, uint64_t us,
                       fathom_diag *d)
{
    printf("records of %llu bytes from %s:%u, each checked\n"
           "lanes records    GB/s  GB/s a lane  cpu s/GB\n",
           (unsigned long long)o->page_bytes, o->host, o->port);
    for (unsigned n = 1;; n = 2 * n < n_lane_max ? 2 * n : n_lane_max) {
        struct transfer_result r;
        TRY(transfer_take(&r, o, n, us, d));
        printf("%5u %7llu %7.2f %12.2f %9.3f\n", n, (unsigned long long)r.n_record, r.gb_s,
               r.gb_s / n, r.cpu_s_per_gb);
        (void)fflush(stdout);
        if (n == n_lane_max) return FATHOM_OK;
    }
}

static void end_pause(void *arg, int number)
{
    const char byte = (char)number;
    if (write(*(int *)arg, &byte, 1) < 0) return;
}

/* Gives records until a signal that ends. */
static fathom_err give(const struct transfer_options *o, fathom_diag *d)
{
    struct transfer_giver *g = NULL;
    struct signal_taker signals;
    int ends[2];
    char byte;
    if (pipe(ends) != 0) FAIL(d, FATHOM_EIO, "no pipe can be made");
    fathom_err err = signal_taker_start(&signals, SIGNALS_INTERRUPT, d);
    if (!err) err = transfer_giver_create(&g, o, d);
    if (!err) {
        printf("gives records of %llu bytes at %s:%u until Ctrl-C\n",
               (unsigned long long)o->page_bytes, o->host, transfer_giver_port(g));
        (void)fflush(stdout);
        signal_taker_listen(&signals, end_pause, &ends[1]);
        while (read(ends[0], &byte, 1) < 0) continue;
    }
    signal_taker_end(&signals);
    transfer_giver_destroy(g);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return err;
}

fathom_err cmd_bench_transfer(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct transfer_options o = {.host = s->kv_ip,
                                 .port = (uint16_t)s->kv_port,
                                 .page_bytes = (uint64_t)s->bench.page_bytes};
    const uint64_t us = (uint64_t)(s->bench.seconds * 1e6);
    const unsigned n_lane = (unsigned)s->bench.lanes;
    char host[256];
    TRY(secret_file_read(&o.secret, s->pool_secret_file, d));
    if (s->bench.listens && s->bench.peer) {
        FAIL(d, FATHOM_EINVAL, "--listen gives records and --peer takes them: give one of both");
    }
    if (s->bench.listens) return give(&o, d);
    if (s->bench.peer) {
        TRY(read_peer(host, sizeof host, &o.port, s->bench.peer, d));
        o.host = host;
        return take(&o, n_lane, us, d);
    }
    struct transfer_giver *g;
    o.host = "127.0.0.1";
    o.port = 0;
    TRY(transfer_giver_create(&g, &o, d));
    o.port = transfer_giver_port(g);
    fathom_err err = take(&o, n_lane, us, d);
    transfer_giver_destroy(g);
    return err;
}

/* cmd_bench_transfer.c - fathom bench transfer: page records from server to server */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "bench/transfer_bench.h"
#include "cli/cli.h"
#include "cli/tls_files.h"

enum { HOST_BYTES = 256 };

/* "host:port", "[::1]:port" */
static fathom_err split(const char *option, const char *address, char host[HOST_BYTES],
                        uint16_t *port, fathom_diag *d)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long n_port = colon ? strtol(colon + 1, &end, 10) : -1;
    size_t n = colon ? (size_t)(colon - address) : 0;
    if (n > 2 && address[0] == '[' && address[n - 1] == ']') address++, n -= 2;
    if (n == 0 || n >= HOST_BYTES || !end || *end != '\0' || n_port < 0 || n_port > UINT16_MAX) {
        FAIL(d, FATHOM_EINVAL, "%s: \"%.80s\" is no HOST:PORT", option, address);
    }
    memcpy(host, address, n);
    host[n] = '\0';
    *port = (uint16_t)n_port;
    return FATHOM_OK;
}

static void tell(const char *host, uint16_t port)
{
    print_row("listens", "%s:%u", host, port);
}

static fathom_err run_row(struct transfer_bench *b, unsigned n_lane, fathom_diag *d)
{
    struct transfer_bench_row r;
    TRY(transfer_bench_run(b, n_lane, &r, d));
    printf("%5u %8llu %8.2f %8.2f %10.3f\n", n_lane, (unsigned long long)r.n_page, r.gb_s,
           r.gb_s / n_lane, r.cpu_s_gb);
    (void)fflush(stdout);
    return FATHOM_OK;
}

fathom_err cmd_bench_transfer(const struct invocation *v, fathom_diag *d)
{
    const struct transfer_bench_settings *s = &v->settings->transfer_bench;
    struct transfer_bench_options o = {.page_bytes = (uint64_t)s->page_bytes,
                                       .ucx = strcmp(v->settings->kv_transport, "ucx") == 0,
                                       .seconds = s->seconds};
    char host[HOST_BYTES];
    struct transfer_bench *b = NULL;
    if (s->peer && s->listen) FAIL(d, FATHOM_EINVAL, "--peer reads, --listen gives: give one");
    TRY(secret_file_read(&o.secret, v->settings->pool_secret_file, d));
    if (s->peer) TRY(split("--peer", s->peer, host, &o.port, d));
    if (s->listen) TRY(split("--listen", s->listen, host, &o.port, d));
    if (s->peer || s->listen) o.host = host;
    if (s->listen) return transfer_bench_listen(&o, tell, d);
    TRY(transfer_bench_open(&b, &o, d));
    print_row("records", "%llu bytes, by %s, %s; each one is checked",
              (unsigned long long)o.page_bytes, o.ucx ? "UCX" : "TCP",
              s->peer ? s->peer : "within this process over loopback");
    printf("lanes  records     GB/s   a lane   cpu s/GB\n");
    fathom_err err = FATHOM_OK;
    if (s->lanes) err = run_row(b, (unsigned)s->lanes, d);
    for (unsigned n = 1; !s->lanes && n <= 4 && !err; n *= 2) err = run_row(b, n, d);
    transfer_bench_close(b);
    return err;
}

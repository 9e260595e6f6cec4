/* claim.c - takes addresses, files and certificates, and gives them back */
#include "server/http/claim.h"

#include <unistd.h>

#include "base/fail.h"
#include "base/mem.h"
#include "http/listen.h"
#include "http/supervisor.h"
#include "http/tls.h"
#include "server/http/access_log.h"
#include "server/server.h"
#include "trace/exporter.h"

#define DEFAULT_HOST "127.0.0.1"

/* It listens from here on: hosts that have joined before the server is there wait for it. */
static fathom_err take_inner_port(struct server_claim *c, const struct server_options *o,
                                  fathom_diag *d)
{
    const char *host = o->inner_host ? o->inner_host : "0.0.0.0";
    fathom_err err = FATHOM_EIO;
    if (!o->inner_host)
        err = listen_bind_tcp("::", o->inner_port, &c->inner_fd, &c->inner_port, NULL);
    if (err) err = listen_bind_tcp(host, o->inner_port, &c->inner_fd, &c->inner_port, NULL);
    if (!err) err = listen_begin(c->inner_fd, NULL);
    if (!err) return FATHOM_OK;
    FAIL(d, err,
         "cannot listen on %s port %u for the other hosts' requests: --master-addr is an address "
         "of this host, and the port behind --master-port is free",
         host, o->inner_port);
}

static fathom_err take_all(struct server_claim *c, const struct server_options *o, fathom_diag *d)
{
    TRY(tls_check(&o->tls, d));
    if (o->access_log) TRY(access_log_open(&c->access_log, o->access_log, d));
    TRY(trace_exporter_create(&c->traces, &o->traces, d));
    if (o->supervisor.n_socket) {
        TRY(supervisor_take_socket(&o->supervisor, &c->listen_fd, &c->port, d));
    } else if (o->uds) {
        TRY(listen_bind_unix(o->uds, &c->listen_fd, d));
        c->uds = o->uds;
    } else {
        const char *host = o->host ? o->host : DEFAULT_HOST;
        TRY(listen_bind_tcp(host, o->port, &c->listen_fd, &c->port, d));
    }
    if (o->n_host > 0) TRY(take_inner_port(c, o, d));
    if (!o->admin_socket) return FATHOM_OK;
    TRY(listen_bind_unix(o->admin_socket, &c->admin_fd, d));
    c->admin_socket = o->admin_socket;
    return FATHOM_OK;
}

fathom_err server_claim_make(struct server_claim **out, const struct server_options *o,
                             fathom_diag *d)
{
    struct server_claim *c = mem_calloc(1, sizeof *c);
    *out = NULL;
    if (!c) FAIL(d, FATHOM_ENOMEM, "out of memory for the server's sockets");
    c->listen_fd = c->admin_fd = c->inner_fd = -1;
    fathom_err err = take_all(c, o, d);
    if (err) {
        server_claim_free(c);
        return err;
    }
    *out = c;
    return FATHOM_OK;
}

void server_claim_free(struct server_claim *c)
{
    if (!c) return;
    if (c->listen_fd >= 0) (void)close(c->listen_fd);
    if (c->admin_fd >= 0) (void)close(c->admin_fd);
    if (c->inner_fd >= 0) (void)close(c->inner_fd);
    if (c->uds) (void)unlink(c->uds);
    if (c->admin_socket) (void)unlink(c->admin_socket);
    access_log_close(c->access_log);
    trace_exporter_destroy(c->traces);
    mem_free(c);
}

uint16_t server_claim_inner_port(const struct server_claim *c)
{
    return c->inner_port;
}

int claim_take(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

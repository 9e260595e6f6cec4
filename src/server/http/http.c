/* http.c - opens and closes a port */
#include "server/http/http.h"

#include <unistd.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "http/gate.h"
#include "http/listen.h"
#include "http/loop.h"
#include "http/tls.h"
#include "server/http/claim.h"
#include "server/http/exchange.h"
#include "server/served.h"

struct http {
    struct exchange_env exchanges;
    struct exchange_env inner;      /* of requests that other hosts hand on */
    const struct server_options *o; /* of served */
    struct tls *tls;                /* NULL: none */
    struct loop *loop;
    struct loop *inner_loop; /* NULL: there are no other hosts, as inner_fd -1 */
    int listen_fd;
    int inner_fd;
};

/* A connection is a file handle; the usual soft limit of 1024 is below what we serve. */
static void raise_file_limit(struct http *h)
{
    enum { RESERVE = 256 + 2 * GATE_OVER_LIMIT_MAX };
    struct gate *gate = h->exchanges.routes.gate;
    uint32_t wanted = gate_max(gate);
    uint64_t need = (uint64_t)wanted + RESERVE;
    uint64_t allowed = os_allow_files(need);
    if (allowed == 0 || allowed >= need) return;
    uint32_t room = (uint32_t)(allowed > 2 * RESERVE ? allowed - RESERVE : allowed / 2);
    if (room > wanted) room = wanted;
    LOG_WARN("server", "at most %llu open files are allowed (ulimit -n): %u connections, not %u",
             (unsigned long long)allowed, room, wanted);
    gate_set_max(gate, room);
}

static fathom_err start_inner(struct http *h, fathom_diag *d)
{
    h->inner = h->exchanges;
    h->inner.is_inner = true;
    const struct loop_setup setup = {.name = "http-inner",
                                     .n_thread = h->o->n_http_thread,
                                     .listen_fd = h->inner_fd,
                                     .gate = h->exchanges.routes.gate,
                                     .ops = &exchange_ops,
                                     .arg = &h->inner};
    return loop_open(&h->inner_loop, &setup, d);
}

static struct port_rules rules_of(const struct http *h)
{
    const struct server_options *o = h->o;
    return (struct port_rules){.names = {o->host, o->allowed_hosts, o->n_allowed_host,
                                         listen_is_on_loopback(h->listen_fd)},
                               .gate = h->exchanges.routes.gate,
                               .root_path = o->root_path,
                               .origins = o->origins,
                               .n_origin = o->n_origin,
                               .allow_credentials = o->allow_credentials};
}

static fathom_err start(struct http *h, fathom_diag *d)
{
    TRY(tls_create(&h->tls, &h->o->tls, d));
    h->exchanges.port = rules_of(h);
    raise_file_limit(h);
    TRY(listen_begin(h->listen_fd, d));
    const struct loop_setup setup = {.name = "http",
                                     .n_thread = h->o->n_http_thread,
                                     .listen_fd = h->listen_fd,
                                     .gate = h->exchanges.routes.gate,
                                     .tls = h->tls,
                                     .ops = &exchange_ops,
                                     .arg = &h->exchanges};
    TRY(loop_open(&h->loop, &setup, d));
    return h->inner_fd >= 0 ? start_inner(h, d) : FATHOM_OK;
}

fathom_err http_open(struct http **out, const struct route_env *env, struct server_claim *claim,
                     fathom_diag *d)
{
    struct http *h = mem_calloc(1, sizeof *h);
    *out = h;
    if (!h) return FATHOM_ENOMEM;
    h->exchanges = (struct exchange_env){.routes = *env, .access_log = claim->access_log};
    h->o = &env->served->o;
    h->listen_fd = claim_take(&claim->listen_fd);
    h->inner_fd = claim_take(&claim->inner_fd);
    fathom_err err = start(h, d);
    if (!err) return FATHOM_OK;
    http_close(h);
    *out = NULL;
    return err;
}

fathom_err http_set_certificates(struct http *h, const char *certificate, const char *key,
                                 const char *client_ca, fathom_diag *d)
{
    const struct tls_texts texts = {certificate, key, client_ca};
    if (!h->tls) FAIL(d, FATHOM_EINVAL, "the port was opened without --ssl-certfile");
    return tls_replace(h->tls, &texts, d);
}

void http_close(struct http *h)
{
    if (!h) return;
    loop_close(h->loop);
    loop_close(h->inner_loop);
    if (h->inner_fd >= 0) (void)close(h->inner_fd);
    if (h->listen_fd >= 0) (void)close(h->listen_fd);
    tls_destroy(h->tls);
    mem_free(h);
}

/* cmd_router.c - fathom router: one address for many servers
 *
 * The first SIGINT or SIGTERM lets requests finish, the second ends them.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/tls_files.h"
#include "router/router.h"

enum { INSIST_MS = 1500, HTTP_THREADS = 2 };

/* Options, and what they point to. */
struct router_setup {
    struct router_options options;
    struct tls_files tls;
    const char **servers;
};

static fathom_err list_servers(struct router_setup *p, const struct settings *s, fathom_diag *d)
{
    const struct string_list *lists[] = {&s->rest, &s->router.worker_urls, &s->router.decode};
    size_t n = s->rest.n + s->router.worker_urls.n + s->router.decode.n;
    p->servers = mem_calloc(n ? n : 1, sizeof *p->servers);
    if (!p->servers) return FATHOM_ENOMEM;
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < lists[k]->n; i++) {
            p->servers[p->options.n_server++] = lists[k]->items[i];
        }
    }
    p->options.servers = p->servers;
    p->options.prefills = s->router.prefill.items;
    p->options.n_prefill = s->router.prefill.n;
    if (n > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "no server is named: fathom router http://host:8000 http://host:8001");
}

static fathom_err read_setup(struct router_setup *p, const struct settings *s, fathom_diag *d)
{
    struct router_options *o = &p->options;
    int policy = 0;
    while (strcmp(choice_policy_name((enum choice_policy)policy), s->router.policy) != 0) policy++;
    *o = (struct router_options){
        .host = s->host,
        .port = (uint16_t)s->router.port,
        .policy = (enum choice_policy)policy,
        .server_key = s->router.server_api_key,
        .admin_key = s->router.admin_key,
        .insecure = s->router.insecure,
        .look_ms = (uint32_t)(s->router.look_interval * 1000),
        .max_moves = (uint32_t)s->router.max_moves,
        .max_connections = (uint32_t)s->max_connections,
        .n_http_thread = HTTP_THREADS,
        .drain_timeout_ms = (uint32_t)(s->drain_timeout * 1000),
    };
    TRY(tls_files_read(&p->tls, &o->tls, s, d));
    TRY(secret_file_read(&o->secret, s->pool_secret_file, d));
    return list_servers(p, s, d);
}

static void print_setup(const struct router *r, const struct router_options *o)
{
    for (size_t i = 0; i < o->n_server; i++) print_row(i ? "" : "servers", "%s", o->servers[i]);
    for (size_t i = 0; i < o->n_prefill; i++) print_row(i ? "" : "prefill", "%s", o->prefills[i]);
    print_row("policy", "%s", choice_policy_name(o->policy));
    print_row("address", "%s://%s:%u/v1", o->tls.certificate ? "https" : "http", o->host,
              router_port(r));
}

static void take_signal(void *arg, int number)
{
    if (number == SIGHUP || number == SIGUSR1) return;
    if (number == SIGQUIT) signal_die(number);
    fprintf(stderr, "fathom: stopping; running requests may finish, a second signal ends them\n");
    router_stop(arg);
}

fathom_err cmd_router(const struct invocation *v, fathom_diag *d)
{
    struct signal_taker signals;
    struct router_setup setup = {0};
    struct router *router = NULL;
    fathom_err err;
    TRY_GOTO(signal_taker_start(&signals, SIGNALS_SERVER, d), done);
    TRY_GOTO(read_setup(&setup, v->settings, d), done);
    TRY_GOTO(router_open(&router, &setup.options, d), done);
    signal_taker_insist(&signals, INSIST_MS);
    signal_taker_note(&signals, "the router");
    signal_taker_listen(&signals, take_signal, router);
    print_setup(router, &setup.options);
    router_run(router);
    err = FATHOM_OK;
done:
    signal_taker_mute(&signals);
    router_close(router);
    signal_taker_end(&signals);
    tls_files_free(&setup.tls);
    mem_free(setup.servers);
    return err;
}

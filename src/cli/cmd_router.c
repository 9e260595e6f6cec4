/* cmd_router.c - fathom router: one address for many servers
 *
 * The first SIGINT or SIGTERM lets requests finish, the second ends them. SIGHUP reads the
 * certificate anew; those for servers are read by each connection.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/tls_files.h"
#include "cli/tls_watch.h"
#include "router/pool.h"
#include "router/router.h"

enum { INSIST_MS = 1500, HTTP_THREADS = 2 };

/* Addresses of servers, and the texts of those that were given as host and port. */
struct address_list {
    const char **urls;
    char (*texts)[POOL_URL_BYTES];
    size_t n;
};

/* Options, and what they point to. */
struct router_setup {
    struct router_options options;
    struct tls_files tls;
    struct address_list servers, prefills;
};

static void free_addresses(struct address_list *l)
{
    mem_free(l->urls);
    mem_free(l->texts);
    *l = (struct address_list){0};
}

static bool is_number(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0';
}

/* The URLs of a list as they are, and host:port of two lists of one length. Lines of other routers
 * have the port of pages, or none, behind the URL of a server that prefills: it tells that here. */
static fathom_err list_addresses(struct address_list *out, const struct string_list *const urls[],
                                 size_t n_list, const struct string_list *hosts,
                                 const struct string_list *ports, const char *role, fathom_diag *d)
{
    const bool prefills = strcmp(role, "prefiller") == 0;
    size_t n = hosts->n;
    for (size_t k = 0; k < n_list; k++) n += urls[k]->n;
    if (hosts->n != ports->n) {
        FAIL(d, FATHOM_EINVAL, "--%s-hosts has %zu and --%s-ports %zu: give each host its port",
             role, hosts->n, role, ports->n);
    }
    out->urls = mem_calloc(n ? n : 1, sizeof *out->urls);
    out->texts = mem_calloc(hosts->n ? hosts->n : 1, sizeof *out->texts);
    if (!out->urls || !out->texts) return FATHOM_ENOMEM;
    for (size_t k = 0; k < n_list; k++) {
        for (size_t i = 0; i < urls[k]->n; i++) {
            const char *url = urls[k]->items[i];
            if (prefills && i > 0 && (is_number(url) || strcmp(url, "none") == 0)) continue;
            out->urls[out->n++] = url;
        }
    }
    for (size_t i = 0; i < hosts->n; i++) {
        int length =
            snprintf(out->texts[i], POOL_URL_BYTES, "%s:%s", hosts->items[i], ports->items[i]);
        if (!is_number(ports->items[i]) || length >= POOL_URL_BYTES) {
            FAIL(d, FATHOM_EINVAL, "\"%.100s\" and \"%.20s\" are no host and port of --%s-hosts",
                 hosts->items[i], ports->items[i], role);
        }
        out->urls[out->n++] = out->texts[i];
    }
    return FATHOM_OK;
}

static fathom_err list_servers(struct router_setup *p, const struct settings *s, fathom_diag *d)
{
    const struct router_settings *r = &s->router;
    const struct string_list *answer[] = {&s->rest, &r->worker_urls, &r->decode};
    const struct string_list *prefill[] = {&r->prefill};
    TRY(list_addresses(&p->servers, answer, 3, &r->decoder_hosts, &r->decoder_ports, "decoder", d));
    TRY(list_addresses(&p->prefills, prefill, 1, &r->prefiller_hosts, &r->prefiller_ports,
                       "prefiller", d));
    p->options.servers = p->servers.urls;
    p->options.n_server = p->servers.n;
    p->options.prefills = p->prefills.urls;
    p->options.n_prefill = p->prefills.n;
    if (p->servers.n > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "no server is named: fathom router http://host:8000 http://host:8001");
}

/* An empty one, such as a secret that was not mounted, would be anybody's. */
static fathom_err check_key(const char *flag, const char *key, fathom_diag *d)
{
    size_t n = 0;
    if (!key) return FATHOM_OK;
    while (key[n] >= ' ' && key[n] <= '~') n++;
    if (n > 0 && key[n] == '\0' && key[0] != ' ' && key[n - 1] != ' ') return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s %s, needed is a key of printable ASCII, or no such option", flag,
         key[0] ? "holds what no header can carry" : "is empty");
}

static fathom_err read_setup(struct router_setup *p, const struct settings *s, fathom_diag *d)
{
    struct router_options *o = &p->options;
    int policy = 0;
    while (strcmp(choice_policy_name((enum choice_policy)policy), s->router.policy) != 0) policy++;
    *o = (struct router_options){
        .host = s->host,
        .port = (uint16_t)s->router.port,
        .allowed_hosts = s->allowed_hosts.items,
        .n_allowed_host = s->allowed_hosts.n,
        .policy = (enum choice_policy)policy,
        .server_key = s->router.server_api_key,
        .admin_key = s->router.admin_key,
        .insecure = s->router.insecure,
        .ca_path = s->router.ca_cert_path,
        .cert_path = s->router.client_cert_path,
        .key_path = s->router.client_key_path,
        .look_ms = (uint32_t)(s->router.look_interval * 1000),
        .max_moves = (uint32_t)s->router.max_moves,
        .max_connections = (uint32_t)s->max_connections,
        .n_http_thread = HTTP_THREADS,
        .drain_timeout_ms = (uint32_t)(s->drain_timeout * 1000),
    };
    TRY(check_key("--admin-key", o->admin_key, d));
    TRY(check_key("--server-api-key", o->server_key, d));
    TRY(tls_files_read(&p->tls, &o->tls, s, d));
    TRY(peer_files_check(s, d));
    TRY(secret_file_read(&o->secret, s->pool_secret_file, d));
    return list_servers(p, s, d);
}

static void print_setup(const struct router *r, const struct router_options *o)
{
    for (size_t i = 0; i < o->n_server; i++) print_row(i ? "" : "servers", "%s", o->servers[i]);
    for (size_t i = 0; i < o->n_prefill; i++) print_row(i ? "" : "prefill", "%s", o->prefills[i]);
    print_row("policy", "%s", choice_policy_name(o->policy));
    char base[LIMIT_PATH_BYTES];
    bool is_any = print_url(base, sizeof base, o->tls.certificate ? "https" : "http", o->host,
                            router_port(r));
    print_row("address", "%s/v1%s", base, is_any ? " and every other address of this host" : "");
}

/* What a signal acts on. */
struct routing {
    struct router *router;
    const struct settings *settings;
};

/* Reads the certificate anew. One that cannot be had stays as it was. */
static void reload(const struct routing *w)
{
    struct tls_files files = {0};
    struct tls_setup setup = {0};
    fathom_diag d;
    diag_clear(&d);
    fathom_err err = tls_files_read(&files, &setup, w->settings, &d);
    const struct tls_texts texts = {setup.certificate, setup.key, setup.client_ca};
    if (!err && setup.certificate) err = router_set_certificates(w->router, &texts, &d);
    if (err) {
        LOG_ERROR("router", "reload: %s; the TLS certificate stays as it was", d.text);
    } else {
        LOG_INFO("router", "reloaded: %s", setup.certificate ? "the TLS certificate" : "nothing");
    }
    tls_files_free(&files);
    if (peer_files_check(w->settings, &d) != FATHOM_OK) {
        LOG_ERROR("router", "reload: %s; no connection to an https server can be made", d.text);
    }
}

static void take_signal(void *arg, int number)
{
    const struct routing *w = arg;
    if (number == SIGUSR1) return;
    if (number == SIGQUIT) signal_die(number);
    if (number == SIGHUP) {
        reload(w);
        return;
    }
    fprintf(stderr, "fathom: stopping; running requests may finish, a second signal ends them\n");
    router_stop(w->router);
}

fathom_err cmd_router(const struct invocation *v, fathom_diag *d)
{
    struct signal_taker signals;
    struct router_setup setup = {0};
    struct routing routing = {.settings = v->settings};
    struct tls_watch watch = {0};
    fathom_err err;
    TRY_GOTO(signal_taker_start(&signals, SIGNALS_SERVER, d), done);
    TRY_GOTO(tls_watch_start(&watch, v->settings, d), done);
    TRY_GOTO(read_setup(&setup, v->settings, d), done);
    TRY_GOTO(router_open(&routing.router, &setup.options, d), done);
    signal_taker_insist(&signals, INSIST_MS);
    signal_taker_note(&signals, "the router");
    signal_taker_listen(&signals, take_signal, &routing);
    print_setup(routing.router, &setup.options);
    router_run(routing.router);
    err = FATHOM_OK;
done:
    tls_watch_end(&watch);
    signal_taker_mute(&signals);
    router_close(routing.router);
    signal_taker_end(&signals);
    tls_files_free(&setup.tls);
    free_addresses(&setup.servers);
    free_addresses(&setup.prefills);
    return err;
}

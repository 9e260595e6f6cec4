/* cmd_serve.c - fathom serve: take the port, open the engine, start the server, wait for signals
 *
 * While the model loads, SIGINT and SIGTERM end the process; then the first lets running requests
 * finish, the second cancels them. Another host than host 0 ends with it. SIGHUP reads keys and
 * certificates anew, SIGUSR1 logs the state, SIGQUIT does so and ends at once.
 */
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/host_pass.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "cli/server_settings.h"
#include "cli/signals.h"
#include "cli/tls_files.h"
#include "cli/tls_watch.h"
#include "fathom/follow.h"
#include "router/router.h"
#include "server/key_ring.h"
#include "server/server.h"

enum {
    HTTP_THREADS = 2,       /* of a host that hands requests on */
    LAST_WORDS_MS = 5000,   /* for clients of such a host to read the ends of their answers */
    INSIST_MS = 1500,       /* from the second signal to the end, whatever runs */
    HOST_0_ENDS_MS = 10000, /* from the end of host 0's drain to its end, had it the signal later */
};

/* Options, and the texts that they point into. */
struct serve_setup {
    struct server_options options;
    fathom_transfer transfer;
    fathom_kv_events kv_events;
    fathom_hosts hosts;
    char engine_id[64];
    struct tls_files tls;
    struct buf key_file; /* its lines, each ended by NUL */
    const char **api_keys;
    const char **key_tenants;
};

/* ---- keys ---------------------------------------------------------------------------------- */

/* The next word of a line, ended in place; NULL: none. */
static char *next_word(char **line)
{
    char *word = *line + strspn(*line, " \t\r");
    if (!*word) return NULL;
    *line = word + strcspn(word, " \t\r");
    if (**line) *(*line)++ = '\0';
    return word;
}

/* Cuts the file into its words, in place: KEY, or KEY TENANT. */
static fathom_err cut_lines(struct serve_setup *p, const char *path, size_t *n_key, fathom_diag *d)
{
    char *next;
    size_t number = 1;
    for (char *line = p->key_file.data; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        char *key = next_word(&line);
        if (!key || key[0] == '#') continue;
        char *tenant = next_word(&line);
        if (tenant && next_word(&line)) {
            FAIL(d, FATHOM_EINVAL,
                 "--api-key-file %s, line %zu: more than two words, needed is a key, or a key and "
                 "the name of its tenant",
                 path, number);
        }
        p->api_keys[*n_key] = key;
        p->key_tenants[(*n_key)++] = tenant;
    }
    return FATHOM_OK;
}

static size_t count_lines(const struct buf *file)
{
    size_t n = 1;
    for (size_t i = 0; i < file->len; i++) n += file->data[i] == '\n';
    return n;
}

static fathom_err read_keys(struct serve_setup *p, const struct settings *s, fathom_diag *d)
{
    size_t n = s->api_key.n;
    if (s->api_key_file) TRY(file_read_whole(&p->key_file, s->api_key_file, d));
    size_t n_most = n + count_lines(&p->key_file);
    p->api_keys = mem_calloc(n_most, sizeof *p->api_keys);
    p->key_tenants = mem_calloc(n_most, sizeof *p->key_tenants);
    if (!p->api_keys || !p->key_tenants) FAIL(d, FATHOM_ENOMEM, "out of memory for the API keys");
    for (size_t i = 0; i < n; i++) p->api_keys[i] = s->api_key.items[i];
    if (s->api_key_file) {
        TRY(cut_lines(p, s->api_key_file, &n, d));
        if (n == s->api_key.n) {
            FAIL(d, FATHOM_EINVAL, "--api-key-file %s holds no key, needed is one a line",
                 s->api_key_file);
        }
    }
    p->options.api_keys = p->api_keys;
    p->options.key_tenants = p->key_tenants;
    p->options.n_api_key = n;
    const struct key_list list = {p->api_keys, p->key_tenants, n};
    return key_list_check(&list, d);
}

/* ---- all options ----------------------------------------------------------------------------- */

/* Reads the files that the options name; ended with free_setup, after an error too. */
static fathom_err read_setup(struct serve_setup *out, const struct invocation *v, fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    TRY(server_settings_read(&out->options, v, d));
    out->options.supervisor = v->environment->supervisor;
    out->options.traces = v->environment->traces;
    out->options.traces.endpoint = v->settings->otlp_traces_endpoint;
    TRY(tls_files_read(&out->tls, &out->options.tls, v->settings, d));
    TRY(secret_file_read(&out->options.pool_secret, v->settings->pool_secret_file, d));
    return read_keys(out, v->settings, d);
}

static void free_setup(struct serve_setup *p)
{
    tls_files_free(&p->tls);
    buf_free(&p->key_file);
    mem_free(p->api_keys);
    mem_free(p->key_tenants);
    memset(p, 0, sizeof *p);
}

/* Pages of and for other servers, with the pool's secret, and an id if none was given. */
static void take_transfer(struct serve_setup *p, fathom_options *eo, const struct settings *s)
{
    if (!s->transfer.is_set) return;
    const struct pool_secret *secret = &p->options.pool_secret;
    p->transfer = s->transfer.options;
    p->transfer.host = s->transfer.host;
    p->transfer.has_secret = secret->is_set;
    p->transfer.secret[0] = secret->key.lo;
    p->transfer.secret[1] = secret->key.hi;
    (void)snprintf(p->engine_id, sizeof p->engine_id, "%s", s->transfer.id);
    if (!p->engine_id[0]) {
        (void)snprintf(p->engine_id, sizeof p->engine_id, "fathom-%016llx",
                       (unsigned long long)rng_entropy());
    }
    p->transfer.engine_id = p->engine_id;
    eo->transfer = &p->transfer;
}

/* Whom the cache's events are for. */
static void take_kv_events(struct serve_setup *p, fathom_options *eo, const struct settings *s)
{
    const struct kv_events_settings *e = &s->kv_events;
    const bool apart = p->options.prefix_sharing == PREFIXES_BY_KEY ||
                       (p->options.prefix_sharing == PREFIXES_AUTO && p->options.n_api_key > 1);
    if (!e->is_set) return;
    if (apart)
        LOG_WARN("kv", "events tell nothing of prompts of tenants that are kept apart: see "
                       "--prefix-cache-sharing");
    p->kv_events = e->options;
    p->kv_events.endpoint = e->endpoint;
    p->kv_events.replay_endpoint = e->replay_endpoint[0] ? e->replay_endpoint : NULL;
    p->kv_events.topic = e->topic;
    eo->kv_events = &p->kv_events;
}

/* The other hosts of this one's model. */
static void take_hosts(struct serve_setup *p, fathom_options *eo, const struct settings *s)
{
    struct pool_secret token = {0};
    if (s->nnodes <= 1) return;
    if (s->cluster_token) pool_secret_set(&token, s->cluster_token, strlen(s->cluster_token));
    p->hosts = (fathom_hosts){.n_node = (uint32_t)s->nnodes,
                              .node_rank = (uint32_t)s->node_rank,
                              .address = s->master_addr,
                              .port = (uint16_t)s->master_port,
                              .by_pmix = s->by_pmix,
                              .all_serve = s->all_serve,
                              .has_token = token.is_set,
                              .token = {token.key.lo, token.key.hi}};
    eo->hosts = &p->hosts;
}

/* Where host 0 takes what clients of the other hosts ask. */
static void take_inner_port(struct server_options *o, const struct settings *s)
{
    if (!s->all_serve) return;
    o->n_host = (uint32_t)s->nnodes;
    if (!s->by_pmix) {
        o->inner_host = s->master_addr;
        o->inner_port = s->master_port < UINT16_MAX ? (uint16_t)(s->master_port + 1) : 0;
    }
    o->inner_key[0] = rng_entropy();
    o->inner_key[1] = rng_entropy();
}

/* Another host than host 0. */
struct following {
    struct signal_taker signals;
    int end_fd;
    struct router *router; /* of a host that serves; else NULL */
    const struct settings *settings;
    uint64_t start_us; /* 0: that it is ready has been told */
};

/* Of a port with TLS. One that cannot be had stays as it was. */
static void reload_certificate(const struct following *f)
{
    struct tls_files files = {0};
    struct tls_setup setup = {0};
    fathom_diag d = {{0}};
    if (!f->router || !f->settings->ssl_certfile) return;
    fathom_err err = tls_files_read(&files, &setup, f->settings, &d);
    const struct tls_texts texts = {setup.certificate, setup.key, setup.client_ca};
    if (!err) err = router_set_certificates(f->router, &texts, &d);
    if (err)
        LOG_ERROR("server", "reload: %s; the TLS certificate stays as it was", d.text);
    else
        LOG_INFO("server", "reloaded: the TLS certificate");
    tls_files_free(&files);
}

/* Host 0 has got the same signal: its requests may finish. */
static void end_with_host_0(void *arg, int number)
{
    const struct following *f = arg;
    const uint64_t one = 1;
    if (number == SIGUSR1) return;
    if (number == SIGQUIT) signal_die(number);
    if (number == SIGHUP) {
        reload_certificate(f);
        return;
    }
    fprintf(stderr, "fathom: this host ends with host 0, a second signal ends it now\n");
    if (f->router) router_drain(f->router);
    (void)!write(f->end_fd, &one, sizeof one);
}

/* While weights load a signal ends the process. */
static void listen_once_loaded(void *arg)
{
    struct following *f = arg;
    signal_taker_listen(&f->signals, end_with_host_0, f);
}

/* Host 0 is joined, or lost. */
static void turn_to_host_0(void *arg, const fathom_host_0 *h)
{
    struct following *f = arg;
    char url[LIMIT_PATH_BYTES], pass[HOST_PASS_BYTES];
    fathom_diag d = {{0}};
    fathom_err err;
    if (h->host) {
        const char *form = strchr(h->host, ':') ? "http://[%s]:%u" : "http://%s:%u";
        (void)snprintf(url, sizeof url, form, h->host, h->inner_port);
        host_pass_write(pass, (uint32_t)f->settings->node_rank, h->inner_key);
        err = router_follow(f->router, url, pass, &d);
        if (f->start_us)
            print_row("ready", "after %.2f s", (double)(clock_now_us() - f->start_us) / 1e6);
        f->start_us = 0;
    } else {
        err = router_follow(f->router, NULL, h->why, &d);
    }
    if (err) LOG_ERROR("server", "requests cannot be handed on to host 0: %s", d.text);
}

/* The port of another host than host 0, of which all that it takes goes there. */
static fathom_err open_port(struct following *f, struct serve_setup *setup,
                            const struct settings *s, fathom_diag *d)
{
    struct router_options o = {.host = s->host ? s->host : "127.0.0.1",
                               .port = (uint16_t)s->port,
                               .allowed_hosts = s->allowed_hosts.items,
                               .n_allowed_host = s->allowed_hosts.n,
                               .root_path = s->root_path,
                               .origins = s->allowed_origins.items,
                               .n_origin = s->allowed_origins.n,
                               .allow_credentials = s->allow_credentials,
                               .policy = CHOICE_ROUND_ROBIN,
                               .look_ms = 1000,
                               .max_connections = (uint32_t)s->max_connections,
                               .n_http_thread = HTTP_THREADS,
                               .drain_timeout_ms = LAST_WORDS_MS,
                               .is_host = true};
    char base[LIMIT_PATH_BYTES];
    TRY(tls_files_read(&setup->tls, &o.tls, s, d));
    TRY(router_open(&f->router, &o, d));
    bool is_any = print_url(base, sizeof base, o.tls.certificate ? "https" : "http", o.host,
                            router_port(f->router));
    print_row("address", "%s/v1%s", base, is_any ? " and every other address of this host" : "");
    return FATHOM_OK;
}

/* Host 0 has said all: what of it clients have not read may still leave. */
static void close_port(struct router *router)
{
    if (!router) return;
    router_stop(router);
    router_run(router);
    router_close(router);
}

static fathom_err follow(const struct invocation *v, fathom_diag *d)
{
    struct serve_setup setup = {0};
    struct text_model text = {0};
    struct following f = {.end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                          .settings = v->settings,
                          .start_us = clock_now_us()};
    struct tls_watch watch = {0};
    fathom_options eo;
    if (f.end_fd < 0) FAIL(d, FATHOM_EIO, "no descriptor for signals");
    if (!v->settings->allow_core_dumps) os_forbid_core_dumps();
    fathom_err err = signal_taker_start(&f.signals, SIGNALS_SERVER, d);
    signal_taker_insist(&f.signals, INSIST_MS);
    signal_taker_note(&f.signals, "host 0, which goes on,");
    if (!err) err = tls_watch_start(&watch, v->settings, d);
    if (!err && v->settings->all_serve) err = open_port(&f, &setup, v->settings, d);
    if (!err) err = text_model_open(&text, v->model, v->settings, d);
    if (!err) {
        engine_options(&eo, v->settings, v->model);
        eo.n_vocab_used = text.n_vocab_used;
        take_hosts(&setup, &eo, v->settings);
        setup.hosts.end_fd = f.end_fd;
        setup.hosts.end_after_ms = (uint32_t)(1000 * v->settings->drain_timeout) + HOST_0_ENDS_MS;
        setup.hosts.on_loaded = listen_once_loaded;
        setup.hosts.on_loaded_arg = &f;
        if (f.router) setup.hosts.on_host_0 = turn_to_host_0;
        setup.hosts.on_host_0_arg = &f;
        err = fathom_follow(&eo, d);
        if (err == FATHOM_ECANCEL) err = FATHOM_OK;
    }
    tls_watch_end(&watch);
    signal_taker_end(&f.signals);
    close_port(f.router);
    (void)close(f.end_fd);
    text_model_close(&text);
    free_setup(&setup);
    return err;
}

/* ---- what is printed at start --------------------------------------------------------------- */

static void print_engine(const fathom_info *info, const struct server_options *o)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];
    print_row("fathom", "%s", FATHOM_VERSION);
    print_row("model", "%s (%s)", o->model_names[0], info->model_type);
    for (size_t i = 1; i < o->n_model_name; i++) print_row("", "%s", o->model_names[i]);
    print_row("backend", "%s", info->backend);
    print_row("memory", "%s of weights, %s of cache", size_text(a, info->weights_bytes),
              size_text(b, info->kv_bytes));
    print_row("context", "%s tokens a request, %s in the cache, %u requests at once",
              count_text(a, info->max_model_len), count_text(b, (uint64_t)info->n_page * 64),
              info->max_num_seqs);
    bool is_v6 = info->pages.port && strchr(info->pages.host, ':');
    if (info->pages.port)
        print_row("pages", is_v6 ? "[%s]:%u" : "%s:%u", info->pages.host, info->pages.port);
    print_row("step", "%s tokens", count_text(c, info->max_num_batched_tokens));
    if (info->n_draft) print_row("drafts", "up to %u tokens of the MTP layer", info->n_draft);
}

static void print_address(const struct server *server, const struct server_options *o,
                          uint64_t start_us)
{
    const char *scheme = o->tls.certificate ? "https" : "http";
    if (o->admin_socket)
        print_row("admin", "curl --unix-socket %s http://fathom/server_info", o->admin_socket);
    if (o->supervisor.n_socket && server_port(server) == 0) {
        print_row("address", "the service manager's socket");
        print_row("ready", "after %.2f s", (double)(clock_now_us() - start_us) / 1e6);
        return;
    }
    if (o->uds) {
        print_row("address", "%s", o->uds);
        print_row("ready", "after %.2f s", (double)(clock_now_us() - start_us) / 1e6);
        return;
    }
    char base[LIMIT_PATH_BYTES];
    bool is_any = print_url(base, sizeof base, scheme, o->host, server_port(server));
    print_row("address", "%s/v1%s%s", base, is_any ? " and every other address of this host" : "",
              o->n_api_key ? ", with an API key" : "");
    print_row("page", "%s/", base);
    print_row("try",
              "curl %s/v1/chat/completions -H 'Content-Type: application/json'%s -d "
              "'{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": "
              "\"Hello, who are you?\"}]}'",
              base, o->n_api_key ? " -H \"Authorization: Bearer $KEY\"" : "", o->model_names[0]);
    print_row("ready", "after %.2f s", (double)(clock_now_us() - start_us) / 1e6);
}

/* ---- the command ---------------------------------------------------------------------------- */

/* What a signal acts on. */
struct serving {
    struct server *server;
    const struct settings *settings;
    fathom_engine *engine;
    unsigned n_end; /* signals to end, so far */
};

/* Reads the files anew. What cannot be read stays as it was. */
static void reload(struct server *server, const struct settings *s)
{
    struct serve_setup fresh = {0};
    struct server_reload r = {0};
    struct key_list keys;
    fathom_diag d[2] = {{{0}}};
    const struct server_options *o = &fresh.options;
    if (s->api_key_file) {
        if (read_keys(&fresh, s, &d[0]) == FATHOM_OK) {
            keys = (struct key_list){o->api_keys, o->key_tenants, o->n_api_key};
            r.keys = &keys;
        } else {
            LOG_ERROR("server", "reload: %s; the API keys stay as they were", d[0].text);
        }
    }
    if (tls_files_read(&fresh.tls, &fresh.options.tls, s, &d[1]) == FATHOM_OK) {
        r.tls_certificate = o->tls.certificate;
        r.tls_key = o->tls.key;
        r.tls_client_ca = o->tls.client_ca;
    } else {
        LOG_ERROR("server", "reload: %s; the TLS certificate stays as it was", d[1].text);
    }
    server_reload(server, &r);
    free_setup(&fresh);
}

static void take_signal(void *arg, int number)
{
    struct serving *w = arg;
    if (number == SIGHUP) {
        reload(w->server, w->settings);
    } else if (number == SIGUSR1) {
        server_log_state(w->server);
    } else if (number == SIGQUIT) {
        server_log_state(w->server);
        signal_die(number);
    } else {
        fprintf(stderr,
                "fathom: stopping; running requests may finish, a second signal ends them\n");
        server_stop(w->server);
        if (++w->n_end > 1) fathom_hurry(w->engine);
    }
}

fathom_err cmd_serve(const struct invocation *v, fathom_diag *d)
{
    uint64_t start_us = clock_now_us();
    struct signal_taker signals;
    struct text_model text = {0};
    struct serve_setup setup = {0};
    struct serving serving = {.settings = v->settings};
    struct tls_watch watch = {0};
    struct server_claim *claim = NULL;
    struct server *server = NULL;
    fathom_engine *engine = NULL;
    fathom_options eo;
    fathom_err err;
    bool stuck;
    const bool leads = v->settings->nnodes <= 1 || v->settings->node_rank == 0;
    if (!leads && !v->settings->dry_run) return follow(v, d);
    if (!v->settings->allow_core_dumps) os_forbid_core_dumps();
    TRY_GOTO(signal_taker_start(&signals, SIGNALS_SERVER, d), done);
    TRY_GOTO(tls_watch_start(&watch, v->settings, d), done);
    TRY_GOTO(read_setup(&setup, v, d), done);
    take_inner_port(&setup.options, v->settings);
    if (!v->settings->dry_run) TRY_GOTO(server_claim_make(&claim, &setup.options, d), done);
    setup.options.claim = claim;
    TRY_GOTO(text_model_open(&text, v->model, v->settings, d), done);
    if (v->settings->dry_run) {
        err = cmd_plan(v, d);
        goto done;
    }
    supervisor_tell(&setup.options.supervisor, "STATUS=loading weights");
    engine_options(&eo, v->settings, v->model);
    eo.n_vocab_used = text.n_vocab_used;
    take_transfer(&setup, &eo, v->settings);
    take_kv_events(&setup, &eo, v->settings);
    take_hosts(&setup, &eo, v->settings);
    setup.hosts.inner_port = server_claim_inner_port(claim);
    memcpy(setup.hosts.inner_key, setup.options.inner_key, sizeof setup.hosts.inner_key);
    TRY_GOTO(engine_open(&engine, &eo, d), done);
    print_engine(fathom_get_info(engine), &setup.options);
    TRY_GOTO(server_create(&server, &setup.options, engine, text.tokenizer, &text.style, d), done);
    serving.server = server;
    serving.engine = engine;
    signal_taker_insist(&signals, INSIST_MS);
    signal_taker_note(&signals, "the server");
    signal_taker_listen(&signals, take_signal, &serving);
    print_address(server, &setup.options, start_us);
    supervisor_tell(&setup.options.supervisor, "READY=1\nSTATUS=serving");
    err = server_run(server, d);
done:
    tls_watch_end(&watch);
    signal_taker_mute(&signals);
    signal_taker_note(&signals, "a request that is prepared, or a step of the engine,");
    stuck = server && server_is_stuck(server);
    server_destroy(server);
    server_claim_free(claim);
    signal_taker_note(&signals, "the engine, with a step or with pages for its tiers,");
    if (!stuck) fathom_close(engine); /* which would wait for the step */
    signal_taker_end(&signals);
    text_model_close(&text);
    free_setup(&setup);
    return err;
}

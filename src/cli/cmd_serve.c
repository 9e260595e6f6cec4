/* cmd_serve.c - fathom serve: open the engine, start the server, wait for a signal
 *
 * While the model loads, SIGINT and SIGTERM end the process; then the first lets running requests
 * finish, the second cancels them.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "cli/cli.h"
#include "cli/serve_setup.h"
#include "cli/signals.h"
#include "server/server.h"

static void stop_server(void *server)
{
    fprintf(stderr, "fathom: stopping; running requests may finish, a second signal ends them\n");
    server_stop(server);
}

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
    print_row("step", "%s tokens", count_text(c, info->max_num_batched_tokens));
    if (info->n_draft) print_row("drafts", "up to %u tokens of the MTP layer", info->n_draft);
}

static void print_address(const struct server *server, const struct server_options *o,
                          uint64_t start_us)
{
    const char *scheme = o->tls_certificate ? "https" : "http";
    if (o->admin_socket)
        print_row("admin", "curl --unix-socket %s http://fathom/server_info", o->admin_socket);
    if (o->uds) {
        print_row("address", "%s", o->uds);
        print_row("ready", "after %.2f s", (double)(clock_now_us() - start_us) / 1e6);
        return;
    }
    bool is_v6 = strchr(o->host, ':') != NULL;
    bool is_any = strcmp(o->host, "0.0.0.0") == 0 || strcmp(o->host, "::") == 0;
    char base[LIMIT_PATH_BYTES];
    (void)snprintf(base, sizeof base, "%s://%s%s%s:%u", scheme, is_v6 && !is_any ? "[" : "",
                   is_any ? "127.0.0.1" : o->host, is_v6 && !is_any ? "]" : "",
                   server_port(server));
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

fathom_err cmd_serve(const struct invocation *v, fathom_diag *d)
{
    uint64_t start_us = clock_now_us();
    struct signal_taker signals;
    struct text_model text = {0};
    struct serve_setup setup = {0};
    struct server *server = NULL;
    fathom_engine *engine = NULL;
    fathom_options eo;
    fathom_err err;
    bool stuck;
    TRY_GOTO(signal_taker_start(&signals, true, d), done);
    TRY_GOTO(serve_setup_read(&setup, v, d), done);
    TRY_GOTO(text_model_open(&text, v->model, v->settings, d), done);
    if (v->settings->dry_run) {
        err = cmd_plan(v, d);
        goto done;
    }
    engine_options(&eo, v->settings, v->model);
    eo.n_vocab_used = text.n_vocab_used;
    TRY_GOTO(engine_open(&engine, &eo, d), done);
    print_engine(fathom_get_info(engine), &setup.options);
    TRY_GOTO(server_create(&server, &setup.options, engine, text.tokenizer, &text.style, d), done);
    signal_taker_listen(&signals, stop_server, server);
    print_address(server, &setup.options, start_us);
    err = server_run(server, d);
done:
    signal_taker_end(&signals);
    stuck = server && server_is_stuck(server);
    server_destroy(server);
    if (!stuck) fathom_close(engine); /* which would wait for the step */
    text_model_close(&text);
    serve_setup_free(&setup);
    return err;
}

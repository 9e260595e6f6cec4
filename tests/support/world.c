/* world.c - a server over the scripted engine on a free port */
#include "support/world.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/log.h"
#include "support/json_tree.h"
#include "support/patience.h"

#define TOKENIZER FATHOM_SOURCE_DIR "/tests/data/server/tokenizer.json"

static struct tokenizer *tokenizer;

const char *const world_model_names[2] = {"m", "deepseek-ai/DeepSeek-V3.2"};

struct tokenizer *world_tokenizer(void)
{
    return tokenizer;
}

int world_setup(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    log_set_level(LOG_LEVEL_ERROR);
    if (tokenizer_open_file(&tokenizer, TOKENIZER, &d)) fail_msg("%s", d.text);
    return 0;
}

int world_teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    return 0;
}

void world_open(struct world *w, const struct server_options *with, const struct fake_options *fake)
{
    struct chat_style style = {.encoding = CHAT_ENCODING_V32,
                               .tool_markup = CHAT_ENCODING_V32,
                               .parse_tools = true,
                               .parse_reasoning = true};
    struct server_options o = with ? *with : (struct server_options){0};
    struct fake_options f = fake ? *fake : (struct fake_options){0};
    fathom_diag d = {{0}};
    o.model_names = world_model_names;
    o.n_model_name = 2;
    if (!f.script) {
        f.script = fake_script_directives;
        f.arg = tokenizer;
    }
    w->engine = fake_engine_open(&f);
    if (server_create(&w->server, &o, w->engine, tokenizer, &style, &d)) fail_msg("%s", d.text);
    w->port = server_port(w->server);
}

void world_close(struct world *w)
{
    server_destroy(w->server);
    assert_int_equal(fake_engine_n_alive(w->engine), 0);
    fathom_close(w->engine);
}

void world_connect(struct http_client *c, const struct world *w)
{
    assert_true(http_client_open(c, w->port));
}

void chat_body(char *body, size_t bytes, const char *script, const char *fields)
{
    (void)snprintf(body, bytes,
                   "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"[[%s]]\"}]%s}",
                   script, fields);
}

void ask(struct http_client *c, struct http_reply *r, const char *method, const char *path,
         const char *headers, const char *body)
{
    assert_true(http_client_send(c, method, path, headers, body));
    if (!http_client_read(c, r, strcmp(method, "HEAD") == 0)) {
        fail_msg("%s %s: the reply broke off after: %s%s", method, path, buf_str(&r->head),
                 buf_str(&r->body));
    }
}

json_t *ask_json(struct http_client *c, const char *method, const char *path, const char *headers,
                 const char *body)
{
    struct http_reply r;
    ask(c, &r, method, path, headers, body);
    json_t *root = json_tree_of_bytes(buf_str(&r.body), r.body.len);
    http_reply_free(&r);
    return root;
}

void assert_reply(struct http_reply *r, int status, const char *part)
{
    if (r->status != status || !strstr(buf_str(&r->body), part)) {
        fail_msg("status %d, needed %d; body %s, needed in it: %s", r->status, status,
                 buf_str(&r->body), part);
    }
    http_reply_free(r);
}

void expect(struct http_client *c, const char *method, const char *path, const char *body,
            int status, const char *part)
{
    struct http_reply r;
    ask(c, &r, method, path, "", body);
    assert_reply(&r, status, part);
}

void expect_chat(struct http_client *c, const char *script, const char *fields, int status,
                 const char *part)
{
    char body[1024];
    chat_body(body, sizeof body, script, fields);
    expect(c, "POST", CHAT, body, status, part);
}

void send_chat(struct http_client *c, const char *script, const char *fields)
{
    char body[1024];
    chat_body(body, sizeof body, script, fields);
    assert_true(http_client_send(c, "POST", CHAT, "", body));
}

void wait_for_count(fathom_engine *e, world_counter *count, uint64_t want)
{
    uint64_t end_us = 0;
    while (count(e) != want && keep_waiting(&end_us)) {
    }
    assert_int_equal(count(e), want);
}

/* cmd_chat.c - fathom chat, fathom complete: messages or texts to a server of OpenAI's API, whose
 * answers are printed as they stream */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "bench/http_target.h"
#include "bench/serve_run.h"
#include "bench/sse_reader.h"
#include "cli/cli.h"
#include "cli/message_lines.h"

#define DIM "\033[2m"
#define PLAIN "\033[0m"
#define URL "http://127.0.0.1:8000/v1"

enum { TIMEOUT_S = 21600 };

struct client {
    const struct settings *settings;
    struct http_target target;
    char base_url[1024];
    char *found_model, *found_root; /* as the server tells; NULL: the command line had a model */
    const char *model;
    bool is_chat;
    json_t *messages; /* of the chat so far */

    /* of the answer that streams */
    struct sse_reader events;
    struct buf content;
    bool in_reasoning;
    fathom_diag *d;
};

/* ---- what is asked --------------------------------------------------------------------------- */

static fathom_err set_target(struct client *c, const struct invocation *v, fathom_diag *d)
{
    const struct bench_settings *b = &v->settings->bench;
    const char *url = b->base_url ? b->base_url : URL;
    size_t n = strlen(url);
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) {
        FAIL(d, FATHOM_EINVAL, "--url: \"%.200s\" begins with neither http:// nor https://", url);
    }
    while (n && url[n - 1] == '/') n--;
    if (n > 3 && strncmp(url + n - 3, "/v1", 3) == 0) n -= 3;
    if (n >= sizeof c->base_url) FAIL(d, FATHOM_EINVAL, "--url is too long");
    (void)snprintf(c->base_url, sizeof c->base_url, "%.*s", (int)n, url);
    c->target = (struct http_target){
        .base_url = c->base_url,
        .api_key = b->api_key ? b->api_key : v->environment->api_key,
        .insecure = v->settings->router.insecure,
        .timeout_s = TIMEOUT_S,
    };
    if (!b->model) TRY(serve_find_model(&c->found_model, &c->found_root, &c->target, d));
    c->model = b->model ? b->model : c->found_model;
    return FATHOM_OK;
}

static fathom_err add_message(struct client *c, const char *role, const char *text, fathom_diag *d)
{
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", text);
    if (!m) FAIL(d, FATHOM_EINVAL, "the text is not UTF-8");
    return json_array_append_new(c->messages, m) == 0 ? FATHOM_OK : FATHOM_ENOMEM;
}

/* The body of a request; text is a completion's prompt, messages are a chat's. */
static fathom_err write_body(struct buf *out, const struct client *c, const char *text,
                             fathom_diag *d)
{
    const struct settings *s = c->settings;
    json_t *body =
        c->is_chat
            ? json_pack("{s:s, s:b, s:O}", "model", c->model, "stream", 1, "messages", c->messages)
            : json_pack("{s:s, s:b, s:s}", "model", c->model, "stream", 1, "prompt", text);
    if (!body) FAIL(d, FATHOM_EINVAL, "the text is not UTF-8");
    if (s->max_tokens) {
        (void)json_object_set_new(body, "max_tokens", json_integer(s->max_tokens));
    }
    if (s->temperature >= 0) {
        (void)json_object_set_new(body, "temperature", json_real(s->temperature));
    }
    char *bytes = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    fathom_err err = bytes ? buf_add_str(out, bytes) : FATHOM_ENOMEM;
    free(bytes); /* jansson's */
    return err;
}

/* ---- what is answered ------------------------------------------------------------------------ */

static void end_reasoning(struct client *c)
{
    if (!c->in_reasoning) return;
    c->in_reasoning = false;
    (void)fputs(isatty(STDOUT_FILENO) ? "\n" PLAIN "\n" : "\n\n", stdout);
}

static fathom_err print_text(struct client *c, const json_t *text, bool is_reasoning)
{
    const size_t n = json_string_length(text);
    if (n == 0) return FATHOM_OK;
    if (is_reasoning && !c->in_reasoning && isatty(STDOUT_FILENO)) (void)fputs(DIM, stdout);
    if (!is_reasoning) end_reasoning(c);
    c->in_reasoning = is_reasoning;
    (void)fwrite(json_string_value(text), 1, n, stdout);
    (void)fflush(stdout);
    return is_reasoning ? FATHOM_OK : buf_add(&c->content, json_string_value(text), n);
}

/* Of an object with an error: its message becomes the cause. */
static fathom_err read_error(const json_t *answer, fathom_diag *d)
{
    const json_t *error = json_object_get(answer, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    if (!error || json_is_null(error)) return FATHOM_OK;
    return diag_fail(d, FATHOM_EIO, "%s", message ? message : "an error without a message");
}

static fathom_err take_event(void *arg, const char *data, size_t n)
{
    struct client *c = arg;
    json_t *event;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) return FATHOM_OK;
    TRY(json_read(data, n, "event", &event, c->d));
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *reasoning = json_object_get(delta, "reasoning_content");
    fathom_err err = read_error(event, c->d);
    if (!reasoning) reasoning = json_object_get(delta, "reasoning");
    if (!err) err = print_text(c, reasoning, true);
    if (!err) err = print_text(c, json_object_get(delta, "content"), false);
    if (!err) err = print_text(c, json_object_get(choice, "text"), false);
    json_decref(event);
    return err;
}

static fathom_err take_bytes(void *arg, const char *bytes, size_t n)
{
    struct client *c = arg;
    return sse_reader_feed(&c->events, bytes, n, take_event, c);
}

/* What a server says that does not answer. */
static fathom_err tell_refusal(const struct buf *refusal, long status, fathom_diag *d)
{
    json_t *answer = NULL;
    fathom_diag ignored = {{0}};
    fathom_err err = json_read(buf_str(refusal), refusal->len, "answer", &answer, &ignored);
    if (!err) err = read_error(answer, d);
    json_decref(answer);
    if (err && d->text[0]) return err;
    return diag_fail(d, FATHOM_EIO, "the server answers %ld: %.300s", status, buf_str(refusal));
}

static fathom_err ask(struct client *c, const char *text, fathom_diag *d)
{
    struct buf body = {0}, refusal = {0};
    long status = 0;
    fathom_err err;
    const char *path = c->is_chat ? "/v1/chat/completions" : "/v1/completions";
    const size_t n_before = json_array_size(c->messages);
    c->d = d;
    buf_clear(&c->content);
    sse_reader_reset(&c->events);
    if (c->is_chat) TRY(add_message(c, "user", text, d));
    TRY_GOTO(write_body(&body, c, text, d), done);
    const struct http_post post = {path, &body, take_bytes, c, &refusal};
    TRY_GOTO(http_post(&c->target, &post, &status, d), done);
    if (status != 200) err = tell_refusal(&refusal, status, d);
    if (!err && c->is_chat) err = add_message(c, "assistant", buf_str(&c->content), d);
done:
    end_reasoning(c);
    if (status == 200) (void)fputs("\n", stdout);
    while (err && json_array_size(c->messages) > n_before) {
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    buf_free(&refusal);
    buf_free(&body);
    return err;
}

/* Every line of standard input is a message, or a part of one. What is wrong with one is told. */
static fathom_err ask_by_lines(struct client *c, fathom_diag *d)
{
    const bool is_terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    struct message_lines message = {0};
    char *line = NULL;
    size_t cap = 0;
    fathom_err err = FATHOM_OK;
    if (is_terminal) fprintf(stderr, "%s at %s\n> ", c->model, c->base_url);
    while (!err && getline(&line, &cap, stdin) >= 0) {
        if (message_lines_add(&message, line, strcspn(line, "\r\n"))) continue;
        err = buf_status(&message.text);
        if (!err && message.text.len && ask(c, buf_str(&message.text), d)) {
            fprintf(stderr, "fathom: %s\n", d->text);
            diag_clear(d);
        }
        message_lines_free(&message);
        if (is_terminal) fprintf(stderr, "> ");
    }
    if (!err) err = input_check(d);
    free(line); /* getline's */
    message_lines_free(&message);
    return err;
}

static fathom_err run(const struct invocation *v, bool is_chat, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct client c = {.settings = s, .is_chat = is_chat, .messages = json_array()};
    fathom_err err = c.messages ? FATHOM_OK : FATHOM_ENOMEM;
    sse_reader_init(&c.events);
    if (!err) err = set_target(&c, v, d);
    if (!err && s->system) err = add_message(&c, "system", s->system, d);
    if (!err) err = s->prompt ? ask(&c, s->prompt, d) : ask_by_lines(&c, d);
    sse_reader_free(&c.events);
    buf_free(&c.content);
    json_decref(c.messages);
    mem_free(c.found_model);
    mem_free(c.found_root);
    return err;
}

fathom_err cmd_chat(const struct invocation *v, fathom_diag *d)
{
    return run(v, true, d);
}

fathom_err cmd_complete(const struct invocation *v, fathom_diag *d)
{
    return run(v, false, d);
}

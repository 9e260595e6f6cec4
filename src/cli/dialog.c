/* dialog.c - render, submit, poll, print */
#include "cli/dialog.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "tokenizer/detok.h"
#include "tokenizer/tokenizer.h"

enum { POLL_MS = 50, EVENTS_MAX = 16 };

#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* One answer while it streams. */
struct answer {
    struct dialog *dialog;
    struct buf content;
    bool in_reasoning; /* reasoning is being printed */
    struct detok detok;
    struct chat_parser *parser;
    fathom_event finish;
    bool finished;
};

fathom_err dialog_reset(struct dialog *c)
{
    json_t *messages = json_array();
    if (!messages) return FATHOM_ENOMEM;
    json_decref(c->messages);
    c->messages = messages;
    if (!c->system) return FATHOM_OK;
    json_t *m = json_pack("{s:s, s:s}", "role", "system", "content", c->system);
    return m && json_array_append_new(messages, m) == 0 ? FATHOM_OK : FATHOM_EINVAL;
}

fathom_err dialog_open(struct dialog *c, fathom_engine *e, const struct text_model *t,
                       const struct settings *s, fathom_diag *d)
{
    *c = (struct dialog){
        .engine = e,
        .text = t,
        .system = s->system,
        .thinking = s->thinking,
        .colour = isatty(STDOUT_FILENO) == 1,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .max_tokens = (uint32_t)s->max_tokens,
    };
    fathom_err err = dialog_reset(c);
    if (err == FATHOM_EINVAL) FAIL(d, FATHOM_EINVAL, "--system: the text is not UTF-8");
    return err;
}

void dialog_close(struct dialog *c)
{
    json_decref(c->messages);
    memset(c, 0, sizeof *c);
}

void dialog_interrupt(struct dialog *c)
{
    atomic_store(&c->interrupted, true);
}

/* ---- printing ---------------------------------------------------------------------------- */

static void end_reasoning(struct answer *a)
{
    if (!a->in_reasoning) return;
    a->in_reasoning = false;
    (void)fputs(a->dialog->colour ? "\n" PLAIN "\n" : "\n\n", stdout);
}

static fathom_err print_event(void *arg, const struct chat_event *e)
{
    struct answer *a = arg;
    switch (e->kind) {
    case CHAT_EVENT_REASONING:
        if (!a->in_reasoning && a->dialog->colour) (void)fputs(DIM, stdout);
        a->in_reasoning = true;
        (void)fwrite(e->text, 1, e->n, stdout);
        break;
    case CHAT_EVENT_CONTENT:
        end_reasoning(a);
        (void)fwrite(e->text, 1, e->n, stdout);
        TRY(buf_add(&a->content, e->text, e->n));
        break;
    case CHAT_EVENT_TOOL_BEGIN: /* no tools are offered, so none is parsed */
    case CHAT_EVENT_TOOL_ARGS:
    case CHAT_EVENT_TOOL_END: break;
    }
    (void)fflush(stdout);
    return FATHOM_OK;
}

static void print_numbers(const fathom_event *f)
{
    double decode_s = (double)(f->total_us - f->first_us) / 1e6;
    fprintf(stderr, "%u prompt tokens (%u cached), %u tokens", f->n_prompt, f->n_cached,
            f->n_output);
    if (f->n_output > 1 && decode_s > 0) {
        fprintf(stderr, ", %.1f tokens/s", (double)(f->n_output - 1) / decode_s);
    }
    if (f->first_us) fprintf(stderr, ", first after %.0f ms", (double)f->first_us / 1e3);
    if (f->finish == FATHOM_FINISH_LENGTH) fprintf(stderr, ", cut off by the length limit");
    if (f->finish == FATHOM_FINISH_CANCEL) fprintf(stderr, ", interrupted");
    fprintf(stderr, "\n");
}

/* ---- one answer -------------------------------------------------------------------------- */

static void fill_sampling(fathom_sampling *s, const struct dialog *c)
{
    const fathom_info *info = fathom_get_info(c->engine);
    fathom_sampling_init(s);
    if (info->default_temperature >= 0) s->temperature = info->default_temperature;
    if (info->default_top_p >= 0) s->top_p = info->default_top_p;
    if (info->default_top_k >= 0) s->top_k = info->default_top_k;
    if (c->temperature >= 0) s->temperature = (float)c->temperature;
    if (c->top_p >= 0) s->top_p = (float)c->top_p;
    s->max_tokens = c->max_tokens;
}

/* Renders and tokenises the messages and queues the request. */
static fathom_err submit(const struct dialog *c, uint64_t *id, fathom_diag *d)
{
    struct buf prompt = {0};
    struct token_list ids = {0};
    fathom_request r = {0};
    fathom_err err;
    const struct chat_request chat = {
        .messages = c->messages, .thinking = c->thinking, .add_generation_prompt = true};
    TRY_GOTO(chat_render(&c->text->style, &chat, &prompt, d), done);
    TRY_GOTO(tokenizer_encode(c->text->tokenizer, buf_str(&prompt), prompt.len, TOKENIZER_MARKUP_ON,
                              &ids),
             done);
    fill_sampling(&r.sampling, c);
    r.prompt = ids.ids;
    r.n_prompt = (uint32_t)ids.n;
    TRY_GOTO(fathom_submit(c->engine, &r, id, d), done);
done:
    token_list_free(&ids);
    buf_free(&prompt);
    return err;
}

static fathom_err take_event(struct answer *a, const fathom_event *e)
{
    struct buf text = {0};
    if (e->kind == FATHOM_EVENT_FINISH) {
        a->finish = *e;
        a->finished = true;
    }
    fathom_err err = FATHOM_OK;
    if (e->kind == FATHOM_EVENT_TOKEN && !e->is_stop) err = detok_push(&a->detok, e->token, &text);
    if (a->finished) err = detok_flush(&a->detok, &text);
    if (!err && text.len) err = chat_parser_push(a->parser, text.data, text.len);
    if (!err && a->finished) err = chat_parser_finish(a->parser);
    buf_free(&text);
    return err;
}

/* Prints what comes until the request has finished. After an error the rest is only waited for. */
static fathom_err stream(struct answer *a, uint64_t id)
{
    fathom_err err = FATHOM_OK;
    while (!a->finished) {
        fathom_event events[EVENTS_MAX];
        size_t n = fathom_poll(a->dialog->engine, events, EVENTS_MAX, POLL_MS);
        for (size_t i = 0; i < n; i++) {
            if (events[i].id != id) continue;
            if (err) {
                a->finished = events[i].kind == FATHOM_EVENT_FINISH;
                continue;
            }
            err = take_event(a, &events[i]);
            if (err) fathom_cancel(a->dialog->engine, id);
        }
        if (atomic_load(&a->dialog->interrupted)) fathom_cancel(a->dialog->engine, id);
    }
    return err;
}

static fathom_err answer(struct dialog *c, struct buf *content, fathom_diag *d)
{
    struct answer a = {.dialog = c};
    uint64_t id;
    fathom_err err;
    atomic_store(&c->interrupted, false);
    detok_init(&a.detok, c->text->tokenizer, false);
    TRY_GOTO(chat_parser_create(&a.parser, &c->text->style, c->thinking, NULL, print_event, &a),
             done);
    TRY_GOTO(submit(c, &id, d), done);
    err = stream(&a, id);
    end_reasoning(&a);
    (void)fputs("\n", stdout);
    (void)fflush(stdout);
    if (err) goto done;
    if (a.finish.finish == FATHOM_FINISH_ERROR) {
        err = diag_fail(d, FATHOM_EDEVICE, "%s", fathom_fault(c->engine));
        goto done;
    }
    print_numbers(&a.finish);
    *content = a.content;
    memset(&a.content, 0, sizeof a.content);
done:
    buf_free(&a.content);
    chat_parser_destroy(a.parser);
    return err;
}

fathom_err dialog_ask(struct dialog *c, const char *message, fathom_diag *d)
{
    struct buf content = {0};
    size_t n_before = json_array_size(c->messages);
    json_t *m = json_pack("{s:s, s:s}", "role", "user", "content", message);
    fathom_err err = FATHOM_OK;
    if (!m || json_array_append_new(c->messages, m) != 0) {
        FAIL(d, FATHOM_EINVAL, "the message is not UTF-8");
    }
    TRY_GOTO(answer(c, &content, d), done);
    m = json_pack("{s:s, s:s%}", "role", "assistant", "content", buf_str(&content), content.len);
    if (!m || json_array_append_new(c->messages, m) != 0) err = FATHOM_ENOMEM;
done:
    while (err && json_array_size(c->messages) > n_before) {
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    buf_free(&content);
    return err;
}

/* dialog.c - render, submit, poll, print */
#include "cli/dialog.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/json.h"
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

/* ---- messages ---------------------------------------------------------------------------- */

static const char *role_of(const struct dialog *c, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
    return role ? role : "";
}

static const char *content_of(const struct dialog *c, size_t i)
{
    const char *content =
        json_string_value(json_object_get(json_array_get(c->messages, i), "content"));
    return content ? content : "";
}

/* Forgets the messages from number `n` on. */
static void cut(struct dialog *c, size_t n)
{
    while (json_array_size(c->messages) > n) {
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
}

static bool has_system(const struct dialog *c)
{
    return json_array_size(c->messages) > 0 && strcmp(role_of(c, 0), "system") == 0;
}

const char *dialog_system(const struct dialog *c)
{
    return has_system(c) ? content_of(c, 0) : "";
}

fathom_err dialog_set_system(struct dialog *c, const char *text, fathom_diag *d)
{
    json_t *m = NULL;
    if (text && *text) {
        m = json_pack("{s:s, s:s}", "role", "system", "content", text);
        if (!m) FAIL(d, FATHOM_EINVAL, "the system message is not UTF-8");
    }
    if (has_system(c)) (void)json_array_remove(c->messages, 0);
    return !m || json_array_insert_new(c->messages, 0, m) == 0 ? FATHOM_OK : FATHOM_ENOMEM;
}

void dialog_reset(struct dialog *c)
{
    cut(c, has_system(c) ? 1 : 0);
}

/* The number of the last message of the user; SIZE_MAX: none. */
static size_t find_question(const struct dialog *c)
{
    for (size_t i = json_array_size(c->messages); i-- > 0;) {
        if (strcmp(role_of(c, i), "user") == 0) return i;
    }
    return SIZE_MAX;
}

bool dialog_undo(struct dialog *c)
{
    size_t question = find_question(c);
    if (question == SIZE_MAX) return false;
    cut(c, question);
    return true;
}

fathom_err dialog_save(const struct dialog *c, const char *path, fathom_diag *d)
{
    if (json_dump_file(c->messages, path, JSON_INDENT(2)) == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "%s cannot be written: %s", path, strerror(errno));
}

fathom_err dialog_load(struct dialog *c, const char *path, fathom_diag *d)
{
    json_t *messages = NULL;
    TRY(json_read_file(path, &messages, d));
    fathom_err err = chat_check_messages(messages, d);
    if (err) {
        json_decref(messages);
        return err;
    }
    json_decref(c->messages);
    c->messages = messages;
    return FATHOM_OK;
}

fathom_err dialog_open(struct dialog *c, fathom_engine *e, const struct text_model *t,
                       const struct settings *s, fathom_diag *d)
{
    *c = (struct dialog){
        .engine = e,
        .text = t,
        .messages = json_array(),
        .thinking = s->thinking,
        .colour = isatty(STDOUT_FILENO) == 1,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .max_tokens = (uint32_t)s->max_tokens,
        .has_seed = s->seed >= 0,
        .seed = s->seed >= 0 ? (uint64_t)s->seed : 0,
    };
    return c->messages ? dialog_set_system(c, s->system, d) : FATHOM_ENOMEM;
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

static void print_numbers(const struct dialog *c, const fathom_event *f)
{
    double decode_s = (double)(f->total_us - f->first_us) / 1e6;
    fprintf(stderr, "%u prompt tokens (%u cached), %u tokens", f->n_prompt, f->n_cached,
            f->n_output);
    if (f->n_output > 1 && decode_s > 0) {
        fprintf(stderr, ", %.1f tokens/s", (double)(f->n_output - 1) / decode_s);
    }
    if (f->first_us) fprintf(stderr, ", first after %.0f ms", (double)f->first_us / 1e3);
    fprintf(stderr, ", context %u of %u", f->n_prompt + f->n_output,
            fathom_get_info(c->engine)->max_model_len);
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
    s->has_seed = c->has_seed;
    s->seed = c->seed;
}

/* Renders and tokenises the messages and queues the request. */
static fathom_err submit(const struct dialog *c, uint64_t *id, fathom_diag *d)
{
    struct buf prompt = {0};
    struct chat_marks marks = {0};
    struct token_list ids = {0};
    fathom_request r = {0};
    fathom_err err;
    const struct chat_request chat = {
        .messages = c->messages, .thinking = c->thinking, .add_generation_prompt = true};
    TRY_GOTO(chat_render(&c->text->style, &chat, &prompt, &marks, d), done);
    TRY_GOTO(tokenizer_encode_marked(c->text->tokenizer, buf_str(&prompt), prompt.len, marks.at,
                                     marks.n, &ids),
             done);
    fill_sampling(&r.sampling, c);
    r.prompt = ids.ids;
    r.n_prompt = (uint32_t)ids.n;
    TRY_GOTO(fathom_submit(c->engine, &r, id, d), done);
done:
    token_list_free(&ids);
    chat_marks_free(&marks);
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
    print_numbers(c, &a.finish);
    *content = a.content;
    memset(&a.content, 0, sizeof a.content);
done:
    buf_free(&a.content);
    chat_parser_destroy(a.parser);
    return err;
}

/* Answers what the messages end with. */
static fathom_err go_on(struct dialog *c, fathom_diag *d)
{
    struct buf content = {0};
    fathom_err err = answer(c, &content, d);
    if (!err) {
        json_t *m = json_pack("{s:s, s:s%}", "role", "assistant", "content", buf_str(&content),
                              content.len);
        if (!m || json_array_append_new(c->messages, m) != 0) err = FATHOM_ENOMEM;
    }
    buf_free(&content);
    return err;
}

fathom_err dialog_ask(struct dialog *c, const char *message, fathom_diag *d)
{
    size_t n_before = json_array_size(c->messages);
    json_t *m = json_pack("{s:s, s:s}", "role", "user", "content", message);
    if (!m || json_array_append_new(c->messages, m) != 0) {
        FAIL(d, FATHOM_EINVAL, "the message is not UTF-8");
    }
    fathom_err err = go_on(c, d);
    if (err) cut(c, n_before);
    return err;
}

fathom_err dialog_retry(struct dialog *c, fathom_diag *d)
{
    size_t question = find_question(c);
    if (question == SIZE_MAX) FAIL(d, FATHOM_EINVAL, "there is no message yet to answer again");
    cut(c, question + 1);
    return go_on(c, d);
}

/* chat_answer.c - the collector of a parser's events */
#include "support/chat_answer.h"

#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/utf8.h"

void answer_init(struct answer *a)
{
    memset(a, 0, sizeof *a);
    a->fail_after = -1;
}

static void log_event(struct answer *a, char kind, const char *s, size_t n)
{
    bool joins = a->last == kind && kind != 'B' && kind != 'E';
    if (!joins) {
        if (a->last) (void)buf_add_char(&a->log, ']');
        (void)buf_add_char(&a->log, '[');
        (void)buf_add_char(&a->log, kind);
        if (kind != 'E') (void)buf_add_char(&a->log, ' ');
    }
    (void)buf_add(&a->log, s, n);
    a->last = kind;
}

void answer_end(struct answer *a)
{
    if (a->last) (void)buf_add_char(&a->log, ']');
    a->last = 0;
}

static void take_call_event(struct answer *a, const struct chat_event *e)
{
    if (e->kind == CHAT_EVENT_TOOL_BEGIN) {
        ASSERT(!a->call_open && e->i_call == a->n_call && e->n > 0);
        a->call_open = true;
        a->n_call++;
    }
    ASSERT(a->call_open && e->i_call + 1 == a->n_call);
    struct buf *b = e->kind == CHAT_EVENT_TOOL_BEGIN ? a->names : a->args;
    if (e->i_call < ANSWER_CALLS_MAX) (void)buf_add(&b[e->i_call], e->text, e->n);
    if (e->kind == CHAT_EVENT_TOOL_END) {
        ASSERT(e->n == 0);
        a->call_open = false;
    }
}

fathom_err answer_sink(void *arg, const struct chat_event *e)
{
    static const char letters[] = {'R', 'C', 'B', 'A', 'E'};
    struct answer *a = arg;
    if (a->fail_after >= 0 && (long)a->n_event == a->fail_after) return FATHOM_ECANCEL;
    a->n_event++;
    ASSERT(e->n > 0 || e->kind == CHAT_EVENT_TOOL_END);
    ASSERT(!a->check_utf8 || utf8_valid(e->text, e->n));
    switch (e->kind) {
    case CHAT_EVENT_REASONING: (void)buf_add(&a->reasoning, e->text, e->n); break;
    case CHAT_EVENT_CONTENT: (void)buf_add(&a->content, e->text, e->n); break;
    default: take_call_event(a, e);
    }
    ASSERT(!a->call_open || (e->kind != CHAT_EVENT_REASONING && e->kind != CHAT_EVENT_CONTENT));
    log_event(a, letters[e->kind], e->text, e->n);
    return FATHOM_OK;
}

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* Pieces are copies of their own, so that a sanitizer sees a byte read past the end. */
static fathom_err push_copy(struct chat_parser *p, const char *s, size_t n)
{
    char *copy = mem_alloc(n);
    if (!copy) return FATHOM_ENOMEM;
    if (n) memcpy(copy, s, n);
    fathom_err err = chat_parser_push(p, copy, n);
    mem_free(copy);
    return err;
}

/* The next piece's bytes, before the end of the text limits them. */
static size_t next_piece(enum answer_cut cut, uint64_t n, size_t at, uint64_t *rng, size_t most)
{
    switch (cut) {
    case ANSWER_BYTES: return 1;
    case ANSWER_RANDOM: return next_random(rng) % (most + 1);
    case ANSWER_TWO: return at == 0 ? n : SIZE_MAX;
    case ANSWER_STEPS: return n;
    default: return SIZE_MAX;
    }
}

fathom_err answer_run(struct answer *out, const struct answer_input *in, enum answer_cut cut,
                      uint64_t n_cut)
{
    struct chat_parser *p;
    uint64_t rng = n_cut * 0x9E3779B97F4A7C15u + 1;
    answer_init(out);
    out->check_utf8 = utf8_valid(in->text, in->n);
    fathom_err err = chat_parser_create(&p, in->style, in->thinking, in->tools, answer_sink, out);
    size_t most = 1 + next_random(&rng) % 40;
    for (size_t i = 0; i < in->n && !err;) {
        size_t n = next_piece(cut, n_cut, i, &rng, most);
        if (n > in->n - i) n = in->n - i;
        err = push_copy(p, in->text + i, n);
        i += n;
    }
    if (!err) err = chat_parser_finish(p);
    if (!err) {
        ASSERT(!out->call_open);
        ASSERT(chat_parser_n_call(p) == out->n_call);
    }
    chat_parser_destroy(p);
    answer_end(out);
    return err;
}

void answer_free(struct answer *a)
{
    buf_free(&a->log);
    buf_free(&a->reasoning);
    buf_free(&a->content);
    for (size_t i = 0; i < ANSWER_CALLS_MAX; i++) {
        buf_free(&a->names[i]);
        buf_free(&a->args[i]);
    }
}

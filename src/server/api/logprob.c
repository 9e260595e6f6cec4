/* logprob.c - writes tokens and their log-probabilities as JSON */
#include "server/api/logprob.h"

#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/utf8.h"

/* JSON has no infinity; this stands for "impossible". */
#define LOGPROB_MIN (-9999.0)

void logprob_list_free(struct logprob_list *l)
{
    buf_free(&l->tokens);
    buf_free(&l->values);
    buf_free(&l->top);
    buf_free(&l->offsets);
    l->n = 0;
}

void logprob_list_clear(struct logprob_list *l)
{
    buf_clear(&l->tokens);
    buf_clear(&l->values);
    buf_clear(&l->top);
    buf_clear(&l->offsets);
    l->n = 0;
}

/* The token's text as a JSON string; bytes that are no character become U+FFFD. */
static void write_token(struct buf *b, const struct logprob_style *s, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(s->tokenizer, id, &n);
    if (s->as_ids) {
        (void)buf_printf(b, "\"token_id:%d\"", id);
        return;
    }
    (void)buf_add_char(b, '"');
    for (size_t i = 0; i < n;) {
        size_t len;
        int32_t cp = utf8_next(bytes + i, n - i, &len);
        if (cp < 0)
            (void)buf_add_str(b, "\xEF\xBF\xBD");
        else if (cp < 0x20)
            (void)buf_printf(b, "\\u%04x", (unsigned)cp);
        else if (cp == '"' || cp == '\\')
            (void)buf_printf(b, "\\%c", (char)cp);
        else
            (void)buf_add(b, bytes + i, len);
        i += len;
    }
    (void)buf_add_char(b, '"');
}

static void write_value(struct buf *b, float logprob)
{
    double v = isfinite(logprob) ? (double)logprob : LOGPROB_MIN;
    (void)buf_printf(b, "%.7g", v);
}

static void write_bytes(struct buf *b, const struct logprob_style *s, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(s->tokenizer, id, &n);
    (void)buf_add_char(b, '[');
    for (size_t i = 0; i < n; i++) {
        (void)buf_printf(b, i ? ",%u" : "%u", (unsigned)(unsigned char)bytes[i]);
    }
    (void)buf_add_char(b, ']');
}

static void write_chat_token(struct buf *b, const struct logprob_style *s, int32_t id,
                             float logprob)
{
    (void)buf_add_str(b, "{\"token\":");
    write_token(b, s, id);
    (void)buf_add_str(b, ",\"logprob\":");
    write_value(b, logprob);
    (void)buf_add_str(b, ",\"bytes\":");
    write_bytes(b, s, id);
    if (s->as_ids) (void)buf_printf(b, ",\"token_id\":%d", id);
}

fathom_err logprob_add_chat(struct logprob_list *l, const struct logprob_style *s,
                            const fathom_event *e)
{
    struct buf *b = &l->tokens;
    if (l->n++) (void)buf_add_char(b, ',');
    write_chat_token(b, s, e->token, e->logprob);
    (void)buf_add_str(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < e->n_top; i++) {
        if (i) (void)buf_add_char(b, ',');
        write_chat_token(b, s, e->top[i].id, e->top[i].logprob);
        (void)buf_add_char(b, '}');
    }
    (void)buf_add_str(b, "]}");
    return buf_status(b);
}

/* Where the keys written so far lie in the buffer. */
struct key_list {
    size_t at[FATHOM_TOP_LOGPROBS_MAX + 1];
    size_t n_byte[FATHOM_TOP_LOGPROBS_MAX + 1];
    size_t n;
};

/* Different tokens may have the same text (lone bytes all become U+FFFD), but an object must not
 * have a key twice: only the first, which is the likeliest, is written. */
static void write_pair(struct buf *b, const struct logprob_style *s, struct key_list *keys,
                       int32_t id, float logprob)
{
    size_t before = b->len;
    if (keys->n) (void)buf_add_char(b, ',');
    size_t at = b->len;
    write_token(b, s, id);
    if (b->failed) return;
    size_t n_byte = b->len - at;
    for (size_t i = 0; i < keys->n; i++) {
        if (keys->n_byte[i] != n_byte || memcmp(b->data + keys->at[i], b->data + at, n_byte) != 0) {
            continue;
        }
        b->len = before;
        b->data[before] = '\0';
        return;
    }
    keys->at[keys->n] = at;
    keys->n_byte[keys->n++] = n_byte;
    (void)buf_add_char(b, ':');
    write_value(b, logprob);
}

/* The alternatives; the chosen token is always among them. */
static void write_completion_top(struct buf *b, const struct logprob_style *s,
                                 const fathom_event *e, uint32_t n_top)
{
    struct key_list keys = {.n = 0};
    (void)buf_add_char(b, '{');
    for (uint32_t i = 0; i < n_top && i < e->n_top; i++) {
        write_pair(b, s, &keys, e->top[i].id, e->top[i].logprob);
    }
    write_pair(b, s, &keys, e->token, e->logprob);
    (void)buf_add_char(b, '}');
}

/* Moves on by a token's bytes. A character that several tokens make up counts once. */
static void advance(struct text_place *at, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        at->part[at->n_part++] = bytes[i];
        while (at->n_part > 0 && utf8_next(at->part, at->n_part, &len) != UTF8_SHORT) {
            at->n_char++;
            at->n_part -= (uint8_t)len;
            memmove(at->part, at->part + len, at->n_part);
        }
    }
}

/* If the next byte does not continue the character that has begun, its bytes count as U+FFFD. */
static void end_broken(struct text_place *at, char next)
{
    size_t len;
    if (at->n_part == 0) return;
    at->part[at->n_part] = next;
    if (utf8_next(at->part, at->n_part + 1u, &len) != UTF8_BAD) return;
    at->n_char++;
    at->n_part = 0;
}

/* Adds a token and its offset to two of the four arrays, and a comma to all. */
static void begin_entry(struct logprob_list *l, const struct logprob_style *s, int32_t id,
                        struct text_place *at)
{
    if (l->n++) {
        (void)buf_add_char(&l->tokens, ',');
        (void)buf_add_char(&l->values, ',');
        (void)buf_add_char(&l->top, ',');
        (void)buf_add_char(&l->offsets, ',');
    }
    size_t n;
    const char *bytes = tokenizer_bytes(s->tokenizer, id, &n);
    if (s->skip_special && tokenizer_is_special(s->tokenizer, id)) n = 0;
    if (n) end_broken(at, bytes[0]);
    write_token(&l->tokens, s, id);
    (void)buf_printf(&l->offsets, "%u", at->n_char);
    advance(at, bytes, n);
}

static fathom_err list_status(const struct logprob_list *l)
{
    TRY(buf_status(&l->tokens));
    TRY(buf_status(&l->values));
    TRY(buf_status(&l->top));
    return buf_status(&l->offsets);
}

fathom_err logprob_add_completion(struct logprob_list *l, const struct logprob_style *s,
                                  const fathom_event *e, uint32_t n_top, struct text_place *at)
{
    begin_entry(l, s, e->token, at);
    write_value(&l->values, e->logprob);
    if (n_top) {
        write_completion_top(&l->top, s, e, n_top);
    } else {
        (void)buf_add_str(&l->top, "null");
    }
    return list_status(l);
}

fathom_err logprob_add_first(struct logprob_list *l, const struct logprob_style *s, int32_t id,
                             struct text_place *at)
{
    begin_entry(l, s, id, at);
    (void)buf_add_str(&l->values, "null");
    (void)buf_add_str(&l->top, "null");
    return list_status(l);
}

static void write_placed(struct buf *b, const struct logprob_style *s, int32_t id, float logprob,
                         uint32_t place)
{
    (void)buf_printf(b, "\"%d\":{\"logprob\":", id);
    write_value(b, logprob);
    (void)buf_printf(b, ",\"rank\":%u,\"decoded_token\":", place);
    write_token(b, s, id);
    (void)buf_add_char(b, '}');
}

fathom_err logprob_add_prompt(struct logprob_list *l, const struct logprob_style *s,
                              const fathom_event *e, uint32_t n_top)
{
    struct buf *b = &l->tokens;
    l->n++;
    (void)buf_add_str(b, ",{");
    write_placed(b, s, e->token, e->logprob, e->place);
    for (uint32_t i = 0; i < n_top && i < e->n_top; i++) {
        if (e->top[i].id == e->token) continue;
        (void)buf_add_char(b, ',');
        write_placed(b, s, e->top[i].id, e->top[i].logprob, i + 1);
    }
    (void)buf_add_char(b, '}');
    return buf_status(b);
}

/* [logprob,id,text], the text null unless it is wanted; logprob NULL: not known */
static void write_triple(struct buf *b, const struct logprob_style *s, int32_t id,
                         const float *logprob)
{
    (void)buf_add_char(b, '[');
    if (logprob) {
        write_value(b, *logprob);
    } else {
        (void)buf_add_str(b, "null");
    }
    (void)buf_printf(b, ",%d,", id);
    if (s->with_text) {
        write_token(b, s, id);
    } else {
        (void)buf_add_str(b, "null");
    }
    (void)buf_add_char(b, ']');
}

fathom_err logprob_add_sglang(struct logprob_list *l, const struct logprob_style *s,
                              const fathom_event *e)
{
    const bool is_first = e->kind == FATHOM_EVENT_PROMPT && e->place == 0;
    l->n++;
    if (l->tokens.len) {
        (void)buf_add_char(&l->tokens, ',');
        (void)buf_add_char(&l->top, ',');
    }
    write_triple(&l->tokens, s, e->token, is_first ? NULL : &e->logprob);
    if (is_first) {
        (void)buf_add_str(&l->top, "null");
        return list_status(l);
    }
    (void)buf_add_char(&l->top, '[');
    for (uint32_t i = 0; i < e->n_top; i++) {
        if (i) (void)buf_add_char(&l->top, ',');
        write_triple(&l->top, s, e->top[i].id, &e->top[i].logprob);
    }
    (void)buf_add_char(&l->top, ']');
    return list_status(l);
}

void logprob_write_chat(struct buf *b, const struct logprob_list *l)
{
    if (l->n == 0) {
        (void)buf_add_str(b, "null");
        return;
    }
    (void)buf_add_str(b, "{\"content\":[");
    (void)buf_add(b, buf_str(&l->tokens), l->tokens.len);
    (void)buf_add_str(b, "],\"refusal\":null}");
}

static void write_array(struct buf *b, const char *key, const struct buf *items)
{
    (void)buf_printf(b, "\"%s\":[", key);
    (void)buf_add(b, buf_str(items), items->len);
    (void)buf_add_char(b, ']');
}

void logprob_write_completion(struct buf *b, const struct logprob_list *l)
{
    if (l->n == 0) {
        (void)buf_add_str(b, "null");
        return;
    }
    (void)buf_add_char(b, '{');
    write_array(b, "tokens", &l->tokens);
    (void)buf_add_char(b, ',');
    write_array(b, "token_logprobs", &l->values);
    (void)buf_add_char(b, ',');
    write_array(b, "top_logprobs", &l->top);
    (void)buf_add_char(b, ',');
    write_array(b, "text_offset", &l->offsets);
    (void)buf_add_char(b, '}');
}

uint32_t logprob_count_char(const char *text, size_t n)
{
    uint32_t n_char = 0;
    for (size_t i = 0; i < n;) {
        size_t len;
        (void)utf8_next(text + i, n - i, &len);
        n_char++;
        i += len;
    }
    return n_char;
}

/* token_form.c - the forms of /tokenize and /detokenize, whose answers have no choices */
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/api/answer.h"

/* Makes room for the body, which is written at once, since the prompt is gone later. */
static fathom_err open_body(struct answer *a, struct buf **out)
{
    *out = a->own = mem_calloc(1, sizeof **out);
    if (!*out) return FATHOM_ENOMEM;
    (*out)->limit = LIMIT_TOKEN_ANSWER_BYTES;
    return FATHOM_OK;
}

static void free_body(struct answer *a)
{
    struct buf *body = a->own;
    if (body) buf_free(body);
    mem_free(body);
    a->own = NULL;
}

static size_t body_bytes(const struct answer *a)
{
    const struct buf *body = a->own;
    return body->cap;
}

static fathom_err close(struct answer *a)
{
    struct buf *body = a->own;
    body->limit = 0;
    a->out = *body;
    *body = (struct buf){0};
    return FATHOM_OK;
}

/* The character that stands for a byte in a vocabulary of byte-level BPE: itself where it is
 * printable Latin-1, else one from U+0100 on, in order. */
static uint32_t byte_character(unsigned char byte)
{
    uint32_t n_before = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        if (b == byte && printable) return b;
        n_before += !printable;
    }
    return 0x100 + n_before - 1;
}

static fathom_err add_vocabulary_entry(struct buf *text, const struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(t, id, &n);
    buf_clear(text);
    if (tokenizer_is_added(t, id)) return buf_add(text, bytes, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t c = byte_character((unsigned char)bytes[i]); /* below U+0800 */
        if (c < 0x80) {
            (void)buf_add_char(text, (char)c);
        } else {
            (void)buf_add_char(text, (char)(0xc0 | c >> 6));
            (void)buf_add_char(text, (char)(0x80 | (c & 0x3f)));
        }
    }
    return buf_status(text);
}

static fathom_err write_entries(struct buf *b, const struct answer *a)
{
    const struct token_list *ids = &a->setup.prompts[0];
    struct buf text = {0};
    fathom_err err = FATHOM_OK;
    for (size_t i = 0; i < ids->n && !err; i++) {
        err = add_vocabulary_entry(&text, a->setup.tokenizer, ids->ids[i]);
        if (i) (void)buf_add_char(b, ',');
        (void)json_write_string(b, buf_str(&text), text.len);
    }
    buf_free(&text);
    return err;
}

static fathom_err open_tokenize(struct answer *a)
{
    const struct answer_prompt *p = &a->prompts[0];
    struct buf *b;
    TRY(open_body(a, &b));
    (void)buf_printf(b, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", p->n_token,
                     a->setup.info->max_model_len);
    (void)buf_add(b, buf_str(&p->ids), p->ids.len);
    (void)buf_add_str(b, "],\"token_strs\":");
    if (a->setup.request->return_token_strs) {
        (void)buf_add_char(b, '[');
        TRY(write_entries(b, a));
        (void)buf_add_char(b, ']');
    } else {
        (void)buf_add_str(b, "null");
    }
    return buf_add_char(b, '}');
}

static fathom_err open_detokenize(struct answer *a)
{
    const struct token_list *ids = &a->setup.prompts[0];
    struct buf *b;
    struct buf text = {0};
    TRY(open_body(a, &b));
    fathom_err err = tokenizer_decode(a->setup.tokenizer, ids->ids, ids->n, false, &text);
    (void)buf_add_str(b, "{\"prompt\":");
    (void)json_write_string(b, buf_str(&text), text.len);
    (void)buf_add_char(b, '}');
    buf_free(&text);
    return err ? err : buf_status(b);
}

const struct answer_form answer_form_tokenize = {
    .id_prefix = "tok-",
    .open = open_tokenize,
    .free = free_body,
    .bytes = body_bytes,
    .close = close,
};

const struct answer_form answer_form_detokenize = {
    .id_prefix = "detok-",
    .open = open_detokenize,
    .free = free_body,
    .bytes = body_bytes,
    .close = close,
};

/* tokenizer.c - encoding and decoding over vocabulary, merges and added tokens */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

/* ---- ill-formed text ----------------------------------------------------------------------- */

/* Length of the longest prefix that is well-formed. */
static size_t valid_prefix(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= sizeof eight) {
            memcpy(&eight, text + i, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                i += sizeof eight;
                continue;
            }
        }
        size_t len;
        if (utf8_next(text + i, n - i, &len) < 0) break;
        i += len;
    }
    return i;
}

/* Appends text[0 .. n) with U+FFFD for each maximal ill-formed part. */
static fathom_err repair(struct buf *out, const char *text, size_t n)
{
    while (n > 0) {
        size_t len = valid_prefix(text, n);
        TRY(buf_add(out, text, len));
        text += len;
        n -= len;
        if (n == 0) break;
        (void)utf8_next(text, n, &len);
        TRY(buf_add_str(out, "\xef\xbf\xbd"));
        text += len;
        n -= len;
    }
    return FATHOM_OK;
}

/* ---- encoding ------------------------------------------------------------------------------ */

/* One call of tokenizer_encode. */
struct encoding {
    const struct tokenizer *tokenizer;
    struct token_list *out;
    struct bpe_scratch scratch;
    struct pretok_call pretok;
    const char *text;
    const size_t *marks; /* [n_mark] of tokenizer_encode_marked, ascending */
    size_t n_mark;
    bool marked;
};

/* Whether an added token may begin at s. */
static bool may_begin(const struct encoding *e, const char *s)
{
    size_t at = (size_t)(s - e->text);
    size_t lo = 0, hi = e->n_mark;
    if (!e->marked) return true;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (e->marks[mid] < at) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < e->n_mark && e->marks[lo] == at;
}

static fathom_err encode_piece(void *arg, const char *s, size_t n)
{
    struct encoding *e = arg;
    const struct token_list *l = e->out;
    if (l->limit && (l->n > l->limit || n > LIMIT_PIECE_BYTES)) return FATHOM_ELIMIT;
    return bpe_encode(&e->tokenizer->bpe, s, n, &e->scratch, e->out);
}

/* Added tokens of this round become their ids, the text between them goes to the next round and
 * in the end to the pre-tokenizer. */
static fathom_err encode_round(struct encoding *e, int round, const char *s, size_t n)
{
    const struct tokenizer *t = e->tokenizer;
    if (n == 0) return FATHOM_OK;
    if (round == N_ADDED_ROUND) {
        return pretok_split(t->pretok, &e->pretok, s, n, encode_piece, e);
    }
    size_t done = 0, from = 0, at;
    for (;;) {
        int32_t id = added_next(&t->added[round], &t->vocab, s, n, from, &at);
        if (id < 0) break;
        from = at + 1;
        if (!may_begin(e, s + at)) continue;
        TRY(encode_round(e, round + 1, s + done, at - done));
        TRY(token_list_add(e->out, id));
        from = done = at + t->vocab.tokens[id].n_byte;
    }
    return encode_round(e, round + 1, s + done, n - done);
}

static fathom_err encode_text(struct encoding *e, enum tokenizer_markup markup, size_t n)
{
    fathom_err err = FATHOM_ELIMIT;
    if (n < UINT32_MAX) {
        err = encode_round(e, markup == TOKENIZER_MARKUP_ON ? 0 : N_ADDED_ROUND, e->text, n);
    }
    bpe_scratch_free(&e->scratch);
    pretok_call_free(&e->pretok);
    return err;
}

fathom_err tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                            enum tokenizer_markup markup, struct token_list *out)
{
    struct encoding e = {.tokenizer = t, .out = out, .text = text};
    struct buf repaired = {0};
    fathom_err err = FATHOM_OK;
    if (valid_prefix(text, n) < n) {
        err = repair(&repaired, text, n);
        e.text = buf_str(&repaired);
        n = repaired.len;
    }
    if (!err) err = encode_text(&e, markup, n);
    buf_free(&repaired);
    return err;
}

fathom_err tokenizer_encode_marked(const struct tokenizer *t, const char *text, size_t n,
                                   const size_t *marks, size_t n_mark, struct token_list *out)
{
    struct encoding e = {
        .tokenizer = t, .out = out, .text = text, .marks = marks, .n_mark = n_mark, .marked = true};
    ASSERT(valid_prefix(text, n) == n);
    return encode_text(&e, TOKENIZER_MARKUP_ON, n);
}

/* ---- looking up and decoding --------------------------------------------------------------- */

int32_t tokenizer_n_token(const struct tokenizer *t)
{
    return (int32_t)t->vocab.n_id;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (int round = 0; round < N_ADDED_ROUND; round++) {
        int32_t id = added_find(&t->added[round], &t->vocab, text, n);
        if (id >= 0) return id;
    }
    return vocab_find(&t->vocab, text, n);
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (!vocab_has(&t->vocab, id, VOCAB_PRESENT)) return "";
    *n = t->vocab.tokens[id].n_byte;
    return vocab_bytes(&t->vocab, (uint32_t)id);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return vocab_has(&t->vocab, id, VOCAB_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id)
{
    return vocab_has(&t->vocab, id, VOCAB_ADDED);
}

fathom_err tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                            bool skip_special, struct buf *out)
{
    struct buf bytes = {0};
    for (size_t i = 0; i < n; i++) {
        if (skip_special && tokenizer_is_special(t, ids[i])) continue;
        size_t n_byte;
        const char *s = tokenizer_bytes(t, ids[i], &n_byte);
        (void)buf_add(&bytes, s, n_byte);
    }
    fathom_err err = buf_status(&bytes);
    if (!err) err = repair(out, buf_str(&bytes), bytes.len);
    buf_free(&bytes);
    return err;
}

/* ---- opening and closing ------------------------------------------------------------------- */

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    pretok_close(t->pretok);
    for (int round = 0; round < N_ADDED_ROUND; round++) added_free(&t->added[round]);
    bpe_free(&t->bpe);
    vocab_free(&t->vocab);
    mem_free(t);
}

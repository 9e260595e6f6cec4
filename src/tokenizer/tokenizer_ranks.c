/* tokenizer_ranks.c - reading tiktoken.model: tokens in base64, a rank each, and no merges
 *
 * A rank is an id, and of two neighbours any that join to a token may be merged, the lowest rank
 * first. So each way to cut a token into two others is a merge, and all of a token have its rank.
 * A piece that is a token is never cut. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_int.h"

enum {
    N_RESERVED = 256, /* ids behind the ranks that are special tokens, named or not */
    LINE_BYTES = 4 * LIMIT_TOKEN_BYTES / 3 + 32,
};

struct load {
    struct tokenizer *t;
    uint32_t n_rank;
    struct buf bytes; /* of the token under way */
    const char *what;
    fathom_diag *d;
};

/* ---- lines ------------------------------------------------------------------------------ */

static int digit_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Padded base64 to l->bytes; false when it is none. */
static bool read_base64(struct load *l, const char *s, size_t n)
{
    size_t n_pad = 0;
    buf_clear(&l->bytes);
    if (n == 0 || n % 4 != 0) return false;
    while (n_pad < 2 && s[n - 1 - n_pad] == '=') n_pad++;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word = 0;
        size_t n_out = i + 4 == n ? 3 - n_pad : 3;
        for (size_t k = 0; k < 4; k++) {
            int digit = i + k < n - n_pad ? digit_of(s[i + k]) : 0;
            if (digit < 0) return false;
            word = word << 6 | (uint32_t)digit;
        }
        for (size_t k = 0; k < n_out; k++) {
            (void)buf_add_char(&l->bytes, (char)(word >> (16 - 8 * k) & 0xff));
        }
    }
    return true;
}

/* Digits up to the end of the line; false when there is something else, or too many. */
static bool read_rank(const char *s, size_t n, uint32_t *rank)
{
    *rank = 0;
    if (n == 0 || n > 7) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *rank = *rank * 10 + (uint32_t)(s[i] - '0');
    }
    return *rank < LIMIT_TOKEN_IDS;
}

/* "base64 rank" */
static fathom_err load_line(struct load *l, const char *s, size_t n, uint32_t i_line)
{
    uint32_t rank;
    const char *space = memchr(s, ' ', n);
    size_t n_token = space ? (size_t)(space - s) : 0;
    bool read = space && n < LINE_BYTES && read_base64(l, s, n_token) &&
                read_rank(space + 1, n - n_token - 1, &rank);
    if (!read) {
        FAIL(
            l->d, FATHOM_EFORMAT,
            "%s: line %u is \"%.*s\", needed is a token in base64, a space and its rank (up to %d)",
            l->what, i_line, n < 80 ? (int)n : 80, s, LIMIT_TOKEN_IDS - 1);
    }
    TRY(buf_status(&l->bytes));
    fathom_err err = vocab_add(&l->t->vocab, rank, buf_str(&l->bytes), l->bytes.len, VOCAB_SPELLED);
    if (err == FATHOM_EINVAL) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: line %u has rank %u, which another token has", l->what,
             i_line, rank);
    }
    if (err == FATHOM_ELIMIT) {
        FAIL(l->d, err, "%s: line %u has a token of %zu bytes, the limit is %d", l->what, i_line,
             l->bytes.len, LIMIT_TOKEN_BYTES);
    }
    l->n_rank += !err;
    return err;
}

static fathom_err load_lines(struct load *l, const char *text, size_t n)
{
    struct vocab *v = &l->t->vocab;
    uint32_t twin[2], i_line = 0;
    for (size_t i = 0; i < n;) {
        const char *end = memchr(text + i, '\n', n - i);
        size_t length = end ? (size_t)(end - text) - i : n - i;
        size_t n_line = length > 0 && text[i + length - 1] == '\r' ? length - 1 : length;
        i_line++;
        if (n_line > 0) TRY(load_line(l, text + i, n_line, i_line));
        i += length + 1;
    }
    if (l->n_rank != v->n_id) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: %u tokens have ranks up to %u, needed is each from 0 on",
             l->what, l->n_rank, v->n_id - 1);
    }
    fathom_err err = vocab_index(v, twin);
    if (err == FATHOM_EINVAL) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: ranks %u and %u have the same token", l->what, twin[0],
             twin[1]);
    }
    return err;
}

/* ---- merges ----------------------------------------------------------------------------- */

/* Calls bpe_add for each way to cut token id, or counts them. */
static uint32_t each_pair(struct load *l, uint32_t id, bool add)
{
    const struct vocab *v = &l->t->vocab;
    const char *bytes = vocab_bytes(v, id);
    size_t n_byte = v->tokens[id].n_byte;
    uint32_t n = 0;
    for (size_t k = 1; k < n_byte; k++) {
        int32_t left = vocab_find(v, bytes, k);
        int32_t right = left < 0 ? -1 : vocab_find(v, bytes + k, n_byte - k);
        if (right < 0) continue;
        if (add && n == 0) bpe_add(&l->t->bpe, (uint32_t)left, (uint32_t)right, id);
        if (add && n > 0) bpe_add_same(&l->t->bpe, (uint32_t)left, (uint32_t)right);
        n++;
    }
    return n;
}

static fathom_err load_merges(struct load *l)
{
    uint64_t n_pair = 0;
    unsigned missing;
    for (uint32_t id = 0; id < l->n_rank; id++) n_pair += each_pair(l, id, false);
    if (n_pair > LIMIT_MERGES) {
        FAIL(l->d, FATHOM_ELIMIT, "%s: its tokens are cut in two in %llu ways, the limit is %d",
             l->what, (unsigned long long)n_pair, LIMIT_MERGES);
    }
    fathom_err err = bpe_open(&l->t->bpe, &l->t->vocab, (uint32_t)n_pair, &missing);
    if (err == FATHOM_EINVAL) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: there is no token for the byte 0x%02x; all 256 are needed",
             l->what, missing);
    }
    TRY(err);
    for (uint32_t id = 0; id < l->n_rank; id++) (void)each_pair(l, id, true);
    return bpe_mark_whole(&l->t->bpe, &l->t->vocab, true);
}

/* ---- special tokens --------------------------------------------------------------------- */

static fathom_err add_special(struct load *l, uint32_t id, const char *name, size_t n, bool special)
{
    unsigned flags = VOCAB_ADDED | (special ? VOCAB_SPECIAL : 0u);
    fathom_err err = vocab_add(&l->t->vocab, id, name, n, flags);
    if (!err) return added_put(&l->t->added[0], id);
    if (err == FATHOM_ENOMEM) return err;
    FAIL(l->d, err == FATHOM_EINVAL ? FATHOM_EFORMAT : err,
         "tokenizer_config.json: added_tokens_decoder.%u: %s", id,
         err == FATHOM_EINVAL ? "the id is there twice" : "the token is too long");
}

/* One member of added_tokens_decoder; *id as its key says. */
static fathom_err load_named(struct load *l, const char *key, const json_t *entry)
{
    uint32_t id;
    const json_t *content = json_object_get(entry, "content");
    if (!read_rank(key, strlen(key), &id) || id < l->n_rank || id >= l->n_rank + 4 * N_RESERVED) {
        FAIL(l->d, FATHOM_EFORMAT,
             "tokenizer_config.json: added_tokens_decoder has the id \"%.32s\", needed are ids "
             "behind the %u ranks of %s, up to %u",
             key, l->n_rank, l->what, l->n_rank + 4 * N_RESERVED - 1);
    }
    if (json_string_length(content) == 0) {
        FAIL(l->d, FATHOM_EFORMAT,
             "tokenizer_config.json: added_tokens_decoder.%u.content is %s, a string that is not "
             "empty is needed",
             id, content ? json_type_text(content) : "absent");
    }
    return add_special(l, id, json_string_value(content), json_string_length(content),
                       !json_is_false(json_object_get(entry, "special")));
}

static fathom_err load_special(struct load *l, const char *text, size_t n)
{
    json_t *config = NULL, *entry;
    const char *key;
    fathom_err err = FATHOM_OK;
    uint32_t twin;
    if (text) TRY(json_read(text, n, "tokenizer_config.json", &config, l->d));
    json_object_foreach (json_object_get(config, "added_tokens_decoder"), key, entry) {
        if (!err) err = load_named(l, key, entry);
    }
    json_decref(config);
    for (uint32_t id = l->n_rank; id < l->n_rank + N_RESERVED && !err; id++) {
        char name[40];
        if (vocab_has(&l->t->vocab, id, VOCAB_PRESENT)) continue;
        int length = snprintf(name, sizeof name, "<|reserved_token_%u|>", id);
        err = add_special(l, id, name, (size_t)length, true);
    }
    for (int round = 0; round < N_ADDED_ROUND && !err; round++) {
        err = added_sort(&l->t->added[round], &l->t->vocab, &twin);
        if (err != FATHOM_EINVAL) continue;
        FAIL(l->d, FATHOM_EFORMAT,
             "tokenizer_config.json: added_tokens_decoder has the token of id %u twice", twin);
    }
    return err;
}

/* ---- all -------------------------------------------------------------------------------- */

fathom_err tokenizer_open_ranks(struct tokenizer **out, const struct tokenizer_ranks *ranks,
                                fathom_diag *d)
{
    struct load l = {.what = ranks->what, .d = d};
    struct pretok_pattern pattern = kimi_pattern();
    fathom_err err = FATHOM_OK;
    *out = NULL;
    l.t = mem_calloc(1, sizeof *l.t);
    if (!l.t) return FATHOM_ENOMEM;
    TRY_GOTO(load_lines(&l, ranks->text, ranks->n), done);
    TRY_GOTO(load_merges(&l), done);
    TRY_GOTO(load_special(&l, ranks->config, ranks->n_config), done);
    TRY_GOTO(pretok_open(&l.t->pretok, &pattern, 1, PRETOK_ENGINE_AUTO, l.what, d), done);
    *out = l.t;
done:
    buf_free(&l.bytes);
    if (err) tokenizer_close(l.t);
    return err;
}

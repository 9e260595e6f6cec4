/* grammar_vocab.c - the tokens as a trie, and what they do inside JSON strings
 *
 * Plain tokens sorted by bytes are a trie in preorder: walking it is one pass over arrays, and a
 * subtree is skipped by one jump. Inside a JSON string nearly every token is possible, whatever the
 * grammar; those masks are made here, once.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "grammar/grammar_int.h"
#include "grammar/spelling.h"

void grammar_vocab_destroy(struct grammar_vocab *v)
{
    if (!v) return;
    mem_free(v->byte);
    mem_free(v->depth);
    mem_free(v->skip);
    mem_free(v->parent);
    mem_free(v->first);
    mem_free(v->ids);
    mem_free(v->nodes);
    buf_free(&v->marker_bytes);
    mem_free(v->markers);
    dfa_free(&v->text);
    for (size_t i = 0; i < TEXT_STATES_MAX; i++) {
        mem_free(v->tables[i].inside);
        mem_free(v->tables[i].whole);
        mem_free(v->tables[i].closes);
    }
    for (size_t i = 0; i < TEXT_SHORT; i++) mem_free(v->short_masks[i]);
    mem_free(v->lengths);
    mem_free(v);
}

size_t grammar_vocab_n_word(const struct grammar_vocab *v)
{
    return v->n_word;
}

/* ---- tokens ----------------------------------------------------------------------------- */

struct token {
    const uint8_t *bytes;
    uint32_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_length_down(const void *a, const void *b)
{
    const struct marker *x = a, *y = b;
    if (x->n_byte != y->n_byte) return x->n_byte > y->n_byte ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Plain tokens into tokens[], sorted; added ones into v->markers. */
static fathom_err sort_tokens(struct grammar_vocab *v, const struct tokenizer *t,
                              struct token *tokens, uint32_t *n_plain, uint32_t *n_byte)
{
    *n_plain = *n_byte = 0;
    for (int32_t id = 0; id < v->n_token; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, id, &n);
        if (n == 0 || n > GRAMMAR_TOKEN_BYTES_MAX) continue;
        if (tokenizer_is_added(t, id)) {
            struct marker m = {id, (uint32_t)v->marker_bytes.len, (uint32_t)n};
            TRY(buf_add(&v->marker_bytes, bytes, n));
            v->markers[v->n_marker++] = m;
        } else if (!tokenizer_is_special(t, id)) {
            tokens[(*n_plain)++] = (struct token){(const uint8_t *)bytes, (uint32_t)n, id};
            *n_byte += (uint32_t)n;
        }
    }
    qsort(tokens, *n_plain, sizeof *tokens, by_bytes);
    qsort(v->markers, v->n_marker, sizeof *v->markers, by_length_down);
    return FATHOM_OK;
}

/* ---- trie ------------------------------------------------------------------------------- */

static uint32_t common_prefix(const struct token *a, const struct token *b)
{
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Nodes of sorted tokens. open[d] is the node at depth d on the way to the newest one. */
static void build_trie(struct grammar_vocab *v, const struct token *tokens, uint32_t n_plain)
{
    uint32_t open[GRAMMAR_TOKEN_BYTES_MAX], n_open = 0;
    for (uint32_t i = 0; i < n_plain; i++) {
        uint32_t keep = i > 0 ? common_prefix(&tokens[i - 1], &tokens[i]) : 0;
        while (n_open > keep) v->skip[open[--n_open]] = v->n_node;
        while (n_open < tokens[i].n) {
            open[n_open] = v->n_node;
            v->parent[v->n_node] = n_open > 0 ? open[n_open - 1] : 0;
            v->byte[v->n_node] = tokens[i].bytes[n_open];
            v->depth[v->n_node] = (uint8_t)n_open++;
            v->first[v->n_node++] = i;
        }
        v->ids[i] = tokens[i].id;
        v->nodes[tokens[i].id] = v->n_node - 1;
    }
    while (n_open > 0) v->skip[open[--n_open]] = v->n_node;
    v->first[v->n_node] = n_plain;
}

/* Every byte of UTF-8 must be a token, or some texts could be begun and not finished. */
static fathom_err check_bytes(const struct grammar_vocab *v, fathom_diag *d)
{
    bool has[256] = {false};
    for (uint32_t i = 0; i < v->n_node; i = v->skip[i]) {
        has[v->byte[i]] = v->first[i + 1] > v->first[i];
    }
    for (int b = 0; b < 0xf5; b++) {
        if (has[b] || b == 0xc0 || b == 0xc1) continue;
        FAIL(d, FATHOM_EUNSUPPORTED,
             "output cannot be held to a grammar: the vocabulary has no token for the byte %02x",
             b);
    }
    return FATHOM_OK;
}

static fathom_err allocate(struct grammar_vocab *v, size_t n_token)
{
    v->markers = mem_alloc_array(n_token, sizeof *v->markers);
    v->ids = mem_alloc_array(n_token, sizeof *v->ids);
    v->nodes = mem_alloc_array(n_token, sizeof *v->nodes);
    if (!v->markers || !v->ids || !v->nodes) return FATHOM_ENOMEM;
    memset(v->nodes, 0xff, n_token * sizeof *v->nodes);
    return FATHOM_OK;
}

static fathom_err allocate_nodes(struct grammar_vocab *v, size_t n)
{
    v->byte = mem_alloc(n);
    v->depth = mem_alloc(n);
    v->skip = mem_alloc_array(n, sizeof *v->skip);
    v->parent = mem_alloc_array(n, sizeof *v->parent);
    v->first = mem_alloc_array(n + 1, sizeof *v->first);
    return v->byte && v->depth && v->skip && v->parent && v->first ? FATHOM_OK : FATHOM_ENOMEM;
}

/* Gives back what the estimate of n_byte nodes took too much. */
static void shrink_nodes(struct grammar_vocab *v)
{
    size_t n = v->n_node;
    uint8_t *byte = mem_resize(v->byte, n), *depth = mem_resize(v->depth, n);
    uint32_t *skip = mem_resize(v->skip, n * sizeof *skip);
    uint32_t *parent = mem_resize(v->parent, n * sizeof *parent);
    uint32_t *first = mem_resize(v->first, (n + 1) * sizeof *first);
    if (byte) v->byte = byte;
    if (depth) v->depth = depth;
    if (skip) v->skip = skip;
    if (parent) v->parent = parent;
    if (first) v->first = first;
}

static fathom_err index_tokens(struct grammar_vocab *v, const struct tokenizer *t, fathom_diag *d)
{
    uint32_t n_plain, n_byte;
    struct token *tokens = mem_alloc_array((size_t)v->n_token, sizeof *tokens);
    fathom_err err = FATHOM_ENOMEM;
    if (!tokens) return err;
    TRY_GOTO(allocate(v, (size_t)v->n_token), out);
    TRY_GOTO(sort_tokens(v, t, tokens, &n_plain, &n_byte), out);
    TRY_GOTO(allocate_nodes(v, n_byte), out);
    build_trie(v, tokens, n_plain);
    TRY_GOTO(check_bytes(v, d), out);
    shrink_nodes(v);
out:
    mem_free(tokens);
    return err;
}

/* ---- inside JSON strings ---------------------------------------------------------------- */

/* Where a walk stands after the bytes of a node. */
struct place {
    uint8_t state;
    uint32_t n_char;
};

enum { DEAD = UINT8_MAX };

/* v->text as a table of bytes; CLOSED after the closing quote. */
struct text_rows {
    uint8_t to[TEXT_STATES_MAX][256];
    uint8_t closed;
};

static void fill_rows(struct text_rows *rows, const struct dfa *d)
{
    memset(rows->to, DEAD, sizeof rows->to);
    for (uint32_t s = 0; s < d->n_state; s++) {
        if (d->accept[s]) rows->closed = (uint8_t)s;
        for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++) {
            for (uint32_t b = d->edges[e].lo; b <= d->edges[e].hi; b++) {
                rows->to[s][b] = (uint8_t)d->edges[e].to;
            }
        }
    }
}

static fathom_err add_close(struct text_table *t, size_t *cap, struct text_close c)
{
    TRY(mem_grow(&t->closes, cap, t->n_close + 1, sizeof *t->closes));
    t->closes[t->n_close++] = c;
    return FATHOM_OK;
}

static fathom_err add_length(struct grammar_vocab *v, size_t *cap, struct text_length l)
{
    TRY(mem_grow(&v->lengths, cap, v->n_length + 1, sizeof *v->lengths));
    v->lengths[v->n_length++] = l;
    return FATHOM_OK;
}

/* The tokens that end at a node inside the string: into the masks. */
static fathom_err add_inside(struct grammar_vocab *v, uint32_t state, uint32_t node,
                             uint32_t n_char, size_t *cap)
{
    struct text_table *t = &v->tables[state];
    for (uint32_t i = v->first[node]; i < v->first[node + 1]; i++) {
        mask_set(t->inside, v->ids[i]);
        mask_set(t->whole, v->ids[i]);
        if (state != 0) continue;
        if (n_char > v->n_char_max) v->n_char_max = n_char;
        if (n_char < TEXT_SHORT) {
            mask_set(v->short_masks[n_char], v->ids[i]);
        } else {
            TRY(add_length(v, cap, (struct text_length){v->ids[i], n_char}));
        }
    }
    return FATHOM_OK;
}

/* The table of one state of v->text. */
static fathom_err walk_text(struct grammar_vocab *v, const struct text_rows *rows, uint32_t state)
{
    struct place places[GRAMMAR_TOKEN_BYTES_MAX + 1] = {{(uint8_t)state, 0}};
    struct text_table *t = &v->tables[state];
    size_t cap_close = 0, cap_length = 0;
    for (uint32_t i = 0; i < v->n_node;) {
        const struct place *from = &places[v->depth[i]];
        uint8_t to = rows->to[from->state][v->byte[i]];
        if (to == DEAD) {
            i = v->skip[i];
        } else if (to == rows->closed) {
            for (uint32_t k = v->first[i]; k < v->first[i + 1]; k++) {
                mask_set(t->whole, v->ids[k]);
            }
            TRY(add_close(t, &cap_close, (struct text_close){i, from->n_char}));
            if (state == 0 && from->n_char > v->n_char_max) v->n_char_max = from->n_char;
            i = v->skip[i];
        } else {
            uint32_t n_char = from->n_char + (from->state == 0);
            places[v->depth[i] + 1] = (struct place){to, n_char};
            TRY(add_inside(v, state, i, n_char, &cap_length));
            i++;
        }
    }
    return FATHOM_OK;
}

static int by_length(const void *a, const void *b)
{
    const struct text_length *x = a, *y = b;
    if (x->n_char != y->n_char) return x->n_char < y->n_char ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static fathom_err index_text(struct grammar_vocab *v)
{
    struct text_rows rows;
    TRY(spell_json_string(&v->text, TEXT_STATES_MAX));
    fill_rows(&rows, &v->text);
    for (size_t i = 0; i < TEXT_SHORT; i++) {
        v->short_masks[i] = mem_calloc(v->n_word, sizeof(uint32_t));
        if (!v->short_masks[i]) return FATHOM_ENOMEM;
    }
    for (uint32_t s = 0; s < v->text.n_state; s++) {
        struct text_table *t = &v->tables[s];
        if (s == rows.closed) continue;
        t->inside = mem_calloc(v->n_word, sizeof *t->inside);
        t->whole = mem_calloc(v->n_word, sizeof *t->whole);
        if (!t->inside || !t->whole) return FATHOM_ENOMEM;
        TRY(walk_text(v, &rows, s));
    }
    if (v->n_length) qsort(v->lengths, v->n_length, sizeof *v->lengths, by_length);
    for (size_t i = 1; i < TEXT_SHORT; i++) {
        for (size_t w = 0; w < v->n_word; w++) v->short_masks[i][w] |= v->short_masks[i - 1][w];
    }
    return FATHOM_OK;
}

fathom_err grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *t,
                                fathom_diag *d)
{
    struct grammar_vocab *v = mem_calloc(1, sizeof *v);
    *out = NULL;
    if (!v) return FATHOM_ENOMEM;
    v->n_token = tokenizer_n_token(t);
    v->n_word = ((size_t)v->n_token + 31) / 32;
    fathom_err err = index_tokens(v, t, d);
    if (!err) err = index_text(v);
    if (err) {
        grammar_vocab_destroy(v);
        return err;
    }
    *out = v;
    return FATHOM_OK;
}

/* bpe.c - merging: short pieces by scanning, long ones over a heap */
#include "tokenizer/bpe.h"

#include <string.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/mem.h"

enum {
    RANK_BITS = 20,
    ID_BITS = 22,
    SHORT_BYTES = 64, /* pieces up to here are merged by scanning all pairs for the lowest */
};
#define RANK_NONE UINT32_MAX
#define PAIR_EMPTY UINT64_MAX

_Static_assert(LIMIT_MERGES < (1 << RANK_BITS), "a rank fits its bits");
_Static_assert(LIMIT_TOKEN_IDS < (1 << ID_BITS), "an id fits its bits and is never all ones");

void bpe_free(struct bpe *b)
{
    mem_free(b->pairs);
    mem_free(b->merged);
    *b = (struct bpe){0};
}

fathom_err bpe_open(struct bpe *b, const struct vocab *v, uint32_t n_merge, unsigned *missing)
{
    *b = (struct bpe){.vocab = v, .cap_merge = n_merge, .pair_shift = 63};
    if (n_merge > LIMIT_MERGES) return FATHOM_ELIMIT;
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        int32_t id = vocab_find(v, &c, 1);
        *missing = byte;
        if (id < 0) return FATHOM_EINVAL;
        b->byte_ids[byte] = (uint32_t)id;
    }
    size_t n_bucket = 2;
    for (; n_bucket < 2 * (size_t)n_merge; n_bucket *= 2) b->pair_shift--;
    b->pairs = mem_alloc_array(n_bucket, sizeof *b->pairs);
    b->merged = mem_alloc_array(n_merge, sizeof *b->merged);
    if (!b->pairs || !b->merged) {
        bpe_free(b);
        return FATHOM_ENOMEM;
    }
    memset(b->pairs, 0xff, n_bucket * sizeof *b->pairs);
    return FATHOM_OK;
}

static inline uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << ID_BITS | right;
}

/* The bucket that holds the pair, or the empty one at which the search ends. */
static inline size_t find_pair(const struct bpe *b, uint64_t key)
{
    size_t mask = ((size_t)1 << (64 - b->pair_shift)) - 1;
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> b->pair_shift);
    while (b->pairs[i] != PAIR_EMPTY && b->pairs[i] >> RANK_BITS != key) i = (i + 1) & mask;
    return i;
}

static inline uint32_t rank_of(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint64_t pair = b->pairs[find_pair(b, pair_key(left, right))];
    return pair == PAIR_EMPTY ? RANK_NONE : (uint32_t)pair & ((1u << RANK_BITS) - 1);
}

void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t merged)
{
    ASSERT(b->n_merge < b->cap_merge);
    uint64_t key = pair_key(left, right);
    b->pairs[find_pair(b, key)] = key << RANK_BITS | b->n_merge;
    b->merged[b->n_merge++] = merged;
}

void bpe_add_same(struct bpe *b, uint32_t left, uint32_t right)
{
    ASSERT(b->n_merge > 0);
    uint64_t key = pair_key(left, right);
    b->pairs[find_pair(b, key)] = key << RANK_BITS | (b->n_merge - 1);
}

/* ---- short pieces: arrays, scanned for the lowest rank ------------------------------------- */

/* Merges ids[0 .. n) in place; returns how many are left. Needs 1 <= n <= SHORT_BYTES. */
static size_t merge_short(const struct bpe *b, uint32_t *ids, size_t n)
{
    uint32_t ranks[SHORT_BYTES]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = rank_of(b, ids[i], ids[i + 1]);
    while (n > 1) {
        uint32_t lowest = ranks[0];
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            bool lower = ranks[i] < lowest;
            lowest = lower ? ranks[i] : lowest;
            at = lower ? i : at;
        }
        if (lowest == RANK_NONE) break;
        ids[at] = b->merged[lowest];
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        if (at + 1 < n) {
            memmove(ranks + at + 1, ranks + at + 2, (n - at - 2) * sizeof *ranks);
            ranks[at] = rank_of(b, ids[at], ids[at + 1]);
        }
        if (at > 0) ranks[at - 1] = rank_of(b, ids[at - 1], ids[at]);
    }
    return n;
}

/* ---- long pieces: a linked list and a heap of its pairs ------------------------------------ */

/* A symbol; `next` of the last is n. A symbol joined to its left neighbour has rank DEAD. */
struct symbol {
    uint32_t id;
    uint32_t prev;
    uint32_t next;
    uint32_t rank; /* of the pair with its next: what the heap's entry must say to be in force */
};

/* Heap entries are rank << 32 | position, so that the smallest is the merge to do. Each position
 * enters once for every rank it takes; entries out of force are dropped when they come up. The
 * heap never holds more than 2 n: n at the start, and each merge takes one out and puts two in. */
struct heap {
    uint64_t *entries;
    size_t n;
};

static void sift_down(struct heap *h, size_t i, uint64_t entry)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n) break;
        if (child + 1 < h->n && h->entries[child + 1] < h->entries[child]) child++;
        if (h->entries[child] >= entry) break;
        h->entries[i] = h->entries[child];
        i = child;
    }
    h->entries[i] = entry;
}

static void heap_order(struct heap *h)
{
    for (size_t i = h->n / 2; i-- > 0;) sift_down(h, i, h->entries[i]);
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->entries[0];
    uint64_t last = h->entries[--h->n];
    if (h->n) sift_down(h, 0, last);
    return top;
}

static void heap_push(struct heap *h, uint64_t entry)
{
    size_t i = h->n++;
    while (i > 0 && h->entries[(i - 1) / 2] > entry) {
        h->entries[i] = h->entries[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->entries[i] = entry;
}

/* Sets the rank of the pair that starts at i, and queues it. */
static void queue_pair(const struct bpe *b, struct symbol *symbols, size_t n, struct heap *h,
                       uint32_t i)
{
    struct symbol *s = &symbols[i];
    s->rank = s->next < n ? rank_of(b, s->id, symbols[s->next].id) : RANK_NONE;
    if (s->rank != RANK_NONE) heap_push(h, (uint64_t)s->rank << 32 | i);
}

static void merge_queued(const struct bpe *b, struct symbol *symbols, size_t n, struct heap *h)
{
    while (h->n > 0) {
        uint64_t entry = heap_pop(h);
        uint32_t rank = (uint32_t)(entry >> 32);
        uint32_t i = (uint32_t)entry;
        struct symbol *left = &symbols[i];
        if (left->rank != rank) continue;
        struct symbol *right = &symbols[left->next];
        right->rank = RANK_NONE;
        left->id = b->merged[rank];
        left->next = right->next;
        if (left->next < n) symbols[left->next].prev = i;
        queue_pair(b, symbols, n, h, i);
        if (i > 0) queue_pair(b, symbols, n, h, left->prev);
    }
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    mem_free(s->memory);
    *s = (struct bpe_scratch){0};
}

static fathom_err scratch_reserve(struct bpe_scratch *s, size_t bytes)
{
    if (bytes <= s->bytes) return FATHOM_OK;
    bpe_scratch_free(s);
    s->memory = mem_alloc(bytes);
    if (!s->memory) return FATHOM_ENOMEM;
    s->bytes = bytes;
    return FATHOM_OK;
}

static fathom_err encode_long(const struct bpe *b, const char *s, size_t n,
                              struct bpe_scratch *scratch, struct token_list *out)
{
    fathom_err err = scratch_reserve(scratch, n * (sizeof(struct symbol) + 2 * sizeof(uint64_t)));
    if (err) return err;
    struct symbol *symbols = scratch->memory;
    ASSERT(symbols);
    struct heap heap = {.entries = (uint64_t *)(symbols + n)};
    for (size_t i = 0; i < n; i++) {
        symbols[i] = (struct symbol){.id = b->byte_ids[(unsigned char)s[i]],
                                     .prev = (uint32_t)i - 1,
                                     .next = (uint32_t)i + 1};
    }
    for (size_t i = 0; i < n; i++) {
        struct symbol *left = &symbols[i];
        left->rank = i + 1 < n ? rank_of(b, left->id, symbols[i + 1].id) : RANK_NONE;
        if (left->rank != RANK_NONE) heap.entries[heap.n++] = (uint64_t)left->rank << 32 | i;
    }
    heap_order(&heap);
    merge_queued(b, symbols, n, &heap);
    for (size_t i = 0; i < n && !err; i = symbols[i].next) {
        err = token_list_add(out, (int32_t)symbols[i].id);
    }
    return err;
}

/* ---- pieces -------------------------------------------------------------------------------- */

static fathom_err merge_piece(const struct bpe *b, const char *s, size_t n,
                              struct bpe_scratch *scratch, struct token_list *out)
{
    if (n > SHORT_BYTES) return encode_long(b, s, n, scratch, out);
    uint32_t ids[SHORT_BYTES];
    for (size_t i = 0; i < n; i++) ids[i] = b->byte_ids[(unsigned char)s[i]];
    size_t n_id = n ? merge_short(b, ids, n) : 0;
    fathom_err err = FATHOM_OK;
    for (size_t i = 0; i < n_id && !err; i++) err = token_list_add(out, (int32_t)ids[i]);
    return err;
}

fathom_err bpe_encode(const struct bpe *b, const char *s, size_t n, struct bpe_scratch *scratch,
                      struct token_list *out)
{
    int32_t whole = vocab_find_whole(b->vocab, s, n);
    if (whole >= 0) return token_list_add(out, whole);
    return merge_piece(b, s, n, scratch, out);
}

fathom_err bpe_mark_whole(const struct bpe *b, struct vocab *v, bool always)
{
    struct bpe_scratch scratch = {0};
    struct token_list ids = {0};
    fathom_err err = FATHOM_OK;
    for (uint32_t id = 0; id < v->n_id && !err; id++) {
        struct vocab_token *t = &v->tokens[id];
        if (!(t->flags & VOCAB_SPELLED)) continue;
        ids.n = 0;
        if (!always) err = merge_piece(b, vocab_bytes(v, id), t->n_byte, &scratch, &ids);
        bool itself = ids.n == 1 && ids.ids[0] == (int32_t)id;
        if (!err && (always || itself)) t->flags |= VOCAB_WHOLE;
    }
    token_list_free(&ids);
    bpe_scratch_free(&scratch);
    return err;
}

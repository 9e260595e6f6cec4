/* vocab.h - ids to bytes and bytes to ids
 *
 * A vocabulary is filled once (vocab_add, then vocab_index) and only read afterwards. Tokens are
 * kept as the bytes they stand for. A token is `spelled` when its name in the file is written in
 * the byte alphabet; only those can come out of merging, so only those are found by vocab_find.
 */
#ifndef FATHOM_TOKENIZER_VOCAB_H
#define FATHOM_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

enum {
    VOCAB_PRESENT = 1, /* the id has a token */
    VOCAB_SPELLED = 2, /* made of the byte alphabet */
    VOCAB_ADDED = 4,   /* listed in added_tokens */
    VOCAB_SPECIAL = 8, /* and marked special */
    VOCAB_WHOLE = 16,  /* encoding its bytes gives exactly this token */
};

struct vocab_token {
    uint32_t start; /* of its bytes */
    uint16_t n_byte;
    uint16_t flags;
};

/* Invariants: token i's bytes are bytes.data[start .. start + n_byte); buckets has a power of two
 * of entries, 0 for empty, else tag << 22 | id + 1, and at least half of them are empty. */
struct vocab {
    struct buf bytes;
    struct vocab_token *tokens; /* [n_id], holes have no VOCAB_PRESENT */
    uint32_t n_id;
    uint32_t cap;
    uint32_t *buckets; /* [bucket_mask + 1]; NULL before vocab_index */
    uint32_t bucket_mask;
};

/* vocab_free - release and zero; accepts a zeroed struct */
void vocab_free(struct vocab *v);

/* vocab_add - a token of n bytes
 *
 *   id  up to LIMIT_TOKEN_IDS - 1, not taken
 * Errors  ENOMEM; ELIMIT for a token or a vocabulary too large; EINVAL for a taken id. */
fathom_err vocab_add(struct vocab *v, uint32_t id, const char *bytes, size_t n, unsigned flags);

/* vocab_index - build the table that vocab_find reads
 *
 *   twin  on EINVAL: two spelled tokens of equal bytes */
fathom_err vocab_index(struct vocab *v, uint32_t twin[2]);

/* vocab_find - the spelled token of exactly these bytes; -1 if there is none
 *
 * Needs  vocab_index. */
int32_t vocab_find(const struct vocab *v, const char *bytes, size_t n);

/* vocab_find_whole - the same, of tokens with VOCAB_WHOLE only */
int32_t vocab_find_whole(const struct vocab *v, const char *bytes, size_t n);

/* vocab_bytes - the bytes of a token that is present, not terminated; valid until the next add */
static inline const char *vocab_bytes(const struct vocab *v, uint32_t id)
{
    return v->bytes.data + v->tokens[id].start;
}

/* vocab_has - whether the id, any number, has all of these flags */
static inline bool vocab_has(const struct vocab *v, int64_t id, unsigned flags)
{
    return id >= 0 && id < v->n_id && (v->tokens[id].flags & flags) == flags;
}

/* vocab_unspell - from the byte alphabet to bytes
 *
 *   name  n bytes of UTF-8
 *   out   room for n bytes
 * Returns the number of bytes, or -1 when a character is outside the alphabet. The alphabet writes
 * the printable characters of Latin-1 as themselves and the other 68 bytes, in order, as U+0100
 * and up. */
ptrdiff_t vocab_unspell(const char *name, size_t n, char *out);

#endif

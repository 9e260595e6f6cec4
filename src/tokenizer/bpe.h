/* bpe.h - byte-pair merging of one piece of text
 *
 * A piece starts as its bytes' tokens; of all neighbours that have a merge, the one of lowest rank
 * (leftmost among equals) is joined, until none has. Immutable after the last bpe_add.
 */
#ifndef FATHOM_TOKENIZER_BPE_H
#define FATHOM_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "tokenizer/token_list.h"
#include "tokenizer/vocab.h"

/* Invariants: pairs has a power of two of entries, all ones for empty, else
 * left << 42 | right << 20 | rank, and at least half of them are empty; rank < n_merge. */
struct bpe {
    const struct vocab *vocab; /* borrowed */
    uint64_t *pairs;           /* [1 << (64 - pair_shift)] */
    unsigned pair_shift;
    uint32_t *merged; /* [cap_merge] rank to the id of the joined token */
    uint32_t n_merge;
    uint32_t cap_merge;
    uint32_t byte_ids[256];
};

/* Working memory of a call, kept from piece to piece; a zeroed struct is empty. */
struct bpe_scratch {
    void *memory;
    size_t bytes;
};

/* bpe_scratch_free - release and zero; accepts an empty one */
void bpe_scratch_free(struct bpe_scratch *s);

/* bpe_open - room for n_merge merges over an indexed vocabulary
 *
 *   missing  on EINVAL: a byte that no token spells
 * Errors  ENOMEM, ELIMIT for more than LIMIT_MERGES, EINVAL. */
fathom_err bpe_open(struct bpe *b, const struct vocab *v, uint32_t n_merge, unsigned *missing);

/* bpe_free - release and zero; accepts a zeroed struct */
void bpe_free(struct bpe *b);

/* bpe_add - the next merge in rank order; of equal pairs the last holds
 *
 * Needs  fewer than n_merge added so far. */
void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t merged);

/* bpe_add_same - one more pair that the last merge joins, with its rank
 *
 * Needs  pairs added in all, n_merge at most. */
void bpe_add_same(struct bpe *b, uint32_t left, uint32_t right);

/* bpe_mark_whole - set VOCAB_WHOLE on every spelled token whose bytes encode to itself, so that
 * bpe_encode finds such pieces in one look; with `always`, on all of them (ignore_merges) */
fathom_err bpe_mark_whole(const struct bpe *b, struct vocab *v, bool always);

/* bpe_encode - append the ids of one piece
 *
 *   s  n bytes, n <= UINT32_MAX
 * Errors  ENOMEM.
 * Cost    short pieces: quadratic with a small constant and without memory; longer ones:
 *         n log n, 32 bytes of scratch for each byte. */
fathom_err bpe_encode(const struct bpe *b, const char *s, size_t n, struct bpe_scratch *scratch,
                      struct token_list *out);

#endif

/* tokenizer_int.h - what a tokenizer is made of; for this folder only */
#ifndef FATHOM_TOKENIZER_TOKENIZER_INT_H
#define FATHOM_TOKENIZER_TOKENIZER_INT_H

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretok.h"
#include "tokenizer/pretok_kimi.h"
#include "tokenizer/vocab.h"

/* Added tokens are looked for in two rounds: first those not `normalized`, then, in the text that
 * is left, the others. Without a normalizer both look at the same text. */
enum { N_ADDED_ROUND = 2 };

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct added_set added[N_ADDED_ROUND];
    struct pretok *pretok;
};

/* tokenizer_open_with - tokenizer_open with a choice of the pre-tokenizer's engine */
fathom_err tokenizer_open_with(struct tokenizer **out, const char *json, size_t n,
                               enum pretok_engine engine, const char *what, fathom_diag *d);

#endif

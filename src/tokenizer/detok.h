/* detok.h - streaming decoder: ids in, whole characters out
 *
 * Bytes of an unfinished character are held back (at most 3) until the next token completes them or
 * shows that they never will. Then each maximal ill-formed part becomes U+FFFD.
 */
#ifndef FATHOM_TOKENIZER_DETOK_H
#define FATHOM_TOKENIZER_DETOK_H

#include "tokenizer/tokenizer.h"

struct detok {
    const struct tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    unsigned n_held; /* bytes of an unfinished character */
    char held[4];
};

/* detok_init - the start of a stream
 *
 *   skip_special  special tokens leave no text
 * Owns  nothing: there is no counterpart that releases. */
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);

/* detok_push - append to *out the text that this token completes (maybe none): whole characters
 *
 *   id  any; one without a token leaves no text
 * Errors  ENOMEM, ELIMIT of *out; the stream is then of no further use. */
fathom_err detok_push(struct detok *d, int32_t id, struct buf *out);

/* detok_flush - end of the stream: what is held becomes U+FFFD */
fathom_err detok_flush(struct detok *d, struct buf *out);

#endif

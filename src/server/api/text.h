/* text.h - turns tokens of one choice into text, in which stop strings are looked for
 *
 *   token --> detok (whole characters) --> stop (hold-back) --> text
 *
 * Stop strings count from the first token behind min_tokens on. Earlier text has been given out and
 * is not part of a match.
 */
#ifndef FATHOM_SERVER_API_TEXT_H
#define FATHOM_SERVER_API_TEXT_H

#include "server/api/stop.h"
#include "tokenizer/detok.h"

enum { TEXT_SKIP_MAX = 9 };

struct text_options {
    const struct tokenizer *tokenizer;
    const struct stop_set *stops;
    bool skip_special; /* special tokens leave no text */
    bool include_stop; /* a stop string stays in the text */
    uint32_t min_tokens;
    int32_t skip_ids[TEXT_SKIP_MAX]; /* leave no text whatever skip_special says */
    unsigned n_skip_id;
};

struct text_stream {
    struct text_options o;
    struct detok detok;
    struct stop_matcher stop;
    struct buf piece; /* scratch: characters of the token at hand */
    uint32_t n_token;
    int hit; /* index of the stop string found, or -1 */
};

/* text_init - o->tokenizer and o->stops are borrowed */
void text_init(struct text_stream *t, const struct text_options *o);
void text_free(struct text_stream *t);

/* text_push - append to *out the text that is final with this token; t->hit tells of a stop string.
 * Needs   t->hit < 0.
 * Errors  ENOMEM. */
fathom_err text_push(struct text_stream *t, int32_t id, struct buf *out);

/* text_end - append what was held back; nothing after a stop string */
fathom_err text_end(struct text_stream *t, struct buf *out);

#endif

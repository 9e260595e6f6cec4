/* evaluation_texts.h - the token ids that a model is measured over */
#ifndef FATHOM_CLI_EVALUATION_TEXTS_H
#define FATHOM_CLI_EVALUATION_TEXTS_H

#include <stddef.h>
#include <stdint.h>

#include "cli/command_line.h"
#include "fathom/err.h"
#include "tokenizer/token_list.h"

struct tokenizer;

/* A piece of a text, as the model sees it: it begins with BOS, if the model has one. */
struct text_piece {
    size_t at;      /* its ids are ids.ids[at .. at + n) */
    uint32_t n;     /* 2 .. length */
    uint32_t first; /* the first token that counts, 1 .. n - 1; those before are given */
};

/* A zeroed struct is empty. */
struct evaluation_texts {
    struct token_list ids;
    struct text_piece *pieces;
    size_t n_piece;
    size_t cap;
    uint64_t n_scored; /* tokens that count */
};

struct texts_order {
    const struct string_list *files; /* n 0: the texts linked into the program */
    const struct tokenizer *tokenizer;
    int32_t bos_id;    /* -1: none */
    uint32_t n_vocab;  /* ids are below */
    uint32_t length;   /* longer texts are cut into pieces */
    uint64_t n_sample; /* pieces taken, from the first on; 0: all */
};

/* evaluation_texts_read - files in their order
 *
 * By its name a file is: .jsonl, on each line {"text": ...}, {"prompt": ..., "text": ...} of which
 * the text alone counts, {"ids": [...]} or an array of ids; .json, one array of such values or of
 * ids; anything else, one text. Spellings of special tokens are tokens in the JSON forms and text
 * in the last.
 * Errors  ENOTFOUND, EIO; EFORMAT naming file and line; EINVAL: an id that the model does not have,
 *         nothing to predict, a length below 2; ENOMEM. */
fathom_err evaluation_texts_read(struct evaluation_texts *out, const struct texts_order *order,
                                 fathom_diag *d);
void evaluation_texts_free(struct evaluation_texts *t);

#endif

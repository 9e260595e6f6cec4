/* dataset.h - the prompts of a benchmark and how many tokens each asks for
 *
 *   random             words drawn at random: as many tokens as asked for, by construction
 *   prefix_repetition  the same with a few long beginnings that prompts share
 *   sonnet             a question, a shared beginning and more lines of verse, about so long
 *   sharegpt           first question and answer of each conversation of a JSON file
 *   custom             JSON lines {"prompt": "...", "output_tokens": N}
 *
 * Words are tokens of a space and letters, which no pre-tokenizer of this family joins or splits.
 * So a text of words has the tokens that it was made of.
 */
#ifndef FATHOM_BENCH_DATASET_H
#define FATHOM_BENCH_DATASET_H

#include "bench/dataset_items.h"

/* dataset_create - out is zeroed first; released with dataset_destroy, also after an error
 * Errors  EINVAL lengths out of range; ENOTFOUND, EIO, EFORMAT of the file, EINVAL for one without
 *         a usable item; EUNSUPPORTED for a tokenizer without words; ENOMEM. */
fathom_err dataset_create(struct dataset *out, const struct dataset_options *o,
                          const struct tokenizer *t, fathom_diag *d);

#endif

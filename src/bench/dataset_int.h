/* dataset_int.h - what the makers of items share */
#ifndef FATHOM_BENCH_DATASET_INT_H
#define FATHOM_BENCH_DATASET_INT_H

#include "base/buf.h"
#include "bench/dataset.h"

/* dataset_add - append an item of this text; its tokens are counted. Owns a copy of the text. */
fathom_err dataset_add(struct dataset *s, const struct dataset_options *o,
                       const struct tokenizer *t, const struct buf *text, uint32_t n_output);

/* dataset_fill_* - append o->n items of their kind */
fathom_err dataset_fill_sonnet(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d);
fathom_err dataset_fill_sharegpt(struct dataset *s, const struct dataset_options *o,
                                 const struct tokenizer *t, fathom_diag *d);
fathom_err dataset_fill_custom(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d);

/* dataset_shuffle - put n things in random order through a list of indexes */
void dataset_shuffle(size_t *order, size_t n, uint64_t *state);

#endif

/* dataset_int.h - the makers of items that have a file of their own */
#ifndef FATHOM_BENCH_DATASET_INT_H
#define FATHOM_BENCH_DATASET_INT_H

#include "bench/dataset_items.h"

/* dataset_fill_* - append o->n items of their kind */
fathom_err dataset_fill_sonnet(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d);
fathom_err dataset_fill_sharegpt(struct dataset *s, const struct dataset_options *o,
                                 const struct tokenizer *t, fathom_diag *d);
fathom_err dataset_fill_custom(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d);

#endif

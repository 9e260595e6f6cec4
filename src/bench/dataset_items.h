/* dataset_items.h - what a dataset holds, and how its makers add to it */
#ifndef FATHOM_BENCH_DATASET_ITEMS_H
#define FATHOM_BENCH_DATASET_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "tokenizer/tokenizer.h"

enum dataset_kind {
    DATASET_RANDOM,
    DATASET_PREFIX_REPETITION,
    DATASET_SONNET,
    DATASET_SHAREGPT,
    DATASET_CUSTOM,
    DATASET_KIND_COUNT,
};

/* dataset_kind_name - as on the command line; dataset_kind_find - DATASET_KIND_COUNT for none */
const char *dataset_kind_name(enum dataset_kind k);
enum dataset_kind dataset_kind_find(const char *name);

struct dataset_options {
    enum dataset_kind kind;
    size_t n;           /* items, >= 1; a file with fewer is taken again from its start */
    const char *path;   /* of sharegpt and custom; of sonnet instead of the verse built in */
    bool in_order;      /* items of a file in the order of the file */
    uint32_t n_input;   /* tokens; random, sonnet: of the whole prompt after the prefix (random),
                           with it (sonnet); prefix_repetition: after the prefix */
    uint32_t n_output;  /* tokens; sharegpt: 0 for those of the answer; custom: of lines that do not
                           say */
    uint32_t n_prefix;  /* tokens that prompts share */
    uint32_t n_group;   /* prefix_repetition: how many prefixes */
    double range_ratio; /* random: lengths are drawn from (1 - x) to (1 + x) of these; [0, 1) */
    uint32_t n_added;   /* tokens that the server adds to a prompt (BOS): lengths count them */
    uint64_t seed;
};

struct dataset_item {
    char *prompt; /* UTF-8, terminated */
    uint32_t n_byte;
    uint32_t n_input; /* tokens by the tokenizer, with n_added */
    uint32_t n_output;
};

struct dataset {
    struct dataset_item *items;
    size_t n;
    size_t cap;
};

void dataset_destroy(struct dataset *s); /* accepts a zeroed struct */

/* dataset_count - tokens of a text, n_added not among them; ENOMEM, ELIMIT */
fathom_err dataset_count(const struct tokenizer *t, const char *text, size_t n, uint32_t *out);

/* dataset_add - append an item of this text; its tokens are counted. Owns a copy of the text. */
fathom_err dataset_add(struct dataset *s, const struct dataset_options *o,
                       const struct tokenizer *t, const struct buf *text, uint32_t n_output);

/* dataset_shuffle - put n things in random order through a list of indexes */
void dataset_shuffle(size_t *order, size_t n, uint64_t *state);

/* dataset_fill_* - append o->n items of their kind (dataset_sonnet.c, dataset_file.c) */
fathom_err dataset_fill_sonnet(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d);
fathom_err dataset_fill_sharegpt(struct dataset *s, const struct dataset_options *o,
                                 const struct tokenizer *t, fathom_diag *d);
fathom_err dataset_fill_custom(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d);

#endif

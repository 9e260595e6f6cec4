/* small_checkpoint.h - checkpoints of a small model, whole or with one tensor wrong */
#ifndef FATHOM_TESTS_SUPPORT_SMALL_CHECKPOINT_H
#define FATHOM_TESTS_SUPPORT_SMALL_CHECKPOINT_H

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "support/safetensors_write.h"

/* read_config - of tests/data/checkpoint */
void read_config(struct model_config *c, const char *name);

/* small_config - a model of odd widths: two layers (one dense), two heads, an MTP layer, three
 * blocks a side at most */
void small_config(struct model_config *c);

/* What to get wrong in one tensor, by name. */
struct change {
    const char *name;
    bool drop;
    const char *dtype;
    uint32_t n_dim; /* 0: as it should be */
    uint64_t dim[3];
};

struct maker {
    const struct model_config *config;
    const struct change *change; /* or NULL */
    enum dtype linear;           /* stored type of linear weights */
    enum dtype other;            /* and of the rest */
    bool no_mtp;
    unsigned residue; /* of the data's place in the file, modulo 8 */
    struct safetensors_writer weights;
    struct safetensors_writer scales;
};

/* fp8_maker - linear weights in FP8, the rest in BF16, nothing wrong */
struct maker fp8_maker(const struct model_config *config);

/* All weights in one file and all scales in another, as a bundle. Element i of an FP8 weight is the
 * byte i % 113, of a scale the float i. */
struct small {
    struct buf files[2];
    struct buf index;
    fathom_bundle_file list[3];
    fathom_bundle bundle;
    struct checkpoint *c;
};

/* make_tensor - one more, n_dim of n_row and n_col; its bytes are their places modulo 113, or its
 * floats their places */
void make_tensor(struct maker *m, struct safetensors_writer *w, const char *name, enum dtype type,
                 uint32_t n_dim, uint64_t n_row, uint64_t n_col);

/* small_open - make and open one; small_close */
void small_open(struct small *s, struct maker *m);
void small_close(struct small *s);

/* What weights_each_unused has told of. */
struct unused {
    size_t n_copy, n_other;
    char last[128];
};

/* count_unused - arg is a struct unused */
void count_unused(void *arg, const struct tensor *t, bool is_copy);

#endif

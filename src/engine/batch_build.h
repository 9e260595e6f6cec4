/* batch_build.h - from a plan to the flat arrays that the operators read
 *
 * A step is a shape and bytes. The shape holds counts and no pointer. The bytes are the arrays of
 * the step: they lie in one block of host memory and, at the same offsets, in a block of each
 * device's memory. The offsets depend on the limits alone. So a step can be given to any device,
 * rank or host: whoever owns a device's block finds the arrays there (batch_locate), and the
 * pointers of its steps never change, as recorded steps need.
 *
 * What every step has comes first, its page table last of that, so that one copy of a prefix of
 * the block brings it over; bias, bans, histories and masks follow and are copied only when a row
 * has some (sampler.h). A step planned ahead has no histories and no masks.
 *
 *   n_live | ids | next ids | hidden rows | pos | request | slot | first | logit_rows |
 *   sample rows | page table || bias | ban | history | mask
 *
 * Next ids and hidden rows are there with the draft layer only.
 */
#ifndef FATHOM_ENGINE_BATCH_BUILD_H
#define FATHOM_ENGINE_BATCH_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/batch.h"
#include "backend/op_sample.h"
#include "model/forward.h"
#include "sched/sched.h"

/* What goes over the tokens of a step. */
enum step_pass {
    STEP_MODEL,
    STEP_DRAFT,      /* the draft layer, over the tokens of the step of the model before it */
    STEP_DRAFT_ROWS, /* the draft layer, over tokens that go on from some rows of the pass before */
    STEP_PASS_N,
};

/* The counts of a step. They choose how it is computed. */
struct batch_shape {
    uint32_t n_token;          /* T >= 1; 0: a lane has no work (step_runner.h) */
    uint32_t n_request;        /* R >= 1; likewise */
    uint32_t n_answer_token;   /* the first so many are answer rows, 0 .. T */
    uint32_t n_answer_request; /* of the first so many requests */
    uint32_t n_logit_row;      /* rows whose logits are wanted, 0 .. T */
    uint32_t n_most;           /* of several lanes: the largest T of the step; else T */
    uint32_t max_context;      /* largest pos + 1 in the step */
    uint32_t page_stride;      /* entries of the page table for each request */
    bool some_run;             /* of several lanes: a lane's part cannot be replayed */
    uint32_t n_lane;           /* of several: all of them, and the T of each */
    uint32_t lane_rows[PARALLEL_RANKS_MAX];
    struct batch_share share; /* n_row 0: nothing is shared */
};

/* Bytes of the block that a step uses. */
struct block_range {
    size_t offset;
    size_t n_bytes;
};

/* What some rows have and others have not. */
enum sample_extra { SAMPLE_BIAS, SAMPLE_BAN, SAMPLE_HISTORY, SAMPLE_EXTRA_N };

/* The rows of a step: counts and offsets, no pointer, as struct batch_shape. */
struct sample_shape {
    uint32_t n_row;                            /* may be 0 */
    uint32_t n_top;                            /* the largest of the rows' */
    struct block_range extras[SAMPLE_EXTRA_N]; /* to be copied besides the prefix; 0 bytes: no row
                                                   has it */
    struct block_range masks;                  /* to be filled and copied before the draws */
};

struct batch_layout {
    uint32_t max_token;
    uint32_t max_request;
    uint32_t max_logit_row;
    uint32_t max_context;
    uint32_t max_page_stride;
    uint32_t n_mask_word; /* of a row's mask: a bit for each id */
    /* offsets in bytes; [n] is the array's room */
    size_t n_live;      /* i32 */
    size_t ids;         /* i32 [max_token] */
    size_t next_ids;    /* i32 [max_token], or nothing */
    size_t hidden_rows; /* i32 [max_token], or nothing */
    size_t pos;         /* i32 [max_token] */
    size_t request;     /* i32 [max_token] */
    size_t slot;        /* i32 [max_token] */
    size_t first;       /* i32 [max_request + 1] */
    size_t logit_rows;  /* i32 [max_logit_row] */
    size_t rows;        /* struct sample_row [max_logit_row] */
    size_t page_table;  /* i32 [max_request + 1][max_page_stride], the last for padding */
    size_t bias;        /* struct sample_bias [max_request][LIMIT_LOGIT_BIAS] */
    size_t ban;         /* i32 [max_request][BATCH_BAN_MAX] */
    size_t history;     /* i32 [max_request][max_context] */
    size_t mask;        /* u32 [max_logit_row][n_mask_word] */
    size_t n_bytes;     /* of the block */
};

enum { BATCH_BAN_MAX = 128 }; /* bans of one row: stop ids and EOS ids */

/* batch_layout_init - offsets and total for steps within the limits, of a model of n_vocab ids */
void batch_layout_init(struct batch_layout *l, const struct model_limits *limits, uint32_t n_vocab);

/* batch_page_stride - entries of the page table for each request of a step whose longest one has
 * max_context tokens: the smallest that holds it of 32, 128, 512, ... and max_page_stride */
uint32_t batch_page_stride(const struct batch_layout *l, uint32_t max_context);

/* batch_locate - the arrays of a step in a block, as the operators take them
 *
 *   pass  says which of the draft layer's arrays the step has; the others are NULL
 *   out   filled; `drawn` is NULL
 * Needs  a layout with room for the draft layer, but for STEP_MODEL. */
void batch_locate(const struct batch_layout *l, const struct batch_shape *shape,
                  enum step_pass pass, void *block, struct batch *out);

/* sample_locate - the rows in a block, as the sample operator takes them
 *
 *   out  filled, but for logits and what the operator writes */
void sample_locate(const struct batch_layout *l, const struct sample_shape *shape, void *block,
                   struct sample_args *out);

/* batch_build - write the arrays of a plan; in one made ahead, ids are draws of the step before
 *
 *   host  the block, written
 *   out   filled
 * Needs    plan->n_entry >= 1, within the layout's limits.
 * Returns  bytes of the prefix to copy, sample rows included. */
size_t batch_build(const struct batch_layout *l, const struct plan *plan, void *host,
                   struct batch_shape *out);

#endif

/* batch_build.h - from a plan to the flat arrays that the operators read
 *
 * A step is a shape and bytes. The shape holds counts and no pointer. The bytes are the arrays of
 * the step: they lie in one block of host memory and, at the same offsets, in a block of each
 * device's memory. The offsets depend only on the limits. So a step can be given to any device,
 * rank or host: the owner of a device's block finds the arrays there (batch_locate). The pointers
 * to them never change, as recorded steps need.
 *
 * The arrays that every step has come first, and the page table is the last of them: so one copy of
 * a prefix of the block brings them all to the device. Biases, bans, histories and masks follow,
 * and are copied only when a row has some (sampler.h). A step planned ahead has no histories and no
 * masks.
 *
 *   n_live | ids | next ids | hidden rows | pos | request | slot | first | logit_rows |
 *   sample rows | page table || bias | ban | history | mask
 *
 * Next ids and hidden rows are there only with the draft layer.
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

/* Which layers a pass runs, and over which tokens. */
enum step_pass {
    STEP_MODEL,
    STEP_DRAFT,      /* the draft layer, over the tokens of the model's step before it */
    STEP_DRAFT_ROWS, /* the draft layer, over the last draft of each request that gets one more */
    STEP_PASS_N,
};

/* The counts of a step. They choose how it is computed. */
struct batch_shape {
    uint32_t n_token;          /* T >= 1; 0: a lane without work (step_runner.h) */
    uint32_t n_request;        /* R >= 1; 0 likewise */
    uint32_t n_answer_token;   /* the first n_answer_token rows are answer rows: 0 .. T */
    uint32_t n_answer_request; /* they are of the first n_answer_request requests */
    uint32_t n_logit_row;      /* rows whose logits are wanted, 0 .. T */
    uint32_t n_most;           /* with several lanes: the largest T of a lane; else T */
    uint32_t max_context;      /* largest pos + 1 in the step */
    uint32_t page_stride;      /* entries of the page table for each request */
    bool some_run;             /* with several lanes: some lane's part cannot be replayed */
    uint32_t n_lane;           /* with several lanes: how many, those of other hosts too */
    uint32_t lane_rows[PARALLEL_RANKS_MAX]; /* [n_lane] the T of each */
    struct batch_share share;               /* n_row 0: nothing is shared */
};

/* Bytes of the block that a step uses. */
struct block_range {
    size_t offset;
    size_t n_bytes;
};

/* Arrays that only some sample rows have. */
enum sample_extra { SAMPLE_BIAS, SAMPLE_BAN, SAMPLE_HISTORY, SAMPLE_EXTRA_N };

/* The sample rows of a step: counts and offsets, no pointer, as in struct batch_shape. */
struct sample_shape {
    uint32_t n_row;                            /* may be 0 */
    uint32_t n_top;                            /* the largest n_top of the rows */
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
    /* offsets in bytes; in brackets the capacity of the array */
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

/* batch_page_stride - how many entries of the page table each request has in a step whose longest
 * request has max_context tokens: the smallest of 32, 128, 512, ... and max_page_stride that
 * suffices */
uint32_t batch_page_stride(const struct batch_layout *l, uint32_t max_context);

/* batch_locate - the arrays of a step in a block, as the operators take them
 *
 *   pass  decides which of the draft layer's arrays are there; the others are NULL
 *   out   filled; `drawn` is NULL
 * Needs  a layout with room for the draft layer, unless pass is STEP_MODEL. */
void batch_locate(const struct batch_layout *l, const struct batch_shape *shape,
                  enum step_pass pass, void *block, struct batch *out);

/* sample_locate - the rows in a block, as the sample operator takes them
 *
 *   out  filled, but for logits and what the operator writes */
void sample_locate(const struct batch_layout *l, const struct sample_shape *shape, void *block,
                   struct sample_args *out);

/* batch_build - write the arrays of a plan. In a plan made ahead the ids refer to draws of the step
 * before (batch.ids).
 *
 *   host  the block, written
 *   out   filled
 * Needs    plan->n_entry >= 1, within the layout's limits.
 * Returns  bytes of the prefix to copy, sample rows included. */
size_t batch_build(const struct batch_layout *l, const struct plan *plan, void *host,
                   struct batch_shape *out);

#endif

/* batch_build.h - from a plan to the flat arrays that the operators read
 *
 * All arrays of a step lie in one block of host memory and, at the same offsets, in one block of
 * device memory. The offsets depend on the limits alone, so the pointers of a step never change.
 * What every step has comes first, its page table last of that, so that one copy of a prefix of
 * the block brings it over; bias, bans, histories and masks follow and are copied only when a row
 * has some (sampler.h). A step planned ahead has no histories and no masks.
 *
 *   ids | next ids | hidden rows | pos | request | slot | first | logit_rows | sample rows |
 *   page table || bias | ban | history | mask
 *
 * Next ids and hidden rows are there with the draft layer only.
 */
#ifndef FATHOM_ENGINE_BATCH_BUILD_H
#define FATHOM_ENGINE_BATCH_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "backend/batch.h"
#include "model/forward.h"
#include "sched/sched.h"

struct batch_layout {
    uint32_t max_token;
    uint32_t max_request;
    uint32_t max_logit_row;
    uint32_t max_context;
    uint32_t max_page_stride;
    uint32_t n_mask_word; /* of a row's mask: a bit for each id */
    uint32_t n_vocab_row; /* of a slice, which has so many rows of the vocabulary: ids are taken
                             modulo it. 0: ids are taken as they are */
    /* offsets in bytes; [n] is the array's room */
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

/* batch_id - the row of the embedding that stands for a token id */
static inline int32_t batch_id(const struct batch_layout *l, int32_t id)
{
    return l->n_vocab_row ? (int32_t)((uint32_t)id % l->n_vocab_row) : id;
}

/* batch_layout_init - offsets and total for steps within the limits, of a model of n_vocab ids */
void batch_layout_init(struct batch_layout *l, const struct model_limits *limits, uint32_t n_vocab);

/* batch_page_stride - entries of the page table for each request of a step whose longest one has
 * max_context tokens: the smallest that holds it of 32, 128, 512, ... and max_page_stride */
uint32_t batch_page_stride(const struct batch_layout *l, uint32_t max_context);

/* batch_locate - pointers of the arrays in a block; counts are 0, the draft layer's arrays NULL */
void batch_locate(const struct batch_layout *l, void *device, struct batch *out);

/* batch_build - write the arrays of a plan; in one made ahead, ids are draws of the step before
 *
 *   host    the block, written
 *   device  the block that *out points into: the same one, or its twin
 *   out     filled
 * Needs    plan->n_entry >= 1, within the layout's limits.
 * Returns  bytes of the prefix to copy, sample rows included. */
size_t batch_build(const struct batch_layout *l, const struct plan *plan, void *host, void *device,
                   struct batch *out);

#endif

/* batch.h - what one step computes: arrays in device memory, refreshed by one copy a step
 *
 * T tokens of R requests. The tokens of a request are neighbours, in ascending position. Everything
 * that varies from step to step lies behind the pointers, whose values never change, so that a
 * recorded step can be replayed; the counts choose the recording.
 *
 * Rows of answers come first, rows of prompts after them; within each kind requests stand in any
 * order. A token below its request's n_prompt is a prompt row. All later ones, drafts too, are
 * answer rows. That is decided by the token's place in its request alone: however the request is
 * cut into steps, and also when it is computed once more after a preemption. A request has rows of
 * one kind in a step. A backend may compute the two kinds in forms of different bits (op_attn.h).
 * For a backend that does not, the engine counts all rows as answer rows.
 */
#ifndef FATHOM_BACKEND_BATCH_H
#define FATHOM_BACKEND_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/parallel.h"
#include "kv/layout.h"

/* Cache rows of one request that lanes bring to each other: each has pages for the request, and the
 * rows of a run of its positions. */
struct share_segment {
    uint32_t lane; /* whose ranks have them */
    uint32_t n_row;
};

enum { SHARE_SEGMENTS_MAX = PARALLEL_RANKS_MAX + 1 };
struct batch_share {
    uint32_t request; /* of this rank's batch: a row of its page_table */
    uint32_t first;   /* positions [first, first + n_row), equal on all lanes as all below */
    uint32_t n_row;
    uint32_t n_segment;
    struct share_segment segments[SHARE_SEGMENTS_MAX]; /* one behind the other */
};

struct batch {
    uint32_t n_token;          /* T >= 1 */
    uint32_t n_request;        /* R >= 1 */
    uint32_t n_answer_token;   /* tokens [0, n_answer_token) are answer rows, 0 .. T */
    uint32_t n_answer_request; /* of requests [0, n_answer_request), 0 .. R */
    uint32_t n_logit_row;      /* rows whose logits are wanted, 0 .. T */
    uint32_t n_most; /* where ranks have rows of their own: rows that any may have in the step,
                             >= T, equal on all; else it has no meaning */
    const uint32_t *lane_rows; /* host: T of each rank, or lane, with rows of its own; NULL: none
                                  has, or they are not known */
    const struct batch_share *share; /* host: what the step shares, of each layer; NULL: nothing */
    uint32_t max_context; /* largest pos + 1 in the step, host's knowledge for choosing kernels */
    uint32_t page_stride; /* entries of page_table per request */
    const int32_t *ids; /* i32 [T]      device; token ids; ~k: what row k drew in the step before */
    const int32_t *drawn;    /* i32          device; that step's draws; NULL: no id is negative */
    const int32_t *next_ids; /* i32 [T]      device; the token after each (MTP only, else NULL) */
    const int32_t *hidden_rows; /* i32 [T]     device; MTP only: the row of hidden states that each
                                   token goes on from; NULL: its own */
    const int32_t *pos;         /* i32 [T]      device; position in the request, 0 .. */
    const int32_t *request;     /* i32 [T]      device; row of page_table */
    const int32_t *slot;        /* i32 [T]      device; page * 64 + pos % 64: where the rows go */
    const int32_t *page_table;  /* i32 [R][page_stride] device; page of positions 64*j .. 64*j+63 */
    const int32_t *first;       /* i32 [R + 1]  device; first token of each request, T at the end */
    const int32_t *logit_rows;  /* i32 [n_logit_row] device; token indexes, ascending */
    const int32_t *n_live;      /* i32          device; rows from here on are padding, whose results
                                   nobody reads; NULL: none is */
};

/* The pages in device memory; a page record is page_bytes at base + page * page_bytes. */
struct kv_cache {
    void *base; /* device */
    uint32_t n_page;
    struct kv_layout layout;
};

#endif

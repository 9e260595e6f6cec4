/* step_drawn.h - what a step has drawn as bytes between hosts: its arrays one behind the other */
#ifndef FATHOM_ENGINE_STEP_DRAWN_H
#define FATHOM_ENGINE_STEP_DRAWN_H

#include "backend/op_sample.h"
#include "comm/page_link.h"
#include "engine/step_runner.h"

enum { DRAWN_PARTS_MAX = 5 };

/* step_drawn_bytes - of n_row rows, with alternatives or without */
static inline size_t step_drawn_bytes(uint32_t n_row, bool has_top)
{
    const size_t one = sizeof(int32_t) * (size_t)n_row;
    return 3 * one + (has_top ? 2 * one * SAMPLE_TOP_MAX : 0);
}

/* step_drawn_parts - the arrays of a result; returns how many */
static inline size_t step_drawn_parts(struct link_part out[DRAWN_PARTS_MAX],
                                      const struct step_result *r, uint32_t n_row, bool has_top)
{
    const size_t one = sizeof(int32_t) * (size_t)n_row, top = one * SAMPLE_TOP_MAX;
    if (n_row == 0) return 0;
    out[0] = (struct link_part){r->ids, one};
    out[1] = (struct link_part){r->logprobs, one};
    out[2] = (struct link_part){r->ranks, one};
    out[3] = (struct link_part){r->top_ids, top};
    out[4] = (struct link_part){r->top_logprobs, top};
    return has_top ? 5 : 3;
}

/* step_drawn_read - the result whose arrays lie in `bytes`, which are aligned */
static inline struct step_result step_drawn_read(const void *bytes, uint32_t n_row, bool has_top,
                                                 const struct expert_counts *experts)
{
    const size_t one = sizeof(int32_t) * (size_t)n_row, top = one * SAMPLE_TOP_MAX;
    const char *at = (const char *)bytes;
    return (struct step_result){
        .ids = (const int32_t *)(const void *)at,
        .logprobs = (const float *)(const void *)(at + one),
        .ranks = (const uint32_t *)(const void *)(at + 2 * one),
        .top_ids = has_top ? (const int32_t *)(const void *)(at + 3 * one) : NULL,
        .top_logprobs = has_top ? (const float *)(const void *)(at + 3 * one + top) : NULL,
        .experts = *experts};
}

#endif

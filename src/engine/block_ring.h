/* block_ring.h - the blocks of steps under way (step_runner.h), taken in a ring
 *
 *   i        block of the step that is written, or was drawn last; 0 while none is under way
 *   n_drawn  steps that have been drawn and not waited for: the blocks up to i, oldest first
 */
#ifndef FATHOM_ENGINE_BLOCK_RING_H
#define FATHOM_ENGINE_BLOCK_RING_H

#include <stdint.h>

#include "base/assert.h"

struct block_ring {
    uint32_t n_block;
    uint32_t i;
    uint32_t n_drawn;
};

/* block_ring_draw - the step of block i is under way
 * block_ring_next - the block after i is written; Needs a step under way and a block that none has
 * block_ring_oldest - the block of the step to wait for
 * block_ring_end - that step is over */
static inline void block_ring_draw(struct block_ring *r)
{
    ASSERT(r->n_drawn < r->n_block);
    r->n_drawn++;
}

static inline void block_ring_next(struct block_ring *r)
{
    ASSERT(r->n_drawn > 0 && r->n_drawn < r->n_block);
    r->i = (r->i + 1) % r->n_block;
}

static inline uint32_t block_ring_oldest(const struct block_ring *r)
{
    ASSERT(r->n_drawn > 0 && r->n_drawn <= r->n_block && r->i < r->n_block);
    return (r->i + r->n_block + 1 - r->n_drawn) % r->n_block;
}

static inline void block_ring_end(struct block_ring *r)
{
    ASSERT(r->n_drawn > 0);
    if (--r->n_drawn == 0) r->i = 0;
}

#endif

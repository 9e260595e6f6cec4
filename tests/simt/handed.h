/* handed.h - room for the sums that blocks of product_few hand on to each other, of tests that look
 * whether any did */
#ifndef FATHOM_TESTS_SIMT_HANDED_H
#define FATHOM_TESTS_SIMT_HANDED_H

#include <vector>

#include "backend/cuda/cuda_int.cuh"

static std::vector<float> handed_sums_room;
static std::vector<uint32_t> handed_flags_room;
static uint32_t handed_launches; /* that handed something on */

/* handed_begin - the room, with nothing in it */
static inline void handed_begin(struct handed_sums &to)
{
    handed_sums_room.assign(HANDED_SUM_BYTES / sizeof(float), -1234.5f);
    handed_flags_room.resize(HANDED_BLOCKS_MAX * HANDED_FLAGS);
    to = {handed_sums_room.data(), handed_flags_room.data()};
}

/* handed_end - after a launch: everything was taken */
static inline void handed_end(void)
{
    for (uint32_t flag : handed_flags_room) assert_int_equal(flag, 0);
    for (float sum : handed_sums_room) {
        if (sum == -1234.5f) continue;
        handed_launches++;
        return;
    }
}

#endif

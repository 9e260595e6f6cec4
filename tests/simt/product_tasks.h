/* product_tasks.h - of tests of the experts' products: tasks, and room for the sums that blocks
 * hand on to each other, with a look whether any did */
#ifndef FATHOM_TESTS_SIMT_PRODUCT_TASKS_H
#define FATHOM_TESTS_SIMT_PRODUCT_TASKS_H

#include <vector>

#include "backend/cuda/cuda_int.cuh"
#include "simt/simt_fault.h"

/* in_turn - rows belong to experts 0 to 3 in turn, of which a problem may have fewer */
static inline int32_t in_turn(uint32_t row)
{
    return (int32_t)(row % 4);
}

/* map_rows - tasks of at most `tile` rows, of p.a.n_token rows: row r belongs to expert
 * expert_of(r), where it is one of n_expert
 *
 * Returns  tasks at most: more than there are, as the host knows it */
template <class PROBLEM, class EXPERT_OF>
static inline uint32_t map_rows(PROBLEM &p, int32_t n_expert, uint32_t tile, EXPERT_OF expert_of)
{
    p.tasks.clear();
    p.rows.clear();
    for (int32_t e = 0; e < n_expert; e++) {
        const int32_t first = (int32_t)p.rows.size();
        for (uint32_t r = 0; r < p.a.n_token; r++)
            if (expert_of(r) == e) p.rows.push_back((int32_t)r);
        int32_t size = (int32_t)tile, n = (int32_t)p.rows.size() - first;
        if (tile == PRODUCT_WIDE_TILE && n > size) size = 128;
        for (int32_t at = first; at < (int32_t)p.rows.size(); at += size)
            p.tasks.push_back({e, at, min(size, (int32_t)p.rows.size() - at)});
    }
    p.n_task = (int32_t)p.tasks.size();
    p.tasks.resize(p.tasks.size() + 2);
    p.a.tasks = p.tasks.data();
    p.a.n_task = &p.n_task;
    p.a.rows = p.rows.data();
    return (uint32_t)p.tasks.size();
}

/* last_cluster - blocks of a cluster of the last launch
 * last_shared - dynamic shared memory of each of its blocks */
static inline uint32_t last_cluster(void)
{
    struct simt_usage u;
    simt_get_usage(&u);
    return (uint32_t)u.cluster_size;
}

static inline uint32_t last_shared(void)
{
    struct simt_usage u;
    simt_get_usage(&u);
    return (uint32_t)u.shared_bytes;
}

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

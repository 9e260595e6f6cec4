/* rank_stats.h - what fathom_stats tells of ranks and of lanes; part of fathom.h */
#ifndef FATHOM_RANK_STATS_H
#define FATHOM_RANK_STATS_H

#include <stdint.h>

enum { FATHOM_RANKS_MAX = 64 };

/* Of a rank: meetings of all ranks to which it was not the last one to come */
typedef struct fathom_rank_waits {
    uint64_t n;
    uint64_t us; /* that it waited there for the others */
} fathom_rank_waits;

/* Of a lane (fathom_info.n_lane), as the members of fathom_stats */
typedef struct fathom_lane_stats {
    uint32_t n_running;
    uint32_t n_waiting;
    uint32_t n_page_free;
    uint32_t n_page_cached;
    uint64_t n_backlog_token;
} fathom_lane_stats;

#endif

/* event_stats.h - what fathom_stats tells of events of the prefix cache; part of fathom.h */
#ifndef FATHOM_EVENT_STATS_H
#define FATHOM_EVENT_STATS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of all lanes; all 0 without kv_events of fathom_options. */
typedef struct fathom_event_stats {
    uint64_t n_stored, n_removed; /* pages told of */
    uint64_t n_cleared; /* times that all pages of a lane were called gone: at its first event, when
                            the cache was reset, and after an */
    uint64_t n_overflow; /* event that had no room; then all that is there is told anew */
    uint64_t n_batch;    /* that these were sent in */
    uint64_t n_replay;   /* whole answers to subscribers that had missed some */
} fathom_event_stats;

#ifdef __cplusplus
}
#endif

#endif

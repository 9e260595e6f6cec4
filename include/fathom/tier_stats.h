/* tier_stats.h - what fathom_stats tells of pages outside of the cache; part of fathom.h */
#ifndef FATHOM_TIER_STATS_H
#define FATHOM_TIER_STATS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a record was not taken, and its page computed. */
enum {
    FATHOM_TIER_BAD_IO,
    FATHOM_TIER_BAD_TRUNCATED,
    FATHOM_TIER_BAD_CHECKSUM,
    FATHOM_TIER_BAD_VERSION,
    FATHOM_TIER_BAD_MODEL,
    FATHOM_TIER_BAD_NUMERICS,
    FATHOM_TIER_BAD_LAYOUT,
    FATHOM_TIER_BAD_TOKENS,
    FATHOM_TIER_BAD_COUNT
};

/* All 0 without offload_ram_bytes and offload_dir of fathom_options. */
typedef struct fathom_tier_stats {
    uint32_t n_ram_page, n_ram_used; /* that memory has room for, and those in it */
    uint32_t n_disk_page, n_disk_used;
    uint32_t n_uncopied;  /* in the cache without a holder, or were, and not in memory yet */
    uint32_t n_unwritten; /* in memory, and not on disk yet */
    uint64_t page_bytes;
    uint64_t n_kept;      /* copied from the device */
    uint64_t n_written;   /* to disk */
    uint64_t n_read;      /* from disk */
    uint64_t n_ram_hit;   /* copied to the device for a request, that were in memory */
    uint64_t n_disk_hit;  /* likewise, that had to be read */
    uint64_t n_pulled;    /* taken from other servers */
    uint64_t n_pull_lost; /* asked for there, and not taken */
    uint64_t n_sent;      /* given to other servers */
    uint64_t n_released;  /* lent to others, who want them no more */
    uint64_t n_dropped;   /* not kept, or given up unwritten: the disk is too slow */
    uint64_t n_write_failed;
    uint64_t n_bad[FATHOM_TIER_BAD_COUNT]; /* records not taken */
    uint64_t n_fetch;                      /* requests that had pages copied, */
    uint64_t fetch_us;                     /* and how long they waited for them */
    bool writes_off;                       /* the disk has failed too often: it is only read */
} fathom_tier_stats;

#ifdef __cplusplus
}
#endif
#endif

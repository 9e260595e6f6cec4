/* sim_disk.h - a disk tier in memory that is late, loses, damages and fails as it is told
 *
 * Records are kept with their real headers and judged by them, so what is damaged is found out as
 * on a real disk. A platter outlives the disk that wrote it, as a directory outlives a process.
 * Jobs that were not done when the disk is destroyed never happen, and one may be torn.
 */
#ifndef FATHOM_TESTS_SUPPORT_SIM_DISK_H
#define FATHOM_TESTS_SUPPORT_SIM_DISK_H

#include "kv/tier_io.h"
#include "kv/tiers.h"

struct platter;

/* platter_create - places of pages of page_bytes, all empty */
struct platter *platter_create(uint32_t n_place, uint64_t page_bytes);
void platter_destroy(struct platter *p);

/* platter_find - what a process that starts now finds, the record written last at the end; the
 * array belongs to the platter */
const struct tier_found *platter_find(struct platter *p, const struct hash128 *owner, uint32_t *n);

/* platter_page - the page of a place, to damage it */
unsigned char *platter_page(struct platter *p, uint32_t place);

struct sim_disk_options {
    struct hash128 owner;
    uint64_t seed;
    uint32_t max_delay;      /* polls before a job is done, at most */
    uint32_t fail_per_1024;  /* jobs that fail */
    uint32_t flip_per_1024;  /* writes of which a bit is flipped */
    bool stuck;              /* no read or write is ever done */
    bool peer_has;           /* other servers give every record: its ids are the page */
    uint64_t peer_busy_us;   /* else they say that they are busy for so long */
    uint32_t n_released;     /* records that other servers were told of (tier_io_ops.release) */
    struct hash128 released; /* the last one */
};

/* sim_disk_create - also takes and checks sums; the platter outlives it */
struct tier_io *sim_disk_create(struct platter *p, const struct sim_disk_options *o);

/* sim_disk_options_of - to be changed while it runs */
struct sim_disk_options *sim_disk_options_of(struct tier_io *io);

#endif

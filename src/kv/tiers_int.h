/* tiers_int.h - the state of the tiers, for tiers_move.c, which changes it, and tiers_check.c */
#ifndef FATHOM_KV_TIERS_INT_H
#define FATHOM_KV_TIERS_INT_H

#include "kv/tier_pace.h"
#include "kv/tier_table.h"
#include "kv/tiers.h"

struct tiers {
    struct tiers_config c;
    uint64_t place_bytes; /* of a page in memory */
    struct tier_table table;
    struct tier_name *names; /* [n_ram] the record in a place of memory, or on its way there */
    uint64_t *sums;          /* [n_ram] of the pages that are READY or CHECKING */
    uint64_t *checked_us;    /* [n_ram] when the page of a READY place last had its sum */
    uint32_t *free_ram;      /* [n_ram] stacks of places */
    uint32_t *free_disk;     /* [n_disk] */
    uint32_t n_free_ram, n_free_disk;
    uint32_t n_touched; /* places of memory that the system has provided */
    uint32_t n_reading, n_writing, n_checking, n_summing; /* jobs under way */
    uint32_t n_pulling;                                   /* likewise */
    struct tier_lacking lacking;
    uint32_t n_fault;            /* writes that have failed in a row */
    uint64_t again_us;           /* while writes are off: when the next ones are tried */
    uint32_t step_pages, n_left; /* copies that a step may make, and those left of this step's */
    uint64_t order;
    uint64_t now_us;
    double prefill_page_us;
    struct tier_pace paces[2]; /* [0] fetches from memory alone, [1] those with pages from disk */
    fathom_err fault;
    struct tiers_stats stats;
};

#endif

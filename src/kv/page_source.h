/* page_source.h - where page records are read from: a directory, or other servers
 *
 * A source reads one record at a time for each thread that asks. What it gives has been judged: it
 * is what its name says, and whole.
 */
#ifndef FATHOM_KV_PAGE_SOURCE_H
#define FATHOM_KV_PAGE_SOURCE_H

#include <stdint.h>

#include "fathom/err.h"
#include "kv/tier_record.h"

struct page_source;

struct page_source_ops {
    /* Read the record of a name. From several threads at a time, each with its own `worker`, if the
     * source is given several.
     *
     *   place  where it lies, as the source counts places
     *   page   [direct_round(page_bytes)], aligned to DIRECT_ALIGN
     *   sum    of the page, when it is GOOD. When it is NOT_YET: how many us the server needs for
     *          the prompts that it has now, as far as it knows
     *   d      names a fault
     * Returns  GOOD, or why the record is not taken. */
    enum tier_verdict (*read)(struct page_source *s, unsigned worker, uint32_t place,
                              const struct tier_name *name, void *page, uint64_t *sum,
                              fathom_diag *d);
    /* The server of a place need not keep a record for this one any more: it is told in time, or
     * not at all when that cannot be. From any thread, without waiting. NULL: nobody keeps any. */
    void (*release)(struct page_source *s, uint32_t place, const struct hash128 *key);
    /* Reads under way and later ones fail soon; from any thread. NULL: they end by themselves. */
    void (*stop)(struct page_source *s);
};

struct page_source {
    const struct page_source_ops *ops;
};

#endif

/* page_source.h - where page records are read from: a directory, or other servers
 *
 * Each thread that asks reads one record at a time. A source judges what it reads: a record that is
 * GOOD is whole, and is the record of the name that was asked for.
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
     *   place  where it lies: a place on disk, or the number of a server
     *   page   [direct_round(page_bytes)], aligned to DIRECT_ALIGN
     *   sum    written. GOOD: the sum of the page. NOT_YET: how long the server expects to need for
     *          the prompts that it has now, in microseconds
     *   d      what failed
     * Returns  GOOD, or why the record is not taken. */
    enum tier_verdict (*read)(struct page_source *s, unsigned worker, uint32_t place,
                              const struct tier_name *name, void *page, uint64_t *sum,
                              fathom_diag *d);
    /* Tell the server of a place, if possible, that it need not keep a record for this one any
     * more. From any thread; does not wait. NULL: the source keeps nothing for others. */
    void (*release)(struct page_source *s, uint32_t place, const struct hash128 *key);
    /* Make reads under way and later ones fail soon; any thread. NULL: they end by themselves. */
    void (*stop)(struct page_source *s);
};

struct page_source {
    const struct page_source_ops *ops;
};

#endif

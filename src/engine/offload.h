/* offload.h - the engine's tiers: host memory and a directory for pages that leave the cache
 *
 * It puts together what kv/tiers.h needs: access to the pages of the step runner's cache, host
 * memory that the device reads and writes fast, the directory, and the threads of tier_io.h.
 */
#ifndef FATHOM_ENGINE_OFFLOAD_H
#define FATHOM_ENGINE_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/page_exchange.h"
#include "engine/step_runner.h"
#include "fathom/fathom.h"
#include "kv/identity.h"
#include "kv/prefix.h"
#include "kv/tier_io.h"
#include "kv/tiers.h"

struct offload_config {
    uint32_t n_ram_page; /* 0: there are no tiers */
    const char *dir;     /* NULL: memory alone; needed during offload_create only */
    uint64_t dir_bytes;
    uint64_t page_bytes;
    struct identity identity;        /* whose records they are */
    const fathom_transfer *transfer; /* NULL: none; needed during offload_create only */
    bool with_next;                  /* records depend on the token after the page */
};

/* OFFLOAD_STEP_BYTES bounds what one step copies between device and memory, evicted pages not
 * counted: a few milliseconds. Pages that need not be copied yet are copied ahead: per step as many
 * as its tokens fill, and OFFLOAD_AHEAD_PAGES more. So copying keeps up with computing, and a step
 * of few tokens waits for few copies. */
enum { OFFLOAD_STEP_BYTES = 128 << 20, OFFLOAD_AHEAD_PAGES = 4 };

struct offload;

/* offload_create - over the cache of a runner, which outlives it
 *
 *   owner  told when a thread of the tiers has done a job, and asked at the end whether there is
 *          time to write
 * If the directory cannot be used, that is logged, and the tiers have memory alone.
 * Errors  those of tier_disk_open but EIO; ENOMEM, EIO. EUNSUPPORTED for a runner without copies of
 *         pages. */
fathom_err offload_create(struct offload **out, const struct offload_config *c,
                          struct step_runner *runner, const struct tier_io_owner *owner,
                          fathom_diag *d);
void offload_destroy(struct offload *o); /* accepts NULL */

/* offload_tiers - for the prefix cache; NULL for NULL */
struct tiers *offload_tiers(const struct offload *o);

/* offload_exchange - with other servers; NULL: none, and for NULL */
struct page_exchange *offload_exchange(const struct offload *o);

/* offload_begin_step - before a plan is made, or when there is nothing to plan. For NULL this and
 * the next ones do nothing. */
void offload_begin_step(struct offload *o, uint64_t now_us, double prefill_token_us);

/* offload_keep - copy pages ahead of need: at most OFFLOAD_AHEAD_PAGES, plus as many as n_token
 * tokens fill. Called after a plan of n_token tokens, or with 0 when there is nothing to plan.
 *
 * Returns  whether more pages are due and can be copied. */
bool offload_keep(struct offload *o, struct prefix_cache *prefix, uint32_t n_token);

/* offload_touch - when there is nothing else to do: prepare the memory of one page for a later copy
 *
 * Returns  false: all memory is prepared. */
bool offload_touch(struct offload *o);

/* offload_is_quiet - whether no page is being copied or due to be copied; true for NULL */
bool offload_is_quiet(const struct offload *o, const struct prefix_cache *prefix);

/* offload_renew - the runner began anew after a host was lost: copies that had not been done by
 * then are dropped */
void offload_renew(struct offload *o);

/* offload_fault - the first error of a copy on the device; it stays until offload_renew */
fathom_err offload_fault(const struct offload *o);

/* offload_end_step - tell the tiers that the device has done everything enqueued so far.
 * offload_sync - wait until that is so, then do the same. An error is the device's, and final. */
void offload_end_step(struct offload *o);
fathom_err offload_sync(struct offload *o);

/* offload_flush - at the end, write pages to disk that are worth finding after a restart, until
 * end_us or until the owner is in a hurry. The engine allows OFFLOAD_FLUSH_US for all caches
 * together. */
enum { OFFLOAD_FLUSH_US = 5000000 };
void offload_flush(struct offload *o, struct prefix_cache *prefix, uint64_t end_us);

/* offload_fill_stats - all but n_uncopied, which the caches know; zeros for NULL */
void offload_fill_stats(const struct offload *o, fathom_tier_stats *out);

#endif

/* offload.h - the engine's tiers: memory and a directory for pages that leave the cache
 *
 * Puts together what kv/tiers.h needs: page records of the step runner's cache, host memory that
 * its device reads and writes fast, the directory, and the threads that work for them.
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

/* What is copied between device and memory in one step at most, beside pages that are evicted: a
 * few milliseconds. Of pages ahead of need no more than the step's own tokens fill, and these few:
 * so they keep up, and a step of a few tokens has no more than a few to wait for. */
enum { OFFLOAD_STEP_BYTES = 128 << 20, OFFLOAD_AHEAD_PAGES = 4 };

struct offload;

/* offload_create - over the cache of a runner, which outlives it
 *
 *   owner  told when a thread of the tiers has done something, and asked at the end whether there
 *          is time to write
 * A disk that fails is warned of, and memory serves alone.
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

/* offload_keep - copy pages ahead of need: OFFLOAD_AHEAD_PAGES, and what n_token tokens fill, at
 * most. After a plan of so many tokens, or with 0 when there is nothing to plan.
 *
 * Returns  whether more are to be copied, and can be. */
bool offload_keep(struct offload *o, struct prefix_cache *prefix, uint32_t n_token);

/* offload_touch - with nothing else to do: prepare memory for one page that will be copied
 *
 * Returns  false when all of it is. */
bool offload_touch(struct offload *o);

/* offload_is_quiet - no page is copied or is due to be; true for NULL */
bool offload_is_quiet(const struct offload *o, const struct prefix_cache *prefix);

/* offload_renew - the runner began anew after a host was lost: what it had not copied by then is
 * not kept */
void offload_renew(struct offload *o);

/* offload_fault - the first error of a copy, which is the device's, and final or until it is
 * renewed */
fathom_err offload_fault(const struct offload *o);

/* offload_end_step - the device has done all it was given. offload_sync - the same, after waiting
 * for it. An error is the device's, and final. */
void offload_end_step(struct offload *o);
fathom_err offload_sync(struct offload *o);

/* offload_flush - write what is worth finding after a restart, until end_us at most, and no longer
 * than until the owner is in a hurry. For all caches together that is OFFLOAD_FLUSH_US from now. */
enum { OFFLOAD_FLUSH_US = 5000000 };
void offload_flush(struct offload *o, struct prefix_cache *prefix, uint64_t end_us);

/* offload_fill_stats - all but n_uncopied, which the caches know; zeros for NULL */
void offload_fill_stats(const struct offload *o, fathom_tier_stats *out);

#endif

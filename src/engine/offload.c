/* offload.c - memory and a directory behind the prefix cache of a step runner */
#include "engine/offload.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"

struct offload {
    struct step_runner *runner;
    uint64_t page_bytes;
    void *ram;
    struct tiers *tiers;
    struct tier_io_owner owner;
    struct page_exchange *exchange;
    uint64_t n_at_start[TIER_VERDICT_COUNT]; /* records that were not taken then */
};

/* ---- life ---- */

static fathom_err open_disk(struct tiers_config *out, struct offload *o,
                            const struct offload_config *c, struct tier_disk **disk, fathom_diag *d)
{
    const struct tier_disk_config config = {
        .dir = c->dir,
        .bytes = c->dir_bytes,
        .page_bytes = c->page_bytes,
        .identity = c->identity,
        .secret = o->exchange ? page_exchange_secret(o->exchange) : NULL};
    fathom_diag cause = {{0}};
    fathom_err err = tier_disk_open(disk, &config, &cause);
    if (err == FATHOM_EIO) { /* pages can be computed: no start is refused for a broken disk */
        LOG_WARN("kv", "%s: the directory is not used", cause.text);
        return FATHOM_OK;
    }
    if (err) FAIL(d, err, "%s", cause.text);
    ASSERT(tier_disk_capacity(*disk) >= 1);
    out->n_disk = tier_disk_capacity(*disk);
    out->secret = *tier_disk_secret(*disk);
    out->found = tier_disk_found(*disk, &out->n_found);
    for (int v = 0; v < TIER_VERDICT_COUNT; v++) {
        o->n_at_start[v] = tier_disk_n_rejected(*disk, (enum tier_verdict)v);
    }
    return FATHOM_OK;
}

/* One sums 18 GB/s, and four as much as the bus to a device takes. */
static unsigned n_sum_thread(void)
{
    unsigned n = os_n_cpu() / 4;
    return n < 1 ? 1 : n > 4 ? 4 : n;
}

static fathom_err make(struct offload *o, const struct offload_config *c, fathom_diag *d)
{
    struct tiers_config t = {.page_bytes = c->page_bytes,
                             .n_ram = c->n_ram_page,
                             .step_bytes = OFFLOAD_STEP_BYTES,
                             .secret = {rng_entropy(), rng_entropy()},
                             .device = {.page_out = o->runner->ops->page_out,
                                        .page_in = o->runner->ops->page_in,
                                        .arg = o->runner}};
    struct tier_disk *disk = NULL;
    fathom_err err;
    TRY_GOTO(o->runner->ops->alloc_host(o->runner, c->n_ram_page * direct_round(c->page_bytes),
                                        &o->ram, d),
             fail);
    t.ram = o->ram;
    if (c->transfer) {
        const struct exchange_config x = {.transfer = c->transfer,
                                          .identity = c->identity,
                                          .page_bytes = c->page_bytes,
                                          .n_ram_page = c->n_ram_page,
                                          .with_next = c->with_next};
        TRY_GOTO(page_exchange_create(&o->exchange, &x, d), fail);
        t.secret = *page_exchange_secret(o->exchange);
        t.shelf = page_exchange_shelf(o->exchange);
    }
    if (c->dir) {
        TRY_GOTO(open_disk(&t, o, c, &disk, d), fail);
    }
    const struct tier_io_config io = {.disk = disk,
                                      .page_bytes = c->page_bytes,
                                      .n_sum_thread = n_sum_thread(),
                                      .peers = page_exchange_source(o->exchange),
                                      .n_pull_thread = page_exchange_n_lane(o->exchange),
                                      .owner = o->owner};
    TRY_GOTO(tier_io_create(&t.io, &io, d), fail);
    err = tiers_create(&o->tiers, &t, d);
    if (err == FATHOM_OK && disk) tier_disk_forget(disk);
    if (err != FATHOM_OK) t.io->ops->destroy(t.io);
    return err;
fail:
    tier_disk_close(disk);
    return err;
}

fathom_err offload_create(struct offload **out, const struct offload_config *c,
                          struct step_runner *runner, const struct tier_io_owner *owner,
                          fathom_diag *d)
{
    *out = NULL;
    if (!runner->ops->page_out) {
        FAIL(d, FATHOM_EUNSUPPORTED, "--kv-offload-ram, --kv-offload-dir: pages cannot be copied");
    }
    ASSERT(c->n_ram_page > 0 && c->page_bytes > 0);
    ASSERT(runner->ops->page_in && runner->ops->sync);
    ASSERT(runner->ops->alloc_host && runner->ops->release_host);
    struct offload *o = mem_calloc(1, sizeof *o);
    if (!o) FAIL(d, FATHOM_ENOMEM, "no memory for the tiers");
    o->runner = runner;
    o->page_bytes = c->page_bytes;
    o->owner = *owner;
    fathom_err err = make(o, c, d);
    if (err != FATHOM_OK) {
        offload_destroy(o);
        return err;
    }
    *out = o;
    return FATHOM_OK;
}

void offload_destroy(struct offload *o)
{
    if (!o) return;
    page_exchange_end(o->exchange); /* nobody reads its memory any more */
    tiers_destroy(o->tiers);
    page_exchange_destroy(o->exchange);
    if (o->ram) o->runner->ops->release_host(o->runner, o->ram);
    mem_free(o);
}

struct tiers *offload_tiers(const struct offload *o)
{
    return o ? o->tiers : NULL;
}

struct page_exchange *offload_exchange(const struct offload *o)
{
    return o ? o->exchange : NULL;
}

/* ---- steps ---- */

void offload_begin_step(struct offload *o, uint64_t now_us, double prefill_token_us)
{
    ASSERT(prefill_token_us >= 0);
    if (o) tiers_begin_step(o->tiers, now_us, prefill_token_us * KV_PAGE_TOKENS);
}

bool offload_keep(struct offload *o, struct prefix_cache *prefix, uint32_t n_token)
{
    if (!o) return false;
    ASSERT(prefix);
    prefix_keep_offered(prefix, OFFLOAD_AHEAD_PAGES + n_token / KV_PAGE_TOKENS);
    return prefix_is_due(prefix) && tiers_has_room(o->tiers);
}

bool offload_touch(struct offload *o)
{
    return o && tiers_touch(o->tiers);
}

bool offload_is_quiet(const struct offload *o, const struct prefix_cache *prefix)
{
    return !o || (!tiers_is_busy(o->tiers) && !prefix_is_due(prefix));
}

void offload_renew(struct offload *o)
{
    if (o) tiers_renew(o->tiers);
}

fathom_err offload_fault(const struct offload *o)
{
    return o ? tiers_fault(o->tiers) : FATHOM_OK;
}

void offload_end_step(struct offload *o)
{
    if (!o) return;
    tiers_synced(o->tiers);
#ifdef FATHOM_DCHECK
    tiers_check(o->tiers);
#endif
}

fathom_err offload_sync(struct offload *o)
{
    if (!o) return FATHOM_OK;
    TRY(tiers_fault(o->tiers));
    TRY(o->runner->ops->sync(o->runner));
    offload_end_step(o);
    return FATHOM_OK;
}

void offload_flush(struct offload *o, struct prefix_cache *prefix, uint64_t end_us)
{
    if (!o || tiers_get_stats(o->tiers)->n_disk == 0) return;
    for (uint64_t now_us; (now_us = clock_now_us()) < end_us;) {
        if (o->owner.in_hurry && o->owner.in_hurry(o->owner.arg)) return;
        offload_begin_step(o, now_us, 0);
        bool more = offload_keep(o, prefix, 0);
        if (offload_sync(o) != FATHOM_OK) return;
        if (more) continue;
        if (!prefix_is_due(prefix) && !tiers_is_busy(o->tiers)) return;
        clock_sleep_us(200);
    }
}

static_assert((int)FATHOM_TIER_BAD_COUNT == (int)TIER_VERDICT_COUNT - 1, "reasons");

void offload_fill_stats(const struct offload *o, fathom_tier_stats *out)
{
    *out = (fathom_tier_stats){0};
    if (!o) return;
    const struct tiers_stats *s = tiers_get_stats(o->tiers);
    ASSERT(s->n_ram_used <= s->n_ram && s->n_disk_used <= s->n_disk);
    out->n_ram_page = s->n_ram;
    out->n_ram_used = s->n_ram_used;
    out->n_disk_page = s->n_disk;
    out->n_disk_used = s->n_disk_used;
    out->n_unwritten = s->n_unwritten;
    out->page_bytes = o->page_bytes;
    out->n_kept = s->n_kept;
    out->n_written = s->n_written;
    out->n_read = s->n_read;
    out->n_ram_hit = s->n_restored_ram;
    out->n_disk_hit = s->n_restored_disk;
    out->n_dropped = s->n_dropped + s->n_refused;
    out->n_write_failed = s->n_write_failed;
    out->n_pulled = s->n_pulled;
    out->n_pull_lost = s->n_pull_lost;
    out->n_fetch = s->n_fetch;
    out->fetch_us = s->fetch_us;
    out->writes_off = s->writes_off;
    for (int i = 0; i < FATHOM_TIER_BAD_COUNT; i++) {
        out->n_bad[i] = s->n_rejected[i + 1] + o->n_at_start[i + 1];
    }
}

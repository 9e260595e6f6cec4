/* sched_sim_tiers.c - the tiers of the simulation: rows copied with their pages, and a poor disk */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sim/sched_sim.h"
#include "support/sim_disk.h"

static _Alignas(DIRECT_ALIGN) unsigned char ram[MAX_RAM][DIRECT_ALIGN];

static fathom_err page_out(void *arg, uint32_t page, void *to)
{
    struct sim *m = arg;
    const size_t half = PAGE_BYTES / 2;
    memcpy(to, &m->rows[page * KV_PAGE_TOKENS], half);
    memcpy((char *)to + half, &m->draft_rows[page * KV_PAGE_TOKENS], half);
    return FATHOM_OK;
}

static fathom_err page_in(void *arg, uint32_t page, const void *from)
{
    struct sim *m = arg;
    const size_t half = PAGE_BYTES / 2;
    memcpy(&m->rows[page * KV_PAGE_TOKENS], from, half);
    memcpy(&m->draft_rows[page * KV_PAGE_TOKENS], (const char *)from + half, half);
    return FATHOM_OK;
}

/* The threads of an episode, and its disk, with what the one before left if it was of the same
 * kind. */
static void open_disk(struct sim *m, struct tiers_config *c, bool with_disk)
{
    struct sim_disk_options o = {.owner = {0, m->max_draft > 0}, .seed = rng_next(&m->rng)};
    o.max_delay = between(m, 0, 1) ? between(m, 0, 3) : between(m, 0, 40);
    o.fail_per_1024 = between(m, 0, 3) ? 0 : between(m, 1, 512);
    o.flip_per_1024 = between(m, 0, 1) ? 0 : between(m, 1, 256);
    o.stuck = between(m, 0, 15) == 0;
    if (!m->platter || !hash128_equal(&m->platter_model, &o.owner) || between(m, 0, 3) == 0) {
        platter_destroy(m->platter);
        m->platter = platter_create(MAX_DISK, PAGE_BYTES);
        m->platter_model = o.owner;
    }
    c->io = sim_disk_create(m->platter, &o);
    if (!with_disk) return;
    c->n_disk = MAX_DISK;
    c->found = platter_find(m->platter, &o.owner, &c->n_found);
}

void sched_sim_open_tiers(struct sim *m)
{
    struct tiers_config c = {.page_bytes = PAGE_BYTES,
                             .n_ram = between(m, TIERS_MIN_RAM, MAX_RAM),
                             .ram = ram[0],
                             .step_bytes = between(m, 1, 20) * (uint64_t)PAGE_BYTES,
                             .secret = {1, 2},
                             .device = {page_out, page_in, m}};
    m->late_sync = between(m, 0, 1);
    open_disk(m, &c, between(m, 0, 3) > 0);
    assert_int_equal(tiers_create(&m->tiers, &c, NULL), FATHOM_OK);
    prefix_attach_tiers(m->prefix, m->tiers, 0);
}

void sched_sim_close_tiers(struct sim *m)
{
    if (!m->tiers) return;
    const struct tiers_stats *s = tiers_get_stats(m->tiers);
    struct tiers_stats *t = &m->tier_totals;
    t->n_kept += s->n_kept;
    t->n_written += s->n_written;
    t->n_read += s->n_read;
    t->n_restored_ram += s->n_restored_ram;
    t->n_restored_disk += s->n_restored_disk;
    t->n_dropped += s->n_dropped;
    t->n_write_failed += s->n_write_failed;
    for (int i = 0; i < TIER_VERDICT_COUNT; i++) t->n_rejected[i] += s->n_rejected[i];
    tiers_destroy(m->tiers);
    m->tiers = NULL;
}

void sched_sim_begin_tiers(struct sim *m)
{
    if (!m->tiers) return;
    if (m->late_sync) tiers_synced(m->tiers);
    double prefill_page_us = between(m, 0, 7) ? 0 : (double)between(m, 1, 2000000);
    tiers_begin_step(m->tiers, m->now_us, prefill_page_us);
    prefix_keep_offered(m->prefix, (uint32_t)between(m, 0, MAX_PAGE));
    tiers_check(m->tiers);
}

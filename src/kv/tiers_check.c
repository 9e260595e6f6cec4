/* tiers_check.c - the invariants of tiers_move.c, and what there is to see */
#include "base/assert.h"
#include "base/fail.h"
#include "kv/tiers_int.h"

void tiers_check(const struct tiers *t)
{
    uint32_t n_ram = 0, n_disk = 0;
    uint32_t n_reading = 0, n_writing = 0, n_checking = 0, n_summing = 0, n_pulling = 0;
    for (uint32_t i = 0; i < t->table.n_entry; i++) {
        const struct tier_entry *e = &t->table.entries[i];
        if (!e->used) continue;
        ASSERT(e->ram == TIER_NONE || e->ram < t->n_touched);
        ASSERT(e->ram == TIER_NONE || hash128_equal(&t->names[e->ram].key, &e->key));
        n_ram += e->ram != TIER_NONE;
        n_disk += e->disk != TIER_NONE;
        n_reading += e->ram_state == RAM_READING && !e->pulled;
        n_pulling += e->pulled;
        n_writing += e->disk_state == DISK_WRITING;
        n_checking += e->ram_state == RAM_CHECKING;
        n_summing += e->ram_state == RAM_SUMMING;
    }
    ASSERT(n_ram + t->n_free_ram == t->c.n_ram && n_disk + t->n_free_disk == t->c.n_disk);
    ASSERT(n_reading == t->n_reading && n_writing == t->n_writing && n_pulling == t->n_pulling);
    ASSERT(n_checking == t->n_checking && n_summing == t->n_summing);
    ASSERT(n_reading + n_pulling + n_writing + n_checking + n_summing <= TIER_JOBS_MAX);
    tier_table_check(&t->table);
}

fathom_err tiers_dump(const struct tiers *t, struct buf *out)
{
    static const char *const ram_names[] = {"-",       "FILLING", "FILLED",  "SUMMING",
                                            "READING", "READY",   "CHECKING"};
    static const char *const disk_names[] = {"-", "WANTED", "WRITING", "KEPT"};
    TRY(buf_printf(
        out, "tiers: %u of %u pages in memory, %u of %u on disk, %u reads, %u writes%s\n",
        t->c.n_ram - t->n_free_ram, t->c.n_ram, t->c.n_disk - t->n_free_disk, t->c.n_disk,
        t->n_reading, t->n_writing, t->stats.writes_off ? ", writes are off" : ""));
    uint32_t i = t->table.lists[LIST_RAM].head;
    for (; i != TIER_NONE; i = t->table.entries[i].links[LIST_RAM].next) {
        const struct tier_entry *e = &t->table.entries[i];
        TRY(buf_printf(out, "  record %016llx memory=%u %s disk=%s%s\n",
                       (unsigned long long)e->key.lo, e->ram, ram_names[e->ram_state],
                       disk_names[e->disk_state], e->links[LIST_COPYING].linked ? " copying" : ""));
    }
    return FATHOM_OK;
}

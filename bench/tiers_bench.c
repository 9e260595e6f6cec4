/* bench_tiers [PAGE_BYTES [SUM_THREADS]] - what a page costs the engine's thread that is kept in
 * memory, and one that goes back
 *
 * The copies of the device are left out: they are its own. One line,
 *
 *   bench=tiers page_bytes=.. sum_threads=.. keep_us=.. restore_us=.. restore_wall_us=..
 *
 * a page each: processor time of the thread that calls the tiers until the page has its sum, and
 * from the first question until it may be copied back; then how long that takes by the clock. The
 * pages have lain in memory for long, so each is checked before it goes back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "kv/tiers.h"

enum { N_PAGE = 48, N_ROUND = 9, LONG_US = 60000000 };

struct times {
    uint64_t cpu_us, wall_us;
};

static fathom_err page_out(void *arg, uint32_t page, void *to)
{
    (void)arg;
    memset(to, (int)page, 64);
    return FATHOM_OK;
}

static fathom_err page_in(void *arg, uint32_t page, const void *from)
{
    (void)arg;
    (void)page;
    (void)from;
    return FATHOM_OK;
}

static void done(void *arg)
{
    (void)arg;
}

static void die(const fathom_diag *d)
{
    fprintf(stderr, "bench_tiers: %s\n", d->text);
    exit(1);
}

static struct tiers *make(uint64_t page_bytes, unsigned n_thread, unsigned char *ram)
{
    struct tiers *t = NULL;
    fathom_diag d = {{0}};
    const struct tier_io_config io = {
        .page_bytes = page_bytes, .n_sum_thread = n_thread, .owner = {.done = done}};
    struct tiers_config c = {.page_bytes = page_bytes,
                             .n_ram = N_PAGE,
                             .ram = ram,
                             .step_bytes = UINT32_MAX * page_bytes,
                             .device = {page_out, page_in, NULL}};
    if (tier_io_create(&c.io, &io, &d) || tiers_create(&t, &c, &d)) die(&d);
    while (tiers_touch(t)) {
    }
    return t;
}

static struct tier_name name_of(uint32_t round, uint32_t page)
{
    return (struct tier_name){.key = {round * 1000 + page, page}, .n_id = KV_PAGE_TOKENS};
}

static struct times start(void)
{
    return (struct times){clock_thread_cpu_us(), clock_now_us()};
}

static struct times since(struct times begin)
{
    return (struct times){clock_thread_cpu_us() - begin.cpu_us, clock_now_us() - begin.wall_us};
}

/* As an engine at rest does it: it looks again after a while. */
static struct times keep_all(struct tiers *t, uint32_t round, uint64_t now_us)
{
    struct times begin = start();
    for (uint32_t i = 0; i < N_PAGE; i++) {
        const struct tier_name name = name_of(round, i);
        tiers_keep(t, &name, i, true);
    }
    tiers_synced(t);
    for (; tiers_is_busy(t); clock_sleep_us(1000)) tiers_begin_step(t, now_us, 0);
    return since(begin);
}

static struct times restore_all(struct tiers *t, uint32_t round, uint64_t now_us)
{
    struct times begin = start();
    for (uint32_t i = 0; i < N_PAGE; clock_sleep_us(200)) {
        tiers_begin_step(t, now_us, 0);
        for (; i < N_PAGE; i++) {
            const struct tier_name name = name_of(round, i);
            enum tier_answer a = tiers_restore(t, &name, i, NULL);
            if (a == TIER_WAIT) break;
            if (a == TIER_GONE) die(&(fathom_diag){"a page is gone"});
        }
        for (uint32_t k = i + 1; k < N_PAGE; k++) {
            const struct tier_name name = name_of(round, k);
            if (!tiers_read_ahead(t, &name, NULL)) break;
        }
    }
    struct times took = since(begin);
    tiers_synced(t);
    return took;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_per_page(uint64_t *us)
{
    qsort(us, N_ROUND, sizeof us[0], by_size);
    return (double)us[N_ROUND / 2] / N_PAGE;
}

int main(int argc, char **argv)
{
    uint64_t page_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 5094912; /* V3.2, bf16 */
    unsigned n_thread = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    uint64_t keep[N_ROUND], restore[N_ROUND], wall[N_ROUND];
    if (page_bytes < 64 || n_thread < 1 || n_thread > TIER_SUM_THREADS_MAX) {
        die(&(fathom_diag){"PAGE_BYTES from 64, SUM_THREADS from 1 to 8"});
    }
    log_set_level(LOG_LEVEL_ERROR);
    unsigned char *ram = mem_alloc_aligned(DIRECT_ALIGN, N_PAGE * direct_round(page_bytes));
    if (!ram) die(&(fathom_diag){"no memory"});
    struct tiers *t = make(page_bytes, n_thread, ram);
    for (uint32_t round = 0; round < N_ROUND; round++) {
        uint64_t now_us = (round + 1) * (uint64_t)LONG_US * 2;
        keep[round] = keep_all(t, round, now_us).cpu_us;
        struct times took = restore_all(t, round, now_us + LONG_US);
        restore[round] = took.cpu_us;
        wall[round] = took.wall_us;
    }
    printf("bench=tiers page_bytes=%llu sum_threads=%u keep_us=%.1f restore_us=%.1f "
           "restore_wall_us=%.1f\n",
           (unsigned long long)page_bytes, n_thread, median_per_page(keep),
           median_per_page(restore), median_per_page(wall));
    tiers_destroy(t);
    mem_free(ram);
    return 0;
}

/* test_tiers.c - memory and disk behind the device's cache: who is kept, who goes first, what is
 * written and read back, what is refused, and when waiting is over
 *
 * The disk is a simulated one, the device an array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "kv/tiers.h"
#include "support/sim_disk.h"

enum { PAGE = 256, N_RAM = TIERS_MIN_RAM, N_DISK = 40, N_DEVICE = 4 };

static const struct hash128 model = {1, 2};

struct world {
    unsigned char device[N_DEVICE][PAGE];
    unsigned char *ram;
    struct platter *platter;
    struct tier_io *io;
    struct tiers *t;
    uint64_t now_us;
    fathom_err device_err;
};

static struct world world;

static fathom_err page_out(void *arg, uint32_t page, void *to)
{
    struct world *w = arg;
    memcpy(to, w->device[page], PAGE);
    return w->device_err;
}

static fathom_err page_in(void *arg, uint32_t page, const void *from)
{
    struct world *w = arg;
    memcpy(w->device[page], from, PAGE);
    return w->device_err;
}

static fathom_err make(struct world *w, bool with_disk, fathom_diag *d)
{
    struct tiers_config c = {.page_bytes = PAGE,
                             .n_ram = N_RAM,
                             .ram = w->ram,
                             .step_bytes = 1000 * PAGE,
                             .secret = {3, 4},
                             .device = {page_out, page_in, w}};
    const struct sim_disk_options o = {.owner = model, .seed = 1};
    w->io = c.io = sim_disk_create(w->platter, &o);
    if (with_disk) {
        c.n_disk = N_DISK;
        c.found = platter_find(w->platter, &model, &c.n_found);
    }
    return tiers_create(&w->t, &c, d);
}

static int open_world(void **state)
{
    struct world *w = &world;
    memset(w, 0, sizeof *w);
    w->ram = mem_alloc_aligned(DIRECT_ALIGN, N_RAM * (size_t)DIRECT_ALIGN);
    w->platter = platter_create(N_DISK, PAGE);
    *state = w;
    return 0;
}

static int open_with_disk(void **state)
{
    (void)open_world(state);
    return make(&world, true, NULL) != FATHOM_OK;
}

static int open_without_disk(void **state)
{
    (void)open_world(state);
    return make(&world, false, NULL) != FATHOM_OK;
}

static int close_world(void **state)
{
    struct world *w = *state;
    if (w->t) tiers_check(w->t);
    tiers_destroy(w->t);
    platter_destroy(w->platter);
    mem_free(w->ram);
    return 0;
}

static struct tier_name name_of(uint32_t i)
{
    struct tier_name n = {.key = {i * 7, i}, .n_id = KV_PAGE_TOKENS};
    for (int k = 0; k < KV_PAGE_TOKENS; k++) n.ids[k] = (int32_t)i;
    return n;
}

static void keep(struct world *w, uint32_t i, bool overwritten)
{
    const struct tier_name name = name_of(i);
    memset(w->device[0], (int)i, PAGE);
    tiers_keep(w->t, &name, 0, overwritten);
    tiers_check(w->t);
}

/* The end of a step of the engine, and the beginning of the next; the threads are as fast as they
 * are told to be. */
static void step(struct world *w)
{
    w->now_us += 1000;
    tiers_synced(w->t);
    tiers_check(w->t);
    tiers_begin_step(w->t, w->now_us, 0);
    tiers_check(w->t);
}

/* Until the disk has nothing more to do. */
static void settle(struct world *w)
{
    for (int i = 0; i < 200; i++) step(w);
}

static enum tier_where where_is(const struct world *w, uint32_t i)
{
    const struct tier_name name = name_of(i);
    return tiers_find(w->t, &name.key);
}

static enum tier_answer restore(struct world *w, uint32_t i)
{
    const struct tier_name name = name_of(i);
    memset(w->device[1], 0, PAGE);
    enum tier_answer a = tiers_restore(w->t, &name, 1, NULL);
    tiers_check(w->t);
    for (int k = 0; a == TIER_RESTORED && k < PAGE; k++) {
        assert_int_equal(w->device[1][k], (unsigned char)i);
    }
    return a;
}

/* Asks in every step until it is decided. */
static enum tier_answer restore_in_time(struct world *w, uint32_t i)
{
    enum tier_answer a = TIER_WAIT;
    for (int k = 0; k < 100 && a == TIER_WAIT; k++) {
        step(w);
        a = restore(w, i);
    }
    return a;
}

static void what_is_kept_comes_back(void **state)
{
    struct world *w = *state;
    keep(w, 5, false);
    assert_int_equal(where_is(w, 5), TIER_IN_RAM);
    assert_int_equal(restore(w, 5), TIER_RESTORED); /* copies are done in order */
    step(w);
    assert_int_equal(restore(w, 5), TIER_RESTORED);
    assert_int_equal(restore(w, 6), TIER_GONE);
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_int_equal(s->n_kept, 1);
    assert_int_equal(s->n_restored_ram, 2);
    assert_int_equal(s->n_ram_used, 1);
}

static void the_page_used_longest_ago_goes_first(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 1; i <= N_RAM; i++) keep(w, i, true);
    step(w);
    keep(w, 1, false); /* it counts as used */
    assert_int_equal(restore(w, 2), TIER_RESTORED);
    step(w);
    keep(w, 100, true);
    keep(w, 101, true);
    assert_int_equal(where_is(w, 1), TIER_IN_RAM);
    assert_int_equal(where_is(w, 2), TIER_IN_RAM);
    assert_int_equal(where_is(w, 3), TIER_NOWHERE);
    assert_int_equal(where_is(w, 4), TIER_NOWHERE);
    assert_int_equal(where_is(w, 5), TIER_IN_RAM);
    assert_int_equal(tiers_get_stats(w->t)->n_dropped, 0); /* there is no disk to write them to */
}

static void what_a_copy_reads_is_not_given_away(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 0; i < N_RAM; i++) keep(w, i, true);
    keep(w, 100, true); /* all places are being filled */
    assert_int_equal(where_is(w, 100), TIER_NOWHERE);
    assert_int_equal(tiers_get_stats(w->t)->n_refused, 1);
    step(w);
    assert_int_equal(restore(w, 0), TIER_RESTORED); /* the oldest, but a copy may still read it */
    keep(w, 100, true);
    assert_int_equal(where_is(w, 0), TIER_IN_RAM);
    assert_int_equal(where_is(w, 1), TIER_NOWHERE);
}

static void a_step_copies_what_it_may(void **state)
{
    struct world *w = *state;
    const struct sim_disk_options o = {.seed = 1};
    tiers_destroy(w->t);
    const struct tiers_config c = {.page_bytes = PAGE,
                                   .n_ram = N_RAM,
                                   .ram = w->ram,
                                   .step_bytes = 3 * PAGE,
                                   .device = {page_out, page_in, w},
                                   .io = sim_disk_create(w->platter, &o)};
    assert_int_equal(tiers_create(&w->t, &c, NULL), FATHOM_OK);
    step(w);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(tiers_may_copy(w->t));
        keep(w, i, false);
    }
    assert_false(tiers_may_copy(w->t));
    keep(w, 3, true); /* now or never */
    assert_int_equal(where_is(w, 3), TIER_IN_RAM);
    assert_int_equal(restore(w, 0), TIER_WAIT);
    step(w);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(restore(w, i), TIER_RESTORED);
    assert_int_equal(restore(w, 3), TIER_WAIT);
}

static void memory_is_prepared_for_what_will_be_kept(void **state)
{
    struct world *w = *state;
    uint32_t n_touched = 0;
    for (uint32_t i = 0; i < 3; i++) keep(w, i, true);
    for (; tiers_touch(w->t); n_touched++) tiers_check(w->t);
    assert_int_equal(n_touched, N_RAM - 3);
    step(w);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(restore(w, i), TIER_RESTORED);
    step(w);
    for (uint32_t i = 3; i < 3 * N_RAM; i++) {
        keep(w, i, true);
        step(w);
    }
    assert_false(tiers_touch(w->t)); /* places that are given back stay so */
}

static void what_is_there_counts_as_used_without_a_copy(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 1; i <= N_RAM; i++) {
        assert_true(tiers_keep_all(w->t));
        keep(w, i, true);
    }
    assert_false(tiers_keep_all(w->t));
    step(w);
    const struct tier_name first = name_of(1);
    const struct tier_name nobody = name_of(500);
    assert_true(tiers_use(w->t, &first.key));
    assert_false(tiers_use(w->t, &nobody.key));
    keep(w, 100, true);
    assert_int_equal(where_is(w, 1), TIER_IN_RAM);
    assert_int_equal(where_is(w, 2), TIER_NOWHERE);
}

static void all_is_written_and_read_again(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 0; i < 3 * N_RAM / 2; i++) {
        keep(w, i, true);
        step(w);
    }
    settle(w);
    assert_false(tiers_is_busy(w->t));
    assert_int_equal(tiers_get_stats(w->t)->n_written, 3 * N_RAM / 2);
    assert_int_equal(where_is(w, 0), TIER_ON_DISK);
    assert_int_equal(restore(w, 0), TIER_WAIT);
    assert_int_equal(restore_in_time(w, 0), TIER_RESTORED);
    assert_int_equal(where_is(w, 0), TIER_IN_RAM); /* from now on */
    settle(w);
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_int_equal(s->n_restored_disk, 1);
    assert_int_equal(s->n_read, 1);
    assert_int_equal(s->n_written, 3 * N_RAM / 2); /* it is not written twice */
    assert_int_equal(restore(w, 0), TIER_RESTORED);
    assert_int_equal(s->n_restored_ram, 1);
}

static void a_page_on_disk_comes_to_memory_when_it_is_overwritten(void **state)
{
    struct world *w = *state;
    keep(w, 1, false);
    settle(w);
    for (uint32_t i = 10; i < 10 + N_RAM; i++) {
        keep(w, i, true);
        step(w);
    }
    settle(w);
    assert_int_equal(where_is(w, 1), TIER_ON_DISK);
    keep(w, 1, false); /* its last request is over */
    assert_int_equal(where_is(w, 1), TIER_ON_DISK);
    keep(w, 1, true);
    assert_int_equal(where_is(w, 1), TIER_IN_RAM);
    settle(w);
    assert_int_equal(tiers_get_stats(w->t)->n_written, 1 + N_RAM);
}

static void the_disk_too_forgets_what_was_used_longest_ago(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 0; i < N_DISK; i++) {
        keep(w, i, true);
        step(w);
    }
    settle(w);
    keep(w, 0, false);
    for (uint32_t i = 100; i < 102; i++) keep(w, i, true);
    settle(w);
    assert_int_equal(where_is(w, 0), TIER_ON_DISK);
    assert_int_equal(where_is(w, 1), TIER_NOWHERE);
    assert_int_equal(where_is(w, 2), TIER_NOWHERE);
    assert_int_equal(where_is(w, 3), TIER_ON_DISK);
    assert_int_equal(tiers_get_stats(w->t)->n_disk_used, N_DISK);
}

static void a_slow_disk_costs_records_not_time(void **state)
{
    struct world *w = *state;
    sim_disk_options_of(w->io)->stuck = true;
    for (uint32_t i = 0; i < 4 * N_RAM; i++) {
        keep(w, i, true);
        step(w);
    }
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_true(s->n_dropped + s->n_refused > 0);
    assert_int_equal(s->n_written, 0);
    assert_true(tiers_is_busy(w->t));
    sim_disk_options_of(w->io)->stuck = false;
    settle(w);
    assert_false(tiers_is_busy(w->t));
    assert_true(s->n_written > 0);
}

/* Ten pages on disk, and nothing of them in memory. */
static void put_on_disk(struct world *w)
{
    for (uint32_t i = 0; i < 10 + N_RAM; i++) {
        keep(w, i, true);
        settle(w);
    }
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(where_is(w, i), TIER_ON_DISK);
}

static void a_damaged_record_is_gone(void **state)
{
    struct world *w = *state;
    put_on_disk(w);
    for (uint32_t place = 0; place < N_DISK; place++) platter_page(w->platter, place)[17] ^= 1;
    assert_int_equal(restore_in_time(w, 3), TIER_GONE);
    assert_int_equal(where_is(w, 3), TIER_NOWHERE);
    assert_int_equal(tiers_get_stats(w->t)->n_rejected[TIER_BAD_CHECKSUM], 1);
    keep(w, 3, true); /* computed again */
    settle(w);
    assert_int_equal(restore(w, 3), TIER_RESTORED);
}

static void a_disk_that_cannot_be_read_is_counted(void **state)
{
    struct world *w = *state;
    put_on_disk(w);
    sim_disk_options_of(w->io)->fail_per_1024 = 1024;
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(restore_in_time(w, i), TIER_GONE);
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_int_equal(s->n_rejected[TIER_BAD_IO] + s->n_rejected[TIER_BAD_TRUNCATED], 10);
}

static void a_disk_that_cannot_be_written_rests(void **state)
{
    struct world *w = *state;
    sim_disk_options_of(w->io)->fail_per_1024 = 1024;
    for (uint32_t i = 0; i < N_RAM; i++) keep(w, i, true);
    settle(w);
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_true(s->writes_off);
    assert_true(s->n_write_failed >= TIERS_MAX_FAULTS);
    assert_false(tiers_is_busy(w->t));
    uint64_t n_failed = s->n_write_failed;
    for (uint32_t i = 0; i < N_RAM; i++) assert_int_equal(restore(w, i), TIER_RESTORED);
    keep(w, 100, true);
    settle(w);
    assert_int_equal(s->n_write_failed, n_failed);
    w->now_us += TIERS_REST_US;
    keep(w, 101, true);
    settle(w);
    assert_int_equal(s->n_write_failed, n_failed + 1);
    assert_true(s->writes_off);
    sim_disk_options_of(w->io)->fail_per_1024 = 0; /* it has room again */
    keep(w, 102, true);
    settle(w);
    assert_true(s->writes_off && s->n_written == 0);
    w->now_us += TIERS_REST_US;
    keep(w, 103, true);
    settle(w);
    assert_true(!s->writes_off && s->n_written == 1);
}

static void reading_ahead_has_its_bound(void **state)
{
    struct world *w = *state;
    put_on_disk(w);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 10; i++) {
        const struct tier_name name = name_of(i);
        n += tiers_read_ahead(w->t, &name, NULL);
        tiers_check(w->t);
    }
    assert_int_equal(n, N_RAM / 2); /* so that reads do not push out what was just read */
    settle(w);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(restore(w, i), TIER_RESTORED);
    const struct tier_name unknown = name_of(999);
    assert_false(tiers_read_ahead(w->t, &unknown, NULL));
}

static void another_text_under_the_same_key_is_refused(void **state)
{
    struct world *w = *state;
    keep(w, 5, true);
    step(w);
    struct tier_name name = name_of(5);
    name.ids[10]++;
    assert_int_equal(tiers_restore(w->t, &name, 1, NULL), TIER_GONE);
    assert_int_equal(tiers_get_stats(w->t)->n_rejected[TIER_BAD_TOKENS], 1);
}

static void a_restart_finds_what_was_written(void **state)
{
    struct world *w = *state;
    put_on_disk(w);
    tiers_destroy(w->t);
    assert_int_equal(make(w, true, NULL), FATHOM_OK);
    tiers_check(w->t);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(restore_in_time(w, i), TIER_RESTORED);
    keep(w, 500, true);
    settle(w);
    tiers_destroy(w->t);
    assert_int_equal(make(w, true, NULL), FATHOM_OK);
    assert_int_equal(where_is(w, 500), TIER_ON_DISK);
}

static void a_record_torn_by_the_end_is_gone(void **state)
{
    struct world *w = *state;
    put_on_disk(w);
    for (uint32_t i = 100; i < 100 + N_DISK; i++) { /* every place is overwritten */
        keep(w, i, true);
        step(w);
    }
    tiers_synced(w->t);
    tiers_destroy(w->t); /* in the middle of a write */
    assert_int_equal(make(w, true, NULL), FATHOM_OK);
    uint32_t n_gone = 0;
    for (uint32_t i = 0; i < 100 + N_DISK; i++) {
        if (where_is(w, i) != TIER_NOWHERE) n_gone += restore_in_time(w, i) == TIER_GONE;
    }
    assert_true(n_gone <= 1);
    assert_int_equal(tiers_get_stats(w->t)->n_rejected[TIER_BAD_CHECKSUM], n_gone);
}

static void of_two_records_of_one_key_the_later_counts(void **state)
{
    struct world *w = *state;
    const struct tier_found found[] = {
        {.key = {1, 1}, .order = 5, .place = 3},
        {.key = {2, 2}, .order = 6, .place = 1},
        {.key = {1, 1}, .order = 9, .place = 0},
    };
    const struct sim_disk_options o = {.owner = model};
    struct tiers_config c = {.page_bytes = PAGE,
                             .n_ram = N_RAM,
                             .ram = w->ram,
                             .step_bytes = PAGE,
                             .device = {page_out, page_in, w},
                             .io = sim_disk_create(w->platter, &o),
                             .n_disk = N_DISK,
                             .found = found,
                             .n_found = 3};
    assert_int_equal(tiers_create(&w->t, &c, NULL), FATHOM_OK);
    tiers_check(w->t);
    tiers_begin_step(w->t, 1, 0);
    assert_int_equal(tiers_get_stats(w->t)->n_disk_used, 2);
}

static void waiting_has_an_end(void **state)
{
    struct world *w = *state;
    tiers_begin_step(w->t, 1000, 0);
    assert_int_equal(tiers_patience_us(w->t, 100), 5000000);
    tiers_begin_step(w->t, 1000, 40000);
    assert_int_equal(tiers_patience_us(w->t, 100), 4000000);
    assert_int_equal(tiers_patience_us(w->t, 1), 1000000);
}

static void what_is_slower_than_computing_does_not_pay(void **state)
{
    struct world *w = *state;
    tiers_begin_step(w->t, 1000, 40000);
    assert_true(tiers_pay(w->t, 10, 0)); /* nothing is known */
    assert_true(tiers_pay(w->t, 1, 0));
    assert_false(tiers_pay(w->t, 1, 1)); /* too little to wait for */
    assert_false(tiers_pay(w->t, 0, 0));
    tiers_note_fetch(w->t, 10, true, 10 * 50000);
    assert_false(tiers_pay(w->t, 10, 3));
    assert_true(tiers_pay(w->t, 10, 0)); /* memory is not the disk */
    tiers_begin_step(w->t, 1000, 60000);
    assert_true(tiers_pay(w->t, 10, 3));
    tiers_begin_step(w->t, 1000, 40000);
    assert_false(tiers_pay(w->t, 10, 3));
    tiers_begin_step(w->t, 61000000, 40000);
    assert_true(tiers_pay(w->t, 10, 3));      /* that was long ago */
    tiers_note_fetch(w->t, 0, true, 1000000); /* nothing came */
    assert_false(tiers_pay(w->t, 10, 3));
    assert_int_equal(tiers_get_stats(w->t)->n_fetch, 2);
}

static void a_broken_device_is_told(void **state)
{
    struct world *w = *state;
    keep(w, 1, true);
    step(w);
    w->device_err = FATHOM_EDEVICE;
    keep(w, 2, true);
    assert_int_equal(tiers_fault(w->t), FATHOM_EDEVICE);
    assert_int_equal(where_is(w, 2), TIER_NOWHERE);
    assert_int_equal(restore(w, 1), TIER_GONE);
    keep(w, 3, true);
    assert_int_equal(where_is(w, 3), TIER_NOWHERE);
}

static void a_device_that_begins_anew_has_lost_its_copies(void **state)
{
    struct world *w = *state;
    put_on_disk(w);
    keep(w, 50, true);
    step(w);
    keep(w, 1, true); /* it is on disk too */
    keep(w, 51, true);
    assert_int_equal(restore(w, 50), TIER_RESTORED);
    w->device_err = FATHOM_EPEER;
    keep(w, 52, true);
    tiers_renew(w->t);
    tiers_check(w->t);
    w->device_err = FATHOM_OK;
    assert_int_equal(tiers_fault(w->t), FATHOM_OK);
    assert_int_equal(where_is(w, 50), TIER_IN_RAM);
    assert_int_equal(where_is(w, 1), TIER_ON_DISK);
    assert_int_equal(where_is(w, 51), TIER_NOWHERE);
    assert_int_equal(where_is(w, 52), TIER_NOWHERE);
    assert_int_equal(restore_in_time(w, 50), TIER_RESTORED);
    assert_int_equal(restore_in_time(w, 1), TIER_RESTORED);
    settle(w);
    assert_false(tiers_is_busy(w->t));
}

static void what_cannot_be_made_is_refused(void **state)
{
    struct world *w = *state;
    fathom_diag d = {{0}};
    struct tiers_config c = {
        .page_bytes = PAGE, .n_ram = N_RAM - 1, .ram = w->ram, .device = {page_out, page_in, w}};
    assert_int_equal(tiers_create(&w->t, &c, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "15 pages of memory for offloading, needed is at least 16"));
    const struct sim_disk_options o = {.seed = 1};
    c.io = sim_disk_create(w->platter, &o);
    c.n_ram = N_RAM;
    for (long n = 0;; n++) {
        mem_fail_after(n);
        fathom_err err = tiers_create(&w->t, &c, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) break;
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(w->t);
    }
    assert_non_null(w->t);
}

static void a_dump_shows_records(void **state)
{
    struct world *w = *state;
    struct buf b = {0};
    keep(w, 5, true);
    settle(w);
    assert_int_equal(tiers_dump(w->t, &b), FATHOM_OK);
    assert_non_null(strstr(buf_str(&b), "tiers: 1 of 16 pages in memory, 1 of 40 on disk"));
    assert_non_null(strstr(buf_str(&b), "READY disk=KEPT"));
    buf_free(&b);
}

/* Flips a bit of the one page that is in memory. */
static void flip_in_memory(struct world *w, uint32_t i)
{
    for (size_t at = 0; at < N_RAM; at++) {
        unsigned char *page = w->ram + at * DIRECT_ALIGN;
        if (page[0] == (unsigned char)i && page[PAGE - 1] == (unsigned char)i) {
            page[PAGE / 2] ^= 4;
            return;
        }
    }
    fail_msg("page %u is not in memory", i);
}

/* So long that nobody trusts a sum that was taken before. */
static void wait_long(struct world *w)
{
    w->now_us += 10000000;
    step(w);
}

static void a_page_that_changed_in_memory_is_gone(void **state)
{
    struct world *w = *state;
    keep(w, 5, true);
    step(w);
    assert_int_equal(restore(w, 5), TIER_RESTORED);
    flip_in_memory(w, 5);
    wait_long(w);
    assert_int_equal(restore_in_time(w, 5), TIER_GONE);
    assert_int_equal(where_is(w, 5), TIER_NOWHERE);
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_int_equal(s->n_rejected[TIER_BAD_CHECKSUM], 1);
    assert_int_equal(s->n_ram_used, 0);
    assert_int_equal(s->n_restored_ram, 1);
}

static void a_page_that_changed_in_memory_is_read_again(void **state)
{
    struct world *w = *state;
    keep(w, 5, true);
    settle(w);
    flip_in_memory(w, 5);
    wait_long(w);
    assert_int_equal(restore(w, 5), TIER_WAIT);
    assert_int_equal(restore_in_time(w, 5), TIER_RESTORED);
    assert_int_equal(tiers_get_stats(w->t)->n_rejected[TIER_BAD_CHECKSUM], 1);
    assert_int_equal(tiers_get_stats(w->t)->n_restored_disk, 1);
}

static void a_page_that_changed_in_memory_is_not_written(void **state)
{
    struct world *w = *state;
    sim_disk_options_of(w->io)->stuck = true;
    keep(w, 5, true);
    settle(w); /* it has its sum, and waits for the disk */
    flip_in_memory(w, 5);
    sim_disk_options_of(w->io)->stuck = false;
    settle(w);
    const struct tiers_stats *s = tiers_get_stats(w->t);
    assert_int_equal(s->n_written, 0);
    assert_int_equal(s->n_write_failed, 0);
    assert_int_equal(s->n_rejected[TIER_BAD_CHECKSUM], 1);
    assert_int_equal(restore(w, 5), TIER_GONE);
    assert_int_equal(where_is(w, 5), TIER_NOWHERE);
}

/* The page may not be given away while a copy of it is under way: it is checked again. */
static void a_damaged_page_that_is_being_copied_is_gone_later(void **state)
{
    struct world *w = *state;
    keep(w, 5, true);
    step(w);
    assert_int_equal(restore(w, 5), TIER_RESTORED); /* the device may not have done it */
    flip_in_memory(w, 5);
    w->now_us += 10000000;
    tiers_begin_step(w->t, w->now_us, 0);
    assert_int_equal(restore(w, 5), TIER_WAIT);
    tiers_begin_step(w->t, w->now_us, 0); /* the check is done */
    tiers_check(w->t);
    assert_int_equal(where_is(w, 5), TIER_IN_RAM);
    assert_int_equal(restore_in_time(w, 5), TIER_GONE);
    assert_int_equal(tiers_get_stats(w->t)->n_rejected[TIER_BAD_CHECKSUM], 1);
}

/* A check of a page that waits for its write, or is being written. */
static void a_page_is_checked_while_it_is_written(void **state)
{
    struct world *w = *state;
    sim_disk_options_of(w->io)->stuck = true;
    for (uint32_t i = 0; i < N_RAM; i++) keep(w, i, true); /* as many as are written at once */
    settle(w);
    wait_long(w);
    for (uint32_t i = 0; i < N_RAM; i++) assert_int_equal(restore(w, i), TIER_WAIT);
    tiers_check(w->t);
    sim_disk_options_of(w->io)->stuck = false;
    for (uint32_t i = 0; i < N_RAM; i++) assert_int_equal(restore_in_time(w, i), TIER_RESTORED);
    settle(w);
    assert_int_equal(tiers_get_stats(w->t)->n_written, N_RAM);
    assert_int_equal(tiers_get_stats(w->t)->n_restored_ram, N_RAM);
}

/* The sums are late: what is being summed is found, copied back, and not given away; what waits for
 * its turn may be. */
static void pages_wait_for_their_sums(void **state)
{
    struct world *w = *state;
    sim_disk_options_of(w->io)->max_delay = 1000;
    for (uint32_t i = 0; i < N_RAM; i++) keep(w, i, true);
    step(w);
    assert_true(tiers_is_busy(w->t));
    assert_int_equal(restore(w, 3), TIER_RESTORED); /* it has come from the device just now */
    keep(w, 100, true);
    assert_int_equal(where_is(w, 100), TIER_NOWHERE);
    assert_int_equal(tiers_get_stats(w->t)->n_refused, 1);
    for (int i = 0; i < N_RAM * 1100 && tiers_is_busy(w->t); i++) step(w);
    assert_false(tiers_is_busy(w->t));
    keep(w, 100, true);
    assert_int_equal(where_is(w, 100), TIER_IN_RAM);
}

/* A step asks once: later pages are checked while the first is waited for. */
static void pages_are_checked_ahead(void **state)
{
    struct world *w = *state;
    for (uint32_t i = 0; i < 8; i++) keep(w, i, true);
    step(w);
    wait_long(w);
    assert_int_equal(restore(w, 0), TIER_WAIT);
    for (uint32_t i = 1; i < 8; i++) {
        const struct tier_name name = name_of(i);
        assert_true(tiers_read_ahead(w->t, &name, NULL));
    }
    tiers_check(w->t);
    for (int i = 0; i < 8; i++) tiers_begin_step(w->t, w->now_us, 0);
    for (uint32_t i = 0; i < 8; i++) assert_int_equal(restore(w, i), TIER_RESTORED);
}

int main(void)
{
#define PLAIN(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
#define RAM(f) cmocka_unit_test_setup_teardown(f, open_without_disk, close_world)
#define DISK(f) cmocka_unit_test_setup_teardown(f, open_with_disk, close_world)
    const struct CMUnitTest tests[] = {
        RAM(what_is_kept_comes_back),
        RAM(a_page_that_changed_in_memory_is_gone),
        DISK(a_page_that_changed_in_memory_is_read_again),
        DISK(a_page_that_changed_in_memory_is_not_written),
        RAM(a_damaged_page_that_is_being_copied_is_gone_later),
        DISK(a_page_is_checked_while_it_is_written),
        RAM(pages_wait_for_their_sums),
        RAM(pages_are_checked_ahead),
        RAM(the_page_used_longest_ago_goes_first),
        RAM(what_a_copy_reads_is_not_given_away),
        RAM(a_step_copies_what_it_may),
        RAM(memory_is_prepared_for_what_will_be_kept),
        RAM(what_is_there_counts_as_used_without_a_copy),
        RAM(another_text_under_the_same_key_is_refused),
        RAM(waiting_has_an_end),
        RAM(what_is_slower_than_computing_does_not_pay),
        RAM(a_broken_device_is_told),
        DISK(all_is_written_and_read_again),
        DISK(a_page_on_disk_comes_to_memory_when_it_is_overwritten),
        DISK(the_disk_too_forgets_what_was_used_longest_ago),
        DISK(a_slow_disk_costs_records_not_time),
        DISK(a_damaged_record_is_gone),
        DISK(a_disk_that_cannot_be_read_is_counted),
        DISK(a_disk_that_cannot_be_written_rests),
        DISK(reading_ahead_has_its_bound),
        DISK(a_device_that_begins_anew_has_lost_its_copies),
        DISK(a_restart_finds_what_was_written),
        DISK(a_record_torn_by_the_end_is_gone),
        DISK(a_dump_shows_records),
        PLAIN(of_two_records_of_one_key_the_later_counts),
        PLAIN(what_cannot_be_made_is_refused),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

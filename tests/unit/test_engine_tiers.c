/* test_engine_tiers.c - the engine with tiers, over a runner without a model: what comes back is
 * right, whatever happens to the directory, and a restart finds it
 *
 * A simulated clock (sim_clock.c): whether pages are worth fetching is never a matter of how
 * busy the machine is. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "support/answers.h"
#include "support/null_runner.h"
#include "support/patience.h"

enum { N_TEXT = 6, N_PROMPT = 300, N_FOUND = 256, N_OUTPUT = 20, N_PAGE = 6 };

static char dir[64];
static struct answer answers[N_TEXT];
static int32_t texts[N_TEXT][N_PROMPT + N_OUTPUT];

static void remove_dir(void)
{
    static const char *const names[] = {"/kv.index", "/kv.pages", ""};
    char path[96];
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s%s", dir, names[i]);
        (void)remove(path);
    }
}

static int make_texts(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/fathom-engine-tiers-%d", (int)getpid());
    for (int32_t t = 0; t < N_TEXT; t++) {
        for (int32_t i = 0; i < N_PROMPT; i++) texts[t][i] = 2 + (t * 331 + i * 7) % 900;
    }
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    remove_dir();
    return 0;
}

static struct null_engine_options options(bool with_dir, uint32_t n_draft)
{
    return (struct null_engine_options){
        .n_vocab = 1000,
        .max_model_len = N_PAGE * 64,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 128,
        .max_queued = 24,
        .seed = 3,
        .n_draft = n_draft,
        .offload = {.n_ram_page = with_dir ? TIERS_MIN_RAM : 64,
                    .dir = with_dir ? dir : NULL,
                    .dir_bytes = 1 << 20,
                    .page_bytes = NULL_PAGE_BYTES,
                    .identity = {.model = {{(unsigned char)n_draft, 7}}}},
        .runner = {.n_page = N_PAGE},
    };
}

static fathom_engine *open_engine(bool with_dir, uint32_t n_draft)
{
    const struct null_engine_options o = options(with_dir, n_draft);
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (null_engine_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

/* Asks for one text and expects what its tokens say. Returns how many tokens were found. */
static uint32_t ask(fathom_engine *e, int t)
{
    fathom_request r = {.prompt = texts[t], .n_prompt = N_PROMPT};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = N_OUTPUT;
    r.sampling.ignore_eos = true;
    answer_ask(e, &answers[t], &r);
    answers_wait(e, 1);
    for (uint32_t i = 0; i < N_OUTPUT; i++) {
        int32_t id = (int32_t)(null_state(texts[t], N_PROMPT + i) % 1000);
        assert_int_equal(answers[t].ids[i], id);
        texts[t][N_PROMPT + i] = id;
    }
    return answers[t].finish.n_cached;
}

/* Once so many pages have been written, and none is left to be. */
static fathom_stats settled(fathom_engine *e, uint64_t n_written)
{
    fathom_stats s;
    uint64_t end_us = 0;
    do {
        fathom_get_stats(e, &s);
        if (s.tiers.n_written >= n_written && s.tiers.n_unwritten == 0) return s;
    } while (keep_waiting(&end_us));
    fail_msg("pages are never written");
    return s;
}

static void pages_come_back_from_memory(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft <= 2; n_draft += 2) {
        fathom_engine *e = open_engine(false, n_draft);
        for (int t = 0; t < N_TEXT; t++) assert_int_equal(ask(e, t), 0);
        for (int t = 0; t < N_TEXT; t++) assert_int_equal(ask(e, t), N_FOUND);
        fathom_stats s;
        fathom_get_stats(e, &s);
        assert_true(s.tiers.n_ram_hit >= 3 * N_FOUND / 64);
        assert_int_equal(s.tiers.n_disk_page, 0);
        assert_int_equal(s.n_prefix_hit_token, N_TEXT * N_FOUND);
        assert_int_equal(s.n_prompt_token, N_TEXT * (2 * N_PROMPT - N_FOUND));
        assert_int_equal(s.n_page_free, s.n_page);
        fathom_close(e);
    }
}

static void pages_come_back_from_disk_and_after_a_restart(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft <= 2; n_draft += 2) {
        remove_dir();
        fathom_engine *e = open_engine(true, n_draft);
        for (int t = 0; t < N_TEXT; t++) {
            assert_int_equal(ask(e, t), 0);
            (void)settled(e, (uint64_t)(t + 1) * N_FOUND / 64);
        }
        assert_int_equal(ask(e, 0), N_FOUND);
        fathom_stats s = settled(e, N_TEXT * N_FOUND / 64);
        assert_true(s.tiers.n_disk_hit > 0 && s.tiers.n_read >= s.tiers.n_disk_hit);
        assert_int_equal(s.tiers.n_written, s.tiers.n_disk_used);
        fathom_close(e);
        e = open_engine(true, n_draft);
        for (int t = 0; t < N_TEXT; t++) assert_int_equal(ask(e, t), N_FOUND);
        fathom_get_stats(e, &s);
        assert_int_equal(s.tiers.n_disk_hit, N_TEXT * N_FOUND / 64);
        fathom_close(e);
    }
}

static void closing_writes_what_is_worth_finding(void **state)
{
    (void)state;
    remove_dir();
    fathom_engine *e = open_engine(true, 0);
    (void)ask(e, 1);
    fathom_close(e); /* at once */
    e = open_engine(true, 0);
    assert_int_equal(ask(e, 1), N_FOUND);
    fathom_close(e);
}

/* Before the engine's thread has done anything: it is held. */
static void what_a_directory_holds_is_told_from_the_start(void **state)
{
    (void)state;
    struct null_engine_options o = options(true, 0);
    struct null_gate gate;
    fathom_stats s;
    remove_dir();
    fathom_engine *e = open_engine(true, 0);
    (void)ask(e, 1);
    fathom_close(e);
    null_gate_init(&gate);
    o.runner.gate = &gate;
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    fathom_get_stats(e, &s);
    assert_int_equal(s.tiers.n_disk_used, N_FOUND / 64);
    assert_int_equal(s.tiers.n_ram_page, TIERS_MIN_RAM);
    assert_int_equal(s.n_page_free, s.n_page);
    null_gate_open(&gate);
    fathom_close(e);
}

/* The stats when the device is next held; there was one to come. */
static fathom_stats held(fathom_engine *e, struct null_gate *g)
{
    fathom_stats s;
    uint64_t end_us = 0;
    while (!null_gate_holds(g)) {
        if (!keep_waiting(&end_us)) fail_msg("nothing more is done");
    }
    fathom_get_stats(e, &s);
    return s;
}

static fathom_stats let_and_hold(fathom_engine *e, struct null_gate *g)
{
    null_gate_let(g, 1);
    return held(e, g);
}

static fathom_engine *open_gated(struct null_gate *g)
{
    struct null_engine_options o = options(false, 0);
    fathom_engine *e = NULL;
    null_gate_init(g);
    o.max_model_len = 20 * 64;
    o.runner.n_page = 20;
    o.runner.gate = g;
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_OK);
    (void)held(e, g); /* in its first rest */
    return e;
}

/* Fifteen pages are to be copied when the second request comes: those that are begun, and a few in
 * its step, are all that it waits for. */
static void who_comes_while_pages_are_copied_waits_for_a_few(void **state)
{
    (void)state;
    enum { LONG = 1000, N_COPY = LONG / 64 };
    struct null_gate gate;
    int32_t prompt[LONG];
    fathom_stats s;
    fathom_engine *e = open_gated(&gate);
    for (int32_t i = 0; i < LONG; i++) prompt[i] = 2 + i % 900;
    fathom_request r = {.prompt = prompt, .n_prompt = LONG};
    fathom_sampling_init(&r.sampling);
    r.sampling.max_tokens = 1;
    answer_ask(e, &answers[0], &r);
    do s = let_and_hold(e, &gate);
    while (s.n_finished == 0);
    assert_int_equal(s.tiers.n_uncopied, N_COPY);
    assert_int_equal(s.tiers.n_kept, 0);
    r.prompt = texts[1];
    r.n_prompt = 10;
    answer_ask(e, &answers[1], &r);
    s = let_and_hold(e, &gate);
    assert_int_equal(s.n_finished, 1); /* in the step of the second */
    assert_int_equal(s.tiers.n_kept, OFFLOAD_AHEAD_PAGES);
    s = let_and_hold(e, &gate);
    assert_int_equal(s.n_finished, 2);
    assert_int_equal(s.tiers.n_kept, 2 * OFFLOAD_AHEAD_PAGES);
    assert_int_equal(s.tiers.n_uncopied, N_COPY - 2 * OFFLOAD_AHEAD_PAGES);
    do s = let_and_hold(e, &gate);
    while (s.tiers.n_uncopied > 0);
    assert_int_equal(s.tiers.n_kept, N_COPY);
    null_gate_open(&gate);
    answers_wait(e, 2);
    fathom_close(e);
}

/* Once in its turn, as each round of an engine at rest waits for the device. */
static void an_engine_at_rest_prepares_all_of_its_memory(void **state)
{
    (void)state;
    struct null_gate gate;
    fathom_engine *e = open_gated(&gate);
    fathom_stats s;
    fathom_get_stats(e, &s);
    for (uint32_t i = 0; i < s.tiers.n_ram_page; i++) (void)let_and_hold(e, &gate);
    null_gate_open(&gate);
    fathom_close(e);
}

/* Flips a bit of each record's page. */
static void damage_pages(void)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/kv.pages", dir);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    for (long at = 600; fseek(f, at, SEEK_SET) == 0; at += 4096) {
        int c = fgetc(f);
        if (c == EOF) break;
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_not_equal(fputc(c ^ 0x20, f), EOF);
    }
    assert_int_equal(fclose(f), 0);
}

static void what_is_damaged_is_computed(void **state)
{
    (void)state;
    remove_dir();
    fathom_engine *e = open_engine(true, 0);
    (void)ask(e, 1);
    fathom_close(e);
    damage_pages();
    e = open_engine(true, 0);
    assert_int_equal(ask(e, 1), 0);
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_true(s.tiers.n_bad[FATHOM_TIER_BAD_CHECKSUM] > 0);
    assert_int_equal(s.n_finished, 1);
    (void)settled(e, 1); /* the first page; behind it nothing was looked at */
    (void)ask(e, 1);     /* all that is bad has been found out */
    fathom_close(e);     /* which writes the pages anew */
    e = open_engine(true, 0);
    assert_int_equal(ask(e, 1), N_FOUND);
    fathom_close(e);
    e = open_engine(true, 2); /* records of another model */
    assert_int_equal(ask(e, 1), 0);
    fathom_get_stats(e, &s);
    assert_true(s.tiers.n_bad[FATHOM_TIER_BAD_MODEL] > 0);
    fathom_close(e);
}

/* A slow disk, in place of the C library's call. */
static atomic_uint n_write;
static atomic_uint write_delay_us;
static atomic_bool write_fails;

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    atomic_fetch_add(&n_write, 1);
    if (atomic_load(&write_fails)) {
        errno = EIO;
        return -1;
    }
    if (atomic_load(&write_delay_us) > 0) (void)usleep(atomic_load(&write_delay_us));
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

static void a_close_in_a_hurry_writes_no_more(void **state)
{
    (void)state;
    remove_dir();
    fathom_engine *e = open_engine(true, 0);
    atomic_store(&write_delay_us, 20000);
    for (int t = 0; t < 4; t++) (void)ask(e, t);
    fathom_hurry(e);
    unsigned n_before = atomic_load(&n_write);
    fathom_close(e);
    atomic_store(&write_delay_us, 0);
    assert_true(atomic_load(&n_write) - n_before <= 4); /* the record under way, and one begun */
    e = open_engine(true, 0);                           /* the others were lost, and nothing else */
    for (int t = 0; t < 4; t++) (void)ask(e, t);
    fathom_close(e);
}

/* No start is refused for it: pages are kept in memory, and computed. */
static void a_disk_that_fails_at_the_start_is_left_out(void **state)
{
    (void)state;
    remove_dir();
    atomic_store(&write_fails, true);
    fathom_engine *e = open_engine(true, 0);
    atomic_store(&write_fails, false);
    fathom_stats s;
    for (int t = 0; t < 3; t++) (void)ask(e, t);
    assert_int_equal(ask(e, 0), N_FOUND); /* driven out of the cache, and found in memory */
    fathom_get_stats(e, &s);
    assert_int_equal(s.tiers.n_disk_page, 0);
    assert_true(s.tiers.n_ram_hit > 0);
    fathom_close(e);
}

static void one_engine_has_a_directory(void **state)
{
    (void)state;
    const struct null_engine_options o = options(true, 0);
    fathom_engine *e = open_engine(true, 0);
    fathom_engine *second = NULL;
    fathom_diag d = {{0}};
    assert_int_equal(null_engine_open(&second, &o, &d), FATHOM_EBUSY);
    assert_non_null(strstr(d.text, "is in use by another process"));
    assert_null(second);
    (void)ask(e, 0);
    fathom_close(e);
}

static void tiers_need_the_prefix_cache(void **state)
{
    (void)state;
    struct null_engine_options o = options(false, 0);
    fathom_engine *e = NULL;
    o.no_prefix_cache = true;
    assert_int_equal(null_engine_open(&e, &o, NULL), FATHOM_EINVAL);
}

static void opening_survives_any_failed_allocation(void **state)
{
    (void)state;
    const struct null_engine_options o = options(true, 0);
    fathom_engine *e = NULL;
    for (long n = 0; !e; n++) {
        mem_fail_after(n);
        fathom_err err = null_engine_open(&e, &o, NULL);
        mem_fail_after(-1);
        assert_true(err == FATHOM_OK || err == FATHOM_ENOMEM);
    }
    (void)ask(e, 0);
    fathom_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back_from_memory),
        cmocka_unit_test(pages_come_back_from_disk_and_after_a_restart),
        cmocka_unit_test(closing_writes_what_is_worth_finding),
        cmocka_unit_test(what_a_directory_holds_is_told_from_the_start),
        cmocka_unit_test(who_comes_while_pages_are_copied_waits_for_a_few),
        cmocka_unit_test(an_engine_at_rest_prepares_all_of_its_memory),
        cmocka_unit_test(what_is_damaged_is_computed),
        cmocka_unit_test(a_close_in_a_hurry_writes_no_more),
        cmocka_unit_test(a_disk_that_fails_at_the_start_is_left_out),
        cmocka_unit_test(one_engine_has_a_directory),
        cmocka_unit_test(tiers_need_the_prefix_cache),
        cmocka_unit_test(opening_survives_any_failed_allocation),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, make_texts, clean_up);
}

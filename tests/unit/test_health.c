/* test_health.c - when an engine counts as standing still */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/health.h"

static uint64_t note(struct health *h, uint32_t n_live, uint64_t progress, uint64_t now_us)
{
    const fathom_stats stats = {.n_running = n_live, .progress = progress};
    return health_note(h, &stats, now_us);
}

static void stillness_begins_with_the_last_move(void **state)
{
    (void)state;
    struct health h;
    health_init(&h, NULL, NULL, 100);
    assert_int_equal(note(&h, 1, 7, 200), 0);
    assert_int_equal(note(&h, 1, 7, 300), 100);
    assert_int_equal(note(&h, 1, 7, 900), 700);
    assert_int_equal(note(&h, 1, 8, 1000), 0);
    assert_int_equal(note(&h, 1, 8, 1001), 1);
    /* the number need not rise */
    assert_int_equal(note(&h, 1, 3, 1500), 0);
    assert_int_equal(note(&h, 1, 3, 1600), 100);
    /* two threads look, and the later look is noted first */
    assert_int_equal(note(&h, 1, 3, 1400), 0);
}

static void nobody_waits_for_an_idle_engine(void **state)
{
    (void)state;
    struct health h;
    health_init(&h, NULL, NULL, 0);
    assert_int_equal(note(&h, 0, 7, 1000), 0);
    assert_int_equal(note(&h, 0, 7, 900000), 0);
    /* the time before the request came does not count */
    assert_int_equal(note(&h, 1, 7, 900100), 100);
    const fathom_stats waiting = {.n_waiting = 1, .progress = 7};
    assert_int_equal(health_note(&h, &waiting, 900200), 200);
    assert_int_equal(note(&h, 0, 7, 900300), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stillness_begins_with_the_last_move),
        cmocka_unit_test(nobody_waits_for_an_idle_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

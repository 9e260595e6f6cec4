/* test_rng.c - keyed random numbers */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/rng.h"

/* Published outputs of splitmix64 from the state 1234567. */
static void the_hash_is_splitmix64(void **state)
{
    (void)state;
    uint64_t s = 1234567;
    assert_int_equal(rng_hash(s), UINT64_C(6457827717110365317));
    assert_int_equal(rng_next(&s), UINT64_C(3203168211198807973));
    assert_int_equal(rng_next(&s), UINT64_C(9817491932198370423));
}

static void a_draw_depends_on_its_keys_only(void **state)
{
    (void)state;
    uint64_t first = rng_mix(1, 2, 3);
    for (uint64_t i = 0; i < 100; i++) (void)rng_mix(i, i, i);
    assert_int_equal(rng_mix(1, 2, 3), first);
    assert_int_not_equal(rng_mix(2, 1, 3), first);
    assert_int_not_equal(rng_mix(1, 3, 2), first);
    assert_int_not_equal(rng_mix(1, 2, 4), first);
}

static void unit_draws_never_reach_an_end(void **state)
{
    (void)state;
    assert_true(rng_unit(0) > 0.0f);
    assert_true(rng_unit(UINT64_MAX) < 1.0f);
    uint64_t s = 3;
    double sum = 0;
    enum { N = 100000 };
    for (int i = 0; i < N; i++) sum += (double)rng_unit(rng_next(&s));
    assert_true(fabs(sum / N - 0.5) < 0.005);
}

static void bounded_draws_cover_their_range_evenly(void **state)
{
    (void)state;
    enum { SIDES = 7, N = 70000 };
    unsigned counts[SIDES] = {0};
    uint64_t s = 9;
    for (int i = 0; i < N; i++) {
        uint64_t k = rng_below(&s, SIDES);
        assert_in_range(k, 0, SIDES - 1);
        counts[k]++;
    }
    for (int i = 0; i < SIDES; i++)
        assert_in_range(counts[i], N / SIDES * 95 / 100, N / SIDES * 105 / 100);
    assert_int_equal(rng_below(&s, 1), 0);
}

static void normal_draws_have_mean_0_and_variance_1(void **state)
{
    (void)state;
    enum { N = 100000 };
    uint64_t s = 5;
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < N; i++) {
        double x = (double)rng_normal(&s);
        assert_true(isfinite(x));
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / N) < 0.02);
    assert_true(fabs(squares / N - 1) < 0.03);
}

static void entropy_differs(void **state)
{
    (void)state;
    assert_int_not_equal(rng_entropy(), rng_entropy());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_is_splitmix64),
        cmocka_unit_test(a_draw_depends_on_its_keys_only),
        cmocka_unit_test(unit_draws_never_reach_an_end),
        cmocka_unit_test(bounded_draws_cover_their_range_evenly),
        cmocka_unit_test(normal_draws_have_mean_0_and_variance_1),
        cmocka_unit_test(entropy_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

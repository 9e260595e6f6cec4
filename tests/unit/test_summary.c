/* test_summary.c - figures of many numbers, against values worked out elsewhere */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/summary.h"

static void near_value(double value, double want)
{
    if (fabs(value - want) > 1e-9 * (1 + fabs(want))) fail_msg("%.12g, not %.12g", value, want);
}

/* numpy.percentile([15, 20, 35, 40, 50], [0, 5, 30, 40, 50, 95, 100]) */
static void percentiles_are_numpys(void **state)
{
    (void)state;
    const double v[] = {15, 20, 35, 40, 50};
    const double at[] = {0, 5, 30, 40, 50, 95, 100};
    const double want[] = {15, 16, 23, 29, 35, 48, 50};
    for (size_t i = 0; i < 7; i++) near_value(percentile_of(v, 5, at[i]), want[i]);
    near_value(percentile_of(v, 1, 99), 15);
    near_value(percentile_of(v, 0, 99), 0);
}

static void a_summary_sorts_and_describes(void **state)
{
    (void)state;
    double v[] = {4, 2, 8, 6};
    const struct percentile_list p = {{25, 99}, 2};
    struct summary s;
    summarise(&s, v, 4, &p);
    assert_int_equal(s.n, 4);
    near_value(s.mean, 5);
    near_value(s.median, 5);
    near_value(s.std, sqrt(5));
    near_value(s.min, 2);
    near_value(s.max, 8);
    near_value(s.percentiles[0], 3.5);
    near_value(s.percentiles[1], 7.94);
    near_value(s.p99, 7.94);
    summarise(&s, v, 0, &p);
    assert_int_equal(s.n, 0);
    near_value(s.mean, 0);
    near_value(s.percentiles[1], 0);
}

static void a_spread_names_a_run_that_was(void **state)
{
    (void)state;
    double v[] = {3, 1, 2, 4};
    struct spread s = spread_of(v, 4);
    near_value(s.min, 1);
    near_value(s.median, 2);
    near_value(s.max, 4);
    s = spread_of(v, 1);
    near_value(s.median, s.max);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_numpys),
        cmocka_unit_test(a_summary_sorts_and_describes),
        cmocka_unit_test(a_spread_names_a_run_that_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

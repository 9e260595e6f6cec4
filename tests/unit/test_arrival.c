/* test_arrival.c - arrival processes: mean, variance, ramps */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/arrival.h"

enum { N = 20000 };

static double due[N]; /* too large for a stack under sanitizers */

static void within(double value, double want, double share)
{
    if (!(fabs(value - want) <= share * want)) fail_msg("%g, not about %g", value, want);
}

/* Mean and variance of the gaps between N arrivals. */
static void measure_gaps(double *mean, double *variance)
{
    double sum = 0;
    double square = 0;
    for (size_t i = 0; i < N; i++) {
        double gap = due[i] - (i ? due[i - 1] : 0);
        assert_true(gap >= 0);
        sum += gap;
        square += gap * gap;
    }
    *mean = sum / N;
    *variance = square / N - *mean * *mean;
}

static void gamma_draws_have_their_moments(void **state)
{
    (void)state;
    const double shapes[] = {0.2, 0.99, 1, 3, 50};
    for (size_t s = 0; s < 5; s++) {
        uint64_t key = 7;
        double sum = 0;
        double square = 0;
        for (size_t i = 0; i < 4 * N; i++) {
            double x = arrival_gamma(shapes[s], &key);
            assert_true(x >= 0 && isfinite(x));
            sum += x;
            square += x * x;
        }
        double mean = sum / (4 * N);
        within(mean, shapes[s], 0.03);
        within(square / (4 * N) - mean * mean, shapes[s], 0.06);
    }
}

/* The variance of a gap is (1 / rate)^2 / burstiness. */
static void gaps_have_the_rate_and_the_burstiness(void **state)
{
    (void)state;
    const double bursts[] = {0.25, 1, 4};
    for (size_t i = 0; i < 3; i++) {
        double mean;
        double variance;
        arrival_times(due, N, &(struct arrival_options){.rate = 50, .burstiness = bursts[i]});
        measure_gaps(&mean, &variance);
        within(mean, 1.0 / 50, 1e-9);
        within(variance, 1.0 / 2500 / bursts[i], 0.1);
        within(due[N - 1], N / 50.0, 1e-9);
    }
}

static void without_a_rate_all_are_due_at_once(void **state)
{
    (void)state;
    arrival_times(due, 10, &(struct arrival_options){.rate = INFINITY, .burstiness = 1});
    for (size_t i = 0; i < 10; i++) assert_true(due[i] == 0);
}

static void a_ramp_goes_from_one_rate_to_the_other(void **state)
{
    (void)state;
    struct arrival_options o = {
        .rate = INFINITY, .burstiness = 100, .ramp = RAMP_LINEAR, .ramp_start = 10, .ramp_end = 40};
    arrival_times(due, N, &o);
    within(1000 / (due[999] - due[0]), 10.7, 0.1);
    within(1000 / (due[N - 1] - due[N - 1001]), 39.2, 0.1);
    within(1000 / (due[N / 2 + 500] - due[N / 2 - 500]), 25, 0.1);
    o.ramp = RAMP_EXPONENTIAL;
    arrival_times(due, N, &o);
    within(1000 / (due[N / 2 + 500] - due[N / 2 - 500]), 20, 0.1);
}

static void the_seed_decides(void **state)
{
    (void)state;
    static double again[100];
    struct arrival_options o = {.rate = 3, .burstiness = 1, .seed = 5};
    arrival_times(due, 100, &o);
    arrival_times(again, 100, &o);
    assert_memory_equal(due, again, sizeof again);
    o.seed = 6;
    arrival_times(again, 100, &o);
    assert_memory_not_equal(due, again, sizeof again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gamma_draws_have_their_moments),
        cmocka_unit_test(gaps_have_the_rate_and_the_burstiness),
        cmocka_unit_test(without_a_rate_all_are_due_at_once),
        cmocka_unit_test(a_ramp_goes_from_one_rate_to_the_other),
        cmocka_unit_test(the_seed_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_likelihood.c - perplexity, divergence and percentiles with values worked by hand */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/likelihood.h"

static void near(double have, double want)
{
    if (fabs(have - want) > 1e-6) fail_msg("%.9f, needed is %.9f", have, want);
}

/* Logits are logs of weights: 1, 2, 1 are probabilities 1/4, 1/2, 1/4. */
static void fill(float *logits, const float *weights, int n)
{
    for (int i = 0; i < n; i++) logits[i] = logf(weights[i]) + 100;
}

static void a_row_gives_its_likelihood_and_divergence(void **state)
{
    (void)state;
    float q[3], p[3];
    struct likelihood l;
    fill(q, (const float[]){1, 2, 1}, 3);
    fill(p, (const float[]){2, 1, 1}, 3);
    assert_int_equal(likelihood_of(&l, q, NULL, 3, 1), FATHOM_OK);
    near(l.nll, log(2));
    near(l.kl, 0);
    assert_int_equal(likelihood_of(&l, q, p, 3, 1), FATHOM_OK);
    near(l.nll, log(2));
    near(l.nll_against, log(4));
    /* 1/2 log (1/2 / 1/4) + 1/4 log (1/4 / 1/2) + 1/4 log 1 */
    near(l.kl, 0.25 * log(2));
    near((double)l.p_change, 0.25);
    assert_false(l.same_top);
    assert_int_equal(likelihood_of(&l, q, q, 3, 0), FATHOM_OK);
    assert_true(l.kl == 0 && l.same_top && l.p_change == 0);
}

static void logits_that_are_no_numbers_are_a_fault(void **state)
{
    (void)state;
    struct likelihood l;
    const float bad[] = {0, NAN}, good[] = {0, 1}, none[] = {-INFINITY, -INFINITY};
    const float half[] = {0, -INFINITY};
    assert_int_equal(likelihood_of(&l, bad, NULL, 2, 0), FATHOM_EDEVICE);
    assert_int_equal(likelihood_of(&l, good, bad, 2, 0), FATHOM_EDEVICE);
    assert_int_equal(likelihood_of(&l, none, NULL, 2, 0), FATHOM_EDEVICE);
    assert_int_equal(likelihood_of(&l, good, half, 2, 0), FATHOM_OK);
    near(l.kl, log(1 + exp(1))); /* all of p' at a token of 1 / (1 + e) */
}

static void many_rows_are_summed_up(void **state)
{
    (void)state;
    struct likelihood rows[1000];
    struct likelihood_summary s;
    for (int i = 0; i < 1000; i++) { /* out of order: 7 and 1000 have no common divisor */
        rows[i] = (struct likelihood){.nll = i % 2 ? log(2) : log(8),
                                      .nll_against = log(4),
                                      .kl = (i * 7 % 1000 + 1) * 1e-3,
                                      .p_change = 0.5f,
                                      .same_top = i % 4 == 0};
    }
    assert_int_equal(likelihood_summarize(&s, rows, 1000), FATHOM_OK);
    assert_int_equal(s.n, 1000);
    near(s.perplexity, 4); /* exp of the mean of log 2 and log 8 */
    near(s.perplexity_against, 4);
    /* deviations are +- log 2, so the mean's error is log 2 / sqrt(999) */
    near(s.perplexity_error, 4 * log(2) / sqrt(999));
    near(s.kl_mean, 0.5005);
    near(s.kl_median, 0.5);
    near(s.kl_90, 0.9);
    near(s.kl_99, 0.99);
    near(s.kl_999, 0.999);
    near(s.kl_max, 1);
    near(s.same_top, 0.25);
    near(s.p_change_rms, 0.5);
    assert_int_equal(likelihood_summarize(&s, rows, 0), FATHOM_OK);
    assert_int_equal(s.n, 0);
    assert_int_equal(likelihood_summarize(&s, rows, 1), FATHOM_OK);
    near(s.kl_median, rows[0].kl);
    near(s.perplexity_error, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_gives_its_likelihood_and_divergence),
        cmocka_unit_test(logits_that_are_no_numbers_are_a_fault),
        cmocka_unit_test(many_rows_are_summed_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

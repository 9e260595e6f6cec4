/* test_rope.c - frequencies of the rotary position encoding, with YaRN and without */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "model/config.h"

static const struct rope_yarn v3 = {.on = true,
                                    .factor = 40.0,
                                    .original_max_position = 4096.0,
                                    .beta_fast = 32.0,
                                    .beta_slow = 1.0,
                                    .mscale = 1.0,
                                    .mscale_all_dim = 1.0};

static void assert_near(double seen, double want, double relative)
{
    if (!(fabs(seen - want) <= relative * fabs(want))) {
        print_error("%.9g, needed is %.9g\n", seen, want);
        fail();
    }
}

static void deepseek_v3_frequencies(void **state)
{
    (void)state;
    static const struct {
        int i;
        double freq;
    } control[] = {
        {0, 1.0},     {10, 5.623413e-2}, {11, 3.900693e-2}, {15, 8.334509e-3},
        {16, 5.5e-3}, {20, 7.905694e-4}, {23, 3.333804e-5}, {31, 3.333804e-6},
    };
    float freq[32];
    rope_frequencies(freq, 64, 10000.0, &v3);
    for (size_t k = 0; k < sizeof control / sizeof *control; k++) {
        assert_near(freq[control[k].i], control[k].freq, 2e-7);
    }
}

static void without_yarn_they_are_powers_of_the_base(void **state)
{
    (void)state;
    float freq[32];
    rope_frequencies(freq, 64, 10000.0, &(struct rope_yarn){0});
    for (int i = 0; i < 32; i++) assert_near(freq[i], pow(10000.0, -i / 32.0), 1e-7);
}

/* factor 4 over 1024 tokens: the ramp runs from pair 5 to pair 18 */
static void pilot_frequencies(void **state)
{
    (void)state;
    struct rope_yarn yarn = v3;
    float freq[32];
    yarn.factor = 4.0;
    yarn.original_max_position = 1024.0;
    rope_frequencies(freq, 64, 10000.0, &yarn);
    for (int i = 0; i <= 5; i++) assert_near(freq[i], pow(10000.0, -i / 32.0), 1e-7);
    for (int i = 18; i < 32; i++) assert_near(freq[i], pow(10000.0, -i / 32.0) / 4.0, 1e-7);
    assert_near(freq[6], pow(10000.0, -6 / 32.0) * (12.0 / 13.0 + 1.0 / 13.0 / 4.0), 1e-7);
    assert_near(freq[17], pow(10000.0, -17 / 32.0) * (1.0 / 13.0 + 12.0 / 13.0 / 4.0), 1e-7);
}

static void equal_betas_make_a_step(void **state)
{
    (void)state;
    struct rope_yarn yarn = v3;
    float freq[32];
    yarn.factor = 32.0;
    yarn.beta_fast = 1.0;
    rope_frequencies(freq, 64, 50000.0, &yarn); /* both bounds come from 19.16: 19 and 20 */
    assert_near(freq[19], pow(50000.0, -19 / 32.0), 1e-7);
    assert_near(freq[20], pow(50000.0, -20 / 32.0) / 32.0, 1e-7);

    /* bounds that coincide in an integer must not divide by zero */
    yarn.original_max_position = 2.0 * 3.14159265358979323846 * 50000.0;
    rope_frequencies(freq, 64, 50000.0, &yarn);
    for (int i = 0; i < 32; i++) assert_true(isfinite(freq[i]) && freq[i] > 0.0f);
}

static void attention_correction(void **state)
{
    (void)state;
    double m = rope_mscale(&v3, v3.mscale_all_dim);
    assert_near(m, 1.36888795, 1e-8);
    assert_near(m * m / sqrt(192.0), 0.13523378, 1e-7);
    assert_near(rope_mscale(&(struct rope_yarn){0}, 1.0), 1.0, 0.0);
    struct rope_yarn none = v3;
    none.factor = 1.0;
    assert_near(rope_mscale(&none, 1.0), 1.0, 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek_v3_frequencies),
        cmocka_unit_test(without_yarn_they_are_powers_of_the_base),
        cmocka_unit_test(pilot_frequencies),
        cmocka_unit_test(equal_betas_make_a_step),
        cmocka_unit_test(attention_correction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

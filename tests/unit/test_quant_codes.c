/* test_quant_codes.c - rounding, scales and the search for a clip, with values worked by hand */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "quantize/codes.h"

static void near(double have, double want, double limit)
{
    if (!(fabs(have - want) <= limit)) fail_msg("%.9g, needed is %.9g", have, want);
}

/* largest 7.5: the scale is 1, codes are 8 + the value to nearest even, 7 at most above. */
static void symmetric_codes_count_from_eight(void **state)
{
    (void)state;
    const float w[] = {7.5f, -7.5f, 0, 0.5f, 1.5f, -0.5f, -1.5f, 2.4f, -6.6f};
    const uint8_t want[] = {15, 0, 8, 8, 10, 8, 6, 10, 1};
    uint8_t codes[9];
    struct codes_error e = {0};
    struct codes_scale s = codes_u4(w, NULL, 9, false, false, codes, &e);
    assert_true(s.scale == 1 && s.zero == 8);
    assert_memory_equal(codes, want, sizeof want);
    /* 4 x 0.5 and 7.5 as 7, -7.5 as -8: six of 0.5; 2.4 as 2 and -6.6 as -7: 0.4 twice */
    near(e.error, 6 * 0.25 + 2 * 0.16, 1e-5);
    near(e.value, 2 * 56.25 + 2 * 0.25 + 2 * 2.25 + 5.76 + 43.56, 1e-4);
}

/* from -1 to 14: 15 steps of 1, the zero is 1. */
static void asymmetric_codes_have_a_zero(void **state)
{
    (void)state;
    const float w[] = {-1, 0, 14, 3.2f}, positive[] = {3, 15, 6}, negative[] = {-15, -3, -6};
    uint8_t codes[4];
    struct codes_error e = {0};
    struct codes_scale s = codes_u4(w, NULL, 4, true, false, codes, &e);
    assert_true(s.scale == 1 && s.zero == 1);
    assert_memory_equal(codes, ((const uint8_t[]){0, 1, 15, 4}), 4);
    near(e.error, 0.04, 1e-5);
    s = codes_u4(positive, NULL, 3, true, false, codes, &e);
    assert_true(s.scale == 1 && s.zero == 0);
    assert_memory_equal(codes, ((const uint8_t[]){3, 15, 6}), 3);
    s = codes_u4(negative, NULL, 3, true, false, codes, &e);
    assert_true(s.scale == 1 && s.zero == 15);
    assert_memory_equal(codes, ((const uint8_t[]){0, 12, 9}), 3);
}

static void the_scale_is_rounded_before_the_codes(void **state)
{
    (void)state;
    const float w[] = {1, -0.3f};
    uint8_t codes[2];
    struct codes_error e = {0};
    struct codes_scale s = codes_u4(w, NULL, 2, false, false, codes, &e);
    assert_true(s.scale == f32_from_bf16(bf16_from_f32(1 / 7.5f)));
    assert_true(s.scale != 1 / 7.5f);
    double d0 = 7 * (double)s.scale - 1, d1 = -2 * (double)s.scale + (double)0.3f;
    near(e.error, d0 * d0 + d1 * d1, 1e-7);
}

static void zeros_have_a_scale_of_one(void **state)
{
    (void)state;
    const float w[8] = {0}, tiny[8] = {1e-40f, -1e-40f};
    uint8_t codes[8];
    int8_t bytes[8];
    struct codes_error e = {0};
    for (int searches = 0; searches < 2; searches++) {
        struct codes_scale s = codes_u4(w, NULL, 8, false, searches, codes, &e);
        assert_true(s.scale == 1 && codes[0] == 8 && codes[7] == 8);
        s = codes_u4(w, NULL, 8, true, searches, codes, &e);
        assert_true(s.scale == 1 && s.zero == 0 && codes[0] == 0);
        s = codes_u4(tiny, NULL, 8, false, searches, codes, &e);
        assert_true(s.scale == 1 && codes[0] == 8);
        s = codes_i8(w, NULL, 8, searches, bytes, &e);
        assert_true(s.scale == 1 && bytes[3] == 0);
    }
    assert_true(codes_e4m3_scale(0) == 1);
}

/* 127 numbers near 1 and one of 3: clipping the one to 2.1 makes the steps of all others finer. */
static void the_search_clips_what_stands_alone(void **state)
{
    (void)state;
    float w[128], importance[128];
    uint8_t codes[128];
    struct codes_error plain = {0}, clipped = {0}, weighted = {0};
    for (int i = 0; i < 128; i++) {
        w[i] = (float)i / 127 * (i % 2 ? 1 : -1);
        importance[i] = 1;
    }
    w[5] = 1.6f;
    struct codes_scale a = codes_u4(w, NULL, 128, false, false, codes, &plain);
    struct codes_scale b = codes_u4(w, NULL, 128, false, true, codes, &clipped);
    assert_true(b.scale < a.scale && b.scale >= 0.69f * a.scale);
    assert_true(clipped.error < plain.error);
    assert_int_equal(plain.n_clipped, 0);
    assert_int_equal(clipped.n_clipped, 1);
    assert_true(clipped.largest_scale == b.scale && plain.largest_scale == a.scale);
    importance[5] = 1000; /* the one counts: it is not clipped */
    struct codes_scale c = codes_u4(w, importance, 128, false, true, codes, &weighted);
    near((double)c.scale * 7, 1.6, 0.12);
}

/* The search finds the best of all clips: as slow as one can say it. */
static void the_search_is_the_least_of_all_clips(void **state)
{
    (void)state;
    for (int trial = 0; trial < 50; trial++) {
        float w[32];
        uint8_t codes[32];
        struct codes_error e = {0};
        double least = INFINITY;
        float largest = 0;
        for (int i = 0; i < 32; i++) {
            int64_t bits = (int64_t)(rng_mix((uint64_t)trial, (uint64_t)i, 1) >> 40);
            w[i] = (float)(bits - (1 << 23)) / (float)(1 << 23);
            largest = fmaxf(largest, fabsf(w[i]));
        }
        (void)codes_u4(w, NULL, 32, false, true, codes, &e);
        for (int k = 0; k < CODES_CLIPS; k++) {
            float clip = 1 - 0.3f * (float)k / (CODES_CLIPS - 1);
            float scale = f32_from_bf16(bf16_from_f32(clip * largest / 7.5f));
            double error = 0;
            for (int i = 0; i < 32; i++) {
                float q = rintf(w[i] * (1 / scale));
                q = fminf(fmaxf(q, -8), 7);
                error += pow((double)(q * scale) - (double)w[i], 2);
            }
            least = fmin(least, error);
        }
        near(e.error, least, 1e-5 * least);
    }
}

static void bytes_end_at_127(void **state)
{
    (void)state;
    const float w[] = {127, -127, 0.5f, 1.5f, -63.4f, 0, 0, 0, 2.5f};
    const int8_t want[] = {127, -127, 0, 2, -63, 0, 0, 0, 2};
    int8_t codes[9];
    struct codes_error e = {0};
    struct codes_scale s = codes_i8(w, NULL, 9, false, codes, &e);
    assert_true(s.scale == 1);
    assert_memory_equal(codes, want, sizeof want);
    near(e.error, 3 * 0.25 + 0.16, 1e-4);
    const float ends[] = {1, -1.0000001f};
    (void)codes_i8(ends, NULL, 2, true, codes, &e);
    assert_true(codes[0] >= 126 && codes[1] <= -126 && codes[1] >= -127);
}

static void e4m3_fills_its_range(void **state)
{
    (void)state;
    const float w[] = {896, -2, 0};
    uint8_t codes[3];
    struct codes_error e = {0};
    float scale = codes_e4m3_scale(codes_largest(w, 3));
    assert_true(scale == 2);
    codes_e4m3(w, 3, scale, codes, &e);
    assert_true(f32_from_e4m3(codes[0]) == 448 && f32_from_e4m3(codes[1]) == -1);
    near(e.error, 0, 0);
    const float nan[] = {1, NAN}, inf[] = {-INFINITY, 0};
    assert_true(isnan(codes_largest(nan, 2)) && isnan(codes_largest(inf, 2)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(symmetric_codes_count_from_eight),
        cmocka_unit_test(asymmetric_codes_have_a_zero),
        cmocka_unit_test(the_scale_is_rounded_before_the_codes),
        cmocka_unit_test(zeros_have_a_scale_of_one),
        cmocka_unit_test(the_search_clips_what_stands_alone),
        cmocka_unit_test(the_search_is_the_least_of_all_clips),
        cmocka_unit_test(bytes_end_at_127),
        cmocka_unit_test(e4m3_fills_its_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_dtype.c - element types: every code of every narrow type, and rounding to it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/dtype.h"
#include "base/rng.h"

static void names_and_sizes_agree(void **state)
{
    (void)state;
    for (int t = DTYPE_NONE + 1; t < DTYPE_COUNT; t++) {
        assert_int_equal(dtype_parse(dtype_name((enum dtype)t)), t);
        assert_true(dtype_size((enum dtype)t) > 0);
    }
    assert_int_equal(dtype_size(DTYPE_NONE), 0);
    assert_int_equal(dtype_parse("none"), DTYPE_NONE);
    assert_int_equal(dtype_parse("F8_E5M2"), DTYPE_NONE);
    assert_int_equal(dtype_size(DTYPE_F8_E4M3), 1);
    assert_int_equal(dtype_size(DTYPE_BF16), 2);
}

/* A minifloat by its definition. */
static double by_definition(uint32_t code, int n_exponent, int n_mantissa, int bias)
{
    uint32_t mantissa = code & ((1u << n_mantissa) - 1);
    int exponent = (int)(code >> n_mantissa & ((1u << n_exponent) - 1));
    double sign = code >> (n_mantissa + n_exponent) & 1 ? -1 : 1;
    double fraction = (double)mantissa / (double)(1u << n_mantissa);
    return exponent == 0 ? sign * ldexp(fraction, 1 - bias)
                         : sign * ldexp(1 + fraction, exponent - bias);
}

static void every_e4m3_code_means_its_definition(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        float f = f32_from_e4m3((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(f));
            continue;
        }
        if (f != (float)by_definition(code, 4, 3, 7)) fail_msg("%02x gives %g", code, (double)f);
        assert_int_equal(e4m3_from_f32(f), code);
    }
    assert_true(f32_from_e4m3(0x7e) == 448.0f);
    assert_int_equal(e4m3_from_f32(NAN), 0x7f);
    assert_int_equal(e4m3_from_f32(INFINITY), 0x7e);
    assert_int_equal(e4m3_from_f32(-1e9f), 0xfe);
    assert_int_equal(e4m3_from_f32(-0.0f), 0x80);
}

static void every_f16_code_means_its_definition(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        float f = f32_from_f16((uint16_t)code);
        if ((code & 0x7c00) == 0x7c00) {
            assert_true(code & 0x3ff ? isnan(f) : isinf(f));
            if (isinf(f)) assert_int_equal(f16_from_f32(f), code);
            continue;
        }
        if (f != (float)by_definition(code, 5, 10, 15)) fail_msg("%04x gives %g", code, (double)f);
        if (f16_from_f32(f) != code) fail_msg("%04x does not come back", code);
    }
    assert_int_equal(f16_from_f32(65519.0f), 0x7bff);
    assert_int_equal(f16_from_f32(65520.0f), 0x7c00);
    assert_true(isnan(f32_from_f16(f16_from_f32(NAN))));
}

static void every_bf16_code_comes_back(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        float f = f32_from_bf16((uint16_t)code);
        if (isnan(f)) {
            assert_true(isnan(f32_from_bf16(bf16_from_f32(f))));
        } else if (bf16_from_f32(f) != code) {
            fail_msg("%04x does not come back", code);
        }
    }
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f808000u)), 0x3f80); /* tie to even */
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f818000u)), 0x3f82);
    assert_int_equal(bf16_from_f32(f32_from_bits(0x7f7fffffu)), 0x7f80);
}

/* Between each two neighbours: their middle goes to the even one, what is off the middle to the
 * nearer one. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7e; code++) {
        float a = f32_from_e4m3((uint8_t)code);
        float b = f32_from_e4m3((uint8_t)(code + 1));
        float middle = a + (b - a) / 2;
        assert_int_equal(e4m3_from_f32(middle), code + (code & 1));
        assert_int_equal(e4m3_from_f32(nextafterf(middle, a)), code);
        assert_int_equal(e4m3_from_f32(nextafterf(middle, b)), code + 1);
        assert_int_equal(e4m3_from_f32(-nextafterf(middle, b)), (code + 1) | 0x80);
    }
    for (uint32_t code = 0; code < 0x7bff; code++) {
        float a = f32_from_f16((uint16_t)code);
        float b = f32_from_f16((uint16_t)(code + 1));
        float middle = a + (b - a) / 2;
        if (f16_from_f32(middle) != code + (code & 1)) fail_msg("middle above %04x", code);
        if (f16_from_f32(nextafterf(middle, a)) != code) fail_msg("below the middle, %04x", code);
        if (f16_from_f32(nextafterf(middle, b)) != code + 1)
            fail_msg("past the middle, %04x", code);
    }
    uint64_t seed = 7;
    for (int i = 0; i < 200000; i++) {
        float f = f32_from_bits((uint32_t)rng_next(&seed));
        float r = f32_from_bf16(bf16_from_f32(f));
        if (isnan(f) || isinf(r)) continue;
        float up = f32_from_bf16((uint16_t)(bf16_from_f32(f) + 1));
        float down = f32_from_bf16((uint16_t)(bf16_from_f32(f) - 1));
        if (!isnan(up) && !isinf(up)) assert_true(fabs((double)f - r) <= fabs((double)f - up));
        if (!isnan(down) && (bf16_from_f32(f) & 0x7fff)) {
            assert_true(fabs((double)f - r) <= fabs((double)f - down));
        }
    }
}

static void scales_round_up_to_powers_of_two(void **state)
{
    (void)state;
    assert_true(ue8m0_round_up(1.0f) == 1.0f);
    assert_true(ue8m0_round_up(1.0001f) == 2.0f);
    assert_true(ue8m0_round_up(0.75f) == 1.0f);
    assert_true(ue8m0_round_up(0x1p-100f) == 0x1p-100f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes_agree),
        cmocka_unit_test(every_e4m3_code_means_its_definition),
        cmocka_unit_test(every_f16_code_means_its_definition),
        cmocka_unit_test(every_bf16_code_comes_back),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(scales_round_up_to_powers_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

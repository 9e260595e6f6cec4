/* test_e4m3.cpp - e4m3 by way of f16, for GPUs without it: every code, and products of a warp */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

extern "C" {
#include <cmocka.h>

#include "base/dtype.h"
}

#include "backend/cuda/ptx.cuh"

namespace
{

enum { N_CODE = 256, LANE_WORDS = 6 };

void test_every_pair_of_codes_is_widened_exactly(void **)
{
    for (uint32_t low = 0; low < N_CODE; low++) {
        for (uint32_t high = 0; high < N_CODE; high++) {
            const uint32_t v = soft_e4m3x2_to_f16x2((uint16_t)(low | high << 8));
            const uint32_t codes[] = {low, high};
            for (int i = 0; i < 2; i++) {
                const float got = f32_from_f16((uint16_t)(v >> 16 * i));
                const float want = f32_from_e4m3((uint8_t)codes[i]);
                if (isnan(want) ? isnan(got) : memcmp(&got, &want, sizeof got) == 0) continue;
                fail_msg("code %02x: %a, not %a", codes[i], (double)got, (double)want);
            }
        }
    }
}

/* Sums of such values are exact in every order. */
uint32_t whole_numbers(uint32_t seed)
{
    static const uint8_t codes[] = {0x00, 0x38, 0xb8, 0x40, 0xc0, 0x44, 0x48, 0xc8};
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)codes[(seed >> 3 * i) % 8] << 8 * i;
    return v;
}

void test_products_are_those_of_the_instruction(void **)
{
    float soft[32][4], hard[32][4];
    uint32_t words[32][LANE_WORDS], seed = 1;
    for (auto &lane : words) {
        for (uint32_t &w : lane) {
            seed = seed * 1664525 + 1013904223;
            w = whole_numbers(seed >> 8);
        }
    }
    simt_run(dim3(1), dim3(32), 1, 0, [&] {
        const uint32_t *w = words[threadIdx.x];
        float *a = soft[threadIdx.x], *b = hard[threadIdx.x];
        for (int i = 0; i < 4; i++) a[i] = b[i] = (float)(i + (int)threadIdx.x);
        soft_mma_e4m3(a, w[0], w[1], w[2], w[3], w[4], w[5]);
        mma_e4m3(b, w[0], w[1], w[2], w[3], w[4], w[5]);
    });
    assert_memory_equal(soft, hard, sizeof soft);
    assert_true(soft[1][0] != 1.0f);
}

} // namespace

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_of_codes_is_widened_exactly),
        cmocka_unit_test(test_products_are_those_of_the_instruction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_cpu_convert.c - what the CPU backend's inner loops make of single values, every instruction
 * set that this machine has: codes, roundings, exp, and Hadamard's matrix */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/cpu/cpu_int.h"
#include "base/rng.h"
#include "support/cpu_isas.h"

static void every_code_is_decoded_exactly(void **state)
{
    (void)state;
    uint8_t codes[256];
    float out[256];
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        k->load_codes(codes, 256, OPERAND_F32, out);
        for (int c = 0; c < 256; c++) assert_true(same_float(out[c], f32_from_e4m3(codes[c])));
        if (k->bf16_operand != OPERAND_BF16) continue;
        uint16_t halves[256];
        k->load_codes(codes, 256, OPERAND_BF16, halves);
        for (int c = 0; c < 256; c++)
            assert_true(same_float(f32_from_bf16(halves[c]), f32_from_e4m3(codes[c])));
    }
}

static void quantizing_agrees_with_the_scalar_code(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (int round = 0; round < 200; round++) {
            float x[KV_FP8_GROUP];
            uint8_t code[KV_FP8_GROUP];
            float top = 1e-4f;
            for (int j = 0; j < KV_FP8_GROUP; j++) {
                x[j] = ldexpf(rng_normal(&seed), (int)rng_below(&seed, 24) - 12);
                if (fabsf(x[j]) > top) top = fabsf(x[j]);
            }
            x[round % KV_FP8_GROUP] = round % 7 == 0 ? NAN : 0;
            float scale = k->quantize_group(x, code);
            top = 1e-4f;
            for (int j = 0; j < KV_FP8_GROUP; j++) top = fabsf(x[j]) > top ? fabsf(x[j]) : top;
            assert_true(scale == ue8m0_round_up(top / 448.0f));
            for (int j = 0; j < KV_FP8_GROUP; j++)
                assert_int_equal(code[j], e4m3_from_f32(x[j] / scale));
        }
    }
}

static void rounding_to_bf16_is_to_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = 6;
    float in[32], back[32];
    uint16_t half[32];
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        for (int round = 0; round < 2000; round++) {
            for (int j = 0; j < 32; j++) {
                uint32_t bits = (uint32_t)rng_next(&seed);
                if (round % 2 == 0) bits = (bits & 0xffff0000) | 0x8000; /* ties */
                if ((bits & 0x7f800000) == 0) bits |= 0x00800000; /* denormals may become 0 */
                in[j] = f32_from_bits(bits);
            }
            k->to_operand(OPERAND_F32, true, in, 32, back);
            for (int j = 0; j < 32; j++)
                assert_true(same_float(back[j], f32_from_bf16(bf16_from_f32(in[j]))));
            if (k->bf16_operand != OPERAND_BF16) continue;
            k->to_operand(OPERAND_BF16, true, in, 32, half);
            for (int j = 0; j < 32; j++) assert_true(same_float(f32_from_bf16(half[j]), back[j]));
        }
    }
}

static void exp_is_close_and_exact_at_its_ends(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float x[N], e[N];
    for (int i = 0; i < N; i++) x[i] = -87.0f * (float)i / N;
    x[N - 1] = -INFINITY;
    x[N - 2] = -1000;
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        k->exp_row(x, 0, N, e);
        assert_true(e[0] == 1.0f);
        assert_true(e[N - 1] == 0.0f && e[N - 2] == 0.0f);
        for (int j = 0; j < N - 2; j++) {
            double want = exp((double)x[j]);
            assert_true(fabs((double)e[j] - want) <= 3e-7 * want);
        }
        float nan = NAN;
        float row[32] = {0};
        row[3] = nan;
        k->exp_row(row, 0, 32, e);
        assert_true(isnan(e[3]) && e[4] == 1.0f);
    }
}

static void hadamard_is_the_sylvester_matrix(void **state)
{
    (void)state;
    uint64_t seed = 8;
    for (int i = 0; i < N_ISA; i++) {
        const struct cpu_kernels *k = cpu_kernels_of(isas[i]);
        if (!k) continue;
        float x[KV_INDEX_DIM], y[KV_INDEX_DIM];
        for (int j = 0; j < KV_INDEX_DIM; j++) y[j] = x[j] = rng_normal(&seed);
        k->hadamard(y);
        for (int r = 0; r < KV_INDEX_DIM; r++) {
            double want = 0;
            for (int c = 0; c < KV_INDEX_DIM; c++)
                want += __builtin_parity((unsigned)(r & c)) ? -(double)x[c] : (double)x[c];
            assert_true(fabs((double)y[r] - want / sqrt(128)) < 1e-5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_decoded_exactly),
        cmocka_unit_test(quantizing_agrees_with_the_scalar_code),
        cmocka_unit_test(rounding_to_bf16_is_to_nearest_even),
        cmocka_unit_test(exp_is_close_and_exact_at_its_ends),
        cmocka_unit_test(hadamard_is_the_sylvester_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_product_bf16.cpp - the product of few rows of BF16 weights on the simulated GPU: in clusters
 * or not, with a block a tile or walking, it gives the bits of the portable kernel and writes nothing
 * else */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "backend/cuda/common.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "simt/simt_fault.h"

namespace
{

enum { GUARD_COLS = 8, N_SM = 4 };

const float guard = -1234.5f;

/* Values of 16 bytes' alignment. */
bf16 *make_values(std::vector<uint64_t> &room, size_t n, uint32_t seed)
{
    room.assign(n / 4 + 3, 0);
    bf16 *v = (bf16 *)(((uintptr_t)room.data() + 15) / 16 * 16);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        v[i] = __float2bfloat16_rn((float)((seed >> 8) % 2001) / 1000 - 1);
    }
    return v;
}

/* Outputs of the portable kernel, or with limits of that of sm_90. */
std::vector<float> run(product_args a, const sm90_limits *limits)
{
    cuda_backend c = {};
    std::vector<float> out((size_t)(a.n_token + 1) * a.out_stride, guard);
    a.out = out.data();
    c.properties.sharedMemPerBlockOptin = 227 << 10;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), cudaSuccess);
    if (limits) {
        assert_int_equal(product_few_bf16(a, *limits, c.stream), cudaSuccess);
    } else {
        assert_int_equal(product_bf16_init(&c), FATHOM_OK);
        assert_int_equal(product_bf16(&c, a, 0, 0, "bf16"), FATHOM_OK);
    }
    assert_int_equal(cudaStreamSynchronize(c.stream), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(c.stream), cudaSuccess);
    return out;
}

void check_sums(const product_args &a, const std::vector<float> &got)
{
    double error = 0.0, norm = 0.0;
    for (uint32_t r = 0; r <= a.n_token; r++) {
        for (uint32_t col = 0; col < a.out_stride; col++) {
            const float out = got[(size_t)r * a.out_stride + col];
            if (r == a.n_token || col >= a.n) {
                assert_true(out == guard);
                continue;
            }
            double sum = 0.0;
            for (uint32_t i = 0; i < a.k; i++)
                sum += (double)__bfloat162float(((const bf16 *)a.w)[(size_t)col * a.k + i]) *
                       (double)__bfloat162float(a.h[(size_t)r * a.k + i]);
            error += ((double)out - sum) * ((double)out - sum);
            norm += sum * sum;
        }
    }
    assert_true(sqrt(error / norm) < 1e-6);
}

void check(uint32_t n_row, uint32_t n, uint32_t k)
{
    std::vector<uint64_t> weights, inputs;
    product_args a = {};
    sm90_limits roomy = {}, split = {}, tight = {};
    a.w = make_values(weights, (size_t)n * k, 3);
    a.h = make_values(inputs, (size_t)n_row * k, 5);
    a.n = n;
    a.k = k;
    a.n_token = n_row;
    a.out_stride = n + GUARD_COLS;
    assert_int_equal(product_few_init(&roomy), cudaSuccess);
    roomy.n_sm = N_SM;
    tight.n_sm = 1; /* as many blocks as it holds walk over all tiles */
    for (auto &row : tight.few) {
        for (uint32_t &count : row) count = 2;
    }
    split = tight; /* the blocks of a cluster share the K of a tile */
    split.n_sm = ceil_div(n, 64) / 2 + 1;
    const std::vector<float> want = run(a, NULL);
    check_sums(a, want);
    for (const sm90_limits &limits : {roomy, split, tight}) assert_true(run(a, &limits) == want);
}

void test_parts(void **)
{
    check(5, 80, 3 * 64);   /* one */
    check(1, 144, 6 * 64);  /* two */
    check(16, 64, 12 * 64); /* four */
    check(8, 576, 24 * 64); /* eight, of more tiles than there are places */
}

void test_rows(void **)
{
    check(13, 200, 6 * 64);
    check(32, 72, 12 * 64);
    check(33, 64, 24 * 64);
    check(64, 520, 7 * 64);
}

} // namespace

int main(void)
{
    simt_set_capability(9, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

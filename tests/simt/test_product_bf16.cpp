/* test_product_bf16.cpp - products of BF16 weights on the simulated GPU, plain and of experts: of few
 * rows, in clusters or not, with a block a tile or walking, and of many, in tiles of each width,
 * they give the bits of the portable kernel and write nothing else */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "backend/cuda/common.cuh"
#include "backend/cuda/sm90/product_bf16.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "simt/product_tasks.h"
#include "simt/simt_fault.h"

namespace
{

enum { GUARD_COLS = 8, N_SM = 4, EXPERTS = 3 };

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

struct problem {
    std::vector<uint64_t> weights, inputs;
    std::vector<task> tasks;
    std::vector<int32_t> rows;
    int32_t n_task, feed[2];
    product_args a;
};

/* Rows of experts in turn where in_divisor of them read the same row of inputs; 0: a plain product. */
void make(problem &p, uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor)
{
    product_args &a = p.a;
    a = {};
    a.w = make_values(p.weights, (size_t)n * k * (in_divisor ? EXPERTS : 1), 3);
    a.h = make_values(p.inputs, (size_t)n_row * k, 5);
    a.w_stride = (size_t)n * k * 2;
    a.n = n;
    a.k = k;
    a.n_token = n_row;
    a.in_divisor = in_divisor;
    a.out_stride = n + GUARD_COLS;
}

/* Outputs of the portable kernel, or with limits of that of sm_90, in tiles of so many rows. */
std::vector<float> run(problem &p, uint32_t tile, const sm90_limits *limits)
{
    cuda_backend c = {};
    const bool mapped = p.a.in_divisor > 0;
    std::vector<float> out((size_t)(p.a.n_token + 1) * p.a.out_stride, guard);
    const uint32_t n_tile =
        mapped ? map_rows(p, EXPERTS, tile, in_turn) : ceil_div(p.a.n_token, tile);
    product_args a = p.a;
    a.out = out.data();
    a.feed = p.feed;
    p.feed[0] = p.feed[1] = 0;
    c.properties.sharedMemPerBlockOptin = 227 << 10;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), cudaSuccess);
    if (limits) {
        const uint32_t n_matrix = mapped ? EXPERTS : 1;
        assert_int_equal(tile == PRODUCT_LARGE_TILE
                             ? product_bf16_sm90(a, n_tile, n_matrix, *limits, c.stream)
                             : product_few_bf16(a, tile, n_tile, n_matrix, *limits, c.stream),
                         cudaSuccess);
    } else {
        assert_int_equal(product_bf16_init(&c), FATHOM_OK);
        assert_int_equal(product_bf16(&c, a, tile, n_tile, "bf16"), FATHOM_OK);
    }
    assert_int_equal(cudaStreamSynchronize(c.stream), cudaSuccess);
    assert_true(p.feed[0] == 0 && p.feed[1] == 0);
    assert_int_equal(cudaStreamDestroy(c.stream), cudaSuccess);
    return out;
}

void check_sums(const product_args &a, const std::vector<float> &got)
{
    double error = 0.0, norm = 0.0;
    for (uint32_t r = 0; r <= a.n_token; r++) {
        const uint32_t expert = a.in_divisor ? (uint32_t)in_turn(r) : 0;
        for (uint32_t col = 0; col < a.out_stride; col++) {
            const float out = got[(size_t)r * a.out_stride + col];
            if (r == a.n_token || col >= a.n || expert >= EXPERTS) {
                assert_true(out == guard);
                continue;
            }
            const bf16 *w = (const bf16 *)a.w + ((size_t)expert * a.n + col) * a.k;
            const uint32_t row = a.in_rows ? (uint32_t)a.in_rows[r] : r / max(a.in_divisor, 1u);
            const bf16 *x = a.h + (size_t)row * a.k;
            double sum = 0.0;
            for (uint32_t i = 0; i < a.k; i++)
                sum += (double)__bfloat162float(w[i]) * (double)__bfloat162float(x[i]);
            error += ((double)out - sum) * ((double)out - sum);
            norm += sum * sum;
        }
    }
    assert_true(sqrt(error / norm) < 1e-6);
}

void check(uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor)
{
    problem p;
    sm90_limits roomy = {}, split = {}, tight = {};
    make(p, n_row, n, k, in_divisor);
    assert_int_equal(product_few_init(&roomy), cudaSuccess);
    roomy.n_sm = N_SM;
    tight.n_sm = 1; /* as many blocks as it holds walk over all tiles */
    for (auto &row : tight.few) {
        for (uint32_t &count : row) count = 2;
    }
    split = tight; /* the blocks of a cluster share the K of a tile */
    const std::vector<float> want = run(p, 32, NULL);
    check_sums(p.a, want);
    for (uint32_t tile : {8u, 16u, 32u, 64u}) {
        split.n_sm = (n_row / tile + EXPERTS) * ceil_div(n, 64) / 2 + 1;
        for (const sm90_limits &limits : {roomy, split, tight})
            assert_true(run(p, tile, &limits) == want);
    }
}

/* Rows one after the other, and from the last to the first. */
void check_many(uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor)
{
    problem p;
    std::vector<int32_t> turned(n_row);
    make(p, n_row, n, k, in_divisor);
    for (uint32_t r = 0; r < n_row; r++) turned[r] = (int32_t)(n_row - 1 - r);
    assert_int_equal(product_bf16_sm90_init(), cudaSuccess);
    for (const int32_t *in_rows : {(const int32_t *)NULL, (const int32_t *)turned.data()}) {
        if (in_rows && in_divisor) continue;
        p.a.in_rows = in_rows;
        const std::vector<float> want = run(p, 64, NULL);
        check_sums(p.a, want);
        for (uint32_t n_sm : {1u, 6u}) {
            sm90_limits limits = {};
            limits.n_sm = n_sm;
            assert_true(run(p, PRODUCT_LARGE_TILE, &limits) == want);
        }
    }
}

/* Where a multiprocessor has no room for a block for each of eight K parts, blocks make two each. */
void check_two_parts(uint32_t n_row, uint32_t tile, uint32_t n_sm)
{
    problem p;
    sm90_limits roomy = {}, few = {};
    make(p, n_row, 64, 24 * 64, 0);
    roomy.n_sm = 4 * N_SM;
    few.n_sm = n_sm;
    const std::vector<float> want = run(p, 32, NULL);
    assert_true(run(p, tile, &roomy) == want);
    assert_int_equal(last_cluster(), 8);
    assert_true(run(p, tile, &few) == want);
    assert_int_equal(last_cluster(), 4);
}

void test_two_parts(void **)
{
    check_two_parts(5, 8, 1);
    check_two_parts(50, 64, 2);
}

void test_parts(void **)
{
    check(5, 80, 3 * 64, 0);   /* one */
    check(1, 144, 6 * 64, 0);  /* two */
    check(16, 64, 12 * 64, 0); /* four */
    check(8, 576, 24 * 64, 0); /* eight, of more tiles than there are places */
}

void test_rows(void **)
{
    check(13, 200, 6 * 64, 0);
    check(33, 64, 24 * 64, 0);
    check(64, 520, 7 * 64, 0);
}

void test_mapped(void **)
{
    check(61, 80, 6 * 64, 4);
    check(100, 144, 5 * 64, 1);
    check(37, 64, 24 * 64, 9);
}

void test_many(void **)
{
    check_many(200, 264, 5 * 64, 0);  /* one part */
    check_many(130, 184, 24 * 64, 0); /* eight; six multiprocessors: tiles of 96 outputs, one: 192 */
    check_many(64, 184, 6 * 64, 0);   /* nothing for the second warpgroup */
    check_many(300, 264, 5 * 64, 1);
}

} // namespace

int main(void)
{
    simt_set_capability(9, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_two_parts),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_mapped),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

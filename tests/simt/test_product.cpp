/* test_product.cpp - the FP8 products of sm_90a on the simulated GPU: few rows and many give the
 * same bits, whatever the tile and however many clusters there are, and write nothing else; codes of
 * a SwiGLU and bf16 rows are those of the sums. The same of weights with a scale a row, and of
 * packed U4 weights, whose scales and codes are read exactly; and the products of int8, whose sums
 * are exact, with the bits of the portable kernels
 *
 *   test_product [all]    all: more shapes of each kind */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <vector>

extern "C" {
#include <cmocka.h>

#include "base/dtype.h"
}

#include "backend/cuda/common.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_fp8.cuh"
#include "backend/cuda/sm90/product_fp8_wide.cuh"
#include "backend/cuda/sm90/product_int8.cuh"
#include "backend/cuda/sm90/product_u4.cuh"
#include "backend/cuda/sm90/product_u4_turned.cuh"
#include "backend/cuda/sm90/u4.cuh"
#include "simt/product_tasks.h"
#include "simt/simt_fault.h"

namespace
{

enum { K_LINE = 128, GUARD_COLS = 8, EXPERTS = 3, N_SM = 4 };

const float guard = -1234.5f;
bool all_shapes;

struct problem {
    product_args a;
    uint32_t n_in, n_expert;
    std::vector<uint8_t> w, tiled, q; /* weights row by row, and in tiles */
    std::vector<float> w_scale, q_scale;
    std::vector<float> u4_scale;  /* of packed weights: [expert][output][group] */
    std::vector<float> row_scale; /* [expert][output] */
    std::vector<task> tasks;
    std::vector<int32_t> rows;
    int32_t n_task, feed[2];
};

uint32_t next(uint32_t &state)
{
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

void fill(std::vector<uint8_t> &codes, std::vector<float> &scales, uint32_t seed)
{
    for (uint8_t &c : codes) {
        c = (uint8_t)next(seed);
        if ((c & 0x7f) == 0x7f) c = 0; /* NaN */
    }
    for (float &s : scales) s = ldexpf(1.0f, (int)(next(seed) % 6) - 6);
}

/* Aligned like device memory: 16 bytes. */
template <typename T> T *aligned(std::vector<T> &v, size_t n)
{
    v.resize(n + 16 / sizeof(T));
    return (T *)(((uintptr_t)v.data() + 15) / 16 * 16);
}

void make(problem &p, uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor, bool mapped)
{
    const uint32_t n_k_line = k / K_LINE, n_block = (n + K_LINE - 1) / K_LINE;
    p = {};
    p.n_expert = mapped ? EXPERTS : 1;
    p.n_in = (n_row + in_divisor - 1) / in_divisor;
    product_args &a = p.a;
    a.n = n;
    a.k = k;
    a.n_token = n_row;
    a.scale_stride = n_k_line;
    a.w_stride = tiled_bytes(n, k);
    a.tiled = true;
    a.w_scale_step = (size_t)n_block * n_k_line;
    a.in_divisor = in_divisor;
    a.out_stride = n + GUARD_COLS;
    p.w.resize((size_t)n * k * p.n_expert);
    a.q = aligned(p.q, (size_t)p.n_in * k);
    p.w_scale.resize(a.w_scale_step * p.n_expert);
    p.q_scale.resize((size_t)p.n_in * n_k_line);
    fill(p.w, p.w_scale, 1);
    fill(p.q, p.q_scale, 2);
    uint8_t *w = aligned(p.tiled, a.w_stride * p.n_expert);
    for (size_t i = 0; i < p.w.size(); i++) {
        const uint32_t row = (uint32_t)(i / k % n);
        w[i / k / n * a.w_stride + tiled_at(row, (uint32_t)(i % k), k)] = p.w[i];
    }
    a.w = w;
    a.w_scale = p.w_scale.data();
    a.q_scale = p.q_scale.data();
}

/* Scales of rows in the place of those of squares. */
void make_row_scales(problem &p)
{
    product_args &a = p.a;
    uint32_t seed = 11;
    p.w_scale.assign(a.k / K_LINE, 1.0f);
    a.w_scale = p.w_scale.data();
    a.scale_stride = 0;
    a.w_scale_step = 0;
    p.row_scale.resize((size_t)p.n_expert * a.n);
    for (float &s : p.row_scale) s = 0.01f * (float)(1 + next(seed) % 100);
    a.row_scale = p.row_scale.data();
    a.row_scale_step = a.n;
}

/* How matrices of U4 are packed: scales of a K line, their type, whether there are zeros. */
pack4 packed_as(uint32_t n_group, dtype scale_type, bool has_zero)
{
    weight_form form = {};
    form.code = CODE_U4;
    form.scale_type = scale_type;
    form.block_row = 1;
    form.block_col = K_LINE / n_group;
    form.has_zero = has_zero;
    return pack4_of(&form);
}

void put_scale(const pack4 &pack, uint8_t *to, float scale)
{
    const uint16_t half = pack.scale_type == DTYPE_F16 ? f16_from_f32(scale) : bf16_from_f32(scale);
    memcpy(to, pack.scale_type == DTYPE_F32 ? (const void *)&scale : &half,
           pack4_scale_bytes(&pack));
}

/* Puts U4 weights in the place of FP8's; w has the codes that they are multiplied as. */
void make_u4(problem &p, const pack4 &pack)
{
    product_args &a = p.a;
    const uint32_t n_k_line = a.k / K_LINE, group = K_LINE / pack.n_group;
    const uint32_t n_group = a.k / group;
    uint32_t seed = 7;
    a.pack = pack;
    a.tiled = false;
    a.w_scale = NULL;
    a.w_stride = pack4_bytes(&pack, a.n, a.k);
    p.u4_scale.resize((size_t)p.n_expert * a.n * n_group);
    p.tiled.assign(a.w_stride * p.n_expert + 16, 0);
    uint8_t *w = (uint8_t *)(((uintptr_t)p.tiled.data() + 15) / 16 * 16);
    a.w = w;
    for (uint32_t i = 0; i < p.n_expert * a.n; i++) {
        const uint32_t row = i % a.n, in_tile = row % PACK4_ROWS;
        uint8_t *tiles =
            w + i / a.n * a.w_stride + (size_t)(row / PACK4_ROWS) * n_k_line * pack.tile_bytes;
        for (uint32_t g = 0; g < n_group; g++) {
            const float scale = ldexpf(1.0f + (float)(next(seed) % 8) / 8, (int)(next(seed) % 6));
            const int zero = pack.has_zero ? (int)(next(seed) % (PACK4_ZERO_MAX + 1)) : PACK4_ZERO;
            uint8_t *tile = tiles + g / pack.n_group * pack.tile_bytes;
            const uint32_t at = g % pack.n_group * PACK4_ROWS + in_tile;
            put_scale(pack, tile + PACK4_CODE_BYTES + at * pack4_scale_bytes(&pack), scale);
            if (pack.has_zero) tile[pack4_zeros_at(&pack) + at] = (uint8_t)zero;
            p.u4_scale[(size_t)i * n_group + g] = scale;
            for (uint32_t j = 0; j < group; j++) {
                const int code = (int)(next(seed) % 16);
                uint32_t shift, to = pack4_code_at(in_tile, g % pack.n_group * group + j, &shift);
                tile[to] |= (uint8_t)(code << shift);
                p.w[(size_t)i * a.k + g * group + j] =
                    e4m3_from_f32(ldexpf((float)(code - zero), -9));
            }
        }
    }
}

/* The scale of a weight */
float scale_of(const problem &p, uint32_t expert, uint32_t col, uint32_t k)
{
    const product_args &a = p.a;
    if (a.pack.tile_bytes) {
        const uint32_t n_group = a.k / K_LINE * a.pack.n_group;
        const size_t row = ((size_t)expert * a.n + col) * n_group;
        return 512.0f * p.u4_scale[row + k / (a.k / n_group)];
    }
    if (a.row_scale) return a.row_scale[expert * a.n + col];
    return a.w_scale[expert * a.w_scale_step + col / K_LINE * (a.k / K_LINE) + k / K_LINE];
}

enum kernel { FEW, MANY, MANY_LISTED, WIDE, TURNED };

uint32_t tile_of(kernel which)
{
    return which == WIDE ? PRODUCT_WIDE_TILE : PRODUCT_LARGE_TILE;
}

/* Inputs in the order of the list, and where they are. */
struct listed {
    std::vector<uint8_t> q;
    std::vector<float> scale;
};

void list_inputs(problem &p, product_args &a, listed &to)
{
    const uint32_t n_k_line = a.k / K_LINE;
    a.n_token = (uint32_t)p.rows.size();
    uint8_t *q = aligned(to.q, (size_t)a.n_token * a.k);
    for (uint32_t i = 0; i < a.n_token; i++) {
        const size_t row = (uint32_t)p.rows[i] / a.in_divisor;
        memcpy(q + (size_t)i * a.k, a.q + row * a.k, a.k);
        to.scale.insert(to.scale.end(), a.q_scale + row * n_k_line,
                        a.q_scale + (row + 1) * n_k_line);
    }
    a.q = q;
    a.q_scale = to.scale.data();
    a.in_listed = true;
}

/* What U4 weights take: sums of groups of inputs, times 2^-9 and their scales. */
std::vector<float> sums_of_inputs(const product_args &a, uint32_t n_row)
{
    const uint32_t group = K_LINE / max(a.pack.n_group, 1u);
    std::vector<float> sums((size_t)n_row * a.k / group);
    for (size_t i = 0; i < sums.size(); i++) {
        double sum = 0.0;
        for (uint32_t j = 0; j < group; j++) sum += f32_from_e4m3(a.q[i * group + j]);
        sums[i] = (float)sum * a.q_scale[i * group / K_LINE] / 512.0f;
    }
    return sums;
}

/* Runs one kernel; tile: rows of a task, or that the kernel takes at once. */
void run_args(kernel which, problem &p, product_args a, bool mapped, uint32_t tile, uint32_t n_row,
              const sm90_limits &limits)
{
    a.n_token = n_row;
    const uint32_t n_tile = mapped ? map_rows(p, EXPERTS, tile, in_turn) : ceil_div(n_row, tile);
    a.tasks = p.a.tasks;
    a.n_task = p.a.n_task;
    a.rows = p.a.rows;
    a.feed = p.feed;
    listed in_list;
    if (which == MANY_LISTED || which == WIDE) list_inputs(p, a, in_list);
    const std::vector<float> sums = sums_of_inputs(a, a.in_listed ? a.n_token : p.n_in);
    a.input_sums = sums.data();
    std::vector<uint8_t> storage; /* codes of NaN, where nobody puts others */
    const size_t n_room = which == TURNED ? product_u4_turned_bytes(a.n, a.k) : 0;
    uint8_t *room = aligned(storage, n_room + 1);
    std::fill(room, room + n_room + 1, (uint8_t)0x7f);
    if (which == FEW && mapped) handed_begin(a.handed);
    cudaStream_t stream;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cudaError_t e = which == FEW        ? product_few(a, tile, n_tile, limits, stream)
                    : which == WIDE     ? product_fp8_wide(a, n_tile, limits, stream)
                    : which == TURNED   ? product_u4_turned(a, room, n_tile, limits, stream)
                    : a.pack.tile_bytes ? product_u4_sm90(a, n_tile, limits, stream)
                    : a.int8            ? product_int8_sm90(a, n_tile, limits, stream)
                                        : product_fp8_sm90(a, n_tile, limits, stream);
    assert_int_equal(e, cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_true(p.feed[0] == 0 && p.feed[1] == 0 && room[n_room] == 0x7f);
    if (which == FEW && mapped) handed_end();
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* The same, on fresh outputs. */
std::vector<float> run(kernel which, problem &p, bool mapped, uint32_t tile, uint32_t n_row,
                       const sm90_limits &limits)
{
    std::vector<float> storage;
    const size_t n = (size_t)(p.a.n_token + 1) * p.a.out_stride;
    product_args a = p.a;
    a.out = aligned(storage, n);
    std::fill(a.out, a.out + n, guard);
    run_args(which, p, a, mapped, tile, n_row, limits);
    return std::vector<float>(a.out, a.out + n);
}

/* The codes that one kernel makes of gate and up are those of the SwiGLU of the sums `want`, and
 * rows of nobody stay as they were. */
void check_swiglu(kernel which, problem &p, bool mapped, const std::vector<float> &want,
                  const sm90_limits &limits)
{
    const uint32_t inner = p.a.n / 2, n_group = inner / K_LINE, poison = 0x5a;
    const size_t n_row = p.a.n_token + 1;
    std::vector<uint8_t> storage;
    std::vector<float> scale(n_row * n_group, guard);
    product_args a = p.a;
    a.out_q = aligned(storage, n_row * inner);
    a.out_scale = scale.data();
    memset(a.out_q, (int)poison, n_row * inner);
    run_args(which, p, a, mapped, tile_of(which), p.a.n_token, limits);
    for (size_t i = 0; i < n_row * n_group; i++) {
        const float *g = &want[i / n_group * a.out_stride + i % n_group * K_LINE], *u = g + inner;
        const uint8_t *q = a.out_q + i * K_LINE;
        float v[K_LINE], amax = 0.0f;
        for (int j = 0; j < K_LINE; j++) {
            v[j] = silu(g[j]) * u[j];
            amax = fmaxf(amax, fabsf(v[j]));
        }
        const bool none = g[0] == guard;
        const float s = fp8_scale(amax);
        assert_true(scale[i] == (none ? guard : s));
        for (int j = 0; j < K_LINE; j++) {
            assert_int_equal(q[j], none ? poison : float_to_e4m3(v[j] * fp8_inverse(s)));
        }
    }
}

/* The sum of products, with the outputs that nobody computes left alone. */
void check_sums(const problem &p, bool mapped, const std::vector<float> &got)
{
    double error = 0.0, norm = 0.0;
    const product_args &a = p.a;
    const uint32_t n_k_line = a.k / K_LINE;
    for (uint32_t r = 0; r <= a.n_token; r++) {
        const uint32_t e = mapped ? r % 4 : 0;
        for (uint32_t col = 0; col < a.out_stride; col++) {
            const float out = got[(size_t)r * a.out_stride + col];
            if (r == a.n_token || e >= p.n_expert || col >= a.n) {
                assert_true(out == guard);
                continue;
            }
            const uint8_t *w = p.w.data() + ((size_t)e * a.n + col) * a.k;
            const uint8_t *x = a.q + (size_t)(r / a.in_divisor) * a.k;
            const float *xs = a.q_scale + (size_t)(r / a.in_divisor) * n_k_line;
            double sum = 0.0;
            for (uint32_t i = 0; i < a.k; i++) {
                sum += (double)(f32_from_e4m3(w[i]) * f32_from_e4m3(x[i])) *
                       (double)(scale_of(p, e, col, i) * xs[i / K_LINE]);
            }
            error += ((double)out - sum) * ((double)out - sum);
            norm += sum * sum;
        }
    }
    assert_true(sqrt(error / norm) < 1e-5);
}

/* Rows of bf16 are the sums `want`, rounded. */
void check_rounded(kernel which, problem &p, const std::vector<float> &want,
                   const sm90_limits &limits)
{
    const size_t n = want.size();
    std::vector<bf16> storage;
    product_args a = p.a;
    a.out_h = aligned(storage, n);
    for (size_t i = 0; i < n; i++) a.out_h[i] = __float2bfloat16_rn(guard);
    run_args(which, p, a, true, tile_of(which), p.a.n_token, limits);
    for (size_t i = 0; i < n; i++) {
        assert_true(__bfloat162float(a.out_h[i]) == to_bf16_and_back(want[i]));
    }
}

void check(uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor, bool mapped,
           const pack4 &pack = {}, bool by_row = false)
{
    problem p;
    make(p, n_row, n, k, in_divisor, mapped);
    if (by_row) make_row_scales(p);
    if (pack.tile_bytes) make_u4(p, pack);
    sm90_limits roomy = {}, split = {}, tight = {}, tight_many = {};
    assert_int_equal(product_few_init(&roomy), cudaSuccess);
    assert_int_equal(product_fp8_sm90_init(), cudaSuccess);
    assert_int_equal(product_u4_sm90_init(), cudaSuccess);
    assert_int_equal(product_u4_turned_init(), cudaSuccess);
    roomy.n_sm = N_SM;
    tight_many.n_sm = 1; /* one block walks over all tiles */
    for (auto &row : tight.few) {
        for (uint32_t &count : row) count = 2; /* and n_sm is 0: blocks walk over all tiles */
    }
    if (pack.tile_bytes) tight.n_sm = 1; /* as many blocks as it holds */
    split = tight;                       /* the blocks of a cluster share the K of a tile */
    const std::vector<float> want = run(MANY, p, mapped, PRODUCT_LARGE_TILE, n_row, roomy);
    check_sums(p, mapped, want);
    const bool turns = !mapped && product_u4_turns(pack);
    for (const sm90_limits &limits : {roomy, tight_many}) {
        if (turns)
            assert_true(run(TURNED, p, false, PRODUCT_LARGE_TILE, n_row, limits) == want);
    }
    if (n % (2 * K_LINE) == 0) {
        for (const sm90_limits &limits : {roomy, tight_many}) {
            check_swiglu(MANY, p, mapped, want, limits);
            if (turns) check_swiglu(TURNED, p, false, want, limits);
            if (mapped) check_swiglu(MANY_LISTED, p, mapped, want, limits);
        }
    }
    if (mapped) {
        for (const sm90_limits &limits : {roomy, tight_many}) {
            assert_true(run(MANY_LISTED, p, mapped, PRODUCT_LARGE_TILE, n_row, limits) == want);
            check_rounded(MANY_LISTED, p, want, limits);
        }
    }
    for (uint32_t tile : {8u, 16u, 32u, 64u}) {
        if (pack.tile_bytes && tile % 24 != 8) continue; /* 8 and 32 */
        split.n_sm = (n_row / tile + EXPERTS) * ceil_div(n, 64) / 2 + 1;
        for (const sm90_limits &limits : {roomy, split, tight}) {
            assert_true(run(FEW, p, mapped, tile, n_row, limits) == want);
        }
        if (mapped) assert_true(run(MANY, p, mapped, tile, n_row, roomy) == want);
        if (pack.tile_bytes) continue;
        if (mapped) continue;
        const uint32_t some = min(n_row, tile / 2 + 1);
        const std::vector<float> few = run(FEW, p, false, tile, some, roomy);
        const size_t n_value = (size_t)some * p.a.out_stride;
        assert_memory_equal(few.data(), want.data(), n_value * sizeof(float));
        for (size_t i = n_value; i < few.size(); i++) assert_true(few[i] == guard);
    }
}

/* Where a multiprocessor has no room for a block for each of eight K parts, blocks make two each. */
void check_two_parts(uint32_t n_row, uint32_t tile, uint32_t n_sm, const pack4 &pack = {})
{
    problem p;
    sm90_limits roomy = {}, few = {};
    make(p, n_row, 64, 24 * K_LINE, 1, false);
    if (pack.tile_bytes) make_u4(p, pack);
    roomy.n_sm = 4 * N_SM;
    few.n_sm = n_sm;
    const std::vector<float> want = run(MANY, p, false, PRODUCT_LARGE_TILE, n_row, roomy);
    check_sums(p, false, want);
    assert_true(run(FEW, p, false, tile, n_row, roomy) == want);
    assert_int_equal(last_cluster(), 8);
    assert_true(run(FEW, p, false, tile, n_row, few) == want);
    assert_int_equal(last_cluster(), 4);
}

/* Where there is no room for these either, a block makes a whole tile. With a multiprocessor to
 * itself it takes most of its shared memory, and with two tiles a multiprocessor as much as it
 * needs. */
void check_whole_tiles(uint32_t n_row)
{
    problem p;
    sm90_limits one = {}, two = {};
    make(p, n_row, 128, 24 * K_LINE, 1, false);
    one.n_sm = 2;
    two.n_sm = 1;
    two.few[3][0] = 1;
    const std::vector<float> want = run(MANY, p, false, PRODUCT_LARGE_TILE, n_row, one);
    check_sums(p, false, want);
    assert_true(run(FEW, p, false, 64, n_row, one) == want);
    assert_int_equal(last_cluster(), 1);
    assert_true(last_shared() >= 200 << 10);
    assert_true(run(FEW, p, false, 64, n_row, two) == want);
    assert_int_equal(last_cluster(), 1);
    assert_true(last_shared() < 200 << 10);
}

/* The same, with tiles that are cut between blocks. */
void check_cut(uint32_t n_row, uint32_t n, uint32_t k, const pack4 &pack)
{
    handed_launches = 0;
    check(n_row, n, k, 4, true, pack);
    assert_true(handed_launches > 0);
}

/* Tasks of up to 256 rows give the bits of those of 128. */
void check_wide(uint32_t n_row, uint32_t n, uint32_t k, bool by_row = false)
{
    problem p;
    make(p, n_row, n, k, 1, true);
    if (by_row) make_row_scales(p);
    sm90_limits limits = {};
    assert_int_equal(product_fp8_sm90_init(), cudaSuccess);
    assert_int_equal(product_fp8_wide_init(), cudaSuccess);
    limits.n_sm = N_SM;
    const std::vector<float> want = run(MANY, p, true, PRODUCT_LARGE_TILE, n_row, limits);
    check_sums(p, true, want);
    for (uint32_t n_sm : {(uint32_t)N_SM, 1u}) {
        limits.n_sm = n_sm;
        check_rounded(WIDE, p, want, limits);
        if (n % (2 * K_LINE) == 0) check_swiglu(WIDE, p, true, want, limits);
    }
}

void test_plain(void **)
{
    check(5, 80, 128, 1, false);        /* one K line */
    check(70, 144, 3 * 128, 1, false);  /* one K part */
    check(17, 64, 6 * 128, 1, false);   /* two of three K lines */
    check(3, 208, 12 * 128, 1, false);  /* four */
    check(1, 64, 24 * 128, 1, false);   /* eight */
    check(140, 256, 2 * 128, 1, false); /* two row tiles of 128; gate and up */
    if (!all_shapes) return;
    check(65, 128, 24 * 128, 1, false);
    check(140, 144, 2 * 128, 1, false);
    check(131, 512, 6 * 128, 1, false);
}

void test_two_parts(void **)
{
    check_two_parts(5, 8, 1);
    check_two_parts(29, 32, 1);
    check_two_parts(50, 64, 2);
    check_two_parts(3, 8, 1, packed_as(1, DTYPE_F16, true));
    check_two_parts(33, 64, 2, packed_as(1, DTYPE_F16, true));
}

void test_whole_tiles(void **)
{
    check_whole_tiles(64);
}

void test_row_scales(void **)
{
    check(17, 64, 6 * 128, 1, false, {}, true); /* two parts of K */
    check(100, 256, 2 * 128, 3, true, {}, true);
    check_wide(300, 256, 2 * 128, true);
    if (!all_shapes) return;
    check(5, 80, 128, 1, false, {}, true);
    check(131, 512, 3 * 128, 1, false, {}, true);
    check(61, 80, 6 * 128, 4, true, {}, true);
    check_wide(530, 144, 128, true);
}

void test_mapped(void **)
{
    check(61, 80, 6 * 128, 4, true);
    check(300, 144, 128, 2, true);     /* tasks of 75 rows: both warpgroups have some */
    check(100, 256, 2 * 128, 3, true); /* gate and up */
    if (!all_shapes) return;
    check(40, 144, 2 * 128, 1, true);
    check(37, 64, 24 * 128, 9, true);
    check(100, 256, 6 * 128, 3, true);
    check(300, 768, 128, 2, true);
}

/* An expert of so many outputs has one part of K, which blocks cut anywhere. */
void test_cut_of_one_part(void **)
{
    problem p;
    sm90_limits roomy = {}, tight = {};
    make(p, 1, 4096 + 64, 16 * 128, 1, true);
    make_u4(p, packed_as(1, DTYPE_F16, true));
    roomy.n_sm = N_SM;
    tight.n_sm = 1; /* four blocks for 65 tiles */
    handed_launches = 0;
    const std::vector<float> want = run(MANY, p, true, PRODUCT_LARGE_TILE, 1, roomy);
    assert_true(run(FEW, p, true, 8, 1, tight) == want);
    assert_int_equal(handed_launches, 1);
}

/* Experts of 50, 175 and 230 rows: one, three and four blocks of 64; of 312: two tasks, three
 * blocks and two. */
void test_wide(void **)
{
    check_wide(200, 256, 5 * 128);
    check_wide(700, 272, 128);
    check_wide(920, 256, 128);
    check_wide(1248, 256, 128);
}

/* Groups of a K line, types of scales, zeros; outputs that end in half a tile. */
void test_u4(void **)
{
    check(131, 192, 2 * 128, 1, false, packed_as(1, DTYPE_F16, true));
    check(131, 256, 6 * 128, 1, false, packed_as(1, DTYPE_F16, false)); /* two parts of K */
    check(70, 256, 2 * 128, 1, false, packed_as(2, DTYPE_BF16, false));
    check(37, 64, 6 * 128, 9, true, packed_as(1, DTYPE_BF16, true));
    check(100, 256, 2 * 128, 2, true, packed_as(1, DTYPE_F32, true));
    check(300, 272, 128, 2, true, packed_as(2, DTYPE_F16, true));
    check(230, 80, 128, 2, true, packed_as(1, DTYPE_F16, true)); /* tasks of 57 rows, */
    check(430, 80, 128, 1, true, packed_as(1, DTYPE_F16, true)); /* of 107 */
    check_cut(29, 144, 16 * 128, packed_as(1, DTYPE_F16, true));  /* four parts of four K lines */
    check_cut(45, 208, 18 * 128, packed_as(2, DTYPE_BF16, true)); /* two of nine */
    if (!all_shapes) return;
    check(131, 192, 6 * 128, 1, false, packed_as(1, DTYPE_F16, true));
    check(37, 64, 24 * 128, 9, true, packed_as(1, DTYPE_BF16, true));
    check(300, 256, 3 * 128, 2, true, packed_as(1, DTYPE_F32, true));
}

/* The scale of every 16 bits that are a finite number, and of floats. */
void test_u4_scales_are_exact(void **)
{
    for (dtype type : {DTYPE_F16, DTYPE_BF16, DTYPE_F32}) {
        const pack4 pack = packed_as(1, type, false);
        const u4_form form = u4_form_of(pack, false);
        std::vector<uint8_t> tile(pack.tile_bytes);
        for (uint32_t i = 0; i < 65536; i++) {
            const uint16_t half = (uint16_t)i;
            float value = type == DTYPE_F16 ? f32_from_f16(half) : f32_from_bf16(half);
            if (type == DTYPE_F32) value *= 1.2345678f;
            const uint32_t at = i % PACK4_ROWS;
            put_scale(pack, tile.data() + PACK4_CODE_BYTES + at * pack4_scale_bytes(&pack), value);
            const float want = ldexpf(value, 9),
                        got = u4_scale(form, (const char *)tile.data(), at);
            if (!isfinite(value)) continue;
            if (memcmp(&want, &got, sizeof want)) fail_msg("%04x: %a, not %a", i, got, want);
        }
    }
}

/* Codes less their zeros, and as they are stored with zeros of their own. */
void test_u4_codes_are_exact(void **)
{
    std::vector<uint8_t> tile(PACK4_CODE_BYTES + PACK4_ROWS * 3);
    const pack4 pack = packed_as(1, DTYPE_F16, true);
    const u4_form form = u4_form_of(pack, false), behind = u4_form_of(pack, true);
    for (uint32_t zero = 0; zero <= PACK4_ZERO_MAX; zero++) {
        tile[form.zeros_at + 3] = (uint8_t)zero;
        const float off = u4_zero_behind(u4_zero(behind, (const char *)tile.data(), 3));
        assert_true(off == -(float)zero);
        for (uint32_t word = 0; word < 65536; word++) {
            uint32_t out[2], stored[2];
            const uint32_t z = u4_zero(form, (const char *)tile.data(), 3), zeros[2] = {z, z};
            u4_rows(word | word * 7 << 16, zeros, out);
            u4_rows_stored(word | word * 7 << 16, stored);
            for (int i = 0; i < 8; i++) {
                const uint32_t code = (word | word * 7 << 16) >> (i / 2 * 8 + i % 2 * 4) & 15;
                const float want = ldexpf((float)((int)code - (int)zero), -9);
                const float got = f32_from_e4m3((uint8_t)(out[i % 2] >> i / 2 * 8));
                const float whole = f32_from_e4m3((uint8_t)(stored[i % 2] >> i / 2 * 8));
                if (!(got == want)) fail_msg("%u less %u: %a", code, zero, (double)got);
                if (whole != ldexpf((float)code, -9)) fail_msg("%u: %a", code, (double)whole);
            }
        }
    }
}

} // namespace

/* Sums of inputs are exact but for one rounding, and the same whoever makes them. Groups whose
 * inputs have one sign reach sums that no float holds. */
void test_u4_input_sums(void **)
{
    const uint32_t n_row = 13, k = 3 * K_LINE;
    cuda_backend c = {};
    problem p;
    make(p, n_row, 64, k, 1, false);
    uint8_t *q = (uint8_t *)p.a.q;
    for (uint32_t i = 0; i < 2 * k; i++) q[i] = (uint8_t)(i < k ? q[i] & 0x7f : q[i] | 0x78);
    for (uint32_t i = 0; i < 2 * k; i++)
        if ((q[i] & 0x7f) == 0x7f) q[i]--;
    c.properties.sharedMemPerBlockOptin = 227 << 10;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), cudaSuccess);
    for (uint32_t n_group : {1u, 2u, 4u}) {
        p.a.pack.n_group = n_group;
        const std::vector<float> want = sums_of_inputs(p.a, n_row);
        std::vector<float> got(want.size() + 1, guard);
        assert_int_equal(
            cuda_input_sums(&c, q, p.a.q_scale, n_row, k, {got.data(), K_LINE / n_group}, "sums"),
            FATHOM_OK);
        assert_int_equal(cudaStreamSynchronize(c.stream), cudaSuccess);
        assert_memory_equal(got.data(), want.data(), want.size() * sizeof(float));
        assert_true(got.back() == guard);
    }
    assert_int_equal(cudaStreamDestroy(c.stream), cudaSuccess);
}

/* What an output of int8 codes is: with scales of rows one rounding of the scales' product and one
 * of the whole, else an ascending sum. */
float int8_output(const product_args &a, bool by_row, uint32_t e, uint32_t r, uint32_t n)
{
    const uint32_t n_k_line = a.k / K_LINE, x = r / a.in_divisor;
    const int8_t *w = (const int8_t *)a.w + e * a.w_stride + (size_t)n * a.k;
    const int8_t *q = (const int8_t *)a.q + (size_t)x * a.k;
    const float *ws = a.w_scale + e * a.w_scale_step + n / K_LINE * a.scale_stride;
    int32_t all = 0;
    double sum = 0.0;
    for (uint32_t line = 0; line < n_k_line; line++) {
        int32_t part = 0;
        for (uint32_t i = line * K_LINE; i < (line + 1) * K_LINE; i++) part += w[i] * q[i];
        all += part;
        if (!by_row) sum += (double)part * a.q_scale[x * n_k_line + line] * ws[line];
    }
    if (by_row)
        return (float)all * (a.q_scale[x * n_k_line] * a.row_scale[e * a.row_scale_step + n]);
    return (float)sum;
}

/* Weights row by row to tiles. */
void tile_weights(problem &p, product_args &a, std::vector<uint8_t> &storage)
{
    const size_t stride = tiled_bytes(a.n, a.k);
    uint8_t *to = aligned(storage, stride * p.n_expert);
    for (size_t i = 0; i < (size_t)p.n_expert * a.n * a.k; i++) {
        const size_t e = i / a.k / a.n;
        to[e * stride + tiled_at((uint32_t)(i / a.k % a.n), (uint32_t)(i % a.k), a.k)] =
            ((const uint8_t *)a.w)[i];
    }
    a.w = to;
    a.w_stride = stride;
    a.tiled = true;
}

/* The kernels of sm_90 give the bits `want` of the portable ones, whatever the tile and however many
 * clusters there are. */
void check_int8_sm90(problem &p, bool mapped, const std::vector<float> &want)
{
    std::vector<uint8_t> storage;
    problem on90 = p;
    product_args &a = on90.a;
    const uint32_t n_row = a.n_token;
    sm90_limits roomy = {}, split = {}, tight = {}, tight_many = {};
    tile_weights(p, a, storage);
    assert_int_equal(product_few_init(&roomy), cudaSuccess);
    assert_int_equal(product_int8_sm90_init(), cudaSuccess);
    roomy.n_sm = N_SM;
    tight_many.n_sm = 1;
    for (auto &row : tight.few) {
        for (uint32_t &count : row) count = 2;
    }
    split = tight;
    for (uint32_t tile : {8u, 16u, 32u, 64u}) {
        split.n_sm = (n_row / tile + EXPERTS) * ceil_div(a.n, 64) / 2 + 1;
        for (const sm90_limits &limits : {roomy, split, tight})
            assert_true(run(FEW, on90, mapped, tile, n_row, limits) == want);
    }
    for (const sm90_limits &limits : {roomy, tight_many}) {
        assert_true(run(MANY, on90, mapped, PRODUCT_LARGE_TILE, n_row, limits) == want);
        if (!mapped) continue;
        assert_true(run(MANY_LISTED, on90, mapped, PRODUCT_LARGE_TILE, n_row, limits) == want);
        check_rounded(MANY_LISTED, on90, want, limits);
    }
}

/* Every tile gives what is said there, and where sums are rounded the bits of every other one. */
void check_int8(uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor, bool mapped,
                bool by_row)
{
    problem p;
    cuda_backend c = {};
    make(p, n_row, n, k, in_divisor, mapped);
    product_args &a = p.a;
    uint32_t seed = 5;
    uint8_t *w = aligned(p.tiled, (size_t)p.n_expert * n * k), *q = (uint8_t *)a.q;
    for (size_t i = 0; i < (size_t)p.n_expert * n * k; i++) w[i] = (uint8_t)next(seed);
    for (size_t i = 0; i < (size_t)p.n_in * k; i++)
        q[i] = (uint8_t)(int8_t)((int)(next(seed) % 255) - 127);
    for (float &s : p.w_scale) s = 0.01f * (float)(1 + next(seed) % 100);
    for (float &s : p.q_scale) s = 0.01f * (float)(1 + next(seed) % 100);
    a.w = w;
    a.int8 = true;
    a.tiled = false;
    a.w_stride = (size_t)n * k;
    a.block_row = by_row ? 1 : K_LINE;
    a.block_col = by_row ? 1 << 30 : K_LINE;
    if (by_row) {
        make_row_scales(p);
        for (size_t i = 0; i < p.q_scale.size(); i++) /* a row has one */
            p.q_scale[i] = p.q_scale[i - i % (k / K_LINE)];
    }
    c.properties.sharedMemPerBlockOptin = 227 << 10;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), cudaSuccess);
    std::vector<float> first;
    for (uint32_t tile : {8u, 16u, 32u, (uint32_t)PRODUCT_LARGE_TILE}) {
        std::vector<float> got((size_t)(n_row + 1) * a.out_stride, guard);
        a.out = got.data();
        const uint32_t n_tile = mapped ? map_rows(p, EXPERTS, tile, in_turn) : ceil_div(n_row, tile);
        assert_int_equal(product_i8(&c, a, tile, n_tile, "int8"), FATHOM_OK);
        assert_int_equal(cudaStreamSynchronize(c.stream), cudaSuccess);
        if (first.empty()) first = got;
        assert_true(got == first);
    }
    double error = 0.0, norm = 0.0;
    for (uint32_t r = 0; r <= n_row; r++) {
        const uint32_t e = mapped ? r % 4 : 0;
        for (uint32_t col = 0; col < a.out_stride; col++) {
            const float out = first[(size_t)r * a.out_stride + col];
            if (r == n_row || e >= p.n_expert || col >= n) {
                assert_true(out == guard);
                continue;
            }
            const float want = int8_output(a, by_row, e, r, col);
            if (by_row) assert_true(out == want);
            error += ((double)out - want) * ((double)out - want);
            norm += (double)want * want;
        }
    }
    assert_true(sqrt(error / norm) < 1e-6);
    assert_int_equal(cudaStreamDestroy(c.stream), cudaSuccess);
    p.a.out = NULL;
    if (n % 16 == 0) check_int8_sm90(p, mapped, first);
}

void test_int8(void **)
{
    for (bool by_row : {true, false}) {
        check_int8(1, 80, 128, 1, false, by_row);
        check_int8(13, 200, 6 * 128, 1, false, by_row); /* two parts of K, a cut tile */
        check_int8(17, 208, 12 * 128, 1, false, by_row);
        check_int8(61, 80, 3 * 128, 4, true, by_row);
        check_int8(140, 80, 2 * 128, 1, false, by_row); /* two row tiles of 128 */
        if (!all_shapes) continue;
        check_int8(140, 80, 24 * 128, 1, false, by_row);
        check_int8(300, 144, 2 * 128, 2, true, by_row);
    }
}

int main(int argc, char **argv)
{
    all_shapes = argc > 1 && strcmp(argv[1], "all") == 0;
    simt_set_capability(9, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_two_parts),
        cmocka_unit_test(test_whole_tiles),
        cmocka_unit_test(test_row_scales),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_mapped),
        cmocka_unit_test(test_cut_of_one_part),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_u4),
        cmocka_unit_test(test_u4_scales_are_exact),
        cmocka_unit_test(test_u4_input_sums),
        cmocka_unit_test(test_u4_codes_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

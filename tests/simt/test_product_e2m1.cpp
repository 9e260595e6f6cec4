/* test_product_e2m1.cpp - the products of packed E2M1 weights on the simulated GPU: weights are
 * exact; few rows at a time or many, in clusters or not, and the portable kernel give the same bits
 * and write nothing else; so does the kernel of the experts' second half */
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
#include "backend/cuda/e2m1.cuh"
#include "backend/cuda/sm90/down_few.cuh"
#include "backend/cuda/sm90/product_e2m1.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "simt/product_tasks.h"
#include "simt/simt_fault.h"

namespace
{

enum { EXPERTS = 3, GUARD_COLS = 8, N_SM = 4 };

const float guard = -1234.5f;

uint32_t next(uint32_t &state)
{
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

/* A matrix with a byte a code. */
struct source {
    weight_source s; /* first */
    std::vector<uint8_t> codes, scales;
};

void source_codes(const weight_source *s, uint32_t row, uint32_t col, uint32_t n, uint8_t *out)
{
    memcpy(out, ((const source *)s)->codes.data() + (size_t)row * s->n_col + col, n);
}

float source_scale(const weight_source *s, uint32_t row, uint32_t block, int *zero)
{
    const size_t i = (size_t)row * (s->n_col / s->form.block_col) + block;
    *zero = 0;
    return weight_scale_value(s->form.scale_type, ((const source *)s)->scales.data(), i) *
           s->global;
}

void make_source(source &m, bool is_mx, uint32_t n_row, uint32_t n_col, uint32_t seed)
{
    const uint32_t block = is_mx ? 32 : 16;
    m.s = {};
    m.s.form.code = CODE_E2M1;
    m.s.form.scale_type = is_mx ? DTYPE_U8 : DTYPE_F8_E4M3;
    m.s.form.block_row = 1;
    m.s.form.block_col = block;
    m.s.n_row = n_row;
    m.s.n_col = n_col;
    m.s.global = is_mx ? 1 : 0x1.8p-9f;
    m.s.codes = source_codes;
    m.s.scale = source_scale;
    m.codes.resize((size_t)n_row * n_col);
    m.scales.resize((size_t)n_row * n_col / block);
    for (uint8_t &c : m.codes) c = (uint8_t)(next(seed) % 16);
    for (uint8_t &s : m.scales)
        s = (uint8_t)(is_mx ? 112 + next(seed) % 6 : 0x28 + next(seed) % 32);
}

/* A weight without what all scales are multiplied by. */
float weight_of(const source &m, uint32_t row, uint32_t col)
{
    const weight_source &s = m.s;
    int zero;
    const float scale = source_scale(&s, row, col / s.form.block_col, &zero) / s.global;
    return e2m1_value(m.codes[(size_t)row * s.n_col + col]) * scale;
}

/* Packed, of a row of tiles `stride` bytes from the next. */
void pack_into(const pack4 &pack, const source &m, uint8_t *to)
{
    tensor_view v = {};
    v.n_row = m.s.n_row;
    v.n_col = m.s.n_col;
    v.source = &m.s;
    const size_t strip = pack4_bytes(&pack, PACK4_ROWS, v.n_col);
    for (uint32_t row = 0; row < v.n_row; row += PACK4_ROWS)
        pack4_rows(&pack, &v, row, to + row / PACK4_ROWS * strip);
}

float bf16_half(uint32_t pair, uint32_t high)
{
    return f32_from_bf16((uint16_t)(pair >> 16 * high));
}

/* What a warp's lanes have of the K lines of one tile of rows. */
template <int G> void check_weights(const source &m, const uint8_t *tiles, uint32_t tile_bytes)
{
    enum { WORDS = G / 2 };
    for (uint32_t i = 0; i < m.s.n_col / PACK4_COLS * 128; i++) {
        const uint32_t lane = i % 32, warp = i / 32 % 4, g = lane / 4, t = lane % 4;
        const char *tile = (const char *)tiles + i / 128 * tile_bytes;
        uint32_t words[8], scales[WORDS];
        memcpy(words, tile + warp * 1024 + lane * 16, 16);
        memcpy(words + 4, tile + warp * 1024 + 512 + lane * 16, 16);
        e2m1_load_scales(tile + PACK4_CODE_BYTES + (warp * 8 + g) * 2 * G, scales);
        for (uint32_t step = 0; step < 8; step++) {
            struct e2m1_step of[2];
            const uint32_t pair = step / 2;
            e2m1_weights<G>(words[2 * pair], words[2 * pair + 1], scales[pair * WORDS / 4], pair,
                            of);
            for (uint32_t j = 0; j < 8; j++) {
                const uint32_t row = warp * 16 + j / 2 % 2 * 8 + g;
                const uint32_t col = i / 128 * 128 + step * 16 + j / 4 * 8 + 2 * t + j % 2;
                const float got = bf16_half(of[step % 2].v[j / 2], j % 2) * e2m1_factor<G>();
                const float want = weight_of(m, row, col);
                if (got != want && !(isnan(want) && !isfinite(got)))
                    fail_msg("[%u][%u] is %a, not %a", row, col, got, want);
            }
        }
    }
}

/* All codes with all scales, but for exponents beyond what weights have. */
void test_weights_are_exact(void **)
{
    for (bool is_mx : {false, true}) {
        source m;
        const uint32_t block = is_mx ? 32 : 16, n_col = 8 * 128;
        make_source(m, is_mx, PACK4_ROWS, n_col, 3);
        const pack4 pack = pack4_of(&m.s.form);
        const uint32_t n_block = n_col / block, range = is_mx ? E2M1_EXPONENT_MAX - 16 + 1 : 256;
        m.s.global = 1;
        for (uint32_t i = 0; i < m.scales.size(); i++)
            m.scales[i] = (uint8_t)(i % range + (is_mx ? 16 : 0));
        for (uint32_t i = 0; i < m.codes.size(); i++)
            m.codes[i] = (uint8_t)((i + i / block + i / n_block) % 16);
        if (is_mx) m.scales[5] = 255; /* not a number */
        std::vector<uint64_t> storage(pack4_bytes(&pack, PACK4_ROWS, n_col) / 8);
        uint8_t *tiles = (uint8_t *)storage.data();
        pack_into(pack, m, tiles);
        if (is_mx)
            check_weights<4>(m, tiles, pack.tile_bytes);
        else
            check_weights<8>(m, tiles, pack.tile_bytes);
        for (uint32_t row = 0; row < PACK4_ROWS && !is_mx; row++)
            for (uint32_t col = 0; col < n_col; col++) {
                const float one = 1, want = weight_of(m, row, col);
                const float got = pack4_value(pack, (const char *)tiles, 8, &one, row, col);
                assert_true(got == want || (isnan(got) && isnan(want)));
            }
    }
}

struct problem {
    product_args a;
    source w[EXPERTS];
    std::vector<uint64_t> tiles;
    std::vector<float> global;
    std::vector<bf16> h;
    std::vector<int32_t> expert; /* of a row; EXPERTS: none */
    std::vector<task> tasks;
    std::vector<int32_t> rows;
    int32_t n_task, feed[2];
    std::vector<bf16> rounded; /* not empty: written instead of floats */
};

void make(problem &p, bool is_mx, uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor,
          bool mapped)
{
    product_args &a = p.a;
    const uint32_t n_expert = mapped ? EXPERTS : 1, n_in = (n_row + in_divisor - 1) / in_divisor;
    uint32_t seed = 17;
    a = {};
    p.expert.clear();
    for (uint32_t r = 0; r < n_row; r++) p.expert.push_back(mapped ? in_turn(r) : 0);
    for (uint32_t e = 0; e < n_expert; e++) make_source(p.w[e], is_mx, n, k, e);
    a.pack = pack4_of(&p.w[0].s.form);
    a.n = n;
    a.k = k;
    a.n_token = n_row;
    a.in_divisor = in_divisor;
    a.out_stride = n + GUARD_COLS;
    a.w_stride = pack4_bytes(&a.pack, n, k);
    a.w_scale_step = pack4_tile_rows(n);
    p.tiles.assign((a.w_stride * n_expert + 16) / 8, 0);
    uint8_t *tiles = (uint8_t *)(((uintptr_t)p.tiles.data() + 15) / 16 * 16);
    for (uint32_t e = 0; e < n_expert; e++) pack_into(a.pack, p.w[e], tiles + e * a.w_stride);
    for (uint32_t i = 0; i < a.w_scale_step * n_expert; i++)
        p.global.push_back(0.001f * (float)(1 + i));
    p.h.resize((size_t)n_in * k + 8);
    bf16 *h = (bf16 *)(((uintptr_t)p.h.data() + 15) / 16 * 16);
    for (size_t i = 0; i < (size_t)n_in * k; i++)
        h[i] = __float2bfloat16_rn((float)(next(seed) % 2001) / 1000 - 1);
    a.h = h;
    a.w = tiles;
    a.w_scale = p.global.data();
}

/* Outputs of the portable kernel, or with limits of that of sm_90. */
std::vector<float> run(problem &p, bool mapped, uint32_t tile, const sm90_limits *limits)
{
    cuda_backend c = {};
    const size_t n = (size_t)(p.a.n_token + 1) * p.a.out_stride;
    std::vector<float> out(n, guard);
    const uint32_t n_tile =
        mapped ? map_rows(p, EXPERTS, tile, [&](uint32_t r) { return p.expert[r]; })
               : ceil_div(p.a.n_token, tile);
    product_args a = p.a;
    a.out = out.data();
    a.feed = p.feed;
    p.feed[0] = p.feed[1] = 0;
    a.out_h = p.rounded.empty() ? NULL : p.rounded.data();
    c.properties.sharedMemPerBlockOptin = 227 << 10;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), cudaSuccess);
    if (limits && mapped) handed_begin(a.handed);
    if (limits && tile == PRODUCT_LARGE_TILE) {
        assert_int_equal(product_e2m1_sm90(a, n_tile, *limits, c.stream), cudaSuccess);
    } else if (limits) {
        assert_int_equal(product_few_e2m1(a, tile, n_tile, *limits, c.stream), cudaSuccess);
    } else {
        assert_int_equal(product_bf16_init(&c), FATHOM_OK);
        assert_int_equal(product_bf16(&c, a, tile, n_tile, "e2m1"), FATHOM_OK);
    }
    assert_int_equal(cudaStreamSynchronize(c.stream), cudaSuccess);
    if (limits && mapped) handed_end();
    assert_true(p.feed[0] == 0 && p.feed[1] == 0);
    assert_int_equal(cudaStreamDestroy(c.stream), cudaSuccess);
    return out;
}

void check_sums(const problem &p, const std::vector<float> &got)
{
    double error = 0.0, norm = 0.0;
    const product_args &a = p.a;
    for (uint32_t r = 0; r <= a.n_token; r++) {
        const uint32_t e = r < a.n_token ? (uint32_t)p.expert[r] : EXPERTS;
        for (uint32_t col = 0; col < a.out_stride; col++) {
            const float out = got[(size_t)r * a.out_stride + col];
            if (e >= EXPERTS || col >= a.n) {
                assert_true(out == guard);
                continue;
            }
            const bf16 *x = a.h + (size_t)(r / a.in_divisor) * a.k;
            double sum = 0.0;
            for (uint32_t i = 0; i < a.k; i++)
                sum += (double)weight_of(p.w[e], col, i) * (double)__bfloat162float(x[i]);
            sum *= (double)p.global[e * a.w_scale_step + col / PACK4_ROWS];
            error += ((double)out - sum) * ((double)out - sum);
            norm += sum * sum;
        }
    }
    assert_true(sqrt(error / norm) < 1e-6);
}

void check(bool is_mx, uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor, bool mapped)
{
    problem p;
    sm90_limits roomy = {}, split = {}, tight = {};
    make(p, is_mx, n_row, n, k, in_divisor, mapped);
    assert_int_equal(product_few_init(&roomy), cudaSuccess);
    roomy.n_sm = N_SM;
    tight.n_sm = 1; /* as many blocks as it holds walk over all tiles */
    for (auto &row : tight.few) {
        for (uint32_t &count : row) count = 2;
    }
    split = tight; /* the blocks of a cluster share the K of a tile */
    const std::vector<float> want = run(p, mapped, 32, NULL);
    check_sums(p, want);
    for (uint32_t tile : {8u, 16u, 32u, 64u}) {
        split.n_sm = (n_row / tile + EXPERTS) * ceil_div(n, 64) / 2 + 1;
        for (const sm90_limits &limits : {roomy, split, tight})
            assert_true(run(p, mapped, tile, &limits) == want);
    }
    assert_int_equal(product_e2m1_sm90_init(), cudaSuccess);
    for (const sm90_limits &limits : {roomy, tight})
        assert_true(run(p, mapped, PRODUCT_LARGE_TILE, &limits) == want);
}

/* Where a multiprocessor has no room for a block for each of eight K parts, blocks make two each. */
void check_two_parts(bool is_mx, uint32_t n_row, uint32_t tile, uint32_t n_sm)
{
    problem p;
    sm90_limits roomy = {}, few = {};
    make(p, is_mx, n_row, 64, 24 * 128, 1, false);
    roomy.n_sm = 4 * N_SM;
    few.n_sm = n_sm;
    const std::vector<float> want = run(p, false, 32, NULL);
    assert_true(run(p, false, tile, &roomy) == want);
    assert_int_equal(last_cluster(), 8);
    assert_true(run(p, false, tile, &few) == want);
    assert_int_equal(last_cluster(), 4);
}

void test_two_parts(void **)
{
    check_two_parts(false, 5, 8, 1);
    check_two_parts(true, 29, 32, 2);
}

void test_plain(void **)
{
    check(false, 5, 80, 128, 1, false);
    check(true, 17, 144, 3 * 128, 1, false);  /* one K part */
    check(false, 70, 200, 6 * 128, 1, false); /* two; a cut tile */
    check(false, 1, 64, 24 * 128, 1, false);  /* eight */
    check(true, 230, 196, 7 * 128, 1, false); /* tiles of many rows; of columns one is cut */
}

/* The portable kernel alone takes what ends in half a line of 128. */
void test_half_a_line(void **)
{
    for (bool mapped : {false, true}) {
        problem p;
        make(p, false, 13, 144, 11 * 64, 1, mapped);
        check_sums(p, run(p, mapped, 8, NULL));
        check_sums(p, run(p, mapped, 32, NULL));
    }
}

void test_mapped(void **)
{
    check(false, 61, 80, 6 * 128, 4, true);
    check(true, 100, 144, 2 * 128, 1, true);
    check(false, 37, 64, 12 * 128, 9, true);
    handed_launches = 0;
    check(false, 29, 144, 16 * 128, 4, true); /* tiles are cut between blocks */
    assert_true(handed_launches > 0);
}

/* Tasks of many rows, in their halves and quarters too; a tenth of the rows are nobody's. */
void check_many(bool is_mx, uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor)
{
    problem p;
    make(p, is_mx, n_row, n, k, in_divisor, true);
    for (uint32_t r = 0; r < n_row; r++)
        p.expert[r] = r % 10 < 5 ? 0 : r % 10 < 8 ? 1 : r % 10 == 8 ? 2 : EXPERTS;
    const std::vector<float> want = run(p, true, 32, NULL);
    check_sums(p, want);
    assert_int_equal(product_e2m1_sm90_init(), cudaSuccess);
    for (uint32_t n_sm : {1, 8}) {
        sm90_limits limits = {};
        limits.n_sm = n_sm;
        assert_true(run(p, true, PRODUCT_LARGE_TILE, &limits) == want);
        p.rounded.assign(want.size(), __float2bfloat16_rn(guard));
        run(p, true, PRODUCT_LARGE_TILE, &limits);
        for (size_t i = 0; i < want.size(); i++)
            assert_true(__bfloat162float(p.rounded[i]) == to_bf16_and_back(want[i]));
        p.rounded.clear();
    }
}

void test_many(void **)
{
    check_many(false, 300, 144, 2 * 128, 4); /* 128 and 22 rows, 90, 30 */
    check_many(true, 400, 80, 6 * 128, 1);   /* 128 and 72, 120, 40; two K parts */
}

/* The experts' second half of tokens with so many rows, the last of them the last expert's, by
 * down_few and row by row. */
void check_down(bool is_mx, uint32_t n_token, uint32_t n_used, uint32_t n, uint32_t k, bool shared)
{
    const uint32_t rows = n_used + 1, n_row = n_token * rows;
    uint32_t seed = 5;
    problem p;
    sm90_limits roomy = {};
    roomy.n_sm = N_SM;
    make(p, is_mx, n_row, n, k, 1, true);
    std::vector<int32_t> experts;
    std::vector<float> weights, gate_up, extra, want, y((size_t)n_token * n + GUARD_COLS, guard);
    for (uint32_t i = 0; i < n_row * 2 * k; i++)
        gate_up.push_back((float)(next(seed) % 4001) / 500 - 4);
    for (uint32_t r = 0; r < n_row; r++) {
        p.expert[r] = r % rows == n_used ? EXPERTS - 1 : (int32_t)(next(seed) % EXPERTS);
        if (r % rows < n_used) experts.push_back(p.expert[r]);
        if (r % rows < n_used) weights.push_back((float)(next(seed) % 1000) / 700);
        for (uint32_t i = 0; i < k; i += 4) {
            const float *g = &gate_up[(size_t)r * 2 * k + i];
            const float4 v = swiglu(*(const float4 *)g, *(const float4 *)(g + k));
            const float of[4] = {v.x, v.y, v.z, v.w};
            for (uint32_t j = 0; j < 4; j++)
                ((bf16 *)p.a.h)[(size_t)r * k + i + j] = __float2bfloat16_rn(of[j]);
        }
    }
    assert_int_equal(product_few_init(&roomy), cudaSuccess);
    const std::vector<float> out = run(p, true, 8, &roomy);
    check_sums(p, out);
    for (uint32_t i = 0; i < n_token * n; i++) {
        const uint32_t t = i / n;
        float sum = 0;
        extra.push_back((float)(next(seed) % 100) / 64);
        for (uint32_t r = 0; r < rows; r++)
            sum = fmaf(r < n_used ? weights[t * n_used + r] : 1.0f,
                       to_bf16_and_back(out[(size_t)(t * rows + r) * p.a.out_stride + i % n]), sum);
        want.push_back(shared ? sum + extra[i] : sum);
    }
    down_args a = {};
    a.w = (const uint8_t *)p.a.w;
    a.w_stride = p.a.w_stride;
    a.pack = p.a.pack;
    a.w_scale = p.a.w_scale;
    a.w_scale_step = p.a.w_scale_step;
    a.n = n;
    a.k = k;
    a.n_token = n_token;
    a.rows_per_token = rows;
    a.n_used = n_used;
    a.n_expert = EXPERTS;
    a.experts = experts.data();
    a.weights = weights.data();
    a.gate_up = gate_up.data();
    a.shared = shared ? extra.data() : NULL;
    a.y = y.data();
    cudaStream_t stream;
    assert_int_equal(down_few_init(), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(down_few(a, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    want.resize(y.size(), guard);
    assert_true(y == want);
}

void test_down(void **)
{
    check_down(false, 2, 9, 80, 2 * 128, false); /* more rows than columns of an operand */
    check_down(true, 1, 8, 64, 3 * 128, true);
    check_down(false, 3, 2, 144, 6 * 128, true); /* two K parts */
}

} // namespace

int main(void)
{
    simt_set_capability(9, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_exact),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_two_parts),
        cmocka_unit_test(test_half_a_line),
        cmocka_unit_test(test_mapped),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

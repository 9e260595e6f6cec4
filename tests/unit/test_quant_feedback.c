/* test_quant_feedback.c - sums of products, their factor, and codes with feedback, against plain
 * loops in double */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/thread.h"
#include "quantize/down_scale.h"
#include "quantize/feedback.h"
#include "quantize/moments.h"

enum { N = 176, N_TOKEN = 300, N_ROW = 11, GROUP = 16 };

/* Inputs that depend on each other, some large, one always 0. */
static void make_inputs(uint64_t *rng, float *x)
{
    for (int t = 0; t < N_TOKEN; t++) {
        float common = rng_normal(rng);
        for (int i = 0; i < N; i++) {
            float size = i % 13 == 0 ? 6.0f : 1.0f;
            x[t * N + i] = i == 5 ? 0 : size * (rng_normal(rng) + common);
        }
    }
}

static void to_panels(float *panels, const float *x, int first, int n)
{
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < n; t++) {
            panels[((i / TILE_COLS) * n + t) * TILE_COLS + i % TILE_COLS] = x[(first + t) * N + i];
        }
    }
}

struct room {
    float x[N_TOKEN * N], panels[N_TOKEN * N];
    float m[N * (N + TILE_COLS)], factor[N * (N + TILE_COLS)], steps[64 * N];
    uint32_t order[N];
    float w[N_ROW * N];
    struct codes_scale scales[N_ROW * N / GROUP];
    float sums[N * FEEDBACK_ROWS], differences[FEEDBACK_BLOCK * FEEDBACK_ROWS];
    uint8_t codes[N_ROW * N];
};

static float moment(const struct room *r, uint32_t i, uint32_t j)
{
    return i > j ? r->m[i * moments_stride(N) + j] : r->m[j * moments_stride(N) + i];
}

static struct room *make_room(unsigned n_thread, uint64_t seed)
{
    struct room *r = calloc(1, sizeof *r);
    struct thread_pool *pool;
    uint64_t rng;
    fathom_diag d;
    assert_non_null(r);
    assert_int_equal(thread_pool_create(&pool, n_thread, &d), FATHOM_OK);
    rng = seed;
    make_inputs(&rng, r->x);
    for (int i = 0; i < N_ROW * N; i++) r->w[i] = rng_normal(&rng);
    for (int first = 0; first < N_TOKEN; first += 112) {
        int n = N_TOKEN - first < 112 ? N_TOKEN - first : 112;
        to_panels(r->panels, r->x, first, n);
        moments_add(pool, r->m, N, r->panels, (uint32_t)n);
    }
    assert_int_equal(moments_order(r->order, r->m, N), FATHOM_OK);
    assert_true(moments_factor(pool, r->factor, r->m, N, r->order, 0.01f, r->steps));
    thread_pool_destroy(pool);
    return r;
}

static void moments_are_sums_of_products(void **state)
{
    (void)state;
    struct room *r = make_room(1, 1);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            double want = 0, size = 0;
            for (int t = 0; t < N_TOKEN; t++) {
                want += (double)r->x[t * N + i] * r->x[t * N + j];
                size += fabs((double)r->x[t * N + i] * r->x[t * N + j]);
            }
            assert_true(fabs(want - moment(r, i, j)) <= 1e-5 * size);
        }
    }
    free(r);
}

static void the_order_is_that_of_the_diagonal(void **state)
{
    (void)state;
    struct room *r = make_room(1, 2);
    assert_int_equal(r->order[0], 5); /* always 0 */
    for (uint32_t s = 1; s < N; s++) {
        assert_true(moment(r, r->order[s - 1], r->order[s - 1]) <=
                    moment(r, r->order[s], r->order[s]));
    }
    assert_int_equal(r->order[N - 1] % 13, 0);
    free(r);
}

static void the_factor_gives_the_moments_back(void **state)
{
    (void)state;
    struct room *r = make_room(2, 3);
    const size_t stride = moments_stride(N);
    double trace = 0;
    for (uint32_t i = 0; i < N; i++) trace += (double)moment(r, i, i);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            double got = 0, want = moment(r, r->order[i], r->order[j]);
            for (uint32_t k = 0; k <= j; k++) {
                got += (double)r->factor[i * stride + k] * r->factor[j * stride + k];
            }
            if (i == j) want += 0.01 * trace / N;
            assert_true(fabs(got - want) <= 1e-5 * trace / N);
        }
    }
    free(r);
}

static void what_has_no_factor_says_so(void **state)
{
    (void)state;
    struct room *r = make_room(1, 4);
    struct thread_pool *pool;
    fathom_diag d;
    assert_int_equal(thread_pool_create(&pool, 1, &d), FATHOM_OK);
    r->m[70 * moments_stride(N) + 70] = NAN;
    assert_false(moments_factor(pool, r->factor, r->m, N, r->order, 0.01f, r->steps));
    memset(r->m, 0, sizeof r->m); /* no input is ever anything but 0: each by itself */
    assert_true(moments_factor(pool, r->factor, r->m, N, r->order, 0.01f, r->steps));
    thread_pool_destroy(pool);
    free(r);
}

static struct feedback_rows code_rows(struct room *r, bool is_u4)
{
    const uint32_t group = is_u4 ? GROUP : N;
    struct codes_error e = {0};
    for (uint32_t i = 0; i < N_ROW * N / group; i++) {
        float *w = r->w + i * group;
        r->scales[i] = is_u4 ? codes_u4(w, NULL, group, false, true, r->codes + i * group, &e)
                             : codes_i8(w, NULL, group, true, (int8_t *)r->codes + i * group, &e);
    }
    return (struct feedback_rows){
        .n_row = N_ROW, .n_col = N, .w = r->w, .group = group, .scales = r->scales, .is_u4 = is_u4};
}

/* Squared error of a row's outputs over the inputs. */
static double output_error(const struct room *r, const struct feedback_rows *rows, uint32_t row)
{
    double total = 0;
    for (int t = 0; t < N_TOKEN; t++) {
        double off = 0;
        for (uint32_t i = 0; i < N; i++) {
            const struct codes_scale *s = &rows->scales[(row * N + i) / rows->group];
            const uint8_t code = r->codes[row * N + i];
            const double q = rows->is_u4 ? code : (int8_t)code;
            off += ((q - s->zero) * (double)s->scale - (double)r->w[row * N + i]) * r->x[t * N + i];
        }
        total += off * off;
    }
    return total;
}

static void feedback_makes_outputs_nearer(void **state)
{
    (void)state;
    for (int is_u4 = 0; is_u4 < 2; is_u4++) {
        struct room *r = make_room(1, 5);
        struct feedback_rows rows = code_rows(r, is_u4);
        struct feedback f = {r->factor, r->order};
        double before = 0, after = 0;
        for (uint32_t i = 0; i < N_ROW; i++) before += output_error(r, &rows, i);
        const double nearest = feedback_error(&rows, r->codes);
        feedback_codes(&f, &rows, r->sums, r->differences, r->codes);
        for (uint32_t i = 0; i < N_ROW; i++) after += output_error(r, &rows, i);
        assert_true(after < 0.5 * before);
        assert_true(feedback_error(&rows, r->codes) > nearest); /* the weights are further off */
        free(r);
    }
}

/* The definition, input by input in double: the next number is moved by what undoes best, of the
 * inputs coded so far. A code on the edge between two may differ, and then those after it. */
static void codes_are_those_of_the_definition(void **state)
{
    (void)state;
    struct room *r = make_room(1, 6);
    struct feedback_rows rows = code_rows(r, true);
    struct feedback f = {r->factor, r->order};
    const size_t stride = moments_stride(N);
    int n_same = 0;
    feedback_codes(&f, &rows, r->sums, r->differences, r->codes);
    for (uint32_t row = 0; row < N_ROW; row++) {
        double off[N] = {0};
        bool same = true;
        for (uint32_t s = N; s-- > 0;) {
            const uint32_t i = r->order[s];
            const struct codes_scale *scale = &r->scales[(row * N + i) / GROUP];
            double sum = 0;
            for (uint32_t t = s + 1; t < N; t++) sum += off[t] * r->factor[t * stride + s];
            const double w = (double)r->w[row * N + i];
            const float moved = (float)(w - sum / r->factor[s * stride + s]);
            const float q = codes_nearest(moved, scale, true);
            off[s] = (q - (double)scale->zero) * scale->scale - w;
            same &= (uint8_t)q == r->codes[row * N + i];
        }
        n_same += same;
    }
    assert_true(n_same >= N_ROW - 2);
    free(r);
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    struct room *a = make_room(1, 7), *b = make_room(5, 7);
    assert_memory_equal(a->m, b->m, sizeof a->m);
    assert_memory_equal(a->factor, b->factor, sizeof a->factor);
    assert_memory_equal(a->order, b->order, sizeof a->order);
    free(a);
    free(b);
}

static void a_code_is_the_nearest(void **state)
{
    (void)state;
    const struct codes_scale s = {0.5f, 8};
    assert_true(codes_nearest(0.26f, &s, true) == 9);
    assert_true(codes_nearest(-100, &s, true) == 0 && codes_nearest(1e30f, &s, true) == 15);
    const struct codes_scale i8 = {0.5f, 0};
    assert_true(codes_nearest(-1e30f, &i8, false) == -127 && codes_nearest(2, &i8, false) == 4);
}

/* A column whose inputs are large gets finer steps than its neighbours in the group. */
static void factors_favour_large_inputs(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 64 };
    float w[ROWS * COLS], squares[COLS], factors[COLS];
    struct quant_scheme s;
    struct thread_pool *pool;
    uint64_t rng;
    fathom_diag d;
    const struct tensor_view down = {
        .data = w, .dtype = DTYPE_F32, .n_row = ROWS, .n_col = COLS, .row_stride = COLS};
    rng = 8;
    assert_int_equal(thread_pool_create(&pool, 2, &d), FATHOM_OK);
    assert_true(quant_scheme_of(&s, "w4a16", 32, "scale"));
    for (int i = 0; i < ROWS * COLS; i++) w[i] = rng_normal(&rng);
    for (int i = 0; i < COLS; i++) squares[i] = i == 9 ? 1e4f : i == 10 ? 0 : 1;
    assert_int_equal(down_scale_choose(factors, &down, &s, squares, pool, &d), FATHOM_OK);
    for (int i = 0; i < COLS; i++) {
        assert_true(factors[i] > 0 && isfinite(factors[i]));
        if (i != 9) assert_true(factors[9] > 2 * factors[i]);
    }
    for (int i = 0; i < COLS; i++) squares[i] = 3;
    assert_int_equal(down_scale_choose(factors, &down, &s, squares, pool, &d), FATHOM_OK);
    for (int i = 0; i < COLS; i++) assert_true(factors[i] == 1);
    thread_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moments_are_sums_of_products),
        cmocka_unit_test(the_order_is_that_of_the_diagonal),
        cmocka_unit_test(the_factor_gives_the_moments_back),
        cmocka_unit_test(what_has_no_factor_says_so),
        cmocka_unit_test(feedback_makes_outputs_nearer),
        cmocka_unit_test(codes_are_those_of_the_definition),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_code_is_the_nearest),
        cmocka_unit_test(factors_favour_large_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* down_scale.c - factors between up and down */
#include "quantize/down_scale.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/thread.h"
#include "quantize/codes.h"

enum { POWERS = 20, ROWS = 512 };

struct choosing {
    const struct tensor_view *down;
    const struct quant_scheme *scheme;
    const float *squares;
    const float *factors;     /* [POWERS][n_col] */
    double (*errors)[POWERS]; /* [n_row] */
    uint32_t n_row;
    bool failed;
};

/* Inputs that are always 0 have no say: they count as the smallest of the others. */
static void make_factors(float *out, const float *squares, uint32_t n, double power)
{
    double least = INFINITY, sum = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (squares[k] > 0 && (double)squares[k] < least) least = (double)squares[k];
    }
    if (!isfinite(least)) least = 1;
    for (uint32_t k = 0; k < n; k++) sum += log(fmax((double)squares[k], least));
    const double mean = sum / n;
    for (uint32_t k = 0; k < n; k++) {
        out[k] = (float)exp(0.5 * power * (log(fmax((double)squares[k], least)) - mean));
    }
}

/* Squared error of a row's outputs with a power's factors, as if inputs were independent. */
static double row_error(const struct choosing *x, const float *row, const float *factors,
                        float *scaled, uint8_t *codes)
{
    const uint32_t n = x->down->n_col, group = x->scheme->code == CODE_U4 ? x->scheme->group : n;
    double sum = 0;
    for (uint32_t k = 0; k < n; k++) scaled[k] = row[k] * factors[k];
    for (uint32_t g = 0; g < n; g += group) {
        struct codes_error e = {0};
        struct codes_scale s;
        const bool is_u4 = x->scheme->code == CODE_U4;
        if (is_u4) s = codes_u4(scaled + g, NULL, group, x->scheme->asymmetric, false, codes, &e);
        if (!is_u4) s = codes_i8(scaled + g, NULL, group, false, (int8_t *)codes, &e);
        for (uint32_t k = 0; k < group; k++) {
            const float q = is_u4 ? (float)codes[k] : (float)(int8_t)codes[k];
            const float value = (q - (float)s.zero) * s.scale;
            const double off = (double)(value - scaled[g + k]) / (double)factors[g + k];
            sum += off * off * (double)x->squares[g + k];
        }
    }
    return sum;
}

static void do_row(void *arg, size_t i, size_t n_item, unsigned worker)
{
    struct choosing *x = arg;
    const uint32_t n = x->down->n_col;
    float *values = mem_alloc_array(n, 2 * sizeof *values + 1);
    (void)worker;
    if (!values) {
        __atomic_store_n(&x->failed, true, __ATOMIC_RELAXED);
        return;
    }
    tensor_view_row(x->down, (uint32_t)(i * x->down->n_row / n_item), 0, n, values);
    for (int p = 0; p < POWERS; p++) {
        x->errors[i][p] = row_error(x, values, x->factors + (size_t)p * n, values + n,
                                    (uint8_t *)(values + 2 * (size_t)n));
    }
    mem_free(values);
}

static int best_power(const struct choosing *x)
{
    double sums[POWERS] = {0};
    int best = 0;
    for (uint32_t i = 0; i < x->n_row; i++) {
        for (int p = 0; p < POWERS; p++) sums[p] += x->errors[i][p];
    }
    for (int p = 1; p < POWERS; p++) {
        if (sums[p] < sums[best]) best = p;
    }
    return best;
}

fathom_err down_scale_choose(float *factors, const struct tensor_view *down,
                             const struct quant_scheme *s, const float *squares,
                             struct thread_pool *pool, fathom_diag *d)
{
    const uint32_t n = down->n_col, n_row = down->n_row < ROWS ? down->n_row : ROWS;
    float *all = mem_alloc_array((size_t)POWERS * n, sizeof *all);
    double(*errors)[POWERS] = mem_alloc_array(n_row, sizeof *errors);
    struct choosing x = {.down = down,
                         .scheme = s,
                         .squares = squares,
                         .factors = all,
                         .errors = errors,
                         .n_row = n_row,
                         .failed = !all || !errors};
    ASSERT(s->code == CODE_U4 || s->code == CODE_I8);
    for (int p = 0; p < POWERS && !x.failed; p++) {
        make_factors(all + (size_t)p * n, squares, n, (double)p / POWERS);
    }
    if (!x.failed) thread_pool_run(pool, n_row, do_row, &x);
    if (!x.failed) memcpy(factors, all + (size_t)best_power(&x) * n, n * sizeof *factors);
    mem_free(all);
    mem_free(errors);
    if (x.failed) FAIL(d, FATHOM_ENOMEM, "no memory for factors of %u inputs", n);
    return FATHOM_OK;
}

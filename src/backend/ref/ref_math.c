/* ref_math.c - sums, norms, rotations and roundings, each as exact as f32 can hold */
#include "backend/ref/ref_int.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/dtype.h"

enum { LANES = 8 };

static_assert((KV_INDEX_DIM & (KV_INDEX_DIM - 1)) == 0,
              "a Hadamard matrix has a power of two rows");
static_assert(KV_LATENT % KV_FP8_GROUP == 0, "every latent value has a scale");

static inline __attribute__((always_inline)) float dot(const float *a, const float *b, uint32_t n)
{
    double lane[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) lane[j] += (double)a[i + j] * (double)b[i + j];
    }
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += lane[j];
    for (; i < n; i++) sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

/* The same operations in the same order, so the same bits, in half the time. */
#ifdef __x86_64__
__attribute__((target("avx2"))) static float dot_avx2(const float *a, const float *b, uint32_t n)
{
    return dot(a, b, n);
}

float ref_dot(const float *a, const float *b, uint32_t n)
{
    return __builtin_cpu_supports("avx2") ? dot_avx2(a, b, n) : dot(a, b, n);
}
#else
float ref_dot(const float *a, const float *b, uint32_t n)
{
    return dot(a, b, n);
}
#endif

void ref_matvec(const struct matrix *w, uint32_t row0, uint32_t n_row, const float *x, float *y)
{
    ASSERT(w->value && row0 <= w->n_row && n_row <= w->n_row - row0);
    for (uint32_t r = 0; r < n_row; r++)
        y[r] = ref_dot(w->value + (size_t)(row0 + r) * w->n_col, x, w->n_col);
}

void ref_round(enum act_type act, const float *in, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = act == ACT_F32 ? in[i] : f32_from_bf16(bf16_from_f32(in[i]));
}

/* Each 128 values through their codes. */
static void round_to_fp8(const float *in, uint32_t n, float *out)
{
    ASSERT(n % KV_FP8_GROUP == 0);
    for (uint32_t i = 0; i < n; i += KV_FP8_GROUP) {
        uint8_t code[KV_FP8_GROUP];
        float scale = ref_fp8_group(in + i, code);
        for (uint32_t k = 0; k < KV_FP8_GROUP; k++) out[i + k] = f32_from_e4m3(code[k]) * scale;
    }
}

/* The int8 codes of n values, as numbers; returns their scale, NaN if a value is not finite. */
static float int8_codes(const float *in, uint32_t n, float *out)
{
    float largest = 1e-10f;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(in[i])) return NAN;
        largest = fmaxf(largest, fabsf(in[i]));
    }
    const float scale = largest / 127;
    for (uint32_t i = 0; i < n; i++) out[i] = fminf(fmaxf(rintf(in[i] / scale), -127), 127);
    return scale;
}

/* y = W x with int8 inputs: sums of codes times elements, then the scale of the codes. */
static void int8_product(struct ref_backend *r, const struct matrix *w, uint32_t group,
                         const float *x, float *y)
{
    ASSERT(w->n_col % group == 0 && group % KV_FP8_GROUP == 0);
    for (uint32_t i = 0; i < w->n_col; i += group)
        r->x_scale[i / KV_FP8_GROUP] = int8_codes(x + i, group, r->x + i);
    for (uint32_t row = 0; row < w->n_row; row++) {
        const float *of_row = w->value + (size_t)row * w->n_col;
        double sum = 0;
        for (uint32_t i = 0; i < w->n_col; i += group) {
            double part = 0;
            for (uint32_t c = i; c < i + group; c++) part += (double)of_row[c] * (double)r->x[c];
            sum += part * (double)r->x_scale[i / KV_FP8_GROUP];
        }
        y[row] = (float)sum;
    }
}

void ref_product(struct ref_backend *r, const struct matrix *w, const float *x, float *y)
{
    ASSERT(x != r->x && y != r->x);
    switch (w->input[r->c.act]) {
    case INPUT_CODE_NONE: ref_round(r->c.act, x, w->n_col, r->x); break;
    case INPUT_CODE_FP8: round_to_fp8(x, w->n_col, r->x); break;
    case INPUT_CODE_INT8_GROUP: int8_product(r, w, KV_FP8_GROUP, x, y); return;
    case INPUT_CODE_INT8_ROW: int8_product(r, w, w->n_col, x, y); return;
    }
    ref_matvec(w, 0, w->n_row, r->x, y);
}

void ref_rmsnorm(const float *x, const float *weight, uint32_t n, float eps, float *out)
{
    ASSERT(n > 0 && eps > 0);
    double square = 0;
    for (uint32_t i = 0; i < n; i++) square += (double)x[i] * x[i];
    double scale = 1 / sqrt(square / n + (double)eps);
    for (uint32_t i = 0; i < n; i++) out[i] = (float)(x[i] * scale * (double)weight[i]);
}

void ref_layernorm(const float *x, const float *weight, const float *bias, uint32_t n, float eps,
                   float *out)
{
    ASSERT(n > 0 && eps > 0);
    double mean = 0;
    double variance = 0;
    for (uint32_t i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (uint32_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / sqrt(variance / n + (double)eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)((x[i] - mean) * scale * (double)weight[i] + (double)bias[i]);
}

/* The angle is the f32 product of position and frequency; everything after it is exact. */
void ref_rope(const struct backend_config *c, bool interleaved, int32_t pos, float *x)
{
    ASSERT(pos >= 0);
    for (int i = 0; i < KV_ROPE / 2; i++) {
        float angle = (float)pos * c->rope_freq[i];
        double cosine = cos((double)angle);
        double sine = sin((double)angle);
        int first = interleaved ? 2 * i : i;
        int second = interleaved ? 2 * i + 1 : i + KV_ROPE / 2;
        double a = x[first];
        double b = x[second];
        x[first] = (float)(a * cosine - b * sine);
        x[second] = (float)(a * sine + b * cosine);
    }
}

void ref_hadamard(float *x, uint32_t n)
{
    double y[KV_INDEX_DIM];
    DCHECK(n <= KV_INDEX_DIM && (n & (n - 1)) == 0);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i];
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = 0; i < n; i++) {
            if (i & half) continue;
            double a = y[i];
            double b = y[i + half];
            y[i] = a + b;
            y[i + half] = a - b;
        }
    }
    for (uint32_t i = 0; i < n; i++) x[i] = (float)(y[i] / sqrt(n));
}

float ref_sigmoid(float x)
{
    return (float)(1 / (1 + exp(-(double)x)));
}

float ref_silu(float x)
{
    return (float)((double)x / (1 + exp(-(double)x)));
}

/* scale = 2^ceil(log2(max(amax, 1e-4) / 448)); code = e4m3(x / scale), exact but for one rounding
 * because the scale is a power of two. */
float ref_fp8_group(const float x[KV_FP8_GROUP], uint8_t code[KV_FP8_GROUP])
{
    float amax = 1e-4f;
    for (int i = 0; i < KV_FP8_GROUP; i++) {
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]);
    }
    float scale = ue8m0_round_up(amax / 448.0f);
    DCHECK(scale > 0);
    for (int i = 0; i < KV_FP8_GROUP; i++) code[i] = e4m3_from_f32(x[i] / scale);
    return scale;
}

static int larger_first(const void *a, const void *b)
{
    const struct scored *x = a;
    const struct scored *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

void ref_sort_scored(struct scored *v, uint32_t n)
{
    DCHECK(v || n == 0);
    qsort(v, n, sizeof *v, larger_first);
}

/* codes.c - numbers to codes */
#include "quantize/codes.h"

#include <float.h>
#include <math.h>

#include "base/assert.h"
#include "base/dtype.h"

/* The integers that codes are, and the type that scales are stored in. */
struct range {
    float lo, hi; /* of code - zero + zero: 0 .. 15, or -127 .. 127 */
    bool bf16_scale;
};

static const struct range u4_range = {0, 15, true};
static const struct range i8_range = {-127, 127, false};

/* To nearest even, for magnitudes below 2^22: what is added has ulps of 1. */
static inline float round_even(float x)
{
    const float shift = 12582912.0f;
    return (x + shift) - shift;
}

static inline float code_of(float w, float inverse, float zero, float lo, float hi)
{
    float q = round_even(w * inverse) + zero;
    q = q < lo ? lo : q;
    return q > hi ? hi : q;
}

static float as_stored(float scale, const struct range *r)
{
    if (r->bf16_scale) scale = f32_from_bf16(bf16_from_f32(scale));
    return scale > 0 && 1 / scale <= 1e30f ? scale : 1; /* nothing but zeros, or next to it */
}

/* What a lane adds up: the squared error of a code, times a weight. */
static inline float square_of(float w, float scale, float inverse, float zero, float lo, float hi)
{
    float e = (code_of(w, inverse, zero, lo, hi) - zero) * scale - w;
    return e * e;
}

/* Sum of weighted squared errors. Lanes are added up in one order, whatever computes them; the
 * loops over them are what a compiler makes vectors of. */
static float weighted_error(const float *w, const float *importance, size_t n,
                            const struct codes_scale *s, const struct range *r)
{
    const float scale = s->scale, inverse = 1 / scale, zero = (float)s->zero;
    const float lo = r->lo, hi = r->hi;
    const size_t n_whole = n - n % CODES_LANES;
    float lanes[CODES_LANES] = {0};
    float sum = 0;
    if (importance) {
        for (size_t i = 0; i < n_whole; i += CODES_LANES) {
            for (size_t k = 0; k < CODES_LANES; k++) {
                float square = square_of(w[i + k], scale, inverse, zero, lo, hi);
                lanes[k] += importance[i + k] * square;
            }
        }
    } else {
        for (size_t i = 0; i < n_whole; i += CODES_LANES) {
            for (size_t k = 0; k < CODES_LANES; k++) {
                lanes[k] += square_of(w[i + k], scale, inverse, zero, lo, hi);
            }
        }
    }
    for (size_t i = n_whole; i < n; i++) {
        float square = square_of(w[i], scale, inverse, zero, lo, hi);
        lanes[0] += importance ? importance[i] * square : square;
    }
    for (size_t k = 0; k < CODES_LANES; k++) sum += lanes[k];
    return sum;
}

static float clip_of(int i)
{
    return 1 - 0.3f * (float)i / (float)(CODES_CLIPS - 1);
}

/* The scale and zero of numbers from low to high, clipped. */
static struct codes_scale scale_of(float low, float high, bool asymmetric, float clip,
                                   const struct range *r)
{
    struct codes_scale s = {.zero = r->bf16_scale ? 8 : 0};
    const float steps = asymmetric ? 15.0f : r->bf16_scale ? 7.5f : 127.0f;
    const float width = asymmetric ? high - low : high > -low ? high : -low;
    s.scale = as_stored(clip * width / steps, r);
    if (asymmetric) {
        float zero = round_even(-low * clip / s.scale);
        s.zero = zero < 0 ? 0 : zero > 15 ? 15 : (int)zero;
    }
    return s;
}

static struct codes_scale choose(const float *w, const float *importance, size_t n, bool asymmetric,
                                 bool searches, const struct range *r)
{
    float low = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = w[i] < low ? w[i] : low;
        high = w[i] > high ? w[i] : high;
    }
    struct codes_scale best = scale_of(low, high, asymmetric, clip_of(0), r);
    if (!searches || low == high) return best;
    float least = weighted_error(w, importance, n, &best, r);
    for (int i = 1; i < CODES_CLIPS; i++) {
        struct codes_scale s = scale_of(low, high, asymmetric, clip_of(i), r);
        if (s.scale == best.scale && s.zero == best.zero) continue;
        float error = weighted_error(w, importance, n, &s, r);
        if (error < least) {
            least = error;
            best = s;
        }
    }
    return best;
}

static void count(struct codes_error *e, float value, float decoded)
{
    double difference = (double)decoded - (double)value;
    e->error += difference * difference;
    e->value += (double)value * (double)value;
}

static void note_scale(struct codes_error *e, float scale)
{
    if (scale > e->largest_scale) e->largest_scale = scale;
}

bool codes_is_clipped(float w, const struct codes_scale *s, float q)
{
    return fabsf((q - (float)s->zero) * s->scale - w) > s->scale;
}

struct codes_scale codes_u4(const float *w, const float *importance, size_t n, bool asymmetric,
                            bool searches, uint8_t *codes, struct codes_error *error)
{
    ASSERT(n >= 1);
    const struct codes_scale s = choose(w, importance, n, asymmetric, searches, &u4_range);
    const float inverse = 1 / s.scale, zero = (float)s.zero;
    note_scale(error, s.scale);
    for (size_t i = 0; i < n; i++) {
        float q = code_of(w[i], inverse, zero, u4_range.lo, u4_range.hi);
        codes[i] = (uint8_t)q;
        count(error, w[i], (q - zero) * s.scale);
        error->n_clipped += codes_is_clipped(w[i], &s, q);
    }
    return s;
}

struct codes_scale codes_i8(const float *w, const float *importance, size_t n, bool searches,
                            int8_t *codes, struct codes_error *error)
{
    ASSERT(n >= 1);
    const struct codes_scale s = choose(w, importance, n, false, searches, &i8_range);
    const float inverse = 1 / s.scale;
    note_scale(error, s.scale);
    for (size_t i = 0; i < n; i++) {
        float q = code_of(w[i], inverse, 0, i8_range.lo, i8_range.hi);
        codes[i] = (int8_t)q;
        count(error, w[i], q * s.scale);
        error->n_clipped += codes_is_clipped(w[i], &s, q);
    }
    return s;
}

float codes_nearest(float w, const struct codes_scale *s, bool is_u4)
{
    const struct range *r = is_u4 ? &u4_range : &i8_range;
    const float limit = 4194304.0f; /* round_even's; codes end long before */
    const float steps = w * (1 / s->scale);
    return code_of(steps > limit    ? limit
                   : steps < -limit ? -limit
                                    : steps,
                   1, (float)s->zero, r->lo, r->hi);
}

float codes_e4m3_scale(float largest)
{
    float scale = largest / 448.0f;
    return scale > 0 ? scale : 1;
}

void codes_e4m3(const float *w, size_t n, float scale, uint8_t *codes, struct codes_error *error)
{
    ASSERT(scale > 0);
    note_scale(error, scale);
    for (size_t i = 0; i < n; i++) {
        codes[i] = e4m3_from_f32(w[i] / scale);
        count(error, w[i], f32_from_e4m3(codes[i]) * scale);
    }
}

float codes_largest(const float *w, size_t n)
{
    float largest = 0;
    bool is_finite = true;
    for (size_t i = 0; i < n; i++) {
        float magnitude = fabsf(w[i]);
        is_finite &= magnitude <= FLT_MAX; /* false for NaN */
        largest = magnitude > largest ? magnitude : largest;
    }
    return is_finite ? largest : NAN;
}

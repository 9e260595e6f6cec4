/* arrival.c - the times at which requests are due */
#include "bench/arrival.h"

#include <math.h>

#include "base/rng.h"

/* In (0, 1), 52 bits. */
static double uniform(uint64_t *state)
{
    return ((double)(rng_next(state) >> 12) + 0.5) * 0x1p-52;
}

static double normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

double arrival_gamma(double shape, uint64_t *state)
{
    if (shape < 1) {
        double power = pow(uniform(state), 1 / shape);
        return arrival_gamma(shape + 1, state) * power;
    }
    double d = shape - 1.0 / 3;
    double c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(state);
        double v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(uniform(state)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* The rate at request i of n. */
static double rate_at(const struct arrival_options *o, size_t i, size_t n)
{
    double part = n > 1 ? (double)i / (double)(n - 1) : 0;
    switch (o->ramp) {
    case RAMP_LINEAR: return o->ramp_start + (o->ramp_end - o->ramp_start) * part;
    case RAMP_EXPONENTIAL: return o->ramp_start * pow(o->ramp_end / o->ramp_start, part);
    case RAMP_NONE: break;
    }
    return o->rate;
}

void arrival_times(double *due, size_t n, const struct arrival_options *o)
{
    uint64_t state = o->seed;
    double t = 0;
    for (size_t i = 0; i < n; i++) {
        double rate = rate_at(o, i, n);
        if (!isinf(rate)) t += arrival_gamma(o->burstiness, &state) / (rate * o->burstiness);
        due[i] = t;
    }
    if (o->ramp != RAMP_NONE || t <= 0) return;
    double scale = (double)n / o->rate / t;
    for (size_t i = 0; i < n; i++) due[i] *= scale;
}

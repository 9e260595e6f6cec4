/* rope.c - frequencies of the rotary embedding, plain or stretched by YaRN */
#include <math.h>

#include "base/assert.h"
#include "model/config.h"

static const double pi = 3.14159265358979323846;

/* The (real) pair index whose frequency makes `turns` full turns over the trained context. */
static double pair_of_turns(double turns, uint32_t dim, double theta, const struct rope_yarn *yarn)
{
    return dim * log(yarn->original_max_position / (turns * 2.0 * pi)) / (2.0 * log(theta));
}

void rope_frequencies(float *freq, uint32_t dim, double theta, const struct rope_yarn *yarn)
{
    ASSERT(dim >= 2 && dim % 2 == 0 && theta > 1.0);
    double low = 0.0, high = 0.0;
    if (yarn->on) {
        low = fmax(floor(pair_of_turns(yarn->beta_fast, dim, theta, yarn)), 0.0);
        high = fmin(ceil(pair_of_turns(yarn->beta_slow, dim, theta, yarn)), dim - 1.0);
        /* equal bounds: a step instead of a ramp, and no division by zero */
        if (low == high) high += 0.001;
    }
    for (uint32_t i = 0; i < dim / 2; i++) {
        double w = pow(theta, -2.0 * i / dim);
        if (yarn->on) {
            double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
            w = w * (1.0 - ramp) + w / yarn->factor * ramp;
        }
        freq[i] = (float)w;
    }
}

double rope_mscale(const struct rope_yarn *yarn, double scale)
{
    ASSERT(!yarn->on || yarn->factor >= 1.0);
    return yarn->on && yarn->factor > 1.0 ? 0.1 * scale * log(yarn->factor) + 1.0 : 1.0;
}

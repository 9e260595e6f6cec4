/* rope.h - frequencies of the rotary embedding, plain or stretched by YaRN */
#ifndef FATHOM_MODEL_ROPE_H
#define FATHOM_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

/* How a model trained on short contexts reads long ones. A zeroed struct is plain RoPE. */
struct rope_yarn {
    bool on;
    double factor;                /* stretch of the context, >= 1 */
    double original_max_position; /* trained context, tokens */
    double beta_fast;             /* turns over the trained context above which w_i is kept */
    double beta_slow;             /* and below which it is divided by factor */
    double mscale;
    double mscale_all_dim;
};

/* rope_frequencies - radians per position of each rotated pair
 *
 *   freq   f32 [dim / 2], written: angle(position, i) = position * freq[i]
 *   dim    rotated elements, even, >= 2
 *   theta  base, > 1
 * Numerics  computed in double, rounded once.
 * Source    YaRN (arXiv 2309.00071), section 3.2, "NTK-by-parts". */
void rope_frequencies(float *freq, uint32_t dim, double theta, const struct rope_yarn *yarn);

/* rope_mscale - YaRN's correction of attention: 0.1 * scale * ln(factor) + 1, or 1 when off.
 * With mscale_all_dim it multiplies the softmax scale twice (once for q, once for k). */
double rope_mscale(const struct rope_yarn *yarn, double scale);

#endif

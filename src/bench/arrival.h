/* arrival.h - when requests are due
 *
 * The time between two arrivals is drawn from a gamma distribution of shape `burstiness` and mean
 * 1 / rate. 1 is a Poisson process, less comes in bursts, more is even. Without a ramp the times
 * are then scaled so that the last request is due at n / rate. A run offers the rate that it names,
 * whatever the draw.
 */
#ifndef FATHOM_BENCH_ARRIVAL_H
#define FATHOM_BENCH_ARRIVAL_H

#include <stddef.h>
#include <stdint.h>

enum ramp { RAMP_NONE, RAMP_LINEAR, RAMP_EXPONENTIAL };

struct arrival_options {
    double rate;       /* requests a second, > 0; INFINITY: all are due at once */
    double burstiness; /* > 0 */
    enum ramp ramp;
    double ramp_start; /* requests a second, > 0; with a ramp instead of `rate` */
    double ramp_end;
    uint64_t seed;
};

/* arrival_times - due[n], seconds from the start, ascending */
void arrival_times(double *due, size_t n, const struct arrival_options *o);

/* arrival_gamma - one draw of the gamma distribution of shape `shape` > 0 and scale 1
 * Source  Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. */
double arrival_gamma(double shape, uint64_t *state);

#endif

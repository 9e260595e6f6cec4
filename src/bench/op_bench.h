/* op_bench.h - every operator of a model by itself, at the shapes of one rank: times beside floors
 *
 * One layer without experts and one with them get generated weights; a step's operators then run
 * alone, each time after a copy that leaves nothing of it in the device's caches. The floor is the
 * bytes that an operator has to move, each once, over the bandwidth of that copy. */
#ifndef FATHOM_BENCH_OP_BENCH_H
#define FATHOM_BENCH_OP_BENCH_H

#include <stdint.h>

#include "model/forward.h"

struct op_bench_options {
    uint32_t n_warm_up;
    uint32_t n_repeat;    /* the median of these is reported; >= 1 */
    size_t flush_bytes;   /* copied before every run: more than the caches hold */
    size_t measure_bytes; /* of the copy that measures the bandwidth */
    const char *only;     /* the operator that is timed, others run once; NULL: all are */
};

/* A step's shape: decodes of so many requests, or the last tokens of one prompt. */
struct op_bench_shape {
    uint32_t n_token;
    uint32_t context; /* tokens of each request, this step's included */
    bool is_prefill;
};

struct op_bench_row {
    const char *op; /* "mla_attend" */
    struct op_bench_shape shape;
    double us;
    double train_us; /* in a recorded train of itself, caches warm; 0 without recorded steps */
    double bytes;    /* that have to be moved */
    double flop;
    double floor_us; /* bytes over bandwidth */
};

typedef void op_bench_report(void *arg, const struct op_bench_row *row);

struct op_bench;

/* op_bench_create - the two layers and a cache on a backend
 *
 *   config  of the whole model; weights are generated in the form that it says
 *   limits  max_token, max_request and max_context bound the shapes
 *   place   the rank whose part the layers are
 * Errors  as model_create. b is the bench's from now on, also after a failure. */
fathom_err op_bench_create(struct op_bench **out, struct backend *b,
                           const struct model_config *config, const struct model_limits *limits,
                           const struct model_place *place, const struct op_bench_options *o,
                           fathom_diag *d);
void op_bench_destroy(struct op_bench *p); /* accepts NULL */

/* op_bench_config - what a backend for the two layers is created with */
void op_bench_config(struct backend_config *out, const struct model_config *config,
                     const struct model_limits *limits, const struct model_place *place);

/* op_bench_bandwidth - bytes a second of a large copy, read and written */
double op_bench_bandwidth(const struct op_bench *p);

/* op_bench_run - every operator of the step at one shape
 * Errors  EINVAL for a shape beyond the limits; EDEVICE. */
fathom_err op_bench_run(struct op_bench *p, const struct op_bench_shape *shape,
                        op_bench_report *report, void *arg, fathom_diag *d);

#endif

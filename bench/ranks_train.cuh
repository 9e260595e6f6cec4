/* ranks_train.cuh - trains of calls, recorded one on each GPU, launched side by side and timed */
#ifndef FATHOM_BENCH_RANKS_TRAIN_CUH
#define FATHOM_BENCH_RANKS_TRAIN_CUH

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "backend/backend.h"
}

/* check - end the program with what failed, its error, and the fault of b unless that is NULL */
static inline void check(fathom_err err, const struct backend *b, const char *what)
{
    if (!err) return;
    fprintf(stderr, "%s: %s %s\n", what, fathom_err_name(err),
            b ? b->ops->fault((struct backend *)b) : "");
    exit(1);
}

static inline void bind_gpu(struct backend *b)
{
    check(b->ops->bind_thread(b), b, "bind");
}

struct ranks_train {
    struct backend *b;
    struct graph *train;
};

/* ranks_train_us - microseconds of the train that takes longest, all launched now */
static inline double ranks_train_us(const struct ranks_train *r, uint32_t n)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        bind_gpu(r[i].b);
        check(r[i].b->ops->fence_record(r[i].b, 0), r[i].b, "fence");
        check(r[i].b->ops->graph_launch(r[i].b, r[i].train), r[i].b, "graph");
        check(r[i].b->ops->fence_record(r[i].b, 1), r[i].b, "fence");
    }
    for (uint32_t i = 0; i < n; i++) {
        double us = 0.0;
        bind_gpu(r[i].b);
        check(r[i].b->ops->fence_elapsed(r[i].b, 0, 1, &us), r[i].b, "train");
        worst = us > worst ? us : worst;
    }
    return worst;
}

static inline void ranks_train_destroy(const struct ranks_train *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bind_gpu(r[i].b);
        r[i].b->ops->graph_destroy(r[i].b, r[i].train);
    }
}

#endif

/* ranks_train.cuh - trains of calls, recorded one on each GPU, launched side by side and timed */
#ifndef FATHOM_BENCH_RANKS_TRAIN_CUH
#define FATHOM_BENCH_RANKS_TRAIN_CUH

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ranks_config - a rank of V3's widths without experts; the layout over ranks is the caller's */
static inline void ranks_config(struct backend_config *c, uint32_t rank, uint32_t max_token)
{
    memset(c, 0, sizeof *c);
    c->act = ACT_FP8;
    c->hidden = 7168;
    c->n_head = 16;
    c->q_lora_rank = 1536;
    c->nope_dim = c->v_dim = 128;
    c->softmax_scale = 0.1f;
    c->norm_eps = 1e-6f;
    c->dense_inner = 256;
    c->n_vocab = 1024;
    kv_layout_init(&c->kv, KV_TYPE_BF16, 1, false);
    c->max_token = max_token;
    c->max_request = c->max_logit_row = 64;
    c->max_context = 4096;
    c->device = (int)rank;
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

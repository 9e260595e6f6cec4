/* moe_map.cuh - which rows of a step go to which expert: what makes the map is given */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_MOE_MAP_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_MOE_MAP_CUH

#include "backend/cuda/cuda_int.cuh"

struct map_args {
    const int32_t *experts; /* [T][n_used]; negative: a row that is in no list */
    uint32_t n_token, n_used, rows_per_token, n_stack, tile;
    int32_t *counts; /* [blocks of MAP_TOKENS tokens][n_stack] */
    struct task *tasks;
    int32_t *n_task, *rows;
};

/* moe_map_args - for n_token tokens of a route; c->map is of them from now on */
struct map_args moe_map_args(struct cuda_backend *c, const struct weight *w,
                             const struct buffer *route, uint32_t n_token);

/* moe_map_present - makes c->map of experts [n_token][rows_per_token], the shared one among them,
 * of which the negative ones are not there; n_likely: how many are, as far as the host knows */
fathom_err moe_map_present(struct cuda_backend *c, const struct weight *w, const int32_t *experts,
                           uint32_t n_token, uint32_t n_likely);

#endif

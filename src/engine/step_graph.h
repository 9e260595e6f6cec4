/* step_graph.h - recorded steps: a step is replayed from the smallest recording that holds it
 *
 * With CUDA a recorded step is a graph: the device need not wait for the host to enqueue a thousand
 * kernels a step, because one call launches them all. A recording fixes the counts of a step; all
 * else lies in device memory. There is one recording for each
 *
 *   pass     the model, the draft layer over a step, the draft layer over some of its rows
 *   size     tokens, from a list
 *   context  pages of the longest request: the strides of batch_page_stride
 *
 * and a step is filled up to its size with padding rows: token 0, at positions of a request of its
 * own, with cache rows in a page that no request has. A row's bits do not depend on its neighbours,
 * so padding changes none. It is routed as row 0 is (batch.n_live), so it reads no experts of its
 * own. All rows of a recording are answer rows (backend/batch.h), padding too.
 * Steps with prompt rows and steps larger than the largest size run as they are. Of several lanes
 * each does as its rows allow; lanes of several hosts do alike, because what a recording sends to
 * another rank has to be received by the same recording there (NCCL's documentation, "Using NCCL
 * with CUDA Graphs").
 *
 * Belongs to the engine's thread; recordings are made at creation and do not change.
 */
#ifndef FATHOM_ENGINE_STEP_GRAPH_H
#define FATHOM_ENGINE_STEP_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "engine/step_runner.h"

enum { STEP_GRAPH_SIZES_MAX = 128 };

/* Enqueues a pass over a batch. */
typedef fathom_err step_compute(void *arg, const struct batch *batch, enum step_pass pass);

struct step_graph_config {
    uint32_t sizes[STEP_GRAPH_SIZES_MAX]; /* ascending, 1 .. max_token */
    uint32_t n_size;                      /* 0: nothing is recorded */
    uint32_t n_warm_up;    /* runs before each recording; the first loads the kernels: >= 1 */
    bool with_drafts;      /* the draft layer's passes too */
    bool by_all_lanes;     /* all lanes replay a step, those without rows too, or none does */
    uint32_t padding_page; /* of the cache: read and written by padding rows alone */
};

/* step_graph_sizes - the list for decode steps of up to n_row rows: each up to 8, then every 8th up
 * to 64, every 16th up to 128, every 32nd up to 256, and n_row itself if it is no more; returns how
 * many. Padding costs a small step most, and each size so much of the start. */
uint32_t step_graph_sizes(uint32_t sizes[STEP_GRAPH_SIZES_MAX], uint32_t n_row);

struct step_graphs;

/* step_graphs_create - record every pass, size and context
 *
 *   b             with caps.graphs; borrowed, outlives the recordings
 *   host, device  blocks of the layout, in host memory and in the device's; written
 *   compute  called n_warm_up times, and once while b records, for each
 * Errors  ENOMEM, EDEVICE: says which recording; the cause is b's fault. */
fathom_err step_graphs_create(struct step_graphs **out, struct backend *b,
                              const struct batch_layout *l, void *host, void *device,
                              const struct step_graph_config *c, step_compute *compute, void *arg,
                              fathom_diag *d);
void step_graphs_destroy(struct step_graphs *g); /* accepts NULL */

/* step_graphs_count - how many recordings there are */
uint32_t step_graphs_count(const struct step_graphs *g);

/* step_graphs_size - rows of the smallest recording that holds n_row; n_row, where none does. Lanes
 * whose steps run as they are have as many places in moe_ep as those that replay. */
uint32_t step_graphs_size(const struct step_graphs *g, uint32_t n_row);

/* step_graphs_pick - the recording to replay for a step, NULL when it has to run as it is
 *
 * Of several lanes it holds the rows of any: where they meet, all have as many places.
 * Writes the padding into the step's host block, before it is copied: *prefix_bytes is the step's
 * own and the padding's page table, which lies behind it. g may be NULL. */
struct graph *step_graphs_pick(struct step_graphs *g, const struct step *step, void *host,
                               size_t *prefix_bytes);

#endif

/* step_graph.h - recorded steps: a step is replayed from the smallest recording that holds it
 *
 * With CUDA a recorded step is a graph: the device need not wait for the host to enqueue a thousand
 * kernels a step, because one call launches them all. A recording fixes the counts of a step; all
 * else lies in device memory. There is one recording for each combination of
 *
 *   pass     the model, the draft layer over a step, the draft layer over some of its rows
 *   size     number of tokens, from a list
 *   context  pages of the longest request: the strides of batch_page_stride
 *
 * A step is filled up to the size of its recording with padding rows. These have token 0 and form a
 * request of their own, whose cache rows lie in a page that no other request has. A row's bits do
 * not depend on its neighbours, so padding changes none. Padding is routed as row 0 is
 * (batch.n_live), so no expert is read for it alone. All rows of a recording are answer rows
 * (backend/batch.h), padding too.
 *
 * Steps with prompt rows, and steps larger than the largest size, run without a recording. Each
 * lane decides that by its own rows. But lanes of several hosts all decide alike, because what a
 * recording sends to another rank has to be received by the same recording there (NCCL's
 * documentation, "Using NCCL with CUDA Graphs").
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
    uint32_t n_warm_up; /* runs before each recording; the first loads the kernels: >= 1 */
    bool with_drafts;   /* the draft layer's passes too */
    bool by_all_lanes;  /* either all lanes replay a step, even those without rows, or none does */
    uint32_t padding_page; /* page of the cache that only padding rows read and write */
};

/* step_graph_sizes - list the sizes for decode steps of up to n_row rows: each one up to 8, then
 * every 8th up to 64, every 16th up to 128, every 32nd up to 256; the last is n_row, or 256 if that
 * is less. Returns how many. Padding costs small steps most, and each size makes the start
 * longer. */
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

/* step_graphs_size - the size of the smallest recording that holds n_row rows; n_row if there is
 * none. Lanes that run without a recording need it too: in moe_ep, all lanes have equally many
 * places. */
uint32_t step_graphs_size(const struct step_graphs *g, uint32_t n_row);

/* step_graphs_pick - find the recording to replay for a step; NULL: it has to run without one
 *
 * With several lanes, the recording is large enough for the largest of them, because all have
 * equally many places where they meet. Writes the padding into the step's host block, before the
 * block is copied: *prefix_bytes becomes the step's own plus the padding's page table, which lies
 * behind it. g may be NULL. */
struct graph *step_graphs_pick(struct step_graphs *g, const struct step *step, void *host,
                               size_t *prefix_bytes);

#endif

/* step_graph.c - the table of recorded steps, and the padding that fills a step up */
#include "engine/step_graph.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

enum { CONTEXTS_MAX = 16 };

struct step_graphs {
    struct backend *b;
    struct batch_layout layout;
    struct step_graph_config c;
    uint32_t strides[CONTEXTS_MAX]; /* ascending */
    uint32_t n_context;
    uint32_t n_graph;
    struct graph *graphs[STEP_PASS_N][CONTEXTS_MAX][STEP_GRAPH_SIZES_MAX]; /* NULL: none */
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t step_graph_sizes(uint32_t sizes[STEP_GRAPH_SIZES_MAX], uint32_t n_row)
{
    enum { FEW = 8, EIGHTHS = 64, SIXTEENTHS = 128, LARGEST = 256 };
    uint32_t last = least(n_row, LARGEST);
    ASSERT(last >= 1);
    uint32_t n = 0;
    for (uint32_t size = 1; size < last;) {
        sizes[n++] = size;
        size += size < FEW ? 1 : size < EIGHTHS ? 8 : size < SIXTEENTHS ? 16 : 32;
    }
    sizes[n++] = last;
    ASSERT(n <= STEP_GRAPH_SIZES_MAX);
    return n;
}

/* ---- padding -------------------------------------------------------------------------------- */

static int32_t *array(void *host, size_t offset)
{
    return (int32_t *)((char *)host + offset);
}

/* Writes rows n_token .. size - 1, and logit rows up to n_row. The padding is a request of its own
 * behind those of the step, with a page of its own, because operators may rely on a request's rows
 * being neighbours in ascending position. Behind a page's last row the positions start again. */
static void write_padding(const struct step_graphs *g, void *host, const struct batch_shape *b,
                          uint32_t size, uint32_t n_row)
{
    const struct batch_layout *l = &g->layout;
    ASSERT(b->n_token <= size && size <= l->max_token);
    ASSERT(b->n_logit_row <= n_row && n_row <= l->max_logit_row);
    ASSERT(b->n_request <= l->max_request && b->page_stride <= l->max_page_stride);
    int32_t page = (int32_t)g->c.padding_page;
    for (uint32_t t = b->n_token; t < size; t++) {
        int32_t pos = (int32_t)((t - b->n_token) % KV_PAGE_TOKENS);
        array(host, l->ids)[t] = 0;
        array(host, l->pos)[t] = pos;
        array(host, l->request)[t] = (int32_t)b->n_request;
        array(host, l->slot)[t] = page * KV_PAGE_TOKENS + pos;
        if (!g->c.with_drafts) continue;
        array(host, l->next_ids)[t] = 0;
        array(host, l->hidden_rows)[t] = 0;
    }
    array(host, l->page_table)[(size_t)b->n_request * b->page_stride] = page;
    for (uint32_t i = b->n_logit_row; i < n_row; i++) array(host, l->logit_rows)[i] = 0;
}

static uint32_t logit_rows_of(const struct step_graphs *g, uint32_t size)
{
    return least(size, g->layout.max_logit_row);
}

/* ---- recording ------------------------------------------------------------------------------ */

/* A pass over the device's arrays with `size` tokens and room for `stride` pages a request. */
static struct batch batch_of(const struct step_graphs *g, void *device, enum step_pass pass,
                             uint32_t size, uint32_t stride)
{
    const struct batch_layout *l = &g->layout;
    const struct batch_shape shape = {
        .n_token = size,
        .n_request = least(size, l->max_request),
        .n_answer_token = size,
        .n_answer_request = least(size, l->max_request),
        .n_logit_row = logit_rows_of(g, size),
        .n_most = size,
        .max_context = least(stride * (uint32_t)KV_PAGE_TOKENS, l->max_context),
        .page_stride = stride,
    };
    struct batch batch;
    batch_locate(l, &shape, pass, device, &batch);
    return batch;
}

static fathom_err record(struct step_graphs *g, const struct batch *batch, enum step_pass pass,
                         step_compute *compute, void *arg, struct graph **out)
{
    const struct backend_ops *ops = g->b->ops;
    for (uint32_t i = 0; i < g->c.n_warm_up; i++) TRY(compute(arg, batch, pass));
    TRY(ops->sync(g->b));
    TRY(ops->graph_begin(g->b));
    fathom_err err = compute(arg, batch, pass);
    fathom_err end_err = ops->graph_end(g->b, out);
    g->n_graph += end_err == FATHOM_OK;
    return err ? err : end_err;
}

static fathom_err record_all(struct step_graphs *g, void *device, step_compute *compute, void *arg,
                             fathom_diag *d)
{
    static const char *const names[STEP_PASS_N] = {"the model", "the draft layer",
                                                   "the draft layer over rows"};
    int n_pass = g->c.with_drafts ? STEP_PASS_N : 1;
    for (int p = 0; p < n_pass; p++) {
        for (uint32_t k = 0; k < g->n_context; k++) {
            for (uint32_t i = 0; i < g->c.n_size; i++) {
                /* it has at most one row a request, so the first size that holds these suffices */
                bool enough = i > 0 && g->c.sizes[i - 1] >= g->layout.max_request;
                if (p == STEP_DRAFT_ROWS && enough) break;
                enum step_pass pass = (enum step_pass)p;
                uint32_t size = g->c.sizes[i];
                struct batch batch = batch_of(g, device, pass, size, g->strides[k]);
                fathom_err err = record(g, &batch, pass, compute, arg, &g->graphs[p][k][i]);
                if (err == FATHOM_OK) continue;
                FAIL(d, err, "recording %s, %u tokens, context %u: %s", names[p], size,
                     batch.max_context, g->b->ops->fault(g->b));
            }
        }
    }
    return FATHOM_OK;
}

static void list_contexts(struct step_graphs *g)
{
    uint32_t stride = batch_page_stride(&g->layout, 1);
    g->strides[g->n_context++] = stride;
    while (stride < g->layout.max_page_stride) {
        stride = batch_page_stride(&g->layout, stride * (uint32_t)KV_PAGE_TOKENS + 1);
        ASSERT(g->n_context < CONTEXTS_MAX);
        g->strides[g->n_context++] = stride;
    }
    ASSERT(stride == g->layout.max_page_stride);
}

fathom_err step_graphs_create(struct step_graphs **out, struct backend *b,
                              const struct batch_layout *l, void *host, void *device,
                              const struct step_graph_config *c, step_compute *compute, void *arg,
                              fathom_diag *d)
{
    *out = NULL;
    struct step_graphs *g = mem_calloc(1, sizeof *g);
    if (!g) FAIL(d, FATHOM_ENOMEM, "no memory for the table of recorded steps");
    fathom_err err;
    g->b = b;
    g->layout = *l;
    g->c = *c;
    ASSERT(c->n_size >= 1 && c->n_size <= STEP_GRAPH_SIZES_MAX && c->n_warm_up >= 1);
    for (uint32_t i = 1; i < c->n_size; i++) ASSERT(c->sizes[i - 1] < c->sizes[i]);
    ASSERT(c->sizes[c->n_size - 1] <= l->max_token);
    list_contexts(g);
    uint32_t largest = c->sizes[c->n_size - 1];
    write_padding(g, host, &(struct batch_shape){0}, largest, logit_rows_of(g, largest));
    *array(host, l->n_live) = (int32_t)largest;
    err = b->ops->copy_in(b, device, host, l->bias);
    if (err) {
        err = diag_fail(d, err, "recording steps: %s", b->ops->fault(b));
        goto fail;
    }
    TRY_GOTO(record_all(g, device, compute, arg, d), fail);
    *out = g;
    return FATHOM_OK;
fail:
    step_graphs_destroy(g);
    return err;
}

void step_graphs_destroy(struct step_graphs *g)
{
    if (!g) return;
    for (int p = 0; p < STEP_PASS_N; p++) {
        for (uint32_t k = 0; k < CONTEXTS_MAX; k++) {
            for (uint32_t i = 0; i < STEP_GRAPH_SIZES_MAX; i++) {
                if (g->graphs[p][k][i]) g->b->ops->graph_destroy(g->b, g->graphs[p][k][i]);
            }
        }
    }
    mem_free(g);
}

uint32_t step_graphs_count(const struct step_graphs *g)
{
    return g ? g->n_graph : 0;
}

/* ---- replay --------------------------------------------------------------------------------- */

uint32_t step_graphs_size(const struct step_graphs *g, uint32_t n_row)
{
    for (uint32_t i = 0; g && i < g->c.n_size; i++) {
        if (g->c.sizes[i] >= n_row) return g->c.sizes[i];
    }
    return n_row;
}

struct graph *step_graphs_pick(struct step_graphs *g, const struct step *step, void *host,
                               size_t *prefix_bytes)
{
    *prefix_bytes = step->prefix_bytes;
    if (!g || step->watches_experts) return NULL;
    const struct batch_shape *b = &step->batch;
    ASSERT(step->pass < STEP_PASS_N && *prefix_bytes <= g->layout.bias);
    if (b->n_answer_token < b->n_token) return NULL;
    if (b->share.n_row > 0) return NULL;
    if (g->c.by_all_lanes ? b->some_run : b->n_token == 0) return NULL;
    const uint32_t n_most = b->n_most > b->n_token ? b->n_most : b->n_token;
    uint32_t i = 0;
    uint32_t k = 0;
    while (i < g->c.n_size && g->c.sizes[i] < n_most) i++;
    while (k < g->n_context && g->strides[k] != b->page_stride) k++;
    if (i == g->c.n_size || k == g->n_context) return NULL;
    struct graph *graph = g->graphs[step->pass][k][i];
    uint32_t size = g->c.sizes[i];
    /* rows of a prompt may want more logits than a recording of its size makes */
    if (!graph || b->n_logit_row > logit_rows_of(g, size)) return NULL;
    write_padding(g, host, b, size, logit_rows_of(g, size));
    if (b->n_token == 0) {
        *array(host, g->layout.n_live) = 0;
        *prefix_bytes = g->layout.page_table;
    }
    if (size > b->n_token) *prefix_bytes += (size_t)b->page_stride * sizeof(int32_t);
    ASSERT(*prefix_bytes <= g->layout.bias);
    return graph;
}

/* device.cu - the device: creation, memory, copies, fences, recorded steps, the first fault */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_int.cuh"

extern "C" {
#include "backend/cuda/cuda.h"
#include "base/log.h"
#include "base/mem.h"
}

fathom_err cuda_check(struct cuda_backend *c, cudaError_t e, const char *call, const char *what)
{
    if (e == cudaSuccess) return FATHOM_OK;
    if (c->fault[0] == '\0') {
        (void)snprintf(c->fault, sizeof c->fault, "device %d (%s): %s in %s: %s (%s)", c->device,
                       c->properties.name, call, what, cudaGetErrorName(e), cudaGetErrorString(e));
    }
    return FATHOM_EDEVICE;
}

static const char *get_fault(struct backend *b)
{
    return cuda_of(b)->fault;
}

/* ---- memory ---- */

static fathom_err device_alloc(struct backend *b, size_t bytes, const char *what, void **out,
                               fathom_diag *d)
{
    struct cuda_backend *c = cuda_of(b);
    *out = NULL;
    size_t rounded = (bytes + 255) / 256 * 256;
    cudaError_t e = cudaMalloc(out, rounded ? rounded : 256);
    if (e == cudaErrorMemoryAllocation) {
        size_t n_free = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&n_free, &total);
        FAIL(d, FATHOM_ENOMEM, "device %d: no room for %s: %zu bytes needed, %zu of %zu free",
             c->device, what, bytes, n_free, total);
    }
    if (e == cudaSuccess) e = cudaMemsetAsync(*out, 0, rounded ? rounded : 256, c->stream);
    fathom_err err = cuda_check(c, e, "cudaMalloc", what);
    if (err) return diag_fail(d, err, "%s", c->fault);
    c->allocated_bytes += rounded;
    return FATHOM_OK;
}

static void device_release(struct backend *b, void *p)
{
    (void)b;
    if (p) (void)cudaFree(p);
}

static fathom_err host_alloc(struct backend *b, size_t bytes, void **out, fathom_diag *d)
{
    (void)b;
    if (cudaMallocHost(out, bytes ? bytes : 1) != cudaSuccess) {
        *out = NULL;
        (void)cudaGetLastError();
        FAIL(d, FATHOM_ENOMEM, "no pinned host memory: %zu bytes needed", bytes);
    }
    memset(*out, 0, bytes);
    return FATHOM_OK;
}

static void host_release(struct backend *b, void *p)
{
    (void)b;
    if (p) (void)cudaFreeHost(p);
}

static fathom_err copy_in(struct backend *b, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream), "copy_in");
    return FATHOM_OK;
}

static fathom_err copy_out(struct backend *b, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, c->stream), "copy_out");
    return FATHOM_OK;
}

static fathom_err sync_queue(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaStreamSynchronize(c->stream), "sync");
    return FATHOM_OK;
}

static fathom_err fence_record(struct backend *b, int slot)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaEventRecord(c->fences[slot], c->stream), "fence");
    return FATHOM_OK;
}

static fathom_err fence_wait(struct backend *b, int slot)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaEventSynchronize(c->fences[slot]), "fence");
    return FATHOM_OK;
}

/* ---- recorded steps ---- */

static fathom_err graph_begin(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "graph");
    return FATHOM_OK;
}

static fathom_err graph_end(struct backend *b, struct graph **out)
{
    struct cuda_backend *c = cuda_of(b);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    *out = NULL;
    CU_TRY(c, cudaStreamEndCapture(c->stream, &graph), "graph");
    fathom_err err =
        cuda_check(c, cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate", "graph");
    (void)cudaGraphDestroy(graph);
    if (err) return err;
    *out = (struct graph *)exec;
    return FATHOM_OK;
}

static fathom_err graph_launch(struct backend *b, struct graph *g)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, cudaGraphLaunch((cudaGraphExec_t)g, c->stream), "graph");
    return FATHOM_OK;
}

static void graph_destroy(struct backend *b, struct graph *g)
{
    (void)b;
    if (g) (void)cudaGraphExecDestroy((cudaGraphExec_t)g);
}

static void get_caps(struct backend *b, struct backend_caps *out)
{
    struct cuda_backend *c = cuda_of(b);
    size_t n_free = 0, total = 0;
    memset(out, 0, sizeof *out);
    out->name = "cuda";
    (void)cudaMemGetInfo(&n_free, &total);
    (void)snprintf(out->device, sizeof out->device, "%.64s, sm_%d%d, %d SMs, %s path",
                   c->properties.name, c->properties.major, c->properties.minor,
                   c->properties.multiProcessorCount, c->fast ? "fp8" : "float");
    out->memory_bytes = total;
    out->memory_free_bytes = n_free;
    out->graphs = true;
    out->expanded_attention = false;
    for (int t = 0; t < 3; t++) out->kv_types[t] = true;
}

static fathom_err all_reduce(struct backend *b, struct buffer *delta, uint32_t n_token)
{
    (void)b;
    (void)delta;
    (void)n_token;
    return FATHOM_OK;
}

static void destroy(struct backend *b)
{
    if (!b) return;
    struct cuda_backend *c = cuda_of(b);
    for (uint32_t i = 0; i < c->n_scratch; i++) (void)cudaFree(c->scratch[i]);
    for (int i = 0; i < 2; i++) {
        if (c->fences[i]) (void)cudaEventDestroy(c->fences[i]);
    }
    if (c->stream) (void)cudaStreamDestroy(c->stream);
    mem_free(c);
}

static const struct backend_ops cuda_ops = {
    destroy,
    get_caps,
    device_alloc,
    device_release,
    host_alloc,
    host_release,
    copy_in,
    copy_out,
    sync_queue,
    fence_record,
    fence_wait,
    graph_begin,
    graph_end,
    graph_launch,
    graph_destroy,
    get_fault,
    cuda_buffer_create,
    cuda_buffer_destroy,
    cuda_buffer_read,
    cuda_buffer_write,
    cuda_prepare_vector,
    cuda_prepare_linear,
    cuda_prepare_mla,
    cuda_prepare_ffn,
    cuda_prepare_moe,
    cuda_weight_destroy,
    cuda_weight_bytes,
    cuda_embed,
    cuda_add_norm,
    cuda_linear,
    cuda_mla_front,
    cuda_index_topk,
    cuda_mla_attend,
    cuda_mla_out,
    cuda_ffn,
    cuda_router,
    cuda_moe,
    cuda_head,
    cuda_mtp_front,
    cuda_sample,
    all_reduce,
};

/* ---- creation ---- */

static fathom_err check_config(const struct backend_config *c, fathom_diag *d)
{
    if (c->nope_dim != 128 || c->v_dim != 128) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "head widths are %u and %u, the cuda backend needs 128 and 128", c->nope_dim,
             c->v_dim);
    }
    if (c->hidden > 16384 || c->hidden % 4) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "hidden is %u, the cuda backend needs a multiple of 4 up to 16384", c->hidden);
    }
    if (c->n_expert >= 1024 || c->n_expert_used > 32 || c->n_group > 32) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%u experts with %u used in %u groups, at most 1023, 32 and 32 are supported",
             c->n_expert, c->n_expert_used, c->n_group);
    }
    if (c->act == ACT_FP8 && (c->hidden % 128 || c->q_lora_rank % 128 || c->dense_inner % 128 ||
                              (c->n_expert && c->moe_inner % 128))) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "fp8 activations need widths that are multiples of 128: hidden %u, q_lora %u, dense "
             "%u, experts %u; use --dtype float32",
             c->hidden, c->q_lora_rank, c->dense_inner, c->moe_inner);
    }
    return FATHOM_OK;
}

static fathom_err scratch_add(struct cuda_backend *c, size_t bytes, const char *what, void **out,
                              fathom_diag *d)
{
    TRY(device_alloc(&c->base, bytes, what, out, d));
    c->scratch[c->n_scratch++] = *out;
    return FATHOM_OK;
}

enum { SCORE_SCRATCH_BYTES = 256 << 20 };

static fathom_err make_scratch(struct cuda_backend *c, fathom_diag *d)
{
    const struct backend_config *g = &c->c;
    size_t t = g->max_token, hidden = g->hidden;
    size_t index_q = (size_t)g->index_n_head * 128;
    size_t n_slot = g->n_expert_used + (g->shared_inner ? 1 : 0);
    size_t moe_rows = g->n_expert ? t * n_slot : 0;
    size_t mid = t * (g->dense_inner > g->shared_inner ? g->dense_inner : g->shared_inner);
    if (moe_rows * g->moe_inner > mid) mid = moe_rows * g->moe_inner;
    c->part_rows = cuda_attend_parts(g);
    size_t score_row_bytes = (size_t)ceil_div(g->max_context, 64) * 64 * 4;
    size_t score_rows = SCORE_SCRATCH_BYTES / score_row_bytes + 1;
    c->score_rows = (uint32_t)(score_rows < t ? score_rows : t);
    size_t max_task = moe_rows ? moe_rows / 8 + g->n_expert + 1 : 1;
    const struct {
        void **p;
        size_t bytes;
        const char *what;
    } rows[] = {
        {(void **)&c->front, t * (g->q_lora_rank + 128 + KV_ROW) * 4, "front"},
        {(void **)&c->query, t * (g->n_head * 192 + index_q) * 4, "query"},
        {(void **)&c->index_head, t * g->index_n_head * 4, "index head"},
        {(void **)&c->qa_f, t * g->q_lora_rank * 4, "query latent"},
        {(void **)&c->qa_q, t * g->q_lora_rank, "query latent codes"},
        {(void **)&c->qa_scale, t * ceil_div(g->q_lora_rank, 128) * 4, "query latent scales"},
        {(void **)&c->index_score,
         g->index_n_head ? (size_t)c->score_rows * ceil_div(g->max_context, 64) * 64 * 4 : 4,
         "index scores"},
        {(void **)&c->part_out, (size_t)c->part_rows * g->n_head * KV_LATENT * 4,
         "attention parts"},
        {(void **)&c->part_stat, (size_t)c->part_rows * g->n_head * 8, "attention statistics"},
        {(void **)&c->heads_f, t * g->n_head * 128 * 4, "heads"},
        {(void **)&c->heads_q, t * g->n_head * 128, "heads codes"},
        {(void **)&c->heads_scale, t * g->n_head * 4, "heads scales"},
        {(void **)&c->mid, mid * 2 * 4, "ffn gate and up"},
        {(void **)&c->mid_f, mid * 4, "ffn product"},
        {(void **)&c->mid_q, mid, "ffn codes"},
        {(void **)&c->mid_scale, mid / 32 + 4, "ffn scales"},
        {(void **)&c->slot_out, moe_rows * hidden * 4, "expert outputs"},
        {(void **)&c->shared_out, g->n_expert ? t * hidden * 4 : 4, "shared expert output"},
        {(void **)&c->router_score, t * g->n_expert * 4, "router scores"},
        {(void **)&c->map.tasks, max_task * sizeof(struct task), "expert tasks"},
        {(void **)&c->map.n_task, 4, "expert task count"},
        {(void **)&c->map.rows, (moe_rows + 1) * 4, "expert rows"},
        {(void **)&c->sample_count, (size_t)g->max_request * g->n_vocab * 4, "token counts"},
        {(void **)&c->sample_raw, (size_t)g->max_request * g->n_vocab * 4, "raw logits"},
        {(void **)&c->mtp_f, t * hidden * 2 * 4, "draft input"},
        {(void **)&c->mtp_h, t * hidden * 2 * 2, "draft input"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TRY(scratch_add(c, rows[i].bytes, rows[i].what, rows[i].p, d));
    }
    return FATHOM_OK;
}

extern "C" fathom_err backend_cuda_create(struct backend **out, const struct backend_config *config,
                                          fathom_diag *d)
{
    *out = NULL;
    TRY(check_config(config, d));
    struct cuda_backend *c = (struct cuda_backend *)mem_calloc(1, sizeof *c);
    if (!c) FAIL(d, FATHOM_ENOMEM, "no memory for the cuda backend");
    c->base.ops = &cuda_ops;
    c->c = *config;
    c->device = config->device;
    c->fast = config->act == ACT_FP8;
    cudaError_t e = cudaSetDevice(c->device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&c->properties, c->device);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        fathom_err err = diag_fail(d, FATHOM_EDEVICE, "CUDA device %d cannot be used: %s",
                                   c->device, cudaGetErrorString(e));
        mem_free(c);
        return err;
    }
    if (c->fast && c->properties.major * 10 + c->properties.minor < 89) {
        fathom_err err = diag_fail(d, FATHOM_EUNSUPPORTED,
                                   "fp8 activations need a GPU from sm_89 on, %s is sm_%d%d; use "
                                   "--dtype float32",
                                   c->properties.name, c->properties.major, c->properties.minor);
        mem_free(c);
        return err;
    }
    fathom_err err = cuda_check(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking),
                                "cudaStreamCreate", "create");
    for (int i = 0; i < 2 && !err; i++) {
        err = cuda_check(c, cudaEventCreateWithFlags(&c->fences[i], cudaEventDisableTiming),
                         "cudaEventCreate", "create");
    }
    if (!err) err = cuda_attend_init(c);
    if (!err) err = make_scratch(c, d);
    if (err) {
        if (c->fault[0]) err = diag_fail(d, err, "%s", c->fault);
        destroy(&c->base);
        return err;
    }
    *out = &c->base;
    return FATHOM_OK;
}

extern "C" int backend_cuda_device_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

/* device.cu - the device: creation, memory, copies, fences, recorded steps, the table of operators
 */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/collect_net.cuh"
#include "backend/cuda/join.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/absorb.cuh"
#include "backend/cuda/sm90/attend.cuh"
#include "backend/cuda/sm90/down_few.cuh"
#include "backend/cuda/sm90/index_choose.cuh"
#include "backend/cuda/sm90/index_score.cuh"
#include "backend/cuda/sm90/index_score_alone.cuh"
#include "backend/cuda/sm90/product_bf16.cuh"
#include "backend/cuda/sm90/product_e2m1.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_fp8.cuh"
#include "backend/cuda/sm90/product_fp8_wide.cuh"
#include "backend/cuda/sm90/product_int8.cuh"
#include "backend/cuda/sm90/product_u4.cuh"
#include "backend/cuda/sm90/product_u4_turned.cuh"
#include "backend/cuda/sm90/value.cuh"

extern "C" {
#include "backend/cuda/scratch.h"
#include "base/log.h"
#include "base/mem.h"
}

static const char *get_fault(struct backend *b)
{
    const struct cuda_backend *c = cuda_of(b);
    return c->fault[0] || !c->net ? c->fault : net_fault(c->net);
}

/* A CUDA call goes to the current device of the thread that makes it. */
static fathom_err bind_thread(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, gpu_set_device(c->device), "bind_thread");
    return FATHOM_OK;
}

static void disconnect(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    if (c->net) net_part(c->net);
}

/* Whoever waits for this rank in a kernel gives up when its wait's bound is over. */
static void abandon(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    if (c->net) net_abandon(c->net);
}

/* Of one host nothing is left of a meeting that all peers have come to; of another one a fault is,
 * which is final. */
static void renew(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    if (c->net) net_renew(c->net);
}

static fathom_err share_rows(struct backend *b, const struct share_rows_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_share_rows(&c->c, a);
    if (c->ep.world < 2) return FATHOM_OK; /* one rank has all rows */
    return c->net ? cuda_net_share(c, a) : cuda_share_rows(c, a);
}

/* ---- memory ---- */

/* What the seam promises of device memory, and more than any kernel's vector access needs. */
enum { ALLOC_ALIGN = 256 };
static_assert(ALLOC_ALIGN % KV_BLOCK_ALIGN == 0, "blocks of the cache begin where they may");

static fathom_err device_alloc(struct backend *b, size_t bytes, const char *what, void **out,
                               fathom_diag *d)
{
    struct cuda_backend *c = cuda_of(b);
    *out = NULL;
    size_t rounded = (bytes + ALLOC_ALIGN - 1) / ALLOC_ALIGN * ALLOC_ALIGN;
    if (!rounded) rounded = ALLOC_ALIGN;
    gpu_error e = gpu_malloc(out, rounded);
    if (e == GPU_NO_MEMORY) {
        size_t n_free = 0, total = 0;
        (void)gpu_last_error();
        (void)gpu_mem_info(&n_free, &total);
        FAIL(d, FATHOM_ENOMEM, "device %d: no room for %s: %zu bytes needed, %zu of %zu free",
             c->device, what, bytes, n_free, total);
    }
    if (e == GPU_SUCCESS) e = gpu_memset_async(*out, 0, rounded, c->stream);
    fathom_err err = cuda_check(c, e, GPU_TEXT(gpu_malloc), what);
    if (err) {
        (void)gpu_free(*out);
        *out = NULL;
        return diag_fail(d, err, "%s", c->fault);
    }
    ASSERT((uintptr_t)*out % ALLOC_ALIGN == 0);
    c->allocated_bytes += rounded;
    return FATHOM_OK;
}

static void device_release(struct backend *b, void *p)
{
    (void)b;
    if (p) (void)gpu_free(p);
}

static fathom_err host_alloc(struct backend *b, size_t bytes, void **out, fathom_diag *d)
{
    struct cuda_backend *c = cuda_of(b);
    if (gpu_malloc_host(out, bytes ? bytes : 1) != GPU_SUCCESS) {
        *out = NULL;
        (void)gpu_last_error();
        FAIL(d, FATHOM_ENOMEM, "no pinned host memory: %zu bytes needed", bytes);
    }
    memset(*out, 0, bytes);
    for (int i = 0; i < PINNED_MAX; i++) {
        if (c->pinned[i].base) continue;
        c->pinned[i].base = (const char *)*out;
        c->pinned[i].n_bytes = bytes;
        break;
    }
    return FATHOM_OK;
}

static void host_release(struct backend *b, void *p)
{
    struct cuda_backend *c = cuda_of(b);
    for (int i = 0; p && i < PINNED_MAX; i++) {
        if (c->pinned[i].base == p) c->pinned[i].base = NULL;
    }
    if (p) (void)gpu_free_host(p);
}

/* ---- copies ----
 *
 * A copy engine takes a few microseconds to begin and to hand back, twice a step. So what a step
 * copies is copied by a kernel, which reaches pinned memory over the bus. */
enum { COPY_THREADS = 256, COPY_WORDS_MAX = 16384 };

__global__ void copy_kernel(uint32_t *to, const uint32_t *from, uint32_t n_word)
{
    kernel_begin();
    uint32_t i = blockIdx.x * COPY_THREADS + threadIdx.x;
    DCHECK(n_word <= COPY_WORDS_MAX);
    if (i < n_word) to[i] = from[i];
}

static bool is_pinned(const struct cuda_backend *c, const void *host)
{
    for (int i = 0; i < PINNED_MAX; i++) {
        const char *base = c->pinned[i].base;
        if (base && (const char *)host >= base && (const char *)host < base + c->pinned[i].n_bytes)
            return true;
    }
    return false;
}

/* Pinned memory is so for all devices, whose addresses are those of the host: what rank 0 has
 * allocated, before any step, all ranks copy from. */
static bool kernel_copies(const struct cuda_backend *c, const void *host, size_t bytes)
{
    if (bytes == 0 || bytes % 4 || bytes / 4 > COPY_WORDS_MAX || (uintptr_t)host % 4) return false;
    return is_pinned(c, host) || (c->first && is_pinned(c->first, host));
}

static fathom_err copy_words(struct cuda_backend *c, const char *what, void *to, const void *from,
                             size_t bytes)
{
    uint32_t n_word = (uint32_t)(bytes / 4);
    ASSERT(n_word > 0 && bytes % 4 == 0);
    ASSERT((uintptr_t)to % 4 == 0 && (uintptr_t)from % 4 == 0);
    return cuda_launch(c, what, copy_kernel, dim3(ceil_div(n_word, COPY_THREADS)), COPY_THREADS, 0,
                       (uint32_t *)to, (const uint32_t *)from, n_word);
}

static fathom_err copy_in(struct backend *b, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    if (kernel_copies(c, src, bytes)) return copy_words(c, "copy_in", dst, src, bytes);
    CU_TRY(c, gpu_memcpy_async(dst, src, bytes, GPU_EITHER_WAY, c->stream), "copy_in");
    return FATHOM_OK;
}

static fathom_err copy_out(struct backend *b, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *c = cuda_of(b);
    if (kernel_copies(c, dst, bytes)) return copy_words(c, "copy_out", dst, src, bytes);
    CU_TRY(c, gpu_memcpy_async(dst, src, bytes, GPU_TO_HOST, c->stream), "copy_out");
    return FATHOM_OK;
}

static fathom_err sync_queue(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, gpu_stream_synchronize(c->stream), "sync");
    return FATHOM_OK;
}

static fathom_err fence_record(struct backend *b, uint32_t fence)
{
    struct cuda_backend *c = cuda_of(b);
    ASSERT(fence < BACKEND_FENCE_MAX);
    CU_TRY(c, gpu_event_record(c->fences[fence], c->stream), "fence");
    return FATHOM_OK;
}

static fathom_err fence_wait(struct backend *b, uint32_t fence)
{
    struct cuda_backend *c = cuda_of(b);
    ASSERT(fence < BACKEND_FENCE_MAX);
    CU_TRY(c, gpu_event_synchronize(c->fences[fence]), "fence");
    return c->net ? net_check(c->net) : FATHOM_OK;
}

static fathom_err fence_elapsed(struct backend *b, uint32_t from, uint32_t to, double *us)
{
    struct cuda_backend *c = cuda_of(b);
    float ms = 0.0f;
    ASSERT(from < BACKEND_FENCE_MAX && to < BACKEND_FENCE_MAX);
    CU_TRY(c, gpu_event_synchronize(c->fences[to]), "fence");
    CU_TRY(c, gpu_event_elapsed_ms(&ms, c->fences[from], c->fences[to]), "fence");
    *us = (double)ms * 1e3;
    return FATHOM_OK;
}

/* ---- recorded steps ---- */

static fathom_err graph_begin(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    CU_TRY(c, gpu_stream_begin_capture(c->stream, GPU_OF_THREAD), "graph");
    c->recording = true;
    return FATHOM_OK;
}

static fathom_err graph_end(struct backend *b, struct graph **out)
{
    struct cuda_backend *c = cuda_of(b);
    gpu_graph graph = NULL;
    gpu_graph_exec exec = NULL;
    *out = NULL;
    c->recording = false;
    CU_TRY(c, gpu_stream_end_capture(c->stream, &graph), "graph");
    fathom_err err = cuda_check(c, gpu_graph_instantiate(&exec, graph),
                                GPU_TEXT(gpu_graph_instantiate(&exec, graph)), "graph");
    (void)gpu_graph_destroy(graph);
    if (err) return err;
    *out = (struct graph *)exec;
    return FATHOM_OK;
}

static fathom_err graph_launch(struct backend *b, struct graph *g)
{
    struct cuda_backend *c = cuda_of(b);
    ASSERT(g);
    CU_TRY(c, gpu_graph_launch((gpu_graph_exec)g, c->stream), "graph");
    return FATHOM_OK;
}

static void graph_destroy(struct backend *b, struct graph *g)
{
    (void)b;
    if (g) (void)gpu_graph_exec_destroy((gpu_graph_exec)g);
}

static void get_caps(struct backend *b, struct backend_caps *out)
{
    struct cuda_backend *c = cuda_of(b);
    size_t n_free = 0, total = 0;
    memset(out, 0, sizeof *out);
    out->name = "cuda";
    out->prompt_form = c->sm90 && c->c.n_head >= ATTEND_HEADS;
    (void)gpu_mem_info(&n_free, &total);
    (void)snprintf(out->device, sizeof out->device, "%.64s, sm_%d%d, %d SMs, %s path",
                   c->properties.name, c->properties.major, c->properties.minor,
                   c->properties.multiProcessorCount, c->fast ? "fp8" : "float");
    static_assert(sizeof out->numerics == sizeof out->device, "bits depend on the device");
    memcpy(out->numerics, out->device, sizeof out->numerics);
    out->memory_bytes = total;
    out->memory_free_bytes = n_free;
    out->graphs = true;
    out->async = true;
    out->prompt_form = c->sm90;
    for (int t = 0; t < 3; t++) out->kv_types[t] = true;
}

static void destroy(struct backend *b)
{
    if (!b) return;
    struct cuda_backend *c = cuda_of(b);
    cuda_peers_leave(c);
    for (int i = 0; i < SCRATCH_N; i++) (void)gpu_free(c->scratch[i]);
    for (int i = 0; i < BACKEND_FENCE_MAX; i++) {
        if (c->fences[i]) (void)gpu_event_destroy(c->fences[i]);
    }
    if (c->stream) (void)gpu_stream_destroy(c->stream);
    mem_free(c);
}

/* Filled by name: C++17 has no designated initialisers, and two members of one type could change
 * places unseen in a list. */
static constexpr struct backend_ops make_ops(void)
{
    struct backend_ops o = {};
    o.destroy = destroy;
    o.get_caps = get_caps;
    o.bind_thread = bind_thread;
    o.join = cuda_join;
    o.connect = cuda_net_connect;
    o.disconnect = disconnect;
    o.abandon = abandon;
    o.renew = renew;
    o.alloc = device_alloc;
    o.release = device_release;
    o.alloc_host = host_alloc;
    o.release_host = host_release;
    o.copy_in = copy_in;
    o.copy_out = copy_out;
    o.sync = sync_queue;
    o.fence_record = fence_record;
    o.fence_wait = fence_wait;
    o.fence_elapsed = fence_elapsed;
    o.graph_begin = graph_begin;
    o.graph_end = graph_end;
    o.graph_launch = graph_launch;
    o.graph_destroy = graph_destroy;
    o.fault = get_fault;
    o.progress = cuda_progress;
    o.get_waits = cuda_get_waits;
    o.buffer_create = cuda_buffer_create;
    o.buffer_destroy = cuda_buffer_destroy;
    o.buffer_read = cuda_buffer_read;
    o.buffer_write = cuda_buffer_write;
    o.prepare_vector = cuda_prepare_vector;
    o.prepare_linear = cuda_prepare_linear;
    o.prepare_mla = cuda_prepare_mla;
    o.prepare_ffn = cuda_prepare_ffn;
    o.prepare_moe = cuda_prepare_moe;
    o.weight_destroy = cuda_weight_destroy;
    o.weight_bytes = cuda_weight_bytes;
    o.embed = cuda_embed;
    o.own_rows = cuda_own_rows;
    o.spread_rows = cuda_spread_rows;
    o.reduce_norm = cuda_reduce_norm;
    o.mla_front = cuda_mla_front;
    o.share_rows = share_rows;
    o.index_topk = cuda_index_topk;
    o.mla_attend = cuda_mla_attend;
    o.mla_out = cuda_mla_out;
    o.ffn = cuda_ffn;
    o.router = cuda_router;
    o.moe = cuda_moe;
    o.moe_ep = cuda_moe_ep;
    o.head = cuda_head;
    o.mtp_front = cuda_mtp_front;
    o.sample = cuda_sample;
    return o;
}

static constexpr struct backend_ops cuda_ops = make_ops();

/* ---- creation ---- */

/* Of several hosts sums are added up by one kernel, whatever the number of ranks. */
static fathom_err check_hosts(const struct backend_config *c, fathom_diag *d)
{
    const uint32_t n_rank = parallel_n_peer(&c->parallel), n_share = c->parallel.tp.size;
    if (n_rank > PARALLEL_RANKS_MAX || c->n_vocab % n_share) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%u ranks, %u of them of a vocabulary of %u; a divisor, and up to %d, is needed",
             n_rank, n_share, c->n_vocab, PARALLEL_RANKS_MAX);
    }
    return FATHOM_OK;
}

static fathom_err check_ranks(const struct backend_config *c, fathom_diag *d)
{
    const uint32_t n_rank = parallel_n_peer(&c->parallel);
    const uint32_t n_part = parallel_axis(&c->parallel, CUT_EXPERTS).size;
    if (n_rank == 0) FAIL(d, FATHOM_EINVAL, "the number of ranks is 0");
    if (c->n_host > 1) {
        TRY(check_hosts(c, d));
    } else if (!c->parallel.is_slice && n_rank != 1 && n_rank != 2 && n_rank != 4 &&
               n_rank != PEERS_MAX) {
        FAIL(d, FATHOM_EUNSUPPORTED, "%u ranks; the cuda backend runs on 1, 2, 4 or 8", n_rank);
    }
    if (n_part > 1 && (c->n_expert % n_part || c->n_expert / n_part > EXPERTS_HELD_MAX)) {
        FAIL(d, FATHOM_EINVAL, "n_expert is %u; %u ranks need equal parts of at most %d",
             c->n_expert, n_part, EXPERTS_HELD_MAX);
    }
    return FATHOM_OK;
}

static fathom_err check_config(const struct backend_config *c, fathom_diag *d)
{
    if (c->nope_dim != NOPE_DIM || c->v_dim != V_DIM) {
        FAIL(d, FATHOM_EUNSUPPORTED, "head widths are %u and %u, the cuda backend needs %d and %d",
             c->nope_dim, c->v_dim, NOPE_DIM, V_DIM);
    }
    TRY(check_ranks(c, d));
    if (c->max_token > GRID_YZ_MAX || c->max_request > GRID_YZ_MAX) {
        FAIL(
            d, FATHOM_EUNSUPPORTED,
            "a step of %u tokens and %u requests; the cuda backend takes %d of each at most; lower "
            "--max-num-batched-tokens",
            c->max_token, c->max_request, GRID_YZ_MAX);
    }
    if (c->hidden > HIDDEN_MAX || c->hidden % 4) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "hidden is %u, the cuda backend needs a multiple of 4 up to %d", c->hidden,
             HIDDEN_MAX);
    }
    if (c->q_lora_rank > FRONT_LORA_MAX || c->q_lora_rank % 4) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "q_lora_rank is %u, the cuda backend needs a multiple of 4 up to %d", c->q_lora_rank,
             FRONT_LORA_MAX);
    }
    if (c->index_n_head && !cuda_topk_fits(c->index_topk, c->max_context)) {
        FAIL(
            d, FATHOM_EUNSUPPORTED,
            "index_topk is %u at contexts of %u, the cuda backend chooses at most 16384, and 32768 "
            "over the spans of 32768 together; lower --max-model-len",
            c->index_topk, c->max_context);
    }
    const uint32_t most_used = EXPERTS_USED_MAX - (c->shared_inner ? 1 : 0);
    if (c->n_expert > EXPERTS_MAX || c->n_expert_used > most_used ||
        c->n_group > EXPERT_GROUPS_MAX) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%u experts with %u used in %u groups, at most %d, %u and %d are supported",
             c->n_expert, c->n_expert_used, c->n_group, EXPERTS_MAX, most_used, EXPERT_GROUPS_MAX);
    }
    const bool codes = c->act == ACT_FP8 || c->act == ACT_INT8;
    const char *type = c->act == ACT_INT8 ? "int8" : "fp8";
    if (codes && !GPU_TENSOR_CORES) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s activations are not built for this kind of GPU; use --dtype bfloat16", type);
    }
    if (codes && c->kv.type == KV_TYPE_F32) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s activations go with a bfloat16 or fp8 cache; use --kv-cache-dtype bfloat16", type);
    }
    if (codes && (c->hidden % FP8_GROUP || c->q_lora_rank % FP8_GROUP ||
                  c->dense_inner % FP8_GROUP || (c->n_expert && c->moe_inner % FP8_GROUP))) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s activations need widths that are multiples of 128: hidden %u, q_lora %u, dense "
             "%u, experts %u; use --dtype bfloat16",
             type, c->hidden, c->q_lora_rank, c->dense_inner, c->moe_inner);
    }
    return FATHOM_OK;
}

static fathom_err make_scratch(struct cuda_backend *c, fathom_diag *d)
{
    struct cuda_scratch_sizes sizes;
    cuda_scratch_measure(&sizes, &c->c);
    c->int8_bytes = sizes.bytes[SCRATCH_INT8];
    ASSERT(sizes.bytes[SCRATCH_INDEX_SCORE] % sizeof(float) == 0);
    c->score_floats = sizes.bytes[SCRATCH_INDEX_SCORE] / sizeof(float);
    c->part_rows = sizes.part_rows;
    c->prompt.n_context = sizes.prompt_rows / PROMPT_CONTEXT_TILE;
    c->prompt.kv_bytes = sizes.bytes[SCRATCH_PROMPT_KV];
    for (int i = 0; i < SCRATCH_N; i++) {
        TRY(device_alloc(&c->base, (size_t)sizes.bytes[i], cuda_scratch_name((enum cuda_scratch)i),
                         &c->scratch[i], d));
    }
    return FATHOM_OK;
}

static void name_scratch(struct cuda_backend *c)
{
    void *const *s = c->scratch;
    for (int i = 0; i < SCRATCH_N; i++) ASSERT(s[i]);
    c->front = (float *)s[SCRATCH_FRONT];
    c->query = (float *)s[SCRATCH_QUERY];
    c->index_head = (float *)s[SCRATCH_INDEX_HEAD];
    c->qa_f = (float *)s[SCRATCH_QA_F];
    c->qa_q = (uint8_t *)s[SCRATCH_QA_Q];
    c->qa_scale = (float *)s[SCRATCH_QA_SCALE];
    c->own.batch = (int32_t *)s[SCRATCH_OWN_BATCH];
    c->own.qa_f = (float *)s[SCRATCH_OWN_QA_F];
    c->own.qa_q = (uint8_t *)s[SCRATCH_OWN_QA_Q];
    c->own.qa_scale = (float *)s[SCRATCH_OWN_QA_SCALE];
    c->own.index_head = (float *)s[SCRATCH_OWN_INDEX_HEAD];
    c->index_score = (float *)s[SCRATCH_INDEX_SCORE];
    c->part_out = (float *)s[SCRATCH_PART_OUT];
    c->part_stat = (float *)s[SCRATCH_PART_STAT];
    c->prompt.plan = s[SCRATCH_PROMPT_PLAN];
    c->prompt.latent = (bf16 *)s[SCRATCH_PROMPT_LATENT];
    c->prompt.rope = (bf16 *)s[SCRATCH_PROMPT_ROPE];
    c->prompt.kv = (bf16 *)s[SCRATCH_PROMPT_KV];
    c->prompt.mask = (uint32_t *)s[SCRATCH_PROMPT_MASK];
    c->heads_f = (float *)s[SCRATCH_HEADS_F];
    c->heads_q = (uint8_t *)s[SCRATCH_HEADS_Q];
    c->heads_scale = (float *)s[SCRATCH_HEADS_SCALE];
    c->mid = (float *)s[SCRATCH_MID];
    c->mid_f = (float *)s[SCRATCH_MID_F];
    c->mid_q = (uint8_t *)s[SCRATCH_MID_Q];
    c->mid_scale = (float *)s[SCRATCH_MID_SCALE];
    c->int8_q = (uint8_t *)s[SCRATCH_INT8];
    c->int8_scale = (float *)s[SCRATCH_INT8_SCALE];
    c->input_sums = (float *)s[SCRATCH_INPUT_SUMS];
    c->expert_out = (float *)s[SCRATCH_EXPERT_OUT];
    c->shared_out = (float *)s[SCRATCH_SHARED_OUT];
    c->router_score = (float *)s[SCRATCH_ROUTER_SCORE];
    c->map.counts = (int32_t *)s[SCRATCH_TASK_BLOCKS];
    c->map.tasks = (struct task *)s[SCRATCH_TASKS];
    c->map.n_task = (int32_t *)s[SCRATCH_TASK_COUNT];
    c->map.rows = (int32_t *)s[SCRATCH_TASK_ROWS];
    c->handed.sums = c->c.n_expert ? (float *)s[SCRATCH_HANDED_SUMS] : NULL;
    c->handed.flags = (uint32_t *)s[SCRATCH_HANDED_FLAGS];
    c->round.x = s[SCRATCH_ROUND_X];
    c->round.experts = (int32_t *)s[SCRATCH_ROUND_EXPERTS];
    c->round.weights = (float *)s[SCRATCH_ROUND_WEIGHTS];
    c->sample_count = (uint32_t *)s[SCRATCH_SAMPLE_COUNT];
    c->sample_shaped = (float *)s[SCRATCH_SAMPLE_SHAPED];
    c->sample_parts = s[SCRATCH_SAMPLE_PARTS];
    c->mtp_f = (float *)s[SCRATCH_MTP_F];
    c->mtp_h = (bf16 *)s[SCRATCH_MTP_H];
    c->net_parts = (float *)s[SCRATCH_NET_PARTS];
    c->net_draws = (uint32_t *)s[SCRATCH_NET_DRAWS];
    c->net_ep.rows = (char *)s[SCRATCH_NET_ROWS];
    c->net_ep.sums = (char *)s[SCRATCH_NET_SUMS];
}

static bool is_too_old(const gpu_properties *p)
{
    return p->major * 10 + p->minor < CUDA_CAPABILITY_MIN;
}

/* Whether this program has kernels for the current device. */
static fathom_err check_kernels(const gpu_properties *p, fathom_diag *d)
{
    if (is_too_old(p)) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s is sm_%d%d, the cuda backend needs sm_%d or later; use --backend cpu", p->name,
             p->major, p->minor, CUDA_CAPABILITY_MIN);
    }
    const gpu_error e = gpu_find_kernel(copy_kernel);
    if (e == GPU_SUCCESS) return FATHOM_OK;
    (void)gpu_last_error();
    FAIL(d, FATHOM_EUNSUPPORTED,
         "%s is sm_%d%d, and this program has no kernels for it (%s); build it with "
         "-DCMAKE_CUDA_ARCHITECTURES=%d%d",
         p->name, p->major, p->minor, gpu_error_string(e), p->major, p->minor);
}

static fathom_err open_device(struct cuda_backend *c, fathom_diag *d)
{
    gpu_error e = gpu_set_device(c->device);
    if (e == GPU_SUCCESS) e = gpu_device_properties(&c->properties, c->device);
    if (e != GPU_SUCCESS) {
        (void)gpu_last_error();
        FAIL(d, FATHOM_EDEVICE, "CUDA device %d cannot be used: %s", c->device,
             gpu_error_string(e));
    }
    TRY(check_kernels(&c->properties, d));
    c->lean = gpu_shared_of_block(c->properties) < shared_limit(false);
    c->sm90 = c->fast && c->properties.major == 9 && !c->generic;
    ASSERT(c->properties.multiProcessorCount > 0 && c->properties.warpSize % WARP == 0);
    ASSERT(gpu_shared_of_block(c->properties) >=
           (c->fast ? shared_limit(c->lean) : SHARED_PLAIN_MAX));
    return FATHOM_OK;
}

static fathom_err open_queue(struct cuda_backend *c)
{
    CU_TRY(c, gpu_stream_create(&c->stream, GPU_NON_BLOCKING), "create");
    for (int i = 0; i < BACKEND_FENCE_MAX; i++) {
        CU_TRY(c, gpu_event_create(&c->fences[i]), "create");
    }
    if (c->sm90) {
        c->limits.n_sm = (uint32_t)c->properties.multiProcessorCount;
        CU_TRY(c, product_few_init(&c->limits), "create");
        CU_TRY(c, product_fp8_sm90_init(), "create");
        CU_TRY(c, product_fp8_wide_init(), "create");
        CU_TRY(c, product_int8_sm90_init(), "create");
        CU_TRY(c, product_u4_sm90_init(), "create");
        CU_TRY(c, product_u4_turned_init(), "create");
        CU_TRY(c, product_bf16_sm90_init(), "create");
        CU_TRY(c, product_e2m1_sm90_init(), "create");
        CU_TRY(c, down_few_init(), "create");
        CU_TRY(c, index_score_sm90_init(), "create");
        CU_TRY(c, index_score_alone_init(), "create");
        CU_TRY(c, index_choose_init(&c->limits), "create");
        CU_TRY(c, absorb_sm90_init(), "create");
        CU_TRY(c, value_sm90_init(), "create");
    }
    TRY(cuda_attend_init(c));
    TRY(cuda_query_init(c));
    TRY(cuda_index_head_init(c));
    TRY(cuda_out_init(c));
    TRY(product_bf16_init(c));
    return cuda_router_init(c);
}

/* Which kernels compute what, decided here for the life of the backend. */
static void log_kernels(const struct cuda_backend *c)
{
    const char *many = !c->fast  ? "float"
                       : c->sm90 ? "product_fp8 (sm_90, wgmma)"
                                 : "product_large (mma.sync)";
    const char *few = !c->fast  ? "float"
                      : c->sm90 ? "product_few (sm_90, wgmma, streams weights)"
                                : "product_small (mma.sync, streams weights)";
    const char *dense[] = {"mla_front", "mla_out", "ffn", "moe"};
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        LOG_INFO("cuda", "operator=%s few_rows=\"%s\" many_rows=\"%s\"", dense[i], few, many);
    }
    if (c->c.act == ACT_INT8)
        LOG_INFO("cuda", "weights=int8 kernels=\"%s\"",
                 c->sm90 ? "product_few, product_int8 (sm_90, wgmma)" : "product_i8 (mma.sync)");
    if (c->sm90)
        LOG_INFO("cuda", "operator=moe few_tokens_from_swiglu=\"down_few (sm_90, wgmma)\"");
    const char *path = c->fast ? "tensor cores" : "float";
    const char *other[] = {"router", "index_topk"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        LOG_INFO("cuda", "operator=%s kernels=\"%s\"", other[i], path);
    }
    LOG_INFO("cuda", "operator=mla_attend kernels=\"%s\"",
             !c->sm90 ? "plain"
             : attend_by_pairs(c->c.n_head, c->c.kv.type)
                 ? "attend_pair (sm_90, wgmma, two blocks a token)"
             : c->c.n_head >= ATTEND_HEADS ? "attend_heads (sm_90, wgmma, copies ahead)"
                                           : "attend (sm_90, mma.sync, copies ahead)");
    if (c->sm90)
        LOG_INFO("cuda", "operator=mla_attend prompt_rows=\"prompt_attend (sm_90, wgmma)\"");
}

static fathom_err create(struct backend **out, const struct backend_config *config, bool generic,
                         fathom_diag *d)
{
    ASSERT(config && out);
    *out = NULL;
    TRY(check_config(config, d));
    struct cuda_backend *c = (struct cuda_backend *)mem_calloc(1, sizeof *c);
    if (!c) FAIL(d, FATHOM_ENOMEM, "no memory for the cuda backend");
    c->base.ops = &cuda_ops;
    c->c = *config;
    c->device = config->device;
    c->fast = config->act == ACT_FP8 || config->act == ACT_INT8;
    c->generic = generic;
    fathom_err err = open_device(c, d);
    if (!err) err = open_queue(c);
    if (!err) err = make_scratch(c, d);
    if (!err) err = sync_queue(&c->base);
    if (err) {
        if (c->fault[0]) err = diag_fail(d, err, "%s", c->fault);
        destroy(&c->base);
        return err;
    }
    name_scratch(c);
    log_kernels(c);
    *out = &c->base;
    return FATHOM_OK;
}

extern "C" fathom_err backend_cuda_create(struct backend **out, const struct backend_config *config,
                                          fathom_diag *d)
{
    return create(out, config, false, d);
}

extern "C" fathom_err backend_cuda_generic_create(struct backend **out,
                                                  const struct backend_config *config,
                                                  fathom_diag *d)
{
    return create(out, config, true, d);
}

extern "C" int backend_cuda_count(void)
{
    gpu_properties properties;
    int n = 0, n_able = 0;
    if (gpu_device_count(&n) != GPU_SUCCESS) n = 0;
    for (int i = 0; i < n; i++) {
        n_able += gpu_device_properties(&properties, i) == GPU_SUCCESS && !is_too_old(&properties);
    }
    (void)gpu_last_error();
    return n_able;
}

extern "C" enum cuda_link backend_cuda_link(int from, int to)
{
    int can = 0, has_atomics = 0;
    if (gpu_can_access_peer(&can, from, to) != GPU_SUCCESS) can = 0;
    if (can && gpu_peer_atomics(&has_atomics, from, to) != GPU_SUCCESS) has_atomics = 0;
    (void)gpu_last_error();
    return !can ? CUDA_LINK_NONE : has_atomics ? CUDA_LINK_NVLINK : CUDA_LINK_PCIE;
}

extern "C" fathom_err backend_cuda_query(struct cuda_device_info *out, int device, fathom_diag *d)
{
    gpu_properties properties;
    size_t n_free = 0, total = 0;
    memset(out, 0, sizeof *out);
    gpu_error e = gpu_set_device(device);
    if (e == GPU_SUCCESS) e = gpu_device_properties(&properties, device);
    if (e == GPU_SUCCESS) e = gpu_mem_info(&n_free, &total);
    if (e != GPU_SUCCESS) {
        (void)gpu_last_error();
        FAIL(d, FATHOM_EDEVICE, "CUDA device %d cannot be used: %s", device, gpu_error_string(e));
    }
    (void)snprintf(out->name, sizeof out->name, "%.63s", properties.name);
    out->memory_bytes = total;
    out->memory_free_bytes = n_free;
    return FATHOM_OK;
}

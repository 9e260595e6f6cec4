/* memory_plan.c - every size of an engine, from its settings and the model alone */
#include "engine/memory_plan.h"

#include <string.h>

#include "backend/backend.h"
#include "backend/buffer_shape.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/os.h"
#include "engine/batch_build.h"
#include "kv/tiers.h"
#include "model/config.h"

#define GIB ((double)(1u << 30))

static void plan_weights(struct memory_plan *p, const struct engine_settings *s,
                         const struct model_config *config, const struct checkpoint *c)
{
    struct model_config stored = *config;
    if (s->loading.quantize_fp8) stored.quant = QUANT_FP8;
    bool as_stored = !s->loading.quantize_fp8 && !s->dummy;
    weights_measure(&p->weights, &stored, as_stored ? c : NULL, &s->place.parallel);
    if (!s->limits.with_mtp) {
        p->weights.total.bytes -= p->weights.kind[WEIGHT_MTP].bytes;
        p->weights.total.n_parameter -= p->weights.kind[WEIGHT_MTP].n_parameter;
        p->weights.total.n_tensor -= p->weights.kind[WEIGHT_MTP].n_tensor;
        memset(&p->weights.kind[WEIGHT_MTP], 0, sizeof p->weights.kind[WEIGHT_MTP]);
    }
    uint64_t bytes = 0;
    for (int i = 0; i < WEIGHT_KIND_COUNT; i++) bytes += p->weights.kind[i].bytes;
    ASSERT(bytes == p->weights.total.bytes);
    p->weights_bytes = bytes;
}

static void add_buffer(struct memory_plan *p, const char *name, uint64_t bytes)
{
    ASSERT(p->n_buffer < MEMORY_BUFFERS_MAX);
    p->buffers[p->n_buffer++] = (struct memory_part){.name = name, .bytes = bytes};
    p->buffers_bytes += bytes;
}

static void plan_buffers(struct memory_plan *p, const struct engine_settings *s,
                         const struct model_config *config)
{
    struct backend_config b;
    model_backend_config(&b, config, &s->limits, &s->place);
    const struct {
        const char *name;
        enum buffer_kind kind;
        uint32_t n; /* buffers of the kind */
    } all[] = {
        {"residual stream", BUFFER_RESIDUAL, 1},
        {"normed inputs", BUFFER_NORMED, 2}, /* of layers, of the head */
        {"block outputs", BUFFER_DELTA, 1},
        {"queries", BUFFER_QUERY, 1},
        {"selected rows", BUFFER_SELECT, b.index_n_head > 0},
        {"attention outputs", BUFFER_LATENT, 1},
        {"expert choices", BUFFER_ROUTE, b.n_expert > 0},
        {"logits", BUFFER_LOGITS, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct buffer_shape shape = buffer_shape_of(&b, all[i].kind);
        uint64_t bytes = (uint64_t)shape.n_row * shape.width * sizeof(float);
        if (all[i].n > 0) add_buffer(p, all[i].name, all[i].n * bytes);
    }
    if (s->backend == FATHOM_BACKEND_CUDA) {
        add_buffer(p, "operators' scratch", backend_cuda_extra_bytes(&b));
    }

    struct batch_layout layout;
    batch_layout_init(&layout, &s->limits, config->n_vocab);
    ASSERT(layout.history <= layout.n_bytes && s->max_flight >= 1);
    p->step_bytes = 2 * (uint64_t)layout.n_bytes;
    if (s->backend == FATHOM_BACKEND_CUDA) p->step_bytes += (s->max_flight - 1) * layout.history;
}

static bool is_host(const struct engine_settings *s)
{
    return s->backend != FATHOM_BACKEND_CUDA;
}

/* All but the cache. */
static uint64_t fixed_bytes(const struct memory_plan *p, const struct engine_settings *s)
{
    uint64_t ram_bytes = is_host(s) ? p->ram_bytes : 0;
    return p->weights_bytes + p->buffers_bytes + p->step_bytes + p->padding_bytes + ram_bytes;
}

static fathom_err plan_tiers(struct memory_plan *p, const struct engine_settings *s, fathom_diag *d)
{
    uint64_t place_bytes = direct_round(p->kv.page_bytes);
    ASSERT(place_bytes >= p->kv.page_bytes);
    uint64_t n_ram = s->offload_ram_bytes / place_bytes;
    if (s->offload_ram_bytes > 0 && n_ram < TIERS_MIN_RAM) {
        FAIL(d, FATHOM_EINVAL,
             "--kv-offload-ram %llu holds %llu pages of %llu bytes, needed are %d: give %llu at "
             "least",
             (unsigned long long)s->offload_ram_bytes, (unsigned long long)n_ram,
             (unsigned long long)place_bytes, TIERS_MIN_RAM,
             (unsigned long long)(TIERS_MIN_RAM * place_bytes));
    }
    if (n_ram == 0 && s->offload_dir) n_ram = TIERS_DEFAULT_RAM;
    p->n_ram_page = n_ram < INT32_MAX ? (uint32_t)n_ram : INT32_MAX;
    p->ram_bytes = p->n_ram_page * place_bytes;
    if (!s->offload_dir) return FATHOM_OK;
    p->n_disk_page = tier_disk_n_place(s->offload_dir_bytes, p->kv.page_bytes);
    p->disk_bytes = DIRECT_ALIGN + p->n_disk_page * tier_disk_place_bytes(p->kv.page_bytes);
    if (p->n_disk_page > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--kv-offload-dir-size %llu does not hold one page: give %llu at least",
         (unsigned long long)s->offload_dir_bytes,
         (unsigned long long)(DIRECT_ALIGN + tier_disk_place_bytes(p->kv.page_bytes)));
}

static void plan_cache(struct memory_plan *p, const struct engine_settings *s)
{
    ASSERT(p->kv.page_bytes > 0 && p->kv.page_bytes % KV_PAGE_TOKENS == 0);
    p->token_bytes = p->kv.page_bytes / KV_PAGE_TOKENS;
    p->request_pages = request_n_page(s->limits.max_context);
    uint64_t wanted = (uint64_t)s->max_num_seqs * p->request_pages;
    uint64_t max_page = INT32_MAX / KV_PAGE_TOKENS;
    p->n_page_wanted = (uint32_t)(wanted < max_page ? wanted : max_page);

    uint64_t other = fixed_bytes(p, s);
    uint64_t room = p->usable_bytes > other ? p->usable_bytes - other : 0;
    if (s->kv_cache_bytes && s->kv_cache_bytes < room) room = s->kv_cache_bytes;
    uint64_t n_page = room / p->kv.page_bytes;
    p->n_page = (uint32_t)(n_page < p->n_page_wanted ? n_page : p->n_page_wanted);
    p->kv_bytes = p->n_page * p->kv.page_bytes;
    p->n_token_capacity = (uint64_t)p->n_page * KV_PAGE_TOKENS;
    p->total_bytes = other + p->kv_bytes;
    ASSERT(p->n_page <= p->n_page_wanted);
    ASSERT(p->n_page == 0 || p->total_bytes <= p->usable_bytes);
}

/* The answer to a model that does not fit: the smallest change of each kind. */
static fathom_err refuse(const struct memory_plan *p, const struct engine_settings *s,
                         fathom_diag *d)
{
    uint64_t need = p->request_pages * p->kv.page_bytes;
    ASSERT(p->n_page < p->request_pages);
    uint64_t other = fixed_bytes(p, s);
    uint32_t fitting = p->n_page * (uint32_t)KV_PAGE_TOKENS;
    if (s->kv_cache_bytes && s->kv_cache_bytes < need && other + need <= p->usable_bytes) {
        FAIL(d, FATHOM_ENOMEM,
             "--kv-cache-memory-bytes %llu holds %u tokens, and one request of --max-model-len %u "
             "needs %llu bytes. Give at least that, or --max-model-len %u at most",
             (unsigned long long)s->kv_cache_bytes, fitting, s->limits.max_context,
             (unsigned long long)need, fitting);
    }
    if (is_host(s) && p->ram_bytes > 0 && other - p->ram_bytes + need <= p->usable_bytes) {
        FAIL(d, FATHOM_ENOMEM,
             "--kv-offload-ram %llu leaves no room for the cache of one request of --max-model-len "
             "%u: give %llu at most",
             (unsigned long long)p->ram_bytes, s->limits.max_context,
             (unsigned long long)(p->usable_bytes - (other - p->ram_bytes) - need));
    }
    if (p->n_page > 0) {
        FAIL(d, FATHOM_ENOMEM,
             "%.2f GiB of memory may be used (%.2f GiB are free); weights take %.2f, activations "
             "and step arrays %.2f, and the cache of one request of --max-model-len %u %.2f GiB. "
             "Give --max-model-len %u at most, or raise --gpu-memory-utilization, or lower "
             "--max-num-batched-tokens",
             (double)p->usable_bytes / GIB, (double)p->available_bytes / GIB,
             (double)p->weights_bytes / GIB, (double)(p->buffers_bytes + p->step_bytes) / GIB,
             s->limits.max_context, (double)need / GIB, fitting);
    }
    FAIL(d, FATHOM_ENOMEM,
         "%.2f GiB of memory may be used (%.2f GiB are free), and weights alone take %.2f, "
         "activations and step arrays %.2f GiB: no cache fits. Free %.2f GiB, raise "
         "--gpu-memory-utilization or lower --max-num-batched-tokens",
         (double)p->usable_bytes / GIB, (double)p->available_bytes / GIB,
         (double)p->weights_bytes / GIB, (double)(p->buffers_bytes + p->step_bytes) / GIB,
         (double)(other + need - p->usable_bytes) / GIB);
}

fathom_err memory_available(uint64_t *bytes, const struct engine_settings *s, fathom_diag *d)
{
    uint64_t total;
    struct cuda_device_info device;
    if (s->backend != FATHOM_BACKEND_CUDA) {
        os_memory_bytes(&total, bytes);
        return FATHOM_OK;
    }
    TRY(backend_cuda_query(&device, s->place.device, d));
    *bytes = device.memory_free_bytes;
    return FATHOM_OK;
}

fathom_err memory_check_host(const struct memory_plan *p, const struct engine_settings *s,
                             fathom_diag *d)
{
    uint64_t total, available;
    os_memory_bytes(&total, &available);
    if (is_host(s) || p->ram_bytes <= available) return FATHOM_OK;
    FAIL(d, FATHOM_ENOMEM, "--kv-offload-ram %llu: the machine has %llu bytes of memory free",
         (unsigned long long)p->ram_bytes, (unsigned long long)available);
}

/* The parts make up the totals. */
static void check_sums(const struct memory_plan *p, const struct engine_settings *s)
{
    uint64_t buffers_bytes = 0;
    for (uint32_t i = 0; i < p->n_buffer; i++) buffers_bytes += p->buffers[i].bytes;
    ASSERT(buffers_bytes == p->buffers_bytes);
    ASSERT(p->kv_bytes == p->n_page * p->kv.page_bytes);
    ASSERT(p->total_bytes == p->weights_bytes + p->kv_bytes + p->buffers_bytes + p->step_bytes +
                                 p->padding_bytes + (is_host(s) ? p->ram_bytes : 0));
}

fathom_err memory_plan_make(struct memory_plan *out, const struct engine_settings *s,
                            const struct model_config *config, const struct checkpoint *c,
                            uint64_t available_bytes, fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    out->available_bytes = available_bytes;
    out->usable_bytes = s->kv_cache_bytes
                            ? available_bytes
                            : (uint64_t)((double)available_bytes * s->memory_utilization);
    kv_layout_init(&out->kv, s->limits.kv_type, config->n_layer + (s->limits.with_mtp ? 1 : 0),
                   config->has_indexer);
    plan_weights(out, s, config, c);
    plan_buffers(out, s, config);
    bool records = s->backend == FATHOM_BACKEND_CUDA && s->graphs.n_size > 0;
    if (records) out->padding_bytes = out->kv.page_bytes;
    TRY(plan_tiers(out, s, d));
    plan_cache(out, s);
    check_sums(out, s);
    if (out->n_page < out->request_pages) return refuse(out, s, d);
    return FATHOM_OK;
}

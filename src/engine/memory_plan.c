/* memory_plan.c - every size of an engine, from its settings and the model alone */
#include "engine/memory_plan.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/buffer_shape.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/os.h"
#include "base/size_text.h"
#include "engine/batch_build.h"
#include "kv/tiers.h"
#include "model/config.h"
#include "model/stages.h"

/* Plans an output head that has at least two bytes a weight in the checkpoint and will have one
 * here, with scales by row or by block. HEAD_AUTO decides only while loading, so the larger size is
 * planned. */
static void plan_head(struct weight_sizes *w, const struct model_loading *loading)
{
    const uint64_t n = w->kind[WEIGHT_HEAD].n_parameter, was = w->kind[WEIGHT_HEAD].bytes;
    if (loading->head != HEAD_INT8 && loading->head != HEAD_FP8) return;
    if (was < 2 * n) return;
    const uint64_t bytes = n + n / 32; /* more than either's scales */
    w->kind[WEIGHT_HEAD].bytes = bytes;
    w->total.bytes -= was - bytes;
}

static void leave_out(struct weight_sizes *w, enum weight_kind kind)
{
    w->total.bytes -= w->kind[kind].bytes;
    w->total.n_parameter -= w->kind[kind].n_parameter;
    w->total.n_tensor -= w->kind[kind].n_tensor;
    memset(&w->kind[kind], 0, sizeof w->kind[kind]);
}

static void plan_weights(struct memory_plan *p, const struct engine_settings *s,
                         const struct model_config *config, const struct checkpoint *c)
{
    const struct model_config stored = settings_stored(s, config);
    bool as_stored = !s->loading.quantize_fp8 && !s->dummy;
    weights_measure(&p->weights, &stored, as_stored ? c : NULL, &s->place.parallel);
    for (int i = 0; i < WEIGHT_KIND_COUNT && s->backend == FATHOM_BACKEND_CPU; i++)
        p->weights.kind[i].bytes = p->weights.kind[i].cpu_bytes;
    if (s->backend == FATHOM_BACKEND_CPU) p->weights.total.bytes = p->weights.total.cpu_bytes;
    plan_head(&p->weights, &s->loading);
    if (!s->limits.with_mtp) {
        leave_out(&p->weights, WEIGHT_MTP);
        if (!parallel_is_first(&s->place.parallel)) leave_out(&p->weights, WEIGHT_EMBED);
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

static bool is_host(const struct engine_settings *s)
{
    return s->backend != FATHOM_BACKEND_CUDA;
}

static void plan_buffers(struct memory_plan *p, const struct engine_settings *s,
                         const struct model_config *config)
{
    struct backend_config b;
    const struct parallel *parallel = &s->place.parallel;
    const bool is_last = parallel_is_last(parallel), drafts = s->limits.with_mtp && is_last;
    const uint32_t n_flight = s->limits.n_flight ? s->limits.n_flight : 1;
    const uint32_t n_hop = !parallel_is_first(parallel);
    model_backend_config(&b, config, &s->limits, &s->place);
    const struct {
        const char *name;
        enum buffer_kind kind;
        uint32_t n; /* buffers of the kind */
    } all[] = {
        {"residual stream", BUFFER_RESIDUAL, 1},
        {"normed inputs", BUFFER_NORMED, 1 + (drafts ? n_flight : 1)}, /* of layers, of the head */
        {"rows between stages", BUFFER_RESIDUAL,
         parallel_n_stage(parallel) > 1 && is_host(s) ? n_hop * n_flight : 0},
        {"block outputs", BUFFER_DELTA, 1},
        {"queries", BUFFER_QUERY, 1},
        {"selected rows", BUFFER_SELECT, b.index_n_head > 0},
        {"attention outputs", BUFFER_LATENT, 1},
        {"expert choices", BUFFER_ROUTE,
         b.n_expert == 0                     ? 0
         : s->backend == FATHOM_BACKEND_CUDA ? 2
                                             : 1},
        {"logits", BUFFER_LOGITS, is_last},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct buffer_shape shape = buffer_shape_of(&b, all[i].kind);
        uint64_t bytes = (uint64_t)shape.n_row * shape.width * sizeof(float);
        if (all[i].n > 0) add_buffer(p, all[i].name, all[i].n * bytes);
    }
    if (s->backend == FATHOM_BACKEND_CUDA) {
        add_buffer(p, "operators' scratch", backend_cuda_extra_bytes(&b));
        if (drafts && n_flight > 1) { /* bf16 values, codes and scales of hidden states */
            const uint64_t row = 3 * (uint64_t)config->hidden + config->hidden / 32;
            add_buffer(p, "hidden states for drafts", (n_flight - 1) * b.max_token * row);
        }
    }

    struct batch_layout layout;
    batch_layout_init(&layout, &s->limits, config->n_vocab);
    ASSERT(layout.history <= layout.n_bytes && s->max_flight >= 1);
    p->step_bytes = (1 + n_flight) * (uint64_t)layout.n_bytes; /* the device's, and the host's */
    if (s->backend == FATHOM_BACKEND_CUDA) p->step_bytes += (s->max_flight - 1) * layout.history;
}

/* A rank's share of the memory tier, if that lies in the memory that is planned. */
static uint64_t ram_share(const struct memory_plan *p, const struct engine_settings *s)
{
    return is_host(s) ? p->ram_bytes / settings_n_rank(s) : 0;
}

/* All but the cache. */
static uint64_t fixed_bytes(const struct memory_plan *p, const struct engine_settings *s)
{
    return p->weights_bytes + p->buffers_bytes + p->step_bytes + p->padding_bytes + ram_share(p, s);
}

static fathom_err plan_tiers(struct memory_plan *p, const struct engine_settings *s, fathom_diag *d)
{
    const uint64_t page_bytes = p->record.page_bytes;
    uint64_t place_bytes = direct_round(page_bytes);
    ASSERT(place_bytes >= page_bytes);
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
    if (s->offload_ram_bytes == 0 && s->transfer) {
        uint64_t n_request = 2 * (uint64_t)request_n_page(s->limits.max_context);
        if (n_ram < TIERS_DEFAULT_RAM) n_ram = TIERS_DEFAULT_RAM;
        if (n_ram < n_request) n_ram = n_request;
    }
    p->n_ram_page = n_ram < INT32_MAX ? (uint32_t)n_ram : INT32_MAX;
    p->ram_bytes = p->n_ram_page * place_bytes;
    if (!s->offload_dir) return FATHOM_OK;
    p->n_disk_page = tier_disk_n_place(s->offload_dir_bytes, page_bytes);
    p->disk_bytes = DIRECT_ALIGN + p->n_disk_page * tier_disk_place_bytes(page_bytes);
    if (p->n_disk_page > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--kv-offload-dir-size %llu does not hold one page: give %llu at least",
         (unsigned long long)s->offload_dir_bytes,
         (unsigned long long)(DIRECT_ALIGN + tier_disk_place_bytes(page_bytes)));
}

static void set_pages(struct memory_plan *p, const struct engine_settings *s, uint32_t n_page)
{
    p->n_page = n_page;
    p->kv_bytes = n_page * p->kv.page_bytes;
    p->n_token_capacity = (uint64_t)n_page * KV_PAGE_TOKENS;
    p->total_bytes = fixed_bytes(p, s) + p->kv_bytes;
}

/* The size that was given for the cache, in bytes or in pages; 0: none was given. */
static uint64_t given_bytes(const struct memory_plan *p, const struct engine_settings *s)
{
    if (!s->kv_cache_pages) return s->kv_cache_bytes;
    return s->kv_cache_pages < UINT64_MAX / p->kv.page_bytes ? s->kv_cache_pages * p->kv.page_bytes
                                                             : UINT64_MAX;
}

static void plan_cache(struct memory_plan *p, const struct engine_settings *s)
{
    const uint64_t given = given_bytes(p, s);
    ASSERT(p->kv.page_bytes > 0 && p->kv.page_bytes % KV_PAGE_TOKENS == 0);
    p->token_bytes = p->kv.page_bytes / KV_PAGE_TOKENS;
    p->request_pages = request_n_page(s->limits.max_context);
    uint64_t wanted = (uint64_t)s->max_num_seqs * p->request_pages;
    uint64_t max_page = INT32_MAX / KV_PAGE_TOKENS - 1; /* beside it lies the padding rows' */
    p->n_page_wanted = (uint32_t)(wanted < max_page ? wanted : max_page);

    uint64_t other = fixed_bytes(p, s);
    uint64_t room = p->usable_bytes > other ? p->usable_bytes - other : 0;
    if (given && given < room) room = given;
    uint64_t n_page = room / p->kv.page_bytes;
    p->is_modest = is_host(s) && !given;
    uint64_t most = p->is_modest ? p->n_page_wanted : max_page;
    set_pages(p, s, (uint32_t)(n_page < most ? n_page : most));
    ASSERT(p->n_page <= most);
    ASSERT(p->n_page == 0 || p->total_bytes <= p->usable_bytes);
}

/* Refuses a plan whose cache is smaller than the size that was given. */
static fathom_err check_given(const struct memory_plan *p, const struct engine_settings *s,
                              fathom_diag *d)
{
    char sizes[4][SIZE_TEXT_BYTES];
    const uint64_t other = fixed_bytes(p, s), given = given_bytes(p, s);
    ASSERT(p->kv_bytes > 0 && p->kv_bytes <= given);
    if (given - p->kv_bytes < p->kv.page_bytes) return FATHOM_OK;
    if (s->kv_cache_pages) {
        FAIL(
            d, FATHOM_ENOMEM,
            "a cache of %llu tokens takes %s, and of %s that are free all else takes %s. Give %llu "
            "tokens at most",
            (unsigned long long)(s->kv_cache_pages * KV_PAGE_TOKENS), size_text(sizes[0], given),
            size_text(sizes[1], p->available_bytes), size_text(sizes[2], other),
            (unsigned long long)p->n_token_capacity);
    }
    FAIL(d, FATHOM_ENOMEM,
         "--kv-cache-memory-bytes %llu is %s, and of %s that are free all else takes %s. Give %llu "
         "(%s) at most",
         (unsigned long long)s->kv_cache_bytes, size_text(sizes[0], s->kv_cache_bytes),
         size_text(sizes[1], p->available_bytes), size_text(sizes[2], other),
         (unsigned long long)p->kv_bytes, size_text(sizes[3], p->kv_bytes));
}

/* The share of memory that may be used is too small. The advice names only what helps: a larger
 * share if the free memory is enough, and a shorter request if one fits. */
static fathom_err refuse_share(const struct memory_plan *p, const struct engine_settings *s,
                               uint64_t need, fathom_diag *d)
{
    char usable[SIZE_TEXT_BYTES], available[SIZE_TEXT_BYTES], weights[SIZE_TEXT_BYTES];
    char step[SIZE_TEXT_BYTES], cache[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES];
    uint64_t other = fixed_bytes(p, s), all = other + need;
    uint32_t fitting = p->n_page * (uint32_t)KV_PAGE_TOKENS;
    char advice[160] = "";
    size_t n = 0;
    if (p->n_page > 0) {
        n += (size_t)snprintf(advice, sizeof advice, "give --max-model-len %u at most, ", fitting);
    }
    if (all <= p->available_bytes) {
        double share = (double)all / (double)p->available_bytes;
        share = ((double)(int)(share * 1000) + 1) / 1000; /* so that it is enough */
        n += (size_t)snprintf(advice + n, sizeof advice - n,
                              "raise --gpu-memory-utilization to %.3f, ", share < 1 ? share : 1);
    }
    ASSERT(n < sizeof advice);
    bool small = p->weights_bytes + need <= p->usable_bytes;
    FAIL(d, FATHOM_ENOMEM,
         "%s of memory may be used (%s are free), and weights take %s, activations and step arrays "
         "%s, the cache of one request of --max-model-len %u %s: %s is needed. To serve it, %s%s%s",
         size_text(usable, p->usable_bytes), size_text(available, p->available_bytes),
         size_text(weights, p->weights_bytes), size_text(step, p->buffers_bytes + p->step_bytes),
         s->limits.max_context, size_text(cache, need), size_text(total, all), advice,
         small ? "lower --max-num-batched-tokens, or " : "",
         "take a machine with more memory free");
}

/* Refuses a plan in which not one request fits, and names the smallest change of each kind. */
static fathom_err refuse(const struct memory_plan *p, const struct engine_settings *s,
                         fathom_diag *d)
{
    uint64_t need = p->request_pages * p->kv.page_bytes;
    ASSERT(p->n_page < p->request_pages);
    uint64_t other = fixed_bytes(p, s);
    uint32_t fitting = p->n_page * (uint32_t)KV_PAGE_TOKENS;
    if (s->kv_cache_pages && given_bytes(p, s) < need && other + need <= p->usable_bytes) {
        FAIL(d, FATHOM_ENOMEM,
             "a cache of %llu tokens has no room for one request of --max-model-len %u: give that "
             "many tokens at least, or a --max-model-len of %u at most",
             (unsigned long long)(s->kv_cache_pages * KV_PAGE_TOKENS), s->limits.max_context,
             fitting);
    }
    if (s->kv_cache_bytes && s->kv_cache_bytes < need && other + need <= p->usable_bytes) {
        char shorter[64] = "";
        if (fitting > 0) {
            (void)snprintf(shorter, sizeof shorter, ", or --max-model-len %u at most", fitting);
        }
        FAIL(d, FATHOM_ENOMEM,
             "--kv-cache-memory-bytes %llu holds %u tokens, and one request of --max-model-len %u "
             "needs %llu bytes. Give at least that%s",
             (unsigned long long)s->kv_cache_bytes, fitting, s->limits.max_context,
             (unsigned long long)need, shorter);
    }
    if (ram_share(p, s) > 0 && other - ram_share(p, s) + need <= p->usable_bytes) {
        FAIL(d, FATHOM_ENOMEM,
             "--kv-offload-ram %llu leaves no room for the cache of one request of --max-model-len "
             "%u: give %llu at most",
             (unsigned long long)p->ram_bytes, s->limits.max_context,
             (unsigned long long)((p->usable_bytes - (other - ram_share(p, s)) - need) *
                                  settings_n_rank(s)));
    }
    return refuse_share(p, s, need, d);
}

fathom_err memory_available(uint64_t *bytes, uint32_t *rank, const struct engine_settings *s,
                            fathom_diag *d)
{
    const uint32_t n_rank = settings_n_rank(s);
    uint64_t total;
    *rank = 0;
    if (s->backend != FATHOM_BACKEND_CUDA) {
        os_memory_bytes(&total, bytes);
        *bytes /= n_rank;
        return FATHOM_OK;
    }
    for (uint32_t i = 0; i < n_rank; i++) {
        struct cuda_device_info device;
        TRY(backend_cuda_query(&device, n_rank > 1 ? s->devices[i] : s->place.device, d));
        if (i > 0 && device.memory_free_bytes >= *bytes) continue;
        *bytes = device.memory_free_bytes;
        *rank = i;
    }
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

/* Checks that the parts make up the totals. */
static void check_sums(const struct memory_plan *p, const struct engine_settings *s)
{
    uint64_t buffers_bytes = 0;
    for (uint32_t i = 0; i < p->n_buffer; i++) buffers_bytes += p->buffers[i].bytes;
    ASSERT(buffers_bytes == p->buffers_bytes);
    ASSERT(p->kv_bytes == p->n_page * p->kv.page_bytes);
    ASSERT(p->total_bytes == p->weights_bytes + p->kv_bytes + p->buffers_bytes + p->step_bytes +
                                 p->padding_bytes + ram_share(p, s));
}

/* Checks that the backend can compute with the checkpoint's weights as the settings say. */
static fathom_err check_weights(const struct engine_settings *s, const struct model_config *config,
                                const struct checkpoint *c, fathom_diag *d)
{
    const struct weight_use use = {
        .backend_name = s->backend == FATHOM_BACKEND_CUDA ? "cuda" : "cpu",
        .takes = s->backend == FATHOM_BACKEND_CUDA ? backend_cuda_takes : NULL,
        .stacks_experts = s->backend == FATHOM_BACKEND_CUDA,
        .fp8_inputs = s->limits.act == ACT_FP8,
        .no_int8_groups = s->backend == FATHOM_BACKEND_CUDA && s->limits.act == ACT_INT8,
        .quantization = s->quantization,
        .parallel = s->place.parallel,
    };
    const struct model_config stored = settings_stored(s, config);
    if (s->dummy) return weights_check_served(NULL, &stored, &use, d);
    return c ? weights_check_served(c, config, &use, d) : FATHOM_OK;
}

/* Makes the plan of one rank, without regard to other stages. */
static fathom_err plan_rank(struct memory_plan *out, const struct engine_settings *s,
                            const struct model_config *config, const struct checkpoint *c,
                            uint64_t available_bytes, fathom_diag *d)
{
    const struct parallel *p = &s->place.parallel;
    const struct model_limits *l = &s->limits;
    memset(out, 0, sizeof *out);
    out->available_bytes = available_bytes;
    out->usable_bytes = s->kv_cache_bytes || s->kv_cache_pages
                            ? available_bytes
                            : (uint64_t)((double)available_bytes * s->memory_utilization);
    stages_layout(&out->kv, config, l->kv_type, l->with_mtp, p);
    kv_layout_init(&out->record, l->kv_type, config->n_layer + (l->with_mtp ? 1 : 0),
                   config->has_indexer);
    plan_weights(out, s, config, c);
    plan_buffers(out, s, config);
    bool records = s->backend == FATHOM_BACKEND_CUDA && s->graphs.n_size > 0;
    if (records) out->padding_bytes = out->kv.page_bytes;
    TRY(plan_tiers(out, s, d));
    plan_cache(out, s);
    check_sums(out, s);
    return FATHOM_OK;
}

/* Refuses a stage that does not fit; if there are several, the message names it. */
static fathom_err check_stage(const struct memory_plan *p, const struct engine_settings *s,
                              fathom_diag *d)
{
    const struct axis pp = s->place.parallel.pp;
    fathom_diag why = {{0}};
    fathom_err err = FATHOM_OK;
    if (p->n_page < p->request_pages)
        err = refuse(p, s, &why);
    else if (given_bytes(p, s))
        err = check_given(p, s, &why);
    if (!err) return FATHOM_OK;
    if (pp.size <= 1) FAIL(d, err, "%s", why.text);
    FAIL(d, err, "stage %u of %u: %s", pp.rank, pp.size, why.text);
}

fathom_err memory_plan_make(struct memory_plan *out, const struct engine_settings *s,
                            const struct model_config *config, const struct checkpoint *c,
                            uint64_t available_bytes, fathom_diag *d)
{
    const uint32_t n_stage = parallel_n_stage(&s->place.parallel);
    struct engine_settings of = *s;
    struct memory_plan plan, tightest = {0};
    uint32_t i_tightest = 0;
    memset(out, 0, sizeof *out);
    TRY(check_weights(s, config, c, d));
    TRY(plan_rank(out, s, config, c, available_bytes, d));
    for (uint32_t i = 0; i < n_stage; i++) {
        if (n_stage > 1) of.place.parallel.pp.rank = i;
        plan = *out;
        if (i != s->place.parallel.pp.rank)
            TRY(plan_rank(&plan, &of, config, c, available_bytes, d));
        out->stages[i] =
            (struct memory_stage){.layers = parallel_layers(&of.place.parallel, config->n_layer),
                                  .weights_bytes = plan.weights_bytes,
                                  .kv_bytes = plan.kv.page_bytes,
                                  .total_bytes = fixed_bytes(&plan, &of)};
        if (i > 0 && plan.n_page >= tightest.n_page) continue;
        tightest = plan;
        i_tightest = i;
    }
    out->n_stage = n_stage; /* all have as many pages as the one with the least room */
    set_pages(out, s, tightest.n_page);
    check_sums(out, s);
    for (uint32_t i = 0; i < n_stage; i++) {
        out->stages[i].kv_bytes *= out->n_page; /* from a page's to all */
        out->stages[i].total_bytes += out->stages[i].kv_bytes;
    }
    if (n_stage > 1) of.place.parallel.pp.rank = i_tightest;
    return check_stage(&tightest, &of, d);
}

fathom_err memory_plan_make_here(struct memory_plan *out, const struct engine_settings *s,
                                 const struct model_config *config, const struct checkpoint *c,
                                 fathom_diag *d)
{
    uint64_t available = 0;
    uint32_t rank = 0;
    memset(out, 0, sizeof *out);
    TRY(memory_available(&available, &rank, s, d));
    if (is_host(s) || settings_n_rank(s) == 1) {
        return memory_plan_make(out, s, config, c, available, d);
    }
    fathom_diag inner = {{0}};
    fathom_err err = memory_plan_make(out, s, config, c, available, &inner);
    if (err == FATHOM_ENOMEM) {
        FAIL(d, err, "rank %u, on GPU %d, has least memory free: %s", rank, s->devices[rank],
             inner.text);
    }
    return err ? diag_fail(d, err, "%s", inner.text) : FATHOM_OK;
}

static fathom_err make(struct memory_plan *out, const struct engine_settings *s,
                       const struct model_config *config, const struct checkpoint *c,
                       uint64_t available_bytes, fathom_diag *d)
{
    if (available_bytes > 0) return memory_plan_make(out, s, config, c, available_bytes, d);
    return memory_plan_make_here(out, s, config, c, d);
}

/* Lets more requests run at once, if that makes the cache hardly smaller. */
static void fit_seqs(struct memory_plan *p, struct engine_settings *s,
                     const struct model_config *config, const struct checkpoint *c)
{
    /* at most a 16th of the cache may go; V3.2 over 8 GPUs of 141 GB: a 60th, with drafts a 37th */
    enum { PART = 16 };
    struct engine_settings more = *s;
    struct memory_plan plan;
    fathom_diag why = {{0}};
    ASSERT(s->fit_seqs && s->max_num_seqs < SETTINGS_MAX_NUM_SEQS_GPU);
    settings_set_seqs(&more, SETTINGS_MAX_NUM_SEQS_GPU, "the default of a GPU");
    if (memory_plan_make(&plan, &more, config, c, p->available_bytes, &why)) return;
    if ((uint64_t)plan.n_page * PART < (uint64_t)p->n_page * (PART - 1)) return;
    *s = more;
    *p = plan;
}

fathom_err memory_plan_fit(struct memory_plan *out, struct engine_settings *s,
                           const struct model_config *config, const struct checkpoint *c,
                           uint64_t available_bytes, fathom_diag *d)
{
    fathom_diag why = {{0}};
    fathom_err err = make(out, s, config, c, available_bytes, &why);
    if (err == FATHOM_ENOMEM && s->fit_context && out->n_page > 0 &&
        out->n_page < out->request_pages) {
        s->limits.max_context = out->n_page * (uint32_t)KV_PAGE_TOKENS;
        TRY(make(out, s, config, c, available_bytes, d));
    } else if (err) {
        return diag_fail(d, err, "%s", why.text);
    }
    if (s->fit_seqs) fit_seqs(out, s, config, c);
    return FATHOM_OK;
}

/* model_source.c - from the model argument to a checkpoint and to the engine's options */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/fail.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "model/config.h"
#include "model/config_override.h"

/* The layouts that pilot_bundle.S writes by hand. */
static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "LP64");
static_assert(sizeof(fathom_bundle_file) == 24 && offsetof(fathom_bundle_file, name) == 0 &&
                  offsetof(fathom_bundle_file, data) == 8 &&
                  offsetof(fathom_bundle_file, size) == 16,
              "a row of pilot_bundle.S");
static_assert(sizeof(fathom_bundle) == 24 && offsetof(fathom_bundle, name) == 0 &&
                  offsetof(fathom_bundle, files) == 8 && offsetof(fathom_bundle, n_file) == 16,
              "pilot_bundle of pilot_bundle.S");

static fathom_err override_file(struct model_source *m, const char *overrides, fathom_diag *d)
{
    const fathom_bundle_file *file = &m->config_file;
    TRY(config_override(&m->config_text, (const char *)file->data, file->size, overrides, false,
                        d));
    m->config_file.data = (const unsigned char *)buf_str(&m->config_text);
    m->config_file.size = m->config_text.len;
    return FATHOM_OK;
}

fathom_err model_source_find(struct model_source *m, const struct settings *s,
                             const struct environment *e, fathom_diag *d)
{
    memset(m, 0, sizeof *m);
    size_t n = strlen(s->model);
    while (n > 1 && s->model[n - 1] == '/') n--;
    if (n == 0 || n >= sizeof m->name_text) {
        FAIL(d, FATHOM_EINVAL, "MODEL has %zu characters, needed is 1 to %zu", n,
             sizeof m->name_text - 1);
    }
    memcpy(m->name_text, s->model, n);
    m->name = m->name_text;
    const bool is_main = !s->revision || strcmp(s->revision, "main") == 0;
    if (strcmp(m->name, pilot_bundle.name) == 0) {
        if (!is_main) {
            FAIL(d, FATHOM_EINVAL, "--revision \"%.80s\" is of a repository, and %s is linked in",
                 s->revision, m->name);
        }
        m->bundle = &pilot_bundle;
        return FATHOM_OK;
    }
    bool gguf = n > 5 && strcmp(m->name + n - 5, ".gguf") == 0; /* refused with its reason below */
    m->is_config = !gguf && path_exists(m->name) && !path_is_dir(m->name);
    if (m->is_config) {
        TRY(file_map_open(&m->config_map, m->name, d));
        m->config_file = (fathom_bundle_file){.name = "config.json",
                                              .data = (const unsigned char *)m->config_map.data,
                                              .size = m->config_map.size};
        m->config = (fathom_bundle){.name = m->name, .files = &m->config_file, .n_file = 1};
        return s->hf_overrides ? override_file(m, s->hf_overrides, d) : FATHOM_OK;
    }
    const char *folder = s->download_dir ? s->download_dir : e->hub_cache;
    const struct hub_cache cache = {.folder = folder[0] ? folder : NULL,
                                    .revision = is_main ? NULL : s->revision};
    return checkpoint_resolve(m->dir, m->name, &cache, d);
}

void model_source_close(struct model_source *m)
{
    file_map_close(&m->config_map);
    buf_free(&m->config_text);
    memset(m, 0, sizeof *m);
}

bool settings_want_dummy(const struct settings *s)
{
    return strcmp(s->load_format, "dummy") == 0;
}

static fathom_err override_or_close(struct checkpoint **c, const struct settings *s, fathom_diag *d)
{
    fathom_err err = checkpoint_override(*c, s->hf_overrides, false, d);
    if (!err) return FATHOM_OK;
    checkpoint_close(*c);
    *c = NULL;
    return err;
}

fathom_err model_source_open_files(struct checkpoint **out, const struct model_source *m,
                                   const struct settings *s, fathom_diag *d)
{
    TRY(checkpoint_open_files(out, m->bundle ? NULL : m->dir, m->bundle, d));
    return override_or_close(out, s, d);
}

fathom_err model_source_open(struct checkpoint **out, const struct model_source *m,
                             const struct settings *s, fathom_diag *d)
{
    *out = NULL;
    if (m->is_config) {
        FAIL(d, FATHOM_EINVAL, "%s is a file, needed is the directory of a checkpoint", m->name);
    }
    if (settings_want_dummy(s)) return model_source_open_files(out, m, s, d);
    TRY(m->bundle ? checkpoint_open_bundle(out, m->bundle, d) : checkpoint_open(out, m->dir, d));
    return override_or_close(out, s, d);
}

static fathom_backend backend_of(const char *name)
{
    if (strcmp(name, "ref") == 0) return FATHOM_BACKEND_REF;
    if (strcmp(name, "cpu") == 0) return FATHOM_BACKEND_CPU;
    return strcmp(name, "cuda") == 0 ? FATHOM_BACKEND_CUDA : FATHOM_BACKEND_AUTO;
}

static fathom_act act_of(const char *name)
{
    if (strcmp(name, "auto") == 0) return FATHOM_ACT_AUTO;
    if (strcmp(name, "fp8") == 0) return FATHOM_ACT_FP8;
    if (strcmp(name, "int8") == 0) return FATHOM_ACT_INT8;
    return strcmp(name, "bfloat16") == 0 ? FATHOM_ACT_BF16 : FATHOM_ACT_F32;
}

static fathom_head head_of(const char *name)
{
    if (strcmp(name, "auto") == 0) return FATHOM_HEAD_AUTO;
    if (strcmp(name, "int8") == 0) return FATHOM_HEAD_INT8;
    return strcmp(name, "fp8") == 0 ? FATHOM_HEAD_FP8 : FATHOM_HEAD_STORED;
}

static fathom_kv kv_of(const char *name)
{
    if (strcmp(name, "auto") == 0) return FATHOM_KV_AUTO;
    if (strcmp(name, "float32") == 0) return FATHOM_KV_F32;
    return strcmp(name, "bfloat16") == 0 ? FATHOM_KV_BF16 : FATHOM_KV_FP8;
}

static fathom_layout layout_of(const char *name)
{
    if (!name) return FATHOM_LAYOUT_GIVEN;
    if (strcmp(name, "auto") == 0) return FATHOM_LAYOUT_AUTO;
    return strcmp(name, "latency") == 0 ? FATHOM_LAYOUT_LATENCY : FATHOM_LAYOUT_THROUGHPUT;
}

void engine_options(fathom_options *out, const struct settings *s, const struct model_source *m)
{
    *out = (fathom_options){
        .model_dir = m->bundle || m->is_config ? NULL : m->dir,
        .bundle = m->is_config ? &m->config : m->bundle,
        .config_overrides = m->is_config ? NULL : s->hf_overrides, /* they are in it */
        .backend = backend_of(s->backend),
        .act = act_of(s->dtype),
        .head = head_of(s->head_dtype),
        .kv = kv_of(s->kv_cache_dtype),
        .n_thread = (uint32_t)s->threads,
        .devices = s->device_list.index,
        .n_device = s->device_list.n,
        .max_model_len = s->max_model_len > 0 ? (uint32_t)s->max_model_len : 0,
        .fit_model_len = s->max_model_len < 0,
        .max_num_batched_tokens = (uint32_t)s->max_num_batched_tokens,
        .max_num_seqs = (uint32_t)s->max_num_seqs,
        .max_queued = (uint32_t)s->max_queued,
        .max_queued_tokens = (uint64_t)s->max_num_queued_tokens,
        .slo_ttft_ms = (uint32_t)s->slo_ttft_ms,
        .slo_tpot_ms = (uint32_t)s->slo_tpot_ms,
        .priorities = s->scheduling_policy && strcmp(s->scheduling_policy, "priority") == 0,
        .kv_cache_bytes = (uint64_t)s->kv_cache_memory_bytes,
        .kv_cache_tokens = (uint64_t)s->kv_cache_tokens,
        .memory_utilization = s->gpu_memory_utilization,
        .n_draft = s->n_draft,
        .no_prefix_cache = !s->enable_prefix_caching,
        .offload_ram_bytes = (uint64_t)s->kv_offload_ram,
        .offload_dir = s->kv_offload_dir,
        .offload_dir_bytes = (uint64_t)s->kv_offload_dir_size,
        .transfer = s->transfer.is_set ? &s->transfer.options : NULL,
        .dummy = settings_want_dummy(s),
        .quantize_fp8 = s->quantization && quant_method_of(s->quantization) == QUANT_FP8,
        .quantization = s->quantization,
        .world = (uint32_t)s->tensor_parallel_size,
        .pipeline = (uint32_t)s->pipeline_parallel_size,
        .data_parallel = (uint32_t)s->data_parallel_size,
        .expert_parallel = s->enable_expert_parallel,
        .share_prompts = (int32_t)s->share_prompts,
        .layout = layout_of(s->layout),
        .layout_ranks = (uint32_t)s->ranks,
        .load = {(uint32_t)s->load_concurrency, (uint32_t)s->load_input_len,
                 (uint32_t)s->load_output_len},
        .rank_slice = s->rank_slice >= 0,
        .rank = s->rank_slice >= 0 ? (uint32_t)s->rank_slice : 0,
        .no_async = !s->async_scheduling,
        .enforce_eager = s->enforce_eager || s->compilation.no_graphs,
        .graph_sizes = s->compilation.sizes,
        .n_graph_size = s->compilation.n_size,
        .n_graph_warm_up = s->compilation.n_warm_up,
        .seed = s->seed < 0 ? 0 : (uint64_t)s->seed,
    };
}

static void tell_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    progress_tell(arg, done_bytes, total_bytes);
}

fathom_err engine_open(fathom_engine **out, const fathom_options *o, fathom_diag *d)
{
    struct progress progress;
    fathom_options with = *o;
    with.on_load = tell_progress;
    with.on_load_arg = &progress;
    progress_begin(&progress, "loading");
    fathom_err err = fathom_open(out, &with, d);
    progress_end(&progress);
    return err;
}

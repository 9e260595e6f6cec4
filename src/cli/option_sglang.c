/* option_sglang.c - SGLang's flags that mean more than one option, put into what they mean
 *
 * After the walk over everything that is given, before what goes together is checked. A flag that
 * has the name of another with the same meaning has been stored already.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "cli/options_int.h"

/* Names of parsers, as SGLang writes them. */
static const char *parser_name(const char *name)
{
    static const char *const names[][2] = {{"deepseekv3", "deepseek_v3"},
                                           {"deepseekv31", "deepseek_v31"},
                                           {"deepseekv32", "deepseek_v32"},
                                           {"deepseek-r1", "deepseek_r1"},
                                           {"deepseek-v3", "deepseek_v3"}};
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i][0], name) == 0) return names[i][1];
    }
    return name;
}

/* "10.0.0.1:5000", "tcp://10.0.0.1:5000", "[::1]:5000" */
static fathom_err take_address(struct option_walk *w)
{
    struct settings *s = w->settings;
    const char *at = s->sglang.dist_init_addr;
    char host[256];
    if (!at) return FATHOM_OK;
    if (strncmp(at, "tcp://", 6) == 0) at += 6;
    const char *colon = strrchr(at, ':');
    size_t n = colon ? (size_t)(colon - at) : 0;
    if (n > 1 && at[0] == '[' && at[n - 1] == ']') {
        at++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof host) {
        FAIL(w->diag, FATHOM_EINVAL, "--dist-init-addr %.200s: needed is HOST:PORT of host 0",
             s->sglang.dist_init_addr);
    }
    (void)snprintf(host, sizeof host, "%.*s", (int)n, at);
    const char *kept = option_keep(s, host);
    if (!kept) return FATHOM_ENOMEM;
    TRY(option_set(w, option_of_command("master-addr", COMMAND_SERVE), kept));
    TRY(option_set(w, option_of_command("master-port", COMMAND_SERVE), colon + 1));
    if (s->nnodes <= 1 || s->node_rank == 0 || s->headless) return FATHOM_OK;
    s->headless = true;
    return buf_printf(w->notes, "--dist-init-addr: host %lld is --headless, host 0 serves\n",
                      (long long)s->node_rank);
}

/* There dp-size divides tp-size: 2 of 8 are two groups of four ranks, each with requests of its
 * own. */
static fathom_err take_ranks(struct option_walk *w)
{
    struct settings *s = w->settings;
    const int64_t dp = s->sglang.dp_size, ep = s->sglang.ep_size, tp = s->tensor_parallel_size;
    char line[256] = "";
    if (ep > 1 && ep == tp) s->enable_expert_parallel = true;
    if (s->sglang.enable_dp_attention && dp > 1 && tp % dp == 0) {
        s->data_parallel_size = dp;
        s->tensor_parallel_size = tp / dp;
        s->enable_expert_parallel = true;
        return buf_printf(w->notes,
                          "--tp-size %lld --dp-size %lld --enable-dp-attention: this is "
                          "--data-parallel-size %lld --tensor-parallel-size %lld "
                          "--enable-expert-parallel\n",
                          (long long)tp, (long long)dp, (long long)dp, (long long)(tp / dp));
    }
    if (s->sglang.enable_dp_attention && dp > 1) {
        (void)snprintf(line, sizeof line,
                       "--dp-size %lld of --tp-size %lld is refused: it has to divide --tp-size, "
                       "which is all ranks: give --dp-size %lld, or leave it and "
                       "--enable-dp-attention out",
                       (long long)dp, (long long)tp, (long long)tp);
    } else if (dp > 1) {
        (void)snprintf(line, sizeof line,
                       "--dp-size %lld is refused: that many copies of a model are as many "
                       "servers behind `fathom router`; give --enable-dp-attention for ranks of "
                       "one copy",
                       (long long)dp);
    } else if (ep > 1 && ep != tp && s->data_parallel_size <= 1) {
        (void)snprintf(line, sizeof line,
                       "--ep-size %lld of --tp-size %lld is refused: an expert is whole on one of "
                       "all ranks, or cut over all: give --ep-size %lld, or leave it out",
                       (long long)ep, (long long)tp, (long long)tp);
    } else if (s->sglang.enable_dp_attention) {
        return buf_add_str(w->notes, "--enable-dp-attention has no effect: --dp-size is 1\n");
    }
    return line[0] ? option_refuse(w, line) : FATHOM_OK;
}

static fathom_err take_drafts(struct option_walk *w)
{
    struct settings *s = w->settings;
    char config[96];
    if (!s->sglang.speculative_algorithm) return FATHOM_OK;
    (void)snprintf(config, sizeof config,
                   "{\"method\": \"deepseek_mtp\", \"num_speculative_tokens\": %lld}",
                   (long long)s->sglang.speculative_num_steps);
    s->speculative_config = option_keep(s, config);
    return s->speculative_config ? FATHOM_OK : FATHOM_ENOMEM;
}

/* A server that prefills is asked at the port of SGLang's bootstrap server. */
static fathom_err take_role(struct option_walk *w)
{
    struct settings *s = w->settings;
    const char *mode = s->sglang.disaggregation_mode;
    if (!mode || strcmp(mode, "null") == 0) return FATHOM_OK;
    if (s->kv_transfer_config) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--disaggregation-mode %s and --kv-transfer-config say the same: leave one of them "
             "out",
             mode);
    }
    bool prefills = strcmp(mode, "prefill") == 0;
    s->kv_transfer_config =
        prefills ? "{\"kv_role\": \"kv_producer\"}" : "{\"kv_role\": \"kv_consumer\"}";
    if (prefills) s->kv_port = s->sglang.bootstrap_port;
    return FATHOM_OK;
}

/* GPUs are told by the first one and a step, of which as many are taken as there are ranks here. */
static fathom_err take_devices(struct option_walk *w)
{
    struct settings *s = w->settings;
    const int64_t first = s->sglang.base_gpu_id, step = s->sglang.gpu_id_step;
    struct buf list = {0};
    if (first == 0 && step == 1) return FATHOM_OK;
    if (s->devices) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--base-gpu-id and --gpu-id-step say what --devices says: leave either out");
    }
    int64_t n = s->tensor_parallel_size * s->data_parallel_size * s->pipeline_parallel_size /
                (s->nnodes > 1 ? s->nnodes : 1);
    for (int64_t i = 0; i < n; i++) {
        (void)buf_printf(&list, "%s%lld", i ? "," : "", (long long)(first + i * step));
    }
    s->devices = option_keep(s, buf_str(&list));
    buf_free(&list);
    return s->devices ? FATHOM_OK : FATHOM_ENOMEM;
}

/* Host memory behind the cache. */
static fathom_err take_hicache(struct option_walk *w)
{
    struct settings *s = w->settings;
    if (!s->sglang.hierarchical_cache) return FATHOM_OK;
    if (s->sglang.hicache_gb <= 0 && s->kv_offload_ram == 0) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--enable-hierarchical-cache: how much memory may it take? Give --hicache-size, such "
             "as 64 (GB)");
    }
    if (s->sglang.hicache_gb > 0) s->kv_offload_ram = (int64_t)(s->sglang.hicache_gb * 1e9);
    return FATHOM_OK;
}

fathom_err option_take_sglang(struct option_walk *w)
{
    struct settings *s = w->settings;
    s->tool_call_parser = parser_name(s->tool_call_parser);
    s->reasoning_parser = parser_name(s->reasoning_parser);
    if (!option_reads_serve(w->command)) return FATHOM_OK;
    if (s->max_num_batched_tokens < 0) {
        s->max_num_batched_tokens = 0;
        TRY(buf_add_str(w->notes, "--chunked-prefill-size -1 has no effect: long prompts always "
                                  "run in chunks\n"));
    }
    if (s->sglang.disable_radix_cache) s->enable_prefix_caching = false;
    if (s->sglang.disable_overlap_schedule) s->async_scheduling = false;
    if (s->sglang.priorities) s->scheduling_policy = "priority";
    if (s->sglang.enable_trace && !s->otlp_traces_endpoint)
        s->otlp_traces_endpoint = "localhost:4317";
    if (s->sglang.sampling_defaults) {
        bool is_openai = strcmp(s->sglang.sampling_defaults, "openai") == 0;
        s->generation_config = is_openai ? "vllm" : "auto";
    }
    TRY(take_address(w));
    TRY(take_ranks(w));
    TRY(take_devices(w));
    TRY(take_hicache(w));
    TRY(take_drafts(w));
    return take_role(w);
}

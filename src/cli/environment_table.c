/* environment_table.c - the variables that operators bring from vLLM, each with its answer */
#include <ctype.h>
#include <string.h>

#include "base/fail.h"
#include "cli/options_int.h"

#define DOWNLOAD                                                                                   \
    "`fathom pull` has no such setting; HF_HOME, HF_HUB_CACHE, HF_TOKEN and HF_ENDPOINT act"
#define ASCEND "it configures Ascend's libraries"
#define SGLANG "it configures SGLang's Python"
#define AMD "it configures AMD's libraries"
#define HOSTS "hosts of one model are named by --nnodes, --node-rank and --master-addr"
#define DEVICES "hosts and servers meet over TCP, by the device that the system's routes name"
#define PAGES "how pages go is said by --kv-transfer-config and --kv-transport"

const struct environment_row environment_table[] = {
    {"VLLM_API_KEY", true, "--api-key"},
    {"VLLM_LOGGING_LEVEL", true, "--log-level"},
    {"FATHOM_*", true, "FATHOM_MAX_MODEL_LEN is --max-model-len, and so for every option"},
    {"HF_HOME", true, "where org/name is looked up: in hub there"},
    {"XDG_CACHE_HOME", true, "without HF_HOME: in huggingface/hub there"},
    {"HF_HUB_CACHE", true, "before either: there; likewise --download-dir, which goes first"},
    {"HUGGINGFACE_HUB_CACHE", true, "the same"},
    {"CUDA_VISIBLE_DEVICES", true, "which GPUs there are: the driver reads it"},
    {"HF_TOKEN", true, "the key of `fathom pull`; without it, what `hf auth login` has kept"},
    {"HUGGING_FACE_HUB_TOKEN", true, "the same"},
    {"HF_TOKEN_PATH", true, "the file of that key; without it, token in HF_HOME"},
    {"HF_ENDPOINT", true, "the hub of `fathom pull`, such as a mirror"},
    {"VLLM_USE_MODELSCOPE", true, "`fathom pull` asks ModelScope"},
    {"MODELSCOPE_DOMAIN", true, "of ModelScope's interface, for `fathom pull`"},
    {"MASTER_ADDR", true, "--master-addr"},
    {"MASTER_PORT", true, "--master-port; under torchrun, which listens there, the next one"},
    {"OMPI_COMM_WORLD_SIZE", true, "--nnodes, under mpirun with one process a host"},
    {"OMPI_COMM_WORLD_RANK", true, "--node-rank"},
    {"GROUP_WORLD_SIZE", true, "--nnodes, under torchrun --nproc-per-node=1"},
    {"GROUP_RANK", true, "--node-rank"},
    {"LWS_GROUP_SIZE", true, "--nnodes, in a LeaderWorkerSet"},
    {"LWS_WORKER_INDEX", true, "--node-rank"},
    {"LWS_LEADER_ADDRESS", true, "--master-addr"},
    {"SLURM_STEP_NUM_NODES", true, "--nnodes, under srun --ntasks-per-node=1"},
    {"SLURM_NODEID", true, "--node-rank"},
    {"SLURM_STEP_NODELIST", true, "--master-addr: its first host"},
    {"PMIX_NAMESPACE", true, "where host 0 is, unless --master-addr or --master-port is given"},
    {"PMIX_RANK", true, "--node-rank, beside --nnodes"},
    {"PMI_SIZE", true, "--nnodes, under mpiexec -ppn 1"},
    {"PMI_RANK", true, "--node-rank"},
    {"NNODES", true, "--nnodes"},
    {"NODE_RANK", true, "--node-rank"},
    {"WORLD_SIZE", true, "--nnodes, of one process a host"},
    {"RANK", true, "--node-rank"},
    {"OTEL_SERVICE_NAME", true, "whose traces they are, with --otlp-traces-endpoint; else fathom"},
    {"OTEL_RESOURCE_ATTRIBUTES", true, "what else is said of it"},
    {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", true,
     "grpc or http/protobuf; else what the address is of"},
    {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", true, "sent with traces, such as a key"},
    {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", true, "authorities of the collector's certificate"},
    {"OTEL_EXPORTER_OTLP_PROTOCOL", true, "as with TRACES in it, and so the next two"},
    {"OTEL_EXPORTER_OTLP_HEADERS", true, "the same"},
    {"OTEL_EXPORTER_OTLP_CERTIFICATE", true, "the same"},
    {"OTEL_TRACES_SAMPLER", true, "which requests: parentbased_always_on, or another of the SDK's"},
    {"OTEL_TRACES_SAMPLER_ARG", true, "the share of traceidratio"},
    {"OTEL_EXPORTER_OTLP_TRACES_INSECURE", false,
     "grpc:// and http:// are without TLS, grpcs:// "
     "and https:// with it"},
    {"OTEL_*", false, "only traces are sent, by --otlp-traces-endpoint"},
    {"HF_HUB_*", false, DOWNLOAD},
    {"TRANSFORMERS_*", false, "it configures transformers, which fathom does not have"},
    {"SGLANG_*", false, SGLANG},
    {"SGL_*", false, SGLANG},
    {"MODELSCOPE_*", false, DOWNLOAD},
    {"VLLM_ROCM_*", false, AMD},
    {"AITER_*", false, AMD},
    {"HIP_VISIBLE_DEVICES", false, AMD},
    {"VLLM_ASCEND_*", false, ASCEND},
    {"ASCEND_*", false, ASCEND},
    {"HCCL_*", false, ASCEND},
    {"ACL_OP_INIT_MODE", false, ASCEND},
    {"PYTORCH_NPU_ALLOC_CONF", false, ASCEND},
    {"TASK_QUEUE_ENABLE", false, ASCEND},
    {"VLLM_TORCH_PROFILER_*", false,
     "it profiles PyTorch; use perf or nsys on the process, and /metrics"},
    {"VLLM_MOONCAKE_BOOTSTRAP_PORT", true, "--kv-port"},
    {"VLLM_NIXL_SIDE_CHANNEL_HOST", true, "--kv-ip"},
    {"VLLM_NIXL_SIDE_CHANNEL_PORT", true, "--kv-port"},
    {"VLLM_NIXL_*", false, PAGES},
    {"VLLM_MOONCAKE_*", false, PAGES},
    {"UCX_*", true, "devices and ways of --kv-transport ucx: the library reads them"},
    {"VLLM_HOST_IP", false, HOSTS},
    {"RAYHEAD_ADDRESS", false, HOSTS},
    {"GLOO_SOCKET_IFNAME", false, DEVICES},
    {"TP_SOCKET_IFNAME", false, DEVICES},
    {"NCCL_*", true, "NCCL reads them, which GPUs of several hosts use, and those of one do not"},
    {"OMP_*", false, "use --threads"},
    {"PYTORCH_CUDA_ALLOC_CONF", false, "it configures PyTorch, which fathom does not have"},
    {"VLLM_*", false, "it configures vLLM's Python"},
};

const size_t environment_table_n = sizeof environment_table / sizeof environment_table[0];

static bool fits(const char *pattern, const char *name, size_t n)
{
    size_t m = strlen(pattern);
    if (m && pattern[m - 1] == '*') return n >= m - 1 && strncmp(pattern, name, m - 1) == 0;
    return n == m && strncmp(pattern, name, n) == 0;
}

const struct environment_row *environment_find(const char *name, size_t n)
{
    for (size_t i = 0; i < environment_table_n; i++) {
        if (fits(environment_table[i].pattern, name, n)) return &environment_table[i];
    }
    return NULL;
}

/* FATHOM_MAX_MODEL_LEN is the option max-model-len. */
static bool is_option(const char *name, size_t n)
{
    char option[OPTION_NAME_BYTES];
    if (n <= 7 || n - 7 >= sizeof option) return false;
    for (size_t i = 7; i <= n; i++) {
        char c = i < n ? name[i] : '\0';
        option[i - 7] = (char)(c == '_' ? '-' : tolower((unsigned char)c));
    }
    return option_by_name(option) != NULL;
}

/* Does an earlier row have the same text? */
static bool is_told_before(const struct environment_row *row)
{
    for (const struct environment_row *r = environment_table; r < row; r++) {
        if (strcmp(r->text, row->text) == 0) return true;
    }
    return false;
}

/* The variables that are answered like this row, in one line. */
static fathom_err note_row(struct buf *notes, const struct environment_row *row,
                           char *const *variables)
{
    unsigned n_name = 0;
    for (char *const *v = variables; *v; v++) {
        size_t n = strcspn(*v, "=");
        if (!(*v)[n] || !(*v)[n + 1]) continue;
        const struct environment_row *found = environment_find(*v, n);
        if (!found || strcmp(found->text, row->text) != 0) continue;
        TRY(buf_printf(notes, "%s%.*s", n_name++ ? ", " : "", (int)n, *v));
    }
    if (n_name == 0) return FATHOM_OK;
    return buf_printf(notes, " %s no effect: %s\n", n_name > 1 ? "have" : "has", row->text);
}

fathom_err environment_notes(struct buf *notes, char *const *variables)
{
    for (size_t i = 0; i < environment_table_n; i++) {
        const struct environment_row *row = &environment_table[i];
        if (!row->acts && !is_told_before(row)) TRY(note_row(notes, row, variables));
    }
    for (char *const *v = variables; *v; v++) {
        size_t n = strcspn(*v, "=");
        if (strncmp(*v, "FATHOM_", 7) != 0 || is_option(*v, n)) continue;
        TRY(buf_printf(notes, "%.*s has no effect: there is no such option\n", (int)n, *v));
    }
    return FATHOM_OK;
}

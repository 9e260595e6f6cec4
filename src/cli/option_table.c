/* option_table.c - every option, in the order in which help prints them
 *
 * Rows of benchmarks stand in option_bench.inc; the last ones in option_sglang.inc, SGLang's flags,
 * and in option_foreign.inc, vLLM's flags that name what fathom does not have. */
#include <stddef.h>

#include "cli/options.h"

#define FIELD(name) ((int)offsetof(struct settings, name))
#define ON(command) (1u << COMMAND_##command)

enum {
    SERVE = ON(SERVE),
    OFFLINE = ON(BENCH_LATENCY) | ON(BENCH_THROUGHPUT),
    ONLINE = ON(BENCH_SERVE) | ON(BENCH_SWEEP),
    SAMPLED = ON(BENCH_THROUGHPUT) | ONLINE, /* commands that have a dataset */
    ANSWERING = SERVE | ON(RUN_BATCH),       /* commands that answer requests of the API */
    HOSTED = ANSWERING | OFFLINE,            /* commands that take vLLM's engine options */
    ENGINE = HOSTED | ON(RUN),               /* commands that start an engine */
    PLANNED = ENGINE | ON(PLAN) | ON(DOCTOR) | ON(BENCH_KERNELS), /* commands that size one */
    LAID_OUT = ANSWERING | ON(PLAN) | ON(DOCTOR),                 /* that choose a layout */
    MODEL = PLANNED | ON(INSPECT) | ON(TOKENIZE),                 /* commands that have a model */
    ASKING = ON(CHAT) | ON(COMPLETE),                             /* that ask another server */
    SCORED = ON(EVALUATE) | ON(QUANTIZE),                         /* commands that score texts */
    ALL = MODEL | ONLINE | ASKING | SCORED | ON(BENCH_REPORT) | ON(ROUTER) | ON(PULL) | ON(HEALTH) |
          ON(BENCH_TRANSFER) | ON(BENCH_ROUTER) | ON(HELP) | ON(VERSION),
};

/* A row that works, that is accepted without effect, that is refused. */
#define USE .answer = ANSWER_USE
#define NOTE(plain_value, why) .answer = ANSWER_NOTE, .plain = (plain_value), .reason = (why)
#define REFUSE(plain_value, why) .answer = ANSWER_REFUSE, .plain = (plain_value), .reason = (why)
#define FOREIGN .group = GROUP_FOREIGN, .commands = HOSTED, .field = NO_FIELD
#define OF_COMMANDS(list) .group = GROUP_FOREIGN, .commands = (list), .field = NO_FIELD
#define OF_ONLINE OF_COMMANDS(ONLINE)
#define OF_OFFLINE OF_COMMANDS(OFFLINE)
#define OF_BATCH OF_COMMANDS(ON(RUN_BATCH))
#define OF_ROUTER .group = GROUP_SGLANG, .commands = ON(ROUTER), .field = NO_FIELD
#define OF_PULL .group = GROUP_COMMAND, .commands = ON(PULL), .field = NO_FIELD
#define OF_THROUGHPUT OF_COMMANDS(ON(BENCH_THROUGHPUT))
#define PARALLEL .group = GROUP_PARALLEL, .commands = HOSTED, .field = NO_FIELD
#define BENCH(name) FIELD(bench.name)
#define LENGTH .kind = OPTION_COUNT, .hi = 1 << 24, .group = GROUP_DATASET
#define ALONE .group = GROUP_PARALLEL, .commands = OFFLINE | ON(RUN_BATCH), .field = NO_FIELD
#define SERVED_HOSTS "only fathom serve runs on several hosts: leave the flag out"
#define SGLANG .group = GROUP_SGLANG, .commands = SERVE
#define ANY_COUNT .kind = OPTION_COUNT, .lo = 0, .hi = 1e15

#define ONE_RANK                                                                                   \
    "only --tensor-parallel-size, --pipeline-parallel-size and --data-parallel-size cut a model: " \
    "leave the flag out or give 1"

const struct option option_table[] = {
    /* ---- model ---- */
    {"model", NULL, "MODEL", "pilot",
     "directory in Hugging Face form, org/name from the Hugging Face cache, or pilot, the model "
     "linked into the program; may also be the first plain argument",
     .kind = OPTION_TEXT, .group = GROUP_MODEL, .commands = MODEL | SCORED, .field = FIELD(model),
     USE},
    {"backend", NULL, "NAME", "auto",
     "what computes: cuda, cpu (vectors and threads), ref (scalar float32, slow, the meaning of "
     "every operator); auto takes the fastest there is",
     .kind = OPTION_CHOICE, .choices = "auto|ref|cpu|cuda",
     .refused = "vllm|vllm-chat|hf|mii|rocm|metal|vulkan|pytorch|tensorrt",
     .reason = "it says what computes here: give cuda or cpu, or leave it out",
     .group = GROUP_MODEL, .commands = PLANNED | SCORED, .field = FIELD(backend), USE},
    {"threads", NULL, "N", "0", "worker threads of the CPU; 0: all processors",
     .kind = OPTION_COUNT, .hi = 256, .group = GROUP_MODEL, .commands = PLANNED | SCORED,
     .field = FIELD(threads), USE},
    {"dtype", NULL, "TYPE", "auto",
     "what activations are rounded to between operators; auto: the checkpoint's type, on a GPU fp8 "
     "where widths allow, int8 for int8 checkpoints, and so is bfloat16 there; fp8: inputs of FP8 "
     "weights are e4m3 with a power-of-two scale for each 128, others bfloat16; int8: inputs of "
     "int8 weights, and on a CPU of 4-bit weights, are int8, of FP8 weights as with fp8, others "
     "bfloat16",
     .kind = OPTION_CHOICE, .choices = "auto|float32|float|bfloat16|fp8|int8",
     .refused = "half|float16",
     .reason = "the activations of this family overflow float16; use bfloat16 or float32",
     .group = GROUP_MODEL, .commands = PLANNED | SCORED, .field = FIELD(dtype), USE},
    {"head-dtype", NULL, "TYPE", "auto",
     "how the output head is kept, where the checkpoint has it wide; auto: int8 on a CPU where "
     "that is expected to cost at most 0.001 nats a token, else bf16; bf16: as it is stored; int8: "
     "a scale for each row; fp8: blocks of 128 x 128; on a GPU as it is stored alone",
     .kind = OPTION_CHOICE, .choices = "auto|bf16|bfloat16|int8|fp8", .group = GROUP_MODEL,
     .commands = PLANNED | SCORED, .field = FIELD(head_dtype), USE},
    {"quantization", "-q", "METHOD", NULL,
     "fp8: linear weights that are BF16, F16 or F32 become FP8 blocks of 128 x 128 while they "
     "load; a checkpoint that is FP8 already says so and goes on; other names: the checkpoint must "
     "be of this method; default: weights are taken as they are stored",
     .kind = OPTION_CHOICE,
     .choices = "fp8|deepseek_v3|awq|auto_awq|awq_marlin|gptq|auto_gptq|gptq_marlin|"
                "moe_wna16|compressed-tensors|w8a8_int8|blockwise_int8|w4afp8|modelopt|"
                "modelopt_fp4|ascend|fp8_per_block",
     .refused = "bitsandbytes|gguf|quark|hqq|torchao",
     .reason = "weights of this method are not read; docs/quantized.md lists those that are",
     .group = GROUP_MODEL, .commands = PLANNED | SCORED, .field = FIELD(quantization), USE},
    {"load-format", NULL, "NAME", "auto",
     "auto, and names of other loaders of the same files: weights are read from safetensors; "
     "dummy: they are made up from the shapes of config.json, for measurements: outputs mean "
     "nothing",
     .kind = OPTION_CHOICE,
     .choices = "auto|hf|safetensors|fastsafetensors|instanttensor|runai_streamer|dummy",
     .refused = "pt|npcache|tensorizer|bitsandbytes|sharded_state|gguf|mistral",
     .reason = "weights are read from safetensors", .group = GROUP_MODEL, .commands = MODEL,
     .field = FIELD(load_format), USE},
    {"seed", NULL, "N", "-1",
     "seed of requests that bring none; -1: drawn from the system at start", .kind = OPTION_COUNT,
     .lo = -1, .hi = 9e15, .group = GROUP_MODEL, .commands = ANSWERING | ON(RUN),
     .field = FIELD(seed), USE},
    {"hf-overrides", NULL, "JSON", NULL,
     "values in place of those of config.json, such as {\"num_hidden_layers\": 10}; an object "
     "replaces the whole one there",
     .kind = OPTION_JSON, .group = GROUP_MODEL, .commands = MODEL, .field = FIELD(hf_overrides),
     USE},
    {"revision", NULL, "NAME", NULL, "branch, tag or commit of org/name; default: the main branch",
     .kind = OPTION_TEXT, .group = GROUP_MODEL, .commands = MODEL | SCORED | ON(PULL),
     .field = FIELD(revision), USE},
    {"download-dir", "--cache-dir", "DIR", NULL,
     "folder where org/name is kept, as models--org--name; default: $HF_HUB_CACHE, else hub in "
     "$HF_HOME or ~/.cache/huggingface",
     .kind = OPTION_TEXT, .group = GROUP_MODEL, .commands = MODEL | SCORED | ON(PULL),
     .field = FIELD(download_dir), USE},
    {"config", NULL, "FILE", NULL,
     "options from a file: YAML, or JSON when its name ends in .json; keys are names without "
     "dashes; the command line holds over it",
     .kind = OPTION_TEXT, .group = GROUP_MODEL, .commands = MODEL | SCORED | ON(ROUTER),
     .field = FIELD(config), USE},

    /* ---- memory and scheduling ---- */
    {"max-model-len", NULL, "N", "0",
     "tokens of prompt and output together; 0: the checkpoint's; auto, -1: as many of these as the "
     "cache has room for",
     .kind = OPTION_COUNT, .choices = "auto", .lo = -1, .hi = 1 << 24, .group = GROUP_MEMORY,
     .commands = PLANNED, .field = FIELD(max_model_len), USE},
    {"max-num-seqs", NULL, "N", "0",
     "requests that run at once, on each rank of --data-parallel-size; 0: 64, on a GPU 256 where "
     "that leaves 15 of 16 pages of the cache and half a step to prompts",
     .kind = OPTION_COUNT, .hi = 65536, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(max_num_seqs), USE},
    {"max-num-batched-tokens", NULL, "N", "0", "tokens of one step; 0: 2048", .kind = OPTION_COUNT,
     .hi = 1 << 20, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(max_num_batched_tokens), USE},
    {"max-queued", "--max-num-queued-reqs", "N", "0",
     "requests that wait; one more is answered 429 with Retry-After; 0: 1024", .kind = OPTION_COUNT,
     .hi = 1 << 20, .group = GROUP_MEMORY, .commands = SERVE, .field = FIELD(max_queued), USE},
    {"max-num-queued-tokens", NULL, "N", "0",
     "prompt tokens that wait to be computed; a request that brings more is answered 429 with "
     "Retry-After, unless no other waits; 0: no limit",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_MEMORY, .commands = SERVE,
     .field = FIELD(max_num_queued_tokens), USE},
    {"slo-ttft-ms", NULL, "MS", "0",
     "promised from a request to its first token: who would wait longer, as measured rates tell, "
     "is "
     "answered 429 with Retry-After; 0: no promise",
     .kind = OPTION_COUNT, .hi = 86400000, .group = GROUP_MEMORY, .commands = SERVE,
     .field = FIELD(slo_ttft_ms), USE},
    {"slo-tpot-ms", NULL, "MS", "0",
     "promised from token to token: bounds the prompt tokens of a step and the requests that run "
     "at "
     "once; 0: no promise",
     .kind = OPTION_COUNT, .hi = 86400000, .group = GROUP_MEMORY, .commands = SERVE,
     .field = FIELD(slo_tpot_ms), USE},
    {"scheduling-policy", NULL, "NAME", "fcfs",
     "order of waiting requests; fcfs: of arrival, API keys taking turns; priority: the field "
     "`priority` of a request goes first, lower is earlier",
     .kind = OPTION_CHOICE, .choices = "fcfs|priority", .group = GROUP_MEMORY,
     .commands = ANSWERING, .field = FIELD(scheduling_policy), USE},
    {"kv-cache-dtype", NULL, "TYPE", "auto",
     "what the cache holds; auto: bfloat16; fp8: 656 bytes a token and layer, scaled by powers "
     "of two",
     .kind = OPTION_CHOICE, .choices = "auto|float32|bfloat16|fp8|fp8_ds_mla|fp8_e4m3",
     .refused = "fp8_e5m2|fp8_inc|nvfp4",
     .reason = "the cache holds float32, bfloat16 or fp8 (e4m3)", .group = GROUP_MEMORY,
     .commands = PLANNED | SCORED, .field = FIELD(kv_cache_dtype), USE},
    {"gpu-memory-utilization", NULL, "SHARE", "0.9",
     "share of the device's free memory for weights and cache; on a CPU, of the machine's",
     .kind = OPTION_NUMBER, .lo = 0.01, .hi = 1, .group = GROUP_MEMORY,
     .commands = PLANNED | SCORED, .field = FIELD(gpu_memory_utilization), USE},
    {"kv-cache-memory-bytes", NULL, "BYTES", "0",
     "size of the cache, taken as given and refused where it does not fit; 0: what the share above "
     "leaves, on a CPU no more than max-num-seqs requests of max-model-len, since other programs "
     "use "
     "its memory too",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_cache_memory_bytes), USE},
    {"num-gpu-blocks-override", NULL, "N", "0",
     "the same in pages of --block-size tokens, which are put together to pages of 64",
     .kind = OPTION_COUNT, .hi = 1e12, .group = GROUP_MEMORY, .commands = HOSTED,
     .field = FIELD(kv_cache_blocks), USE},
    {"block-size", NULL, "N", "64", "tokens of a cache page", .kind = OPTION_COUNT, .lo = 1,
     .hi = 1 << 20, .group = GROUP_MEMORY, .commands = HOSTED, .field = FIELD(block_size),
     NOTE("64", "pages always hold 64 tokens")},
    {"enable-prefix-caching", NULL, NULL, "true",
     "keep the pages of prompts and answers and do not compute them again for a request that "
     "begins the same; outputs are the same bits either way",
     .kind = OPTION_FLAG, .group = GROUP_MEMORY, .commands = HOSTED,
     .field = FIELD(enable_prefix_caching), USE},
    {"kv-offload-ram", NULL, "BYTES", "0",
     "host memory for pages that leave the cache, such as 64G: who begins the same gets them back "
     "instead of computing them; outputs are the same bits either way; 0: none",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_offload_ram), USE},
    {"kv-offload-dir", NULL, "DIR", NULL,
     "directory that they are written to as well, and found in after a restart; made if it is not "
     "there; one server each",
     .kind = OPTION_TEXT, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_offload_dir), USE},
    {"kv-offload-dir-size", NULL, "BYTES", "0",
     "what they may take there, such as 1T, taken at start; needed with --kv-offload-dir",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_offload_dir_size), USE},
    {"kv-offloading-size", NULL, "GIB", "0", "--kv-offload-ram in GiB", .kind = OPTION_NUMBER,
     .hi = 1e6, .group = GROUP_MEMORY, .commands = PLANNED, .field = FIELD(kv_offloading_gib), USE},
    {"kv-transfer-config", NULL, "JSON", NULL,
     "{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_producer\", \"kv_port\": 5600}: "
     "pages "
     "of the cache go from servers that prefill to servers that decode; roles are kv_producer, "
     "kv_consumer and kv_both",
     .kind = OPTION_JSON, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_transfer_config), USE},
    {"kv-ip", NULL, "HOST", "127.0.0.1",
     "address of this machine that other servers ask for pages at; kv_ip of the config goes first",
     .kind = OPTION_TEXT, .group = GROUP_MEMORY, .commands = PLANNED, .field = FIELD(kv_ip), USE},
    {"kv-port", NULL, "PORT", "5600", "and the port; 0: a free one; kv_port goes first",
     .kind = OPTION_COUNT, .hi = 65535, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_port), USE},
    {"kv-peers", NULL, "HOST:PORT...", NULL,
     "servers that are asked for the pages of a prompt before it is computed, by their kv_port",
     .kind = OPTION_LIST, .group = GROUP_MEMORY, .commands = PLANNED, .field = FIELD(kv_peers),
     USE},
    {"kv-transport", NULL, "NAME", "auto",
     "what pages go by between servers that both have it: ucx (RDMA, shared memory; libucx0 has to "
     "be installed) or tcp; auto: ucx where backends of the config names it and it is installed",
     .kind = OPTION_CHOICE, .choices = "auto|tcp|ucx", .group = GROUP_MEMORY,
     .commands = PLANNED | ON(BENCH_TRANSFER), .field = FIELD(kv_transport), USE},
    {"speculative-config", "-sc", "JSON", NULL,
     "{\"method\": \"deepseek_mtp\", \"num_speculative_tokens\": N}: each step also computes up to "
     "N "
     "tokens (1 to 4) that the MTP layer guesses and keeps those that are right; outputs are the "
     "same bits either way",
     .kind = OPTION_JSON, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(speculative_config), USE},
    {"spec-tokens", NULL, "N", "0", "num_speculative_tokens of --speculative-config, without it",
     .kind = OPTION_COUNT, .hi = FATHOM_DRAFT_MAX, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(spec_tokens), USE},
    {"spec-method", NULL, "NAME", NULL, "method of --speculative-config, with --spec-tokens",
     .kind = OPTION_TEXT, .group = GROUP_MEMORY, .commands = PLANNED, .field = FIELD(spec_method),
     USE},
    {"enforce-eager", NULL, NULL, NULL,
     "a GPU takes every step kernel by kernel; default: decode steps are recorded at start and "
     "replayed as a whole. A CPU records nothing",
     .kind = OPTION_FLAG, .group = GROUP_MEMORY, .commands = PLANNED, .field = FIELD(enforce_eager),
     USE},
    {"async-scheduling", NULL, NULL, "true",
     "a GPU gets the next decode step while the one before it runs, so that it does not wait for "
     "the host; outputs are the same bits either way. A CPU takes one after the other",
     .kind = OPTION_FLAG, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(async_scheduling), USE},
    {"compilation-config", "-cc", "JSON", NULL,
     "which steps are recorded: cudagraph_mode NONE or FULL, cudagraph_capture_sizes (tokens of a "
     "step; steps in between are padded), cudagraph_num_of_warmups; kernels are compiled ahead of "
     "time, so that other keys have no effect; or a level, as -O has it",
     .kind = OPTION_JSON, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(compilation_config), USE},
    {"optimization-level", "-O", "N", "-1",
     "0: as --enforce-eager; 1 to 3: decode steps are recorded; -O.KEY is a key of "
     "--compilation-config; -1: not given",
     .kind = OPTION_COUNT, .lo = -1, .hi = 3, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(optimization_level), USE},
    {"enable-chunked-prefill", NULL, NULL, NULL, "run long prompts in chunks", .kind = OPTION_FLAG,
     .group = GROUP_MEMORY, .commands = HOSTED, .field = NO_FIELD,
     NOTE("true", "long prompts always run in chunks of at most max-num-batched-tokens")},

    /* ---- server ---- */
    {"host", NULL, "ADDRESS", "127.0.0.1", "address to listen on; 0.0.0.0: all of IPv4",
     .kind = OPTION_TEXT, .group = GROUP_SERVER, .commands = SERVE | ON(DOCTOR) | ON(ROUTER),
     .field = FIELD(host), USE},
    {"port", NULL, "N", "8000", "port to listen on; 0: any free one, which is printed",
     .kind = OPTION_COUNT, .hi = 65535, .group = GROUP_SERVER, .commands = SERVE | ON(DOCTOR),
     .field = FIELD(port), USE},
    {"port", NULL, "N", "9000", "port to listen on; 0: any free one, which is printed",
     .kind = OPTION_COUNT, .hi = 65535, .group = GROUP_SERVER, .commands = ON(ROUTER),
     .field = FIELD(router.port), USE},
    {"served-model-name", NULL, "NAME...", NULL,
     "names that requests may give, the first one shown; default: MODEL as given",
     .kind = OPTION_LIST, .group = GROUP_SERVER, .commands = ANSWERING,
     .field = FIELD(served_model_name), USE},
    {"uds", NULL, "PATH", NULL, "listen on a socket file (mode 0600) instead of host and port",
     .kind = OPTION_TEXT, .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(uds), USE},
    {"root-path", NULL, "PATH", NULL, "prefix of paths that a proxy in front does not take off",
     .kind = OPTION_TEXT, .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(root_path), USE},
    {"max-connections", NULL, "N", "4096",
     "connections at once; an idle one goes for a new one, and when all have a request in work, "
     "one "
     "more gets 503",
     .kind = OPTION_COUNT, .lo = 1, .hi = 1 << 20, .group = GROUP_SERVER,
     .commands = SERVE | ON(DOCTOR) | ON(ROUTER), .field = FIELD(max_connections), USE},
    {"max-stored-responses", NULL, "N", "4096",
     "responses of /v1/responses that are kept, to be gone on from and told again; the oldest of "
     "the key that has most leave; 0: none",
     .kind = OPTION_COUNT, .hi = 1 << 20, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(max_stored_responses), USE},
    {"max-stored-response-bytes", NULL, "BYTES", "268435456",
     "memory that they may take together; likewise", .kind = OPTION_COUNT, .lo = 1, .hi = 1e15,
     .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(max_stored_response_bytes), USE},
    {"stored-response-ttl", NULL, "SECONDS", "86400", "how long one is kept", .kind = OPTION_NUMBER,
     .lo = 1, .hi = 1e9, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(stored_response_ttl), USE},
    {"drain-timeout", "--shutdown-timeout", "SECONDS", "30",
     "how long running requests may go on after SIGINT or SIGTERM; a second signal ends them",
     .kind = OPTION_NUMBER, .hi = 86400, .group = GROUP_SERVER, .commands = SERVE | ON(ROUTER),
     .field = FIELD(drain_timeout), USE},
    {"stall-timeout", NULL, "SECONDS", "0",
     "how long the engine may make no progress, within a step or between two, before /health and "
     "/ready say 503; 0: 4, and 30 for cuda and 600 for ref, which tell nothing of a step before "
     "its "
     "end",
     .kind = OPTION_NUMBER, .hi = 86400, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(stall_timeout), USE},

    /* ---- who may ask ---- */
    {"api-key", NULL, "KEY...", NULL,
     "keys of which a request must bring one as a bearer token; probes need none; given again, it "
     "adds",
     .kind = OPTION_LIST, .secret = true, .adds = true, .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(api_key), USE},
    {"api-key-file", NULL, "FILE", NULL,
     "more keys, one a line, each with the name of its tenant behind it or without: keys of one "
     "tenant take turns as one; lines that begin with # do not count",
     .kind = OPTION_TEXT, .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(api_key_file),
     USE},
    {"prefix-cache-sharing", NULL, "WHO", "auto",
     "who finds whose cached prompts: all: requests of every key; key: of the same key, or tenant "
     "of --api-key-file; auto: key where there are several, else all",
     .kind = OPTION_CHOICE, .choices = "auto|all|key", .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(prefix_cache_sharing), USE},
    {"strict-fields", NULL, NULL, NULL,
     "refuse a request with a field or a type of tool that no API here knows; without it that is "
     "passed over with a warning",
     .kind = OPTION_FLAG, .group = GROUP_SECURITY, .commands = ANSWERING,
     .field = FIELD(strict_fields), USE},
    {"enable-tokenizer-info-endpoint", NULL, NULL, NULL,
     "GET /tokenizer_info shows the checkpoint's tokenizer_config.json", .kind = OPTION_FLAG,
     .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(tokenizer_info), USE},
    {"disable-fastapi-docs", NULL, NULL, NULL, "no /docs and no /openapi.json", .kind = OPTION_FLAG,
     .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(disable_fastapi_docs), USE},
    {"open-metrics", NULL, NULL, NULL, "let /metrics be read without a key", .kind = OPTION_FLAG,
     .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(open_metrics), USE},
    {"admin-socket", NULL, "PATH", NULL,
     "socket file (mode 0600) for the operator: state, log level, cache, drain",
     .kind = OPTION_TEXT, .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(admin_socket),
     USE},
    {"ssl-certfile", NULL, "FILE", NULL,
     "TLS certificate and those that have signed it, PEM; without it: plain HTTP",
     .kind = OPTION_TEXT, .group = GROUP_SECURITY, .commands = SERVE | ON(ROUTER),
     .field = FIELD(ssl_certfile), USE},
    {"ssl-keyfile", NULL, "FILE", NULL, "its key, PEM", .kind = OPTION_TEXT,
     .group = GROUP_SECURITY, .commands = SERVE | ON(ROUTER), .field = FIELD(ssl_keyfile), USE},
    {"ssl-ca-certs", NULL, "FILE", NULL,
     "authorities, PEM: clients must bring a certificate that one of them has signed",
     .kind = OPTION_TEXT, .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(ssl_ca_certs),
     USE},
    {"ssl-cert-reqs", NULL, "N", NULL,
     "with --ssl-ca-certs: 0: ask for no certificate, 1: take clients without one too, 2: need one "
     "(which is what --ssl-ca-certs means alone)",
     .kind = OPTION_CHOICE, .choices = "0|1|2", .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(ssl_cert_reqs), USE},
    {"ssl-ciphers", NULL, "LIST", NULL,
     "ciphers of TLS, as a priority string of GnuTLS, such as SECURE256:+SECURE128",
     .kind = OPTION_TEXT, .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(ssl_ciphers),
     USE},
    {"ssl-min-version", NULL, "VERSION", "1.2", "the least version of TLS that is spoken",
     .kind = OPTION_CHOICE, .choices = "1.2|1.3", .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(ssl_min_version), USE},
    {"enable-ssl-refresh", NULL, NULL, NULL,
     "look at these files every second and take new ones, as SIGHUP does", .kind = OPTION_FLAG,
     .group = GROUP_SECURITY, .commands = SERVE | ON(ROUTER), .field = FIELD(enable_ssl_refresh),
     USE},
    {"allowed-hosts", NULL, "NAME...", NULL,
     "names of this server in the header Host, beside its addresses, localhost and --host; others "
     "are refused on a loopback address, and wherever this is given; *: all are taken",
     .kind = OPTION_LIST, .group = GROUP_SECURITY, .commands = SERVE | ON(ROUTER),
     .field = FIELD(allowed_hosts), USE},
    {"allowed-origins", NULL, "ORIGIN...", "*",
     "pages that may ask from a browser, as words or a JSON array; *: all; []: none",
     .kind = OPTION_LIST, .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(allowed_origins), USE},
    {"allowed-methods", NULL, "METHOD...", "*", "what they may ask with; *: what a path takes",
     .kind = OPTION_LIST, .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(allowed_methods), USE},
    {"allowed-headers", NULL, "HEADER...", "*", "headers that they may send", .kind = OPTION_LIST,
     .group = GROUP_SECURITY, .commands = SERVE, .field = FIELD(allowed_headers), USE},
    {"allow-credentials", NULL, NULL, NULL, "they may send cookies and keys of the browser",
     .kind = OPTION_FLAG, .group = GROUP_SECURITY, .commands = SERVE,
     .field = FIELD(allow_credentials), USE},

    {"pool-secret-file", NULL, "FILE", NULL,
     "a secret, at least 16 bytes, that servers and their router share: streams of other machines "
     "are then resumable here; without one those of this machine are",
     .kind = OPTION_TEXT, .group = GROUP_SECURITY,
     .commands = SERVE | ON(ROUTER) | ON(BENCH_TRANSFER), .field = FIELD(pool_secret_file), USE},

    /* ---- logs ---- */
    {"log-level", "--uvicorn-log-level", "LEVEL", "info", "what the log on standard error says",
     .kind = OPTION_CHOICE, .choices = "error|warn|info|debug|warning|critical|trace",
     .group = GROUP_LOG, .commands = MODEL | SCORED | ONLINE | ON(BENCH_REPORT) | ON(ROUTER),
     .field = FIELD(log_level), USE},
    {"enable-log-requests", NULL, NULL, "true",
     "a log line for each request: sizes and times, never what was said", .kind = OPTION_FLAG,
     .group = GROUP_LOG, .commands = SERVE, .field = FIELD(enable_log_requests), USE},
    {"access-log", NULL, "FILE", NULL,
     "append a line of JSON for each answer: ids, path, status, sizes, times, never what was said; "
     "-: standard output",
     .kind = OPTION_TEXT, .group = GROUP_LOG, .commands = SERVE, .field = FIELD(access_log), USE},
    {"allow-core-dumps", NULL, NULL, NULL,
     "let a crash leave a core dump, as far as `ulimit -c` does; it holds prompts, answers and "
     "keys",
     .kind = OPTION_FLAG, .group = GROUP_LOG, .commands = SERVE | ON(DOCTOR),
     .field = FIELD(allow_core_dumps), USE},
    {"otlp-traces-endpoint", NULL, "URL", NULL,
     "send a span of each request, sizes and times, to a collector of OpenTelemetry: "
     "grpc://HOST:4317, or http://HOST:4318/v1/traces",
     .kind = OPTION_TEXT, .group = GROUP_LOG, .commands = SERVE,
     .field = FIELD(otlp_traces_endpoint), USE},
    {"disable-uvicorn-access-log", NULL, NULL, NULL, "the same as --no-enable-log-requests",
     .kind = OPTION_FLAG, .group = GROUP_LOG, .commands = SERVE,
     .field = FIELD(disable_uvicorn_access_log), USE},
    {"disable-log-requests", NULL, NULL, NULL, "the same as --no-enable-log-requests",
     .kind = OPTION_FLAG, .group = GROUP_LOG, .commands = SERVE,
     .field = FIELD(disable_log_requests), USE},

    /* ---- chat ---- */
    {"tokenizer-mode", NULL, "MODE", "auto", "encoding of chats; auto: the checkpoint's",
     .kind = OPTION_CHOICE, .choices = "auto|deepseek_v32|kimi_k2|kimi_k2_thinking",
     .refused = "slow|hf|mistral|custom",
     .reason = "there is one tokenizer, driven by the checkpoint's files; use auto",
     .group = GROUP_CHAT, .commands = ENGINE, .field = FIELD(tokenizer_mode), USE},
    {"tool-call-parser", NULL, "NAME", "auto",
     "markup of tool calls; auto: the checkpoint's; none: it stays in the content",
     .kind = OPTION_CHOICE,
     .choices = "auto|deepseek_v3|deepseek_v31|deepseek_v32|deepseekv3|deepseekv31|deepseekv32|"
                "kimi_k2|none",
     .refused = "hermes|llama3_json|mistral|openai|pythonic|qwen3_xml|glm45",
     .reason = "it parses the markup of another family", .group = GROUP_CHAT, .commands = ENGINE,
     .field = FIELD(tool_call_parser), USE},
    {"reasoning-parser", NULL, "NAME", "auto",
     "separates reasoning from content; auto: as the checkpoint writes it; none: it stays in the "
     "content",
     .kind = OPTION_CHOICE,
     .choices = "auto|deepseek_r1|deepseek_v3|deepseek-r1|deepseek-v3|kimi_k2|none",
     .refused = "qwen3|glm45|granite|mistral|openai_gptoss",
     .reason = "it parses the markup of another family", .group = GROUP_CHAT, .commands = ENGINE,
     .field = FIELD(reasoning_parser), USE},
    {"reasoning-config", NULL, "JSON", NULL,
     "{\"reasoning_end_str\": \"WORDS</think>\"}: what ends reasoning that has come to its "
     "thinking_token_budget, instead of </think> alone; such as \"\\n\\nI have to answer "
     "now.\\n</think>\"",
     .kind = OPTION_JSON, .group = GROUP_CHAT, .commands = ANSWERING,
     .field = FIELD(reasoning_config), USE},
    {"special-tokens-in-text", NULL, "NAME", "escape",
     "what a chat's messages and tools spell like a control token: escape: it is text, so that it "
     "cannot forge a turn; allow: it becomes one, as in vLLM",
     .kind = OPTION_CHOICE, .choices = "escape|allow", .group = GROUP_CHAT, .commands = ANSWERING,
     .field = FIELD(special_tokens_in_text), USE},
    {"enable-auto-tool-choice", NULL, NULL, NULL, "parse the calls of a request with tools",
     .kind = OPTION_FLAG, .group = GROUP_CHAT, .commands = ANSWERING, .field = NO_FIELD,
     NOTE("true", "a request with tools always has its calls parsed")},

    {"thinking", NULL, NULL, NULL,
     "let the model reason before it answers, where a chat does not say", .kind = OPTION_FLAG,
     .group = GROUP_CHAT, .commands = ENGINE, .field = FIELD(thinking), USE},
    {"generation-config", NULL, "NAME", "auto",
     "sampling of requests that do not say; auto: the checkpoint's generation_config.json; vllm: "
     "temperature 1 and nothing cut off",
     .kind = OPTION_CHOICE, .choices = "auto|vllm", .group = GROUP_CHAT, .commands = ANSWERING,
     .field = FIELD(generation_config), USE},
    {"override-generation-config", NULL, "JSON", NULL,
     "sampling of requests that do not say, before either of these: temperature, top_p, top_k, "
     "min_p, repetition_penalty, such as {\"temperature\": 0.6, \"top_p\": 0.95}",
     .kind = OPTION_JSON, .group = GROUP_CHAT, .commands = ANSWERING,
     .field = FIELD(override_generation_config), USE},
    {"default-chat-template-kwargs", NULL, "JSON", NULL,
     "{\"thinking\": true} is --thinking, {\"thinking\": false} --no-thinking; likewise "
     "enable_thinking",
     .kind = OPTION_JSON, .group = GROUP_CHAT, .commands = ANSWERING,
     .field = FIELD(default_chat_template_kwargs), USE},
    {"enable-force-include-usage", NULL, NULL, NULL,
     "every chunk of a streamed chat or completion tells its usage, asked for or not",
     .kind = OPTION_FLAG, .group = GROUP_CHAT, .commands = ANSWERING,
     .field = FIELD(force_include_usage), USE},
    {"return-tokens-as-token-ids", NULL, NULL, NULL,
     "log-probabilities name tokens token_id:N, where a request does not say", .kind = OPTION_FLAG,
     .group = GROUP_CHAT, .commands = ANSWERING, .field = FIELD(return_tokens_as_token_ids), USE},

    /* ---- of one command ---- */
    {"input-file", "-i", "FILE", NULL,
     "requests, a line of JSON each: custom_id, method, url, body; -: standard input",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(RUN_BATCH),
     .field = FIELD(input_file), USE},
    {"output-file", "-o", "FILE", NULL,
     "their answers in the same order; the name ends in .part until all are there; -: standard "
     "output",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(RUN_BATCH),
     .field = FIELD(output_file), USE},
    {"resume", NULL, NULL, NULL,
     "go on behind the answers that an interrupted run has left in FILE.part", .kind = OPTION_FLAG,
     .group = GROUP_COMMAND, .commands = ON(RUN_BATCH), .field = FIELD(resume), USE},
    {"prompt", "-p", "TEXT", NULL, "answer this and end; - reads it from standard input",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(RUN), .field = FIELD(prompt), USE},
    {"system", NULL, "TEXT", NULL, "system message", .kind = OPTION_TEXT, .group = GROUP_COMMAND,
     .commands = ON(RUN), .field = FIELD(system), USE},
    {"url", NULL, "URL", NULL, "of the server; default: http://127.0.0.1:8000/v1",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ASKING, .field = BENCH(base_url),
     USE},
    {"model-name", NULL, "NAME", NULL,
     "name that requests carry; default: the first that the server lists", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ASKING, .field = BENCH(model), USE},
    {"api-key", NULL, "KEY", NULL,
     "sent as a bearer token; default: $OPENAI_API_KEY, then $FATHOM_API_KEY, then $VLLM_API_KEY",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ASKING, .field = BENCH(api_key), USE},
    {"quick", "-q", "TEXT", NULL, "ask this and end; default: each line of standard input",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ASKING, .field = FIELD(prompt), USE},
    {"system-prompt", NULL, "TEXT", NULL, "system message", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(CHAT), .field = FIELD(system), USE},
    {"temperature", NULL, "X", "-1", "0: greedy; -1: the checkpoint's", .kind = OPTION_NUMBER,
     .lo = -1, .hi = 2, .group = GROUP_COMMAND, .commands = ON(RUN) | ASKING,
     .field = FIELD(temperature), USE},
    {"top-p", NULL, "X", "-1", "share of probability kept; -1: the checkpoint's",
     .kind = OPTION_NUMBER, .lo = -1, .hi = 1, .group = GROUP_COMMAND, .commands = ON(RUN),
     .field = FIELD(top_p), USE},
    {"max-tokens", NULL, "N", "0", "tokens of an answer; 0: up to the context",
     .kind = OPTION_COUNT, .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(RUN),
     .field = FIELD(max_tokens), USE},
    {"max-tokens", NULL, "N", "0", "tokens of an answer; 0: what the server has for that",
     .kind = OPTION_COUNT, .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ASKING,
     .field = FIELD(max_tokens), USE},
    {"text", NULL, "TEXT", NULL, "what to convert; default: standard input", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(TOKENIZE), .field = FIELD(text), USE},
    {"decode", NULL, NULL, NULL, "the input is ids, the output is text", .kind = OPTION_FLAG,
     .group = GROUP_COMMAND, .commands = ON(TOKENIZE), .field = FIELD(decode), USE},
    {"tensors", NULL, NULL, NULL, "list every tensor", .kind = OPTION_FLAG, .group = GROUP_COMMAND,
     .commands = ON(INSPECT), .field = FIELD(tensors), USE},
    {"memory", NULL, "BYTES", "0", "plan for a device with this much; 0: this machine",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_COMMAND, .commands = ON(PLAN) | ON(DOCTOR),
     .field = FIELD(memory_bytes), USE},
    {"batch-size", NULL, "N", "8", "requests that run side by side", .kind = OPTION_COUNT, .lo = 1,
     .hi = 65536, .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY), .field = FIELD(batch_size),
     USE},
    {"input-len", NULL, "N", "32", "tokens of each prompt, random ids", .kind = OPTION_COUNT,
     .lo = 1, .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY),
     .field = FIELD(input_len), USE},
    {"output-len", NULL, "N", "128", "tokens of each answer", .kind = OPTION_COUNT, .lo = 1,
     .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY),
     .field = FIELD(output_len), USE},
    {"mixed-input-len", NULL, "N", "0",
     "then prompts of N tokens beside a batch of decodes, in chunks; 0: none", .kind = OPTION_COUNT,
     .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY),
     .field = FIELD(mixed_input_len), USE},
    {"skip-experts", NULL, NULL, NULL,
     "do not run the last batch once more, untimed, to count the experts that it hits",
     .kind = OPTION_FLAG, .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY),
     .field = FIELD(skip_experts), USE},
    {"page-bytes", NULL, "BYTES", "3126784",
     "of a record: a page of 64 tokens as fathom plan prints it; the default is DeepSeek-V3.2's "
     "with an FP8 cache and drafts",
     .kind = OPTION_COUNT, .lo = 1, .hi = 1 << 30, .group = GROUP_COMMAND,
     .commands = ON(BENCH_TRANSFER), .field = FIELD(transfer_bench.page_bytes), USE},
    {"lanes", NULL, "N", "0", "connections that read at once; 0: 1, then 2, then 4",
     .kind = OPTION_COUNT, .hi = 8, .group = GROUP_COMMAND, .commands = ON(BENCH_TRANSFER),
     .field = FIELD(transfer_bench.lanes), USE},
    {"seconds", NULL, "SECONDS", "2", "for each row", .kind = OPTION_NUMBER, .lo = 0.01, .hi = 3600,
     .group = GROUP_COMMAND, .commands = ON(BENCH_TRANSFER), .field = FIELD(transfer_bench.seconds),
     USE},
    {"peer", NULL, "HOST:PORT", NULL, "read from the bench that listens there", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(BENCH_TRANSFER), .field = FIELD(transfer_bench.peer),
     USE},
    {"listen", NULL, "HOST:PORT", NULL, "give records to others until it is ended; read nothing",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(BENCH_TRANSFER),
     .field = FIELD(transfer_bench.listen), USE},
    {"prompt-tokens", NULL, "N", "0", "of a request, 4 bytes each; 0: 1000, 4000, 16000 and 64000",
     .kind = OPTION_COUNT, .hi = 1 << 20, .group = GROUP_COMMAND, .commands = ON(BENCH_ROUTER),
     .field = FIELD(bench.prompt_tokens), USE},
    {"rounds", NULL, "N", "300", "requests by each way, for each row", .kind = OPTION_COUNT,
     .lo = 1, .hi = 1 << 20, .group = GROUP_COMMAND, .commands = ON(BENCH_ROUTER),
     .field = FIELD(bench.rounds), USE},
    {"num-iters-warmup", NULL, "N", "3", "runs that are not counted", .kind = OPTION_COUNT,
     .hi = 1000, .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY) | ON(BENCH_KERNELS),
     .field = FIELD(num_iters_warmup), USE},
    {"num-iters", NULL, "N", "10", "runs that are", .kind = OPTION_COUNT, .lo = 1, .hi = 1000,
     .group = GROUP_COMMAND, .commands = ON(BENCH_LATENCY) | ON(BENCH_KERNELS),
     .field = FIELD(num_iters), USE},
    {"output-json", NULL, "FILE", NULL, "write the figures there too", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = OFFLINE, .field = FIELD(output_json), USE},
    {"output", "-o", "FILE", "report.html", "the page", .kind = OPTION_TEXT, .group = GROUP_COMMAND,
     .commands = ON(BENCH_REPORT), .field = BENCH(output), USE},
    {"title", NULL, "TEXT", "Benchmark", "its title", .kind = OPTION_TEXT, .group = GROUP_COMMAND,
     .commands = ON(BENCH_REPORT), .field = BENCH(title), USE},
    {"zoom", NULL, "N,N", "5,24",
     "charts over concurrency are drawn once more up to each of these, where that shows more",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(BENCH_REPORT),
     .field = BENCH(zoom), USE},
    {"concurrency", NULL, "LIST", NULL,
     "points with so many requests in flight, such as 1,2,4-8,10-100/10", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(BENCH_SWEEP), .field = BENCH(concurrencies), USE},
    {"request-rate", NULL, "LIST", NULL, "points with so many requests a second, in the same form",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(BENCH_SWEEP),
     .field = BENCH(request_rates), USE},
    {"input-len", NULL, "LIST", "1024", "prompt tokens, in the same form; each with all points",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(BENCH_SWEEP),
     .field = BENCH(input_lens), USE},
    {"output-len", NULL, "LIST", "256", "output tokens, in the same form; each with all points",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(BENCH_SWEEP),
     .field = BENCH(output_lens), USE},
    {"pause", NULL, "SECONDS", "1", "between two points", .kind = OPTION_NUMBER, .hi = 86400,
     .group = GROUP_COMMAND, .commands = ON(BENCH_SWEEP), .field = BENCH(pause), USE},

    /* ---- router ---- */
    {"worker-urls", NULL, "URL...", NULL,
     "servers, beside those that are plain arguments; dns+http://NAME:PORT is one at each address "
     "that the name has, which may change (docs/router.md)",
     .kind = OPTION_LIST, .adds = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.worker_urls), USE},
    {"prefill", NULL, "URL...", NULL,
     "servers that compute prompts, with --kv-transfer-config and kv_role kv_producer or kv_both; "
     "the others take the pages from them and answer",
     .kind = OPTION_LIST, .adds = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.prefill), USE},
    {"decode", NULL, "URL...", NULL, "servers that answer: the same as plain arguments",
     .kind = OPTION_LIST, .adds = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.decode), USE},
    {"prefiller-hosts", "--prefiller-host", "HOST...", NULL,
     "servers that compute prompts, as --prefill has them", .kind = OPTION_LIST, .adds = true,
     .group = GROUP_COMMAND, .commands = ON(ROUTER), .field = FIELD(router.prefiller_hosts), USE},
    {"prefiller-ports", "--prefiller-port", "N...", NULL, "and their ports", .kind = OPTION_LIST,
     .adds = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.prefiller_ports), USE},
    {"decoder-hosts", "--decoder-host", "HOST...", NULL,
     "servers that answer, as --decode has them", .kind = OPTION_LIST, .adds = true,
     .group = GROUP_COMMAND, .commands = ON(ROUTER), .field = FIELD(router.decoder_hosts), USE},
    {"decoder-ports", "--decoder-port", "N...", NULL, "and their ports", .kind = OPTION_LIST,
     .adds = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.decoder_ports), USE},
    {"local-dir", NULL, "DIR", NULL, "a folder of its own for the files", .kind = OPTION_TEXT,
     OF_PULL,
     REFUSE(NULL, "they come into the cache, where org/name is found; --cache-dir says which")},
    {"token", NULL, "TOKEN", NULL, "of the hub", .kind = OPTION_TEXT, .secret = true, OF_PULL,
     REFUSE(NULL, "set HF_TOKEN, which no list of processes shows")},
    {"include", NULL, "PATTERN...", NULL, "files to bring", .kind = OPTION_LIST, OF_PULL,
     NOTE(NULL, "all comes but weights in forms that are not read here")},
    {"exclude", NULL, "PATTERN...", NULL, "files to leave", .kind = OPTION_LIST, OF_PULL,
     NOTE(NULL, "all comes but weights in forms that are not read here")},
    {"repo-type", NULL, "NAME", "model", "what org/name is", .kind = OPTION_TEXT, OF_PULL,
     REFUSE("model", "models come alone")},
    {"resume-download", NULL, NULL, NULL, "go on where it ended", .kind = OPTION_FLAG, OF_PULL,
     NOTE("true", "it always does")},
    {"local-dir-use-symlinks", NULL, "NAME", NULL, "how files are kept", .kind = OPTION_TEXT,
     OF_PULL, NOTE(NULL, "they are in the cache")},
    {"pd-disaggregation", "--vllm-pd-disaggregation", NULL, NULL, "prefill and decode apart",
     .kind = OPTION_FLAG, OF_ROUTER, NOTE("true", "it is so when --prefill names servers")},
    {"prefill-policy", NULL, "NAME", NULL, "which of --prefill gets a prompt", .kind = OPTION_TEXT,
     OF_ROUTER, NOTE(NULL, "the one that has most of it, then the least busy")},
    {"decode-policy", NULL, "NAME", NULL, "which of --decode answers", .kind = OPTION_TEXT,
     OF_ROUTER, NOTE(NULL, "use --policy")},
    {"cache-threshold", NULL, "X", NULL, "when a cached beginning counts", .kind = OPTION_TEXT,
     OF_ROUTER, NOTE(NULL, "servers are compared by the time to the first token")},
    {"balance-abs-threshold", NULL, "N", NULL, "when loads differ", .kind = OPTION_TEXT, OF_ROUTER,
     NOTE(NULL, "servers are compared by the time to the first token")},
    {"balance-rel-threshold", NULL, "X", NULL, "when loads differ", .kind = OPTION_TEXT, OF_ROUTER,
     NOTE(NULL, "servers are compared by the time to the first token")},
    {"prometheus-port", NULL, "N", NULL, "where metrics are told", .kind = OPTION_TEXT, OF_ROUTER,
     NOTE(NULL, "/metrics is at --port")},
    {"prometheus-host", NULL, "HOST", NULL, "where metrics are told", .kind = OPTION_TEXT,
     OF_ROUTER, NOTE(NULL, "/metrics is at --host")},
    {"service-discovery", NULL, NULL, NULL, "servers are pods of Kubernetes that a selector finds",
     .kind = OPTION_FLAG, OF_ROUTER,
     REFUSE("false", "name a headless Service of the pods: dns+http://NAME:PORT (docs/router.md)")},
    {"selector", NULL, "LABEL=VALUE...", NULL, "labels of these pods", .kind = OPTION_LIST,
     OF_COMMANDS(ON(ROUTER)), REFUSE(NULL, "a headless Service selects: dns+http://NAME:PORT")},
    {"policy", NULL, "NAME", "cache_aware",
     "which server gets a request: cache_aware (the one that will have the first token soonest, by "
     "what it has of the prompt and what waits there), power_of_two, round_robin, consistent_hash "
     "(by X-Session-ID, else by how the prompt begins)",
     .kind = OPTION_CHOICE, .choices = "cache_aware|power_of_two|round_robin|consistent_hash",
     .group = GROUP_COMMAND, .commands = ON(ROUTER), .field = FIELD(router.policy), USE},
    {"max-moves", NULL, "N", "8",
     "how often a stream may go on at another server when its own is lost; 0: never",
     .kind = OPTION_COUNT, .hi = 1000, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.max_moves), USE},
    {"look-interval", NULL, "SECONDS", "0.25", "between two looks at a server's load",
     .kind = OPTION_NUMBER, .lo = 0.01, .hi = 60, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.look_interval), USE},
    {"server-api-key", NULL, "KEY", NULL,
     "key for looks at servers that need one; requests go on with their clients' own",
     .kind = OPTION_TEXT, .secret = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.server_api_key), USE},
    {"admin-key", NULL, "KEY", NULL,
     "bearer token with which servers are added and removed; without it that is done from this "
     "machine alone",
     .kind = OPTION_TEXT, .secret = true, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.admin_key), USE},
    {"ca-cert-path", "--cacert", "FILE", NULL,
     "certificates, PEM, of the authorities that have signed those of https servers, in place of "
     "the system's",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(ROUTER),
     .field = FIELD(router.ca_cert_path), USE},
    {"client-cert-path", "--cert", "FILE", NULL,
     "certificate, PEM, that is shown to https servers which ask for one", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(ROUTER), .field = FIELD(router.client_cert_path), USE},
    {"client-key-path", "--key", "FILE", NULL, "its key, PEM", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(ROUTER), .field = FIELD(router.client_key_path), USE},
    {"insecure", NULL, NULL, NULL, "accept any certificate of https servers", .kind = OPTION_FLAG,
     .group = GROUP_COMMAND, .commands = ON(ROUTER) | ON(HEALTH) | ASKING,
     .field = FIELD(router.insecure), USE},

#include "cli/option_bench.inc"

#include "cli/option_parallel.inc"

#include "cli/option_sglang.inc"

#include "cli/option_foreign.inc"
};

const size_t option_table_n = sizeof option_table / sizeof option_table[0];

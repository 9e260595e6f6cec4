/* command_line.h - what the command line says, once it is read */
#ifndef FATHOM_CLI_COMMAND_LINE_H
#define FATHOM_CLI_COMMAND_LINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/compilation_settings.h"
#include "cli/kv_events.h"
#include "cli/sglang.h"
#include "fathom/fathom.h"

enum { STRING_LIST_MAX = 256 };

/* Strings of argv, in order. */
struct string_list {
    const char *items[STRING_LIST_MAX];
    size_t n;
};

/* What --kv-transfer-config and --kv-peers say. */
struct transfer_settings {
    bool is_set;
    bool fails; /* a request whose pages do not come: 503 */
    fathom_transfer options;
    char host[256];
    char id[64]; /* "": the server's own */
};

enum { DEVICE_LIST_MAX = 64 };

/* What --devices says. */
struct device_list {
    int index[DEVICE_LIST_MAX];
    uint32_t n; /* 0: nothing */
};

/* What the benchmarks are told. Lengths are tokens. */
struct bench_settings {
    int64_t seed;
    int64_t num_prompts;
    int64_t num_prompts_sweep; /* 0: as the point needs */
    int64_t num_warmups;
    const char *dataset_name;
    const char *dataset_path; /* NULL: none */
    bool disable_shuffle;
    int64_t input_len; /* 0: as the dataset says, here and below */
    int64_t output_len;
    int64_t random_input_len;
    int64_t random_output_len;
    int64_t random_prefix_len;
    double random_range_ratio;
    int64_t sharegpt_output_len;
    int64_t custom_output_len;
    int64_t sonnet_input_len;
    int64_t sonnet_output_len;
    int64_t sonnet_prefix_len;
    int64_t prefix_repetition_prefix_len;
    int64_t prefix_repetition_suffix_len;
    int64_t prefix_repetition_num_prefixes;
    int64_t prefix_repetition_output_len;

    const char *backend;
    const char *base_url; /* NULL: from host and port */
    const char *host;
    int64_t port;
    const char *endpoint;          /* NULL: of the backend */
    const char *model;             /* NULL: the first that the server lists */
    const char *served_model_name; /* NULL: model */
    const char *tokenizer;         /* NULL: the model's */
    const char *api_key;           /* NULL: from the environment */
    struct string_list header;
    const char *extra_body; /* JSON object, or NULL */
    bool insecure;
    const char *request_rate; /* a number or "inf" */
    double burstiness;
    int64_t max_concurrency; /* 0: no limit */
    const char *ramp_up_strategy;
    double ramp_up_start_rps;
    double ramp_up_end_rps;
    bool ignore_eos;
    double temperature; /* negative: not sent, here and below */
    double top_p;
    int64_t top_k;
    double min_p;
    double frequency_penalty; /* -3: not sent, here and below */
    double presence_penalty;
    double repetition_penalty;
    int64_t logprobs;
    const char *percentile_metrics;
    const char *metric_percentiles;
    struct string_list goodput;
    const char *cache;
    int64_t repeat;
    double request_timeout;
    double ready_check_timeout;
    bool disable_tqdm;
    bool save_result;
    bool save_detailed;
    bool append_result;
    const char *result_dir;
    const char *result_filename;
    struct string_list metadata;
    const char *label;

    const char *concurrencies; /* lists of bench sweep: "1,2,4-8" */
    const char *request_rates;
    const char *input_lens, *output_lens;
    double pause;
    int64_t prompt_tokens, rounds; /* of bench router: 0 for 1,000 to 64,000; of a row */

    const char *output; /* the HTML file of bench report */
    const char *title;
    const char *zoom;
};

/* What bench transfer is told. */
struct transfer_bench_settings {
    int64_t page_bytes;
    int64_t lanes;      /* 0: 1, 2 and 4 */
    double seconds;     /* a row */
    const char *peer;   /* "host:port"; NULL: this process, over loopback */
    const char *listen; /* likewise; NULL: it reads */
};

/* What the router is told. */
struct router_settings {
    int64_t port;
    const char *policy;
    const char *server_api_key, *admin_key;                        /* NULL: none */
    const char *ca_cert_path, *client_cert_path, *client_key_path; /* likewise */
    struct string_list worker_urls, prefill, decode;
    struct string_list prefiller_hosts, prefiller_ports; /* a host and its port have one place */
    struct string_list decoder_hosts, decoder_ports;
    int64_t max_moves;
    double look_interval;
    bool insecure;
};

/* What the command line says; options that were not given hold their defaults. Strings belong to
 * argv, to the environment, to the table or to `texts`. */
struct settings {
    json_t *texts; /* an array that owns what neither argv nor the table holds; NULL: nothing */
    const char *config; /* the file of options, or NULL */
    const char *model;
    const char *backend;
    const char *dtype;
    const char *head_dtype;
    const char *kv_cache_dtype;
    const char *quantization;                /* NULL: not given */
    const char *load_format, *chat_template; /* the latter is checked alone; NULL: not given */
    int64_t tensor_parallel_size, pipeline_parallel_size;
    int64_t data_parallel_size, data_parallel_size_local; /* of the latter 0: not given */
    int64_t data_parallel_rank, data_parallel_start_rank; /* -1: not given */
    const char *data_parallel_address, *data_parallel_rpc_port;
    bool data_parallel_hybrid_lb, data_parallel_external_lb;
    bool all_serve; /* each of several hosts has a port for its ranks, as one of these has said */
    bool enable_expert_parallel;
    int64_t share_prompts;
    const char *layout; /* NULL: not given; of the next, 0 */
    int64_t ranks, load_concurrency, load_input_len, load_output_len;
    int64_t rank_slice; /* -1: not given */
    int64_t nnodes, node_rank;
    const char *master_addr;
    int64_t master_port;
    bool by_pmix; /* host 0 tells these by PMIx: a launcher has it, and nobody gave them */
    bool headless;
    const char *executor; /* of ranks, by a name of vLLM's */
    struct sglang_settings sglang;
    const char *cluster_token;          /* NULL: none */
    const char *devices, *hf_overrides; /* NULL: not given */
    struct device_list device_list;     /* what it says */
    int64_t threads;                    /* 0: all processors */
    int64_t max_model_len;              /* 0: the checkpoint's */
    int64_t max_num_seqs;               /* 0: the engine's default, here and below */
    int64_t max_num_batched_tokens;
    int64_t max_queued, max_num_queued_tokens;
    int64_t slo_ttft_ms, slo_tpot_ms;
    const char *scheduling_policy;
    int64_t kv_cache_memory_bytes, kv_cache_tokens, kv_cache_blocks, block_size; /* 0: not given */
    double gpu_memory_utilization;
    bool enable_prefix_caching;
    int64_t kv_offload_ram;
    double kv_offloading_gib; /* which becomes the same */
    int64_t kv_offload_dir_size;
    const char *kv_offload_dir, *kv_transfer_config; /* NULL: not given */
    const char *kv_ip, *kv_transport;
    int64_t kv_port;
    struct string_list kv_peers;
    struct transfer_settings transfer; /* what these two say */
    struct kv_events_settings kv_events;
    const char *compilation_config; /* NULL: not given */
    int64_t optimization_level;     /* -1: not given */
    bool enforce_eager, async_scheduling;
    struct compilation compilation; /* what the first two say */
    const char *speculative_config; /* NULL: not given */
    const char *spec_method;        /* NULL: not given */
    int64_t spec_tokens;            /* 0: not given */
    uint32_t n_draft;               /* what it says; 0: none */
    int64_t seed;                   /* -1: from the system */

    const char *tokenizer, *tokenizer_mode; /* the former is MODEL; NULL: not given */
    const char *tool_call_parser;
    const char *special_tokens_in_text;
    const char *reasoning_parser, *reasoning_config;
    const char *reasoning_closing; /* what the latter says before </think>; NULL: nothing */

    const char *host;
    int64_t port;
    struct string_list served_model_name;
    struct string_list api_key;
    const char *uds;       /* NULL: host and port */
    const char *root_path; /* NULL: none; so is everything down to ssl_cert_reqs */
    const char *api_key_file;
    const char *prefix_cache_sharing;
    const char *admin_socket;
    const char *ssl_certfile, *ssl_keyfile;
    const char *ssl_ca_certs, *ssl_cert_reqs;
    const char *ssl_ciphers, *ssl_min_version;
    bool enable_ssl_refresh, open_metrics;
    bool tokenizer_info;
    bool disable_fastapi_docs;
    bool strict_fields, stream_output;
    bool allow_credentials;
    struct string_list allowed_hosts;
    struct string_list allowed_origins;
    struct string_list allowed_methods;
    struct string_list allowed_headers;
    double drain_timeout; /* seconds */
    double stall_timeout; /* seconds; 0: as the backend needs */
    int64_t max_connections;
    int64_t max_stored_responses; /* 0: none are kept */
    int64_t max_stored_response_bytes;
    double stored_response_ttl; /* seconds */
    bool enable_log_requests, disable_log_requests;
    bool disable_uvicorn_access_log;
    const char *access_log, *otlp_traces_endpoint; /* NULL: none */
    bool allow_core_dumps;
    const char *generation_config;
    const char *override_generation_config;   /* NULL: not given */
    const char *default_chat_template_kwargs; /* NULL: not given */
    fathom_sampling sampling;                 /* what the former says; negative: nothing */
    bool force_include_usage, return_tokens_as_token_ids;
    const char *log_level;

    const char *input_file, *output_file; /* of a batch; NULL: not given */
    const char *prompt;                   /* NULL: a chat in the terminal */
    const char *system;
    bool thinking;
    double temperature; /* negative: the checkpoint's, here and below */
    double top_p;
    int64_t max_tokens; /* 0: up to the context */

    const char *text; /* NULL: standard input */
    bool decode;
    bool tensors;
    int64_t memory_bytes; /* 0: this machine's */

    int64_t batch_size;
    int64_t input_len;
    int64_t output_len;
    int64_t mixed_input_len; /* 0: no prompts beside decodes */
    bool skip_experts;
    struct transfer_bench_settings transfer_bench;
    int64_t num_iters_warmup;
    int64_t num_iters;
    const char *output_json; /* NULL: none */
    struct bench_settings bench;
    struct router_settings router;
    const char *pool_secret_file; /* NULL: none */

    const char *scheme;
    int64_t group;
    const char *method;
    struct string_list targets; /* none: experts */
    struct string_list calibration_files;
    int64_t calibration_samples; /* 0: all */
    bool resume;
    bool report;
    bool quantize_dry_run;
    const char *progress;
    double health_timeout;               /* seconds */
    const char *revision, *download_dir; /* NULL: the main branch; the cache of Hugging Face */
    int64_t parallel;
    const char *against; /* NULL: no other model */
    struct string_list texts_files;
    int64_t length;
    int64_t samples; /* 0: all */
    const char *scratch_dir;

    bool verify, dry_run;
    bool json, markdown, flags, man, completion; /* forms of what is printed */
    bool help;
    const char *help_topic;  /* what --help is asked about; NULL: all */
    struct string_list rest; /* plain arguments after the model */
};

#endif

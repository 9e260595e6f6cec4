/* bench_settings.h - what the command line says of benchmarks */
#ifndef FATHOM_CLI_BENCH_SETTINGS_H
#define FATHOM_CLI_BENCH_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STRING_LIST_MAX = 256 };

/* Strings of argv, in order. */
struct string_list {
    const char *items[STRING_LIST_MAX];
    size_t n;
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
    const char *input_lens;
    const char *output_lens;
    double pause;

    const char *output; /* the page of bench report */
    const char *title;
    const char *zoom;
};

#endif

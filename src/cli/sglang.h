/* sglang.h - what SGLang's flags say where they mean more than one option */
#ifndef FATHOM_CLI_SGLANG_H
#define FATHOM_CLI_SGLANG_H

#include <stdbool.h>
#include <stdint.h>

struct sglang_settings {
    int64_t dp_size, ep_size; /* 0: not given */
    bool enable_dp_attention;
    const char *dist_init_addr; /* here and below NULL: not given */
    bool disable_radix_cache, disable_overlap_schedule, enable_trace;
    const char *sampling_defaults;
    const char *speculative_algorithm;
    int64_t speculative_num_steps;
    const char *disaggregation_mode;
    int64_t bootstrap_port;
    int64_t base_gpu_id, gpu_id_step;
    bool hierarchical_cache, priorities, low_priority_first;
    double hicache_gb;
};

#endif

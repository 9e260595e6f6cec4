/* test_sglang.c - command lines of SGLang: each flag means what it means there, or is told */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/options.h"

enum { WORDS_MAX = 48 };

struct result {
    struct settings s;
    struct buf notes;
    fathom_diag d;
    fathom_err err;
    char words[1024];
};

static struct result r;

static void forget(void)
{
    buf_free(&r.notes);
    settings_free(&r.s);
}

static void start(const char *line)
{
    char *argv[WORDS_MAX];
    int argc = 0;
    forget();
    memset(&r, 0, sizeof r);
    (void)snprintf(r.words, sizeof r.words, "%s", line);
    for (char *p = r.words; *p;) {
        assert_in_range(argc, 0, WORDS_MAX - 1);
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = '\0';
    }
    const struct option_input in = {argc, argv, NULL, 0, NULL};
    r.err = options_parse(&r.s, COMMAND_SERVE, &in, &r.notes, &r.d);
}

static void serves(const char *line)
{
    start(line);
    if (r.err) fail_msg("%s: %s", line, r.d.text);
}

static void is_refused(const char *line, const char *part)
{
    start(line);
    assert_int_equal(r.err, FATHOM_EINVAL);
    if (!strstr(r.d.text, part)) fail_msg("%s: %s", line, r.d.text);
    assert_null(strchr(r.d.text, '\n'));
}

static void notes(const char *part)
{
    if (!strstr(buf_str(&r.notes), part)) fail_msg("\"%s\": %s", part, buf_str(&r.notes));
}

static void names_of_one_option_store_where_it_does(void **state)
{
    (void)state;
    serves("--model-path org/name --tp 4 --context-length 32768 --mem-fraction-static 0.8 "
           "--max-running-requests 128 --max-queued-requests 9 --chunked-prefill-size 4096 "
           "--random-seed 7 --watchdog-timeout 300 --served-model-name a --trust-remote-code "
           "--kv-cache-dtype fp8_e4m3 --host 0.0.0.0 --port 30000 --disable-cuda-graph "
           "--disable-radix-cache --disable-overlap-schedule --sampling-defaults openai");
    assert_string_equal(r.s.model, "org/name");
    assert_false(r.s.stream_output);
    assert_int_equal(r.s.tensor_parallel_size, 4);
    assert_int_equal(r.s.max_model_len, 32768);
    assert_true(r.s.gpu_memory_utilization == 0.8);
    assert_int_equal(r.s.max_num_seqs, 128);
    assert_int_equal(r.s.max_queued, 9);
    assert_int_equal(r.s.max_num_batched_tokens, 4096);
    assert_int_equal(r.s.seed, 7);
    assert_true(r.s.stall_timeout == 300);
    assert_int_equal(r.s.port, 30000);
    assert_true(r.s.enforce_eager && !r.s.enable_prefix_caching && !r.s.async_scheduling);
    assert_string_equal(r.s.generation_config, "vllm");
    serves("--chunked-prefill-size -1");
    assert_int_equal(r.s.max_num_batched_tokens, 0);
    notes("--chunked-prefill-size -1 has no effect");
    is_refused("--chunked-prefill-size -2", "--chunked-prefill-size");
    serves("--pp-size 2 --tp-size 2");
    assert_int_equal(r.s.pipeline_parallel_size, 2);
    serves("--tool-call-parser deepseekv32 --reasoning-parser deepseek-v3");
    assert_string_equal(r.s.tool_call_parser, "deepseek_v32");
    assert_string_equal(r.s.reasoning_parser, "deepseek_v3");
    serves("--stream-output");
    assert_true(r.s.stream_output);
    serves("--incremental-streaming-output");
    assert_true(r.s.stream_output);
}

static void what_configures_its_python_is_told(void **state)
{
    (void)state;
    serves("--nccl-port 5 --weight-version v --gc-threshold 1 2 --enable-mscclpp "
           "--prefill-max-requests 4 "
           "--eplb-rebalance-num-iterations 9 --enable-tokenizer-batch-encode");
    unsigned n = 0;
    for (size_t i = 0; i < r.notes.len; i++) n += r.notes.data[i] == '\n';
    assert_in_range(n, 7, 8); /* a line for each value of a list */
    is_refused("--enable-lmcache", "--kv-offload-ram");
}

static void two_hosts_meet_at_one_address(void **state)
{
    (void)state;
    serves("--model-path m --tp 16 --dist-init-addr 10.0.0.1:5000 --nnodes 2 --node-rank 1");
    assert_string_equal(r.s.master_addr, "10.0.0.1");
    assert_true(r.s.master_port == 5000 && r.s.nnodes == 2 && r.s.node_rank == 1 && r.s.headless);
    notes("host 1 is --headless");
    serves("--model-path m --tp 16 --nccl-init-addr tcp://[::1]:5000 --nnodes 2 --node-rank 0");
    assert_string_equal(r.s.master_addr, "::1");
    assert_true(!r.s.headless && r.notes.len == 0);
    static const char *const bad[] = {"h0", ":5000", "[]:5000", "tcp://:1", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "--dist-init-addr=%s --nnodes 2 -tp 2", bad[i]);
        is_refused(line, "needed is HOST:PORT of host 0");
    }
    is_refused("--dist-init-addr h0:0 --nnodes 2 -tp 2", "master-port");
    is_refused("--dist-init-addr h0:x --nnodes 2 -tp 2", "master-port");
}

static void ranks_with_requests_of_their_own_are_data_parallel(void **state)
{
    (void)state;
    serves("--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8 --moe-a2a-backend deepep");
    assert_true(r.s.data_parallel_size == 8 && r.s.tensor_parallel_size == 1);
    assert_true(r.s.enable_expert_parallel);
    notes("--moe-a2a-backend deepep has no effect");
    notes("--tp-size 8 --dp-size 8 --enable-dp-attention: this is --data-parallel-size 8");
    serves("--tp 8 --dp 2 --enable-dp-attention");
    assert_true(r.s.data_parallel_size == 2 && r.s.tensor_parallel_size == 4);
    notes("this is --data-parallel-size 2 --tensor-parallel-size 4 --enable-expert-parallel");
    is_refused("--tp 8 --dp 3 --enable-dp-attention", "give --dp-size 8");
    is_refused("--tp 8 --dp 2", "as many servers behind `fathom router`");
    serves("--tp 8 --expert-parallel-size 8");
    assert_true(r.s.tensor_parallel_size == 8 && r.s.enable_expert_parallel);
    is_refused("--tp 8 --ep 4", "--ep-size 4 of --tp-size 8 is refused");
    is_refused("--ep 8", "give --ep-size 1, or leave it out");
    serves("--tp 8 --ep 1 --dp 1 --enable-dp-attention");
    notes("--enable-dp-attention has no effect");
}

static void what_a_v32_of_long_prompts_is_served_with_is_passed_over(void **state)
{
    (void)state;
    serves("--model-path m --tp 8 --attention-backend nsa --nsa-prefill-backend flashmla_auto "
           "--nsa-decode-backend flashmla_kv --enable-nsa-prefill-context-parallel "
           "--nsa-prefill-cp-mode round-robin-split --attn-cp-size 8 --fp8-gemm-backend cutlass "
           "--enable-flashinfer-allreduce-fusion --numa-node 0 0 1 1 "
           "--enable-metrics-for-all-schedulers --bucket-time-to-first-token 0.1 1 10 "
           "--disaggregation-decode-tp 4 --hicache-write-policy write_through");
    assert_int_equal(r.s.tensor_parallel_size, 8);
    notes("--nsa-prefill-backend flashmla_auto has no effect");
    notes("--attn-cp-size 8 has no effect: ranks share long prompts by themselves; see "
          "--share-prompts");
    assert_null(strstr(buf_str(&r.notes), "--enable-flashinfer-allreduce-fusion"));
    is_refused("--tp 8 --moe-dp-size 2", "experts are cut or spread over all ranks");
}

static void drafts_and_roles_have_their_json_here(void **state)
{
    (void)state;
    serves("--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 "
           "--speculative-num-draft-tokens 3");
    assert_int_equal(r.s.n_draft, 2);
    notes("--speculative-num-draft-tokens 3 has no effect");
    serves("--speculative-algorithm NEXTN");
    assert_int_equal(r.s.n_draft, 3);
    serves("--speculative-num-steps 2");
    assert_int_equal(r.s.n_draft, 0);
    is_refused("--speculative-algorithm NGRAM", "give EAGLE or NEXTN");
    is_refused("--speculative-algorithm EAGLE --speculative-eagle-topk 4", "a chain");
    is_refused("--speculative-algorithm EAGLE --speculative-num-steps 9", "num-steps");
    serves("--disaggregation-mode prefill --disaggregation-ib-device mlx5_0");
    assert_true(r.s.transfer.is_set && r.s.transfer.options.gives && !r.s.transfer.options.takes);
    assert_int_equal(r.s.transfer.options.port, 8998);
    serves("--disaggregation-mode prefill --disaggregation-bootstrap-port 7001");
    assert_int_equal(r.s.transfer.options.port, 7001);
    serves("--disaggregation-mode decode");
    assert_true(!r.s.transfer.options.gives && r.s.transfer.options.takes);
    serves("--disaggregation-mode null");
    assert_false(r.s.transfer.is_set);
    is_refused("--disaggregation-mode decode --kv-transfer-config {\"kv_role\":\"kv_both\"}",
               "say the same");
}

static void memory_and_devices_are_said_otherwise(void **state)
{
    (void)state;
    serves("--max-total-tokens 9000");
    assert_int_equal(r.s.kv_cache_tokens, 9000);
    serves("--enable-hierarchical-cache --hicache-size 64 --hicache-ratio 2.0");
    assert_int_equal(r.s.kv_offload_ram, 64000000000);
    notes("--hicache-ratio 2.0 has no effect: --hicache-size says how much");
    serves("--hicache-size 64"); /* which says nothing by itself */
    assert_int_equal(r.s.kv_offload_ram, 0);
    is_refused("--enable-hierarchical-cache", "Give --hicache-size");
    serves("--base-gpu-id 4 --gpu-id-step 2 --tp-size 2");
    assert_string_equal(r.s.devices, "4,6");
    assert_int_equal(r.s.device_list.n, 2);
    serves("--base-gpu-id 1 --dp-size 4 --tp-size 4 --enable-dp-attention");
    assert_string_equal(r.s.devices, "1,2,3,4");
    serves("--base-gpu-id 0 --tp-size 2");
    assert_null(r.s.devices);
    is_refused("--base-gpu-id 4 --devices 4", "leave either out");
}

static void requests_are_said_otherwise(void **state)
{
    (void)state;
    serves("--enable-priority-scheduling");
    assert_string_equal(r.s.scheduling_policy, "priority");
    assert_true(r.s.sglang.priorities && !r.s.sglang.low_priority_first);
    serves("--enable-priority-scheduling --schedule-low-priority-values-first");
    assert_true(r.s.sglang.low_priority_first);
    serves("--preferred-sampling-params {\"temperature\":0.5}");
    assert_string_equal(r.s.override_generation_config, "{\"temperature\":0.5}");
    serves("--enable-trace");
    assert_string_equal(r.s.otlp_traces_endpoint, "localhost:4317");
    serves("--enable-trace --otlp-traces-endpoint there:1");
    assert_string_equal(r.s.otlp_traces_endpoint, "there:1");
}

static void what_there_is_not_is_told(void **state)
{
    (void)state;
    is_refused("--admin-api-key secret", "--admin-socket");
    assert_null(strstr(r.d.text, " secret"));
    serves("--page-size 1 --schedule-policy lpm --enable-metrics --enable-torch-compile "
           "--cuda-graph-bs 1 2 4 --attention-backend fa3 --grammar-backend xgrammar");
    notes("--page-size 1 has no effect: pages always hold 64 tokens");
    notes("--schedule-policy lpm has no effect");
    notes("--enable-torch-compile has no effect");
    assert_null(strstr(buf_str(&r.notes), "--enable-metrics"));
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    bool hit = true;
    for (long n = 0; hit; n++) {
        forget();
        mem_fail_after(n);
        start("--dist-init-addr a:1 --nnodes 2 --tp-size 2 --chunked-prefill-size -1");
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(r.err, hit ? FATHOM_ENOMEM : FATHOM_OK);
    }
    forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_configures_its_python_is_told),
        cmocka_unit_test(names_of_one_option_store_where_it_does),
        cmocka_unit_test(two_hosts_meet_at_one_address),
        cmocka_unit_test(ranks_with_requests_of_their_own_are_data_parallel),
        cmocka_unit_test(what_a_v32_of_long_prompts_is_served_with_is_passed_over),
        cmocka_unit_test(drafts_and_roles_have_their_json_here),
        cmocka_unit_test(memory_and_devices_are_said_otherwise),
        cmocka_unit_test(requests_are_said_otherwise),
        cmocka_unit_test(what_there_is_not_is_told),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

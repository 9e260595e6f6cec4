/* test_options.c - the command line: table, parser, help, docs/cli.md */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "cli/options.h"

enum { ARGS_MAX = 24 };

struct result {
    struct settings s;
    struct buf notes;
    fathom_diag d;
    fathom_err err;
    char words[512];
};

static void forget(struct result *r)
{
    buf_free(&r->notes);
    settings_free(&r->s);
}

/* Parses a line of words separated by spaces. */
static void parse(struct result *r, enum command c, const char *line)
{
    char *argv[ARGS_MAX];
    int argc = 0;
    forget(r);
    memset(r, 0, sizeof *r);
    (void)snprintf(r->words, sizeof r->words, "%s", line);
    for (char *p = r->words; *p;) {
        assert_in_range(argc, 0, ARGS_MAX - 1);
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = '\0';
    }
    const struct option_input in = {argc, argv, NULL, 0, NULL};
    r->err = options_parse(&r->s, c, &in, &r->notes, &r->d);
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static void assert_refused(struct result *r, const char *line, const char *part)
{
    parse(r, COMMAND_SERVE, line);
    assert_int_equal(r->err, FATHOM_EINVAL);
    assert_says(r->d.text, part);
}

static void assert_noted(struct result *r, const char *line, const char *part)
{
    parse(r, COMMAND_SERVE, line);
    assert_int_equal(r->err, FATHOM_OK);
    assert_says(buf_str(&r->notes), part);
}

static void nothing_given_means_the_defaults(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "");
    assert_int_equal(r.err, FATHOM_OK);
    assert_string_equal(r.s.model, "pilot");
    assert_string_equal(r.s.host, "127.0.0.1");
    assert_int_equal(r.s.port, 8000);
    assert_string_equal(r.s.backend, "auto");
    assert_int_equal(r.s.seed, -1);
    assert_true(r.s.gpu_memory_utilization == 0.9);
    assert_null(r.s.quantization);
    assert_int_equal(r.s.served_model_name.n, 0);
    assert_int_equal(r.notes.len, 0);
}

static void every_form_of_an_option_is_read(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "--port 9000");
    assert_int_equal(r.s.port, 9000);
    parse(&r, COMMAND_SERVE, "--port=9001");
    assert_int_equal(r.s.port, 9001);
    parse(&r, COMMAND_SERVE, "--max_model_len 8K");
    assert_int_equal(r.s.max_model_len, 8192);
    parse(&r, COMMAND_SERVE, "--max-model-len 8k");
    assert_int_equal(r.s.max_model_len, 8000);
    parse(&r, COMMAND_SERVE, "--max-model-len auto");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.max_model_len, -1);
    parse(&r, COMMAND_SERVE, "--kv-cache-memory-bytes 1.5G");
    assert_int_equal(r.s.kv_cache_memory_bytes, 1610612736);
    parse(&r, COMMAND_SERVE, "--seed -1");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.seed, -1);
    parse(&r, COMMAND_RUN, "--thinking --no-thinking");
    assert_false(r.s.thinking);
    parse(&r, COMMAND_RUN, "-p hello --thinking=true some/dir");
    assert_true(r.s.thinking);
    assert_string_equal(r.s.prompt, "hello");
    assert_string_equal(r.s.model, "some/dir");
    parse(&r, COMMAND_RUN, "-p -");
    assert_string_equal(r.s.prompt, "-");
    parse(&r, COMMAND_RUN, "-- --model");
    assert_string_equal(r.s.model, "--model");
    forget(&r);
}

static void a_list_takes_values_up_to_the_next_option(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "dir --served-model-name a b --port 1 --api-key=k");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.served_model_name.n, 2);
    assert_string_equal(r.s.served_model_name.items[1], "b");
    assert_int_equal(r.s.api_key.n, 1);
    assert_string_equal(r.s.model, "dir");
    assert_refused(&r, "--served-model-name", "needs a value");
    forget(&r);
}

static void a_list_is_bounded(void **state)
{
    (void)state;
    static struct settings s;
    char *argv[STRING_LIST_MAX + 2];
    char option[] = "--served-model-name";
    char value[] = "a";
    struct buf notes = {0};
    fathom_diag d = {{0}};
    argv[0] = option;
    for (int i = 1; i < STRING_LIST_MAX + 2; i++) argv[i] = value;
    struct option_input in = {STRING_LIST_MAX + 1, argv, NULL, 0, NULL};
    assert_int_equal(options_parse(&s, COMMAND_SERVE, &in, &notes, &d), FATHOM_OK);
    settings_free(&s);
    in.argc++;
    assert_int_equal(options_parse(&s, COMMAND_SERVE, &in, &notes, &d), FATHOM_EINVAL);
    assert_says(d.text, "more than 256");
    settings_free(&s);
    buf_free(&notes);
}

static void one_name_may_mean_something_else_to_another_command(void **state)
{
    (void)state;
    static struct result r;
    parse(&r, COMMAND_BENCH_SERVE, "--tokenizer dir --backend vllm --temperature 0.5");
    assert_int_equal(r.err, FATHOM_OK);
    assert_string_equal(r.s.bench.tokenizer, "dir");
    assert_string_equal(r.s.bench.backend, "vllm");
    assert_string_equal(r.s.backend, "auto");
    assert_true(r.s.temperature == -1);
    parse(&r, COMMAND_SERVE,
          "--kv-offloading-size 1.5 -dp 2 -ep -sc {\"num_speculative_tokens\":1}");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.kv_offload_ram, 3LL << 29);
    assert_true(r.s.enable_expert_parallel);
    assert_int_equal(r.s.n_draft, 1);
    assert_refused(&r, "--kv-offloading-size 1 --kv-offload-ram 1G", "say the same");
    assert_refused(&r, "--tokenizer dir", "--tokenizer dir is refused");
    assert_refused(&r, "--model /d/m2 --tokenizer /d/m", "is refused");
    parse(&r, COMMAND_SERVE, "org/name --tokenizer org/name/ --revision main");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.notes.len, 0);
    parse(&r, COMMAND_RUN_BATCH, "-i a -o b --model /d/m/ --tokenizer /d/m");
    assert_int_equal(r.err, FATHOM_OK);
    parse(&r, COMMAND_BENCH_SERVE, "--skip-chat-template --enable-multimodal-chat");
    assert_int_equal(r.err, FATHOM_EINVAL);
    assert_says(r.d.text, "--endpoint /v1/completions");
    parse(&r, COMMAND_BENCH_SERVE, "--random-input 200 --num-prompt=7");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.bench.random_input_len, 200);
    assert_int_equal(r.s.bench.num_prompts, 7);
    parse(&r, COMMAND_BENCH_REPORT, "a.json b.json --output c.html");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.rest.n, 2);
    forget(&r);
}

static void a_variable_means_what_it_means_to_the_server(void **state)
{
    (void)state;
    static struct settings s;
    const struct option_variable variables[] = {{"FATHOM_BACKEND", "backend", "ref"},
                                                {"FATHOM_BURSTINESS", "burstiness", "2"}};
    const struct option_input in = {0, NULL, variables, 2, NULL};
    struct buf notes = {0};
    assert_int_equal(options_parse(&s, COMMAND_BENCH_SERVE, &in, &notes, NULL), FATHOM_OK);
    assert_string_equal(s.bench.backend, "openai");
    assert_true(s.bench.burstiness == 2);
    settings_free(&s);
    assert_int_equal(options_parse(&s, COMMAND_BENCH_LATENCY, &in, &notes, NULL), FATHOM_OK);
    assert_string_equal(s.backend, "ref");
    settings_free(&s);
    buf_free(&notes);
}

static void commands_have_one_word_or_two(void **state)
{
    (void)state;
    const char *words[] = {"bench", "sweep", "--help"};
    size_t n_used;
    struct buf names = {0};
    assert_int_equal(command_find(words, 3, &n_used), COMMAND_BENCH_SWEEP);
    assert_int_equal(n_used, 2);
    assert_int_equal(command_find(words, 1, &n_used), COMMAND_COUNT);
    assert_int_equal(n_used, 0);
    words[1] = "sweeps";
    assert_int_equal(command_find(words, 2, &n_used), COMMAND_COUNT);
    words[0] = "serve";
    assert_int_equal(command_find(words, 2, &n_used), COMMAND_SERVE);
    assert_int_equal(n_used, 1);
    assert_int_equal(command_names(&names, "bench"), FATHOM_OK);
    assert_string_equal(buf_str(&names),
                        "latency, kernels, throughput, serve, sweep, transfer, router, report");
    buf_clear(&names);
    assert_int_equal(command_names(&names, "benc"), FATHOM_OK);
    assert_int_equal(names.len, 0);
    buf_free(&names);
}

static void unknown_options_name_the_nearest(void **state)
{
    (void)state;
    struct result r = {0};
    assert_refused(&r, "--max-modl-len 4", "the nearest is --max-model-len");
    assert_refused(&r, "--prot=1", "the nearest is --port");
    assert_refused(&r, "--zzzzzzzzzzzz", "fathom serve --help");
    assert_refused(&r, "--prompt x", "`fathom serve` does not have this option");
    assert_refused(&r, "--no-port", "unknown option");
    assert_refused(&r, "-z", "unknown option");
    assert_refused(&r, "--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                   "unknown option");
    assert_refused(&r, "a b", "one argument too many");
    forget(&r);
}

/* Other servers' names are no beginnings of ours; '_' may stand for '-' in every spelling. */
static void spellings_of_other_servers_name_what_there_is(void **state)
{
    (void)state;
    struct result r = {0};
    assert_refused(&r, "--max_seq_len 4096", "use --max-model-len");
    assert_refused(&r, "--tool_parser x", "use --tool-call-parser");
    assert_refused(&r, "--parallel 4", "use --max-num-seqs");
    assert_refused(&r, "--kt-cpuinfer 60", "not split between device and host");
    parse(&r, COMMAND_SERVE, "--tp 2 --pp 1 --uvicorn_log_level debug --max_queued 3");
    assert_string_equal(r.d.text, "");
    assert_int_equal(r.s.tensor_parallel_size, 2);
    assert_string_equal(r.s.log_level, "debug");
    assert_int_equal(r.s.max_queued, 3);
    parse(&r, COMMAND_SERVE, "--chat-template a/tool_chat_template_deepseekv31.jinja");
    assert_int_equal(r.err, FATHOM_OK);
    assert_says(buf_str(&r.notes), "has no effect: chats and tools are encoded");
    assert_refused(&r, "--chat-template my.jinja", "is refused: chats and tools are encoded");
    assert_noted(&r, "--enable-eplb --num-redundant-experts 32", "--enable-eplb has no effect");
    parse(&r, COMMAND_SERVE, "--load-format runai_streamer --quantization moe_wna16");
    assert_int_equal(r.err, FATHOM_OK);
    forget(&r);
}

static void plan_and_doctor_take_a_command_line_of_serve(void **state)
{
    (void)state;
    struct result r = {0};
    for (int i = 0; i < 2; i++) {
        const enum command c = i ? COMMAND_DOCTOR : COMMAND_PLAN;
        parse(&r, c,
              "m --max-model-len 9 --served-model-name a b --no-async-scheduling "
              "--trust-remote-code --block-size 1 --enable-auto-tool --uvicorn-log-level info");
        assert_string_equal(r.d.text, "");
        assert_int_equal(r.s.max_model_len, 9);
        assert_says(buf_str(&r.notes), "--trust-remote-code has no effect");
        parse(&r, c, "--max-modl-len 4");
        assert_int_equal(r.err, FATHOM_EINVAL);
        assert_says(r.d.text, "the nearest is --max-model-len");
        parse(&r, c, "--prompt x");
        assert_says(r.d.text, "does not have this option");
        parse(&r, c, "--tp-size 8 --dp-size 4 --enable-dp-attention --max-running-requests 3");
        assert_string_equal(r.d.text, "");
        assert_int_equal(r.s.data_parallel_size, 4);
        assert_int_equal(r.s.tensor_parallel_size, 2);
        assert_true(r.s.enable_expert_parallel);
        assert_int_equal(r.s.max_num_seqs, 3);
        parse(&r, c, "--speculative-algorithm EAGLE --disable-radix-cache");
        assert_int_equal(r.s.n_draft, 3);
        assert_false(r.s.enable_prefix_caching);
        parse(&r, c, "--enable-lora");
        assert_int_equal(r.err, FATHOM_EINVAL);
        assert_says(r.d.text, "adapters are not supported");
    }
    parse(&r, COMMAND_INSPECT, "--trust-remote-code");
    assert_int_equal(r.err, FATHOM_EINVAL);
    forget(&r);
}

static void bad_values_are_answered_with_what_is_needed(void **state)
{
    (void)state;
    struct result r = {0};
    assert_refused(&r, "--port", "needs a value");
    assert_refused(&r, "--port --host x", "needs a value");
    assert_refused(&r, "--port x", "not a whole number");
    assert_refused(&r, "--port auto", "not a whole number");
    assert_refused(&r, "--max-model-len automatic", "not a whole number");
    assert_refused(&r, "--port 1.5", "not a whole number");
    assert_refused(&r, "--port 70000", "needed is 0 to 65535");
    assert_refused(&r, "--port 1e999", "not a whole number");
    assert_refused(&r, "--port nan", "not a whole number");
    assert_refused(&r, "--port=", "not a whole number");
    assert_refused(&r, "--gpu-memory-utilization 2", "needed is 0.01 to 1");
    assert_refused(&r, "--gpu-memory-utilization 1k", "not a number");
    assert_refused(&r, "--backend tpu", "none of auto|ref|cpu|cuda");
    assert_refused(&r, "--dtype half", "overflow float16");
    assert_refused(&r, "--dtype float16", "overflow float16");
    assert_refused(&r, "--quantization hqq", "weights of this method are not read");
    assert_refused(&r, "--quantization q4", "none of fp8|deepseek_v3|awq|");
    assert_refused(&r, "--enable-auto-tool-choice=maybe", "takes no value");
    forget(&r);
}

static void speculation_is_read_at_once(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "--speculative-config {\"num_speculative_tokens\":3}");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.n_draft, 3);
    assert_refused(&r, "--speculative-config {}", "num_speculative_tokens is missing");
    parse(&r, COMMAND_SERVE, "--port 1");
    assert_int_equal(r.s.n_draft, 0);
    assert_true(r.s.enable_prefix_caching);
    parse(&r, COMMAND_SERVE, "--no-enable-prefix-caching");
    assert_int_equal(r.err, FATHOM_OK);
    assert_false(r.s.enable_prefix_caching);
    forget(&r);
}

static void a_beginning_that_fits_one_name_stands_for_it(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "--max-model 4096 --trust-remote --no-enable-prefix");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.max_model_len, 4096);
    assert_false(r.s.enable_prefix_caching);
    assert_refused(&r, "--max-num 1", "may be --max-num-seqs, --max-num-batched-tokens");
    assert_refused(&r, "--no-max-model 1", "unknown option");
    forget(&r);
}

static void one_key_of_an_object_may_be_set(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE,
          "--speculative_config.method mtp --speculative-config.num_speculative_tokens=2");
    assert_string_equal(r.d.text, "");
    assert_int_equal(r.s.n_draft, 2);
    assert_string_equal(r.s.speculative_config,
                        "{\"method\":\"mtp\",\"num_speculative_tokens\":2}");
    parse(&r, COMMAND_SERVE,
          "--speculative-config {\"num_speculative_tokens\":1} "
          "--speculative-config.num_speculative_tokens 4");
    assert_int_equal(r.s.n_draft, 4);
    assert_noted(&r, "-cc.cudagraph_mode PIECEWISE", "--compilation-config");
    assert_noted(&r, "--additional-config.sizes+ 3", "--additional-config");
    parse(&r, COMMAND_SERVE, "-cc.cudagraph_capture_sizes+ 3 -cc.cudagraph_capture_sizes+ 6");
    assert_int_equal(r.s.compilation.n_size, 2);
    assert_int_equal(r.s.compilation.sizes[1], 6);
    assert_refused(&r, "--port.x 1", "--port is no JSON object, so it has no key \"x\"");
    assert_refused(&r, "--speculative-config. 1", "a key is missing");
    assert_refused(&r, "--speculative-config.a..b 1", "a key is missing");
    assert_refused(&r, "--speculative-config [1]", "an array, needed is an object");
    assert_refused(&r, "--additional-config {", "not valid JSON");
    forget(&r);
}

static void what_is_recorded_may_be_said_in_all_of_vllms_ways(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "-O3 --enforce-eager");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.optimization_level, 3);
    assert_true(r.s.enforce_eager);
    assert_false(r.s.compilation.no_graphs);
    parse(&r, COMMAND_SERVE, "-O 0");
    assert_true(r.s.compilation.no_graphs);
    parse(&r, COMMAND_BENCH_LATENCY, "-O.cudagraph_mode=NONE");
    assert_true(r.s.compilation.no_graphs);
    parse(&r, COMMAND_PLAN, "-cc.cudagraph_num_of_warmups=2");
    assert_int_equal(r.s.compilation.n_warm_up, 2);
    assert_refused(&r, "-O9", "--optimization-level: 9 is out of range");
    assert_refused(&r, "-cc.cudagraph_mode=SOME", "cudagraph_mode is SOME");
    forget(&r);
}

static void all_refusals_are_told_at_once(void **state)
{
    (void)state;
    struct result r = {0};
    assert_refused(&r, "-pp 2 --trust-remote-code -dp 2", "--pipeline-parallel-size 2 is refused");
    assert_says(buf_str(&r.notes), "--data-parallel-size 2 is refused");
    assert_says(buf_str(&r.notes), "--trust-remote-code has no effect");
    forget(&r);
}

static void help_may_be_about_a_group_or_a_name(void **state)
{
    (void)state;
    struct result r = {0};
    struct buf b = {0};
    fathom_diag d = {{0}};
    parse(&r, COMMAND_SERVE, "--help=security");
    assert_string_equal(r.s.help_topic, "security");
    parse(&r, COMMAND_SERVE, "--help max_num");
    assert_string_equal(r.s.help_topic, "max_num");
    assert_int_equal(options_write_help(&b, COMMAND_SERVE, "security", &d), FATHOM_OK);
    assert_says(buf_str(&b), "--api-key");
    assert_null(strstr(buf_str(&b), "--port"));
    buf_clear(&b);
    assert_int_equal(options_write_help(&b, COMMAND_SERVE, "--max_num", &d), FATHOM_OK);
    assert_says(buf_str(&b), "--max-num-seqs");
    assert_null(strstr(buf_str(&b), "--max-model-len"));
    assert_int_equal(options_write_help(&b, COMMAND_SERVE, "nonsense", &d), FATHOM_EINVAL);
    assert_says(d.text, "no option of");
    buf_free(&b);
    forget(&r);
}

static void pages_of_the_cache_are_tokens(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "--num-gpu-blocks-override 70 --block-size 16");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.kv_cache_tokens, 1120);
    parse(&r, COMMAND_SERVE, "--num-gpu-blocks-override 70");
    assert_int_equal(r.s.kv_cache_tokens, 4480);
    parse(&r, COMMAND_SERVE, "--block-size 16");
    assert_int_equal(r.s.kv_cache_tokens, 0);
    forget(&r);
}

static void foreign_flags_are_noted_or_refused_never_ignored(void **state)
{
    (void)state;
    struct result r = {0};
    assert_noted(&r, "--trust-remote-code", "--trust-remote-code has no effect: no code");
    assert_noted(&r, "--block-size 1", "--block-size 1 has no effect: pages always hold 64");
    parse(&r, COMMAND_SERVE,
          "--block-size 64 --tensor-parallel-size 1 --enable-prefix-caching "
          "--load-format safetensors --enable-chunked-prefill");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.notes.len, 0);
    assert_refused(&r, "-tp 65", "--tensor-parallel-size 65 is out of range, needed is 1 to 64");
    assert_refused(&r, "-dp 65 --enable-expert-parallel",
                   "--data-parallel-size 65 is out of range");
    assert_refused(&r, "-dp 2", "give --enable-expert-parallel too");
    assert_refused(&r, "-dp 3 -dpl 2 --enable-expert-parallel", "each of 1 hosts has as many");
    parse(&r, COMMAND_SERVE, "-dp 2 -dpl 2 -tp 4 --enable-expert-parallel");
    assert_int_equal(r.s.data_parallel_size, 2);
    assert_int_equal(r.s.tensor_parallel_size, 4);
    assert_true(r.s.enable_expert_parallel);
    assert_refused(&r, "-tp 8 --rank-slice 8", "--rank-slice 8 of --tensor-parallel-size 8");
    parse(&r, COMMAND_SERVE, "--devices 2,0,11");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.device_list.n, 3);
    assert_int_equal(r.s.device_list.index[0], 2);
    assert_int_equal(r.s.device_list.index[2], 11);
    const char *const bad[] = {"--devices 0,", "--devices ,1",  "--devices -1",
                               "--devices a",  "--devices 0:1", "--devices 99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_refused(&r, bad[i], "needed are 1 to 64 indexes of GPUs");
    }
    assert_refused(&r, "--load-format gguf", "weights are read from safetensors");
    parse(&r, COMMAND_BENCH_LATENCY, "--load-format dummy -tp 8 --rank-slice 3 --dtype fp8");
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.tensor_parallel_size, 8);
    assert_int_equal(r.s.rank_slice, 3);
    assert_string_equal(r.s.load_format, "dummy");
    assert_refused(&r, "--kv-transfer-config {}", "kv_role is missing");
    assert_refused(&r, "--kv-transfer-config {\"kv_role\":\"both\"}", "kv_producer");
    assert_refused(&r, "--kv-transfer-config {\"kv_connector\":\"LMCache\"}", "NixlConnector");
    assert_refused(&r, "--kv-transfer-config {\"role\":1}", "\"role\" is not known");
    assert_refused(&r,
                   "--kv-transfer-config {\"kv_role\":\"kv_both\","
                   "\"kv_connector_extra_config\":{\"pool_secret\":\"x\"}}",
                   "--pool-secret-file");
    parse(
        &r, COMMAND_SERVE,
        "--kv-port 7000 --kv-transfer-config {\"kv_connector\":\"MooncakeConnectorV1\",\"kv_role\":"
        "\"kv_both\",\"kv_ip\":\"::1\",\"kv_connector_extra_config\":{\"num_workers\":3}}");
    assert_int_equal(r.err, FATHOM_OK);
    assert_true(r.s.transfer.is_set && !r.s.transfer.fails);
    assert_true(r.s.transfer.options.gives && r.s.transfer.options.takes);
    assert_int_equal(r.s.transfer.options.port, 7000);
    assert_int_equal(r.s.transfer.options.n_lane, 3);
    assert_string_equal(r.s.transfer.host, "::1");
    assert_int_equal(r.s.transfer.options.transport, FATHOM_TRANSPORT_TCP);
    static const struct {
        const char *flags;
        fathom_transport transport;
    } transports[] = {{"", FATHOM_TRANSPORT_UCX_IF_FOUND},
                      {"--kv-transport tcp ", FATHOM_TRANSPORT_TCP},
                      {"--kv-transport ucx ", FATHOM_TRANSPORT_UCX}};
    for (int i = 0; i < 3; i++) {
        char line[256];
        (void)snprintf(line, sizeof line,
                       "%s--kv-transfer-config {\"kv_role\":\"kv_both\","
                       "\"kv_connector_extra_config\":{\"backends\":[\"GDS\",\"UCX\"]}}",
                       transports[i].flags);
        parse(&r, COMMAND_SERVE, line);
        assert_int_equal(r.err, FATHOM_OK);
        assert_int_equal(r.s.transfer.options.transport, transports[i].transport);
    }
    assert_refused(&r,
                   "--kv-transfer-config {\"kv_role\":\"kv_both\","
                   "\"kv_connector_extra_config\":{\"backends\":\"UCX\"}}",
                   "list of names");
    parse(&r, COMMAND_SERVE, "-tp 2 --enable-expert-parallel");
    assert_true(r.s.enable_expert_parallel);
    assert_refused(&r, "-pp 2 -dp 2 --enable-expert-parallel", "leave --data-parallel-size out");
    assert_refused(&r, "-pp 2 --layout auto --ranks 2", "leave --layout and --ranks out");
    assert_refused(&r, "-pp 2 --concurrency 8", "leave the load that layouts are compared for out");
    assert_refused(&r, "-pp 2 -tp 2 --rank-slice 1", "leave --rank-slice out");
    assert_refused(&r, "-pp 9", "--pipeline-parallel-size 9 is out of range, needed is 1 to 8");
    assert_refused(&r, "-dp 3 --enable-expert-parallel -n 2",
                   "--nnodes 2 does not divide --data-parallel-size 3");
    parse(&r, COMMAND_SERVE, "-dp 4 -dpl 2 --enable-expert-parallel -n 2");
    assert_refused(&r, "-pp 3 -n 2", "--nnodes 2 does not divide --pipeline-parallel-size 3");
    parse(&r, COMMAND_SERVE, "-pp 3 -tp 2");
    assert_int_equal(r.s.pipeline_parallel_size, 3);
    forget(&r);
}

/* Hosts as vLLM's lines of one process for each rank, or for each host, name them. */
static void data_parallel_ranks_name_hosts(void **state)
{
    static const struct {
        const char *flags;
        int nnodes, node_rank;
        bool all_serve, headless;
    } lines[] = {
        {"-dp 4 -dpl 2", 2, 0, false, false},
        {"-dp 4 -dpl 2 -dpr 2 --headless", 2, 1, false, true},
        {"-dp 4 -dpl 2 -dph", 2, 0, true, false},
        {"-dp 4 -dpl 2 -dpr 0 -dph", 2, 0, true, false},
        {"-dp 4 -dpl 2 -dpr 2 -dph", 2, 1, true, false},
        {"-dp 4 -dpl 2 -dpr 2", 2, 1, true, false}, /* as vLLM infers */
        {"-dp 4 -dpn 0", 4, 0, true, false},
        {"-dp 4 -dpn 3 -dpe", 4, 3, true, false},
        {"-dp 4 -n 2 -r 1 -dph", 2, 1, true, false},
        {"-dp 4 -n 4 -r 1 -dpe", 4, 1, true, false},
        {"-dp 4 -dpl 4 -dpr 0 -dph", 1, 0, false, false},
        {"-dp 4 -dph", 1, 0, false, false},
    };
    struct result r = {0};
    char line[160];
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)snprintf(line, sizeof line, "-ep %s -dpa 10.0.0.1 -dpp 700", lines[i].flags);
        parse(&r, COMMAND_SERVE, line);
        assert_int_equal(r.err, FATHOM_OK);
        assert_int_equal(r.s.nnodes, lines[i].nnodes);
        assert_int_equal(r.s.node_rank, lines[i].node_rank);
        assert_int_equal(r.s.all_serve, lines[i].all_serve);
        assert_int_equal(r.s.headless, lines[i].headless);
        assert_string_equal(r.s.master_addr, lines[i].nnodes > 1 ? "10.0.0.1" : "127.0.0.1");
        assert_int_equal(r.s.master_port, lines[i].nnodes > 1 ? 700 : 29501);
    }
    parse(&r, COMMAND_SERVE, "-ep -dp 4 -dpl 2 -dpa 10.0.0.1 --master-addr 10.0.0.2 -dpp 700");
    assert_string_equal(r.s.master_addr, "10.0.0.2");
    assert_int_equal(r.s.master_port, 700);
    assert_noted(&r, "-ep -dp 4 -dph", "no effect: this host has all ranks");
    assert_noted(&r, "-ep -dp 4 -dpn 2 --api-key k --access-log -",
                 "--api-key, --access-log: what host 0 was given holds");
    parse(&r, COMMAND_SERVE, "-ep -dp 4 -dpn 0 --api-key k --access-log -");
    assert_null(strstr(buf_str(&r.notes), "host 0"));
    assert_refused(&r, "-ep -dp 4 -dpl 2 -dpr 1", "needed is the first rank of a host");
    assert_refused(&r, "-ep -dp 4 -dpn 4", "needed is the first rank of a host");
    assert_refused(&r, "-ep -dp 4 -dpn 2 -dpr 0", "leave one out");
    assert_refused(&r, "-ep -dp 4 -dpl 2 -dpr 2 -r 0", "is of host 1, and --node-rank is 0");
    assert_refused(&r, "-ep -dp 4 -n 2 -r 1 -dpe", "give --data-parallel-hybrid-lb");
    assert_refused(&r, "-ep -dp 4 -dpl 2 -dph --headless -r 1", "every host serves");
    assert_refused(&r, "-ep -dp 4 -dpl 2 -dpr 2 -dph --uds /tmp/a", "--uds: with");
    assert_refused(&r, "-tp 4 -n 2 -r 1 -dph", "needed are ranks of --data-parallel-size");
    assert_refused(&r, "-ep -dp 4 -dpl 2 -n 4", "each of 4 hosts has as many");
    forget(&r);
}

/* Flags of published deployment commands: each must be known, so that it gets a true answer. */
static void every_flag_of_the_deployment_guides_is_known(void **state)
{
    (void)state;
    static const char *const flags[] = {
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--data-parallel-rank",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--enable-expert-parallel",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--gpu-memory-utilization",
        "--block-size",
        "--quantization",
        "--kv-cache-dtype",
        "--trust-remote-code",
        "--tokenizer-mode",
        "--tool-call-parser",
        "--enable-auto-tool-choice",
        "--reasoning-parser",
        "--speculative-config",
        "--kv-transfer-config",
        "--compilation-config",
        "--additional-config",
        "--enforce-eager",
        "--async-scheduling",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
        "--served-model-name",
        "--seed",
        "--host",
        "--port",
        "--model",
        "--disable-log-requests",
        "--eplb-window-size",
        "--num-redundant-experts",
        "--tokenizer-pool-type",
        "--mm-processor-cache-type",
    };
    struct result r = {0};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        parse(&r, COMMAND_SERVE, flags[i]);
        if (strstr(r.d.text, "unknown option")) fail_msg("%s is unknown", flags[i]);
    }
    forget(&r);
}

static void help_stops_the_checks_and_shows_every_option(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, COMMAND_SERVE, "--help --nonsense");
    assert_int_equal(r.err, FATHOM_OK);
    assert_true(r.s.help);
    struct buf b = {0};
    assert_int_equal(options_write_help(&b, COMMAND_SERVE, NULL, NULL), FATHOM_OK);
    for (size_t i = 0; i < option_table_n; i++) {
        char spelling[80];
        (void)snprintf(spelling, sizeof spelling, "--%s", option_table[i].name);
        if (option_table[i].commands & 1u << COMMAND_SERVE) assert_says(buf_str(&b), spelling);
    }
    for (const char *line = buf_str(&b), *end; (end = strchr(line, '\n')); line = end + 1) {
        assert_in_range(end - line, 0, 100);
    }
    buf_clear(&b);
    assert_int_equal(options_write_help(&b, COMMAND_COUNT, NULL, NULL), FATHOM_OK);
    assert_says(buf_str(&b), "fathom serve");
    buf_free(&b);
    forget(&r);
}

static void the_table_is_sound(void **state)
{
    (void)state;
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (o->commands == 0 || !o->help) fail_msg("--%s: no command or no help", o->name);
        if (strlen(o->name) >= 60) fail_msg("--%s is too long", o->name);
        if ((o->kind == OPTION_FLAG) != (o->argument == NULL)) fail_msg("--%s", o->name);
        if (o->kind == OPTION_CHOICE && !o->choices) fail_msg("--%s has no choices", o->name);
        if (o->choices && o->kind != OPTION_CHOICE && o->kind != OPTION_COUNT) {
            fail_msg("--%s has choices", o->name);
        }
        if (o->answer != ANSWER_USE && !o->reason) fail_msg("--%s has no reason", o->name);
        if (o->answer == ANSWER_USE && o->field == NO_FIELD) fail_msg("--%s is lost", o->name);
        for (size_t k = 0; k < i; k++) {
            const struct option *other = &option_table[k];
            if (!(o->commands & other->commands)) continue;
            assert_string_not_equal(o->name, other->name);
            if (o->alias && other->alias) assert_string_not_equal(o->alias, other->alias);
        }
    }
}

static void assert_current(const struct buf *b, const char *path, const char *command)
{
    struct file_map map;
    fathom_diag d = {{0}};
    if (file_map_open(&map, path, &d)) fail_msg("%s", d.text);
    if (map.size != b->len || memcmp(map.data, buf_str(b), b->len) != 0) {
        fail_msg("%s is not current: build/release/%s > %s", path, command, path);
    }
    file_map_close(&map);
}

static void the_pages_in_docs_are_current(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(options_write_markdown(&b), FATHOM_OK);
    assert_current(&b, FATHOM_SOURCE_DIR "/docs/cli.md", "fathom help --markdown");
    buf_clear(&b);
    assert_int_equal(options_write_flags(&b), FATHOM_OK);
    assert_current(&b, FATHOM_SOURCE_DIR "/docs/flags.md", "fathom help --flags");
    buf_free(&b);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    char words[3][24] = {"--trust-remote-code", "--enforce-eager", "--async-scheduling"};
    char *argv[] = {words[0], words[1], words[2]};
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct settings s;
        struct buf notes = {0};
        fathom_diag d = {{0}};
        mem_fail_after(n);
        const struct option_input in = {3, argv, NULL, 0, NULL};
        fathom_err err = options_parse(&s, COMMAND_SERVE, &in, &notes, &d);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&notes);
        settings_free(&s);
    }
    hit = true;
    for (long n = 0; hit; n++) {
        struct buf out = {0};
        mem_fail_after(n);
        fathom_err err = options_write_markdown(&out);
        fathom_err flags = err ? err : options_write_flags(&out);
        fathom_err help = flags ? flags : options_write_help(&out, COMMAND_SERVE, NULL, NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(help, hit ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_given_means_the_defaults),
        cmocka_unit_test(every_form_of_an_option_is_read),
        cmocka_unit_test(a_list_takes_values_up_to_the_next_option),
        cmocka_unit_test(a_list_is_bounded),
        cmocka_unit_test(one_name_may_mean_something_else_to_another_command),
        cmocka_unit_test(a_variable_means_what_it_means_to_the_server),
        cmocka_unit_test(commands_have_one_word_or_two),
        cmocka_unit_test(unknown_options_name_the_nearest),
        cmocka_unit_test(spellings_of_other_servers_name_what_there_is),
        cmocka_unit_test(plan_and_doctor_take_a_command_line_of_serve),
        cmocka_unit_test(bad_values_are_answered_with_what_is_needed),
        cmocka_unit_test(speculation_is_read_at_once),
        cmocka_unit_test(a_beginning_that_fits_one_name_stands_for_it),
        cmocka_unit_test(one_key_of_an_object_may_be_set),
        cmocka_unit_test(what_is_recorded_may_be_said_in_all_of_vllms_ways),
        cmocka_unit_test(all_refusals_are_told_at_once),
        cmocka_unit_test(help_may_be_about_a_group_or_a_name),
        cmocka_unit_test(pages_of_the_cache_are_tokens),
        cmocka_unit_test(foreign_flags_are_noted_or_refused_never_ignored),
        cmocka_unit_test(data_parallel_ranks_name_hosts),
        cmocka_unit_test(every_flag_of_the_deployment_guides_is_known),
        cmocka_unit_test(help_stops_the_checks_and_shows_every_option),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(the_pages_in_docs_are_current),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

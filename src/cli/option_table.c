/* option_table.c - every command and every option, in the order in which help prints them */
#include <stddef.h>

#include "base/assert.h"
#include "cli/options.h"

#define FIELD(name) ((int)offsetof(struct settings, name))
#define ON(command) (1u << COMMAND_##command)

enum {
    SERVE = ON(SERVE),
    ENGINE = ON(SERVE) | ON(RUN) | ON(BENCH),     /* commands that start an engine */
    PLANNED = ENGINE | ON(PLAN),                  /* commands that size one */
    MODEL = PLANNED | ON(INSPECT) | ON(TOKENIZE), /* commands that have a model */
    ALL = MODEL | ON(HELP) | ON(VERSION),
};

static const struct command_info commands[COMMAND_COUNT] = {
    [COMMAND_SERVE] = {"serve", "[MODEL] [options]", "serve a model over HTTP", true, NULL},
    [COMMAND_RUN] = {"run", "[MODEL] [options]", "chat in the terminal, or answer one prompt", true,
                     NULL},
    [COMMAND_INSPECT] = {"inspect", "[MODEL] [options]", "say what a checkpoint is and holds", true,
                         NULL},
    [COMMAND_TOKENIZE] = {"tokenize", "[MODEL] [options]", "text to token ids, or ids to text",
                          true, NULL},
    [COMMAND_PLAN] = {"plan", "[MODEL] [options]", "say where every byte goes, before loading",
                      true, NULL},
    [COMMAND_BENCH] = {"bench", "latency [MODEL] [options]",
                       "time one batch: prefill, steps, tokens per second", true, "latency"},
    [COMMAND_HELP] = {"help", "[COMMAND]", "print this, or the options of a command", false, NULL},
    [COMMAND_VERSION] = {"version", "", "print the version", false, NULL},
};

/* A row that works, that is accepted without effect, that is refused. */
#define USE .answer = ANSWER_USE
#define NOTE(plain_value, why) .answer = ANSWER_NOTE, .plain = (plain_value), .reason = (why)
#define REFUSE(plain_value, why) .answer = ANSWER_REFUSE, .plain = (plain_value), .reason = (why)
#define FOREIGN .group = GROUP_FOREIGN, .commands = SERVE, .field = NO_FIELD
#define PARALLEL .group = GROUP_PARALLEL, .commands = SERVE, .field = NO_FIELD
#define ANY_COUNT .kind = OPTION_COUNT, .lo = 0, .hi = 1e15

#define ONE_RANK "this build runs one rank: leave the flag out or give 1"

const struct option option_table[] = {
    /* ---- model ---- */
    {"model", NULL, "MODEL", "pilot",
     "directory in Hugging Face form, org/name from the Hugging Face cache, or pilot, the model "
     "linked into the program; may also be the first plain argument",
     .kind = OPTION_TEXT, .group = GROUP_MODEL, .commands = MODEL, .field = FIELD(model), USE},
    {"backend", NULL, "NAME", "auto",
     "what computes: cuda, cpu (vectors and threads), ref (scalar float32, slow, the meaning of "
     "every operator); auto takes the fastest there is",
     .kind = OPTION_CHOICE, .choices = "auto|ref|cpu|cuda", .group = GROUP_MODEL,
     .commands = PLANNED, .field = FIELD(backend), USE},
    {"threads", NULL, "N", "0", "worker threads of the CPU; 0: all processors",
     .kind = OPTION_COUNT, .hi = 256, .group = GROUP_MODEL, .commands = PLANNED,
     .field = FIELD(threads), USE},
    {"dtype", NULL, "TYPE", "auto",
     "what activations are rounded to between operators; auto: the checkpoint's type",
     .kind = OPTION_CHOICE, .choices = "auto|float32|float|bfloat16", .refused = "half|float16",
     .reason = "the activations of this family overflow float16; use bfloat16 or float32",
     .group = GROUP_MODEL, .commands = PLANNED, .field = FIELD(dtype), USE},
    {"quantization", "-q", "METHOD", NULL,
     "fp8 for a checkpoint that is FP8 already, which it says and goes on; weights are always "
     "taken as the checkpoint stores them",
     .kind = OPTION_CHOICE, .choices = "fp8|deepseek_v3",
     .refused = "awq|awq_marlin|gptq|gptq_marlin|ascend|compressed-tensors|bitsandbytes|modelopt",
     .reason = "weights are FP8 blocks, BF16, F16 or F32, as the checkpoint stores them",
     .group = GROUP_MODEL, .commands = PLANNED, .field = FIELD(quantization), USE},
    {"seed", NULL, "N", "-1",
     "seed of requests that bring none; -1: drawn from the system at start", .kind = OPTION_COUNT,
     .lo = -1, .hi = 9e15, .group = GROUP_MODEL, .commands = ENGINE, .field = FIELD(seed), USE},
    {"log-level", NULL, "LEVEL", "info", "what the log says", .kind = OPTION_CHOICE,
     .choices = "error|warn|info|debug", .group = GROUP_MODEL, .commands = MODEL,
     .field = FIELD(log_level), USE},

    /* ---- memory and scheduling ---- */
    {"max-model-len", NULL, "N", "0", "tokens of prompt and output together; 0: the checkpoint's",
     .kind = OPTION_COUNT, .lo = -1, .hi = 1 << 24, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(max_model_len), USE},
    {"max-num-seqs", NULL, "N", "0", "requests that run at once; 0: 64", .kind = OPTION_COUNT,
     .hi = 65536, .group = GROUP_MEMORY, .commands = PLANNED, .field = FIELD(max_num_seqs), USE},
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
     .kind = OPTION_CHOICE, .choices = "fcfs|priority", .group = GROUP_MEMORY, .commands = SERVE,
     .field = FIELD(scheduling_policy), USE},
    {"kv-cache-dtype", NULL, "TYPE", "auto",
     "what the cache holds; auto: bfloat16; fp8: 656 bytes a token and layer, scaled by powers "
     "of two",
     .kind = OPTION_CHOICE, .choices = "auto|float32|bfloat16|fp8|fp8_ds_mla|fp8_e4m3",
     .refused = "fp8_e5m2|fp8_inc|nvfp4",
     .reason = "the cache holds float32, bfloat16 or fp8 (e4m3)", .group = GROUP_MEMORY,
     .commands = PLANNED, .field = FIELD(kv_cache_dtype), USE},
    {"gpu-memory-utilization", NULL, "SHARE", "0.9",
     "share of the device's free memory for weights and cache; on a CPU, of the machine's",
     .kind = OPTION_NUMBER, .lo = 0.01, .hi = 1, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(gpu_memory_utilization), USE},
    {"kv-cache-memory-bytes", NULL, "BYTES", "0",
     "size of the cache; 0: max-num-seqs requests of max-model-len, within the share above",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(kv_cache_memory_bytes), USE},
    {"block-size", NULL, "N", "64", "tokens of a cache page", ANY_COUNT, .group = GROUP_MEMORY,
     .commands = SERVE, .field = NO_FIELD, NOTE("64", "pages always hold 64 tokens")},
    {"enable-prefix-caching", NULL, NULL, "true",
     "keep the pages of prompts and answers and do not compute them again for a request that "
     "begins the same; outputs are the same bits either way",
     .kind = OPTION_FLAG, .group = GROUP_MEMORY, .commands = SERVE,
     .field = FIELD(enable_prefix_caching), USE},
    {"speculative-config", NULL, "JSON", NULL,
     "{\"method\": \"deepseek_mtp\", \"num_speculative_tokens\": N}: each step also computes up to "
     "N "
     "tokens (1 to 4) that the MTP layer guesses and keeps those that are right; outputs are the "
     "same bits either way",
     .kind = OPTION_TEXT, .group = GROUP_MEMORY, .commands = PLANNED,
     .field = FIELD(speculative_config), USE},
    {"enable-chunked-prefill", NULL, NULL, NULL, "run long prompts in chunks", .kind = OPTION_FLAG,
     .group = GROUP_MEMORY, .commands = SERVE, .field = NO_FIELD,
     NOTE("true", "long prompts always run in chunks of at most max-num-batched-tokens")},

    /* ---- server ---- */
    {"host", NULL, "ADDRESS", "127.0.0.1", "address to listen on; 0.0.0.0: all of IPv4",
     .kind = OPTION_TEXT, .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(host), USE},
    {"port", NULL, "N", "8000", "port to listen on; 0: any free one, which is printed",
     .kind = OPTION_COUNT, .hi = 65535, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(port), USE},
    {"served-model-name", NULL, "NAME...", NULL,
     "names that requests may give, the first one shown; default: MODEL as given",
     .kind = OPTION_LIST, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(served_model_name), USE},
    {"api-key", NULL, "KEY...", NULL,
     "keys that a request must bring as a bearer token; default: $FATHOM_API_KEY, then "
     "$VLLM_API_KEY, else none",
     .kind = OPTION_LIST, .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(api_key), USE},

    {"ssl-certfile", NULL, "FILE", NULL, "TLS certificate, PEM; without it: plain HTTP",
     .kind = OPTION_TEXT, .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(ssl_certfile),
     USE},
    {"ssl-keyfile", NULL, "FILE", NULL, "its key, PEM", .kind = OPTION_TEXT, .group = GROUP_SERVER,
     .commands = SERVE, .field = FIELD(ssl_keyfile), USE},
    {"cors-origin", NULL, "ORIGIN", "*",
     "Access-Control-Allow-Origin of answers; empty: no such header", .kind = OPTION_TEXT,
     .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(cors_origin), USE},
    {"max-connections", NULL, "N", "4096", "connections at once; a request on one more gets 503",
     .kind = OPTION_COUNT, .lo = 1, .hi = 1 << 20, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(max_connections), USE},
    {"drain-timeout", "--shutdown-timeout", "SECONDS", "30",
     "how long running requests may go on after SIGINT or SIGTERM; a second signal ends them",
     .kind = OPTION_NUMBER, .hi = 86400, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(drain_timeout), USE},
    {"stall-timeout", NULL, "SECONDS", "0",
     "how long the engine may make no progress, within a step or between two, before /health and "
     "/ready say 503; 0: 4, and 600 for the backend ref, which tells nothing of a step before its "
     "end",
     .kind = OPTION_NUMBER, .hi = 86400, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(stall_timeout), USE},
    {"enable-log-requests", NULL, NULL, "true", "a log line for each request", .kind = OPTION_FLAG,
     .group = GROUP_SERVER, .commands = SERVE, .field = FIELD(enable_log_requests), USE},
    {"disable-log-requests", NULL, NULL, NULL, "the same as --no-enable-log-requests",
     .kind = OPTION_FLAG, .group = GROUP_SERVER, .commands = SERVE,
     .field = FIELD(disable_log_requests), USE},

    /* ---- chat ---- */
    {"tokenizer-mode", NULL, "MODE", "auto", "encoding of chats; auto: the checkpoint's",
     .kind = OPTION_CHOICE, .choices = "auto|deepseek_v32", .refused = "slow|hf|mistral|custom",
     .reason = "there is one tokenizer, driven by tokenizer.json; use auto", .group = GROUP_CHAT,
     .commands = ENGINE, .field = FIELD(tokenizer_mode), USE},
    {"tool-call-parser", NULL, "NAME", "auto",
     "markup of tool calls; auto: the checkpoint's; none: it stays in the content",
     .kind = OPTION_CHOICE, .choices = "auto|deepseek_v3|deepseek_v31|deepseek_v32|none",
     .refused = "hermes|llama3_json|mistral|openai|pythonic|qwen3_xml|glm45|kimi_k2",
     .reason = "it parses the markup of another family", .group = GROUP_CHAT, .commands = ENGINE,
     .field = FIELD(tool_call_parser), USE},
    {"reasoning-parser", NULL, "NAME", "auto",
     "separates reasoning from content; auto: as the checkpoint writes it; none: it stays in the "
     "content",
     .kind = OPTION_CHOICE, .choices = "auto|deepseek_r1|deepseek_v3|none",
     .refused = "qwen3|glm45|granite|mistral|openai_gptoss|kimi_k2",
     .reason = "it parses the markup of another family", .group = GROUP_CHAT, .commands = ENGINE,
     .field = FIELD(reasoning_parser), USE},
    {"enable-auto-tool-choice", NULL, NULL, NULL,
     "always on: a request with tools has its calls parsed", .kind = OPTION_FLAG,
     .group = GROUP_CHAT, .commands = SERVE, .field = FIELD(enable_auto_tool_choice), USE},

    {"thinking", NULL, NULL, NULL,
     "let the model reason before it answers, where a chat does not say", .kind = OPTION_FLAG,
     .group = GROUP_CHAT, .commands = ENGINE, .field = FIELD(thinking), USE},
    {"generation-config", NULL, "NAME", "auto",
     "sampling of requests that do not say; auto: the checkpoint's generation_config.json; vllm: "
     "temperature 1 and nothing cut off",
     .kind = OPTION_CHOICE, .choices = "auto|vllm", .group = GROUP_CHAT, .commands = SERVE,
     .field = FIELD(generation_config), USE},

    /* ---- of one command ---- */
    {"prompt", "-p", "TEXT", NULL, "answer this and end; - reads it from standard input",
     .kind = OPTION_TEXT, .group = GROUP_COMMAND, .commands = ON(RUN), .field = FIELD(prompt), USE},
    {"system", NULL, "TEXT", NULL, "system message", .kind = OPTION_TEXT, .group = GROUP_COMMAND,
     .commands = ON(RUN), .field = FIELD(system), USE},
    {"temperature", NULL, "X", "-1", "0: greedy; -1: the checkpoint's", .kind = OPTION_NUMBER,
     .lo = -1, .hi = 100, .group = GROUP_COMMAND, .commands = ON(RUN), .field = FIELD(temperature),
     USE},
    {"top-p", NULL, "X", "-1", "share of probability kept; -1: the checkpoint's",
     .kind = OPTION_NUMBER, .lo = -1, .hi = 1, .group = GROUP_COMMAND, .commands = ON(RUN),
     .field = FIELD(top_p), USE},
    {"max-tokens", NULL, "N", "0", "tokens of an answer; 0: up to the context",
     .kind = OPTION_COUNT, .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(RUN),
     .field = FIELD(max_tokens), USE},
    {"text", NULL, "TEXT", NULL, "what to convert; default: standard input", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(TOKENIZE), .field = FIELD(text), USE},
    {"decode", NULL, NULL, NULL, "the input is ids, the output is text", .kind = OPTION_FLAG,
     .group = GROUP_COMMAND, .commands = ON(TOKENIZE), .field = FIELD(decode), USE},
    {"tensors", NULL, NULL, NULL, "list every tensor", .kind = OPTION_FLAG, .group = GROUP_COMMAND,
     .commands = ON(INSPECT), .field = FIELD(tensors), USE},
    {"memory", NULL, "BYTES", "0", "plan for a device with this much; 0: this machine",
     .kind = OPTION_COUNT, .hi = 1e15, .group = GROUP_COMMAND, .commands = ON(PLAN),
     .field = FIELD(memory_bytes), USE},
    {"batch-size", NULL, "N", "8", "requests that run side by side", .kind = OPTION_COUNT, .lo = 1,
     .hi = 65536, .group = GROUP_COMMAND, .commands = ON(BENCH), .field = FIELD(batch_size), USE},
    {"input-len", NULL, "N", "32", "tokens of each prompt, random ids", .kind = OPTION_COUNT,
     .lo = 1, .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(BENCH),
     .field = FIELD(input_len), USE},
    {"output-len", NULL, "N", "128", "tokens of each answer", .kind = OPTION_COUNT, .lo = 1,
     .hi = 1 << 24, .group = GROUP_COMMAND, .commands = ON(BENCH), .field = FIELD(output_len), USE},
    {"num-iters-warmup", NULL, "N", "3", "runs that are not counted", .kind = OPTION_COUNT,
     .hi = 1000, .group = GROUP_COMMAND, .commands = ON(BENCH), .field = FIELD(num_iters_warmup),
     USE},
    {"num-iters", NULL, "N", "10", "runs that are", .kind = OPTION_COUNT, .lo = 1, .hi = 1000,
     .group = GROUP_COMMAND, .commands = ON(BENCH), .field = FIELD(num_iters), USE},
    {"output-json", NULL, "FILE", NULL, "write the figures there too", .kind = OPTION_TEXT,
     .group = GROUP_COMMAND, .commands = ON(BENCH), .field = FIELD(output_json), USE},
    {"markdown", NULL, NULL, NULL, "print docs/cli.md", .kind = OPTION_FLAG, .group = GROUP_COMMAND,
     .commands = ON(HELP), .field = FIELD(markdown), USE},
    {"help", "-h", NULL, NULL, "print the options of the command", .kind = OPTION_FLAG,
     .group = GROUP_COMMAND, .commands = ALL, .field = FIELD(help), USE},

    /* ---- more than one device ---- */
    {"tensor-parallel-size", "-tp", "N", "1", "ranks that share every layer", ANY_COUNT, PARALLEL,
     REFUSE("1", ONE_RANK)},
    {"pipeline-parallel-size", "-pp", "N", "1", "ranks that share the list of layers", ANY_COUNT,
     PARALLEL, REFUSE("1", ONE_RANK)},
    {"data-parallel-size", "-dp", "N", "1", "ranks that share the requests", ANY_COUNT, PARALLEL,
     REFUSE("1", ONE_RANK)},
    {"data-parallel-size-local", "-dpl", "N", "1", "of these, ranks on this host", ANY_COUNT,
     PARALLEL, REFUSE("1", ONE_RANK)},
    {"data-parallel-rank", "-dpn", "N", "0", "number of this rank", ANY_COUNT, PARALLEL,
     REFUSE("0", "this build runs one rank: leave the flag out")},
    {"data-parallel-address", "-dpa", "HOST", NULL, "host of rank 0", .kind = OPTION_TEXT, PARALLEL,
     REFUSE(NULL, "this build runs one rank: leave the flag out")},
    {"data-parallel-rpc-port", "-dpp", "N", NULL, "port of rank 0", ANY_COUNT, PARALLEL,
     REFUSE(NULL, "this build runs one rank: leave the flag out")},
    {"enable-expert-parallel", NULL, NULL, NULL, "spread whole experts over ranks",
     .kind = OPTION_FLAG, PARALLEL,
     REFUSE("false", "this build runs one rank, which holds every expert: leave the flag out")},
    {"distributed-executor-backend", NULL, "NAME", "mp", "how ranks are started",
     .kind = OPTION_TEXT, PARALLEL,
     REFUSE("mp|uni", "ranks are threads of this process; leave the flag out or give mp")},
    {"kv-transfer-config", NULL, "JSON", NULL, "prefill and decode on different machines",
     .kind = OPTION_TEXT, PARALLEL,
     REFUSE(NULL, "this build does not transfer cache pages between machines: leave it out")},

    /* ---- flags of vLLM ---- */
    {"trust-remote-code", NULL, NULL, NULL, "run Python of the checkpoint", .kind = OPTION_FLAG,
     FOREIGN, NOTE("false", "no code of a checkpoint is ever run")},
    {"enforce-eager", NULL, NULL, NULL, "no recorded graphs", .kind = OPTION_FLAG, FOREIGN,
     NOTE("false", "there is nothing to warm up and nothing compiled at run time")},
    {"compilation-config", "-cc", "JSON", NULL, "what is compiled and captured at start",
     .kind = OPTION_TEXT, FOREIGN, NOTE(NULL, "kernels are compiled ahead of time")},
    {"additional-config", NULL, "JSON", NULL, "settings of a platform plug-in", .kind = OPTION_TEXT,
     FOREIGN, NOTE(NULL, "it configures a plug-in that fathom does not have")},
    {"async-scheduling", NULL, NULL, NULL, "plan the next step while the device runs",
     .kind = OPTION_FLAG, FOREIGN, NOTE(NULL, "the engine decides when steps overlap")},
    {"num-gpu-blocks-override", NULL, "N", NULL, "pages of the cache", ANY_COUNT, FOREIGN,
     REFUSE(NULL, "use --kv-cache-memory-bytes")},
    {"swap-space", NULL, "GIB", "0", "host memory for preempted requests", .kind = OPTION_NUMBER,
     .hi = 1e9, FOREIGN,
     NOTE("0", "a preempted request is computed again from its prompt; nothing is swapped")},
    {"cpu-offload-gb", NULL, "GIB", "0", "weights kept in host memory", .kind = OPTION_NUMBER,
     .hi = 1e9, FOREIGN, REFUSE("0", "weights are not split between device and host")},
    {"tokenizer", NULL, "PATH", NULL, "another tokenizer", .kind = OPTION_TEXT, FOREIGN,
     REFUSE(NULL, "the tokenizer is the checkpoint's tokenizer.json")},
    {"load-format", NULL, "NAME", "auto", "format of the weights", .kind = OPTION_TEXT, FOREIGN,
     REFUSE("auto|safetensors", "weights are read from safetensors")},
    {"revision", NULL, "NAME", NULL, "branch or commit of a hub model", .kind = OPTION_TEXT,
     FOREIGN, REFUSE(NULL, "give the directory of the snapshot as MODEL")},
    {"download-dir", NULL, "DIR", NULL, "where to download to", .kind = OPTION_TEXT, FOREIGN,
     REFUSE(NULL, "nothing is downloaded; give a directory as MODEL, or set HF_HOME")},
    {"override-generation-config", NULL, "JSON", NULL, "other sampling defaults",
     .kind = OPTION_TEXT, FOREIGN, REFUSE(NULL, "give the values in the request")},
    {"hf-overrides", NULL, "JSON", NULL, "other values of config.json", .kind = OPTION_TEXT,
     FOREIGN, REFUSE(NULL, "config.json is taken as it is; change the file")},
    {"chat-template", NULL, "FILE", NULL, "another chat template", .kind = OPTION_TEXT, FOREIGN,
     REFUSE(NULL, "chats are encoded as the checkpoint was trained; see --tokenizer-mode")},
    {"structured-outputs-config", NULL, "JSON", NULL, "grammar engine", .kind = OPTION_TEXT,
     FOREIGN, REFUSE(NULL, "outputs are not constrained by a grammar in this build")},
    {"allowed-origins", NULL, "JSON", "[\"*\"]", "origins that browsers may call from",
     .kind = OPTION_TEXT, FOREIGN, REFUSE("[\"*\"]", "use --cors-origin with one origin")},
    {"enable-lora", NULL, NULL, NULL, "low-rank adapters", .kind = OPTION_FLAG, FOREIGN,
     REFUSE("false", "adapters are not supported")},
    {"root-path", NULL, "PATH", NULL, "path prefix behind a proxy", .kind = OPTION_TEXT, FOREIGN,
     REFUSE(NULL, "let the proxy strip the prefix")},
    {"api-server-count", NULL, "N", "1", "processes that parse HTTP", ANY_COUNT, FOREIGN,
     NOTE("1", "one process serves HTTP with as many threads as it needs")},
    {"uvicorn-log-level", NULL, "LEVEL", NULL, "log level of another server", .kind = OPTION_TEXT,
     FOREIGN, NOTE(NULL, "use --log-level")},
    {"disable-log-stats", NULL, NULL, NULL, "no statistics in the log", .kind = OPTION_FLAG,
     FOREIGN, NOTE("true", "statistics are never logged")},
    {"disable-custom-all-reduce", NULL, NULL, NULL, "use NCCL between devices", .kind = OPTION_FLAG,
     FOREIGN, NOTE("false", "one rank has nothing to reduce")},
};

const size_t option_table_n = sizeof option_table / sizeof option_table[0];

const struct command_info *command_info(enum command c)
{
    ASSERT(c < COMMAND_COUNT);
    return &commands[c];
}

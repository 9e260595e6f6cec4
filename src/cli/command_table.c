/* command_table.c - every command, in the order in which help prints them */
#include "base/assert.h"
#include "cli/options.h"

static const struct command_info commands[COMMAND_COUNT] = {
    [COMMAND_SERVE] = {"serve", "[MODEL] [options]", "serve a model over HTTP", true, 0, 0},
    [COMMAND_RUN] = {"run", "[MODEL] [options]", "chat in the terminal, or answer one prompt", true,
                     0, 0},
    [COMMAND_RUN_BATCH] = {"run-batch", "-i FILE -o FILE [options]",
                           "answer the requests of a file of the batch API, a line each", true, 0,
                           0},
    [COMMAND_CHAT] = {"chat", "[options]",
                      "chat with a server of OpenAI's API, or ask it one thing", false, 0, 0},
    [COMMAND_COMPLETE] = {"complete", "[options]", "have such a server complete texts", false, 0,
                          0},
    [COMMAND_INSPECT] = {"inspect", "[MODEL] [options]", "say what a checkpoint is and holds", true,
                         0, 0},
    [COMMAND_TOKENIZE] = {"tokenize", "[MODEL] [options]", "text to token ids, or ids to text",
                          true, 0, 0},
    [COMMAND_PLAN] = {"plan", "[MODEL] [options]",
                      "say where every byte goes, before loading; takes any command line of serve",
                      true, 0, 0},
    [COMMAND_DOCTOR] = {"doctor", "[MODEL] [options]",
                        "look at the machine and the checkpoint; status 1: something will not "
                        "work, 3: could be better; takes any command line of serve",
                        true, 0, 0},
    [COMMAND_EVALUATE] = {"evaluate", "[MODEL] [options]",
                          "perplexity over texts; with --against the distance to another model",
                          true, 0, 0},
    [COMMAND_QUANTIZE] = {"quantize", "SOURCE OUT [options]",
                          "write a smaller checkpoint of a model: int4, int8 or FP8", true, 1, 1},
    [COMMAND_BENCH_LATENCY] = {"bench latency", "[MODEL] [options]",
                               "time one batch: prefill, steps, tokens per second", true, 0, 0},
    [COMMAND_BENCH_KERNELS] = {"bench kernels", "[MODEL] [options]",
                               "time every operator by itself beside the least it could take, "
                               "with made-up weights; CSV",
                               true, 0, 0},
    [COMMAND_BENCH_THROUGHPUT] = {"bench throughput", "[MODEL] [options]",
                                  "time many requests given to the engine at once", true, 0, 0},
    [COMMAND_BENCH_SERVE] = {"bench serve", "[options]",
                             "put a server of OpenAI's API under load and time it", false, 0, 0},
    [COMMAND_BENCH_SWEEP] = {"bench sweep", "[options]",
                             "the same over lists of concurrencies, rates and lengths", false, 0,
                             0},
    [COMMAND_BENCH_TRANSFER] = {"bench transfer", "[options]",
                                "time page records that go from server to server", false, 0, 0},
    [COMMAND_BENCH_ROUTER] = {"bench router", "[options]",
                              "time what a router adds to requests and tokens", false, 0, 0},
    [COMMAND_BENCH_REPORT] = {"bench report", "FILE... [options]",
                              "one page of charts and tables from results", false, 1,
                              STRING_LIST_MAX},
    [COMMAND_ROUTER] = {"router", "URL... [options]",
                        "one address for many servers: the one that has most of the prompt, "
                        "retries, and streams that go on when their server is lost",
                        false, 0, STRING_LIST_MAX},
    [COMMAND_PULL] = {"pull", "ORG/NAME [options]",
                      "bring a checkpoint of a model hub into the cache, where org/name is found",
                      false, 1, 1},
    [COMMAND_HEALTH] = {"health", "[URL] [options]",
                        "status 0 when the server there is ready, else 1; without URL that of "
                        "this machine, port $FATHOM_PORT or 8000",
                        false, 0, 1},
    [COMMAND_HELP] = {"help", "[COMMAND]", "print this, or the options of a command", false, 0,
                      STRING_LIST_MAX},
    [COMMAND_VERSION] = {"version", "", "print the version", false, 0, 0},
};

const struct command_info *command_info(enum command c)
{
    ASSERT(c < COMMAND_COUNT);
    return &commands[c];
}

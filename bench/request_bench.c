/* bench_request [CASE] - what reading the body of a request costs: JSON, checks, release
 *
 * First bodies as clients send them, then the dearest ones that there are for each size limit. One
 * line a case,
 *
 *   bench=request case=.. body_bytes=.. status=.. ms=..
 *
 * processor time of this thread, the best of some runs; status as the client would get it, 200 when
 * the body is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/limits.h"
#include "server/api/api_request.h"

enum { RUN_NS = 300000000, RUNS_MIN = 3, RUNS_MAX = 2000, SMALL = 6 << 10, N_ID = 128 << 10 };

struct bench_case {
    const char *name;
    enum api_kind api;
    const char *begin;
    const char *unit; /* repeated, with %u for its number */
    const char *end;
    size_t bytes; /* of the body, if n_unit is 0 */
    unsigned n_unit;
    unsigned base; /* first number */
};

#define USER                                                                                       \
    "{\"role\":\"user\",\"content\":\"Question %u of a chat that is neither long nor short, "      \
    "and asks what there is to be asked about the weather in the mountains.\\n\"},"
#define TOOL                                                                                       \
    "{\"type\":\"function\",\"function\":{\"name\":\"tool_%u\",\"description\":\"The weather "     \
    "at a place, now or up to ten days ahead of now, with its wind\",\"parameters\":{\"type\""     \
    ":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"The place\"},"    \
    "\"days\":{\"type\":\"integer\",\"description\":\"How many days ahead\"}},\"required\":["      \
    "\"city\"]}}},"

static const struct bench_case cases[] = {
    {"chat", API_CHAT, "{\"messages\":[", USER, "{\"role\":\"user\",\"content\":\"x\"}]}", SMALL, 0,
     0},
    {"long_chat", API_CHAT, "{\"messages\":[", USER, "{\"role\":\"user\",\"content\":\"x\"}]}",
     1 << 20, 0, 0},
    {"tools_300", API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[",
     TOOL, "{\"type\":\"function\",\"function\":{\"name\":\"t\"}}]}", 0, 300, 0},
    {"ids_128k", API_COMPLETION, "{\"prompt\":[", "%u,", "1]}", 0, N_ID, 100},
    {"detokenize_128k", API_DETOKENIZE, "{\"tokens\":[", "%u,", "1]}", 0, N_ID, 100},
    {"text_10m", API_COMPLETION, "{\"prompt\":\"",
     "A line %u of a long text for a long context.\\n", "\"}", 10 << 20, 0, 0},
    {"worst_members", API_COMPLETION, "{", "\"%x\":0,", "\"prompt\":1}", 64 << 20, 0, 0},
    {"worst_objects_of_members", API_COMPLETION, "{\"user\":[",
     "{\"%x\":\"012345678901234567890123456789"
     "01234567890123456789\"},",
     "1]}", 64 << 20, 0, 0},
    {"worst_empty_objects", API_COMPLETION, "{\"user\":[", "{},", "1]}", 64 << 20, 0, 0},
    {"worst_padded_objects", API_COMPLETION, "{\"user\":[", "{}                        ,", "1]}",
     64 << 20, 0, 0},
    {"worst_numbers", API_COMPLETION, "{\"user\":[", "1.5e-300,", "1]}", 64 << 20, 0, 0},
    {"worst_long_numbers", API_COMPLETION, "{\"user\":[",
     "0.000000000000000000000000000000000000000123456789012345678901234567890123456789e-250,",
     "1]}", 64 << 20, 0, 0},
    {"worst_big_integers", API_COMPLETION, "{\"user\":[", "123456789012345678901234567890%u,",
     "1]}", 64 << 20, 0, 0},
    {"worst_escapes", API_COMPLETION, "{\"user\":\"", "\\u00e9", "\"}", 64 << 20, 0, 0},
    {"worst_ids", API_COMPLETION, "{\"prompt\":[", "1,", "-1]}", 64 << 20, 0, 0},
    {"worst_messages", API_CHAT, "{\"messages\":[",
     "{\"role\":\"user\",\"content\":\"01234567890123456789"
     "0123456789\"},",
     "{}]}", 64 << 20, 0, 0},
    {"worst_parts", API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[",
     "{\"type\":\"text\",\"text\":\"012345678901234567890123456789\"},", "1]}]}", 64 << 20, 0, 0},
    {"worst_blocks", API_MESSAGES,
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[",
     "{\"type\":\"text\",\"text\":\"012345678901234567890123456789\"},", "1]}]}", 64 << 20, 0, 0},
    {"worst_items", API_RESPONSES, "{\"input\":[",
     "{\"role\":\"user\",\"content\":\"012345678901234567890123456789\"},", "1]}", 64 << 20, 0, 0},
    {"worst_calls", API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[",
     "{\"id\":\"%u\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{ }        "
     "           "
     "        \"}},",
     "1]}]}", 64 << 20, 0, 0},
    {"worst_schema", API_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"guided_json\":\"[", "{},", "1]\"}",
     64 << 20, 0, 0},
};

static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct buf make_body(const struct bench_case *c)
{
    struct buf b = {0};
    (void)buf_add_str(&b, c->begin);
    for (unsigned i = 0; c->n_unit ? i < c->n_unit : b.len + 128 < c->bytes; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)buf_printf(&b, c->unit, c->base + i);
#pragma GCC diagnostic pop
    }
    (void)buf_add_str(&b, c->end);
    ASSERT(buf_status(&b) == FATHOM_OK);
    return b;
}

static void run_case(const struct bench_case *c)
{
    struct buf b = make_body(c);
    const struct api_bounds bounds = {.n_vocab = 1u << 22};
    double best = 1e9, total = 0;
    int status = 0;
    char text[1024] = "";
    for (int i = 0; i < RUNS_MAX && (i < RUNS_MIN || total < RUN_NS * 1e-9); i++) {
        static struct api_request r;
        struct api_error e = {0};
        double start = cpu_s();
        fathom_err err = api_request_parse(&r, c->api, b.data, b.len, &bounds, &e);
        if (!err) api_request_drop_body(&r);
        api_request_free(&r);
        double s = cpu_s() - start;
        total += s;
        if (s < best) best = s;
        status = err ? e.status : 200;
        (void)snprintf(text, sizeof text, "%s", e.diag.text);
    }
    printf("bench=request case=%s body_bytes=%zu status=%d ms=%.3f %s\n", c->name, b.len, status,
           best * 1e3, text);
    (void)fflush(stdout);
    buf_free(&b);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (argc < 2 || strcmp(argv[1], cases[i].name) == 0) run_case(&cases[i]);
    }
    return 0;
}

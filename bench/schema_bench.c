/* schema_bench - schemas read from standard input, compiled, and tried with documents
 *
 *   bench_schema [--lenient] [--open]
 *
 * A line is {"schema": S, "texts": [document, ...], "walks": N}. Its answer is a line
 * {"us": T, "error": why} or {"us": T, "taken": [true, ...], "walks": [document, ...]}: the
 * time of the compilation, whether each document is a whole output, and N outputs drawn at random
 * under the masks (null: one that had no end after some thousand tokens). tools/schema_figures
 * asks, judges and prints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "support/grammar_data.h"
#include "support/tokenizer_data.h"

enum { FREE_TOKENS = 60, TOKENS_MAX = 8000 };

static json_t *take_texts(const struct grammar_data *g, struct grammar *grammar,
                          const json_t *texts)
{
    json_t *taken = json_array();
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        bool yes = matcher_takes(g, grammar, json_string_value(text), json_string_length(text));
        json_array_append_new(taken, json_boolean(yes));
    }
    return taken;
}

static json_t *draw_texts(const struct grammar_data *g, struct grammar *grammar, json_int_t n)
{
    json_t *walks = json_array();
    uint64_t rng = 20251123;
    for (json_int_t i = 0; i < n; i++) {
        struct buf text = {0};
        struct matcher *m = matcher_of(g, grammar);
        uint32_t n_token = 0, n_free = (uint32_t)rng_below(&rng, FREE_TOKENS);
        while (n_token < TOKENS_MAX && walk_step(g, m, &rng, n_token >= n_free, &text)) n_token++;
        json_array_append_new(
            walks, matcher_has_ended(m) ? json_stringn_nocheck(text.data, text.len) : json_null());
        matcher_destroy(m);
        buf_free(&text);
    }
    return walks;
}

static json_t *answer(const struct grammar_data *g, const json_t *line,
                      const struct grammar_options *options)
{
    struct grammar *grammar = NULL;
    fathom_diag d = {""};
    uint64_t start_ns = clock_now_ns();
    fathom_err err =
        grammar_from_schema(&grammar, g->v, json_object_get(line, "schema"), options, &d);
    json_t *out = json_pack("{s:I}", "us", (json_int_t)((clock_now_ns() - start_ns) / 1000));
    if (err) {
        json_object_set_new(out, "error", json_string(d.text[0] ? d.text : "out of memory"));
        return out;
    }
    json_int_t n_walk = json_integer_value(json_object_get(line, "walks"));
    json_object_set_new(out, "taken", take_texts(g, grammar, json_object_get(line, "texts")));
    json_object_set_new(out, "walks", draw_texts(g, grammar, n_walk));
    grammar_release(grammar);
    return out;
}

int main(int argc, char **argv)
{
    struct grammar_options options = {.space = GRAMMAR_SPACE_LINES};
    struct grammar_data g;
    char *text = NULL;
    size_t cap = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--lenient") == 0) options.lenient = true;
        if (strcmp(argv[i], "--open") == 0) options.open_objects = true;
    }
    grammar_data_open(&g, TOKENIZER_PILOT_JSON);
    for (ssize_t n; (n = getline(&text, &cap, stdin)) > 0;) {
        json_t *line = NULL;
        struct buf shown = {0};
        fathom_diag d = {""};
        json_t *out = json_read_strict(text, (size_t)n, "line", &line, &d)
                          ? json_pack("{s:i,s:s}", "us", 0, "error", d.text)
                          : answer(&g, line, &options);
        ASSERT(out && !json_write(&shown, out));
        printf("%s\n", buf_str(&shown));
        buf_free(&shown);
        json_decref(line);
        json_decref(out);
    }
    free(text);
    grammar_data_close(&g);
    return 0;
}

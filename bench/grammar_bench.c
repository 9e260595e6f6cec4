/* grammar_bench - what a mask, a token and a compilation cost, on one core, with the published V3
 * tokenizer of 128,000 tokens
 *
 *   bench_grammar [SCHEMA_FILE DOCUMENT_FILE]
 *
 * Each case is a grammar and an output that it allows. The output is tokenised, and the mask of
 * every position is made and timed: in a grammar just compiled (first) and again in the same
 * grammar (again), best of some runs each. Positions inside strings, numbers and keys are all in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "chat/answer_grammar.h"
#include "support/tokenizer_data.h"

enum { N_RUN = 7, POSITIONS_MAX = 1 << 14 };

enum kind { SCHEMA, OBJECT, REGEX, CALLS, REASONING, EBNF, TAG };

struct bench_case {
    const char *name;
    enum kind kind;
    const char *grammar; /* schema, pattern, tools, grammar or structural tag */
    const char *output;
};

static const char person[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": {\"type\": "
    "\"integer\", \"minimum\": 0, \"maximum\": 150}, \"email\": {\"type\": \"string\", \"format\": "
    "\"email\"}, \"tags\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": "
    "40}, \"maxItems\": 10}, \"address\": {\"type\": \"object\", \"properties\": {\"street\": "
    "{\"type\": \"string\"}, \"city\": {\"type\": \"string\"}, \"zip\": {\"type\": \"string\", "
    "\"pattern\": \"^[0-9]{5}$\"}}, \"required\": [\"street\", \"city\"]}, \"role\": {\"enum\": "
    "[\"admin\", \"editor\", \"reader\"]}, \"score\": {\"type\": \"number\", \"minimum\": 0, "
    "\"maximum\": 1}, \"active\": {\"type\": \"boolean\"}}, \"required\": [\"name\", \"age\", "
    "\"role\"]}";

static const char person_output[] =
    "{\"name\": \"Ada Lovelace, Countess of \\\"Lovelace\\\" 数学家\", \"age\": 36, \"email\": "
    "\"ada.lovelace@example.com\", \"tags\": [\"mathematics\", \"poetical science\"], \"address\": "
    "{\"street\": \"12 St James's Square\", \"city\": \"London\", \"zip\": \"12345\"}, \"role\": "
    "\"admin\", \"score\": 0.975, \"active\": true}";

static const char reasoning_output[] =
    "The user wants a person. Ada Lovelace comes to mind: if x < y, she would say so.\n</think>"
    "{\"name\": \"Ada\", \"age\": 36, \"role\": \"admin\"}";

static const char any_output[] =
    "{\n    \"glossary\": {\n        \"title\": \"example glossary\",\n        \"list\": [1, 2.5, "
    "-3e10, true, null, {\"a\": [[\"b\"]]}],\n        \"text\": \"A meta-markup language, used to "
    "create markup languages such as DocBook.\"\n    }\n}";

static const char unions[] =
    "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"object\", \"properties\": "
    "{\"kind\": {\"const\": \"circle\"}, \"radius\": {\"type\": \"number\"}}, \"required\": "
    "[\"kind\", \"radius\"]}, {\"type\": \"object\", \"properties\": {\"kind\": {\"const\": "
    "\"text\"}, \"content\": {\"type\": \"string\"}}, \"required\": [\"kind\", \"content\"]}, "
    "{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"group\"}, \"children\": "
    "{\"$ref\": \"#\"}}, \"required\": [\"kind\", \"children\"]}]}}";

static const char unions_output[] =
    "[{\"kind\": \"circle\", \"radius\": 12.5}, {\"kind\": \"group\", \"children\": [{\"kind\": "
    "\"text\", \"content\": \"Hello, wonderful world of nested structures!\"}]}]";

static const char pattern[] = "[A-Z][a-z]+(?: [A-Z][a-z]+)*: (?:.|\\n){10,400}";

static const char pattern_output[] =
    "Grace Hopper: One accurate measurement is worth a thousand expert opinions.\nShe said so.";

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": "
    "{\"type\": "
    "\"integer\", \"minimum\": 1, \"maximum\": 14}}, \"required\": [\"city\"]}}}]";

static const char tools_output[] =
    "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
    "name=\"city\" string=\"true\">Reykjavík, the capital of Iceland</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>";

static const char sums[] =
    "root ::= sum\nsum ::= sum [-+] product | product\nproduct ::= product [*/] part | part\n"
    "part ::= \"-\"? ([0-9]+ | name | \"(\" sum \")\")\nname ::= [a-z_] [a-z_0-9]*\n";

static const char sums_output[] = "(alpha+42)*-(beta_2/7-(gamma+1000))-delta*(3-(epsilon/12))";

/* As llama.cpp and xgrammar have it in their examples: a rule for each part of JSON. */
static const char json_rules[] =
    "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | "
    "\"null\") ws\nobject ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? "
    "\"}\" ws\narray ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\nstring ::= \"\\\"\" char* "
    "\"\\\"\" ws\nchar ::= [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
    "[0-9a-fA-F]{4})\nnumber ::= \"-\"? ([0-9] | [1-9] [0-9]{0,15}) (\".\" [0-9]+)? ([eE] [-+]? "
    "[0-9]{1,3})? ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

/* Every character a call: nothing of it is drawn where it is named. */
static const char nested_text[] = "root ::= \"<\" item* \">\"\nitem ::= [^<>] | root\n";

static const char nested_text_output[] =
    "<Grace Hopper: <One accurate measurement <is worth>> a thousand expert opinions.>";

static const char functions[] =
    "{\"triggers\": [\"<function=\"], \"structures\": [{\"begin\": \"<function=get_weather>\", "
    "\"schema\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, "
    "\"required\": [\"city\"]}, \"end\": \"</function>\"}, {\"begin\": \"<function=get_time>\", "
    "\"schema\": {\"type\": \"object\", \"properties\": {}}, \"end\": \"</function>\"}]}";

static const char functions_output[] =
    "Let me see what the weather is like there. <function=get_weather>{\"city\": \"Reykjavik, the "
    "capital of Iceland\"}</function> It will be told in a moment.";

static const struct bench_case cases[] = {
    {"schema: person", SCHEMA, person, person_output},
    {"schema: unions", SCHEMA, unions, unions_output},
    {"any JSON object", OBJECT, "", any_output},
    {"pattern", REGEX, pattern, pattern_output},
    {"V3.2 call", CALLS, tools, tools_output},
    {"reasoning, then person", REASONING, person, reasoning_output},
    {"EBNF: sums, left recursion", EBNF, sums, sums_output},
    {"EBNF: JSON", EBNF, json_rules, any_output},
    {"EBNF: nested text", EBNF, nested_text, nested_text_output},
    {"structural tag", TAG, functions, functions_output},
};

static json_t *read_json(const char *text)
{
    fathom_diag d = {""};
    json_t *tree = NULL;
    if (json_read(text, strlen(text), "JSON", &tree, &d)) printf("%s\n", d.text);
    ASSERT(tree);
    return tree;
}

static struct grammar *compile(const struct grammar_vocab *v, const struct bench_case *b)
{
    struct grammar *g = NULL;
    fathom_diag d = {""};
    bool plain = b->kind == OBJECT || b->kind == REGEX || b->kind == EBNF;
    json_t *tree = plain ? NULL : read_json(b->grammar);
    struct call_grammar calls = {.markup = CHAT_ENCODING_V32, .tools = tree, .parallel = true};
    struct answer_grammar must_call = {.calls = &calls};
    struct answer_grammar answer = {
        .thinking = true, .content = ANSWER_CONTENT_SCHEMA, .value = tree};
    fathom_err err = FATHOM_OK;
    switch (b->kind) {
    case SCHEMA: err = grammar_from_schema(&g, v, tree, NULL, &d); break;
    case OBJECT: err = grammar_from_json_object(&g, v, NULL, &d); break;
    case REGEX: err = grammar_from_regex(&g, v, b->grammar, strlen(b->grammar), &d); break;
    case EBNF: err = grammar_from_ebnf(&g, v, b->grammar, strlen(b->grammar), &d); break;
    case TAG: err = grammar_from_tag(&g, v, tree, NULL, &d); break;
    case CALLS: err = answer_grammar_compile(&g, v, &must_call, NULL, NULL, &d); break;
    case REASONING: err = answer_grammar_compile(&g, v, &answer, NULL, NULL, &d); break;
    }
    if (err) printf("%s: %s\n", b->name, d.text);
    ASSERT(!err);
    json_decref(tree);
    return g;
}

struct times {
    uint32_t n;
    uint64_t first_ns[POSITIONS_MAX];
    uint64_t again_ns[POSITIONS_MAX];
    uint64_t accept_ns;
};

static void lower(uint64_t *best, uint64_t value)
{
    if (*best == 0 || value < *best) *best = value;
}

/* One output through the grammar, every mask timed. */
static void run_output(const struct grammar_vocab *v, struct grammar *g,
                       const struct token_list *ids, uint64_t *best_ns, uint64_t *accept_ns)
{
    struct matcher *m;
    size_t n_word = grammar_vocab_n_word(v);
    uint32_t *words = mem_calloc(n_word, sizeof *words);
    uint64_t all_ns = 0;
    ASSERT(words && !matcher_create(&m, g, NULL, 0));
    for (uint32_t i = 0; i < ids->n; i++) {
        uint64_t start_ns = clock_now_ns();
        ASSERT(!matcher_fill_mask(m, words, n_word));
        uint64_t middle_ns = clock_now_ns();
        lower(&best_ns[i], middle_ns - start_ns);
        ASSERT(!matcher_accept_token(m, ids->ids[i]));
        all_ns += clock_now_ns() - middle_ns;
    }
    ASSERT(matcher_can_end(m));
    lower(accept_ns, all_ns / (ids->n ? ids->n : 1));
    matcher_destroy(m);
    mem_free(words);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_times(const char *what, uint64_t *ns, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += ns[i];
    qsort(ns, n, sizeof *ns, by_value);
    printf("  mask, %s: mean %.1f us, median %.1f, 90 %% %.1f, most %.1f (%u positions)\n", what,
           (double)sum / n / 1e3, (double)ns[n / 2] / 1e3, (double)ns[n * 9 / 10] / 1e3,
           (double)ns[n - 1] / 1e3, n);
}

static void run_case(const struct tokenizer *t, const struct grammar_vocab *v,
                     const struct bench_case *b)
{
    static const struct times zero;
    struct times *times = mem_calloc(1, sizeof zero);
    struct token_list ids = {0};
    uint64_t compile_ns = 0;
    size_t n_byte = 0;
    ASSERT(times);
    ASSERT(!tokenizer_encode(t, b->output, strlen(b->output), TOKENIZER_MARKUP_OFF, &ids));
    ASSERT(ids.n > 0 && ids.n <= POSITIONS_MAX);
    for (int run = 0; run < N_RUN; run++) {
        uint64_t start_ns = clock_now_ns();
        struct grammar *g = compile(v, b);
        lower(&compile_ns, clock_now_ns() - start_ns);
        run_output(v, g, &ids, times->first_ns, &times->accept_ns);
        for (int k = 0; k < 3; k++) run_output(v, g, &ids, times->again_ns, &times->accept_ns);
        n_byte = grammar_n_byte(g);
        grammar_release(g);
    }
    printf("%s: compile %.2f ms, %zu KB, token %.2f us\n", b->name, (double)compile_ns / 1e6,
           n_byte >> 10, (double)times->accept_ns / 1e3);
    print_times("first", times->first_ns, (uint32_t)ids.n);
    print_times("again", times->again_ns, (uint32_t)ids.n);
    token_list_free(&ids);
    mem_free(times);
}

static struct grammar_vocab *index_vocab(const struct tokenizer *t)
{
    struct grammar_vocab *v = NULL;
    uint64_t best_ns = 0;
    for (int i = 0; i < N_RUN; i++) {
        fathom_diag d = {""};
        grammar_vocab_destroy(v);
        uint64_t start_ns = clock_now_ns();
        if (grammar_vocab_create(&v, t, &d)) printf("%s\n", d.text);
        ASSERT(v);
        lower(&best_ns, clock_now_ns() - start_ns);
    }
    printf("vocabulary: %.1f ms (%d ids, best of %d)\n", (double)best_ns / 1e6,
           tokenizer_n_token(t), N_RUN);
    return v;
}

static void read_file(struct buf *out, const char *path)
{
    struct file_map map;
    fathom_diag d = {""};
    if (file_map_open(&map, path, &d)) printf("%s\n", d.text);
    ASSERT(map.data && !buf_add(out, map.data, map.size));
    file_map_close(&map);
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    fathom_diag d = {""};
    if (tokenizer_open_file(&t, TOKENIZER_V3_JSON, &d)) printf("%s\n", d.text);
    ASSERT(t);
    struct grammar_vocab *v = index_vocab(t);
    if (argc == 3) {
        struct buf schema = {0}, output = {0};
        read_file(&schema, argv[1]);
        read_file(&output, argv[2]);
        run_case(t, v, &(struct bench_case){argv[1], SCHEMA, buf_str(&schema), buf_str(&output)});
        buf_free(&schema);
        buf_free(&output);
    } else {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(t, v, &cases[i]);
    }
    grammar_vocab_destroy(v);
    tokenizer_close(t);
    return 0;
}

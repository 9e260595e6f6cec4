/* test_sglang_e2e.c - /generate and what SGLang's clients ask beside it, over loopback */
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "support/world.h"

#define GENERATE "/generate"
#define PARAMS(text) ",\"sampling_params\":{" text "}"

static const struct fake_options fake = {
    .tokenizer_config = "{\"add_bos_token\": true}", .temperature = 0.5f, .top_p = 0.25f};
static struct world w;
static struct http_client c;

static int open_world(void **state)
{
    if (world_setup(state) != 0) return -1;
    world_open(&w, NULL, &fake);
    world_connect(&c, &w);
    return 0;
}

static int close_world(void **state)
{
    http_client_close(&c);
    world_close(&w);
    return world_teardown(state);
}

/* The body {"text":"[[script]]" fields}, or {fields} without a script. */
static void write_body(char *body, size_t bytes, const char *script, const char *fields)
{
    if (script) {
        (void)snprintf(body, bytes, "{\"text\":\"[[%s]]\"%s}", script, fields);
    } else {
        (void)snprintf(body, bytes, "{%s}", fields);
    }
}

static void generate(const char *script, const char *fields, int status, const char *part)
{
    char body[1024];
    write_body(body, sizeof body, script, fields);
    expect(&c, "POST", GENERATE, body, status, part);
}

static json_t *generate_json(const char *script, const char *fields)
{
    char body[1024];
    write_body(body, sizeof body, script, fields);
    return ask_json(&c, "POST", GENERATE, "", body);
}

static const json_t *meta(const json_t *answer, const char *key)
{
    return json_object_get(json_object_get(answer, "meta_info"), key);
}

static void assert_json(const json_t *v, const char *want)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    assert_non_null(text);
    assert_string_equal(text, want);
    free(text);
}

/* ---- one answer ---------------------------------------------------------------------------- */

static void text_or_ids_go_in_and_both_come_out(void **state)
{
    (void)state;
    generate(NULL, "\"text\":\"a\",\"rid\":\"r1\"", 200,
             "{\"text\":\"Hello!\",\"output_ids\":[92,121,128,128,131,53,1],\"meta_info\":{"
             "\"id\":\"r1\",\"finish_reason\":{\"type\":\"stop\",\"matched\":1},"
             "\"prompt_tokens\":2,\"completion_tokens\":7,\"cached_tokens\":0,"
             "\"weight_version\":\"default\",\"e2e_latency\":0.");
    generate(NULL, "\"input_ids\":[0,117],\"return_prompt_token_ids\":true", 200,
             ",\"prompt_token_ids\":[0,117],\"meta_info\":{");
    generate("cached=64;say=x", "", 200, "\"cached_tokens\":64,");
}

static void answers_say_how_they_ended(void **state)
{
    (void)state;
    generate("say=one STOP two", PARAMS("\"stop\":[\"STOP\",\"x\"]"), 200,
             "{\"text\":\"one \",\"output_ids\":");
    generate("say=one STOP two", PARAMS("\"stop\":\"STOP\""), 200,
             "\"finish_reason\":{\"type\":\"stop\",\"matched\":\"STOP\"}");
    generate("say=one STOP two", PARAMS("\"stop\":\"STOP\",\"no_stop_trim\":true"), 200,
             "{\"text\":\"one STOP\",");
    generate("say=abc", PARAMS("\"stop_token_ids\":[118]"), 200, "\"matched\":118}");
    generate("say=abc", PARAMS("\"max_new_tokens\":2"), 200,
             "{\"text\":\"ab\",\"output_ids\":[117,118],\"meta_info\":{");
    generate("say=abc", PARAMS("\"max_new_tokens\":2"), 200, "{\"type\":\"length\",\"length\":2}");
    generate("say=a", PARAMS("\"ignore_eos\":true"), 200, "\"completion_tokens\":128,");
    generate("repeat=300;say=a", PARAMS("\"max_new_tokens\":null"), 200,
             "\"completion_tokens\":301,");
}

/* A prompt is put into the cache so: it is computed, and nothing is told. */
static void no_token_at_all_may_be_asked_for(void **state)
{
    (void)state;
    uint64_t n = fake_engine_n_submitted(w.engine);
    generate("say=", PARAMS("\"max_new_tokens\":0"), 200, "{\"text\":\"\",\"output_ids\":[],");
    generate("say=", PARAMS("\"max_new_tokens\":0"), 200,
             "\"finish_reason\":{\"type\":\"length\",\"length\":0}");
    assert_int_equal(fake_engine_n_submitted(w.engine), n + 2);
    generate(NULL,
             "\"text\":\"ab\",\"return_logprob\":true,\"logprob_start_len\":0" PARAMS(
                 "\"max_new_tokens\":0"),
             200, "\"input_token_logprobs\":[[null,0,null],[-0.125,117,null],[-0.25,118,null]]");
}

static void params_are_read_as_they_are_meant(void **state)
{
    (void)state;
    uint32_t n_prompt;
    generate(NULL, "\"text\":\"a\"", 200, "");
    fathom_sampling s = fake_engine_last(w.engine, &n_prompt);
    /* not the checkpoint's defaults, which are for OpenAI's APIs */
    assert_true(s.temperature == 1 && s.top_p == 1 && s.top_k == 0 && s.max_tokens == 128);
    generate(NULL,
             "\"text\":\"a\"" PARAMS("\"temperature\":0.25,\"top_p\":0.5,\"top_k\":3,"
                                     "\"min_p\":0.125,\"frequency_penalty\":1,"
                                     "\"presence_penalty\":2,\"repetition_penalty\":1.5,"
                                     "\"min_new_tokens\":4,\"sampling_seed\":9,"
                                     "\"json_schema\":\"\",\"stop\":null"),
             200, "");
    s = fake_engine_last(w.engine, &n_prompt);
    assert_true(s.temperature == 0.25f && s.top_p == 0.5f && s.top_k == 3 && s.min_p == 0.125f);
    assert_true(s.frequency_penalty == 1 && s.presence_penalty == 2 &&
                s.repetition_penalty == 1.5f);
    assert_true(s.min_tokens == 4 && s.has_seed && s.seed == 9);
}

static void answers_are_held_to_a_form(void **state)
{
    (void)state;
    generate("say=abc", PARAMS("\"regex\":\"[a-c]+\""), 200, "{\"text\":\"abc\",");
    generate("say=true", PARAMS("\"json_schema\":\"{\\\"type\\\":\\\"boolean\\\"}\""), 200,
             "{\"text\":\"true\",");
    generate("say=no", PARAMS("\"ebnf\":\"root ::= \\\"yes\\\" | \\\"no\\\"\""), 200,
             "{\"text\":\"no\",");
    generate("say=x", PARAMS("\"regex\":\"a\",\"ebnf\":\"root ::= \\\"a\\\"\""), 400, "ebnf");
    generate("say=x", PARAMS("\"regex\":\"[a\""), 400, "\"param\":\"regex\"");
}

/* ---- log-probabilities --------------------------------------------------------------------- */

static void log_probabilities_are_triples(void **state)
{
    (void)state;
    json_t *a = generate_json(
        NULL, "\"text\":\"ab\",\"return_logprob\":true" PARAMS("\"max_new_tokens\":2"));
    assert_json(meta(a, "output_token_logprobs"), "[[-0.5,92,null],[-0.5,121,null]]");
    assert_json(meta(a, "output_token_logprobs_length"), "2");
    assert_json(meta(a, "input_token_logprobs"), "[]");
    assert_null(meta(a, "output_top_logprobs"));
    json_decref(a);
    a = generate_json(
        NULL, "\"text\":\"ab\",\"return_logprob\":true,\"return_text_in_logprobs\":true,"
              "\"top_logprobs_num\":2,\"logprob_start_len\":0" PARAMS("\"max_new_tokens\":1"));
    assert_json(meta(a, "output_token_logprobs"), "[[-0.5,92,\"H\"]]");
    assert_json(meta(a, "output_top_logprobs"), "[[[-0.5,92,\"H\"],[-1.5,118,\"b\"]]]");
    assert_json(json_array_get(meta(a, "input_token_logprobs"), 1), "[-0.125,117,\"a\"]");
    assert_json(json_array_get(meta(a, "input_top_logprobs"), 0), "null");
    assert_json(json_array_get(meta(a, "input_top_logprobs"), 2),
                "[[-0.0625,118,\"b\"],[-0.25,118,\"b\"]]");
    json_decref(a);
    a = generate_json(NULL, "\"text\":\"abc\",\"return_logprob\":[true],\"logprob_start_len\":2");
    assert_json(meta(a, "input_token_logprobs"), "[[-0.25,118,null],[-0.375,119,null]]");
    json_decref(a);
    /* how log-probabilities are told says nothing where none are asked for */
    a = generate_json(NULL, "\"text\":\"ab\",\"return_logprob\":false,\"logprob_start_len\":0,"
                            "\"top_logprobs_num\":2");
    assert_null(meta(a, "output_token_logprobs"));
    json_decref(a);
}

/* ---- several answers ----------------------------------------------------------------------- */

static void lists_get_lists(void **state)
{
    (void)state;
    generate(NULL, "\"text\":[\"a\"]", 200, "[{\"text\":\"Hello!\",");
    generate(NULL, "\"input_ids\":[[0,117]],\"rid\":\"r\"", 200, "\"meta_info\":{\"id\":\"r_0\"");
    json_t *a = generate_json(
        NULL, "\"text\":[\"[[say=a]]\",\"[[say=bc]]\"],\"rid\":\"r\"" PARAMS("\"n\":2"));
    static const char *const texts[] = {"\"a\"", "\"a\"", "\"bc\"", "\"bc\""};
    static const char *const ids[] = {"\"r_0\"", "\"r_1\"", "\"r_2\"", "\"r_3\""};
    assert_int_equal(json_array_size(a), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *one = json_array_get(a, i);
        assert_json(json_object_get(one, "text"), texts[i]);
        assert_json(meta(one, "id"), ids[i]);
        assert_json(meta(one, "completion_tokens"), i < 2 ? "2" : "3");
    }
    json_decref(a);
    generate(NULL,
             "\"text\":[\"a\",\"b\"],\"return_logprob\":[true,true],\"sampling_params\":["
             "{\"max_new_tokens\":1},{\"max_new_tokens\":1}]",
             200, "\"output_token_logprobs\":[[-0.5,92,null]]");
}

static void each_prompt_may_have_its_own_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *text, *finish, *logprobs;
    } want[] = {
        {"\"ab\"", "{\"type\":\"length\",\"length\":2}", "2"},
        {"\"ab\"", "{\"type\":\"stop\",\"matched\":\"cd\"}", NULL},
        {"\"abcd\"", "{\"type\":\"stop\",\"matched\":\"cd\"}", NULL},
        {"\"12\"", "{\"type\":\"stop\",\"matched\":1}", "3"},
        {"\"x\"", "{\"type\":\"stop\",\"matched\":1}", NULL},
    };
    static const char fields[] =
        "\"text\":[\"[[say=abcdef]]\",\"[[say=abcdef]]\",\"[[say=abcdef]]\",\"[[say=12]]\","
        "\"[[say=x]]\"],\"return_logprob\":[true,false,false,true,null],\"sampling_params\":["
        "{\"max_new_tokens\":2},{\"stop\":\"cd\"},{\"stop\":[\"q\",\"cd\"],\"no_stop_trim\":true},"
        "{\"regex\":\"[0-9]+\"},{\"regex\":\"[a-z]\"}]";
    json_t *a = generate_json(NULL, fields);
    assert_int_equal(json_array_size(a), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *one = json_array_get(a, i);
        assert_json(json_object_get(one, "text"), want[i].text);
        assert_json(meta(one, "finish_reason"), want[i].finish);
        const json_t *length = meta(one, "output_token_logprobs_length");
        if (want[i].logprobs) assert_json(length, want[i].logprobs);
        if (!want[i].logprobs) assert_null(length);
    }
    json_decref(a);
    a = generate_json(NULL, "\"text\":[\"[[say=abc]]\",\"[[say=abc]]\"],\"sampling_params\":["
                            "{\"n\":2,\"max_new_tokens\":1},{\"n\":2,\"max_new_tokens\":null}]");
    static const char *const texts[] = {"\"a\"", "\"a\"", "\"abc\"", "\"abc\""};
    assert_int_equal(json_array_size(a), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_json(json_object_get(json_array_get(a, i), "text"), texts[i]);
    }
    json_decref(a);
    generate(NULL, "\"text\":[\"[[say=abc]]\",\"b\"],\"sampling_params\":[{\"max_new_tokens\":1}]",
             200, "\"length\":1}");
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Events of a stream as SGLang's benchmark reads them: every line that is not empty is an event. */
struct events {
    json_t *all; /* array */
    bool done;
};

static void read_events(struct events *e, const char *script, const char *fields)
{
    char body[1024];
    struct http_reply r;
    write_body(body, sizeof body, script, fields);
    ask(&c, &r, "POST", GENERATE, "", body);
    assert_int_equal(r.status, 200);
    *e = (struct events){.all = json_array()};
    char *rest = NULL;
    for (char *line = strtok_r(r.body.data, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        assert_false(e->done);
        assert_memory_equal(line, "data: ", 6);
        e->done = strcmp(line + 6, "[DONE]") == 0;
        if (e->done) continue;
        json_t *event = json_loads(line + 6, 0, NULL);
        assert_non_null(event);
        assert_int_equal(json_array_append_new(e->all, event), 0);
    }
    assert_true(e->done);
    http_reply_free(&r);
}

static const char *text_of(const json_t *event)
{
    return json_string_value(json_object_get(event, "text"));
}

static void a_stream_repeats_what_it_has_said(void **state)
{
    (void)state;
    struct events e;
    read_events(&e, "say=one two", ",\"stream\":true,\"rid\":\"s\",\"return_logprob\":true");
    size_t n = json_array_size(e.all);
    json_int_t n_token = 0;
    const char *before = "";
    for (size_t i = 0; i < n; i++) {
        const json_t *event = json_array_get(e.all, i);
        json_int_t now = json_integer_value(meta(event, "completion_tokens"));
        assert_true(now >= n_token && strncmp(text_of(event), before, strlen(before)) == 0);
        assert_int_equal(json_array_size(json_object_get(event, "output_ids")), now);
        assert_int_equal(json_array_size(meta(event, "output_token_logprobs")), now);
        assert_json(meta(event, "id"), "\"s\"");
        assert_null(json_object_get(event, "index"));
        if (i + 1 < n) assert_json(meta(event, "finish_reason"), "null");
        n_token = now;
        before = text_of(event);
    }
    assert_string_equal(before, "one two");
    assert_int_equal(n_token, 8);
    assert_json(meta(json_array_get(e.all, n - 1), "finish_reason"),
                "{\"type\":\"stop\",\"matched\":1}");
    assert_non_null(meta(json_array_get(e.all, n - 1), "e2e_latency"));
    json_decref(e.all);
}

static void a_stream_tells_from_its_start_what_was_cached(void **state)
{
    (void)state;
    struct events e;
    read_events(&e, "cached=64;say=x", ",\"stream\":true");
    assert_json(meta(json_array_get(e.all, 0), "cached_tokens"), "64");
    json_decref(e.all);
}

static void a_stop_string_ends_a_stream_at_once(void **state)
{
    (void)state;
    struct events e;
    read_events(&e, "say=a STOP b", ",\"stream\":true" PARAMS("\"stop\":\"STOP\""));
    size_t n = json_array_size(e.all);
    const json_t *last = json_array_get(e.all, n - 1);
    assert_string_equal(text_of(last), "a ");
    assert_json(meta(last, "finish_reason"), "{\"type\":\"stop\",\"matched\":\"STOP\"}");
    /* one for each token */
    assert_int_equal(json_integer_value(meta(last, "completion_tokens")), n);
    json_decref(e.all);
}

static void streams_of_several_are_numbered(void **state)
{
    (void)state;
    struct events e;
    read_events(&e, NULL, "\"text\":[\"[[say=ab]]\",\"[[say=cd]]\"],\"stream\":true,\"rid\":\"s\"");
    const char *said[2] = {"", ""};
    for (size_t i = 0; i < json_array_size(e.all); i++) {
        const json_t *event = json_array_get(e.all, i);
        json_int_t index = json_integer_value(json_object_get(event, "index"));
        assert_true(index == 0 || index == 1);
        assert_json(meta(event, "id"), index ? "\"s_1\"" : "\"s_0\"");
        said[index] = text_of(event);
    }
    assert_string_equal(said[0], "ab");
    assert_string_equal(said[1], "cd");
    json_decref(e.all);
}

static void prompts_may_have_ids_of_their_own(void **state)
{
    (void)state;
    generate(NULL, "\"rid\":[\"x\"],\"text\":\"a\"", 200, "\"meta_info\":{\"id\":\"x\",");
    generate(NULL, "\"text\":[\"a\"],\"rid\":[\"x\"]", 200, "\"meta_info\":{\"id\":\"x\",");
    json_t *a = generate_json(NULL, "\"rid\":[\"x\",\"no id\",\"x\"],\"text\":[\"a\",\"b\",\"c\"]");
    assert_json(meta(json_array_get(a, 0), "id"), "\"x\"");
    assert_json(meta(json_array_get(a, 2), "id"), "\"x\"");
    const char *own = json_string_value(meta(json_array_get(a, 1), "id"));
    assert_true(own && strlen(own) == 34 && strcmp(own + 32, "_1") == 0);
    json_decref(a);
    a = generate_json(NULL, "\"text\":[\"a\",\"b\"],\"rid\":[\"x\",\"y\"]" PARAMS("\"n\":2"));
    static const char *const ids[] = {"\"x_0\"", "\"x_1\"", "\"y_0\"", "\"y_1\""};
    for (size_t i = 0; i < 4; i++) assert_json(meta(json_array_get(a, i), "id"), ids[i]);
    json_decref(a);
    struct events e;
    read_events(&e, NULL, "\"text\":[\"a\",\"b\"],\"stream\":true,\"rid\":[\"x\",\"y\"]");
    for (size_t i = 0; i < json_array_size(e.all); i++) {
        const json_t *event = json_array_get(e.all, i);
        const bool is_second = json_integer_value(json_object_get(event, "index")) == 1;
        assert_json(meta(event, "id"), is_second ? "\"y\"" : "\"x\"");
    }
    json_decref(e.all);
}

static void a_stream_may_be_of_pieces(void **state)
{
    (void)state;
    struct world other;
    struct http_client client;
    world_open(&other, &(struct server_options){.stream_pieces = true}, &fake);
    world_connect(&client, &other);
    expect(&client, "POST", GENERATE, "{\"text\":\"[[say=ab]]\",\"stream\":true}", 200,
           "data: {\"text\":\"b\",\"output_ids\":[118],\"meta_info\":");
    expect(&client, "POST", GENERATE, "{\"text\":\"[[say=ab]]\",\"stream\":true}", 200,
           "data: {\"text\":\"\",\"output_ids\":[1],\"meta_info\":");
    http_client_close(&client);
    world_close(&other);
}

/* No line that its clients would take for an event. */
static void a_silent_stream_has_empty_lines(void **state)
{
    (void)state;
    struct world other;
    struct http_client client;
    struct http_reply r;
    world_open(&other, &(struct server_options){.idle_line_ms = 100}, &fake);
    world_connect(&client, &other);
    fake_engine_stall(other.engine, true);
    assert_true(
        http_client_send(&client, "POST", GENERATE, "", "{\"text\":\"a\",\"stream\":true}"));
    assert_true(http_client_wait_for(&client, "\r\n\r\n1\r\n\n\r\n")); /* a chunk of one byte */
    fake_engine_stall(other.engine, false);
    assert_true(http_client_read(&client, &r, false));
    assert_int_equal(buf_str(&r.body)[0], '\n');
    assert_reply(&r, 200, "\n\ndata: [DONE]\n\n");
    http_client_close(&client);
    world_close(&other);
}

/* What a client that reads late gets is short, and is all. */
static void a_slow_reader_misses_events_and_no_text(void **state)
{
    (void)state;
    struct world other;
    struct http_client client;
    struct http_reply r;
    struct fake_options f = fake;
    f.max_model_len = 1000000;
    world_open(&other, NULL, &f);
    world_connect(&client, &other);
    assert_true(http_client_send(&client, "POST", GENERATE, "",
                                 "{\"text\":\"[[repeat=100000;say=abc]]\",\"stream\":true,"
                                 "\"sampling_params\":{\"max_new_tokens\":null}}"));
    wait_for_count(other.engine, fake_engine_n_submitted, 1);
    wait_for_count(other.engine, fake_engine_n_alive, 0); /* it has said all */
    assert_true(http_client_read(&client, &r, false));
    assert_int_equal(fake_engine_n_cancelled(other.engine), 0);
    assert_true(r.body.len < (64 << 20)); /* one event for each token would be a hundred GB */
    assert_reply(&r, 200, "\"completion_tokens\":300001,");
    http_client_close(&client);
    world_close(&other);
}

/* ---- what is wrong, and who leaves --------------------------------------------------------- */

static void what_is_wrong_is_said_in_a_line(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *message;
    } cases[] = {
        {"\"rid\":\"a\"", "text and input_ids are missing, one of them is needed"},
        {"\"text\":\"a\",\"input_ids\":[1]", "both there, needed is one of them"},
        {"\"text\":[1,2]", "text is an array, needed is a string or an array of strings"},
        {"\"text\":[]", "text has 0 entries, needed is 1 to 1024"},
        {"\"text\":[\"a\",5]", "text[1] is an integer, needed is"},
        {"\"input_ids\":\"a\"", "input_ids is a string, needed is an array of token ids"},
        {"\"input_ids\":[999999]", "input_ids[0] is 999999, needed is 0 to 275"},
        {"\"text\":\"a\"" PARAMS("\"max_new_tokens\":-1"),
         "max_new_tokens is -1, needed is 0 to 2147483647"},
        {"\"text\":\"a\"" PARAMS("\"max_new_tokens\":2,\"min_new_tokens\":3"),
         "min_new_tokens is 3, more than max_new_tokens, which is 2"},
        {"\"text\":\"a\"" PARAMS("\"max_new_tokens\":5000"),
         "5000 in max_new_tokens): lower max_new_tokens or shorten the prompt"},
        {"\"text\":\"a\"" PARAMS("\"temperature\":-1"), "temperature is -1, needed is 0 to 2"},
        {"\"text\":\"a\"" PARAMS("\"max_tokens\":3"), "sampling_params.max_tokens is no field of"},
        {"\"text\":\"a\"" PARAMS("\"stop_regex\":\"a\""), "stop_regex is not supported: use stop"},
        {"\"text\":\"a\",\"sampling_params\":5", "sampling_params is an integer, needed is an"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"n\":2}]",
         "n is 2 for prompt 1 and 1 for prompt 0, needed is the same for all"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{},{}]",
         "sampling_params has 3 values, needed is one, or one for each of 2 prompts"},
        {"\"text\":[\"a\",\"b\"],\"rid\":[\"x\"]",
         "rid has 1 ids, needed is one for each of 2 prompts"},
        {"\"text\":\"a\",\"rid\":[]", "rid has 0 ids, needed is one for each of 1 prompts"},
        {"\"text\":[\"a\",\"b\"],\"rid\":[\"x\",5]",
         "prompt 1: rid is an integer, needed is a string"},
        {"\"text\":\"a\",\"rid\":5", "rid is an integer, needed is a string"},
        {"\"text\":\"a\",\"top_logprobs_num\":[1,2]",
         "needed is one, or one for each of 1 prompts"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[]",
         "sampling_params is an empty array, needed"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},5]",
         "prompt 1: sampling_params is an integer, needed is an object"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"temperature\":-1}]",
         "prompt 1: temperature is -1, needed is 0 to 2"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"max_new_tokens\":2,\"min_new_tokens\":"
         "3}]",
         "prompt 1: min_new_tokens is 3, more than max_new_tokens, which is 2"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"max_new_tokens\":5000}]",
         "5000 in max_new_tokens): lower max_new_tokens or shorten the prompt"},
        {"\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"regex\":\"(\"}]", "regex"},
        {"\"text\":\"a\",\"temperature\":0", "temperature is no field of /generate; "
                                             "sampling_params has it"},
        {"\"text\":\"a\",\"image_data\":\"x\"", "image_data is not supported: prompts are text"},
        {"\"text\":\"a\",\"lora_path\":\"x\"", "lora_path is not supported: there are no adapters"},
        {"\"text\":\"a\",\"token_ids_logprob\":[1]", "use top_logprobs_num"},
        {"\"text\":\"a\",\"logprob_start_len\":-2", "logprob_start_len is -2, needed is"},
        {"\"text\":\"a\",\"top_logprobs_num\":21", "top_logprobs_num is 21, needed is 0 to 20"},
        {"\"text\":\"a\",\"stream\":5", "stream is an integer, needed is a boolean"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        generate(NULL, cases[i].fields, 400, cases[i].message);
    }
    generate("then=fail;say=a", "", 503, "the scripted device is lost");
}

static void what_changes_nothing_is_passed_over(void **state)
{
    (void)state;
    struct http_reply r;
    char value[256] = "";
    /* as the benchmark and the library send them */
    ask(&c, &r, "POST", GENERATE, "",
        "{\"text\":\"a\",\"lora_path\":\"\",\"return_logprob\":false,\"logprob_start_len\":-1,"
        "\"return_routed_experts\":false,\"sampling_params\":{\"stop\":[],\"stop_token_ids\":[],"
        "\"stop_regex\":[],\"top_k\":-1,\"regex\":null,\"spaces_between_special_tokens\":true}}");
    assert_false(http_reply_header(&r, "warnings", value, sizeof value));
    assert_reply(&r, 200, "");
    ask(&c, &r, "POST", GENERATE, "",
        "{\"text\":[\"a\"],\"rid\":[\"x y\"],\"wat\":1,\"sampling_params\":{\"max_new_token\":3}}");
    assert_true(http_reply_header(&r, "warnings", value, sizeof value));
    assert_string_equal(value, "wat is no field of /generate; rid is no id of 1 to 64 letters, "
                               "digits or characters of -_.:, so the answer has its own; "
                               "sampling_params.max_new_token is no field of /generate, did you "
                               "mean max_new_tokens?");
    assert_reply(&r, 200, "");
    ask(&c, &r, "POST", GENERATE, "",
        "{\"text\":[\"a\",\"b\",\"c\"],\"wat\":1,\"sampling_params\":[{},{\"wit\":1},{\"wit\":1}]"
        "}");
    assert_true(http_reply_header(&r, "warnings", value, sizeof value));
    assert_string_equal(value, "wat is no field of /generate; sampling_params.wit is no field of "
                               "/generate");
    assert_reply(&r, 200, "");
}

static void who_leaves_cancels(void **state)
{
    (void)state;
    struct world other;
    world_open(&other, NULL, &fake);
    static const struct {
        const char *body;
        uint64_t n;
        bool streams;
    } cases[] = {
        {"{\"text\":\"[[first_ms=60000;say=a]]\"}", 1, false},
        {"{\"text\":[\"[[first_ms=60000;say=a]]\",\"[[first_ms=60000;say=b]]\"]}", 2, false},
        {"{\"text\":\"[[step_ms=20;repeat=100;say=abc]]\",\"stream\":true}", 1, true},
        {"{\"text\":\"[[step_ms=20;repeat=100;say=abc]]\",\"stream\":true,\"sampling_params\":{"
         "\"n\":3}}",
         3, true},
    };
    uint64_t n_cancelled = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_client client;
        world_connect(&client, &other);
        assert_true(http_client_send(&client, "POST", GENERATE, "", cases[i].body));
        wait_for_count(other.engine, fake_engine_n_alive, cases[i].n);
        if (cases[i].streams) assert_true(http_client_wait_for(&client, "{\"text\":\"ab\""));
        http_client_close(&client);
        n_cancelled += cases[i].n;
        wait_for_count(other.engine, fake_engine_n_cancelled, n_cancelled);
    }
    world_close(&other);
}

/* ---- beside -------------------------------------------------------------------------------- */

static void the_model_and_the_server_are_told(void **state)
{
    (void)state;
    static const char *const models[] = {"/model_info", "/get_model_info"};
    static const char *const servers[] = {"/server_info", "/get_server_info"};
    for (size_t i = 0; i < 2; i++) {
        expect(&c, "GET", models[i], NULL, 200,
               "{\"model_path\":\"m\",\"tokenizer_path\":\"m\",\"served_model_name\":\"m\",");
        expect(&c, "GET", models[i], NULL, 200, "\"is_generation\":true,");
        json_t *server = ask_json(&c, "GET", servers[i], "", NULL);
        assert_json(json_object_get(server, "context_length"), "4096");
        const json_t *one = json_array_get(json_object_get(server, "internal_states"), 0);
        assert_true(json_is_object(one));
        json_decref(server);
    }
    expect(&c, "GET", "/health_generate", NULL, 200, "");
}

static void the_cache_is_emptied_where_there_are_no_keys(void **state)
{
    (void)state;
    uint64_t n = fake_engine_n_reset(w.engine);
    expect(&c, "POST", "/flush_cache?timeout=60.0", NULL, 200, "ok");
    assert_int_equal(fake_engine_n_reset(w.engine), n + 1);
    expect(&c, "GET", "/flush_cache", NULL, 405, "it takes POST, OPTIONS");
    expect(&c, "GET", "/openapi.json", NULL, 200, "\"/flush_cache\":{\"post\":{");

    struct world other;
    struct http_client client;
    struct http_reply r;
    static const char *const keys[] = {"first"};
    world_open(&other, &(struct server_options){.api_keys = keys, .n_api_key = 1}, &fake);
    world_connect(&client, &other);
    expect(&client, "POST", "/flush_cache", NULL, 401, "the API key is missing");
    expect(&client, "GET", "/server_info", NULL, 401, "the API key is missing");
    ask(&client, &r, "POST", "/flush_cache", "Authorization: Bearer first\r\n", NULL);
    assert_reply(&r, 404, "--admin-socket has it as /reset_prefix_cache");
    assert_int_equal(fake_engine_n_reset(other.engine), 0);
    http_client_close(&client);
    world_close(&other);
}

/* ---- what a server is told of all requests --------------------------------------------------- */

static int32_t seen_priority;

static void note_priority(void *arg, const fathom_request *r, struct fake_plan *plan)
{
    (void)arg, (void)plan;
    seen_priority = r->priority;
}

static void a_higher_priority_may_be_the_earlier_one(void **state)
{
    (void)state;
    static const struct {
        bool high_first;
        const char *asked;
        int32_t seen;
    } cases[] = {{false, "5", 5},
                 {false, "-2147483648", INT32_MIN},
                 {true, "5", -5},
                 {true, "2147483647", -INT32_MAX},
                 {true, "-2147483648", INT32_MAX},
                 {true, "0", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct server_options o = {.high_priority_first = cases[i].high_first};
        const struct fake_options noting = {.script = note_priority};
        struct world other;
        struct http_client client;
        char body[64];
        world_open(&other, &o, &noting);
        world_connect(&client, &other);
        (void)snprintf(body, sizeof body, "{\"text\":\"a\",\"priority\":%s}", cases[i].asked);
        expect(&client, "POST", GENERATE, body, 200, "\"text\"");
        assert_int_equal(seen_priority, cases[i].seen);
        http_client_close(&client);
        world_close(&other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_or_ids_go_in_and_both_come_out),
        cmocka_unit_test(answers_say_how_they_ended),
        cmocka_unit_test(no_token_at_all_may_be_asked_for),
        cmocka_unit_test(params_are_read_as_they_are_meant),
        cmocka_unit_test(answers_are_held_to_a_form),
        cmocka_unit_test(log_probabilities_are_triples),
        cmocka_unit_test(lists_get_lists),
        cmocka_unit_test(each_prompt_may_have_its_own_parameters),
        cmocka_unit_test(a_stream_repeats_what_it_has_said),
        cmocka_unit_test(a_stream_tells_from_its_start_what_was_cached),
        cmocka_unit_test(a_stop_string_ends_a_stream_at_once),
        cmocka_unit_test(streams_of_several_are_numbered),
        cmocka_unit_test(prompts_may_have_ids_of_their_own),
        cmocka_unit_test(a_stream_may_be_of_pieces),
        cmocka_unit_test(a_silent_stream_has_empty_lines),
        cmocka_unit_test(a_slow_reader_misses_events_and_no_text),
        cmocka_unit_test(what_changes_nothing_is_passed_over),
        cmocka_unit_test(who_leaves_cancels),
        cmocka_unit_test(the_model_and_the_server_are_told),
        cmocka_unit_test(the_cache_is_emptied_where_there_are_no_keys),
        /* the last one breaks the engine */
        cmocka_unit_test(what_is_wrong_is_said_in_a_line),
        cmocka_unit_test(a_higher_priority_may_be_the_earlier_one),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}

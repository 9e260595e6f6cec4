/* test_answer.c - events in, bytes out: both forms, streamed and whole */
#include "server/api/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/json_tree.h"
#include "support/scene.h"

#define D "｜DSML｜"
#define CALL                                                                                       \
    "\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D                                     \
    "parameter name=\"city\" string=\"true\">Rome</" D "parameter>\n</" D "invoke>\n</" D          \
    "function_calls>"

enum { BYTE_0 = 20 };

#define CHAT(fields) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" fields "}"
#define TOOLS ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define HEAD(object)                                                                               \
    "{\"id\":\"%s\",\"object\":\"" object "\",\"created\":5,\"model\":\"m\","                      \
    "\"system_fingerprint\":\"fathom-" FATHOM_VERSION "\",\"choices\":["

/* `want` has %s for the answer's id and nothing else. */
static void assert_out(struct scene *s, const char *const *parts, size_t n)
{
    struct buf want = {0};
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(parts[i], "%s");
        if (!at) {
            (void)buf_add_str(&want, parts[i]);
            continue;
        }
        (void)buf_add(&want, parts[i], (size_t)(at - parts[i]));
        (void)buf_add_str(&want, s->answer.id);
        (void)buf_add_str(&want, at + 2);
    }
    assert_string_equal(scene_out(s), buf_str(&want));
    buf_free(&want);
}

static void test_chat_stream_bytes(void **state)
{
    (void)state;
    struct scene *s = scene_open(
        API_CHAT, CHAT(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"), false);
    assert_int_equal(scene_say(&s->answer, 0, "é\"", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    static const char *const want[] = {
        "data: " HEAD("chat.completion.chunk"),
        "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null}],\"usage\":null}\n\n",
        "data: " HEAD("chat.completion.chunk"),
        "{\"index\":0,\"delta\":{\"content\":\"é\"},\"logprobs\":null,\"finish_reason\":null}],"
        "\"usage\":null}\n\n",
        "data: " HEAD("chat.completion.chunk"),
        "{\"index\":0,\"delta\":{\"content\":\"\\\"\"},\"logprobs\":null,\"finish_reason\":null}],"
        "\"usage\":null}\n\n",
        "data: " HEAD("chat.completion.chunk"),
        "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
        "null}],\"usage\":null}\n\n",
        "data: " HEAD("chat.completion.chunk"),
        "],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":4,\"total_tokens\":10,"
        "\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{"
        "\"reasoning_tokens\":0}}}\n\n",
        "data: [DONE]\n\n",
    };
    assert_out(s, want, sizeof want / sizeof want[0]);
    scene_close(s);
}

/* What ends at its first token, by a stop string or with nothing said, ends once: the chunk of the
 * role is not the last. */
static void test_a_stream_without_text_ends_once(void **state)
{
    (void)state;
    static const char *const want[] = {
        "data: " HEAD("chat.completion.chunk"),
        "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null}]}\n\n",
        "data: " HEAD("chat.completion.chunk"),
        "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":",
        "",
        "}]}\n\ndata: [DONE]\n\n",
    };
    for (int stopped = 0; stopped < 2; stopped++) {
        const char *parts[sizeof want / sizeof want[0]];
        memcpy(parts, want, sizeof parts);
        parts[4] = stopped ? "\"x\"" : "null";
        struct scene *s = scene_open(API_CHAT, CHAT(",\"stream\":true,\"stop\":\"x\""), false);
        assert_int_equal(scene_say(&s->answer, 0, stopped ? "x" : "", FATHOM_FINISH_STOP), 0);
        assert_int_equal(answer_close(&s->answer), 0);
        assert_out(s, parts, sizeof parts / sizeof parts[0]);
        scene_close(s);
    }
}

static void test_chat_body_bytes(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_CHAT, CHAT(TOOLS), true);
    assert_int_equal(scene_say(&s->answer, 0, "why</think>Ok." CALL, FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    json_t *root = json_tree_of(scene_out(s));
    json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    json_t *message = json_object_get(choice, "message");
    assert_string_equal(json_string_value(json_object_get(message, "reasoning_content")), "why");
    assert_string_equal(json_string_value(json_object_get(message, "reasoning")), "why");
    assert_string_equal(json_string_value(json_object_get(message, "content")), "Ok.");
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "tool_calls");
    json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_int_equal(strncmp(json_string_value(json_object_get(call, "id")), "call_", 5), 0);
    json_t *function = json_object_get(call, "function");
    assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                        "{\"city\": \"Rome\"}");
    json_decref(root);
    assert_int_equal(answer_count(&s->answer).n_reasoning, 4);
    scene_close(s);
}

/* Joins one member of every delta of a stream. */
static void join_deltas(const char *stream, const char *key, struct buf *out, unsigned *n_call)
{
    *n_call = 0;
    for (const char *at = strstr(stream, "data: {"); at; at = strstr(at + 1, "data: {")) {
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        json_t *root = json_tree_of_bytes(at + 6, (size_t)(end - at) - 6);
        json_t *delta =
            json_object_get(json_array_get(json_object_get(root, "choices"), 0), "delta");
        json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
        if (json_object_get(call, "id")) ++*n_call;
        json_t *value = call ? json_object_get(json_object_get(call, "function"), key)
                             : json_object_get(delta, key);
        if (json_is_string(value)) (void)buf_add_str(out, json_string_value(value));
        json_decref(root);
    }
}

static void assert_joined(struct scene *s, const char *key, const char *want)
{
    struct buf text = {0};
    unsigned n_call;
    join_deltas(scene_out(s), key, &text, &n_call);
    assert_string_equal(buf_str(&text), want);
    assert_int_equal(n_call, 2);
    buf_free(&text);
}

static void test_chat_stream_of_reasoning_and_calls(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_CHAT, CHAT(",\"stream\":true" TOOLS), true);
    const char *text = "why</think>Ok.\n\n<" D "function_calls>\n"
                       "<" D "invoke name=\"f\">\n</" D "invoke>\n"
                       "<" D "invoke name=\"g\">\n<" D "parameter name=\"n\" string=\"false\">1</" D
                       "parameter>\n</" D "invoke>\n</" D "function_calls>";
    assert_int_equal(scene_say(&s->answer, 0, text, FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_joined(s, "reasoning_content", "why");
    assert_joined(s, "reasoning", "why");
    assert_joined(s, "content", "Ok.");
    assert_joined(s, "name", "fg");
    assert_joined(s, "arguments", "{}{\"n\": 1}");
    assert_non_null(strstr(scene_out(s), "\"finish_reason\":\"tool_calls\""));
    assert_non_null(strstr(scene_out(s), "\"tool_calls\":[{\"index\":1,\"id\":\"call_"));
    scene_close(s);
}

static void test_completion_bytes(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_COMPLETION,
                                 "{\"prompt\":\"x\",\"stop\":\"STOP\",\"echo\":true,"
                                 "\"return_token_ids\":true}",
                                 false);
    assert_int_equal(scene_say(&s->answer, 0, "a\nSTOPb", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    static const char *const want[] = {
        HEAD("text_completion"),
        "{\"index\":0,\"text\":\"xa\\n\",\"logprobs\":null,\"finish_reason\":\"stop\","
        "\"stop_reason\":\"STOP\",\"prompt_token_ids\":[132,134,131,129,132,136],\"token_ids\":["
        "117,30,103,104,99,100]}],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":6,"
        "\"total_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":4},"
        "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}",
    };
    assert_out(s, want, 2);
    scene_close(s);
}

static void test_completion_logprobs(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":2}", false);
    assert_int_equal(scene_say(&s->answer, 0, "é!", FATHOM_FINISH_LENGTH), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    /* lone bytes read as U+FFFD, two are a character of the text; a key stands once in an object */
    const char *want =
        "\"text\":\"é!\",\"logprobs\":{\"tokens\":[\"\xEF\xBF\xBD\",\"\xEF\xBF\xBD\","
        "\"!\"],\"token_logprobs\":[-0.25,-0.25,-0.25],\"top_logprobs\":[{"
        "\"\xEF\xBF\xBD\":-0.25},{\"\xEF\xBF\xBD\":-0.25},{\"!\":-0.25,"
        "\"\xEF\xBF\xBD\":-3.5}],\"text_offset\":[0,0,1]},\"finish_reason\":"
        "\"length\",\"stop_reason\":null}";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    scene_close(s);

    /* half a character is one once something else comes, and that comes behind it */
    static const char halves[] = "a\xE4\xB8z\xE4🎉!";
    s = scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0}", false);
    for (size_t i = 0; halves[i]; i++) {
        const fathom_event e = {.kind = FATHOM_EVENT_TOKEN,
                                .token = BYTE_0 + (unsigned char)halves[i]};
        bool stopped;
        assert_int_equal(answer_token(&s->answer, 0, &e, &stopped), 0);
    }
    assert_int_equal(scene_say(&s->answer, 0, "", FATHOM_FINISH_LENGTH), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "\"text\":\"a\xEF\xBF\xBDz\xEF\xBF\xBD🎉!\""));
    assert_non_null(strstr(scene_out(s), "\"text_offset\":[0,1,1,2,3,4,4,4,4,5]"));
    scene_close(s);
}

#define SCORED "\"tokens\":[\"p\",\"r\",\"o\",\"m\",\"p\",\"t\""
#define SCORES "\"token_logprobs\":[null,-0.125,-0.25,-0.375,-0.5,-0.625"

/* With echo the prompt's tokens stand before the answer's, the first one without a number. */
static void test_echoed_logprobs(void **state)
{
    (void)state;
    struct scene *s =
        scene_open(API_COMPLETION, "{\"prompt\":\"prompt\",\"echo\":true,\"logprobs\":1}", false);
    assert_int_equal(scene_score(&s->answer, 0), 0);
    assert_int_equal(scene_say(&s->answer, 0, "!", FATHOM_FINISH_LENGTH), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    const char *want = "\"text\":\"prompt!\",\"logprobs\":{" SCORED ",\"!\"]," SCORES ",-0.25],"
                       "\"top_logprobs\":[null,{\"\xEF\xBF\xBD\":-0.0625,\"r\":-0.125},";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    assert_non_null(strstr(scene_out(s), "\"text_offset\":[0,1,2,3,4,5,6]"));
    scene_close(s);

    /* the prompt alone: the token that the engine draws all the same is not told */
    s = scene_open(API_COMPLETION,
                   "{\"prompt\":\"prompt\",\"echo\":true,\"logprobs\":0,\"max_tokens\":0}", false);
    assert_int_equal(scene_score(&s->answer, 0), 0);
    assert_int_equal(scene_say(&s->answer, 0, "!", FATHOM_FINISH_LENGTH), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    want = "\"text\":\"prompt\",\"logprobs\":{" SCORED "]," SCORES "],"
           "\"top_logprobs\":[null,null,null,null,null,null]";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    assert_non_null(strstr(scene_out(s), "\"finish_reason\":\"length\""));
    assert_non_null(strstr(scene_out(s), "\"completion_tokens\":0,"));
    scene_close(s);

    /* streamed: all of it is in the first chunk */
    s = scene_open(API_COMPLETION,
                   "{\"prompt\":\"prompt\",\"echo\":true,\"logprobs\":0,\"stream\":true}", false);
    assert_int_equal(scene_score(&s->answer, 0), 0);
    assert_int_equal(scene_say(&s->answer, 0, "!?", FATHOM_FINISH_LENGTH), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    want = "\"text\":\"prompt!\",\"logprobs\":{" SCORED ",\"!\"]";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    assert_non_null(strstr(scene_out(s), "\"text\":\"?\",\"logprobs\":{\"tokens\":[\"?\"]"));
    scene_close(s);
}

/* vLLM's form: by token id, with ranks; once for each prompt. */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    static const char entry[] =
        "\"prompt_logprobs\":[null,{\"134\":{\"logprob\":-0.125,\"rank\":2,\"decoded_token\":"
        "\"r\"},\"215\":{\"logprob\":-0.0625,\"rank\":1,\"decoded_token\":\"\xEF\xBF\xBD\"}},{";
    struct scene *s = scene_open(API_CHAT, CHAT(",\"prompt_logprobs\":2,\"n\":2"), false);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(scene_score(&s->answer, i), 0);
        assert_int_equal(scene_say(&s->answer, i, "!", FATHOM_FINISH_STOP), 0);
    }
    assert_int_equal(answer_close(&s->answer), 0);
    const char *at = strstr(scene_out(s), entry);
    if (!at || strstr(at + 5, "prompt_logprobs")) fail_msg("%s", scene_out(s));
    assert_non_null(strstr(scene_out(s), "}]}")); /* the body ends with it */
    scene_close(s);
    s = scene_open(API_COMPLETION, "{\"prompt\":[\"prompt\",\"prompt\"],\"prompt_logprobs\":1}",
                   false);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(scene_score(&s->answer, i), 0);
        assert_int_equal(scene_say(&s->answer, i, "!", FATHOM_FINISH_STOP), 0);
    }
    assert_int_equal(answer_close(&s->answer), 0);
    at = strstr(scene_out(s), entry);
    if (!at || !strstr(at + 5, entry)) fail_msg("%s", scene_out(s));
    scene_close(s);
}

/* Of best_of the likeliest are told, the likeliest first; all tokens are counted. */
static void test_best_of(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"n\":2,\"best_of\":3}", false);
    static const float logprobs[] = {-2, -0.5f, -1};
    for (size_t i = 0; i < 3; i++) {
        bool stopped;
        fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .logprob = logprobs[i]};
        e.token = (int32_t)(20 + 'a' + i);
        assert_int_equal(answer_token(&s->answer, i, &e, &stopped), 0);
        e = (fathom_event){.kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_LENGTH};
        assert_int_equal(answer_finish(&s->answer, i, &e), 0);
    }
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "{\"index\":0,\"text\":\"b\""));
    assert_non_null(strstr(scene_out(s), ",{\"index\":1,\"text\":\"c\""));
    assert_null(strstr(scene_out(s), "\"text\":\"a\""));
    assert_non_null(strstr(scene_out(s), "\"completion_tokens\":3,"));
    scene_close(s);

    /* the end counts: a choice that hardly ends here is not the likeliest */
    s = scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"n\":1,\"best_of\":2}", false);
    for (size_t i = 0; i < 2; i++) {
        bool stopped;
        fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .logprob = i ? -0.5f : -0.25f};
        e.token = (int32_t)(BYTE_0 + 'a' + i);
        assert_int_equal(answer_token(&s->answer, i, &e, &stopped), 0);
        e = (fathom_event){.kind = FATHOM_EVENT_TOKEN, .token = 1, .is_stop = true};
        e.logprob = i ? -0.5f : -1;
        assert_int_equal(answer_token(&s->answer, i, &e, &stopped), 0);
        e = (fathom_event){.kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_STOP, .stop_id = 1};
        assert_int_equal(answer_finish(&s->answer, i, &e), 0);
    }
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "{\"index\":0,\"text\":\"b\""));
    scene_close(s);

    /* what has no likelihood comes last, and has a place all the same */
    s = scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"n\":2,\"best_of\":3}", false);
    for (size_t i = 0; i < 3; i++) {
        bool stopped;
        fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .logprob = NAN};
        e.token = (int32_t)(BYTE_0 + 'a' + i);
        assert_int_equal(answer_token(&s->answer, i, &e, &stopped), 0);
        e = (fathom_event){.kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_LENGTH};
        assert_int_equal(answer_finish(&s->answer, i, &e), 0);
    }
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "{\"index\":1,\"text\":\"b\""));
    scene_close(s);
}

static void test_reasoning_is_told_if_wanted(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_CHAT, CHAT(",\"include_reasoning\":false"), true);
    assert_int_equal(scene_say(&s->answer, 0, "why</think>Ok.", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_null(strstr(scene_out(s), "why"));
    assert_non_null(strstr(scene_out(s), "\"content\":\"Ok.\""));
    assert_non_null(strstr(scene_out(s), "\"reasoning_tokens\":4"));
    scene_close(s);
}

static void test_chat_logprobs(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":2"), false);
    assert_int_equal(scene_say(&s->answer, 0, "é", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    const char *want = "\"logprobs\":{\"content\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.25,"
                       "\"bytes\":[195],\"top_logprobs\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":"
                       "-0.25,\"bytes\":[195]},";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    assert_non_null(strstr(scene_out(s), "\"bytes\":[169]"));
    scene_close(s);
}

/* Whatever is streamed, the logprobs of all tokens leave, though text is held back. */
static void test_stream_keeps_every_logprob(void **state)
{
    (void)state;
    struct scene *s =
        scene_open(API_CHAT, CHAT(",\"stream\":true,\"logprobs\":true,\"stop\":[\"abcX\"]"), false);
    assert_int_equal(scene_say(&s->answer, 0, "abcabé", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    size_t n = 0;
    for (const char *at = scene_out(s); (at = strstr(at, "\"top_logprobs\":")); at++) n++;
    assert_int_equal(n, 8); /* the seven tokens and EOS */
    scene_close(s);
}

#define E_TEXT "<｜end▁of▁sentence｜>"

/* The end has an entry like every token: as many entries as ids and completion tokens. Its text is
 * told there alone. */
static void test_the_end_has_a_logprob(void **state)
{
    (void)state;
    struct scene *s = scene_open(
        API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":2,\"return_token_ids\":true}", false);
    assert_int_equal(scene_say(&s->answer, 0, "a!", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    const char *want = "\"text\":\"a!\",\"logprobs\":{\"tokens\":[\"a\",\"!\",\"" E_TEXT "\"],"
                       "\"token_logprobs\":[-0.25,-0.25,-0.75],\"top_logprobs\":[";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    assert_non_null(
        strstr(scene_out(s), ",{\"c\":-0.5,\"" E_TEXT "\":-0.75}],\"text_offset\":[0,1,2]}"));
    assert_non_null(strstr(scene_out(s), "\"token_ids\":[117,53,1]"));
    assert_non_null(strstr(scene_out(s), "\"completion_tokens\":3,"));
    scene_close(s);

    s = scene_open(API_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":2"), false);
    assert_int_equal(scene_say(&s->answer, 0, "a", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    want =
        ",{\"token\":\"" E_TEXT
        "\",\"logprob\":-0.75,\"bytes\":[60,239,189,156,101,110,100,226,150,"
        "129,111,102,226,150,129,115,101,110,116,101,110,99,101,239,189,156,62],\"top_logprobs\":["
        "{\"token\":\"c\",\"logprob\":-0.5,\"bytes\":[99]},{\"token\":\"" E_TEXT "\"";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    assert_non_null(strstr(scene_out(s), "\"content\":\"a\""));
    scene_close(s);
}

/* Streamed, it leaves with the chunk that tells the end. */
static void test_a_streamed_end_has_a_logprob(void **state)
{
    (void)state;
    struct scene *s =
        scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0,\"stream\":true}", false);
    assert_int_equal(scene_say(&s->answer, 0, "a", FATHOM_FINISH_STOP), 0);
    const char *want =
        "\"text\":\"\",\"logprobs\":{\"tokens\":[\"" E_TEXT "\"],\"token_logprobs\":[-0.75],"
        "\"top_logprobs\":[null],\"text_offset\":[1]},\"finish_reason\":\"stop\"";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    scene_close(s);
    s = scene_open(API_CHAT, CHAT(",\"logprobs\":true,\"stream\":true"), false);
    assert_int_equal(scene_say(&s->answer, 0, "a", FATHOM_FINISH_STOP), 0);
    want = "\"delta\":{},\"logprobs\":{\"content\":[{\"token\":\"" E_TEXT "\",\"logprob\":-0.75,";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    scene_close(s);
}

/* So has a stop token that the request named, whose text is left out, and each token of a stop
 * string. */
static void test_stops_have_logprobs(void **state)
{
    (void)state;
    struct scene *s = scene_open(
        API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0,\"stop_token_ids\":[118]}", false);
    bool stopped;
    fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .token = BYTE_0 + 'a', .logprob = -0.25f};
    assert_int_equal(answer_token(&s->answer, 0, &e, &stopped), 0);
    e = (fathom_event){
        .kind = FATHOM_EVENT_TOKEN, .token = BYTE_0 + 'b', .logprob = -2, .is_stop = true};
    assert_int_equal(answer_token(&s->answer, 0, &e, &stopped), 0);
    e = (fathom_event){.kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_STOP, .stop_id = 118};
    assert_int_equal(answer_finish(&s->answer, 0, &e), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    const char *want = "\"text\":\"a\",\"logprobs\":{\"tokens\":[\"a\",\"b\"],\"token_logprobs\":["
                       "-0.25,-2],\"top_logprobs\":[null,null],\"text_offset\":[0,1]},";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    scene_close(s);
    s = scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0,\"stop\":[\"ST\"]}", false);
    assert_int_equal(scene_say(&s->answer, 0, "aST", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    want = "\"text\":\"a\",\"logprobs\":{\"tokens\":[\"a\",\"S\",\"T\"],";
    if (!strstr(scene_out(s), want)) fail_msg("%s", scene_out(s));
    scene_close(s);
}

static void test_stop_waits_for_min_tokens(void **state)
{
    (void)state;
    struct scene *s =
        scene_open(API_COMPLETION, "{\"prompt\":\"x\",\"stop\":\"b\",\"min_tokens\":4}", false);
    assert_int_equal(scene_say(&s->answer, 0, "abababab", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "\"text\":\"ababa\""));
    scene_close(s);
    s = scene_open(API_COMPLETION,
                   "{\"prompt\":\"x\",\"stop\":\"b\",\"include_stop_str_in_output\":true}", false);
    assert_int_equal(scene_say(&s->answer, 0, "abab", FATHOM_FINISH_STOP), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "\"text\":\"ab\""));
    scene_close(s);
}

static void test_choices_are_apart(void **state)
{
    (void)state;
    struct scene *s =
        scene_open(API_COMPLETION, "{\"prompt\":[\"x\",\"y\"],\"n\":2,\"echo\":true}", false);
    assert_int_equal(s->answer.n_choice, 4);
    static const char *const said[] = {"a", "b", "c", "d"};
    for (size_t i = 4; i-- > 0;) {
        assert_int_equal(scene_say(&s->answer, i, said[i], FATHOM_FINISH_STOP), 0);
    }
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "{\"index\":1,\"text\":\"xb\""));
    assert_non_null(strstr(scene_out(s), "{\"index\":2,\"text\":\"yc\""));
    assert_non_null(strstr(scene_out(s), "\"prompt_tokens\":12,\"completion_tokens\":8"));
    assert_non_null(strstr(scene_out(s), "\"cached_tokens\":8"));
    scene_close(s);
}

static void test_bad_bytes_become_characters(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_COMPLETION, "{\"prompt\":\"x\"}", false);
    fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .token = BYTE_0 + 0xE4};
    fathom_event finish = {.kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_LENGTH};
    bool stopped;
    assert_int_equal(answer_token(&s->answer, 0, &e, &stopped), 0);
    assert_int_equal(answer_finish(&s->answer, 0, &finish), 0);
    assert_int_equal(answer_close(&s->answer), 0);
    assert_non_null(strstr(scene_out(s), "\"text\":\"\xEF\xBF\xBD\""));
    scene_close(s);
}

static void test_fail_ends_a_stream(void **state)
{
    (void)state;
    struct scene *s = scene_open(API_CHAT, CHAT(",\"stream\":true"), false);
    struct api_error e = {0};
    (void)api_error_set(&e, 503, "engine_failed", NULL, "it \"broke\"");
    assert_int_equal(answer_fail(&s->answer, &e), 0);
    assert_int_equal(answer_fail(&s->answer, &e), 0);
    assert_string_equal(scene_out(s), "data: {\"error\":{\"message\":\"it \\\"broke\\\"\",\"type\":"
                                      "\"server_error\",\"param\":null,\"code\":\"engine_failed\"}}"
                                      "\n\ndata: [DONE]\n\n");
    bool stopped;
    fathom_event late = {.kind = FATHOM_EVENT_TOKEN, .token = BYTE_0 + 'a'};
    size_t n = s->answer.out.len;
    assert_int_equal(answer_token(&s->answer, 0, &late, &stopped), 0);
    assert_int_equal(s->answer.out.len, n);
    scene_close(s);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    static const struct {
        enum api_kind api;
        const char *body;
    } cases[] = {
        {API_CHAT, CHAT(",\"stream\":true,\"logprobs\":true,\"stop\":[\"Q\"],"
                        "\"return_token_ids\":true" TOOLS)},
        {API_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":2" TOOLS)},
        {API_COMPLETION, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":2,\"stop\":\"Q\"}"},
        {API_COMPLETION, "{\"prompt\":\"a\",\"stream\":true,\"logprobs\":1,"
                         "\"stream_options\":{\"include_usage\":true}}"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        bool failed = true;
        for (long n = 0; failed; n++) {
            struct scene *s = mem_alloc(sizeof *s);
            assert_non_null(s);
            mem_fail_after(n);
            fathom_err err = scene_try(s, cases[k].api, cases[k].body, true);
            if (!err) err = scene_say(&s->answer, 0, "why</think>Ok." CALL, FATHOM_FINISH_STOP);
            if (!err) err = answer_close(&s->answer);
            failed = mem_fail_hit();
            mem_fail_after(-1);
            assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
            scene_close(s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_stream_bytes),
        cmocka_unit_test(test_a_stream_without_text_ends_once),
        cmocka_unit_test(test_chat_body_bytes),
        cmocka_unit_test(test_chat_stream_of_reasoning_and_calls),
        cmocka_unit_test(test_completion_bytes),
        cmocka_unit_test(test_completion_logprobs),
        cmocka_unit_test(test_echoed_logprobs),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_best_of),
        cmocka_unit_test(test_reasoning_is_told_if_wanted),
        cmocka_unit_test(test_chat_logprobs),
        cmocka_unit_test(test_stream_keeps_every_logprob),
        cmocka_unit_test(test_the_end_has_a_logprob),
        cmocka_unit_test(test_a_streamed_end_has_a_logprob),
        cmocka_unit_test(test_stops_have_logprobs),
        cmocka_unit_test(test_stop_waits_for_min_tokens),
        cmocka_unit_test(test_choices_are_apart),
        cmocka_unit_test(test_bad_bytes_become_characters),
        cmocka_unit_test(test_fail_ends_a_stream),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, scene_setup, scene_teardown);
}

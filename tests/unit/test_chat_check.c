/* test_chat_check.c - message lists and tool lists that cannot be rendered are told apart and
 * named by their path */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "chat/chat_int.h"
#include "support/json_tree.h"

struct bad {
    const char *json;
    const char *message; /* part of it */
};

typedef fathom_err check_fn(const json_t *v, fathom_diag *d);

static fathom_err check_tools(const json_t *v, fathom_diag *d)
{
    return chat_check_tools(v, "tools", d);
}

static void run(check_fn *check, const struct bad *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fathom_diag d = {0};
        json_t *v = json_tree_of(cases[i].json);
        fathom_err err = check(v, &d);
        bool same = strstr(d.text, cases[i].message) && d.text[0];
        if (!same) {
            print_error("%s\n got: %s\nwant: %s\n", cases[i].json, d.text, cases[i].message);
        }
        assert_int_equal(err, FATHOM_EINVAL);
        assert_true(same);
        assert_int_equal(check(v, NULL), FATHOM_EINVAL);
        json_decref(v);
    }
}

#define ASSISTANT_CALL(call) "[{\"role\":\"assistant\",\"tool_calls\":[" call "]}]"
#define ARGUMENTS(a) ASSISTANT_CALL("{\"function\":{\"name\":\"f\",\"arguments\":" a "}}")

static const struct bad bad_messages[] = {
    {"{}", "messages is an object, an array is needed"},
    {"[]", "messages is empty"},
    {"[1]", "messages[0] is an integer"},
    {"[{}]", "messages[0].role is absent"},
    {"[{\"role\":7}]", "messages[0].role is an integer"},
    {"[{\"role\":\"function\",\"content\":\"\"}]", "messages[0].role is \"function\", it can be"},
    {"[{\"role\":\"user\"}]", "messages[0].content is absent, a message of this role needs text"},
    {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content is null"},
    {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content has no part"},
    {"[{\"role\":\"system\",\"content\":3}]", "messages[0].content is an integer"},
    {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"\"},{\"type\":\"image_url\"}]}]",
     "messages[1].content[1].type is \"image_url\", only text is supported"},
    {"[{\"role\":\"user\",\"content\":[\"a\",1]}]", "messages[0].content[1] is an integer"},
    {"[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]", "content[0].type is not a string"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "content[0].text is absent"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"refusal\",\"text\":\"\"}]}]",
     "content[0].refusal is absent"},
    {"[{\"role\":\"tool\",\"tool_call_id\":1}]", "messages[0].tool_call_id is an integer"},
    {"[{\"role\":\"assistant\",\"reasoning\":[]}]", "messages[0].reasoning is an array"},
    {"[{\"role\":\"assistant\",\"reasoning_content\":1}]", "messages[0].reasoning_content is"},
    {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls is an object"},
    {"[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[1]}]", "only an assistant message"},
    {ASSISTANT_CALL("1"), "messages[0].tool_calls[0] is an integer"},
    {ASSISTANT_CALL("{}"), "messages[0].tool_calls[0].function is absent"},
    {ASSISTANT_CALL("{\"type\":\"custom\"}"), "tool_calls[0].type is not \"function\""},
    {ASSISTANT_CALL("{\"id\":2}"), "tool_calls[0].id is an integer"},
    {ASSISTANT_CALL("{\"function\":{}}"), "tool_calls[0].function.name is missing"},
    {ASSISTANT_CALL("{\"function\":{\"name\":\"\"}}"), "tool_calls[0].function.name is missing"},
    {ARGUMENTS("1"), "tool_calls[0].function.arguments is an integer"},
    {ARGUMENTS("[1]"), "tool_calls[0].function.arguments is an array, a string that holds"},
};

static const struct bad bad_tools[] = {
    {"{}", "tools is an object, an array is needed"},
    {"[1]", "tools[0] is an integer"},
    {"[{\"type\":\"web_search\"}]", "tools[0].type is not \"function\""},
    {"[{}]", "tools[0].function is absent"},
    {"[{\"function\":{\"name\":\"f\"}},{\"function\":{}}]", "tools[1].function.name is missing"},
    {"[{\"function\":{\"name\":\"f\",\"description\":1}}]", "description is an integer"},
    {"[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]", "parameters is an array"},
};

static void test_messages(void **state)
{
    (void)state;
    run(chat_check_messages, bad_messages, sizeof bad_messages / sizeof bad_messages[0]);
    fathom_diag d = {0};
    assert_int_equal(chat_check_messages(NULL, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "messages is absent, an array is needed");
}

static void test_tools(void **state)
{
    (void)state;
    run(check_tools, bad_tools, sizeof bad_tools / sizeof bad_tools[0]);
    fathom_diag d = {0};
    json_t *many = json_array();
    for (int i = 0; i < 600; i++) assert_int_equal(json_array_append_new(many, json_object()), 0);
    assert_int_equal(check_tools(many, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "tools has 600 tools, at most 512 are possible");
    assert_int_equal(check_tools(NULL, NULL), FATHOM_OK);
    assert_int_equal(check_tools(json_null(), NULL), FATHOM_OK);
    json_decref(many);
}

static void test_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        "[{\"role\":\"system\"},{\"role\":\"user\",\"content\":\"\"}]",
        "[{\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]}]",
        "[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}]",
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":null,\"reasoning\":null}]",
        "[{\"role\":\"tool\",\"content\":null}]",
        ARGUMENTS("null"),
        ARGUMENTS("\"\""),
        ARGUMENTS("{}"),
        ARGUMENTS("\" {\\\"a\\\": 1}\\n\""),
        ARGUMENTS("\"{\\\"a\\\": \\\"cut of\""),
        ARGUMENTS("\"[1]\""),
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        fathom_diag d = {0};
        json_t *v = json_tree_of(good[i]);
        fathom_err err = chat_check_messages(v, &d);
        if (err) print_error("%s: %s\n", good[i], d.text);
        assert_int_equal(err, FATHOM_OK);
        json_decref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

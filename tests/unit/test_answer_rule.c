/* test_answer_rule.c - what a request's fields together say of its answer */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "server/api/answer_rule.h"

static json_t *tools(bool strict)
{
    return json_pack("[{s:s, s:{s:s, s:b}}, {s:s, s:{s:s}}]", "type", "function", "function",
                     "name", "f", "strict", strict, "type", "function", "function", "name", "g");
}

static void two_fields_cannot_both_say_the_content(void **state)
{
    (void)state;
    struct answer_rule r = {0};
    struct api_error e = {0};
    json_t *schema = json_object();
    assert_int_equal(answer_rule_set_content(&r, ANSWER_CONTENT_SCHEMA, "a", "a.b", schema, &e),
                     FATHOM_OK);
    assert_int_equal(answer_rule_set_content(&r, ANSWER_CONTENT_OBJECT, "c", "c", NULL, &e),
                     FATHOM_EINVAL);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "c");
    assert_non_null(strstr(e.diag.text, "a.b and c"));
    json_decref(schema);
    answer_rule_free(&r);
    answer_rule_free(&r);
}

static void calls_need_tools_and_no_content(void **state)
{
    (void)state;
    struct answer_rule r = {.tool_choice = TOOL_CHOICE_REQUIRED};
    struct api_error e = {0};
    json_t *list = tools(false), *none = json_array();
    assert_int_equal(answer_rule_check(&r, list, &e), FATHOM_OK);
    assert_int_equal(answer_rule_check(&r, NULL, &e), FATHOM_EINVAL);
    e = (struct api_error){0};
    assert_int_equal(answer_rule_check(&r, none, &e), FATHOM_EINVAL);
    e = (struct api_error){0};
    assert_int_equal(answer_rule_set_tool(&r, "g2", 1), FATHOM_OK);
    assert_int_equal(answer_rule_check(&r, list, &e), FATHOM_OK);
    assert_int_equal(answer_rule_set_tool(&r, "h", 1), FATHOM_OK);
    assert_int_equal(answer_rule_check(&r, list, &e), FATHOM_EINVAL);
    assert_non_null(strstr(e.diag.text, "\"h\""));
    answer_rule_free(&r);
    r.tool_choice = TOOL_CHOICE_REQUIRED;
    e = (struct api_error){0};
    assert_int_equal(answer_rule_set_content(&r, ANSWER_CONTENT_OBJECT, "x", "x", NULL, &e),
                     FATHOM_OK);
    assert_int_equal(answer_rule_check(&r, list, &e), FATHOM_EINVAL);
    assert_string_equal(e.param, "tool_choice");
    answer_rule_free(&r);
    json_decref(list);
    json_decref(none);
}

static void a_grammar_is_needed_only_when_something_is_said(void **state)
{
    (void)state;
    struct answer_rule r = {0};
    struct answer_grammar a;
    struct call_grammar c;
    json_t *loose = tools(false), *strict = tools(true);
    assert_false(answer_rule_grammar(&r, NULL, CHAT_ENCODING_V32, false, &a, &c));
    assert_false(answer_rule_grammar(&r, loose, CHAT_ENCODING_V32, true, &a, &c));
    assert_true(answer_rule_grammar(&r, strict, CHAT_ENCODING_V32, true, &a, &c));
    assert_true(a.content == ANSWER_CONTENT_TEXT && a.calls == &c && a.thinking);
    assert_true(c.strict_only && c.parallel && !c.name);
    r.one_call = true;
    assert_true(answer_rule_grammar(&r, loose, CHAT_ENCODING_V32, false, &a, &c));
    assert_true(a.content == ANSWER_CONTENT_TEXT && !c.parallel && !a.thinking);
    assert_false(answer_rule_grammar(&r, NULL, CHAT_ENCODING_V32, false, &a, &c));
    r.tool_choice = TOOL_CHOICE_REQUIRED;
    assert_true(answer_rule_grammar(&r, loose, CHAT_ENCODING_V31, false, &a, &c));
    assert_true(a.content == ANSWER_CONTENT_NONE && a.calls == &c && !c.strict_only);
    assert_true(c.markup == CHAT_ENCODING_V31 && c.tools == loose);
    r.one_call = false;
    assert_int_equal(answer_rule_set_tool(&r, "f", 1), FATHOM_OK);
    assert_true(answer_rule_grammar(&r, loose, CHAT_ENCODING_V31, false, &a, &c));
    assert_string_equal(c.name, "f");
    assert_false(c.parallel);
    answer_rule_free(&r);
    struct api_error e = {0};
    assert_int_equal(answer_rule_set_content(&r, ANSWER_CONTENT_OBJECT, "x", "x", NULL, &e),
                     FATHOM_OK);
    assert_true(answer_rule_grammar(&r, NULL, CHAT_ENCODING_V31, true, &a, &c));
    assert_true(a.content == ANSWER_CONTENT_OBJECT && !a.calls);
    assert_true(answer_rule_grammar(&r, loose, CHAT_ENCODING_V31, true, &a, &c));
    assert_true(a.content == ANSWER_CONTENT_OBJECT && a.calls == &c && c.strict_only);
    answer_rule_free(&r);
    json_decref(loose);
    json_decref(strict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_fields_cannot_both_say_the_content),
        cmocka_unit_test(calls_need_tools_and_no_content),
        cmocka_unit_test(a_grammar_is_needed_only_when_something_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_reasoning_config.c - values of --reasoning-config */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/options_int.h"

static fathom_err parse(const char *value, struct settings *s, fathom_diag *d)
{
    settings_init(s);
    s->reasoning_config = value;
    return reasoning_parse(s, d);
}

static void expect(const char *value, const char *closing)
{
    struct settings s;
    fathom_diag d = {{0}};
    if (parse(value, &s, &d) != FATHOM_OK) fail_msg("%s", d.text);
    if (closing) {
        assert_string_equal(s.reasoning_closing, closing);
    } else {
        assert_null(s.reasoning_closing);
    }
    settings_free(&s);
}

static void expect_refused(const char *value, const char *part)
{
    struct settings s;
    fathom_diag d = {{0}};
    assert_int_not_equal(parse(value, &s, &d), FATHOM_OK);
    if (!strstr(d.text, part)) fail_msg("\"%s\" does not say \"%s\"", d.text, part);
    assert_non_null(strstr(d.text, "--reasoning-config"));
    settings_free(&s);
}

static void what_the_guides_give_works(void **state)
{
    (void)state;
    expect("{}", NULL);
    expect("{\"reasoning_start_str\": \"<think>\", \"reasoning_end_str\": \"</think>\"}", NULL);
    expect("{\"reasoning_start_str\": \"\", \"reasoning_end_str\": null}", NULL);
    expect("{\"reasoning_end_str\": \"I have to answer.\\n</think>\"}", "I have to answer.\n");
}

static void anything_else_is_refused_and_says_why(void **state)
{
    (void)state;
    expect_refused("{", "line 1");
    expect_refused("[]", "is an array, needed is");
    expect_refused("{\"reasoning_start_str\": \"<reason>\"}", "begins with <think>");
    expect_refused("{\"reasoning_end_str\": \"</reason>\"}",
                   "is \"</reason>\", needed is </think>");
    expect_refused("{\"reasoning_end_str\": \"</think> So\"}", "needed is </think>");
    expect_refused("{\"reasoning_end_str\": \"</think></think>\"}", "needed is </think>");
    expect_refused("{\"reasoning_end_str\": \"<think></think>\"}", "needed is </think>");
    expect_refused("{\"reasoning_end_str\": 1}", "is an integer, needed is a string");
    expect_refused("{\"reasoning_parser\": \"x\"}", "\"reasoning_parser\" is not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_guides_give_works),
        cmocka_unit_test(anything_else_is_refused_and_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

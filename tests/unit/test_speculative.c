/* test_speculative.c - values of --speculative-config */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/options_int.h"

static void assert_drafts(const char *text, uint32_t want)
{
    fathom_diag d = {{0}};
    uint32_t n = 99;
    if (speculative_parse(text, &n, &d) != FATHOM_OK) fail_msg("%s", d.text);
    assert_int_equal(n, want);
}

static void assert_refused(const char *text, const char *part)
{
    fathom_diag d = {{0}};
    uint32_t n;
    assert_int_not_equal(speculative_parse(text, &n, &d), FATHOM_OK);
    if (!strstr(d.text, part)) fail_msg("\"%s\" does not say \"%s\"", d.text, part);
    assert_non_null(strstr(d.text, "--speculative-config"));
}

static void what_the_guides_give_works(void **state)
{
    (void)state;
    assert_drafts(NULL, 0);
    assert_drafts("{\"num_speculative_tokens\": 2, \"method\":\"deepseek_mtp\"}", 2);
    assert_drafts("{\"method\": \"mtp\", \"num_speculative_tokens\": 1}", 1);
    assert_drafts("{\"num_speculative_tokens\": 4}", 4);
}

static void anything_else_is_refused_and_says_why(void **state)
{
    (void)state;
    assert_refused("", "--speculative-config");
    assert_refused("{", "line 1");
    assert_refused("[]", "is an array, needed is an object");
    assert_refused("{}", "num_speculative_tokens is missing");
    assert_refused("{\"method\": \"mtp\"}", "num_speculative_tokens is missing");
    assert_refused("{\"num_speculative_tokens\": 0}", "is 0, needed is 1 to 4");
    assert_refused("{\"num_speculative_tokens\": 5}", "is 5, needed is 1 to 4");
    assert_refused("{\"num_speculative_tokens\": -1}", "is -1");
    assert_refused("{\"num_speculative_tokens\": \"2\"}", "is a string");
    assert_refused("{\"num_speculative_tokens\": 2, \"method\": \"ngram\"}", "\"ngram\"; drafts");
    assert_refused("{\"num_speculative_tokens\": 2, \"method\": 1}", "method is");
    assert_refused("{\"num_speculative_tokens\": 2, \"model\": \"x\"}", "\"model\" is not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_guides_give_works),
        cmocka_unit_test(anything_else_is_refused_and_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_request_defaults.c - values of --override-generation-config and
 * --default-chat-template-kwargs */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/options_int.h"

static fathom_err parse(const char *sampling, const char *keywords, struct settings *s,
                        fathom_diag *d)
{
    settings_init(s);
    s->override_generation_config = sampling;
    s->default_chat_template_kwargs = keywords;
    return request_defaults_parse(s, d);
}

static void what_is_said_holds_and_nothing_else(void **state)
{
    (void)state;
    struct settings s;
    fathom_diag d = {{0}};
    assert_int_equal(parse(NULL, NULL, &s, &d), FATHOM_OK);
    assert_true(s.sampling.temperature < 0 && s.sampling.top_p < 0 && s.sampling.top_k < 0);
    assert_true(s.sampling.min_p < 0 && s.sampling.repetition_penalty < 0 && !s.thinking);
    settings_free(&s);
    assert_int_equal(parse("{\"temperature\": 0, \"top_p\": 0.5, \"top_k\": -1, \"min_p\": null}",
                           "{\"thinking\": true}", &s, &d),
                     FATHOM_OK);
    assert_true(s.sampling.temperature == 0 && s.sampling.top_p == 0.5f && s.sampling.top_k == 0);
    assert_true(s.sampling.min_p < 0 && s.sampling.repetition_penalty < 0 && s.thinking);
    settings_free(&s);
    assert_int_equal(parse("{\"top_k\": 20, \"min_p\": 0.1, \"repetition_penalty\": 1.05}",
                           "{\"enable_thinking\": false}", &s, &d),
                     FATHOM_OK);
    assert_true(s.sampling.temperature < 0 && s.sampling.top_k == 20);
    assert_true(s.sampling.min_p == 0.1f && s.sampling.repetition_penalty == 1.05f && !s.thinking);
    settings_free(&s);
    assert_int_equal(parse("{\"top_p\": 1e-60, \"repetition_penalty\": 1e300}", NULL, &s, &d),
                     FATHOM_OK);
    assert_true(s.sampling.top_p == FLT_MIN && s.sampling.repetition_penalty == FLT_MAX);
    settings_free(&s);
}

static void anything_else_is_refused_and_says_why(void **state)
{
    (void)state;
    static const struct {
        const char *sampling, *keywords, *message;
    } cases[] = {
        {"[]", NULL, "--override-generation-config is an array, needed is an object"},
        {"{", NULL, "line 1"},
        {"{\"temperature\": 2.5}", NULL, "temperature is 2.5, needed is 0 to 2"},
        {"{\"top_p\": 0}", NULL, "top_p is 0, needed is more than 0 to 1"},
        {"{\"repetition_penalty\": 0}", NULL,
         "--override-generation-config: repetition_penalty is 0, needed is more than 0"},
        {"{\"top_k\": 1.5}", NULL, "top_k is 1.5, needed is -1 (off) or from 1"},
        {"{\"min_p\": \"x\"}", NULL, "min_p is a string, needed is a number"},
        {"{\"max_new_tokens\": 5}", NULL, "max_new_tokens is not known here; there are temp"},
        {NULL, "{\"thinking\": 1}", "thinking is an integer, needed is true or false"},
        {NULL, "{\"tools\": true}", "--default-chat-template-kwargs: tools is not known here"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct settings s;
        fathom_diag d = {{0}};
        assert_int_not_equal(parse(cases[i].sampling, cases[i].keywords, &s, &d), FATHOM_OK);
        if (!strstr(d.text, cases[i].message)) {
            fail_msg("\"%s\" does not say \"%s\"", d.text, cases[i].message);
        }
        settings_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_holds_and_nothing_else),
        cmocka_unit_test(anything_else_is_refused_and_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

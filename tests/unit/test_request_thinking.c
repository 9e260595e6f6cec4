/* test_request_thinking.c - fields of a chat that switch thinking on and off, and bound it */
#include "server/api/api_request.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct thinking {
    enum api_switch on;
    uint32_t budget;
};

/* What a chat with these fields asks for */
static struct thinking chat_with(const char *fields)
{
    const struct api_bounds bounds = {.n_vocab = 1000, .strict = true};
    struct api_request r;
    struct api_error e = {0};
    char body[512];
    (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s}",
                   fields);
    if (api_request_parse(&r, API_CHAT, body, strlen(body), &bounds, &e))
        fail_msg("%s: %s", body, e.diag.text);
    const struct thinking asked = {r.thinking, r.thinking_budget};
    api_request_free(&r);
    return asked;
}

static enum api_switch thinking_of(const char *fields)
{
    return chat_with(fields).on;
}

static void test_thinking_switches(void **state)
{
    (void)state;
    assert_int_equal(thinking_of(",\"reasoning_effort\":\"minimal\""), API_OFF);
    assert_int_equal(thinking_of(",\"reasoning_effort\":\"low\""), API_ON);
    assert_int_equal(thinking_of(",\"thinking\":{\"type\":\"enabled\"}"), API_ON);
    assert_int_equal(thinking_of(",\"thinking\":{\"type\":\"auto\"}"), API_UNSET);
    assert_int_equal(thinking_of(",\"chat_template_kwargs\":{\"enable_thinking\":true}"), API_ON);
    assert_int_equal(thinking_of(",\"chat_template_kwargs\":{\"thinking\":false}"), API_OFF);
    assert_int_equal(thinking_of(",\"enable_thinking\":true"), API_ON);
    assert_int_equal(thinking_of(",\"enable_thinking\":\"false\""), API_OFF);
    /* the most specific field holds, in whatever order */
    const char *on = ",\"chat_template_kwargs\":{\"thinking\":true},"
                     "\"thinking\":{\"type\":\"disabled\"},\"reasoning_effort\":\"none\"";
    const char *off = ",\"reasoning_effort\":\"high\",\"thinking\":{\"type\":\"disabled\"}";
    assert_int_equal(thinking_of(on), API_ON);
    assert_int_equal(thinking_of(off), API_OFF);
}

static uint32_t budget_of(const char *fields)
{
    return chat_with(fields).budget;
}

static void test_thinking_budgets(void **state)
{
    (void)state;
    assert_int_equal(budget_of(""), API_NO_BUDGET);
    assert_int_equal(budget_of(",\"thinking_token_budget\":-1"), API_NO_BUDGET);
    assert_int_equal(budget_of(",\"thinking_token_budget\":0"), 0);
    assert_int_equal(budget_of(",\"thinking_token_budget\":2147483647"), INT32_MAX);
    assert_int_equal(budget_of(",\"thinking\":{\"type\":\"auto\",\"budget_tokens\":7}"), 7);
    assert_int_equal(budget_of(",\"thinking\":{\"type\":\"disabled\",\"budget_tokens\":0}"), 0);
    assert_int_equal(budget_of(",\"thinking_budget\":9"), 9);
    /* the smallest holds, in whatever order */
    assert_int_equal(budget_of(",\"thinking_token_budget\":5,"
                               "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":7}"),
                     5);
    assert_int_equal(budget_of(",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":7},"
                               "\"thinking_token_budget\":-1"),
                     7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thinking_switches),
        cmocka_unit_test(test_thinking_budgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

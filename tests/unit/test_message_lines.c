/* test_message_lines.c - messages of several lines */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/message_lines.h"

static const struct {
    const char *lines[5];
    const char *text;
} messages[] = {
    {{"one"}, "one"},
    {{""}, ""},
    {{"one \\", "two\\", "three"}, "one \ntwo\nthree"},
    {{"\\", ""}, "\n"},
    {{"\"\"\"", "one", "two", "\"\"\""}, "one\ntwo"},
    {{"\"\"\"", "", "  two \\", "", "\"\"\""}, "\n  two \\\n"},
    {{"\"\"\"", "\"\"\""}, ""},
    {{"say \"\"\""}, "say \"\"\""},
    {{"one\\", "\"\"\""}, "one\n\"\"\""},
};

static void lines_become_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        struct message_lines m = {0};
        for (size_t k = 0; k < 5 && messages[i].lines[k]; k++) {
            bool last = k == 4 || !messages[i].lines[k + 1];
            const char *line = messages[i].lines[k];
            assert_int_equal(message_lines_add(&m, line, strlen(line)), !last);
        }
        assert_string_equal(buf_str(&m.text), messages[i].text);
        message_lines_free(&m);
        assert_false(message_lines_add(&m, "next", 4));
        assert_string_equal(buf_str(&m.text), "next");
        message_lines_free(&m);
    }
}

static void no_memory_shows(void **state)
{
    (void)state;
    struct message_lines m = {0};
    mem_fail_after(0);
    (void)message_lines_add(&m, "one", 3);
    mem_fail_after(-1);
    assert_int_equal(buf_status(&m.text), FATHOM_ENOMEM);
    message_lines_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_become_messages),
                                       cmocka_unit_test(no_memory_shows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_compilation.c - values of --compilation-config and -O */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/options_int.h"

static struct compilation parsed(const char *text, int64_t level, const char *note)
{
    struct compilation c;
    struct buf notes = {0};
    fathom_diag d = {{0}};
    if (compilation_parse(text, level, &c, &notes, &d) != FATHOM_OK) fail_msg("%s", d.text);
    if (note && !strstr(buf_str(&notes), note)) {
        fail_msg("\"%s\" not in \"%s\"", note, buf_str(&notes));
    }
    if (!note) assert_int_equal(notes.len, 0);
    buf_free(&notes);
    return c;
}

static void assert_refused(const char *text, const char *part)
{
    struct compilation c;
    struct buf notes = {0};
    fathom_diag d = {{0}};
    assert_int_not_equal(compilation_parse(text, -1, &c, &notes, &d), FATHOM_OK);
    if (!strstr(d.text, part)) fail_msg("\"%s\" does not say \"%s\"", d.text, part);
    assert_non_null(strstr(d.text, "--compilation-config"));
    buf_free(&notes);
}

static void what_the_guides_give_works(void **state)
{
    (void)state;
    struct compilation c = parsed(NULL, -1, NULL);
    assert_false(c.no_graphs);
    assert_int_equal(c.n_size, 0);
    c = parsed("{\"cudagraph_mode\":\"FULL_DECODE_ONLY\",\"cudagraph_capture_sizes\":[3,6,9,12]}",
               -1, NULL);
    const uint32_t sizes[] = {3, 6, 9, 12};
    assert_false(c.no_graphs);
    assert_int_equal(c.n_size, 4);
    assert_memory_equal(c.sizes, sizes, sizeof sizes);
    c = parsed("{\"cudagraph_num_of_warmups\": 2, \"cudagraph_mode\": \"FULL\"}", 3, NULL);
    assert_int_equal(c.n_warm_up, 2);
    assert_true(parsed("{\"cudagraph_mode\": \"NONE\"}", -1, NULL).no_graphs);
    assert_true(parsed("{\"cudagraph_capture_sizes\": []}", -1, NULL).no_graphs);
    assert_true(parsed(NULL, 0, NULL).no_graphs);
    assert_true(parsed("0", -1, NULL).no_graphs);
    assert_false(parsed("3", -1, NULL).no_graphs);
    assert_false(parsed(NULL, 1, NULL).no_graphs);
    assert_false(parsed("{\"cudagraph_mode\": null}", -1, NULL).no_graphs);
}

static void what_has_no_effect_is_told(void **state)
{
    (void)state;
    assert_false(parsed("{\"cudagraph_mode\": \"PIECEWISE\"}", -1, "taken as FULL").no_graphs);
    parsed("{\"level\": 3}", -1, "\"level\" has no effect: kernels are compiled ahead of time");
    parsed("{\"custom_ops\": [\"all\"]}", -1, "\"custom_ops\" has no effect");
}

static void anything_else_is_refused_and_says_why(void **state)
{
    (void)state;
    assert_refused("{", "line 1");
    assert_refused("7", "the level is 7, needed is 0 to 3");
    assert_refused("[3]", "is an array, needed is an object, or a level of 0 to 3");
    assert_refused("{\"cudagraph_mode\": \"HALF\"}", "cudagraph_mode is HALF");
    assert_refused("{\"cudagraph_mode\": 2}", "cudagraph_mode is an integer");
    assert_refused("{\"cudagraph_capture_sizes\": 8}", "is an integer, needed is an array");
    assert_refused("{\"cudagraph_capture_sizes\": [1, 0]}", "is 0, needed is 1 to 8192");
    assert_refused("{\"cudagraph_capture_sizes\": [\"1\"]}", "is a string");
    assert_refused("{\"cudagraph_num_of_warmups\": -1}", "is -1, needed is 0 to 100");
    struct buf many = {0};
    (void)buf_add_str(&many, "{\"cudagraph_capture_sizes\": [1");
    for (int i = 0; i < COMPILATION_SIZES_MAX; i++) (void)buf_add_str(&many, ",1");
    (void)buf_add_str(&many, "]}");
    assert_refused(buf_str(&many), "too long");
    buf_free(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_guides_give_works),
        cmocka_unit_test(what_has_no_effect_is_told),
        cmocka_unit_test(anything_else_is_refused_and_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

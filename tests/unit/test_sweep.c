/* test_sweep.c - lists, points, rows */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "bench/sweep.h"

static void assert_list(const char *text, bool whole, size_t n, const double *want)
{
    struct sweep_list l;
    assert_int_equal(sweep_list_read(&l, text, "--x", whole, NULL), FATHOM_OK);
    assert_int_equal(l.n, n);
    for (size_t i = 0; i < n; i++) assert_true(fabs(l.values[i] - want[i]) < 1e-9);
}

static void lists_have_numbers_and_ranges(void **state)
{
    (void)state;
    assert_list("1", true, 1, (const double[]){1});
    assert_list("1,2,4-8", true, 7, (const double[]){1, 2, 4, 5, 6, 7, 8});
    assert_list("10-100/45", true, 3, (const double[]){10, 55, 100});
    assert_list("0.5,1-2/0.5", false, 4, (const double[]){0.5, 1, 1.5, 2});
    assert_list("", true, 0, NULL);
    struct sweep_list l;
    assert_int_equal(sweep_list_read(&l, "1,inf", "--x", false, NULL), FATHOM_OK);
    assert_true(isinf(l.values[1]));
}

static void what_is_no_list_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"x",     "1,x", "0",   "-1",   "1-",    "5-1",
                                      "1-9/0", "1 2", "1.5", "inf",  "1-inf", "1-100000",
                                      "nan",   "1/",  ",1",  "1e30", "1-2-3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sweep_list l;
        fathom_diag d = {{0}};
        if (sweep_list_read(&l, bad[i], "--x", true, &d) != FATHOM_EINVAL) {
            fail_msg("\"%s\" is taken", bad[i]);
        }
        assert_non_null(strstr(d.text, "--x"));
    }
}

static void points_are_all_combinations(void **state)
{
    (void)state;
    const struct sweep_list in = {{1024, 4096}, 2};
    const struct sweep_list out = {{256}, 1};
    const struct sweep_list loads = {{1, 8}, 2};
    const struct sweep_list rates = {{2.5}, 1};
    const struct sweep_list none = {.n = 0};
    struct sweep_point *p;
    size_t n;
    assert_int_equal(sweep_points_make(&p, &n, &in, &out, &loads, &rates, NULL), FATHOM_OK);
    assert_int_equal(n, 6);
    assert_string_equal(p[0].name, "in1024-out256-c1");
    assert_true(isinf(p[0].rate));
    assert_int_equal(sweep_requests(&p[0]), 10);
    assert_int_equal(sweep_requests(&p[1]), 40);
    assert_string_equal(p[2].name, "in1024-out256-r2.5");
    assert_int_equal(p[2].concurrency, 0);
    assert_int_equal(sweep_requests(&p[2]), 75);
    assert_string_equal(p[5].name, "in4096-out256-r2.5");
    mem_free(p);
    assert_int_equal(sweep_points_make(&p, &n, &in, &out, &none, &none, NULL), FATHOM_EINVAL);
    mem_fail_after(0);
    assert_int_equal(sweep_points_make(&p, &n, &in, &out, &loads, &none, NULL), FATHOM_ENOMEM);
    mem_fail_after(-1);
}

static size_t count(const char *text, char c)
{
    size_t n = 0;
    for (; *text; text++) n += *text == c;
    return n;
}

static void rows_have_the_columns_of_the_head(void **state)
{
    (void)state;
    struct buf head = {0};
    struct buf row = {0};
    json_t *r =
        json_pack("{s:s, s:f, s:n, s:{s:b}, s:s}", "label", "a \"b\"", "output_throughput", 12.5,
                  "max_concurrency", "checks", "littles_law_holds", 1, "workload", "x\ny");
    assert_int_equal(sweep_csv_head(&head), FATHOM_OK);
    assert_int_equal(sweep_csv_row(&row, r), FATHOM_OK);
    assert_int_equal(count(buf_str(&head), ','), count(buf_str(&row), ','));
    assert_int_equal(count(buf_str(&row), '\n'), 1);
    assert_non_null(strstr(buf_str(&row), "\"a \"\"b\"\"\","));
    assert_non_null(strstr(buf_str(&row), ",12.5,"));
    assert_non_null(strstr(buf_str(&row), ",true,"));
    assert_non_null(strstr(buf_str(&row), "\"x y\"\n"));
    json_decref(r);
    buf_free(&head);
    buf_free(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_numbers_and_ranges),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test(points_are_all_combinations),
        cmocka_unit_test(rows_have_the_columns_of_the_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_prometheus.c - bounds, labels and numbers of Prometheus' text form */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "server/prometheus.h"
#include "support/exposition.h"

static void assert_valid(const char *text)
{
    char why[256] = "";
    if (!exposition_check(text, why, sizeof why)) fail_msg("%s in:\n%s", why, text);
}

static void assert_invalid(const char *text, const char *part)
{
    char why[256] = "";
    assert_false(exposition_check(text, why, sizeof why));
    if (!strstr(why, part)) fail_msg("%s, needed: %s", why, part);
}

static void a_value_counts_at_the_first_bound_not_below_it(void **state)
{
    (void)state;
    static const uint64_t bounds[] = {10, 20, 1000000};
    struct histogram h;
    struct buf b = {0}, labels = {0};
    histogram_init(&h, bounds, 3, 1e6);
    static const uint64_t values[] = {0, 10, 11, 20, 21, 1000000, 1000001, 5000000};
    for (size_t i = 0; i < 8; i++) histogram_observe(&h, values[i]);
    prometheus_label(&labels, "model_name", "m");
    prometheus_family(&b, "x", PROMETHEUS_HISTOGRAM, "Help.");
    prometheus_histogram(&b, "x", &labels, &h);
    assert_string_equal(buf_str(&b), "# HELP x Help.\n# TYPE x histogram\n"
                                     "x_bucket{model_name=\"m\",le=\"1e-05\"} 2\n"
                                     "x_bucket{model_name=\"m\",le=\"2e-05\"} 4\n"
                                     "x_bucket{model_name=\"m\",le=\"1.0\"} 6\n"
                                     "x_bucket{model_name=\"m\",le=\"+Inf\"} 8\n"
                                     "x_sum{model_name=\"m\"} 7.000063\n"
                                     "x_count{model_name=\"m\"} 8\n");
    assert_valid(buf_str(&b));
    buf_free(&b);
    buf_free(&labels);
}

static void bounds_of_counts_go_up_to_the_largest(void **state)
{
    (void)state;
    struct histogram h;
    histogram_init_125(&h, 120);
    static const uint64_t want[] = {1, 2, 5, 10, 20, 50, 100};
    assert_int_equal(h.n_bound, 7);
    for (size_t i = 0; i < 7; i++) assert_int_equal(h.bounds[i], want[i]);
    histogram_init_125(&h, 2);
    assert_int_equal(h.n_bound, 2);
    histogram_init_125(&h, UINT64_MAX / 16);
    assert_true(h.n_bound > 20 && h.n_bound <= HISTOGRAM_BOUNDS_MAX);
    histogram_init_125(&h, 0);
    assert_int_equal(h.n_bound, 0);
    struct buf b = {0};
    prometheus_family(&b, "x", PROMETHEUS_HISTOGRAM, "");
    prometheus_histogram(&b, "x", NULL, &h);
    assert_valid(buf_str(&b));
    buf_free(&b);
}

static void labels_and_help_are_escaped(void **state)
{
    (void)state;
    struct buf b = {0}, labels = {0};
    prometheus_label(&labels, "a", "quote \" slash \\ line\nend");
    prometheus_label(&labels, "b", "ü{},=");
    prometheus_family(&b, "vllm:y_total", PROMETHEUS_COUNTER, "two\nlines \\ \"quoted\"");
    prometheus_count(&b, "vllm:y_total", &labels, UINT64_MAX);
    assert_string_equal(buf_str(&b),
                        "# HELP vllm:y_total two\\nlines \\\\ \"quoted\"\n"
                        "# TYPE vllm:y_total counter\n"
                        "vllm:y_total{a=\"quote \\\" slash \\\\ line\\nend\",b=\"ü{},=\"} "
                        "18446744073709551615\n");
    assert_valid(buf_str(&b));
    buf_free(&b);
    buf_free(&labels);
}

static void numbers_read_back(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "x 0.0\n"},         {1, "x 1.0\n"},
                {0.1, "x 0.1\n"},       {1.0 / 3, "x 0.33333333333333331\n"},
                {1e300, "x 1e+300\n"},  {-2.5, "x -2.5\n"},
                {HUGE_VAL, "x +Inf\n"}, {-HUGE_VAL, "x -Inf\n"},
                {NAN, "x NaN\n"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf b = {0};
        prometheus_value(&b, "x", NULL, rows[i].value);
        assert_string_equal(buf_str(&b), rows[i].text);
        buf_free(&b);
    }
}

enum { N_THREAD = 4, N_VALUE = 20000 };

static void *feed(void *arg)
{
    struct histogram *h = arg;
    for (uint64_t i = 0; i < N_VALUE; i++) histogram_observe(h, i % 100);
    return NULL;
}

static void threads_lose_nothing_and_scrapes_are_sound(void **state)
{
    (void)state;
    struct histogram h;
    pthread_t threads[N_THREAD];
    histogram_init_125(&h, 100);
    for (int i = 0; i < N_THREAD; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, feed, &h), 0);
    }
    for (int i = 0; i < 50; i++) {
        struct buf b = {0};
        prometheus_family(&b, "x", PROMETHEUS_HISTOGRAM, "");
        prometheus_histogram(&b, "x", NULL, &h);
        assert_valid(buf_str(&b));
        buf_free(&b);
    }
    for (int i = 0; i < N_THREAD; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    struct buf b = {0};
    prometheus_family(&b, "x", PROMETHEUS_HISTOGRAM, "");
    prometheus_histogram(&b, "x", NULL, &h);
    assert_true(exposition_value(buf_str(&b), "x_count", "") == N_THREAD * N_VALUE);
    assert_true(exposition_value(buf_str(&b), "x_sum", "") == N_THREAD * N_VALUE * 49.5);
    buf_free(&b);
}

/* The checker that the other tests rest on. */
static void the_checker_finds_what_is_wrong(void **state)
{
    (void)state;
#define HEAD "# HELP x h\n# TYPE x histogram\n"
    assert_invalid("x 1\n", "before its TYPE");
    assert_invalid("# TYPE x counter\nx 1\n", "does not follow");
    assert_invalid("# HELP x h\n# TYPE x count\nx 1\n", "unknown type");
    assert_invalid("# HELP x h\n# TYPE x counter\nx -1\n", "negative");
    assert_invalid("# HELP x h\n# TYPE x counter\nx 1\nx 2\n", "twice");
    assert_invalid("# HELP x h\n# TYPE x counter\nx 1\n# HELP x h\n", "twice");
    assert_invalid("# HELP x h\n# TYPE x counter\ny 1\n", "another family");
    assert_invalid("# HELP x h\n# TYPE x counter\nx{a=\"\\t\"} 1\n", "not a sample");
    assert_invalid("# HELP x h\n# TYPE x counter\nx 1", "does not end");
    assert_invalid("# HELP x h\n# TYPE x counter\nx one\n", "not a sample");
    assert_invalid(HEAD "x_bucket{le=\"2\"} 1\nx_bucket{le=\"1\"} 1\n", "do not ascend");
    assert_invalid(HEAD "x_bucket{le=\"1\"} 2\nx_bucket{le=\"2\"} 1\n", "falls");
    assert_invalid(HEAD "x_bucket{le=\"1\"} 2\nx_sum 1\n", "up to +Inf");
    assert_invalid(HEAD "x_bucket{le=\"+Inf\"} 2\nx_sum 1\nx_count 3\n", "last bucket");
    assert_invalid(HEAD "x_bucket{le=\"+Inf\"} 2\nx_sum 1\n", "without sum and count");
}

static void a_failed_append_is_told(void **state)
{
    (void)state;
    struct histogram h;
    histogram_init_125(&h, 100);
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct buf b = {0}, labels = {0};
        mem_fail_after(n);
        prometheus_label(&labels, "a", "b");
        prometheus_family(&b, "x", PROMETHEUS_HISTOGRAM, "Help.");
        prometheus_histogram(&b, "x", &labels, &h);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(buf_status(&b) || buf_status(&labels), failed);
        buf_free(&b);
        buf_free(&labels);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_counts_at_the_first_bound_not_below_it),
        cmocka_unit_test(bounds_of_counts_go_up_to_the_largest),
        cmocka_unit_test(labels_and_help_are_escaped),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(threads_lose_nothing_and_scrapes_are_sound),
        cmocka_unit_test(the_checker_finds_what_is_wrong),
        cmocka_unit_test(a_failed_append_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

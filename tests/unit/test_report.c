/* test_report.c - results to series, series to sections, sections to a page */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "bench/chart.h"
#include "bench/report.h"
#include "bench/report_section.h"

static struct report_data data;
static struct buf page;
static const struct report_options options = {"Title", "today", {5}, 1};

static int clean_up(void **state)
{
    (void)state;
    report_data_free(&data);
    buf_free(&page);
    return 0;
}

/* Adds a result; rate 0 stands for inf. */
static fathom_err add(const char *label, const char *model, int n_input, int n_output,
                      int concurrency, double rate)
{
    json_t *r = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "label",
        label, "backend", "openai", "model_id", model, "input_len", n_input, "output_len", n_output,
        "completed", 10, "request_throughput", 2.0 + 0.5 * rate, "output_throughput",
        100.0 + concurrency + rate, "total_token_throughput", 500.0, "median_ttft_ms",
        40.0 + concurrency, "p99_ttft_ms", 90.0, "median_tpot_ms", 8.0 + concurrency,
        "median_itl_ms", 9.0, "p99_itl_ms", 30.0, "median_e2el_ms", 900.0, "p99_e2el_ms", 1000.0);
    assert_non_null(r);
    (void)json_object_set_new(r, "request_rate", rate > 0 ? json_real(rate) : json_string("inf"));
    if (concurrency) (void)json_object_set_new(r, "max_concurrency", json_integer(concurrency));
    fathom_err err = report_data_add(&data, r, "r", NULL);
    json_decref(r);
    return err;
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;
    while ((text = strstr(text, part))) {
        n++;
        text += strlen(part);
    }
    return n;
}

static void points_fall_into_series(void **state)
{
    (void)state;
    (void)add("b", "m", 1024, 256, 8, 0);
    (void)add("a", "m", 4096, 256, 2, 0);
    (void)add("a", "m", 1024, 256, 8, 0);
    (void)add("a", "m", 1030, 256, 1, 0); /* a mean of drawn lengths */
    (void)add("a", "m", 1024, 256, 0, 3);
    assert_int_equal(report_data_arrange(&data), FATHOM_OK);
    assert_int_equal(data.n_series, 3);
    assert_int_equal(data.series[0].n_point, 3);
    assert_int_equal(data.series[1].first->n_input, 4096);
    assert_string_equal(data.series[2].first->engine, "b");
}

static void results_of_vllm_are_read_by_their_means(void **state)
{
    (void)state;
    json_t *r = json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:s}", "endpoint_type", "vllm",
                          "model_id", "m", "completed", 4, "total_input_tokens", 4096,
                          "total_output_tokens", 1000, "request_throughput", 1.0,
                          "output_throughput", 250.0, "request_rate", 2.0, "backend", "vllm");
    assert_int_equal(report_data_add(&data, r, "r", NULL), FATHOM_OK);
    assert_int_equal(data.points[0].n_input, 1024);
    assert_int_equal(data.points[0].n_output, 250);
    assert_true(data.points[0].rate == 2 && !data.points[0].is_checked);
    assert_false(data.points[0].values[REPORT_ITL_P99].has);
    json_decref(r);
}

static void files_of_one_many_and_none(void **state)
{
    (void)state;
    static const char one[] = "{\"completed\":1,\"request_throughput\":1,\"output_throughput\":1}";
    char path[] = "/tmp/test_report_XXXXXX";
    struct buf text = {0};
    fathom_diag d = {{0}};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)buf_printf(&text, "%s\n\n%s\n", one, one);
    assert_int_equal(new_file_save(path, buf_str(&text), text.len, NULL), FATHOM_OK);
    assert_int_equal(report_data_add_file(&data, path, &d), FATHOM_OK);
    assert_int_equal(data.n_point, 2);
    buf_clear(&text);
    (void)buf_printf(&text, "[%s, %s, %s]", one, one, one);
    assert_int_equal(new_file_save(path, buf_str(&text), text.len, NULL), FATHOM_OK);
    assert_int_equal(report_data_add_file(&data, path, &d), FATHOM_OK);
    assert_int_equal(data.n_point, 5);
    static const char *const bad[] = {
        "", "[", "7", "{}", "{\"completed\":1}", "{\"completed\":1}\n{", "[{}]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memset(&d, 0, sizeof d);
        assert_int_equal(new_file_save(path, bad[i], strlen(bad[i]), NULL), FATHOM_OK);
        assert_int_equal(report_data_add_file(&data, path, &d), FATHOM_EFORMAT);
        assert_non_null(strstr(d.text, path));
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(report_data_add_file(&data, path, &d), FATHOM_ENOTFOUND);
    buf_free(&text);
}

static void many_series_are_compared_in_one_thing_at_a_time(void **state)
{
    (void)state;
    struct section s[REPORT_SECTIONS_MAX];
    for (int in = 1; in <= 4; in *= 4) {
        for (int c = 1; c <= 2; c++) {
            (void)add("a", "v3", 1024 * in, 256, c, 0);
            (void)add("a", "r1", 1024 * in, 256, c, 0);
            (void)add("b", "v3", 1024 * in, 256, c, 0);
        }
    }
    (void)add("c", "other", 7, 7, 1, 0);
    assert_int_equal(report_data_arrange(&data), FATHOM_OK);
    assert_int_equal(data.n_series, 7);
    size_t n = sections_make(s, &data);
    size_t n_of[9] = {0};
    for (size_t i = 0; i < n; i++) n_of[s[i].differ]++;
    assert_int_equal(n_of[DIFFER_ENGINE], 2);
    assert_int_equal(n_of[DIFFER_MODEL], 2);
    assert_int_equal(n_of[DIFFER_INPUT], 3);
    assert_int_equal(n_of[DIFFER_OUTPUT], 0);
    assert_int_equal(n_of[0], 1);
    struct buf title = {0};
    section_title(&title, &data, &s[0]);
    assert_string_equal(buf_str(&title), "a against b");
    buf_clear(&title);
    section_common(&title, &data, &s[0]);
    assert_string_equal(buf_str(&title), "v3, 1,024 in, 256 out");
    buf_free(&title);
}

static void a_page_has_every_chart_with_a_title_and_a_table(void **state)
{
    (void)state;
    static const int loads[] = {1, 2, 3, 5, 8, 50};
    for (size_t i = 0; i < 6; i++) {
        (void)add("<x&y>", "m", 1024, 256, loads[i], 0);
        (void)add("<x&y>", "m", 1024, 256, 0, loads[i]);
    }
    assert_int_equal(report_data_arrange(&data), FATHOM_OK);
    assert_int_equal(report_write(&page, &data, &options, NULL), FATHOM_OK);
    const char *text = buf_str(&page);
    size_t n = count(text, "<figure id=");
    assert_int_equal(n, 13 + 4); /* all, and four of them up to 5 */
    assert_int_equal(count(text, "role=\"img\""), n);
    assert_int_equal(count(text, "<desc id="), n);
    assert_int_equal(count(text, "<figcaption>"), n);
    assert_int_equal(count(text, "<details><summary>Values"), n);
    assert_non_null(strstr(text, "&lt;x&amp;y&gt;"));
    assert_null(strstr(text, "<x&y>"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf\""));
    assert_null(strstr(text, "\"-0"));
    assert_null(strstr(text, ">-0<"));
    assert_null(strstr(text, "http"));
}

static void nothing_to_report_is_refused(void **state)
{
    (void)state;
    assert_int_equal(report_data_arrange(&data), FATHOM_OK);
    assert_int_equal(report_write(&page, &data, &options, NULL), FATHOM_EINVAL);
    json_t *r = json_pack("{s:i}", "completed", 1);
    assert_int_equal(report_data_add(&data, r, "r", NULL), FATHOM_EFORMAT);
    json_decref(r);
}

static void a_single_point_has_no_chart_and_a_row(void **state)
{
    (void)state;
    (void)add("a", "m", 1024, 256, 1, 0);
    assert_int_equal(report_data_arrange(&data), FATHOM_OK);
    assert_int_equal(report_write(&page, &data, &options, NULL), FATHOM_OK);
    assert_int_equal(count(buf_str(&page), "<figure"), 0);
    assert_int_equal(count(buf_str(&page), "<th scope=\"row\">"), 1);
}

static void text_and_numbers_are_written_for_people(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{1e308, "1e+308"},       {-1e15, "-1e+15"}, {0, "0.00"},        {0.5, "0.50"},
                 {0.0123, "0.0123"},      {9.99, "9.99"},    {31.44, "31.4"},    {64, "64"},
                 {99.96, "100"},          {1234.5, "1,234"}, {1e6, "1,000,000"}, {NAN, "–"},
                 {-1234567, "-1,234,567"}};
    struct buf b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        buf_clear(&b);
        number_add(&b, cases[i].value);
        assert_string_equal(buf_str(&b), cases[i].text);
    }
    buf_clear(&b);
    html_add(&b, "a<b>&\"'\x01\xff é");
    assert_string_equal(buf_str(&b), "a&lt;b&gt;&amp;&quot;&#39;\xef\xbf\xbd\xef\xbf\xbd é");
    buf_free(&b);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    bool hit = true;
    for (int c = 1; c <= 3; c++) (void)add("a", "m", 1024, 256, c, 0);
    assert_int_equal(report_data_arrange(&data), FATHOM_OK);
    for (long n = 0; hit; n++) {
        buf_free(&page);
        mem_fail_after(n);
        fathom_err err = report_write(&page, &data, &options, NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(points_fall_into_series, clean_up),
        cmocka_unit_test_teardown(results_of_vllm_are_read_by_their_means, clean_up),
        cmocka_unit_test_teardown(files_of_one_many_and_none, clean_up),
        cmocka_unit_test_teardown(many_series_are_compared_in_one_thing_at_a_time, clean_up),
        cmocka_unit_test_teardown(a_page_has_every_chart_with_a_title_and_a_table, clean_up),
        cmocka_unit_test_teardown(nothing_to_report_is_refused, clean_up),
        cmocka_unit_test_teardown(a_single_point_has_no_chart_and_a_row, clean_up),
        cmocka_unit_test_teardown(text_and_numbers_are_written_for_people, clean_up),
        cmocka_unit_test_teardown(failing_allocations_come_out_as_errors, clean_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

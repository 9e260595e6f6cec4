/* test_progress.c - the line that tells how far loading has got */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/progress.h"
#include "cli/quantize_progress.h"

static void the_line_tells_rate_and_time_left(void **state)
{
    (void)state;
    char text[PROGRESS_TEXT_BYTES];
    assert_string_equal(progress_text(text, "loading", 100000000000, 700000000000, 50000000),
                        "loading  100.0 GB of 700.0 GB, 2.0 GB/s, 5 min 0 s left");
    assert_string_equal(progress_text(text, "loading", 1000000, 3000000, 500000),
                        "loading  1.0 MB of 3.0 MB, 2.0 MB/s, 1 s left");
    assert_string_equal(progress_text(text, "loading", 1000000000, 10000000000000, 1000000),
                        "loading  1.0 GB of 10.0 TB, 1.0 GB/s, 2 h 46 min left");
    assert_string_equal(progress_text(text, "loading", 0, 3000000, 0),
                        "loading  0 bytes of 3.0 MB, 0 bytes/s");
    assert_string_equal(progress_text(text, "loading", 4000000, 3000000, 1000000),
                        "loading  3.0 MB of 3.0 MB, 4.0 MB/s, 0 s left");
}

static void things_may_be_counted_instead_of_bytes(void **state)
{
    (void)state;
    char text[PROGRESS_TEXT_BYTES];
    const struct progress p = {.what = "scoring", .unit = "tokens"};
    assert_string_equal(progress_count_text(text, &p, 1024, 14336, 2000000),
                        "scoring  1,024 of 14,336 tokens, 512/s, 26 s left");
    assert_string_equal(progress_count_text(text, &p, 3, 2, 1000000),
                        "scoring  2 of 2 tokens, 3/s, 0 s left");
}

static const struct convert_progress seventeenth = {.done_bytes = 100000000000,
                                                    .total_bytes = 700000000000,
                                                    .n_done = 5211,
                                                    .n_quantized = 44544,
                                                    .layer = 17,
                                                    .n_layer = 61,
                                                    .worst = 0.1214,
                                                    .worst_name =
                                                        "model.layers.17.mlp.experts.88.down_proj"};

static void a_conversion_tells_layer_matrices_and_the_worst(void **state)
{
    (void)state;
    char text[QUANTIZE_PROGRESS_BYTES];
    assert_string_equal(quantize_progress_text(text, &seventeenth, 50000000),
                        "layer 17/61, 5,211 of 44,544 matrices, 2.0 GB/s, 5 min 0 s left, worst "
                        "error 0.121 (layers.17.mlp.experts.88.down_proj)");
    struct convert_progress p = seventeenth;
    p.done_bytes = p.n_done = p.layer = 0;
    p.worst_name = "";
    assert_string_equal(quantize_progress_text(text, &p, 0),
                        "layer 0/61, 0 of 44,544 matrices, 0 bytes/s");
}

static void programs_get_it_as_json(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(quantize_progress_json(&b, &seventeenth, 50000000), FATHOM_OK);
    assert_string_equal(
        buf_str(&b),
        "{\"layer\":17,\"layers\":61,\"matrices\":5211,\"of_matrices\":44544,"
        "\"bytes\":100000000000,\"of_bytes\":700000000000,\"bytes_per_second\":2000000000.0,"
        "\"seconds_left\":300.0,\"worst_error\":0.1214,"
        "\"worst_matrix\":\"model.layers.17.mlp.experts.88.down_proj\"}\n");
    buf_free(&b);
}

static void nothing_is_written_where_there_is_no_terminal(void **state)
{
    (void)state;
    struct progress p;
    progress_begin(&p, "loading");
    p.is_terminal = false;
    p.start_us = 0;
    progress_tell(&p, 1, 2);
    assert_int_equal(p.told_us, 0);
    progress_end(&p);
}

static void a_line_is_written_at_most_ten_times_a_second(void **state)
{
    (void)state;
    struct progress p;
    progress_begin(&p, "loading");
    p.is_terminal = true;
    progress_tell(&p, 1, 2); /* what is over at once is not told at all */
    assert_int_equal(p.told_us, 0);
    p.start_us = 0;
    progress_tell(&p, 1, 2);
    uint64_t told_us = p.told_us;
    assert_true(told_us > 0);
    progress_tell(&p, 2, 2);
    assert_int_equal(p.told_us, told_us);
    progress_end(&p);
    assert_int_equal(p.told_us, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_tells_rate_and_time_left),
        cmocka_unit_test(things_may_be_counted_instead_of_bytes),
        cmocka_unit_test(a_conversion_tells_layer_matrices_and_the_worst),
        cmocka_unit_test(programs_get_it_as_json),
        cmocka_unit_test(nothing_is_written_where_there_is_no_terminal),
        cmocka_unit_test(a_line_is_written_at_most_ten_times_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

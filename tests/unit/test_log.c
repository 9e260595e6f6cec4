/* test_log.c - the form of a log line, and levels */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"

/* Runs one LOG call with stderr in a file and gives back what was written. */
static size_t captured(char *out, size_t out_bytes, enum log_level level, const char *text)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    (void)fflush(stderr);
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0);
    assert_true(dup2(fileno(f), STDERR_FILENO) >= 0);
    log_write(level, "test", "%s", text);
    (void)fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    rewind(f);
    size_t n = fread(out, 1, out_bytes - 1, f);
    out[n] = '\0';
    (void)fclose(f);
    return n;
}

static void a_line_has_time_level_module_and_message(void **state)
{
    (void)state;
    char line[256];
    size_t n = captured(line, sizeof line, LOG_LEVEL_WARN, "key=value");
    int h, m, s, ms, end = 0;
    assert_int_equal(sscanf(line, "%2d:%2d:%2d.%3d W test: key=value\n%n", &h, &m, &s, &ms, &end),
                     4);
    assert_int_equal(end, n);
}

static void levels_are_obeyed(void **state)
{
    (void)state;
    char line[256];
    assert_int_equal(log_get_level(), LOG_LEVEL_INFO);
    assert_int_equal(captured(line, sizeof line, LOG_LEVEL_DEBUG, "x"), 0);
    log_set_level(LOG_LEVEL_ERROR);
    assert_int_equal(captured(line, sizeof line, LOG_LEVEL_WARN, "x"), 0);
    assert_true(captured(line, sizeof line, LOG_LEVEL_ERROR, "x") > 0);
    log_set_level(LOG_LEVEL_INFO);
}

static void a_long_message_is_cut_and_still_one_line(void **state)
{
    (void)state;
    char text[4000];
    char line[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    size_t n = captured(line, sizeof line, LOG_LEVEL_INFO, text);
    assert_in_range(n, 1000, 2048);
    assert_int_equal(line[n - 1], '\n');
    assert_ptr_equal(strchr(line, '\n'), line + n - 1);
}

static void a_diag_keeps_its_first_message(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    assert_int_equal(diag_fail(&d, FATHOM_EIO, "first %d", 1), FATHOM_EIO);
    assert_int_equal(diag_fail(&d, FATHOM_ENOMEM, "second"), FATHOM_ENOMEM);
    assert_string_equal(d.text, "first 1");
    diag_clear(&d);
    assert_string_equal(d.text, "");
    diag_clear(NULL);
    assert_int_equal(diag_fail(NULL, FATHOM_EIO, "x"), FATHOM_EIO);
    assert_string_equal(fathom_err_name(FATHOM_EFORMAT), "EFORMAT");
    assert_string_equal(fathom_err_name((fathom_err)99), "E?");
    assert_string_equal(fathom_err_text(FATHOM_OK), "ok");
    assert_non_null(fathom_err_text((fathom_err)99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_module_and_message),
        cmocka_unit_test(levels_are_obeyed),
        cmocka_unit_test(a_long_message_is_cut_and_still_one_line),
        cmocka_unit_test(a_diag_keeps_its_first_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

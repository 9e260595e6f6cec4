/* test_crash.c - the report of a process that dies of a fault, seen from its parent */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/assert.h"
#include "base/crash.h"
#include "support/death.h"

/* Runs in a child: installs the handlers and dies as the test says. */
struct death {
    void (*die)(void);
};

static void install_and_die(void *arg)
{
    const struct death *d = arg;
    crash_install("1.2.3");
    d->die();
}

static int status_of(void (*die)(void), char *said, size_t bytes)
{
    struct death d = {die};
    return run_child(install_and_die, &d, said, bytes);
}

static void assert_says(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static void touch_nothing(void)
{
    int *volatile nothing = (int *)64;
    (void)crash_note("chatcmpl-1");
    int over = crash_note("chatcmpl-over");
    (void)crash_note("cmpl-2");
    crash_drop(over);
    *nothing = 1;
}

static void a_fault_names_cause_and_requests(void **state)
{
    (void)state;
    char said[16384];
    int status = status_of(touch_nothing, said, sizeof said);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
    assert_says(said, "fathom 1.2.3 has met a fault of its own");
    assert_says(said, "cause: SIGSEGV, memory that is not there, at 0x40");
    assert_says(said, "in flight:\n    chatcmpl-1\n    cmpl-2\n");
    assert_null(strstr(said, "chatcmpl-over"));
    assert_says(said, "backtrace");
    assert_says(said, "test_crash");
}

static void break_a_promise(void)
{
    ASSERT(1 + 1 == 3);
}

static void an_assert_is_the_cause(void **state)
{
    (void)state;
    char said[16384];
    int status = status_of(break_a_promise, said, sizeof said);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_says(said, "cause: SIGABRT: ");
    assert_says(said, "test_crash.c");
    assert_says(said, "1 + 1 == 3 does not hold");
    assert_says(said, "in flight: nothing");
}

static void fill_the_table(void)
{
    char text[100];
    for (int i = 0; i < CRASH_ENTRIES; i++) {
        (void)snprintf(text, sizeof text, "%090d", i);
        if (crash_note(text) == CRASH_NO_ENTRY) _exit(98);
    }
    if (crash_note("one more") != CRASH_NO_ENTRY) _exit(97);
    crash_drop(CRASH_NO_ENTRY);
    abort();
}

static void a_full_table_is_cut(void **state)
{
    (void)state;
    char said[32768];
    int status = status_of(fill_the_table, said, sizeof said);
    assert_true(WIFSIGNALED(status));
    assert_says(said, "and 8128 more\n");
    assert_null(strstr(said, "one more"));
}

static void *die_too(void *arg)
{
    (void)arg;
    abort();
    return NULL;
}

static void die_twice(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) (void)pthread_create(&threads[i], NULL, die_too, NULL);
    for (int i = 0; i < 4; i++) (void)pthread_join(threads[i], NULL);
}

static void several_threads_make_one_report(void **state)
{
    (void)state;
    char said[32768];
    int status = status_of(die_twice, said, sizeof said);
    assert_true(WIFSIGNALED(status));
    const char *first = strstr(said, "has met a fault");
    assert_non_null(first);
    assert_null(strstr(first + 1, "has met a fault"));
}

static void *note_and_drop(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) crash_drop(crash_note("x"));
    return NULL;
}

static void notes_come_from_many_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, note_and_drop, NULL), 0);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    char said[16384] = "";
    FILE *f = tmpfile();
    assert_non_null(f);
    crash_write_report(fileno(f), NULL);
    rewind(f);
    assert_true(fread(said, 1, sizeof said - 1, f) > 0);
    assert_says(said, "in flight: nothing");
    (void)fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_names_cause_and_requests),
        cmocka_unit_test(an_assert_is_the_cause),
        cmocka_unit_test(a_full_table_is_cut),
        cmocka_unit_test(several_threads_make_one_report),
        cmocka_unit_test(notes_come_from_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

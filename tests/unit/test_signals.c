/* test_signals.c - signals as calls, and the end that a second one insists on */
#include "cli/signals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/death.h"
#include "support/patience.h"

enum { INSIST_MS = 300 };

static atomic_int n_call;

static void count(void *arg, int number)
{
    (void)arg, (void)number;
    atomic_fetch_add(&n_call, 1);
}

static void wait_for_calls(int n)
{
    uint64_t end_us = 0;
    while (atomic_load(&n_call) < n && keep_waiting(&end_us)) {
    }
}

struct course {
    bool muted; /* before the second signal */
    bool ends;  /* after it */
};

/* In a child; status: how many signals have called. */
static void take_two(void *arg)
{
    const struct course *c = arg;
    struct signal_taker t;
    if (signal_taker_start(&t, SIGNALS_SERVER, NULL) != FATHOM_OK) _exit(98);
    signal_taker_insist(&t, INSIST_MS);
    signal_taker_note(&t, "the test");
    signal_taker_listen(&t, count, NULL);
    (void)kill(getpid(), SIGTERM);
    wait_for_calls(1);
    if (c->muted) signal_taker_mute(&t);
    (void)kill(getpid(), SIGTERM);
    if (!c->muted) wait_for_calls(2);
    while (!c->ends) clock_sleep_us(1000);
    signal_taker_end(&t);
    _exit(atomic_load(&n_call));
}

/* Those that do not end may come as often as they like, also before anybody listens. */
static void take_others(void *arg)
{
    (void)arg;
    struct signal_taker t;
    if (signal_taker_start(&t, SIGNALS_SERVER, NULL) != FATHOM_OK) _exit(98);
    signal_taker_insist(&t, INSIST_MS);
    (void)kill(getpid(), SIGHUP);
    while (!atomic_load(&t.kept[SIGHUP])) clock_sleep_us(1000);
    signal_taker_listen(&t, count, NULL);
    wait_for_calls(1);
    for (int i = 1; i < 4; i++) {
        (void)kill(getpid(), i % 2 ? SIGUSR1 : SIGHUP);
        wait_for_calls(i + 1);
    }
    (void)kill(getpid(), SIGTERM);
    wait_for_calls(5);
    clock_sleep_us(2 * INSIST_MS * 1000);
    signal_taker_end(&t);
    _exit(atomic_load(&n_call));
}

static int status_of(bool muted, bool ends, char *said, size_t size)
{
    struct course c = {muted, ends};
    int status = run_child(take_two, &c, said, size);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_second_signal_insists(void **state)
{
    (void)state;
    for (int muted = 0; muted < 2; muted++) {
        char errors[256];
        uint64_t begin_us = clock_now_us();
        assert_int_equal(status_of(muted, false, errors, sizeof errors), 128 + SIGTERM);
        assert_true(clock_now_us() - begin_us >= INSIST_MS * 1000);
        assert_string_equal(errors, "fathom: 0.3 s after the second signal the test had not come "
                                    "to an end: it is cut off\n");
    }
}

static void who_ends_in_time_is_left_alone(void **state)
{
    (void)state;
    char errors[256];
    assert_int_equal(status_of(false, true, errors, sizeof errors), 2);
    assert_string_equal(errors, "");
    assert_int_equal(status_of(true, true, errors, sizeof errors), 1);
    assert_string_equal(errors, "");
}

static void what_does_not_end_does_not_count(void **state)
{
    (void)state;
    char errors[256];
    int status = run_child(take_others, NULL, errors, sizeof errors);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 5);
    assert_string_equal(errors, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_signal_insists),
        cmocka_unit_test(who_ends_in_time_is_left_alone),
        cmocka_unit_test(what_does_not_end_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

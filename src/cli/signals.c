/* signals.c - signals as calls on a thread of their own */
#include "cli/signals.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"

enum { STATUS_SIGNAL = 128 };

_Noreturn void signal_die(int number)
{
    sigset_t set;
    (void)signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(number);
    _exit(STATUS_SIGNAL + number); /* a parent has the signal ignored */
}

static bool ends(int number)
{
    return number == SIGINT || number == SIGTERM || number == SIGQUIT;
}

/* A line to whoever reads; it is never waited for one. */
static void tell(const char *line, int n)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT)) {
        ssize_t written = write(STDERR_FILENO, line, (size_t)n);
        (void)written;
    }
}

/* After the second signal that ends: returns when the taker ends in time. */
static void end_soon(struct signal_taker *t, int number)
{
    uint64_t end_us = clock_now_us() + (uint64_t)t->insist_ms * 1000;
    for (uint64_t now_us = clock_now_us(); now_us < end_us; now_us = clock_now_us()) {
        uint64_t left_us = end_us - now_us;
        const struct timespec left = {.tv_sec = (time_t)(left_us / 1000000),
                                      .tv_nsec = (long)(left_us % 1000000 * 1000)};
        (void)sigtimedwait(&t->set, NULL, &left);
        if (atomic_load(&t->done)) return;
    }
    char line[256];
    const char *cause = atomic_load(&t->cause);
    int n = snprintf(
        line, sizeof line,
        "fathom: %u.%u s after the second signal %s had not come to an end: it is cut off\n",
        t->insist_ms / 1000, t->insist_ms % 1000 / 100, cause ? cause : "the process");
    tell(line, n);
    _exit(STATUS_SIGNAL + number);
}

/* What a signal before `listening` does; the others are kept. */
static void take_early(struct signal_taker *t, int number)
{
    if (number == SIGQUIT) signal_die(number);
    if (ends(number)) {
        char line[96];
        int n = snprintf(line, sizeof line, "fathom: %s came before it was ready: it ends\n",
                         number == SIGTERM ? "SIGTERM" : "SIGINT");
        tell(line, n);
        _exit(STATUS_SIGNAL + number);
    }
    atomic_store(&t->kept[number], true);
}

static void call(struct signal_taker *t, int number)
{
    (void)pthread_mutex_lock(&t->lock);
    bool muted = t->listener == NULL;
    if (!muted) t->listener(t->arg, number);
    (void)pthread_mutex_unlock(&t->lock);
    if (muted && number == SIGQUIT) signal_die(number);
}

static void *take_signals(void *arg)
{
    struct signal_taker *t = arg;
    int number;
    unsigned n_end = 0;
    os_name_thread("signals");
    while (sigwait(&t->set, &number) == 0 && !atomic_load(&t->done)) {
        if (!atomic_load(&t->listening)) {
            take_early(t, number);
            if (!atomic_load(&t->listening)) continue; /* signal_taker_listen sees it */
            atomic_store(&t->kept[number], false);
        }
        call(t, number);
        n_end += ends(number);
        if (n_end < 2 || t->insist_ms == 0) continue;
        end_soon(t, number);
        break;
    }
    return NULL;
}

void signal_taker_insist(struct signal_taker *t, unsigned ms)
{
    ASSERT(!atomic_load(&t->listening));
    t->insist_ms = ms;
}

void signal_taker_note(struct signal_taker *t, const char *cause)
{
    atomic_store(&t->cause, cause);
}

void signal_taker_mute(struct signal_taker *t)
{
    if (!t->started) return;
    (void)pthread_mutex_lock(&t->lock);
    t->listener = NULL;
    (void)pthread_mutex_unlock(&t->lock);
}

fathom_err signal_taker_start(struct signal_taker *t, enum signal_kind kind, fathom_diag *d)
{
    static const int of_server[] = {SIGTERM, SIGQUIT, SIGHUP, SIGUSR1};
    memset(t, 0, sizeof *t);
    (void)pthread_mutex_init(&t->lock, NULL);
    sigemptyset(&t->set);
    sigaddset(&t->set, SIGINT);
    if (kind == SIGNALS_SERVER) {
        for (size_t i = 0; i < sizeof of_server / sizeof *of_server; i++) {
            sigaddset(&t->set, of_server[i]);
        }
        (void)signal(SIGUSR2, SIG_IGN);
        (void)signal(SIGALRM, SIG_IGN);
    }
    pthread_sigmask(SIG_BLOCK, &t->set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write that fails */
    if (pthread_create(&t->thread, NULL, take_signals, t) != 0) {
        FAIL(d, FATHOM_EIO, "the thread that waits for signals cannot be started");
    }
    t->started = true;
    return FATHOM_OK;
}

void signal_taker_listen(struct signal_taker *t, signal_listener *listener, void *arg)
{
    ASSERT(!atomic_load(&t->listening));
    t->listener = listener;
    t->arg = arg;
    atomic_store(&t->listening, true);
    for (int number = 1; number < NSIG; number++) {
        if (atomic_exchange(&t->kept[number], false)) pthread_kill(t->thread, number);
    }
}

void signal_taker_end(struct signal_taker *t)
{
    if (!t->started) return;
    atomic_store(&t->done, true);
    pthread_kill(t->thread, SIGINT);
    pthread_join(t->thread, NULL);
    (void)pthread_mutex_destroy(&t->lock);
    t->started = false;
}

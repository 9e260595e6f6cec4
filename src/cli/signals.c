/* signals.c - signals as calls on a thread of their own */
#include "cli/signals.h"

#include <string.h>
#include <unistd.h>

#include "base/assert.h"
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

static void *take_signals(void *arg)
{
    struct signal_taker *t = arg;
    int number;
    os_name_thread("signals");
    while (sigwait(&t->set, &number) == 0 && !atomic_load(&t->done)) {
        if (!atomic_load(&t->listening)) {
            if (number == SIGQUIT) signal_die(number);
            if (ends(number)) _exit(STATUS_SIGNAL + number);
            atomic_store(&t->kept[number], true);
            if (!atomic_load(&t->listening)) continue; /* signal_taker_listen sees it */
        }
        t->listener(t->arg, number);
    }
    return NULL;
}

fathom_err signal_taker_start(struct signal_taker *t, enum signal_kind kind, fathom_diag *d)
{
    static const int of_server[] = {SIGTERM, SIGQUIT, SIGHUP, SIGUSR1};
    memset(t, 0, sizeof *t);
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
    t->started = false;
}

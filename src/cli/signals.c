/* signals.c - signals as calls on a thread of their own */
#include "cli/signals.h"

#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/os.h"

enum { STATUS_SIGNAL = 128 };

static void *take_signals(void *arg)
{
    struct signal_taker *t = arg;
    int number;
    os_name_thread("signals");
    while (sigwait(&t->set, &number) == 0 && !atomic_load(&t->done)) {
        if (!atomic_load(&t->listening)) _exit(STATUS_SIGNAL + number);
        t->listener(t->arg);
    }
    return NULL;
}

fathom_err signal_taker_start(struct signal_taker *t, bool with_term, fathom_diag *d)
{
    memset(t, 0, sizeof *t);
    sigemptyset(&t->set);
    sigaddset(&t->set, SIGINT);
    if (with_term) sigaddset(&t->set, SIGTERM);
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
}

void signal_taker_end(struct signal_taker *t)
{
    if (!t->started) return;
    atomic_store(&t->done, true);
    pthread_kill(t->thread, SIGINT);
    pthread_join(t->thread, NULL);
    t->started = false;
}

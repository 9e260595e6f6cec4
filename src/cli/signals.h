/* signals.h - signals as calls on a thread of their own
 *
 * The signals are blocked in the thread that starts the taker and in all threads made after it; one
 * thread waits for them. Until signal_taker_listen those that end end the process, so that loading
 * can be interrupted, and the others are kept and told then.
 *
 *   start --> ENDS THE PROCESS --listen--> CALLS --mute--> COUNTS --end--> (no thread)
 *
 * With signal_taker_insist a second signal that ends, in CALLS or COUNTS, sets a time by which the
 * process has ended, whatever it is at.
 */
#ifndef FATHOM_CLI_SIGNALS_H
#define FATHOM_CLI_SIGNALS_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "fathom/err.h"

/* number  which signal */
typedef void signal_listener(void *arg, int number);

struct signal_taker {
    sigset_t set;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;      /* of listener and arg once listening */
    signal_listener *listener; /* NULL: muted */
    void *arg;
    _Atomic bool listening;
    _Atomic bool done;
    unsigned insist_ms;          /* 0: a second signal is like the first */
    _Atomic(const char *) cause; /* what may hold up the end now */
    _Atomic bool kept[NSIG];     /* came before `listening` */
};

enum signal_kind {
    SIGNALS_INTERRUPT, /* SIGINT */
    SIGNALS_SERVER,    /* SIGINT, SIGTERM, SIGQUIT, which end; SIGHUP, SIGUSR1. SIGUSR2 and SIGALRM
                          are ignored */
};

/* signal_taker_start - take the signals of a kind; SIGPIPE is ignored from here on
 * Errors  EIO: the thread cannot be started. *t is written in any case. */
fathom_err signal_taker_start(struct signal_taker *t, enum signal_kind kind, fathom_diag *d);

/* signal_taker_listen - from now on each signal calls listener(arg, number), on the taker's thread;
 * once */
void signal_taker_listen(struct signal_taker *t, signal_listener *listener, void *arg);

/* signal_taker_insist - the process ends at most `ms` after the second signal, with status 128 +
 * the signal's number and a line that tells the cause; before signal_taker_listen
 * signal_taker_note - what may hold up the end from now on, for that line; a literal */
void signal_taker_insist(struct signal_taker *t, unsigned ms);
void signal_taker_note(struct signal_taker *t, const char *cause);

/* signal_taker_mute - no call is running or follows, and signals still count; accepts a taker that
 * did not start or does not listen */
void signal_taker_mute(struct signal_taker *t);

/* signal_taker_end - no call is running or follows; accepts a taker that did not start */
void signal_taker_end(struct signal_taker *t);

/* signal_die - end the process by the signal, as it would have ended without a taker: with its
 * status, and its core dump where one is allowed */
_Noreturn void signal_die(int number);

#endif

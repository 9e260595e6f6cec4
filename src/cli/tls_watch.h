/* tls_watch.h - certificates that are renewed while the process runs (--enable-ssl-refresh)
 *
 * A thread looks at the files of --ssl-certfile, --ssl-keyfile and --ssl-ca-certs every second.
 * When one is another than at the start or at the last signal, and all are what they were a second
 * ago, it sends the process SIGHUP: so a certificate and a key that are written one behind the
 * other are read when both are there. A link that comes to point elsewhere is another file. While
 * one of them is missing nothing is sent.
 */
#ifndef FATHOM_CLI_TLS_WATCH_H
#define FATHOM_CLI_TLS_WATCH_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "cli/command_line.h"

enum { TLS_WATCH_FILES = 3 };

/* What tells one state of a file from another. */
struct file_mark {
    unsigned long long device, number, size;
    struct timespec changed; /* its bytes or its owner */
};

struct tls_watch {
    const char *paths[TLS_WATCH_FILES];     /* NULL: not given; borrowed */
    struct file_mark told[TLS_WATCH_FILES]; /* at the last signal */
    struct file_mark seen[TLS_WATCH_FILES]; /* at the last look */
    pthread_t thread;
    pthread_mutex_t lock; /* of is_ending */
    pthread_cond_t end;
    bool is_ending;
    bool is_started;
};

/* tls_watch_start - look from now on, if the settings ask for it and name files
 *
 *   w  zeroed
 * Needs   SIGHUP blocked in this thread, and waited for by another (signals.h).
 * Errors  EIO: the thread cannot be started. */
fathom_err tls_watch_start(struct tls_watch *w, const struct settings *s, fathom_diag *d);

/* tls_watch_end - no signal is sent from now on; accepts one that did not start */
void tls_watch_end(struct tls_watch *w);

#endif

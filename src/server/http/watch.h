/* watch.h - sees clients leave
 *
 * While a connection is suspended the HTTP library does not look at its socket. One thread watches
 * the sockets of all jobs in flight for the end of the client's side; a client that closes, or
 * shuts down its sending side, has left.
 */
#ifndef FATHOM_SERVER_HTTP_WATCH_H
#define FATHOM_SERVER_HTTP_WATCH_H

#include <stdint.h>

#include "fathom/err.h"

struct job;
struct watch;

/* What the watch does with a job. `hold` is called with the watch's lock, while the job cannot be
 * removed. `left` is called without the lock, and gives back what `hold` took. */
struct watch_actions {
    void (*hold)(struct job *job);
    void (*left)(struct job *job);
};

/* watch_create - start the thread
 * Errors  ENOMEM; EIO: a handle or the thread is refused. */
fathom_err watch_create(struct watch **out, const struct watch_actions *actions, fathom_diag *d);

/* watch_destroy - accepts NULL
 * Needs   all jobs removed. */
void watch_destroy(struct watch *w);

enum { WATCH_NONE = UINT32_MAX };

/* watch_add - call left(job) once when the client of socket fd leaves
 * Returns an entry for watch_remove; WATCH_NONE when out of memory or handles. Then the client's
 *         leaving is noticed when its answer is written. */
uint32_t watch_add(struct watch *w, int fd, struct job *job);

/* watch_remove - before fd is closed; accepts WATCH_NONE */
void watch_remove(struct watch *w, uint32_t entry);

#endif

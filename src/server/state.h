/* state.h - what the parts of the server share; within src/server alone
 *
 * Locks, in the order in which they are taken: jobs_lock, then one job's lock. The locks of
 * watch, workers, the engine and the HTTP library are taken last and by themselves.
 */
#ifndef FATHOM_SERVER_STATE_H
#define FATHOM_SERVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/gate.h"
#include "server/grammar_cache.h"
#include "server/health.h"
#include "server/metrics.h"
#include "server/server.h"

struct admin;
struct job;
struct watch;
struct response_store;
struct workers;
struct MHD_Daemon;

struct server {
    struct server_options o; /* defaults filled in */
    fathom_engine *engine;
    const fathom_info *info;
    const struct tokenizer *tokenizer;
    struct chat_style style;
    bool add_bos; /* a completion's text begins with BOS */
    int64_t created;

    struct MHD_Daemon *http;
    int listen_fd;
    bool has_uds;        /* o.uds is our file */
    int access_log_fd;   /* -1: none */
    struct admin *admin; /* NULL: none */
    uint16_t port;
    struct gate *gate;
    struct watch *watch;
    struct workers *workers;
    struct response_store *responses; /* NULL: none are kept */
    pthread_t poll_thread;
    bool poll_started;
    size_t max_prompt_bytes; /* text longer than this cannot fit the context */
    int stop_fd;             /* eventfd that server_run waits on */

    atomic_bool draining;    /* requests are refused */
    atomic_bool cancelling;  /* those in flight are given up */
    atomic_bool poll_ends;   /* the poll thread returns */
    atomic_bool engine_down; /* the engine has met a fatal error */
    struct health health;
    atomic_size_t held_bytes; /* bodies received and not yet parsed */
    struct metrics metrics;
    struct grammar_cache *grammars;

    pthread_mutex_t jobs_lock;
    struct job *jobs; /* every job that lives */
    size_t n_job;
};

/* server_hold_bytes - count n more bytes of a body; false, and nothing counted, when all bodies
 * together would pass max_held_bytes. server_drop_bytes gives them back. */
bool server_hold_bytes(struct server *s, size_t n);
void server_drop_bytes(struct server *s, size_t n);

/* server_n_job - requests on their way */
size_t server_n_job(struct server *s);

/* server_dump_jobs - a line for each of them */
void server_dump_jobs(struct server *s, struct buf *out);

/* server_retry_after_s - when a refused request may be taken, as the engine expects, within 1 to 60
 */
unsigned server_retry_after_s(struct server *s);

#endif

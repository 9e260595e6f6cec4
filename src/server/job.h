/* job.h - one request for tokens on its way from the socket through the engine and back
 *
 *   QUEUED --worker takes it--> PREPARING --submitted--> RUNNING --last FINISH--> DONE
 *      |                            |                       |
 *      +------ cut ---------------> +---- refused, cut ---> +---- failed, cut --> DONE
 *
 *   edge          function          thread
 *   (new)         job_start         HTTP
 *   take          job_prepare       worker
 *   submitted     job_prepare       worker
 *   FINISH        job_take_event    poll
 *   failed        job_take_event    poll
 *   cut           job_take_event    poll (the client does not read)
 *                 job_client_left   HTTP (the client has closed its side)
 *                 job_detach        HTTP (the connection is gone)
 *   given up      jobs_give_up      the thread of server_run (the drain's time is over)
 *
 * A job knows neither sockets nor HTTP: its client is a handle and two calls.
 *
 * References: the connection holds one from job_start to job_detach, the workers one until
 * job_prepare is done, and each request in the engine one from its submit to its FINISH event.
 * Until RUNNING or DONE, `request`, `prompts`, `answer`, `choices` and `error` belong to the
 * worker; everything else is under `lock`.
 *
 * Invariants (job_check): n_flying counts the choices in flight, and is 0 before RUNNING. DONE is
 * final. `suspended` is true only while attached. A cut job is DONE, unless a worker has it still.
 */
#ifndef FATHOM_SERVER_JOB_H
#define FATHOM_SERVER_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/stream_pass.h"
#include "server/api/answer.h"
#include "server/grammar_cache.h"
#include "server/metrics.h"
#include "server/served.h"
#include "server/state.h"
#include "server/workers.h"
#include "trace/context.h"

struct trace_exporter;
struct response_store;
struct response_link;
struct token_rule;

enum { JOBS_WARNED_MAX = 64 };

/* All live jobs, and what they work with. The latter does not change once the first has started. */
struct jobs {
    const struct served *served;
    struct server_state *state;
    struct metrics *metrics;
    struct trace_exporter *traces; /* NULL: none are sent */
    struct grammar_cache *grammars;
    struct response_store *responses;             /* NULL: none are kept */
    struct workers *workers;                      /* whose task is job_prepare */
    atomic_uint_fast64_t warned[JOBS_WARNED_MAX]; /* hashes of warnings that have been logged */

    pthread_mutex_t lock;
    struct job *first; /* of every job that lives */
    size_t n;
};

/* The calls of a client. They are made with the job's lock, and none after job_detach. */
struct job_client_ops {
    void (*resume)(void *arg); /* after JOB_WAIT or a read of 0: there is something to go on with */
    void (*shut)(void *arg);   /* end the connection, though it may be waiting to write */
};

/* Who waits for a job's answer. */
struct job_client {
    const struct job_client_ops *ops; /* NULL: nobody waits */
    void *arg;
};

enum job_state { JOB_QUEUED, JOB_PREPARING, JOB_RUNNING, JOB_DONE };

/* A choice's request in the engine; its address is the request's `user`. */
struct job_choice {
    struct job *job;
    uint64_t id;
    bool flying;      /* in flight: submitted, and its FINISH event has not come */
    uint64_t last_us; /* when its last token came; 0: none yet */
    uint32_t n_token; /* that came while the job was RUNNING */
    size_t held;      /* bytes counted for it: job_held.c */
};

struct job {
    struct jobs *jobs;
    struct job *next, *prev; /* in the list, under its lock */
    atomic_uint n_ref;
    enum api_kind api;
    uint32_t tenant; /* whose it is: fathom_request */
    uint64_t start_us;
    char request_id[LIMIT_REQUEST_ID_BYTES + 1]; /* of the header X-Request-Id; "": none */
    int32_t lane;                                /* of the header X-data-parallel-rank; -1: none */
    uint32_t host;                               /* the host whose client asks, below n_host */
    struct trace_context trace;                  /* the trace that the request belongs to */
    int crash_entry;                             /* where a crash report finds its id */

    pthread_mutex_t lock;
    enum job_state state;
    struct job_client client; /* valid while attached */
    bool attached;            /* the connection still uses this job */
    bool suspended;           /* the connection waits for job_wake */
    bool told; /* the status was given to the connection, or is settled: 200 of a stream */
    bool cut;  /* the client gets nothing more, and its connection is closed */

    struct buf body;
    bool gzip; /* the body is packed; false once it is unpacked */
    struct stream_pass pass;
    bool tells_tokens; /* the stream tells its tokens in comments: job_resume.c */
    struct buf untold; /* ids for the next such comment, whose log-probabilities are not sent yet */
    struct api_request request;
    struct token_list *prompts; /* [n_prompt]; released once submitted */
    size_t n_prompt;
    struct answer answer;
    const char *model;              /* the served name that the request used */
    bool thinking;                  /* the prompt ends inside reasoning */
    struct grammar_wait wait;       /* for the next of `grammars`; the cache's until woken */
    struct api_error error;         /* status 0: none */
    struct token_rule *barred;      /* of every choice; NULL: none; released once submitted */
    struct grammar **grammars;      /* [api_request_n_rule] a NULL: none; released once submitted */
    size_t n_ruled;                 /* how many of them have been made, or found not to be needed */
    struct job_choice *choices;     /* [answer.n_choice] */
    struct response_link *previous; /* the response that this one goes on from; NULL: none */
    size_t n_flying;
    uint64_t first_us; /* start to first token; 0: none yet */
    uint64_t moved_us; /* when the stream last gained bytes */
    uint64_t read_us;  /* when the connection last took bytes */
    size_t held;       /* bytes counted for its answer: job_held.c */
    size_t held_rest;  /* the part of them that is not counted for a choice */
};

/* What the HTTP side does next with a connection. */
enum job_action {
    JOB_WAIT,   /* nothing: it is resumed once there is something */
    JOB_ANSWER, /* job_take_answer */
    JOB_CLOSE,  /* close the connection */
};

/* ---- all jobs ------------------------------------------------------------------------------ */

/* jobs_init - an empty list; what jobs work with is set by the caller
 * jobs_free - frees no job */
void jobs_init(struct jobs *jobs);
void jobs_free(struct jobs *jobs);

/* jobs_count - live jobs; jobs_count_of - those of the clients of a host, O(all) */
size_t jobs_count(struct jobs *jobs);
size_t jobs_count_of(struct jobs *jobs, uint32_t host);

/* One answer may hold 1 / JOB_ANSWER_PARTS of what all together may. */
enum { JOB_ANSWER_PARTS = 4 };

/* jobs_are_full - all answers hold more than max_answer_bytes: new requests are refused
 * jobs_make_room - while they do, cut the client that has not read for longest; if all read, end
 * the largest answer that is being written */
bool jobs_are_full(const struct jobs *jobs);
void jobs_make_room(struct jobs *jobs);

/* jobs_tick - send silent streams an empty line, and make room
 * jobs_give_up - answer jobs that still run with 503, and cancel them */
void jobs_tick(struct jobs *jobs, uint64_t now_us);
void jobs_give_up(struct jobs *jobs);

/* jobs_cancel_response - cancel a running job of /v1/responses, and store the answer so far
 *
 *   body   the response object, with status "cancelled"
 *   found  whether a running job of this tenant has that id
 * Errors  ENOMEM. */
fathom_err jobs_cancel_response(struct jobs *jobs, const char *id, uint32_t tenant,
                                struct buf *body, bool *found);

/* jobs_dump - a line for each */
void jobs_dump(struct jobs *jobs, struct buf *out);

/* ---- one job ------------------------------------------------------------------------------- */

/* A request as it arrives. */
struct job_setup {
    enum api_kind api;
    uint32_t tenant;        /* the API key that it came with, by its number */
    const char *request_id; /* the client's, copied; "": none */
    int32_t lane;           /* where the client wants it; -1: anywhere */
    uint32_t host;          /* whose client asks, of server_options.n_host */
    bool gzip;              /* the body is packed with gzip */
    struct stream_pass pass;
    struct trace_context trace; /* that the request is of */
    struct job_client client;
};

/* job_start - take over a request whose body has arrived, and queue it
 *
 *   body  moved into the job, its bytes counted by state_hold_bytes
 * Errors  ENOMEM. A full queue is not an error: the job is DONE with 429. */
fathom_err job_start(struct job **out, struct jobs *jobs, const struct job_setup *setup,
                     struct buf *body);

/* job_next_action - what to do with the connection */
enum job_action job_next_action(struct job *job);

/* The answer's head, once there is one. */
struct job_answer {
    int status;
    const char *code;                    /* of the error that the body tells, NULL: none */
    bool stream;                         /* body by job_read */
    bool tells_tokens;                   /* of a stream: it could go on at another server */
    struct buf body;                     /* whole; owned by the caller */
    char id[ANSWER_ID_BYTES];            /* of the answer; "": none yet */
    unsigned retry_after_s;              /* 0: none */
    const struct api_warnings *warnings; /* the job's */
};

/* job_take_answer - after JOB_ANSWER */
fathom_err job_take_answer(struct job *job, struct job_answer *out);

/* job_read - bytes of a stream for the connection
 * Returns their number, 1 to max; 0: none yet, the connection is resumed; JOB_END; JOB_BROKEN. */
enum { JOB_END = -1, JOB_BROKEN = -2 };
ssize_t job_read(struct job *job, char *bytes, size_t max);

/* What the request's log line tells. */
struct job_summary {
    struct answer_usage usage;
    int status; /* 499 when the client left first */
    uint64_t first_us;
};

/* job_detach - the connection is done with the job; its requests in the engine are cancelled */
void job_detach(struct job *job, struct job_summary *out);

void job_hold(struct job *job);
void job_release(struct job *job); /* the last one frees it */

/* job_client_left - the client has closed its side: a running job is cancelled, a finished answer
 * is still sent */
void job_client_left(struct job *job);

/* job_take_event - an event of the choice that e->user names; after a FINISH it may be gone */
void job_take_event(const fathom_event *e);

/* job_prepare - the worker's task: parse, check, render, tokenise, submit (prepare.c). It is called
 * again for a turn to compile a grammar, or when another job has compiled the same one. */
enum work_rest job_prepare(struct job *job, enum work_kind kind);

/* ---- streams that are resumable (job_resume.c) --------------------------------------------- */

/* job_check_resume - of an opened answer: whether its stream is resumable, and may resume another
 * Errors  EINVAL (400): this client may not use `resume`. */
fathom_err job_check_resume(struct job *job);

/* job_replay - before the first event: feed the tokens of `resume` into the answer
 *
 *   ended  written: they were the whole answer, and nothing is left for the engine
 * Errors  ENOMEM. */
fathom_err job_replay(struct job *job, bool *ended);

/* job_tell_token - the answer has taken a TOKEN event: tell its token in a comment, now or later */
fathom_err job_tell_token(struct job *job, const fathom_event *e);

/* job_tell_lost - before the job's error: say in a comment that another server can go on, if so */
fathom_err job_tell_lost(struct job *job);

/* ---- for prepare.c and job_held.c, with the lock held --------------------------------------- */

/* job_lock, job_unlock - unlocking checks the invariants in builds with FATHOM_DCHECK */
void job_lock(struct job *job);
void job_unlock(struct job *job);

/* job_count_answer - count the bytes that its answer holds now, and those of `choice` if not NULL
 * Errors  EINVAL (400): it holds more than one answer may. */
fathom_err job_count_answer(struct job *job, struct job_choice *choice);

/* job_count_taken - the connection has taken n bytes, and the answer holds nothing else any more */
void job_count_taken(struct job *job, size_t n);

/* job_cut - the client gets nothing more, and its connection is closed */
void job_cut(struct job *job);

/* job_fail - end the job with an error and cancel its requests; does nothing when DONE */
void job_fail(struct job *job, fathom_err err);

/* job_finish_if_ended - close the answer once all choices have ended and nothing is in flight */
void job_finish_if_ended(struct job *job);

/* job_drop_grammars - release the grammars: the engine has references of its own, or needs none
 * job_drop_body     - free the body: it has been parsed, or is not needed */
void job_drop_grammars(struct job *job);
void job_drop_body(struct job *job);

/* job_wake - resume the connection if it is suspended and there is something for it */
void job_wake(struct job *job);

void job_check(const struct job *job);

#endif

/* job_held.c - the memory of answers, which is bounded for each and for all
 *
 * An answer holds the text of its choices until it is written, and then its bytes until the
 * connection is done with them. The client decides how long that takes. So the bytes of all answers
 * are counted. Over the limit, new requests are refused, and the client that has not read for
 * longest is cut.
 *
 * Invariant: a job's `held` is the sum of `held` of its choices and of held_rest. n_answer_byte of
 * the metrics is the sum over all jobs.
 */
#include "base/log.h"
#include "server/job.h"

/* Sets one of the job's counts to n, and adjusts the sums. */
static void put(struct job *job, size_t *count, size_t n)
{
    if (n == *count) return;
    atomic_fetch_add(&job->jobs->metrics->n_answer_byte, n - *count); /* modulo: n may be less */
    job->held += n - *count;
    *count = n;
}

static size_t limit_of_all(const struct jobs *jobs)
{
    return jobs->served->o.max_answer_bytes;
}

bool jobs_are_full(const struct jobs *jobs)
{
    return atomic_load(&jobs->metrics->n_answer_byte) > limit_of_all(jobs);
}

fathom_err job_count_answer(struct job *job, struct job_choice *choice)
{
    const size_t limit = limit_of_all(job->jobs) / JOB_ANSWER_PARTS;
    if (choice) {
        put(job, &choice->held, answer_choice_bytes(&job->answer, (size_t)(choice - job->choices)));
    }
    put(job, &job->held_rest,
        answer_bytes(&job->answer) + job->untold.cap + json_arena_used(job->request.kept_arena));
    if (job->held <= limit) return FATHOM_OK;
    return api_error_set(&job->error, 400, "answer_too_large", NULL,
                         "the answer takes %zu bytes of memory, at most %zu are held for one: ask "
                         "for fewer tokens, choices or log-probabilities",
                         job->held, limit);
}

void job_count_taken(struct job *job, size_t n)
{
    for (size_t i = 0; job->choices && i < job->answer.n_choice; i++) {
        put(job, &job->choices[i].held, 0);
    }
    put(job, &job->held_rest, n);
}

/* ---- who gives way ------------------------------------------------------------------------- */

/* Since when the job's client has not read bytes that wait for it; 0: none wait. */
static uint64_t waits_since(const struct job *job)
{
    bool has_bytes = job->request.stream ? job->answer.out.len > 0 : job->held > 0;
    return job->attached && job->told && !job->cut && has_bytes ? job->read_us : 0;
}

/* With the lock of the jobs: the job whose client has not read for longest; if all have read, the
 * job whose answer is the largest that is being written; NULL: none. */
static struct job *find_victim(struct jobs *jobs)
{
    struct job *victim = NULL;
    uint64_t oldest = UINT64_MAX;
    size_t most = 0;
    for (struct job *job = jobs->first; job; job = job->next) {
        job_lock(job);
        uint64_t since = waits_since(job);
        bool grows = job->state == JOB_RUNNING && !job->cut;
        size_t n = job->held;
        job_unlock(job);
        if (since && since < oldest) {
            oldest = since;
            victim = job;
        } else if (oldest == UINT64_MAX && grows && n > most) {
            most = n;
            victim = job;
        }
    }
    return victim;
}

/* Returns the bytes that its end will give back. */
static size_t end_job(struct job *job)
{
    job_lock(job);
    size_t n = job->held;
    if (waits_since(job)) {
        LOG_WARN("server",
                 "%s: its client reads too slowly, and all answers hold %zu bytes "
                 "(limit %zu): cut",
                 job->answer.id, (size_t)atomic_load(&job->jobs->metrics->n_answer_byte),
                 limit_of_all(job->jobs));
        atomic_fetch_add(&job->jobs->metrics->n_backlog_cut, 1);
        job_cut(job);
    } else if (job->state == JOB_RUNNING) {
        (void)api_error_set(&job->error, 429, "server_busy", NULL,
                            "all answers hold more than %zu bytes, which is the limit, and this "
                            "one %zu, which is the most; try again later",
                            limit_of_all(job->jobs), n);
        job_fail(job, FATHOM_EBUSY);
    }
    job_unlock(job);
    return n;
}

void jobs_make_room(struct jobs *jobs)
{
    size_t limit = limit_of_all(jobs);
    size_t held = atomic_load(&jobs->metrics->n_answer_byte);
    (void)pthread_mutex_lock(&jobs->lock);
    while (held > limit) {
        struct job *victim = find_victim(jobs);
        size_t n = victim ? end_job(victim) : held;
        held -= n < held ? n : held;
    }
    (void)pthread_mutex_unlock(&jobs->lock);
}

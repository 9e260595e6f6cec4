/* job.c - all edges of a job's life except its preparation (prepare.c), and the list of all jobs */
#include "server/job.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/api/responses_form.h"
#include "server/response_store.h"
#include "server/token_rule.h"
#include "server/workers.h"
#include "trace/exporter.h"

void job_check(const struct job *job)
{
    if (job->state >= JOB_RUNNING && job->choices) {
        size_t n = 0;
        for (size_t i = 0; i < job->answer.n_choice; i++) n += job->choices[i].flying;
        ASSERT(n == job->n_flying);
    } else {
        ASSERT(job->n_flying == 0);
    }
    ASSERT(!job->suspended || job->attached);
    ASSERT(!job->cut || job->state == JOB_DONE || job->state <= JOB_PREPARING);
}

void job_lock(struct job *job)
{
    (void)pthread_mutex_lock(&job->lock);
}

void job_unlock(struct job *job)
{
    DCHECK((job_check(job), true));
    (void)pthread_mutex_unlock(&job->lock);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void link_job(struct job *job)
{
    struct jobs *jobs = job->jobs;
    (void)pthread_mutex_lock(&jobs->lock);
    job->next = jobs->first;
    if (jobs->first) jobs->first->prev = job;
    jobs->first = job;
    jobs->n++;
    (void)pthread_mutex_unlock(&jobs->lock);
}

static void unlink_job(struct job *job)
{
    struct jobs *jobs = job->jobs;
    (void)pthread_mutex_lock(&jobs->lock);
    if (job->prev)
        job->prev->next = job->next;
    else
        jobs->first = job->next;
    if (job->next) job->next->prev = job->prev;
    jobs->n--;
    (void)pthread_mutex_unlock(&jobs->lock);
}

void job_hold(struct job *job)
{
    atomic_fetch_add(&job->n_ref, 1);
}

void job_drop_body(struct job *job)
{
    state_drop_bytes(job->jobs->state, job->body.len);
    buf_free(&job->body);
}

void job_drop_grammars(struct job *job)
{
    for (size_t i = 0; i < job->n_ruled; i++) grammar_release(job->grammars[i]);
    mem_free(job->grammars);
    job->grammars = NULL;
    job->n_ruled = 0;
}

/* Whoever walks the list holds its lock and takes no reference. So a job leaves the list before it
 * is freed. */
void job_release(struct job *job)
{
    if (atomic_fetch_sub(&job->n_ref, 1) != 1) return;
    unlink_job(job);
    crash_drop(job->crash_entry);
    job_count_taken(job, 0);
    answer_free(&job->answer);
    buf_free(&job->untold);
    job_drop_grammars(job);
    token_rule_destroy(job->barred);
    api_request_free(&job->request);
    response_store_release(job->jobs->responses, job->previous);
    for (size_t i = 0; job->prompts && i < job->n_prompt; i++) token_list_free(&job->prompts[i]);
    mem_free(job->prompts);
    mem_free(job->choices);
    job_drop_body(job);
    (void)pthread_mutex_destroy(&job->lock);
    mem_free(job);
}

fathom_err job_start(struct job **out, struct jobs *jobs, const struct job_setup *setup,
                     struct buf *body)
{
    struct job *job = mem_calloc(1, sizeof *job);
    *out = job;
    if (!job) return FATHOM_ENOMEM;
    job->jobs = jobs;
    job->api = setup->api;
    job->tenant = setup->tenant;
    job->gzip = setup->gzip;
    job->lane = setup->lane;
    job->host = setup->host;
    job->pass = setup->pass;
    job->trace = setup->trace;
    job->client = setup->client;
    job->wait.arg = job;
    job->attached = true;
    job->crash_entry = CRASH_NO_ENTRY;
    job->start_us = clock_now_us();
    /* kept only if it can become a part of the answer's id */
    const char *id = setup->request_id;
    if (api_is_request_id(id)) memcpy(job->request_id, id, strlen(id) + 1);
    job->body = *body;
    *body = (struct buf){0};
    atomic_init(&job->n_ref, 2); /* the connection's and the queue's */
    (void)pthread_mutex_init(&job->lock, NULL);
    link_job(job);
    bool full = jobs_are_full(jobs);
    if (!full && workers_push(jobs->workers, job, job->tenant) == FATHOM_OK) return FATHOM_OK;

    job_lock(job);
    if (atomic_load(&jobs->state->draining)) {
        (void)api_error_set(&job->error, 503, "shutting_down", NULL, "the server is shutting down");
    }
    if (full) {
        (void)api_error_set(&job->error, 429, "server_busy", NULL,
                            "answers that wait for their readers hold more than %zu bytes, which "
                            "is the limit; try again later",
                            (size_t)jobs->served->o.max_answer_bytes);
    }
    (void)api_error_set(&job->error, 429, "server_busy", NULL,
                        "no place to wait for preparation: there are %u, and one key may hold as "
                        "many as are free; try again later",
                        jobs->served->o.max_preparing);
    job->state = JOB_DONE;
    job_unlock(job);
    job_release(job);
    return FATHOM_OK;
}

/* ---- the HTTP side ------------------------------------------------------------------------- */

/* Whether the answer has begun. A stream begins with its first bytes, of a token or a comment, even
 * if the connection has not taken them. Before that an error is told by the status, later by an
 * event. */
static bool has_begun(const struct job *job)
{
    return job->told || (job->request.stream && job->answer.out.len > 0);
}

static bool is_answerable(const struct job *job)
{
    return job->state == JOB_DONE || (job->state == JOB_RUNNING && has_begun(job));
}

void job_wake(struct job *job)
{
    if (!job->suspended || !(job->cut || is_answerable(job))) return;
    job->suspended = false;
    job->client.ops->resume(job->client.arg);
}

enum job_action job_next_action(struct job *job)
{
    enum job_action action = JOB_WAIT;
    job_lock(job);
    if (job->cut)
        action = JOB_CLOSE;
    else if (is_answerable(job))
        action = JOB_ANSWER;
    else
        job->suspended = true;
    job_unlock(job);
    return action;
}

/* After how many seconds the engine expects to take a request that it refuses now: 1 to 60. */
static unsigned expect_room(fathom_engine *e)
{
    fathom_stats stats;
    fathom_get_stats(e, &stats);
    uint64_t wait_s = (stats.retry_after_us + 999999) / 1000000;
    return wait_s < 1 ? 1 : wait_s > 60 ? 60 : (unsigned)wait_s;
}

fathom_err job_take_answer(struct job *job, struct job_answer *out)
{
    fathom_err err = FATHOM_OK;
    *out = (struct job_answer){.status = 200, .warnings = &job->request.warnings};
    job_lock(job);
    const bool by_status = job->error.status && !job->told;
    job->told = true;
    job->read_us = clock_now_us();
    memcpy(out->id, job->answer.id, sizeof out->id);
    if (by_status) {
        out->status = job->error.status;
        out->code = job->error.code;
        out->retry_after_s = job->error.retry_after_s;
        if (out->status == 429 && !out->retry_after_s) {
            out->retry_after_s = expect_room(job->jobs->served->engine);
        }
        err = api_is_anthropic(job->api) ? api_error_write_anthropic(&out->body, &job->error)
                                         : api_error_write(&out->body, &job->error);
    } else if (job->request.stream) {
        out->stream = true;
        out->tells_tokens = job->tells_tokens;
    } else {
        out->body = job->answer.out;
        job->answer.out = (struct buf){0};
    }
    if (!out->stream) { /* the job is DONE: no event adds to the answer any more */
        answer_drop_text(&job->answer);
        job_count_taken(job, out->body.cap);
    }
    job_unlock(job);
    return err;
}

/* A stream's buffer above this size is freed once it has been read. */
enum { KEPT_BYTES = 64 << 10 };

ssize_t job_read(struct job *job, char *bytes, size_t max)
{
    ssize_t n = 0;
    job_lock(job);
    struct buf *out = &job->answer.out;
    if (job->cut) {
        n = JOB_BROKEN;
    } else if (out->len) {
        n = (ssize_t)(out->len < max ? out->len : max);
        memcpy(bytes, out->data, (size_t)n);
        buf_consume(out, (size_t)n);
        job->read_us = clock_now_us();
        if (out->len == 0 && out->cap > KEPT_BYTES) {
            buf_free(out);
            (void)job_count_answer(job, NULL); /* no error: it holds less now */
        }
    } else if (job->state == JOB_DONE) {
        n = JOB_END;
    } else {
        job->suspended = true;
    }
    job_unlock(job);
    return n;
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void cancel_flying(struct job *job)
{
    for (size_t i = 0; job->n_flying && i < job->answer.n_choice; i++) {
        if (job->choices[i].flying) fathom_cancel(job->jobs->served->engine, job->choices[i].id);
    }
}

void job_fail(struct job *job, fathom_err err)
{
    if (job->state == JOB_DONE) return;
    (void)api_error_from(&job->error, err, NULL, NULL);
    job->told = has_begun(job);
    job->state = JOB_DONE;
    cancel_flying(job);
    if (job->told) metrics_note_error(job->jobs->metrics, job->error.code);
    if (job->told &&
        (job_tell_lost(job) != FATHOM_OK || answer_fail(&job->answer, &job->error) != FATHOM_OK)) {
        job->cut = true;
    }
    job_wake(job);
}

/* Counts a client that has left before its answer was done. */
static void count_left(struct job *job)
{
    if (job->state == JOB_DONE || job->cut) return;
    atomic_fetch_add(&job->jobs->metrics->n_left, 1);
}

void job_cut(struct job *job)
{
    if (job->cut) return;
    job->cut = true;
    if (job->state == JOB_PREPARING) grammar_cache_leave(job->jobs->grammars, &job->wait);
    if (job->state == JOB_RUNNING) job->state = JOB_DONE;
    cancel_flying(job);
    if (job->attached) job->client.ops->shut(job->client.arg);
    job_wake(job);
}

void job_client_left(struct job *job)
{
    job_lock(job);
    /* a finished answer may still be on its way to a client that only closed its sending side */
    if (job->attached && job->state != JOB_DONE) {
        count_left(job);
        job_cut(job);
    }
    job_unlock(job);
}

void job_detach(struct job *job, struct job_summary *out)
{
    job_lock(job);
    bool early = job->state != JOB_DONE || job->cut;
    job->attached = false;
    job->suspended = false;
    count_left(job);
    job_cut(job);
    *out = (struct job_summary){.status = early ? 499 : 200};
    if (job->state >= JOB_RUNNING) {
        if (job->error.status) out->status = job->error.status;
        out->usage = answer_count(&job->answer);
        out->first_us = job->first_us;
    }
    job_unlock(job);
    job_release(job);
}

/* Stores a response. A failure is only logged, because the client has its answer already. */
static void keep_response(struct job *job, enum responses_status status)
{
    struct responses_request *q = job->request.responses;
    struct responses_part part;
    if (!q->store) return;
    struct response_record r = {
        .id = job->answer.id, .tenant = job->tenant, .previous = job->previous, .items = q->items};
    q->items = (struct buf){0};
    fathom_err err = responses_write(&r.body, &job->answer, status, NULL, &part);
    if (err) {
        buf_free(&r.items);
        buf_free(&r.body);
    } else {
        r.output_at = part.output_at;
        r.n_output = part.n_output;
        err = response_store_put(job->jobs->responses, &r, clock_now_us());
    }
    if (err) LOG_WARN("server", "%s is not kept: %s", job->answer.id, fathom_err_text(err));
}

static void note_longest(const struct job *job)
{
    uint32_t n_most = 0;
    for (size_t i = 0; i < job->answer.n_choice; i++) {
        if (job->choices[i].n_token > n_most) n_most = job->choices[i].n_token;
        if ((i + 1) % job->request.n > 0) continue;
        if (n_most) histogram_observe(&job->jobs->metrics->n_most_output, n_most);
        n_most = 0;
    }
}

void job_finish_if_ended(struct job *job)
{
    if (job->state != JOB_RUNNING || job->n_flying || job->answer.n_open) return;
    fathom_err err = answer_close(&job->answer);
    if (!err) err = job_count_answer(job, NULL);
    if (err) {
        job_fail(job, err);
        return;
    }
    note_longest(job);
    if (job->request.api == API_RESPONSES) keep_response(job, responses_status_of(&job->answer));
    job->state = JOB_DONE;
    job_wake(job);
}

/* ---- events of the engine ------------------------------------------------------------------ */

/* The error of a job whose request the engine has ended with ERROR. A missing host is no failure of
 * the engine: it may come back, or has done so already. */
static void set_engine_error(struct job *job)
{
    fathom_engine *engine = job->jobs->served->engine;
    const char *fault = fathom_fault(engine);
    fathom_stats stats;
    fathom_get_stats(engine, &stats);
    if (!fault[0]) {
        (void)api_error_set(&job->error, 503, "host_away", NULL, "%s",
                            stats.away[0] ? stats.away : "a host was lost and is back: ask again");
        return;
    }
    (void)api_error_set(&job->error, 503, "engine_failed", NULL, "the engine has failed: %s",
                        fault);
}

/* Cuts a client that does not read its stream, once too many bytes wait for it. */
static void check_backlog(struct job *job)
{
    if (!job->request.stream || answer_repeats(&job->answer)) return;
    if (job->answer.out.len <= LIMIT_STREAM_BACKLOG_BYTES) return;
    LOG_WARN("server", "%s: the client does not read, %zu bytes wait (limit %d): cut",
             job->answer.id, job->answer.out.len, LIMIT_STREAM_BACKLOG_BYTES);
    atomic_fetch_add(&job->jobs->metrics->n_backlog_cut, 1);
    job_cut(job);
}

static void note_token(struct job *job, struct job_choice *choice, const fathom_event *e,
                       uint64_t now_us)
{
    struct metrics *m = job->jobs->metrics;
    choice->n_token++;
    if (e->is_joined) return;
    if (choice->last_us) {
        histogram_observe(&m->inter_token, now_us - choice->last_us);
    } else {
        histogram_observe(&m->first_token, now_us - job->start_us);
    }
    choice->last_us = now_us;
}

static void take_prompt_token(struct job *job, struct job_choice *choice, const fathom_event *e)
{
    if (job->state != JOB_RUNNING) return;
    fathom_err err = answer_prompt_token(&job->answer, (size_t)(choice - job->choices), e);
    if (!err) err = job_count_answer(job, choice);
    if (err) job_fail(job, err);
}

static void take_token(struct job *job, struct job_choice *choice, const fathom_event *e)
{
    bool stopped;
    if (job->state != JOB_RUNNING) return;
    uint64_t now_us = clock_now_us();
    job->answer.age_us = now_us - job->start_us;
    if (!job->answer.choices[choice - job->choices].ended) note_token(job, choice, e, now_us);
    fathom_err err = answer_token(&job->answer, (size_t)(choice - job->choices), e, &stopped);
    if (!err) err = job_tell_token(job, e);
    if (!err) err = job_count_answer(job, choice);
    if (err) {
        job_fail(job, err);
        return;
    }
    if (stopped) fathom_cancel(job->jobs->served->engine, choice->id);
    job->moved_us = now_us;
    if (!job->first_us) job->first_us = job->moved_us - job->start_us;
    check_backlog(job);
}

/* A choice that a stop string ends is cancelled in the engine; it counts as stopped. */
static enum metric_finish finish_of(fathom_finish finish, bool ended)
{
    if (ended || finish == FATHOM_FINISH_STOP) return METRIC_FINISH_STOP;
    if (finish == FATHOM_FINISH_LENGTH) return METRIC_FINISH_LENGTH;
    return finish == FATHOM_FINISH_ERROR ? METRIC_FINISH_ERROR : METRIC_FINISH_ABORT;
}

static double seconds(uint64_t end_us, uint64_t begin_us)
{
    return end_us > begin_us ? (double)(end_us - begin_us) / 1e6 : 0;
}

/* Gives the exporter of traces a span for a choice that has ended. */
static void trace_finish(struct job *job, size_t i_choice, const struct metric_request *r,
                         const fathom_event *e)
{
    static const char *const finishes[METRIC_FINISH_COUNT] = {"stop", "length", "abort", "error"};
    if (!job->jobs->traces) return;
    const fathom_sampling *asked = &answer_request_of(&job->answer.choices[i_choice])->sampling;
    const uint64_t end_ns = clock_unix_ns();
    const uint64_t before_us = r->total_us > e->total_us ? r->total_us - e->total_us : 0;
    struct trace_span span = {.parent = job->trace,
                              .start_ns = end_ns - r->total_us * 1000,
                              .end_ns = end_ns,
                              .model = job->model,
                              .finish = finishes[r->finish],
                              .has_failed = r->finish == METRIC_FINISH_ERROR,
                              .n_prompt = e->n_prompt,
                              .n_cached = e->n_cached,
                              .n_output = r->n_output,
                              .n_choice = job->request.n,
                              .max_tokens = r->max_tokens,
                              .temperature = asked->temperature,
                              .top_p = asked->top_p,
                              .queue = seconds(e->queue_us, 0),
                              .whole = seconds(r->total_us, 0)};
    if (e->first_us >= e->queue_us && e->total_us >= e->first_us && e->first_us) {
        span.first_token = seconds(before_us + e->first_us, 0);
        span.prefill = seconds(e->first_us, e->queue_us);
        span.decode = seconds(e->total_us, e->first_us);
    }
    (void)snprintf(span.request_id, sizeof span.request_id, "%s", job->answer.id);
    trace_exporter_put(job->jobs->traces, &span);
}

static void take_finish(struct job *job, struct job_choice *choice, const fathom_event *e)
{
    size_t i = (size_t)(choice - job->choices);
    bool ended = job->answer.choices[i].ended;
    const struct metric_request request = {
        .finish = finish_of(e->finish, ended),
        .total_us = clock_now_us() - job->start_us,
        .n_output = choice->n_token,
        .max_tokens = answer_request_of(&job->answer.choices[i])->sampling.max_tokens};
    choice->flying = false;
    job->n_flying--;
    metrics_note_finish(job->jobs->metrics, &request, e);
    trace_finish(job, i, &request, e);
    if (job->state != JOB_RUNNING) return;
    if (e->finish == FATHOM_FINISH_ERROR && !ended) {
        set_engine_error(job);
        job_fail(job, FATHOM_EDEVICE);
        return;
    }
    if (e->finish == FATHOM_FINISH_EXPIRED && !ended) {
        (void)api_error_set(&job->error, 429, "server_busy", NULL,
                            "the request has waited for %.2f s without being started, longer than "
                            "its first token may take (--slo-ttft-ms); try again later",
                            (double)e->total_us / 1e6);
        job_fail(job, FATHOM_EBUSY);
        return;
    }
    if (e->finish == FATHOM_FINISH_LOST && !ended) {
        (void)api_error_set(&job->error, 503, "pages_lost", NULL,
                            "%s:%u has not given the pages of the prompt, and "
                            "kv_load_failure_policy is fail",
                            job->request.transfer.host, job->request.transfer.port);
        job_fail(job, FATHOM_EPEER);
        return;
    }
    if (e->finish == FATHOM_FINISH_CANCEL && !ended) {
        (void)api_error_set(&job->error, 503, "cancelled", NULL, "the request was cancelled");
        job_fail(job, FATHOM_ECANCEL);
        return;
    }
    if (e->finish == FATHOM_FINISH_CONSTRAINT && !ended) {
        bool barred = job->request.allowed_ids || job->request.n_bad_word;
        (void)api_error_set(&job->error, barred ? 400 : 500, "grammar_failed", NULL,
                            barred
                                ? "allowed_token_ids and bad_words left no token to go on with "
                                  "after %u"
                                : "the grammar of the answer left no token to go on with after %u",
                            e->n_output);
        job_fail(job, FATHOM_ELIMIT);
        return;
    }
    job->answer.age_us = request.total_us;
    fathom_err err = answer_finish(&job->answer, i, e);
    if (!err) err = job_count_answer(job, choice);
    if (err) {
        job_fail(job, err);
        return;
    }
    check_backlog(job);
    job_finish_if_ended(job);
}

void job_take_event(const fathom_event *e)
{
    struct job_choice *choice = e->user;
    struct job *job = choice->job;
    bool is_finish = e->kind == FATHOM_EVENT_FINISH;
    job_lock(job);
    switch (e->kind) {
    case FATHOM_EVENT_PROMPT: take_prompt_token(job, choice, e); break;
    case FATHOM_EVENT_TOKEN: take_token(job, choice, e); break;
    case FATHOM_EVENT_FINISH: take_finish(job, choice, e); break;
    }
    if (job->answer.out.len && job->request.stream) job_wake(job);
    job_unlock(job);
    if (is_finish) job_release(job);
}

/* ---- all jobs ------------------------------------------------------------------------------ */

void jobs_init(struct jobs *jobs)
{
    (void)pthread_mutex_init(&jobs->lock, NULL);
}

void jobs_free(struct jobs *jobs)
{
    (void)pthread_mutex_destroy(&jobs->lock);
}

size_t jobs_count(struct jobs *jobs)
{
    (void)pthread_mutex_lock(&jobs->lock);
    size_t n = jobs->n;
    (void)pthread_mutex_unlock(&jobs->lock);
    return n;
}

size_t jobs_count_of(struct jobs *jobs, uint32_t host)
{
    size_t n = 0;
    (void)pthread_mutex_lock(&jobs->lock);
    for (const struct job *job = jobs->first; job; job = job->next) n += job->host == host;
    (void)pthread_mutex_unlock(&jobs->lock);
    return n;
}

static void tick_job(struct job *job, uint64_t now_us)
{
    uint64_t interval_us = (uint64_t)job->jobs->served->o.idle_line_ms * 1000;
    job_lock(job);
    if (job->state == JOB_RUNNING && job->request.stream && job->suspended &&
        now_us >= job->moved_us + interval_us) { /* it may have moved after now_us was read */
        (void)answer_keep_alive(&job->answer);
        job->moved_us = now_us;
        job_wake(job);
    }
    job_unlock(job);
}

void jobs_tick(struct jobs *jobs, uint64_t now_us)
{
    (void)pthread_mutex_lock(&jobs->lock);
    for (struct job *job = jobs->first; job; job = job->next) tick_job(job, now_us);
    (void)pthread_mutex_unlock(&jobs->lock);
    jobs_make_room(jobs);
}

static void give_up_job(struct job *job)
{
    job_lock(job);
    if (job->state == JOB_RUNNING) {
        (void)api_error_set(&job->error, 503, "shutting_down", NULL,
                            "the server is shutting down and the request was not finished in "
                            "time");
        job_fail(job, FATHOM_ECANCEL);
    }
    job_unlock(job);
}

void jobs_give_up(struct jobs *jobs)
{
    (void)pthread_mutex_lock(&jobs->lock);
    for (struct job *job = jobs->first; job; job = job->next) give_up_job(job);
    (void)pthread_mutex_unlock(&jobs->lock);
}

/* With the job's lock: ends a response's stream, and stores the answer so far. */
static fathom_err cancel_response(struct job *job, struct buf *body)
{
    TRY(responses_end_item(&job->answer));
    TRY(responses_write(body, &job->answer, RESPONSES_CANCELLED, NULL, NULL));
    keep_response(job, RESPONSES_CANCELLED);
    (void)api_error_set(&job->error, 503, "cancelled", NULL, "the response was cancelled");
    job_fail(job, FATHOM_ECANCEL);
    return FATHOM_OK;
}

fathom_err jobs_cancel_response(struct jobs *jobs, const char *id, uint32_t tenant,
                                struct buf *body, bool *found)
{
    fathom_err err = FATHOM_OK;
    *found = false;
    (void)pthread_mutex_lock(&jobs->lock);
    for (struct job *job = jobs->first; job && !*found; job = job->next) {
        if (job->api != API_RESPONSES || job->tenant != tenant) continue;
        job_lock(job);
        *found = job->state == JOB_RUNNING && strcmp(job->answer.id, id) == 0;
        if (*found) err = cancel_response(job, body);
        job_unlock(job);
    }
    (void)pthread_mutex_unlock(&jobs->lock);
    return err;
}

static void dump_job(struct job *job, struct buf *out)
{
    static const char *const state_names[] = {"QUEUED", "PREPARING", "RUNNING", "DONE"};
    job_lock(job);
    (void)buf_printf(out, "job state=%s attached=%d suspended=%d cut=%d n_ref=%u n_flying=%zu",
                     state_names[job->state], job->attached, job->suspended, job->cut,
                     atomic_load(&job->n_ref), job->n_flying);
    if (job->state >= JOB_RUNNING) {
        (void)buf_printf(out, " id=%s n_open=%zu unread=%zu status=%d", job->answer.id,
                         job->answer.n_open, job->answer.out.len, job->error.status);
    }
    job_unlock(job);
}

void jobs_dump(struct jobs *jobs, struct buf *out)
{
    (void)pthread_mutex_lock(&jobs->lock);
    for (struct job *job = jobs->first; job; job = job->next) {
        dump_job(job, out);
        (void)buf_add_char(out, '\n');
    }
    (void)pthread_mutex_unlock(&jobs->lock);
}

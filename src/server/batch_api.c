/* batch_api.c - lines of a batch as jobs, and their answers as lines
 *
 * Invariants: n_open counts the asks in `open`; an ask is in `told` at most once, and its job, if
 * it has one, is not suspended then.
 */
#include "server/batch_api.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/http/routes.h"
#include "server/job.h"

/* A line that is asked. */
struct ask {
    struct batch *batch;
    struct ask *next, *prev;   /* of those that are open */
    struct ask *next_told;     /* of those that have something to tell */
    const struct route *route; /* NULL: none */
    struct job *job;           /* NULL: the line is no request; then error is set */
    struct api_error error;
    struct buf custom_id; /* as JSON */
    size_t number;
    void *user;
    bool alone; /* no other has been open beside it */
};

struct batch {
    struct route_env env;
    uint64_t seed; /* of ids */
    uint64_t n_asked;
    struct ask *open;
    size_t n_open;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t told_any;
    struct ask *told, **told_end;
};

/* ---- the client of a job ------------------------------------------------------------------- */

static void tell(void *arg)
{
    struct ask *a = arg;
    struct batch *b = a->batch;
    (void)pthread_mutex_lock(&b->lock);
    a->next_told = NULL;
    *b->told_end = a;
    b->told_end = &a->next_told;
    (void)pthread_cond_signal(&b->told_any);
    (void)pthread_mutex_unlock(&b->lock);
}

/* A job that is cut wakes its client if that waits; else it is told already. */
static void shut(void *arg)
{
    (void)arg;
}

static const struct job_client_ops client_ops = {tell, shut};

/* ---- a line -------------------------------------------------------------------------------- */

/* The member as a string; an error of the line without one. */
static fathom_err get_text(struct ask *a, const json_t *line, const char *key, const char **out)
{
    const json_t *v = json_object_get(line, key);
    *out = json_string_value(v);
    if (*out) return FATHOM_OK;
    return api_error_set(&a->error, 400, "invalid_line", key,
                         "line %zu: %s is %s, needed is a string", a->number, key,
                         v ? json_type_text(v) : "missing");
}

static fathom_err find_route(struct ask *a, const char *method, const char *url)
{
    const char *rest;
    if (strcmp(method, "POST") != 0) {
        return api_error_set(&a->error, 405, "method_not_allowed", "method",
                             "line %zu: method is \"%.20s\", needed is \"POST\"", a->number,
                             method);
    }
    const struct route *r = route_find(url, &rest);
    if (!r) return route_refuse_path(method, url, &a->error);
    if (r->get || r->call) {
        return api_error_set(&a->error, 404, "not_found", "url",
                             "line %zu: %.100s answers no requests of a batch", a->number, url);
    }
    a->route = r;
    return FATHOM_OK;
}

/* Finds route and body. Errors that are the line's own fault are in a->error. */
static fathom_err read_line(struct ask *a, const json_t *line, struct buf *body)
{
    const char *id, *method, *url;
    if (!json_is_plain_object(line)) {
        return api_error_set(&a->error, 400, "invalid_line", NULL,
                             "line %zu is %s, needed is an object", a->number,
                             json_type_text(line));
    }
    TRY(get_text(a, line, "custom_id", &id));
    buf_clear(&a->custom_id);
    TRY(json_write_string(&a->custom_id, id,
                          json_string_length(json_object_get(line, "custom_id"))));
    TRY(get_text(a, line, "method", &method));
    TRY(get_text(a, line, "url", &url));
    TRY(find_route(a, method, url));
    const json_t *given = json_object_get(line, "body");
    if (!json_is_plain_object(given)) {
        return api_error_set(&a->error, 400, "invalid_line", "body",
                             "line %zu: body is %s, needed is an object", a->number,
                             given ? json_type_text(given) : "missing");
    }
    body->limit = LIMIT_HTTP_BODY_BYTES;
    const fathom_err err = json_write(body, given);
    if (!body->over_limit) return err;
    return api_error_set(&a->error, 413, "request_too_large", "body",
                         "line %zu: the body is larger than %d bytes", a->number,
                         LIMIT_HTTP_BODY_BYTES);
}

static fathom_err parse(struct ask *a, const struct batch_request *r, struct buf *body)
{
    char what[32];
    json_t *line = NULL;
    fathom_diag d = {{0}};
    (void)snprintf(what, sizeof what, "line %zu", a->number);
    fathom_err err = json_read(r->text, r->n, what, &line, &d);
    if (!err) err = read_line(a, line, body);
    json_decref(line);
    if (err) (void)api_error_from(&a->error, err, NULL, &d);
    return err;
}

static fathom_err start(struct ask *a, struct buf *body)
{
    struct batch *b = a->batch;
    if (!state_hold_bytes(b->env.state, body->len)) {
        return api_error_set(&a->error, 429, "server_busy", NULL,
                             "the bodies of requests on their way hold as much as they may");
    }
    const struct job_setup setup = {.api = (enum api_kind)a->route->api,
                                    .request_id = "",
                                    .lane = -1,
                                    .client = {&client_ops, a}};
    return job_start(&a->job, b->env.jobs, &setup, body);
}

fathom_err batch_ask(struct batch *b, const struct batch_request *r)
{
    struct buf body = {0};
    struct ask *a = mem_calloc(1, sizeof *a);
    if (!a) return FATHOM_ENOMEM;
    *a = (struct ask){
        .batch = b, .next = b->open, .number = r->number, .user = r->user, .alone = b->n_open == 0};
    if (b->open) {
        b->open->prev = a;
        b->open->alone = false; /* of several none is any more */
    }
    b->open = a;
    b->n_open++;
    fathom_err err = buf_add_str(&a->custom_id, "null");
    if (!err) err = parse(a, r, &body);
    if (!err) err = start(a, &body);
    buf_free(&body);
    if (!a->job) (void)api_error_from(&a->error, err, NULL, NULL);
    if (!a->job || job_next_action(a->job) != JOB_WAIT) tell(a);
    return FATHOM_OK;
}

/* ---- an answer ----------------------------------------------------------------------------- */

static void forget(struct ask *a)
{
    struct batch *b = a->batch;
    struct job_summary ignored;
    if (a->job) job_detach(a->job, &ignored);
    if (a->prev)
        a->prev->next = a->next;
    else
        b->open = a->next;
    if (a->next) a->next->prev = a->prev;
    b->n_open--;
    buf_free(&a->custom_id);
    mem_free(a);
}

static struct ask *next_told(struct batch *b, unsigned timeout_ms)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    (void)pthread_mutex_lock(&b->lock);
    while (!b->told && pthread_cond_timedwait(&b->told_any, &b->lock, &end) != ETIMEDOUT) {
    }
    struct ask *a = b->told;
    if (a) b->told = a->next_told;
    if (!b->told) b->told_end = &b->told;
    (void)pthread_mutex_unlock(&b->lock);
    return a;
}

/* Moves the job's answer to `out`; an error of its own where it has none that stands in a line. */
static fathom_err take_answer(struct ask *a, struct job_answer *out)
{
    *out = (struct job_answer){0};
    switch (a->job ? job_next_action(a->job) : JOB_CLOSE) {
    case JOB_WAIT: return FATHOM_OK; /* it is told again */
    case JOB_ANSWER: TRY(job_take_answer(a->job, out)); break;
    case JOB_CLOSE:
        (void)api_error_set(&a->error, 503, "cancelled", NULL, "the request was given up");
        break;
    }
    if (out->stream) {
        (void)api_error_set(&a->error, 400, "unsupported_value", "stream",
                            "line %zu: an answer of a batch does not stream; leave stream out",
                            a->number);
    }
    if (!a->error.status) return FATHOM_OK;
    out->status = a->error.status;
    return api_error_write(&out->body, &a->error);
}

static fathom_err write_line(const struct ask *a, const struct job_answer *answer, struct buf *line)
{
    struct batch *b = a->batch;
    const bool ok = answer->status == 200;
    const uint64_t i = b->n_asked++;
    char id[40];
    (void)snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)rng_mix(b->seed, i, 0),
                   (unsigned long long)rng_mix(b->seed, i, 1));
    (void)buf_printf(line, "{\"id\":\"batch_req_%s\",\"custom_id\":", id);
    (void)buf_add(line, a->custom_id.data, a->custom_id.len);
    (void)buf_printf(line, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":",
                     answer->status, id);
    if (ok) {
        (void)buf_add(line, answer->body.data, answer->body.len);
        return buf_add_str(line, "},\"error\":null}\n");
    }
    (void)buf_add_str(line, "null},\"error\":");
    (void)buf_add(line, answer->body.data, answer->body.len);
    return buf_add_str(line, "}\n");
}

fathom_err batch_take(struct batch *b, unsigned timeout_ms, struct batch_answer *out, bool *taken)
{
    struct job_answer answer;
    fathom_err err = FATHOM_OK;
    struct ask *a = next_told(b, timeout_ms);
    *out = (struct batch_answer){0};
    *taken = false;
    if (!a) return FATHOM_OK;
    err = take_answer(a, &answer);
    if (!err && !answer.status) return FATHOM_OK;
    out->user = a->user;
    out->is_error = answer.status != 200;
    out->busy = answer.status == 429 && !a->alone;
    if (!err && !out->busy) err = write_line(a, &answer, &out->line);
    buf_free(&answer.body);
    if (err) buf_free(&out->line);
    *taken = !err;
    forget(a);
    return err;
}

/* ---- all ----------------------------------------------------------------------------------- */

size_t batch_window(const struct batch *b)
{
    const fathom_info *info = b->env.served->info;
    const size_t n = (size_t)2 * info->max_num_seqs * info->n_lane;
    return n < info->max_requests ? n : info->max_requests;
}

fathom_err batch_create(struct batch **out, const struct route_env *env)
{
    pthread_condattr_t attr;
    struct batch *b = mem_calloc(1, sizeof *b);
    *out = b;
    if (!b) return FATHOM_ENOMEM;
    b->env = *env;
    b->seed = rng_entropy();
    b->told_end = &b->told;
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&b->told_any, &attr);
    (void)pthread_condattr_destroy(&attr);
    return FATHOM_OK;
}

void batch_destroy(struct batch *b)
{
    if (!b) return;
    while (b->open) forget(b->open);
    (void)pthread_cond_destroy(&b->told_any);
    (void)pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

/* responses_route.c - /v1/responses/ID: told again, deleted, cancelled */
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "server/api/responses_form.h"
#include "server/job.h"
#include "server/response_store.h"
#include "server/routes.h"

/* ---- GET, DELETE, POST .../cancel ---------------------------------------------------------- */

static fathom_err refuse_id(const char *id, struct api_error *e)
{
    return api_error_set(e, 404, "not_found", NULL,
                         "there is no response \"%.80s\": it was not stored, or is deleted, too "
                         "old, or had to make room for newer ones (--max-stored-responses)",
                         id);
}

static fathom_err tell(struct server *s, const struct route_request *r, struct buf *body,
                       struct api_error *e)
{
    if (r->stream) {
        return api_error_set(e, 400, "unsupported_parameter", "stream",
                             "a response is told again as a whole: leave stream out");
    }
    struct response_link *link =
        s->responses ? response_store_hold(s->responses, r->rest, r->tenant, clock_now_us()) : NULL;
    if (!link) return refuse_id(r->rest, e);
    const struct buf *kept = response_link_body(link);
    fathom_err err = buf_add(body, buf_str(kept), kept->len);
    response_store_release(s->responses, link);
    return err;
}

static fathom_err drop(struct server *s, const struct route_request *r, struct buf *body,
                       struct api_error *e)
{
    if (!s->responses || !response_store_drop(s->responses, r->rest, r->tenant, clock_now_us())) {
        return refuse_id(r->rest, e);
    }
    return buf_printf(body, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", r->rest);
}

/* With the job's lock: its stream ends, and what it has said is kept. */
static fathom_err cancel_job(struct job *job, struct buf *body)
{
    TRY(responses_end_item(&job->answer));
    TRY(responses_write(body, &job->answer, RESPONSES_CANCELLED, NULL, NULL));
    job_keep_response(job, RESPONSES_CANCELLED);
    (void)api_error_set(&job->error, 503, "cancelled", NULL, "the response was cancelled");
    job_fail(job, FATHOM_ECANCEL);
    return FATHOM_OK;
}

/* Whether a response is being made; then it is cancelled. */
static bool cancel_running(struct server *s, const char *id, uint32_t tenant, struct buf *body,
                           fathom_err *err)
{
    bool found = false;
    (void)pthread_mutex_lock(&s->jobs_lock);
    for (struct job *job = s->jobs; job && !found; job = job->next) {
        if (job->api != API_RESPONSES || job->tenant != tenant) continue;
        (void)pthread_mutex_lock(&job->lock);
        found = job->state == JOB_RUNNING && strcmp(job->answer.id, id) == 0;
        if (found) *err = cancel_job(job, body);
        (void)pthread_mutex_unlock(&job->lock);
    }
    (void)pthread_mutex_unlock(&s->jobs_lock);
    return found;
}

static fathom_err cancel(struct server *s, const struct route_request *r, const char *id,
                         struct buf *body, struct api_error *e)
{
    fathom_err err = FATHOM_OK;
    if (cancel_running(s, id, r->tenant, body, &err)) return err;
    struct response_link *link =
        s->responses ? response_store_hold(s->responses, id, r->tenant, clock_now_us()) : NULL;
    if (!link) return refuse_id(id, e);
    response_store_release(s->responses, link);
    return api_error_set(e, 400, "invalid_value", NULL,
                         "the response \"%.80s\" has ended; only one in progress can be cancelled",
                         id);
}

fathom_err responses_call(struct server *s, const struct route_request *r, struct buf *body,
                          struct api_error *e)
{
    static const char tail[] = "/cancel";
    const size_t n_tail = sizeof tail - 1;
    size_t n = strlen(r->rest);
    if (r->method == METHOD_GET) return tell(s, r, body, e);
    if (r->method == METHOD_DELETE) return drop(s, r, body, e);
    if (n <= n_tail || strcmp(r->rest + n - n_tail, tail) != 0) {
        return api_error_set(e, 404, "not_found", NULL,
                             "there is no POST /v1/responses/%.80s; there is "
                             "/v1/responses/ID/cancel",
                             r->rest);
    }
    char id[64] = "";
    if (n - n_tail >= sizeof id) return refuse_id(r->rest, e);
    memcpy(id, r->rest, n - n_tail);
    return cancel(s, r, id, body, e);
}

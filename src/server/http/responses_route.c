/* responses_route.c - /v1/responses/ID: told again, deleted, cancelled; its input items */
#include <string.h>

#include "base/clock.h"
#include "server/http/response_items.h"
#include "server/http/route.h"
#include "server/job.h"
#include "server/response_store.h"

static fathom_err refuse_id(const char *id, struct api_error *e)
{
    return api_error_set(e, 404, "not_found", NULL,
                         "there is no response \"%.80s\": it was not stored, or is deleted, too "
                         "old, or had to make room for newer ones (--max-stored-responses)",
                         id);
}

static fathom_err tell(const struct route_env *env, const struct route_request *r, struct buf *body,
                       struct api_error *e)
{
    if (r->stream) {
        return api_error_set(e, 400, "unsupported_parameter", "stream",
                             "a response is told again as a whole: leave stream out");
    }
    struct response_store *store = env->jobs->responses;
    struct response_link *link =
        store ? response_store_hold(store, r->rest, r->tenant, clock_now_us()) : NULL;
    if (!link) return refuse_id(r->rest, e);
    const struct buf *kept = response_link_body(link);
    fathom_err err = buf_add(body, buf_str(kept), kept->len);
    response_store_release(store, link);
    return err;
}

static fathom_err tell_items(const struct route_env *env, const struct route_request *r,
                             const char *id, struct buf *body, struct api_error *e)
{
    struct item_page page;
    struct response_store *store = env->jobs->responses;
    struct response_link *link =
        store ? response_store_hold(store, id, r->tenant, clock_now_us()) : NULL;
    if (!link) return refuse_id(id, e);
    fathom_err err = response_page_read(&page, r->query, e);
    if (!err) err = response_items_write(body, id, response_link_input(link), &page, e);
    response_store_release(store, link);
    return err;
}

static fathom_err drop(const struct route_env *env, const struct route_request *r, struct buf *body,
                       struct api_error *e)
{
    struct response_store *store = env->jobs->responses;
    if (!store || !response_store_drop(store, r->rest, r->tenant, clock_now_us())) {
        return refuse_id(r->rest, e);
    }
    return buf_printf(body, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", r->rest);
}

static fathom_err cancel(const struct route_env *env, const struct route_request *r, const char *id,
                         struct buf *body, struct api_error *e)
{
    bool found;
    fathom_err err = jobs_cancel_response(env->jobs, id, r->tenant, body, &found);
    if (found) return err;
    struct response_store *store = env->jobs->responses;
    struct response_link *link =
        store ? response_store_hold(store, id, r->tenant, clock_now_us()) : NULL;
    if (!link) return refuse_id(id, e);
    response_store_release(store, link);
    return api_error_set(e, 400, "invalid_value", NULL,
                         "the response \"%.80s\" has ended; only one in progress can be cancelled",
                         id);
}

/* The id of "ID/tail"; false: the path ends otherwise, or the id is too long for one. */
static bool cut_tail(const char *rest, const char *tail, char *id, size_t bytes)
{
    size_t n = strlen(rest), n_tail = strlen(tail);
    if (n <= n_tail || n - n_tail >= bytes || strcmp(rest + n - n_tail, tail) != 0) return false;
    memcpy(id, rest, n - n_tail);
    id[n - n_tail] = '\0';
    return true;
}

fathom_err responses_call(const struct route_env *env, const struct route_request *r,
                          struct buf *body, struct api_error *e)
{
    char id[64];
    if (r->method == METHOD_GET) {
        if (cut_tail(r->rest, "/input_items", id, sizeof id)) {
            return tell_items(env, r, id, body, e);
        }
        return tell(env, r, body, e);
    }
    if (r->method == METHOD_DELETE) return drop(env, r, body, e);
    if (cut_tail(r->rest, "/cancel", id, sizeof id)) return cancel(env, r, id, body, e);
    return api_error_set(e, 404, "not_found", NULL,
                         "there is no POST /v1/responses/%.80s; there is /v1/responses/ID/cancel",
                         r->rest);
}

/* relay.c - the edges of a relay */
#define _GNU_SOURCE /* strcasestr, memmem */
#include "router/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "http/head.h"

/* How long a request that is no POST may wait for its answer, or for the head of a stream: that its
 * client has left is not noticed before. */
enum { AT_ONCE_MS = 30000 };

static struct pool_request ask_for(const struct relay *r, bool moves);
static bool ask(struct relay *r, const char *why_not);
static void ask_both(struct relay *r);

/* ---- life ---------------------------------------------------------------------------------- */

fathom_err relay_create(struct relay **out, struct relays *all, struct upstream *upstream,
                        const char *method, const char *target, const struct relay_client *client)
{
    struct relay *r = mem_calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return FATHOM_ENOMEM;
    r->target = mem_strdup(target);
    if (!r->target) {
        mem_free(r);
        return FATHOM_ENOMEM;
    }
    r->all = all;
    r->upstream = upstream;
    r->client = *client;
    r->attached = true;
    r->start_us = clock_now_us();
    (void)snprintf(r->method, sizeof r->method, "%s", method);
    atomic_init(&r->n_ref, 1);
    atomic_fetch_add(&all->n_live, 1);
    (void)pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return FATHOM_OK;
}

static void release(struct relay *r)
{
    if (atomic_fetch_sub(&r->n_ref, 1) != 1) return;
    atomic_fetch_sub(&r->all->n_live, 1);
    (void)pthread_mutex_destroy(&r->lock);
    follow_free(&r->follow);
    buf_free(&r->fields);
    buf_free(&r->body);
    buf_free(&r->resume_body);
    buf_free(&r->prefill.body);
    buf_free(&r->head);
    buf_free(&r->out);
    buf_free(&r->refusal);
    buf_free(&r->refusal_head);
    mem_free(r->keys);
    mem_free(r->target);
    mem_free(r);
}

static void lock(struct relay *r)
{
    (void)pthread_mutex_lock(&r->lock);
}

static void unlock(struct relay *r)
{
    (void)pthread_mutex_unlock(&r->lock);
}

static void wake(struct relay *r)
{
    if (r->attached) r->client.wake(r->client.arg);
}

/* ---- answers of the router ------------------------------------------------------------------ */

/* Ends the request with an error of the router's own. */
static void refuse(struct relay *r, int status, const char *code, const char *text)
{
    r->state = RELAY_OVER;
    buf_clear(&r->out);
    buf_clear(&r->head);
    r->error.retry_after_s = status == 503;
    (void)api_error_set(&r->error, status, code, NULL, "%s", text);
    atomic_fetch_add(&r->all->n_unserved, 1);
    wake(r);
}

/* Appends an error event to the stream. */
static void tell_error(struct relay *r, const char *code, const char *text)
{
    struct api_error e = {0};
    (void)api_error_set(&e, 502, code, NULL, "%s", text);
    (void)buf_add_str(&r->out, "event: error\ndata: ");
    (void)(r->is_anthropic ? api_error_write_anthropic : api_error_write)(&r->out, &e);
    (void)buf_add_str(&r->out, "\n\n");
}

/* Ends the stream here, with an event that says why if events are followed. */
static void break_stream(struct relay *r, const char *cause)
{
    char text[400];
    (void)snprintf(text, sizeof text, "the server was lost in the middle of the answer (%.200s)",
                   cause);
    LOG_WARN("router", "%s %s: %s", r->method, r->target, text);
    r->state = RELAY_OVER;
    r->is_broken = !r->follows;
    if (r->follows) tell_error(r, "server_lost", text);
    atomic_fetch_add(&r->all->n_unserved, 1);
    wake(r);
}

/* ---- the server's side: within upstream_run ------------------------------------------------ */

static bool is_post(const struct relay *r)
{
    return strcmp(r->method, "POST") == 0;
}

static bool is_head(const struct relay *r)
{
    return strcmp(r->method, "HEAD") == 0;
}

static const char *find_field(const struct buf *fields, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = buf_str(fields); at && *at; at = strchr(at, '\n')) {
        if (*at == '\n') at++;
        if (strncasecmp(at, name, n) == 0 && at[n] == ':')
            return at + n + 1 + strspn(at + n + 1, " ");
    }
    return NULL;
}

static bool is_field(const char *line, const char *name)
{
    return strncasecmp(line, name, strlen(name)) == 0;
}

/* Fields of the server that are not passed on: those that are meant for one connection only, and
 * those that this side writes itself. Content-Length is one of these unless the request is HEAD. A
 * host passes on the answer about a stream's pass, which is for the router in front of it. */
static bool is_own_field(const struct relay *r, const char *line)
{
    static const char *const names[] = {"Connection:", "Keep-Alive:", "Transfer-Encoding:", "Date:",
                                        "Trailer:",    "Upgrade:",    "Proxy-Connection:"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (is_field(line, names[i])) return true;
    }
    if (is_field(line, STREAM_PASS_HEADER ":")) return !r->all->is_host;
    return is_field(line, "Content-Length:") && !is_head(r);
}

/* Whether the server has said that the field of a line is for this connection only. */
static bool is_for_connection(const struct buf *fields, const char *line)
{
    static const char name[] = "Connection:";
    for (const char *at = buf_str(fields); *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (is_field(at, name) && head_lists(at + sizeof name - 1, line, strcspn(line, ":")))
            return true;
    }
    return false;
}

static void keep_fields(struct relay *r, const struct buf *fields)
{
    struct buf *out = &r->head;
    buf_clear(out);
    for (const char *at = buf_str(fields); *at;) {
        size_t n = strcspn(at, "\n");
        n += at[n] == '\n';
        if (!is_own_field(r, at) && !is_for_connection(fields, at)) (void)buf_add(out, at, n);
        at += n;
    }
}

static bool is_event_stream(const struct buf *fields)
{
    const char *type = find_field(fields, "Content-Type");
    return type && strncasecmp(type, "text/event-stream", 17) == 0;
}

static void take_head(void *arg, int status, const struct buf *fields)
{
    struct relay *r = arg;
    lock(r);
    bool streams = status == 200 && !is_head(r) && is_event_stream(fields);
    /* If the stream breaks later, servers that refused before may have room again. */
    if (streams) r->tried = (struct pool_tried){0};
    if (status == 200) pool_settle(r->all->pool, &r->lease);
    if (streams) upstream_take_time(r->call);
    const bool moves = streams && r->pass.is_on && find_field(fields, STREAM_PASS_HEADER);
    if (r->asks_anew) {
        r->gave_up = true;
    } else if (r->state == RELAY_RESUMING) {
        if (moves) r->state = RELAY_STREAMING;
        if (moves) atomic_fetch_add(&r->all->n_move, 1);
        r->gave_up = !moves;
    } else {
        r->moves = moves;
        r->status = status;
        keep_fields(r, fields);
        buf_clear(&r->out);
        if (streams) r->state = RELAY_STREAMING;
        if (streams) wake(r);
    }
    unlock(r);
}

static enum upstream_take take_body(void *arg, const char *bytes, size_t n)
{
    struct relay *r = arg;
    enum upstream_take how = UPSTREAM_TAKEN;
    lock(r);
    if (!r->attached) {
        how = UPSTREAM_STOP;
    } else if (r->gave_up || r->asks_anew) {
        how = UPSTREAM_TAKEN; /* and dropped: this server does not go on with the stream */
    } else if (r->state == RELAY_STREAMING && r->out.len >= RELAY_OUT_BYTES) {
        r->is_late = true;
        how = UPSTREAM_LATER;
    } else {
        if (r->state != RELAY_STREAMING) r->out.limit = RELAY_WHOLE_BYTES;
        fathom_err err = r->follows && r->state == RELAY_STREAMING
                             ? follow_feed(&r->follow, bytes, n, &r->out)
                             : buf_add(&r->out, bytes, n);
        if (err) how = UPSTREAM_STOP;
        r->is_too_large = err == FATHOM_ELIMIT;
        if (r->state == RELAY_STREAMING && r->out.len) wake(r);
    }
    unlock(r);
    return how;
}

static bool is_refusal(int status)
{
    return status == 429 || status == 502 || status == 503 || status == 504;
}

static bool says(const struct relay *r, const char *code)
{
    return memmem(buf_str(&r->out), r->out.len, code, strlen(code));
}

/* Whether another server may have what this one lacks: a stored response that is asked for or gone
 * on from, since each server stores its own; or the model, while servers change theirs in turn. */
static bool is_elsewhere(const struct relay *r)
{
    if (r->status == 404 && says(r, "\"model_not_found\"")) return true;
    if (r->status == 404) return strncmp(r->target, "/v1/responses/", 14) == 0;
    return r->status == 400 && r->view.has_previous && says(r, "\"previous_response_not_found\"");
}

/* Of several refusals, keeps the one whose Retry-After is the shortest. */
static void keep_refusal(struct relay *r)
{
    const char *after = find_field(&r->head, "Retry-After");
    long s = after ? strtol(after, NULL, 10) : 0;
    uint32_t wait_s = s > 0 && s < 3600 ? (uint32_t)s : 3600;
    if (r->refusal_status && wait_s >= r->refusal_s) return;
    r->refusal_s = wait_s;
    r->refusal_status = r->status;
    buf_clear(&r->refusal);
    buf_clear(&r->refusal_head);
    (void)buf_add(&r->refusal, buf_str(&r->out), r->out.len);
    (void)buf_add(&r->refusal_head, buf_str(&r->head), r->head.len);
}

/* Whether the server that prefilled was lost after its answer, and this one refuses to go on
 * because it did not get the pages. Asked without pages, a server can compute the prompt itself. */
static bool has_lost_pages(const struct relay *r)
{
    return r->status == 503 && r->pages_port && says(r, "\"pages_lost\"");
}

/* The call of a server has ended, and nothing of its answer has been sent to the client. */
static void end_whole(struct relay *r, bool ok, const char *cause)
{
    if (ok && has_lost_pages(r)) {
        r->pages_port = 0;
        if (ask(r, "the pages of the prompt are lost")) atomic_fetch_add(&r->all->n_retry, 1);
        return;
    }
    if (ok && !is_refusal(r->status) && !is_elsewhere(r)) {
        r->state = RELAY_OVER;
        wake(r);
        return;
    }
    if (ok) keep_refusal(r);
    pool_tried_add(&r->tried, &r->lease);
    if (!ok) LOG_INFO("router", "%s %s: %s: %s", r->method, r->target, r->lease.url, cause);
    if (ask(r, cause)) atomic_fetch_add(&r->all->n_retry, 1);
}

/* The call of a stream has ended: the stream is over, or another server is asked to go on. */
static void end_stream(struct relay *r, bool ok, const char *cause)
{
    bool whole = ok && r->state == RELAY_STREAMING && !r->follow.fails;
    if (whole) {
        if (r->follows) (void)follow_flush(&r->follow, &r->out);
        r->state = RELAY_OVER;
        wake(r);
        return;
    }
    if (ok) cause = r->gave_up ? "the next server did not go on with it" : "it is being stopped";
    pool_tried_add(&r->tried, &r->lease);
    if (!r->moves || r->n_move >= r->all->max_moves) {
        break_stream(r, cause);
        return;
    }
    r->n_move++;
    r->state = RELAY_RESUMING;
    LOG_INFO("router", "%s %s: %s: %s; another server is to go on behind token %zu", r->method,
             r->target, r->lease.url, cause, r->follow.n_token);
    follow_break(&r->follow);
    (void)ask(r, cause);
}

/* No other server is asked: its answer would be as large. */
static void end_too_large(struct relay *r)
{
    char text[160];
    if (r->state != RELAY_ASKING) {
        break_stream(r, "an event is larger than a router may hold");
        return;
    }
    (void)snprintf(text, sizeof text,
                   "the answer has more than %d bytes, which is the limit of the router; ask for "
                   "less at once, or for a stream",
                   RELAY_WHOLE_BYTES);
    refuse(r, 502, "answer_too_large", text);
}

static enum pool_end how_it_ended(const struct relay *r, bool ok)
{
    if (!r->attached || r->asks_anew) return POOL_LEFT;
    if (r->is_too_large) return POOL_SERVED;
    if (!ok) return r->all->is_host ? POOL_LEFT : POOL_FAILED;
    bool refused = r->state == RELAY_ASKING && is_refusal(r->status);
    return refused || r->gave_up || r->follow.fails ? POOL_REFUSED : POOL_SERVED;
}

static void take_end(void *arg, bool ok, const char *cause)
{
    struct relay *r = arg;
    lock(r);
    r->call = NULL;
    pool_give(r->all->pool, &r->lease, how_it_ended(r, ok), clock_now_us());
    if (!r->attached) {
        r->state = RELAY_OVER;
    } else if (r->asks_anew) {
        ask_both(r);
    } else if (r->is_too_large) {
        end_too_large(r);
    } else if (r->state == RELAY_ASKING) {
        end_whole(r, ok, cause);
    } else {
        end_stream(r, ok, cause);
    }
    unlock(r);
    release(r);
}

/* The request is on its way. Now note in the pool which prompt the server was sent: that costs more
 * than choosing it, and the client does not wait for it here. */
static void take_begun(void *arg)
{
    struct relay *r = arg;
    const struct pool_request q = {.keys = r->keys, .n_key = r->n_key};
    lock(r);
    if (r->call) pool_note_sent(r->all->pool, &q, &r->lease);
    unlock(r);
}

/* Whether to give up a server that sends nothing and answers no looks: a process that stands still
 * keeps its connections. A request that no other server could have waits for it. */
static bool is_lost(void *arg)
{
    struct relay *r = arg;
    lock(r);
    const bool moves = r->state != RELAY_ASKING;
    const struct pool_request q = ask_for(r, moves);
    bool may_move = !moves || (r->moves && r->n_move < r->all->max_moves);
    bool is = r->attached && may_move && pool_is_lost(r->all->pool, &q, &r->lease, clock_now_us());
    unlock(r);
    return is;
}

static const struct upstream_ops ops = {take_begun, take_head, take_body, is_lost, take_end};

/* ---- the side of the server that prefills --------------------------------------------------- */

static void take_prefill_head(void *arg, int status, const struct buf *fields)
{
    struct relay *r = arg;
    (void)fields;
    lock(r);
    r->prefill.status = status;
    if (status == 200) pool_settle(r->all->pool, &r->prefill.lease);
    unlock(r);
}

static enum upstream_take take_prefill_body(void *arg, const char *bytes, size_t n)
{
    (void)arg, (void)bytes, (void)n;
    return UPSTREAM_TAKEN; /* its one token is drawn again by the server that answers */
}

/* The prompt's pages will not come, or not all. The call to the server that waits for them is
 * cancelled and sent anew, unless its answer has begun. If the reason is that the request is wrong,
 * no other server that prefills is asked. */
static void lose_pages(struct relay *r, bool ok)
{
    bool is_wrong = ok && r->prefill.status >= 400 && r->prefill.status < 500;
    LOG_INFO("router", "%s %s: %s has not computed the prompt (status %d)", r->method, r->target,
             r->prefill.lease.url, r->prefill.status);
    pool_tried_add(&r->prefill.tried, &r->prefill.lease);
    r->prefill.is_refused = is_wrong && !is_refusal(r->prefill.status);
    r->pages_port = 0;
    if (r->state != RELAY_ASKING || !r->call) return;
    r->asks_anew = true;
    upstream_cancel(r->call);
}

static void take_prefill_end(void *arg, bool ok, const char *cause)
{
    struct relay *r = arg;
    enum pool_end how = POOL_SERVED;
    (void)cause;
    lock(r);
    if (!r->attached) {
        how = POOL_LEFT;
    } else if (!ok) {
        how = POOL_FAILED;
    } else if (is_refusal(r->prefill.status)) {
        how = POOL_REFUSED;
    }
    r->prefill.call = NULL;
    pool_give(r->all->pool, &r->prefill.lease, how, clock_now_us());
    if (ok && r->prefill.status == 200) {
        atomic_fetch_add(&r->all->n_prefill, 1);
    } else if (r->attached) {
        lose_pages(r, ok);
    }
    unlock(r);
    release(r);
}

static void take_prefill_begun(void *arg)
{
    struct relay *r = arg;
    const struct pool_request q = {.keys = r->keys, .n_key = r->n_key};
    lock(r);
    if (r->prefill.call) pool_note_sent(r->all->pool, &q, &r->prefill.lease);
    unlock(r);
}

static const struct upstream_ops prefill_ops = {.begun = take_prefill_begun,
                                                .head = take_prefill_head,
                                                .body = take_prefill_body,
                                                .end = take_prefill_end};

/* ---- asking -------------------------------------------------------------------------------- */

/* The body for a server that prefills: the client's, with members behind it that ask for one token.
 * Of a member that comes twice the last one counts. */
static fathom_err write_prefill(struct relay *r)
{
    struct buf *b = &r->prefill.body;
    const bool completes = strstr(r->target, "/completions");
    const bool responds = strstr(r->target, "/responses");
    size_t n = r->body.len;
    while (n > 0 && r->body.data[n - 1] != '}') n--;
    ASSERT(n > 0 && r->view.is_object);
    buf_clear(b);
    (void)buf_add(b, r->body.data, n - 1);
    (void)buf_add_str(b, r->view.is_empty ? "" : ",");
    (void)buf_add_str(b, responds ? "\"max_output_tokens\":1,\"store\":false" : "\"max_tokens\":1");
    if (completes) (void)buf_add_str(b, ",\"max_completion_tokens\":1,\"n\":1");
    if (completes || responds) (void)buf_add_str(b, ",\"stream_options\":null");
    return buf_add_str(b, ",\"min_tokens\":0,\"stream\":false,"
                          "\"kv_transfer_params\":{\"do_remote_decode\":true}}");
}

static void write_pages(struct relay *r, struct buf *b, bool is_last)
{
    if (r->pages_port == 0) return;
    (void)buf_printf(b,
                     "\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_host\":\"%s\","
                     "\"remote_port\":%u}%s",
                     r->pages_host, r->pages_port, is_last ? "" : ",");
}

/* The body with members in front that say who has the prompt's pages, and which tokens have been
 * sent to the client. */
static fathom_err write_resume(struct relay *r)
{
    struct buf *b = &r->resume_body;
    const struct stream_follow *f = &r->follow;
    const char *body = buf_str(&r->body);
    buf_clear(b);
    if (f->n_token == 0 && r->pages_port == 0) return buf_add(b, body, r->body.len);
    (void)buf_add(b, body, r->view.inside);
    write_pages(r, b, f->n_token == 0 && r->view.is_empty);
    if (f->n_token == 0) return buf_add(b, body + r->view.inside, r->body.len - r->view.inside);
    (void)buf_add_str(b, "\"resume\":[");
    for (size_t i = 0; i < f->n_token; i++) (void)buf_printf(b, i ? ",%d" : "%d", f->tokens[i]);
    (void)buf_add_str(b, r->view.is_empty ? "]" : "],");
    return buf_add(b, body + r->view.inside, r->body.len - r->view.inside);
}

static fathom_err send_to(struct relay *r, const struct pool_lease *to, const struct buf *body,
                          bool passes, const struct upstream_ops *o, struct upstream_call **out)
{
    struct buf url = {0}, fields = {0};
    char pass[STREAM_PASS_BYTES];
    (void)buf_printf(&url, "%s%s", to->url, r->target);
    (void)buf_add(&fields, buf_str(&r->fields), r->fields.len);
    if (passes) {
        stream_pass_write(pass, &r->pass, &r->all->secret);
        (void)buf_printf(&fields, STREAM_PASS_HEADER ": %s\r\n", pass);
    }
    fathom_err err = buf_status(&url);
    if (!err) err = buf_status(&fields);
    const struct upstream_request q = {.method = r->method,
                                       .url = buf_str(&url),
                                       .name = to->name,
                                       .fields = buf_str(&fields),
                                       .body = buf_str(body),
                                       .n_body = body->len,
                                       .timeout_ms = is_post(r) ? 0 : AT_ONCE_MS,
                                       .ops = o,
                                       .arg = r};
    atomic_fetch_add(&r->n_ref, 1); /* the call's */
    if (!err) err = upstream_send(r->upstream, &q, out);
    buf_free(&url);
    buf_free(&fields);
    if (err) atomic_fetch_sub(&r->n_ref, 1);
    return err;
}

static fathom_err send_request(struct relay *r)
{
    const struct buf *body = &r->body;
    if (r->state == RELAY_RESUMING || r->pages_port) {
        TRY(write_resume(r));
        body = &r->resume_body;
    }
    if (r->state == RELAY_ASKING) r->follows = r->lease.moves && !r->all->is_host;
    r->gave_up = r->is_late = false;
    return send_to(r, &r->lease, body, r->follows && r->pass.is_on, &ops, &r->call);
}

/* No server is left to ask. */
static void end_unserved(struct relay *r, const char *why_not)
{
    char text[400], none[POOL_NONE_BYTES];
    if (r->state == RELAY_RESUMING) {
        break_stream(r, why_not);
    } else if (r->refusal_status) {
        r->state = RELAY_OVER;
        r->status = r->refusal_status;
        buf_clear(&r->out);
        buf_clear(&r->head);
        (void)buf_add(&r->out, buf_str(&r->refusal), r->refusal.len);
        (void)buf_add(&r->head, buf_str(&r->refusal_head), r->refusal_head.len);
        wake(r);
    } else if (r->all->is_host) {
        (void)snprintf(text, sizeof text, "host 0 has not answered%s%.300s", *why_not ? ": " : "",
                       why_not);
        refuse(r, 503, "host_away", text);
    } else if (r->tried.n > 0) {
        (void)snprintf(text, sizeof text, "no server has answered; the last one: %.300s", why_not);
        refuse(r, 502, "no_answer", text);
    } else {
        const uint32_t retry_s = pool_tell_none(r->all->pool, clock_now_us(), none);
        refuse(r, 503, "no_server", none);
        r->error.retry_after_s = retry_s;
    }
}

/* What the pool must know to choose a server; moves: for a stream that has begun. */
static struct pool_request ask_for(const struct relay *r, bool moves)
{
    return (struct pool_request){.keys = r->keys,
                                 .n_key = r->n_key,
                                 .n_token = request_view_tokens(&r->view),
                                 .session = r->session,
                                 .tried = &r->tried,
                                 .has_pages = r->pages_port != 0,
                                 .moves = moves,
                                 .numerics = moves ? r->lease.numerics : 0};
}

/* Sends the request to the best server that has not failed it. False: there is none, and the
 * request is over. With the lock held. */
static bool ask(struct relay *r, const char *why_not)
{
    const struct pool_request q = ask_for(r, r->state == RELAY_RESUMING);
    if (!pool_take(r->all->pool, &q, clock_now_us(), &r->lease)) {
        end_unserved(r, why_not);
        return false;
    }
    if (send_request(r) == FATHOM_OK) return true;
    pool_give(r->all->pool, &r->lease, POOL_LEFT, clock_now_us());
    if (r->state == RELAY_RESUMING) {
        break_stream(r, "out of memory for the request");
    } else {
        refuse(r, 500, "out_of_memory", "out of memory for the request");
    }
    return false;
}

/* Sends the prompt to a server that prefills, if that is worth it. With the lock held. When it is
 * sent anew the keys are left out: that a server was sent the prompt does not mean that it has it.
 * */
static void begin_prefill(struct relay *r)
{
    const struct pool_request q = {.keys = r->keys,
                                   .n_key = r->prefill.tried.n ? 0 : r->n_key,
                                   .n_token = request_view_tokens(&r->view),
                                   .session = r->session,
                                   .tried = &r->prefill.tried,
                                   .prefills = true};
    struct relay_prefill *p = &r->prefill;
    uint64_t now_us = clock_now_us();
    ASSERT(!p->call);
    if (!r->may_move || !r->view.is_object || r->view.has_previous) return;
    if (r->view.stays || p->is_refused) return;
    if (!pool_wants_prefill(r->all->pool, &q, now_us)) return;
    if (!pool_take(r->all->pool, &q, now_us, &p->lease)) return;
    p->status = 0;
    if (write_prefill(r) == FATHOM_OK &&
        send_to(r, &p->lease, &p->body, false, &prefill_ops, &p->call) == FATHOM_OK) {
        memcpy(r->pages_host, p->lease.pages_host, sizeof r->pages_host);
        r->pages_port = p->lease.pages_port;
        return;
    }
    pool_give(r->all->pool, &p->lease, POOL_LEFT, now_us);
}

static void ask_both(struct relay *r)
{
    r->state = RELAY_ASKING;
    r->asks_anew = false;
    begin_prefill(r);
    (void)ask(r, "");
}

/* Finds the keys of the prompt, and whether the stream could go on at another server. */
static void look_at_body(struct relay *r)
{
    request_view_read(&r->view, buf_str(&r->body), r->body.len);
    size_t n_max = r->view.n_text / VIEW_BLOCK_BYTES;
    if (n_max > POOL_KEYS_MAX) n_max = POOL_KEYS_MAX;
    if (n_max) r->keys = mem_alloc_array(n_max, sizeof *r->keys);
    if (r->keys) r->n_key = request_view_keys(&r->view, r->keys, n_max);
    bool moves = r->may_move && r->view.is_object && r->view.stream && !r->view.has_resume;
    r->pass = (struct stream_pass){moves, rng_entropy(), clock_unix_s()};
}

void relay_ask(struct relay *r)
{
    look_at_body(r);
    atomic_fetch_add(&r->all->n_request, 1);
    lock(r);
    ASSERT(r->state == RELAY_READING);
    ask_both(r);
    unlock(r);
}

/* ---- the client's side --------------------------------------------------------------------- */

enum relay_answer relay_take(struct relay *r, int *status, const struct buf **head,
                             struct buf *body, struct api_error *error)
{
    enum relay_answer how = RELAY_WAIT;
    lock(r);
    *status = r->status;
    *head = &r->head;
    if (r->state == RELAY_STREAMING || r->state == RELAY_RESUMING ||
        (r->state == RELAY_OVER && !is_head(r) && is_event_stream(&r->head))) {
        how = RELAY_STREAM;
    } else if (r->state == RELAY_OVER && r->error.status) {
        how = RELAY_ERROR;
        *error = r->error;
    } else if (r->state == RELAY_OVER) {
        how = RELAY_WHOLE;
        *body = r->out;
        body->limit = 0;
        r->out = (struct buf){0};
    }
    unlock(r);
    return how;
}

ssize_t relay_read(struct relay *r, char *bytes, size_t max)
{
    ssize_t n = 0;
    lock(r);
    if (r->out.len > 0) {
        n = (ssize_t)(r->out.len < max ? r->out.len : max);
        memcpy(bytes, r->out.data, (size_t)n);
        buf_consume(&r->out, (size_t)n);
        if (r->is_late && r->call && r->out.len < RELAY_OUT_BYTES / 2) {
            r->is_late = false;
            upstream_go_on(r->call);
        }
    } else if (r->state == RELAY_OVER) {
        n = r->is_broken ? RELAY_BROKEN : RELAY_END;
    }
    unlock(r);
    return n;
}

void relay_detach(struct relay *r)
{
    lock(r);
    r->attached = false;
    if (r->call) upstream_cancel(r->call);
    if (r->prefill.call) upstream_cancel(r->prefill.call);
    unlock(r);
    release(r);
}

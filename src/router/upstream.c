/* upstream.c - connections to servers, here called links, and the calls on them
 *
 * libcurl makes the connections (dial.h). Requests are written and answers are read here, because
 * that costs less (docs/router.md).
 *
 * States of a link
 *
 *   MAKING --libcurl has connected--> BUSY --its answer is whole--> IDLE --the next call--> BUSY
 *      +--- it cannot --> gone          +--- anything else --> gone  +--- closed, too old --> gone
 *
 * Invariants: a call is in the mail at most once. A call that has begun has a link until it ends,
 * and a link that is not IDLE has a call. A call that ends is taken out of the mail and freed.
 *
 * The server may close an IDLE link just as the next call is sent over it. That call then gets a
 * new link, once, if nothing of its answer had come. */
#include "router/upstream.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "router/reply.h"

enum { EVENTS = 256, SILENT_MS = 10000 };
enum { IDLE_LINKS = 256, IDLE_US = 60000000, BLOCK_BYTES = 65536 };
enum { MAIL_START = 1, MAIL_CANCEL = 2, MAIL_GO_ON = 4 };

static const uint64_t never_us = UINT64_MAX;

/* A connection to a server. */
struct link {
    struct upstream *u;
    struct link *next, *prev;   /* in the list `making`, or `idle` with the one used last first */
    struct upstream_call *call; /* NULL: idle */
    struct dial dial;           /* in use while it is MAKING, and with TLS until it is freed */
    int fd;                     /* -1: MAKING */
    bool is_tls;
    uint32_t events; /* that epoll waits for; 0: the socket is not in the epoll */
    uint64_t idle_us;
    char *origin; /* "http://host:port" */
    char *name;   /* as in upstream_request */
};

struct upstream_call {
    struct upstream *u;
    struct upstream_call *next, *prev; /* of those that have begun */
    struct link *link;
    char *origin, *name;
    struct buf head; /* of the request */
    const char *body;
    size_t n_body;
    size_t n_sent; /* of both */
    bool may_retry;
    bool is_late; /* after UPSTREAM_LATER: `held` will be offered again, then `rest` read */
    struct buf held, rest;
    struct reply_reader reply;
    uint64_t end_us;
    uint64_t heard_us; /* when something of the answer has come, or it began */
    const struct upstream_ops *ops;
    void *arg;
    unsigned mail;
    struct upstream_call *next_mail;
};

struct upstream {
    struct upstream_setup setup;
    CURLSH *share; /* of names and sessions */
    int epoll_fd;
    uint64_t tick_due_us;
    struct upstream_call *first;
    struct link *making;
    struct link *idle, *last_idle;
    uint32_t n_idle;
    char *block; /* [BLOCK_BYTES] */
    struct upstream_call *mail, *last_mail;
};

/* ---- mail ------------------------------------------------------------------------------------ */

static void post(struct upstream_call *c, unsigned what)
{
    struct upstream *u = c->u;
    if (!c->mail) {
        c->next_mail = NULL;
        *(u->mail ? &u->last_mail->next_mail : &u->mail) = c;
        u->last_mail = c;
    }
    c->mail |= what;
}

void upstream_cancel(struct upstream_call *c)
{
    post(c, MAIL_CANCEL);
}

void upstream_go_on(struct upstream_call *c)
{
    post(c, MAIL_GO_ON);
}

void upstream_take_time(struct upstream_call *c)
{
    c->end_us = never_us;
}

/* ---- links ----------------------------------------------------------------------------------- */

static void watch(struct link *l, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = l};
    if (events == l->events) return;
    int what = l->events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    (void)epoll_ctl(l->u->epoll_fd, what, l->fd, &e);
    l->events = events;
}

static void take_from_idle(struct link *l)
{
    struct upstream *u = l->u;
    *(l->prev ? &l->prev->next : &u->idle) = l->next;
    *(l->next ? &l->next->prev : &u->last_idle) = l->prev;
    l->next = l->prev = NULL;
    u->n_idle--;
}

static void end_making(struct link *l)
{
    *(l->prev ? &l->prev->next : &l->u->making) = l->next;
    if (l->next) l->next->prev = l->prev;
    l->next = l->prev = NULL;
}

/* Closes and frees a link that is not idle. */
static void free_link(struct link *l)
{
    ASSERT(!l->call);
    if (l->fd < 0) {
        end_making(l);
    } else {
        watch(l, 0);
        if (!l->is_tls) (void)close(l->fd);
    }
    dial_end(&l->dial);
    mem_free(l->origin);
    mem_free(l->name);
    mem_free(l);
}

static void drop_idle(struct link *l)
{
    take_from_idle(l);
    free_link(l);
}

static void park(struct link *l)
{
    struct upstream *u = l->u;
    l->idle_us = clock_now_us();
    l->next = u->idle;
    *(u->idle ? &u->idle->prev : &u->last_idle) = l;
    u->idle = l;
    u->n_idle++;
    watch(l, EPOLLIN | EPOLLRDHUP);
}

static struct link *find_idle(const struct upstream *u, const struct upstream_call *c)
{
    struct link *l = u->idle;
    while (l && (strcmp(l->origin, c->origin) != 0 || strcmp(l->name, c->name) != 0)) l = l->next;
    return l;
}

/* A link for the call, which is being made; NULL: out of memory. */
static struct link *make_link(struct upstream *u, struct upstream_call *c)
{
    struct link *l = mem_calloc(1, sizeof *l);
    if (!l) return NULL;
    l->u = u;
    l->fd = -1;
    l->next = u->making;
    if (u->making) u->making->prev = l;
    u->making = l;
    l->origin = mem_strdup(c->origin);
    l->name = mem_strdup(c->name);
    l->is_tls = strncmp(c->origin, "https:", 6) == 0;
    const struct dial_target to = {l->origin, l->name, u->share, u->epoll_fd, l};
    if (!l->origin || !l->name || !dial_begin(&l->dial, &u->setup.dial, &to)) {
        free_link(l);
        return NULL;
    }
    l->call = c;
    return l;
}

enum { AGAIN = -1, BROKEN = -2 };

/* Bytes received, 0: the server has closed it, AGAIN, BROKEN. */
static ssize_t receive(struct link *l, char *to, size_t n)
{
    if (l->is_tls) {
        size_t got = 0;
        CURLcode code = curl_easy_recv(l->dial.easy, to, n, &got);
        return code == CURLE_OK ? (ssize_t)got : code == CURLE_AGAIN ? AGAIN : BROKEN;
    }
    ssize_t got = recv(l->fd, to, n, 0);
    if (got >= 0) return got;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? AGAIN : BROKEN;
}

/* Bytes sent of a request's head and body, from n_sent on; AGAIN, BROKEN. */
static ssize_t transmit(struct link *l, const struct upstream_call *c)
{
    const size_t n_head = c->n_sent < c->head.len ? c->head.len - c->n_sent : 0;
    const size_t at_body = c->n_sent > c->head.len ? c->n_sent - c->head.len : 0;
    struct iovec parts[2] = {{c->head.data + (c->head.len - n_head), n_head},
                             {(void *)(uintptr_t)(c->body + at_body), c->n_body - at_body}};
    if (l->is_tls) {
        const struct iovec *part = &parts[n_head == 0];
        size_t sent = 0;
        CURLcode code = curl_easy_send(l->dial.easy, part->iov_base, part->iov_len, &sent);
        return code == CURLE_OK ? (ssize_t)sent : code == CURLE_AGAIN ? AGAIN : BROKEN;
    }
    const struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(l->fd, &m, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? AGAIN : BROKEN;
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void free_call(struct upstream_call *c)
{
    reply_free(&c->reply);
    buf_free(&c->head);
    buf_free(&c->held);
    buf_free(&c->rest);
    mem_free(c->origin);
    mem_free(c->name);
    mem_free(c);
}

/* The request's head; its URL is cut into what a link is made for, and a path or "*". */
static fathom_err write_head(struct upstream_call *c, const struct upstream_request *r)
{
    const char *host = strstr(r->url, "://");
    const char *target = host ? strpbrk(host + 3, "/*") : NULL;
    ASSERT(target);
    struct buf origin = {0};
    (void)buf_add(&origin, r->url, (size_t)(target - r->url));
    TRY(buf_status(&origin));
    c->origin = buf_steal(&origin);
    (void)buf_printf(&c->head, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", r->method, target,
                     c->origin + (host + 3 - r->url), r->fields);
    if (r->n_body > 0 || (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0))
        (void)buf_printf(&c->head, "Content-Length: %zu\r\n", r->n_body);
    return buf_add_str(&c->head, "\r\n");
}

fathom_err upstream_send(struct upstream *u, const struct upstream_request *r,
                         struct upstream_call **out)
{
    struct upstream_call *c = mem_calloc(1, sizeof *c);
    *out = c;
    if (!c) return FATHOM_ENOMEM;
    c->u = u;
    c->ops = r->ops;
    c->arg = r->arg;
    c->body = r->n_body ? r->body : "";
    c->n_body = r->n_body;
    c->reply.has_no_body = strcmp(r->method, "HEAD") == 0;
    c->end_us = r->timeout_ms ? clock_now_us() + (uint64_t)r->timeout_ms * 1000 : never_us;
    c->name = mem_strdup(r->name ? r->name : "");
    if (!c->name || write_head(c, r) != FATHOM_OK) {
        free_call(c);
        *out = NULL;
        return FATHOM_ENOMEM;
    }
    post(c, MAIL_START);
    return FATHOM_OK;
}

static void leave_link(struct upstream_call *c, bool keeps)
{
    struct link *l = c->link;
    c->link = NULL;
    if (!l) return;
    l->call = NULL;
    if (keeps) {
        park(l);
    } else {
        free_link(l);
    }
}

/* Ends and frees a call. The owner makes no call after `end`; earlier ones are taken out of the
 * mail. */
static void end_call(struct upstream_call *c, bool ok, const char *cause)
{
    struct upstream *u = c->u;
    *(c->prev ? &c->prev->next : &u->first) = c->next;
    if (c->next) c->next->prev = c->prev;
    leave_link(c, ok && c->reply.keeps && c->n_sent == c->head.len + c->n_body);
    c->ops->end(c->arg, ok, cause);
    struct upstream_call **at = &u->mail, *before = NULL;
    while (*at && *at != c) {
        before = *at;
        at = &(*at)->next_mail;
    }
    if (*at == c) {
        *at = c->next_mail;
        if (u->last_mail == c) u->last_mail = before;
    }
    free_call(c);
}

/* ---- the reply ------------------------------------------------------------------------------- */

/* What has become of a call: it goes on, waits for its owner or for a new link, or has ended and is
 * gone. */
enum outcome { GOES_ON, WAITS, ENDED };

static enum outcome offer(struct upstream_call *c, const char *bytes, size_t n)
{
    switch (c->ops->body(c->arg, bytes, n)) {
    case UPSTREAM_TAKEN: return GOES_ON;
    case UPSTREAM_LATER: return WAITS;
    case UPSTREAM_STOP: break;
    }
    end_call(c, false, "it was given up");
    return ENDED;
}

/* Keeps data that the owner will take later, and the bytes behind it that have been read already.
 * */
static enum outcome hold(struct upstream_call *c, const char *data, size_t n_data, const char *rest,
                         size_t n_rest)
{
    c->is_late = true;
    if (buf_add(&c->held, data, n_data) || buf_add(&c->rest, rest, n_rest)) {
        end_call(c, false, "out of memory");
        return ENDED;
    }
    watch(c->link, 0);
    return WAITS;
}

static enum outcome feed(struct upstream_call *c, const char *bytes, size_t n)
{
    struct reply_reader *a = &c->reply;
    for (size_t at = 0; at < n && a->state != REPLY_END;) {
        const char *data;
        size_t n_data;
        bool head;
        at += reply_read(a, bytes + at, n - at, &head, &data, &n_data);
        if (a->problem) {
            end_call(c, false, a->problem);
            return ENDED;
        }
        if (head) c->ops->head(c->arg, a->status, &a->fields);
        if (n_data == 0) {
            if (a->state == REPLY_END && at < n) a->keeps = false; /* nobody asked for more */
            continue;
        }
        enum outcome o = offer(c, data, n_data);
        if (o == WAITS) return hold(c, data, n_data, bytes + at, n - at);
        if (o == ENDED) return ENDED;
    }
    if (a->state != REPLY_END) return GOES_ON;
    end_call(c, true, "");
    return ENDED;
}

static bool connect_call(struct upstream_call *c);

/* Ends a call whose connection broke. A server that wants a client certificate and gets none closes
 * the connection, in TLS 1.3 after the handshake. Its alert may or may not arrive before that, so
 * the cause names the option. */
static void end_lost(struct upstream_call *c)
{
    const struct link *l = c->link;
    char cause[CURL_ERROR_SIZE + 80];
    bool may_be_unknown = l->is_tls && !c->u->setup.dial.cert_path && !c->reply.has_begun;
    (void)snprintf(cause, sizeof cause, "%s%s",
                   *l->dial.cause ? l->dial.cause
                                  : "the connection was lost before the answer was whole",
                   may_be_unknown ? "; if it asks for a certificate, give --client-cert-path" : "");
    end_call(c, false, cause);
}

static enum outcome take_close(struct upstream_call *c)
{
    bool retries = c->may_retry && !c->reply.has_begun;
    if (reply_close(&c->reply)) {
        end_call(c, true, "");
    } else if (!retries) {
        end_lost(c);
    } else {
        leave_link(c, false);
        c->n_sent = 0;
        if (connect_call(c)) return WAITS;
        end_call(c, false, "out of memory");
    }
    return ENDED;
}

/* Reads what there is. */
static enum outcome read_reply(struct upstream_call *c)
{
    struct upstream *u = c->u;
    for (;;) {
        ssize_t n = receive(c->link, u->block, BLOCK_BYTES);
        if (n == AGAIN) return GOES_ON;
        if (n == 0 || n == BROKEN) {
            if (n == BROKEN && c->reply.state == REPLY_TO_CLOSE) c->reply.problem = "cut short";
            return take_close(c);
        }
        bool is_tls = c->link->is_tls;
        c->heard_us = clock_now_us();
        enum outcome o = feed(c, u->block, (size_t)n);
        if (o != GOES_ON || (!is_tls && n < BLOCK_BYTES)) return o;
    }
}

static void listen_for(struct upstream_call *c)
{
    bool is_sent = c->n_sent == c->head.len + c->n_body;
    watch(c->link, EPOLLIN | (is_sent ? 0u : EPOLLOUT));
}

/* Sends what can be sent now. If the server takes no more, it may have answered already. */
static enum outcome go_on(struct upstream_call *c)
{
    const size_t n_all = c->head.len + c->n_body;
    ssize_t n = 0;
    while (c->n_sent < n_all && (n = transmit(c->link, c)) > 0) c->n_sent += (size_t)n;
    if (n == BROKEN) {
        enum outcome o = read_reply(c);
        return o == GOES_ON ? take_close(c) : o;
    }
    listen_for(c);
    return GOES_ON;
}

static void link_call(struct upstream *u, struct upstream_call *c)
{
    c->next = u->first;
    if (u->first) u->first->prev = c;
    u->first = c;
}

/* Begins to make a new link for a call; false: out of memory. */
static bool connect_call(struct upstream_call *c)
{
    c->may_retry = false;
    c->link = make_link(c->u, c);
    return c->link != NULL;
}

static void begin_call(struct upstream_call *c)
{
    struct upstream *u = c->u;
    struct link *l = find_idle(u, c);
    c->heard_us = clock_now_us();
    if (l) {
        take_from_idle(l);
        l->call = c;
        c->link = l;
        c->may_retry = true;
        if (go_on(c) == ENDED) return;
    } else if (!connect_call(c)) {
        end_call(c, false, "out of memory");
        return;
    }
    if (c->ops->begun) c->ops->begun(c->arg);
}

/* After upstream_go_on: offers what the owner refused before, then goes on. */
static void take_more(struct upstream_call *c)
{
    struct buf rest = c->rest;
    if (!c->is_late) return;
    enum outcome o = offer(c, buf_str(&c->held), c->held.len);
    if (o != GOES_ON) return;
    c->is_late = false;
    buf_clear(&c->held);
    c->rest = (struct buf){0};
    o = feed(c, buf_str(&rest), rest.len);
    buf_free(&rest);
    if (o == GOES_ON) listen_for(c);
}

static void take_mail(struct upstream *u)
{
    struct upstream_call *c;
    while ((c = u->mail)) {
        unsigned what = c->mail;
        u->mail = c->next_mail;
        c->mail = 0;
        if (what & MAIL_START) link_call(u, c);
        if (what & MAIL_CANCEL) {
            end_call(c, false, "it was given up");
        } else if (what & MAIL_START) {
            begin_call(c);
        } else {
            take_more(c);
        }
    }
}

/* ---- what it waits for ----------------------------------------------------------------------- */

/* The connection is made. Without TLS libcurl is not needed any more. The time-out is for a machine
 * that vanishes silently, for lack of power say, and acknowledges nothing: by itself the system
 * would take a quarter of an hour to notice. */
static fathom_err take_over(struct link *l, int fd)
{
    const int silent_ms = SILENT_MS;
    if (fd >= 0 && !l->is_tls) fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return FATHOM_EIO;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
    end_making(l);
    l->dial.cause[0] = '\0'; /* an earlier address may have failed */
    l->fd = fd;
    if (!l->is_tls) dial_end(&l->dial);
    return FATHOM_OK;
}

/* A link that is MAKING: its call begins, or ends because there is no connection. */
static void go_on_making(struct link *l)
{
    char cause[sizeof l->dial.cause];
    int fd;
    if (!dial_go_on(&l->dial, &fd)) return;
    ASSERT(l->call && l->fd < 0);
    if (take_over(l, fd) == FATHOM_OK) {
        (void)go_on(l->call);
        return;
    }
    (void)snprintf(cause, sizeof cause, "%s",
                   l->dial.cause[0] ? l->dial.cause : "no descriptor for the connection");
    end_call(l->call, false, cause);
}

int upstream_fd(const struct upstream *u)
{
    return u->epoll_fd;
}

int upstream_wait_ms(const struct upstream *u)
{
    if (u->mail) return 0;
    uint64_t now_us = clock_now_us();
    uint64_t due_us = u->tick_due_us;
    for (const struct link *l = u->making; l; l = l->next) {
        if (l->dial.due_us < due_us) due_us = l->dial.due_us;
    }
    return due_us <= now_us ? 0 : (int)((due_us - now_us + 999) / 1000);
}

/* An idle link can be read: the server has closed it, or sends what was not asked for. With TLS it
 * may only have sent a message of the session. */
static void take_idle_event(struct link *l)
{
    char byte;
    if (!l->is_tls || receive(l, &byte, 1) != AGAIN) drop_idle(l);
}

static void take_link_event(struct link *l, uint32_t events)
{
    struct upstream_call *c = l->call;
    if (l->fd < 0) {
        go_on_making(l);
    } else if (!c) {
        take_idle_event(l);
    } else if (!(events & ~(uint32_t)EPOLLOUT) || read_reply(c) == GOES_ON) {
        if (events & EPOLLOUT) (void)go_on(c);
    }
}

/* Whether a call is to end because its server is lost. One that waits for its owner is not read, so
 * its silence means nothing. */
static bool is_lost(const struct upstream_call *c, uint64_t now_us)
{
    bool is_silent = !c->is_late && now_us - c->heard_us >= SILENT_MS * 1000ull;
    return is_silent && c->ops->lost && c->ops->lost(c->arg);
}

/* Ends calls whose time is over or whose server is lost, and closes links that were idle too long.
 * */
static void sweep(struct upstream *u, uint64_t now_us)
{
    struct upstream_call *next;
    for (struct upstream_call *c = u->first; c; c = next) {
        next = c->next;
        if (now_us >= c->end_us) {
            end_call(c, false, "it took too long");
        } else if (is_lost(c, now_us)) {
            end_call(c, false, "the server says nothing, and answers no looks");
        }
    }
    while (u->last_idle && (u->n_idle > IDLE_LINKS || now_us - u->last_idle->idle_us > IDLE_US)) {
        drop_idle(u->last_idle);
    }
}

static void run_timers(struct upstream *u)
{
    struct link *next;
    uint64_t now_us = clock_now_us();
    for (struct link *l = u->making; l; l = next) {
        next = l->next;
        if (now_us >= l->dial.due_us) go_on_making(l);
    }
    if (now_us >= u->tick_due_us) {
        u->tick_due_us = now_us + (uint64_t)u->setup.tick_ms * 1000;
        sweep(u, now_us);
        if (u->setup.tick) u->setup.tick(u->setup.arg, u);
    }
}

void upstream_run(struct upstream *u, bool has_events)
{
    struct epoll_event events[EVENTS];
    int n = has_events ? epoll_wait(u->epoll_fd, events, EVENTS, 0) : 0;
    for (int i = 0; i < n; i++) {
        struct link *l = events[i].data.ptr;
        /* a link that is MAKING may have several sockets, and be freed by the event of one */
        const bool is_making = l && l->fd < 0;
        if (l) take_link_event(l, events[i].events);
        for (int k = i + 1; is_making && k < n; k++) {
            if (events[k].data.ptr == l) events[k].data.ptr = NULL;
        }
    }
    take_mail(u);
    run_timers(u);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static fathom_err start(struct upstream *u, fathom_diag *d)
{
    u->share = curl_share_init();
    u->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    u->block = mem_alloc(BLOCK_BYTES);
    if (!u->share || !u->block) return FATHOM_ENOMEM;
    (void)curl_share_setopt(u->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
    (void)curl_share_setopt(u->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
    if (u->epoll_fd >= 0) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "no handle to wait for servers with: %s", strerror(errno));
}

fathom_err upstream_open(struct upstream **out, const struct upstream_setup *setup, fathom_diag *d)
{
    *out = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return FATHOM_ENOMEM;
    struct upstream *u = mem_calloc(1, sizeof *u);
    if (!u) return FATHOM_ENOMEM;
    u->setup = *setup;
    u->epoll_fd = -1;
    fathom_err err = start(u, d);
    if (err) {
        upstream_close(u);
        return err;
    }
    *out = u;
    return FATHOM_OK;
}

void upstream_close(struct upstream *u)
{
    if (!u) return;
    while (u->mail || u->first) {
        take_mail(u);
        if (u->first) end_call(u->first, false, "the router is being stopped");
    }
    while (u->idle) drop_idle(u->idle);
    if (u->share) (void)curl_share_cleanup(u->share);
    if (u->epoll_fd >= 0) (void)close(u->epoll_fd);
    mem_free(u->block);
    mem_free(u);
}

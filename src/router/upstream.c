/* upstream.c - the thread and its transfers
 *
 * Invariants: a call is in the mail at most once, under the lock; `easy` is in the multi handle
 * from the taking of START to the end; a call's memory goes with its end and its last mail. */
#include "router/upstream.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"

enum { EVENTS = 256, KEEP_IDLE_S = 10, KEEP_INTERVAL_S = 5, IDLE_CONNECTIONS = 256 };
enum { MAIL_START = 1, MAIL_CANCEL = 2, MAIL_GO_ON = 4 };

static const uint64_t never_us = UINT64_MAX;

struct upstream_call {
    struct upstream *u;
    struct upstream_call *next, *prev; /* of those in the multi handle */
    CURL *easy;
    struct curl_slist *headers;
    const struct upstream_ops *ops;
    void *arg;
    struct buf fields; /* of the answer, until its head is whole */
    bool has_head;
    bool stopped; /* UPSTREAM_STOP, or cancelled */
    char cause[CURL_ERROR_SIZE];
    /* under the lock */
    unsigned mail;
    struct upstream_call *next_mail;
};

struct upstream {
    struct upstream_setup setup;
    CURLM *multi;
    int epoll_fd;
    int wake_fd;
    pthread_t thread;
    bool started;
    atomic_bool ending;
    uint64_t curl_due_us; /* when libcurl wants to be called; never_us: not */
    uint64_t tick_due_us;
    struct upstream_call *first;

    pthread_mutex_t lock;
    struct upstream_call *mail, *last_mail;
};

/* ---- mail ---------------------------------------------------------------------------------- */

static void wake(struct upstream *u)
{
    uint64_t one = 1;
    if (write(u->wake_fd, &one, sizeof one) != sizeof one) LOG_DEBUG("router", "no wake");
}

static void post(struct upstream_call *c, unsigned what)
{
    struct upstream *u = c->u;
    (void)pthread_mutex_lock(&u->lock);
    bool first = u->mail == NULL;
    if (!c->mail) {
        c->next_mail = NULL;
        *(u->mail ? &u->last_mail->next_mail : &u->mail) = c;
        u->last_mail = c;
    }
    c->mail |= what;
    (void)pthread_mutex_unlock(&u->lock);
    if (first) wake(u);
}

void upstream_cancel(struct upstream_call *c)
{
    post(c, MAIL_CANCEL);
}

void upstream_go_on(struct upstream_call *c)
{
    post(c, MAIL_GO_ON);
}

/* ---- a transfer ---------------------------------------------------------------------------- */

static void free_call(struct upstream_call *c)
{
    curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    buf_free(&c->fields);
    mem_free(c);
}

/* The head ends with an empty line; one of 1xx is not the answer's. */
static size_t take_field(char *bytes, size_t one, size_t n, void *arg)
{
    struct upstream_call *c = arg;
    long status = 0;
    (void)one;
    if (n >= 5 && memcmp(bytes, "HTTP/", 5) == 0) {
        buf_clear(&c->fields);
        return n;
    }
    if (n > 2 || bytes[0] != '\r') return buf_add(&c->fields, bytes, n) ? 0 : n;
    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200 || c->has_head) return n;
    c->has_head = true;
    if (!c->stopped) c->ops->head(c->arg, (int)status, &c->fields);
    return n;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct upstream_call *c = arg;
    (void)one;
    if (c->stopped) return 0;
    switch (c->ops->body(c->arg, bytes, n)) {
    case UPSTREAM_TAKEN: return n;
    case UPSTREAM_LATER: return CURL_WRITEFUNC_PAUSE;
    case UPSTREAM_STOP: break;
    }
    c->stopped = true;
    return 0;
}

static bool add_fields(struct upstream_call *c, const char *fields)
{
    struct buf line = {0};
    bool ok = true;
    while (ok && *fields) {
        size_t n = strcspn(fields, "\r\n");
        buf_clear(&line);
        ok = buf_add(&line, fields, n) == FATHOM_OK;
        struct curl_slist *longer = ok ? curl_slist_append(c->headers, buf_str(&line)) : NULL;
        ok = longer != NULL;
        if (ok) c->headers = longer;
        fields += n + strspn(fields + n, "\r\n");
    }
    buf_free(&line);
    return ok;
}

static bool set_up(struct upstream_call *c, const struct upstream_request *r)
{
    const struct upstream_setup *s = &c->u->setup;
    bool is_get = strcmp(r->method, "GET") == 0;
    CURL *easy = c->easy = curl_easy_init();
    if (!easy || !add_fields(c, r->fields) || !add_fields(c, "Expect:")) return false;
    if (curl_easy_setopt(easy, CURLOPT_URL, r->url) != CURLE_OK) return false;
    (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, c);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, c->headers);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, (long)KEEP_IDLE_S);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, (long)KEEP_INTERVAL_S);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)s->connect_timeout_ms);
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)r->timeout_ms);
    (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, s->insecure ? 0L : 1L);
    (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, s->insecure ? 0L : 2L);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, c->cause);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_field);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, c);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, c);
    if (strcmp(r->method, "HEAD") == 0) (void)curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    if (!is_get || r->n_body > 0) {
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, r->n_body ? r->body : "");
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->n_body);
        (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, r->method);
    }
    return true;
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
    c->fields.limit = 1 << 20;
    if (!set_up(c, r)) {
        free_call(c);
        *out = NULL;
        return FATHOM_ENOMEM;
    }
    post(c, MAIL_START);
    return FATHOM_OK;
}

static void link_call(struct upstream *u, struct upstream_call *c)
{
    c->next = u->first;
    if (u->first) u->first->prev = c;
    u->first = c;
}

/* The owner makes no call after `end`; what it has mailed before is taken back. */
static void end_call(struct upstream_call *c, bool ok, const char *cause)
{
    struct upstream *u = c->u;
    *(c->prev ? &c->prev->next : &u->first) = c->next;
    if (c->next) c->next->prev = c->prev;
    (void)curl_multi_remove_handle(u->multi, c->easy);
    c->ops->end(c->arg, ok, cause);
    (void)pthread_mutex_lock(&u->lock);
    struct upstream_call **at = &u->mail, *before = NULL;
    while (*at && *at != c) {
        before = *at;
        at = &(*at)->next_mail;
    }
    if (*at == c) {
        *at = c->next_mail;
        if (u->last_mail == c) u->last_mail = before;
    }
    (void)pthread_mutex_unlock(&u->lock);
    free_call(c);
}

static void take_mail(struct upstream *u)
{
    struct upstream_call *c;
    for (;;) {
        (void)pthread_mutex_lock(&u->lock);
        c = u->mail;
        unsigned what = c ? c->mail : 0;
        if (c) {
            u->mail = c->next_mail;
            c->mail = 0;
        }
        (void)pthread_mutex_unlock(&u->lock);
        if (!c) return;
        if (what & MAIL_START) {
            link_call(u, c);
            (void)curl_multi_add_handle(u->multi, c->easy);
        }
        if (what & MAIL_CANCEL) {
            end_call(c, false, "it was given up");
        } else if (what & MAIL_GO_ON) {
            (void)curl_easy_pause(c->easy, CURLPAUSE_CONT);
        }
    }
}

static bool has_mail(struct upstream *u)
{
    (void)pthread_mutex_lock(&u->lock);
    bool has = u->mail != NULL;
    (void)pthread_mutex_unlock(&u->lock);
    return has;
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* libcurl's CURL_POLL_ bits for epoll; a socket is watched until it says CURL_POLL_REMOVE. */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct upstream *u = arg;
    struct epoll_event e = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(u->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN) e.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) e.events |= EPOLLOUT;
    (void)epoll_ctl(u->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e);
    if (!known) (void)curl_multi_assign(u->multi, fd, u);
    return 0;
}

static int set_timer(CURLM *multi, long ms, void *arg)
{
    struct upstream *u = arg;
    (void)multi;
    u->curl_due_us = ms < 0 ? never_us : clock_now_us() + (uint64_t)ms * 1000;
    return 0;
}

static void end_finished(struct upstream *u)
{
    CURLMsg *m;
    int n_left;
    while ((m = curl_multi_info_read(u->multi, &n_left))) {
        struct upstream_call *c = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode code = m->data.result;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
        const char *cause = c->cause[0] ? c->cause : curl_easy_strerror(code);
        end_call(c, code == CURLE_OK && c->has_head, cause);
    }
}

static int wait_ms(const struct upstream *u)
{
    uint64_t now_us = clock_now_us();
    uint64_t due_us = u->curl_due_us < u->tick_due_us ? u->curl_due_us : u->tick_due_us;
    return due_us <= now_us ? 0 : (int)((due_us - now_us + 999) / 1000);
}

static void take_event(struct upstream *u, const struct epoll_event *e)
{
    int running, what = 0;
    uint64_t n;
    if (e->data.fd == u->wake_fd) {
        if (read(u->wake_fd, &n, sizeof n) != sizeof n) LOG_DEBUG("router", "no wake");
        return;
    }
    if (e->events & EPOLLIN) what |= CURL_CSELECT_IN;
    if (e->events & EPOLLOUT) what |= CURL_CSELECT_OUT;
    if (e->events & (EPOLLERR | EPOLLHUP)) what |= CURL_CSELECT_ERR;
    (void)curl_multi_socket_action(u->multi, e->data.fd, what, &running);
}

static void run_timers(struct upstream *u)
{
    int running;
    uint64_t now_us = clock_now_us();
    if (now_us >= u->curl_due_us) {
        u->curl_due_us = never_us;
        (void)curl_multi_socket_action(u->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    if (now_us >= u->tick_due_us) {
        u->tick_due_us = now_us + (uint64_t)u->setup.tick_ms * 1000;
        u->setup.tick(u->setup.arg, u);
    }
}

static void *thread_main(void *arg)
{
    struct upstream *u = arg;
    struct epoll_event events[EVENTS];
    os_name_thread("upstream");
    while (!atomic_load(&u->ending)) {
        int n = epoll_wait(u->epoll_fd, events, EVENTS, wait_ms(u));
        for (int i = 0; i < n; i++) take_event(u, &events[i]);
        take_mail(u);
        run_timers(u);
        end_finished(u);
    }
    do {
        take_mail(u);
        while (u->first) end_call(u->first, false, "the router is being stopped");
    } while (has_mail(u));
    return NULL;
}

/* ---- begin and end ------------------------------------------------------------------------- */

static fathom_err start(struct upstream *u, fathom_diag *d)
{
    struct epoll_event e = {.events = EPOLLIN};
    u->multi = curl_multi_init();
    u->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e.data.fd = u->wake_fd;
    if (!u->multi) return FATHOM_ENOMEM;
    if (u->epoll_fd < 0 || u->wake_fd < 0 ||
        epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, u->wake_fd, &e) != 0) {
        FAIL(d, FATHOM_EIO, "no handle to wait for servers with: %s", strerror(errno));
    }
    (void)curl_multi_setopt(u->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    (void)curl_multi_setopt(u->multi, CURLMOPT_SOCKETDATA, u);
    (void)curl_multi_setopt(u->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    (void)curl_multi_setopt(u->multi, CURLMOPT_TIMERDATA, u);
    (void)curl_multi_setopt(u->multi, CURLMOPT_MAXCONNECTS, (long)IDLE_CONNECTIONS);
    u->started = pthread_create(&u->thread, NULL, thread_main, u) == 0;
    if (!u->started) FAIL(d, FATHOM_EIO, "the thread for servers cannot be started");
    return FATHOM_OK;
}

fathom_err upstream_open(struct upstream **out, const struct upstream_setup *setup, fathom_diag *d)
{
    *out = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return FATHOM_ENOMEM;
    struct upstream *u = mem_calloc(1, sizeof *u);
    if (!u) return FATHOM_ENOMEM;
    u->setup = *setup;
    u->epoll_fd = u->wake_fd = -1;
    u->curl_due_us = never_us;
    (void)pthread_mutex_init(&u->lock, NULL);
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
    atomic_store(&u->ending, true);
    if (u->started) {
        wake(u);
        (void)pthread_join(u->thread, NULL);
    }
    if (u->multi) (void)curl_multi_cleanup(u->multi);
    if (u->epoll_fd >= 0) (void)close(u->epoll_fd);
    if (u->wake_fd >= 0) (void)close(u->wake_fd);
    (void)pthread_mutex_destroy(&u->lock);
    mem_free(u);
}

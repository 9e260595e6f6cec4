/* load.c - the loop that sends and listens
 *
 * A request waits (due in the future, or no room), is in flight (it has a transfer), and is over.
 *
 *   waiting --start_request--> in flight --finish_request--> over
 *
 * Invariants: n_started requests have left waiting, in order; in_flight of them hold a transfer; a
 * transfer is in flight or on the free list; descriptors are watched as libcurl last asked for.
 */
#define _GNU_SOURCE
#include "bench/load.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "bench/completion_json.h"
#include "bench/sse_reader.h"

enum { EVENTS = 256, WATCH_US = 250000, ERROR_BYTES = 4096, TEXT_BYTES = 64 << 20 };
enum { RESERVED_FILES = 64, TIMER = -1 };

static const uint64_t never_us = UINT64_MAX;

struct transfer {
    struct loop *loop;
    CURL *easy;
    struct load_record *record;
    struct sse_reader reader;
    struct buf body;
    struct buf text;
    struct buf refusal; /* body of an answer that is no stream */
    size_t cap_gap;
    bool ended;        /* the stream has said so */
    fathom_diag fault; /* why the record is not LOAD_OK */
    char cause[CURL_ERROR_SIZE];
    struct transfer *next_free;
    struct transfer *next_made;
};

struct loop {
    const struct load_options *o;
    struct load_run *run;
    CURLM *multi;
    struct curl_slist *headers;
    struct buf url;
    int epoll;
    int timer;
    uint64_t origin_us;
    uint64_t curl_due_us; /* when libcurl wants to be called; never_us: not */
    uint64_t watch_due_us;
    struct transfer *made;
    struct transfer *free_transfers;
    size_t n_started;
    size_t n_done;
    size_t n_failed;
    size_t n_event;
    size_t in_flight;
    uint64_t counted_us; /* in_flight is summed up to here */
    double in_flight_us;
    bool out_of_memory;
};

static const char *const outcome_names[LOAD_OUTCOME_COUNT] = {
    [LOAD_OK] = "ok",
    [LOAD_CONNECT] = "no connection",
    [LOAD_TIMEOUT] = "timed out",
    [LOAD_BUSY] = "busy (429)",
    [LOAD_REFUSED] = "refused (4xx)",
    [LOAD_FAILED] = "server failed (5xx)",
    [LOAD_CUT] = "stream cut",
    [LOAD_ERROR] = "error in the stream",
    [LOAD_MALFORMED] = "not a stream",
};

const char *load_outcome_name(enum load_outcome o)
{
    return outcome_names[o];
}

static uint64_t now_us(const struct loop *l)
{
    return clock_now_us() - l->origin_us;
}

/* Adds the time since the last change to the sum of requests in flight. */
static void count_in_flight(struct loop *l, uint64_t now)
{
    l->in_flight_us += (double)l->in_flight * (double)(now - l->counted_us);
    l->counted_us = now;
}

/* ---- what comes in ----------------------------------------------------------------------- */

static fathom_err add_gap(struct transfer *s, uint64_t gap_us)
{
    struct load_record *r = s->record;
    TRY(mem_grow(&r->gap_us, &s->cap_gap, (size_t)r->n_gap + 1, sizeof *r->gap_us));
    r->gap_us[r->n_gap++] = gap_us < UINT32_MAX ? (uint32_t)gap_us : UINT32_MAX;
    return FATHOM_OK;
}

static fathom_err take_event(void *arg, const char *data, size_t n)
{
    struct transfer *s = arg;
    struct load_record *r = s->record;
    struct stream_chunk chunk;
    fathom_err err = stream_chunk_read(&chunk, data, n, &s->text, &s->fault);
    if (err == FATHOM_ENOMEM) return err;
    if (err) {
        r->outcome = LOAD_MALFORMED;
        return err;
    }
    if (chunk.is_error) {
        r->outcome = LOAD_ERROR;
        return FATHOM_OK;
    }
    if (chunk.is_end || chunk.has_stop) s->ended = true;
    if (chunk.has_usage) {
        r->has_usage = true;
        r->n_usage_input = chunk.n_input;
        r->n_usage_output = chunk.n_output;
        r->n_cached = chunk.n_cached;
    }
    if (!chunk.has_text) return FATHOM_OK;
    uint64_t now = now_us(s->loop);
    s->loop->n_event++;
    if (r->first_us == 0) {
        r->first_us = now;
    } else {
        TRY(add_gap(s, now - r->last_us));
    }
    r->last_us = now;
    return FATHOM_OK;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct transfer *s = arg;
    (void)one;
    if (s->record->status == 0) {
        (void)curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->record->status);
    }
    if (s->record->status != 200) {
        size_t room = s->refusal.len < ERROR_BYTES ? ERROR_BYTES - s->refusal.len : 0;
        (void)buf_add(&s->refusal, bytes, n < room ? n : room);
        return n;
    }
    fathom_err err = sse_reader_feed(&s->reader, bytes, n, take_event, s);
    if (err == FATHOM_ENOMEM) s->loop->out_of_memory = true;
    if (err && s->record->outcome == LOAD_OK) {
        s->record->outcome = LOAD_MALFORMED;
        (void)diag_fail(&s->fault, err, "a line or an answer is too long");
    }
    return err ? 0 : n;
}

/* ---- the life of a request --------------------------------------------------------------- */

static void transfer_destroy(struct transfer *s)
{
    curl_easy_cleanup(s->easy);
    sse_reader_free(&s->reader);
    buf_free(&s->body);
    buf_free(&s->text);
    buf_free(&s->refusal);
    mem_free(s);
}

/* A free transfer, or a new one; NULL when out of memory. */
static struct transfer *take_transfer(struct loop *l)
{
    struct transfer *s = l->free_transfers;
    if (s) {
        l->free_transfers = s->next_free;
        return s;
    }
    s = mem_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->loop = l;
    sse_reader_init(&s->reader);
    s->easy = curl_easy_init();
    if (!s->easy || !http_set_common(s->easy, l->o->target, buf_str(&l->url), l->headers)) {
        transfer_destroy(s);
        return NULL;
    }
    (void)curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    (void)curl_easy_setopt(s->easy, CURLOPT_ERRORBUFFER, s->cause);
    (void)curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    (void)curl_easy_setopt(s->easy, CURLOPT_POST, 1L);
    s->next_made = l->made;
    l->made = s;
    return s;
}

static fathom_err write_body(struct transfer *s, size_t i)
{
    const struct load_options *o = s->loop->o;
    char salt[96];
    const char *use = o->salt;
    if (o->salt && o->salt_each) {
        (void)snprintf(salt, sizeof salt, "%s-%zu", o->salt, o->first + i);
        use = salt;
    }
    buf_clear(&s->body);
    return request_body_write(&s->body, o->common, o->is_chat, &o->items[i], use);
}

static void call_timers(struct loop *l)
{
    int running;
    l->curl_due_us = never_us;
    (void)curl_multi_socket_action(l->multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

static fathom_err start_request(struct loop *l, size_t i)
{
    struct load_record *r = &l->run->records[i];
    struct transfer *s = take_transfer(l);
    if (!s) return FATHOM_ENOMEM;
    s->record = r;
    s->cap_gap = 0;
    s->ended = false;
    s->cause[0] = '\0';
    diag_clear(&s->fault);
    sse_reader_reset(&s->reader);
    buf_clear(&s->text);
    s->text.limit = TEXT_BYTES;
    buf_clear(&s->refusal);
    TRY(write_body(s, i));
    (void)curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body.data);
    (void)curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)s->body.len);
    uint64_t now = now_us(l);
    count_in_flight(l, now);
    r->start_us = now;
    l->in_flight++;
    if (l->in_flight > l->run->max_in_flight) l->run->max_in_flight = l->in_flight;
    if (curl_multi_add_handle(l->multi, s->easy) != CURLM_OK) return FATHOM_ENOMEM;
    call_timers(l); /* it begins now, not when the loop next waits */
    return FATHOM_OK;
}

/* What a finished transfer means, where no event has said so already. */
static enum load_outcome judge(struct transfer *s, CURLcode code)
{
    struct load_record *r = s->record;
    if (r->outcome != LOAD_OK) return r->outcome;
    if (code == CURLE_OPERATION_TIMEDOUT) return LOAD_TIMEOUT;
    if (r->status == 0) return LOAD_CONNECT;
    if (r->status == 429) return LOAD_BUSY;
    if (r->status >= 500) return LOAD_FAILED;
    if (r->status != 200) return LOAD_REFUSED;
    if (code != CURLE_OK || !s->ended) return LOAD_CUT;
    return LOAD_OK;
}

/* The message of a failure: what the stream said, what the server answered, what the transfer met.
 */
static const char *failure_text(const struct transfer *s, CURLcode code)
{
    if (s->fault.text[0]) return s->fault.text;
    if (s->refusal.len) return buf_str(&s->refusal);
    if (s->cause[0]) return s->cause;
    return code == CURLE_OK ? "the stream ended without [DONE]" : curl_easy_strerror(code);
}

static fathom_err finish_request(struct loop *l, struct transfer *s, CURLcode code)
{
    struct load_record *r = s->record;
    uint64_t now = now_us(l);
    count_in_flight(l, now);
    l->in_flight--;
    l->n_done++;
    r->end_us = now;
    (void)curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &r->status);
    r->outcome = judge(s, code);
    (void)curl_multi_remove_handle(l->multi, s->easy);
    s->next_free = l->free_transfers;
    l->free_transfers = s;
    if (r->outcome != LOAD_OK) {
        l->n_failed++;
        r->message = mem_strdup(failure_text(s, code));
        if (!r->message) return FATHOM_ENOMEM;
    }
    if (s->text.len) {
        r->n_text = s->text.len;
        r->text = mem_strndup(buf_str(&s->text), s->text.len);
        if (!r->text) return FATHOM_ENOMEM;
    }
    return FATHOM_OK;
}

/* ---- sockets and timers ------------------------------------------------------------------ */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct loop *l = arg;
    struct epoll_event e = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN) e.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) e.events |= EPOLLOUT;
    int verb = known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(l->epoll, verb, fd, &e) != 0 && (errno == EEXIST || errno == ENOENT)) {
        (void)epoll_ctl(l->epoll, known ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
    }
    (void)curl_multi_assign(l->multi, fd, l);
    return 0;
}

static int on_timeout(CURLM *multi, long ms, void *arg)
{
    struct loop *l = arg;
    (void)multi;
    l->curl_due_us = ms < 0 ? never_us : now_us(l) + (uint64_t)ms * 1000;
    return 0;
}

static fathom_err loop_open(struct loop *l, fathom_diag *d)
{
    l->origin_us = clock_now_us();
    l->curl_due_us = never_us;
    l->multi = curl_multi_init();
    if (!l->multi) return FATHOM_ENOMEM;
    (void)curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
    (void)curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, on_timeout);
    (void)curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
    TRY(http_headers(&l->headers, l->o->target, true, d));
    TRY(buf_printf(&l->url, "%s%s", l->o->target->base_url, l->o->path));
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = TIMER};
    if (l->epoll < 0 || l->timer < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &e) != 0) {
        FAIL(d, FATHOM_EIO, "no descriptors for the client: %s", strerror(errno));
    }
    return FATHOM_OK;
}

static void loop_close(struct loop *l)
{
    for (struct transfer *s = l->made; s;) {
        struct transfer *next = s->next_made;
        if (l->multi) (void)curl_multi_remove_handle(l->multi, s->easy);
        transfer_destroy(s);
        s = next;
    }
    if (l->multi) (void)curl_multi_cleanup(l->multi);
    curl_slist_free_all(l->headers);
    buf_free(&l->url);
    if (l->epoll >= 0) (void)close(l->epoll);
    if (l->timer >= 0) (void)close(l->timer);
}

/* ---- the loop ---------------------------------------------------------------------------- */

static uint64_t due_us(const struct loop *l, size_t i)
{
    return (uint64_t)(l->o->due_s[i] * 1e6);
}

static bool has_room(const struct loop *l)
{
    return l->o->max_in_flight == 0 || l->in_flight < l->o->max_in_flight;
}

static fathom_err start_due(struct loop *l)
{
    while (l->n_started < l->o->n && has_room(l) && due_us(l, l->n_started) <= now_us(l)) {
        TRY(start_request(l, l->n_started++));
    }
    return FATHOM_OK;
}

static fathom_err collect_finished(struct loop *l)
{
    CURLMsg *m;
    int n_left;
    while ((m = curl_multi_info_read(l->multi, &n_left))) {
        struct transfer *s = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode code = m->data.result;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&s);
        TRY(finish_request(l, s, code));
    }
    return l->out_of_memory ? FATHOM_ENOMEM : FATHOM_OK;
}

/* Starts what is due and has room. A request whose answer is there at once may be over before it
 * has been waited for. That makes room again, and no socket would tell of it later. */
static fathom_err start_and_collect(struct loop *l)
{
    size_t n_before;
    do {
        n_before = l->n_done;
        TRY(start_due(l));
        TRY(collect_finished(l));
    } while (l->n_done > n_before);
    return FATHOM_OK;
}

/* Sets the timer to the next thing that happens without a socket. */
static void set_timer(struct loop *l)
{
    uint64_t next = l->curl_due_us;
    if (l->n_started < l->o->n && has_room(l) && due_us(l, l->n_started) < next) {
        next = due_us(l, l->n_started);
    }
    if (l->o->watch && l->watch_due_us < next) next = l->watch_due_us;
    struct itimerspec t = {{0, 0}, {0, 0}};
    if (next != never_us) {
        uint64_t at = l->origin_us + next + 1;
        t.it_value = (struct timespec){(time_t)(at / 1000000), (long)(at % 1000000) * 1000};
    }
    (void)timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void report(struct loop *l)
{
    uint64_t now = now_us(l);
    if (!l->o->watch || (now < l->watch_due_us && l->n_done < l->o->n)) return;
    l->watch_due_us = now + WATCH_US;
    struct load_progress p = {l->n_done,   l->o->n,    l->in_flight,
                              l->n_failed, l->n_event, (double)now / 1e6};
    l->o->watch(l->o->watch_arg, &p);
}

/* Lets libcurl handle what the sockets and the clock have brought. */
static fathom_err handle(struct loop *l, const struct epoll_event *events, int n)
{
    int running;
    for (int i = 0; i < n; i++) {
        if (events[i].data.fd == TIMER) {
            uint64_t n_expired;
            ssize_t ignored = read(l->timer, &n_expired, sizeof n_expired);
            (void)ignored;
            continue;
        }
        int what = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                   (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        (void)curl_multi_socket_action(l->multi, events[i].data.fd, what, &running);
    }
    if (l->curl_due_us <= now_us(l)) call_timers(l);
    return collect_finished(l);
}

static fathom_err loop_run(struct loop *l, fathom_diag *d)
{
    struct epoll_event events[EVENTS];
    uint64_t cpu_us = clock_thread_cpu_us();
    uint64_t woke_us = now_us(l);
    uint64_t longest_us = 0;
    for (;;) {
        TRY(start_and_collect(l));
        if (l->n_done == l->o->n) break;
        report(l);
        set_timer(l);
        uint64_t busy_us = now_us(l) - woke_us;
        if (busy_us > longest_us) longest_us = busy_us;
        int n = epoll_wait(l->epoll, events, EVENTS, -1);
        woke_us = now_us(l);
        if (n < 0 && errno != EINTR) {
            FAIL(d, FATHOM_EIO, "the client cannot wait: %s", strerror(errno));
        }
        TRY(handle(l, events, n));
    }
    report(l);
    uint64_t end_us = now_us(l);
    count_in_flight(l, end_us);
    struct load_run *run = l->run;
    run->seconds = (double)end_us / 1e6;
    run->mean_in_flight = end_us > 0 ? l->in_flight_us / (double)end_us : 0;
    run->busy_share = end_us > 0 ? (double)(clock_thread_cpu_us() - cpu_us) / (double)end_us : 0;
    run->longest_busy_ms = (double)longest_us / 1e3;
    return FATHOM_OK;
}

/* Each request in flight is a descriptor. */
static fathom_err check_files(const struct load_options *o, fathom_diag *d)
{
    size_t most = o->max_in_flight && o->max_in_flight < o->n ? o->max_in_flight : o->n;
    uint64_t allowed = os_allow_files(most + RESERVED_FILES);
    if (allowed < most + RESERVED_FILES) {
        FAIL(d, FATHOM_EIO,
             "%zu requests may be in flight and the system allows %llu open files: raise it "
             "(ulimit -n) or lower --max-concurrency",
             most, (unsigned long long)allowed);
    }
    return FATHOM_OK;
}

fathom_err load_run_requests(struct load_run *out, const struct load_options *o, fathom_diag *d)
{
    struct loop l = {.o = o, .run = out, .epoll = -1, .timer = -1};
    fathom_err err;
    memset(out, 0, sizeof *out);
    TRY(check_files(o, d));
    out->records = mem_calloc(o->n ? o->n : 1, sizeof *out->records);
    if (!out->records) return FATHOM_ENOMEM;
    out->n = o->n;
    for (size_t i = 0; i < o->n; i++) {
        out->records[i].due_us = (uint64_t)(o->due_s[i] * 1e6);
        out->records[i].n_input = o->items[i].n_input;
        out->records[i].n_asked = o->items[i].n_output;
    }
    TRY_GOTO(loop_open(&l, d), done);
    TRY_GOTO(loop_run(&l, d), done);
done:
    loop_close(&l);
    return err;
}

void load_run_free(struct load_run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        mem_free(r->records[i].gap_us);
        mem_free(r->records[i].message);
        mem_free(r->records[i].text);
    }
    mem_free(r->records);
    memset(r, 0, sizeof *r);
}

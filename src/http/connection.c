/* connection.c - the states of a connection, its reading and its writing
 *
 * Invariants (connection_check): there is an exchange in BODY, WAIT and ANSWER, and in no other
 * state. Only in ANSWER do `out` and `body` hold bytes, and can `blocked` be true. `in` holds the
 * beginning of a head, or bytes behind a request that is not answered yet; never more than a head
 * and a block. */
#include "http/connection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "http/chunk.h"
#include "http/gate.h"
#include "http/head.h"
#include "http/tls.h"

enum {
    SMALL_BODY_BYTES = 16384,
    CHUNK_HEAD_BYTES = 16,
    TURN_REQUESTS = 16, /* requests that came together are answered in one turn, at most */
};

struct connection {
    struct connections *all;
    struct connection *prev, *next;
    struct connection *next_mail; /* under mail_lock, as the next two */
    bool in_mail;
    bool is_freed; /* to be freed when it is taken out of the mail */

    int fd;
    struct gate_pass *pass;
    struct tls_session *tls; /* NULL: none */
    enum { HANDSHAKE, HEAD, BODY, WAIT, ANSWER, CLOSING, OVER } state;
    enum gate_phase phase;
    uint32_t events;  /* that epoll waits for */
    bool wants_write; /* HANDSHAKE */
    bool blocked;     /* ANSWER: the client does not read */
    bool peer_left;   /* ops.left has been called */

    struct buf in;
    size_t scanned; /* bytes of the current head that head_scan has seen */
    bool has_rest;  /* HEAD: `in` has more requests; they get a turn when the mail is taken */

    void *x;
    bool is_whole; /* the request has been read to its end */
    bool is_head;  /* its method is HEAD */
    bool is_1_0;
    bool close; /* after the answer */
    bool chunked;
    struct chunk_reader chunk;
    uint64_t left; /* of a body that is not in chunks */

    struct buf out;  /* the head of the answer with a small body, or a chunk of a stream */
    struct buf body; /* a large body */
    size_t n_out_sent, n_body_sent;
    bool is_stream;
    bool has_begun; /* the first bytes of a stream have been added to its head */
    bool stream_ended;
    char remote[REMOTE_BYTES];
};

static void connection_check(const struct connection *c)
{
    bool has_exchange = c->state == BODY || c->state == WAIT || c->state == ANSWER;
    ASSERT(c->state == OVER || has_exchange == (c->x != NULL));
    ASSERT(c->state == ANSWER || c->state == OVER || (c->out.len == 0 && c->body.len == 0));
    ASSERT(c->state == ANSWER || c->state == OVER || !c->blocked);
    ASSERT(c->state == HEAD || c->state == OVER || !c->has_rest);
    ASSERT(c->in.len <= LIMIT_HTTP_HEAD_BYTES + CONNECTION_BLOCK_BYTES);
    ASSERT(c->n_out_sent <= c->out.len && c->n_body_sent <= c->body.len);
}

/* Whether bytes of the client are taken as a head or a body now. */
static bool is_taking(const struct connection *c)
{
    return c->state == HEAD || c->state == BODY;
}

/* Whether the socket is read. */
static bool is_reading(const struct connection *c)
{
    return is_taking(c) && !c->has_rest;
}

static void move(struct connection *c, enum gate_phase phase)
{
    if (c->phase == phase) return;
    c->phase = phase;
    gate_move(c->all->gate, c->pass, phase, clock_now_us());
}

void connection_end(struct connection *c)
{
    c->state = OVER;
}

/* ---- bytes out ----------------------------------------------------------------------------- */

/* Returns bytes sent, 0: the client must read first, -1: the connection is broken. */
static ssize_t send_some(struct connection *c, const char *bytes, size_t n, bool more)
{
    if (c->tls) {
        ssize_t sent = tls_send(c->tls, bytes, n);
        return sent == TLS_WRITE ? 0 : sent < 0 ? -1 : sent;
    }
    ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (sent >= 0) return sent;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

enum outcome {
    DONE,
    BLOCKED, /* the client must read first */
    IDLE,    /* a stream has no bytes yet */
    BROKEN,
};

/* Sends b from *at on, and frees it when all of it is out. */
static enum outcome send_buf(struct connection *c, struct buf *b, size_t *at, bool more,
                             bool *progress)
{
    while (*at < b->len) {
        ssize_t n = send_some(c, b->data + *at, b->len - *at, more);
        if (n < 0) return BROKEN;
        if (n == 0) return BLOCKED;
        *progress = true;
        *at += (size_t)n;
    }
    *at = 0;
    buf_free(b);
    return DONE;
}

/* The next chunk of a stream, in the thread's block. */
static enum outcome take_chunk(struct connection *c, const char **bytes, size_t *n_byte)
{
    char size[CHUNK_HEAD_BYTES];
    char *block = c->all->stream_block, *data = block + CHUNK_HEAD_BYTES;
    ssize_t n = c->all->ops->read(c->x, data, CONNECTION_STREAM_BYTES);
    if (n == 0) return IDLE;
    if (n == CONNECTION_STREAM_BROKEN) return BROKEN;
    c->stream_ended = n == CONNECTION_STREAM_END;
    size_t n_data = n > 0 ? (size_t)n : 0;
    int n_head = c->is_1_0 ? 0 : snprintf(size, sizeof size, "%zx\r\n", n_data);
    memcpy(data - n_head, size, (size_t)n_head);
    memcpy(data + n_data, "\r\n", 2);
    *bytes = data - n_head;
    *n_byte = (size_t)n_head + n_data + (c->is_1_0 ? 0 : 2);
    return DONE;
}

/* Sends the next chunk of a stream; keeps in `out` what cannot be sent at once. */
static enum outcome send_chunk(struct connection *c, bool *progress)
{
    const char *bytes;
    size_t n;
    enum outcome o = take_chunk(c, &bytes, &n);
    if (o != DONE) return o;
    ssize_t sent = n ? send_some(c, bytes, n, false) : 0;
    if (sent < 0) return BROKEN;
    *progress |= sent > 0;
    if ((size_t)sent == n) return DONE;
    return buf_add(&c->out, bytes + sent, n - (size_t)sent) ? BROKEN : DONE;
}

/* Adds what there is of a stream to its head: so they make one packet, and the client is woken
 * once. */
static enum outcome begin_stream(struct connection *c)
{
    const char *bytes;
    size_t n;
    c->has_begun = true;
    if (c->stream_ended) return DONE;
    enum outcome o = take_chunk(c, &bytes, &n);
    if (o == BROKEN) return BROKEN;
    return o == DONE && buf_add(&c->out, bytes, n) ? BROKEN : DONE;
}

static enum outcome send_answer(struct connection *c, bool *progress)
{
    if (c->is_stream && !c->has_begun && begin_stream(c) == BROKEN) return BROKEN;
    for (;;) {
        enum outcome o = send_buf(c, &c->out, &c->n_out_sent, c->body.len > 0, progress);
        if (o == DONE) o = send_buf(c, &c->body, &c->n_body_sent, false, progress);
        if (o != DONE || !c->is_stream || c->stream_ended) return o;
        o = send_chunk(c, progress);
        if (o != DONE) return o;
    }
}

/* After the last answer: to OVER, or to CLOSING if the request has not been read to its end. */
static void start_closing(struct connection *c)
{
    bool is_read = c->is_whole && c->in.len == 0;
    if (c->tls) tls_end(c->tls);
    c->state = OVER;
    if (is_read || shutdown(c->fd, SHUT_WR) != 0) return;
    c->state = CLOSING;
    move(c, GATE_CLOSING);
}

static void finish_answer(struct connection *c)
{
    c->all->ops->end(c->x);
    c->x = NULL;
    c->is_stream = c->has_begun = c->stream_ended = c->blocked = false;
    if (c->close) {
        start_closing(c);
        return;
    }
    c->state = HEAD;
    move(c, GATE_KEPT);
}

/* Sends as much of the answer as there is and as the client takes. */
static void go_on_answering(struct connection *c)
{
    bool progress = false, was_blocked = c->blocked;
    enum outcome o = send_answer(c, &progress);
    c->blocked = o == BLOCKED;
    switch (o) {
    case DONE: finish_answer(c); return;
    case BROKEN: connection_end(c); return;
    case IDLE: move(c, GATE_BUSY); return;
    case BLOCKED: break;
    }
    if (was_blocked && !progress) return;
    size_t n = c->out.len - c->n_out_sent + c->body.len - c->n_body_sent;
    c->phase = GATE_UNREAD;
    gate_note_unread(c->all->gate, c->pass, n, clock_now_us());
}

/* ---- heads of answers ---------------------------------------------------------------------- */

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) return reasons[i].reason;
    }
    return "Unknown";
}

static const char *date_of(struct connections *all)
{
    int64_t now_s = clock_unix_s();
    if (now_s != all->date_s) {
        const time_t t = (time_t)now_s;
        struct tm utc;
        all->date_s = now_s;
        if (!gmtime_r(&t, &utc) ||
            !strftime(all->date, sizeof all->date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc)) {
            all->date[0] = '\0';
        }
    }
    return all->date;
}

static void begin_answer(struct connection *c, int status, const struct buf *fields, bool close)
{
    ASSERT(c->state == WAIT);
    c->close |= close;
    c->state = ANSWER;
    (void)buf_printf(&c->out, "HTTP/1.1 %d %s\r\n%s%s%s", status, reason_of(status),
                     date_of(c->all), buf_str(fields), c->close ? "Connection: close\r\n" : "");
}

void connection_reply(struct connection *c, int status, const struct buf *fields, struct buf *body,
                      bool close)
{
    struct buf none = {0};
    if (!body) body = &none;
    begin_answer(c, status, fields, close);
    if (status != 204) (void)buf_printf(&c->out, "Content-Length: %zu\r\n", body->len);
    (void)buf_add_str(&c->out, "\r\n");
    if (c->is_head) {
        buf_free(body);
    } else if (body->len <= SMALL_BODY_BYTES) {
        (void)buf_add(&c->out, buf_str(body), body->len);
        buf_free(body);
    } else {
        c->body = *body;
        *body = (struct buf){0};
    }
    if (buf_status(&c->out) != FATHOM_OK) connection_end(c);
}

void connection_reply_head(struct connection *c, int status, const struct buf *fields, bool close)
{
    ASSERT(c->is_head);
    begin_answer(c, status, fields, close);
    if (buf_add_str(&c->out, "\r\n") != FATHOM_OK) connection_end(c);
}

void connection_stream(struct connection *c, int status, const struct buf *fields, bool close)
{
    begin_answer(c, status, fields, close);
    c->is_stream = true;
    c->stream_ended = c->is_head;
    (void)buf_add_str(&c->out, c->is_1_0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    if (buf_status(&c->out) != FATHOM_OK) connection_end(c);
}

/* ---- requests ------------------------------------------------------------------------------ */

/* The request has been read as far as it will be: lets the exchange answer it. */
static void have_answered(struct connection *c, const char *fault)
{
    c->state = WAIT;
    c->peer_left = false;
    move(c, GATE_BUSY);
    c->all->ops->answer(c->x, fault);
    if (c->state == ANSWER) go_on_answering(c);
}

/* Tells a client that waits for it (Expect: 100-continue) to send its body. */
static void say_continue(struct connection *c)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (send_some(c, text, sizeof text - 1, false) != sizeof text - 1) connection_end(c);
}

static void begin_request(struct connection *c, const struct head *h,
                          const struct head_fault *fault)
{
    bool at_once = h == NULL;
    c->is_1_0 = h && h->is_1_0;
    c->is_head = h && strcmp(h->method, "HEAD") == 0;
    c->close = !h || h->close;
    c->chunked = h && h->chunked;
    c->left = h ? h->length : 0;
    c->chunk = (struct chunk_reader){0};
    c->x = c->all->ops->begin(c->all->arg, c, h, fault, &at_once);
    if (!c->x) {
        connection_end(c);
        return;
    }
    bool has_body = c->chunked || c->left > 0;
    c->is_whole = h && !has_body;
    if (!h || at_once || !has_body) {
        c->close |= !c->is_whole;
        have_answered(c, NULL);
        return;
    }
    c->state = BODY;
    move(c, GATE_BODY);
    if (h->wants_continue) say_continue(c);
}

/* Returns how many bytes were the head; 0: it is not whole. A head that is refused takes all bytes:
 * it is not known where the next request begins. */
static size_t take_head(struct connection *c, char *bytes, size_t n)
{
    struct head_fault fault;
    struct head h;
    size_t n_head = head_scan(bytes, n, &c->scanned, &fault);
    if (n_head == 0 && !fault.status) {
        move(c, GATE_HEAD);
        return 0;
    }
    c->scanned = 0;
    bool ok = n_head && head_parse(&h, bytes, n_head, &fault);
    begin_request(c, ok ? &h : NULL, &fault);
    return ok ? n_head : n;
}

static bool hand_over(struct connection *c, const char *data, size_t n)
{
    gate_note_body(c->pass, n);
    if (c->all->ops->take(c->x, data, n)) return true;
    connection_end(c);
    return false;
}

static size_t take_chunked(struct connection *c, const char *bytes, size_t n)
{
    const char *data;
    size_t n_data;
    size_t used = chunk_read(&c->chunk, bytes, n, &data, &n_data);
    if (n_data && !hand_over(c, data, n_data)) return n;
    if (c->chunk.problem) {
        c->close = true;
        have_answered(c, c->chunk.problem);
        return n;
    }
    if (c->chunk.state == CHUNK_END) {
        c->is_whole = true;
        have_answered(c, NULL);
    }
    return used;
}

static size_t take_body(struct connection *c, const char *bytes, size_t n)
{
    if (c->chunked) return take_chunked(c, bytes, n);
    size_t used = n < c->left ? n : (size_t)c->left;
    c->left -= used;
    if (!hand_over(c, bytes, used)) return n;
    if (c->left == 0) {
        c->is_whole = true;
        have_answered(c, NULL);
    }
    return used;
}

/* Takes requests from the bytes until one has to wait for its answer, or the turn is over. Returns
 * how many bytes were taken. */
static size_t take_bytes(struct connection *c, char *bytes, size_t n)
{
    size_t at = 0;
    int n_request = 0;
    while (at < n && is_taking(c)) {
        if (c->state == HEAD && n_request++ == TURN_REQUESTS) {
            c->has_rest = true;
            connection_wake(c);
            break;
        }
        size_t used =
            c->state == HEAD ? take_head(c, bytes + at, n - at) : take_body(c, bytes + at, n - at);
        if (used == 0) break;
        at += used;
    }
    return at;
}

/* Takes the bytes in `in`, which came behind an earlier request. */
static void take_rest(struct connection *c)
{
    c->has_rest = false;
    if (is_taking(c) && c->in.len > c->scanned) {
        buf_consume(&c->in, take_bytes(c, c->in.data, c->in.len));
    }
    if (c->in.len == 0 || c->state == CLOSING) buf_free(&c->in);
}

static void take_block(struct connection *c, char *bytes, size_t n)
{
    if (c->in.len) {
        if (buf_add(&c->in, bytes, n) != FATHOM_OK) connection_end(c);
        take_rest(c);
        return;
    }
    size_t used = take_bytes(c, bytes, n);
    if (used == n || c->state == CLOSING || c->state == OVER) return;
    if (buf_add(&c->in, bytes + used, n - used) != FATHOM_OK) connection_end(c);
}

/* ---- bytes in ------------------------------------------------------------------------------ */

/* Returns bytes, 0: none now, -1: the peer has ended, or the connection is broken. */
static ssize_t receive(struct connection *c)
{
    if (c->tls) {
        ssize_t n = tls_receive(c->tls, c->all->block, CONNECTION_BLOCK_BYTES);
        return n == TLS_READ ? 0 : n <= 0 ? -1 : n;
    }
    ssize_t n = recv(c->fd, c->all->block, CONNECTION_BLOCK_BYTES, 0);
    if (n > 0) return n;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

static void read_some(struct connection *c)
{
    do {
        ssize_t n = receive(c);
        if (n == 0) return;
        if (n < 0) {
            connection_end(c);
        } else if (c->state != CLOSING) {
            take_block(c, c->all->block, (size_t)n);
        }
    } while (c->tls && (is_reading(c) || c->state == CLOSING) && tls_has_more(c->tls));
}

/* After an answer: takes requests behind it that have been read, or that TLS has decrypted already.
 * */
static void go_on_reading(struct connection *c)
{
    take_rest(c);
    if (is_reading(c) && c->tls && tls_has_more(c->tls)) read_some(c);
}

static void shake_hands(struct connection *c)
{
    int want = tls_shake_hands(c->tls);
    c->wants_write = want == TLS_WRITE;
    if (want == TLS_BROKEN) connection_end(c);
    if (want != 0) return;
    c->state = HEAD;
    go_on_reading(c);
}

/* ---- events -------------------------------------------------------------------------------- */

static void unlink_and_free(struct connection *c)
{
    struct connections *all = c->all;
    if (c->x) all->ops->end(c->x);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        all->first = c->next;
    }
    if (c->next) c->next->prev = c->prev;
    gate_leave(all->gate, c->pass);
    tls_close(c->tls);
    (void)close(c->fd);
    buf_free(&c->in);
    buf_free(&c->out);
    buf_free(&c->body);
    (void)pthread_mutex_lock(&all->mail_lock);
    bool in_mail = c->is_freed = c->in_mail;
    (void)pthread_mutex_unlock(&all->mail_lock);
    if (!in_mail) mem_free(c);
}

/* Whether it is known how many bytes of the body are missing, and how many wait in the socket. */
static bool is_counted(const struct connection *c)
{
    return c->state == BODY && !c->chunked && !c->tls;
}

/* The client has closed its side: whether it has sent less than the whole body, which then need not
 * be read. */
static bool is_cut_short(const struct connection *c)
{
    int n = 0;
    return is_counted(c) && ioctl(c->fd, FIONREAD, &n) == 0 && (uint64_t)n < c->left;
}

static uint32_t events_of(const struct connection *c)
{
    if (c->state == HANDSHAKE) return c->wants_write ? EPOLLOUT : EPOLLIN;
    if (is_counted(c) && is_reading(c)) return EPOLLIN | EPOLLRDHUP;
    if (is_reading(c) || c->state == CLOSING) return EPOLLIN;
    if (is_taking(c)) return 0;
    return (c->peer_left ? 0u : EPOLLRDHUP) | (c->blocked ? EPOLLOUT : 0u);
}

/* At the end of each event: frees the connection, or tells epoll what it waits for now. */
static void settle(struct connection *c)
{
    if (c->state != OVER) {
        DCHECK((connection_check(c), true));
        struct epoll_event e = {.events = events_of(c), .data.ptr = c};
        if (e.events == c->events) return;
        c->events = e.events;
        if (epoll_ctl(c->all->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) == 0) return;
    }
    unlink_and_free(c);
}

bool connection_sends_body(const struct connection *c)
{
    return c->state == BODY || c->state == CLOSING;
}

void connection_take_event(struct connection *c, uint32_t events)
{
    if (c->state == HANDSHAKE) {
        shake_hands(c);
    } else if ((events & EPOLLRDHUP) && is_cut_short(c)) {
        connection_end(c);
    } else if (is_reading(c) || c->state == CLOSING) {
        read_some(c);
    } else if (events & (EPOLLERR | EPOLLHUP)) {
        connection_end(c);
    } else {
        if ((events & EPOLLRDHUP) && !c->peer_left && c->x) {
            c->peer_left = true;
            c->all->ops->left(c->x);
        }
        if (c->blocked) go_on_answering(c);
        go_on_reading(c);
    }
    settle(c);
}

static void take_wake(struct connection *c)
{
    if (c->state == WAIT) c->all->ops->go_on(c->x);
    if (c->state == ANSWER && !c->blocked) go_on_answering(c);
    go_on_reading(c);
    settle(c);
}

/* ---- mail ---------------------------------------------------------------------------------- */

void connection_wake(struct connection *c)
{
    struct connections *all = c->all;
    (void)pthread_mutex_lock(&all->mail_lock);
    bool is_first = !all->mail;
    if (!c->in_mail) {
        c->in_mail = true;
        c->next_mail = NULL;
        *(all->last_mail ? &all->last_mail->next_mail : &all->mail) = c;
        all->last_mail = c;
        all->n_mail++;
    }
    (void)pthread_mutex_unlock(&all->mail_lock);
    if (!is_first || (all->has_thread && pthread_equal(all->thread, pthread_self()))) return;
    uint64_t one = 1;
    ssize_t n = write(all->wake_fd, &one, sizeof one);
    ASSERT(n == sizeof one || errno == EAGAIN);
}

/* Takes one connection out of the mail; NULL: there is none. */
static struct connection *next_mail(struct connections *all)
{
    struct connection *c;
    bool is_freed = true;
    while (is_freed) {
        (void)pthread_mutex_lock(&all->mail_lock);
        c = all->mail;
        if (c) {
            all->mail = c->next_mail;
            if (!all->mail) all->last_mail = NULL;
            all->n_mail--;
            c->in_mail = false;
        }
        is_freed = c && c->is_freed;
        (void)pthread_mutex_unlock(&all->mail_lock);
        if (is_freed) mem_free(c);
    }
    return c;
}

void connections_runs_here(struct connections *all)
{
    all->thread = pthread_self();
    all->has_thread = true;
}

static size_t count_mail(struct connections *all)
{
    (void)pthread_mutex_lock(&all->mail_lock);
    size_t n = all->n_mail;
    (void)pthread_mutex_unlock(&all->mail_lock);
    return n;
}

bool connections_has_mail(const struct connections *all)
{
    return count_mail((struct connections *)(uintptr_t)all) > 0;
}

/* Takes the mail that is there now. What comes meanwhile waits until the sockets had their turn. */
void connections_take_mail(struct connections *all)
{
    uint64_t count;
    ssize_t n = read(all->wake_fd, &count, sizeof count);
    ASSERT(n == sizeof count || errno == EAGAIN);
    for (size_t left = count_mail(all); left > 0; left--) {
        struct connection *c = next_mail(all);
        if (!c) return;
        take_wake(c);
    }
    if (count_mail(all) == 0) return;
    count = 1;
    n = write(all->wake_fd, &count, sizeof count);
    ASSERT(n == sizeof count || errno == EAGAIN);
}

void connection_shut(struct connection *c)
{
    (void)shutdown(c->fd, SHUT_RDWR);
}

/* ---- begin and end ------------------------------------------------------------------------- */

fathom_err connections_init(struct connections *all)
{
    (void)pthread_mutex_init(&all->mail_lock, NULL);
    all->block = mem_alloc(CONNECTION_BLOCK_BYTES);
    all->stream_block = mem_alloc(CHUNK_HEAD_BYTES + CONNECTION_STREAM_BYTES + 2);
    return all->block && all->stream_block ? FATHOM_OK : FATHOM_ENOMEM;
}

void connections_free(struct connections *all)
{
    while (all->first) unlink_and_free(all->first);
    while (next_mail(all)) {
    }
    (void)pthread_mutex_destroy(&all->mail_lock);
    mem_free(all->block);
    mem_free(all->stream_block);
}

static fathom_err enter(struct connection *c)
{
    struct connections *all = c->all;
    fathom_err err = gate_enter(all->gate, c->fd, clock_now_us(), &c->pass);
    if (err) return err;
    c->phase = GATE_NEW;
    c->state = all->tls ? HANDSHAKE : HEAD;
    if (all->tls) err = tls_open(all->tls, c->fd, &c->tls);
    c->events = events_of(c);
    struct epoll_event e = {.events = c->events, .data.ptr = c};
    if (!err && epoll_ctl(all->epoll_fd, EPOLL_CTL_ADD, c->fd, &e) == 0) return FATHOM_OK;
    tls_close(c->tls);
    gate_leave(all->gate, c->pass);
    return err ? err : FATHOM_EIO;
}

fathom_err connection_open(struct connections *all, int fd, const char *remote)
{
    struct connection *c = mem_calloc(1, sizeof *c);
    fathom_err err = FATHOM_ENOMEM;
    if (c) {
        c->all = all;
        c->fd = fd;
        (void)snprintf(c->remote, sizeof c->remote, "%s", remote);
        err = enter(c);
    }
    if (err) {
        (void)close(fd);
        mem_free(c);
        return err;
    }
    c->next = all->first;
    if (all->first) all->first->prev = c;
    all->first = c;
    return FATHOM_OK;
}

void *connection_guest(const struct connection *c)
{
    return c->all->guest;
}

const char *connection_remote(const struct connection *c)
{
    return c->remote;
}

bool connection_is_over_limit(const struct connection *c)
{
    return gate_is_over_limit(c->pass);
}

bool connection_client_is_known(const struct connection *c)
{
    return !c->tls || tls_client_is_known(c->tls);
}

/* page_service.c - a thread that accepts, and one for each connection
 *
 * States of a place for a connection
 *
 *   FREE --accepted, it speaks--> BUSY --its thread ends--> DONE --joined--> FREE
 *
 * Only the acceptor changes FREE and DONE, only the connection's thread changes BUSY. A connection
 * that has not finished its greeting is a stranger. When all places are taken, the oldest stranger
 * is ended for a new connection. So only strangers can lose their places. */
#include "comm/page_service.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/page_query.h"
#include "comm/tcp_link.h"

enum place_state { PLACE_FREE, PLACE_BUSY, PLACE_DONE };

struct place {
    struct page_service *service;
    struct page_link *link;
    struct page_link *stranger; /* the link, until it has greeted or ends; under the lock */
    uint64_t n_before;          /* connections before this one */
    pthread_t thread;
    atomic_int state;
    struct hash128 *keys; /* [FRAME_KEYS_MAX], of FIND and RELEASE; made when one comes */
    unsigned char *body;  /* [16 * FRAME_KEYS_MAX] */
};

struct page_service {
    struct page_service_config c;
    struct hash128 owner;
    int fd;
    uint16_t port;
    int stop_fd;
    pthread_t acceptor;
    bool has_acceptor;
    uint64_t n_link; /* connections so far */
    pthread_mutex_t lock;
    struct place places[SERVICE_LINKS_MAX];
    atomic_uint_fast64_t logged_us; /* when a connection was last refused in the log */
    atomic_uint busy_ms;            /* told at noted_us */
    atomic_uint_fast64_t noted_us;
};

/* How long the prompts of this server take, as told to one that waits for pages. If they have taken
 * longer than was noted, this is the time that they have taken so far: the noted time was a guess,
 * or the machine has become slower. */
static uint32_t tell_busy_ms(struct page_service *s)
{
    const uint32_t told_ms = atomic_load(&s->busy_ms);
    const uint64_t noted_us = atomic_load(&s->noted_us); /* before the clock: not later than it */
    const uint64_t since_ms = (clock_now_us() - noted_us) / 1000;
    if (told_ms == 0 || since_ms <= told_ms) return told_ms;
    return since_ms < UINT32_MAX ? (uint32_t)since_ms : UINT32_MAX;
}

static fathom_err answer_want(struct place *p, const struct frame *f, fathom_diag *d)
{
    struct page_service *s = p->service;
    unsigned char body[WANT_BYTES], busy[MISS_BYTES];
    struct tier_name name;
    struct shelf_page page;
    TRY(p->link->ops->receive(p->link, body, sizeof body, clock_now_us() + SERVICE_GREETING_US, d));
    TRY(want_read(&name, body, d));
    uint64_t end_us = clock_now_us() + SERVICE_SEND_US;
    if (!page_shelf_take(s->c.shelf, &name, &page)) {
        const struct link_part part = {busy, sizeof busy};
        number_write(busy, tell_busy_ms(s));
        return link_send_frame(p->link, FRAME_MISS, f->stream, &part, 1, end_us, d);
    }
    struct tier_header h;
    tier_header_fill(&h, &s->owner, s->c.self.page_bytes, 0, &name, page.sum);
    const struct link_part parts[] = {{&h, sizeof h}, {page.page, s->c.self.page_bytes}};
    fathom_err err = link_send_frame(p->link, FRAME_PAGE, f->stream, parts, 2, end_us, d);
    page_shelf_give(s->c.shelf, page.place, err == FATHOM_OK);
    return err;
}

static fathom_err receive_keys(struct place *p, const struct frame *f, uint32_t *n, fathom_diag *d)
{
    if (!p->keys) p->keys = mem_alloc_array(FRAME_KEYS_MAX, sizeof *p->keys);
    if (!p->body) p->body = mem_alloc_array(FRAME_KEYS_MAX, sizeof *p->keys);
    if (!p->keys || !p->body) return FATHOM_ENOMEM;
    uint64_t end_us = clock_now_us() + SERVICE_GREETING_US;
    TRY(p->link->ops->receive(p->link, p->body, f->n_body, end_us, d));
    return find_read(p->keys, n, p->body, f->n_body, d);
}

static fathom_err answer_find(struct place *p, const struct frame *f, fathom_diag *d)
{
    uint32_t n;
    unsigned char out[4];
    TRY(receive_keys(p, f, &n, d));
    uint64_t end_us = clock_now_us() + SERVICE_GREETING_US;
    number_write(out, page_shelf_count(p->service->c.shelf, p->keys, n));
    const struct link_part part = {out, sizeof out};
    return link_send_frame(p->link, FRAME_FOUND, f->stream, &part, 1, end_us, d);
}

static fathom_err take_release(struct place *p, const struct frame *f, fathom_diag *d)
{
    uint32_t n;
    TRY(receive_keys(p, f, &n, d));
    uint64_t until_us = clock_now_us() + SERVICE_RELEASED_US;
    for (uint32_t i = 0; i < n; i++) page_shelf_release(p->service->c.shelf, &p->keys[i], until_us);
    return FATHOM_OK;
}

static void end_stranger(struct place *p)
{
    pthread_mutex_lock(&p->service->lock);
    p->stranger = NULL;
    pthread_mutex_unlock(&p->service->lock);
}

/* Greets, then answers until the other side leaves or the service ends. */
static fathom_err serve(struct place *p, fathom_diag *d)
{
    static_assert((int)FRAME_MAGIC_BYTES == (int)QUERY_BEGIN_BYTES, "both begin with as many");
    const struct page_self *self = &p->service->c.self;
    const uint64_t end_us = clock_now_us() + SERVICE_GREETING_US;
    unsigned char begin[FRAME_MAGIC_BYTES];
    struct page_hello peer;
    struct frame f;
    TRY(p->link->ops->receive(p->link, begin, sizeof begin, end_us, d));
    if (page_query_is(begin)) return page_query_answer(p->link, self->id, end_us, d);
    TRY(page_answer_greeting(&p->link, begin, self, &peer, end_us, d));
    end_stranger(p);
    LOG_DEBUG("kv", "pages: %s has connected", peer.id);
    for (;;) { /* between frames it may be silent, within one it may not */
        if (p->link->ops->await(p->link, UINT64_MAX, NULL) != FATHOM_OK) return FATHOM_OK;
        TRY(link_receive_frame(p->link, &f, 0, clock_now_us() + SERVICE_GREETING_US, d));
        if (f.type == FRAME_WANT) {
            TRY(answer_want(p, &f, d));
        } else if (f.type == FRAME_FIND) {
            TRY(answer_find(p, &f, d));
        } else if (f.type == FRAME_RELEASE) {
            TRY(take_release(p, &f, d));
        } else {
            FAIL(d, FATHOM_EFORMAT, "a frame of type %d, which nobody asks with", (int)f.type);
        }
    }
}

static void note_end(struct page_service *s, const char *cause)
{
    uint64_t now_us = clock_now_us();
    uint64_t logged_us = atomic_load(&s->logged_us);
    if (logged_us != 0 && now_us <= logged_us + 60000000) return;
    atomic_store(&s->logged_us, now_us);
    LOG_WARN("kv", "pages: a connection was ended: %s (told once a minute)", cause);
}

static void *link_main(void *arg)
{
    struct place *p = arg;
    fathom_diag d = {{0}};
    os_name_thread("kv-serve");
    fathom_err err = serve(p, &d);
    if (err) note_end(p->service, d.text[0] ? d.text : fathom_err_text(err));
    end_stranger(p);
    p->link->ops->close(p->link);
    mem_free(p->keys);
    mem_free(p->body);
    p->keys = NULL;
    p->body = NULL;
    atomic_store(&p->state, PLACE_DONE);
    return NULL;
}

static void clear_place(struct place *p)
{
    pthread_join(p->thread, NULL);
    atomic_store(&p->state, PLACE_FREE);
}

/* Ends the oldest stranger and returns its place; NULL: all connections have greeted. */
static struct place *take_from_stranger(struct page_service *s)
{
    struct place *first = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < SERVICE_LINKS_MAX; i++) {
        struct place *p = &s->places[i];
        if (p->stranger && (!first || p->n_before < first->n_before)) first = p;
    }
    if (first) tcp_link_break(first->stranger);
    pthread_mutex_unlock(&s->lock);
    if (first) clear_place(first);
    return first;
}

static struct place *free_place(struct page_service *s)
{
    for (size_t i = 0; i < SERVICE_LINKS_MAX; i++) {
        struct place *p = &s->places[i];
        if (atomic_load(&p->state) == PLACE_DONE) clear_place(p);
        if (atomic_load(&p->state) == PLACE_FREE) return p;
    }
    return take_from_stranger(s);
}

static void *accept_main(void *arg)
{
    struct page_service *s = arg;
    struct page_link *link;
    struct tcp_lobby lobby = {0};
    os_name_thread("kv-accept");
    while ((link = tcp_link_accept_said(&lobby, s->fd, s->stop_fd, FRAME_MAGIC_BYTES,
                                        SERVICE_GREETING_US))) {
        struct place *p = free_place(s);
        if (p) {
            p->service = s;
            p->link = p->stranger = link;
            p->n_before = s->n_link++;
            atomic_store(&p->state, PLACE_BUSY);
            if (pthread_create(&p->thread, NULL, link_main, p) == 0) continue;
            p->stranger = NULL;
            atomic_store(&p->state, PLACE_FREE);
        } else {
            note_end(s, "other servers have all connections that there may be");
        }
        link->ops->close(link);
    }
    return NULL;
}

fathom_err page_service_create(struct page_service **out, const struct page_service_config *c,
                               fathom_diag *d)
{
    *out = NULL;
    struct page_service *s = mem_calloc(1, sizeof *s);
    if (!s) FAIL(d, FATHOM_ENOMEM, "no memory for the service of pages");
    fathom_err err = FATHOM_EIO;
    s->c = *c;
    s->owner = identity_key(&c->self.identity);
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    TRY_GOTO(tcp_link_listen(c->host, c->port, &s->fd, &s->port, d), fail);
    s->has_acceptor = s->stop_fd >= 0 && pthread_create(&s->acceptor, NULL, accept_main, s) == 0;
    if (s->has_acceptor) {
        *out = s;
        return FATHOM_OK;
    }
    err = diag_fail(d, FATHOM_EIO, "a thread of the service of pages cannot be started");
fail:
    page_service_destroy(s);
    return err;
}

void page_service_destroy(struct page_service *s)
{
    if (!s) return;
    const uint64_t one = 1;
    if (s->stop_fd >= 0 && write(s->stop_fd, &one, sizeof one) < 0) {
        LOG_WARN("kv", "the service of pages cannot be woken");
    }
    if (s->has_acceptor) pthread_join(s->acceptor, NULL);
    for (size_t i = 0; i < SERVICE_LINKS_MAX; i++) {
        if (atomic_load(&s->places[i].state) != PLACE_FREE) pthread_join(s->places[i].thread, NULL);
    }
    if (s->fd >= 0) (void)close(s->fd);
    if (s->stop_fd >= 0) (void)close(s->stop_fd);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

uint16_t page_service_port(const struct page_service *s)
{
    return s->port;
}

void page_service_note_busy(struct page_service *s, uint64_t us)
{
    const uint64_t ms = (us + 999) / 1000; /* none is 0 but that of nothing */
    atomic_store(&s->noted_us, clock_now_us());
    atomic_store(&s->busy_ms, ms < UINT32_MAX ? (unsigned)ms : UINT32_MAX);
}

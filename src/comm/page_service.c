/* page_service.c - a thread that accepts, and one for each connection
 *
 * States of a place for a connection
 *
 *   FREE --accepted--> BUSY --its thread ends--> DONE --joined--> FREE
 *
 * The acceptor alone goes from FREE and DONE, a connection's thread from BUSY. */
#include "comm/page_service.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/tcp_link.h"

enum place_state { PLACE_FREE, PLACE_BUSY, PLACE_DONE };

struct place {
    struct page_service *service;
    struct page_link *link;
    pthread_t thread;
    atomic_int state;
    struct hash128 *keys; /* [FRAME_KEYS_MAX], of FIND; made when the first one comes */
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
    struct place places[SERVICE_LINKS_MAX];
    atomic_uint_fast64_t logged_us; /* when a connection was last refused in the log */
    pthread_mutex_t lock;           /* of what follows */
    pthread_cond_t came;
    uint64_t n_put;
    bool stopped;
};

static void note_put(void *arg)
{
    struct page_service *s = arg;
    pthread_mutex_lock(&s->lock);
    s->n_put++;
    pthread_cond_broadcast(&s->came);
    pthread_mutex_unlock(&s->lock);
}

static struct timespec time_at(uint64_t us)
{
    return (struct timespec){.tv_sec = (time_t)(us / 1000000),
                             .tv_nsec = (long)(us % 1000000) * 1000};
}

/* The record, if it is there or comes within the time. */
static bool wait_for_page(struct page_service *s, const struct page_want *w, struct shelf_page *out)
{
    const struct timespec end = time_at(clock_now_us() + (uint64_t)w->wait_ms * 1000);
    bool late = false;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        uint64_t n_put = s->n_put;
        late |= s->stopped;
        pthread_mutex_unlock(&s->lock);
        if (page_shelf_take(s->c.shelf, &w->name, out)) return true;
        if (late) return false;
        pthread_mutex_lock(&s->lock);
        while (!late && s->n_put == n_put && !s->stopped) {
            late = pthread_cond_timedwait(&s->came, &s->lock, &end) != 0;
        }
        pthread_mutex_unlock(&s->lock);
    }
}

static fathom_err answer_want(struct place *p, const struct frame *f, fathom_diag *d)
{
    struct page_service *s = p->service;
    unsigned char body[WANT_BYTES];
    struct page_want w;
    struct shelf_page page;
    TRY(p->link->ops->receive(p->link, body, sizeof body, clock_now_us() + SERVICE_GREETING_US, d));
    TRY(want_read(&w, body, d));
    bool found = wait_for_page(s, &w, &page);
    uint64_t end_us = clock_now_us() + SERVICE_SEND_US;
    if (!found) return link_send_frame(p->link, FRAME_MISS, f->stream, NULL, 0, end_us, d);
    struct tier_header h;
    tier_header_fill(&h, &s->owner, s->c.self.page_bytes, 0, &w.name, page.sum);
    const struct link_part parts[] = {{&h, sizeof h}, {page.page, s->c.self.page_bytes}};
    fathom_err err = link_send_frame(p->link, FRAME_PAGE, f->stream, parts, 2, end_us, d);
    page_shelf_give(s->c.shelf, page.place, err == FATHOM_OK);
    return err;
}

static fathom_err answer_find(struct place *p, const struct frame *f, fathom_diag *d)
{
    uint32_t n;
    unsigned char out[4];
    if (!p->keys) p->keys = mem_alloc_array(FRAME_KEYS_MAX, sizeof *p->keys);
    if (!p->body) p->body = mem_alloc_array(FRAME_KEYS_MAX, sizeof *p->keys);
    if (!p->keys || !p->body) return FATHOM_ENOMEM;
    uint64_t end_us = clock_now_us() + SERVICE_GREETING_US;
    TRY(p->link->ops->receive(p->link, p->body, f->n_body, end_us, d));
    TRY(find_read(p->keys, &n, p->body, f->n_body, d));
    number_write(out, page_shelf_count(p->service->c.shelf, p->keys, n));
    const struct link_part part = {out, sizeof out};
    return link_send_frame(p->link, FRAME_FOUND, f->stream, &part, 1, end_us, d);
}

/* Greets, then answers until the other side leaves or the service ends. */
static fathom_err serve(struct place *p, fathom_diag *d)
{
    struct page_hello peer;
    struct frame f;
    TRY(page_answer_greeting(&p->link, &p->service->c.self, &peer,
                             clock_now_us() + SERVICE_GREETING_US, d));
    LOG_DEBUG("kv", "pages: %s has connected", peer.id);
    for (;;) {
        if (link_receive_frame(p->link, &f, 0, UINT64_MAX, NULL) != FATHOM_OK) return FATHOM_OK;
        if (f.type == FRAME_WANT) {
            TRY(answer_want(p, &f, d));
        } else if (f.type == FRAME_FIND) {
            TRY(answer_find(p, &f, d));
        } else {
            FAIL(d, FATHOM_EFORMAT, "a frame of type %d, which nobody asks with", (int)f.type);
        }
    }
}

static void *link_main(void *arg)
{
    struct place *p = arg;
    fathom_diag d = {{0}};
    os_name_thread("kv-serve");
    fathom_err err = serve(p, &d);
    uint64_t now_us = clock_now_us();
    uint64_t logged_us = atomic_load(&p->service->logged_us);
    if (err && (logged_us == 0 || now_us - logged_us > 60000000)) {
        atomic_store(&p->service->logged_us, now_us);
        LOG_WARN("kv", "pages: a connection was ended: %s (told once a minute)",
                 d.text[0] ? d.text : fathom_err_text(err));
    }
    p->link->ops->close(p->link);
    mem_free(p->keys);
    mem_free(p->body);
    p->keys = NULL;
    p->body = NULL;
    atomic_store(&p->state, PLACE_DONE);
    return NULL;
}

static struct place *free_place(struct page_service *s)
{
    for (size_t i = 0; i < SERVICE_LINKS_MAX; i++) {
        struct place *p = &s->places[i];
        if (atomic_load(&p->state) == PLACE_DONE) {
            pthread_join(p->thread, NULL);
            atomic_store(&p->state, PLACE_FREE);
        }
        if (atomic_load(&p->state) == PLACE_FREE) return p;
    }
    return NULL;
}

static void *accept_main(void *arg)
{
    struct page_service *s = arg;
    struct page_link *link;
    os_name_thread("kv-accept");
    while ((link = tcp_link_accept(s->fd, s->stop_fd))) {
        struct place *p = free_place(s);
        if (p) {
            p->service = s;
            p->link = link;
            atomic_store(&p->state, PLACE_BUSY);
            if (pthread_create(&p->thread, NULL, link_main, p) == 0) continue;
            atomic_store(&p->state, PLACE_FREE);
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
    pthread_condattr_t monotonic;
    fathom_err err = FATHOM_EIO;
    s->c = *c;
    s->owner = identity_key(&c->self.identity);
    s->fd = -1;
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->came, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TRY_GOTO(tcp_link_listen(c->host, c->port, &s->fd, &s->port, d), fail);
    page_shelf_on_put(c->shelf, note_put, s);
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
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    pthread_cond_broadcast(&s->came);
    pthread_mutex_unlock(&s->lock);
    if (s->stop_fd >= 0 && write(s->stop_fd, &one, sizeof one) < 0) {
        LOG_WARN("kv", "the service of pages cannot be woken");
    }
    if (s->has_acceptor) pthread_join(s->acceptor, NULL);
    for (size_t i = 0; i < SERVICE_LINKS_MAX; i++) {
        if (atomic_load(&s->places[i].state) != PLACE_FREE) pthread_join(s->places[i].thread, NULL);
    }
    page_shelf_on_put(s->c.shelf, NULL, NULL);
    if (s->fd >= 0) (void)close(s->fd);
    if (s->stop_fd >= 0) (void)close(s->stop_fd);
    pthread_cond_destroy(&s->came);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

uint16_t page_service_port(const struct page_service *s)
{
    return s->port;
}

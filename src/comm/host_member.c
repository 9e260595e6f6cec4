/* host_member.c - dialling host 0 in two lanes, and a thread that beats
 *
 *   links    written while no thread beats
 *   ends     with lock and changed: the thread that beats is to end
 */
#include "comm/host_member.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
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
#include "base/rng.h"
#include "comm/host_hub.h"
#include "comm/tcp_link.h"

enum {
    TOLD_US = 30000000,   /* between two lines about a host 0 that is not there */
    FORGET_US = 10000000, /* for host 0 to see that a host has left: longer than HOST_LOST_US */
};

struct host_member {
    struct host_member_config c;
    char host[256];
    int stop_fd;
    uint64_t end_us;   /* when end_fd was seen first; 0: not yet */
    uint64_t until_us; /* from then on a refusal is final; 0: it was never joined */
    struct page_link *links[HOST_LANE_N];
    struct inner_port inner;
    pthread_t beater;
    bool has_beater;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ends;
};

static bool is_stopped(const struct host_member *m)
{
    struct pollfd p = {.fd = m->stop_fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static bool is_to_end(struct host_member *m)
{
    struct pollfd p = {.fd = m->c.end_fd, .events = POLLIN};
    if (m->c.end_fd <= 0 || poll(&p, 1, 0) <= 0) return false;
    if (m->end_us == 0) m->end_us = clock_now_us();
    return true;
}

static void *beat_main(void *arg)
{
    struct host_member *m = arg;
    os_name_thread("host-beat");
    pthread_mutex_lock(&m->lock);
    while (!m->ends) {
        const uint64_t next_us = clock_now_us() + HOST_BEAT_US;
        const struct timespec next = {.tv_sec = (time_t)(next_us / 1000000),
                                      .tv_nsec = (long)(next_us % 1000000) * 1000};
        pthread_mutex_unlock(&m->lock);
        /* whoever receives finds out that the link is broken */
        (void)host_send_frame(m->links[HOST_LANE_CONTROL], HOST_BEAT, 0, NULL, 0, next_us, NULL);
        pthread_mutex_lock(&m->lock);
        while (!m->ends && pthread_cond_timedwait(&m->changed, &m->lock, &next) == 0) {
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- joining -------------------------------------------------------------------------------- */

static void close_links(struct host_member *m)
{
    for (int i = 0; i < HOST_LANE_N; i++) {
        if (m->links[i]) m->links[i]->ops->close(m->links[i]);
        m->links[i] = NULL;
    }
}

static fathom_err join_once(struct host_member *m, fathom_diag *d)
{
    const uint64_t session = rng_entropy();
    for (int i = 0; i < HOST_LANE_N; i++) {
        TRY(tcp_link_dial(&m->links[i], m->host, m->c.port, clock_now_us() + HOST_DIAL_US,
                          m->stop_fd, d));
        TRY(host_greet(m->links[i], &m->c.self, session, (enum host_lane)i, &m->inner,
                       clock_now_us() + HOST_GREETING_US, d));
    }
    m->ends = false;
    m->has_beater = pthread_create(&m->beater, NULL, beat_main, m) == 0;
    if (m->has_beater) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "its thread cannot be started");
}

fathom_err host_member_join(struct host_member *m, fathom_diag *d)
{
    uint64_t told_us = 0;
    ASSERT(!m->has_beater && !m->links[HOST_LANE_CONTROL]);
    for (;;) {
        fathom_diag why = {{0}};
        const fathom_err err = join_once(m, &why);
        if (err == FATHOM_OK) {
            LOG_INFO("hosts", "host=%u of=%u has joined host 0 at %s:%u", m->c.self.node_rank,
                     m->c.self.n_node, m->host, m->c.port);
            m->until_us = UINT64_MAX;
            return FATHOM_OK;
        }
        close_links(m);
        if (is_stopped(m) || is_to_end(m)) FAIL(d, FATHOM_ECANCEL, "it is being stopped");
        if (err != FATHOM_EIO && err != FATHOM_EBUSY && clock_now_us() >= m->until_us) {
            FAIL(d, err, "host 0 at %s:%u: %s", m->host, m->c.port, why.text);
        }
        const uint64_t now_us = clock_now_us();
        if (told_us == 0 || now_us - told_us > TOLD_US) {
            LOG_WARN("hosts", "host 0 at %s:%u is waited for: %s", m->host, m->c.port, why.text);
            told_us = now_us;
        }
        struct pollfd p[2] = {{.fd = m->stop_fd, .events = POLLIN},
                              {.fd = m->c.end_fd, .events = POLLIN}};
        (void)poll(p, m->c.end_fd > 0 ? 2 : 1, HOST_AGAIN_US / 1000);
    }
}

/* ---- joined --------------------------------------------------------------------------------- */

static fathom_err receive(struct host_member *m, struct host_frame *f, void *body, fathom_diag *d)
{
    struct page_link *l = m->links[HOST_LANE_CONTROL];
    char text[HOST_TEXT_MAX + 1];
    for (;;) {
        TRY(host_receive_frame(l, f, m->c.work_max, clock_now_us() + HOST_LOST_US, d));
        if (is_to_end(m) && clock_now_us() - m->end_us > m->c.end_after_us)
            FAIL(d, FATHOM_ECANCEL, "host 0 goes on");
        switch (f->type) {
        case HOST_BEAT: break;
        case HOST_GO: return FATHOM_OK;
        case HOST_WORK:
            return l->ops->receive(l, body, f->n_body, clock_now_us() + HOST_TELL_US, d);
        case HOST_LEAVE:
            TRY(host_receive_text(l, f, text, clock_now_us() + HOST_LOST_US, d));
            FAIL(d, FATHOM_EPEER, "%s", text);
        default: FAIL(d, FATHOM_EFORMAT, "a frame of type %d, which is not expected", (int)f->type);
        }
    }
}

fathom_err host_member_receive(struct host_member *m, struct host_frame *f, void *body,
                               fathom_diag *d)
{
    fathom_diag why = {{0}};
    ASSERT(m->has_beater);
    const fathom_err err = receive(m, f, body, &why);
    if (!err) return FATHOM_OK;
    if (is_stopped(m) || is_to_end(m)) FAIL(d, FATHOM_ECANCEL, "it is being stopped");
    if (err == FATHOM_EPEER) FAIL(d, err, "%s", why.text);
    FAIL(d, FATHOM_EPEER, "host 0 is lost: %s", why.text);
}

struct page_link *host_member_data(struct host_member *m)
{
    ASSERT(m->links[HOST_LANE_DATA]);
    return m->links[HOST_LANE_DATA];
}

const struct inner_port *host_member_inner(const struct host_member *m)
{
    ASSERT(m->links[HOST_LANE_DATA]);
    return &m->inner;
}

void host_member_part(struct host_member *m, const char *why)
{
    const struct link_part text = {why, strnlen(why, HOST_TEXT_MAX)};
    if (m->has_beater) {
        m->until_us = clock_now_us() + FORGET_US;
        pthread_mutex_lock(&m->lock);
        m->ends = true;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->beater, NULL);
        m->has_beater = false;
        (void)host_send_frame(m->links[HOST_LANE_CONTROL], HOST_LEAVE, 0, &text, 1,
                              clock_now_us() + HOST_AGAIN_US, NULL);
    }
    close_links(m);
}

/* ---- life ----------------------------------------------------------------------------------- */

fathom_err host_member_create(struct host_member **out, const struct host_member_config *c,
                              fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->self.node_rank >= 1 && c->self.node_rank < c->self.n_node && c->work_max > 0);
    struct host_member *m = mem_calloc(1, sizeof *m);
    if (!m) FAIL(d, FATHOM_ENOMEM, "no memory for the link to host 0");
    pthread_condattr_t monotonic;
    m->c = *c;
    (void)snprintf(m->host, sizeof m->host, "%s", c->host);
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    m->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->stop_fd >= 0) {
        *out = m;
        return FATHOM_OK;
    }
    host_member_destroy(m);
    FAIL(d, FATHOM_EIO, "no descriptor for the link to host 0");
}

void host_member_stop(struct host_member *m)
{
    const uint64_t one = 1;
    (void)!write(m->stop_fd, &one, sizeof one);
}

void host_member_destroy(struct host_member *m)
{
    if (!m) return;
    host_member_part(m, "it has ended");
    if (m->stop_fd >= 0) (void)close(m->stop_fd);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

/* watch.c - one thread, one epoll, an entry for each connection
 *
 * An entry outlives its use. An event names its entry and the entry's use count, so an event that
 * comes late, after the entry was freed or taken again, is told apart and dropped.
 *
 *   FREE --watch_add--> ARMED --client left--> SPENT --watch_remove--> FREE
 *                       ARMED --watch_remove--> FREE
 */
#include "server/http/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"

struct entry {
    struct job *job; /* NULL: free */
    int fd;
    uint32_t use;       /* how often it has been taken */
    uint32_t next_free; /* of a free entry; WATCH_NONE: the last */
};

struct watch {
    struct watch_actions actions;
    int epoll_fd;
    int wake_fd;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    struct entry *entries;
    uint32_t n_entry;
    uint32_t first_free;
    bool ending;
};

static const uint64_t WAKE_KEY = UINT64_MAX;

static uint64_t key_of(uint32_t entry, uint32_t use)
{
    return (uint64_t)use << 32 | entry;
}

/* The job an event is about, held; NULL when the event comes late. */
static struct job *hold_job(struct watch *w, uint64_t key)
{
    struct job *job = NULL;
    uint32_t i = (uint32_t)key;
    (void)pthread_mutex_lock(&w->lock);
    if (i < w->n_entry && w->entries[i].use == (uint32_t)(key >> 32)) job = w->entries[i].job;
    if (job) w->actions.hold(job);
    (void)pthread_mutex_unlock(&w->lock);
    return job;
}

static bool is_ending(struct watch *w)
{
    (void)pthread_mutex_lock(&w->lock);
    bool ending = w->ending;
    (void)pthread_mutex_unlock(&w->lock);
    return ending;
}

static void *watch_main(void *arg)
{
    struct watch *w = arg;
    struct epoll_event events[64];
    os_name_thread("watch");
    while (!is_ending(w)) {
        int n = epoll_wait(w->epoll_fd, events, 64, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == WAKE_KEY) continue;
            struct job *job = hold_job(w, events[i].data.u64);
            if (job) w->actions.left(job);
        }
    }
    return NULL;
}

static fathom_err start(struct watch *w, fathom_diag *d)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = WAKE_KEY};
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll_fd < 0 || w->wake_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->wake_fd, &e) != 0) {
        FAIL(d, FATHOM_EIO, "no handle to watch connections with: %s", strerror(errno));
    }
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        FAIL(d, FATHOM_EIO, "the thread that watches connections cannot be started");
    }
    w->started = true;
    return FATHOM_OK;
}

fathom_err watch_create(struct watch **out, const struct watch_actions *actions, fathom_diag *d)
{
    struct watch *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return FATHOM_ENOMEM;
    w->actions = *actions;
    w->epoll_fd = w->wake_fd = -1;
    w->first_free = WATCH_NONE;
    (void)pthread_mutex_init(&w->lock, NULL);
    fathom_err err = start(w, d);
    if (err) {
        watch_destroy(w);
        return err;
    }
    *out = w;
    return FATHOM_OK;
}

void watch_destroy(struct watch *w)
{
    if (!w) return;
    if (w->started) {
        uint64_t one = 1;
        (void)pthread_mutex_lock(&w->lock);
        w->ending = true;
        (void)pthread_mutex_unlock(&w->lock);
        ssize_t n = write(w->wake_fd, &one, sizeof one);
        ASSERT(n == sizeof one || errno == EAGAIN);
        (void)pthread_join(w->thread, NULL);
    }
    if (w->epoll_fd >= 0) (void)close(w->epoll_fd);
    if (w->wake_fd >= 0) (void)close(w->wake_fd);
    (void)pthread_mutex_destroy(&w->lock);
    mem_free(w->entries);
    mem_free(w);
}

/* Twice as many entries; the new ones are free. */
static fathom_err grow(struct watch *w)
{
    uint32_t n = w->n_entry ? w->n_entry * 2 : 64;
    struct entry *entries = mem_resize(w->entries, n * sizeof *entries);
    if (!entries) return FATHOM_ENOMEM;
    w->entries = entries;
    for (uint32_t i = n; i-- > w->n_entry;) {
        entries[i] = (struct entry){.fd = -1, .next_free = w->first_free};
        w->first_free = i;
    }
    w->n_entry = n;
    return FATHOM_OK;
}

uint32_t watch_add(struct watch *w, int fd, struct job *job)
{
    uint32_t i = WATCH_NONE;
    (void)pthread_mutex_lock(&w->lock);
    if (w->first_free == WATCH_NONE && grow(w) != FATHOM_OK) goto out;
    i = w->first_free;
    struct entry *e = &w->entries[i];
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT,
                                .data.u64 = key_of(i, e->use + 1)};
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        LOG_WARN("server", "connection %d cannot be watched: %s", fd, strerror(errno));
        i = WATCH_NONE;
        goto out;
    }
    w->first_free = e->next_free;
    e->job = job;
    e->fd = fd;
    e->use++;
out:
    (void)pthread_mutex_unlock(&w->lock);
    return i;
}

void watch_remove(struct watch *w, uint32_t entry)
{
    if (entry == WATCH_NONE) return;
    (void)pthread_mutex_lock(&w->lock);
    struct entry *e = &w->entries[entry];
    ASSERT(entry < w->n_entry && e->job);
    (void)epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, e->fd, NULL);
    e->job = NULL;
    e->fd = -1;
    e->next_free = w->first_free;
    w->first_free = entry;
    (void)pthread_mutex_unlock(&w->lock);
}

/* tls_watch.c - looks at files every second */
#include "cli/tls_watch.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"

enum { LOOK_US = 1000000 };

/* Returns false while a file is missing. */
static bool look(const struct tls_watch *w, struct file_mark *marks)
{
    memset(marks, 0, TLS_WATCH_FILES * sizeof *marks);
    for (int i = 0; i < TLS_WATCH_FILES; i++) {
        struct stat st;
        if (!w->paths[i]) continue;
        if (stat(w->paths[i], &st) != 0) return false;
        marks[i] = (struct file_mark){.device = st.st_dev,
                                      .number = st.st_ino,
                                      .size = (unsigned long long)st.st_size,
                                      .changed = st.st_ctim};
    }
    return true;
}

static bool are_same(const struct file_mark *a, const struct file_mark *b)
{
    for (int i = 0; i < TLS_WATCH_FILES; i++) {
        if (a[i].device != b[i].device || a[i].number != b[i].number || a[i].size != b[i].size ||
            a[i].changed.tv_sec != b[i].changed.tv_sec ||
            a[i].changed.tv_nsec != b[i].changed.tv_nsec)
            return false;
    }
    return true;
}

/* Returns false when the watch ends. */
static bool pause_for_a_look(struct tls_watch *w)
{
    const uint64_t next_us = clock_now_us() + LOOK_US;
    const struct timespec next = {.tv_sec = (time_t)(next_us / 1000000),
                                  .tv_nsec = (long)(next_us % 1000000) * 1000};
    int late = 0;
    (void)pthread_mutex_lock(&w->lock);
    while (!w->is_ending && late == 0) late = pthread_cond_timedwait(&w->end, &w->lock, &next);
    bool goes_on = !w->is_ending;
    (void)pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static void *watch(void *arg)
{
    struct tls_watch *w = arg;
    struct file_mark now[TLS_WATCH_FILES];
    os_name_thread("certificates");
    while (pause_for_a_look(w)) {
        bool are_there = look(w, now);
        bool is_new = are_there && are_same(now, w->seen) && !are_same(now, w->told);
        memcpy(w->seen, now, sizeof now);
        if (!is_new) continue;
        memcpy(w->told, now, sizeof now);
        (void)kill(getpid(), SIGHUP);
    }
    return NULL;
}

fathom_err tls_watch_start(struct tls_watch *w, const struct settings *s, fathom_diag *d)
{
    if (!s->enable_ssl_refresh || !s->ssl_certfile) return FATHOM_OK;
    pthread_condattr_t monotonic;
    w->paths[0] = s->ssl_certfile;
    w->paths[1] = s->ssl_keyfile;
    w->paths[2] = s->ssl_ca_certs;
    (void)look(w, w->told);
    memcpy(w->seen, w->told, sizeof w->seen);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->end, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (pthread_create(&w->thread, NULL, watch, w) != 0)
        FAIL(d, FATHOM_EIO, "the thread that looks at certificates cannot be started");
    w->is_started = true;
    return FATHOM_OK;
}

void tls_watch_end(struct tls_watch *w)
{
    if (!w->is_started) return;
    (void)pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    (void)pthread_cond_signal(&w->end);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->end);
    (void)pthread_mutex_destroy(&w->lock);
    w->is_started = false;
}

/* access_log.c - formats a line and writes it at once */
#define _GNU_SOURCE /* dup3 */
#include "server/http/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

enum { TELL_US = 60000000 }; /* between two words about lost lines */

struct access_log {
    const char *path;
    int fd;                       /* the number stays, the file behind it may change */
    atomic_uint_fast64_t n_lost;  /* since a line was written */
    atomic_uint_fast64_t told_us; /* when that was last told; 0: nothing is lost */
};

static fathom_err open_file(int *fd, const char *path, fathom_diag *d)
{
    if (strcmp(path, "-") == 0) {
        *fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    } else {
        *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    if (*fd < 0) FAIL(d, FATHOM_EIO, "--access-log %s: %s", path, strerror(errno));
    return FATHOM_OK;
}

fathom_err access_log_open(struct access_log **out, const char *path, fathom_diag *d)
{
    int fd;
    *out = NULL;
    TRY(open_file(&fd, path, d));
    struct access_log *log = mem_calloc(1, sizeof *log);
    if (!log) {
        (void)close(fd);
        FAIL(d, FATHOM_ENOMEM, "out of memory for the access log");
    }
    log->path = path;
    log->fd = fd;
    *out = log;
    return FATHOM_OK;
}

void access_log_close(struct access_log *log)
{
    if (!log) return;
    (void)close(log->fd);
    mem_free(log);
}

fathom_err access_log_reopen(struct access_log *log, fathom_diag *d)
{
    int fd;
    TRY(open_file(&fd, log->path, d));
    int status = dup3(fd, log->fd, O_CLOEXEC); /* at once, for those who write meanwhile */
    int why = errno;
    (void)close(fd);
    if (status < 0) FAIL(d, FATHOM_EIO, "--access-log %s: %s", log->path, strerror(why));
    return FATHOM_OK;
}

static void add_text(struct buf *b, const char *name, const char *value)
{
    if (!value || !*value) return;
    (void)buf_printf(b, ",\"%s\":", name);
    (void)json_write_string(b, value, strlen(value));
}

static void add_count(struct buf *b, const char *name, uint64_t n)
{
    (void)buf_printf(b, ",\"%s\":%llu", name, (unsigned long long)n);
}

fathom_err access_log_format(struct buf *out, const struct access_entry *e, int64_t unix_ms)
{
    char time_text[32];
    struct tm tm;
    time_t seconds = (time_t)(unix_ms / 1000);
    gmtime_r(&seconds, &tm);
    (void)strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)buf_printf(out, "{\"time\":\"%s.%03dZ\"", time_text, (int)(unix_ms % 1000));
    add_text(out, "request_id", e->request_id);
    add_text(out, "id", e->id);
    add_text(out, "remote", e->remote);
    add_text(out, "method", e->method);
    add_text(out, "path", e->path);
    add_count(out, "status", (uint64_t)e->status);
    if (e->has_key) add_count(out, "key", e->key);
    if (e->has_tokens) {
        add_count(out, "prompt_tokens", e->n_prompt);
        add_count(out, "cached_tokens", e->n_cached);
        add_count(out, "output_tokens", e->n_output);
        if (e->first_ms) add_count(out, "first_ms", e->first_ms);
    }
    add_count(out, "ms", e->total_ms);
    return buf_add_str(out, "}\n");
}

static void note_lost(struct access_log *log, const char *why)
{
    uint64_t now_us = clock_now_us(), told_us = atomic_load(&log->told_us);
    uint64_t n = atomic_fetch_add(&log->n_lost, 1) + 1;
    if (told_us && now_us < told_us + TELL_US) return;
    if (!atomic_compare_exchange_strong(&log->told_us, &told_us, now_us))
        return; /* another tells */
    LOG_ERROR("server", "the access log %s cannot be written: %s; %llu lines are lost", log->path,
              why, (unsigned long long)n);
}

static void note_written(struct access_log *log)
{
    if (atomic_load(&log->told_us) == 0 || atomic_exchange(&log->told_us, 0) == 0) return;
    LOG_WARN("server", "the access log %s is written again; %llu lines were lost", log->path,
             (unsigned long long)atomic_exchange(&log->n_lost, 0));
}

bool access_log_write(struct access_log *log, const struct access_entry *e)
{
    struct timespec now;
    struct buf line = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    fathom_err err = access_log_format(&line, e, unix_ms);
    ssize_t n = err ? -1 : write(log->fd, buf_str(&line), line.len);
    bool ok = n >= 0 && (size_t)n == line.len;
    if (ok) {
        note_written(log);
    } else {
        note_lost(log, err     ? "out of memory"
                       : n < 0 ? strerror(errno)
                               : "no room for a whole line");
    }
    buf_free(&line);
    return ok;
}

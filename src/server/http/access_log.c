/* access_log.c - formats a line and writes it at once */
#include "server/http/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/json.h"

fathom_err access_log_open(int *fd, const char *path, fathom_diag *d)
{
    if (strcmp(path, "-") == 0) {
        *fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    } else {
        *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    if (*fd < 0) FAIL(d, FATHOM_EIO, "--access-log %s: %s", path, strerror(errno));
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

void access_log_write(int fd, const struct access_entry *e)
{
    struct timespec now;
    struct buf line = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (access_log_format(&line, e, unix_ms) == FATHOM_OK) {
        ssize_t n = write(fd, buf_str(&line), line.len);
        (void)n;
    }
    buf_free(&line);
}

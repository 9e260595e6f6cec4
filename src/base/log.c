/* log.c - one line, one event, on standard error */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { LINE_BYTES = 2048 };

static _Atomic int current_level = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

void log_write(enum log_level level, const char *module, const char *fmt, ...)
{
    if (level > log_get_level()) return;
    char line[LINE_BYTES];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %c %s: ", tm.tm_hour, tm.tm_min,
                     tm.tm_sec, now.tv_nsec / 1000000, "EWID"[level], module);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2) len = sizeof line - 2;
    line[len] = '\n';
    (void)fwrite(line, 1, len + 1, stderr);
}

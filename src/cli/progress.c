/* progress.c - one line on standard error, written over */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size_text.h"

enum { PAUSE_US = 100000, PATIENCE_US = 300000 };

void progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){
        .what = what, .is_terminal = isatty(STDERR_FILENO) == 1, .start_us = clock_now_us()};
}

static int left_text(char *out, size_t bytes, double left_s)
{
    unsigned long s = (unsigned long)(left_s + 0.5);
    if (s >= 3600) return snprintf(out, bytes, ", %lu h %lu min left", s / 3600, s % 3600 / 60);
    if (s >= 60) return snprintf(out, bytes, ", %lu min %lu s left", s / 60, s % 60);
    return snprintf(out, bytes, ", %lu s left", s);
}

const char *progress_text(char out[PROGRESS_TEXT_BYTES], const char *what, uint64_t done,
                          uint64_t total, uint64_t elapsed_us)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES], left[48] = "";
    double rate = elapsed_us ? (double)done * 1e6 / (double)elapsed_us : 0;
    if (done > total) done = total;
    if (rate > 0) (void)left_text(left, sizeof left, (double)(total - done) / rate);
    (void)snprintf(out, PROGRESS_TEXT_BYTES, "%s  %s of %s, %s/s%s", what, size_text(a, done),
                   size_text(b, total), size_text(c, (uint64_t)rate), left);
    return out;
}

const char *progress_count_text(char out[PROGRESS_TEXT_BYTES], const struct progress *p,
                                uint64_t done, uint64_t total, uint64_t elapsed_us)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES], left[48] = "";
    double rate = elapsed_us ? (double)done * 1e6 / (double)elapsed_us : 0;
    if (done > total) done = total;
    if (rate > 0) (void)left_text(left, sizeof left, (double)(total - done) / rate);
    (void)snprintf(out, PROGRESS_TEXT_BYTES, "%s  %s of %s %s, %s/s%s", p->what,
                   count_text(a, done), count_text(b, total), p->unit,
                   count_text(c, (uint64_t)rate), left);
    return out;
}

void progress_tell(struct progress *p, uint64_t done, uint64_t total)
{
    char text[PROGRESS_TEXT_BYTES];
    uint64_t now_us = clock_now_us();
    if (!p->is_terminal || now_us - p->start_us < PATIENCE_US) return;
    if (p->told_us && now_us - p->told_us < PAUSE_US) return;
    p->told_us = now_us;
    fprintf(stderr, "\r\x1b[K%s",
            p->unit ? progress_count_text(text, p, done, total, now_us - p->start_us)
                    : progress_text(text, p->what, done, total, now_us - p->start_us));
    (void)fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->told_us) fprintf(stderr, "\r\x1b[K");
    p->told_us = 0;
}

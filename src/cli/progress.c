/* progress.c - one line on standard error, written over */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size_text.h"

enum { PAUSE_US = 100000, PATIENCE_US = 300000 };

void progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){
        .what = what, .is_terminal = isatty(STDERR_FILENO) == 1, .start_us = clock_now_us()};
}

const char *progress_left_text(char out[PROGRESS_LEFT_BYTES], double left_s)
{
    unsigned long s = (unsigned long)(left_s + 0.5);
    const size_t bytes = PROGRESS_LEFT_BYTES;
    if (s >= 3600) {
        (void)snprintf(out, bytes, ", %lu h %lu min left", s / 3600, s % 3600 / 60);
    } else if (s >= 60) {
        (void)snprintf(out, bytes, ", %lu min %lu s left", s / 60, s % 60);
    } else {
        (void)snprintf(out, bytes, ", %lu s left", s);
    }
    return out;
}

const char *progress_text(char out[PROGRESS_TEXT_BYTES], const char *what, uint64_t done,
                          uint64_t total, uint64_t elapsed_us)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES], left[PROGRESS_LEFT_BYTES] = "";
    double rate = elapsed_us ? (double)done * 1e6 / (double)elapsed_us : 0;
    if (done > total) done = total;
    if (rate > 0) (void)progress_left_text(left, (double)(total - done) / rate);
    (void)snprintf(out, PROGRESS_TEXT_BYTES, "%s  %s of %s, %s/s%s", what, size_text(a, done),
                   size_text(b, total), size_text(c, (uint64_t)rate), left);
    return out;
}

const char *progress_count_text(char out[PROGRESS_TEXT_BYTES], const struct progress *p,
                                uint64_t done, uint64_t total, uint64_t elapsed_us)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES], left[PROGRESS_LEFT_BYTES] = "";
    double rate = elapsed_us ? (double)done * 1e6 / (double)elapsed_us : 0;
    if (done > total) done = total;
    if (rate > 0) (void)progress_left_text(left, (double)(total - done) / rate);
    (void)snprintf(out, PROGRESS_TEXT_BYTES, "%s  %s of %s %s, %s/s%s", p->what,
                   count_text(a, done), count_text(b, total), p->unit,
                   count_text(c, (uint64_t)rate), left);
    return out;
}

bool progress_is_due(struct progress *p)
{
    uint64_t now_us = clock_now_us();
    if (!p->is_terminal || now_us - p->start_us < PATIENCE_US) return false;
    if (p->told_us && now_us - p->told_us < PAUSE_US) return false;
    p->told_us = now_us;
    return true;
}

void progress_say(const char *text)
{
    struct winsize w = {0};
    int most = (int)strlen(text);
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 && most >= w.ws_col) {
        most = w.ws_col - 1;
    }
    fprintf(stderr, "\r\x1b[K%.*s", most, text);
    (void)fflush(stderr);
}

void progress_tell(struct progress *p, uint64_t done, uint64_t total)
{
    char text[PROGRESS_TEXT_BYTES];
    if (!progress_is_due(p)) return;
    const uint64_t elapsed_us = p->told_us - p->start_us;
    progress_say(p->unit ? progress_count_text(text, p, done, total, elapsed_us)
                         : progress_text(text, p->what, done, total, elapsed_us));
}

void progress_end(struct progress *p)
{
    if (p->told_us) fprintf(stderr, "\r\x1b[K");
    p->told_us = 0;
}

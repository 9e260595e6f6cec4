/* print.c - rows on standard output, and the end of standard input */
#include "cli/print.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"

void print_row(const char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("%-16s", name);
    (void)vprintf(fmt, ap);
    (void)putchar('\n');
    (void)fflush(stdout);
    va_end(ap);
}

bool print_url(char *out, size_t n, const char *scheme, const char *host, uint16_t port)
{
    bool is_any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    bool is_v6 = !is_any && strchr(host, ':');
    (void)snprintf(out, n, "%s://%s%s%s:%u", scheme, is_v6 ? "[" : "", is_any ? "127.0.0.1" : host,
                   is_v6 ? "]" : "", port);
    return is_any;
}

fathom_err input_check(fathom_diag *d)
{
    if (!ferror(stdin)) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "standard input cannot be read: %s", strerror(errno));
}

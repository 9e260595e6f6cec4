/* print.c - rows on standard output */
#include "cli/print.h"

#include <stdarg.h>
#include <stdio.h>

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

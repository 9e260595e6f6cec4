/* print.h - rows on standard output */
#ifndef FATHOM_CLI_PRINT_H
#define FATHOM_CLI_PRINT_H

/* print_row - "name        text" on standard output, names in one column; flushed */
void print_row(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

/* print.h - rows on standard output, and the end of standard input */
#ifndef FATHOM_CLI_PRINT_H
#define FATHOM_CLI_PRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

/* print_row - "name        text" on standard output, names in one column; flushed */
void print_row(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* print_url - of a port for who asks on this machine: http://[::1]:8000
 *
 *   out  [n]
 * Returns whether the port is at every address of it. */
bool print_url(char *out, size_t n, const char *scheme, const char *host, uint16_t port);

/* input_check - called behind the last read of standard input: it has come to its end
 * Errors  EIO: it could not be read. */
fathom_err input_check(fathom_diag *d);

#endif

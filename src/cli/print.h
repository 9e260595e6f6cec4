/* print.h - numbers and rows as people read them */
#ifndef FATHOM_CLI_PRINT_H
#define FATHOM_CLI_PRINT_H

#include <stdint.h>

enum { SIZE_TEXT_BYTES = 32 };

/* size_text - "33 MB", "671.4 GB": decimal units, into a caller's buffer */
const char *size_text(char out[SIZE_TEXT_BYTES], uint64_t bytes);

/* count_text - the digits of n in groups of three, "163 840" as "163,840" */
const char *count_text(char out[SIZE_TEXT_BYTES], uint64_t n);

/* print_row - "name        text" on standard output, names in one column; flushed */
void print_row(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

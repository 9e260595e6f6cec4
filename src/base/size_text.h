/* size_text.h - numbers of bytes and of other things as people read them */
#ifndef FATHOM_BASE_SIZE_TEXT_H
#define FATHOM_BASE_SIZE_TEXT_H

#include <stdint.h>

enum { SIZE_TEXT_BYTES = 32 };

/* size_text - "33.0 MB", "671.4 GB": decimal units, into a caller's buffer */
const char *size_text(char out[SIZE_TEXT_BYTES], uint64_t bytes);

/* count_text - the digits of n in groups of three, "163 840" as "163,840" */
const char *count_text(char out[SIZE_TEXT_BYTES], uint64_t n);

#endif

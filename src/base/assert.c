#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "fathom: fault in %s:%d: %s does not hold\n", file, line, cond);
    abort();
}

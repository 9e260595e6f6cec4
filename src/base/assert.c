#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/crash.h"

void assert_failed(const char *cond, const char *file, int line)
{
    char cause[512];
    (void)snprintf(cause, sizeof cause, "%s:%d: %s does not hold", file, line, cond);
    fprintf(stderr, "fathom: fault in %s\n", cause);
    crash_set_cause(cause);
    abort();
}

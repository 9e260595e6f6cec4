/* fuzz_launcher.c - any lines as the variables of a launcher, and any text as a list of hosts
 *
 * The first host of a list has no bracket and no comma. What is told of hosts is told of more than
 * one, with a rank.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "cli/launcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LINES_MAX = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char host[LAUNCHER_HOST_BYTES];
    char *lines[LINES_MAX + 1] = {NULL};
    struct launcher l;
    size_t n = 0;
    char *text = mem_alloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (launcher_first_host(host, text)) {
        ASSERT(host[0] && !strpbrk(host, "[], "));
        ASSERT(strlen(host) < sizeof host);
    }
    for (char *line = text, *next; line && n < LINES_MAX; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        lines[n++] = line;
    }
    launcher_read(&l, lines);
    const char *n_host = l.words[LAUNCHER_NNODES].value;
    ASSERT(!n_host || (l.name && l.words[LAUNCHER_RANK].value && strtoul(n_host, NULL, 10) > 1));
    ASSERT(memchr(l.why_not, '\0', sizeof l.why_not));
    for (enum launcher_flag f = 0; f < LAUNCHER_FLAGS; f++) {
        ASSERT((l.words[f].value != NULL) == (l.words[f].variable != NULL));
    }
    mem_free(text);
    return 0;
}

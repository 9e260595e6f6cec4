/* compilation.h - the values of --compilation-config and -O: what is recorded at start */
#ifndef FATHOM_CLI_COMPILATION_H
#define FATHOM_CLI_COMPILATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

enum { COMPILATION_SIZES_MAX = 128, COMPILATION_SIZE_LIMIT = 8192 };

struct compilation {
    bool no_graphs;                        /* cudagraph_mode NONE, or -O0 */
    uint32_t sizes[COMPILATION_SIZES_MAX]; /* cudagraph_capture_sizes, in the order given */
    uint32_t n_size;                       /* 0: not given */
    uint32_t n_warm_up;                    /* cudagraph_num_of_warmups; 0: not given */
};

/* compilation_parse - {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8]}
 *
 *   text   JSON, or NULL: not given
 *   level  of -O; -1: not given. 0 records nothing
 *   notes  a line for each key that has no effect, and for a mode that means the same as another
 * Errors  EINVAL: not an object; a known key with a value that it cannot have: names both; ENOMEM.
 */
fathom_err compilation_parse(const char *text, int64_t level, struct compilation *out,
                             struct buf *notes, fathom_diag *d);

#endif

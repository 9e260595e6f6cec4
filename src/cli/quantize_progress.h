/* quantize_progress.h - how far fathom quantize is, for people and for programs */
#ifndef FATHOM_CLI_QUANTIZE_PROGRESS_H
#define FATHOM_CLI_QUANTIZE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cli/progress.h"
#include "quantize/convert.h"

struct quantize_progress {
    struct progress line;
    bool is_json; /* objects on lines of standard error, one a second and one at the end */
    bool has_begun;
};

/* quantize_progress_tell - convert_order.on_progress; arg is a struct quantize_progress, zeroed but
 * for is_json. The time begins with its first call. quantize_progress_end - the line is gone. */
void quantize_progress_tell(void *arg, const struct convert_progress *p);
void quantize_progress_end(struct quantize_progress *p);

enum { QUANTIZE_PROGRESS_BYTES = 384 };

/* quantize_progress_text - "layer 17/61, 5,211 of 44,544 matrices, 2.1 GB/s, 6 min 3 s left, worst
 * error 0.121 (layers.17.mlp.experts.88.down_proj)" */
const char *quantize_progress_text(char out[QUANTIZE_PROGRESS_BYTES],
                                   const struct convert_progress *p, uint64_t elapsed_us);

/* quantize_progress_json - the same as one object and a newline; ENOMEM */
fathom_err quantize_progress_json(struct buf *out, const struct convert_progress *p,
                                  uint64_t elapsed_us);

#endif

/* throughput.h - many requests given to an engine at once: how many it finishes a second
 *
 * All prompts are submitted as fast as the engine's queue takes them; the clock runs from the first
 * to the last finish. Outputs run past EOS, so that every request is as long as asked for.
 */
#ifndef FATHOM_BENCH_THROUGHPUT_H
#define FATHOM_BENCH_THROUGHPUT_H

#include "base/buf.h"
#include "bench/dataset_items.h"
#include "fathom/fathom.h"

struct throughput_result {
    size_t n_request;
    uint64_t n_input;  /* tokens */
    uint64_t n_output; /* tokens */
    uint64_t n_cached; /* prompt tokens found in the prefix cache */
    double seconds;
};

/* throughput_run - n items; items that wait for room in the queue are submitted as it empties
 *
 *   bos_id  put in front of every prompt; -1: nothing is
 * Errors  of fathom_submit; EDEVICE when the engine fails; ENOMEM. */
fathom_err throughput_run(struct throughput_result *out, fathom_engine *e,
                          const struct dataset_item *items, size_t n, const struct tokenizer *t,
                          int32_t bos_id, fathom_diag *d);

/* throughput_write_json - one object on one line; the members that `vllm bench throughput` writes,
 * then ours */
fathom_err throughput_write_json(struct buf *b, const struct throughput_result *r,
                                 const fathom_info *info);

#endif

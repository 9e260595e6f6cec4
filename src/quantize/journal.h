/* journal.h - what of a conversion is done: quantize_state.json in the target's folder
 *
 * It is there from the first byte that is written until the last file has its name, and is replaced
 * as a whole after each shard. It names the order (options, the source's shards by size and header)
 * and the shards that are finished, each with its digest and, for the report, its sums and what
 * became of each matrix.
 */
#ifndef FATHOM_QUANTIZE_JOURNAL_H
#define FATHOM_QUANTIZE_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"
#include "fathom/err.h"
#include "quantize/codes.h"
#include "quantize/plan.h"

struct checkpoint;
struct thread_pool;

#define JOURNAL_FILE "quantize_state.json"
#define JOURNAL_REPORT "quantize_report.json"

enum { JOURNAL_TARGETS = 6, JOURNAL_NAME_BYTES = 160 };

/* Sums over the matrices of one target. */
struct journal_sums {
    uint64_t n_matrix;
    uint64_t n_tuned; /* of those, by what calibration said of their inputs; */
    uint64_t n_few;   /* of those, experts that too few tokens went to */
    uint64_t source_bytes, out_bytes;
    struct codes_error error;
    double worst; /* relative error of the worst matrix */
    char worst_name[JOURNAL_NAME_BYTES];
};

struct journal {
    const char *dir;
    int lock; /* of dir: one process converts into it */
    json_t *root;
    json_t *matrices; /* of the shard under way, by name */
    bool is_finished; /* the folder holds the whole result of this order */
};

/* journal_open - begin, or go on with what is there
 *
 *   order    new reference, taken over: what was asked for, as journal_order makes it
 *   resumes  a conversion under way in dir is gone on with
 *   is_dry   say what stands against it, and make nothing: dir is not made either
 * Errors  EINVAL: dir holds something else, a conversion under way without `resumes`, or one of
 *         another order; EBUSY: another process has it. Names what to do. EIO, ELIMIT, EFORMAT,
 *         ENOMEM. */
fathom_err journal_open(struct journal *j, const char *dir, json_t *order, bool resumes,
                        bool is_dry, fathom_diag *d);
void journal_close(struct journal *j); /* accepts a zeroed one */

/* journal_order - scheme, targets and the source's identity; NULL: out of memory */
json_t *journal_order(const struct plan *plan, unsigned targets, const struct checkpoint *c,
                      const char *calibration);

/* journal_has - whether a shard is finished and its file still has the digest; its sums are added.
 * A file of another digest is an error: EFORMAT. */
fathom_err journal_has(const struct journal *j, const char *shard, struct thread_pool *pool,
                       struct journal_sums sums[JOURNAL_TARGETS], bool *has, fathom_diag *d);

/* journal_note - a matrix of the shard under way: relative error, largest scale, share of n_code
 * codes that are clipped. ENOMEM. */
fathom_err journal_note(struct journal *j, const char *name, const struct codes_error *error,
                        uint64_t n_code, fathom_diag *d);

/* journal_finish - note a shard whose file is there under its name, and its matrices */
fathom_err journal_finish(struct journal *j, const char *shard, struct thread_pool *pool,
                          const struct journal_sums sums[JOURNAL_TARGETS], fathom_diag *d);

/* journal_end - write the report, remove the journal */
fathom_err journal_end(struct journal *j, const struct journal_sums sums[JOURNAL_TARGETS],
                       uint64_t source_bytes, uint64_t out_bytes, fathom_diag *d);

/* journal_sums_add - add sums of more matrices */
void journal_sums_add(struct journal_sums *to, const struct journal_sums *more);

#endif

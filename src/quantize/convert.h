/* convert.h - a checkpoint to a quantized one, shard by shard
 *
 * Files are mapped, read once and written once. What is held besides is one matrix's new tensors,
 * a row of it for each thread, and the headers. A conversion that ends before it is done, however
 * it ends, is gone on with: shards that are there are verified and kept, and the files are the same
 * bits as without the break, for any number of threads.
 */
#ifndef FATHOM_QUANTIZE_CONVERT_H
#define FATHOM_QUANTIZE_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "fathom/err.h"
#include "model/config.h"
#include "quantize/journal.h"
#include "quantize/plan.h"

struct checkpoint;
struct convert_calibration;

/* Whoever scores the result keeps the figures under this name in its folder. */
#define CONVERT_EVALUATION "quantize_evaluation.json"

/* How far a conversion is. */
struct convert_progress {
    uint64_t done_bytes, total_bytes; /* of the source */
    size_t n_done, n_quantized;       /* matrices that are quantized */
    uint32_t layer, n_layer; /* of the matrix done last, from 1 on; draft layers included */
    double worst;            /* largest relative error of a matrix so far */
    const char *worst_name;  /* "" before the first */
};

struct convert_order {
    struct checkpoint *source;
    const struct model_config *config;
    const char *out; /* a folder */
    struct quant_scheme scheme;
    unsigned targets;  /* bits of enum quant_target */
    unsigned n_thread; /* 0: all processors */
    bool resumes;
    bool is_dry;                                   /* check and lay out, write nothing */
    const struct convert_calibration *calibration; /* methods that calibrate; else NULL */
    /* called as bytes and matrices are done; NULL: not */
    void (*on_progress)(void *arg, const struct convert_progress *p);
    void *progress_arg;
};

struct convert_result {
    uint64_t source_bytes, out_bytes;
    uint64_t held_bytes; /* memory besides the mapped files */
    size_t n_quantized, n_matrix;
    bool was_finished; /* no shard was left to do */
    size_t n_anew;     /* of a finished one, files that were gone; written anew but in a dry run */
    struct journal_sums sums[JOURNAL_TARGETS]; /* by bit of enum quant_target */
};

/* convert_run - the whole; OUT is a checkpoint as soon as it has a config.json
 *
 * Errors  those of plan_make and journal_open; EFORMAT: a weight is not finite; ELIMIT: the disk is
 *         full, or would be. What is finished stays, and --resume goes on. */
fathom_err convert_run(struct convert_result *out, const struct convert_order *order,
                       fathom_diag *d);

#endif

/* small_model.h - a checkpoint of V3.2's architecture with random weights, in memory
 *
 * Two layers, one of them with experts, an indexer that selects 16 keys, an MTP layer; 64 ids. A
 * step of it costs microseconds, so that thousands of requests can be run in a test. What it says
 * means nothing, and each bit of it depends on every row of the cache that is read.
 */
#ifndef FATHOM_TESTS_SUPPORT_SMALL_MODEL_H
#define FATHOM_TESTS_SUPPORT_SMALL_MODEL_H

#include <stdint.h>

#include "base/buf.h"
#include "fathom/fathom.h"

enum {
    SMALL_MODEL_VOCAB = 64,
    SMALL_MODEL_LAYERS = 2, /* and one MTP layer */
};

struct small_model {
    struct buf weights;
    char config[2048]; /* config.json */
    fathom_bundle_file files[2];
    fathom_bundle bundle; /* for fathom_options */
};

/* small_model_make - equal seeds give equal weights. A failure fails the running test. */
void small_model_make(struct small_model *m, uint64_t seed);

/* small_model_make_wide - its widths are whole scale blocks, so that quantize_fp8 and fp8
 * activations take it */
void small_model_make_wide(struct small_model *m, uint64_t seed);
void small_model_free(struct small_model *m);

/* small_model_page_bytes - of a page of the cache */
uint64_t small_model_page_bytes(fathom_kv kv, bool with_mtp);

#endif

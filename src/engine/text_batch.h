/* text_batch.h - batches that walk over one text at a time, and the cache that it needs */
#ifndef FATHOM_ENGINE_TEXT_BATCH_H
#define FATHOM_ENGINE_TEXT_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "engine/settings.h"
#include "fathom/err.h"

struct model_config;

/* A zeroed one is closed. */
struct text_batch {
    struct backend *b; /* borrowed */
    struct kv_cache kv;
    uint32_t max_token;
    uint32_t max_context;
    uint32_t n_past; /* tokens of the text so far; 0 begins another one */
    int32_t *host;
    int32_t *device;
    size_t n_int;
};

/* text_batch_open - cache and arrays for texts of up to limits.max_context tokens, limits.max_token
 * of them a step
 * Errors ENOMEM, EDEVICE. text_batch_close accepts a closed one. */
fathom_err text_batch_open(struct text_batch *t, struct backend *b, const struct engine_settings *s,
                           const struct model_config *config, fathom_diag *d);
void text_batch_close(struct text_batch *t);

/* text_batch_next - n more tokens of the text
 *
 *   ids         [n]; NULL: nobody reads them
 *   has_logits  every row's logits are wanted
 * Edge    ids may change when the step has been waited for. Errors EDEVICE. */
fathom_err text_batch_next(struct text_batch *t, const int32_t *ids, uint32_t n, bool has_logits,
                           struct batch *out);

#endif

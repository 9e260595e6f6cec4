/* quantize.h - wide linear weights to FP8 blocks, one layer at a time
 *
 * A weight is quantized when its rule is STORED_LINEAR and the checkpoint stores it as BF16, F16 or
 * F32. It becomes F8_E4M3 with a scale for each 128 x 128 block of a rank's part. A weight that is
 * FP8 stays as it is. The draft layer's eh_proj is kept wide, as FP8 checkpoints keep it. The
 * copies of a layer live until the next one is made, so a checkpoint is never held twice. */
#ifndef FATHOM_MODEL_QUANTIZE_H
#define FATHOM_MODEL_QUANTIZE_H

#include <stddef.h>
#include <stdint.h>

#include "model/weights.h"

struct thread_pool;

struct quantizer {
    struct thread_pool *pool;
    struct ffn_tensors *experts; /* [n_expert] views of the layer under way */
    uint32_t n_expert;
    uint8_t *memory; /* its codes and scales */
    size_t n_bytes;
    size_t n_used;
};

/* quantizer_init - n_thread as in struct model_limits; ENOMEM
 * quantizer_fini - accepts a zeroed struct */
fathom_err quantizer_init(struct quantizer *q, uint32_t n_expert, uint32_t n_thread,
                          fathom_diag *d);
void quantizer_fini(struct quantizer *q);

/* quantize_layer - *out is *in with its wide linear views quantized; valid until the next call
 * Numerics scale = largest magnitude / 448, 1 for a block of zeros; codes to nearest even.
 * Errors   ENOMEM. */
fathom_err quantize_layer(struct quantizer *q, const struct layer_views *in,
                          struct layer_views *out, fathom_diag *d);

#endif

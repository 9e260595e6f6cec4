/* quantize.h - wide linear weights to FP8 blocks, one layer at a time
 *
 * A weight is quantized when its rule is STORED_LINEAR and the checkpoint stores it as BF16, F16 or
 * F32. It becomes F8_E4M3 with a scale for each 128 x 128 block of a rank's part. A weight that is
 * FP8 stays as it is. The draft layer's eh_proj is kept wide, as FP8 checkpoints keep it. The
 * copies of a layer live until the next one is made, so a checkpoint is never held twice. */
#ifndef FATHOM_MODEL_QUANTIZE_H
#define FATHOM_MODEL_QUANTIZE_H

#include <stdbool.h>
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

/* quantizer_init - n_thread as in struct model_limits; ENOMEM, which leaves nothing held
 * quantizer_fini - accepts a zeroed struct */
fathom_err quantizer_init(struct quantizer *q, uint32_t n_expert, uint32_t n_thread,
                          fathom_diag *d);
void quantizer_fini(struct quantizer *q);

/* quantize_layer - *out is *in with its wide linear views quantized; valid until the next call
 * Numerics scale = largest magnitude / 448, 1 for a block of zeros; codes to nearest even.
 * Errors   ENOMEM. */
fathom_err quantize_layer(struct quantizer *q, const struct layer_views *in,
                          struct layer_views *out, fathom_diag *d);

/* How the output head is kept. AUTO: INT8 where that is wide now and costs no more than
 * HEAD_KL_BOUND, else STORED. */
enum head_form { HEAD_STORED, HEAD_AUTO, HEAD_INT8, HEAD_FP8 };

#define HEAD_KL_BOUND 1e-3 /* nats a token */

/* quantize_head - *v, the head, in int8 with a scale for each row, or in FP8 blocks
 *
 *   form  becomes what it is: HEAD_STORED where nothing was to be done
 *   norm  the weights of the norm before the head, [1][n_col]
 *   kl    written: quantize_head_kl of what was made, 0 but for int8
 * The copy lives in q until its next use.
 * Numerics a row's scale = its largest magnitude / 127, 1 for zeros; codes to nearest even. FP8 as
 *          quantize_layer.
 * Errors   ENOMEM. */
fathom_err quantize_head(struct quantizer *q, enum head_form *form, const struct tensor_view *norm,
                         struct tensor_view *v, double *kl, fathom_diag *d);

/* quantize_head_kl - what int8 rows of these scales cost: the expected Kullback-Leibler divergence
 * of a token's distribution, in nats, were all rows rounded as coarsely as the coarsest
 *
 * A rounding error has the variance scale^2 / 12, an input of the head the square sum(norm^2), so
 * a logit's error has their product; half of it is the divergence, to second order. */
double quantize_head_kl(const float *scale, uint32_t n_row, const float *norm, uint32_t n_col);

/* ---- what quantize_head.c takes of quantize.c ---- */

/* Whether a matrix lies in memory as BF16, F16 or F32. */
bool quantize_is_wide(const struct tensor_view *v);

size_t quantize_aligned(size_t n);
size_t quantize_bytes(const struct tensor_view *v); /* of its FP8 codes and scales */

/* quantize_reserve - room for n_bytes at q->memory, none of it used; ENOMEM
 * quantize_to_blocks - *v as FP8 blocks, in quantize_bytes of that room */
fathom_err quantize_reserve(struct quantizer *q, size_t n_bytes, fathom_diag *d);
void quantize_to_blocks(struct quantizer *q, struct tensor_view *v);

#endif

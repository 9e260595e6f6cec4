/* gen.h - generated inputs of operator tests: values, weights of every type, batches, caches
 *
 * Everything comes from one seed and belongs to a struct gen, which frees it all at once. The
 * encoders of cache rows are written here from kv/layout.h alone, so that they check a backend's.
 */
#ifndef FATHOM_TESTS_OP_GEN_H
#define FATHOM_TESTS_OP_GEN_H

#include <stdint.h>

#include "backend/backend.h"

struct gen;

struct gen *gen_create(uint64_t seed);

/* gen_create_for - the same; with ACT_FP8 the scale blocks of its matrices begin where they do, so
 * that their inputs are quantized */
struct gen *gen_create_for(uint64_t seed, enum act_type act);
void gen_destroy(struct gen *g);
void *gen_alloc(struct gen *g, size_t bytes); /* zeroed, 64-byte aligned, owned by g */
uint32_t gen_below(struct gen *g, uint32_t n);
float gen_normal(struct gen *g);

/* gen_floats - n normal values */
float *gen_floats(struct gen *g, size_t n, float std);

/* gen_config - a small model; wide: widths that are no multiple of 128, an odd number of heads,
 * one group of experts. Sizes of steps: 160 tokens, 40 requests, 512 positions. */
void gen_config(struct backend_config *c, enum act_type act, enum kv_type kv, bool wide);

/* ---- weights: values are normal with standard deviation 1 / sqrt(n_col) ---- */

/* gen_matrix - F8_E4M3 has power-of-two block scales when pow2, else any. The matrix is cut out of
 * a larger one, so that rows have a stride and element (0, 0) lies inside its block. */
struct tensor_view gen_matrix(struct gen *g, enum dtype t, uint32_t n_row, uint32_t n_col,
                              bool pow2);

/* gen_code_as - matrices of F8_E4M3 are of this form from now on: U4, E2M1, I8, or E4M3 with a
 * scale a row or one for all. A row of U4 and E2M1 begins with a group. */
void gen_code_as(struct gen *g, const struct weight_form *form);

struct tensor_view gen_vector(struct gen *g, enum dtype t, uint32_t n, float mean, float std);
void gen_mla(struct gen *g, const struct backend_config *c, enum dtype t, struct mla_tensors *out);
void gen_ffn(struct gen *g, enum dtype t, uint32_t hidden, uint32_t inner, struct ffn_tensors *out);
void gen_moe(struct gen *g, const struct backend_config *c, enum dtype t, struct moe_tensors *out);

/* gen_product - sum over c of element (row, c) times x[c], in double; x rounded to act first, as an
 * input of this matrix with ACT_FP8. gen_round: one value of an input that is not quantized. */
double gen_product(const struct tensor_view *v, uint32_t row, const double *x, enum act_type act);
double gen_round(enum act_type act, double x);

/* gen_wide_act - what act means for inputs that are never quantized */
static inline enum act_type gen_wide_act(enum act_type act)
{
    return act == ACT_FP8 ? ACT_BF16 : act;
}

/* gen_element - element (r, c) of a view, decoded here and not by a backend */
double gen_element(const struct tensor_view *v, uint32_t r, uint32_t c);

/* ---- batches: arrays in host memory ---- */

struct gen_request {
    uint32_t n_past; /* tokens already in the cache */
    uint32_t n_new;  /* tokens of this step */
};

/* gen_batch - a batch of these requests
 *
 * Pages are a random permutation of 0 .. *n_page - 1, with some left unused. Entries of page_table
 * beyond a request's last page are -1. Ids and next_ids are below n_vocab. The last token of each
 * request, and every 7th, wants logits (at most c->max_logit_row). All rows are answer rows. */
void gen_batch(struct gen *g, const struct backend_config *c, const struct gen_request *r,
               uint32_t n_request, struct batch *out, uint32_t *n_page);

/* gen_set_answers - the first n_request requests have answer rows, all others prompt rows */
void gen_set_answers(struct batch *host, uint32_t n_request);

/* gen_slice - n tokens of a batch from token t0 on, as a batch of their own: the requests that have
 * none of them are left out. Rows stay of the kind that they are. No logit rows. */
void gen_slice(struct gen *g, const struct batch *host, uint32_t t0, uint32_t n, struct batch *out);

/* ---- caches: images of page records in host memory ---- */

/* gen_cache - n_page records of NaN (every byte 0xff), with generated rows of every layer at the
 * positions that the batch's requests have cached, and at its new positions when with_new */
uint8_t *gen_cache(struct gen *g, const struct kv_layout *l, uint32_t n_page,
                   const struct batch *host, bool with_new);

/* gen_latent, gen_index_key - decode the row at a slot, f32 [576] and [128] */
void gen_latent(const struct kv_layout *l, const uint8_t *image, uint32_t layer, int32_t slot,
                float *row);
void gen_index_key(const struct kv_layout *l, const uint8_t *image, uint32_t layer, int32_t slot,
                   float *row);

/* gen_copy_rows - the bytes of one token's rows in one layer, from one image to another */
void gen_copy_rows(const struct kv_layout *l, uint8_t *to, const uint8_t *from, uint32_t layer,
                   int32_t slot);

/* gen_spoil - make a token's rows of all layers NaN */
void gen_spoil(const struct kv_layout *l, uint8_t *image, int32_t slot);

/* gen_slot - slot of a position of a request */
int32_t gen_slot(const struct batch *host, uint32_t request, uint32_t pos);

#endif

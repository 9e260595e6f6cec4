/* harness.h - one backend under test beside ref, over generated cases
 *
 * A test program is run once for each backend, whose name is argv[1] (default "ref"). It builds
 * inputs with gen.h, sets up two rigs, ref and the backend under test, gives both the same bytes
 * through buffer_write, and compares what buffer_read gives back. When the backend under test is
 * ref itself, the comparison still checks that repeats are bit-identical; ref's meaning is checked
 * against formulae written out in each test.
 *
 *   int main(int argc, char **argv) { return OP_MAIN(argc, argv, tests); }
 *
 *   struct rig ref, dev;
 *   rig_open_pair(&ref, &dev, &config);
 *   rig_set_batch(&ref, &batch), rig_set_batch(&dev, &batch);
 *   ... ops through rig.b->ops, buffers rig.buffer[BUFFER_...]
 *   rig_close_pair(&ref, &dev);
 */
#ifndef FATHOM_TESTS_OP_HARNESS_H
#define FATHOM_TESTS_OP_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "op/gen.h"

enum { OP_N_BUFFER = BUFFER_LOGITS + 1, RIG_WEIGHTS_MAX = 8 };

struct rig {
    const char *name;
    struct backend *b;
    const struct backend_ops *ops;
    struct backend_config config;
    struct buffer *buffer[OP_N_BUFFER];
    struct batch batch; /* device pointers */
    void *batch_memory;
    struct kv_cache kv;
    uint8_t *kv_memory; /* device: guard band, records, guard band */
    struct weight *weights[RIG_WEIGHTS_MAX];
    uint32_t n_weight;
};

/* op_backend - the name of the backend under test */
const char *op_backend(void);

/* op_is_ref - the backend under test is ref: check it against the formulae */
bool op_is_ref(void);

/* op_is_cuda - the backend under test is a GPU's, whose kernels for ACT_FP8 are others throughout
 */
bool op_is_cuda(void);

/* op_wants_few - a simulated device or a checking tool is a thousand times slower than the thing
 * itself: fewer cases will do */
bool op_wants_few(void);

/* op_is_elsewhere - inputs of this kind meet the same kernels on cuda_sim, whose run tests them: a
 * GPU of sm_90 has its own for ACT_FP8 and ACT_INT8 alone */
bool op_is_elsewhere(enum act_type act);

/* op_is_portable - the simulated device without kernels of sm_90 */
bool op_is_portable(void);

/* rig_open - backend, and one buffer of every kind; fails the test on an error. rig_close also
 * checks the guard bands and that the backend has no fault, and releases the weights. */
void rig_open(struct rig *r, const char *backend, const struct backend_config *c);
void rig_close(struct rig *r);
void rig_open_pair(struct rig *ref, struct rig *dev, const struct backend_config *c);
void rig_close_pair(struct rig *ref, struct rig *dev);

/* rig_set_batch - copy a batch in host memory to the device; replaces the one before */
void rig_set_batch(struct rig *r, const struct batch *host);

/* rig_set_cache - copy an image of n_page records to the device, between guard bands;
 * rig_get_cache copies it back and checks the bands */
void rig_set_cache(struct rig *r, const uint8_t *image, uint32_t n_page);
void rig_get_cache(struct rig *r, uint8_t *image);

/* rig_put - host data in device memory, released by rig_drop; rig_get copies it back */
void *rig_put(struct rig *r, const void *data, size_t bytes);
void rig_get(struct rig *r, void *to, const void *p, size_t bytes);
void rig_drop(struct rig *r, void *p);

/* rig_write, rig_read - rows 0 .. n_row-1 of a buffer as f32. rig_read's result belongs to the
 * caller (mem_free). */
void rig_write(struct rig *r, enum buffer_kind kind, uint32_t n_row, uint32_t width,
               const float *in);
float *rig_read(struct rig *r, enum buffer_kind kind, uint32_t n_row, uint32_t width);

/* rig_linear ... rig_moe - prepare, failing the test on an error; the weight is the rig's */
struct weight *rig_linear(struct rig *r, const struct tensor_view *v);
struct weight *rig_vector(struct rig *r, const struct tensor_view *v);
struct weight *rig_ffn(struct rig *r, const struct ffn_tensors *t);
struct weight *rig_mla(struct rig *r, const struct mla_tensors *t);
struct weight *rig_moe(struct rig *r, const struct moe_tensors *t);

/* op_ok - fail the test with the error's name and the backend's fault */
void op_ok(struct rig *r, fathom_err err, const char *what);

/* ---- comparison ---- */

/* op_tolerance - the largest relative L2 error of one operator against ref: 1e-5 with ACT_F32,
 * 1e-2 with ACT_BF16 */
double op_tolerance(enum act_type act);

/* op_formula_limit - the same of ref against a formula in double, whose values may lie on the other
 * side of a rounding boundary: 1e-6, 1e-3, and 5e-3 with ACT_FP8 */
double op_formula_limit(enum act_type act);

/* op_close - |got - want|_2 <= limit * |want|_2, no NaN, and no element off by more than 16 *
 * limit * the largest magnitude of want; prints the figures when it fails the test */
void op_close(const char *what, const float *got, const float *want, size_t n, double limit);
void op_close_double(const char *what, const float *got, const double *want, size_t n,
                     double limit);

/* op_same_bits - the same bytes, or fail the test */
void op_same_bits(const char *what, const void *a, const void *b, size_t bytes);

/* op_check_rows - a row's bits are its own
 *
 *   run  computes n_row rows from x, f32 [n_row][in_width], and gives back f32
 *        [n_row][out_width] (mem_free)
 *   x    f32 [n_full][in_width]
 *   full f32 [n_full][out_width], what run has given for all rows
 * Runs all rows again where few are not wanted, then counts around the sizes where kernels change
 * from different first rows, and demands the same bits for the same row each time. */
typedef float *op_run(struct rig *r, void *arg, const float *x, uint32_t n_row);
void op_check_rows(const char *what, struct rig *r, op_run *run, void *arg, const float *x,
                   const float *full, uint32_t n_full, uint32_t in_width, uint32_t out_width);

/* ---- cases ---- */

/* Batches: one request or many, lengths 1, 63 .. 65, ragged, decode. Each fits gen_config. */
struct op_batch_case {
    const char *name;
    uint32_t n_request;
    struct gen_request request[40];
};
extern const struct op_batch_case op_batch_cases[];
extern const size_t op_n_batch_case;

/* Forms of quantized weights that every backend must take, besides blocks of E4M3 (gen_code_as). */
extern const struct weight_form op_weight_forms[];
extern const size_t op_n_weight_form;

/* op_form_has_product - a GPU has a product of its own for this form with ACT_FP8; others are
 * decoded element by element in the product of floats, whose rows other tests check */
bool op_form_has_product(const struct weight_form *form);

/* Weight types that every backend must take. */
extern const enum dtype op_weight_types[];
extern const size_t op_n_weight_type;

int op_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests, size_t n);
#define OP_MAIN(argc, argv, tests)                                                                 \
    op_main((argc), (argv), #tests, (tests), sizeof(tests) / sizeof *(tests))

#endif

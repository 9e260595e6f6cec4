/* harness.c - rigs of two backends, comparisons, and the cases that all operator tests share */
#include "op/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu_isa.h"
#include "base/mem.h"
#include "op/backends.h"

enum { GUARD_BYTES = 4096, GUARD_VALUE = 0xa5 };

static const char *backend_name = "ref";

const char *op_backend(void)
{
    return backend_name;
}

bool op_is_ref(void)
{
    return strcmp(backend_name, "ref") == 0;
}

bool op_is_cuda(void)
{
    return strncmp(backend_name, "cuda", 4) == 0;
}

void op_ok(struct rig *r, fathom_err err, const char *what)
{
    if (err != FATHOM_OK)
        fail_msg("%s on %s: %s %s", what, r->name, fathom_err_name(err), r->ops->fault(r->b));
}

static void must(fathom_err err, const fathom_diag *d)
{
    if (err != FATHOM_OK) fail_msg("%s: %s", fathom_err_name(err), d->text);
}

/* ---- rigs ---- */

void rig_open(struct rig *r, const char *backend, const struct backend_config *c)
{
    fathom_diag d = {{0}};
    memset(r, 0, sizeof *r);
    r->name = backend;
    r->config = *c;
    must(backend_create_named(&r->b, backend, c, &d), &d);
    r->ops = r->b->ops;
    for (int k = 0; k < OP_N_BUFFER; k++)
        must(r->ops->buffer_create(r->b, (enum buffer_kind)k, &r->buffer[k], &d), &d);
}

static void check_guards(struct rig *r)
{
    if (!r->kv_memory) return;
    static const char *const side[] = {"before", "after"};
    size_t n = r->kv.n_page * r->kv.layout.page_bytes;
    uint8_t guard[GUARD_BYTES];
    for (int i = 0; i < 2; i++) {
        const uint8_t *at = r->kv_memory + (i == 0 ? 0 : GUARD_BYTES + n);
        op_ok(r, r->ops->copy_out(r->b, guard, at, GUARD_BYTES), "copy_out");
        op_ok(r, r->ops->sync(r->b), "sync");
        for (int j = 0; j < GUARD_BYTES; j++) {
            if (guard[j] != GUARD_VALUE)
                fail_msg("%s wrote %s the cache, byte %d of the guard band", r->name, side[i], j);
        }
    }
}

void rig_close(struct rig *r)
{
    check_guards(r);
    if (strcmp(r->ops->fault(r->b), "") != 0) fail_msg("%s: %s", r->name, r->ops->fault(r->b));
    for (uint32_t i = 0; i < r->n_weight; i++) r->ops->weight_destroy(r->b, r->weights[i]);
    for (int k = 0; k < OP_N_BUFFER; k++) r->ops->buffer_destroy(r->b, r->buffer[k]);
    r->ops->release(r->b, r->batch_memory);
    r->ops->release(r->b, r->kv_memory);
    r->ops->destroy(r->b);
    memset(r, 0, sizeof *r);
}

void rig_open_pair(struct rig *ref, struct rig *dev, const struct backend_config *c)
{
    rig_open(ref, "ref", c);
    rig_open(dev, backend_name, c);
}

void rig_close_pair(struct rig *ref, struct rig *dev)
{
    rig_close(dev);
    rig_close(ref);
}

/* Copies n values to device memory at *cursor and gives back where they lie there. */
static const int32_t *put_ints(struct rig *r, int32_t **cursor, const int32_t *from, size_t n)
{
    int32_t *to = *cursor;
    op_ok(r, r->ops->copy_in(r->b, to, from, n * sizeof *from), "copy_in");
    *cursor += (n + 15) / 16 * 16;
    return to;
}

void rig_set_batch(struct rig *r, const struct batch *host)
{
    fathom_diag d = {{0}};
    size_t n = host->n_token;
    size_t n_table = (size_t)host->n_request * host->page_stride;
    size_t n_int = 6 * (n + 16) + n_table + 16 + host->n_request + 17;
    r->ops->release(r->b, r->batch_memory);
    must(r->ops->alloc(r->b, n_int * sizeof(int32_t), "batch", &r->batch_memory, &d), &d);
    int32_t *cursor = r->batch_memory;
    r->batch = *host;
    r->batch.ids = put_ints(r, &cursor, host->ids, n);
    r->batch.next_ids = put_ints(r, &cursor, host->next_ids, n);
    r->batch.pos = put_ints(r, &cursor, host->pos, n);
    r->batch.request = put_ints(r, &cursor, host->request, n);
    r->batch.slot = put_ints(r, &cursor, host->slot, n);
    r->batch.logit_rows = put_ints(r, &cursor, host->logit_rows, host->n_logit_row);
    r->batch.page_table = put_ints(r, &cursor, host->page_table, n_table);
    r->batch.first = put_ints(r, &cursor, host->first, host->n_request + 1);
    op_ok(r, r->ops->sync(r->b), "sync");
}

void rig_set_cache(struct rig *r, const uint8_t *image, uint32_t n_page)
{
    fathom_diag d = {{0}};
    size_t n = n_page * r->config.kv.page_bytes;
    uint8_t guard[GUARD_BYTES];
    void *memory;
    memset(guard, GUARD_VALUE, sizeof guard);
    check_guards(r);
    r->ops->release(r->b, r->kv_memory);
    must(r->ops->alloc(r->b, n + 2 * GUARD_BYTES, "pages", &memory, &d), &d);
    r->kv_memory = memory;
    op_ok(r, r->ops->copy_in(r->b, r->kv_memory, guard, GUARD_BYTES), "copy_in");
    op_ok(r, r->ops->copy_in(r->b, r->kv_memory + GUARD_BYTES, image, n), "copy_in");
    op_ok(r, r->ops->copy_in(r->b, r->kv_memory + GUARD_BYTES + n, guard, GUARD_BYTES), "copy_in");
    op_ok(r, r->ops->sync(r->b), "sync");
    r->kv = (struct kv_cache){
        .base = r->kv_memory + GUARD_BYTES, .n_page = n_page, .layout = r->config.kv};
}

void rig_get_cache(struct rig *r, uint8_t *image)
{
    size_t n = r->kv.n_page * r->kv.layout.page_bytes;
    check_guards(r);
    op_ok(r, r->ops->copy_out(r->b, image, r->kv.base, n), "copy_out");
    op_ok(r, r->ops->sync(r->b), "sync");
}

void *rig_put(struct rig *r, const void *data, size_t bytes)
{
    fathom_diag d = {{0}};
    void *p;
    must(r->ops->alloc(r->b, bytes, "test data", &p, &d), &d);
    op_ok(r, r->ops->copy_in(r->b, p, data, bytes), "copy_in");
    op_ok(r, r->ops->sync(r->b), "sync");
    return p;
}

void rig_get(struct rig *r, void *to, const void *p, size_t bytes)
{
    op_ok(r, r->ops->copy_out(r->b, to, p, bytes), "copy_out");
    op_ok(r, r->ops->sync(r->b), "sync");
}

void rig_drop(struct rig *r, void *p)
{
    r->ops->release(r->b, p);
}

void rig_write(struct rig *r, enum buffer_kind kind, uint32_t n_row, uint32_t width,
               const float *in)
{
    op_ok(r, r->ops->buffer_write(r->b, r->buffer[kind], 0, n_row, width, in), "buffer_write");
}

float *rig_read(struct rig *r, enum buffer_kind kind, uint32_t n_row, uint32_t width)
{
    float *out = mem_alloc_array((size_t)n_row * width, sizeof *out);
    assert_non_null(out);
    op_ok(r, r->ops->buffer_read(r->b, r->buffer[kind], 0, n_row, width, out), "buffer_read");
    return out;
}

static struct weight **next_weight(struct rig *r)
{
    assert_true(r->n_weight < RIG_WEIGHTS_MAX);
    return &r->weights[r->n_weight++];
}

struct weight *rig_linear(struct rig *r, const struct tensor_view *v)
{
    fathom_diag d = {{0}};
    struct weight **w = next_weight(r);
    must(r->ops->prepare_linear(r->b, v, w, &d), &d);
    return *w;
}

struct weight *rig_vector(struct rig *r, const struct tensor_view *v)
{
    fathom_diag d = {{0}};
    struct weight **w = next_weight(r);
    must(r->ops->prepare_vector(r->b, v, w, &d), &d);
    return *w;
}

struct weight *rig_ffn(struct rig *r, const struct ffn_tensors *t)
{
    fathom_diag d = {{0}};
    struct weight **w = next_weight(r);
    must(r->ops->prepare_ffn(r->b, t, w, &d), &d);
    return *w;
}

struct weight *rig_mla(struct rig *r, const struct mla_tensors *t)
{
    fathom_diag d = {{0}};
    struct weight **w = next_weight(r);
    must(r->ops->prepare_mla(r->b, t, w, &d), &d);
    return *w;
}

struct weight *rig_moe(struct rig *r, const struct moe_tensors *t)
{
    fathom_diag d = {{0}};
    struct weight **w = next_weight(r);
    must(r->ops->prepare_moe(r->b, t, w, &d), &d);
    return *w;
}

/* ---- comparison ---- */

double op_tolerance(enum act_type act)
{
    return act == ACT_F32 ? 1e-5 : 1e-2;
}

double op_formula_limit(enum act_type act)
{
    return act == ACT_F32 ? 1e-6 : act == ACT_BF16 ? 1e-3 : 5e-3;
}

void op_close_double(const char *what, const float *got, const double *want, size_t n, double limit)
{
    double difference = 0, square = 0, worst = 0, top = 0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        double delta = fabs((double)got[i] - want[i]);
        if (isnan(delta))
            fail_msg("%s: element %zu is %g, want %g", what, i, (double)got[i], want[i]);
        difference += delta * delta;
        square += want[i] * want[i];
        top = fmax(top, fabs(want[i]));
        if (delta > worst) {
            worst = delta;
            at = i;
        }
    }
    double relative = square > 0 ? sqrt(difference / square) : sqrt(difference);
    if (relative > limit || worst > 16 * limit * fmax(top, 1e-30))
        fail_msg("%s on %s: relative L2 error %.3e (limit %.1e); element %zu of %zu is %.9g, want "
                 "%.9g, the largest is %.3g",
                 what, backend_name, relative, limit, at, n, (double)got[at], want[at], top);
}

void op_close(const char *what, const float *got, const float *want, size_t n, double limit)
{
    double *wide = mem_alloc_array(n, sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < n; i++) wide[i] = (double)want[i];
    op_close_double(what, got, wide, n, limit);
    mem_free(wide);
}

void op_same_bits(const char *what, const void *a, const void *b, size_t bytes)
{
    const uint8_t *x = a;
    const uint8_t *y = b;
    for (size_t i = 0; i < bytes; i++) {
        if (x[i] != y[i])
            fail_msg("%s on %s: byte %zu of %zu differs", what, backend_name, i, bytes);
    }
}

static bool is_simulated(void)
{
    return strncmp(backend_name, "cuda_sim", 8) == 0;
}

static bool few_asked;

bool op_wants_few(void)
{
    return few_asked || is_simulated();
}

bool op_is_elsewhere(enum act_type act)
{
    return strcmp(backend_name, "cuda_sim_tuned") == 0 && act != ACT_FP8 && act != ACT_INT8;
}

bool op_is_portable(void)
{
    return strcmp(backend_name, "cuda_sim") == 0;
}

/* Around the sizes where kernels change. */
static const uint32_t token_counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 65, 129};

void op_check_rows(const char *what, struct rig *r, op_run *run, void *arg, const float *x,
                   const float *full, uint32_t n_full, uint32_t in_width, uint32_t out_width)
{
    size_t row_bytes = out_width * sizeof(float);
    if (!op_wants_few()) {
        float *again = run(r, arg, x, n_full);
        op_same_bits(what, again, full, n_full * row_bytes);
        mem_free(again);
    }
    for (size_t i = 0; i < sizeof token_counts / sizeof *token_counts;
         i += op_wants_few() ? 6 : 1) {
        uint32_t n = token_counts[i];
        if (n > n_full || (op_wants_few() && n > 33)) continue;
        uint32_t row0 = n * 37 % (n_full - n + 1);
        float *part = run(r, arg, x + (size_t)row0 * in_width, n);
        op_same_bits(what, part, full + (size_t)row0 * out_width, n * row_bytes);
        mem_free(part);
    }
}

/* ---- cases ---- */

const struct op_batch_case op_batch_cases[] = {
    {"one token", 1, {{0, 1}}},
    {"one request", 1, {{0, 65}}},
    {"63 before", 1, {{63, 1}}},
    {"64 before", 1, {{64, 1}}},
    {"65 before", 1, {{65, 2}}},
    {"crosses pages", 1, {{60, 72}}},
    {"long", 1, {{300, 3}}},
    {"two", 2, {{0, 63}, {0, 64}}},
    {"ragged", 6, {{10, 3}, {0, 1}, {129, 1}, {64, 17}, {200, 5}, {0, 33}}},
    {"decode",
     9,
     {{0, 1}, {1, 1}, {62, 1}, {63, 1}, {64, 1}, {95, 1}, {96, 1}, {127, 1}, {511, 1}}},
    {"drafts", 4, {{100, 2}, {70, 2}, {3, 2}, {128, 2}}},
};
const size_t op_n_batch_case = sizeof op_batch_cases / sizeof *op_batch_cases;

const enum dtype op_weight_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3};
const size_t op_n_weight_type = sizeof op_weight_types / sizeof *op_weight_types;

const struct weight_form op_weight_forms[] = {
    {.code = CODE_U4, .scale_type = DTYPE_F16, .block_row = 1, .block_col = 128, .has_zero = true},
    {.code = CODE_U4, .scale_type = DTYPE_BF16, .block_row = 1, .block_col = 64},
    {.code = CODE_U4, .scale_type = DTYPE_F32, .block_row = 1, .block_col = 32, .has_zero = true},
    {.code = CODE_U4, .scale_type = DTYPE_F16, .block_row = 1},
    {.code = CODE_E2M1, .scale_type = DTYPE_F8_E4M3, .block_row = 1, .block_col = 16},
    {.code = CODE_E2M1, .scale_type = DTYPE_U8, .block_row = 1, .block_col = 32},
    {.code = CODE_I8, .scale_type = DTYPE_F32, .block_row = 1},
    {.code = CODE_I8, .scale_type = DTYPE_F32, .block_row = 128, .block_col = 128},
    {.code = CODE_E4M3, .scale_type = DTYPE_F32, .block_row = 1},
    {.code = CODE_E4M3, .scale_type = DTYPE_F32},
};
const size_t op_n_weight_form = sizeof op_weight_forms / sizeof *op_weight_forms;

bool op_form_has_product(const struct weight_form *form)
{
    return form->code == CODE_U4 || form->code == CODE_E2M1 || form->code == CODE_E4M3;
}

static bool is_best_or_absent(enum cpu_isa isa)
{
    const struct cpu_kernels *k = cpu_kernels_of(isa);
    return !k || k == cpu_kernels_of(CPU_ISA_BEST);
}

int op_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests, size_t n)
{
    few_asked = argc == 3 && strcmp(argv[2], "few") == 0;
    if (argc > 3 || (argc == 3 && !few_asked)) {
        fprintf(stderr, "usage: %s [BACKEND [few]]\n", argv[0]);
        return 2;
    }
    if (argc >= 2) backend_name = argv[1];
    if (op_is_cuda() && !is_simulated() && backend_cuda_count() == 0) {
        printf("skipped: %s needs a GPU and there is none\n", backend_name);
        return 77;
    }
    if (strcmp(backend_name, "cpu_avx2") == 0 && is_best_or_absent(CPU_ISA_AVX2)) {
        printf("skipped: AVX2 is the best that this machine has: cpu is cpu_avx2\n");
        return 77;
    }
    if (strcmp(backend_name, "cpu_avx512") == 0 && is_best_or_absent(CPU_ISA_AVX512)) {
        printf("skipped: this machine has no AVX-512, or no AMX beside it: cpu is as good\n");
        return 77;
    }
    char name[128];
    snprintf(name, sizeof name, "%s on %s", group, backend_name);
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

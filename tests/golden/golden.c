/* golden.c - a model on a named backend, fed in chunks */
#include "golden/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "op/backends.h"

static void must(fathom_err err, const fathom_diag *d)
{
    if (err != FATHOM_OK) fail_msg("%s: %s", fathom_err_name(err), d->text);
}

/* Arrays of a batch, one after the other in `arrays`. */
enum { ARRAY_IDS, ARRAY_NEXT, ARRAY_POS, ARRAY_REQUEST, ARRAY_SLOT, ARRAY_ROWS, N_TOKEN_ARRAY };

static uint32_t pages_of(uint32_t n_position)
{
    return (n_position + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* A permutation, so that nothing works that takes pages for neighbours. */
static int32_t page_of(const struct golden_model *g, uint32_t i)
{
    return (int32_t)((i * 7 + 3) % g->n_page);
}

void golden_open(struct golden_model *g, const char *backend, enum act_type act,
                 enum kv_type kv_type, uint32_t max_token)
{
    golden_open_dir(g, FATHOM_SOURCE_DIR "/models/pilot", true, backend, act, kv_type, max_token);
}

bool golden_skip(const char *backend)
{
    bool simulated = strncmp(backend, "cuda_sim", 8) == 0;
    if (strncmp(backend, "cuda", 4) != 0 || simulated || backend_cuda_count() > 0) return false;
    print_message("skipped: %s needs a GPU and there is none\n", backend);
    return true;
}

void golden_open_dir(struct golden_model *g, const char *dir, bool with_mtp, const char *backend,
                     enum act_type act, enum kv_type kv_type, uint32_t max_token)
{
    fathom_diag d = {{0}};
    memset(g, 0, sizeof *g);
    must(checkpoint_open(&g->checkpoint, dir, &d), &d);
    must(model_config_load(&g->config, g->checkpoint, &d), &d);
    const struct model_place place = {.parallel = parallel_one(), .n_thread = 2};
    const struct model_loading as_stored = {0};
    must(weights_bind(&g->weights, g->checkpoint, &g->config, &place.parallel, &d), &d);
    struct model_limits limits = {
        .act = act,
        .kv_type = kv_type,
        .max_token = max_token,
        .max_request = 1,
        .max_context = g->config.max_position,
        .max_logit_row = max_token,
        .with_mtp = with_mtp,
    };
    struct backend_config config;
    model_backend_config(&config, &g->config, &limits, &place);
    must(backend_create_named(&g->b, backend, &config, &d), &d);
    must(model_create(&g->model, g->b, &g->config, &g->weights, &limits, &as_stored, &d), &d);
    assert_int_equal(model_has_mtp(g->model), with_mtp);

    g->max_token = max_token;
    g->n_page = pages_of(limits.max_context) + 1;
    while (g->n_page % 7 == 0) g->n_page++;
    g->kv.n_page = g->n_page;
    g->kv.layout = config.kv;
    size_t kv_bytes = g->n_page * config.kv.page_bytes;
    must(g->b->ops->alloc(g->b, kv_bytes, "pages", &g->kv.base, &d), &d);
    size_t n_int = (size_t)N_TOKEN_ARRAY * max_token + g->n_page + 2;
    void *arrays;
    must(g->b->ops->alloc(g->b, n_int * sizeof *g->arrays, "batch", &arrays, &d), &d);
    g->arrays = arrays;
    g->logits = mem_alloc_array((size_t)max_token * g->config.n_vocab, sizeof *g->logits);
    assert_non_null(g->logits);
    golden_restart(g);
}

void golden_close(struct golden_model *g)
{
    model_destroy(g->model);
    if (g->b) {
        assert_string_equal(g->b->ops->fault(g->b), "");
        g->b->ops->release(g->b, g->kv.base);
        g->b->ops->release(g->b, g->arrays);
        g->b->ops->destroy(g->b);
    }
    weights_release(&g->weights);
    checkpoint_close(g->checkpoint);
    mem_free(g->logits);
    memset(g, 0, sizeof *g);
}

void golden_restart(struct golden_model *g)
{
    size_t n = g->kv.layout.page_bytes;
    uint8_t *nan = mem_alloc(n);
    assert_non_null(nan);
    memset(nan, 0xff, n);
    for (uint32_t i = 0; i < g->n_page; i++)
        must(g->b->ops->copy_in(g->b, (uint8_t *)g->kv.base + i * n, nan, n), &(fathom_diag){{0}});
    must(g->b->ops->sync(g->b), &(fathom_diag){{0}});
    mem_free(nan);
    g->n_past = 0;
}

/* The step's arrays, in the order of the enum, then the page table and `first`. */
static int32_t *fill_arrays(const struct golden_model *g, const int32_t *ids,
                            const int32_t *next_ids, uint32_t n, size_t *n_int)
{
    uint32_t m = g->max_token;
    *n_int = (size_t)N_TOKEN_ARRAY * m + g->n_page + 2;
    int32_t *a = mem_calloc(*n_int, sizeof *a);
    assert_non_null(a);
    for (uint32_t t = 0; t < n; t++) {
        uint32_t pos = g->n_past + t;
        a[ARRAY_IDS * m + t] = ids[t];
        a[ARRAY_NEXT * m + t] = next_ids ? next_ids[t] : 0;
        a[ARRAY_POS * m + t] = (int32_t)pos;
        a[ARRAY_SLOT * m + t] =
            page_of(g, pos / KV_PAGE_TOKENS) * KV_PAGE_TOKENS + (int32_t)(pos % KV_PAGE_TOKENS);
        a[ARRAY_ROWS * m + t] = (int32_t)t;
    }
    int32_t *table = a + (size_t)N_TOKEN_ARRAY * m;
    for (uint32_t i = 0; i < g->n_page; i++)
        table[i] = i < pages_of(g->n_past + n) ? page_of(g, i) : -1;
    table[g->n_page + 1] = (int32_t)n;
    return a;
}

static void read_logits(struct golden_model *g, uint32_t n, float *out)
{
    if (!out) return;
    must(g->b->ops->buffer_read(g->b, model_logits(g->model), 0, n, g->config.n_vocab, out),
         &(fathom_diag){{0}});
}

void golden_step(struct golden_model *g, const int32_t *ids, const int32_t *next_ids, uint32_t n,
                 float *logits, float *mtp_logits)
{
    const fathom_diag none = {{0}};
    uint32_t m = g->max_token;
    size_t n_int;
    assert_true(n >= 1 && n <= m && g->n_past + n <= g->config.max_position);
    int32_t *host = fill_arrays(g, ids, next_ids, n, &n_int);
    must(g->b->ops->copy_in(g->b, g->arrays, host, n_int * sizeof *host), &none);
    must(g->b->ops->sync(g->b), &none);
    mem_free(host);

    const int32_t *device = g->arrays;
    struct batch batch = {
        .n_token = n,
        .n_request = 1,
        .n_logit_row = logits || mtp_logits ? n : 0,
        .max_context = g->n_past + n,
        .page_stride = g->n_page,
        .ids = device + ARRAY_IDS * m,
        .next_ids = next_ids ? device + ARRAY_NEXT * m : NULL,
        .pos = device + ARRAY_POS * m,
        .request = device + ARRAY_REQUEST * m,
        .slot = device + ARRAY_SLOT * m,
        .logit_rows = device + ARRAY_ROWS * m,
        .page_table = device + (size_t)N_TOKEN_ARRAY * m,
        .first = device + (size_t)N_TOKEN_ARRAY * m + g->n_page,
    };
    must(model_forward(g->model, &batch, &g->kv), &none);
    read_logits(g, n, logits);
    if (next_ids) {
        must(model_mtp(g->model, &batch, &g->kv), &none);
        read_logits(g, n, mtp_logits);
    }
    must(g->b->ops->sync(g->b), &none);
    g->n_past += n;
}

/* ---- the reference's outputs ---- */

void golden_reference_open(struct golden_reference *r, const char *path)
{
    fathom_diag d = {{0}};
    memset(r, 0, sizeof *r);
    must(file_map_open(&r->map, path, &d), &d);
    must(safetensors_parse(&r->file, r->map.data, r->map.size, path, &d), &d);
}

void golden_reference_close(struct golden_reference *r)
{
    safetensors_free(&r->file);
    file_map_close(&r->map);
}

/* A copy of tensor "i.name", and how many rows it has; NULL when there is none. */
static void *copy_tensor(const struct golden_reference *r, int i, const char *name,
                         enum dtype dtype, uint32_t *n_row)
{
    char full[64];
    snprintf(full, sizeof full, "%d.%s", i, name);
    for (size_t k = 0; k < r->file.n_tensor; k++) {
        const struct tensor *t = &r->file.tensors[k];
        if (strcmp(t->name, full) != 0) continue;
        assert_int_equal(t->dtype, dtype);
        void *copy = mem_alloc(t->n_bytes);
        assert_non_null(copy);
        memcpy(copy, t->data, t->n_bytes);
        *n_row = (uint32_t)t->dim[0];
        return copy;
    }
    return NULL;
}

bool golden_text_load(const struct golden_reference *r, int i, struct golden_text *out)
{
    uint32_t n = 0;
    *out = (struct golden_text){0};
    out->ids = copy_tensor(r, i, "ids", DTYPE_I32, &out->n_token);
    if (!out->ids) return false;
    out->logits = copy_tensor(r, i, "logits", DTYPE_F32, &out->n_kept);
    assert_non_null(out->logits);
    out->mtp_logits = copy_tensor(r, i, "mtp_logits", DTYPE_F32, &n);
    if (out->mtp_logits) assert_int_equal(n, out->n_kept);
    out->logprob_of_next = copy_tensor(r, i, "logprob_of_next", DTYPE_F32, &n);
    if (out->logprob_of_next) assert_int_equal(n, out->n_token - 1);
    return true;
}

void golden_text_free(struct golden_text *t)
{
    mem_free(t->ids);
    mem_free(t->logits);
    mem_free(t->mtp_logits);
    mem_free(t->logprob_of_next);
}

/* ref.c - the reference backend: device, buffers and the table of operators
 *
 * Device memory is host memory and the queue is empty: every call has run when it returns, so the
 * fences and sync have nothing to wait for. Operators do not allocate: scratch is made here.
 */
#include "backend/ref/ref_int.h"

#include <stdio.h>
#include <string.h>

#include "backend/host_device.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

static void destroy(struct backend *b)
{
    if (!b) return;
    struct ref_backend *r = ref_of(b);
    mem_free(r->x);
    mem_free(r->wide);
    mem_free(r->wide2);
    mem_free(r->part);
    mem_free(r->score);
    mem_free(r->sum);
    mem_free(r->route_biased);
    mem_free(r->route_group);
    mem_free(r->route_taken);
    mem_free(r->scored);
    mem_free(r);
}

static void get_caps(struct backend *b, struct backend_caps *out)
{
    (void)b;
    memset(out, 0, sizeof *out);
    out->name = "ref";
    snprintf(out->device, sizeof out->device, "scalar C, f32, 1 thread");
    snprintf(out->numerics, sizeof out->numerics, "scalar");
    os_memory_bytes(&out->memory_bytes, &out->memory_free_bytes);
    out->expanded_attention = true;
    for (int t = KV_TYPE_F32; t <= KV_TYPE_FP8; t++) out->kv_types[t] = true;
}

static fathom_err fence_record(struct backend *b, int slot)
{
    return host_fence_record(&ref_of(b)->fences, slot);
}

static fathom_err fence_elapsed(struct backend *b, double *us)
{
    return host_fence_elapsed(&ref_of(b)->fences, us);
}

/* ---- buffers ---- */

static void buffer_destroy(struct backend *b, struct buffer *buf)
{
    (void)b;
    if (!buf) return;
    mem_free(buf->value);
    mem_free(buf->index);
    mem_free(buf);
}

static fathom_err buffer_create(struct backend *b, enum buffer_kind kind, struct buffer **out,
                                fathom_diag *d)
{
    const struct backend_config *c = &ref_of(b)->c;
    bool is_index = kind == BUFFER_SELECT || kind == BUFFER_ROUTE;
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    *out = NULL;
    if (!buf) FAIL(d, FATHOM_ENOMEM, "no memory for a buffer");
    buf->kind = kind;
    buf->n_row = kind == BUFFER_LOGITS ? c->max_logit_row : c->max_token;
    buf->width = host_buffer_width(c, kind);
    buf->value = mem_calloc((size_t)buf->n_row * buf->width, sizeof *buf->value);
    if (is_index) buf->index = mem_calloc((size_t)buf->n_row * buf->width, sizeof *buf->index);
    if (!buf->value || (is_index && !buf->index)) {
        fathom_err err = diag_fail(d, FATHOM_ENOMEM, "no memory for a buffer of %u rows of %u",
                                   buf->n_row, buf->width);
        buffer_destroy(b, buf);
        return err;
    }
    *out = buf;
    return FATHOM_OK;
}

/* Where value `i` of a row that is `width` wide in a test's eyes lies in ours: a QUERY or LATENT
 * row of the expanded form is narrower, and the index query comes after the attention's. */
static uint32_t column(const struct backend_config *c, enum buffer_kind kind, uint32_t width,
                       uint32_t i)
{
    uint32_t expanded = c->n_head * (c->nope_dim + KV_ROPE);
    if (kind == BUFFER_QUERY && width == expanded + host_index_width(c) && i >= expanded)
        return i - expanded + c->n_head * KV_ROW;
    return i;
}

static fathom_err check_access(const struct backend_config *c, const struct buffer *buf,
                               uint32_t row0, uint32_t n_row, uint32_t width)
{
    uint32_t expanded = c->n_head * (c->nope_dim + KV_ROPE);
    bool fits = width == buf->width;
    if (buf->kind == BUFFER_QUERY)
        fits = fits || width == c->n_head * KV_ROW || width == expanded ||
               width == expanded + host_index_width(c);
    if (buf->kind == BUFFER_LATENT)
        fits = width == c->n_head * KV_LATENT || width == c->n_head * c->v_dim;
    if (buf->kind == BUFFER_ROUTE) fits = width == 2 * buf->width;
    bool inside = row0 <= buf->n_row && n_row <= buf->n_row - row0;
    return fits && inside ? FATHOM_OK : FATHOM_EINVAL;
}

static fathom_err buffer_read(struct backend *b, const struct buffer *buf, uint32_t row0,
                              uint32_t n_row, uint32_t width, float *out)
{
    const struct backend_config *c = &ref_of(b)->c;
    TRY(check_access(c, buf, row0, n_row, width));
    for (uint32_t r = 0; r < n_row; r++) {
        size_t at = (size_t)(row0 + r) * buf->width;
        for (uint32_t i = 0; i < width; i++) {
            float *to = out + (size_t)r * width + i;
            if (buf->kind == BUFFER_ROUTE && i < buf->width)
                *to = (float)buf->index[at + i];
            else if (buf->kind == BUFFER_ROUTE)
                *to = buf->value[at + i - buf->width];
            else if (buf->kind != BUFFER_SELECT)
                *to = buf->value[at + column(c, buf->kind, width, i)];
            else
                *to = (int32_t)i <= buf->index[at] ? (float)buf->index[at + i] : -1;
        }
    }
    return FATHOM_OK;
}

static fathom_err buffer_write(struct backend *b, struct buffer *buf, uint32_t row0, uint32_t n_row,
                               uint32_t width, const float *in)
{
    const struct backend_config *c = &ref_of(b)->c;
    TRY(check_access(c, buf, row0, n_row, width));
    for (uint32_t r = 0; r < n_row; r++) {
        size_t at = (size_t)(row0 + r) * buf->width;
        for (uint32_t i = 0; i < width; i++) {
            float from = in[(size_t)r * width + i];
            if (buf->kind == BUFFER_ROUTE && i < buf->width)
                buf->index[at + i] = (int32_t)from;
            else if (buf->kind == BUFFER_ROUTE)
                buf->value[at + i - buf->width] = from;
            else if (buf->kind == BUFFER_SELECT)
                buf->index[at + i] = (int32_t)from;
            else
                buf->value[at + column(c, buf->kind, width, i)] = from;
        }
    }
    return FATHOM_OK;
}

/* ---- collectives ---- */

static fathom_err all_reduce(struct backend *b, struct buffer *delta, uint32_t n_token)
{
    (void)b;
    (void)delta;
    (void)n_token;
    return FATHOM_OK; /* one rank: the partial sum is the sum */
}

/* ---- creation ---- */

static const struct backend_ops ref_ops = {
    .destroy = destroy,
    .get_caps = get_caps,
    .alloc = host_alloc,
    .release = host_release,
    .alloc_host = host_alloc_pinned,
    .release_host = host_release,
    .copy_in = host_copy,
    .copy_out = host_copy,
    .sync = host_sync,
    .fence_record = fence_record,
    .fence_wait = host_fence_wait,
    .fence_elapsed = fence_elapsed,
    .fault = host_fault,
    .buffer_create = buffer_create,
    .buffer_destroy = buffer_destroy,
    .buffer_read = buffer_read,
    .buffer_write = buffer_write,
    .prepare_vector = ref_prepare_vector,
    .prepare_linear = ref_prepare_linear,
    .prepare_mla = ref_prepare_mla,
    .prepare_ffn = ref_prepare_ffn,
    .prepare_moe = ref_prepare_moe,
    .weight_destroy = ref_weight_destroy,
    .weight_bytes = ref_weight_bytes,
    .embed = ref_embed,
    .add_norm = ref_add_norm,
    .linear = ref_linear,
    .mla_front = ref_mla_front,
    .index_topk = ref_index_topk,
    .mla_attend = ref_mla_attend,
    .mla_out = ref_mla_out,
    .ffn = ref_ffn,
    .router = ref_router,
    .moe = ref_moe,
    .head = ref_head,
    .mtp_front = ref_mtp_front,
    .sample = ref_sample,
    .all_reduce = all_reduce,
};

static uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t widest_row(const struct backend_config *c)
{
    uint32_t head = max_of(c->nope_dim + KV_ROPE, c->nope_dim + c->v_dim);
    uint32_t widths[] = {
        2 * c->hidden,
        c->q_lora_rank,
        c->n_head * head,
        KV_ROW,
        c->index_n_head * KV_INDEX_DIM,
        c->dense_inner,
        c->moe_inner,
        c->shared_inner,
        c->n_expert,
        c->n_vocab,
    };
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) n = max_of(n, widths[i]);
    return n;
}

static fathom_err check_config(const struct backend_config *c, fathom_diag *d)
{
    const struct {
        const char *name;
        uint32_t value;
    } positive[] = {
        {"hidden", c->hidden},
        {"n_head", c->n_head},
        {"q_lora_rank", c->q_lora_rank},
        {"nope_dim", c->nope_dim},
        {"v_dim", c->v_dim},
        {"n_vocab", c->n_vocab},
        {"max_token", c->max_token},
        {"max_request", c->max_request},
        {"max_context", c->max_context},
        {"max_logit_row", c->max_logit_row},
    };
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++) {
        if (positive[i].value == 0) FAIL(d, FATHOM_EINVAL, "%s is 0", positive[i].name);
    }
    if (c->world > 1 && !c->is_slice)
        FAIL(d, FATHOM_EUNSUPPORTED, "world is %u; the reference backend runs on one rank",
             c->world);
    if (c->index_n_head > 0 && c->index_topk == 0)
        FAIL(d, FATHOM_EINVAL, "index_topk is 0 with %u index heads", c->index_n_head);
    if ((c->index_n_head > 0) != c->kv.has_index)
        FAIL(d, FATHOM_EINVAL, "index_n_head is %u and kv.has_index is %d", c->index_n_head,
             c->kv.has_index);
    if (c->n_expert == 0) return FATHOM_OK;
    if (c->n_group == 0 || c->n_expert % c->n_group != 0)
        FAIL(d, FATHOM_EINVAL, "n_expert %u is not a multiple of n_group %u", c->n_expert,
             c->n_group);
    if (c->topk_group == 0 || c->topk_group > c->n_group)
        FAIL(d, FATHOM_EINVAL, "topk_group is %u; needed 1 .. n_group %u", c->topk_group,
             c->n_group);
    uint32_t n_candidate = c->n_expert / c->n_group * c->topk_group;
    if (c->n_expert_used == 0 || c->n_expert_used > n_candidate)
        FAIL(d, FATHOM_EINVAL, "n_expert_used is %u; the groups kept hold %u experts",
             c->n_expert_used, n_candidate);
    return FATHOM_OK;
}

static fathom_err make_scratch(struct ref_backend *r, fathom_diag *d)
{
    const struct backend_config *c = &r->c;
    uint32_t wide = widest_row(c);
    r->x = mem_calloc(wide, sizeof *r->x);
    r->wide = mem_calloc(wide, sizeof *r->wide);
    r->wide2 = mem_calloc(wide, sizeof *r->wide2);
    r->part = mem_calloc(c->hidden, sizeof *r->part);
    r->score = mem_calloc((size_t)c->n_head * c->max_context, sizeof *r->score);
    r->sum = mem_calloc((size_t)c->n_head * max_of(KV_LATENT, c->v_dim), sizeof *r->sum);
    r->route_biased = mem_calloc(c->n_expert, sizeof *r->route_biased);
    r->route_group = mem_calloc(c->n_group, sizeof *r->route_group);
    r->route_taken = mem_calloc(c->n_expert, sizeof *r->route_taken);
    r->scored = mem_calloc(max_of(c->max_context, c->n_vocab), sizeof *r->scored);
    if (r->x && r->wide && r->wide2 && r->part && r->score && r->sum && r->route_biased &&
        r->route_group && r->route_taken && r->scored)
        return FATHOM_OK;
    FAIL(d, FATHOM_ENOMEM, "no memory for the reference backend's scratch");
}

fathom_err backend_ref_create(struct backend **out, const struct backend_config *c, fathom_diag *d)
{
    fathom_err err = FATHOM_OK;
    *out = NULL;
    TRY(check_config(c, d));
    struct ref_backend *r = mem_calloc(1, sizeof *r);
    if (!r) FAIL(d, FATHOM_ENOMEM, "no memory for the reference backend");
    r->base.ops = &ref_ops;
    r->c = *c;
    TRY_GOTO(make_scratch(r, d), fail);
    *out = &r->base;
    return FATHOM_OK;

fail:
    destroy(&r->base);
    return err;
}

/* ref.c - the reference backend: device, buffers and the table of operators
 *
 * Device memory is host memory and the queue is empty: every call has run when it returns, so the
 * fences and sync have nothing to wait for. Operators do not allocate: scratch is made here.
 */
#include "backend/ref/ref_int.h"

#include <stdio.h>
#include <string.h>

#include "backend/buffer_shape.h"
#include "backend/host_device.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

static void destroy(struct backend *b)
{
    if (!b) return;
    struct ref_backend *r = ref_of(b);
    host_peers_leave(&r->peers);
    mem_free(r->x);
    mem_free(r->x_scale);
    mem_free(r->wide);
    mem_free(r->wide2);
    mem_free(r->part);
    mem_free(r->head);
    mem_free(r->ep_part);
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
    for (int t = KV_TYPE_F32; t <= KV_TYPE_FP8; t++) out->kv_types[t] = true;
}

static struct host_peers *peers_of(struct backend *b)
{
    return &ref_of(b)->peers;
}

static fathom_err join(struct backend *const *b, uint32_t n, fathom_diag *d)
{
    return host_join(b, n, &ref_of(b[0])->c, peers_of, d);
}

static void renew(struct backend *b)
{
    host_peers_renew(peers_of(b));
}

static void abandon(struct backend *b)
{
    host_peers_break(peers_of(b));
}

static void get_waits(const struct backend *b, struct rank_waits *out)
{
    host_peers_waits(&((const struct ref_backend *)b)->peers, out);
}

static fathom_err share_rows(struct backend *b, const struct share_rows_args *a)
{
    op_check_share_rows(&ref_of(b)->c, a);
    return host_share_rows(&peers_of(b)->experts, ref_of(b)->c.parallel.tp.size, a);
}

static const char *fault(struct backend *b)
{
    return host_peers_fault(peers_of(b));
}

static fathom_err fence_record(struct backend *b, uint32_t fence)
{
    return host_fence_record(&ref_of(b)->fences, fence);
}

static fathom_err fence_elapsed(struct backend *b, uint32_t from, uint32_t to, double *us)
{
    return host_fence_elapsed(&ref_of(b)->fences, from, to, us);
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
    ASSERT(kind <= BUFFER_LOGITS && out);
    const struct backend_config *c = &ref_of(b)->c;
    bool is_index = kind == BUFFER_SELECT || kind == BUFFER_ROUTE;
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    *out = NULL;
    if (!buf) FAIL(d, FATHOM_ENOMEM, "no memory for a buffer");
    buf->kind = kind;
    buf->n_row = buffer_shape_of(c, kind).n_row;
    buf->width = host_row_width(c, kind);
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

static fathom_err buffer_read(struct backend *b, const struct buffer *buf, uint32_t row0,
                              uint32_t n_row, uint32_t width, float *out)
{
    ASSERT(buf && (out || n_row == 0));
    const struct backend_config *c = &ref_of(b)->c;
    TRY(host_check_access(c, buf->kind, row0, n_row, width));
    for (uint32_t r = 0; r < n_row; r++) {
        size_t at = (size_t)(row0 + r) * buf->width;
        for (uint32_t i = 0; i < width; i++) {
            float *to = out + (size_t)r * width + i;
            if (buf->kind == BUFFER_ROUTE && i < buf->width)
                *to = (float)buf->index[at + i];
            else if (buf->kind == BUFFER_ROUTE)
                *to = buf->value[at + i - buf->width];
            else if (buf->kind != BUFFER_SELECT)
                *to = buf->value[at + i];
            else
                *to = (int32_t)i <= buf->index[at] ? (float)buf->index[at + i] : -1;
        }
    }
    return FATHOM_OK;
}

static fathom_err buffer_write(struct backend *b, struct buffer *buf, uint32_t row0, uint32_t n_row,
                               uint32_t width, const float *in)
{
    ASSERT(buf && (in || n_row == 0));
    const struct backend_config *c = &ref_of(b)->c;
    TRY(host_check_access(c, buf->kind, row0, n_row, width));
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
                buf->value[at + i] = from;
        }
    }
    return FATHOM_OK;
}

/* ---- creation ---- */

static const struct backend_ops ref_ops = {
    .destroy = destroy,
    .get_caps = get_caps,
    .bind_thread = host_bind_thread,
    .join = join,
    .abandon = abandon,
    .renew = renew,
    .get_waits = get_waits,
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
    .fault = fault,
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
    .reduce_norm = ref_reduce_norm,
    .mla_front = ref_mla_front,
    .share_rows = share_rows,
    .index_topk = ref_index_topk,
    .mla_attend = ref_mla_attend,
    .mla_out = ref_mla_out,
    .ffn = ref_ffn,
    .router = ref_router,
    .moe = ref_moe,
    .moe_ep = ref_moe_ep,
    .head = ref_head,
    .mtp_front = ref_mtp_front,
    .sample = ref_sample,
};

static uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t widest_row(const struct backend_config *c)
{
    ASSERT(c->hidden > 0);
    uint32_t head = max_of(c->nope_dim + KV_ROPE, c->v_dim);
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

static fathom_err make_scratch(struct ref_backend *r, fathom_diag *d)
{
    const struct backend_config *c = &r->c;
    uint32_t wide = widest_row(c);
    r->x = mem_calloc(wide, sizeof *r->x);
    r->x_scale = mem_calloc(wide / KV_FP8_GROUP + 1, sizeof *r->x_scale);
    r->wide = mem_calloc(wide, sizeof *r->wide);
    r->wide2 = mem_calloc(wide, sizeof *r->wide2);
    r->part = mem_calloc(c->hidden, sizeof *r->part);
    r->head = mem_calloc((size_t)c->max_logit_row, backend_head_rows(c) * sizeof *r->head);
    const size_t n_part = parallel_moves_rows(&c->parallel)
                              ? (size_t)parallel_n_rank(&c->parallel) * ref_ep_rows(c)
                              : 0;
    r->ep_part = mem_calloc(n_part, c->hidden * sizeof *r->ep_part);
    r->score = mem_calloc((size_t)c->n_head * c->max_context, sizeof *r->score);
    r->sum = mem_calloc((size_t)c->n_head * KV_LATENT, sizeof *r->sum);
    r->route_biased = mem_calloc(c->n_expert, sizeof *r->route_biased);
    r->route_group = mem_calloc(c->n_group, sizeof *r->route_group);
    r->route_taken = mem_calloc(c->n_expert, sizeof *r->route_taken);
    r->scored = mem_calloc(max_of(c->max_context, c->n_vocab), sizeof *r->scored);
    if (r->x && r->x_scale && r->wide && r->wide2 && r->part && r->head && r->ep_part && r->score &&
        r->sum && r->route_biased && r->route_group && r->route_taken && r->scored)
        return FATHOM_OK;
    FAIL(d, FATHOM_ENOMEM, "no memory for the reference backend's scratch");
}

fathom_err backend_ref_create(struct backend **out, const struct backend_config *c, fathom_diag *d)
{
    ASSERT(out && c);
    fathom_err err = FATHOM_OK;
    *out = NULL;
    TRY(host_check_config(c, "ref", d));
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

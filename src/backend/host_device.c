/* host_device.c - the part of a backend that is the same wherever the device is the host */
#include "backend/host_device.h"

#include <string.h>

#include "backend/buffer_shape.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"

fathom_err host_alloc(struct backend *b, size_t bytes, const char *what, void **out, fathom_diag *d)
{
    ASSERT(what && out);
    (void)b;
    *out = mem_alloc_pages(bytes);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory for %s, %zu bytes", what, bytes);
    return FATHOM_OK;
}

fathom_err host_alloc_pinned(struct backend *b, size_t bytes, void **out, fathom_diag *d)
{
    return host_alloc(b, bytes, "host memory", out, d);
}

void host_release(struct backend *b, void *p)
{
    (void)b;
    mem_free_pages(p);
}

fathom_err host_copy(struct backend *b, void *to, const void *from, size_t bytes)
{
    ASSERT(bytes == 0 || (to && from));
    (void)b;
    memcpy(to, from, bytes);
    return FATHOM_OK;
}

fathom_err host_sync(struct backend *b)
{
    (void)b;
    return FATHOM_OK;
}

fathom_err host_bind_thread(struct backend *b)
{
    (void)b;
    return FATHOM_OK;
}

fathom_err host_fence_wait(struct backend *b, uint32_t fence)
{
    (void)b;
    ASSERT(fence < BACKEND_FENCE_MAX);
    return FATHOM_OK;
}

fathom_err host_fence_record(struct host_fences *f, uint32_t fence)
{
    ASSERT(fence < BACKEND_FENCE_MAX);
    f->at_ns[fence] = clock_now_ns();
    return FATHOM_OK;
}

fathom_err host_fence_elapsed(const struct host_fences *f, uint32_t from, uint32_t to, double *us)
{
    ASSERT(from < BACKEND_FENCE_MAX && to < BACKEND_FENCE_MAX);
    ASSERT(f->at_ns[from] && f->at_ns[to] >= f->at_ns[from]);
    *us = (double)(f->at_ns[to] - f->at_ns[from]) / 1e3;
    return FATHOM_OK;
}

static fathom_err check_experts(const struct backend_config *c, fathom_diag *d)
{
    ASSERT(c->n_expert > 0);
    const uint32_t n_rank = parallel_axis(&c->parallel, CUT_EXPERTS).size;
    if (n_rank > 1 && (c->n_expert % n_rank != 0 || c->n_expert / n_rank > EXPERTS_HELD_MAX))
        FAIL(d, FATHOM_EINVAL, "n_expert is %u; %u ranks need equal parts of at most %d",
             c->n_expert, n_rank, EXPERTS_HELD_MAX);
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

fathom_err host_check_config(const struct backend_config *c, const char *name, fathom_diag *d)
{
    ASSERT(c && name);
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
    const uint32_t n_rank = parallel_n_rank(&c->parallel);
    if (n_rank == 0) FAIL(d, FATHOM_EINVAL, "the number of ranks is 0");
    if (n_rank > PARALLEL_RANKS_MAX)
        FAIL(d, FATHOM_EUNSUPPORTED, "%u ranks; the %s backend runs on %d at most", n_rank, name,
             PARALLEL_RANKS_MAX);
    if (c->index_n_head > 0 && c->index_topk == 0)
        FAIL(d, FATHOM_EINVAL, "index_topk is 0 with %u index heads", c->index_n_head);
    if ((c->index_n_head > 0) != c->kv.has_index)
        FAIL(d, FATHOM_EINVAL, "index_n_head is %u and kv.has_index is %d", c->index_n_head,
             c->kv.has_index);
    return c->n_expert == 0 ? FATHOM_OK : check_experts(c, d);
}

uint32_t host_row_width(const struct backend_config *c, enum buffer_kind kind)
{
    ASSERT(kind <= BUFFER_LOGITS);
    struct buffer_shape s = buffer_shape_of(c, kind);
    return kind == BUFFER_ROUTE ? s.main_width : s.width;
}

fathom_err host_check_access(const struct backend_config *c, enum buffer_kind kind, uint32_t row0,
                             uint32_t n_row, uint32_t width)
{
    ASSERT(kind <= BUFFER_LOGITS);
    struct buffer_shape s = buffer_shape_of(c, kind);
    bool inside = row0 <= s.n_row && n_row <= s.n_row - row0;
    bool without_index = kind == BUFFER_QUERY && width == s.main_width;
    return inside && (width == s.width || without_index) ? FATHOM_OK : FATHOM_EINVAL;
}

void host_view_row(const struct tensor_view *v, uint32_t row, float *out)
{
    ASSERT(v && row < v->n_row);
    if (v->data || v->source)
        tensor_view_row(v, row, 0, v->n_col, out);
    else
        tensor_view_make_row(v, row, 0, v->n_col, out);
}

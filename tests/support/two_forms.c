/* two_forms.c - the cpu backend, with prompt rows of other bits than its answer rows */
#include "support/two_forms.h"

#include <stdatomic.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/mem.h"

#define PROMPT_FACTOR 1.0078125f /* a bf16 */

struct two_forms {
    struct backend_ops ops; /* first member: what the backend's ops points at */
    const struct backend_ops *real;
    uint32_t width;
    float *row; /* [width] */
};

static _Atomic uint64_t n_prompt_row, n_answer_row;

uint64_t two_forms_n_prompt_row(void)
{
    return n_prompt_row;
}

uint64_t two_forms_n_answer_row(void)
{
    return n_answer_row;
}

static struct two_forms *forms_of(struct backend *b)
{
    return (struct two_forms *)(uintptr_t)b->ops;
}

static void get_caps(struct backend *b, struct backend_caps *out)
{
    forms_of(b)->real->get_caps(b, out);
    out->prompt_form = true;
}

static fathom_err attend(struct backend *b, const struct mla_attend_args *a)
{
    struct two_forms *f = forms_of(b);
    fathom_err err = f->real->mla_attend(b, a);
    n_answer_row += a->batch->n_answer_token;
    n_prompt_row += a->batch->n_token - a->batch->n_answer_token;
    for (uint32_t t = a->batch->n_answer_token; !err && t < a->batch->n_token; t++) {
        err = f->real->buffer_read(b, a->out, t, 1, f->width, f->row);
        for (uint32_t i = 0; i < f->width; i++) f->row[i] *= PROMPT_FACTOR;
        if (!err) err = f->real->buffer_write(b, a->out, t, 1, f->width, f->row);
    }
    return err;
}

static void destroy(struct backend *b)
{
    if (!b) return;
    struct two_forms *f = forms_of(b);
    b->ops = f->real;
    b->ops->destroy(b);
    mem_free(f->row);
    mem_free(f);
}

fathom_err __real_backend_cpu_create(struct backend **out, const struct backend_config *c,
                                     fathom_diag *d);
fathom_err __wrap_backend_cpu_create(struct backend **out, const struct backend_config *c,
                                     fathom_diag *d);

fathom_err __wrap_backend_cpu_create(struct backend **out, const struct backend_config *c,
                                     fathom_diag *d)
{
    struct two_forms *f = mem_calloc(1, sizeof *f);
    float *row = mem_alloc_array((size_t)c->n_head * KV_LATENT, sizeof *row);
    fathom_err err = f && row ? __real_backend_cpu_create(out, c, d) : FATHOM_ENOMEM;
    if (err) {
        mem_free(f);
        mem_free(row);
        return err;
    }
    *f = (struct two_forms){
        .ops = *(*out)->ops, .real = (*out)->ops, .width = c->n_head * KV_LATENT, .row = row};
    f->ops.get_caps = get_caps;
    f->ops.mla_attend = attend;
    f->ops.destroy = destroy;
    (*out)->ops = &f->ops;
    return FATHOM_OK;
}

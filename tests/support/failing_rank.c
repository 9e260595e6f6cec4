/* failing_rank.c - backend_join as it is, and a rank that fails once it is told to
 *
 * Linked before the backends' own, whose source is in here. While a file FAIL_RANK stands in the
 * directory of the process, attention of layer 3 fails on rank 2, of two ranks on rank 1: the
 * device is lost. */
#include <stdio.h>
#include <unistd.h>

#include "backend/backend.h"

static fathom_err join_ranks(struct backend *const *b, uint32_t n, fathom_diag *d);

#define backend_join join_ranks
#include "backend/backend_join.c"
#undef backend_join

enum { FAILING_LAYER = 3 };

static const struct backend_ops *real_ops;
static struct backend_ops failing_ops;

static fathom_err fail_in_layer(struct backend *b, const struct mla_attend_args *a)
{
    if (a->layer == FAILING_LAYER && access("FAIL_RANK", F_OK) == 0) return FATHOM_EDEVICE;
    return real_ops->mla_attend(b, a);
}

fathom_err backend_join(struct backend *const *b, uint32_t n, fathom_diag *d)
{
    fathom_err err = join_ranks(b, n, d);
    if (err || n < 2) return err;
    const uint32_t fails = n == 2 ? 1 : 2;
    real_ops = b[fails]->ops;
    failing_ops = *real_ops;
    failing_ops.mla_attend = fail_in_layer;
    b[fails]->ops = &failing_ops;
    return FATHOM_OK;
}

/* backend_join.c - several ranks of one process */
#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"

fathom_err backend_join(struct backend *const *b, uint32_t n, fathom_diag *d)
{
    ASSERT(n >= 1 && n <= PARALLEL_RANKS_MAX);
    if (b[0]->ops->join) {
        for (uint32_t i = 1; i < n; i++) ASSERT(b[i]->ops->join == b[0]->ops->join);
        return b[0]->ops->join(b, n, d);
    }
    struct backend_caps caps;
    b[0]->ops->get_caps(b[0], &caps);
    FAIL(d, FATHOM_EUNSUPPORTED, "%u ranks: the %s backend runs on one", n, caps.name);
}

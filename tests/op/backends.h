/* backends.h - a backend by its name, for programs that take the name as an argument */
#ifndef FATHOM_TESTS_OP_BACKENDS_H
#define FATHOM_TESTS_OP_BACKENDS_H

#include <string.h>

#include "backend/backend.h"
#include "base/fail.h"

/* FATHOM_BACKENDS is X(ref) X(cpu) ...: what this build has; FATHOM_SIM_BACKENDS the same, on a GPU
 * that tests/simt simulates */
#ifndef FATHOM_SIM_BACKENDS
#define FATHOM_SIM_BACKENDS
#endif
#define X(name)                                                                                    \
    fathom_err backend_##name##_create(struct backend **out, const struct backend_config *c,       \
                                       fathom_diag *d);
FATHOM_BACKENDS FATHOM_SIM_BACKENDS
#undef X

    static inline fathom_err
    backend_create_named(struct backend **out, const char *name, const struct backend_config *c,
                         fathom_diag *d)
{
#define X(known)                                                                                   \
    if (strcmp(name, #known) == 0) return backend_##known##_create(out, c, d);
    FATHOM_BACKENDS FATHOM_SIM_BACKENDS
#undef X
        *out = NULL;
    FAIL(d, FATHOM_EINVAL, "this build has no backend %s", name);
}

#endif

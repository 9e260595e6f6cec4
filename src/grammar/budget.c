/* budget.c - the message of a compilation that was too much work */
#include "grammar/budget.h"

#include "base/fail.h"

fathom_err budget_tell(const struct grammar_budget *b, fathom_err err, const char *what,
                       fathom_diag *d)
{
    if (!b || !b->used_up || err != FATHOM_ECANCEL) return err;
    FAIL(d, err,
         "%s: more work to compile than a grammar may be (%d million units, some 0.4 s of a core); "
         "use shorter repetitions, fewer ranges and alternatives, or smaller counts",
         what, GRAMMAR_WORK_MAX / 1000000);
}

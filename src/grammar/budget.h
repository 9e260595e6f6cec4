/* budget.h - how much work one compilation may be
 *
 * Every loop whose length a schema or a pattern decides spends units for what it does, two or three
 * for each nanosecond of an ordinary core. The same grammar spends the same units whatever else the
 * machine does, so it is always taken or always refused. A byte that is kept costs a unit at least:
 * the memory of a compilation is bounded with its time.
 *
 * With the units a flag is looked at, by which another thread ends the compilation.
 */
#ifndef FATHOM_GRAMMAR_BUDGET_H
#define FATHOM_GRAMMAR_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

enum { GRAMMAR_WORK_MAX = 800 * 1000 * 1000 };

/* Of one compilation, in one thread. */
struct grammar_budget {
    uint64_t left;
    bool used_up;            /* more was asked for than was left */
    const atomic_bool *stop; /* NULL, or: true ends the compilation */
};

/* budget_spend - pay for work
 *
 *   b  NULL: work that no input decides
 * Errors  ECANCEL: the flag is up, or the units do not suffice, now and from now on. */
static inline fathom_err budget_spend(struct grammar_budget *b, uint64_t units)
{
    if (!b) return FATHOM_OK;
    if (b->stop && atomic_load_explicit(b->stop, memory_order_relaxed)) return FATHOM_ECANCEL;
    if (b->used_up || units > b->left) {
        b->used_up = true;
        return FATHOM_ECANCEL;
    }
    b->left -= units;
    return FATHOM_OK;
}

/* budget_sort - units for putting n things in order */
static inline uint64_t budget_sort(uint64_t n)
{
    return n < 2 ? 0 : n * 7 * (uint64_t)(63 - __builtin_clzll(n));
}

/* budget_tell - when units have run out, say so of a pattern, a schema or a grammar
 *
 *   d     keeps a message that it has
 *   what  what was compiled, with its place: "schema #/properties/a"
 * Returns err. */
fathom_err budget_tell(const struct grammar_budget *b, fathom_err err, const char *what,
                       fathom_diag *d);

#endif

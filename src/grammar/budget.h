/* budget.h - a limit on the work of one compilation
 *
 * Every loop whose length a schema or a pattern decides spends units for what it does: two or three
 * for each nanosecond on an ordinary core. The same grammar spends the same units whatever else the
 * machine does, so it is always taken or always refused. Each byte that is kept costs at least a
 * unit, so the limit bounds the memory of a compilation too.
 *
 * Spending units also reads a flag, with which another thread can end the compilation.
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
    bool used_up;            /* more was to be spent than was left */
    const atomic_bool *stop; /* NULL, or: true ends the compilation */
};

/* budget_spend - pay for work
 *
 *   b  NULL: work whose amount no input decides; nothing is paid
 * Errors  ECANCEL: the flag is set, or there are too few units left, now and in every later call.
 */
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

/* budget_sort - units for sorting n things */
static inline uint64_t budget_sort(uint64_t n)
{
    return n < 2 ? 0 : n * 7 * (uint64_t)(63 - __builtin_clzll(n));
}

/* budget_tell - if the units have run out, write the message that says so
 *
 *   d     a message that is there already stays
 *   what  what was compiled, with its place: "schema #/properties/a"
 * Returns err. */
fathom_err budget_tell(const struct grammar_budget *b, fathom_err err, const char *what,
                       fathom_diag *d);

#endif

/* constraint.h - a request's constraint, and whether it stands ahead of the known tokens
 *
 *   AT_END --constraint_try--> AHEAD --constraint_return, constraint_push--> AT_END
 *
 * AT_END: it has gone over every token of the output. AHEAD: over guesses too. A preempted request
 * keeps its place: what was drawn stays drawn.
 */
#ifndef FATHOM_ENGINE_CONSTRAINT_H
#define FATHOM_ENGINE_CONSTRAINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/fathom.h"

/* Zeroed: nothing is constrained. */
struct constraint {
    fathom_constraint owner;
    bool is_ahead;
};

/* constraint_is_set - the functions below need it, but for constraint_destroy */
static inline bool constraint_is_set(const struct constraint *c)
{
    return c->owner.ops != NULL;
}

/* constraint_fill - the mask of the token that comes next where it stands */
void constraint_fill(const struct constraint *c, uint32_t *words, size_t n_word);

/* constraint_try - step over a guess; false when it cannot come */
bool constraint_try(struct constraint *c, int32_t id);

/* constraint_return - to the end of the known tokens */
void constraint_return(struct constraint *c);

/* constraint_push - return, and go over a token that was drawn; false when it could not come */
bool constraint_push(struct constraint *c, int32_t id);

void constraint_destroy(struct constraint *c); /* accepts a zeroed one */

#endif

/* grammar_constraint.h - a grammar as the engine sees it: a constraint on one request */
#ifndef FATHOM_SERVER_GRAMMAR_CONSTRAINT_H
#define FATHOM_SERVER_GRAMMAR_CONSTRAINT_H

#include "fathom/fathom.h"
#include "grammar/grammar.h"

/* grammar_constraint_create - at the beginning of a grammar
 *
 *   g     is retained
 *   info  whose EOS ids end the output; with drafts there is a second matcher to go back to
 * Owns    *out: the engine's once submitted, else to be destroyed by its ops
 * Errors  EUNSUPPORTED without EOS ids: the output could not end; ENOMEM.
 * Cost    14 KB, twice with drafts; nothing allocates after this. */
fathom_err grammar_constraint_create(fathom_constraint *out, struct grammar *g,
                                     const fathom_info *info, fathom_diag *d);

#endif

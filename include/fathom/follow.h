/* follow.h - the other hosts of a model that several compute (docs/hosts.md) */
#ifndef FATHOM_FOLLOW_H
#define FATHOM_FOLLOW_H

#include "fathom/err.h"
#include "fathom/options.h"

/* fathom_follow - compute for host 0 as another of several hosts (options.hosts)
 *
 * Loads as fathom_open does, joins host 0, and joins it anew with its weights in place whenever a
 * host is lost.
 * Errors  returns with one only: ECANCEL: options.hosts->end_fd; those of loading; EMISMATCH: host
 *         0 will not have this host; those of a rank that failed here. */
FATHOM_MUST_CHECK fathom_err fathom_follow(const fathom_options *o, fathom_diag *d);

#endif

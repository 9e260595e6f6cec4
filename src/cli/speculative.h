/* speculative.h - the value of --speculative-config */
#ifndef FATHOM_CLI_SPECULATIVE_H
#define FATHOM_CLI_SPECULATIVE_H

#include <stdint.h>

#include "fathom/err.h"

/* speculative_parse - {"method": "deepseek_mtp", "num_speculative_tokens": 2}
 *
 *   text  NULL: the option was not given, and *n_draft is 0
 * The method may be left out, or be mtp.
 * Errors  EINVAL, EFORMAT: not JSON, another method, a number out of range, a key that is not
 * known; ENOMEM. */
fathom_err speculative_parse(const char *text, uint32_t *n_draft, fathom_diag *d);

#endif

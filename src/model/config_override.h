/* config_override.h - other values of config.json than the file's (--hf-overrides) */
#ifndef FATHOM_MODEL_CONFIG_OVERRIDE_H
#define FATHOM_MODEL_CONFIG_OVERRIDE_H

#include "base/buf.h"
#include "fathom/err.h"

struct checkpoint;

/* config_override - append the config's text with the members of another object in place of its own
 *
 *   text       of a config.json, n bytes
 *   overrides  the object; each of its members replaces one of the config whole, objects too, or is
 *              added
 *   tells      members that are added are told in the log, since they may be misspelled
 * Errors  EFORMAT: one of the two is no object of JSON; ENOMEM. */
fathom_err config_override(struct buf *out, const char *text, size_t n, const char *overrides,
                           bool tells, fathom_diag *d);

/* checkpoint_override - the same to a checkpoint's config.json, for all who ask for it from now on
 *
 *   overrides  NULL: nothing is done
 * Errors  ENOTFOUND: there is no config.json; those of config_override. */
fathom_err checkpoint_override(struct checkpoint *c, const char *overrides, bool tells,
                               fathom_diag *d);

#endif

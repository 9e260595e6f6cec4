/* yaml.h - a YAML file as JSON values, over libyaml
 *
 * One document. Scalars without quotes are read as YAML 1.1 has them for the types of JSON: null
 * and
 * ~, true and false with yes, no, on and off, decimal integers and numbers; all else is a string.
 * Keys are scalars. Anchors are followed; a value that contains itself is an error.
 */
#ifndef FATHOM_CLI_YAML_H
#define FATHOM_CLI_YAML_H

#include <jansson.h>

#include "fathom/err.h"

/* yaml_read_file - new reference; JSON's null for an empty file
 * Errors  ENOTFOUND, EIO: it cannot be read. EFORMAT with line and column: it is no YAML, nested
 *         deeper than 64 levels, or larger than 1 MiB. ENOMEM. */
fathom_err yaml_read_file(const char *path, json_t **out, fathom_diag *d);

#endif

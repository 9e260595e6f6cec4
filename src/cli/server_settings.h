/* server_settings.h - the options of a server from those of the command line */
#ifndef FATHOM_CLI_SERVER_SETTINGS_H
#define FATHOM_CLI_SERVER_SETTINGS_H

#include "cli/cli.h"
#include "server/server.h"

/* server_settings_read - all but what has to be read from files first: keys, certificates
 *
 *   out  zeroed; what it points to is the command line's
 * Errors  EINVAL: a name of the model is empty. */
fathom_err server_settings_read(struct server_options *out, const struct invocation *v,
                                fathom_diag *d);

#endif

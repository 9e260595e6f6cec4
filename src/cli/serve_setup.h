/* serve_setup.h - from the command line to the server's options */
#ifndef FATHOM_CLI_SERVE_SETUP_H
#define FATHOM_CLI_SERVE_SETUP_H

#include "cli/cli.h"
#include "server/server.h"

/* Options, and the texts that they point into. */
struct serve_setup {
    struct server_options options;
    struct buf certificate, key, client_ca; /* PEM */
    struct buf key_file;                    /* its lines, each ended by NUL */
    const char **api_keys;
};

/* serve_setup_read - reads the files that the options name; ended with serve_setup_free, after an
 * error too
 * Errors  EINVAL: options that do not go together, a file without a key; EIO, ENOTFOUND: a file;
 *         ENOMEM. */
fathom_err serve_setup_read(struct serve_setup *out, const struct invocation *v, fathom_diag *d);
void serve_setup_free(struct serve_setup *p);

#endif

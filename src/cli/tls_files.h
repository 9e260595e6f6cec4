/* tls_files.h - the certificates and the secret that the command line names */
#ifndef FATHOM_CLI_TLS_FILES_H
#define FATHOM_CLI_TLS_FILES_H

#include "base/buf.h"
#include "base/stream_pass.h"
#include "cli/command_line.h"
#include "http/tls.h"

/* The texts that a setup points into; zeroed: none. */
struct tls_files {
    struct buf certificate, key, client_ca; /* PEM */
};

/* tls_files_read - the setup that --ssl-* ask for; without --ssl-certfile that of plain HTTP
 *
 *   out  points into *f
 * Errors  EINVAL: options that need each other; those of file_read_whole. */
fathom_err tls_files_read(struct tls_files *f, struct tls_setup *out, const struct settings *s,
                          fathom_diag *d);
void tls_files_free(struct tls_files *f);

/* peer_files_check - can the files be used that a router meets https servers with? They are read
 * again for each connection.
 * Errors  EINVAL: options that need each other, or rule each other out; those of file_read_whole
 *         and tls_check_client. */
fathom_err peer_files_check(const struct settings *s, fathom_diag *d);

/* secret_file_read - the secret of a pool; path NULL: none
 * Errors  EINVAL: fewer than 16 bytes; those of file_read_whole. */
fathom_err secret_file_read(struct pool_secret *out, const char *path, fathom_diag *d);

/* file_read_whole - append a file; EIO, ENOTFOUND, ENOMEM */
fathom_err file_read_whole(struct buf *out, const char *path, fathom_diag *d);

#endif

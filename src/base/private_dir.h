/* private_dir.h - a directory of this user alone, and the files in it
 *
 * For data that others must neither read nor be able to put there. A directory is opened once and
 * its files are opened in it. So what was checked is what is used, whatever happens to the path.
 */
#ifndef FATHOM_BASE_PRIVATE_DIR_H
#define FATHOM_BASE_PRIVATE_DIR_H

#include <stddef.h>

#include "fathom/err.h"

/* private_dir_open - made with mode 0700 if it is not there; what is above it must be
 *
 *   fd  of the directory; private_dir_close accepts -1
 * Errors  EINVAL  it cannot be used as it is: no directory, no permission, another owner's, or
 *                 others may write to it; d names the path, what was seen and what to change
 *         ELIMIT  there is no room for it; EIO for what a disk does. *fd is then -1. */
fathom_err private_dir_open(int *fd, const char *path, fathom_diag *d);
void private_dir_close(int fd);

/* private_file_open - a regular file of this user; a symbolic link is not followed
 *
 *   flags  of open(2), O_CLOEXEC and O_NOFOLLOW are added; made with mode 0600 if O_CREAT is there
 * Errors  as private_dir_open, and ENOTFOUND without touching d when there is none and O_CREAT is
 *         not given. *fd is then -1. EUNSUPPORTED without touching d when the file system does not
 *         take O_DIRECT. */
fathom_err private_file_open(int *fd, int dir, const char *name, int flags, fathom_diag *d);

/* private_file_read - all of a file of at most n_max bytes
 * Errors  those of private_file_open; ELIMIT when it is longer; EIO. */
fathom_err private_file_read(int dir, const char *name, void *data, size_t n_max, size_t *n,
                             fathom_diag *d);

/* private_file_replace - the file has these bytes afterwards, or what it had before
 * Errors  those of private_file_open; ELIMIT without room; EIO. */
fathom_err private_file_replace(int dir, const char *name, const void *data, size_t n,
                                fathom_diag *d);

#endif

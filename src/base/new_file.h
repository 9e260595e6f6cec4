/* new_file.h - a file that is there as a whole or not at all
 *
 * It is written beside its place, under the name with ".part" at the end, and takes its name when
 * all of it is on the disk. Whenever the process ends, the place holds what it held before or the
 * new file, never a part of it.
 */
#ifndef FATHOM_BASE_NEW_FILE_H
#define FATHOM_BASE_NEW_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "fathom/err.h"

struct new_file {
    int fd; /* -1: none */
    char path[LIMIT_PATH_BYTES];
    char part[LIMIT_PATH_BYTES];
};

/* new_file_begin - an empty file; one of the same name that was left half-written goes
 * Errors  EIO, EINVAL for a path that is too long; d names path and cause. */
fathom_err new_file_begin(struct new_file *f, const char *path, fathom_diag *d);

/* new_file_go_on - the same, but what was left half-written stays; nobody else may go on with it
 * new_file_cut - of which n bytes stay
 * new_file_leave - what was written is left half-written; accepts an empty f
 * Errors  as new_file_begin; EIO; EBUSY: another one goes on with it. */
fathom_err new_file_go_on(struct new_file *f, const char *path, fathom_diag *d);
fathom_err new_file_cut(struct new_file *f, uint64_t n, fathom_diag *d);
void new_file_leave(struct new_file *f);

/* new_file_write - n bytes at an offset
 * Errors  ELIMIT: the disk is full; EIO, also where the bytes are of a mapped file that was cut,
 *         which is named then. */
fathom_err new_file_write(struct new_file *f, const void *bytes, size_t n, uint64_t offset,
                          fathom_diag *d);

/* new_file_end - bytes and name are on the disk when it returns, and f is empty
 * Errors  as new_file_write: what was written is to be dropped or left then. */
fathom_err new_file_end(struct new_file *f, fathom_diag *d);

/* new_file_drop - what was written goes; accepts an empty one */
void new_file_drop(struct new_file *f);

/* new_file_save - the whole of a small file */
fathom_err new_file_save(const char *path, const void *bytes, size_t n, fathom_diag *d);

/* file_save - the same where the user says. What is no regular file, a device, a pipe or a link
 * such as /dev/stdout, stays what it is: it is written to. */
fathom_err file_save(const char *path, const void *bytes, size_t n, fathom_diag *d);

/* file_append - n bytes behind what the file holds, or none of them: a part is cut off again
 * Errors  ELIMIT: the disk is full; EIO. */
fathom_err file_append(const char *path, const void *bytes, size_t n, fathom_diag *d);

/* file_remove - a file that is not there is fine; EIO */
fathom_err file_remove(const char *path, fathom_diag *d);

/* disk_free_bytes - what this user may still write to the file system of an existing directory
 * Errors  EIO. */
fathom_err disk_free_bytes(const char *dir, uint64_t *bytes, fathom_diag *d);

/* dir_lock - nobody else holds this lock of an existing directory; it ends with the process, or
 * with dir_unlock, which accepts -1
 * Errors  EBUSY without touching d when somebody has it; EIO. *fd is then -1. */
fathom_err dir_lock(int *fd, const char *dir, fathom_diag *d);
void dir_unlock(int fd);

/* dir_each_file - visit the names of a directory's regular files and of its links that lead
 * nowhere, hidden ones too, in the order of their bytes; stops at the first error of visit
 * Errors  EIO, ENOMEM; those of visit. */
typedef fathom_err dir_visit(void *arg, const char *name);
fathom_err dir_each_file(const char *dir, dir_visit *visit, void *arg, fathom_diag *d);

/* dir_other_name - one of a directory's names that is of no regular file, such as a folder or a
 * link that leads nowhere; "" when there is none. The lost+found of a file system does not count.
 *
 *   name  [n_name], cut when it does not fit
 * Errors  EIO. */
fathom_err dir_other_name(const char *dir, char *name, size_t n_name, fathom_diag *d);

#endif

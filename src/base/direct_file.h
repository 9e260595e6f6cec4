/* direct_file.h - a file that is read and written past the page cache
 *
 * For data that this process caches itself: blocks of whole DIRECT_ALIGN bytes go between its own
 * memory and the disk (O_DIRECT). Where the file system cannot do that, the page cache is used and
 * `direct` says so. One thread at a time.
 */
#ifndef FATHOM_BASE_DIRECT_FILE_H
#define FATHOM_BASE_DIRECT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

enum { DIRECT_ALIGN = 4096 }; /* of offsets, sizes and memory */

struct direct_file {
    int fd; /* -1: closed */
    bool direct;
};

/* direct_round - up to a multiple of DIRECT_ALIGN */
static inline uint64_t direct_round(uint64_t bytes)
{
    return (bytes + DIRECT_ALIGN - 1) / DIRECT_ALIGN * DIRECT_ALIGN;
}

/* direct_file_open - a file of a directory of private_dir_open, made if it is not there
 * Errors  those of private_file_open; f is then closed. direct_file_close accepts a closed one. */
fathom_err direct_file_open(struct direct_file *f, int dir, const char *name, fathom_diag *d);
void direct_file_close(struct direct_file *f);

/* direct_file_lock - nobody else has this file open and locked; the lock ends with the process,
 * however it ends
 * Errors  EBUSY without touching d when somebody has; EIO where files cannot be locked. */
fathom_err direct_file_lock(struct direct_file *f);

/* direct_file_size - bytes; EIO */
fathom_err direct_file_size(const struct direct_file *f, uint64_t *bytes);

/* direct_file_resize - cut it, or take room on the disk for what is added, which reads as zeros
 * Errors  ELIMIT  the disk, or what this process may write, has no room for it
 *         EIO     others; d names the cause of either */
fathom_err direct_file_resize(struct direct_file *f, uint64_t bytes, fathom_diag *d);

/* direct_file_read, direct_file_write - n bytes at offset, all of them
 *
 *   data, n, offset  multiples of DIRECT_ALIGN
 * Errors  ELIMIT  read: the file ends before; write: there is no room
 *         EIO     others; d names the cause */
fathom_err direct_file_read(struct direct_file *f, void *data, size_t n, uint64_t offset,
                            fathom_diag *d);
fathom_err direct_file_write(struct direct_file *f, const void *data, size_t n, uint64_t offset,
                             fathom_diag *d);

#endif

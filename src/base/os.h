/* os.h - files, memory maps and the machine: with direct_file, log, mem and thread the only files
 * that call the system */
#ifndef FATHOM_BASE_OS_H
#define FATHOM_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

/* A whole file mapped read-only. data is NULL for an empty file. */
struct file_map {
    const void *data;
    size_t size;
};

/* file_map_open - ENOTFOUND if there is no such file, EIO otherwise; d names path and cause.
 * On failure *m is empty. file_map_close accepts an empty or zeroed map. */
fathom_err file_map_open(struct file_map *m, const char *path, fathom_diag *d);
void file_map_close(struct file_map *m);

/* path_exists, path_is_dir - false also when the path cannot be looked at */
bool path_exists(const char *path);
bool path_is_dir(const char *path);

/* path_join - "dir/name" into out (LIMIT_PATH_BYTES); EINVAL when it does not fit */
fathom_err path_join(char *out, size_t out_bytes, const char *dir, const char *name);

/* path_newest_dir - "dir/x" of the sub-directory x that was modified last, of equals the greatest
 * name. ENOTFOUND when dir has none or cannot be read, EINVAL when the path does not fit; out is
 * then empty. Names that begin with a dot do not count. */
fathom_err path_newest_dir(char *out, size_t out_bytes, const char *dir);

/* path_make_dir - a directory for its owner alone, if it is not there; what is above it must be
 * Errors  EIO names path and cause, also for a file of that name. */
fathom_err path_make_dir(const char *path, fathom_diag *d);

/* os_n_cpu - processors this process may use, at least 1: its affinity, within the container's
 * quota */
unsigned os_n_cpu(void);

/* os_memory_bytes - memory of the machine, or of the container when that is less, and how much of
 * it is available now */
void os_memory_bytes(uint64_t *total, uint64_t *available);

/* os_name_thread - what `top -H` and profilers call the calling thread; 15 characters count */
void os_name_thread(const char *name);

#endif

/* os.h - files, memory maps and the machine: with direct_file, log, mem, private_dir and thread the
 * only files that call the system */
#ifndef FATHOM_BASE_OS_H
#define FATHOM_BASE_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

/* Which file this is and when it was last written to. Who writes to a file changes its stamp, as
 * far as the clock of the file system tells the moments apart: nobody can set ctime. */
struct file_stamp {
    uint64_t device;
    uint64_t inode;
    uint64_t size;
    int64_t mtime_ns;
    int64_t ctime_ns;
};

/* file_stamp_of - EIO without touching *stamp when the path cannot be looked at */
fathom_err file_stamp_of(const char *path, struct file_stamp *stamp);

/* A whole file mapped read-only. data is NULL for an empty file. */
struct file_map {
    const void *data;
    size_t size;
    struct file_stamp stamp; /* before it was mapped */
};

/* file_map_open - ENOTFOUND if there is no such name, EIO otherwise; d names path and cause.
 * On failure *m is empty. file_map_close accepts an empty or zeroed map. */
fathom_err file_map_open(struct file_map *m, const char *path, fathom_diag *d);
void file_map_close(struct file_map *m);

/* file_map_prefetch - n mapped bytes will be read soon: their reading begins, nothing waits for it.
 * Cost: a system call. */
void file_map_prefetch(const void *data, size_t n);

/* file_map_let_go - nobody will read the file for a while: its pages leave this process, and come
 * back from the system when they are read all the same; accepts an empty map */
void file_map_let_go(const struct file_map *m);

/* os_mapped_file - the file whose bytes are mapped at an address, and which byte that is
 *
 *   path  [n_path], "" where it does not fit; as the system names it, a link followed
 * Returns  false, path and byte untouched, where no file is mapped. Calls only what a signal
 * handler may. */
bool os_mapped_file(const void *at, char *path, size_t n_path, uint64_t *byte);

/* path_exists, path_is_dir - false also when the path cannot be looked at */
bool path_exists(const char *path);
bool path_is_dir(const char *path);

/* path_join - "dir/name", dir with or without its slash, into out (LIMIT_PATH_BYTES); EINVAL when
 * it does not fit */
fathom_err path_join(char *out, size_t out_bytes, const char *dir, const char *name);

/* path_stays_below - whether a name of others is a path below the folder that it is joined to:
 * relative, of parts that are names, neither empty nor "." nor ".." nor with a backslash or a
 * control character, each of 200 bytes at most */
bool path_stays_below(const char *name);

/* path_holds_suffix - whether dir has a file whose name ends so; false when it cannot be read */
bool path_holds_suffix(const char *dir, const char *suffix);

/* path_newest_dir - "dir/x" of the sub-directory x that was modified last, of equals the greatest
 * name. ENOTFOUND when dir has none or cannot be read, EINVAL when the path does not fit; out is
 * then empty. Names that begin with a dot do not count. */
fathom_err path_newest_dir(char *out, size_t out_bytes, const char *dir);

/* os_n_cpu - processors this process may use, at least 1: its affinity, within the container's
 * quota */
unsigned os_n_cpu(void);

/* os_allow_files - ask for room for so many open files, within what the system grants this process.
 * Returns how many may be open now. */
uint64_t os_allow_files(uint64_t need);

/* os_forbid_core_dumps - a crash leaves no image of this process's memory, and none of its
 * children's */
void os_forbid_core_dumps(void);

/* os_make_dir - a directory, and those above it that are missing; one that is there is fine
 * Errors  EIO, with path and cause; EINVAL for a path that is too long. */
fathom_err os_make_dir(const char *path, fathom_diag *d);

/* os_check_make_dir - whether os_make_dir would do, and files could be made there; nothing is made
 *
 *   above  LIMIT_PATH_BYTES: the last folder on the way that is there, path itself maybe
 * Errors  as os_make_dir. */
fathom_err os_check_make_dir(const char *path, char *above, fathom_diag *d);

/* path_check_writable - whether a file may be made, or written over, at a path; for what is written
 * at the end of something long
 *
 *   replaces  a file that is there, not a link to one, is replaced (file_save), not written to
 *             (file_append)
 * Errors  EIO, with path and cause; EINVAL for a path that is too long. */
fathom_err path_check_writable(const char *path, bool replaces, fathom_diag *d);

/* os_machine_text - the processor's name and how many, such as "AMD EPYC 9B45, 2 processors" */
enum { MACHINE_TEXT_BYTES = 160 };
const char *os_machine_text(char out[MACHINE_TEXT_BYTES]);

/* os_load - processes that want a processor, a mean over the last minute; negative: not known */
double os_load(void);

/* os_memory_bytes - memory of the machine, or of the container when that is less, and how much of
 * it is available now */
void os_memory_bytes(uint64_t *total, uint64_t *available);

/* os_resident_bytes - memory of this process that is in RAM; 0: not known */
uint64_t os_resident_bytes(void);

/* os_name_thread - what `top -H` and profilers call the calling thread; 15 characters count */
void os_name_thread(const char *name);

#endif

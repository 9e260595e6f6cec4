/* safetensors_write.h - safetensors files and temporary directories for tests
 *
 * A failure of the system here fails the running test.
 */
#ifndef FATHOM_TESTS_SUPPORT_SAFETENSORS_WRITE_H
#define FATHOM_TESTS_SUPPORT_SAFETENSORS_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* A file in the making; a zeroed struct is an empty one. */
struct safetensors_writer {
    struct buf header; /* entries so far, without the braces */
    struct buf data;
};

/* safetensors_add - append a tensor; bytes NULL: all zero. n_dim 0 .. 8 */
void safetensors_add(struct safetensors_writer *w, const char *name, const char *dtype,
                     uint32_t n_dim, const uint64_t *dim, const void *bytes, size_t n_bytes);

/* safetensors_finish - the file's bytes into out, and the writer emptied. The header is padded with
 * spaces until the data begin at offset `residue` modulo 8: 0 is what real files have. */
void safetensors_finish(struct safetensors_writer *w, unsigned residue, struct buf *out);

/* safetensors_save - safetensors_finish into dir/name */
void safetensors_save(struct safetensors_writer *w, unsigned residue, const char *dir,
                      const char *name);

/* safetensors_raw - any header text before n zero bytes of data, for files that are not sound */
void safetensors_raw(struct buf *out, const char *header, size_t n);

/* save_file, save_text - dir/name with these contents; folders on the way are made */
void save_file(const char *dir, const char *name, const void *bytes, size_t n);
void save_text(const char *dir, const char *name, const char *text);

/* temp_dir_create - a fresh directory, its path into out (LIMIT_PATH_BYTES) */
void temp_dir_create(char *out);
void temp_dir_remove(const char *dir); /* with all that is in it */

#endif

/* checkpoint.h - files on disk to named, typed, bounds-checked tensors
 *
 * A checkpoint is a directory in Hugging Face form (config.json, one or many safetensors shards,
 * an index), or a bundle: the same files in memory, linked into the program. Everything is mapped
 * read-only and stays mapped until checkpoint_close. Immutable after opening; any thread may read.
 */
#ifndef FATHOM_CHECKPOINT_CHECKPOINT_H
#define FATHOM_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/os.h"
#include "checkpoint/safetensors.h"
#include "fathom/err.h"
#include "fathom/fathom.h"

struct checkpoint;

/* A cache of Hugging Face's, and what of a repository is meant. */
struct hub_cache {
    const char *folder;   /* of its repositories, ~/.cache/huggingface/hub; NULL: no cache */
    const char *revision; /* branch, tag or commit; NULL: main, or else the newest there is */
};

/* checkpoint_resolve - the directory that a model argument means
 *
 *   model  a directory, or org/name looked up in the cache
 *   dir    LIMIT_PATH_BYTES
 * Errors  ENOTFOUND: names every folder looked at and the command that downloads the model.
 *         EINVAL: a revision of a directory. EUNSUPPORTED: a GGUF file. */
fathom_err checkpoint_resolve(char *dir, const char *model, const struct hub_cache *cache,
                              fathom_diag *d);

/* checkpoint_repository - the org/name that a text is, or that a hub's page of that address shows;
 * false: neither */
bool checkpoint_repository(char out[LIMIT_PATH_BYTES], const char *text);

/* checkpoint_open - map all shards of dir and check every header
 *
 * The shards are those that model.safetensors.index.json names, or model.safetensors where there
 * is no index. Every tensor of a shard counts, whether the index lists it or not; what the index
 * lists must be in the shard it names.
 * Errors  ENOTFOUND without any shard, EFORMAT for a shard or index that is not sound (one message
 *         per fault: safetensors.c, shard_index.c), ENOMEM, EIO. */
fathom_err checkpoint_open(struct checkpoint **out, const char *dir, fathom_diag *d);

/* checkpoint_open_bundle - the same over files in memory; the bundle outlives the checkpoint */
fathom_err checkpoint_open_bundle(struct checkpoint **out, const fathom_bundle *bundle,
                                  fathom_diag *d);

/* checkpoint_open_files - a checkpoint whose weights are not looked at: its other files alone
 *
 *   dir, bundle  one of them, the other NULL
 * Errors  ENOMEM. */
fathom_err checkpoint_open_files(struct checkpoint **out, const char *dir,
                                 const fathom_bundle *bundle, fathom_diag *d);
void checkpoint_close(struct checkpoint *c); /* accepts NULL */

/* checkpoint_let_go - what has been read of the tensors is not read again soon: mapped pages leave
 * this process. They come back when they are read, so any thread may be reading. */
void checkpoint_let_go(const struct checkpoint *c);

/* checkpoint_find - a tensor by name; NULL if there is none */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/* checkpoint_n_tensor, checkpoint_tensor - all tensors, sorted by name; checkpoint_tensor_place is
 * the i of a tensor of this checkpoint */
size_t checkpoint_n_tensor(const struct checkpoint *c);
const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i);
size_t checkpoint_tensor_place(const struct checkpoint *c, const struct tensor *t);

/* checkpoint_n_shard, checkpoint_shard_name - the safetensors files, in the order of
 * tensor.i_shard; names are without the folder */
size_t checkpoint_n_shard(const struct checkpoint *c);
const char *checkpoint_shard_name(const struct checkpoint *c, size_t i_shard);

/* A safetensors file as it was opened; its bytes are mapped until checkpoint_close. */
struct checkpoint_shard {
    const char *name; /* without the folder */
    const void *data;
    uint64_t size;
    bool is_file;            /* not of a bundle */
    struct file_stamp stamp; /* of a file */
};

/* checkpoint_shard - by its number */
struct checkpoint_shard checkpoint_shard(const struct checkpoint *c, size_t i_shard);

/* checkpoint_file - another file of the checkpoint ("config.json", "tokenizer.json"), its bytes
 * mapped until close. ENOTFOUND without touching d when absent. From any thread. */
fathom_err checkpoint_file(struct checkpoint *c, const char *name, const char **data, size_t *n,
                           fathom_diag *d);

/* checkpoint_replace - from now on checkpoint_file gives this text for the name; what it gave
 * before stays valid
 *
 *   text  moved, after an error too
 * Errors  ENOMEM. */
fathom_err checkpoint_replace(struct checkpoint *c, const char *name, struct buf *text,
                              fathom_diag *d);

/* checkpoint_check - assert the invariants of checkpoint.c over every tensor; true */
bool checkpoint_check(const struct checkpoint *c);

/* checkpoint_where - the directory, or the bundle's name, for messages */
const char *checkpoint_where(const struct checkpoint *c);

#endif

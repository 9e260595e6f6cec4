/* shard_index.h - model.safetensors.index.json: which shard holds which tensor
 *
 *   {"metadata": {...}, "weight_map": {"tensor name": "shard file name", ...}}
 */
#ifndef FATHOM_CHECKPOINT_SHARD_INDEX_H
#define FATHOM_CHECKPOINT_SHARD_INDEX_H

#include <jansson.h>
#include <stddef.h>

#include "fathom/err.h"

#define SHARD_INDEX_FILE "model.safetensors.index.json"

struct shard_index {
    json_t *root;
    const json_t *weight_map; /* borrowed from root */
    const char **shards;      /* [n_shard] sorted, each once; borrowed from root */
    size_t n_shard;
};

/* shard_index_parse - read an index of n bytes; `where` names it in messages
 * Errors  EFORMAT when it is not JSON, has no weight_map, names a tensor twice, or gives something
 *         else than a plain file name as a shard; ENOMEM. *out is empty on failure. */
fathom_err shard_index_parse(struct shard_index *out, const char *text, size_t n, const char *where,
                             fathom_diag *d);
void shard_index_free(struct shard_index *index); /* accepts a zeroed struct */

#endif

/* safetensors.h - the header of one safetensors file
 *
 *   file = u64 little-endian n | n bytes of JSON | data
 *   JSON = {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *           "__metadata__": {...}}        offsets count from the first byte of data
 */
#ifndef FATHOM_CHECKPOINT_SAFETENSORS_H
#define FATHOM_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/limits.h"
#include "fathom/err.h"

struct tensor {
    const char *name;       /* belongs to the checkpoint, or to struct safetensors */
    enum dtype dtype;       /* DTYPE_NONE: a type that the engine has no use for */
    const char *dtype_name; /* as the header spells it; never NULL */
    uint32_t n_dim;
    uint64_t dim[LIMIT_TENSOR_DIMS];
    const void *data; /* mapped; may be unaligned */
    uint64_t n_bytes;
    uint32_t i_shard; /* of the checkpoint; 0 in a file by itself */
};

struct safetensors {
    struct tensor *tensors; /* [n_tensor], by position in the file */
    size_t n_tensor;
    char *names; /* what the tensors' names point into */
};

/* safetensors_parse - check a whole file and list its tensors
 *
 *   data   n bytes, any alignment; outlives *out, whose tensors point into it
 *   where  the file, for messages
 *   out    filled, or empty on failure; released by safetensors_free
 * Edge    an element type that safetensors knows and the engine does not is listed as DTYPE_NONE;
 *         bytes that belong to no tensor are legal; so is a tensor without elements.
 * Errors  EFORMAT  a file shorter than its header; a header over LIMIT_SAFETENSORS_HEADER_BYTES or
 *                  not a JSON object; an entry of the wrong form, a name that comes twice, an
 *                  unknown type. A range that is reversed, ends past the file, overlaps another
 *                  tensor's, or has another size than type and shape ask for.
 *         ENOMEM */
fathom_err safetensors_parse(struct safetensors *out, const void *data, size_t n, const char *where,
                             fathom_diag *d);
void safetensors_free(struct safetensors *s);

#endif

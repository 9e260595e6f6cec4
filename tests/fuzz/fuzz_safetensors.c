/* fuzz_safetensors.c - any bytes as a safetensors file, and as the index of one
 *
 * A file that is accepted has every tensor inside its bytes, at the size that type and shape ask
 * for, and no two that overlap.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_file(const uint8_t *data, size_t size)
{
    struct safetensors s;
    fathom_diag d = {0};
    if (safetensors_parse(&s, data, size, "fuzz", &d)) {
        ASSERT(d.text[0] != '\0');
        return;
    }
    const uint8_t *end = data;
    for (size_t i = 0; i < s.n_tensor; i++) {
        const struct tensor *t = &s.tensors[i];
        const uint8_t *bytes = t->data;
        uint64_t n = dtype_size(t->dtype);
        for (uint32_t k = 0; k < t->n_dim; k++) n *= t->dim[k];
        ASSERT(t->dtype == DTYPE_NONE || n == t->n_bytes);
        ASSERT(bytes >= end && (size_t)(bytes - data) <= size);
        ASSERT(t->n_bytes <= size - (size_t)(bytes - data));
        end = bytes + t->n_bytes;
    }
    safetensors_free(&s);
}

static void check_index(const uint8_t *data, size_t size)
{
    struct shard_index index;
    fathom_diag d = {0};
    if (shard_index_parse(&index, (const char *)data, size, "fuzz", &d)) {
        ASSERT(d.text[0] != '\0');
        return;
    }
    for (size_t i = 0; i < index.n_shard; i++) {
        ASSERT(!strchr(index.shards[i], '/'));
        ASSERT(i == 0 || strcmp(index.shards[i - 1], index.shards[i]) < 0);
    }
    shard_index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_file(data, size);
    check_index(data, size);
    return 0;
}

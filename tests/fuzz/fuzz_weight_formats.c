/* fuzz_weight_formats.c - any bytes as a checkpoint that has a module "x", and what is made of it
 *
 * A module that is accepted decodes inside its tensors: codes of four bits are 0 to 15, scales are
 * finite, zeros are 0 to 16.
 */
#include <math.h>
#include <stdint.h>

#include "base/assert.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weight_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N = 16, K = 256 };

static void decode(const struct weight_found *found, const struct model_config *config)
{
    struct weight_source source;
    uint8_t codes[K];
    weight_format_source(&source, found, config, N, K);
    const uint32_t n_block = source.form.block_col ? K / source.form.block_col : 1;
    for (uint32_t r = 0; r < N; r++) {
        source.codes(&source, r, 0, K, codes);
        for (uint32_t i = 0; i < K; i++) ASSERT(codes[i] <= 15);
        for (uint32_t i = 0; i < n_block; i++) {
            int zero = 0;
            ASSERT(isfinite(source.scale(&source, r, i, &zero)));
            ASSERT(zero >= 0 && zero <= 16);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const fathom_bundle_file file = {"model.safetensors", data, size};
    const fathom_bundle bundle = {.name = "fuzz", .files = &file, .n_file = 1};
    const struct model_config config = {.gptq_v2 = size % 2};
    struct checkpoint *c = NULL;
    struct weight_found found;
    fathom_diag d = {0};
    fathom_err err = checkpoint_open_bundle(&c, &bundle, &d);
    if (!err) {
        err = weight_format_find(&found, c, &config, "x.weight", N, K, &d);
        if (!err && found.format) err = weight_format_check_values(&found, K, &d);
        if (!err && found.format && found.format->codes) decode(&found, &config);
    }
    ASSERT(!err || d.text[0] != '\0');
    checkpoint_close(c);
    return 0;
}

/* fuzz_grammar_schema.c - any JSON as a schema
 *
 * Input: one byte of options, then the schema. What is refused says why; what compiles gives
 * outputs through its masks that are JSON.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/rng.h"
#include "support/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *schema;
    struct grammar *g;
    fathom_diag d = {""};
    const struct grammar_vocab *v = fuzz_vocab();
    if (size == 0 || json_read((const char *)data + 1, size - 1, "schema", &schema, NULL)) return 0;
    struct grammar_options options = {.space = (enum grammar_space)(data[0] % 3),
                                      .open_objects = data[0] & 4,
                                      .lenient = data[0] & 8};
    fathom_err err = grammar_from_schema(&g, v, schema, &options, &d);
    ASSERT(err == FATHOM_OK || err == FATHOM_EINVAL || err == FATHOM_EUNSUPPORTED ||
           err == FATHOM_ELIMIT);
    ASSERT(err == FATHOM_OK || (d.text[0] != '\0' && !g));
    for (uint64_t seed = 0; seed < 2 && !err; seed++) {
        struct buf text = {0};
        json_t *value = NULL;
        if (fuzz_walk(g, rng_mix(seed, size, data[0]), 30, &text)) {
            ASSERT(!json_read(buf_str(&text), text.len, "output", &value, NULL));
        }
        json_decref(value);
        buf_free(&text);
    }
    grammar_release(g);
    json_decref(schema);
    return 0;
}

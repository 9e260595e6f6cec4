/* fuzz_grammar_tag.c - any JSON as a structural tag
 *
 * What is refused says why; what compiles gives outputs through its masks.
 */
#include <stdint.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/rng.h"
#include "support/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *tag;
    struct grammar *g;
    fathom_diag d = {""};
    const struct grammar_vocab *v = fuzz_vocab();
    if (json_read((const char *)data, size, "tag", &tag, NULL)) return 0;
    fathom_err err = grammar_from_tag(&g, v, tag, NULL, &d);
    ASSERT(err == FATHOM_OK || err == FATHOM_EINVAL || err == FATHOM_EUNSUPPORTED ||
           err == FATHOM_EFORMAT || err == FATHOM_ELIMIT);
    ASSERT(err == FATHOM_OK || (d.text[0] != '\0' && !g));
    for (uint64_t seed = 0; seed < 2 && !err; seed++) {
        struct buf text = {0};
        (void)fuzz_walk(g, rng_mix(seed, size, 1), 12, &text);
        buf_free(&text);
    }
    grammar_release(g);
    json_decref(tag);
    return 0;
}

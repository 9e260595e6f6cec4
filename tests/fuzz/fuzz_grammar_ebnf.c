/* fuzz_grammar_ebnf.c - any bytes as a grammar, in GBNF or Lark's notation
 *
 * What is refused says why, in one line; what compiles gives outputs through its masks that it
 * takes byte by byte.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "support/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g;
    fathom_diag d = {""};
    fathom_err err = grammar_from_ebnf(&g, fuzz_vocab(), (const char *)data, size, &d);
    ASSERT(err == FATHOM_OK || err == FATHOM_EINVAL || err == FATHOM_EUNSUPPORTED ||
           err == FATHOM_ELIMIT);
    ASSERT(err == FATHOM_OK || (d.text[0] != '\0' && !strchr(d.text, '\n') && !g));
    for (uint64_t seed = 0; seed < 2 && !err; seed++) {
        struct buf text = {0};
        struct matcher *m;
        if (fuzz_walk(g, rng_mix(seed, size, 1), 6, &text)) {
            ASSERT(!matcher_create(&m, g, NULL, 0));
            ASSERT(!matcher_accept_bytes(m, buf_str(&text), text.len) && matcher_can_end(m));
            matcher_destroy(m);
        }
        buf_free(&text);
    }
    grammar_release(g);
    return 0;
}

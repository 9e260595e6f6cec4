/* fuzz_grammar_regex.c - any bytes as a pattern
 *
 * What is refused says why; what compiles gives outputs through its masks that the pattern's own
 * automaton accepts.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "grammar/regex.h"
#include "support/grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dfa full, search;
    fathom_diag d = {""};
    struct grammar *g;
    const char *pattern = (const char *)data;
    fathom_err err = regex_compile(&full, pattern, size, REGEX_FULL, NULL, &d);
    ASSERT(err == FATHOM_OK || d.text[0] != '\0');
    if (err) return 0;
    if (!regex_compile(&search, pattern, size, REGEX_SEARCH, NULL, &d)) dfa_free(&search);
    err = grammar_from_regex(&g, fuzz_vocab(), pattern, size, &d);
    ASSERT(err == FATHOM_OK || err == FATHOM_ELIMIT ||
           (err == FATHOM_EINVAL && dfa_is_empty(&full)));
    for (uint64_t seed = 0; seed < 2 && !err; seed++) {
        struct buf text = {0};
        if (fuzz_walk(g, rng_mix(seed, size, 1), 30, &text)) {
            ASSERT(dfa_accepts_text(&full, buf_str(&text), text.len));
        }
        buf_free(&text);
    }
    grammar_release(g);
    dfa_free(&full);
    return 0;
}

/* grammar_fuzz.h - a vocabulary and a walk for the fuzzers of grammars */
#ifndef FATHOM_SUPPORT_GRAMMAR_FUZZ_H
#define FATHOM_SUPPORT_GRAMMAR_FUZZ_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "grammar/grammar.h"

/* fuzz_vocab - of the pilot tokenizer, made at the first call */
const struct grammar_vocab *fuzz_vocab(void);

/* fuzz_walk - up to n_step drawn tokens; each mask is not empty and what it allows is taken, a copy
 * included. True when the output came to its end; text then has it. */
bool fuzz_walk(struct grammar *g, uint64_t seed, uint32_t n_step, struct buf *text);

#endif

/* grammar_data.h - vocabularies, walks and brute force for the tests of grammars */
#ifndef FATHOM_SUPPORT_GRAMMAR_DATA_H
#define FATHOM_SUPPORT_GRAMMAR_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "grammar/grammar.h"

struct grammar_data {
    struct tokenizer *t;
    struct grammar_vocab *v;
    int32_t eos;
    size_t n_word;
    uint32_t *words; /* [n_word] scratch */
};

/* grammar_data_open - a tokenizer.json; the pilot's or V3's of tokenizer_data.h */
void grammar_data_open(struct grammar_data *g, const char *path);
void grammar_data_close(struct grammar_data *g);

/* grammar_data_set_up_* - *state is one of the pilot's tokenizer, or of V3's, for a group of tests;
 * grammar_data_tear_down - gives it back. Both return 0. */
int grammar_data_set_up_pilot(void **state);
int grammar_data_set_up_v3(void **state);
int grammar_data_tear_down(void **state);

/* grammar_of_schema - compile schema text; fails the test with the message when it cannot */
struct grammar *grammar_of_schema(const struct grammar_data *g, const char *schema,
                                  const struct grammar_options *options);

struct matcher *matcher_of(const struct grammar_data *g, struct grammar *grammar);

/* matcher_takes - whether the bytes, from the beginning, are a whole output */
bool matcher_takes(const struct grammar_data *g, struct grammar *grammar, const char *text,
                   size_t n);

/* matcher_takes_tokens - the same for the tokens of a text, markers as such or as text; each
 * token's bit of the mask before it must say whether it is taken */
bool matcher_takes_tokens(const struct grammar_data *g, struct grammar *grammar, const char *text,
                          enum tokenizer_markup markup);

/* mask_is_exact - the mask against every token (each `stride`-th, from `first` on) tried alone */
bool mask_is_exact(const struct grammar_data *g, struct grammar *grammar, const struct matcher *m,
                   int32_t first, int32_t stride);

/* walk_step - draw one allowed token, take it and append its text; false: it was EOS. `hurry`
 * prefers what comes to an end. */
bool walk_step(const struct grammar_data *g, struct matcher *m, uint64_t *rng, bool hurry,
               struct buf *text);

/* walk - from the beginning to EOS */
void walk(const struct grammar_data *g, struct grammar *grammar, uint64_t *rng, uint32_t n_free,
          struct buf *text);

#endif

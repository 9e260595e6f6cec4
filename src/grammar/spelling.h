/* spelling.h - texts as bytes: code points as edges over UTF-8, and the inside of a JSON string */
#ifndef FATHOM_GRAMMAR_SPELLING_H
#define FATHOM_GRAMMAR_SPELLING_H

#include "grammar/automaton.h"

/* Where characters lead to. The states before it, which wait for one to three more bytes of any
 * value, are shared; 0: not made yet. */
struct spell_target {
    uint32_t state;
    uint32_t before[4];
};

/* spell_text - the UTF-8 of every scalar value of lo .. hi from `from` to to->state */
void spell_text(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, struct spell_target *to);

/* spell_json - the same inside a JSON string, as json.dumps(ensure_ascii=False) writes it: quotes,
 * backslashes and control characters are escaped, the rest stands as it is */
void spell_json(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, struct spell_target *to);

/* spell_json_string - all that may stand in a JSON string, RFC 8259, from after the opening quote
 * to the closing one: UTF-8 without control characters, and escapes. Surrogates come in pairs only,
 * so that what is written is text.
 *
 * State 0, the hub, stands between characters. Its edge by '"' leads to the only accepting state;
 * each of its other edges begins a character.
 * Errors  ENOMEM; ELIMIT for more than max_state states. */
fathom_err spell_json_string(struct dfa *out, uint32_t max_state);

#endif

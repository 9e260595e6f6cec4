/* grammar_utf8.h - code points as edges over bytes */
#ifndef FATHOM_CHAT_GRAMMAR_UTF8_H
#define FATHOM_CHAT_GRAMMAR_UTF8_H

#include "chat/grammar_fa.h"

/* Where characters lead to. The states before it, which wait for one to three more bytes of any
 * value, are shared; 0: not made yet. */
struct utf8_target {
    uint32_t state;
    uint32_t before[4];
};

/* utf8_put - the UTF-8 of every scalar value of lo .. hi from `from` to to->state */
void utf8_put(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, struct utf8_target *to);

/* utf8_put_json - the same inside a JSON string, spelled as json.dumps(ensure_ascii=False) does:
 * '"',
 * '\' and control characters escaped, the rest as it is */
void utf8_put_json(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, struct utf8_target *to);

#endif

/* pretok.h - cutting text into the pieces that merging works on
 *
 * A list of patterns, each applied to every piece so far: a match becomes a piece of its own, and
 * so does what lies between matches. The patterns run through PCRE2. DeepSeek's list is known by
 * its spelling and has a scanner of its own that gives the same pieces; a test holds the two
 * together. So has Kimi's pattern, which PCRE2 cannot read; stored ids hold it. Immutable after
 * pretok_open.
 */
#ifndef FATHOM_TOKENIZER_PRETOK_H
#define FATHOM_TOKENIZER_PRETOK_H

#include <stdbool.h>
#include <stddef.h>

#include "fathom/err.h"
#include "tokenizer/pretok_pattern.h"

struct pretok;

enum pretok_engine {
    PRETOK_ENGINE_AUTO,  /* the scanner where it applies */
    PRETOK_ENGINE_PCRE2, /* PCRE2 always */
};

/* pretok_open - compile patterns [n]
 *
 *   what  names the input in messages
 * Errors  EUNSUPPORTED, EFORMAT naming the pattern and the place; ELIMIT over LIMIT_SPLITS;
 *         ENOMEM. */
fathom_err pretok_open(struct pretok **out, const struct pretok_pattern *patterns, size_t n,
                       enum pretok_engine engine, const char *what, fathom_diag *d);
void pretok_close(struct pretok *p); /* accepts NULL */

/* pretok_has_scanner - whether the scanner does the work */
bool pretok_has_scanner(const struct pretok *p);

/* What a series of calls needs besides; zeroed: empty. Belongs to one thread. */
struct pretok_call {
    void *match;     /* PCRE2's match data, */
    void *context;   /* match context */
    void *jit_stack; /* and stack; NULL until the first use */
};

/* pretok_call_free - release and zero; accepts an empty one */
void pretok_call_free(struct pretok_call *c);

/* pretok_split - cut s[0 .. n), valid UTF-8, into pieces, in order and without loss
 *
 * Errors  what emit gives; ENOMEM; ELIMIT when PCRE2 gives up on the text. */
fathom_err pretok_split(const struct pretok *p, struct pretok_call *c, const char *s, size_t n,
                        pretok_emit *emit, void *arg);

#endif

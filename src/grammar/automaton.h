/* automaton.h - finite automata over numbers
 *
 * One kind of automaton serves two alphabets: code points, on which patterns and string lengths
 * are decided, and the symbols of a grammar (bytes, markers, calls; see grammar_int.h).
 */
#ifndef FATHOM_GRAMMAR_AUTOMATON_H
#define FATHOM_GRAMMAR_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "grammar/budget.h"

/* The alphabet of texts: the Unicode scalar values. */
enum { FA_SURROGATE_FIRST = 0xd800, FA_SURROGATE_LAST = 0xdfff, FA_CODE_POINT_LAST = 0x10ffff };

/* ---- nondeterministic (NFA) ------------------------------------------------------------- */

/* Only an edge of kind SYMBOLS takes a symbol. A BEGIN edge may be followed only at the first
 * position of the text, an END edge only at its end. */
enum nfa_edge_kind { NFA_SYMBOLS, NFA_EPSILON, NFA_BEGIN, NFA_END };

struct nfa_edge {
    enum nfa_edge_kind kind;
    uint32_t lo, hi; /* NFA_SYMBOLS: all of lo .. hi */
    uint32_t to;
    int32_t next; /* of the same state and list; -1: last */
};

/* The newest edges of a state: of those that take a symbol, and of the others. -1: none. */
struct nfa_heads {
    int32_t symbols, links;
};

/* States are numbers from 0. A call after a failure does nothing and gives state 0, so a caller may
 * draw a whole automaton and look at err once. Released with nfa_free. */
struct nfa {
    struct nfa_heads *heads; /* [n_state] */
    struct nfa_edge *edges;
    uint32_t n_state, n_edge;
    size_t cap_state, cap_edge;
    uint32_t max_state;            /* more is ELIMIT, and so are 8 times as many edges */
    fathom_err err;                /* the first failure */
    struct grammar_budget *budget; /* borrowed; pays for drawing, and for the DFAs made of it */
};

/* nfa_init - no states; budget: NULL, or outlives *n. nfa_free - release and zero */
void nfa_init(struct nfa *n, uint32_t max_state, struct grammar_budget *budget);
void nfa_free(struct nfa *n);

/* nfa_state - a new state. nfa_edge - by each symbol of lo .. hi. nfa_link - by none. */
uint32_t nfa_state(struct nfa *n);
void nfa_edge(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);
void nfa_link(struct nfa *n, uint32_t from, enum nfa_edge_kind kind, uint32_t to);

/* nfa_any - an edge for every code point */
void nfa_any(struct nfa *n, uint32_t from, uint32_t to);

/* nfa_text - the code points of n bytes of UTF-8, one after the other; returns the state after them
 */
uint32_t nfa_text(struct nfa *nfa, uint32_t from, const char *text, size_t n);

/* ---- deterministic (DFA) ---------------------------------------------------------------- */

struct dfa_edge {
    uint32_t lo, hi;
    uint32_t to;
};

/* Invariants: state 0 is the start; the edges of state s are edges[first[s] .. first[s + 1]),
 * ascending and disjoint; from every state but the start an accepting one can be reached. A zeroed
 * struct is empty. Released with dfa_free. */
struct dfa {
    uint32_t n_state, n_edge;
    uint32_t *first; /* [n_state + 1] */
    struct dfa_edge *edges;
    uint8_t *accept; /* [n_state] */
    size_t cap_first, cap_edge, cap_accept;
};

/* dfa_free - release and zero */
void dfa_free(struct dfa *d);

enum dfa_kind {
    DFA_WHOLE, /* the words from start to accept */
    DFA_FIRST, /* of these words, those that have no other of them as a proper prefix */
    DFA_OPEN,  /* the accept state loops on every symbol: what follows it does not matter */
};

/* Work memory of a construction, by NFA state. A caller who builds many automata out of one NFA
 * keeps it between them. A zeroed struct is empty; released with dfa_work_free. */
struct dfa_work {
    uint32_t *seen;  /* [cap] number of the latest closure that has the state */
    uint32_t *stack; /* [cap] */
    uint32_t *list;  /* [cap] states of the closure under construction */
    uint32_t cap;
    uint32_t closure;
};

/* dfa_work_free - release and zero */
void dfa_work_free(struct dfa_work *w);

/* dfa_build - the subset construction
 *
 *   n              no failure yet
 *   start, accept  states of n
 *   max_state      more states: ELIMIT
 *   work           may be NULL
 * Errors  ENOMEM, ELIMIT; ECANCEL of the budget of n; *out is then empty.
 * Cost    states times the edges that leave them, sorted, and a closure for each interval between
 *         the ends of these edges. */
fathom_err dfa_build(struct dfa *out, const struct nfa *n, uint32_t start, uint32_t accept,
                     enum dfa_kind kind, uint32_t max_state, struct dfa_work *work);

/* dfa_intersect - the words of both. dfa_negate - the texts (words over code points) that d does
 * not accept. *out must not be an operand. Errors as dfa_build, with the budget given. */
fathom_err dfa_intersect(struct dfa *out, const struct dfa *a, const struct dfa *b,
                         uint32_t max_state, struct grammar_budget *budget);
fathom_err dfa_negate(struct dfa *out, const struct dfa *d, struct grammar_budget *budget);

/* dfa_lengths - all texts of lo to hi characters; hi = UINT32_MAX: no end */
fathom_err dfa_lengths(struct dfa *out, uint32_t lo, uint32_t hi, uint32_t max_state,
                       struct grammar_budget *budget);

/* dfa_copy - an automaton of its own that is equal to d */
fathom_err dfa_copy(struct dfa *out, const struct dfa *d, struct grammar_budget *budget);

/* dfa_is_empty - no word at all */
bool dfa_is_empty(const struct dfa *d);

/* dfa_step - the state after one symbol, -1: none */
int64_t dfa_step(const struct dfa *d, uint32_t state, uint32_t symbol);

/* dfa_accepts_text - whether n bytes of UTF-8, as code points, are a word */
bool dfa_accepts_text(const struct dfa *d, const char *text, size_t n);

/* dfa_is_open - the state accepts, and every text leads back to it */
bool dfa_is_open(const struct dfa *d, uint32_t state);

/* dfa_put - draw d into n: its start is linked from state `from`, its accepting states are linked
 * to `to`. Symbols stay as they are. */
void dfa_put(struct nfa *n, const struct dfa *d, uint32_t from, uint32_t to);

#endif

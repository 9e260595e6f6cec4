/* ebnf_int.h - a grammar in EBNF as a tree: what its readers make and the drawing takes
 *
 *   ebnf.c       the tree: nodes, names, messages; what both notations have in common
 *   ebnf_gbnf.c  the notation of llama.cpp and xgrammar
 *   ebnf_lark.c  the one of Lark
 *   ebnf_plan.c  what of a rule its references need to know
 *   ebnf_put.c   the drawing, and beginnings of rules in themselves
 */
#ifndef FATHOM_GRAMMAR_EBNF_INT_H
#define FATHOM_GRAMMAR_EBNF_INT_H

#include "base/buf.h"
#include "grammar/builder.h"
#include "grammar/char_class.h"
#include "grammar/grammar_int.h"

enum {
    EBNF_NO_END = UINT32_MAX,   /* of a repetition */
    EBNF_SIZE_MAX = 1 << 30,    /* sizes are counted up to here */
    EBNF_BUCKETS = 1 << 14,     /* of names: twice as many as rules */
    EBNF_INLINE_DEPTH_MAX = 200 /* of a rule that is drawn where it stands, groups and rules */
};

enum ebnf_kind {
    EBNF_EMPTY,
    EBNF_TEXT,     /* a: first of its bytes, b: their number */
    EBNF_CLASS,    /* a: first of its ranges, b: their number */
    EBNF_REGEX,    /* a: its automaton */
    EBNF_RULE,     /* a: the rule, b: byte of the grammar where it is named */
    EBNF_SEQUENCE, /* children */
    EBNF_CHOICE,   /* children, one at least */
    EBNF_REPEAT,   /* one child; a: least, b: most or EBNF_NO_END */
};

/* Node 0 is empty; as a child or a neighbour it is none. */
struct ebnf_node {
    enum ebnf_kind kind;
    uint32_t child, next;
    uint32_t a, b;
};

struct ebnf_range {
    uint32_t lo, hi;
};

struct ebnf_rule {
    const char *name; /* [n_name] borrowed from the grammar, or static */
    uint32_t n_name;
    uint32_t at;   /* byte where it is defined; not defined: where it is named first */
    uint32_t node; /* its right side, of nodes [first, last); 0: it is not defined */
    uint32_t first, last;
    /* of the plan */
    uint32_t component; /* of rules that reach each other; UINT32_MAX: out of the root's reach */
    bool recursive, nullable, ends;
    bool inlined; /* drawn wherever it is named */
    uint32_t size, depth;
    uint32_t drawn; /* rule of the builder; UINT32_MAX: none yet */
};

struct ebnf {
    struct grammar_builder *b;
    fathom_diag *d;
    const char *text; /* [n] */
    size_t n;
    struct ebnf_node *nodes;
    uint32_t n_node;
    size_t cap_node;
    struct buf bytes; /* of texts */
    struct ebnf_range *ranges;
    uint32_t n_range;
    size_t cap_range;
    struct dfa *dfas;
    uint32_t n_dfa;
    size_t cap_dfa;
    struct ebnf_rule *rules;
    uint32_t n_rule;
    size_t cap_rule;
    uint32_t *buckets; /* [EBNF_BUCKETS] rule + 1; 0: empty */
    uint32_t root;
    uint32_t *order; /* [n_order] rules within reach, what they name before them */
    uint32_t n_order;
};

/* A place in the text of a reader. */
struct ebnf_reader {
    struct ebnf *e;
    const char *text;
    size_t n, at;
    uint32_t depth;
};

/* ---- tree (ebnf.c) ---------------------------------------------------------------------- */

/* ebnf_fail - the message with "grammar, line L, column C: " before it; returns err */
__attribute__((format(printf, 4, 5))) fathom_err ebnf_fail(const struct ebnf *e, size_t at,
                                                           fathom_err err, const char *format, ...);

/* ebnf_line - the line of a byte, from 1 */
uint32_t ebnf_line(const struct ebnf *e, size_t at);

/* ebnf_node - a new one; ELIMIT, ENOMEM, ECANCEL of the budget */
fathom_err ebnf_node(struct ebnf *e, enum ebnf_kind kind, uint32_t a, uint32_t b, uint32_t *out);

/* ebnf_text - a node of n bytes. ebnf_class - one of a normalised class */
fathom_err ebnf_text(struct ebnf *e, const char *bytes, size_t n, uint32_t *out);
fathom_err ebnf_class(struct ebnf *e, const struct char_class *c, uint32_t *out);

/* ebnf_regex - a node of a pattern that stands n bytes long at pattern */
fathom_err ebnf_regex(struct ebnf *e, const char *pattern, size_t n, size_t at, uint32_t *out);

/* ebnf_repeat - a node of `child`, lo to hi times */
fathom_err ebnf_repeat(struct ebnf *e, uint32_t child, uint32_t lo, uint32_t hi, uint32_t *out);

/* A list of children under construction. */
struct ebnf_list {
    uint32_t first, last, n;
};

void ebnf_append(struct ebnf *e, struct ebnf_list *list, uint32_t node);

/* ebnf_close - the list as one node of a kind; a list of one is its node, none is empty */
fathom_err ebnf_close(struct ebnf *e, const struct ebnf_list *list, enum ebnf_kind kind,
                      uint32_t *out);

/* ebnf_add_rule - one that no name leads to. ebnf_find_rule - that of a name, a new one when there
 * is none. at: where it stands first */
fathom_err ebnf_add_rule(struct ebnf *e, const char *name, size_t n, size_t at, uint32_t *out);
fathom_err ebnf_find_rule(struct ebnf *e, const char *name, size_t n, size_t at, uint32_t *out);

/* ebnf_define - the right side of a rule, whose nodes are those from `first` on; EINVAL when it has
 * one */
fathom_err ebnf_define(struct ebnf *e, uint32_t rule, size_t at, uint32_t first, uint32_t node);

/* ---- reading (ebnf.c) ------------------------------------------------------------------- */

bool ebnf_peek(const struct ebnf_reader *r, const char *literal);
bool ebnf_take(struct ebnf_reader *r, const char *literal);

/* ebnf_deeper - into a group; ELIMIT */
fathom_err ebnf_deeper(struct ebnf_reader *r);

/* ebnf_name - as many letters, digits, '_', '-' as there are, and a '.' between two of them when
 * dots */
size_t ebnf_name(const struct ebnf_reader *r, bool dots);

/* ebnf_character - one as it stands, or an escape; ebnf_escape - after its backslash */
fathom_err ebnf_character(struct ebnf_reader *r, uint32_t *cp);

/* ebnf_literal - the text between quotes, from before the first one on */
fathom_err ebnf_literal(struct ebnf_reader *r, struct buf *out);

/* ebnf_count - the numbers in {m}, {m,}, {m,n} or {,n}, from before the brace on */
fathom_err ebnf_count(struct ebnf_reader *r, uint32_t *lo, uint32_t *hi);

/* ebnf_check_counts - EINVAL, ELIMIT */
fathom_err ebnf_check_counts(struct ebnf_reader *r, size_t at, uint32_t lo, uint32_t hi);

/* ebnf_number - digits, up to EBNF_REPEAT_MAX + 1; false: there is none */
bool ebnf_number(struct ebnf_reader *r, uint32_t *value);

/* ebnf_read_gbnf, ebnf_read_lark - the whole grammar; e->root is its root, which is defined */
fathom_err ebnf_read_gbnf(struct ebnf *e);
fathom_err ebnf_read_lark(struct ebnf *e);

/* ---- plan and drawing ------------------------------------------------------------------- */

/* An ordering of n things that lead to others: those of thing i are to[first[i] .. first[i+1]). */
struct ebnf_graph {
    uint32_t n;
    uint32_t *first; /* [n + 1] */
    uint32_t *to;
    size_t cap_to;
};

/* ebnf_components - what is within reach of `root`, or of anything (UINT32_MAX), by components:
 * things that reach each other. A component comes after those it leads to.
 *
 *   order      [n] things; *n_order: how many
 *   component  [n] filled in; UINT32_MAX: out of reach
 * Errors  ENOMEM; ECANCEL of the budget */
fathom_err ebnf_components(const struct ebnf_graph *g, uint32_t root, struct grammar_budget *budget,
                           uint32_t *order, uint32_t *n_order, uint32_t *component);

/* ebnf_plan - fills in the rules within the root's reach
 *
 * Errors  EINVAL  a rule is named and not defined, or no text of it ever ends
 *         ELIMIT  more states than a grammar may have
 *         ENOMEM; ECANCEL of the budget */
fathom_err ebnf_plan(struct ebnf *e);

/* ebnf_put - the root, from `from` on; errors as grammar_put_ebnf */
fathom_err ebnf_put(struct ebnf *e, uint32_t from, uint32_t *to);

#endif

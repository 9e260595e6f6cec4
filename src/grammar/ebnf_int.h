/* ebnf_int.h - a grammar in EBNF as a tree, which is read from text and then drawn
 *
 *   ebnf.c       the tree: nodes, names, messages; what both notations have in common
 *   ebnf_gbnf.c  reads the notation of llama.cpp and xgrammar
 *   ebnf_lark.c  reads the notation of Lark
 *   ebnf_plan.c  decides how each rule is drawn
 *   ebnf_put.c   draws the rules, also those that begin with themselves
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
    EBNF_INLINE_DEPTH_MAX = 200 /* nodes inside one another, in a rule drawn where it is named */
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

/* Node 0 is empty; a child or next of 0 means that there is none. */
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
    /* filled in by ebnf_plan */
    uint32_t component;   /* number of its set of rules that reach each other; UINT32_MAX: the root
                           does not reach it */
    bool recursive;       /* it reaches itself */
    bool nullable;        /* a text of it may be empty */
    bool ends;            /* some text of it comes to an end */
    bool inlined;         /* drawn wherever it is named */
    uint32_t size, depth; /* about how many states it takes; nodes inside one another */
    uint32_t drawn;       /* rule of the builder; UINT32_MAX: none yet */
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
    uint32_t *order; /* [n_order] rules that the root reaches, each behind those it names */
    uint32_t n_order;
};

/* A reader, and where in the text it is. */
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

/* ebnf_node - add a node; ELIMIT, ENOMEM, ECANCEL of the budget */
fathom_err ebnf_node(struct ebnf *e, enum ebnf_kind kind, uint32_t a, uint32_t b, uint32_t *out);

/* ebnf_text - add a node of n bytes of text. ebnf_class - add one of a normalised class. */
fathom_err ebnf_text(struct ebnf *e, const char *bytes, size_t n, uint32_t *out);
fathom_err ebnf_class(struct ebnf *e, const struct char_class *c, uint32_t *out);

/* ebnf_regex - add a node of a pattern of n bytes, which stands at byte `at` of the grammar */
fathom_err ebnf_regex(struct ebnf *e, const char *pattern, size_t n, size_t at, uint32_t *out);

/* ebnf_repeat - add a node that repeats `child` lo to hi times */
fathom_err ebnf_repeat(struct ebnf *e, uint32_t child, uint32_t lo, uint32_t hi, uint32_t *out);

/* A list of children under construction. */
struct ebnf_list {
    uint32_t first, last, n;
};

void ebnf_append(struct ebnf *e, struct ebnf_list *list, uint32_t node);

/* ebnf_close - make the list one node of a kind. A list of one becomes that node, an empty list an
 * empty node. */
fathom_err ebnf_close(struct ebnf *e, const struct ebnf_list *list, enum ebnf_kind kind,
                      uint32_t *out);

/* ebnf_add_rule - add a rule that cannot be found by its name. ebnf_find_rule - the rule of this
 * name, which is added if it is new. at: where the name stands, for messages. */
fathom_err ebnf_add_rule(struct ebnf *e, const char *name, size_t n, size_t at, uint32_t *out);
fathom_err ebnf_find_rule(struct ebnf *e, const char *name, size_t n, size_t at, uint32_t *out);

/* ebnf_define - set the right side of a rule; its nodes are those from `first` on. EINVAL: it has
 * one already. */
fathom_err ebnf_define(struct ebnf *e, uint32_t rule, size_t at, uint32_t first, uint32_t node);

/* ---- reading (ebnf.c) ------------------------------------------------------------------- */

bool ebnf_peek(const struct ebnf_reader *r, const char *literal);
bool ebnf_take(struct ebnf_reader *r, const char *literal);

/* ebnf_deeper - enter a group; ELIMIT: they are nested too deep */
fathom_err ebnf_deeper(struct ebnf_reader *r);

/* ebnf_name - how many bytes of a name stand here: letters, digits, '_', '-'; with `dots` also a
 * '.' between two of them */
size_t ebnf_name(const struct ebnf_reader *r, bool dots);

/* ebnf_character - read a character, or an escape with its backslash */
fathom_err ebnf_character(struct ebnf_reader *r, uint32_t *cp);

/* ebnf_literal - read a text in quotes, from its opening quote on */
fathom_err ebnf_literal(struct ebnf_reader *r, struct buf *out);

/* ebnf_count - read {m}, {m,}, {m,n} or {,n}, from the opening brace on */
fathom_err ebnf_count(struct ebnf_reader *r, uint32_t *lo, uint32_t *hi);

/* ebnf_check_counts - check the numbers of a repetition; EINVAL, ELIMIT */
fathom_err ebnf_check_counts(struct ebnf_reader *r, size_t at, uint32_t lo, uint32_t hi);

/* ebnf_number - read digits; a number above EBNF_REPEAT_MAX comes out as some number above it.
 * False: there are no digits. */
bool ebnf_number(struct ebnf_reader *r, uint32_t *value);

/* ebnf_read_gbnf, ebnf_read_lark - read the whole grammar and set e->root, which is defined then */
fathom_err ebnf_read_gbnf(struct ebnf *e);
fathom_err ebnf_read_lark(struct ebnf *e);

/* ---- plan and drawing ------------------------------------------------------------------- */

/* A graph of n things. Thing i leads to those in to[first[i] .. first[i+1]). */
struct ebnf_graph {
    uint32_t n;
    uint32_t *first; /* [n + 1] */
    uint32_t *to;
    size_t cap_to;
};

/* ebnf_components - find the components of a graph: sets of things that reach each other. Only what
 * `root` reaches is looked at; with UINT32_MAX for a root, everything.
 *
 *   order      [n] filled with *n_order things, component by component. A component stands behind
 *              those it leads to
 *   component  [n] filled with the number of each thing's component; UINT32_MAX: not reached
 * Errors  ENOMEM; ECANCEL of the budget */
fathom_err ebnf_components(const struct ebnf_graph *g, uint32_t root, struct grammar_budget *budget,
                           uint32_t *order, uint32_t *n_order, uint32_t *component);

/* ebnf_plan - fill in what ebnf_put needs to know of the rules that the root reaches
 *
 * Errors  EINVAL  a rule is named and not defined, or no text of it ever ends
 *         ELIMIT  more states than a grammar may have
 *         ENOMEM; ECANCEL of the budget */
fathom_err ebnf_plan(struct ebnf *e);

/* ebnf_put - draw the root from `from` on; errors as grammar_put_ebnf */
fathom_err ebnf_put(struct ebnf *e, uint32_t from, uint32_t *to);

#endif

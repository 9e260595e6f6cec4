/* ebnf_put.c - draws a grammar in EBNF as ebnf_plan.c has planned it
 *
 * A rule that comes back to itself becomes a rule of the builder, and references to it become
 * calls. A called rule must not be empty, and no rule may begin with itself (grammar_link.c).
 * Therefore
 *
 *   1. where a rule may be empty, a link leads past each call of it, and the rule itself is changed
 *      so that it is never empty;
 *   2. rules that begin with one another become one automaton. Take A = B x | "a", B = A y | "b".
 *      An A starts with "a", which ends an A, or with "b", which ends a B. From the end of a B, x
 *      leads to the end of an A; from the end of an A, y leads to the end of a B.
 *
 * For both, a component gets a new begin state, to which the edges are copied that leave the
 * closure of its rules' old begin states. Calls within the component are not copied: each becomes a
 * link from the end of the called rule to where the call leads. Nothing else leads to a begin state
 * or leaves an end.
 */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "grammar/ebnf_int.h"
#include "grammar/spelling.h"

/* Units (budget.h). */
enum { UNITS_NODE = 20, UNITS_STEP = 6, UNITS_EDGE = 20 };

/* An edge with which a rule begins. */
struct first_edge {
    uint32_t lo, hi, to;
    uint32_t rule; /* a call of one of `rules`: which one; UINT32_MAX: another edge */
};

struct drawing {
    struct ebnf *e;
    struct grammar_builder *b;
    uint32_t *rules; /* [n_rule] the rules that are rules of the builder too */
    uint32_t n_rule;
    /* for the begin states */
    uint32_t *index; /* [rules of b] place in `rules`; UINT32_MAX: it is not drawn here */
    uint32_t *seen; /* [states of b] the latest rule, counted from 1, whose closure has the state */
    uint32_t *stack; /* [states of b] */
    struct first_edge *edges;
    uint32_t n_edge;
    size_t cap_edge;
    uint32_t *first; /* [n_rule + 1] of edges */
};

/* ---- nodes ------------------------------------------------------------------------------ */

static uint32_t put_node(struct drawing *x, uint32_t from, uint32_t i);

static uint32_t put_class(struct drawing *x, uint32_t from, const struct ebnf_node *node)
{
    struct spell_target to = {.state = grammar_add_state(x->b)};
    const struct ebnf_range *ranges = x->e->ranges + node->a;
    for (uint32_t i = 0; i < node->b; i++) {
        spell_text(&x->b->nfa, from, ranges[i].lo, ranges[i].hi, &to);
    }
    return to.state;
}

static uint32_t put_reference(struct drawing *x, uint32_t from, uint32_t rule)
{
    struct ebnf_rule *r = &x->e->rules[rule];
    if (r->inlined) return put_node(x, from, r->node);
    if (r->drawn == UINT32_MAX) {
        r->drawn = grammar_add_rule(x->b);
        x->rules[x->n_rule++] = rule;
    }
    uint32_t to = grammar_put_rule(x->b, from, r->drawn);
    if (r->nullable) grammar_join(x->b, from, to);
    return to;
}

/* Draws one copy after the other; without an upper bound, a link loops back over the last one. */
static uint32_t put_repeat(struct drawing *x, uint32_t from, const struct ebnf_node *node)
{
    struct grammar_builder *b = x->b;
    uint32_t lo = node->a, hi = node->b, child = node->child;
    uint32_t n_copy = hi != EBNF_NO_END ? hi : lo ? lo : 1;
    uint32_t to = grammar_add_state(b), at = from, inner = from;
    for (uint32_t i = 0; i < n_copy && !b->nfa.err; i++) {
        inner = grammar_add_state(b);
        grammar_join(b, at, inner);
        if (i >= lo) grammar_join(b, at, to);
        at = put_node(x, inner, child);
    }
    if (hi == EBNF_NO_END) grammar_join(b, at, inner);
    grammar_join(b, at, to);
    return to;
}

static uint32_t put_node(struct drawing *x, uint32_t from, uint32_t i)
{
    const struct ebnf *e = x->e;
    const struct ebnf_node node = e->nodes[i];
    struct grammar_builder *b = x->b;
    uint32_t to = from;
    if (!b->nfa.err) b->nfa.err = budget_spend(&b->budget, UNITS_NODE);
    if (b->nfa.err) return 0;
    switch (node.kind) {
    case EBNF_EMPTY: break;
    case EBNF_TEXT: to = grammar_put_text(b, from, buf_str(&e->bytes) + node.a, node.b); break;
    case EBNF_CLASS: to = put_class(x, from, &node); break;
    case EBNF_REGEX: to = grammar_put_dfa(b, from, &e->dfas[node.a]); break;
    case EBNF_RULE: to = put_reference(x, from, node.a); break;
    case EBNF_REPEAT: to = put_repeat(x, from, &node); break;
    case EBNF_SEQUENCE:
        for (uint32_t c = node.child; c; c = e->nodes[c].next) to = put_node(x, to, c);
        break;
    case EBNF_CHOICE:
        to = grammar_add_state(b);
        for (uint32_t c = node.child; c; c = e->nodes[c].next) {
            grammar_join(b, put_node(x, from, c), to);
        }
        break;
    }
    return to;
}

/* ---- beginnings ------------------------------------------------------------------------- */

/* Collects the edges that leave the closure of a rule's begin state. */
static fathom_err gather_first(struct drawing *x, uint32_t rule)
{
    struct nfa *n = &x->b->nfa;
    uint32_t n_stack = 0;
    x->stack[n_stack++] = grammar_rule_begin(x->b, x->e->rules[x->rules[rule]].drawn);
    x->seen[x->stack[0]] = rule + 1;
    while (n_stack > 0) {
        const struct nfa_heads heads = n->heads[x->stack[--n_stack]];
        TRY(budget_spend(&x->b->budget, UNITS_STEP));
        for (int32_t i = heads.links; i >= 0; i = n->edges[i].next) {
            uint32_t to = n->edges[i].to;
            TRY(budget_spend(&x->b->budget, UNITS_STEP));
            if (x->seen[to] == rule + 1) continue;
            x->seen[to] = rule + 1;
            x->stack[n_stack++] = to;
        }
        for (int32_t i = heads.symbols; i >= 0; i = n->edges[i].next) {
            const struct nfa_edge *edge = &n->edges[i];
            uint32_t called =
                edge->lo < SYMBOL_CALL ? UINT32_MAX : x->index[edge->lo - SYMBOL_CALL];
            TRY(budget_spend(&x->b->budget, UNITS_EDGE));
            TRY(mem_grow(&x->edges, &x->cap_edge, (size_t)x->n_edge + 1, sizeof *x->edges));
            x->edges[x->n_edge++] = (struct first_edge){edge->lo, edge->hi, edge->to, called};
        }
    }
    x->first[rule + 1] = x->n_edge;
    return FATHOM_OK;
}

static fathom_err gather_all(struct drawing *x)
{
    size_t n_state = x->b->nfa.n_state, n_rule = x->b->n_rule;
    TRY(budget_spend(&x->b->budget, (n_state + n_rule) * UNITS_STEP));
    x->index = mem_alloc_array(n_rule + 1, sizeof *x->index);
    x->seen = mem_calloc(n_state + 1, sizeof *x->seen);
    x->stack = mem_alloc_array(n_state + 1, sizeof *x->stack);
    x->first = mem_calloc((size_t)x->n_rule + 1, sizeof *x->first);
    if (!x->index || !x->seen || !x->stack || !x->first) return FATHOM_ENOMEM;
    for (size_t i = 0; i < n_rule; i++) x->index[i] = UINT32_MAX;
    for (uint32_t i = 0; i < x->n_rule; i++) x->index[x->e->rules[x->rules[i]].drawn] = i;
    for (uint32_t i = 0; i < x->n_rule; i++) TRY(gather_first(x, i));
    return FATHOM_OK;
}

/* Gives the rules members[0 .. n), a component, a new begin state. A component of one rule gets one
 * only if that rule begins with itself or may be empty. */
static void renew_begins(struct drawing *x, const uint32_t *members, uint32_t n,
                         const uint32_t *component)
{
    struct grammar_builder *b = x->b;
    bool wanted = n > 1;
    for (uint32_t e = x->first[members[0]]; e < x->first[members[0] + 1]; e++) {
        wanted |= x->edges[e].rule == members[0];
    }
    if (!wanted && !x->e->rules[x->rules[members[0]]].nullable) return;
    uint32_t begin = grammar_add_state(b);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t e = x->first[members[i]]; e < x->first[members[i] + 1]; e++) {
            const struct first_edge *edge = &x->edges[e];
            if (edge->rule != UINT32_MAX && component[edge->rule] == component[members[0]]) {
                uint32_t called = x->e->rules[x->rules[edge->rule]].drawn;
                grammar_join(b, grammar_rule_end(b, called), edge->to);
            } else {
                nfa_edge(&b->nfa, begin, edge->lo, edge->hi, edge->to);
            }
        }
    }
    for (uint32_t i = 0; i < n && !b->nfa.err; i++) {
        b->rules[x->e->rules[x->rules[members[i]]].drawn].begin = begin;
    }
}

static fathom_err settle_beginnings(struct drawing *x)
{
    struct ebnf_graph g = {.n = x->n_rule};
    uint32_t n_to = 0, n_order = 0, n = x->n_rule;
    TRY(gather_all(x));
    uint32_t *order = mem_calloc((size_t)n + 1, sizeof *order);
    uint32_t *component = mem_calloc((size_t)n + 1, sizeof *component);
    g.first = mem_calloc((size_t)n + 1, sizeof *g.first);
    g.to = mem_calloc((size_t)x->n_edge + 1, sizeof *g.to);
    fathom_err err = order && component && g.first && g.to ? FATHOM_OK : FATHOM_ENOMEM;
    for (uint32_t i = 0; i < n && !err; i++) {
        for (uint32_t e = x->first[i]; e < x->first[i + 1]; e++) {
            if (x->edges[e].rule != UINT32_MAX) g.to[n_to++] = x->edges[e].rule;
        }
        g.first[i + 1] = n_to;
    }
    if (!err) err = ebnf_components(&g, UINT32_MAX, &x->b->budget, order, &n_order, component);
    for (uint32_t begin = 0, end = 0; begin < n_order && !err; begin = end) {
        while (end < n_order && component[order[end]] == component[order[begin]]) end++;
        renew_begins(x, order + begin, end - begin, component);
    }
    mem_free(order);
    mem_free(component);
    mem_free(g.first);
    mem_free(g.to);
    return err;
}

/* ---- the whole -------------------------------------------------------------------------- */

static fathom_err draw(struct drawing *x, uint32_t from, uint32_t *to)
{
    struct grammar_builder *b = x->b;
    x->rules = mem_alloc_array(x->e->n_order, sizeof *x->rules);
    if (!x->rules) return FATHOM_ENOMEM;
    *to = put_reference(x, from, x->e->root);
    for (uint32_t i = 0; i < x->n_rule && !b->nfa.err; i++) {
        const struct ebnf_rule *r = &x->e->rules[x->rules[i]];
        uint32_t at = put_node(x, grammar_rule_begin(b, r->drawn), r->node);
        grammar_join(b, at, grammar_rule_end(b, r->drawn));
    }
    return b->nfa.err || x->n_rule == 0 ? FATHOM_OK : settle_beginnings(x);
}

fathom_err ebnf_put(struct ebnf *e, uint32_t from, uint32_t *to)
{
    struct drawing x = {.e = e, .b = e->b};
    ASSERT(e->n_order > 0 && e->rules[e->root].node);
    fathom_err err = draw(&x, from, to);
    mem_free(x.rules);
    mem_free(x.index);
    mem_free(x.seen);
    mem_free(x.stack);
    mem_free(x.edges);
    mem_free(x.first);
    return err;
}

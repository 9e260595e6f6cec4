/* tag_text.c - free text that ends where one of some texts occurs first
 *
 * The automaton of Aho and Corasick over code points: a state for each beginning of an awaited
 * text, the longest that the text so far ends with. It is deterministic, so the first occurrence
 * counts and no other, also where texts overlap.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/grammar_int.h"
#include "grammar/spelling.h"
#include "grammar/tag_int.h"

/* Units (budget.h). */
enum { UNITS_NODE = 60, UNITS_STEP = 6 };

/* A beginning; node 0 is the empty one. Nodes come after those that are shorter. */
struct node {
    uint32_t cp;
    uint32_t child, next; /* 0: none */
    uint32_t parent, fail;
    uint32_t depth;
    bool ends; /* some awaited text ends here, or one that this ends with */
};

struct text {
    struct grammar_builder *b;
    const struct tag_awaited *awaited;
    size_t n;
    struct node *nodes;
    uint32_t n_node;
    struct spell_target *targets; /* [n_node] */
    uint32_t *last;               /* [n] the node of an awaited text */
    uint32_t *list;               /* [n_node] code points */
};

static uint32_t find_child(const struct text *x, uint32_t node, uint32_t cp)
{
    uint32_t i = x->nodes[node].child;
    while (i && x->nodes[i].cp != cp) i = x->nodes[i].next;
    return i;
}

/* One more code point of an awaited text. */
static uint32_t add_child(struct text *x, uint32_t parent, uint32_t cp)
{
    uint32_t i = find_child(x, parent, cp);
    if (i) return i;
    i = x->n_node++;
    x->nodes[i] = (struct node){.cp = cp,
                                .next = x->nodes[parent].child,
                                .parent = parent,
                                .depth = x->nodes[parent].depth + 1};
    x->nodes[parent].child = i;
    return i;
}

/* The nodes of all texts, level by level. */
static fathom_err make_nodes(struct text *x)
{
    size_t at[TAG_AWAITED_MAX] = {0};
    bool more = true;
    for (size_t k = 0; k < x->n; k++) x->last[k] = 0;
    while (more) {
        more = false;
        for (size_t k = 0; k < x->n; k++) {
            const struct tag_awaited *a = &x->awaited[k];
            size_t len;
            if (at[k] == a->n) continue;
            TRY(budget_spend(&x->b->budget, UNITS_NODE));
            int32_t cp = utf8_next(a->text + at[k], a->n - at[k], &len);
            ASSERT(cp >= 0);
            x->last[k] = add_child(x, x->last[k], (uint32_t)cp);
            at[k] += len;
            more = true;
        }
    }
    for (size_t k = 0; k < x->n; k++) x->nodes[x->last[k]].ends = true;
    return FATHOM_OK;
}

/* The longest beginning that `node` and then cp end with. */
static uint32_t go(const struct text *x, uint32_t node, uint32_t cp)
{
    for (;; node = x->nodes[node].fail) {
        uint32_t to = find_child(x, node, cp);
        if (to || node == 0) return to;
    }
}

static fathom_err link_fails(struct text *x)
{
    for (uint32_t i = 1; i < x->n_node; i++) {
        struct node *node = &x->nodes[i];
        TRY(budget_spend(&x->b->budget, (uint64_t)node->depth * UNITS_STEP));
        if (node->depth > 1) node->fail = go(x, x->nodes[node->parent].fail, node->cp);
        node->ends |= x->nodes[node->fail].ends;
    }
    return FATHOM_OK;
}

/* A text within which another one ends never comes to its own end. */
static fathom_err check_reached(const struct text *x, fathom_diag *d)
{
    for (size_t k = 0; k < x->n; k++) {
        for (uint32_t i = x->nodes[x->last[k]].parent; i; i = x->nodes[i].parent) {
            if (!x->nodes[i].ends || x->awaited[k].chain == TAG_NOWHERE) continue;
            FAIL(d, FATHOM_EINVAL,
                 "structural tag: \"%.40s\" can never be met, another text that is awaited or "
                 "excluded stands within it",
                 x->awaited[k].text);
        }
    }
    return FATHOM_OK;
}

/* ---- edges ------------------------------------------------------------------------------ */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* From a free state: the code points that some beginning goes on with, and all others. */
static fathom_err put_edges(struct text *x, uint32_t i)
{
    struct nfa *nfa = &x->b->nfa;
    uint32_t from = x->targets[i].state, n = 0, next = 0;
    for (uint32_t k = i;; k = x->nodes[k].fail) {
        for (uint32_t c = x->nodes[k].child; c; c = x->nodes[c].next) {
            TRY(budget_spend(&x->b->budget, UNITS_STEP));
            if (n < x->n_node) x->list[n++] = x->nodes[c].cp;
        }
        if (k == 0) break;
    }
    qsort(x->list, n, sizeof *x->list, by_number);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t cp = x->list[k];
        if (k > 0 && cp == x->list[k - 1]) continue;
        if (cp > next) spell_text(nfa, from, next, cp - 1, &x->targets[0]);
        spell_text(nfa, from, cp, cp, &x->targets[go(x, i, cp)]);
        next = cp + 1;
    }
    if (next <= FA_CODE_POINT_LAST) {
        spell_text(nfa, from, next, FA_CODE_POINT_LAST, &x->targets[0]);
    }
    return FATHOM_OK;
}

static bool ends_with(const struct text *x, uint32_t i, uint32_t node)
{
    while (i != node && i != 0) i = x->nodes[i].fail;
    return i == node;
}

/* Added tokens that stand in a chain where the text at node `begun` has come to. */
static fathom_err put_markers(struct text *x, uint32_t begun, uint32_t chain)
{
    struct nfa *nfa = &x->b->nfa;
    for (uint32_t i = 0; i < x->n_node; i++) {
        TRY(budget_spend(&x->b->budget, UNITS_STEP));
        if (x->nodes[i].ends || nfa->err || !ends_with(x, i, begun)) continue;
        for (int32_t e = nfa->heads[chain].symbols; e >= 0; e = nfa->edges[e].next) {
            const struct nfa_edge edge = nfa->edges[e];
            if (edge.lo < SYMBOL_MARKER || edge.lo >= SYMBOL_CALL) continue;
            nfa_edge(nfa, x->targets[i].state, edge.lo, edge.hi, edge.to);
        }
    }
    return FATHOM_OK;
}

static bool has_markers(const struct nfa *nfa, uint32_t state)
{
    for (int32_t e = nfa->heads[state].symbols; e >= 0; e = nfa->edges[e].next) {
        if (nfa->edges[e].lo >= SYMBOL_MARKER) return true;
    }
    return false;
}

static fathom_err put_chains(struct text *x)
{
    struct nfa *nfa = &x->b->nfa;
    for (size_t k = 0; k < x->n && !nfa->err; k++) {
        const struct tag_awaited *a = &x->awaited[k];
        uint32_t node = 0;
        if (a->chain == TAG_NOWHERE) continue;
        for (size_t at = 0, len; at < a->n; at += len) {
            int32_t cp = utf8_next(a->text + at, a->n - at, &len);
            if (has_markers(nfa, a->chain + (uint32_t)at)) {
                TRY(put_markers(x, node, a->chain + (uint32_t)at));
            }
            node = find_child(x, node, (uint32_t)cp);
        }
        for (uint32_t i = 1; i < x->n_node; i++) {
            TRY(budget_spend(&x->b->budget, UNITS_STEP));
            if (!x->nodes[i].ends || !ends_with(x, i, x->last[k])) continue;
            grammar_join(x->b, x->targets[i].state, a->chain + (uint32_t)a->n);
        }
    }
    return FATHOM_OK;
}

/* ---- the whole -------------------------------------------------------------------------- */

static fathom_err put(struct text *x, uint32_t from, uint32_t *free, fathom_diag *d)
{
    TRY(make_nodes(x));
    TRY(link_fails(x));
    TRY(check_reached(x, d));
    for (uint32_t i = 0; i < x->n_node; i++) {
        x->targets[i] = (struct spell_target){.state = grammar_add_state(x->b)};
    }
    grammar_join(x->b, from, x->targets[0].state);
    *free = grammar_add_state(x->b);
    for (uint32_t i = 0; i < x->n_node && !x->b->nfa.err; i++) {
        if (x->nodes[i].ends) continue;
        grammar_join(x->b, x->targets[i].state, *free);
        TRY(put_edges(x, i));
    }
    return x->b->nfa.err ? FATHOM_OK : put_chains(x);
}

fathom_err tag_put_text(struct grammar_builder *b, uint32_t from, const struct tag_awaited *awaited,
                        size_t n, uint32_t *free, fathom_diag *d)
{
    struct text x = {.b = b, .awaited = awaited, .n = n, .n_node = 1};
    size_t n_byte = 0;
    for (size_t i = 0; i < n; i++) n_byte += awaited[i].n;
    if (n > TAG_AWAITED_MAX || n_byte > TAG_AWAITED_BYTES_MAX) {
        FAIL(d, FATHOM_ELIMIT,
             "structural tag: %zu triggers, ends and excluded texts of %zu bytes in one place, at "
             "most %d of %d are possible",
             n, n_byte, TAG_AWAITED_MAX, TAG_AWAITED_BYTES_MAX);
    }
    x.nodes = mem_calloc(n_byte + 1, sizeof *x.nodes);
    x.targets = mem_calloc(n_byte + 1, sizeof *x.targets);
    x.last = mem_calloc(n + 1, sizeof *x.last);
    x.list = mem_calloc(n_byte + 1, sizeof *x.list);
    fathom_err err = FATHOM_ENOMEM;
    if (x.nodes && x.targets && x.last && x.list) err = put(&x, from, free, d);
    mem_free(x.nodes);
    mem_free(x.targets);
    mem_free(x.last);
    mem_free(x.list);
    return err;
}

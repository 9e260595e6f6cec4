/* ebnf_plan.c - how each rule of a grammar in EBNF is drawn
 *
 * Rules are looked at component by component, those that a rule names before it. Whether a rule may
 * be empty, and whether some text of it ever ends, is found for a whole component at once: all
 * start as "no", and are looked at until nothing changes.
 *
 * A rule that does not come back to itself is drawn wherever it is named, unless it is large. The
 * subset construction then merges beginnings that rules have in common, and a mask needs no calls.
 * What counts as large is lowered until all drawings together are small enough.
 */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "grammar/ebnf_int.h"

/* Units (budget.h). */
enum { UNITS_LOOK = 8, UNITS_GRAPH = 30 };

/* How many states of the NFA all rules may take together before smaller ones become calls. */
enum { DRAWN_MAX = 1 << 16 };

/* ---- components ------------------------------------------------------------------------- */

/* Tarjan's algorithm for strongly connected components, without recursion. */
struct components {
    const struct ebnf_graph *g;
    uint32_t *index; /* [n] the order in which things were met, from 1; 0: not met yet */
    uint32_t *low;   /* [n] the lowest index that it is known to lead back to */
    uint32_t *open;  /* [n_open] things that were met and are in no component yet */
    uint32_t *path;  /* [n_path] from the root to where the walk stands */
    uint32_t *edge;  /* [n] of a thing on the path: its next edge to be looked at */
    uint32_t n_met, n_open, n_path, n_component;
    uint32_t *order, *n_order, *component;
};

static void meet(struct components *x, uint32_t v)
{
    x->index[v] = x->low[v] = ++x->n_met;
    x->open[x->n_open++] = v;
    x->path[x->n_path++] = v;
    x->edge[v] = x->g->first[v];
}

static uint32_t lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* All edges of the last thing on the path have been looked at: it is taken off the path. */
static void leave(struct components *x)
{
    uint32_t v = x->path[--x->n_path], last;
    if (x->n_path > 0) {
        uint32_t above = x->path[x->n_path - 1];
        x->low[above] = lower(x->low[above], x->low[v]);
    }
    if (x->low[v] != x->index[v]) return;
    do {
        last = x->open[--x->n_open];
        x->component[last] = x->n_component;
        x->order[(*x->n_order)++] = last;
    } while (last != v);
    x->n_component++;
}

static void walk_from(struct components *x, uint32_t root)
{
    const uint32_t *first = x->g->first, *to = x->g->to;
    ASSERT(first[x->g->n] == 0 || to);
    if (x->index[root]) return;
    meet(x, root);
    while (x->n_path > 0) {
        uint32_t v = x->path[x->n_path - 1];
        if (!to || x->edge[v] == first[v + 1]) {
            leave(x);
            continue;
        }
        uint32_t w = to[x->edge[v]++];
        if (!x->index[w]) {
            meet(x, w);
        } else if (x->component[w] == UINT32_MAX) {
            x->low[v] = lower(x->low[v], x->index[w]);
        }
    }
}

fathom_err ebnf_components(const struct ebnf_graph *g, uint32_t root, struct grammar_budget *budget,
                           uint32_t *order, uint32_t *n_order, uint32_t *component)
{
    struct components x = {.g = g, .order = order, .n_order = n_order, .component = component};
    uint32_t n = g->n;
    *n_order = 0;
    TRY(budget_spend(budget, ((uint64_t)n + g->first[n]) * UNITS_GRAPH));
    uint32_t *all = mem_calloc((size_t)n * 5 + 1, sizeof *all);
    if (!all) return FATHOM_ENOMEM;
    x.index = all;
    x.low = all + n;
    x.open = all + 2 * (size_t)n;
    x.path = all + 3 * (size_t)n;
    x.edge = all + 4 * (size_t)n;
    for (uint32_t i = 0; i < n; i++) component[i] = UINT32_MAX;
    if (root != UINT32_MAX) walk_from(&x, root);
    for (uint32_t i = 0; i < n && root == UINT32_MAX; i++) walk_from(&x, i);
    mem_free(all);
    return FATHOM_OK;
}

/* ---- which may be empty, which may end -------------------------------------------------- */

static bool may_be_empty(const struct ebnf *e, uint32_t i)
{
    const struct ebnf_node *node = &e->nodes[i];
    bool all = true, any = false;
    switch (node->kind) {
    case EBNF_EMPTY: return true;
    case EBNF_TEXT: return node->b == 0;
    case EBNF_CLASS: return false;
    case EBNF_REGEX: return e->dfas[node->a].accept[0];
    case EBNF_RULE: return e->rules[node->a].nullable;
    case EBNF_REPEAT: return node->a == 0 || may_be_empty(e, node->child);
    case EBNF_SEQUENCE:
    case EBNF_CHOICE: break;
    }
    for (uint32_t c = node->child; c; c = e->nodes[c].next) {
        bool empty = may_be_empty(e, c);
        all &= empty;
        any |= empty;
    }
    return node->kind == EBNF_SEQUENCE ? all : any;
}

static bool may_end(const struct ebnf *e, uint32_t i)
{
    const struct ebnf_node *node = &e->nodes[i];
    bool all = true, any = false;
    switch (node->kind) {
    case EBNF_EMPTY:
    case EBNF_TEXT:
    case EBNF_CLASS:
    case EBNF_REGEX: return true;
    case EBNF_RULE: return e->rules[node->a].ends;
    case EBNF_REPEAT: return node->a == 0 || may_end(e, node->child);
    case EBNF_SEQUENCE:
    case EBNF_CHOICE: break;
    }
    for (uint32_t c = node->child; c; c = e->nodes[c].next) {
        bool ends = may_end(e, c);
        all &= ends;
        any |= ends;
    }
    return node->kind == EBNF_SEQUENCE ? all : any;
}

/* Sets nullable and ends of the rules order[begin .. end), which are a component. */
static fathom_err settle_component(struct ebnf *e, uint32_t begin, uint32_t end)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = begin; i < end; i++) {
            struct ebnf_rule *r = &e->rules[e->order[i]];
            TRY(budget_spend(&e->b->budget, (uint64_t)(r->last - r->first + 1) * UNITS_LOOK));
            bool nullable = may_be_empty(e, r->node), ends = may_end(e, r->node);
            changed |= nullable != r->nullable || ends != r->ends;
            r->nullable = nullable;
            r->ends = ends;
        }
        if (!e->rules[e->order[begin]].recursive) break;
    }
    for (uint32_t i = begin; i < end; i++) {
        const struct ebnf_rule *r = &e->rules[e->order[i]];
        if (r->ends) continue;
        return ebnf_fail(e, r->at, FATHOM_EINVAL,
                         "no text of rule \"%.*s\" ever ends: each of its ways comes back to it",
                         (int)r->n_name, r->name);
    }
    return FATHOM_OK;
}

/* ---- sizes ------------------------------------------------------------------------------ */

static uint32_t capped(uint64_t size)
{
    return size < EBNF_SIZE_MAX ? (uint32_t)size : EBNF_SIZE_MAX;
}

/* About how many states a node takes when it is drawn. *depth: how deep its nodes are nested. */
static uint32_t size_of(const struct ebnf *e, uint32_t i, uint32_t *depth)
{
    const struct ebnf_node *node = &e->nodes[i];
    uint64_t size = 1, n_copy = 1;
    uint32_t inner = 0;
    if (node->kind == EBNF_TEXT) size += node->b;
    if (node->kind == EBNF_CLASS) size += 2 * (uint64_t)node->b;
    if (node->kind == EBNF_REGEX) size += e->dfas[node->a].n_edge + e->dfas[node->a].n_state;
    if (node->kind == EBNF_RULE && e->rules[node->a].inlined) {
        size += e->rules[node->a].size;
        inner = e->rules[node->a].depth;
    }
    if (node->kind == EBNF_REPEAT) {
        n_copy = node->b == EBNF_NO_END ? (node->a ? node->a : 1) : node->b;
    }
    for (uint32_t c = node->child; c; c = e->nodes[c].next) {
        uint32_t own;
        size += n_copy * size_of(e, c, &own);
        if (own > inner) inner = own;
    }
    *depth = inner + 1;
    return capped(size);
}

/* Decides that rules of up to `most` states are drawn wherever they are named, and counts the
 * states that all drawings then take. */
static fathom_err measure(struct ebnf *e, uint32_t most, uint64_t *all)
{
    *all = 0;
    for (uint32_t i = 0; i < e->n_order; i++) {
        struct ebnf_rule *r = &e->rules[e->order[i]];
        TRY(budget_spend(&e->b->budget, (uint64_t)(r->last - r->first + 1) * UNITS_LOOK));
        r->size = size_of(e, r->node, &r->depth);
        r->inlined = !r->recursive && r->size <= most && r->depth <= EBNF_INLINE_DEPTH_MAX;
        if (!r->inlined || e->order[i] == e->root) *all += r->size;
    }
    return FATHOM_OK;
}

static fathom_err choose_inlined(struct ebnf *e)
{
    static const uint32_t steps[] = {4096, 512, 64, 8, 0};
    uint64_t all = UINT64_MAX;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && all > DRAWN_MAX; i++) {
        TRY(measure(e, steps[i], &all));
    }
    if (all <= BUILDER_STATES_MAX) return FATHOM_OK;
    const struct ebnf_rule *largest = &e->rules[e->root];
    for (uint32_t i = 0; i < e->n_order; i++) {
        const struct ebnf_rule *r = &e->rules[e->order[i]];
        if (r->size > largest->size) largest = r;
    }
    return ebnf_fail(e, largest->at, FATHOM_ELIMIT,
                     "the grammar is too large: more than %d states, most of them in rule "
                     "\"%.*s\"; repeat fewer times",
                     BUILDER_STATES_MAX, (int)largest->n_name, largest->name);
}

/* ---- the whole -------------------------------------------------------------------------- */

/* Makes the graph of rules and the rules they name. */
static fathom_err draw_graph(struct ebnf *e, struct ebnf_graph *g)
{
    uint32_t n_to = 0;
    g->n = e->n_rule;
    TRY(budget_spend(&e->b->budget, ((uint64_t)e->n_node + e->n_rule) * UNITS_LOOK));
    g->first = mem_calloc((size_t)g->n + 1, sizeof *g->first);
    if (!g->first) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < e->n_rule; i++) {
        struct ebnf_rule *r = &e->rules[i];
        for (uint32_t k = r->first; k < r->last; k++) {
            if (e->nodes[k].kind != EBNF_RULE) continue;
            TRY(mem_grow(&g->to, &g->cap_to, (size_t)n_to + 1, sizeof *g->to));
            g->to[n_to++] = e->nodes[k].a;
            r->recursive |= e->nodes[k].a == i;
        }
        g->first[i + 1] = n_to;
    }
    return FATHOM_OK;
}

static fathom_err check_defined(const struct ebnf *e)
{
    const struct ebnf_rule *first = NULL;
    for (uint32_t i = 0; i < e->n_rule; i++) {
        const struct ebnf_rule *r = &e->rules[i];
        if (!r->node && (!first || r->at < first->at)) first = r;
    }
    if (!first) return FATHOM_OK;
    return ebnf_fail(e, first->at, FATHOM_EINVAL, "rule \"%.*s\" is not defined",
                     (int)first->n_name, first->name);
}

static fathom_err find_order(struct ebnf *e)
{
    struct ebnf_graph g = {0};
    uint32_t *component = mem_calloc((size_t)e->n_rule + 1, sizeof *component);
    e->order = mem_calloc((size_t)e->n_rule + 1, sizeof *e->order);
    fathom_err err = component && e->order ? draw_graph(e, &g) : FATHOM_ENOMEM;
    if (!err) {
        err = ebnf_components(&g, e->root, &e->b->budget, e->order, &e->n_order, component);
    }
    for (uint32_t i = 0; i < e->n_rule && !err; i++) e->rules[i].component = component[i];
    mem_free(component);
    mem_free(g.first);
    mem_free(g.to);
    return err;
}

fathom_err ebnf_plan(struct ebnf *e)
{
    TRY(check_defined(e));
    TRY(find_order(e));
    for (uint32_t begin = 0, end = 0; begin < e->n_order; begin = end) {
        uint32_t component = e->rules[e->order[begin]].component;
        while (end < e->n_order && e->rules[e->order[end]].component == component) end++;
        for (uint32_t i = begin; i < end && end - begin > 1; i++) {
            e->rules[e->order[i]].recursive = true;
        }
        TRY(settle_component(e, begin, end));
    }
    return choose_inlined(e);
}

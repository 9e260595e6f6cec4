/* automaton.c - NFA, subset construction, products */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

/* ---- NFA -------------------------------------------------------------------------------- */

/* Units (budget.h). None is smaller than the number of bytes that it keeps. */
enum {
    UNITS_NFA_STATE = 8,
    UNITS_NFA_EDGE = 24,
    UNITS_DFA_STATE = 40,
    UNITS_DFA_EDGE = 30, /* made, trimmed, marked */
    UNITS_STEP = 4,      /* an edge or a state looked at */
    UNITS_MEMBER = 14,   /* a member of a subset: put in order, hashed, compared, kept */
    UNITS_FIND = 60,     /* a subset is looked up */
    UNITS_WORK_STATE = 12,
};

void nfa_init(struct nfa *n, uint32_t max_state, struct grammar_budget *budget)
{
    *n = (struct nfa){.max_state = max_state, .budget = budget};
}

void nfa_free(struct nfa *n)
{
    mem_free(n->heads);
    mem_free(n->edges);
    *n = (struct nfa){0};
}

uint32_t nfa_state(struct nfa *n)
{
    if (!n->err && n->n_state >= n->max_state) n->err = FATHOM_ELIMIT;
    if (!n->err) n->err = budget_spend(n->budget, UNITS_NFA_STATE);
    if (!n->err) n->err = mem_grow(&n->heads, &n->cap_state, n->n_state + 1, sizeof *n->heads);
    if (n->err) return 0;
    n->heads[n->n_state] = (struct nfa_heads){-1, -1};
    return n->n_state++;
}

static void add_edge(struct nfa *n, uint32_t from, struct nfa_edge edge)
{
    if (!n->err && n->n_edge >= (uint64_t)n->max_state * 8) n->err = FATHOM_ELIMIT;
    if (!n->err) n->err = budget_spend(n->budget, UNITS_NFA_EDGE);
    if (!n->err) n->err = mem_grow(&n->edges, &n->cap_edge, n->n_edge + 1, sizeof *n->edges);
    if (n->err) return;
    struct nfa_heads *heads = &n->heads[from];
    int32_t *head = edge.kind == NFA_SYMBOLS ? &heads->symbols : &heads->links;
    edge.next = *head;
    *head = (int32_t)n->n_edge;
    n->edges[n->n_edge++] = edge;
}

void nfa_edge(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    add_edge(n, from, (struct nfa_edge){NFA_SYMBOLS, lo, hi, to, -1});
}

void nfa_link(struct nfa *n, uint32_t from, enum nfa_edge_kind kind, uint32_t to)
{
    add_edge(n, from, (struct nfa_edge){kind, 0, 0, to, -1});
}

void nfa_any(struct nfa *n, uint32_t from, uint32_t to)
{
    nfa_edge(n, from, 0, FA_SURROGATE_FIRST - 1, to);
    nfa_edge(n, from, FA_SURROGATE_LAST + 1, FA_CODE_POINT_LAST, to);
}

uint32_t nfa_text(struct nfa *nfa, uint32_t from, const char *text, size_t n)
{
    for (size_t i = 0, len; i < n && !nfa->err; i += len) {
        int32_t cp = utf8_next(text + i, n - i, &len);
        uint32_t next = nfa_state(nfa);
        if (cp >= 0) nfa_edge(nfa, from, (uint32_t)cp, (uint32_t)cp, next);
        from = next;
    }
    return from;
}

/* ---- DFA -------------------------------------------------------------------------------- */

void dfa_free(struct dfa *d)
{
    mem_free(d->first);
    mem_free(d->edges);
    mem_free(d->accept);
    *d = (struct dfa){0};
}

/* States are begun in order and get their edges before the next one begins. */
static fathom_err dfa_begin_state(struct dfa *d, bool accept)
{
    TRY(mem_grow(&d->first, &d->cap_first, d->n_state + 2, sizeof *d->first));
    TRY(mem_grow(&d->accept, &d->cap_accept, d->n_state + 1, sizeof *d->accept));
    d->first[d->n_state] = d->n_edge;
    d->accept[d->n_state] = accept;
    d->first[++d->n_state] = d->n_edge;
    return FATHOM_OK;
}

/* Appends to the newest state; an edge that continues the one before is joined to it. */
static fathom_err dfa_add_edge(struct dfa *d, uint32_t lo, uint32_t hi, uint32_t to)
{
    uint32_t begin = d->first[d->n_state - 1];
    if (d->n_edge > begin) {
        struct dfa_edge *last = &d->edges[d->n_edge - 1];
        if (last->to == to && last->hi + 1 == lo) {
            last->hi = hi;
            return FATHOM_OK;
        }
    }
    TRY(mem_grow(&d->edges, &d->cap_edge, d->n_edge + 1, sizeof *d->edges));
    d->edges[d->n_edge++] = (struct dfa_edge){lo, hi, to};
    d->first[d->n_state] = d->n_edge;
    return FATHOM_OK;
}

/* Marks the states that can reach an accepting one. Walks backwards, over edges sorted by
 * target. */
static fathom_err mark_live(const struct dfa *d, uint8_t *live)
{
    fathom_err err = FATHOM_OK;
    uint32_t *first = mem_calloc((size_t)d->n_state + 2, sizeof *first);
    uint32_t *from = mem_alloc_array((size_t)d->n_edge + 1, sizeof *from);
    uint32_t *stack = mem_alloc_array((size_t)d->n_state + 1, sizeof *stack);
    if (!first || !from || !stack) TRY_GOTO(FATHOM_ENOMEM, out);
    for (uint32_t e = 0; e < d->n_edge; e++) first[d->edges[e].to + 2]++;
    for (uint32_t s = 0; s < d->n_state; s++) first[s + 2] += first[s + 1];
    for (uint32_t s = 0; s < d->n_state; s++) {
        for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++) {
            from[first[d->edges[e].to + 1]++] = s;
        }
    }
    uint32_t n_stack = 0;
    for (uint32_t s = 0; s < d->n_state; s++) {
        live[s] = d->accept[s];
        if (live[s]) stack[n_stack++] = s;
    }
    while (n_stack > 0) {
        uint32_t s = stack[--n_stack];
        for (uint32_t e = first[s]; e < first[s + 1]; e++) {
            if (live[from[e]]) continue;
            live[from[e]] = 1;
            stack[n_stack++] = from[e];
        }
    }
out:
    mem_free(first);
    mem_free(from);
    mem_free(stack);
    return err;
}

/* Removes states from which nothing is accepted; the start stays. */
static fathom_err dfa_trim(struct dfa *d)
{
    fathom_err err = FATHOM_OK;
    uint8_t *live = mem_calloc(d->n_state, 1);
    uint32_t *renamed = mem_alloc_array(d->n_state, sizeof *renamed);
    if (!live || !renamed) TRY_GOTO(FATHOM_ENOMEM, out);
    TRY_GOTO(mark_live(d, live), out);
    uint32_t n_state = 0, n_edge = 0;
    for (uint32_t s = 0; s < d->n_state; s++) {
        if (s == 0 || live[s]) renamed[s] = n_state++;
    }
    for (uint32_t s = 0; s < d->n_state; s++) {
        uint32_t begin = d->first[s], end = d->first[s + 1];
        if (s > 0 && !live[s]) continue;
        d->first[renamed[s]] = n_edge;
        d->accept[renamed[s]] = d->accept[s];
        for (uint32_t e = begin; e < end; e++) {
            struct dfa_edge edge = d->edges[e];
            if (!live[edge.to]) continue;
            edge.to = renamed[edge.to];
            d->edges[n_edge++] = edge;
        }
    }
    d->n_state = n_state;
    d->n_edge = n_edge;
    d->first[n_state] = n_edge;
out:
    mem_free(live);
    mem_free(renamed);
    return err;
}

/* ---- numbering of sets ------------------------------------------------------------------ */

/* Gives each different list of numbers an index. A hash table with open addressing. */
struct numbering {
    uint32_t *items;
    uint32_t n_item;
    size_t cap_item;
    uint32_t *begin; /* [n_list + 1] */
    uint32_t n_list;
    size_t cap_list;
    uint32_t *buckets; /* index + 1; 0: empty */
    uint32_t n_bucket; /* a power of two */
};

static void numbering_free(struct numbering *x)
{
    mem_free(x->items);
    mem_free(x->begin);
    mem_free(x->buckets);
}

static uint64_t hash_list(const uint32_t *list, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) h = rng_hash(h ^ list[i]);
    return h;
}

static fathom_err numbering_rehash(struct numbering *x)
{
    uint32_t n_bucket = x->n_bucket ? x->n_bucket * 2 : 256;
    uint32_t *buckets = mem_calloc(n_bucket, sizeof *buckets);
    if (!buckets) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < x->n_list; i++) {
        uint32_t n = x->begin[i + 1] - x->begin[i];
        uint64_t at = hash_list(x->items + x->begin[i], n) & (n_bucket - 1);
        while (buckets[at]) at = (at + 1) & (n_bucket - 1);
        buckets[at] = i + 1;
    }
    mem_free(x->buckets);
    x->buckets = buckets;
    x->n_bucket = n_bucket;
    return FATHOM_OK;
}

/* The index of a list; a list that has not been seen gets a new one. */
static fathom_err numbering_find(struct numbering *x, const uint32_t *list, uint32_t n,
                                 uint32_t *index)
{
    if (x->n_list * 2 >= x->n_bucket) TRY(numbering_rehash(x));
    uint64_t at = hash_list(list, n) & (x->n_bucket - 1);
    for (; x->buckets[at]; at = (at + 1) & (x->n_bucket - 1)) {
        uint32_t i = x->buckets[at] - 1;
        ASSERT(i < x->n_list);
        if (x->begin[i + 1] - x->begin[i] != n) continue;
        if (n && memcmp(x->items + x->begin[i], list, n * sizeof *list) != 0) continue;
        *index = i;
        return FATHOM_OK;
    }
    TRY(mem_grow(&x->begin, &x->cap_list, x->n_list + 2, sizeof *x->begin));
    TRY(mem_grow(&x->items, &x->cap_item, x->n_item + n, sizeof *x->items));
    if (n) memcpy(x->items + x->n_item, list, n * sizeof *list);
    x->begin[x->n_list] = x->n_item;
    x->n_item += n;
    x->begin[x->n_list + 1] = x->n_item;
    x->buckets[at] = ++x->n_list;
    *index = x->n_list - 1;
    return FATHOM_OK;
}

/* ---- subset construction ---------------------------------------------------------------- */

/* A subset holds the NFA states that matter: those with symbols or an END edge, and accept. */
struct subsets {
    const struct nfa *n;
    uint32_t accept;
    enum dfa_kind kind;
    struct numbering sets;
    struct dfa_work *work;
    uint32_t n_list;        /* of work->list */
    struct nfa_edge *edges; /* leaving the current subset */
    uint32_t n_edge;
    size_t cap_edge;
    uint32_t *points; /* where some edge begins or has ended */
    size_t cap_point;
    uint64_t units; /* to be paid */
};

static fathom_err pay(struct subsets *x)
{
    uint64_t units = x->units;
    x->units = 0;
    return budget_spend(x->n->budget, units);
}

static void subsets_free(struct subsets *x)
{
    numbering_free(&x->sets);
    mem_free(x->edges);
    mem_free(x->points);
}

void dfa_work_free(struct dfa_work *w)
{
    mem_free(w->seen);
    mem_free(w->stack);
    mem_free(w->list);
    *w = (struct dfa_work){0};
}

static fathom_err work_reserve(struct dfa_work *w, uint32_t n, struct grammar_budget *budget)
{
    if (n <= w->cap) return FATHOM_OK;
    TRY(budget_spend(budget, (uint64_t)n * UNITS_WORK_STATE));
    dfa_work_free(w);
    w->seen = mem_calloc(n, sizeof *w->seen);
    w->stack = mem_alloc_array(n, sizeof *w->stack);
    w->list = mem_alloc_array(n, sizeof *w->list);
    if (!w->seen || !w->stack || !w->list) return FATHOM_ENOMEM;
    w->cap = n;
    return FATHOM_OK;
}

/* Adds state s and what edges without a symbol lead to from there. kinds: a bit for each kind of
 * edge that is followed. States that make no difference are left out of the list. */
static void close_over(struct subsets *x, uint32_t s, unsigned kinds)
{
    struct dfa_work *w = x->work;
    uint32_t n_stack = 0;
    if (w->seen[s] == w->closure) return;
    w->seen[s] = w->closure;
    w->stack[n_stack++] = s;
    while (n_stack > 0) {
        uint32_t at = w->stack[--n_stack];
        const struct nfa_heads *heads = &x->n->heads[at];
        bool matters = at == x->accept || heads->symbols >= 0;
        x->units += UNITS_STEP;
        for (int32_t e = heads->links; e >= 0; e = x->n->edges[e].next) {
            const struct nfa_edge *edge = &x->n->edges[e];
            x->units += UNITS_STEP;
            if (edge->kind == NFA_END) matters = true;
            if (!(kinds & (1u << edge->kind))) continue;
            if (w->seen[edge->to] == w->closure) continue;
            w->seen[edge->to] = w->closure;
            w->stack[n_stack++] = edge->to;
        }
        if (matters) w->list[x->n_list++] = at;
    }
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void begin_closure(struct subsets *x)
{
    x->work->closure++;
    x->n_list = 0;
}

static fathom_err number_closure(struct subsets *x, uint32_t *index)
{
    struct dfa_work *w = x->work;
    if (x->kind == DFA_OPEN) {
        for (uint32_t i = 0; i < x->n_list; i++) {
            if (w->list[i] != x->accept) continue;
            w->list[0] = x->accept;
            x->n_list = 1;
        }
    }
    uint32_t in_order = 1;
    while (in_order < x->n_list && w->list[in_order - 1] < w->list[in_order]) in_order++;
    x->units += UNITS_FIND + (uint64_t)x->n_list * UNITS_MEMBER;
    if (in_order < x->n_list) x->units += budget_sort(x->n_list);
    TRY(pay(x));
    if (in_order < x->n_list) qsort(w->list, x->n_list, sizeof *w->list, by_number);
    return numbering_find(&x->sets, w->list, x->n_list, index);
}

/* Whether a text that ends in this subset is accepted. */
static bool subset_accepts(struct subsets *x, uint32_t index)
{
    begin_closure(x);
    for (uint32_t i = x->sets.begin[index]; i < x->sets.begin[index + 1]; i++) {
        close_over(x, x->sets.items[i], 1u << NFA_EPSILON | 1u << NFA_END);
    }
    return x->work->seen[x->accept] == x->work->closure;
}

static int by_low_end(const void *a, const void *b)
{
    const struct nfa_edge *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorts the edges by their low end, unless they are in order already, as they often are. */
static fathom_err sort_edges(struct subsets *x)
{
    uint32_t i = 1;
    while (i < x->n_edge && x->edges[i - 1].lo <= x->edges[i].lo) i++;
    x->units += (uint64_t)x->n_edge * 2 * UNITS_STEP;
    if (i < x->n_edge) x->units += 3 * budget_sort(x->n_edge);
    TRY(pay(x));
    if (i < x->n_edge) qsort(x->edges, x->n_edge, sizeof *x->edges, by_low_end);
    return FATHOM_OK;
}

/* Collects the edges of a subset in ascending order, and the symbols at which the set of edges that
 * hold a symbol changes. */
static fathom_err gather_edges(struct subsets *x, uint32_t index, uint32_t *n_point)
{
    uint32_t n = 0, n_all = 0;
    x->n_edge = 0;
    for (uint32_t i = x->sets.begin[index]; i < x->sets.begin[index + 1]; i++) {
        int32_t e = x->n->heads[x->sets.items[i]].symbols;
        for (; e >= 0; e = x->n->edges[e].next) {
            TRY(mem_grow(&x->edges, &x->cap_edge, x->n_edge + 1, sizeof *x->edges));
            x->edges[x->n_edge++] = x->n->edges[e];
        }
    }
    TRY(sort_edges(x));
    TRY(mem_grow(&x->points, &x->cap_point, (size_t)x->n_edge * 2, sizeof *x->points));
    for (uint32_t i = 0; i < x->n_edge; i++) {
        const struct nfa_edge *e = &x->edges[i];
        if (i > 0 && e[-1].lo == e->lo && e[-1].hi == e->hi) continue;
        x->points[n_all++] = e->lo;
        x->points[n_all++] = e->hi + 1;
    }
    x->units += budget_sort(n_all);
    TRY(pay(x));
    if (n_all > 1) qsort(x->points, n_all, sizeof *x->points, by_number);
    for (uint32_t i = 0; i < n_all; i++) {
        if (n == 0 || x->points[n - 1] != x->points[i]) x->points[n++] = x->points[i];
    }
    *n_point = n;
    return FATHOM_OK;
}

/* The edges of DFA state `index`, which has just been begun. */
static fathom_err expand(struct subsets *x, uint32_t index, struct dfa *out)
{
    uint32_t n_point, first = 0;
    TRY(gather_edges(x, index, &n_point));
    for (uint32_t p = 0; p + 1 < n_point; p++) {
        uint32_t at = x->points[p], to;
        begin_closure(x);
        while (first < x->n_edge && x->edges[first].hi < at) first++;
        for (uint32_t e = first; e < x->n_edge && x->edges[e].lo <= at; e++) {
            x->units += UNITS_STEP;
            if (x->edges[e].hi >= at) close_over(x, x->edges[e].to, 1u << NFA_EPSILON);
        }
        if (x->n_list == 0) continue;
        x->units += UNITS_DFA_EDGE;
        TRY(number_closure(x, &to));
        TRY(dfa_add_edge(out, at, x->points[p + 1] - 1, to));
    }
    return FATHOM_OK;
}

fathom_err dfa_build(struct dfa *out, const struct nfa *n, uint32_t start, uint32_t accept,
                     enum dfa_kind kind, uint32_t max_state, struct dfa_work *work)
{
    struct dfa_work own = {0};
    struct subsets x = {.n = n, .accept = accept, .kind = kind, .work = work ? work : &own};
    uint32_t index = 0;
    fathom_err err = FATHOM_OK;
    *out = (struct dfa){0};
    ASSERT(!n->err && start < n->n_state && accept < n->n_state);
    TRY_GOTO(work_reserve(x.work, n->n_state, n->budget), out);
    begin_closure(&x);
    close_over(&x, start, 1u << NFA_EPSILON | 1u << NFA_BEGIN);
    TRY_GOTO(number_closure(&x, &index), out);
    for (index = 0; index < x.sets.n_list; index++) {
        if (index == max_state) TRY_GOTO(FATHOM_ELIMIT, out);
        x.units += UNITS_DFA_STATE;
        bool accepts = subset_accepts(&x, index);
        TRY_GOTO(dfa_begin_state(out, accepts), out);
        if (!accepts || kind != DFA_FIRST) TRY_GOTO(expand(&x, index, out), out);
        TRY_GOTO(pay(&x), out);
    }
    TRY_GOTO(dfa_trim(out), out);
out:
    subsets_free(&x);
    dfa_work_free(&own);
    if (err) dfa_free(out);
    return err;
}

/* ---- products --------------------------------------------------------------------------- */

static fathom_err add_common_edges(struct dfa *out, struct numbering *pairs, const struct dfa *a,
                                   const struct dfa *b, const uint32_t pair[2],
                                   struct grammar_budget *budget)
{
    uint32_t i = a->first[pair[0]], j = b->first[pair[1]];
    uint64_t n = (uint64_t)a->first[pair[0] + 1] - i + b->first[pair[1] + 1] - j;
    TRY(budget_spend(budget, UNITS_DFA_STATE + n * (UNITS_FIND + UNITS_DFA_EDGE)));
    while (i < a->first[pair[0] + 1] && j < b->first[pair[1] + 1]) {
        const struct dfa_edge *x = &a->edges[i], *y = &b->edges[j];
        uint32_t lo = x->lo > y->lo ? x->lo : y->lo;
        uint32_t hi = x->hi < y->hi ? x->hi : y->hi;
        if (lo <= hi) {
            uint32_t to, next[2] = {x->to, y->to};
            TRY(numbering_find(pairs, next, 2, &to));
            TRY(dfa_add_edge(out, lo, hi, to));
        }
        if (x->hi < y->hi) {
            i++;
        } else {
            j++;
        }
    }
    return FATHOM_OK;
}

fathom_err dfa_intersect(struct dfa *out, const struct dfa *a, const struct dfa *b,
                         uint32_t max_state, struct grammar_budget *budget)
{
    struct numbering pairs = {0};
    uint32_t index, start[2] = {0, 0};
    fathom_err err = FATHOM_OK;
    *out = (struct dfa){0};
    TRY_GOTO(numbering_find(&pairs, start, 2, &index), out);
    for (index = 0; index < pairs.n_list; index++) {
        uint32_t pair[2] = {pairs.items[2 * index], pairs.items[2 * index + 1]};
        if (index == max_state) TRY_GOTO(FATHOM_ELIMIT, out);
        TRY_GOTO(dfa_begin_state(out, a->accept[pair[0]] && b->accept[pair[1]]), out);
        TRY_GOTO(add_common_edges(out, &pairs, a, b, pair, budget), out);
    }
    TRY_GOTO(dfa_trim(out), out);
out:
    numbering_free(&pairs);
    if (err) dfa_free(out);
    return err;
}

/* All symbols of lo .. hi, without the surrogates, to one state. */
static fathom_err add_text_edges(struct dfa *out, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (lo < FA_SURROGATE_FIRST) {
        uint32_t end = hi < FA_SURROGATE_FIRST ? hi : FA_SURROGATE_FIRST - 1;
        TRY(dfa_add_edge(out, lo, end, to));
    }
    if (hi > FA_SURROGATE_LAST) {
        uint32_t begin = lo > FA_SURROGATE_LAST ? lo : FA_SURROGATE_LAST + 1;
        TRY(dfa_add_edge(out, begin, hi, to));
    }
    return FATHOM_OK;
}

static fathom_err negate_state(struct dfa *out, const struct dfa *d, uint32_t s)
{
    uint32_t sink = d->n_state, next = 0;
    TRY(dfa_begin_state(out, !d->accept[s]));
    for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++) {
        const struct dfa_edge *edge = &d->edges[e];
        if (edge->lo > next) TRY(add_text_edges(out, next, edge->lo - 1, sink));
        TRY(dfa_add_edge(out, edge->lo, edge->hi, edge->to));
        next = edge->hi + 1;
    }
    if (next <= FA_CODE_POINT_LAST) TRY(add_text_edges(out, next, FA_CODE_POINT_LAST, sink));
    return FATHOM_OK;
}

/* Pays for a copy of d, which the caller makes and may give some more edges. */
static fathom_err pay_for_copy(const struct dfa *d, struct grammar_budget *budget)
{
    return budget_spend(budget, ((uint64_t)d->n_state * 2 + 2) * UNITS_DFA_STATE +
                                    (uint64_t)d->n_edge * 2 * UNITS_DFA_EDGE);
}

fathom_err dfa_negate(struct dfa *out, const struct dfa *d, struct grammar_budget *budget)
{
    fathom_err err = FATHOM_OK;
    *out = (struct dfa){0};
    TRY(pay_for_copy(d, budget));
    for (uint32_t s = 0; s < d->n_state; s++) TRY_GOTO(negate_state(out, d, s), out);
    TRY_GOTO(dfa_begin_state(out, true), out);
    TRY_GOTO(add_text_edges(out, 0, FA_CODE_POINT_LAST, d->n_state), out);
    TRY_GOTO(dfa_trim(out), out);
out:
    if (err) dfa_free(out);
    return err;
}

fathom_err dfa_lengths(struct dfa *out, uint32_t lo, uint32_t hi, uint32_t max_state,
                       struct grammar_budget *budget)
{
    fathom_err err = FATHOM_OK;
    uint32_t last = hi == UINT32_MAX ? lo : hi;
    *out = (struct dfa){0};
    if (last >= max_state) TRY_GOTO(FATHOM_ELIMIT, out);
    TRY_GOTO(budget_spend(budget, (last + 1ull) * (UNITS_DFA_STATE + 2 * UNITS_DFA_EDGE)), out);
    for (uint32_t s = 0; s <= last; s++) {
        TRY_GOTO(dfa_begin_state(out, s >= lo), out);
        uint32_t to = s < last ? s + 1 : s;
        if (s == last && hi != UINT32_MAX) continue;
        TRY_GOTO(add_text_edges(out, 0, FA_CODE_POINT_LAST, to), out);
    }
    TRY_GOTO(dfa_trim(out), out);
out:
    if (err) dfa_free(out);
    return err;
}

fathom_err dfa_copy(struct dfa *out, const struct dfa *d, struct grammar_budget *budget)
{
    fathom_err err = FATHOM_OK;
    *out = (struct dfa){0};
    TRY(pay_for_copy(d, budget));
    for (uint32_t s = 0; s < d->n_state; s++) {
        TRY_GOTO(dfa_begin_state(out, d->accept[s]), out);
        for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++) {
            TRY_GOTO(dfa_add_edge(out, d->edges[e].lo, d->edges[e].hi, d->edges[e].to), out);
        }
    }
out:
    if (err) dfa_free(out);
    return err;
}

/* ---- questions -------------------------------------------------------------------------- */

bool dfa_is_empty(const struct dfa *d)
{
    return d->n_state == 0 || (!d->accept[0] && d->first[1] == d->first[0]);
}

int64_t dfa_step(const struct dfa *d, uint32_t state, uint32_t symbol)
{
    uint32_t lo = d->first[state], hi = d->first[state + 1];
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (d->edges[mid].hi < symbol) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == d->first[state + 1] || d->edges[lo].lo > symbol) return -1;
    return d->edges[lo].to;
}

bool dfa_accepts_text(const struct dfa *d, const char *text, size_t n)
{
    int64_t state = 0;
    for (size_t i = 0, len; i < n && state >= 0; i += len) {
        int32_t cp = utf8_next(text + i, n - i, &len);
        state = cp < 0 ? -1 : dfa_step(d, (uint32_t)state, (uint32_t)cp);
    }
    return state >= 0 && d->accept[state];
}

bool dfa_is_open(const struct dfa *d, uint32_t state)
{
    uint32_t n_symbol = 0;
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++) {
        if (d->edges[e].to != state) return false;
        n_symbol += d->edges[e].hi - d->edges[e].lo + 1;
    }
    uint32_t n_surrogate = FA_SURROGATE_LAST - FA_SURROGATE_FIRST + 1;
    return d->accept[state] && n_symbol == FA_CODE_POINT_LAST + 1 - n_surrogate;
}

void dfa_put(struct nfa *n, const struct dfa *d, uint32_t from, uint32_t to)
{
    uint32_t base = n->n_state;
    for (uint32_t s = 0; s < d->n_state; s++) (void)nfa_state(n);
    if (n->err) return;
    nfa_link(n, from, NFA_EPSILON, base);
    for (uint32_t s = 0; s < d->n_state; s++) {
        if (d->accept[s]) nfa_link(n, base + s, NFA_EPSILON, to);
        for (uint32_t e = d->first[s]; e < d->first[s + 1]; e++) {
            nfa_edge(n, base + s, d->edges[e].lo, d->edges[e].hi, base + d->edges[e].to);
        }
    }
}

/* grammar_link.c - drawn rules to one table of states
 *
 *   collect   each rule that the root reaches becomes an automaton, its states are appended
 *   prune     what cannot come to an end is removed; `need` of each state
 *   classify  FINAL, ENTRY; the bytes a rule begins with; no rule begins with itself
 *   follow    the bytes that may come after a rule
 *   number    states with many edges, and those inside a character, come first
 *   rows      and get a row of targets each, one for each class of bytes
 */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "grammar/grammar_int.h"

enum {
    NEED_NONE = UINT16_MAX, /* no way to the end */
    ENTRY_DEPTH_MAX = 100,  /* rules that begin with one another */
    ROW_EDGES_MIN = 4,
    UNITS_STATE = 160, /* see budget.h: a state kept and looked at by each pass */
    UNITS_EDGE = 40,   /* likewise */
    UNITS_LOOK = 6,    /* a state or an edge looked at once more */
};

struct linker {
    const struct grammar_builder *b;
    struct grammar *g;
    struct grammar_budget *budget;
    fathom_diag *d;
    struct dfa_work work;
    uint32_t *linked; /* [b->n_rule] the rule's number in g; NO_STATE: not reached */
    uint32_t *drawn;  /* [b->n_rule] and back */
    uint8_t *visit;   /* [n_rule] 0 new, 1 open, 2 done */
    size_t cap_state, cap_edge, cap_call, cap_mark;
};

static fathom_err too_large(struct linker *l)
{
    FAIL(l->d, FATHOM_ELIMIT,
         "the grammar is too large: more than %d states; use fewer or shorter alternatives",
         GRAMMAR_STATES_MAX);
}

/* ---- collect ---------------------------------------------------------------------------- */

/* The number of a drawn rule, which joins the list when it is new. */
static uint32_t link_rule(struct linker *l, uint32_t drawn)
{
    if (l->linked[drawn] == NO_STATE) {
        l->linked[drawn] = l->g->n_rule;
        l->drawn[l->g->n_rule++] = drawn;
    }
    return l->linked[drawn];
}

static fathom_err add_bytes(struct linker *l, struct state *s, uint32_t lo, uint32_t hi,
                            uint32_t to)
{
    struct grammar *g = l->g;
    TRY(mem_grow(&g->edges, &l->cap_edge, g->n_edge + 1, sizeof *g->edges));
    g->edges[g->n_edge++] = (struct byte_edge){(uint8_t)lo, (uint8_t)hi, to};
    s->n_edge++;
    return FATHOM_OK;
}

static fathom_err add_symbol(struct linker *l, struct state *s, uint32_t symbol, uint32_t to)
{
    struct grammar *g = l->g;
    if (symbol < SYMBOL_CALL) {
        TRY(mem_grow(&g->marks, &l->cap_mark, g->n_mark + 1, sizeof *g->marks));
        g->marks[g->n_mark++] = (struct mark_edge){symbol - SYMBOL_MARKER, to};
        s->n_mark++;
        return FATHOM_OK;
    }
    if (s->n_call == UINT16_MAX) return too_large(l);
    TRY(mem_grow(&g->calls, &l->cap_call, g->n_call + 1, sizeof *g->calls));
    g->calls[g->n_call++] = (struct call_edge){link_rule(l, symbol - SYMBOL_CALL), to};
    s->n_call++;
    return FATHOM_OK;
}

static fathom_err add_state(struct linker *l, const struct dfa *d, uint32_t state, uint32_t base,
                            uint32_t rule)
{
    struct grammar *g = l->g;
    if (g->n_state == GRAMMAR_STATES_MAX) return too_large(l);
    TRY(mem_grow(&g->states, &l->cap_state, g->n_state + 1, sizeof *g->states));
    struct state *s = &g->states[g->n_state++];
    *s = (struct state){.edge = g->n_edge,
                        .call = g->n_call,
                        .mark = g->n_mark,
                        .rule = rule,
                        .need = NEED_NONE,
                        .flags = d->accept[state] ? STATE_ACCEPT : 0};
    for (uint32_t e = d->first[state]; e < d->first[state + 1]; e++) {
        const struct dfa_edge *edge = &d->edges[e];
        uint32_t hi = edge->hi < SYMBOL_MARKER ? edge->hi : SYMBOL_MARKER - 1;
        if (edge->lo < SYMBOL_MARKER) TRY(add_bytes(l, s, edge->lo, hi, base + edge->to));
        uint32_t symbol = edge->lo < SYMBOL_MARKER ? SYMBOL_MARKER : edge->lo;
        for (; symbol <= edge->hi; symbol++) TRY(add_symbol(l, s, symbol, base + edge->to));
    }
    return FATHOM_OK;
}

/* Appends the states of rule number `rule`. */
static fathom_err collect_rule(struct linker *l, uint32_t rule, const struct dfa *d)
{
    struct grammar *g = l->g;
    const struct drawn_rule *r = &l->b->rules[l->drawn[rule]];
    uint32_t base = g->n_state;
    bool counted = r->is_text && (r->min > 0 || r->max != UINT32_MAX);
    TRY(budget_spend(l->budget,
                     (uint64_t)d->n_state * UNITS_STATE + (uint64_t)d->n_edge * UNITS_EDGE));
    if (d->accept[0] && rule != 0) {
        FAIL(l->d, FATHOM_EINVAL, "the grammar calls a rule that may be empty");
    }
    for (uint32_t s = 0; s < d->n_state; s++) {
        TRY(add_state(l, d, s, base, rule));
        if (!r->is_text) continue;
        struct state *state = &g->states[base + s];
        state->text = (uint8_t)s;
        if (!d->accept[s]) state->flags |= STATE_TEXT;
        if (s == 0 && counted) state->flags |= STATE_HUB;
    }
    g->rules[rule] = (struct rule){.start = base, .min = r->min, .max = r->max};
    return FATHOM_OK;
}

static fathom_err collect(struct linker *l)
{
    struct grammar *g = l->g;
    for (uint32_t rule = 0; rule < g->n_rule; rule++) {
        const struct drawn_rule *r = &l->b->rules[l->drawn[rule]];
        if (r->is_text) {
            TRY(collect_rule(l, rule, &l->b->vocab->text));
            continue;
        }
        struct dfa d;
        fathom_err err = dfa_build(&d, &l->b->nfa, r->begin, r->end, r->cut ? DFA_FIRST : DFA_WHOLE,
                                   GRAMMAR_STATES_MAX - g->n_state, &l->work);
        if (err == FATHOM_ELIMIT) return too_large(l);
        if (!err) err = collect_rule(l, rule, &d);
        dfa_free(&d);
        TRY(err);
    }
    return FATHOM_OK;
}

/* ---- prune ------------------------------------------------------------------------------ */

static uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Rules open at once on the way over a call; a call after which its caller ends opens none. */
static uint32_t need_of_call(const struct grammar *g, const struct call_edge *c)
{
    const struct state *to = &g->states[c->to];
    uint32_t inner = g->states[g->rules[c->rule].start].need;
    if (inner == NEED_NONE || to->need == NEED_NONE) return NEED_NONE;
    return max_of(inner + 1, to->need);
}

static uint32_t need_of_state(const struct grammar *g, const struct state *s)
{
    uint32_t need = s->flags & STATE_ACCEPT ? 0 : NEED_NONE;
    for (uint32_t i = 0; i < s->n_edge && need > 0; i++) {
        uint32_t x = g->states[g->edges[s->edge + i].to].need;
        if (x < need) need = x;
    }
    for (uint32_t i = 0; i < s->n_mark && need > 0; i++) {
        uint32_t x = g->states[g->marks[s->mark + i].to].need;
        if (x < need) need = x;
    }
    for (uint32_t i = 0; i < s->n_call && need > 0; i++) {
        uint32_t x = need_of_call(g, &g->calls[s->call + i]);
        if (x < need) need = x;
    }
    return need;
}

/* Removes edges of one state that lead nowhere. */
static void prune_state(struct grammar *g, struct state *s)
{
    uint16_t n = 0;
    for (uint32_t i = 0; i < s->n_edge; i++) {
        struct byte_edge e = g->edges[s->edge + i];
        if (g->states[e.to].need != NEED_NONE) g->edges[s->edge + n++] = e;
    }
    s->n_edge = n;
    n = 0;
    for (uint32_t i = 0; i < s->n_mark; i++) {
        struct mark_edge e = g->marks[s->mark + i];
        if (g->states[e.to].need != NEED_NONE) g->marks[s->mark + n++] = e;
    }
    s->n_mark = n;
    n = 0;
    for (uint32_t i = 0; i < s->n_call; i++) {
        struct call_edge e = g->calls[s->call + i];
        if (need_of_call(g, &e) != NEED_NONE) g->calls[s->call + n++] = e;
    }
    s->n_call = n;
}

/* For one more pass over all that is linked. */
static fathom_err pay_for_pass(struct linker *l)
{
    const struct grammar *g = l->g;
    uint64_t n = (uint64_t)g->n_state + g->n_edge + g->n_mark + g->n_call;
    return budget_spend(l->budget, n * UNITS_LOOK);
}

static fathom_err refuse_empty(struct linker *l)
{
    if (!l->b->narrowed) FAIL(l->d, FATHOM_EINVAL, "nothing satisfies the grammar");
    FAIL(
        l->d, FATHOM_EUNSUPPORTED,
        "nothing is left to write: of the keyword \"%s\" not all that the schema says is supported",
        l->b->narrowed);
}

static fathom_err prune(struct linker *l)
{
    struct grammar *g = l->g;
    for (bool changed = true; changed;) {
        changed = false;
        TRY(pay_for_pass(l));
        for (uint32_t i = g->n_state; i-- > 0;) {
            struct state *s = &g->states[i];
            uint32_t need = need_of_state(g, s);
            if (need >= s->need) continue;
            s->need = (uint16_t)need;
            changed = true;
        }
    }
    if (g->states[g->rules[0].start].need == NEED_NONE) return refuse_empty(l);
    for (uint32_t i = 0; i < g->n_state; i++) {
        struct state *s = &g->states[i];
        prune_state(g, s);
        if (s->need != NEED_NONE) g->need_max = max_of(g->need_max, s->need);
    }
    if (g->states[g->rules[0].start].need > GRAMMAR_DEPTH_MAX) {
        FAIL(l->d, FATHOM_EINVAL, "nothing satisfies the grammar in %d nested rules",
             GRAMMAR_DEPTH_MAX);
    }
    return FATHOM_OK;
}

/* ---- classify --------------------------------------------------------------------------- */

static void set_flags(struct grammar *g)
{
    for (uint32_t i = 0; i < g->n_state; i++) {
        struct state *s = &g->states[i];
        bool accepts = s->flags & STATE_ACCEPT;
        if (s->n_call) s->flags |= STATE_CALLS;
        if (s->n_edge || s->n_mark) continue;
        if (accepts && s->n_call == 0) s->flags |= STATE_FINAL;
        if (!accepts && s->n_call == 1) s->flags |= STATE_ENTRY;
    }
}

static void add_own_symbols(const struct grammar *g, const struct state *s, struct symbol_set *set)
{
    for (uint32_t i = 0; i < s->n_edge; i++) {
        const struct byte_edge *e = &g->edges[s->edge + i];
        for (uint32_t b = e->lo; b <= e->hi; b++) symbol_set_add(set, b);
    }
    for (uint32_t i = 0; i < s->n_mark; i++) {
        symbol_set_add(set, SYMBOL_MARKER + g->marks[s->mark + i].marker);
    }
}

static void set_union(struct symbol_set *to, const struct symbol_set *from)
{
    for (size_t i = 0; i < sizeof to->words / sizeof to->words[0]; i++) {
        to->words[i] |= from->words[i];
    }
}

/* What the state goes on with inside its rule; the rules it calls have been classified. */
static void add_symbols(const struct grammar *g, const struct state *s, struct symbol_set *set)
{
    add_own_symbols(g, s, set);
    for (uint32_t i = 0; i < s->n_call; i++) {
        set_union(set, &g->rules[g->calls[s->call + i].rule].first);
    }
}

static fathom_err classify_rule(struct linker *l, uint32_t rule, uint32_t depth)
{
    struct grammar *g = l->g;
    const struct state *s = &g->states[g->rules[rule].start];
    if (l->visit[rule] == 2) return FATHOM_OK;
    if (l->visit[rule] == 1)
        FAIL(l->d, FATHOM_EINVAL, "the grammar has a rule that begins with itself");
    if (depth > ENTRY_DEPTH_MAX) {
        FAIL(l->d, FATHOM_ELIMIT, "the grammar has more than %d rules that begin with one another",
             ENTRY_DEPTH_MAX);
    }
    l->visit[rule] = 1;
    for (uint32_t i = 0; i < s->n_call; i++) {
        TRY(classify_rule(l, g->calls[s->call + i].rule, depth + 1));
    }
    add_symbols(g, s, &g->rules[rule].first);
    l->visit[rule] = 2;
    return FATHOM_OK;
}

/* ---- follow ----------------------------------------------------------------------------- */

static fathom_err compute_follow(struct linker *l)
{
    struct grammar *g = l->g;
    for (uint32_t i = 0; i < g->n_call; i++) {
        const struct call_edge *c = &g->calls[i];
        const struct state *to = &g->states[c->to];
        TRY(budget_spend(l->budget, (1u + to->n_edge + to->n_call) * (uint64_t)UNITS_EDGE));
        add_symbols(g, to, &g->rules[c->rule].follow);
    }
    for (bool changed = true; changed;) {
        changed = false;
        TRY(budget_spend(l->budget, (uint64_t)g->n_call * UNITS_EDGE));
        for (uint32_t i = 0; i < g->n_call; i++) {
            const struct call_edge *c = &g->calls[i];
            const struct state *to = &g->states[c->to];
            if (!(to->flags & STATE_ACCEPT)) continue;
            struct symbol_set before = g->rules[c->rule].follow;
            set_union(&g->rules[c->rule].follow, &g->rules[to->rule].follow);
            changed |= memcmp(&before, &g->rules[c->rule].follow, sizeof before) != 0;
        }
    }
    return FATHOM_OK;
}

/* ---- number ----------------------------------------------------------------------------- */

/* Where masks are dear: the state has many ways, or is on one through all of Unicode. */
static bool wants_row(const struct grammar *g, const struct state *s)
{
    return s->n_edge >= ROW_EDGES_MIN ||
           (s->n_edge && g->edges[s->edge + s->n_edge - 1].hi >= 0x80);
}

static fathom_err number_states(struct grammar *g)
{
    struct state *states = mem_alloc_array(g->n_state, sizeof *states);
    uint32_t *to = mem_alloc_array(g->n_state, sizeof *to), n = 0;
    if (!states || !to) {
        mem_free(states);
        mem_free(to);
        return FATHOM_ENOMEM;
    }
    for (uint32_t i = 0; i < g->n_state; i++) {
        if (wants_row(g, &g->states[i])) to[i] = n++;
    }
    g->n_row = n;
    for (uint32_t i = 0; i < g->n_state; i++) {
        if (!wants_row(g, &g->states[i])) to[i] = n++;
        states[to[i]] = g->states[i];
    }
    for (uint32_t i = 0; i < g->n_edge; i++) g->edges[i].to = to[g->edges[i].to];
    for (uint32_t i = 0; i < g->n_call; i++) g->calls[i].to = to[g->calls[i].to];
    for (uint32_t i = 0; i < g->n_mark; i++) g->marks[i].to = to[g->marks[i].to];
    for (uint32_t i = 0; i < g->n_rule; i++) g->rules[i].start = to[g->rules[i].start];
    mem_free(to);
    mem_free(g->states);
    g->states = states;
    return FATHOM_OK;
}

/* ---- rows ------------------------------------------------------------------------------- */

/* Bytes that no row tells apart are one class. */
static void set_classes(struct grammar *g)
{
    bool begins[257] = {false};
    uint32_t class = 0;
    for (uint32_t i = 0; i < g->n_row; i++) {
        const struct state *s = &g->states[i];
        for (uint32_t e = s->edge; e < s->edge + s->n_edge; e++) {
            begins[g->edges[e].lo] = true;
            begins[g->edges[e].hi + 1] = true;
        }
    }
    for (uint32_t b = 0; b < 256; b++) {
        class += b > 0 && begins[b];
        g->class_of[b] = (uint8_t) class;
    }
    while (1u << g->class_bits <= class) g->class_bits++;
}

static fathom_err make_rows(struct linker *l)
{
    struct grammar *g = l->g;
    set_classes(g);
    size_t n = (size_t)g->n_row << g->class_bits;
    TRY(budget_spend(l->budget, n * sizeof *g->rows));
    g->rows = mem_alloc_array(n + 1, sizeof *g->rows);
    if (!g->rows) return FATHOM_ENOMEM;
    memset(g->rows, 0xff, n * sizeof *g->rows);
    for (uint32_t i = 0; i < g->n_row; i++) {
        const struct state *s = &g->states[i];
        uint32_t *row = g->rows + ((size_t)i << g->class_bits);
        for (uint32_t e = s->edge; e < s->edge + s->n_edge; e++) {
            for (uint32_t b = g->edges[e].lo; b <= g->edges[e].hi; b++) {
                row[g->class_of[b]] = g->edges[e].to;
            }
        }
    }
    return FATHOM_OK;
}

/* ---- the whole -------------------------------------------------------------------------- */

static fathom_err make_cache(struct grammar *g)
{
    g->cache = mem_calloc(g->n_state, sizeof *g->cache);
    g->kept_words = g->vocab->n_word + 2 + KEPT_EXITS_MAX;
    g->kept = mem_alloc_pages(g->kept_words * KEPT_MAX * sizeof *g->kept);
    return g->cache && g->kept ? FATHOM_OK : FATHOM_ENOMEM;
}

static fathom_err link_all(struct linker *l, uint32_t root)
{
    struct grammar *g = l->g;
    uint32_t n = l->b->n_rule;
    l->linked = mem_alloc_array(n, sizeof *l->linked);
    l->drawn = mem_alloc_array(n, sizeof *l->drawn);
    l->visit = mem_calloc(n, 1);
    g->rules = mem_calloc(n, sizeof *g->rules);
    if (!l->linked || !l->drawn || !l->visit || !g->rules) return FATHOM_ENOMEM;
    memset(l->linked, 0xff, n * sizeof *l->linked);
    (void)link_rule(l, root);
    TRY(collect(l));
    TRY(prune(l));
    set_flags(g);
    for (uint32_t rule = 0; rule < g->n_rule; rule++) TRY(classify_rule(l, rule, 0));
    TRY(compute_follow(l));
    TRY(number_states(g));
    TRY(make_rows(l));
    return make_cache(g);
}

static void free_grammar(struct grammar *g)
{
    if (!g) return;
    mem_free(g->states);
    mem_free(g->edges);
    mem_free(g->calls);
    mem_free(g->marks);
    mem_free(g->rules);
    mem_free(g->rows);
    mem_free(g->cache);
    mem_free_pages(g->kept);
    mem_free(g);
}

fathom_err grammar_link(struct grammar **out, struct grammar_builder *b, uint32_t root,
                        fathom_diag *d)
{
    struct linker l = {.b = b, .budget = &b->budget, .d = d};
    fathom_err err = FATHOM_ENOMEM;
    *out = NULL;
    l.g = mem_calloc(1, sizeof *l.g);
    if (!l.g) return FATHOM_ENOMEM;
    atomic_init(&l.g->n_holder, 1);
    l.g->vocab = b->vocab;
    l.g->n_marker = b->n_marker;
    memcpy(l.g->marker_ids, b->marker_ids, sizeof l.g->marker_ids);
    err = link_all(&l, root);
    dfa_work_free(&l.work);
    mem_free(l.linked);
    mem_free(l.drawn);
    mem_free(l.visit);
    if (err) {
        free_grammar(l.g);
        return err;
    }
    grammar_check(l.g);
    *out = l.g;
    return FATHOM_OK;
}

struct grammar *grammar_retain(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->n_holder, 1, memory_order_relaxed);
    return g;
}

void grammar_release(struct grammar *g)
{
    if (!g) return;
    if (atomic_fetch_sub_explicit(&g->n_holder, 1, memory_order_acq_rel) == 1) free_grammar(g);
}

size_t grammar_n_byte(const struct grammar *g)
{
    size_t n_kept = atomic_load_explicit(&g->n_kept, memory_order_relaxed);
    if (n_kept > KEPT_MAX) n_kept = KEPT_MAX;
    return sizeof *g + g->n_state * (sizeof *g->states + sizeof *g->cache) +
           g->n_edge * sizeof *g->edges + g->n_call * sizeof *g->calls +
           g->n_mark * sizeof *g->marks + g->n_rule * sizeof *g->rules +
           ((size_t)g->n_row << g->class_bits) * sizeof *g->rows +
           n_kept * g->kept_words * sizeof *g->kept;
}

/* ---- for tests and the reader ----------------------------------------------------------- */

static void check_state(const struct grammar *g, const struct state *s)
{
    bool goes_on = s->n_edge || s->n_call || s->n_mark;
    ASSERT(s->rule < g->n_rule);
    if (s->need == NEED_NONE) return;
    ASSERT(goes_on || (s->flags & STATE_FINAL));
    ASSERT(!(s->flags & STATE_FINAL) || (s->flags & STATE_ACCEPT));
    for (uint32_t i = 0; i < s->n_edge; i++) {
        const struct byte_edge *e = &g->edges[s->edge + i];
        ASSERT(e->lo <= e->hi && e->to < g->n_state);
        ASSERT(g->states[e->to].rule == s->rule && g->states[e->to].need != NEED_NONE);
        ASSERT(i == 0 || e[-1].hi < e->lo);
    }
    for (uint32_t i = 0; i < s->n_call; i++) {
        const struct call_edge *c = &g->calls[s->call + i];
        ASSERT(c->rule < g->n_rule && g->states[c->to].rule == s->rule);
        ASSERT(!(g->states[g->rules[c->rule].start].flags & STATE_ACCEPT));
    }
}

void grammar_check(const struct grammar *g)
{
    for (uint32_t i = 0; i < g->n_state; i++) check_state(g, &g->states[i]);
    for (uint32_t i = 0; i < g->n_rule; i++) {
        ASSERT(g->states[g->rules[i].start].rule == i);
    }
}

void grammar_dump(const struct grammar *g, struct buf *out)
{
    for (uint32_t i = 0; i < g->n_state; i++) {
        const struct state *s = &g->states[i];
        (void)buf_printf(out, "%u rule %u need %u%s%s:", i, s->rule, s->need,
                         s->flags & STATE_ACCEPT ? " accept" : "",
                         s->flags & STATE_TEXT ? " text" : "");
        for (uint32_t k = 0; k < s->n_edge; k++) {
            const struct byte_edge *e = &g->edges[s->edge + k];
            (void)buf_printf(out, " %02x-%02x>%u", e->lo, e->hi, e->to);
        }
        for (uint32_t k = 0; k < s->n_mark; k++) {
            const struct mark_edge *e = &g->marks[s->mark + k];
            (void)buf_printf(out, " marker %d>%u", g->marker_ids[e->marker], e->to);
        }
        for (uint32_t k = 0; k < s->n_call; k++) {
            const struct call_edge *e = &g->calls[s->call + k];
            (void)buf_printf(out, " rule %u>%u", e->rule, e->to);
        }
        (void)buf_add_char(out, '\n');
    }
}

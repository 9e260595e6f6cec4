/* matcher_mask.c - which tokens a thread may take
 *
 * There are three ways to find out, from cheap to expensive:
 *
 *   string  inside a JSON string the vocabulary has the mask ready. Only tokens that close the
 *           string are followed into the grammar around it
 *   kept a state that was expensive before has a kept mask: the tokens that stay in its rule, and
 *           a list of the trie nodes where others leave it, which are followed into the caller
 *   walk    walk over the trie, byte by byte
 *
 * A kept mask does not depend on the calls that are open around the state, so it serves every
 * request.
 *
 *   cache of a state:  0 --walk, cheap--> NONE
 *                      0 --walk, costly--> WANTED --next time--> BUSY --filled--> kept
 *                                                                   `--no room--> NONE
 */
#include <string.h>

#include "grammar/matcher_int.h"

enum { EXIT_UNITS = 64 }; /* work for a node where a kept mask is left */

/* A walk without a known caller, which makes a kept mask. */
struct relative {
    const struct symbol_set *follow; /* bytes that may come after the rule */
    uint32_t *exits;                 /* [KEPT_EXITS_MAX] */
    uint32_t n_exit;
    bool overflow;
    bool can_exit[LEVELS_MAX + 1]; /* whether the rule may end for some thread of the level */
};

/* Adds the tokens that end at a node. At half of the nodes one token ends, and at hardly any node
 * more. So the first is added without a branch: at a node without tokens, ids[begin] is valid too,
 * and belongs to its subtree. */
static inline void add_tokens(const struct grammar_vocab *v, uint32_t node, uint32_t *words)
{
    const uint32_t begin = v->first[node], n = v->first[node + 1] - begin;
    const int32_t id = v->ids[begin];
    words[id >> 5] |= (uint32_t)(n > 0) << (id & 31);
    for (uint32_t i = 1; i < n; i++) mask_set(words, v->ids[begin + i]);
}

static bool level_can_exit(const struct work *w, uint32_t i)
{
    for (uint32_t k = w->levels[i].begin; k < w->levels[i].end; k++) {
        if (thread_can_end(w->g, w->frames, w->threads[k])) return true;
    }
    return false;
}

static void add_exit(struct relative *r, uint32_t node, uint8_t byte)
{
    if (!symbol_set_has(r->follow, byte)) return;
    if (r->n_exit == KEPT_EXITS_MAX) {
        r->overflow = true;
    } else {
        r->exits[r->n_exit++] = node;
    }
}

static uint32_t walk(struct work *w, uint32_t begin, uint32_t end, uint32_t level,
                     struct relative *r, uint32_t *words);

/* Flags of states that are not plain. In a plain state, following a byte is one look into a row; in
 * the others characters are counted, calls opened, or a known caller may go on. */
static unsigned flags_not_plain(uint32_t frame)
{
    return STATE_CALLS | STATE_HUB | (frame < FRAME_FIRST ? 0 : STATE_ACCEPT);
}

static bool is_plain(const struct work *w, const struct thread *t)
{
    const struct grammar *g = w->g;
    return t->state < g->n_row && !(g->states[t->state].flags & flags_not_plain(t->frame)) &&
           w->frames[t->frame].depth + g->need_max <= GRAMMAR_DEPTH_MAX;
}

/* walk() for a level with one thread in a plain state. As long as it stays plain, all that is
 * needed is a state for each depth. */
static uint32_t walk_plain(struct work *w, uint32_t begin, uint32_t end, uint32_t level,
                           struct relative *r, uint32_t *restrict words)
{
    const struct grammar *g = w->g;
    const struct grammar_vocab *v = g->vocab;
    const uint8_t *restrict bytes = v->byte, *restrict depths = v->depth;
    const uint32_t *restrict rows = g->rows, class_bits = g->class_bits, n_row = g->n_row;
    const struct level start = w->levels[level];
    const struct thread t = w->threads[start.begin];
    const unsigned not_plain = flags_not_plain(t.frame);
    const uint32_t above = depths[begin];
    uint32_t places[LEVELS_MAX + 1];
    uint32_t n_visit = 0;
    places[0] = t.state;
    for (uint32_t i = begin; i < end; n_visit++) {
        const uint32_t depth = depths[i] - above, state = places[depth];
        const uint32_t to = rows[state << class_bits | g->class_of[bytes[i]]];
        const bool plain = to < n_row && !(g->states[to].flags & not_plain);
        if (plain || to == NO_STATE) {
            if (r && (g->states[state].flags & STATE_ACCEPT)) add_exit(r, i, bytes[i]);
            places[depth + 1] = to;
            if (plain) add_tokens(v, i, words);
            i = plain ? i + 1 : v->skip[i];
            continue;
        }
        w->threads[start.end] = (struct thread){state, t.n_char, t.frame};
        w->levels[level + depth] = (struct level){start.end, start.end + 1, start.n_frame};
        n_visit += walk(w, i, v->skip[i], level + depth, r, words);
        i = w->over ? end : v->skip[i];
    }
    w->levels[level] = start;
    return n_visit;
}

/* Walks over the subtrees [begin, end) of the trie, from a level that stands before their first
 * byte.
 *
 *   r  for a kept mask; NULL: the caller is known
 * Returns the number of nodes visited. */
static uint32_t walk(struct work *w, uint32_t begin, uint32_t end, uint32_t level,
                     struct relative *r, uint32_t *words)
{
    const struct grammar_vocab *v = w->g->vocab;
    uint32_t n_visit = 0;
    if (begin == end) return 0;
    const uint32_t base = level - v->depth[begin];
    if (r) r->can_exit[level] = level_can_exit(w, level);
    for (uint32_t i = begin; i < end && !w->over; n_visit++) {
        const uint32_t at = base + v->depth[i];
        if (r && r->can_exit[at]) add_exit(r, i, v->byte[i]);
        if (!work_step(w, at, v->byte[i])) {
            i = v->skip[i];
            continue;
        }
        add_tokens(v, i, words);
        const struct level *to = &w->levels[at + 1];
        const uint32_t next = v->skip[i++];
        if (i < next && to->end - to->begin == 1 && is_plain(w, &w->threads[to->begin])) {
            n_visit += walk_plain(w, i, next, at + 1, r, words);
            i = next;
        } else if (r) {
            r->can_exit[at + 1] = level_can_exit(w, at + 1);
        }
    }
    return n_visit;
}

/* Walks over the whole trie, from level 0 with a single thread. */
static uint32_t walk_all(struct work *w, struct thread t, struct relative *r, uint32_t *words)
{
    const uint32_t n_node = w->g->vocab->n_node;
    work_enter(w, t);
    if (is_plain(w, &t)) return walk_plain(w, 0, n_node, 0, r, words);
    return walk(w, 0, n_node, 0, r, words);
}

/* Makes level 0 the caller of a thread's rule; false: there is none. */
static bool enter_caller(struct work *w, struct thread t, uint32_t n_frame)
{
    w->n_frame = n_frame;
    if (t.frame < FRAME_FIRST) return false;
    const struct frame *f = &w->frames[t.frame];
    work_settle(w, (struct thread){f->to, 0, f->parent});
    return w->levels[0].begin < w->levels[0].end;
}

/* ---- string ----------------------------------------------------------------------------- */

static void add_words(uint32_t *words, const uint32_t *more, size_t n_word)
{
    for (size_t i = 0; i < n_word; i++) words[i] |= more[i];
}

/* Adds the tokens inside a string, at its hub, that have at most n_left characters. */
static void add_short(const struct grammar_vocab *v, uint32_t n_left, uint32_t *words)
{
    if (n_left < TEXT_SHORT) {
        add_words(words, v->short_masks[n_left], v->n_word);
        return;
    }
    add_words(words, v->short_masks[TEXT_SHORT - 1], v->n_word);
    for (uint32_t i = 0; i < v->n_length && v->lengths[i].n_char <= n_left; i++) {
        mask_set(words, v->lengths[i].id);
    }
}

/* Adds the tokens of a thread inside a JSON string. False: so near to the string's maximal length
 * the tables cannot tell. */
static bool add_in_text(struct work *w, struct thread t, uint32_t *words)
{
    const struct grammar *g = w->g;
    const struct grammar_vocab *v = g->vocab;
    const struct state *s = &g->states[t.state];
    const struct rule *r = &g->rules[s->rule];
    const struct text_table *table = &v->tables[s->text];
    uint32_t n_left = r->max == UINT32_MAX ? UINT32_MAX : r->max - t.n_char;
    uint32_t n_frame = w->n_frame;
    bool roomy = n_left >= GRAMMAR_TOKEN_BYTES_MAX || (s->text == 0 && n_left >= v->n_char_max);
    bool closed = t.n_char >= r->min && roomy;
    if (!roomy && s->text != 0) return false;
    if (roomy) {
        add_words(words, closed ? table->whole : table->inside, v->n_word);
    } else {
        add_short(v, n_left, words);
    }
    bool has_caller = enter_caller(w, t, n_frame);
    for (uint32_t i = 0; i < table->n_close; i++) {
        const struct text_close *c = &table->closes[i];
        if (c->n_char > n_left || t.n_char + c->n_char < r->min) continue;
        if (!closed) add_tokens(v, c->node, words);
        if (has_caller) (void)walk(w, c->node + 1, v->skip[c->node], 0, NULL, words);
    }
    return true;
}

/* ---- kept masks ------------------------------------------------------------------------- */

/* Makes a kept mask for a state, if there is room for one more. */
static uint16_t keep_mask(struct work *w, uint32_t state)
{
    struct grammar *g = (struct grammar *)w->g;
    uint32_t i_kept = atomic_fetch_add_explicit(&g->n_kept, 1, memory_order_relaxed);
    if (i_kept >= KEPT_MAX) {
        atomic_store_explicit(&g->n_kept, KEPT_MAX, memory_order_relaxed);
        return CACHE_NONE;
    }
    uint32_t *words = g->kept + i_kept * g->kept_words, n_word = (uint32_t)g->vocab->n_word;
    struct relative r = {.follow = &g->rules[g->states[state].rule].follow,
                         .exits = words + n_word + 2};
    work_allow(w, ROOM_PART, MASK_WORK_MAX);
    (void)walk_all(w, (struct thread){state, 0, FRAME_BASE}, &r, words);
    words[n_word] = (uint32_t)w->units;
    words[n_word + 1] = r.n_exit;
    return r.overflow || w->over ? CACHE_NONE : (uint16_t)(i_kept + 1);
}

/* Adds a kept mask and what its exits lead to. False: it is not certain that a plain walk would
 * stay within the limit, so the caller must walk to find out. A walk costs at most four times as
 * much as making the kept mask and following the exits: its threads are compared with those of
 * both, and it repeats calls that are already open where a part begins. */
static bool add_kept(struct work *w, struct thread t, uint32_t i_kept, uint64_t limit,
                     uint32_t *words)
{
    const struct grammar *g = w->g;
    const struct grammar_vocab *v = g->vocab;
    const uint32_t *mask = g->kept + i_kept * g->kept_words, *exits = mask + v->n_word + 2;
    const uint32_t n_exit = mask[v->n_word + 1];
    uint32_t n_frame = w->n_frame;
    uint64_t units = mask[v->n_word];
    work_allow(w, ROOM_PART, limit);
    add_words(words, mask, v->n_word);
    if (n_exit > 0 && enter_caller(w, t, n_frame)) {
        struct symbol_set next;
        work_next(w, 0, &next);
        for (uint32_t i = 0; i < n_exit; i++) {
            if (!symbol_set_has(&next, v->byte[exits[i]])) continue;
            (void)walk(w, exits[i], v->skip[exits[i]], 0, NULL, words);
            units += EXIT_UNITS;
        }
    }
    return !w->over && 4 * (units + w->units) <= limit;
}

/* Whether the stack is so low that no call within a token can reach the depth limit, whatever the
 * caller is. */
static bool is_shallow(const struct work *w, struct thread t)
{
    uint32_t most = GRAMMAR_TOKEN_BYTES_MAX + w->g->need_max;
    return w->frames[t.frame].depth + most <= GRAMMAR_DEPTH_MAX;
}

static void add_outside_text(struct work *w, struct thread t, uint64_t limit, uint32_t *words)
{
    struct grammar *g = (struct grammar *)w->g;
    _Atomic uint16_t *cache = &g->cache[t.state];
    uint32_t n_frame = w->n_frame;
    bool over = w->over;
    uint16_t known = atomic_load_explicit(cache, memory_order_acquire);
    bool usable = is_shallow(w, t) && !(g->states[t.state].flags & STATE_TEXT);
    if (known == CACHE_WANTED && usable &&
        atomic_compare_exchange_strong(cache, &known, (uint16_t)CACHE_BUSY)) {
        known = keep_mask(w, t.state);
        atomic_store_explicit(cache, known, memory_order_release);
    }
    w->n_frame = n_frame;
    if (known > 0 && known <= KEPT_MAX && usable && add_kept(w, t, known - 1u, limit, words)) {
        w->over = over;
        return;
    }
    w->n_frame = n_frame;
    work_allow(w, ROOM_WHOLE, limit);
    uint32_t n_visit = walk_all(w, t, NULL, words);
    w->over |= over;
    if (known != 0 || !usable) return;
    uint16_t verdict = n_visit < KEPT_VISITS_MIN ? CACHE_NONE : CACHE_WANTED;
    (void)atomic_compare_exchange_strong(cache, &known, verdict);
}

/* ---- before a string -------------------------------------------------------------------- */

static bool is_text_rule(const struct grammar *g, uint32_t rule)
{
    return g->states[g->rules[rule].start].flags & STATE_TEXT;
}

/* For a state whose only ways are calls of JSON strings, which differ in their lengths: adds the
 * tokens of each by the tables. False: the state has other ways too. */
static bool add_strings(struct work *w, struct thread t, uint64_t limit, uint32_t *words)
{
    const struct grammar *g = w->g;
    const struct state *s = &g->states[t.state];
    const uint32_t n_frame = w->n_frame;
    if (s->n_edge || s->n_mark || s->n_call == 0 || (s->flags & STATE_ACCEPT)) return false;
    for (uint32_t i = 0; i < s->n_call; i++) {
        if (!is_text_rule(g, g->calls[s->call + i].rule)) return false;
    }
    for (uint32_t i = 0; i < s->n_call; i++) {
        const struct call_edge *c = &g->calls[s->call + i];
        struct thread inside = {g->rules[c->rule].start, 0, t.frame};
        w->n_frame = w->step_frame = n_frame;
        if (!work_call(w, c, &inside.frame)) continue;
        if (!add_in_text(w, inside, words)) add_outside_text(w, inside, limit, words);
    }
    return true;
}

/* ---- the mask --------------------------------------------------------------------------- */

static void add_markers(struct work *w, struct thread t, uint32_t *words)
{
    const struct grammar *g = w->g;
    struct symbol_set next;
    work_enter(w, t);
    work_next(w, 0, &next);
    for (uint32_t i = 0; i < g->n_marker; i++) {
        if (!symbol_set_has(&next, SYMBOL_MARKER + i)) continue;
        if (work_step(w, 0, SYMBOL_MARKER + i)) mask_set(words, g->marker_ids[i]);
    }
}

bool mask_add_thread(struct work *w, struct thread t, uint64_t limit, uint32_t *words)
{
    uint32_t n_frame = w->n_frame;
    work_allow(w, ROOM_WHOLE, limit);
    if (w->g->n_marker) {
        add_markers(w, t, words);
        w->n_frame = n_frame;
    }
    bool text = w->g->states[t.state].flags & STATE_TEXT;
    if (!add_strings(w, t, limit, words) && (!text || !add_in_text(w, t, words))) {
        w->n_frame = n_frame;
        add_outside_text(w, t, limit, words);
    }
    w->n_frame = n_frame;
    return !w->over;
}

void mask_add_bytes(struct work *w, struct thread t, uint32_t *words)
{
    const struct grammar_vocab *v = w->g->vocab;
    uint32_t n_frame = w->n_frame;
    for (uint32_t i = 0; i < v->n_node; i = v->skip[i]) {
        w->n_frame = n_frame;
        work_allow(w, ROOM_WHOLE, SHORT_WORK_MAX);
        work_enter(w, t);
        if (work_step(w, 0, v->byte[i])) add_tokens(v, i, words);
    }
    w->n_frame = n_frame;
    work_allow(w, ROOM_WHOLE, (uint64_t)GRAMMAR_MARKERS_MAX * SHORT_WORK_MAX);
    if (w->g->n_marker) add_markers(w, t, words);
    w->n_frame = n_frame;
}

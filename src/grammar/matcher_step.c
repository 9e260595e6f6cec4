/* matcher_step.c - threads over bytes
 *
 * A thread is a place in the grammar: a state and the calls that are open around it. There are
 * several when the text so far can be read in several ways. Between two bytes every thread is
 * settled: a rule that is over has been left, a call without alternative has been entered. So equal
 * places are equal threads, and all but one of them are dropped.
 *
 * Invariants: a thread's state has a way to its rule's end within GRAMMAR_DEPTH_MAX frames; frames
 * lie after their parents; no two threads of a level have the same state, count and stack.
 */
#include <string.h>

#include "grammar/matcher_int.h"

enum { UNITS_STEP = 4 };

void work_allow(struct work *w, enum work_room room, uint64_t limit)
{
    w->max_thread = room * WORK_THREADS_MAX;
    w->max_frame = room * WORK_FRAMES_MAX;
    w->max_level = room == ROOM_TOKEN ? w->max_thread : room * LEVEL_THREADS_MAX;
    w->units = 0;
    w->limit = limit;
    w->over = false;
}

void work_begin(struct work *w, const struct grammar *g, const struct frame *frames,
                uint32_t n_frame, enum work_room room)
{
    w->g = g;
    work_allow(w, room, MASK_WORK_MAX);
    w->n_thread = 0;
    w->n_frame = n_frame;
    memcpy(w->frames, frames, n_frame * sizeof *frames);
}

/* The same calls around both? */
static bool same_stack(struct work *w, uint32_t a, uint32_t b)
{
    if (w->frames[a].depth != w->frames[b].depth) return false;
    for (; a != b; w->units++) {
        if (a < FRAME_FIRST || b < FRAME_FIRST || w->frames[a].to != w->frames[b].to) return false;
        a = w->frames[a].parent;
        b = w->frames[b].parent;
    }
    return true;
}

/* A caller that ends with the call is left at once, so that repetition by recursion needs no stack.
 */
bool work_call(struct work *w, const struct call_edge *c, uint32_t *frame)
{
    const struct grammar *g = w->g;
    const struct state *to = &g->states[c->to];
    uint32_t depth = w->frames[*frame].depth;
    uint32_t need = g->states[g->rules[c->rule].start].need;
    if (to->flags & STATE_FINAL) return depth + need <= GRAMMAR_DEPTH_MAX;
    if (depth + 1 + need > GRAMMAR_DEPTH_MAX || depth + to->need > GRAMMAR_DEPTH_MAX) return false;
    w->units += UNITS_STEP + (w->n_frame - w->step_frame) / 4;
    for (uint32_t f = w->step_frame; f < w->n_frame; f++) {
        if (w->frames[f].parent != *frame || w->frames[f].to != c->to) continue;
        *frame = f;
        return true;
    }
    if (w->n_frame >= w->max_frame) {
        w->over = true;
        return false;
    }
    w->frames[w->n_frame] = (struct frame){.parent = *frame, .to = c->to, .depth = depth + 1};
    *frame = w->n_frame++;
    return true;
}

/* Adds a thread to the level that began at `begin`, settled, unless it is there. */
static void add_thread(struct work *w, uint32_t begin, struct thread t)
{
    const struct grammar *g = w->g;
    const struct state *s = &g->states[t.state];
    for (;; s = &g->states[t.state]) {
        if ((s->flags & STATE_FINAL) && t.frame >= FRAME_FIRST) {
            t = (struct thread){w->frames[t.frame].to, 0, w->frames[t.frame].parent};
        } else if (s->flags & STATE_ENTRY) {
            const struct call_edge *c = &g->calls[s->call];
            if (!work_call(w, c, &t.frame)) return;
            t.state = g->rules[c->rule].start;
            t.n_char = 0;
        } else {
            break;
        }
    }
    if (w->frames[t.frame].depth + s->need > GRAMMAR_DEPTH_MAX) return;
    w->units += UNITS_STEP + (w->n_thread - begin) / 4;
    for (uint32_t i = begin; i < w->n_thread; i++) {
        const struct thread *x = &w->threads[i];
        if (x->state != t.state || x->n_char != t.n_char) continue;
        if (same_stack(w, x->frame, t.frame)) return;
    }
    if (w->n_thread >= w->max_thread || w->n_thread - begin >= w->max_level) {
        w->over = true;
    } else {
        w->threads[w->n_thread++] = t;
    }
}

/* A string of bounded length, between two characters: may it go on with this byte? Counts. */
static bool count_char(const struct grammar *g, const struct state *s, uint32_t byte,
                       uint32_t *n_char)
{
    const struct rule *r = &g->rules[s->rule];
    if (byte == '"') return *n_char >= r->min;
    if (*n_char >= r->max) return false;
    if (r->max != UINT32_MAX || *n_char < r->min) ++*n_char;
    return true;
}

static uint32_t move(const struct work *w, const struct state *s, uint32_t symbol, uint32_t *n_char)
{
    const struct grammar *g = w->g;
    if (symbol < SYMBOL_MARKER) {
        if ((s->flags & STATE_HUB) && !count_char(g, s, symbol, n_char)) return NO_STATE;
        return state_next(g, s, symbol);
    }
    for (uint32_t i = 0; i < s->n_mark; i++) {
        const struct mark_edge *e = &g->marks[s->mark + i];
        if (e->marker == symbol - SYMBOL_MARKER) return e->to;
    }
    return NO_STATE;
}

/* Whether the thread has opened the call before; from now on it has. Rules that begin with one
 * another in many ways come to the same call by all of them. */
static bool was_opened(struct work *w, uint32_t rule, uint32_t frame)
{
    uint32_t i = 0;
    while (i < w->n_opened && (w->opened[i].rule != rule || w->opened[i].frame != frame)) i++;
    w->units += i / 4;
    if (i < w->n_opened) return true;
    if (i < OPENED_MAX) w->opened[w->n_opened++] = (struct opened){rule, frame};
    return false;
}

/* All ways of one thread over a symbol. */
static void step_thread(struct work *w, uint32_t begin, struct thread t, uint32_t symbol)
{
    const struct grammar *g = w->g;
    for (;;) {
        const struct state *s = &g->states[t.state];
        uint32_t n_char = t.n_char;
        w->units += UNITS_STEP;
        w->over |= w->units > w->limit;
        if (w->units > w->limit) return;
        uint32_t to = move(w, s, symbol, &n_char);
        if (to != NO_STATE) add_thread(w, begin, (struct thread){to, n_char, t.frame});
        for (uint32_t i = 0; i < s->n_call; i++) {
            const struct call_edge *c = &g->calls[s->call + i];
            uint32_t frame = t.frame;
            if (!symbol_set_has(&g->rules[c->rule].first, symbol)) continue;
            if (!work_call(w, c, &frame) || was_opened(w, c->rule, frame)) continue;
            step_thread(w, begin, (struct thread){g->rules[c->rule].start, 0, frame}, symbol);
        }
        if (!(s->flags & STATE_ACCEPT) || t.frame < FRAME_FIRST) return;
        t = (struct thread){w->frames[t.frame].to, 0, w->frames[t.frame].parent};
    }
}

void work_enter(struct work *w, struct thread t)
{
    w->threads[0] = t;
    w->n_thread = 1;
    w->levels[0] = (struct level){0, 1, w->n_frame};
}

void work_settle(struct work *w, struct thread t)
{
    w->n_thread = 0;
    w->step_frame = w->n_frame;
    add_thread(w, 0, t);
    w->levels[0] = (struct level){0, w->n_thread, w->n_frame};
}

bool work_step(struct work *w, uint32_t i, uint32_t symbol)
{
    const struct level *from = &w->levels[i];
    struct level *to = &w->levels[i + 1];
    uint32_t begin = from->end;
    w->n_thread = begin;
    w->n_frame = w->step_frame = from->n_frame;
    for (uint32_t k = from->begin; k < from->end; k++) {
        w->n_opened = 0;
        step_thread(w, begin, w->threads[k], symbol);
    }
    *to = (struct level){begin, w->n_thread, w->n_frame};
    return to->begin < to->end;
}

static void add_next(const struct work *w, struct thread t, struct symbol_set *out)
{
    const struct grammar *g = w->g;
    for (;;) {
        const struct state *s = &g->states[t.state];
        for (uint32_t i = 0; i < s->n_edge; i++) {
            const struct byte_edge *e = &g->edges[s->edge + i];
            for (uint32_t b = e->lo; b <= e->hi; b++) {
                uint32_t n_char = t.n_char;
                if ((s->flags & STATE_HUB) && !count_char(g, s, b, &n_char)) continue;
                symbol_set_add(out, b);
            }
        }
        for (uint32_t i = 0; i < s->n_mark; i++) {
            symbol_set_add(out, SYMBOL_MARKER + g->marks[s->mark + i].marker);
        }
        for (uint32_t i = 0; i < s->n_call; i++) {
            const struct symbol_set *first = &g->rules[g->calls[s->call + i].rule].first;
            for (size_t k = 0; k < sizeof out->words / sizeof out->words[0]; k++) {
                out->words[k] |= first->words[k];
            }
        }
        if (!(s->flags & STATE_ACCEPT) || t.frame < FRAME_FIRST) return;
        t = (struct thread){w->frames[t.frame].to, 0, w->frames[t.frame].parent};
    }
}

void work_next(const struct work *w, uint32_t i, struct symbol_set *out)
{
    *out = (struct symbol_set){{0}};
    for (uint32_t k = w->levels[i].begin; k < w->levels[i].end; k++) {
        add_next(w, w->threads[k], out);
    }
}

bool thread_can_end(const struct grammar *g, const struct frame *frames, struct thread t)
{
    while (g->states[t.state].flags & STATE_ACCEPT) {
        if (t.frame < FRAME_FIRST) return true;
        t = (struct thread){frames[t.frame].to, 0, frames[t.frame].parent};
    }
    return false;
}

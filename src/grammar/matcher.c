/* matcher.c - the position of an output in its grammar
 *
 * Between two tokens a matcher has the threads, and only those frames that they use. Invariants:
 * matcher_check.
 *
 *   [begin] --token--> [threads] --token--> ... --EOS where the grammar may end--> [ended]
 */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "grammar/matcher_int.h"

static const struct frame bottom[FRAME_FIRST] = {{0}};

static void matcher_check(const struct matcher *m)
{
    ASSERT(m->n_thread > 0 && m->n_thread <= THREADS_MAX);
    ASSERT(m->n_frame >= FRAME_FIRST && m->n_frame <= FRAMES_MAX);
    for (uint32_t i = FRAME_FIRST; i < m->n_frame; i++) {
        const struct frame *f = &m->frames[i];
        ASSERT(f->parent < i && f->to < m->g->n_state);
        ASSERT(f->depth == m->frames[f->parent].depth + 1 && f->depth <= GRAMMAR_DEPTH_MAX);
    }
    for (uint32_t i = 0; i < m->n_thread; i++) {
        ASSERT(m->threads[i].state < m->g->n_state && m->threads[i].frame < m->n_frame);
    }
}

/* ---- keeping threads -------------------------------------------------------------------- */

/* Copies a stack into m, sharing frames that are there already; FRAMES_MAX: there is no room. */
static uint32_t keep_stack(struct matcher *m, const struct work *w, uint32_t frame)
{
    uint32_t path[GRAMMAR_DEPTH_MAX], n = 0, at = FRAME_BOTTOM;
    for (; frame >= FRAME_FIRST; frame = w->frames[frame].parent) path[n++] = frame;
    while (n > 0) {
        const struct frame *f = &w->frames[path[--n]];
        uint32_t i = at < FRAME_FIRST ? FRAME_FIRST : at + 1;
        while (i < m->n_frame && (m->frames[i].parent != at || m->frames[i].to != f->to)) i++;
        if (i == m->n_frame) {
            if (i == FRAMES_MAX) return FRAMES_MAX;
            m->frames[m->n_frame++] = (struct frame){at, f->to, f->depth};
        }
        at = i;
    }
    return at;
}

/* Adds the threads of a level that m does not have yet. */
static void keep_level(struct matcher *m, const struct work *w, uint32_t level)
{
    for (uint32_t k = w->levels[level].begin; k < w->levels[level].end; k++) {
        struct thread t = w->threads[k];
        t.frame = keep_stack(m, w, t.frame);
        if (t.frame == FRAMES_MAX) continue;
        uint32_t i = 0;
        while (i < m->n_thread && memcmp(&m->threads[i], &t, sizeof t) != 0) i++;
        if (i == m->n_thread && i < THREADS_MAX) m->threads[m->n_thread++] = t;
    }
}

void matcher_reset(struct matcher *m)
{
    struct work w;
    m->ended = false;
    m->n_thread = 0;
    m->n_frame = FRAME_FIRST;
    memcpy(m->frames, bottom, sizeof bottom);
    work_begin(&w, m->g, bottom, FRAME_FIRST, ROOM_TOKEN);
    work_settle(&w, (struct thread){m->g->rules[m->g->root].start, 0, FRAME_BOTTOM});
    keep_level(m, &w, 0);
    matcher_check(m);
}

fathom_err matcher_create(struct matcher **out, struct grammar *g, const int32_t *eos, size_t n_eos)
{
    *out = NULL;
    if (n_eos > GRAMMAR_EOS_MAX) return FATHOM_ELIMIT;
    for (size_t i = 0; i < n_eos; i++) {
        if (eos[i] < 0 || eos[i] >= g->vocab->n_token) return FATHOM_EINVAL;
    }
    struct matcher *m = mem_calloc(1, sizeof *m);
    if (!m) return FATHOM_ENOMEM;
    m->g = grammar_retain(g);
    m->n_eos = (uint32_t)n_eos;
    for (size_t i = 0; i < n_eos; i++) m->eos[i] = eos[i];
    matcher_reset(m);
    *out = m;
    return FATHOM_OK;
}

void matcher_destroy(struct matcher *m)
{
    if (!m) return;
    grammar_release(m->g);
    mem_free(m);
}

/* Everything but the grammar and the EOS ids. */
static void copy_place(struct matcher *to, const struct matcher *from)
{
    to->ended = from->ended;
    to->n_thread = from->n_thread;
    to->n_frame = from->n_frame;
    memcpy(to->threads, from->threads, from->n_thread * sizeof *from->threads);
    memcpy(to->frames, from->frames, from->n_frame * sizeof *from->frames);
}

void matcher_copy(struct matcher *to, const struct matcher *from)
{
    ASSERT(to->g == from->g);
    if (to != from) copy_place(to, from);
}

/* ---- questions -------------------------------------------------------------------------- */

bool matcher_can_end(const struct matcher *m)
{
    if (m->ended) return true;
    for (uint32_t i = 0; i < m->n_thread; i++) {
        if (thread_can_end(m->g, m->frames, m->threads[i])) return true;
    }
    return false;
}

bool matcher_has_ended(const struct matcher *m)
{
    return m->ended;
}

static void begin_mask(const struct matcher *m, uint32_t *words, size_t n_word)
{
    memset(words, 0, n_word * sizeof *words);
    for (uint32_t i = 0; i < m->n_eos && matcher_can_end(m); i++) mask_set(words, m->eos[i]);
}

/* If finding all tokens would be too much work, the mask has only tokens of one byte, and markers.
 * */
fathom_err matcher_fill_mask(const struct matcher *m, uint32_t *words, size_t n_word)
{
    struct work w;
    bool whole = true;
    if (n_word < m->g->vocab->n_word) return FATHOM_EINVAL;
    begin_mask(m, words, n_word);
    if (m->ended) return FATHOM_OK;
    work_begin(&w, m->g, m->frames, m->n_frame, ROOM_WHOLE);
    for (uint32_t i = 0; i < m->n_thread && whole; i++) {
        whole = mask_add_thread(&w, m->threads[i], MASK_WORK_MAX / m->n_thread, words);
    }
    if (whole) return FATHOM_OK;
    begin_mask(m, words, n_word);
    for (uint32_t i = 0; i < m->n_thread; i++) mask_add_bytes(&w, m->threads[i], words);
    return FATHOM_OK;
}

/* ---- going on --------------------------------------------------------------------------- */

/* Steps over one marker, or up to GRAMMAR_TOKEN_BYTES_MAX bytes. The threads are stepped one after
 * the other, as for a mask: so a token that the mask allows is accepted, even where limits are met.
 * */
static fathom_err advance(struct matcher *m, const uint32_t *symbols, size_t n)
{
    struct work w;
    struct matcher next = {.g = m->g, .n_frame = FRAME_FIRST};
    ASSERT(n <= GRAMMAR_TOKEN_BYTES_MAX);
    memcpy(next.frames, bottom, sizeof bottom);
    work_begin(&w, m->g, m->frames, m->n_frame, ROOM_TOKEN);
    for (uint32_t k = 0; k < m->n_thread; k++) {
        work_allow(&w, ROOM_TOKEN, MASK_WORK_MAX / m->n_thread);
        w.n_frame = m->n_frame;
        work_enter(&w, m->threads[k]);
        uint32_t i = 0;
        while (i < n && work_step(&w, i, symbols[i])) i++;
        if (i == n) keep_level(&next, &w, i);
    }
    if (next.n_thread == 0) return FATHOM_EINVAL;
    copy_place(m, &next);
    DCHECK((matcher_check(m), true));
    return FATHOM_OK;
}

static fathom_err advance_bytes(struct matcher *m, const char *bytes, size_t n)
{
    uint32_t symbols[GRAMMAR_TOKEN_BYTES_MAX];
    for (size_t i = 0; i < n; i++) symbols[i] = (uint8_t)bytes[i];
    return advance(m, symbols, n);
}

/* The bytes of a plain token: the way to its node in the trie. */
static size_t token_bytes(const struct grammar_vocab *v, int32_t id, char *bytes)
{
    uint32_t node = v->nodes[id];
    size_t n = v->depth[node] + 1u;
    for (size_t i = n; i-- > 0; node = v->parent[node]) bytes[i] = (char)v->byte[node];
    return n;
}

fathom_err matcher_accept_token(struct matcher *m, int32_t id)
{
    const struct grammar *g = m->g;
    for (uint32_t i = 0; i < m->n_eos; i++) {
        if (m->eos[i] != id) continue;
        if (!matcher_can_end(m)) return FATHOM_EINVAL;
        m->ended = true;
        return FATHOM_OK;
    }
    if (m->ended || id < 0 || id >= g->vocab->n_token) return FATHOM_EINVAL;
    for (uint32_t i = 0; i < g->n_marker; i++) {
        uint32_t symbol = SYMBOL_MARKER + i;
        if (g->marker_ids[i] == id) return advance(m, &symbol, 1);
    }
    if (g->vocab->nodes[id] == UINT32_MAX) return FATHOM_EINVAL;
    char bytes[GRAMMAR_TOKEN_BYTES_MAX];
    return advance_bytes(m, bytes, token_bytes(g->vocab, id, bytes));
}

fathom_err matcher_accept_bytes(struct matcher *m, const char *bytes, size_t n)
{
    struct matcher at = {.g = m->g};
    if (m->ended) return n ? FATHOM_EINVAL : FATHOM_OK;
    copy_place(&at, m);
    for (size_t i = 0; i < n;) {
        size_t piece = n - i < GRAMMAR_TOKEN_BYTES_MAX ? n - i : GRAMMAR_TOKEN_BYTES_MAX;
        TRY(advance_bytes(&at, bytes + i, piece));
        i += piece;
    }
    copy_place(m, &at);
    return FATHOM_OK;
}

/* The only byte that can come next; -1: there is a choice, or the end. */
static int forced_byte(const struct matcher *m, struct work *w)
{
    int forced = -1;
    if (matcher_can_end(m)) return -1;
    work_begin(w, m->g, m->frames, m->n_frame, ROOM_WHOLE);
    for (uint32_t k = 0; k < m->n_thread; k++) {
        struct symbol_set next;
        work_enter(w, m->threads[k]);
        work_next(w, 0, &next);
        for (int b = 0; b < SYMBOL_MARKER; b++) {
            if (!symbol_set_has(&next, (uint32_t)b) || b == forced) continue;
            if (forced >= 0) return -1;
            forced = b;
        }
    }
    return forced;
}

size_t matcher_is_forced(const struct matcher *m, char *bytes, size_t cap)
{
    struct work w;
    struct matcher at = {.g = m->g};
    size_t n = 0;
    if (m->ended) return 0;
    copy_place(&at, m);
    for (; n < cap; n++) {
        int b = forced_byte(&at, &w);
        if (b < 0) break;
        bytes[n] = (char)b;
        if (advance_bytes(&at, &bytes[n], 1)) break;
    }
    return n;
}

/* matcher_int.h - threads over a compiled grammar: what stepping, masks and the matcher share
 *
 *   matcher_step.c  threads over bytes
 *   matcher_mask.c  threads over the trie of tokens
 *   matcher.c       the public functions
 */
#ifndef FATHOM_GRAMMAR_MATCHER_INT_H
#define FATHOM_GRAMMAR_MATCHER_INT_H

#include "grammar/grammar_int.h"

enum {
    THREADS_MAX = 64,        /* kept between tokens; more are dropped, the first ones stay */
    FRAMES_MAX = 1024,       /* likewise: at least GRAMMAR_DEPTH_MAX and two */
    WORK_THREADS_MAX = 2048, /* all levels of a walk in ROOM_PART together */
    WORK_FRAMES_MAX = 2048,
    LEVEL_THREADS_MAX = 512, /* of one level; a token may have all of them in one */
    OPENED_MAX = 512,        /* calls of a thread's step that are known to have been opened */
    LEVELS_MAX = GRAMMAR_TOKEN_BYTES_MAX + 1,
};

/* Units of work: four for a thread over a byte, for a call that is opened and for a thread that is
 * kept, and what it is compared with. A unit is one to three nanoseconds. */
enum {
    MASK_WORK_MAX = 32 * 1000 * 1000, /* all threads of a mask together */
    SHORT_WORK_MAX = 64 * 1000,       /* of one byte in a mask of single bytes */
};

/* How much room there is: a part of a mask has half of the whole, a token twice. So what was in
 * room in both parts is in room in the whole, and a token of the mask always fits. */
enum work_room { ROOM_PART = 1, ROOM_WHOLE = 2, ROOM_TOKEN = 4 };

enum { FRAME_BOTTOM = 0, FRAME_BASE = 1, FRAME_FIRST = 2 };

/* An open call. Frame 0 is under the root rule; frame 1 stands for callers that are not known, when
 * a mask is made for every caller. Frames form trees: threads share what is below. */
struct frame {
    uint32_t parent;
    uint32_t to; /* where the caller goes on */
    uint32_t depth;
};

struct thread {
    uint32_t state;
    uint32_t n_char; /* begun in a string of bounded length; 0 elsewhere */
    uint32_t frame;
};

struct matcher {
    struct grammar *g;
    int32_t eos[GRAMMAR_EOS_MAX];
    uint32_t n_eos;
    bool ended;
    uint32_t n_thread, n_frame;
    struct thread threads[THREADS_MAX];
    struct frame frames[FRAMES_MAX];
};

/* Threads after a number of bytes: threads[begin .. end), made with frames below n_frame. */
struct level {
    uint32_t begin, end;
    uint32_t n_frame;
};

/* A call that a thread has opened in its step: what comes of it once more is there already. */
struct opened {
    uint32_t rule;
    uint32_t frame;
};

struct work {
    const struct grammar *g;
    uint32_t max_thread, max_frame, max_level;
    uint64_t units, limit; /* beyond the limit no thread goes on */
    bool over;             /* something has been left out for want of room or work */
    uint32_t n_thread, n_frame;
    uint32_t step_frame; /* frames from here on are of the current step */
    uint32_t n_opened;
    struct opened opened[OPENED_MAX];
    struct level levels[LEVELS_MAX + 1];
    struct thread threads[WORK_THREADS_MAX * ROOM_TOKEN];
    struct frame frames[WORK_FRAMES_MAX * ROOM_TOKEN];
};

/* ---- steps (matcher_step.c) ------------------------------------------------------------- */

/* work_begin - with a matcher's frames */
void work_begin(struct work *w, const struct grammar *g, const struct frame *frames,
                uint32_t n_frame, enum work_room room);

/* work_allow - begin a count of units, in this room; nothing has been left out */
void work_allow(struct work *w, enum work_room room, uint64_t limit);

/* work_enter - level 0 is one thread */
void work_enter(struct work *w, struct thread t);

/* work_step - level i + 1 is level i after one symbol; false when no thread is left */
bool work_step(struct work *w, uint32_t i, uint32_t symbol);

/* state_next - the state after a byte, in the same rule; NO_STATE: none */
static inline uint32_t state_next(const struct grammar *g, const struct state *s, uint32_t byte)
{
    const uint32_t id = (uint32_t)(s - g->states);
    if (id < g->n_row) return g->rows[id << g->class_bits | g->class_of[byte]];
    for (uint32_t i = 0; i < s->n_edge; i++) {
        const struct byte_edge *e = &g->edges[s->edge + i];
        if (byte <= e->hi) return byte >= e->lo ? e->to : NO_STATE;
    }
    return NO_STATE;
}

/* work_settle - level 0 becomes the place of a thread that has come to `t`: a call at its end is
 * left, a call without alternative is entered */
void work_settle(struct work *w, struct thread t);

/* work_call - open a call from a thread at *frame, which becomes the one inside; false when it
 * could not come to an end in time */
bool work_call(struct work *w, const struct call_edge *c, uint32_t *frame);

/* work_next - the symbols that a level may go on with */
void work_next(const struct work *w, uint32_t i, struct symbol_set *out);

/* thread_can_end - whether the root rule may end where a thread stands */
bool thread_can_end(const struct grammar *g, const struct frame *frames, struct thread t);

/* ---- masks (matcher_mask.c) ------------------------------------------------------------- */

/* mask_add_thread - set the bits of all tokens that one thread may take
 *
 * Returns false when that is more work than `limit` units, or needs more room: bits are missing.
 * Which it is does not depend on what is kept. */
bool mask_add_thread(struct work *w, struct thread t, uint64_t limit, uint32_t *words);

/* mask_add_bytes - the bits of all tokens of one byte that a thread may take, and of markers */
void mask_add_bytes(struct work *w, struct thread t, uint32_t *words);

#endif

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
    OPENED_MAX = 512,        /* calls opened in a thread's step that are remembered */
    LEVELS_MAX = GRAMMAR_TOKEN_BYTES_MAX + 1,
};

/* Units of work. Stepping a thread over a byte, opening a call and keeping a thread cost four units
 * each, and a quarter more for each entry that a new call or thread is compared with. A unit takes
 * one to three nanoseconds. */
enum {
    MASK_WORK_MAX = 32 * 1000 * 1000, /* for all threads of a mask together */
    SHORT_WORK_MAX = 64 * 1000,       /* for one byte, in a mask of single bytes */
};

/* How much room for threads and frames there is. A part of a mask (a kept mask, or its exits) gets
 * half as much as a whole mask, and accepting a token twice as much. So what fits in both parts
 * fits in the whole, and every token of a mask fits when it is accepted. */
enum work_room { ROOM_PART = 1, ROOM_WHOLE = 2, ROOM_TOKEN = 4 };

enum { FRAME_BOTTOM = 0, FRAME_BASE = 1, FRAME_FIRST = 2 };

/* An open call. Frame 0 is the bottom, below the root rule. Frame 1 stands for an unknown caller:
 * it is used when a mask is made that serves every caller. Frames form a tree, so threads can share
 * the lower part of their stacks. */
struct frame {
    uint32_t parent;
    uint32_t to; /* where the caller goes on */
    uint32_t depth;
};

struct thread {
    uint32_t state;
    uint32_t n_char; /* characters begun, inside a string of bounded length; 0 elsewhere */
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

/* The threads after a number of bytes: threads[begin .. end). Their frames are below n_frame. */
struct level {
    uint32_t begin, end;
    uint32_t n_frame;
};

/* A call that a thread has opened in this step. Opening it again would give nothing new. */
struct opened {
    uint32_t rule;
    uint32_t frame;
};

struct work {
    const struct grammar *g;
    uint32_t max_thread, max_frame, max_level;
    uint64_t units, limit; /* work done, and how much may be done: beyond it no thread goes on */
    bool over;             /* something was left out for lack of room or work */
    uint32_t n_thread, n_frame;
    uint32_t step_frame; /* frames from here on are of the current step */
    uint32_t n_opened;
    struct opened opened[OPENED_MAX];
    struct level levels[LEVELS_MAX + 1];
    struct thread threads[WORK_THREADS_MAX * ROOM_TOKEN];
    struct frame frames[WORK_FRAMES_MAX * ROOM_TOKEN];
};

/* ---- steps (matcher_step.c) ------------------------------------------------------------- */

/* work_begin - start with the frames of a matcher */
void work_begin(struct work *w, const struct grammar *g, const struct frame *frames,
                uint32_t n_frame, enum work_room room);

/* work_allow - set the room and the limit, and begin to count units anew; clears `over` */
void work_allow(struct work *w, enum work_room room, uint64_t limit);

/* work_enter - make level 0 a single thread */
void work_enter(struct work *w, struct thread t);

/* work_step - make level i + 1 from level i by one symbol; false: no thread is left */
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

/* work_settle - make level 0 from a thread that has come to `t`: a rule that cannot go on is left,
 * and a call that is the only way is entered */
void work_settle(struct work *w, struct thread t);

/* work_call - open a call from a thread at *frame, which is set to the frame of the call. False:
 * the nesting would then be too deep for the rule to come to its end. */
bool work_call(struct work *w, const struct call_edge *c, uint32_t *frame);

/* work_next - the symbols with which the threads of a level can go on */
void work_next(const struct work *w, uint32_t i, struct symbol_set *out);

/* thread_can_end - whether the root rule may end where a thread stands */
bool thread_can_end(const struct grammar *g, const struct frame *frames, struct thread t);

/* ---- masks (matcher_mask.c) ------------------------------------------------------------- */

/* mask_add_thread - set the bits of all tokens that one thread may take
 *
 * Returns false: it would take more work than `limit` units, or more room, so bits are missing. The
 * result does not depend on which masks are kept. */
bool mask_add_thread(struct work *w, struct thread t, uint64_t limit, uint32_t *words);

/* mask_add_bytes - set the bits of all tokens of one byte, and of all markers, that a thread may
 * take */
void mask_add_bytes(struct work *w, struct thread t, uint32_t *words);

#endif

/* grammar_int.h - inside of a vocabulary, a compiled grammar and a matcher
 *
 *   grammar_vocab.c   the trie of tokens; masks inside JSON strings
 *   grammar_text.c    the automaton of a JSON string's inside
 *   grammar_build.c   drawing rules (grammar_build.h)
 *   grammar_link.c    rules to one table of states
 *   grammar_step.c    threads over bytes
 *   grammar_mask.c    threads over the trie
 *   grammar_match.c   the public functions of a matcher
 *   grammar_json.c    JSON in general; grammar_calls.c: tool calls; schema*.c: schemas
 */
#ifndef FATHOM_CHAT_GRAMMAR_INT_H
#define FATHOM_CHAT_GRAMMAR_INT_H

#include <stdatomic.h>

#include "base/buf.h"
#include "chat/grammar.h"
#include "chat/grammar_fa.h"

/* The alphabet of a rule: bytes, then markers, then calls of rules. */
enum { SYMBOL_MARKER = 256, SYMBOL_CALL = SYMBOL_MARKER + GRAMMAR_MARKERS_MAX };

/* ---- the inside of a JSON string (grammar_text.c) --------------------------------------- */

enum {
    TEXT_STATES_MAX = 32,
    TEXT_SHORT = 16, /* below so many characters left, a mask of its own */
};

/* text_build - the automaton from after the opening quote to the closing one. State 0, the hub,
 * stands between characters; its edge by '"' leads to the only accepting state, and its other
 * edges each begin a character. */
fathom_err text_build(struct dfa *out);

/* A token that closes the string: the trie node of its quote, and the characters begun before. */
struct text_close {
    uint32_t node;
    uint32_t n_char;
};

struct text_length {
    int32_t id;
    uint32_t n_char;
};

/* What tokens do that begin in one state of the automaton. */
struct text_table {
    uint32_t *inside; /* [n_word] those that stay in the string */
    uint32_t *whole;  /* [n_word] and those that end with its closing quote */
    struct text_close *closes;
    uint32_t n_close;
};

/* ---- vocabulary (grammar_vocab.c) ------------------------------------------------------- */

struct marker {
    int32_t id;
    uint32_t start, n_byte; /* in marker_bytes */
};

/* The trie lies in preorder: a node's first child follows it, and skip leads past its subtree. The
 * tokens that end at node i are ids[first[i] .. first[i + 1]). */
struct grammar_vocab {
    int32_t n_token;
    size_t n_word;
    uint32_t n_node;
    uint8_t *byte;    /* [n_node] */
    uint8_t *depth;   /* [n_node] bytes before this one */
    uint32_t *skip;   /* [n_node] */
    uint32_t *parent; /* [n_node] 0 for those at depth 0 */
    uint32_t *first;  /* [n_node + 1] */
    int32_t *ids;     /* plain tokens in byte order */
    uint32_t *nodes;  /* [n_token] where a token ends; UINT32_MAX: it is not plain */

    struct buf marker_bytes;
    struct marker *markers; /* added tokens, the longer of two before its beginning */
    uint32_t n_marker;

    struct dfa text;
    struct text_table tables[TEXT_STATES_MAX];
    uint32_t *short_masks[TEXT_SHORT]; /* at the hub: inside, of at most so many characters */
    struct text_length *lengths;       /* inside tokens of TEXT_SHORT and more, ascending */
    uint32_t n_length;
    uint32_t n_char_max;
};

static inline void mask_set(uint32_t *words, int32_t id)
{
    words[id >> 5] |= 1u << (id & 31);
}

static inline bool mask_has(const uint32_t *words, int32_t id)
{
    return words[id >> 5] >> (id & 31) & 1;
}

/* ---- grammar (grammar_link.c) ----------------------------------------------------------- */

enum state_flags {
    STATE_ACCEPT = 1, /* the rule may end here */
    STATE_FINAL = 2,  /* and cannot go on: left at once */
    STATE_ENTRY = 4,  /* one call and nothing else: entered at once */
    STATE_HUB = 8,    /* between the characters of a string of bounded length */
    STATE_TEXT = 16,  /* inside a JSON string */
    STATE_CALLS = 32, /* some call may come */
};

struct state {
    uint32_t edge, call, mark; /* first of each */
    uint32_t rule;
    uint16_t n_edge, n_call, n_mark;
    uint16_t need; /* rules that must be opened on the way to the rule's end, at once */
    uint8_t flags;
    uint8_t text; /* STATE_TEXT: state of vocab.text */
};

enum { NO_STATE = UINT32_MAX };

struct byte_edge {
    uint8_t lo, hi;
    uint32_t to;
};

struct call_edge {
    uint32_t rule;
    uint32_t to; /* where the caller goes on */
};

struct mark_edge {
    uint32_t marker;
    uint32_t to;
};

struct symbol_set {
    uint64_t words[(SYMBOL_MARKER + GRAMMAR_MARKERS_MAX) / 64];
};

static inline bool symbol_set_has(const struct symbol_set *s, uint32_t symbol)
{
    return s->words[symbol >> 6] >> (symbol & 63) & 1;
}

static inline void symbol_set_add(struct symbol_set *s, uint32_t symbol)
{
    s->words[symbol >> 6] |= UINT64_C(1) << (symbol & 63);
}

struct rule {
    uint32_t start;
    uint32_t min, max;        /* of a JSON string's inside, in characters */
    struct symbol_set first;  /* what a word of the rule begins with */
    struct symbol_set follow; /* what may come after one */
};

/* A mask of tokens that stay in the rule of a state, and the trie nodes where others leave it. */
enum { SLOTS_MAX = 128, SLOT_EXITS_MAX = 1024, SLOT_VISITS_MIN = 1024 };

/* Of a state: 0 not looked at, else a slot + 1, or one of these. */
enum { CACHE_BUSY = 0xffff, CACHE_NONE = 0xfffe, CACHE_WANTED = 0xfffd };

struct grammar {
    atomic_uint n_holder;
    const struct grammar_vocab *vocab;
    uint32_t root; /* its rule */
    uint32_t n_state, n_edge, n_call, n_mark, n_rule, n_row, n_marker;
    struct state *states;
    struct byte_edge *edges;
    struct call_edge *calls;
    struct mark_edge *marks;
    struct rule *rules;
    uint32_t *rows; /* [n_row][1 << class_bits] targets of the states below n_row */
    uint32_t class_bits;
    uint8_t class_of[256];
    int32_t marker_ids[GRAMMAR_MARKERS_MAX];
    uint32_t need_max;

    _Atomic uint16_t *cache; /* [n_state] */
    atomic_uint n_slot;      /* taken so far */
    size_t slot_words;
    uint32_t *slots; /* [SLOTS_MAX][slot_words]: mask, number of exits, exits */
};

struct grammar_builder;

/* grammar_link - the compiled grammar of a builder's rules */
fathom_err grammar_link(struct grammar **out, const struct grammar_builder *b, uint32_t root,
                        fathom_diag *d);

/* grammar_check - ASSERT the invariants of a linked grammar; grammar_dump - its states as text */
void grammar_check(const struct grammar *g);
void grammar_dump(const struct grammar *g, struct buf *out);

/* ---- threads (grammar_step.c) ----------------------------------------------------------- */

enum {
    THREADS_MAX = 64,        /* kept between tokens; more are dropped, the first ones stay */
    FRAMES_MAX = 1024,       /* likewise: at least GRAMMAR_DEPTH_MAX and two */
    WORK_THREADS_MAX = 4096, /* all levels of a walk together */
    WORK_FRAMES_MAX = 4096,
    LEVELS_MAX = GRAMMAR_TOKEN_BYTES_MAX + 1,
};

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

struct work {
    const struct grammar *g;
    uint32_t max_thread, max_frame;
    uint32_t n_thread, n_frame;
    uint32_t step_frame; /* frames from here on are of the current step */
    struct level levels[LEVELS_MAX + 1];
    struct thread threads[WORK_THREADS_MAX * 2];
    struct frame frames[WORK_FRAMES_MAX * 2];
};

/* work_begin - with a matcher's frames; `wide` gives twice the room, so that what fits a walk over
 * the trie fits taking a token, too */
void work_begin(struct work *w, const struct grammar *g, const struct frame *frames,
                uint32_t n_frame, bool wide);

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

/* work_settle - level 0 is where a thread stands that comes to `t`: calls that end are left, calls
 * that are the only way are entered */
void work_settle(struct work *w, struct thread t);

/* work_next - the symbols that a level may go on with */
void work_next(const struct work *w, uint32_t i, struct symbol_set *out);

/* thread_can_end - whether the root rule may end where a thread stands */
bool thread_can_end(const struct grammar *g, const struct frame *frames, struct thread t);

/* ---- masks (grammar_mask.c) ------------------------------------------------------------- */

/* mask_add_thread - set the bits of all tokens that one thread may take */
void mask_add_thread(struct work *w, struct thread t, uint32_t *words);

#endif

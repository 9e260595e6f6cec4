/* grammar_int.h - inside of a vocabulary, of what is drawn, and of a compiled grammar
 *
 *   grammar_vocab.c  the trie of tokens; masks inside JSON strings
 *   builder.c        drawing rules (builder.h); builder_json.c: JSON in general
 *   grammar_link.c   drawn rules to one table of states
 */
#ifndef FATHOM_GRAMMAR_GRAMMAR_INT_H
#define FATHOM_GRAMMAR_GRAMMAR_INT_H

#include <stdatomic.h>

#include "base/buf.h"
#include "grammar/automaton.h"
#include "grammar/budget.h"
#include "grammar/grammar.h"

/* The alphabet of a rule: bytes, then markers, then calls of rules. */
enum { SYMBOL_MARKER = 256, SYMBOL_CALL = SYMBOL_MARKER + GRAMMAR_MARKERS_MAX };

/* ---- vocabulary (grammar_vocab.c) ------------------------------------------------------- */

/* Of the automaton of a JSON string's inside (spell_json_string). */
enum {
    TEXT_STATES_MAX = 32,
    TEXT_SHORT = 16, /* below so many characters left, a mask of its own */
};

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

/* ---- what is drawn (builder.c) ---------------------------------------------------------- */

enum { BUILDER_STATES_MAX = 1 << 19 };

/* A drawn rule, or the inside of a JSON string with its closing quote (begin and end unused). */
struct drawn_rule {
    uint32_t begin, end;
    bool cut; /* a word ends at its first end mark: no word is the beginning of another */
    bool is_text;
    uint32_t min, max; /* is_text */
};

/* How deep a line is indented: known for the outermost brackets, one step of 8 blanks each. */
enum { INDENTS = 4, INDENT_STEP = 8, INDENT_MAX = 32 };

struct grammar_builder {
    const struct grammar_vocab *vocab;
    struct grammar_options options;
    struct grammar_budget budget;
    struct nfa nfa; /* all rules; keeps the first failure */
    struct drawn_rule *rules;
    uint32_t n_rule;
    size_t cap_rule;
    uint32_t json[GRAMMAR_JSON_COUNT]; /* rule + 1; 0: not drawn yet */
    uint32_t lines[INDENTS];           /* newline and so many blanks; likewise */
    uint32_t level;                    /* brackets around what is drawn; INDENTS: not known */
    int32_t marker_ids[GRAMMAR_MARKERS_MAX];
    uint32_t n_marker;
    const char
        *narrowed; /* a keyword of which less is drawn than it lets in; NULL: there is none */
};

/* builder_status - what has failed while drawing */
fathom_err builder_status(const struct grammar_builder *b, fathom_diag *d);

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
enum { KEPT_MAX = 128, KEPT_EXITS_MAX = 1024, KEPT_VISITS_MIN = 1024 };

/* Of a state: 0 not looked at, else the number of a kept mask + 1, or one of these. */
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
    atomic_uint n_kept;      /* taken so far */
    size_t kept_words;
    uint32_t *kept; /* [KEPT_MAX][kept_words]: mask, its units of work, number of exits, exits */
};

/* grammar_link - the compiled grammar of a builder's rules, paid out of its budget */
fathom_err grammar_link(struct grammar **out, struct grammar_builder *b, uint32_t root,
                        fathom_diag *d);

/* grammar_check - ASSERT the invariants of a linked grammar; grammar_dump - its states as text */
void grammar_check(const struct grammar *g);
void grammar_dump(const struct grammar *g, struct buf *out);

#endif

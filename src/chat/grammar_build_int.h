/* grammar_build_int.h - inside of a grammar_builder */
#ifndef FATHOM_CHAT_GRAMMAR_BUILD_INT_H
#define FATHOM_CHAT_GRAMMAR_BUILD_INT_H

#include "chat/grammar_build.h"
#include "chat/grammar_int.h"

enum { BUILDER_STATES_MAX = 1 << 19 };

/* A drawn rule, or the inside of a JSON string with its closing quote (begin and end unused). */
struct drawn_rule {
    uint32_t begin, end;
    bool cut; /* only words count that do not begin with another one: up to the first end mark */
    bool is_text;
    uint32_t min, max; /* is_text */
};

struct grammar_builder {
    const struct grammar_vocab *vocab;
    struct grammar_options options;
    struct nfa nfa; /* all rules; keeps the first failure */
    struct drawn_rule *rules;
    uint32_t n_rule;
    size_t cap_rule;
    uint32_t json[GRAMMAR_JSON_COUNT]; /* rule + 1; 0: not drawn yet */
    uint32_t lines;                    /* newline and blanks; likewise */
    int32_t marker_ids[GRAMMAR_MARKERS_MAX];
    uint32_t n_marker;
};

/* builder_status - what has failed while drawing */
fathom_err builder_status(const struct grammar_builder *b, fathom_diag *d);

#endif

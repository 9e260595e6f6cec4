/* constraint.h - what a request may draw, said by its owner; part of fathom.h */
#ifndef FATHOM_CONSTRAINT_H
#define FATHOM_CONSTRAINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one request may draw, said token by token by its owner: the engine knows no language.
 *
 * Before each draw the engine asks for a mask, and tells what was drawn. With drafts it looks
 * ahead: it marks the place, steps over guesses and goes back; what is drawn does not depend on it.
 * The engine's thread makes all calls but destroy, one at a time; none may allocate or wait. */
typedef struct fathom_constraint_ops {
    /* Overwrite words[0 .. n_word), which hold a bit for each of n_vocab ids: bit id % 32 of word
     * id / 32 is set when id may come next. At least one is. */
    void (*fill_mask)(const void *state, uint32_t *words, size_t n_word);
    /* Go over a token; false, and nothing changes, when it may not come. */
    bool (*accept)(void *state, int32_t id);
    void (*mark)(void *state);    /* remember the place, and no other */
    void (*go_back)(void *state); /* to the place marked; maybe several times */
    void (*destroy)(void *state); /* from any thread; the last call */
    /* So many tokens may come next, each any of all ids, whatever the others are: their draws get
     * no mask, and steps may be launched ahead of them. NULL: none. */
    uint32_t (*n_free)(const void *state);
} fathom_constraint_ops;

typedef struct fathom_constraint {
    const fathom_constraint_ops *ops; /* NULL: none */
    void *state;
} fathom_constraint;

#endif

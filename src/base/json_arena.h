/* json_arena.h - memory of JSON trees that are made for one purpose and given back as a whole
 *
 *   json_arena_create --> OPEN --json_arena_enter--> ENTERED --json_arena_enter of another--> OPEN
 *                           |                                                                  |
 *                           +------------------- json_arena_destroy ---------------------------+
 *
 * Jansson allocates 24 to 200 bytes for a value of two bytes of text, and a heap full of them is
 * not given back to the system when they are freed. While an arena is entered, jansson's
 * allocations of this thread come from it, one behind the other without headers. All arenas lie in
 * one range of LIMIT_JSON_TREES_BYTES, whose pages the system provides when they are touched and
 * takes back with the arena. Trees of threads without an arena come from the heap, as ever.
 *
 * A value's address tells where it belongs. So any thread may release a reference to any tree: in
 * the range that does nothing, since the arena's end releases all. A tree of an arena must not be
 * touched, not even by json_decref, once its arena is gone.
 *
 * Invariants: used <= limit <= LIMIT_JSON_TREE_BYTES; no two arenas have bytes of one chunk.
 */
#ifndef FATHOM_BASE_JSON_ARENA_H
#define FATHOM_BASE_JSON_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "fathom/err.h"

struct json_arena;

/* Why an arena had no memory, which jansson tells as "out of memory". */
enum json_arena_fault {
    JSON_ARENA_FINE,
    JSON_ARENA_OVER, /* its limit: the tree is too large for its text */
    JSON_ARENA_FULL, /* the range: the trees of others are in the way for now */
};

/* json_arena_create - an empty arena
 *
 *   limit  bytes that it may hold, which json_arena_note_text raises
 * Owns    the caller, who releases it with json_arena_destroy.
 * Errors  ENOMEM. The first call in the process makes jansson allocate through this file: no other
 *         thread may be using jansson then. */
fathom_err json_arena_create(struct json_arena **out, size_t limit);

/* json_arena_destroy - give its memory back; accepts NULL. It must not be entered anywhere. */
void json_arena_destroy(struct json_arena *a);

/* json_arena_enter - from now on jansson's allocations of this thread come from `a`; NULL: from the
 * heap. One thread at a time.
 * Returns  the arena that was entered before, NULL: none. */
struct json_arena *json_arena_enter(struct json_arena *a);

/* json_arena_entered - the arena of this thread; NULL: none */
struct json_arena *json_arena_entered(void);

/* json_arena_note_text - n bytes of text from outside are about to be read into it: its limit rises
 * by LIMIT_JSON_FACTOR for each. Texts within that text do not count again. NULL: nothing. */
void json_arena_note_text(struct json_arena *a, size_t n);

/* json_arena_take_mark - where the arena of this thread stands
 * json_arena_rewind    - give back all that has been made in that arena since; what was made must
 *                        be out of use. Without an arena both do nothing. */
struct json_arena_mark {
    struct json_arena *arena; /* NULL: none */
    char *at, *end;
    struct run *runs;
    size_t used;
};
struct json_arena_mark json_arena_take_mark(void);
void json_arena_rewind(const struct json_arena_mark *m);

enum json_arena_fault json_arena_fault(const struct json_arena *a); /* the first one; NULL: FINE */
size_t json_arena_used(const struct json_arena *a);                 /* NULL: 0 */
size_t json_arena_limit(const struct json_arena *a);

/* json_arena_holds - whether an address lies in the range */
bool json_arena_holds(const void *p);

/* json_arenas_used - bytes of the range that arenas have taken, in whole chunks */
size_t json_arenas_used(void);

#endif

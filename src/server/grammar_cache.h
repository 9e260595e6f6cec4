/* grammar_cache.h - grammars compiled once for all requests that ask for the same grammar
 *
 * Two requests ask for the same grammar when their keys are equal texts: kind, schema (or pattern,
 * choices, grammar, tools) as compact JSON with its keys in order, options, markup. The first
 * request compiles, on its own thread; others wait for it without occupying a thread. A failure is
 * remembered too, so a schema that fails after half a second of work costs that only once.
 *
 * A compilation is stopped, and nothing of it remembered, when all who wanted it have left, when
 * the cache is stopped, or after LIMIT_GRAMMAR_COMPILE_MS. The work of a compilation is bounded
 * (grammar/budget.h), so if it takes that long the machine is too busy.
 *
 * Any thread may call. Compilation runs on the caller's thread, without the lock.
 */
#ifndef FATHOM_SERVER_GRAMMAR_CACHE_H
#define FATHOM_SERVER_GRAMMAR_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "chat/answer_grammar.h"
#include "fathom/err.h"
#include "server/prometheus.h"

struct grammar_cache;

struct grammar_cache_config {
    const struct tokenizer *tokenizer; /* borrowed */
    uint32_t n_vocab;                  /* ids that a mask has bits for */
    size_t max_bytes;                  /* of grammars and keys; the least recently used go */
    struct histogram *compile_us;      /* NULL, or counts how long compilations take */
    void (*wake)(void *arg);           /* of a grammar_wait: what it waited for is over */
};

/* grammar_cache_create - nothing compiled; the vocabulary's tables are made with the first grammar.
 * ENOMEM. */
fathom_err grammar_cache_create(struct grammar_cache **out, const struct grammar_cache_config *c);
void grammar_cache_destroy(struct grammar_cache *c); /* nobody may be calling; accepts NULL */

/* What a caller has to do for a grammar that is not there yet. */
enum grammar_next {
    GRAMMAR_TAKE,    /* nothing: it is there, or refused */
    GRAMMAR_COMPILE, /* call again from a thread that may compile */
    GRAMMAR_WAIT,    /* call again after wake(arg), which may have come already */
};

/* A request that wants a grammar. Zeroed except for arg: it wants none yet. */
struct grammar_wait {
    void *arg;
    enum grammar_next next;
    struct entry *entry;              /* the cache's: the entry that it waits for, or compiles */
    struct grammar_wait *next_waiter; /* of the same entry */
    bool left;                        /* it does not want the grammar any more */
};

/* grammar_cache_get - the grammar of an answer, from the cache or compiled
 *
 *   may_compile  this call may compile
 *   wait         must stay at its address until woken. wait->next says what to do next. If that is
 *                not GRAMMAR_TAKE, the call returns FATHOM_OK and *out is NULL
 * Errors  as answer_grammar_compile. ECANCEL: the compilation was stopped. EBUSY: it took too long.
 *         ELIMIT: the text is longer than LIMIT_GRAMMAR_TEXT_BYTES
 * Owns    *out: one reference, which must be released before the cache is destroyed. */
fathom_err grammar_cache_get(struct grammar_cache *c, const struct answer_grammar *answer,
                             const struct grammar_options *options, bool may_compile,
                             struct grammar_wait *wait, struct grammar **out, fathom_diag *d);

/* grammar_cache_leave - a request does not want its grammar any more. When none does, the
 * compilation is stopped. A request that waits is woken all the same. */
void grammar_cache_leave(struct grammar_cache *c, struct grammar_wait *wait);

/* grammar_cache_tick - stop compilations that have taken too long
 * grammar_cache_stop - stop all compilations, and begin no more */
void grammar_cache_tick(struct grammar_cache *c, uint64_t now_us);
void grammar_cache_stop(struct grammar_cache *c);

struct grammar_cache_stats {
    uint64_t n_hit;     /* found, also after waiting for another thread's compilation */
    uint64_t n_miss;    /* compiled */
    uint64_t n_failed;  /* those of them that failed: the grammar cannot be compiled */
    uint64_t n_evicted; /* removed to make room */
    uint64_t n_entry;   /* held now */
    uint64_t n_byte;
};

/* grammar_cache_get_stats - counts since creation, and what is held */
void grammar_cache_get_stats(struct grammar_cache *c, struct grammar_cache_stats *out);

/* grammar_cache_check - assert the invariants of grammar_cache.c */
void grammar_cache_check(struct grammar_cache *c);

/* grammar_cache_dump - counts, then a line an entry, the most recently used first */
fathom_err grammar_cache_dump(struct grammar_cache *c, struct buf *out);

#endif

/* grammar_cache.h - grammars compiled once for all requests that ask for the same
 *
 * Two requests ask for the same when their keys are the same text: kind, schema (or pattern,
 * choices, tools) as compact JSON with its keys in order, options, markup. One thread compiles, and
 * others that want the same wait for it. A failure is remembered too, so a schema that fails after
 * a second of work costs that second once.
 *
 * Any thread may call; compilation happens in the caller's, without the lock.
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
};

/* grammar_cache_create - nothing compiled; the vocabulary's tables are made with the first grammar.
 * ENOMEM. */
fathom_err grammar_cache_create(struct grammar_cache **out, const struct grammar_cache_config *c);
void grammar_cache_destroy(struct grammar_cache *c); /* nobody may be calling; accepts NULL */

/* grammar_cache_get - the grammar of an answer, from the cache or compiled
 *
 * Errors  as answer_grammar_compile; ELIMIT when the text is longer than LIMIT_GRAMMAR_TEXT_BYTES
 * Owns    *out: one reference, which must be released before the cache is destroyed. */
fathom_err grammar_cache_get(struct grammar_cache *c, const struct answer_grammar *answer,
                             const struct grammar_options *options, struct grammar **out,
                             fathom_diag *d);

struct grammar_cache_stats {
    uint64_t n_hit;     /* found, also after waiting for another thread's compilation */
    uint64_t n_miss;    /* compiled */
    uint64_t n_failed;  /* of them refused: the grammar cannot be compiled */
    uint64_t n_evicted; /* gone for want of room */
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

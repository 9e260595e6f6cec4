/* grammar_cache.c - entries by the hash of their key, in the order of use
 *
 * Invariants, under the lock
 *
 *   1. Every entry is in the chain of its hash's bucket and in the list of use, newest first;
 *      n_entry counts them; no two have the same key.
 *   2. READY: grammar is held. FAILED: err and message tell why. COMPILING: neither, and one thread
 *      is at it.
 *   3. After each compilation the bytes are within max_bytes, or nothing but COMPILING is left.
 *
 * States of an entry
 *
 *   get: not found        compiled
 *   ------------> COMPILING ----> READY ---evict---> gone
 *                     |   +-----> FAILED --evict---> gone
 *                     +-- no memory ---------------> gone */
#include "server/grammar_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"

enum { N_BUCKET = 1024 };

enum entry_state { ENTRY_COMPILING, ENTRY_READY, ENTRY_FAILED };

struct entry {
    struct entry *chain; /* next of the same bucket */
    struct entry *newer; /* neighbours in the list of use */
    struct entry *older;
    uint64_t hash;
    struct buf key;
    enum entry_state state;
    struct grammar *grammar;
    fathom_err err;
    fathom_diag diag;
};

struct grammar_cache {
    struct grammar_cache_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an entry is COMPILING no more */
    struct grammar_vocab *vocab;
    struct entry *buckets[N_BUCKET];
    struct entry *newest;
    struct entry *oldest;
    struct grammar_cache_stats stats; /* n_byte is as of the last compilation */
};

/* ---- keys ---------------------------------------------------------------------------------- */

static fathom_err write_key(struct buf *b, const struct answer_grammar *a,
                            const struct grammar_options *o)
{
    TRY(buf_printf(b, "%d %d %d %d %d\n", (int)a->content, a->thinking, (int)o->space,
                   o->open_objects, o->lenient));
    if (a->value) TRY(json_write(b, a->value));
    if (!a->calls) return buf_status(b);
    const struct call_grammar *c = a->calls;
    TRY(buf_printf(b, "\n%d %d %d ", (int)c->markup, c->parallel, c->strict_only));
    if (c->name) TRY(json_write_string(b, c->name, strlen(c->name)));
    return json_write(b, c->tools);
}

static uint64_t hash_of(const struct buf *key)
{
    uint64_t h = key->len;
    for (size_t i = 0; i < key->len; i++) h = (h ^ (unsigned char)key->data[i]) * 0x100000001b3;
    return rng_hash(h);
}

/* ---- entries, with the lock held ----------------------------------------------------------- */

static struct entry *find(const struct grammar_cache *c, uint64_t hash, const struct buf *key)
{
    struct entry *e = c->buckets[hash % N_BUCKET];
    while (e && !(e->hash == hash && e->key.len == key->len &&
                  memcmp(e->key.data, key->data, key->len) == 0)) {
        e = e->chain;
    }
    return e;
}

static void push_newest(struct grammar_cache *c, struct entry *e)
{
    e->newer = NULL;
    e->older = c->newest;
    if (c->newest) {
        c->newest->newer = e;
    } else {
        c->oldest = e;
    }
    c->newest = e;
}

static void unlink_use(struct grammar_cache *c, struct entry *e)
{
    if (e->newer) {
        e->newer->older = e->older;
    } else {
        c->newest = e->older;
    }
    if (e->older) {
        e->older->newer = e->newer;
    } else {
        c->oldest = e->newer;
    }
}

/* A COMPILING entry; takes the key. NULL: no memory. */
static struct entry *insert(struct grammar_cache *c, uint64_t hash, struct buf *key)
{
    struct entry *e = mem_calloc(1, sizeof *e);
    if (!e) return NULL;
    e->hash = hash;
    e->key = *key;
    *key = (struct buf){0};
    e->chain = c->buckets[hash % N_BUCKET];
    c->buckets[hash % N_BUCKET] = e;
    push_newest(c, e);
    c->stats.n_entry++;
    return e;
}

static void remove_entry(struct grammar_cache *c, struct entry *e)
{
    struct entry **at = &c->buckets[e->hash % N_BUCKET];
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    unlink_use(c, e);
    c->stats.n_entry--;
    grammar_release(e->grammar);
    buf_free(&e->key);
    mem_free(e);
}

/* A grammar grows by the masks that it keeps, up to a bound. */
static size_t bytes_of(const struct entry *e)
{
    return sizeof *e + e->key.len + (e->grammar ? grammar_n_byte(e->grammar) : 0);
}

static void evict(struct grammar_cache *c)
{
    size_t n_byte = 0;
    for (const struct entry *e = c->newest; e; e = e->older) n_byte += bytes_of(e);
    for (struct entry *e = c->oldest, *newer; e && n_byte > c->config.max_bytes; e = newer) {
        newer = e->newer;
        if (e->state == ENTRY_COMPILING) continue;
        n_byte -= bytes_of(e);
        remove_entry(c, e);
        c->stats.n_evicted++;
    }
    c->stats.n_byte = n_byte;
}

static fathom_err make_vocab(struct grammar_cache *c, fathom_diag *d)
{
    if (c->vocab) return FATHOM_OK;
    struct grammar_vocab *v;
    TRY(grammar_vocab_create(&v, c->config.tokenizer, d));
    if (grammar_vocab_n_word(v) <= (c->config.n_vocab + 31) / 32) {
        c->vocab = v;
        return FATHOM_OK;
    }
    grammar_vocab_destroy(v);
    FAIL(d, FATHOM_EUNSUPPORTED,
         "the tokenizer has %d tokens and the model %u: outputs cannot be held to a grammar",
         (int)tokenizer_n_token(c->config.tokenizer), c->config.n_vocab);
}

/* ---- life ---------------------------------------------------------------------------------- */

fathom_err grammar_cache_create(struct grammar_cache **out, const struct grammar_cache_config *c)
{
    struct grammar_cache *cache = mem_calloc(1, sizeof *cache);
    *out = cache;
    if (!cache) return FATHOM_ENOMEM;
    cache->config = *c;
    (void)pthread_mutex_init(&cache->lock, NULL);
    (void)pthread_cond_init(&cache->changed, NULL);
    return FATHOM_OK;
}

void grammar_cache_destroy(struct grammar_cache *c)
{
    if (!c) return;
    while (c->newest) remove_entry(c, c->newest);
    grammar_vocab_destroy(c->vocab);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- get ----------------------------------------------------------------------------------- */

/* Fills a COMPILING entry; gives up the lock meanwhile. */
static void compile(struct grammar_cache *c, struct entry *e, const struct answer_grammar *answer,
                    const struct grammar_options *options)
{
    struct grammar *g = NULL;
    fathom_diag d;
    diag_clear(&d);
    c->stats.n_miss++;
    fathom_err err = make_vocab(c, &d);
    if (!err) {
        (void)pthread_mutex_unlock(&c->lock);
        uint64_t start_us = clock_now_us();
        err = answer_grammar_compile(&g, c->vocab, answer, options, NULL, &d);
        if (c->config.compile_us) {
            histogram_observe(c->config.compile_us, clock_now_us() - start_us);
        }
        (void)pthread_mutex_lock(&c->lock);
    }
    e->grammar = g;
    e->err = err;
    e->diag = d;
    e->state = err ? ENTRY_FAILED : ENTRY_READY;
    if (err) c->stats.n_failed++;
    (void)pthread_cond_broadcast(&c->changed);
}

/* With the lock held: what the entry has to tell. */
static fathom_err take(struct entry *e, struct grammar **out, fathom_diag *d)
{
    if (e->state == ENTRY_READY) {
        *out = grammar_retain(e->grammar);
        return FATHOM_OK;
    }
    return diag_fail(d, e->err, "%s", e->diag.text);
}

static fathom_err get(struct grammar_cache *c, struct buf *key, const struct answer_grammar *answer,
                      const struct grammar_options *options, struct grammar **out, fathom_diag *d)
{
    uint64_t hash = hash_of(key);
    struct entry *e = find(c, hash, key);
    while (e && e->state == ENTRY_COMPILING) {
        (void)pthread_cond_wait(&c->changed, &c->lock);
        e = find(c, hash, key); /* it may be gone */
    }
    if (e) {
        c->stats.n_hit++;
        unlink_use(c, e);
        push_newest(c, e);
        return take(e, out, d);
    }
    e = insert(c, hash, key);
    if (!e) return FATHOM_ENOMEM;
    compile(c, e, answer, options);
    fathom_err err = take(e, out, d);
    if (err == FATHOM_ENOMEM) remove_entry(c, e);
    evict(c);
    return err;
}

fathom_err grammar_cache_get(struct grammar_cache *c, const struct answer_grammar *answer,
                             const struct grammar_options *options, struct grammar **out,
                             fathom_diag *d)
{
    struct buf key = {.limit = LIMIT_GRAMMAR_TEXT_BYTES};
    *out = NULL;
    fathom_err err = write_key(&key, answer, options);
    if (key.over_limit) {
        err = diag_fail(d, FATHOM_ELIMIT,
                        "the schema, or the tools together, are longer than %d bytes of JSON",
                        LIMIT_GRAMMAR_TEXT_BYTES);
    }
    if (!err) {
        (void)pthread_mutex_lock(&c->lock);
        err = get(c, &key, answer, options, out, d);
        (void)pthread_mutex_unlock(&c->lock);
    }
    buf_free(&key);
    return err;
}

/* ---- looking in ---------------------------------------------------------------------------- */

void grammar_cache_get_stats(struct grammar_cache *c, struct grammar_cache_stats *out)
{
    (void)pthread_mutex_lock(&c->lock);
    *out = c->stats;
    (void)pthread_mutex_unlock(&c->lock);
}

void grammar_cache_check(struct grammar_cache *c)
{
    uint64_t n_listed = 0, n_chained = 0;
    (void)pthread_mutex_lock(&c->lock);
    for (const struct entry *e = c->newest; e; e = e->older) {
        n_listed++;
        ASSERT(e->older ? e->older->newer == e : c->oldest == e);
        ASSERT(find(c, e->hash, &e->key) == e);
        ASSERT((e->state == ENTRY_READY) == (e->grammar != NULL));
        ASSERT((e->state == ENTRY_FAILED) == (e->err != FATHOM_OK));
    }
    for (size_t i = 0; i < N_BUCKET; i++) {
        for (const struct entry *e = c->buckets[i]; e; e = e->chain) n_chained++;
    }
    ASSERT(n_listed == c->stats.n_entry && n_chained == c->stats.n_entry);
    (void)pthread_mutex_unlock(&c->lock);
}

fathom_err grammar_cache_dump(struct grammar_cache *c, struct buf *out)
{
    static const char *const names[] = {"COMPILING", "READY", "FAILED"};
    (void)pthread_mutex_lock(&c->lock);
    const struct grammar_cache_stats *s = &c->stats;
    (void)buf_printf(out, "grammars: %llu of %llu bytes, %llu hits, %llu misses\n",
                     (unsigned long long)s->n_entry, (unsigned long long)s->n_byte,
                     (unsigned long long)s->n_hit, (unsigned long long)s->n_miss);
    for (const struct entry *e = c->newest; e; e = e->older) {
        (void)buf_printf(out, "  grammar %016llx %s key=%zu bytes=%zu\n",
                         (unsigned long long)e->hash, names[e->state], e->key.len, bytes_of(e));
    }
    (void)pthread_mutex_unlock(&c->lock);
    return buf_status(out);
}

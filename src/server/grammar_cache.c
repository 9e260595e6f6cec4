/* grammar_cache.c - a hash table of entries, which are also in a list in the order of use
 *
 * Invariants, under the lock
 *
 *   1. Every entry is in the chain of its hash's bucket, and in the list of use, newest first.
 *      n_entry counts the entries. No two have the same key.
 *   2. READY: the entry has a grammar. FAILED: err and diag say why it has none. COMPILING: one
 *      thread compiles. n_wanted counts the request that compiles and those that wait, without
 *      those that have left; when it falls to 0, `stop` is set.
 *   3. After each compilation the bytes are within max_bytes, or only COMPILING entries are left.
 *
 * States of an entry
 *
 *   get: not found        compiled
 *   ------------> COMPILING ----> READY ---evict---> gone
 *                     |   +-----> FAILED --evict---> gone
 *                     +-- no memory, ended --------> gone */
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
    /* COMPILING */
    atomic_bool stop;
    bool late; /* it was stopped because it took too long */
    uint64_t begin_us;
    size_t n_wanted;
    struct grammar_wait *waiters;
};

struct grammar_cache {
    struct grammar_cache_config config;
    pthread_mutex_t lock;
    bool stopped;
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

/* The bytes of an entry. They can grow, because a grammar keeps masks, up to a bound. */
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
    return FATHOM_OK;
}

void grammar_cache_destroy(struct grammar_cache *c)
{
    if (!c) return;
    while (c->newest) remove_entry(c, c->newest);
    grammar_vocab_destroy(c->vocab);
    (void)pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- get ----------------------------------------------------------------------------------- */

/* The compilation is over: takes the entry away from all who wanted it. Returns those to wake. */
static struct grammar_wait *let_go(struct entry *e, struct grammar_wait *own)
{
    struct grammar_wait *waiters = e->waiters;
    for (struct grammar_wait *w = waiters; w; w = w->next_waiter) w->entry = NULL;
    own->entry = NULL;
    e->waiters = NULL;
    return waiters;
}

/* Compiles, without the lock. Only the `stop` flag of the entry is used. */
static fathom_err run_compiler(struct grammar_cache *c, const atomic_bool *stop,
                               const struct answer_grammar *answer,
                               const struct grammar_options *options, struct grammar **out,
                               fathom_diag *d)
{
    uint64_t start_us = clock_now_us();
    fathom_err err = answer_grammar_compile(out, c->vocab, answer, options, stop, d);
    if (c->config.compile_us) {
        histogram_observe(c->config.compile_us, clock_now_us() - start_us);
    }
    return err;
}

static void wake_all(struct grammar_cache *c, struct grammar_wait *waiters)
{
    for (struct grammar_wait *w = waiters, *next; w; w = next) {
        next = w->next_waiter; /* once woken it may be gone */
        c->config.wake(w->arg);
    }
}

/* Fills a COMPILING entry, or removes it. Called with the lock, which it releases meanwhile. */
static fathom_err compile(struct grammar_cache *c, struct entry *e,
                          const struct answer_grammar *answer,
                          const struct grammar_options *options, struct grammar_wait *own,
                          struct grammar **out, fathom_diag *d)
{
    struct grammar *g = NULL;
    fathom_diag why;
    diag_clear(&why);
    c->stats.n_miss++;
    fathom_err err = c->stopped ? FATHOM_ECANCEL : make_vocab(c, &why);
    if (!err) {
        (void)pthread_mutex_unlock(&c->lock);
        err = run_compiler(c, &e->stop, answer, options, &g, &why);
        (void)pthread_mutex_lock(&c->lock);
    }
    struct grammar_wait *waiters = let_go(e, own);
    bool remembered = err != FATHOM_ENOMEM && err != FATHOM_ECANCEL;
    if (err == FATHOM_ECANCEL && e->late) {
        err = diag_fail(&why, FATHOM_EBUSY,
                        "the grammar could not be compiled in %d s: the machine is too busy",
                        LIMIT_GRAMMAR_COMPILE_MS / 1000);
    }
    e->grammar = g;
    e->err = err;
    e->diag = why;
    e->state = err ? ENTRY_FAILED : ENTRY_READY;
    if (!err) *out = grammar_retain(g);
    if (err) (void)diag_fail(d, err, "%s", why.text);
    if (err && remembered) c->stats.n_failed++;
    if (!remembered) remove_entry(c, e);
    evict(c);
    (void)pthread_mutex_unlock(&c->lock);
    wake_all(c, waiters);
    (void)pthread_mutex_lock(&c->lock);
    return err;
}

/* With the lock held: takes the result of an entry, or joins those that wait for it. */
static fathom_err take(struct grammar_cache *c, struct entry *e, struct grammar_wait *wait,
                       struct grammar **out, fathom_diag *d)
{
    if (e->state == ENTRY_COMPILING) {
        wait->next = GRAMMAR_WAIT;
        wait->entry = e;
        wait->next_waiter = e->waiters;
        e->waiters = wait;
        e->n_wanted += !wait->left;
        return FATHOM_OK;
    }
    c->stats.n_hit++;
    unlink_use(c, e);
    push_newest(c, e);
    if (e->state == ENTRY_FAILED) return diag_fail(d, e->err, "%s", e->diag.text);
    *out = grammar_retain(e->grammar);
    return FATHOM_OK;
}

static fathom_err get(struct grammar_cache *c, struct buf *key, const struct answer_grammar *answer,
                      const struct grammar_options *options, bool may_compile,
                      struct grammar_wait *wait, struct grammar **out, fathom_diag *d)
{
    uint64_t hash = hash_of(key);
    struct entry *e = find(c, hash, key);
    if (e) return take(c, e, wait, out, d);
    if (!may_compile) {
        wait->next = GRAMMAR_COMPILE;
        return FATHOM_OK;
    }
    e = insert(c, hash, key);
    if (!e) return FATHOM_ENOMEM;
    e->begin_us = clock_now_us();
    e->n_wanted = wait->left ? 0 : 1;
    atomic_init(&e->stop, wait->left);
    wait->entry = e;
    return compile(c, e, answer, options, wait, out, d);
}

fathom_err grammar_cache_get(struct grammar_cache *c, const struct answer_grammar *answer,
                             const struct grammar_options *options, bool may_compile,
                             struct grammar_wait *wait, struct grammar **out, fathom_diag *d)
{
    struct buf key = {.limit = LIMIT_GRAMMAR_TEXT_BYTES};
    *out = NULL;
    wait->next = GRAMMAR_TAKE;
    fathom_err err = write_key(&key, answer, options);
    if (key.over_limit) {
        err = diag_fail(d, FATHOM_ELIMIT,
                        "the schema or grammar, or the tools together, are longer than %d bytes of "
                        "JSON",
                        LIMIT_GRAMMAR_TEXT_BYTES);
    }
    if (!err) {
        (void)pthread_mutex_lock(&c->lock);
        err = get(c, &key, answer, options, may_compile, wait, out, d);
        (void)pthread_mutex_unlock(&c->lock);
    }
    buf_free(&key);
    return err;
}

/* ---- ends ---------------------------------------------------------------------------------- */

void grammar_cache_leave(struct grammar_cache *c, struct grammar_wait *wait)
{
    (void)pthread_mutex_lock(&c->lock);
    if (wait->entry && !wait->left && --wait->entry->n_wanted == 0) {
        atomic_store(&wait->entry->stop, true);
    }
    wait->left = true;
    (void)pthread_mutex_unlock(&c->lock);
}

void grammar_cache_tick(struct grammar_cache *c, uint64_t now_us)
{
    (void)pthread_mutex_lock(&c->lock);
    for (struct entry *e = c->newest; e; e = e->older) {
        if (e->state != ENTRY_COMPILING || now_us < e->begin_us) continue;
        if (now_us - e->begin_us < (uint64_t)LIMIT_GRAMMAR_COMPILE_MS * 1000) continue;
        e->late = true;
        atomic_store(&e->stop, true);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

void grammar_cache_stop(struct grammar_cache *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->stopped = true;
    for (struct entry *e = c->newest; e; e = e->older) {
        if (e->state == ENTRY_COMPILING) atomic_store(&e->stop, true);
    }
    (void)pthread_mutex_unlock(&c->lock);
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
        ASSERT(e->state == ENTRY_COMPILING || !e->waiters);
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

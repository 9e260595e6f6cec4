/* vocab.c - tokens in id order, and a hash table over their bytes */
#include "tokenizer/vocab.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

enum { TAG_SHIFT = 22, ID_MASK = (1 << TAG_SHIFT) - 1, FIRST_CAP = 1024, ALPHABET_END = 0x144 };

void vocab_free(struct vocab *v)
{
    buf_free(&v->bytes);
    mem_free(v->tokens);
    mem_free(v->buckets);
    *v = (struct vocab){0};
}

/* Makes tokens[0 .. n_id) exist, new ones empty. */
static fathom_err grow(struct vocab *v, uint32_t n_id)
{
    if (n_id > v->cap) {
        uint32_t cap = v->cap ? v->cap : FIRST_CAP;
        while (cap < n_id) cap *= 2;
        struct vocab_token *tokens = mem_resize(v->tokens, cap * sizeof *tokens);
        if (!tokens) return FATHOM_ENOMEM;
        memset(tokens + v->cap, 0, (cap - v->cap) * sizeof *tokens);
        v->tokens = tokens;
        v->cap = cap;
    }
    if (n_id > v->n_id) v->n_id = n_id;
    return FATHOM_OK;
}

fathom_err vocab_add(struct vocab *v, uint32_t id, const char *bytes, size_t n, unsigned flags)
{
    if (id >= LIMIT_TOKEN_IDS || n > LIMIT_TOKEN_BYTES) return FATHOM_ELIMIT;
    if (v->bytes.len > UINT32_MAX - n) return FATHOM_ELIMIT;
    if (vocab_has(v, id, VOCAB_PRESENT)) return FATHOM_EINVAL;
    fathom_err err = grow(v, id + 1);
    if (!err) err = buf_add(&v->bytes, bytes, n);
    if (err) return err;
    v->tokens[id] = (struct vocab_token){.start = (uint32_t)(v->bytes.len - n),
                                         .n_byte = (uint16_t)n,
                                         .flags = (uint16_t)(flags | VOCAB_PRESENT)};
    return FATHOM_OK;
}

static inline uint64_t load_64(const char *s)
{
    uint64_t x;
    memcpy(&x, s, sizeof x);
    return x;
}

static inline uint32_t load_32(const char *s)
{
    uint32_t x;
    memcpy(&x, s, sizeof x);
    return x;
}

static inline uint64_t mix(uint64_t h, uint64_t x)
{
    unsigned __int128 product = (unsigned __int128)(h ^ x) * 0x9e3779b97f4a7c15u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Reads past no end: the tail is loaded overlapping what came before it. */
static inline uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = mix(0x243f6a8885a308d3u, n);
    if (n >= 8) {
        for (size_t i = 0; i + 8 < n; i += 8) h = mix(h, load_64(s + i));
        return mix(h, load_64(s + n - 8));
    }
    if (n >= 4) return mix(h, load_32(s) | (uint64_t)load_32(s + n - 4) << 32);
    if (n == 0) return h;
    const unsigned char *u = (const unsigned char *)s;
    return mix(h, u[0] | (uint64_t)u[n / 2] << 8 | (uint64_t)u[n - 1] << 16);
}

static inline bool same_bytes(const char *a, const char *b, size_t n)
{
    if (n >= 8) {
        size_t i = 0;
        for (; i + 8 < n; i += 8) {
            if (load_64(a + i) != load_64(b + i)) return false;
        }
        return load_64(a + n - 8) == load_64(b + n - 8);
    }
    if (n >= 4) return load_32(a) == load_32(b) && load_32(a + n - 4) == load_32(b + n - 4);
    return memcmp(a, b, n) == 0;
}

/* The bucket of these bytes: the one that holds them with all of `flags`, or the empty one at which
 * the search ends. */
static inline uint32_t find_bucket(const struct vocab *v, const char *bytes, size_t n,
                                   uint64_t hash, unsigned flags)
{
    uint32_t tag = (uint32_t)(hash >> 54);
    uint32_t i = (uint32_t)hash & v->bucket_mask;
    for (; v->buckets[i]; i = (i + 1) & v->bucket_mask) {
        if (v->buckets[i] >> TAG_SHIFT != tag) continue;
        const struct vocab_token *t = &v->tokens[(v->buckets[i] & ID_MASK) - 1];
        if (t->n_byte != n || (t->flags & flags) != flags) continue;
        if (same_bytes(v->bytes.data + t->start, bytes, n)) break;
    }
    return i;
}

fathom_err vocab_index(struct vocab *v, uint32_t twin[2])
{
    uint32_t n_bucket = 2;
    while (n_bucket < 2 * v->n_id) n_bucket *= 2;
    v->buckets = mem_calloc(n_bucket, sizeof *v->buckets);
    if (!v->buckets) return FATHOM_ENOMEM;
    v->bucket_mask = n_bucket - 1;
    for (uint32_t id = 0; id < v->n_id; id++) {
        if (!vocab_has(v, id, VOCAB_SPELLED)) continue;
        const char *bytes = vocab_bytes(v, id);
        uint64_t hash = hash_bytes(bytes, v->tokens[id].n_byte);
        uint32_t i = find_bucket(v, bytes, v->tokens[id].n_byte, hash, 0);
        if (v->buckets[i]) {
            twin[0] = (v->buckets[i] & ID_MASK) - 1;
            twin[1] = id;
            return FATHOM_EINVAL;
        }
        v->buckets[i] = (uint32_t)(hash >> 54) << TAG_SHIFT | (id + 1);
    }
    return FATHOM_OK;
}

int32_t vocab_find(const struct vocab *v, const char *bytes, size_t n)
{
    uint32_t i = find_bucket(v, bytes, n, hash_bytes(bytes, n), 0);
    return (int32_t)(v->buckets[i] & ID_MASK) - 1;
}

int32_t vocab_find_whole(const struct vocab *v, const char *bytes, size_t n)
{
    uint32_t i = find_bucket(v, bytes, n, hash_bytes(bytes, n), VOCAB_WHOLE);
    return (int32_t)(v->buckets[i] & ID_MASK) - 1;
}

static bool is_plain_latin(unsigned cp)
{
    return (cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xff && cp != 0xad);
}

/* The byte that U+0100 + i stands for: the i-th of the 68 that are not plain. */
static unsigned moved_byte(unsigned i)
{
    if (i <= 0x20) return i;
    return i < 0x43 ? i - 0x21 + 0x7f : 0xad;
}

ptrdiff_t vocab_unspell(const char *name, size_t n, char *out)
{
    const unsigned char *u = (const unsigned char *)name;
    ptrdiff_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned cp = u[i];
        if (cp >= 0x80) {
            if (cp < 0xc2 || cp > 0xc5 || i + 1 >= n || (u[i + 1] & 0xc0) != 0x80) return -1;
            cp = (cp & 0x1f) << 6 | (u[++i] & 0x3f);
        }
        if (is_plain_latin(cp)) {
            out[n_out++] = (char)cp;
        } else if (cp >= 0x100 && cp < ALPHABET_END) {
            out[n_out++] = (char)moved_byte(cp - 0x100);
        } else {
            return -1;
        }
    }
    return n_out;
}

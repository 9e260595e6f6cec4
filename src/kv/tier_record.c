/* tier_record.c - headers of records and of their directory: written and judged */
#include "kv/tier_record.h"

#include <stddef.h>
#include <string.h>

#include "base/assert.h"

#define RECORD_MAGIC 0x64726f6365722d6bu /* "k-record" */
#define INDEX_MAGIC 0x7865646e69766b66u  /* "fkvindex" */

const char *tier_verdict_name(enum tier_verdict v)
{
    static const char *const names[TIER_VERDICT_COUNT] = {
        [TIER_GOOD] = "good",
        [TIER_BAD_IO] = "io",
        [TIER_BAD_TRUNCATED] = "truncated",
        [TIER_BAD_CHECKSUM] = "checksum",
        [TIER_BAD_VERSION] = "version",
        [TIER_BAD_MODEL] = "model",
        [TIER_BAD_NUMERICS] = "numerics",
        [TIER_BAD_LAYOUT] = "layout",
        [TIER_BAD_TOKENS] = "tokens",
    };
    ASSERT(v < TIER_VERDICT_COUNT);
    return names[v];
}

const char *tier_verdict_advice(enum tier_verdict v)
{
    static const char *const advice[TIER_VERDICT_COUNT] = {
        [TIER_BAD_IO] = "they cannot be read: look after the disk",
        [TIER_BAD_VERSION] = "another version of the program wrote them",
        [TIER_BAD_MODEL] = "they are of other weights or another config.json. To keep both, give "
                           "each checkpoint a directory of its own",
        [TIER_BAD_NUMERICS] = "another version, backend or precision computed them, whose bits "
                              "differ. To keep both, give each a directory of its own",
        [TIER_BAD_LAYOUT] = "they are of another cache type, other layers or other ranks. To keep "
                            "both, give each a directory of its own",
    };
    ASSERT(v < TIER_VERDICT_COUNT);
    return advice[v];
}

static uint64_t header_sum(const struct tier_header *h)
{
    return hash_checksum(h, offsetof(struct tier_header, sum));
}

static uint64_t super_sum(const struct tier_super *s)
{
    return hash_checksum(s, offsetof(struct tier_super, sum));
}

void tier_header_fill(struct tier_header *h, const struct hash128 *owner, uint64_t page_bytes,
                      uint64_t order, const struct tier_name *name, uint64_t page_sum)
{
    ASSERT(name->n_id <= TIER_MAX_ID);
    *h = (struct tier_header){.magic = RECORD_MAGIC,
                              .format = TIER_FORMAT,
                              .layout = KV_LAYOUT_VERSION,
                              .owner = *owner,
                              .page_bytes = page_bytes,
                              .order = order,
                              .page_sum = page_sum,
                              .name = *name};
    h->sum = header_sum(h);
}

enum tier_verdict tier_header_judge(const struct tier_header *h, const struct hash128 *owner,
                                    uint64_t page_bytes)
{
    /* The version comes before the sum, whose place it decides. */
    if (h->magic != RECORD_MAGIC) return TIER_BAD_CHECKSUM;
    if (h->format != TIER_FORMAT || h->layout != KV_LAYOUT_VERSION) return TIER_BAD_VERSION;
    if (h->sum != header_sum(h)) return TIER_BAD_CHECKSUM;
    bool ours = hash128_equal(&h->owner, owner) && h->page_bytes == page_bytes;
    return ours ? TIER_GOOD : TIER_BAD_MODEL;
}

static bool has_name(const struct tier_name *a, const struct tier_name *b)
{
    return hash128_equal(&a->key, &b->key) && a->n_id == b->n_id && a->n_answer == b->n_answer &&
           a->n_id <= TIER_MAX_ID && memcmp(a->ids, b->ids, a->n_id * sizeof a->ids[0]) == 0;
}

enum tier_verdict tier_record_judge(const struct tier_header *h, const struct hash128 *owner,
                                    uint64_t page_bytes, const struct tier_name *name,
                                    const void *page)
{
    enum tier_verdict v = tier_header_judge(h, owner, page_bytes);
    if (v != TIER_GOOD) return v;
    if (!has_name(&h->name, name)) return TIER_BAD_TOKENS;
    return hash_checksum(page, page_bytes) == h->page_sum ? TIER_GOOD : TIER_BAD_CHECKSUM;
}

void tier_super_fill(struct tier_super *s, const struct identity *id, uint64_t page_bytes,
                     const struct hash128 *secret)
{
    *s = (struct tier_super){.magic = INDEX_MAGIC,
                             .format = TIER_FORMAT,
                             .layout = KV_LAYOUT_VERSION,
                             .identity = *id,
                             .page_bytes = page_bytes,
                             .secret = *secret};
    s->sum = super_sum(s);
}

bool tier_super_is_ours(const struct tier_super *s)
{
    return s->magic == INDEX_MAGIC;
}

enum tier_verdict tier_super_judge(const struct tier_super *s, const struct identity *id,
                                   uint64_t page_bytes)
{
    ASSERT(tier_super_is_ours(s));
    if (s->format != TIER_FORMAT || s->layout != KV_LAYOUT_VERSION) return TIER_BAD_VERSION;
    if (s->sum != super_sum(s)) return TIER_BAD_CHECKSUM;
    switch (identity_compare(&s->identity, id)) {
    case IDENTITY_MODEL: return TIER_BAD_MODEL;
    case IDENTITY_NUMERICS: return TIER_BAD_NUMERICS;
    case IDENTITY_LAYOUT: return TIER_BAD_LAYOUT;
    case IDENTITY_EQUAL: break;
    }
    return s->page_bytes == page_bytes ? TIER_GOOD : TIER_BAD_LAYOUT;
}

struct hash128 tier_key_first(const struct hash128 *secret, uint64_t salt)
{
    return hash_keyed(secret, &salt, sizeof salt);
}

struct hash128 tier_key_next(const struct hash128 *secret, const struct hash128 *before,
                             const int32_t *ids, uint32_t n_id, uint32_t n_answer)
{
    struct {
        struct hash128 before;
        int32_t ids[TIER_MAX_ID + 1]; /* then n_answer, where it is not 0 */
    } link;
    ASSERT(n_id <= TIER_MAX_ID && n_answer <= KV_PAGE_TOKENS);
    link.before = *before;
    memcpy(link.ids, ids, n_id * sizeof ids[0]);
    if (n_answer > 0) link.ids[n_id++] = (int32_t)n_answer;
    return hash_keyed(secret, &link, sizeof link.before + n_id * sizeof ids[0]);
}

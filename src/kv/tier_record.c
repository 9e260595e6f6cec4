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
        [TIER_BAD_TOKENS] = "tokens",
    };
    ASSERT(v < TIER_VERDICT_COUNT);
    return names[v];
}

static uint64_t header_sum(const struct tier_header *h)
{
    return hash_checksum(h, offsetof(struct tier_header, sum));
}

static uint64_t super_sum(const struct tier_super *s)
{
    return hash_checksum(s, offsetof(struct tier_super, sum));
}

void tier_header_fill(struct tier_header *h, const struct hash128 *model, uint64_t page_bytes,
                      uint64_t order, const struct tier_name *name, const void *page)
{
    ASSERT(name->n_id <= TIER_MAX_ID);
    *h = (struct tier_header){.magic = RECORD_MAGIC,
                              .format = TIER_FORMAT,
                              .layout = KV_LAYOUT_VERSION,
                              .model = *model,
                              .page_bytes = page_bytes,
                              .order = order,
                              .page_sum = hash_checksum(page, page_bytes),
                              .name = *name};
    h->sum = header_sum(h);
}

enum tier_verdict tier_header_judge(const struct tier_header *h, const struct hash128 *model,
                                    uint64_t page_bytes)
{
    /* The version comes before the sum, whose place it decides. */
    if (h->magic != RECORD_MAGIC) return TIER_BAD_CHECKSUM;
    if (h->format != TIER_FORMAT || h->layout != KV_LAYOUT_VERSION) return TIER_BAD_VERSION;
    if (h->sum != header_sum(h)) return TIER_BAD_CHECKSUM;
    bool ours = hash128_equal(&h->model, model) && h->page_bytes == page_bytes;
    return ours ? TIER_GOOD : TIER_BAD_MODEL;
}

static bool has_name(const struct tier_name *a, const struct tier_name *b)
{
    return hash128_equal(&a->key, &b->key) && a->n_id == b->n_id && a->n_id <= TIER_MAX_ID &&
           memcmp(a->ids, b->ids, a->n_id * sizeof a->ids[0]) == 0;
}

enum tier_verdict tier_record_judge(const struct tier_header *h, const struct hash128 *model,
                                    uint64_t page_bytes, const struct tier_name *name,
                                    const void *page)
{
    enum tier_verdict v = tier_header_judge(h, model, page_bytes);
    if (v != TIER_GOOD) return v;
    if (!has_name(&h->name, name)) return TIER_BAD_TOKENS;
    return hash_checksum(page, page_bytes) == h->page_sum ? TIER_GOOD : TIER_BAD_CHECKSUM;
}

void tier_super_fill(struct tier_super *s, const struct hash128 *model, uint64_t page_bytes,
                     const struct hash128 *secret)
{
    *s = (struct tier_super){.magic = INDEX_MAGIC,
                             .format = TIER_FORMAT,
                             .layout = KV_LAYOUT_VERSION,
                             .model = *model,
                             .page_bytes = page_bytes,
                             .secret = *secret};
    s->sum = super_sum(s);
}

enum tier_verdict tier_super_judge(const struct tier_super *s, const struct hash128 *model,
                                   uint64_t page_bytes)
{
    if (s->magic != INDEX_MAGIC) return TIER_BAD_IO;
    if (s->format != TIER_FORMAT || s->layout != KV_LAYOUT_VERSION) return TIER_BAD_VERSION;
    if (s->sum != super_sum(s)) return TIER_BAD_CHECKSUM;
    bool ours = hash128_equal(&s->model, model) && s->page_bytes == page_bytes;
    return ours ? TIER_GOOD : TIER_BAD_MODEL;
}

struct hash128 tier_key_first(const struct hash128 *secret, uint64_t salt)
{
    return hash_keyed(secret, &salt, sizeof salt);
}

struct hash128 tier_key_next(const struct hash128 *secret, const struct hash128 *before,
                             const int32_t *ids, uint32_t n_id)
{
    struct {
        struct hash128 before;
        int32_t ids[TIER_MAX_ID];
    } link;
    ASSERT(n_id <= TIER_MAX_ID);
    link.before = *before;
    memcpy(link.ids, ids, n_id * sizeof ids[0]);
    return hash_keyed(secret, &link, sizeof link.before + n_id * sizeof ids[0]);
}

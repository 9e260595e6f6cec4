/* tier_record.h - what a page record carries with it outside of the device's cache
 *
 * A record is the page of kv/layout.h, byte for byte, and a header. The header says whose page it
 * is: the layout's version, its owner's identity, the tokens, their key in the chain from the first
 * token on, and sums over both parts. A record is taken only when all of it is what was asked for.
 */
#ifndef FATHOM_KV_TIER_RECORD_H
#define FATHOM_KV_TIER_RECORD_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "kv/identity.h"
#include "kv/layout.h"

enum {
    TIER_FORMAT = 2,                  /* changes when any byte below moves or changes its meaning */
    TIER_MAX_ID = KV_PAGE_TOKENS + 1, /* with the token after the page */
};

/* Why a record is not taken. */
enum tier_verdict {
    TIER_GOOD,
    TIER_BAD_IO,        /* the disk fails */
    TIER_BAD_TRUNCATED, /* the file ends before it */
    TIER_BAD_CHECKSUM,  /* damaged, or torn by a crash while it was written */
    TIER_BAD_VERSION,   /* of another format or layout */
    TIER_BAD_MODEL,     /* of other weights, or another config.json */
    TIER_BAD_NUMERICS,  /* of another version, backend or precision */
    TIER_BAD_LAYOUT,    /* of another cache type, other layers or ranks */
    TIER_BAD_TOKENS,    /* of other tokens than asked for */
    TIER_VERDICT_COUNT,
    TIER_NOT_YET = TIER_VERDICT_COUNT, /* no fault: another server does not have it yet */
};

/* tier_verdict_name - a word for messages, such as "checksum"
 * tier_verdict_advice - what it means if a directory is full of such records, and what to do; NULL:
 * nothing */
const char *tier_verdict_name(enum tier_verdict v);
const char *tier_verdict_advice(enum tier_verdict v);

/* The name of a record: a keyed hash of its tokens and all tokens before, and its own tokens. */
struct tier_name {
    struct hash128 key;
    uint16_t n_id;     /* 64, or 65 with the draft layer */
    uint16_t n_answer; /* its last n_answer rows are answer rows (prefix.h) */
    int32_t ids[TIER_MAX_ID];
};

/* The header, as it lies in the first bytes of a block of DIRECT_ALIGN. */
struct tier_header {
    uint64_t magic;
    uint32_t format;
    uint32_t layout;
    struct hash128 owner; /* identity_key of the engine that computed it */
    uint64_t page_bytes;
    uint64_t order;    /* rises with every record written */
    uint64_t page_sum; /* hash_checksum of the page */
    struct tier_name name;
    uint64_t sum; /* hash_checksum of all bytes before */
};

static_assert(sizeof(struct tier_name) == 280 && sizeof(struct tier_header) == 344,
              "no padding: every byte of a header is in its sum");

/* The first block of an index file: the identity of the records that follow. */
struct tier_super {
    uint64_t magic;
    uint32_t format;
    uint32_t layout;
    struct identity identity;
    uint64_t page_bytes;
    struct hash128 secret; /* of the keys */
    uint64_t sum;
};

static_assert(sizeof(struct tier_super) == 144, "no padding");

/* tier_header_fill - the header of a page of page_bytes bytes whose hash_checksum is page_sum */
void tier_header_fill(struct tier_header *h, const struct hash128 *owner, uint64_t page_bytes,
                      uint64_t order, const struct tier_name *name, uint64_t page_sum);

/* tier_header_judge - whether a header is undamaged and of this owner */
enum tier_verdict tier_header_judge(const struct tier_header *h, const struct hash128 *owner,
                                    uint64_t page_bytes);

/* tier_record_judge - the same, and whether it has the tokens asked for and its page is undamaged
 * */
enum tier_verdict tier_record_judge(const struct tier_header *h, const struct hash128 *owner,
                                    uint64_t page_bytes, const struct tier_name *name,
                                    const void *page);

/* tier_super_fill - write the first block of an index file
 * tier_super_is_ours - whether a block is such a block, of any version and identity
 * tier_super_judge - whether the records behind it can be used here: compares the version, then
 * each part of the identity in the order of struct identity */
void tier_super_fill(struct tier_super *s, const struct identity *id, uint64_t page_bytes,
                     const struct hash128 *secret);
bool tier_super_is_ours(const struct tier_super *s);
enum tier_verdict tier_super_judge(const struct tier_super *s, const struct identity *id,
                                   uint64_t page_bytes);

/* tier_key_next - the key of a page from that of the page before it, or from tier_key_first
 *
 *   ids       [n_id] its tokens, TIER_MAX_ID at most
 *   n_answer  of the record's name
 * Cost  about 100 ns. */
struct hash128 tier_key_first(const struct hash128 *secret, uint64_t salt);
struct hash128 tier_key_next(const struct hash128 *secret, const struct hash128 *before,
                             const int32_t *ids, uint32_t n_id, uint32_t n_answer);

#endif

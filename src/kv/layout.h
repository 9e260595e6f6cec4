/* layout.h - the byte map of one page record
 *
 * A page record holds, for KV_PAGE_TOKENS tokens, everything that the model caches about them:
 * every layer's latent, rotary key and index key, and the same for the MTP layer. Prefix cache,
 * tiers and transfer between machines move whole records.
 *
 *   record = [layer 0: latent block | index block] [layer 1: ...] ... [MTP layer]
 *
 *   latent block, KV_TYPE_F32:  64 rows of 576 f32        (512 latent, 64 rotary key)
 *   latent block, KV_TYPE_BF16: 64 rows of 576 bf16
 *   latent block, KV_TYPE_FP8:  64 rows of 656 bytes: 512 e4m3 | 4 f32 scales, one per 128 |
 *                               64 bf16 rotary key (byte-compatible with fp8_ds_mla; the scales
 *                               are powers of two)
 *   index block (models with an indexer):
 *                KV_TYPE_F32:   64 rows of 128 f32
 *                otherwise:     64 keys of 128 e4m3, then 64 f32 scales: key j at 128*j, scale j
 *                               at 64*128 + 4*j. Not 132-byte records.
 *
 * Every block starts at a multiple of KV_BLOCK_ALIGN bytes. All sizes come from struct kv_layout,
 * computed once from the configuration; nothing else knows an offset.
 */
#ifndef FATHOM_KV_LAYOUT_H
#define FATHOM_KV_LAYOUT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KV_LAYOUT_VERSION = 1,
    KV_PAGE_TOKENS = 64,
    KV_LATENT = 512, /* width of the compressed KV */
    KV_ROPE = 64,    /* width of the shared rotary key */
    KV_ROW = KV_LATENT + KV_ROPE,
    KV_INDEX_DIM = 128, /* width of an index key */
    KV_FP8_GROUP = 128, /* values per scale */
    KV_BLOCK_ALIGN = 256,

    KV_ROW_BYTES_F32 = KV_ROW * 4,
    KV_ROW_BYTES_BF16 = KV_ROW * 2,
    KV_ROW_BYTES_FP8 = KV_LATENT + (KV_LATENT / KV_FP8_GROUP) * 4 + KV_ROPE * 2,
    KV_FP8_SCALES_OFFSET = KV_LATENT,
    KV_FP8_ROPE_OFFSET = KV_LATENT + (KV_LATENT / KV_FP8_GROUP) * 4,

    KV_INDEX_ROW_BYTES_F32 = KV_INDEX_DIM * 4,
    KV_INDEX_SCALES_OFFSET = KV_PAGE_TOKENS * KV_INDEX_DIM,
    KV_INDEX_BLOCK_BYTES_FP8 = KV_PAGE_TOKENS * (KV_INDEX_DIM + 4),
};

static_assert(KV_ROW_BYTES_BF16 == 1152, "bf16 row");
static_assert(KV_ROW_BYTES_FP8 == 656, "fp8_ds_mla row");
static_assert(KV_INDEX_BLOCK_BYTES_FP8 == 64 * 132, "index block");

enum kv_type { KV_TYPE_F32, KV_TYPE_BF16, KV_TYPE_FP8 };

struct kv_layout {
    enum kv_type type;
    uint32_t n_layer; /* layers with a cache, the MTP layer included */
    bool has_index;
    uint32_t row_bytes;          /* one latent row */
    uint32_t latent_block_bytes; /* 64 rows, rounded up to KV_BLOCK_ALIGN */
    uint32_t index_block_bytes;  /* 0 without an indexer */
    uint64_t layer_bytes;
    uint64_t page_bytes;
};

/* kv_row_bytes - one latent row with its rotary key */
static inline uint32_t kv_row_bytes(enum kv_type type)
{
    return type == KV_TYPE_F32    ? (uint32_t)KV_ROW_BYTES_F32
           : type == KV_TYPE_BF16 ? (uint32_t)KV_ROW_BYTES_BF16
                                  : (uint32_t)KV_ROW_BYTES_FP8;
}

/* kv_round_block - up to a multiple of KV_BLOCK_ALIGN */
static inline uint32_t kv_round_block(uint32_t bytes)
{
    return (bytes + KV_BLOCK_ALIGN - 1) / KV_BLOCK_ALIGN * KV_BLOCK_ALIGN;
}

/* kv_layout_init - fill *l from what determines it */
static inline void kv_layout_init(struct kv_layout *l, enum kv_type type, uint32_t n_layer,
                                  bool has_index)
{
    l->type = type;
    l->n_layer = n_layer;
    l->has_index = has_index;
    l->row_bytes = kv_row_bytes(type);
    l->latent_block_bytes = kv_round_block(l->row_bytes * KV_PAGE_TOKENS);
    l->index_block_bytes = 0;
    if (has_index) {
        uint32_t bytes = type == KV_TYPE_F32 ? (uint32_t)(KV_PAGE_TOKENS * KV_INDEX_ROW_BYTES_F32)
                                             : (uint32_t)KV_INDEX_BLOCK_BYTES_FP8;
        l->index_block_bytes = kv_round_block(bytes);
    }
    l->layer_bytes = (uint64_t)l->latent_block_bytes + l->index_block_bytes;
    l->page_bytes = l->layer_bytes * n_layer;
}

/* kv_latent_offset, kv_index_offset - start of a layer's block inside a page record, bytes */
static inline uint64_t kv_latent_offset(const struct kv_layout *l, uint32_t layer)
{
    return l->layer_bytes * layer;
}

static inline uint64_t kv_index_offset(const struct kv_layout *l, uint32_t layer)
{
    return l->layer_bytes * layer + l->latent_block_bytes;
}

#ifdef __cplusplus
}
#endif
#endif

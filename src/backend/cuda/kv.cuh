/* kv.cuh - rows of the paged cache in device code; the byte map is kv/layout.h */
#ifndef FATHOM_BACKEND_CUDA_KV_CUH
#define FATHOM_BACKEND_CUDA_KV_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/cuda_int.cuh"

/* One layer of the cache. */
struct kv_layer {
    char *latent; /* page 0's latent block */
    char *index;  /* page 0's index block */
    size_t page_bytes;
    enum kv_type type;
};

/* kv_layer_of - where a layer lies in every page */
static inline struct kv_layer kv_layer_of(const struct kv_cache *kv, uint32_t layer)
{
    char *base = (char *)kv->base;
    ASSERT((uintptr_t)base % KV_BLOCK_ALIGN == 0 && kv->layout.page_bytes % KV_BLOCK_ALIGN == 0);
    struct kv_layer l = {};
    l.latent = base + kv_latent_offset(&kv->layout, layer);
    l.index = base + kv_index_offset(&kv->layout, layer);
    l.page_bytes = (size_t)kv->layout.page_bytes;
    l.type = kv->layout.type;
    return l;
}

static_assert(KV_ROW_BYTES_F32 % 16 == 0 && KV_ROW_BYTES_BF16 % 16 == 0 &&
                  KV_ROW_BYTES_FP8 % 16 == 0,
              "rows are read and written 16 bytes at a time");

/* The row of a slot. */
static __device__ __forceinline__ char *kv_row(const struct kv_layer &l, int slot)
{
    DCHECK(slot >= 0);
    uint32_t bytes = l.type == KV_TYPE_F32    ? (uint32_t)KV_ROW_BYTES_F32
                     : l.type == KV_TYPE_BF16 ? (uint32_t)KV_ROW_BYTES_BF16
                                              : (uint32_t)KV_ROW_BYTES_FP8;
    return l.latent + (size_t)(slot / KV_PAGE_TOKENS) * l.page_bytes +
           (size_t)(slot % KV_PAGE_TOKENS) * bytes;
}

/* value i of a row, 0 .. 575 */
static __device__ __forceinline__ float kv_value(const struct kv_layer &l, const char *row, int i)
{
    DCHECK(i >= 0 && i < KV_ROW);
    if (l.type == KV_TYPE_F32) return ((const float *)row)[i];
    if (l.type == KV_TYPE_BF16) return bf16_to_float(((const bf16 *)row)[i]);
    if (i >= KV_LATENT) {
        return bf16_to_float(((const bf16 *)(row + KV_FP8_ROPE_OFFSET))[i - KV_LATENT]);
    }
    float scale = ((const float *)(row + KV_FP8_SCALES_OFFSET))[i / KV_FP8_GROUP];
    return e4m3_to_float(((const uint8_t *)row)[i]) * scale;
}

/* The slot of a request's position. */
static __device__ __forceinline__ int kv_slot(const int32_t *page_table, int position)
{
    DCHECK(position >= 0);
    return page_table[position / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS;
}

#endif

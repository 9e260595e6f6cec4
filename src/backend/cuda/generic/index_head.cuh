/* index_head.cuh - weights of the index heads, index_head x: a narrow product of BF16
 *
 * K is cut into chunks of 256, a chunk is one chain of products. Every eighth chunk is added in
 * ascending order, and the eight sums in pairs. With few tokens each chunk is a warp's, in blocks
 * of mla_front's own kernel, and the parts are left for eight lanes of the reader to add; with many
 * a block of index_head_kernel walks over the chunks. The bits are the same. */
#ifndef FATHOM_BACKEND_CUDA_GENERIC_INDEX_HEAD_CUH
#define FATHOM_BACKEND_CUDA_GENERIC_INDEX_HEAD_CUH

#include "backend/cuda/common.cuh"
#include "backend/cuda/cuda_int.cuh"
#include "backend/cuda/ptx.cuh"

enum {
    HEAD_K_LINES = INDEX_HEAD_CHUNK / 64, /* of 64 values, 128 bytes */
    HEAD_ROWS = 64,                       /* heads of a block */
    HEAD_TOKENS = 8,                      /* tokens of a block, when they are few */
    HEAD_BLOCK_CHUNKS = 2,                /* chunks of a block, likewise; 8 warps */
};
static_assert(INDEX_HEAD_CHUNK % 64 == 0, "a chunk is whole K lines");
static_assert(HEAD_ROWS == 4 * 16, "four warps of 16 heads a chunk");

struct index_head_args {
    const bf16 *w; /* [n_head][width] */
    const bf16 *x; /* [T][width] */
    uint32_t n_head, width, n_token;
    float *out;       /* [chunk][T][n_head], or [T][n_head] */
    uint32_t n_block; /* of few tokens; 0: none */
};

/* index_head_blocks - how many blocks take few tokens */
static inline uint32_t index_head_blocks(const struct index_head_args &a)
{
    return ceil_div(ceil_div(a.width, INDEX_HEAD_CHUNK), HEAD_BLOCK_CHUNKS) *
           ceil_div(a.n_head, HEAD_ROWS) * ceil_div(a.n_token, HEAD_TOKENS);
}

/* index_head_many - the same for many tokens, whole sums to a.out */
fathom_err index_head_many(struct cuda_backend *c, const struct index_head_args &a);

#if GPU_TENSOR_CORES
/* c += 16 rows times 8 tokens over a K line: rows g and g + 8, token g */
static __device__ __forceinline__ void mma_k_line(float c[4], const struct k_line_words &w0,
                                                  const struct k_line_words &w1,
                                                  const struct k_line_words &x)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        mma_bf16(c, w0.lo[j], w1.lo[j], w0.hi[j], w1.hi[j], x.lo[j], x.hi[j]);
}

/* Block number i of few tokens, 256 threads: its weights, then the wait, then its part. */
static __device__ __forceinline__ void index_head_block(const struct index_head_args &a, uint32_t i)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t n_k_line = a.width / 64, n_group = ceil_div(a.n_head, HEAD_ROWS);
    const uint32_t n_pair = ceil_div(ceil_div(n_k_line, HEAD_K_LINES), HEAD_BLOCK_CHUNKS);
    const uint32_t chunk = i % n_pair * HEAD_BLOCK_CHUNKS + warp / 4;
    const uint32_t head0 = i / n_pair % n_group * HEAD_ROWS + warp % 4 * 16 + g;
    const uint32_t token0 = i / n_pair / n_group * HEAD_TOKENS;
    DCHECK(i < a.n_block && token0 < a.n_token && blockDim.x == HEAD_BLOCK_CHUNKS * 4 * WARP);
    struct k_line_words w[HEAD_K_LINES][2];
#pragma unroll
    for (uint32_t l = 0; l < HEAD_K_LINES; l++) {
        const uint32_t k_line = min(chunk * HEAD_K_LINES + l, n_k_line - 1);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t row = min(head0 + r * 8, a.n_head - 1);
            load_words(w[l][r], a.w + (size_t)row * a.width + k_line * 64 + t * 8);
        }
    }
    dependency_wait();
    const uint32_t token = min(token0 + g, a.n_token - 1);
    struct k_line_words x[HEAD_K_LINES];
    float c[4] = {};
#pragma unroll
    for (uint32_t l = 0; l < HEAD_K_LINES; l++) { /* all in flight at once */
        const uint32_t k_line = min(chunk * HEAD_K_LINES + l, n_k_line - 1);
        load_words(x[l], a.x + (size_t)token * a.width + k_line * 64 + t * 8);
    }
#pragma unroll
    for (uint32_t l = 0; l < HEAD_K_LINES; l++) {
        if (chunk * HEAD_K_LINES + l < n_k_line) mma_k_line(c, w[l][0], w[l][1], x[l]);
    }
    if (chunk * HEAD_K_LINES >= n_k_line) return;
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t head = head0 + k / 2 * 8, to = token0 + 2 * t + k % 2;
        if (head < a.n_head && to < a.n_token)
            a.out[((size_t)chunk * a.n_token + to) * a.n_head + head] = c[k];
    }
}
#endif

#endif

/* index_head.cu - index_head.cuh for many tokens: 64 heads and 32 tokens a block, chunks of both by
 * way of shared memory, three on their way */
#include "backend/cuda/generic/index_head.cuh"
#include "backend/cuda/launch.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    TOKENS = 32,
    SUMS = 8,
    ROWS = HEAD_ROWS + TOKENS,
    PIECES = INDEX_HEAD_CHUNK * 2 / 16, /* of 16 bytes, of a row */
};
static_assert(WARPS == HEAD_ROWS / 16 * (TOKENS / 16), "a warp has 16 heads and 16 tokens");

template <bool LEAN> struct head_shared {
    enum {
        STAGES = LEAN ? 2 : 3,
        PITCH =
            INDEX_HEAD_CHUNK * 2 + (LEAN ? 16 : 64), /* 64: rows side by side do not share banks */
    };
    unsigned char rows[STAGES][ROWS][PITCH]; /* heads, then tokens */
};

/* Lane i takes piece i of the rows of its warp, every eighth. */
template <bool LEAN>
static __device__ __forceinline__ void fetch_chunk(const struct index_head_args &a,
                                                   struct head_shared<LEAN> *s, uint32_t chunk)
{
    enum { STAGES = head_shared<LEAN>::STAGES, PITCH = head_shared<LEAN>::PITCH };
    static_assert(PIECES == WARP && ROWS % WARPS == 0, "a warp copies a row");
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t at = chunk * INDEX_HEAD_CHUNK + lane * 8;
    const uint32_t to = smem_address(s->rows[chunk % STAGES][warp]) + lane * 16;
    const bool valid = at < a.width;
#pragma unroll
    for (uint32_t i = 0; i < ROWS / WARPS; i++) {
        const uint32_t row = i * WARPS + warp;
        const bool is_head = i < HEAD_ROWS / WARPS;
        const uint32_t r = is_head ? min(blockIdx.y * HEAD_ROWS + row, a.n_head - 1)
                                   : min(blockIdx.x * TOKENS + row - HEAD_ROWS, a.n_token - 1);
        const bf16 *from = (is_head ? a.w : a.x) + (size_t)r * a.width;
        cp_async_16(to + i * WARPS * PITCH, from + (valid ? at : 0), valid);
    }
}

/* A warp's 16 heads and 16 tokens over one chunk; what lies beyond the width is zeros. */
template <int PITCH>
static __device__ __forceinline__ void multiply_chunk(float (&c)[2][4],
                                                      const unsigned char (*rows)[PITCH])
{
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t row = warp % 4 * 16 + g, col = HEAD_ROWS + warp / 4 * 16 + g;
#pragma unroll
    for (uint32_t l = 0; l < HEAD_K_LINES; l++) {
        struct k_line_words w[2], x[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            load_words(w[i], rows[row + i * 8] + l * 128 + t * 16);
            load_words(x[i], rows[col + i * 8] + l * 128 + t * 16);
        }
        mma_k_line(c[0], w[0], w[1], x[0]);
        mma_k_line(c[1], w[0], w[1], x[1]);
    }
}

template <bool LEAN>
__global__ void __launch_bounds__(THREADS, 1) index_head_kernel(const struct index_head_args a)
{
    enum { STAGES = head_shared<LEAN>::STAGES };
    SHARED_DYNAMIC(unsigned char, shared);
    struct head_shared<LEAN> *s = (struct head_shared<LEAN> *)shared;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t n_chunk = ceil_div(a.width, INDEX_HEAD_CHUNK);
    float sum[SUMS][2][4] = {};
    kernel_begin();
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < n_chunk) fetch_chunk(a, s, i);
        cp_async_commit();
    }
    for (uint32_t first = 0; first < n_chunk; first += SUMS) {
#pragma unroll
        for (uint32_t k = 0; k < SUMS; k++) {
            const uint32_t chunk = first + k;
            float c[2][4] = {};
            if (chunk >= n_chunk) break;
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            if (chunk + STAGES - 1 < n_chunk) fetch_chunk(a, s, chunk + STAGES - 1);
            cp_async_commit();
            multiply_chunk(c, s->rows[chunk % STAGES]);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[k][i / 4][i % 4] += c[i / 4][i % 4];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        float v[SUMS];
#pragma unroll
        for (int k = 0; k < SUMS; k++) v[k] = sum[k][i / 4][i % 4];
        const float all = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
        const uint32_t head = blockIdx.y * HEAD_ROWS + warp % 4 * 16 + g + i % 4 / 2 * 8;
        const uint32_t token = blockIdx.x * TOKENS + warp / 4 * 16 + i / 4 * 8 + 2 * t + i % 2;
        if (head < a.n_head && token < a.n_token) a.out[(size_t)token * a.n_head + head] = all;
    }
}

fathom_err index_head_many(struct cuda_backend *c, const struct index_head_args &a)
{
    ASSERT(a.w && a.x && a.out && a.n_block == 0);
    ASSERT(a.width % 64 == 0 && (uintptr_t)a.w % 16 == 0 && (uintptr_t)a.x % 16 == 0);
    const dim3 grid(ceil_div(a.n_token, TOKENS), ceil_div(a.n_head, HEAD_ROWS));
    return c->lean ? cuda_launch(c, "index_head", index_head_kernel<true>, grid, THREADS,
                                 sizeof(struct head_shared<true>), a)
                   : cuda_launch(c, "index_head", index_head_kernel<false>, grid, THREADS,
                                 sizeof(struct head_shared<false>), a);
}

template <bool LEAN> static fathom_err raise_limit(struct cuda_backend *c)
{
    static_assert(sizeof(struct head_shared<LEAN>) <= shared_limit(LEAN),
                  "shared memory of a block");
    CU_TRY(c, gpu_raise_shared(index_head_kernel<LEAN>, sizeof(struct head_shared<LEAN>)),
           "index_head");
    return FATHOM_OK;
}

/* Raises the kernel's shared memory limit; called once when a backend is created. */
fathom_err cuda_index_head_init(struct cuda_backend *c)
{
    if (!c->fast) return FATHOM_OK;
    return c->lean ? raise_limit<true>(c) : raise_limit<false>(c);
}

/* product_bf16.cu - matrix products of BF16 weights: the head, narrow projections
 *
 * A warp owns 16 outputs (the product's 16-row operand); tokens are the 8-column operand, NT groups
 * of 8. K is cut into parts (k_parts.h): a part is one chain of products from zero, and parts are
 * added in ascending order. The order of k inside a K line is free as long as both operands
 * use the same one, so a lane loads 16 bytes at 16*t of each half line of its two rows and feeds
 * the words as they lie. A token's bits depend neither on its neighbours nor on the kernel:
 *
 *   narrow  few outputs: a block has 16 to 128, its warps share K
 *   wide    enough outputs for every SM: a block has 128, each warp walks all of K with AHEAD K
 * lines of weights on their way to registers; tokens stand in shared memory, where all warps read
 * them, so that weights are read once for up to 64 tokens
 *
 * Weights do not change: the first K lines are requested before the wait. */
#include "backend/cuda/k_parts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP, AHEAD = 4, PITCH = 17, TILE = 16 };
static_assert(PITCH > TILE, "sums of one output lie in different banks");

struct k_line {
    uint4 lo[2], hi[2]; /* rows g and g + 8: first and second half of a K line */
};

/* A lane's two rows of weights, at 16 bytes of a K line's first half. */
struct weight_rows {
    const char *at[2];
};

static __device__ __forceinline__ uint32_t word(const uint4 &v, int j)
{
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

static __device__ __forceinline__ struct weight_rows rows_of(const struct product_args &a,
                                                             uint32_t n0)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    struct weight_rows w;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
        w.at[r] = (const char *)a.w + (size_t)min(n0 + r * 8 + g, a.n - 1) * a.k * 2 + 16 * t;
    return w;
}

static __device__ __forceinline__ void load_k_line(struct k_line &l, const struct weight_rows &w,
                                                   uint32_t k_line)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l.lo[r] = load_stream(w.at[r] + (size_t)k_line * K_LINE_BYTES);
        l.hi[r] = load_stream(w.at[r] + (size_t)k_line * K_LINE_BYTES + 64);
    }
}

static __device__ __forceinline__ void multiply(float (&c)[4], const struct k_line &l,
                                                const uint4 &lo, const uint4 &hi)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        mma_bf16(c, word(l.lo[0], j), word(l.lo[1], j), word(l.hi[0], j), word(l.hi[1], j),
                 word(lo, j), word(hi, j));
    }
}

/* Where a token's inputs begin. */
static __device__ __forceinline__ const char *input(const struct product_args &a, uint32_t token)
{
    const uint32_t i = min(token, a.n_token - 1);
    DCHECK(!a.in_rows || a.in_rows[i] >= 0);
    return (const char *)a.h + (size_t)(a.in_rows ? (uint32_t)a.in_rows[i] : i) * a.k * 2;
}

/* ---- narrow ---- */

/* Adds the K parts of a block's outputs and writes tokens x outputs. */
template <int NT, int WK>
static __device__ __forceinline__ void finish(const struct product_args &a, const float (*acc)[4],
                                              float *shared, uint32_t n_block, uint32_t token0)
{
    enum { AREA = NT * 8 * PITCH, N = WARPS / WK * TILE };
    static_assert(WARPS % WK == 0, "warps of a tile share its K");
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float *col = shared + warp * AREA + (i * 8 + 2 * t) * PITCH + g;
        col[0] = acc[i][0];
        col[PITCH] = acc[i][1];
        col[8] = acc[i][2];
        col[PITCH + 8] = acc[i][3];
    }
    __syncthreads();
    const uint32_t n_here = min(NT * 8u, a.n_token - token0);
    for (uint32_t i = threadIdx.x; i < n_here * N; i += THREADS) {
        const uint32_t n = i % N, row = i / N;
        if (n_block + n >= a.n) continue;
        const float *from = shared + n / TILE * WK * AREA + row * PITCH + n % TILE;
        float sum = from[0];
#pragma unroll
        for (int j = 1; j < WK; j++) sum += from[j * AREA];
        a.out[(size_t)(token0 + row) * a.out_stride + n_block + n] = sum;
    }
}

template <int NT, int WK>
__global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1)
    product_bf16_narrow_kernel(const struct product_args a)
{
    SHARED_DYNAMIC(float, shared);
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t n_block = blockIdx.x * (WARPS / WK) * TILE, token0 = blockIdx.y * NT * 8;
    const uint32_t k_part = a.k / 64 / WK, first = warp % WK * k_part;
    const struct weight_rows w = rows_of(a, n_block + warp / WK * TILE);
    struct k_line l[AHEAD];
    float acc[NT][4] = {};
    dependency_release();
#pragma unroll
    for (uint32_t u = 0; u < AHEAD; u++) load_k_line(l[u], w, first + min(u, k_part - 1));
    dependency_wait();
    const char *x[NT];
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) x[i] = input(a, token0 + i * 8 + g) + 16 * t;
    for (uint32_t b = 0; b < k_part; b += AHEAD) {
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) {
            if (b + u >= k_part) break;
            const size_t at = (size_t)(first + b + u) * K_LINE_BYTES;
#pragma unroll
            for (int i = 0; i < NT; i++) {
                multiply(acc[i], l[u], *(const uint4 *)(x[i] + at),
                         *(const uint4 *)(x[i] + at + 64));
            }
            load_k_line(l[u], w, first + min(b + u + AHEAD, k_part - 1));
        }
    }
    finish<NT, WK>(a, acc, shared, n_block, token0);
}

template <int NT, int WK>
static fathom_err launch_narrow(struct cuda_backend *c, const struct product_args &a,
                                const char *what)
{
    dim3 grid(ceil_div(a.n, WARPS / WK * TILE), ceil_div(a.n_token, NT * 8));
    size_t bytes = (size_t)WARPS * NT * 8 * PITCH * sizeof(float);
    static_assert(WARPS * NT * 8 * PITCH * sizeof(float) <= SHARED_PLAIN_MAX,
                  "no limit is raised for it");
    return cuda_launch(c, what, product_bf16_narrow_kernel<NT, WK>, grid, THREADS, bytes, a);
}

template <int NT>
static fathom_err launch_k_parts(struct cuda_backend *c, const struct product_args &a,
                                 const char *what)
{
    switch (k_part_count(a.k / 64)) {
    case 8: return launch_narrow<NT, 8>(c, a, what);
    case 4: return launch_narrow<NT, 4>(c, a, what);
    case 2: return launch_narrow<NT, 2>(c, a, what);
    default: return launch_narrow<NT, 1>(c, a, what);
    }
}

/* ---- wide ---- */

enum { WIDE_ROWS = WARPS * TILE, STAGES = 3 };
static_assert(AHEAD * 8 == WARP, "lanes copy AHEAD K lines, a 16-byte chunk each");
static_assert(STAGES == 3, "two steps of tokens are on their way, one is read");

/* Where 16 bytes of a token's K line stand: eight lanes that read two tokens meet all banks. */
static __device__ __forceinline__ uint32_t place(uint32_t token, uint32_t chunk)
{
    DCHECK(chunk < K_LINE_BYTES / 16);
    return token * K_LINE_BYTES + ((chunk ^ (token & 1) << 2) << 4);
}

/* AHEAD K lines of all tokens from `k_line` on into a stage, one group of copies. */
template <int NT>
static __device__ __forceinline__ void copy_tokens(const struct product_args &a, uint32_t stage,
                                                   const char *const (&x)[NT], uint32_t k_line)
{
    const uint32_t warp = threadIdx.x / WARP, chunk = threadIdx.x % 8;
    const uint32_t u = threadIdx.x % WARP / 8; /* of AHEAD K lines */
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
        if (k_line + u < a.k / 64)
            cp_async_16(stage + u * NT * 8 * K_LINE_BYTES + place(i * 8 + warp, chunk),
                        x[i] + (size_t)(k_line + u) * K_LINE_BYTES + chunk * 16, true);
    }
    cp_async_commit();
}

template <int NT>
__global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1)
    product_bf16_wide_kernel(const struct product_args a, uint32_t k_part)
{
    SHARED_DYNAMIC(float, shared);
    enum { K_LINE_AREA = NT * 8 * K_LINE_BYTES, STAGE = AHEAD * K_LINE_AREA };
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t n0 = blockIdx.x * WIDE_ROWS + warp * TILE, token0 = blockIdx.y * NT * 8;
    const uint32_t n_k_line = a.k / 64;
    const uint32_t stages = smem_address(shared);
    const struct weight_rows w = rows_of(a, n0);
    struct k_line l[AHEAD];
    float sum[NT][4] = {}, acc[NT][4] = {};
    dependency_release();
#pragma unroll
    for (uint32_t u = 0; u < AHEAD; u++) load_k_line(l[u], w, min(u, n_k_line - 1));
    dependency_wait();
    const char *x[NT];
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) x[i] = input(a, token0 + i * 8 + warp);
    copy_tokens<NT>(a, stages, x, 0);
    copy_tokens<NT>(a, stages + STAGE, x, AHEAD);
    uint32_t left = k_part;
    for (uint32_t b = 0, step = 0; b < n_k_line; b += AHEAD, step++) {
        cp_async_wait<1>();
        __syncthreads(); /* this step's tokens are there; those of the one before are done with */
        copy_tokens<NT>(a, stages + (step + 2) % STAGES * STAGE, x, b + 2 * AHEAD);
        const char *from = (const char *)shared + step % STAGES * STAGE;
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++, from += K_LINE_AREA) {
            if (b + u >= n_k_line) break;
#pragma unroll
            for (uint32_t i = 0; i < NT; i++) {
                multiply(acc[i], l[u], *(const uint4 *)(from + place(i * 8 + g, t)),
                         *(const uint4 *)(from + place(i * 8 + g, t + 4)));
            }
            load_k_line(l[u], w, min(b + u + AHEAD, n_k_line - 1));
            if (--left) continue;
            left = k_part;
#pragma unroll
            for (int i = 0; i < NT; i++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    sum[i][k] = b + u < k_part ? acc[i][k] : sum[i][k] + acc[i][k];
                    acc[i][k] = 0.0f;
                }
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t n = n0 + g + k / 2 * 8, token = token0 + i * 8 + 2 * t + k % 2;
            if (n < a.n && token < a.n_token) a.out[(size_t)token * a.out_stride + n] = sum[i][k];
        }
    }
}

template <int NT>
static fathom_err launch_wide(struct cuda_backend *c, const struct product_args &a,
                              const char *what)
{
    dim3 grid(ceil_div(a.n, WIDE_ROWS), ceil_div(a.n_token, NT * 8));
    size_t bytes = (size_t)STAGES * AHEAD * NT * 8 * K_LINE_BYTES;
    return cuda_launch(c, what, product_bf16_wide_kernel<NT>, grid, THREADS, bytes, a,
                       a.k / 64 / k_part_count(a.k / 64));
}

/* Needs k a multiple of 64; plain rows, or those that in_rows lists. */
fathom_err product_bf16(struct cuda_backend *c, const struct product_args &a, const char *what)
{
    enum { WIDE_BLOCKS_MIN = 64 };
    ASSERT(a.k % 64 == 0 && a.h && !a.tasks && a.n_token > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0);
    if (a.n >= WIDE_BLOCKS_MIN * WIDE_ROWS) {
        if (a.n_token <= 8) return launch_wide<1>(c, a, what);
        return a.n_token <= 32 ? launch_wide<4>(c, a, what) : launch_wide<8>(c, a, what);
    }
    if (a.n_token <= 8) return launch_k_parts<1>(c, a, what);
    return a.n_token <= 16 ? launch_k_parts<2>(c, a, what) : launch_k_parts<4>(c, a, what);
}

fathom_err product_bf16_init(struct cuda_backend *c)
{
    enum { LARGEST = STAGES * AHEAD * 64 * K_LINE_BYTES };
    static_assert(LARGEST <= shared_limit(true), "shared memory of a block");
    const cudaFuncAttribute attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    CU_TRY(c, cudaFuncSetAttribute(product_bf16_wide_kernel<8>, attribute, LARGEST), "create");
    return FATHOM_OK;
}

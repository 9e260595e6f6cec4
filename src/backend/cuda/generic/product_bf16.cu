/* product_bf16.cu - matrix products of BF16 weights: the head, narrow projections
 *
 * A warp owns 16 outputs (the product's 16-row operand) and one share of K (shares.h); tokens are
 * the 8-column operand, up to NT groups of 8. The order of k inside a 128-byte line is free as long
 * as both operands use the same one, so a lane loads 16 bytes at 16*t of each half line of its two
 * rows and feeds the words as they lie. A token's bits depend neither on its neighbours nor on NT.
 */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/shares.h"

enum { WARPS = 8, AHEAD = 4, PITCH = 17 };

struct line {
    uint4 lo[2], hi[2]; /* rows g and g + 8: first and second half of a 128-byte line */
};

static __device__ __forceinline__ uint32_t word(const uint4 &v, int j)
{
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

/* Adds the shares of a block's outputs and writes rows x outputs. */
template <int NT, int WK>
static __device__ __forceinline__ void finish(const struct product_args &a,
                                              const struct product_rows &p, const float (*acc)[4],
                                              float *shared, uint32_t n_block)
{
    enum { AREA = NT * 8 * PITCH, N = WARPS / WK * 16 };
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float *col = shared + warp * AREA + (i * 8 + 2 * t) * PITCH + g;
        col[0] = acc[i][0];
        col[PITCH] = acc[i][1];
        col[8] = acc[i][2];
        col[PITCH + 8] = acc[i][3];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.n * N; i += WARPS * WARP) {
        int n = i % N, row = i / N;
        if (n_block + (uint32_t)n >= a.n) continue;
        const float *from = shared + n / 16 * WK * AREA + row * PITCH + n % 16;
        float sum = from[0];
#pragma unroll
        for (int j = 1; j < WK; j++) sum += from[j * AREA];
        a.out[(size_t)out_row(p, row) * a.out_stride + n_block + (uint32_t)n] = sum;
    }
}

template <int NT, int WK>
__global__ void __launch_bounds__(WARPS *WARP, NT == 1 ? 2 : 1)
    product_bf16_kernel(const struct product_args a)
{
    SHARED_DYNAMIC(float, shared);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
    const uint32_t n_block = blockIdx.x * (WARPS / WK) * 16,
                   n0 = n_block + (uint32_t)warp / WK * 16;
    const uint32_t share = a.k / 64 / WK, first = (uint32_t)warp % WK * share;
    const size_t row_bytes = (size_t)a.k * 2;
    kernel_begin();
    struct product_rows p = product_rows_of(a, (int)blockIdx.y, NT * 8);
    if (p.n <= 0) return;
    const char *w[2], *x[NT];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        w[r] = p.w + (size_t)min(n0 + (uint32_t)(r * 8 + g), a.n - 1) * row_bytes + 16 * t;
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int token = min(i * 8 + g, p.n - 1);
        x[i] = (const char *)a.h + (size_t)in_row(a, p, token) * row_bytes + 16 * t;
    }
    float acc[NT][4] = {};
    for (uint32_t b = 0; b < share; b += AHEAD) {
        struct line l[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            size_t at = (size_t)(first + min(b + (uint32_t)u, share - 1)) * 128;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                l[u].lo[r] = load_stream(w[r] + at);
                l[u].hi[r] = load_stream(w[r] + at + 64);
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (b + (uint32_t)u >= share) break;
            size_t at = (size_t)(first + b + (uint32_t)u) * 128;
#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint4 lo = *(const uint4 *)(x[i] + at);
                uint4 hi = *(const uint4 *)(x[i] + at + 64);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma_bf16(acc[i], word(l[u].lo[0], j), word(l[u].lo[1], j), word(l[u].hi[0], j),
                             word(l[u].hi[1], j), word(lo, j), word(hi, j));
                }
            }
        }
    }
    finish<NT, WK>(a, p, acc, shared, n_block);
}

template <int NT, int WK>
static fathom_err launch(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                         const char *what)
{
    dim3 grid(ceil_div(a.n, WARPS / WK * 16), n_tile);
    size_t bytes = (size_t)WARPS * NT * 8 * PITCH * sizeof(float);
    return cuda_launch(c, what, product_bf16_kernel<NT, WK>, grid, WARPS * WARP, bytes, a);
}

template <int NT>
static fathom_err launch_share(struct cuda_backend *c, const struct product_args &a,
                               uint32_t n_tile, const char *what)
{
    switch (share_count(a.k / 64)) {
    case 8: return launch<NT, 8>(c, a, n_tile, what);
    case 4: return launch<NT, 4>(c, a, n_tile, what);
    case 2: return launch<NT, 2>(c, a, n_tile, what);
    default: return launch<NT, 1>(c, a, n_tile, what);
    }
}

/* Needs k a multiple of 64; tile_tokens 8, 16 or 32. */
fathom_err product_bf16(struct cuda_backend *c, const struct product_args &a, uint32_t tile_tokens,
                        uint32_t n_tile, const char *what)
{
    switch (tile_tokens) {
    case 8: return launch_share<1>(c, a, n_tile, what);
    case 16: return launch_share<2>(c, a, n_tile, what);
    default: return launch_share<4>(c, a, n_tile, what);
    }
}

/* router_fast.cu - the router's scores on the tensor cores
 *
 * Scores: BF16 weights against f32 activations on the tensor cores, without rounding them: an
 * activation is three bf16 planes. K is cut into K lines of 64 values and these into parts of
 * K_PART_LINES. A K line is one chain of products from zero. K lines are added in ascending order
 * inside a part, parts in ascending order by the kernel that chooses. All score kernels keep to
 * that, so a token's bits do not depend on the number of tokens. */
#include "backend/cuda/generic/router.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/router.cuh"

enum { TILE = 16 };

/* Where 16 bytes of a K line lie: rows of 128 bytes whose chunks are permuted by row, so that eight
 * rows' chunks of one place fall on different banks. */
static __device__ __forceinline__ uint32_t chunk_place(uint32_t row, uint32_t chunk)
{
    DCHECK(chunk < K_LINE_BYTES / 16);
    return row * K_LINE_BYTES + ((chunk ^ (row & 7)) << 4);
}

/* A's fragment of 16 rows from `row0` on and the k-th 16 of a K line. */
static __device__ __forceinline__ void load_fragment(uint32_t (&r)[4], uint32_t base, uint32_t row0,
                                                     uint32_t k)
{
    DCHECK(row0 % TILE == 0 && k < K_LINE / 16);
    const uint32_t lane = threadIdx.x % WARP;
    ldmatrix_x4(r, base + chunk_place(row0 + lane % 16, k * 2 + lane / 16));
}

enum {
    FEW_WARPS = 8,
    FEW_THREADS = FEW_WARPS * WARP,
    FEW_COLS = 8, /* tokens at a time */
    WARP_K_LINES = K_PART_LINES / FEW_WARPS,
};
static_assert(K_PART_LINES % FEW_WARPS == 0, "warps have equally many K lines of a part");

/* A block's experts: TILES of 16. Two read and split inputs half as often, one spreads weights over
 * more blocks. */
template <int TILES> struct few_sizes {
    static_assert(FEW_THREADS >= 8 * TILES * TILE, "a thread adds up a token's sum of an expert");
    enum {
        ROWS = TILES * TILE,
        K_LINE_AREA = ROWS * K_LINE_BYTES,
        BYTES = K_PART_LINES * K_LINE_AREA
    };
};

/* Values of one token (lane / 4) in a warp's K lines: k = 16 j + 2 t + {0, 1, 8, 9} */
struct few_values {
    float2 v[WARP_K_LINES][4][2];
};

static __device__ __forceinline__ void load_values(struct few_values &x,
                                                   const struct router_args_device &a,
                                                   uint32_t token, uint32_t k_line0)
{
    const float *row = a.x + (size_t)min(token, a.n_token - 1) * a.w.n_col;
#pragma unroll
    for (int l = 0; l < WARP_K_LINES; l++) {
        uint32_t k_line = min(k_line0 + (uint32_t)l, a.w.n_col / K_LINE - 1);
        const float2 *from = (const float2 *)(row + k_line * K_LINE) + threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x.v[l][j][0] = from[j * 8];
            x.v[l][j][1] = from[j * 8 + 4];
        }
    }
}

/* A warp's K lines of weights, on their way to `to`. */
template <int TILES>
static __device__ __forceinline__ void copy_k_lines(const struct router_args_device &a, uint32_t to,
                                                    uint32_t e0, uint32_t k_line0)
{
    const uint32_t lane = threadIdx.x % WARP, n_k_line = a.w.n_col / K_LINE;
#pragma unroll
    for (uint32_t l = 0; l < WARP_K_LINES; l++) {
#pragma unroll
        for (uint32_t i = lane; i < few_sizes<TILES>::ROWS * 8; i += WARP) {
            const uint32_t row = i / 8, e = min(e0 + row, a.w.n_row - 1);
            const size_t at = ((size_t)e * n_k_line + k_line0 + l) * K_LINE_BYTES + i % 8 * 16;
            if (k_line0 + l < n_k_line)
                cp_async_16(to + l * few_sizes<TILES>::K_LINE_AREA + chunk_place(row, i % 8),
                            (const char *)a.w.data + at, true);
        }
    }
    cp_async_commit();
}

/* A K line of weights times 8 tokens: sums to part[token][expert]. */
template <int TILES>
static __device__ __forceinline__ void multiply_few(float (*part)[few_sizes<TILES>::ROWS + 1],
                                                    uint32_t weights, const float2 (&x)[4][2])
{
    const uint32_t lane = threadIdx.x % WARP;
    float c[TILES][4] = {};
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t w[TILES][4], b0[PLANES], b1[PLANES];
#pragma unroll
        for (uint32_t m = 0; m < TILES; m++) load_fragment(w[m], weights, m * TILE, j);
        split_planes(x[j][0].x, x[j][0].y, b0);
        split_planes(x[j][1].x, x[j][1].y, b1);
#pragma unroll
        for (int i = 0; i < PLANES; i++) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
                mma_bf16(c[m], w[m][0], w[m][1], w[m][2], w[m][3], b0[i], b1[i]);
        }
    }
#pragma unroll
    for (uint32_t m = 0; m < TILES; m++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            part[lane % 4 * 2 + i % 2][m * TILE + lane / 4 + i / 2 * 8] = c[m][i];
    }
}

/* Few tokens: a block makes one part of K of its experts for `cols` tokens, 8 at a time; a warp
 * has two of the part's K lines. Weights are on their way to shared memory before the wait, values
 * of the next tokens while these are multiplied. */
template <int TILES>
__global__ void __launch_bounds__(FEW_THREADS, 2)
    router_few_kernel(const struct router_args_device a, uint32_t cols)
{
    SHARED_DYNAMIC(char, shared);
    enum { ROWS = few_sizes<TILES>::ROWS, AREA = few_sizes<TILES>::K_LINE_AREA };
    __shared__ float part[K_PART_LINES][8][ROWS + 1];
    const uint32_t warp = threadIdx.x / WARP, group = threadIdx.x % WARP / 4;
    const uint32_t e0 = blockIdx.x * ROWS, k_part = blockIdx.y, token0 = blockIdx.z * cols;
    const uint32_t k_line0 = k_part * K_PART_LINES + warp * WARP_K_LINES;
    const uint32_t n_k_line =
        min((uint32_t)K_PART_LINES, a.w.n_col / K_LINE - k_part * K_PART_LINES);
    const uint32_t n_here = min(cols, a.n_token - token0);
    const uint32_t weights = smem_address(shared) + warp * WARP_K_LINES * AREA;
    dependency_release();
    copy_k_lines<TILES>(a, weights, e0, k_line0);
    dependency_wait();
    struct few_values x, next;
    load_values(x, a, token0 + group, k_line0);
    if (n_here > FEW_COLS) load_values(next, a, token0 + FEW_COLS + group, k_line0);
    cp_async_wait<0>();
    warp_sync();
#pragma unroll 1
    for (uint32_t t0 = 0; t0 < n_here; t0 += FEW_COLS) {
#pragma unroll
        for (uint32_t l = 0; l < WARP_K_LINES; l++)
            multiply_few<TILES>(part[warp * WARP_K_LINES + l], weights + l * AREA, x.v[l]);
        __syncthreads();
        const uint32_t e = threadIdx.x % ROWS, i = threadIdx.x / ROWS;
        if (i < FEW_COLS && t0 + i < n_here && e0 + e < a.pitch) {
            float sum = 0.0f;
#pragma unroll
            for (uint32_t l = 0; l < K_PART_LINES; l++) {
                if (l < n_k_line) sum += part[l][i][e];
            }
            score_row(a, k_part, token0 + t0 + i)[e0 + e] = sum;
        }
        __syncthreads();
        x = next;
        if (t0 + 2 * FEW_COLS < n_here)
            load_values(next, a, token0 + t0 + 2 * FEW_COLS + group, k_line0);
    }
}

/* Many tokens: a block makes one part of K of 128 experts for 64 tokens, its 4 warps 64 x 32 each.
 */
enum {
    MANY_WARPS = 4,
    MANY_THREADS = MANY_WARPS * WARP,
    MANY_ROWS = 128,
    MANY_COLS = 64,
    WARP_TILES = 4,  /* of 16 experts */
    WARP_GROUPS = 4, /* of 8 tokens */
    STAGES = 3,
    WEIGHT_BYTES = MANY_ROWS * K_LINE_BYTES,
    PLANE_BYTES = MANY_COLS * K_LINE_BYTES,
    MANY_BYTES = STAGES * WEIGHT_BYTES + 2 * PLANES * PLANE_BYTES,
    THREAD_CHUNKS = MANY_COLS * 8 / MANY_THREADS, /* of 8 values of a K line */
};
static_assert(MANY_ROWS * MANY_COLS == MANY_WARPS * (WARP_TILES * TILE) * (WARP_GROUPS * 8),
              "the warps' pieces are the block's");
static_assert(MANY_COLS * 8 % MANY_THREADS == 0 && WARP_GROUPS % 2 == 0, "nothing is left over");

/* A K line of weights to a stage, one group of copies; K lines past the end of the part are empty.
 */
static __device__ __forceinline__ void copy_weights(const struct router_args_device &a,
                                                    uint32_t stage, uint32_t e0, uint32_t k_line,
                                                    bool valid)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < MANY_ROWS * 8; i += MANY_THREADS) {
        uint32_t e = min(e0 + i / 8, a.w.n_row - 1);
        const char *from = (const char *)a.w.data + (size_t)e * a.w.n_col * 2;
        if (valid)
            cp_async_16(stage + chunk_place(i / 8, i % 8),
                        from + (size_t)k_line * K_LINE_BYTES + i % 8 * 16, true);
    }
    cp_async_commit();
}

struct many_values {
    float4 v[THREAD_CHUNKS][2];
};

static __device__ __forceinline__ void load_values(struct many_values &x,
                                                   const struct router_args_device &a,
                                                   uint32_t token0, uint32_t k_line)
{
#pragma unroll
    for (uint32_t i = 0; i < THREAD_CHUNKS; i++) {
        uint32_t at = i * MANY_THREADS + threadIdx.x, token = min(token0 + at / 8, a.n_token - 1);
        const float4 *from = (const float4 *)(a.x + (size_t)token * a.w.n_col +
                                              (size_t)k_line * K_LINE + at % 8 * 8);
        x.v[i][0] = from[0];
        x.v[i][1] = from[1];
    }
}

/* The three planes of a K line, each [token][128 bytes]. */
static __device__ __forceinline__ void store_planes(const struct many_values &x, char *planes)
{
#pragma unroll
    for (uint32_t i = 0; i < THREAD_CHUNKS; i++) {
        uint32_t at = i * MANY_THREADS + threadIdx.x, place = chunk_place(at / 8, at % 8);
        const float4 lo = x.v[i][0], hi = x.v[i][1];
        uint32_t p[4][PLANES];
        split_planes(lo.x, lo.y, p[0]);
        split_planes(lo.z, lo.w, p[1]);
        split_planes(hi.x, hi.y, p[2]);
        split_planes(hi.z, hi.w, p[3]);
#pragma unroll
        for (int k = 0; k < PLANES; k++) {
            *(uint4 *)(planes + k * PLANE_BYTES + place) =
                make_uint4(p[0][k], p[1][k], p[2][k], p[3][k]);
        }
    }
}

/* c = one K line's products of a warp's 64 experts and 32 tokens */
static __device__ __forceinline__ void multiply_k_line(float (&c)[WARP_TILES][WARP_GROUPS][4],
                                                       uint32_t weights, uint32_t planes)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t row0 = warp % 2 * WARP_TILES * TILE, col0 = warp / 2 * WARP_GROUPS * 8;
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++) {
#pragma unroll
        for (int n = 0; n < WARP_GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[m][n][i] = 0.0f;
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t w[WARP_TILES][4];
#pragma unroll
        for (uint32_t m = 0; m < WARP_TILES; m++) load_fragment(w[m], weights, row0 + m * TILE, j);
#pragma unroll
        for (uint32_t i = 0; i < PLANES; i++) {
#pragma unroll
            for (uint32_t n = 0; n < WARP_GROUPS; n += 2) {
                uint32_t x[4]; /* two groups of tokens: k 0 to 7, k 8 to 15 of each */
                ldmatrix_x4(x, planes + i * PLANE_BYTES +
                                   chunk_place(col0 + n * 8 + lane / 16 * 8 + lane % 8,
                                               j * 2 + lane / 8 % 2));
#pragma unroll
                for (uint32_t m = 0; m < WARP_TILES; m++) {
                    mma_bf16(c[m][n], w[m][0], w[m][1], w[m][2], w[m][3], x[0], x[1]);
                    mma_bf16(c[m][n + 1], w[m][0], w[m][1], w[m][2], w[m][3], x[2], x[3]);
                }
            }
        }
    }
}

__global__ void __launch_bounds__(MANY_THREADS, 2)
    router_many_kernel(const struct router_args_device a)
{
    SHARED_DYNAMIC(char, shared);
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t e0 = blockIdx.x * MANY_ROWS, token0 = blockIdx.y * MANY_COLS;
    const uint32_t k_part = blockIdx.z, first = k_part * K_PART_LINES;
    const uint32_t n = min((uint32_t)K_PART_LINES, a.w.n_col / K_LINE - first);
    char *planes = shared + STAGES * WEIGHT_BYTES;
    const uint32_t weights_at = smem_address(shared), planes_at = smem_address(planes);
    float sum[WARP_TILES][WARP_GROUPS][4] = {};
    struct many_values x;
    dependency_release();
    copy_weights(a, weights_at, e0, first, true);
    copy_weights(a, weights_at + WEIGHT_BYTES, e0, first + 1, n > 1);
    dependency_wait();
    load_values(x, a, token0, first);
    store_planes(x, planes);
    if (n > 1) load_values(x, a, token0, first + 1);
    for (uint32_t l = 0; l < n; l++) {
        float c[WARP_TILES][WARP_GROUPS][4];
        cp_async_wait<1>();
        __syncthreads(); /* K line l is there; K line l - 1 is done with */
        copy_weights(a, weights_at + (l + 2) % STAGES * WEIGHT_BYTES, e0, first + l + 2, l + 2 < n);
        multiply_k_line(c, weights_at + l % STAGES * WEIGHT_BYTES,
                        planes_at + l % 2 * PLANES * PLANE_BYTES);
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) {
#pragma unroll
            for (int k = 0; k < WARP_GROUPS; k++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sum[m][k][i] += c[m][k][i];
            }
        }
        if (l + 1 < n) store_planes(x, planes + (l + 1) % 2 * PLANES * PLANE_BYTES);
        if (l + 2 < n) load_values(x, a, token0, first + l + 2);
    }
#pragma unroll
    for (uint32_t m = 0; m < WARP_TILES; m++) {
#pragma unroll
        for (uint32_t k = 0; k < WARP_GROUPS * 2; k++) {
            uint32_t e = e0 + (warp % 2 * WARP_TILES + m) * TILE + g;
            uint32_t token = token0 + warp / 2 * WARP_GROUPS * 8 + k / 2 * 8 + 2 * t + k % 2;
            if (token >= a.n_token) continue;
            float *to = score_row(a, k_part, token) + e;
            if (e < a.pitch) to[0] = sum[m][k / 2][k % 2];
            if (e + 8 < a.pitch) to[8] = sum[m][k / 2][k % 2 + 2];
        }
    }
}

/* ---- launches ---- */

template <int TILES>
static fathom_err launch_few(struct cuda_backend *c, const struct router_args_device &a,
                             uint32_t n_k_part)
{
    const uint32_t n_tile = ceil_div(a.w.n_row, few_sizes<TILES>::ROWS);
    const uint32_t cols = a.n_token <= 4 * FEW_COLS ? FEW_COLS : 2 * FEW_COLS;
    return cuda_launch(c, "router", router_few_kernel<TILES>,
                       dim3(n_tile, n_k_part, ceil_div(a.n_token, cols)), FEW_THREADS,
                       few_sizes<TILES>::BYTES, a, cols);
}

fathom_err router_fast(struct cuda_backend *c, const struct router_args_device &a,
                       uint32_t n_k_part)
{
    if (a.n_token <= 8) return launch_few<1>(c, a, n_k_part);
    if (a.n_token <= ROUTER_FEW_TOKENS) return launch_few<2>(c, a, n_k_part);
    if (c->sm90) return router_sm90(c, a);
    dim3 grid(ceil_div(a.w.n_row, MANY_ROWS), ceil_div(a.n_token, MANY_COLS), n_k_part);
    return cuda_launch(c, "router", router_many_kernel, grid, MANY_THREADS, MANY_BYTES, a);
}

fathom_err cuda_router_init(struct cuda_backend *c)
{
    static_assert(MANY_BYTES <= shared_limit(true), "shared memory of a block");
    CU_TRY(c, gpu_raise_shared(router_few_kernel<1>, few_sizes<1>::BYTES), "create");
    CU_TRY(c, gpu_raise_shared(router_few_kernel<2>, few_sizes<2>::BYTES), "create");
    CU_TRY(c, gpu_raise_shared(router_many_kernel, MANY_BYTES), "create");
    return c->sm90 ? router_sm90_init(c) : FATHOM_OK;
}

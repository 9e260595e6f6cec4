/* product_small.cu - FP8 matrix products with few rows, and those of packed U4 weights: weights
 * stream once, straight from memory into tensor core registers
 *
 * A warp owns RT tiles of 16 outputs (the product's 16-row operand) and one part of K (k_parts.h);
 * tokens are the 8-column operand, up to NT groups of 8. The order of k inside a K line is
 * free as long as both operands use the same one, so a lane loads 16 bytes at 16*t of each half of
 * the K line of its two rows and feeds the words as they lie: no shuffles, no shared memory, every
 * 32-byte sector used whole. One K line is one scale block; its tensor core sum is multiplied by
 * both scales and added to an f32 sum. A token's bits depend neither on its neighbours nor on NT.
 *
 * Weights do not change, so a plain product loads its first K lines before it waits for the kernel
 * in front of it. */
#include "backend/cuda/k_parts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/unpack4.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP, AHEAD = 4 };

struct k_line {
    uint4 lo0, hi0; /* row g: first and second half of a K line */
    uint4 lo1, hi1; /* row g + 8 */
};

static __device__ __forceinline__ uint32_t word(const uint4 &v, int j)
{
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

static __device__ __forceinline__ void load_k_line(struct k_line &l, const char *row0,
                                                   const char *row1, size_t at)
{
    l.lo0 = load_stream(row0 + at);
    l.hi0 = load_stream(row0 + at + 64);
    l.lo1 = load_stream(row1 + at);
    l.hi1 = load_stream(row1 + at + 64);
}

/* A warp's weights: its row tiles, its part of K. Step i is K line
 * i % k_part of tile i / k_part. */
template <int RT> struct stream {
    const char *row0[RT], *row1[RT];
    uint32_t first, k_part;
};

template <int RT>
static __device__ __forceinline__ void load_step(struct k_line &l, const struct stream<RT> &s,
                                                 uint32_t i)
{
    uint32_t tile = RT == 1 ? 0 : i / s.k_part, k_line = RT == 1 ? i : i % s.k_part;
    load_k_line(l, s.row0[tile], s.row1[tile], (size_t)(s.first + k_line) * 128);
}

template <int RT>
static __device__ __forceinline__ struct stream<RT>
make_stream(const struct product_args &a, const char *w, uint32_t n0, uint32_t row_bytes,
            uint32_t first, uint32_t k_part) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    struct stream<RT> s;
#pragma unroll
    for (int r = 0; r < RT; r++) {
        uint32_t n = n0 + (uint32_t)(r * 16 + g);
        s.row0[r] = w + (size_t)min(n, a.n - 1) * row_bytes + 16 * t;
        s.row1[r] = w + (size_t)min(n + 8, a.n - 1) * row_bytes + 16 * t;
    }
    s.first = first;
    s.k_part = k_part;
    return s;
}

/* Adds the K parts and writes rows x outputs. `acc` holds C fragments per row tile and token
 * group. */
template <int NT, int WK, int RT>
static __device__ __forceinline__ void finish(const struct product_args &a,
                                              const struct product_rows &p, float (&acc)[RT][NT][4],
                                              float *shared, int wk, int wn, uint32_t n_block)
{
    static_assert(WARPS % WK == 0, "warps of a tile share its K");
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    enum { COLS = NT * 8, ROWS = RT * 16, PITCH = ROWS + 1, AREA = COLS * PITCH, WN = WARPS / WK };
    float *mine = shared + (wn * WK + wk) * AREA;
#pragma unroll
    for (int r = 0; r < RT; r++) {
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float *col = mine + (i * 8 + 2 * t) * PITCH + r * 16 + g;
            col[0] = acc[r][i][0];
            col[PITCH] = acc[r][i][1];
            col[8] = acc[r][i][2];
            col[PITCH + 8] = acc[r][i][3];
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.n * WN * ROWS; i += WARPS * WARP) {
        int n = i % (WN * ROWS), col = i / (WN * ROWS);
        if (n_block + (uint32_t)n >= a.n) continue;
        const float *from = shared + (n / ROWS) * WK * AREA + col * PITCH + n % ROWS;
        float sum = from[0];
#pragma unroll
        for (int j = 1; j < WK; j++) sum += from[j * AREA];
        const uint32_t at = n_block + (uint32_t)n;
        a.out[(size_t)out_row(p, col) * a.out_stride + at] = row_scaled(p, at, sum);
    }
}

/* Input rows of a lane's token groups: of the column whose values it loads, and of the two columns
 * whose sums it holds. */
template <int NT> struct tokens {
    int load[NT];
    int sum[NT][2];
};

template <int NT>
static __device__ __forceinline__ struct tokens<NT> make_tokens(const struct product_args &a,
                                                                const struct product_rows &p) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    struct tokens<NT> k;
    DCHECK(p.n >= 1 && p.n <= NT * 8);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        k.load[i] = in_row(a, p, min(i * 8 + g, p.n - 1));
        k.sum[i][0] = in_row(a, p, min(i * 8 + 2 * t, p.n - 1));
        k.sum[i][1] = in_row(a, p, min(i * 8 + 2 * t + 1, p.n - 1));
    }
    return k;
}

/* One K line of FP8 weights times up to 8 * NT tokens, added to acc. */
template <int NT>
static __device__ __forceinline__ void
multiply_fp8(float (&acc)[NT][4], const struct k_line &l, const struct product_args &a,
             const struct tokens<NT> &k, float w_scale, uint32_t block)
{
    const char *q = (const char *)a.q + (size_t)block * 128 + threadIdx.x % 4 * 16;
    const float *scale = a.q_scale + block;
    const size_t n_k_line = a.k / 128;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const char *x = q + (size_t)k.load[i] * a.k;
        uint4 lo = *(const uint4 *)x;
        uint4 hi = *(const uint4 *)(x + 64);
        float c[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            mma_e4m3(c, word(l.lo0, j), word(l.lo1, j), word(l.hi0, j), word(l.hi1, j), word(lo, j),
                     word(hi, j));
        }
        float s0 = w_scale * scale[(size_t)k.sum[i][0] * n_k_line];
        float s1 = w_scale * scale[(size_t)k.sum[i][1] * n_k_line];
        acc[i][0] = fmaf(c[0], s0, acc[i][0]);
        acc[i][1] = fmaf(c[1], s1, acc[i][1]);
        acc[i][2] = fmaf(c[2], s0, acc[i][2]);
        acc[i][3] = fmaf(c[3], s1, acc[i][3]);
    }
}

template <int NT, int WK, int RT>
__global__ void __launch_bounds__(WARPS *WARP, NT == 1 ? 2 : 1)
    product_fp8_small_kernel(const struct product_args a)
{
    SHARED_DYNAMIC(float, shared);
    const int warp = (int)threadIdx.x / WARP, wk = warp % WK, wn = warp / WK;
    const uint32_t n_k_line = a.k / 128, k_part = n_k_line / WK, first = (uint32_t)wk * k_part;
    const uint32_t n_block = blockIdx.x * (WARPS / WK) * RT * 16;
    const uint32_t n0 = n_block + (uint32_t)(wn * RT * 16), n_step = k_part * RT;
    struct k_line l[AHEAD];
    DCHECK(n_k_line % WK == 0);
    dependency_release();
    if (!a.tasks) {
        struct stream<RT> s = make_stream<RT>(a, (const char *)a.w, n0, a.k, first, k_part);
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (u < (int)n_step) load_step(l[u], s, (uint32_t)u);
        }
    }
    dependency_wait();
    struct product_rows p = product_rows_of(a, (int)blockIdx.y, NT * 8);
    if (p.n <= 0) return;
    struct stream<RT> s = make_stream<RT>(a, p.w, n0, a.k, first, k_part);
    const struct tokens<NT> k = make_tokens<NT>(a, p);
    const float *ws[RT];
#pragma unroll
    for (int r = 0; r < RT; r++) {
        uint32_t n = min(n0 + (uint32_t)(r * 16), a.n - 1);
        ws[r] = p.w_scale + (size_t)(n / SCALE_BLOCK) * a.scale_stride;
    }
    float acc[RT][NT][4] = {};
    for (uint32_t b = 0; b < n_step; b += AHEAD) {
        if (b > 0 || a.tasks) {
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                if (b + (uint32_t)u < n_step) load_step(l[u], s, b + (uint32_t)u);
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            uint32_t i = b + (uint32_t)u;
            if (i >= n_step) break;
            uint32_t tile = RT == 1 ? 0 : i / k_part, block = first + (RT == 1 ? i : i % k_part);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                if (r == (int)tile) multiply_fp8<NT>(acc[r], l[u], a, k, ws[r][block], block);
            }
        }
    }
    finish<NT, WK, RT>(a, p, acc, shared, wk, wn, n_block);
}

template <int NT, int WK>
static fathom_err launch(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                         const char *what)
{
    enum { WN = WARPS / WK };
    static_assert(WARPS * NT * 8 * sizeof(float) * (NT <= 4 && WK == 1 ? 33 : 17) <=
                      SHARED_PLAIN_MAX,
                  "no limit is raised for it");
    size_t bytes = (size_t)WARPS * NT * 8 * sizeof(float);
    if (WK == 1 && NT <= 4 && a.k / 128 <= 2) { /* short rows: two tiles fill the pipeline */
        return cuda_launch(c, what, product_fp8_small_kernel < NT, WK, NT <= 4 && WK == 1 ? 2 : 1 >,
                           dim3(ceil_div(a.n, WN * 32), n_tile), WARPS * WARP, bytes * 33, a);
    }
    return cuda_launch(c, what, product_fp8_small_kernel<NT, WK, 1>,
                       dim3(ceil_div(a.n, WN * 16), n_tile), WARPS * WARP, bytes * 17, a);
}

template <int NT>
static fathom_err launch_k_parts(struct cuda_backend *c, const struct product_args &a,
                                 uint32_t n_tile, const char *what)
{
    switch (k_part_count(a.k / 128)) {
    case 8: return launch<NT, 8>(c, a, n_tile, what);
    case 4: return launch<NT, 4>(c, a, n_tile, what);
    case 2: return launch<NT, 2>(c, a, n_tile, what);
    default: return launch<NT, 1>(c, a, n_tile, what);
    }
}

/* ---- packed U4 ------------------------------------------------------------------------------- */

/* A byte 0000qqqq is the E4M3 code of q * 2^-9, for every q: codes go to the tensor cores as they
 * are. A group's sum of (q - zero) * x is that of q * x less zero times that of x; the latter comes
 * from the tensor cores too, as the product with ones. Groups of a K line are added in ascending
 * order. The rows of a warp's codes are in one piece of each tile (pack4.h), so a lane loads 16
 * bytes of both halves of a K line. */

/* What scales and zeros of rows g and g + 8 of a warp's 16 are in one K line. */
template <int GROUPS> struct u4_scales {
    float s[GROUPS][2], zero[GROUPS][2];
};

template <int GROUPS>
static __device__ __forceinline__ void load_u4_scales(struct u4_scales<GROUPS> &to,
                                                      const struct pack4 &pack, const char *tile,
                                                      uint32_t row)
{
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t at = (uint32_t)(i * PACK4_ROWS) + row + (uint32_t)(8 * h);
            to.s[i][h] = pack4_scale(pack, tile, at) * 512.0f;
            to.zero[i][h] = pack4_zero(pack, tile, at);
        }
    }
}

/* One K line of U4 weights times up to 8 * NT tokens, added to acc. */
template <int NT, int GROUPS>
static __device__ __forceinline__ void
multiply_u4(float (&acc)[NT][4], const uint4 (&codes)[2], const struct product_args &a,
            const struct tokens<NT> &k, const struct u4_scales<GROUPS> &w, uint32_t block)
{
    enum { STEPS = 4 / GROUPS };
    const uint32_t low = 0x0f0f0f0fu, ones = 0x01010101u;
    const char *q = (const char *)a.q + (size_t)block * 128 + threadIdx.x % 4 * 4;
    const float *scale = a.q_scale + block;
    const size_t n_k_line = a.k / 128;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const char *x = q + (size_t)k.load[i] * a.k;
        const float s0 = scale[(size_t)k.sum[i][0] * n_k_line];
        const float s1 = scale[(size_t)k.sum[i][1] * n_k_line];
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float c[4] = {}, sum[4] = {};
#pragma unroll
            for (int u = 0; u < STEPS; u++) {
                const int step = j * STEPS + u;
                const uint32_t w0 = word(codes[step / 2], step % 2 * 2);
                const uint32_t w1 = word(codes[step / 2], step % 2 * 2 + 1);
                const uint32_t b0 = *(const uint32_t *)(x + 32 * step);
                const uint32_t b1 = *(const uint32_t *)(x + 32 * step + 16);
                mma_e4m3(c, w0 & low, w0 >> 4 & low, w1 & low, w1 >> 4 & low, b0, b1);
                mma_e4m3(sum, ones, ones, ones, ones, b0, b1);
            }
            acc[i][0] = fmaf(fmaf(-w.zero[j][0], sum[0], c[0]), w.s[j][0] * s0, acc[i][0]);
            acc[i][1] = fmaf(fmaf(-w.zero[j][0], sum[1], c[1]), w.s[j][0] * s1, acc[i][1]);
            acc[i][2] = fmaf(fmaf(-w.zero[j][1], sum[2], c[2]), w.s[j][1] * s0, acc[i][2]);
            acc[i][3] = fmaf(fmaf(-w.zero[j][1], sum[3], c[3]), w.s[j][1] * s1, acc[i][3]);
        }
    }
}

template <int NT, int WK, int GROUPS>
__global__ void __launch_bounds__(WARPS *WARP) product_u4_small_kernel(const struct product_args a)
{
    SHARED_DYNAMIC(float, shared);
    const int warp = (int)threadIdx.x / WARP, wk = warp % WK, wn = warp / WK;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t n_k_line = a.k / 128, k_part = n_k_line / WK, first = (uint32_t)wk * k_part;
    const uint32_t n_block = blockIdx.x * (WARPS / WK) * 16;
    const uint32_t row = min(n_block + (uint32_t)(wn * 16), ceil_div(a.n, 16) * 16 - 16);
    DCHECK(n_k_line % WK == 0);
    kernel_begin();
    const struct product_rows p = product_rows_of(a, (int)blockIdx.y, NT * 8);
    if (p.n <= 0) return;
    const struct tokens<NT> k = make_tokens<NT>(a, p);
    const char *tile = p.w + ((size_t)(row / PACK4_ROWS) * n_k_line + first) * a.pack.tile_bytes;
    const uint32_t at = row % PACK4_ROWS / 16 * 1024 + lane * 16;
    float acc[1][NT][4] = {};
    for (uint32_t b = 0; b < k_part; b += AHEAD) {
        uint4 codes[AHEAD][2];
        struct u4_scales<GROUPS> w[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (b + (uint32_t)u >= k_part) break;
            const char *t = tile + (size_t)(b + (uint32_t)u) * a.pack.tile_bytes;
            codes[u][0] = load_stream(t + at);
            codes[u][1] = load_stream(t + at + 512);
            load_u4_scales<GROUPS>(w[u], a.pack, t, row % PACK4_ROWS + lane / 4);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (b + (uint32_t)u >= k_part) break;
            multiply_u4<NT, GROUPS>(acc[0], codes[u], a, k, w[u], first + b + (uint32_t)u);
        }
    }
    finish<NT, WK, 1>(a, p, acc, shared, wk, wn, n_block);
}

template <int NT, int WK>
static fathom_err launch_u4(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                            const char *what)
{
    const dim3 grid(ceil_div(a.n, WARPS / WK * 16), n_tile);
    const size_t bytes = (size_t)WARPS * NT * 8 * sizeof(float) * 17;
    switch (a.pack.n_group) {
    case 1:
        return cuda_launch(c, what, product_u4_small_kernel<NT, WK, 1>, grid, WARPS * WARP, bytes,
                           a);
    case 2:
        return cuda_launch(c, what, product_u4_small_kernel<NT, WK, 2>, grid, WARPS * WARP, bytes,
                           a);
    default:
        return cuda_launch(c, what, product_u4_small_kernel<NT, WK, 4>, grid, WARPS * WARP, bytes,
                           a);
    }
}

template <int NT>
static fathom_err launch_u4_k_parts(struct cuda_backend *c, const struct product_args &a,
                                    uint32_t n_tile, const char *what)
{
    switch (k_part_count(a.k / 128)) {
    case 8: return launch_u4<NT, 8>(c, a, n_tile, what);
    case 4: return launch_u4<NT, 4>(c, a, n_tile, what);
    case 2: return launch_u4<NT, 2>(c, a, n_tile, what);
    default: return launch_u4<NT, 1>(c, a, n_tile, what);
    }
}

/* Needs packed U4 weights, k a multiple of 128; tile_tokens 8, 16 or 32, of any number of rows. */
fathom_err product_u4_small(struct cuda_backend *c, const struct product_args &a,
                            uint32_t tile_tokens, uint32_t n_tile, const char *what)
{
    ASSERT(a.pack.tile_bytes > 0 && !a.pack.is_e2m1 && a.pack.n_group <= 4 && a.k % 128 == 0);
    ASSERT(a.q && a.q_scale && (!a.tasks || a.in_divisor > 0));
    ASSERT((uintptr_t)a.q % 16 == 0 && (uintptr_t)a.w % 16 == 0 && a.pack.tile_bytes % 16 == 0);
    switch (tile_tokens) {
    case 8: return launch_u4_k_parts<1>(c, a, n_tile, what);
    case 16: return launch_u4_k_parts<2>(c, a, n_tile, what);
    default: ASSERT(tile_tokens == 32); return launch_u4_k_parts<4>(c, a, n_tile, what);
    }
}

/* Needs k a multiple of 128, scale offsets 0; tile_tokens 8, 16 or 32. */
fathom_err product_small(struct cuda_backend *c, const struct product_args &a, uint32_t tile_tokens,
                         uint32_t n_tile, const char *what)
{
    ASSERT(a.k % SCALE_BLOCK == 0 && a.row0 == 0 && a.col0 == 0);
    ASSERT(a.q && a.q_scale && a.w_scale && (!a.tasks || a.in_divisor > 0));
    ASSERT((uintptr_t)a.q % 16 == 0 && (uintptr_t)a.w % 16 == 0 && a.w_stride % 16 == 0);
    ASSERT(tile_tokens == 8 || tile_tokens == 16 || tile_tokens == 32);
    switch (tile_tokens) {
    case 8: return launch_k_parts<1>(c, a, n_tile, what);
    case 16: return launch_k_parts<2>(c, a, n_tile, what);
    default: return launch_k_parts<4>(c, a, n_tile, what);
    }
}

/* product_bf16.cu - matrix products of BF16 weights, and of packed E2M1, plain and of experts
 *
 * A warp owns 16 outputs (the product's 16-row operand); tokens are the 8-column operand, NT groups
 * of 8. K is cut into parts (bf16_k_part_count): a part is one chain of products from zero, and
 * parts are added in ascending order. Product j of a K line takes its values 16 j to 16 j + 15: in
 * sm90/product_bf16.cu a product takes the same 16 values, and the tensor cores of sm_90 sum them
 * to the same bits in any order. A token's bits depend neither on its neighbours nor on the kernel:
 *
 *   narrow  few outputs: a block has 16 to 64, its warps share K
 *   wide    enough outputs, or tasks, for every SM: a block has 128, each warp walks all of K with
 *           AHEAD K lines of weights on their way to registers; tokens stand in shared memory,
 *           where all warps read them, so that weights are read once for up to 64 tokens
 *
 * E2M1 has the wide one for any number of outputs, with the parts of sm90/product_few.cu and its
 * bits: a code times its group's scale has six bits, so it is a BF16 weight exactly (e2m1.cuh).
 *
 * Weights do not change: the first K lines of a plain product are requested before the wait. */
#include "backend/cuda/e2m1.cuh"
#include "backend/cuda/k_parts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP, AHEAD = 4, PITCH = 17, TILE = 16 };
enum { STEP_BYTES = 32, K_LINE_STEPS = K_LINE_BYTES / STEP_BYTES }; /* of one product */
static_assert(PITCH > TILE, "sums of one output lie in different banks");

/* Rows g and g + 8 of weights as they are loaded: 16 bytes at 16 t of each half of a K line */
struct k_line {
    uint4 lo[2], hi[2];
};

/* The same as products take them: of each 16 values of the K line the lane's four */
struct k_steps {
    uint2 v[2][K_LINE_STEPS];
};

/* A lane's two rows of weights: its first values of a K line, those of the line's other half, and
 * how far it is to the next K line. */
struct weight_rows {
    const char *lo[2], *hi[2];
    uint32_t step;
};

static __device__ __forceinline__ struct weight_rows
rows_of(const struct product_args &a, const struct product_rows &p, uint32_t n0)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    struct weight_rows w;
    w.step = a.tiled ? (uint32_t)TILE_BYTES : (uint32_t)K_LINE_BYTES;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = min(n0 + r * 8 + g, a.n - 1);
        const size_t plain = (size_t)row * a.k * 2 + 16 * t;
        w.lo[r] = p.w + (a.tiled ? tiled_at(row, 16 * t, a.k * 2) : plain);
        w.hi[r] = p.w + (a.tiled ? tiled_at(row, 16 * t + K_LINE_BYTES / 2, a.k * 2)
                                 : plain + K_LINE_BYTES / 2);
    }
    return w;
}

static __device__ __forceinline__ void load_k_line(struct k_line &l, const struct weight_rows &w,
                                                   uint32_t k_line)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l.lo[r] = load_stream(w.lo[r] + (size_t)k_line * w.step);
        l.hi[r] = load_stream(w.hi[r] + (size_t)k_line * w.step);
    }
}

/* A lane has 8 values of one of two products' 16 and wants 4 of each: lanes t and t ^ 2 exchange
 * halves. Lane t has the four at step_place of each product's. */
static __device__ __forceinline__ void exchange(uint2 &first, uint2 &second, const uint4 &v)
{
    const bool upper = threadIdx.x & 2;
    const uint32_t x = shfl_xor(upper ? v.x : v.z, 2), y = shfl_xor(upper ? v.y : v.w, 2);
    first = upper ? make_uint2(x, y) : make_uint2(v.x, v.y);
    second = upper ? make_uint2(v.z, v.w) : make_uint2(x, y);
}

static __device__ __forceinline__ uint32_t step_place(void)
{
    const uint32_t t = threadIdx.x % 4;
    return (t >> 1 | (t & 1) << 1) * 8;
}

static __device__ __forceinline__ struct k_steps steps_of(const struct k_line &l)
{
    struct k_steps s;
    static_assert(K_LINE_STEPS == 4, "two of each half");
#pragma unroll
    for (int r = 0; r < 2; r++) {
        exchange(s.v[r][0], s.v[r][1], l.lo[r]);
        exchange(s.v[r][2], s.v[r][3], l.hi[r]);
    }
    return s;
}

/* c += the outputs of 16 values of a K line */
static __device__ __forceinline__ void multiply(float (&c)[4], const struct k_steps &s, int step,
                                                const uint2 &x)
{
    mma_bf16(c, s.v[0][step].x, s.v[1][step].x, s.v[0][step].y, s.v[1][step].y, x.x, x.y);
}

/* Where the inputs of row i of a block begin. */
static __device__ __forceinline__ const char *input(const struct product_args &a,
                                                    const struct product_rows &p, uint32_t i)
{
    const int row = in_row(a, p, min((int)i, p.n - 1));
    DCHECK(!a.in_rows || a.in_rows[row] >= 0);
    return (const char *)a.h + (size_t)(a.in_rows ? a.in_rows[row] : row) * a.k * 2;
}

/* ---- narrow ---- */

/* Adds the K parts of a block's outputs and writes tokens x outputs. */
template <int NT, int WK>
static __device__ __forceinline__ void finish(const struct product_args &a, const float (*acc)[4],
                                              const struct product_rows &p, float *shared,
                                              uint32_t n_block)
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
    for (uint32_t i = threadIdx.x; i < (uint32_t)p.n * N; i += THREADS) {
        const uint32_t n = i % N, row = i / N;
        if (n_block + n >= a.n) continue;
        const float *from = shared + n / TILE * WK * AREA + row * PITCH + n % TILE;
        float sum = from[0];
#pragma unroll
        for (int j = 1; j < WK; j++) sum += from[j * AREA];
        a.out[(size_t)out_row(p, (int)row) * a.out_stride + n_block + n] = sum;
    }
}

template <int NT, int WK>
__global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1)
    product_bf16_narrow_kernel(const struct product_args a)
{
    SHARED_DYNAMIC(float, shared);
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4;
    const uint32_t n_block = blockIdx.x * (WARPS / WK) * TILE;
    const uint32_t k_part = a.k / 64 / WK, first = warp % WK * k_part;
    const struct product_rows p = product_rows_of(a, (int)blockIdx.y, NT * 8);
    const struct weight_rows w = rows_of(a, p, n_block + warp / WK * TILE);
    struct k_line l[AHEAD];
    float acc[NT][4] = {};
    dependency_release();
#pragma unroll
    for (uint32_t u = 0; u < AHEAD; u++) load_k_line(l[u], w, first + min(u, k_part - 1));
    dependency_wait();
    const char *x[NT];
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) x[i] = input(a, p, i * 8 + g) + step_place();
    for (uint32_t b = 0; b < k_part; b += AHEAD) {
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) {
            if (b + u >= k_part) break;
            const size_t at = (size_t)(first + b + u) * K_LINE_BYTES;
            const struct k_steps s = steps_of(l[u]);
#pragma unroll
            for (int j = 0; j < K_LINE_STEPS; j++) {
#pragma unroll
                for (int i = 0; i < NT; i++)
                    multiply(acc[i], s, j, *(const uint2 *)(x[i] + at + j * STEP_BYTES));
            }
            load_k_line(l[u], w, first + min(b + u + AHEAD, k_part - 1));
        }
    }
    finish<NT, WK>(a, acc, p, shared, n_block);
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
    switch (bf16_k_part_count(a.n, a.k / 64, false)) {
    case 8: return launch_narrow<NT, 8>(c, a, what);
    case 4: return launch_narrow<NT, 4>(c, a, what);
    default: return launch_narrow<NT, 2>(c, a, what);
    }
}

/* ---- wide ---- */

enum { WIDE_ROWS = WARPS * TILE, STAGES = 3 };
static_assert(AHEAD * 8 == WARP, "lanes copy AHEAD K lines, a 16-byte chunk each");
static_assert(STAGES == 3, "two steps of tokens are on their way, one is read");

/* Where 16 bytes of a token's K line stand: the lanes of four tokens, 32 bytes of each, meet all
 * banks. */
static __device__ __forceinline__ uint32_t place(uint32_t token, uint32_t chunk)
{
    DCHECK(chunk < K_LINE_BYTES / 16);
    return token * K_LINE_BYTES + ((chunk ^ (token & 3) << 1) << 4);
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

/* What the wide kernel takes its weights from: a lane's rows g and g + 8 of a warp's 16, a K line
 * of 64 values at a time. */
struct stored_bf16 {
    typedef struct k_line line;
    enum { HAS_PARTS = 0 };
    struct weight_rows rows;

    __device__ __forceinline__ stored_bf16(const struct product_args &a,
                                           const struct product_rows &p, uint32_t n0)
        : rows(rows_of(a, p, n0))
    {
    }

    __device__ __forceinline__ void load(line &l, uint32_t k_line) const
    {
        load_k_line(l, rows, k_line);
    }

    __device__ __forceinline__ struct k_steps steps(const line &l) const
    {
        return steps_of(l);
    }

    /* The four values of a product's 16 that are this lane's, of a token's K line. */
    static __device__ __forceinline__ uint2 inputs(const char *tokens, uint32_t token,
                                                   uint32_t step)
    {
        const char *from = tokens + step_place() % 16;
        return *(const uint2 *)(from + place(token, 2 * step + step_place() / 16));
    }

    /* An output of this sum. */
    __device__ __forceinline__ float output(float sum, const struct product_rows &p,
                                            uint32_t n) const
    {
        (void)p;
        (void)n;
        return sum;
    }
};

/* G scales in 128 columns */
template <int G> struct packed_e2m1 {
    enum { HAS_PARTS = 1, SCALE_WORDS = G / 4 };
    struct line {
        uint4 codes;
        uint32_t scales[SCALE_WORDS];
    };
    const char *codes, *scales; /* of the first tile */
    uint32_t tile_bytes;

    __device__ __forceinline__ packed_e2m1(const struct product_args &a,
                                           const struct product_rows &p, uint32_t n0)
        : tile_bytes(a.pack.tile_bytes)
    {
        const uint32_t lane = threadIdx.x % WARP, warp = n0 % PACK4_ROWS / TILE;
        const size_t row = min(n0, a.n - 1) / PACK4_ROWS; /* of tiles */
        const char *tile = p.w + row * ceil_div(a.k, PACK4_COLS) * tile_bytes;
        codes = tile + warp * PACK4_CODE_BYTES / 4 + lane * 16;
        scales = tile + PACK4_CODE_BYTES + (warp * TILE + lane / 4 * 2) * G;
    }

    __device__ __forceinline__ void load(line &l, uint32_t k_line) const
    {
        const size_t tile = (size_t)(k_line / 2) * tile_bytes;
        l.codes = load_stream(codes + tile + k_line % 2 * PACK4_CODE_BYTES / 8);
#pragma unroll
        for (uint32_t i = 0; i < SCALE_WORDS; i++)
            l.scales[i] = ((const uint32_t *)(scales + tile))[k_line % 2 * SCALE_WORDS + i];
    }

    __device__ __forceinline__ struct k_steps steps(const line &l) const
    {
        const uint32_t words[K_LINE_STEPS] = {l.codes.x, l.codes.y, l.codes.z, l.codes.w};
        struct k_steps s;
#pragma unroll
        for (uint32_t j = 0; j < K_LINE_STEPS; j += 2) {
            struct e2m1_step of[2];
            e2m1_weights<G>(words[j], words[j + 1], l.scales[j / 2 % SCALE_WORDS], j / 2, of);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                s.v[0][j + i] = make_uint2(of[i].v[0], of[i].v[2]);
                s.v[1][j + i] = make_uint2(of[i].v[1], of[i].v[3]);
            }
        }
        return s;
    }

    static __device__ __forceinline__ uint2 inputs(const char *tokens, uint32_t token,
                                                   uint32_t step)
    {
        const char *from = tokens + threadIdx.x % 4 * 4;
        return make_uint2(*(const uint32_t *)(from + place(token, 2 * step)),
                          *(const uint32_t *)(from + place(token, 2 * step + 1)));
    }

    __device__ __forceinline__ float output(float sum, const struct product_rows &p,
                                            uint32_t n) const
    {
        return sum * (p.w_scale[n / PACK4_ROWS] * e2m1_factor<G>());
    }
};

/* total += a part's sum, which begins again */
template <int NT>
static __device__ __forceinline__ void end_part(float (&total)[NT][4], float (&acc)[NT][4])
{
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            total[i][k] += acc[i][k];
            acc[i][k] = 0.0f;
        }
    }
}

template <int NT, class W>
__global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1)
    product_bf16_wide_kernel(const struct product_args a, uint32_t part_lines)
{
    SHARED_DYNAMIC(float, shared);
    enum { K_LINE_AREA = NT * 8 * K_LINE_BYTES, STAGE = AHEAD * K_LINE_AREA };
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t n0 = blockIdx.x * WIDE_ROWS + warp * TILE, n_k_line = a.k / 64;
    const uint32_t stages = smem_address(shared);
    typename W::line l[AHEAD];
    float acc[NT][4] = {}, total[NT][4] = {};
    uint32_t part_end = part_lines;
    dependency_release();
    if (a.tasks) dependency_wait();
    const struct product_rows p = product_rows_of(a, (int)blockIdx.y, NT * 8);
    if (p.n <= 0) return; /* mapped */
    const W w(a, p, n0);
#pragma unroll
    for (uint32_t u = 0; u < AHEAD; u++) w.load(l[u], min(u, n_k_line - 1));
    if (!a.tasks) dependency_wait();
    const char *x[NT];
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) x[i] = input(a, p, i * 8 + warp);
    copy_tokens<NT>(a, stages, x, 0);
    copy_tokens<NT>(a, stages + STAGE, x, AHEAD);
    for (uint32_t b = 0, step = 0; b < n_k_line; b += AHEAD, step++) {
        cp_async_wait<1>();
        __syncthreads(); /* this step's tokens are there; those of the one before are done with */
        copy_tokens<NT>(a, stages + (step + 2) % STAGES * STAGE, x, b + 2 * AHEAD);
        const char *from = (const char *)shared + step % STAGES * STAGE;
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++, from += K_LINE_AREA) {
            if (b + u >= n_k_line) break;
            const struct k_steps s = w.steps(l[u]);
#pragma unroll
            for (uint32_t j = 0; j < K_LINE_STEPS; j++) {
#pragma unroll
                for (uint32_t i = 0; i < NT; i++)
                    multiply(acc[i], s, (int)j, W::inputs(from, i * 8 + g, j));
            }
            w.load(l[u], min(b + u + AHEAD, n_k_line - 1));
            if (W::HAS_PARTS && b + u + 1 == part_end) {
                end_part(total, acc);
                part_end += part_lines;
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t n = n0 + g + k / 2 * 8;
            const int row = (int)(i * 8 + 2 * t + k % 2);
            if (n < a.n && row < p.n)
                a.out[(size_t)out_row(p, row) * a.out_stride + n] =
                    w.output(W::HAS_PARTS ? total[i][k] : acc[i][k], p, n);
        }
    }
}

template <int NT, class W = stored_bf16>
static fathom_err launch_wide(struct cuda_backend *c, const struct product_args &a, uint32_t n_tile,
                              const char *what)
{
    const dim3 grid(ceil_div(a.n, WIDE_ROWS), n_tile);
    const size_t bytes = (size_t)STAGES * AHEAD * NT * 8 * K_LINE_BYTES;
    const uint32_t n_line = ceil_div(a.k, PACK4_COLS);
    const bool whole =
        a.k % PACK4_COLS == 0; /* else no other kernel takes it, and it has one part */
    const uint32_t n_part =
        W::HAS_PARTS && whole ? fp8_k_part_count(a.n, n_line, a.tasks != NULL) : 1;
    return cuda_launch(c, what, product_bf16_wide_kernel<NT, W>, grid, THREADS, bytes, a,
                       n_part > 1 ? a.k / 64 / n_part : a.k / 64);
}

/* Tiles of at most `tile` rows, n_tile of them at most. */
template <class W>
static fathom_err launch_tiles(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                               uint32_t n_tile, const char *what)
{
    ASSERT(!a.tasks || (a.in_divisor > 0 && !a.in_rows));
    ASSERT(tile <= PRODUCT_BF16_TILE_MAX);
    if (tile <= 8) return launch_wide<1, W>(c, a, n_tile, what);
    if (tile <= 16) return launch_wide<2, W>(c, a, n_tile, what);
    return tile <= 32 ? launch_wide<4, W>(c, a, n_tile, what)
                      : launch_wide<8, W>(c, a, n_tile, what);
}

template <int G>
static fathom_err launch_packed(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                                uint32_t n_tile, const char *what)
{
    if (a.tasks) return launch_tiles<packed_e2m1<G>>(c, a, tile, n_tile, what);
    tile = min(a.n_token, (uint32_t)PRODUCT_BF16_TILE_MAX);
    return launch_tiles<packed_e2m1<G>>(c, a, tile, ceil_div(a.n_token, tile), what);
}

/* Needs k a multiple of 64; plain rows, or those that in_rows lists; or tasks. */
fathom_err product_bf16(struct cuda_backend *c, const struct product_args &a, uint32_t tile,
                        uint32_t n_tile, const char *what)
{
    ASSERT(a.k % 64 == 0 && a.h && a.n_token > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0);
    const uint32_t n = a.n_token;
    if (a.pack.tile_bytes) {
        ASSERT(a.pack.is_e2m1 && a.w_scale);
        return a.pack.n_group == 8 ? launch_packed<8>(c, a, tile, n_tile, what)
                                   : launch_packed<4>(c, a, tile, n_tile, what);
    }
    if (a.tasks) return launch_tiles<stored_bf16>(c, a, tile, n_tile, what);
    if (bf16_k_part_count(a.n, a.k / 64, false) == 1) {
        if (n <= 8) return launch_wide<1>(c, a, 1, what);
        return n <= 32 ? launch_wide<4>(c, a, 1, what)
                       : launch_wide<8>(c, a, ceil_div(n, 64), what);
    }
    if (n <= 8) return launch_k_parts<1>(c, a, what);
    return n <= 16 ? launch_k_parts<2>(c, a, what) : launch_k_parts<4>(c, a, what);
}

fathom_err product_bf16_init(struct cuda_backend *c)
{
    enum { LARGEST = STAGES * AHEAD * 64 * K_LINE_BYTES };
    static_assert(LARGEST <= shared_limit(true), "shared memory of a block");
    CU_TRY(c, gpu_raise_shared(product_bf16_wide_kernel<8, stored_bf16>, LARGEST), "create");
    CU_TRY(c, gpu_raise_shared(product_bf16_wide_kernel<8, packed_e2m1<8>>, LARGEST), "create");
    CU_TRY(c, gpu_raise_shared(product_bf16_wide_kernel<8, packed_e2m1<4>>, LARGEST), "create");
    return FATHOM_OK;
}

/* router.cu - the router's scores and the choice of experts
 *
 * Scores: BF16 weights against f32 activations on the tensor cores, without rounding them: an
 * activation is three bf16 planes. K is cut into K lines of 64 values and these into parts of
 * K_PART_LINES. A K line is one chain of products from zero. K lines are added in ascending order
 * inside a part, parts in ascending order by the kernel that chooses. All score kernels keep to
 * that, so a token's bits do not depend on the number of tokens.
 *
 * A block chooses for one token. In a step of one token it also writes the map from experts to
 * rows, which is moe_map.cu's otherwise. */
#include "backend/cuda/generic/moe_map.cuh"
#include "backend/cuda/generic/router.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/sm90/router.cuh"

enum { TILE = 16 };

/* ---- scores, float path ---- */

enum { FLOAT_THREADS = 256 };

/* One block an (expert, token); thread i sums every 256th product, then a tree. */
__global__ void __launch_bounds__(FLOAT_THREADS)
    router_float_kernel(const struct router_args_device a)
{
    __shared__ float scratch[FLOAT_THREADS / WARP];
    kernel_begin();
    const uint32_t e = blockIdx.x, t = blockIdx.y, n = a.w.n_col;
    float sum = 0.0f;
    for (uint32_t k = threadIdx.x; k < n; k += FLOAT_THREADS) {
        size_t at = (size_t)e * n + k;
        float w = a.w.dtype == DTYPE_BF16 ? stored_value<DTYPE_BF16>(a.w.data, at)
                                          : stored_value<DTYPE_F32>(a.w.data, at);
        sum = fmaf(w, a.x[(size_t)t * n + k], sum);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) score_row(a, 0, t)[e] = sum;
}

/* ---- scores, fast path ---- */

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
    __syncwarp();
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

/* ---- the choice ---- */

enum { CHOOSE_THREADS_MAX = 1024, FEW_TOKENS = 64 };
static_assert((int)EXPERTS_MAX < (int)CHOOSE_THREADS_MAX, "a thread an expert");

struct choose_args {
    const float *score; /* [K part][T][pitch] */
    const float *bias;
    uint32_t n_k_part, pitch;
    uint32_t n_expert, n_group, topk_group, n_used;
    float routed_scale;
    bool norm_topk;
    int32_t *experts; /* [T][n_used] */
    float *weights;
    uint32_t n_token;
    const int32_t *n_live; /* NULL: all */
};

/* A block that chooses for a token, a thread an expert. */
struct choice {
    float s[CHOOSE_THREADS_MAX];
    float b[CHOOSE_THREADS_MAX + EXPERT_GROUPS_MAX]; /* a bank further from group to group */
    float group[EXPERT_GROUPS_MAX];
    uint32_t key[CHOOSE_THREADS_MAX]; /* candidates: of each warp its n_used best, descending */
    uint32_t expert[CHOOSE_THREADS_MAX];
    uint32_t chosen[EXPERTS_USED_MAX], sorted[EXPERTS_USED_MAX];
};

/* A key of the same order as the value; never 0, which is what a taken expert has. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    uint32_t u = __float_as_uint(v + 0.0f); /* one zero */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The sum over the parts of K of one expert's score. */
static __device__ __forceinline__ float score_of(const struct choose_args &a, uint32_t token)
{
    const float *from = a.score + (size_t)token * a.pitch + threadIdx.x;
    float x = 0.0f;
#pragma unroll 7
    for (uint32_t k = 0; k < a.n_k_part; k++) x += from[(size_t)k * a.n_token * a.pitch];
    return x;
}

/* first, second: the two largest of what was there and v */
static __device__ __forceinline__ void take_two(float &first, float &second, float v)
{
    second = fmaxf(second, fminf(first, v));
    first = fmaxf(first, v);
}

/* Writes each group's sum of its two largest b: lanes among themselves where a group lies within a
 * warp, else a thread a group. */
static __device__ __forceinline__ void score_groups(const struct choose_args &a, float b,
                                                    uint32_t size, struct choice *ch)
{
    const uint32_t e = threadIdx.x;
    float first = b, second = -INFINITY;
    if (size <= WARP && (size & (size - 1)) == 0) {
        for (int d = 1; d < (int)size; d <<= 1) {
            const float f = shfl_xor(first, d), g = shfl_xor(second, d);
            second = fmaxf(fmaxf(second, g), fminf(first, f));
            first = fmaxf(first, f);
        }
        if (e < a.n_expert && e % size == 0) ch->group[e / size] = size > 1 ? first + second : b;
    } else {
        if (e < a.n_expert) ch->b[e + e / size] = b;
        __syncthreads();
        if (e < a.n_group) {
            first = -INFINITY;
            for (uint32_t i = 0; i < size; i++) take_two(first, second, ch->b[e * (size + 1) + i]);
            ch->group[e] = first + second;
        }
    }
    __syncthreads();
}

/* Whether this thread's expert is in a group that stays: a larger score first, then the lower one.
 */
static __device__ __forceinline__ bool is_kept(const struct choose_args &a, float b,
                                               struct choice *ch)
{
    if (a.topk_group >= a.n_group) return true;
    const uint32_t size = a.n_expert / a.n_group, mine = threadIdx.x / size;
    DCHECK(a.n_group <= EXPERT_GROUPS_MAX && size * a.n_group == a.n_expert);
    score_groups(a, b, size, ch);
    if (mine >= a.n_group) return false;
    const float score = ch->group[mine];
    uint32_t better = 0;
#pragma unroll 8
    for (uint32_t g = 0; g < a.n_group; g++)
        better += ch->group[g] > score || (ch->group[g] == score && g < mine);
    return better < a.topk_group;
}

/* Each warp lists its n_used largest keys, ties to the lower expert. */
static __device__ __forceinline__ void list_candidates(uint32_t key, uint32_t n_used,
                                                       struct choice *ch)
{
    const uint32_t lane = threadIdx.x % WARP, to = threadIdx.x / WARP * n_used;
    DCHECK(n_used >= 1 && to + n_used <= CHOOSE_THREADS_MAX);
#pragma unroll 1
    for (uint32_t k = 0; k < n_used; k++) {
        const uint32_t best = warp_largest(key);
        const unsigned holders = warp_ballot(key == best);
        if (lane != (uint32_t)__ffs((int)holders) - 1) continue;
        ch->key[to + k] = best;
        ch->expert[to + k] = threadIdx.x;
        key = 0;
    }
    __syncthreads();
}

/* The n_used best candidates: those with fewer better ones, counted by several threads each.
 * Candidates stand in the order of their experts as far as keys are equal. */
static __device__ __forceinline__ void choose_candidates(uint32_t n_used, struct choice *ch)
{
    const uint32_t n = blockDim.x / WARP * n_used;
    uint32_t each = 1; /* threads of a candidate */
    while (each * 2 * n_used <= WARP) each *= 2;
    const uint32_t mine = threadIdx.x / each;
    const uint32_t key = mine < n ? ch->key[mine] : 0;
    uint32_t better = 0;
    if (mine < n) {
#pragma unroll 8
        for (uint32_t i = threadIdx.x % each; i < n; i += each)
            better += ch->key[i] > key || (ch->key[i] == key && i < mine);
    }
    for (uint32_t d = 1; d < each; d *= 2) better += shfl_xor(better, (int)d);
    if (mine < n && threadIdx.x % each == 0 && better < n_used)
        ch->chosen[better] = ch->expert[mine];
    __syncthreads();
}

/* By the first warp: the chosen experts in ascending order and their weights. Returns this lane's
 * expert. */
static __device__ __forceinline__ uint32_t write_choice(const struct choose_args &a, uint32_t token,
                                                        uint32_t n_used, struct choice *ch)
{
    const uint32_t lane = threadIdx.x;
    const uint32_t chosen = lane < n_used ? ch->chosen[lane] : 0;
    uint32_t place = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < n_used; i++) place += ch->chosen[i] < chosen;
    if (lane < n_used) ch->sorted[place] = chosen;
    __syncwarp();
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t k = 0; k < n_used; k++) sum += ch->s[ch->sorted[k]];
    if (lane >= n_used) return 0;
    const uint32_t e = ch->sorted[lane];
    DCHECK(e < a.n_expert && (lane == 0 || ch->sorted[lane - 1] < e));
    const float factor = a.norm_topk ? a.routed_scale / sum : a.routed_scale;
    a.experts[(size_t)token * n_used + lane] = (int32_t)e;
    a.weights[(size_t)token * n_used + lane] = ch->s[e] * factor;
    return e;
}

/* A block a token. A step of a single one has its map written at once: a task a row. USED is the
 * number of chosen experts, 0 where any may be: with a known one, what is read one after the other
 * from shared memory is on its way at once. */
template <uint32_t USED>
__global__ void __launch_bounds__(CHOOSE_THREADS_MAX)
    choose_kernel(const struct choose_args a, const struct map_args m)
{
    __shared__ struct choice ch;
    const uint32_t e = threadIdx.x, token = blockIdx.x;
    const bool is_expert = e < a.n_expert;
    const uint32_t n_used = USED ? USED : a.n_used;
    DCHECK(blockDim.x >= a.n_expert && n_used == a.n_used && n_used <= EXPERTS_USED_MAX);
    dependency_release();
    const float bias = is_expert ? a.bias[e] : 0.0f;
    const bool is_live = !a.n_live || token < (uint32_t)*a.n_live; /* there before the step began */
    dependency_wait();
    const float s = 1.0f / (1.0f + expf(-score_of(a, is_live ? token : 0)));
    float b = is_expert ? s + bias : -INFINITY;
    b = b == b ? b : -INFINITY;
    ch.s[e] = s;
    const bool kept = is_kept(a, b, &ch);
    list_candidates(is_expert ? order_key(kept ? b : -INFINITY) : 0, n_used, &ch);
    choose_candidates(n_used, &ch);
    if (e >= WARP) return;
    const uint32_t mine = write_choice(a, token, n_used, &ch);
    if (!m.tasks || e >= m.rows_per_token) return;
    const struct task t = {(int32_t)(e < m.n_used ? mine : m.n_stack - 1), (int32_t)e, 1};
    m.tasks[e] = t;
    m.rows[e] = (int32_t)e;
    if (e == 0) *m.n_task = (int32_t)m.rows_per_token;
}

/* ---- the choice of many tokens: a warp each, whose lanes have neighbouring experts ---- */

enum { LANE_EXPERTS = 8, LANES_EXPERTS = WARP * LANE_EXPERTS, CHOOSE_WARPS = 8 };

/* Needs whole lanes a group, as many of them as a power of two. */
static bool chooses_many(const struct choose_args &a)
{
    const uint32_t lanes = a.n_group ? a.n_expert / a.n_group / LANE_EXPERTS : 0;
    const bool cut = lanes > 0 && lanes * LANE_EXPERTS * a.n_group == a.n_expert;
    if (a.n_token <= FEW_TOKENS || a.n_expert != LANES_EXPERTS || a.n_used > WARP) return false;
    return a.topk_group >= a.n_group || (cut && (lanes & (lanes - 1)) == 0);
}

/* Sums over the parts of K of a lane's experts, in the order of score_of. */
static __device__ __forceinline__ void lane_scores(const struct choose_args &a, uint32_t token,
                                                   float (&x)[LANE_EXPERTS])
{
    const float *from = a.score + (size_t)token * a.pitch + threadIdx.x % WARP * LANE_EXPERTS;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) x[i] = 0.0f;
#pragma unroll 7
    for (uint32_t k = 0; k < a.n_k_part; k++) {
        const float4 *part = (const float4 *)(from + (size_t)k * a.n_token * a.pitch);
        const float4 low = part[0], high = part[1];
        x[0] += low.x, x[1] += low.y, x[2] += low.z, x[3] += low.w;
        x[4] += high.x, x[5] += high.y, x[6] += high.z, x[7] += high.w;
    }
}

/* is_kept, of all experts of this lane */
static __device__ __forceinline__ bool lane_is_kept(const struct choose_args &a,
                                                    const float (&b)[LANE_EXPERTS])
{
    if (a.topk_group >= a.n_group) return true;
    const uint32_t lanes = a.n_expert / a.n_group / LANE_EXPERTS, lane = threadIdx.x % WARP;
    float first = b[0], second = -INFINITY;
#pragma unroll
    for (int i = 1; i < LANE_EXPERTS; i++) take_two(first, second, b[i]);
    for (int d = 1; d < (int)lanes; d <<= 1) {
        const float f = shfl_xor(first, d), g = shfl_xor(second, d);
        second = fmaxf(fmaxf(second, g), fminf(first, f));
        first = fmaxf(first, f);
    }
    const float score = first + second;
    uint32_t better = 0;
    for (uint32_t g = 0; g < a.n_group; g++) {
        const float other = shfl(score, (int)(g * lanes));
        better += other > score || (other == score && g < lane / lanes);
    }
    return better < a.topk_group;
}

/* A bit for each of this lane's experts that is among the n_used of the largest keys, ties to the
 * lower expert. */
static __device__ __forceinline__ uint32_t choose_keys(uint32_t (&key)[LANE_EXPERTS],
                                                       uint32_t n_used)
{
    uint32_t chosen = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < n_used; k++) {
        uint32_t mine = key[0];
#pragma unroll
        for (int i = 1; i < LANE_EXPERTS; i++) mine = max(mine, key[i]);
        const uint32_t best = warp_largest(mine);
        const unsigned holders = warp_ballot(mine == best);
        bool takes = threadIdx.x % WARP == (uint32_t)__ffs((int)holders) - 1;
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) {
            if (!takes || key[i] != best) continue;
            key[i] = 0;
            chosen |= 1u << i;
            takes = false;
        }
    }
    return chosen;
}

__global__ void __launch_bounds__(CHOOSE_WARPS *WARP) choose_many_kernel(const struct choose_args a)
{
    __shared__ uint32_t experts[CHOOSE_WARPS][WARP];
    __shared__ float scores[CHOOSE_WARPS][WARP];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t token = blockIdx.x * CHOOSE_WARPS + warp;
    float s[LANE_EXPERTS], b[LANE_EXPERTS];
    uint32_t key[LANE_EXPERTS], place = 0;
    DCHECK(a.n_expert == LANES_EXPERTS && a.n_used <= WARP);
    kernel_begin();
    if (token >= a.n_token) return;
    const bool is_live = !a.n_live || token < (uint32_t)*a.n_live;
    lane_scores(a, is_live ? token : 0, s);
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        s[i] = 1.0f / (1.0f + expf(-s[i]));
        b[i] = s[i] + a.bias[lane * LANE_EXPERTS + i];
        b[i] = b[i] == b[i] ? b[i] : -INFINITY;
    }
    const bool kept = lane_is_kept(a, b);
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) key[i] = order_key(kept ? b[i] : -INFINITY);
    const uint32_t chosen = choose_keys(key, a.n_used);
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) {
        const unsigned holders = warp_ballot((chosen >> i & 1) != 0);
        place += (uint32_t)__popc((int)(holders & ((1u << lane) - 1)));
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        if (!(chosen >> i & 1)) continue;
        experts[warp][place] = lane * LANE_EXPERTS + i;
        scores[warp][place++] = s[i];
    }
    __syncwarp();
    float sum = 0.0f;
    for (uint32_t k = 0; k < a.n_used; k++) sum += scores[warp][k];
    if (lane >= a.n_used) return;
    const float factor = a.norm_topk ? a.routed_scale / sum : a.routed_scale;
    a.experts[(size_t)token * a.n_used + lane] = (int32_t)experts[warp][lane];
    a.weights[(size_t)token * a.n_used + lane] = scores[warp][lane] * factor;
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

static fathom_err run_scores(struct cuda_backend *c, const struct router_args *a,
                             struct choose_args *k)
{
    struct router_args_device s = {};
    s.w = a->w->moe.router;
    s.x = a->x->f;
    s.n_token = a->n_token;
    s.pitch = k->pitch;
    s.score = c->router_score;
    ASSERT(s.w.n_row == c->c.n_expert && s.w.n_col == c->c.hidden);
    ASSERT((uintptr_t)s.w.data % 16 == 0 && (uintptr_t)s.x % 16 == 0);
    const uint32_t n_expert = s.w.n_row, n_token = a->n_token;
    k->n_k_part = 1;
    if (!c->fast || s.w.dtype != DTYPE_BF16 || s.w.n_col % K_LINE) {
        return cuda_launch(c, "router", router_float_kernel, dim3(n_expert, n_token), FLOAT_THREADS,
                           0, s);
    }
    k->n_k_part = router_k_part_count(s.w.n_col);
    if (n_token <= 8) return launch_few<1>(c, s, k->n_k_part);
    if (n_token <= FEW_TOKENS) return launch_few<2>(c, s, k->n_k_part);
    if (c->sm90) return router_sm90(c, s);
    dim3 grid(ceil_div(n_expert, MANY_ROWS), ceil_div(n_token, MANY_COLS), k->n_k_part);
    return cuda_launch(c, "router", router_many_kernel, grid, MANY_THREADS, MANY_BYTES, s);
}

fathom_err cuda_router(struct backend *b, const struct router_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_router(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_MOE && a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    struct choose_args k = {};
    k.score = c->router_score;
    k.bias = a->w->moe.bias;
    k.pitch = router_score_pitch(c->c.n_expert);
    k.n_expert = c->c.n_expert;
    k.n_group = c->c.n_group;
    k.topk_group = c->c.topk_group;
    k.n_used = c->c.n_expert_used;
    k.routed_scale = c->c.routed_scale;
    k.norm_topk = c->c.norm_topk;
    k.experts = a->route->i;
    k.weights = a->route->w;
    k.n_token = a->n_token;
    k.n_live = a->n_live;
    ASSERT(k.pitch >= k.n_expert && k.pitch <= CHOOSE_THREADS_MAX && k.pitch % WARP == 0);
    TRY(run_scores(c, a, &k));
    struct map_args m = {};
    c->map.route = NULL;
    if (a->n_token == 1 && k.n_used < WARP && c->ep.world == 0)
        m = moe_map_args(c, a->w, a->route, 1);
    if (chooses_many(k))
        return cuda_launch(c, "router", choose_many_kernel, dim3(ceil_div(k.n_token, CHOOSE_WARPS)),
                           CHOOSE_WARPS * WARP, 0, k);
    const auto choose = k.n_used == 8 ? choose_kernel<8> : choose_kernel<0>;
    return cuda_launch(c, "router", choose, dim3(a->n_token), k.pitch, 0, k, m);
}

fathom_err cuda_router_init(struct cuda_backend *c)
{
    static_assert(MANY_BYTES <= shared_limit(true), "shared memory of a block");
    const cudaFuncAttribute attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    CU_TRY(c, cudaFuncSetAttribute(router_few_kernel<1>, attribute, few_sizes<1>::BYTES), "create");
    CU_TRY(c, cudaFuncSetAttribute(router_few_kernel<2>, attribute, few_sizes<2>::BYTES), "create");
    CU_TRY(c, cudaFuncSetAttribute(router_many_kernel, attribute, MANY_BYTES), "create");
    return c->sm90 ? router_sm90_init(c) : FATHOM_OK;
}

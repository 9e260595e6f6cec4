/* absorb.cu - the absorbed queries of prompt rows on sm_90a: W_UK^T q, 128 to 512
 *
 * A block turns the weights of one head over into shared memory, before it waits for the query
 * product, and takes tile after tile of 128 tokens, 64 for each of two warpgroups: the 64-row
 * operand, rounded to bf16 on its way into registers. A warp of its own copies the next tile's
 * queries meanwhile. The 512 columns are made 128 at a time. */
#include "backend/cuda/sm90/absorb.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    GROUPS = 2, /* warpgroups that multiply */
    GROUP_THREADS = 4 * WARP,
    GROUP_WARPS = 4,
    THREADS = GROUPS * GROUP_THREADS + WARP,
    GROUP_TOKENS = 64,
    TOKENS = GROUPS * GROUP_TOKENS, /* of a tile */
    WARP_ROWS = 16,
    ROW_BYTES = 128,                  /* of a permuted tile */
    LINES = NOPE_DIM * 2 / ROW_BYTES, /* of 64 weights along K */
    LINE_STEPS = ROW_BYTES / 32,      /* products of K = 16 of such a line */
    K_STEPS = LINES * LINE_STEPS,     /* of a sum */
    COLS = 128,                       /* made at a time */
    COL_BLOCKS = KV_LATENT / COLS,
    QUERY_LINES = NOPE_DIM * 4 / ROW_BYTES, /* of 32 values of a query */
    QUERY_BYTES = GROUP_TOKENS * ROW_BYTES, /* of such a line for a warpgroup */
    OUT_PIECES = COLS * 2 / 16,
};

struct work {
    struct absorb_args a;
    uint32_t n_tile;
    CUtensorMap q_map;
};

struct stages {
    unsigned char w[LINES][KV_LATENT][ROW_BYTES];
    unsigned char q[GROUPS][QUERY_LINES][QUERY_BYTES];
    unsigned char out[GROUPS * GROUP_WARPS][WARP_ROWS]
                     [COLS * 2]; /* piece p of row r: p ^ (r & 7) */
    uint64_t full[GROUPS], empty[GROUPS];
};
static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");

/* The head's weights [128][512], as rows of 128 terms a column. A thread has two columns. */
static __device__ __forceinline__ void turn_weights(const struct work &w, struct stages *s)
{
    enum { PAIRS = KV_LATENT / 2, EIGHTS = NOPE_DIM / 8 };
    const uint32_t *from =
        (const uint32_t *)(w.a.kv_b + (size_t)blockIdx.x * KV_B_ROWS * KV_LATENT);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < PAIRS * EIGHTS; i += THREADS) {
        const uint32_t pair = i % PAIRS, eight = i / PAIRS, line = eight / 8, piece = eight % 8;
        uint32_t v[8];
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) v[k] = from[(eight * 8 + k) * PAIRS + pair];
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t col = 2 * pair + half;
            const uint32_t pick = half ? 0x7632 : 0x5410;
            *(uint4 *)(s->w[line][col] + ((piece ^ (col & 7)) << 4)) =
                make_uint4(__byte_perm(v[0], v[1], pick), __byte_perm(v[2], v[3], pick),
                           __byte_perm(v[4], v[5], pick), __byte_perm(v[6], v[7], pick));
        }
    }
    async_proxy_fence();
}

/* One lane's work. */
static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    uint32_t parity = 1;
    for (uint32_t tile = blockIdx.y; tile < w.n_tile; tile += gridDim.y, parity ^= 1) {
        for (uint32_t group = 0; group < GROUPS; group++) {
            const uint32_t full = smem_address(&s->full[group]);
            wait_phase(&s->empty[group], parity);
            mbarrier_arrive_expect(full, QUERY_LINES * QUERY_BYTES);
            for (uint32_t line = 0; line < QUERY_LINES; line++) {
                tensor_load(smem_address(s->q[group][line]), &w.q_map, full,
                            (int)(blockIdx.x * QUERY_DIM * 4 + line * ROW_BYTES),
                            (int)(tile * TOKENS + group * GROUP_TOKENS), 0);
            }
        }
    }
}

/* A warp's 16 queries as the 64-row operand. */
static __device__ __forceinline__ void load_queries(uint32_t (&v)[K_STEPS][4],
                                                    const struct stages *s, uint32_t group)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t row0 = threadIdx.x / WARP % GROUP_WARPS * WARP_ROWS + g;
#pragma unroll
    for (uint32_t k = 0; k < K_STEPS; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = row0 + i % 2 * 8, at = k % 2 * 16 + i / 2 * 8 + 2 * t;
            const uint32_t place = ((at / 4 ^ (row & 7)) << 4) + at % 4 * 4;
            const float2 x = *(const float2 *)(s->q[group][k / 2] + row * ROW_BYTES + place);
            v[k][i] = pack_bf16(x.x, x.y);
        }
    }
}

/* A warp's 16 rows of 128 columns from col0 on. */
static __device__ __forceinline__ void store_columns(const struct work &w, struct stages *s,
                                                     const float (&c)[64], uint32_t token0,
                                                     uint32_t col0)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    unsigned char(*out)[COLS * 2] = s->out[threadIdx.x / WARP];
    __syncwarp(); /* the columns before have been read */
#pragma unroll
    for (uint32_t j = 0; j < OUT_PIECES; j++) {
        const uint32_t at = ((j ^ g) << 4) + 4 * t;
        *(uint32_t *)(out[g] + at) = pack_bf16(c[4 * j], c[4 * j + 1]);
        *(uint32_t *)(out[g + 8] + at) = pack_bf16(c[4 * j + 2], c[4 * j + 3]);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < WARP_ROWS; i += WARP / OUT_PIECES) {
        const uint32_t row = i + lane / OUT_PIECES, piece = lane % OUT_PIECES;
        const uint32_t token = token0 + row;
        if (token >= w.a.n_token || w.a.pos[token] < w.a.skip_below) continue;
        bf16 *to = w.a.h + ((size_t)token * w.a.n_head + blockIdx.x) * KV_ROW + col0 + piece * 8;
        *(uint4 *)to = *(const uint4 *)(out[row] + ((piece ^ (row & 7)) << 4));
    }
}

static __device__ __forceinline__ void consume(const struct work &w, struct stages *s,
                                               uint32_t group)
{
    const uint32_t warp = threadIdx.x / WARP % GROUP_WARPS;
    const uint64_t weights = wgmma_operand(smem_address(s->w[0]));
    uint32_t parity = 0;
    for (uint32_t tile = blockIdx.y; tile < w.n_tile; tile += gridDim.y, parity ^= 1) {
        uint32_t v[K_STEPS][4];
        wait_phase(&s->full[group], parity);
        load_queries(v, s, group);
        __syncwarp();
        if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(&s->empty[group]));
        const uint32_t token0 = tile * TOKENS + group * GROUP_TOKENS + warp * WARP_ROWS;
#pragma unroll 1
        for (uint32_t block = 0; block < COL_BLOCKS; block++) {
            const uint64_t b = weights + (uint64_t)(block * (COLS * ROW_BYTES / 16));
            float c[64];
            wgmma_fence();
            wgmma_bf16_start(c, v[0], b);
#pragma unroll
            for (uint32_t k = 1; k < K_STEPS; k++) {
                wgmma_bf16_add(c, v[k],
                               b + k / LINE_STEPS * (KV_LATENT * ROW_BYTES / 16) +
                                   k % LINE_STEPS * 2);
            }
            wgmma_commit();
            wgmma_wait(c);
            store_columns(w, s, c, token0, block * COLS);
        }
    }
}

/* blockIdx.x: the head; y: the first tile, of which every gridDim.y-th is this block's */
__global__ void __launch_bounds__(THREADS, 1)
    absorb_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const uint32_t group = shfl(threadIdx.x / GROUP_THREADS, 0);
    dependency_release();
    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPS; i++) {
            mbarrier_init(smem_address(&s->full[i]), 1);
            mbarrier_init(smem_address(&s->empty[i]), GROUP_WARPS);
        }
        mbarrier_init_fence();
    }
    turn_weights(w, s);
    __syncthreads();
    dependency_wait();
    if (group < GROUPS) {
        consume(w, s, group);
    } else if (threadIdx.x % WARP == 0) {
        produce(w, s);
    }
#endif
}

fathom_err absorb_sm90(struct cuda_backend *c, const struct absorb_args &a)
{
    ASSERT(a.n_token >= 1 && a.n_query % 4 == 0 && c->limits.n_sm > 0);
    ASSERT((uintptr_t)a.h % 16 == 0 && (uintptr_t)a.kv_b % 16 == 0);
    const uint32_t row = a.n_query * 4;
    struct work w = {};
    w.a = a;
    w.n_tile = ceil_div(a.n_token, TOKENS);
    CU_TRY(c, make_map(&w.q_map, a.query, row, a.n_token, 1, (size_t)a.n_token * row, GROUP_TOKENS),
           "mla_front");
    const uint32_t room = c->limits.n_sm / a.n_head;
    const dim3 grid(a.n_head, w.n_tile < room ? w.n_tile : room > 0 ? room : 1);
    return cuda_launch(c, "mla_front", absorb_sm90_kernel, grid, THREADS, sizeof(struct stages), w);
}

cudaError_t absorb_sm90_init(void)
{
    return raise_shared(absorb_sm90_kernel, sizeof(struct stages));
}

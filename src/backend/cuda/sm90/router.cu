/* router.cu - the router's scores of many tokens on sm_90a
 *
 * A block makes one part of K of 128 experts for 128 tokens, a warpgroup 64 of them; of so few
 * tokens that it has no work for most of the device, of 64 experts for 64 tokens. Tokens are the
 * 64-row operand: each thread reads its values from shared memory, a K line ahead, and splits them
 * into planes in registers. Weights are the columns. K lines of both are in a ring of stages,
 * filled by tensor copies that a thread of the first warpgroup issues between its own products. */
#include "backend/cuda/sm90/router.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    GROUP_TOKENS = 64, /* of a warpgroup */
    GROUP_THREADS = 128,
    STEPS = K_LINE / 16,
};

/* A K line of values is two boxes of 128 bytes a token, permuted as operands are. */
enum { VALUE_BOXES = K_LINE * sizeof(float) / K_LINE_BYTES };
static_assert(VALUE_BOXES == 2 && STEPS % VALUE_BOXES == 0, "steps of a box");

/* A block's tile, and its ring: K lines are requested two less than stages before they are used, so
 * that one warp may lag behind the others. */
template <int EXPERTS_, int GROUPS_, int STAGES_> struct router_tile {
    enum {
        EXPERTS = EXPERTS_,
        GROUPS = GROUPS_, /* warpgroups */
        THREADS = GROUPS * GROUP_THREADS,
        TOKENS = GROUPS * GROUP_TOKENS,
        STAGES = STAGES_,
        AHEAD = STAGES - 2,
        SUMS = EXPERTS * GROUP_TOKENS / GROUP_THREADS, /* a thread's part of the tile */
    };
    static_assert(AHEAD >= 1 && EXPERTS <= (int)TENSOR_BOX_MAX && TOKENS <= (int)TENSOR_BOX_MAX,
                  "the ring");
    struct alignas(1024) stages {
        uint8_t w[STAGES][EXPERTS * K_LINE_BYTES];
        uint8_t x[STAGES][VALUE_BOXES][TOKENS * K_LINE_BYTES];
        uint64_t full[STAGES];
        uint64_t empty[STAGES];
    };
    static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");
};
typedef router_tile<64, 1, 8> small_tile;
typedef router_tile<128, 2, 4> large_tile;

struct router_work {
    CUtensorMap w_map, x_map;
    struct router_args_device a;
};

/* A thread's values of a K line: tokens g and g + 8 of the warp's 16, terms 16 j + 2 t + {0, 1} and
 * those 8 further. */
struct line_values {
    float2 v[STEPS][4];
};

template <typename TILE>
static __device__ __forceinline__ void load_values(struct line_values &x,
                                                   const typename TILE::stages *s, uint32_t stage)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t row = threadIdx.x / WARP * 16 + g;
#pragma unroll
    for (uint32_t j = 0; j < STEPS; j++) {
        const uint8_t *box = s->x[stage][j / (STEPS / VALUE_BOXES)] + row * K_LINE_BYTES;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t piece = j % (STEPS / VALUE_BOXES) * 4 + i / 2 * 2 + t / 2;
            x.v[j][i] = *(const float2 *)(box + i % 2 * 8 * K_LINE_BYTES +
                                          (piece ^ g) * PIECE_BYTES + t % 2 * 8);
        }
    }
}

/* Weights of K line l of the block's part, if there is such a one, and its values behind them. */
template <typename TILE>
static __device__ __forceinline__ void request_weights(const struct router_work &w,
                                                       typename TILE::stages *s, uint32_t l,
                                                       uint32_t first, uint32_t n)
{
    enum { STAGES = TILE::STAGES };
    const uint32_t stage = l % STAGES;
    if (l >= n) return;
    if (l >= STAGES) wait_phase(&s->empty[stage], (l / STAGES - 1) & 1);
    const uint32_t full = smem_address(&s->full[stage]);
    mbarrier_arrive_expect(full, sizeof s->w[0] + sizeof s->x[0]);
    tensor_load(smem_address(s->w[stage]), &w.w_map, full, (int)((first + l) * K_LINE_BYTES),
                (int)(blockIdx.x * TILE::EXPERTS), 0);
}

template <typename TILE>
static __device__ __forceinline__ void request_values(const struct router_work &w,
                                                      typename TILE::stages *s, uint32_t l,
                                                      uint32_t first, uint32_t n)
{
    const uint32_t stage = l % TILE::STAGES, full = smem_address(&s->full[stage]);
    if (l >= n) return;
#pragma unroll
    for (uint32_t i = 0; i < VALUE_BOXES; i++) {
        tensor_load(smem_address(s->x[stage][i]), &w.x_map, full,
                    (int)(((first + l) * VALUE_BOXES + i) * K_LINE_BYTES),
                    (int)(blockIdx.y * TILE::TOKENS), 0);
    }
}

/* c = a K line's products, term by term as router.cu's kernels make them. */
template <int SUMS>
static __device__ __forceinline__ void start_line(float (&c)[SUMS], const struct line_values &x,
                                                  uint64_t weight)
{
    uint32_t p[STEPS][PLANES][4];
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t planes[PLANES];
            split_planes(x.v[j][i].x, x.v[j][i].y, planes);
#pragma unroll
            for (int k = 0; k < PLANES; k++) p[j][k][i] = planes[k];
        }
    }
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
#pragma unroll
        for (int k = 0; k < PLANES; k++) {
            if (j == 0 && k == 0) {
                wgmma_bf16_start(c, p[j][k], weight);
            } else {
                wgmma_bf16_add(c, p[j][k], weight + (uint64_t)(2 * j));
            }
        }
    }
    wgmma_commit();
}

template <typename TILE>
static __device__ __forceinline__ void store_scores(const struct router_args_device &a,
                                                    const float (&sum)[TILE::SUMS], uint32_t token0)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t token = token0 + g + r * 8;
        if (token >= a.n_token) continue;
        float *to = score_row(a, blockIdx.z, token);
#pragma unroll
        for (uint32_t j = 0; j < TILE::EXPERTS / 8; j++) {
            const uint32_t e = blockIdx.x * TILE::EXPERTS + j * 8 + 2 * t;
            if (e < a.pitch)
                *(float2 *)(to + e) = make_float2(sum[4 * j + 2 * r], sum[4 * j + 2 * r + 1]);
        }
    }
}

template <typename TILE>
__global__ void __launch_bounds__(TILE::THREADS, 1)
    router_sm90_kernel(const __grid_constant__ struct router_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    enum { STAGES = TILE::STAGES, AHEAD = TILE::AHEAD, SUMS = TILE::SUMS };
    SHARED_DYNAMIC(unsigned char, shared);
    typename TILE::stages *s = (typename TILE::stages *)shared;
    const struct router_args_device &a = w.a;
    const uint32_t lane = threadIdx.x % WARP, first = blockIdx.z * K_PART_LINES;
    const uint32_t n = min((uint32_t)K_PART_LINES, a.w.n_col / K_LINE - first);
    const uint32_t token0 = blockIdx.y * TILE::TOKENS + threadIdx.x / WARP * 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), 1);
            mbarrier_init(smem_address(&s->empty[i]), TILE::THREADS / WARP);
        }
        mbarrier_init_fence();
        async_proxy_fence();
        for (uint32_t l = 0; l < AHEAD; l++) request_weights<TILE>(w, s, l, first, n);
    }
    __syncthreads();
    dependency_release();
    dependency_wait();
    if (threadIdx.x == 0) {
        for (uint32_t l = 0; l < AHEAD; l++) request_values<TILE>(w, s, l, first, n);
    }
    __syncwarp();
    const uint64_t weight = wgmma_operand(smem_address(s->w[0]));
    float sum[SUMS] = {};
    struct line_values x;
    wait_phase(&s->full[0], 0);
    load_values<TILE>(x, s, 0);
#pragma unroll 1
    for (uint32_t l = 0; l < n; l++) {
        float c[SUMS];
        const uint32_t stage = l % STAGES, next = (l + 1) % STAGES;
        if (threadIdx.x == 0) {
            request_weights<TILE>(w, s, l + AHEAD, first, n);
            request_values<TILE>(w, s, l + AHEAD, first, n);
        }
        __syncwarp();
        start_line(c, x, weight + stage * (sizeof s->w[0] >> 4));
        if (l + 1 < n) {
            wait_phase(&s->full[next], (l + 1) / STAGES & 1);
            load_values<TILE>(x, s, next);
        }
        wgmma_wait(c);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
#pragma unroll
        for (int j = 0; j < SUMS; j++) sum[j] += c[j];
    }
    store_scores<TILE>(a, sum, token0);
#endif
}

static dim3 tiles_of(const struct router_args_device &a, uint32_t n_expert, uint32_t n_token)
{
    return dim3(ceil_div(a.w.n_row, n_expert), ceil_div(a.n_token, n_token),
                router_k_part_count(a.w.n_col));
}

template <typename TILE>
static fathom_err launch(struct cuda_backend *c, const struct router_args_device &a)
{
    struct router_work w = {};
    const uint32_t n_byte = a.w.n_col * 2, row_bytes = a.w.n_col * (uint32_t)sizeof(float);
    ASSERT(a.w.dtype == DTYPE_BF16 && a.w.n_col % K_LINE == 0 && a.pitch % 2 == 0);
    CU_TRY(c,
           make_map(&w.w_map, a.w.data, n_byte, a.w.n_row, 1, (size_t)n_byte * a.w.n_row,
                    TILE::EXPERTS),
           "router");
    CU_TRY(c,
           make_map(&w.x_map, a.x, row_bytes, a.n_token, 1, (size_t)row_bytes * a.n_token,
                    TILE::TOKENS),
           "router");
    w.a = a;
    return cuda_launch(c, "router", router_sm90_kernel<TILE>,
                       tiles_of(a, TILE::EXPERTS, TILE::TOKENS), TILE::THREADS,
                       sizeof(typename TILE::stages), w);
}

fathom_err router_sm90(struct cuda_backend *c, const struct router_args_device &a)
{
    const dim3 small = tiles_of(a, small_tile::EXPERTS, small_tile::TOKENS);
    const bool at_once = small.x * small.y * small.z <= c->limits.n_sm;
    return at_once ? launch<small_tile>(c, a) : launch<large_tile>(c, a);
}

template <typename TILE> static fathom_err raise(struct cuda_backend *c)
{
    CU_TRY(c, raise_shared(router_sm90_kernel<TILE>, sizeof(typename TILE::stages)), "create");
    return FATHOM_OK;
}

fathom_err router_sm90_init(struct cuda_backend *c)
{
    TRY(raise<small_tile>(c));
    return raise<large_tile>(c);
}

/* value.cu - the heads' values of prompt rows on sm_90a: W_UV z, 512 to 128
 *
 * A block keeps the weights of one head in shared memory, asked for before the wait for attention,
 * and takes tile after tile of 128 tokens, 64 for each of two warpgroups. A warp of its own copies
 * latents ahead, 64 values of K at a time. A head's 128 outputs are one quantization group. */
#include "backend/cuda/sm90/value.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    GROUPS = 2, /* warpgroups that multiply */
    GROUP_THREADS = 4 * WARP,
    CONSUMER_WARPS = GROUPS * 4,
    THREADS = GROUPS * GROUP_THREADS + WARP,
    GROUP_TOKENS = 64,
    TOKENS = GROUPS * GROUP_TOKENS, /* of a tile */
    WARP_ROWS = 16,
    ROW_BYTES = 128,                     /* of a permuted tile */
    K_LINES = KV_LATENT * 2 / ROW_BYTES, /* of 64 values */
    K_STEPS = ROW_BYTES / 32,            /* products of K = 16 of a K line */
    LINE_BYTES = TOKENS * ROW_BYTES,     /* of latents, and of weights */
    STAGES = 5,
};
static_assert((int)V_DIM == (int)TOKENS, "boxes of weights and of latents are alike");
static_assert((int)V_DIM == (int)FP8_GROUP, "a head's outputs are one quantization group");

struct work {
    struct value_args a;
    uint32_t n_tile;
    CUtensorMap w_map, z_map;
};

struct stages {
    unsigned char w[K_LINES][LINE_BYTES];
    unsigned char z[STAGES][LINE_BYTES];
    unsigned char out[CONSUMER_WARPS][WARP_ROWS][V_DIM]; /* 16-byte piece p of row r: p ^ (r & 7) */
    uint64_t full[STAGES], empty[STAGES], weights;
};
static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");

/* One lane's work. */
static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    const int head = (int)blockIdx.x;
    uint32_t stage = 0, parity = 1;
    for (uint32_t tile = blockIdx.y; tile < w.n_tile; tile += gridDim.y) {
        for (int line = 0; line < K_LINES; line++) {
            const uint32_t full = smem_address(&s->full[stage]);
            wait_phase(&s->empty[stage], parity);
            mbarrier_arrive_expect(full, LINE_BYTES);
            tensor_load(smem_address(s->z[stage]), &w.z_map, full,
                        head * KV_LATENT * 2 + line * ROW_BYTES, (int)(tile * TOKENS), 0);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}

static __device__ __forceinline__ bool is_wanted(const struct work &w, uint32_t token)
{
    return token < w.a.n_token && !is_expanded(w.a.expanded, token, w.a.pos);
}

/* A warp's 16 rows as codes: rows g and g + 8 of c to shared memory, whole rows to their place. */
static __device__ __forceinline__ void store_codes(const struct work &w, struct stages *s,
                                                   const float (&c)[64], uint32_t token0)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    unsigned char(*out)[V_DIM] = s->out[threadIdx.x / WARP];
    __syncwarp(); /* the tile before has been read */
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        float amax = 0.0f;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float *two = c + 4 * j + 2 * half;
            amax = fmaxf(amax, fmaxf(fabsf(two[0]), fabsf(two[1])));
        }
        amax = fmaxf(amax, shfl_xor(amax, 1));
        const float scale = fp8_scale(fmaxf(amax, shfl_xor(amax, 2)));
        const float inverse = fp8_inverse(scale);
        const uint32_t row = g + 8 * half, token = token0 + row;
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            const float *two = c + 4 * j + 2 * half;
            *(uint16_t *)(out[row] + ((j / 2 ^ (row & 7)) << 4) + j % 2 * 8 + 2 * t) =
                float2_to_e4m3x2(two[0] * inverse, two[1] * inverse);
        }
        if (t == 0 && is_wanted(w, token))
            w.a.scale[(size_t)token * w.a.n_head + blockIdx.x] = scale;
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < WARP_ROWS; i += 4) {
        const uint32_t row = i + lane / 8, piece = lane % 8, token = token0 + row;
        if (!is_wanted(w, token)) continue;
        const size_t to = ((size_t)token * w.a.n_head + blockIdx.x) * V_DIM + piece * 16;
        *(uint4 *)(w.a.q + to) = *(const uint4 *)(out[row] + ((piece ^ (row & 7)) << 4));
    }
}

static __device__ __forceinline__ void store_values(const struct work &w, const float (&c)[64],
                                                    uint32_t token0)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t token = token0 + g + 8 * half;
        if (!is_wanted(w, token)) continue;
        const size_t at = ((size_t)token * w.a.n_head + blockIdx.x) * V_DIM + 2 * t;
        if (w.a.h) {
#pragma unroll
            for (uint32_t j = 0; j < 16; j++)
                *(uint32_t *)(w.a.h + at + 8 * j) =
                    pack_bf16(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
            continue;
        }
        float *to = w.a.f + at;
#pragma unroll
        for (uint32_t j = 0; j < 16; j++)
            *(float2 *)(to + 8 * j) = make_float2(c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
    }
}

static __device__ __forceinline__ void consume(const struct work &w, struct stages *s,
                                               uint32_t group)
{
    const uint32_t warp = threadIdx.x / WARP % 4;
    const bool elected = threadIdx.x % WARP == 0;
    const uint64_t weights = wgmma_operand(smem_address(s->w[0]));
    const uint64_t latents =
        wgmma_operand(smem_address(s->z[0]) + group * GROUP_TOKENS * ROW_BYTES);
    uint32_t stage = 0, parity = 0;
    wait_phase(&s->weights, 0);
    for (uint32_t tile = blockIdx.y; tile < w.n_tile; tile += gridDim.y) {
        float c[64];
#pragma unroll
        for (uint32_t line = 0; line < K_LINES; line++) {
            const uint64_t a = latents + (uint64_t)(stage * (LINE_BYTES / 16));
            const uint64_t b = weights + (uint64_t)(line * (LINE_BYTES / 16));
            wait_phase(&s->full[stage], parity);
            wgmma_fence();
            if (line == 0) {
                wgmma_bf16_start(c, a, b);
            } else {
                wgmma_bf16_add(c, a, b);
            }
#pragma unroll
            for (uint32_t k = 1; k < K_STEPS; k++) wgmma_bf16_add(c, a + 2 * k, b + 2 * k);
            wgmma_commit();
            wgmma_wait(c);
            __syncwarp();
            if (elected) mbarrier_arrive(smem_address(&s->empty[stage]));
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        const uint32_t token0 = tile * TOKENS + group * GROUP_TOKENS + warp * WARP_ROWS;
        if (w.a.q) {
            store_codes(w, s, c, token0);
        } else {
            store_values(w, c, token0);
        }
    }
}

/* blockIdx.x: the head; y: the first tile, of which every gridDim.y-th is this block's */
__global__ void __launch_bounds__(THREADS, 1)
    value_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const uint32_t group = shfl(threadIdx.x / GROUP_THREADS, 0);
    dependency_release();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        mbarrier_init(smem_address(&s->weights), 1);
        mbarrier_init_fence();
        async_proxy_fence();
        mbarrier_arrive_expect(smem_address(&s->weights), K_LINES * LINE_BYTES);
        for (int line = 0; line < K_LINES; line++) {
            tensor_load(smem_address(s->w[line]), &w.w_map, smem_address(&s->weights),
                        line * ROW_BYTES, (int)(blockIdx.x * KV_B_ROWS + NOPE_DIM), 0);
        }
    }
    __syncthreads();
    dependency_wait();
    if (group < GROUPS) {
        consume(w, s, group);
    } else if (threadIdx.x % WARP == 0) {
        produce(w, s);
    }
#endif
}

fathom_err value_sm90(struct cuda_backend *c, const struct value_args &a)
{
    ASSERT(a.n_token >= 1 && a.z_h && a.kv_b && c->limits.n_sm > 0);
    ASSERT(a.q ? a.scale != NULL && (uintptr_t)a.q % 16 == 0 : a.f != NULL);
    const uint32_t z_bytes = a.n_head * KV_LATENT * 2, w_bytes = KV_LATENT * 2;
    struct work w = {};
    w.a = a;
    w.n_tile = ceil_div(a.n_token, TOKENS);
    CU_TRY(c, make_map(&w.z_map, a.z_h, z_bytes, a.n_token, 1, (size_t)a.n_token * z_bytes, TOKENS),
           "mla_out");
    CU_TRY(c,
           make_map(&w.w_map, a.kv_b, w_bytes, a.n_head * KV_B_ROWS, 1,
                    (size_t)a.n_head * KV_B_ROWS * w_bytes, V_DIM),
           "mla_out");
    const uint32_t room = c->limits.n_sm / a.n_head;
    const dim3 grid(a.n_head, w.n_tile < room ? w.n_tile : room > 0 ? room : 1);
    return cuda_launch(c, "mla_out", value_sm90_kernel, grid, THREADS, sizeof(struct stages), w);
}

cudaError_t value_sm90_init(void)
{
    return raise_shared(value_sm90_kernel, sizeof(struct stages));
}

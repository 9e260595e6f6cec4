/* out_fast.cu - values of each head on the tensor cores, and those that attention has left
 *
 * A block keeps the 128 x 512 values of one head's W_UV in registers, loaded before it
 * waits for attention, and takes tile after tile of 16 tokens. A warp has 32 of the outputs (the
 * 16-row operand of two products) and a quarter of the 512 inputs; tokens are the 8-column operand.
 * The order of k inside a K line of 128 bytes is that of product_small.cu. Quarters are added in
 * ascending order, whatever the number of tokens; a head's 128 outputs are one quantization group.
 */
#include "backend/cuda/generic/out.cuh"
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/attend.cuh"
#include "backend/cuda/sm90/value.cuh"

enum {
    VALUE_WARPS = 16,
    VALUE_THREADS = VALUE_WARPS * WARP,
    VALUE_DIM = V_DIM,
    VALUE_K_PARTS = 4,                              /* of the inputs */
    VALUE_K_LINES = KV_LATENT / 64 / VALUE_K_PARTS, /* K lines of 64 values of a part */
    VALUE_TOKENS = VALUE_WARPS,                     /* of a tile: a warp writes one */
};
static_assert((int)VALUE_DIM == (int)FP8_GROUP, "a head's outputs are one quantization group");
static_assert(VALUE_WARPS == VALUE_K_PARTS * (VALUE_DIM / 32), "a warp: 32 outputs, a part of K");
static_assert(KV_LATENT / 64 % VALUE_K_PARTS == 0, "parts of equal length");

template <bool LEAN> struct value_shared {
    enum {
        STAGES = LEAN ? 2 : 3,
        PITCH = KV_LATENT * 2 + (LEAN ? 16 : 64), /* 64: rows side by side do not share banks */
    };
    unsigned char z[STAGES][VALUE_TOKENS][PITCH];
    float part[2][VALUE_K_PARTS][VALUE_TOKENS][VALUE_DIM + 4]; /* of two tiles */
    static_assert(PITCH % 16 == 0, "16 bytes are copied and read at once");
};

/* A warp's weights: two tiles of 16 outputs, rows g and g + 8 of each. */
struct value_weights {
    struct k_line_words v[2][VALUE_K_LINES][2];
};

static __device__ __forceinline__ void
load_weights(struct value_weights &w, const struct value_args &a, int row0, int k_part)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const size_t first = (size_t)blockIdx.x * KV_B_ROWS + NOPE_DIM;
    const char *from = (const char *)(a.kv_b + first * KV_LATENT);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const char *row = from + (size_t)(row0 + i * 8 + g) * KV_LATENT * 2 + 16 * t;
#pragma unroll
        for (int l = 0; l < VALUE_K_LINES; l++) {
            load_words(w.v[i / 2][l][i % 2], row + (size_t)(k_part * VALUE_K_LINES + l) * 128);
        }
    }
}

/* A tile's latents on their way to a stage, one group of copies; tokens beyond the end are zeros.
 */
template <bool LEAN>
static __device__ __forceinline__ void
fetch_tile(const struct value_args &a, struct value_shared<LEAN> *s, int stage, uint32_t tile)
{
    enum { PIECES = KV_LATENT * 2 / 16 };
    for (uint32_t i = threadIdx.x; i < VALUE_TOKENS * PIECES; i += VALUE_THREADS) {
        const uint32_t row = i / PIECES, piece = i % PIECES, token = tile * VALUE_TOKENS + row;
        const bool valid = token < a.n_token;
        const size_t from = ((size_t)(valid ? token : 0) * a.n_head + blockIdx.x) * KV_LATENT;
        cp_async_16(smem_address(s->z[stage][row]) + piece * 16, a.z_h + from + piece * 8, valid);
    }
}

/* A warp's 32 outputs and part of the inputs, for 8 tokens a group, to s->part[half] */
template <int GROUPS, bool LEAN>
static __device__ __forceinline__ void multiply_tile(struct value_shared<LEAN> *s, int stage,
                                                     int half, const struct value_weights &w,
                                                     int row0, int k_part)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float acc[2][GROUPS][4] = {};
#pragma unroll
    for (int l = 0; l < VALUE_K_LINES; l++) {
        struct k_line_words z[GROUPS];
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            load_words(z[i], s->z[stage][i * 8 + g] + (k_part * VALUE_K_LINES + l) * 128 + 16 * t);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < GROUPS * 2; i++) {
                const struct k_line_words &w0 = w.v[i % 2][l][0], &w1 = w.v[i % 2][l][1];
                mma_bf16(acc[i % 2][i / 2], w0.lo[j], w1.lo[j], w0.hi[j], w1.hi[j], z[i / 2].lo[j],
                         z[i / 2].hi[j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < GROUPS * 2; i++) {
        float *to = s->part[half][k_part][i / 2 * 8 + 2 * t] + row0 + i % 2 * 16 + g;
        const float *c = acc[i % 2][i / 2];
        to[0] = c[0];
        to[VALUE_DIM + 4] = c[1];
        to[8] = c[2];
        to[VALUE_DIM + 4 + 8] = c[3];
    }
}

/* The parts' sum of one token, a warp's 4 values a lane, as values or as codes */
template <bool LEAN>
static __device__ __forceinline__ void write_token(const struct value_args &a,
                                                   const struct value_shared<LEAN> *s, int half,
                                                   uint32_t i, uint32_t token)
{
    const int lane = (int)threadIdx.x % WARP;
    const size_t row = (size_t)token * a.n_head + blockIdx.x;
    DCHECK(i < VALUE_TOKENS && token < a.n_token);
    float v[4] = {};
#pragma unroll
    for (int k = 0; k < VALUE_K_PARTS; k++) {
        const float4 x = *(const float4 *)(s->part[half][k][i] + lane * 4);
        v[0] += x.x;
        v[1] += x.y;
        v[2] += x.z;
        v[3] += x.w;
    }
    if (a.h) {
        ((uint2 *)(a.h + row * VALUE_DIM))[lane] =
            make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
        return;
    }
    if (!a.q) {
        *(float4 *)(a.f + row * VALUE_DIM + (size_t)lane * 4) = *(const float4 *)v;
        return;
    }
    const float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    const float scale = fp8_scale(warp_max(amax));
    *(uint32_t *)(a.q + row * VALUE_DIM + (size_t)lane * 4) = pack_e4m3(v, scale);
    if (lane == 0) a.scale[row] = scale;
}

/* blockIdx.x: the head; y: the first tile, of which every gridDim.y-th is this block's */
template <int GROUPS, bool LEAN>
__global__ void __launch_bounds__(VALUE_THREADS, 1) value_kernel(const struct value_args a)
{
    enum { STAGES = value_shared<LEAN>::STAGES };
    SHARED_DYNAMIC(unsigned char, shared);
    struct value_shared<LEAN> *s = (struct value_shared<LEAN> *)shared;
    const int warp = (int)threadIdx.x / WARP, k_part = warp % VALUE_K_PARTS;
    const int row0 = warp / VALUE_K_PARTS * 32;
    const uint32_t n_tile = ceil_div(a.n_token, VALUE_TOKENS);
    struct value_weights w;
    dependency_release();
    load_weights(w, a, row0, k_part);
    dependency_wait();
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        const uint32_t tile = blockIdx.y + i * gridDim.y;
        if (tile < n_tile) fetch_tile(a, s, (int)i, tile);
        cp_async_commit();
    }
    /* a tile is written while the next one is multiplied */
    uint32_t before = n_tile;
    int stage = 0, half = 0;
    for (uint32_t tile = blockIdx.y; before < n_tile || tile < n_tile; tile += gridDim.y) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (tile < n_tile) {
            const uint32_t next = tile + (STAGES - 1) * gridDim.y;
            if (next < n_tile) fetch_tile(a, s, (stage + STAGES - 1) % STAGES, next);
            cp_async_commit();
            multiply_tile<GROUPS>(s, stage, half, w, row0, k_part);
        }
        const uint32_t token = before * VALUE_TOKENS + (uint32_t)warp;
        if (before < n_tile && token < a.n_token)
            write_token(a, s, half ^ 1, (uint32_t)warp, token);
        before = tile < n_tile ? tile : n_tile;
        stage = (stage + 1) % STAGES;
        half ^= 1;
    }
}

/* The same for up to 8 tokens whose latents attention has left as units: they are merged here, and
 * a head's weights are on their way before attention ends, whose last blocks take little room. */
enum { UNIT_PAIRS = KV_LATENT / 2 };
static_assert(VALUE_THREADS % UNIT_PAIRS == 0 && LEFT_TOKENS_MAX == 8, "a group of eight tokens");

__global__ void __launch_bounds__(VALUE_THREADS, 1)
    value_units_kernel(const struct value_args a, const struct attend_args u)
{
    SHARED_DYNAMIC(unsigned char, shared);
    struct value_shared<false> *s = (struct value_shared<false> *)shared;
    const uint32_t warp = threadIdx.x / WARP, pair = threadIdx.x % UNIT_PAIRS;
    const int k_part = (int)warp % VALUE_K_PARTS, row0 = (int)warp / VALUE_K_PARTS * 32;
    struct value_weights w;
    dependency_release();
    load_weights(w, a, row0, k_part);
    dependency_wait();
    for (uint32_t t = threadIdx.x / UNIT_PAIRS; t < LEFT_TOKENS_MAX;
         t += VALUE_THREADS / UNIT_PAIRS) {
        const uint32_t v = t < a.n_token ? merge_units(u, t, blockIdx.x, pair) : 0;
        *(uint32_t *)(s->z[0][t] + pair * 4) = v;
    }
    __syncthreads();
    multiply_tile<1>(s, 0, 0, w, row0, k_part);
    __syncthreads();
    if (warp < a.n_token) write_token(a, s, 0, warp, warp);
}

enum { TAKE_THREADS = 256, TAKE_AHEAD = 8 };

/* Half a warp's 8 values a lane of one head: its 128 outputs, as values or as codes. */
static __device__ __forceinline__ void take_head(const struct value_args &a, size_t row,
                                                 const uint4 &x, bool present)
{
    const uint32_t lane = threadIdx.x % (WARP / 2);
    if (a.h) {
        if (present) ((uint4 *)(a.h + row * VALUE_DIM))[lane] = x;
        return;
    }
    const float2 x0 = bf16x2_to_float2(x.x), x1 = bf16x2_to_float2(x.y);
    const float2 x2 = bf16x2_to_float2(x.z), x3 = bf16x2_to_float2(x.w);
    const float v[8] = {x0.x, x0.y, x1.x, x1.y, x2.x, x2.y, x3.x, x3.y};
    if (!a.q) {
        float4 *to = (float4 *)(a.f + row * VALUE_DIM) + lane * 2;
        if (!present) return;
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(v[i]));
#pragma unroll
    for (int d = WARP / 4; d > 0; d /= 2) amax = fmaxf(amax, shfl_xor(amax, d));
    const float scale = fp8_scale(amax);
    if (!present) return;
    ((uint2 *)(a.q + row * VALUE_DIM))[lane] =
        make_uint2(pack_e4m3(v, scale), pack_e4m3(v + 4, scale));
    if (lane == 0) a.scale[row] = scale;
}

/* Rows in expanded form: attention has left the heads' outputs. A block takes a token, a warp two
 * heads at a time, TAKE_AHEAD times as many read before the first is written. */
__global__ void __launch_bounds__(TAKE_THREADS) take_values_kernel(const struct value_args a)
{
    enum { STEP = TAKE_THREADS / WARP * 2 };
    const uint32_t token = blockIdx.x, half = threadIdx.x / (WARP / 2);
    kernel_begin();
    if (!is_expanded(a.expanded, token, a.pos)) return;
    const uint4 *from =
        (const uint4 *)(a.z_h + (size_t)token * a.n_head * KV_LATENT) + threadIdx.x % (WARP / 2);
    for (uint32_t head0 = half; head0 - half < a.n_head; head0 += STEP * TAKE_AHEAD) {
        uint4 x[TAKE_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < TAKE_AHEAD; i++) {
            const uint32_t head = head0 + i * STEP;
            x[i] = head < a.n_head ? from[head * (VALUE_DIM / 8)] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t i = 0; i < TAKE_AHEAD; i++) {
            const uint32_t head = head0 + i * STEP;
            if (head0 - half + i * STEP >= a.n_head) break; /* the same in the block */
            take_head(a, (size_t)token * a.n_head + head, x[i], head < a.n_head);
        }
    }
}

/* ---- launches ---- */

template <bool LEAN> static fathom_err raise_limits(struct cuda_backend *c)
{
    static_assert(sizeof(struct value_shared<LEAN>) <= shared_limit(LEAN),
                  "shared memory of a block");
    const size_t bytes = sizeof(struct value_shared<LEAN>);
    CU_TRY(c, gpu_raise_shared(value_kernel<1, LEAN>, bytes), "mla_out");
    CU_TRY(c, gpu_raise_shared(value_kernel<2, LEAN>, bytes), "mla_out");
    return FATHOM_OK;
}

/* Raises the kernels' shared memory limit; called once when a backend is created. */
fathom_err cuda_out_init(struct cuda_backend *c)
{
    if (!c->fast) return FATHOM_OK;
    if (c->sm90)
        CU_TRY(c, gpu_raise_shared(value_units_kernel, sizeof(struct value_shared<false>)),
               "mla_out");
    return c->lean ? raise_limits<true>(c) : raise_limits<false>(c);
}

template <bool LEAN>
static fathom_err launch_values(struct cuda_backend *c, const struct value_args &v, dim3 grid)
{
    return cuda_launch(c, "mla_out", v.n_token <= 8 ? value_kernel<1, LEAN> : value_kernel<2, LEAN>,
                       grid, VALUE_THREADS, sizeof(struct value_shared<LEAN>), v);
}

fathom_err values_of_units(struct cuda_backend *c, const struct value_args &v,
                           const struct left_units &left)
{
    struct attend_args u = {};
    ASSERT(c->sm90 && v.kv_b && v.n_token <= LEFT_TOKENS_MAX);
    u.pos = left.pos;
    u.slots = left.slots;
    u.counts = left.counts;
    u.topk = left.topk;
    u.n_head = v.n_head;
    u.kv.type = c->c.kv.type;
    u.part_out = c->part_out;
    u.part_stat = c->part_stat;
    u.n_part = left.n_part;
    return cuda_launch(c, "mla_out", value_units_kernel, dim3(v.n_head), VALUE_THREADS,
                       sizeof(struct value_shared<false>), v, u);
}

fathom_err values_fast(struct cuda_backend *c, const struct value_args &v)
{
    const uint32_t n_tile = ceil_div(v.n_token, VALUE_TOKENS);
    const uint32_t room = (uint32_t)c->properties.multiProcessorCount / v.n_head;
    const dim3 grid(v.n_head, n_tile < room ? n_tile : room > 0 ? room : 1);
    return c->lean ? launch_values<true>(c, v, grid) : launch_values<false>(c, v, grid);
}

fathom_err values_of_prompts(struct cuda_backend *c, struct value_args v, uint32_t n_token,
                             bool there, bool some_absorbed)
{
    const size_t row = (size_t)v.n_token * v.n_head;
    ASSERT(n_token <= INT32_MAX);
    v.z_h += row * KV_LATENT;
    v.f += row * VALUE_DIM;
    if (v.h) v.h += row * VALUE_DIM;
    if (v.q) {
        v.q += row * VALUE_DIM;
        v.scale += row;
    }
    v.pos += v.n_token;
    v.expanded.first = 0;
    v.n_token = n_token;
    if (!there)
        TRY(cuda_launch(c, "mla_out", take_values_kernel, dim3(n_token), TAKE_THREADS, 0, v));
    return some_absorbed ? value_sm90(c, v) : FATHOM_OK;
}

/* front.cu - mla_front: projections, norms, rope, cache rows, absorbed queries, index queries
 *
 * Two launches beside the products. front_kernel: norms, what goes to the cache. query_kernel: the
 * query's latent part through W_UK, on tensor cores, with weights that were loaded before the wait
 * for the products; its rotary part; the index queries. For many tokens the first of these three
 * has a launch of its own, whose blocks keep a whole head's weights and take tile after tile of
 * tokens. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"

enum {
    THREADS = 256,
    QA_STEPS = FRONT_LORA_MAX / (THREADS * 4), /* of a thread, through the query latent */
    LATENT_WARPS = 4,
    ABSORB_FEW_MAX = 64, /* tokens up to which one launch makes the queries */
};

/* A pair by the angle whose sine and cosine are s and c */
static __device__ __forceinline__ void turn(float &a, float &b, float s, float c)
{
    float x = a * c - b * s;
    b = a * s + b * c;
    a = x;
}

/* The same by an angle in f32 */
static __device__ __forceinline__ void rotate(float &a, float &b, float angle)
{
    float s, c;
    sincosf(angle, &s, &c);
    turn(a, b, s, c);
}

struct front_args {
    const float *front; /* [T][n_front] */
    uint32_t n_front, index_row, kv_row, q_lora;
    const float *q_norm, *kv_norm, *index_weight, *index_bias;
    float *qa_f;   /* NULL: nobody takes values */
    uint8_t *qa_q; /* NULL: nobody takes codes */
    float *qa_scale;
    const int32_t *pos, *slot;
    struct kv_layer kv;
    float freq[KV_ROPE / 2];
    bool interleaved, index_interleaved, has_index;
    float eps;
};

/* Quantizes 128 values, 4 a lane of one warp; codes and scale where they are told. */
static __device__ __forceinline__ void quantize_warp(const float v[4], uint8_t *q, float *scale)
{
    const int lane = (int)threadIdx.x % WARP;
    float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    float s = fp8_scale(warp_max(amax));
    *(uint32_t *)(q + lane * 4) = pack_e4m3(v, s);
    if (lane == 0) *scale = s;
}

/* 128-point Walsh-Hadamard transform over sqrt(128), natural order: 4 values a lane, element
 * 4 * lane + i. */
static __device__ __forceinline__ void hadamard(float v[4])
{
    const int lane = (int)threadIdx.x % WARP;
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (int m = 1; m < WARP; m <<= 1) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float other = shfl_xor(v[i], m);
            v[i] = lane & m ? other - v[i] : v[i] + other;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= 0.08838834764831845f;
}

/* The indexer's rope: on the first 64 of 128, values in shared memory, one warp. */
static __device__ __forceinline__ void index_rope(float *v, const float *freq, bool interleaved,
                                                  int position)
{
    int i = (int)threadIdx.x % WARP;
    int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + KV_ROPE / 2;
    rotate(v[a], v[b], (float)position * freq[i]);
}

/* One warp; `k` holds 128 of it. */
static __device__ __forceinline__ void front_index_key(const struct front_args &a, float *k)
{
    const int lane = (int)threadIdx.x % WARP;
    const float4 weight = ((const float4 *)a.index_weight)[lane];
    const float4 bias = ((const float4 *)a.index_bias)[lane];
    dependency_wait();
    const int position = a.pos[blockIdx.x], slot = a.slot[blockIdx.x];
    const float *row = a.front + (size_t)blockIdx.x * a.n_front + a.index_row;
    float v[4], square = 0.0f;
    *(float4 *)v = ((const float4 *)row)[lane];
    __syncthreads(); /* that of front_latent, which the other warps run */
    float mean = warp_sum(v[0] + v[1] + v[2] + v[3]) / KV_INDEX_DIM;
    for (int i = 0; i < 4; i++) square += (v[i] - mean) * (v[i] - mean);
    float r = rsqrtf(warp_sum(square) / KV_INDEX_DIM + 1e-6f);
    k[lane * 4] = (v[0] - mean) * r * weight.x + bias.x;
    k[lane * 4 + 1] = (v[1] - mean) * r * weight.y + bias.y;
    k[lane * 4 + 2] = (v[2] - mean) * r * weight.z + bias.z;
    k[lane * 4 + 3] = (v[3] - mean) * r * weight.w + bias.w;
    __syncwarp();
    index_rope(k, a.freq, a.index_interleaved, position);
    __syncwarp();
    for (int i = 0; i < 4; i++) v[i] = k[lane * 4 + i];
    hadamard(v);
    char *block = a.kv.index + (size_t)(slot / KV_PAGE_TOKENS) * a.kv.page_bytes;
    int j = slot % KV_PAGE_TOKENS;
    if (a.kv.type == KV_TYPE_F32) {
        ((float4 *)block)[j * (KV_INDEX_DIM / 4) + lane] = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        quantize_warp(v, (uint8_t *)block + j * KV_INDEX_DIM,
                      (float *)(block + KV_INDEX_SCALES_OFFSET) + j);
    }
}

/* The block's norm of the query latent, and its codes, a group of 128 a warp. */
static __device__ __forceinline__ void front_query(const struct front_args &a, float *scratch)
{
    const uint32_t lane = threadIdx.x % WARP;
    float v[QA_STEPS][4] = {}, weight[QA_STEPS][4], sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        if (at < a.q_lora) *(float4 *)weight[i] = *(const float4 *)(a.q_norm + at);
    }
    dependency_wait();
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        const float *row = a.front + (size_t)blockIdx.x * a.n_front;
        if (at < a.q_lora) *(float4 *)v[i] = *(const float4 *)(row + at);
#pragma unroll
        for (int j = 0; j < 4; j++) sum += v[i][j] * v[i][j];
    }
    const float r = rsqrtf(block_sum(sum, scratch) / (float)a.q_lora + a.eps);
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        if (at >= a.q_lora) break;
#pragma unroll
        for (int j = 0; j < 4; j++) v[i][j] *= r * weight[i][j];
        const size_t to = (size_t)blockIdx.x * a.q_lora + at;
        if (a.qa_f) *(float4 *)(a.qa_f + to) = *(const float4 *)v[i];
        if (a.qa_q) quantize_warp(v[i], a.qa_q + to - lane * 4, a.qa_scale + to / 128);
    }
}

/* Four values of a cache row that has no codes. */
static __device__ __forceinline__ void store_four(const struct kv_layer &l, char *row, int at,
                                                  const float v[4])
{
    if (l.type == KV_TYPE_F32) {
        *(float4 *)((float *)row + at) = *(const float4 *)v;
    } else {
        *(uint2 *)((__nv_bfloat16 *)row + at) =
            make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
}

/* The rotary key of the row, one warp, a pair a lane. */
static __device__ __forceinline__ void front_rotary(const struct front_args &a, char *row)
{
    const int lane = (int)threadIdx.x % WARP;
    const int one = a.interleaved ? 2 * lane : lane;
    const int two = a.interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2;
    const float *from = a.front + (size_t)blockIdx.x * a.n_front + a.kv_row + KV_LATENT;
    float u = from[one], v = from[two];
    rotate(u, v, (float)a.pos[blockIdx.x] * a.freq[lane]);
    if (a.kv.type == KV_TYPE_F32) {
        ((float *)row)[KV_LATENT + one] = u;
        ((float *)row)[KV_LATENT + two] = v;
    } else {
        __nv_bfloat16 *to =
            (__nv_bfloat16 *)row + (a.kv.type == KV_TYPE_FP8 ? KV_FP8_ROPE_OFFSET / 2 : KV_LATENT);
        to[one] = __float2bfloat16_rn(u);
        to[two] = __float2bfloat16_rn(v);
    }
}

/* Norm of the latent, four warps; its group of 128 codes a warp. The fifth turns the rotary key. */
static __device__ __forceinline__ void front_latent(const struct front_args &a, float *scratch)
{
    static_assert(KV_LATENT / 128 == LATENT_WARPS && KV_FP8_GROUP == 128, "a group a warp");
    const int warp = (int)threadIdx.x / WARP, at = (int)threadIdx.x * 4;
    float v[4] = {}, weight[4] = {};
    if (warp < LATENT_WARPS) *(float4 *)weight = *(const float4 *)(a.kv_norm + at);
    dependency_wait();
    const float *from = a.front + (size_t)blockIdx.x * a.n_front + a.kv_row;
    if (warp < LATENT_WARPS) *(float4 *)v = *(const float4 *)(from + at);
    float sum = warp_sum(v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]);
    if (threadIdx.x % WARP == 0) scratch[warp] = sum;
    __syncthreads();
    char *row = kv_row(a.kv, a.slot[blockIdx.x]);
    if (warp == LATENT_WARPS) front_rotary(a, row);
    if (warp >= LATENT_WARPS) return;
    sum = scratch[0];
    for (int i = 1; i < LATENT_WARPS; i++) sum += scratch[i];
    const float r = rsqrtf(sum / KV_LATENT + a.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= r * weight[i];
    if (a.kv.type != KV_TYPE_FP8) {
        store_four(a.kv, row, at, v);
    } else {
        quantize_warp(v, (uint8_t *)row + warp * KV_FP8_GROUP,
                      (float *)(row + KV_FP8_SCALES_OFFSET) + warp);
    }
}

/* Two blocks a token: the query latent; the cache's rows, of which the last warp makes the index
 * key. */
__global__ void __launch_bounds__(THREADS) front_kernel(const struct front_args a)
{
    __shared__ float scratch[THREADS / WARP + 1], key[KV_INDEX_DIM];
    dependency_release();
    if (blockIdx.y == 0) {
        front_query(a, scratch);
    } else if (threadIdx.x < THREADS - WARP) {
        front_latent(a, scratch);
    } else if (a.has_index) {
        front_index_key(a, key);
    }
}

/* ---- queries ---- */

struct query_args {
    const float *query; /* [T][n_query]: heads of 192, then index heads of 128 */
    uint32_t n_query, n_head, n_token;
    const __nv_bfloat16 *kv_b; /* fast path: [H][256][512], the keys' rows first */
    const float *kv_b_f;       /* float path */
    const int32_t *pos;
    float freq[KV_ROPE / 2];
    bool interleaved, index_interleaved, quantize;
    __nv_bfloat16 *h; /* [T][n_head][576], fast path */
    float *f;
    uint32_t n_index_head;    /* 0: no index queries */
    const float *head_weight; /* [T][n_index_head], raw */
    float weight_scale;       /* n_index_head^-1/2 * 128^-1/2 */
    uint8_t *index_q;         /* codes, fast path */
    float *index_f;           /* values (codes when quantizing), float path */
    float *index_weight;      /* [T][n_index_head], written */
    uint32_t n_absorb;        /* blocks of query_kernel that absorb; the others turn */
    uint32_t n_each;          /* heads that a warp turns, at most TURN_HEADS */
};

static __device__ __forceinline__ void store_query(const struct query_args &a, size_t at, float v)
{
    if (a.h) {
        a.h[at] = __float2bfloat16_rn(v);
    } else {
        a.f[at] = v;
    }
}

enum { NOPE = 128, HEAD = NOPE + KV_ROPE };

/* How W_UK^T q_nope is cut: a block has COLS of a head's 512 columns, as RT tiles of 16 (the
 * 16-row operand) a warp; tokens are the 8-column one. The sum of a value is one chain over the 128
 * terms whatever the cut. */
template <int WARPS_, int RT_, int GROUPS_> struct absorb_shape {
    enum {
        WARPS = WARPS_,
        RT = RT_,
        GROUPS = GROUPS_,
        THREADS = WARPS * WARP,
        COLS = WARPS * RT * 16,
        BLOCKS = KV_LATENT / COLS, /* of a head */
        TOKENS = GROUPS * 8,       /* of a tile */
        LOADS = TOKENS * NOPE / 4 / THREADS,
    };
    /* rows are padded so that eight of them lie in different banks */
    struct shared {
        unsigned char w[NOPE][COLS * 2 + 16];
        unsigned char q[TOKENS][NOPE * 2 + 16];
        unsigned char out[TOKENS][COLS * 2 + 16];
    };
};

typedef absorb_shape<4, 1, 1> absorb_few;
typedef absorb_shape<16, 2, 2> absorb_many;

/* The block's weights, by way of shared memory: 16 columns times 16 terms a product. */
template <typename SHAPE>
static __device__ __forceinline__ void
load_absorb(uint32_t (&w)[SHAPE::RT][NOPE / 16][4], const struct query_args &a,
            typename SHAPE::shared *s, uint32_t head, uint32_t col0)
{
    enum { PIECES = SHAPE::COLS * 2 / 16 };
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const __nv_bfloat16 *from = a.kv_b + (size_t)head * 2 * NOPE * KV_LATENT + col0;
    for (uint32_t i = threadIdx.x; i < NOPE * PIECES; i += SHAPE::THREADS) {
        const uint32_t row = i / PIECES, piece = i % PIECES;
        cp_async_16(smem_address(s->w[row]) + piece * 16,
                    from + (size_t)row * KV_LATENT + piece * 8, true);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SHAPE::RT; r++) {
#pragma unroll
        for (int k = 0; k < NOPE / 16; k++) {
            const int row = k * 16 + lane / 16 * 8 + lane % 8;
            const int col = (warp * SHAPE::RT + r) * 16 + lane / 8 % 2 * 8;
            ldmatrix_x4_trans(w[r][k], smem_address(s->w[row]) + (uint32_t)col * 2);
        }
    }
}

/* This thread's values of a tile of queries; tokens beyond the end are zeros. */
template <typename SHAPE>
static __device__ __forceinline__ void
load_queries(float4 (&q)[SHAPE::LOADS], const struct query_args &a, uint32_t head, uint32_t tile)
{
#pragma unroll
    for (int i = 0; i < SHAPE::LOADS; i++) {
        const uint32_t at = (uint32_t)i * SHAPE::THREADS + threadIdx.x, four = at % (NOPE / 4);
        const uint32_t token = tile * SHAPE::TOKENS + at / (NOPE / 4);
        q[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (token >= a.n_token) continue;
        q[i] = *(const float4 *)(a.query + (size_t)token * a.n_query + head * HEAD + four * 4);
    }
}

template <typename SHAPE>
static __device__ __forceinline__ void store_queries(const float4 (&q)[SHAPE::LOADS],
                                                     typename SHAPE::shared *s)
{
#pragma unroll
    for (int i = 0; i < SHAPE::LOADS; i++) {
        const uint32_t at = (uint32_t)i * SHAPE::THREADS + threadIdx.x, four = at % (NOPE / 4);
        *(uint2 *)(s->q[at / (NOPE / 4)] + four * 8) =
            make_uint2(pack_bf16(q[i].x, q[i].y), pack_bf16(q[i].z, q[i].w));
    }
}

/* A tile's products, rounded to bf16, to s->out */
template <typename SHAPE>
static __device__ __forceinline__ void absorb_tile(const uint32_t (&w)[SHAPE::RT][NOPE / 16][4],
                                                   typename SHAPE::shared *s)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int g = lane / 4, t = lane % 4;
    float acc[SHAPE::RT][SHAPE::GROUPS][4] = {};
#pragma unroll
    for (int k = 0; k < NOPE / 16; k += 2) {
#pragma unroll
        for (int i = 0; i < SHAPE::GROUPS; i++) {
            uint32_t q[4];
            ldmatrix_x4(q, smem_address(s->q[i * 8 + lane % 8]) +
                               (uint32_t)(k * 16 + lane / 8 * 8) * 2);
#pragma unroll
            for (int r = 0; r < SHAPE::RT * 2; r++) {
                const uint32_t(&x)[4] = w[r % SHAPE::RT][k + r / SHAPE::RT];
                const int half = r / SHAPE::RT * 2;
                mma_bf16(acc[r % SHAPE::RT][i], x[0], x[1], x[2], x[3], q[half], q[half + 1]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < SHAPE::RT; r++) {
#pragma unroll
        for (int i = 0; i < SHAPE::GROUPS; i++) {
            const int col = (warp * SHAPE::RT + r) * 16 + g;
            __nv_bfloat16 *to = (__nv_bfloat16 *)s->out[i * 8 + 2 * t] + col;
            __nv_bfloat16 *next = (__nv_bfloat16 *)s->out[i * 8 + 2 * t + 1] + col;
            to[0] = __float2bfloat16_rn(acc[r][i][0]);
            next[0] = __float2bfloat16_rn(acc[r][i][1]);
            to[8] = __float2bfloat16_rn(acc[r][i][2]);
            next[8] = __float2bfloat16_rn(acc[r][i][3]);
        }
    }
}

/* Block number i of those that absorb: columns of a head, and every n-th tile of tokens. Waits for
 * the kernel before once its weights are there. */
template <typename SHAPE>
static __device__ __forceinline__ void absorb_block(const struct query_args &a, uint32_t i)
{
    enum { PIECES = SHAPE::COLS * 2 / 16 };
    SHARED_DYNAMIC(unsigned char, shared);
    typename SHAPE::shared *s = (typename SHAPE::shared *)shared;
    const uint32_t col0 = i % SHAPE::BLOCKS * SHAPE::COLS, head = i / SHAPE::BLOCKS % a.n_head;
    const uint32_t step = a.n_absorb / (SHAPE::BLOCKS * a.n_head);
    const uint32_t n_tile = ceil_div(a.n_token, SHAPE::TOKENS);
    uint32_t w[SHAPE::RT][NOPE / 16][4];
    float4 q[SHAPE::LOADS];
    load_absorb<SHAPE>(w, a, s, head, col0);
    dependency_wait();
    uint32_t tile = i / (SHAPE::BLOCKS * a.n_head);
    load_queries<SHAPE>(q, a, head, tile);
    for (; tile < n_tile; tile += step) {
        store_queries<SHAPE>(q, s);
        __syncthreads();
        load_queries<SHAPE>(q, a, head, tile + step);
        absorb_tile<SHAPE>(w, s);
        __syncthreads();
        for (uint32_t k = threadIdx.x; k < SHAPE::TOKENS * PIECES; k += SHAPE::THREADS) {
            const uint32_t row = k / PIECES, piece = k % PIECES;
            const uint32_t token = tile * SHAPE::TOKENS + row;
            if (token >= a.n_token) break;
            const size_t to = ((size_t)token * a.n_head + head) * KV_ROW + col0 + piece * 8;
            *(uint4 *)(a.h + to) = *(const uint4 *)(s->out[row] + piece * 16);
        }
    }
}

enum { TURN_HEADS = 4, TURN_WARPS = absorb_few::WARPS };

/* Rope's angles of one token: lane i has pair i's. */
struct angles {
    float s, c;
};

static __device__ __forceinline__ struct angles angles_at(const struct query_args &a,
                                                          uint32_t token)
{
    struct angles x;
    sincosf((float)a.pos[token] * a.freq[threadIdx.x % WARP], &x.s, &x.c);
    return x;
}

/* The rotary part of an attention query: this lane's pair. */
static __device__ __forceinline__ void turn_head(const struct query_args &a, float2 v,
                                                 const struct angles &x, uint32_t token,
                                                 uint32_t head)
{
    const uint32_t lane = threadIdx.x % WARP;
    const size_t to = ((size_t)token * a.n_head + head) * KV_ROW + KV_LATENT;
    turn(v.x, v.y, x.s, x.c);
    store_query(a, to + (a.interleaved ? 2 * lane : lane), v.x);
    store_query(a, to + (a.interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2), v.y);
}

/* An index query: rope, Hadamard, codes; its weight takes the scale. Lane i has values 4 i to
 * 4 i + 3; `values` holds 128 of the warp. */
static __device__ __forceinline__ void turn_index_head(const struct query_args &a, float4 from,
                                                       const struct angles &x, float *values,
                                                       uint32_t token, uint32_t head)
{
    const int lane = (int)threadIdx.x % WARP;
    const size_t row = (size_t)token * a.n_index_head + head;
    const int one = a.index_interleaved ? 2 * lane : lane;
    const int two = a.index_interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2;
    *(float4 *)(values + lane * 4) = from;
    __syncwarp();
    turn(values[one], values[two], x.s, x.c);
    __syncwarp();
    float v[4], scale = 1.0f;
    *(float4 *)v = *(const float4 *)(values + lane * 4);
    __syncwarp(); /* read, so the next head may come */
    hadamard(v);
    if (a.quantize) {
        float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
        scale = fp8_scale(warp_max(amax));
    }
    const size_t at = row * KV_INDEX_DIM + (size_t)lane * 4;
    const uint32_t codes = pack_e4m3(v, scale);
    if (a.index_q) *(uint32_t *)(a.index_q + at) = codes;
    for (int i = 0; a.index_f && i < 4; i++) {
        a.index_f[at + (size_t)i] = a.quantize ? e4m3_to_float((uint8_t)(codes >> 8 * i)) : v[i];
    }
    if (lane == 0) a.index_weight[row] = a.head_weight[row] * a.weight_scale * scale;
}

/* Warp number i of those that turn: up to TURN_HEADS heads, of attention and then of the index,
 * token by token. */
static __device__ __forceinline__ void turn_heads(const struct query_args &a, uint32_t i)
{
    __shared__ float values[TURN_WARPS][KV_INDEX_DIM];
    const uint32_t lane = threadIdx.x % WARP, n_unit = a.n_head + a.n_index_head;
    const uint32_t first = i * a.n_each, end = min(first + a.n_each, a.n_token * n_unit);
    float4 v[TURN_HEADS];
#pragma unroll
    for (uint32_t k = 0; k < TURN_HEADS; k++) {
        const uint32_t token = (first + k) / n_unit, unit = (first + k) % n_unit;
        if (first + k >= end) break;
        const float *row = a.query + (size_t)token * a.n_query;
        if (unit < a.n_head) {
            const float *from = row + unit * HEAD + NOPE;
            v[k].x = from[a.interleaved ? 2 * lane : lane];
            v[k].y = from[a.interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2];
        } else {
            const uint32_t at = a.n_head * HEAD + (unit - a.n_head) * KV_INDEX_DIM;
            v[k] = *(const float4 *)(row + at + lane * 4);
        }
    }
    struct angles x = {};
    uint32_t angles_of = UINT32_MAX;
#pragma unroll
    for (uint32_t k = 0; k < TURN_HEADS; k++) {
        const uint32_t token = (first + k) / n_unit, unit = (first + k) % n_unit;
        if (first + k >= end) break;
        if (token != angles_of) x = angles_at(a, token);
        angles_of = token;
        if (unit < a.n_head) {
            turn_head(a, make_float2(v[k].x, v[k].y), x, token, unit);
        } else {
            turn_index_head(a, v[k], x, values[threadIdx.x / WARP], token, unit - a.n_head);
        }
    }
}

/* Few tokens: everything that follows the query products. Many: the rotary parts and index queries
 * alone. */
__global__ void __launch_bounds__(absorb_few::THREADS) query_kernel(const struct query_args a)
{
    dependency_release();
    if (blockIdx.x < a.n_absorb) {
        absorb_block<absorb_few>(a, blockIdx.x);
    } else {
        dependency_wait();
        turn_heads(a, (blockIdx.x - a.n_absorb) * TURN_WARPS + threadIdx.x / WARP);
    }
}

__global__ void __launch_bounds__(absorb_many::THREADS, 1)
    absorb_many_kernel(const struct query_args a)
{
    dependency_release();
    absorb_block<absorb_many>(a, blockIdx.x);
}

enum { FLOAT_TOKENS = 8, FLOAT_COLS = 64, FLOAT_SLICES = THREADS / (FLOAT_COLS / 2) };

/* Float path. Block: 64 columns of one head, up to 8 tokens; a thread sums 16 of the 128 terms of
 * two columns, and the 8 sums are added in ascending order. */
__global__ void __launch_bounds__(THREADS) absorb_float_kernel(const struct query_args a)
{
    enum { TERMS = NOPE / FLOAT_SLICES };
    __shared__ float q[FLOAT_TOKENS][NOPE], part[FLOAT_SLICES][FLOAT_TOKENS][FLOAT_COLS];
    const uint32_t head = blockIdx.x, col0 = blockIdx.y * FLOAT_COLS,
                   t0 = blockIdx.z * FLOAT_TOKENS;
    const uint32_t n = min((uint32_t)FLOAT_TOKENS, a.n_token - t0);
    const int slice = (int)threadIdx.x / (FLOAT_COLS / 2),
              pair = (int)threadIdx.x % (FLOAT_COLS / 2);
    kernel_begin();
    for (uint32_t i = threadIdx.x; i < FLOAT_TOKENS * NOPE; i += THREADS) {
        uint32_t t = i / NOPE, d = i % NOPE;
        q[t][d] = t < n ? a.query[(size_t)(t0 + t) * a.n_query + head * HEAD + d] : 0.0f;
    }
    __syncthreads();
    float2 sum[FLOAT_TOKENS] = {};
    for (int i = slice * TERMS; i < (slice + 1) * TERMS; i++) {
        size_t at = ((size_t)head * 2 * NOPE + (size_t)i) * KV_LATENT + col0 + (size_t)pair * 2;
        const float2 w = *(const float2 *)(a.kv_b_f + at);
#pragma unroll
        for (int t = 0; t < FLOAT_TOKENS; t++) {
            sum[t].x = fmaf(q[t][i], w.x, sum[t].x);
            sum[t].y = fmaf(q[t][i], w.y, sum[t].y);
        }
    }
#pragma unroll
    for (int t = 0; t < FLOAT_TOKENS; t++) {
        part[slice][t][pair * 2] = sum[t].x;
        part[slice][t][pair * 2 + 1] = sum[t].y;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * FLOAT_COLS; i += THREADS) {
        uint32_t t = i / FLOAT_COLS, col = i % FLOAT_COLS;
        float all = 0.0f;
#pragma unroll
        for (int k = 0; k < FLOAT_SLICES; k++) all += part[k][t][col];
        a.f[((size_t)(t0 + t) * a.n_head + head) * KV_ROW + col0 + col] = all;
    }
}

static bool takes_codes_alone(const struct cuda_backend *c, const struct matrix_list *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (!cuda_wants_fp8(c, &l->part[i])) return false;
    }
    return true;
}

static fathom_err run_front(struct cuda_backend *c, const struct mla_front_args *a)
{
    const struct weight *w = a->w;
    struct front_args f = {};
    f.front = c->front;
    f.n_front = w->mla.front.n_row;
    f.index_row = w->mla.index_row;
    f.kv_row = w->mla.kv_row;
    f.q_lora = c->c.q_lora_rank;
    f.q_norm = w->mla.q_norm;
    f.kv_norm = w->mla.kv_norm;
    f.index_weight = w->mla.index_weight;
    f.index_bias = w->mla.index_bias;
    f.qa_q = cuda_wants_fp8(c, &w->mla.query.part[0]) ? c->qa_q : NULL;
    f.qa_f = takes_codes_alone(c, &w->mla.query) ? NULL : c->qa_f;
    f.qa_scale = c->qa_scale;
    f.pos = a->batch->pos;
    f.slot = a->batch->slot;
    f.kv = kv_layer_of(a->kv, a->layer);
    for (int i = 0; i < KV_ROPE / 2; i++) f.freq[i] = c->c.rope_freq[i];
    f.interleaved = c->c.rope_interleaved;
    f.index_interleaved = c->c.index_rope_interleaved;
    f.has_index = c->c.index_n_head > 0;
    f.eps = c->c.norm_eps;
    return cuda_launch(c, "mla_front", front_kernel, dim3(a->batch->n_token, 2), THREADS, 0, f);
}

static struct query_args make_query(const struct cuda_backend *c, const struct mla_front_args *a)
{
    struct query_args q = {};
    q.query = c->query;
    q.n_query = a->w->mla.query.n_row;
    q.n_head = c->c.n_head;
    q.n_token = a->batch->n_token;
    q.kv_b = a->w->mla.kv_b;
    q.kv_b_f = a->w->mla.kv_b_f;
    q.pos = a->batch->pos;
    for (int i = 0; i < KV_ROPE / 2; i++) q.freq[i] = c->c.rope_freq[i];
    q.interleaved = c->c.rope_interleaved;
    q.index_interleaved = c->c.index_rope_interleaved;
    q.quantize = c->c.kv.type != KV_TYPE_F32;
    q.h = a->query->h;
    q.f = a->query->f;
    if (!a->want_index_query) return q;
    q.n_index_head = c->c.index_n_head;
    q.head_weight = c->index_head;
    q.weight_scale = 1.0f / sqrtf((float)q.n_index_head * (float)KV_INDEX_DIM);
    q.index_q = a->query->q;
    q.index_f = a->query->index_f;
    q.index_weight = a->query->index_weight;
    return q;
}

/* Absorbs in a launch of its own. */
static fathom_err run_absorb(struct cuda_backend *c, struct query_args q)
{
    if (!q.kv_b) {
        const dim3 grid(q.n_head, KV_LATENT / FLOAT_COLS, ceil_div(q.n_token, FLOAT_TOKENS));
        return cuda_launch(c, "mla_front", absorb_float_kernel, grid, THREADS, 0, q);
    }
    const uint32_t n_tile = ceil_div(q.n_token, absorb_many::TOKENS);
    const uint32_t room = (uint32_t)c->properties.multiProcessorCount / q.n_head;
    q.n_absorb = q.n_head * (n_tile < room ? n_tile : room > 0 ? room : 1);
    return cuda_launch(c, "mla_front", absorb_many_kernel, dim3(q.n_absorb), absorb_many::THREADS,
                       sizeof(absorb_many::shared), q);
}

static fathom_err run_queries(struct cuda_backend *c, const struct mla_front_args *a)
{
    struct query_args q = make_query(c, a);
    a->query->form = MLA_ABSORBED;
    q.n_each = q.n_token <= ABSORB_FEW_MAX ? 1 : TURN_HEADS;
    if (q.kv_b && q.n_token <= ABSORB_FEW_MAX) {
        const uint32_t n_tile = ceil_div(q.n_token, absorb_few::TOKENS);
        q.n_absorb = q.n_head * absorb_few::BLOCKS * n_tile;
    } else {
        TRY(run_absorb(c, q));
    }
    const uint32_t n_unit = q.n_token * (q.n_head + q.n_index_head);
    const uint32_t n_turn = ceil_div(n_unit, TURN_WARPS * q.n_each);
    return cuda_launch(c, "mla_front", query_kernel, dim3(q.n_absorb + n_turn), absorb_few::THREADS,
                       q.n_absorb ? sizeof(absorb_few::shared) : 0, q);
}

/* Raises the kernels' shared memory limit; called once when a backend is created. */
fathom_err cuda_front_init(struct cuda_backend *c)
{
    if (!c->fast) return FATHOM_OK;
    CU_TRY(c,
           cudaFuncSetAttribute(absorb_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(absorb_many::shared)),
           "mla_front");
    return FATHOM_OK;
}

/* q_b, and index_q_b when an index query is wanted: rows at the end of one matrix, or the second */
static fathom_err run_query(struct cuda_backend *c, const struct mla_front_args *a,
                            const struct act *qa)
{
    struct matrix_list query = a->w->mla.query;
    if (!a->want_index_query) {
        query.n = 1;
        query.part[0].n_row = c->c.n_head * 192;
    }
    return cuda_product_list(c, &query, qa, a->batch->n_token, c->query, "q_b, index_q_b");
}

fathom_err cuda_mla_front(struct backend *b, const struct mla_front_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    if (a->form != MLA_ABSORBED) return FATHOM_EUNSUPPORTED;
    uint32_t n_token = a->batch->n_token;
    struct act x = {a->x->f, a->x->h, a->x->q, a->x->scale, c->c.hidden};
    TRY(cuda_product_list(c, &a->w->mla.front, &x, n_token, c->front, "q_a, index_k, kv_a"));
    if (a->want_index_query) {
        TRY(cuda_product(c, &a->w->mla.index_head, &x, n_token, c->index_head, c->c.index_n_head,
                         "index_head"));
    }
    TRY(run_front(c, a));
    bool fp8 = cuda_wants_fp8(c, &a->w->mla.query.part[0]);
    struct act qa = {c->qa_f, NULL, fp8 ? c->qa_q : NULL, c->qa_scale, c->c.q_lora_rank};
    TRY(run_query(c, a, &qa));
    return run_queries(c, a);
}

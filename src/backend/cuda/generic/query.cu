/* query.cu - what follows the query products of mla_front
 *
 * query_kernel: the query's latent part through W_UK ("absorbed"), on tensor cores, with weights
 * that were loaded before the wait for the products; its rotary part; the index queries. For many
 * tokens the first of these three has a launch of its own, whose blocks keep a whole head's weights
 * and take tile after tile of tokens. */
#include "backend/cuda/generic/front.cuh"
#include "backend/cuda/generic/index_lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/absorb.cuh"

enum {
    FLOAT_THREADS = 256,
    ANGLE_THREADS = 256,
    ABSORB_FEW_MAX = 64,    /* tokens up to which one launch makes the queries, */
    ABSORB_FEW_TILES = 256, /* and heads times tiles of them: each reads its head's weights */
};

struct query_args {
    const float *query; /* [T][n_query]: heads of 192, then index heads of 128 */
    uint32_t n_query, n_head, n_token;
    const bf16 *kv_b;    /* fast path: [H][256][512], the keys' rows first */
    const float *kv_b_f; /* float path */
    const int32_t *pos;
    float freq[KV_ROPE / 2];
    bool interleaved, index_interleaved, quantize;
    bool reads_ahead; /* pos, before the wait: a recorded step (launch.cuh) */
    bf16 *h;          /* [T][n_head][576], fast path */
    float *f;
    uint32_t n_index_head;    /* 0: no index queries */
    const float *head_weight; /* [T][n_index_head], raw; n_head_part of them to be added */
    uint32_t n_head_part;
    float weight_scale;  /* n_index_head^-1/2 * 128^-1/2 */
    uint8_t *index_q;    /* codes, fast path */
    float *index_f;      /* values (codes when quantizing), float path */
    float *index_weight; /* [T][n_index_head], written */
    struct expanded_rows expanded;
    uint32_t n_absorb_token; /* the first so many tokens are absorbed here */
    uint32_t n_absorb;       /* blocks of query_kernel that absorb; the others rotate */
    uint32_t n_pass;         /* a warp rotates so many times four heads */
    uint32_t first, end;     /* tokens that query_kernel rotates */
    uint32_t n_rotate;       /* heads of attention that it does */
    float *angles;           /* of angles_kernel: row [T][n_query], sines and cosines first */
};

static __device__ __forceinline__ void store_query(const struct query_args &a, size_t at, float v)
{
    if (a.h) {
        a.h[at] = __float2bfloat16_rn(v);
    } else {
        a.f[at] = v;
    }
}

enum { NOPE = NOPE_DIM, HEAD = QUERY_DIM };

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
    static_assert(KV_LATENT % COLS == 0, "blocks have columns of one head");
    static_assert(TOKENS * NOPE / 4 % THREADS == 0, "every thread loads LOADS times");
    static_assert(NOPE % 32 == 0, "two products of K = 16 at a time");
    /* rows are padded so that eight of them lie in different banks */
    struct shared {
        unsigned char w[NOPE][COLS * 2 + 16];
        unsigned char q[TOKENS][NOPE * 2 + 16];
        unsigned char out[TOKENS][COLS * 2 + 16];
    };
    static_assert((COLS * 2 + 16) % 128 == 16 && (NOPE * 2 + 16) % 128 == 16, "banks");
    static_assert(sizeof(struct shared) <= shared_limit(false), "shared memory of a block");
};

typedef absorb_shape<4, 1, 1> absorb_few;
typedef absorb_shape<16, 2, 2> absorb_many;
static_assert(sizeof(absorb_few::shared) <= SHARED_PLAIN_MAX, "no limit is raised for it");

/* The block's weights, by way of shared memory: 16 columns times 16 terms a product. */
template <typename SHAPE>
static __device__ __forceinline__ void
load_absorb(uint32_t (&w)[SHAPE::RT][NOPE / 16][4], const struct query_args &a,
            typename SHAPE::shared *s, uint32_t head, uint32_t col0)
{
    enum { PIECES = SHAPE::COLS * 2 / 16 };
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const bf16 *from = a.kv_b + (size_t)head * KV_B_ROWS * KV_LATENT + col0;
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
        if (token >= a.n_absorb_token) continue;
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
            bf16 *to = (bf16 *)s->out[i * 8 + 2 * t] + col;
            bf16 *next = (bf16 *)s->out[i * 8 + 2 * t + 1] + col;
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
    const uint32_t n_tile = ceil_div(a.n_absorb_token, SHAPE::TOKENS);
    uint32_t w[SHAPE::RT][NOPE / 16][4];
    float4 q[SHAPE::LOADS];
    DCHECK(step > 0 && a.n_absorb % (SHAPE::BLOCKS * a.n_head) == 0);
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
            if (token >= a.n_absorb_token) break;
            const size_t to = ((size_t)token * a.n_head + head) * KV_ROW + col0 + piece * 8;
            *(uint4 *)(a.h + to) = *(const uint4 *)(s->out[row] + piece * 16);
        }
    }
}

/* The parts' sum, the same in the eight lanes: each adds every eighth in ascending order
 * (index_head.cuh). */
static __device__ __forceinline__ float head_weight(const struct query_args &a, size_t row)
{
    const size_t stride = (size_t)a.n_token * a.n_index_head;
    DCHECK(row < stride && a.n_head_part >= 1);
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t i = threadIdx.x % INDEX_LANES; i < a.n_head_part; i += INDEX_LANES)
        sum += a.head_weight[i * stride + row];
    return index_sum(sum);
}

enum { ROTATE_HEADS = WARP / INDEX_LANES, ROTATE_WARPS = absorb_few::WARPS };
static_assert((int)KV_INDEX_DIM == INDEX_LANES * INDEX_EACH, "eight lanes hold an index query");
static_assert((int)KV_ROPE == 2 * WARP, "a pair a lane");

/* A rotary pair of an attention query, rounded, and in expanded form the rest of it. */
static __device__ __forceinline__ void store_rotated(const struct query_args &a, uint32_t token,
                                                     uint32_t head, bool expanded, uint32_t one,
                                                     uint32_t two, float u, float v)
{
    const size_t row = (size_t)token * a.n_head * KV_ROW;
    const size_t to = row + (expanded ? head * HEAD + NOPE : head * KV_ROW + KV_LATENT);
    store_query(a, to + one, u);
    store_query(a, to + two, v);
    if (!expanded) return;
    const uint32_t at = head * HEAD + threadIdx.x % WARP * 4;
    const float4 x = *(const float4 *)(a.query + (size_t)token * a.n_query + at);
    *(uint2 *)(a.h + row + at) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

/* The rotary parts of four attention queries, a pair a lane. */
static __device__ __forceinline__ void
rotate_query(const struct query_args &a, const struct angles &x, uint32_t token, uint32_t head0)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t one = a.interleaved ? 2 * lane : lane;
    const uint32_t two = a.interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2;
    const bool expanded = is_expanded(a.expanded, token, a.pos);
    float u[ROTATE_HEADS] = {}, v[ROTATE_HEADS] = {};
#pragma unroll
    for (uint32_t k = 0; k < ROTATE_HEADS; k++) {
        const uint32_t head = min(head0 + k, a.n_head - 1);
        const float *from = a.query + (size_t)token * a.n_query + head * HEAD + NOPE;
        u[k] = from[one];
        v[k] = from[two];
    }
#pragma unroll
    for (uint32_t k = 0; k < ROTATE_HEADS; k++) {
        if (head0 + k >= a.n_head) break;
        rotate(u[k], v[k], x.s, x.c);
        store_rotated(a, token, head0 + k, expanded, one, two, u[k], v[k]);
    }
}

/* Four index queries: rope, Hadamard, codes; their weights take the scales. */
static __device__ __forceinline__ void rotate_index_heads(const struct query_args &a,
                                                          const struct angles &x, uint32_t token,
                                                          uint32_t head0)
{
    const uint32_t lane = threadIdx.x % WARP, head = head0 + lane / INDEX_LANES;
    const bool present = head < a.n_index_head;
    const size_t row = (size_t)token * a.n_index_head + (present ? head : 0);
    float v[INDEX_EACH], weight;
    load_index(v, a.query + (size_t)token * a.n_query + a.n_head * HEAD +
                      (present ? head : 0) * KV_INDEX_DIM);
    weight = head_weight(a, row);
    float s[4], c[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        s[k] = shfl(x.s, index_pair(k, a.index_interleaved));
        c[k] = shfl(x.c, index_pair(k, a.index_interleaved));
    }
    rotate_index(v, s, c, a.index_interleaved);
    hadamard(v);
    const float scale = a.quantize ? index_scale(v) : 1.0f;
    if (!present) return;
    if (a.index_q) store_index_codes(a.index_q + row * KV_INDEX_DIM, v, scale);
    if (a.index_f && a.quantize) {
#pragma unroll
        for (int i = 0; i < INDEX_EACH; i++) v[i] = e4m3_to_float(float_to_e4m3(v[i] / scale));
    }
    if (a.index_f) store_index_values(a.index_f + row * KV_INDEX_DIM, v);
    if (lane % INDEX_LANES == 0) a.index_weight[row] = weight * a.weight_scale * scale;
}

/* Warp number i of those that rotate: heads of one token, n_pass times four of attention or of the
 * index. */
static __device__ __forceinline__ void rotate_heads(const struct query_args &a, uint32_t i)
{
    const uint32_t each = a.n_pass * ROTATE_HEADS, n_rotary = ceil_div(a.n_rotate, each);
    const uint32_t n_job = n_rotary + ceil_div(a.n_index_head, each);
    const uint32_t token = a.first + i / n_job, job = i % n_job;
    if (!a.reads_ahead) dependency_wait();
    const struct angles x = angles_at(a.freq, a.pos[min(token, a.end - 1)]);
    dependency_wait();
    if (token >= a.end) return;
    for (uint32_t k = 0; k < each; k += ROTATE_HEADS) {
        if (job < n_rotary) {
            rotate_query(a, x, token, job * each + k);
        } else {
            rotate_index_heads(a, x, token, (job - n_rotary) * each + k);
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
        rotate_heads(a, (blockIdx.x - a.n_absorb) * ROTATE_WARPS + threadIdx.x / WARP);
    }
}

__global__ void __launch_bounds__(absorb_many::THREADS, 1)
    absorb_many_kernel(const struct query_args a)
{
    dependency_release();
    absorb_block<absorb_many>(a, blockIdx.x);
}

/* The angles of tokens from `first` on, a warp a token: a pair's sine and cosine a lane. */
__global__ void __launch_bounds__(ANGLE_THREADS) angles_kernel(const struct query_args a)
{
    const uint32_t token = a.first + blockIdx.x * (ANGLE_THREADS / WARP) + threadIdx.x / WARP;
    float2 *to = (float2 *)(a.angles + (size_t)token * a.n_query);
    kernel_begin();
    if (token >= a.end) return;
    const struct angles x = angles_at(a.freq, a.pos[token]);
    to[threadIdx.x % WARP] = make_float2(x.s, x.c);
}

enum { FLOAT_TOKENS = 8, FLOAT_COLS = 64, FLOAT_SLICES = FLOAT_THREADS / (FLOAT_COLS / 2) };

/* Float path. Block: 64 columns of one head, up to 8 tokens; a thread sums 16 of the 128 terms of
 * two columns, and the 8 sums are added in ascending order. */
__global__ void __launch_bounds__(FLOAT_THREADS) absorb_float_kernel(const struct query_args a)
{
    enum { TERMS = NOPE / FLOAT_SLICES };
    static_assert(NOPE % FLOAT_SLICES == 0 && KV_LATENT % FLOAT_COLS == 0, "nothing is left over");
    static_assert(sizeof(float) * FLOAT_TOKENS * (NOPE + FLOAT_SLICES * FLOAT_COLS) <=
                      SHARED_PLAIN_MAX,
                  "shared memory of a block");
    __shared__ float q[FLOAT_TOKENS][NOPE], part[FLOAT_SLICES][FLOAT_TOKENS][FLOAT_COLS];
    const uint32_t head = blockIdx.x, col0 = blockIdx.y * FLOAT_COLS,
                   t0 = blockIdx.z * FLOAT_TOKENS;
    const uint32_t n = min((uint32_t)FLOAT_TOKENS, a.n_token - t0);
    const int slice = (int)threadIdx.x / (FLOAT_COLS / 2),
              pair = (int)threadIdx.x % (FLOAT_COLS / 2);
    kernel_begin();
    for (uint32_t i = threadIdx.x; i < FLOAT_TOKENS * NOPE; i += FLOAT_THREADS) {
        uint32_t t = i / NOPE, d = i % NOPE;
        q[t][d] = t < n ? a.query[(size_t)(t0 + t) * a.n_query + head * HEAD + d] : 0.0f;
    }
    __syncthreads();
    float2 sum[FLOAT_TOKENS] = {};
    for (int i = slice * TERMS; i < (slice + 1) * TERMS; i++) {
        size_t at = ((size_t)head * KV_B_ROWS + (size_t)i) * KV_LATENT + col0 + (size_t)pair * 2;
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
    for (uint32_t i = threadIdx.x; i < n * FLOAT_COLS; i += FLOAT_THREADS) {
        uint32_t t = i / FLOAT_COLS, col = i % FLOAT_COLS;
        float all = 0.0f;
#pragma unroll
        for (int k = 0; k < FLOAT_SLICES; k++) all += part[k][t][col];
        a.f[((size_t)(t0 + t) * a.n_head + head) * KV_ROW + col0 + col] = all;
    }
}

static struct query_args make_query(const struct cuda_backend *c, const struct mla_front_args *a,
                                    uint32_t n_head_part)
{
    struct query_args q = {};
    ASSERT(a->w->mla.query.n_row % 4 == 0 && (a->w->mla.kv_b || a->w->mla.kv_b_f));
    ASSERT(!a->query->h == !a->w->mla.kv_b && !a->query->f == !a->w->mla.kv_b_f);
    q.query = c->query;
    q.n_query = a->w->mla.query.n_row;
    q.n_head = c->c.n_head;
    q.n_token = q.end = a->batch->n_token;
    q.n_rotate = q.n_head;
    q.kv_b = a->w->mla.kv_b;
    q.kv_b_f = a->w->mla.kv_b_f;
    q.pos = a->batch->pos;
    q.reads_ahead = c->recording && !a->owned;
    q.expanded = cuda_expanded_rows(c, a->batch);
    q.n_absorb_token = q.expanded.first;
    for (int i = 0; i < KV_ROPE / 2; i++) q.freq[i] = c->c.rope_freq[i];
    q.interleaved = c->c.rope_interleaved;
    q.index_interleaved = c->c.index_rope_interleaved;
    q.quantize = c->c.kv.type != KV_TYPE_F32;
    q.h = a->query->h;
    q.f = a->query->f;
    if (!a->want_index_query) return q;
    q.n_index_head = c->c.index_n_head;
    q.head_weight = c->index_head;
    q.n_head_part = n_head_part;
    q.weight_scale = 1.0f / sqrtf((float)q.n_index_head * (float)KV_INDEX_DIM);
    q.index_q = a->query->q;
    q.index_f = a->query->index_f;
    q.index_weight = a->query->index_weight;
    ASSERT(q.n_head_part >= 1 && (!q.index_q || q.quantize));
    return q;
}

/* Absorbs the prompt rows that are not in expanded form. */
static fathom_err absorb_prompts(struct cuda_backend *c, const struct query_args &q)
{
    const size_t first = q.n_absorb_token;
    struct absorb_args a = {};
    a.query = q.query + first * q.n_query;
    a.n_query = q.n_query;
    a.n_head = q.n_head;
    a.n_token = q.n_token - q.n_absorb_token;
    a.pos = q.pos + first;
    a.skip_below = q.expanded.end;
    a.kv_b = q.kv_b;
    a.h = q.h + first * q.n_head * KV_ROW;
    return absorb_sm90(c, a);
}

/* What is left of rows q.first to q.end behind their products. */
static fathom_err run_queries(struct cuda_backend *c, struct query_args q)
{
    const uint32_t n_token = q.end - q.first;
    q.n_pass = n_token <= ABSORB_FEW_MAX ? 1 : 4;
    const uint32_t each = q.n_pass * ROTATE_HEADS;
    const uint32_t n_job = ceil_div(q.n_rotate, each) + ceil_div(q.n_index_head, each);
    const uint32_t n_rotate = ceil_div(n_token * n_job, ROTATE_WARPS);
    ASSERT((uint64_t)n_token * n_job <= INT32_MAX);
    return cuda_launch(c, "mla_front", query_kernel, dim3(q.n_absorb + n_rotate),
                       absorb_few::THREADS, q.n_absorb ? sizeof(absorb_few::shared) : 0, q);
}

/* Absorbs in a launch of its own. */
static fathom_err run_absorb(struct cuda_backend *c, struct query_args q)
{
    if (!q.kv_b) {
        const dim3 grid(q.n_head, KV_LATENT / FLOAT_COLS, ceil_div(q.n_token, FLOAT_TOKENS));
        return cuda_launch(c, "mla_front", absorb_float_kernel, grid, FLOAT_THREADS, 0, q);
    }
    ASSERT(!c->lean); /* absorb_few fits there */
    const uint32_t n_tile = ceil_div(q.n_absorb_token, absorb_many::TOKENS);
    const uint32_t room = (uint32_t)c->properties.multiProcessorCount / q.n_head;
    q.n_absorb = q.n_head * (n_tile < room ? n_tile : room > 0 ? room : 1);
    return cuda_launch(c, "mla_front", absorb_many_kernel, dim3(q.n_absorb), absorb_many::THREADS,
                       sizeof(absorb_many::shared), q);
}

fathom_err front_own_index(struct cuda_backend *c, const struct mla_front_args *a,
                           const struct batch *own)
{
    struct query_args q = make_query(c, a, 1);
    q.n_query = c->c.index_n_head * KV_INDEX_DIM;
    q.n_head = q.n_rotate = 0;
    q.n_token = q.end = own->n_token;
    q.pos = own->pos;
    q.head_weight = c->own.index_head;
    return run_queries(c, q);
}

fathom_err front_angles(struct cuda_backend *c, const struct mla_front_args *a, uint32_t first)
{
    struct query_args q = make_query(c, a, 1);
    static_assert((int)QUERY_DIM >= (int)KV_ROPE, "an angle's sine and cosine a pair");
    q.first = first;
    q.angles = c->query;
    ASSERT(first < q.end && q.n_query % 2 == 0);
    return cuda_launch(c, "mla_front", angles_kernel,
                       dim3(ceil_div(q.end - first, ANGLE_THREADS / WARP)), ANGLE_THREADS, 0, q);
}

fathom_err front_queries(struct cuda_backend *c, const struct mla_front_args *a,
                         uint32_t n_head_part, uint32_t n_plain)
{
    struct query_args q = make_query(c, a, n_head_part);
    if (a->owned) q.n_index_head = 0; /* front_own_index has made them */
    if (n_plain < q.n_token) {
        struct query_args rows = q;
        rows.first = n_plain;
        rows.n_rotate = 0;
        if (rows.n_index_head) TRY(run_queries(c, rows));
        q.end = n_plain;
        if (!n_plain) return FATHOM_OK;
    }
    if (cuda_has_selected_prompts(q.expanded, a->batch)) TRY(absorb_prompts(c, q));
    const uint32_t n_tile = ceil_div(q.n_absorb_token, absorb_few::TOKENS);
    const bool few = q.n_absorb_token <= ABSORB_FEW_MAX && q.n_head * n_tile <= ABSORB_FEW_TILES;
    if (q.kv_b && (few || c->lean)) {
        q.n_absorb = q.n_head * absorb_few::BLOCKS * n_tile;
    } else {
        TRY(run_absorb(c, q));
    }
    return run_queries(c, q);
}

/* Raises the kernels' shared memory limit; called once when a backend is created. */
fathom_err cuda_query_init(struct cuda_backend *c)
{
    if (!c->fast || c->lean) return FATHOM_OK;
    CU_TRY(c,
           cudaFuncSetAttribute(absorb_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(absorb_many::shared)),
           "mla_front");
    return FATHOM_OK;
}

/* query_fast.cu - queries of attention on the tensor cores
 *
 * query_kernel: the query's latent part through W_UK ("absorbed"), with weights that were loaded
 * before the wait for the products; its rotary part; the index queries. For many tokens the first
 * of these three has a launch of its own, whose blocks keep a whole head's weights and take tile
 * after tile of tokens. */
#include "backend/cuda/generic/query.cuh"
#include "backend/cuda/sm90/absorb.cuh"

/* Heads times tiles of tokens, up to which one launch makes the queries: each reads its head's
 * weights. */
enum { ABSORB_FEW_TILES = 256 };

/* Blocks of query_kernel that absorb, of a multiprocessor, so that it has room for those that
 * rotate as well: more tiles than that have blocks of their own for every other one. */
enum { ABSORB_SM_BLOCKS = 7 };

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
static_assert((int)absorb_few::WARPS == (int)ROTATE_WARPS, "blocks of query_kernel do either");
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
            to[0] = float_to_bf16(acc[r][i][0]);
            next[0] = float_to_bf16(acc[r][i][1]);
            to[8] = float_to_bf16(acc[r][i][2]);
            next[8] = float_to_bf16(acc[r][i][3]);
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

/* ---- launches ---- */

fathom_err absorb_prompts(struct cuda_backend *c, const struct query_args &q)
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

fathom_err query_fast(struct cuda_backend *c, const struct query_args &q, uint32_t n_rotate)
{
    return cuda_launch(c, "mla_front", query_kernel, dim3(q.n_absorb + n_rotate),
                       absorb_few::THREADS, q.n_absorb ? sizeof(absorb_few::shared) : 0, q);
}

fathom_err absorb_fast(struct cuda_backend *c, struct query_args *q)
{
    const uint32_t n_few = ceil_div(q->n_absorb_token, absorb_few::TOKENS);
    if (c->lean || (q->n_absorb_token <= ABSORB_FEW_MAX && q->n_head * n_few <= ABSORB_FEW_TILES)) {
        const uint32_t each = q->n_head * absorb_few::BLOCKS;
        const uint32_t room = ABSORB_SM_BLOCKS * (uint32_t)c->properties.multiProcessorCount;
        q->n_absorb = each * (each * n_few <= room ? n_few : ceil_div(n_few, 2));
        return FATHOM_OK;
    }
    struct query_args many = *q;
    const uint32_t n_tile = ceil_div(q->n_absorb_token, absorb_many::TOKENS);
    const uint32_t room = (uint32_t)c->properties.multiProcessorCount / q->n_head;
    many.n_absorb = q->n_head * (n_tile < room ? n_tile : room > 0 ? room : 1);
    return cuda_launch(c, "mla_front", absorb_many_kernel, dim3(many.n_absorb),
                       absorb_many::THREADS, sizeof(absorb_many::shared), many);
}

/* Raises the kernels' shared memory limit; called once when a backend is created. */
fathom_err cuda_query_init(struct cuda_backend *c)
{
    if (!c->fast || c->lean) return FATHOM_OK;
    CU_TRY(c, gpu_raise_shared(absorb_many_kernel, sizeof(absorb_many::shared)), "mla_front");
    return FATHOM_OK;
}

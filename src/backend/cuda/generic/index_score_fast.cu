/* index_score_fast.cu - index scores on the tensor cores, by way of f16 */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/index_score.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/index_score.cuh"

enum {
    SCORE_WARPS = 4,
    SCORE_BLOCKS = 16 / SCORE_WARPS, /* of a multiprocessor */
    WARP_KEYS = SCORE_KEYS / SCORE_WARPS,
    CODE_PIECES = KV_INDEX_DIM / 16, /* of a row */
    SCORE_TOKENS = 16,               /* tokens of a block */
    SCORE_ALONE_MAX = 64,            /* up to so many tokens have blocks of their own, */
    SCORE_WAVES = 2 * SCORE_BLOCKS,  /* at most so many a multiprocessor: two rounds */
    SCORE_SHARED_MAX = SHARED_PLAIN_MAX,
};
static_assert(KV_PAGE_TOKENS % WARP_KEYS == 0, "a warp's keys lie in one page");
static_assert(WARP_KEYS == 32, "a warp's keys are two tiles of 16");

/* Keys of a warp as the 16-row operand: rows g and g + 8 of two tiles of 16, in the order in which
 * K lines are fed. */
struct score_keys {
    uint32_t v[2][2][16];
};

/* 16 codes as pairs of f16. The order of the codes is the rows' own: the products take both sides
 * in the same one. */
static __device__ __forceinline__ void unpack_codes(uint32_t *out, uint4 v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = e4m3x2_to_f16x2((uint16_t)words[i]);
        out[2 * i + 1] = e4m3x2_to_f16x2((uint16_t)(words[i] >> 16));
    }
}

/* 32 keys from place j of a page on. */
static __device__ __forceinline__ void load_keys(struct score_keys &k, const char *page, int j)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    DCHECK(j >= 0 && j % WARP_KEYS == 0 && j + WARP_KEYS <= KV_PAGE_TOKENS);
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const char *row = page + (size_t)(j + tile * 16 + half * 8 + g) * KV_INDEX_DIM + 16 * t;
            unpack_codes(k.v[tile][half], load_stream(row));
            unpack_codes(k.v[tile][half] + 8, load_stream(row + 64));
        }
    }
}

/* A block's queries. A thread unpacks what it copied itself. */
struct score_queries {
    unsigned char *codes; /* of the next token: 16 bytes a piece */
    uint4 *pairs;         /* of two tokens, [group of 8 heads][4 steps of 32 values][lane] */
    float *weight;        /* of two tokens */
};

static __device__ __forceinline__ struct score_queries carve_queries(unsigned char *shared,
                                                                     uint32_t n_head)
{
    const size_t codes_bytes = (size_t)n_head * KV_INDEX_DIM;
    struct score_queries s;
    s.codes = shared;
    s.pairs = (uint4 *)(shared + codes_bytes);
    s.weight = (float *)(shared + 5 * codes_bytes);
    return s;
}

/* 16-byte pieces from one token's pairs to the other's */
static __device__ __forceinline__ uint32_t pairs_stride(uint32_t n_head)
{
    return n_head * KV_INDEX_DIM * 2 / 16;
}

static size_t score_shared_bytes(uint32_t n_head)
{
    return (size_t)n_head * (5 * KV_INDEX_DIM + 2 * sizeof(float));
}

/* Copies of a token's codes, and of its head weights to their place; one group. */
static __device__ __forceinline__ void fetch_query(const struct score_args &a, uint32_t token,
                                                   const struct score_queries &s, uint32_t half)
{
    const char *q = (const char *)a.q + (size_t)token * a.n_head * KV_INDEX_DIM;
    DCHECK(half < 2 && a.n_head % 4 == 0);
    for (uint32_t i = threadIdx.x; i < a.n_head * CODE_PIECES; i += SCORE_WARPS * WARP) {
        cp_async_16(smem_address(s.codes) + i * 16, q + (size_t)i * 16, true);
    }
    const char *w = (const char *)(a.weight + (size_t)token * a.n_head);
    for (uint32_t i = threadIdx.x; i < a.n_head / 4; i += SCORE_WARPS * WARP) {
        cp_async_16(smem_address(s.weight + half * a.n_head) + i * 16, w + (size_t)i * 16, true);
    }
}

/* What fetch_query copied, as the 8-column operand: piece p of a head's row has 16 codes of half
 * p / 4, of lanes with t = p % 4. */
static __device__ __forceinline__ void unpack_query(const struct score_queries &s, uint32_t half,
                                                    uint32_t n_head)
{
    for (uint32_t i = threadIdx.x; i < n_head * CODE_PIECES; i += SCORE_WARPS * WARP) {
        const uint32_t head = i / CODE_PIECES, piece = i % CODE_PIECES;
        uint32_t v[8];
        unpack_codes(v, *(const uint4 *)(s.codes + (size_t)i * 16));
        uint4 *to = s.pairs + half * pairs_stride(n_head) +
                    (size_t)(head / 8 * 4 + piece / 4 * 2) * WARP + head % 8 * 4 + piece % 4;
        to[0] = make_uint4(v[0], v[1], v[2], v[3]);
        to[WARP] = make_uint4(v[4], v[5], v[6], v[7]);
    }
}

/* Adds GROUPS times 8 heads to the sums of a warp's keys. */
template <int GROUPS>
static __device__ __forceinline__ void add_heads(float (&sum)[4], const struct score_keys &k,
                                                 const uint4 *pairs, const float *weight)
{
    const uint32_t lane = threadIdx.x % WARP;
    float c[GROUPS][2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 q[GROUPS];
#pragma unroll
        for (int n = 0; n < GROUPS; n++) q[n] = pairs[(n * 4 + i) * WARP + (int)lane];
#pragma unroll
        for (int n = 0; n < GROUPS * 2; n++) {
            const uint32_t(&v)[2][16] = k.v[n % 2];
            mma_f16(c[n / 2][n % 2], v[0][4 * i], v[1][4 * i], v[0][4 * i + 1], v[1][4 * i + 1],
                    q[n / 2].x, q[n / 2].y);
        }
#pragma unroll
        for (int n = 0; n < GROUPS * 2; n++) {
            const uint32_t(&v)[2][16] = k.v[n % 2];
            mma_f16(c[n / 2][n % 2], v[0][4 * i + 2], v[1][4 * i + 2], v[0][4 * i + 3],
                    v[1][4 * i + 3], q[n / 2].z, q[n / 2].w);
        }
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        const float2 w = *(const float2 *)(weight + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *two = c[n][i / 2] + i % 2 * 2;
            sum[i] = fmaf(w.x, fmaxf(two[0], 0.0f), sum[i]);
            sum[i] = fmaf(w.y, fmaxf(two[1], 0.0f), sum[i]);
        }
    }
}

/* Sums of 32 keys over the heads in ascending order; lane 4 g + t gets that of key g + 8 t. */
static __device__ __forceinline__ float sum_heads(const struct score_keys &k, uint32_t n_head,
                                                  const uint4 *pairs, const float *weight)
{
    const uint32_t t = threadIdx.x % 4;
    float sum[4] = {};
    uint32_t h = 0;
    DCHECK(n_head % 8 == 0);
    for (; h + 16 <= n_head; h += 16) add_heads<2>(sum, k, pairs + h / 2 * WARP, weight + h);
    if (h < n_head) add_heads<1>(sum, k, pairs + h / 2 * WARP, weight + h);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[i] += shfl_xor(sum[i], 1);
        sum[i] += shfl_xor(sum[i], 2);
    }
    return t == 0 ? sum[0] : t == 1 ? sum[1] : t == 2 ? sum[2] : sum[3];
}

/* The first token from i on that wants scores of keys from `first` on, or the end. */
static __device__ __forceinline__ uint32_t next_token(const struct score_args &a, uint32_t i,
                                                      uint32_t end, int first)
{
    while (i < end && !wants_scores(a, i, first)) i++;
    return i;
}

/* Where a warp's 32 keys from position s0 of a request on lie. */
static __device__ __forceinline__ const char *key_page(const struct score_args &a, int request,
                                                       int s0)
{
    const int32_t *pages = a.page_table + (size_t)request * a.page_stride;
    DCHECK(s0 >= 0 && (uint32_t)s0 / KV_PAGE_TOKENS < a.page_stride);
    return a.kv.index + (size_t)pages[s0 / KV_PAGE_TOKENS] * a.kv.page_bytes;
}

static __device__ __forceinline__ float key_scale(const char *page, int s)
{
    return ((const float *)(page + KV_INDEX_SCALES_OFFSET))[s % KV_PAGE_TOKENS];
}

/* Fast path, few tokens: a block has one token, whose queries it unpacks once, and every
 * gridDim.x-th tile of 128 keys. */
__global__ void __launch_bounds__(SCORE_WARPS *WARP, SCORE_BLOCKS)
    score_alone_kernel(const struct score_args a)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t token = a.first_token + blockIdx.y;
    const int lane = (int)threadIdx.x % WARP, step = (int)gridDim.x * SCORE_KEYS;
    const int first = (int)blockIdx.x * SCORE_KEYS;
    const struct score_queries q = carve_queries(shared, a.n_head);
    kernel_begin();
    if (!wants_scores(a, token, first)) return;
    const int pos = a.pos[token], request = a.request[token];
    fetch_query(a, token, q, 0);
    cp_async_commit();
    cp_async_wait<0>();
    unpack_query(q, 0, a.n_head);
    __syncthreads();
    for (int s0 = first + (int)threadIdx.x / WARP * WARP_KEYS; s0 <= pos; s0 += step) {
        const int s = s0 + lane / 4 + lane % 4 * 8; /* this lane's key */
        const char *page = key_page(a, request, s0);
        struct score_keys keys;
        load_keys(keys, page, s0 % KV_PAGE_TOKENS);
        const float scale = key_scale(page, s);
        const float sum = sum_heads(keys, a.n_head, q.pairs, q.weight);
        if (s <= pos) a.score[(size_t)blockIdx.y * a.stride + (uint32_t)s] = sum * scale;
    }
}

/* Many tokens: a block scores 128 keys for 16 of them; neighbours of one request share the keys.
 * While one token is computed the next one's codes are on their way. */
__global__ void __launch_bounds__(SCORE_WARPS *WARP, SCORE_BLOCKS)
    score_kernel(const struct score_args a)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const int lane = (int)threadIdx.x % WARP, first = (int)blockIdx.x * SCORE_KEYS;
    const int s0 = first + (int)threadIdx.x / WARP * WARP_KEYS;
    const int s = s0 + lane / 4 + lane % 4 * 8; /* this lane's key */
    const uint32_t end = a.first_token + min(a.n_token, (blockIdx.y + 1) * SCORE_TOKENS);
    const struct score_queries q = carve_queries(shared, a.n_head);
    struct score_keys keys;
    float scale = 0.0f;
    int request = -1;
    kernel_begin();
    uint32_t token = next_token(a, a.first_token + blockIdx.y * SCORE_TOKENS, end, first);
    if (token == end) return;
    fetch_query(a, token, q, 0);
    for (uint32_t half = 0; token < end; half ^= 1) {
        const uint32_t next = next_token(a, token + 1, end, first);
        cp_async_commit();
        if (s0 <= a.pos[token] && a.request[token] != request) {
            request = a.request[token];
            const char *page = key_page(a, request, s0);
            load_keys(keys, page, s0 % KV_PAGE_TOKENS);
            scale = key_scale(page, s);
        }
        cp_async_wait<0>();
        unpack_query(q, half, a.n_head);
        __syncthreads(); /* also: nobody is at the token before any more */
        if (next < end) fetch_query(a, next, q, half ^ 1);
        if (s0 <= a.pos[token]) {
            const float sum = sum_heads(keys, a.n_head, q.pairs + half * pairs_stride(a.n_head),
                                        q.weight + half * a.n_head);
            if (s <= a.pos[token])
                a.score[(size_t)(token - a.first_token) * a.stride + (uint32_t)s] = sum * scale;
        }
        token = next;
    }
}

/* ---- launches ---- */

static bool fits_sm90(const struct cuda_backend *c, const struct score_args &s)
{
    return c->sm90 && s.n_head == SCORE90_HEADS && s.kv.type != KV_TYPE_F32;
}

bool index_score_takes(const struct score_args &s)
{
    return s.kv.type != KV_TYPE_F32 && s.n_head % 8 == 0 &&
           score_shared_bytes(s.n_head) <= SCORE_SHARED_MAX;
}

fathom_err index_score_fast(struct cuda_backend *c, const struct score_args &s,
                            uint32_t max_context)
{
    const uint32_t n_tile = ceil_div(max_context, SCORE_KEYS);
    ASSERT((uintptr_t)s.q % 16 == 0 && (uintptr_t)s.weight % 16 == 0);
    if (fits_sm90(c, s)) return index_score_sm90(c, s, max_context);
    if (s.n_token <= SCORE_ALONE_MAX) {
        const uint32_t room = SCORE_WAVES * (uint32_t)c->properties.multiProcessorCount / s.n_token;
        const uint32_t n_block = n_tile < room ? n_tile : room > 0 ? room : 1;
        return cuda_launch(c, "index scores", score_alone_kernel, dim3(n_block, s.n_token),
                           SCORE_WARPS * WARP, score_shared_bytes(s.n_head), s);
    }
    return cuda_launch(c, "index scores", score_kernel,
                       dim3(n_tile, ceil_div(s.n_token, SCORE_TOKENS)), SCORE_WARPS * WARP,
                       score_shared_bytes(s.n_head), s);
}

/* index.cu - index scores, and the choice of the largest
 *
 * Scores of a piece of the tokens go to scratch, a row a token. A block of topk_kernel holds up to
 * TOPK_SPAN of them in registers, as keys that order like integers: three passes over histograms of
 * 11 bits find the key of the last one wanted and how many of its equals are wanted, and one more
 * writes in ascending position. A longer row is cut into spans: a block each leaves the span's
 * largest over the start of the span, and one block chooses among those. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"

enum {
    THREADS = 256,
    SCORE_WARPS = 4,
    WARP_KEYS = 32,
    SCORE_KEYS = SCORE_WARPS * WARP_KEYS, /* keys of a block */
    SCORE_TOKENS = 16,                    /* tokens of a block */
    SCORE_ALONE_MAX = 64,                 /* up to so many tokens have blocks of their own */
    TOPK_THREADS = 1024,
    TOPK_WARPS = TOPK_THREADS / WARP,
    TOPK_ITEMS_MAX = TOPK_SPAN / TOPK_THREADS, /* keys a thread holds */
    BIN_BITS = 11,
    N_BIN = 1 << BIN_BITS,
};

struct score_args {
    const uint8_t *q;    /* [T][heads][128], fast path */
    const float *f;      /* the same, float path */
    const float *weight; /* [T][heads] */
    uint32_t n_head, first_token, n_token, topk;
    uint32_t n_each; /* tokens of a block */
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride;
    struct kv_layer kv;
    float *score; /* [piece][stride] */
    uint32_t stride;
};

/* Whether scores decide, and keys from `first` on are among those that the token sees. */
static __device__ __forceinline__ bool wants_scores(const struct score_args &a, uint32_t token,
                                                    int first)
{
    return a.pos[token] >= (int)a.topk && first <= a.pos[token];
}

/* Float path: one warp a key. */
__global__ void __launch_bounds__(THREADS) score_float_kernel(const struct score_args a)
{
    const uint32_t token = a.first_token + blockIdx.y;
    const int lane = (int)threadIdx.x % WARP;
    kernel_begin();
    if (!wants_scores(a, token, (int)(blockIdx.x * SCORE_KEYS))) return;
    const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
    int end = min(a.pos[token] + 1, (int)(blockIdx.x + 1) * SCORE_KEYS);
    for (int s = (int)(blockIdx.x * SCORE_KEYS + threadIdx.x / WARP); s < end;
         s += THREADS / WARP) {
        int slot = kv_slot(pages, s), j = slot % KV_PAGE_TOKENS;
        const char *block = a.kv.index + (size_t)(slot / KV_PAGE_TOKENS) * a.kv.page_bytes;
        float k[4], scale = 1.0f, sum = 0.0f;
        if (a.kv.type == KV_TYPE_F32) {
            for (int i = 0; i < 4; i++)
                k[i] = ((const float *)block)[j * KV_INDEX_DIM + lane * 4 + i];
        } else {
            for (int i = 0; i < 4; i++) {
                k[i] = e4m3_to_float(((const uint8_t *)block)[j * KV_INDEX_DIM + lane * 4 + i]);
            }
            scale = ((const float *)(block + KV_INDEX_SCALES_OFFSET))[j];
        }
        for (uint32_t h = 0; h < a.n_head; h++) {
            size_t at = ((size_t)token * a.n_head + h) * KV_INDEX_DIM + (size_t)lane * 4;
            float dot = 0.0f;
            for (int i = 0; i < 4; i++) {
                dot += k[i] * (a.f ? a.f[at + (size_t)i] : e4m3_to_float(a.q[at + (size_t)i]));
            }
            dot = warp_sum(dot);
            sum += a.weight[(size_t)token * a.n_head + h] * fmaxf(dot, 0.0f);
        }
        if (lane == 0) a.score[(size_t)blockIdx.y * a.stride + s] = sum * scale;
    }
}

/* Keys of a warp as the 16-row operand: rows g and g + 8 of two tiles of 16, in the order in which
 * lines are fed. */
struct score_keys {
    uint32_t v[2][2][16];
};

/* Places of 16 bytes in rows of 128, permuted so that two neighbouring rows lie in different
 * banks. */
static __device__ __forceinline__ uint32_t query_place(uint32_t row, uint32_t piece)
{
    return row * KV_INDEX_DIM + ((piece ^ (row & 1) << 2) << 4);
}

/* 32 codes, 16 of each half of a row, as pairs of f16. The order of the codes is the lines' own:
 * the products take both sides in the same one. */
static __device__ __forceinline__ void unpack_codes(uint32_t (&out)[16], uint4 lo, uint4 hi)
{
    const uint32_t words[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out[2 * i] = e4m3x2_to_f16x2((uint16_t)words[i]);
        out[2 * i + 1] = e4m3x2_to_f16x2((uint16_t)(words[i] >> 16));
    }
}

/* 32 keys from place j of a page on. */
static __device__ __forceinline__ void load_keys(struct score_keys &k, const char *page, int j)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const char *row = page + (size_t)(j + tile * 16 + half * 8 + g) * KV_INDEX_DIM + 16 * t;
            unpack_codes(k.v[tile][half], load_stream(row), load_stream(row + 64));
        }
    }
}

/* A token's queries and head weights into shared memory; one group of copies. */
static __device__ __forceinline__ void fetch_query(const struct score_args &a, uint32_t token,
                                                   unsigned char *codes, float *weight)
{
    const char *q = (const char *)a.q + (size_t)token * a.n_head * KV_INDEX_DIM;
    const uint32_t to = smem_address(codes), n_piece = KV_INDEX_DIM / 16;
    for (uint32_t i = threadIdx.x; i < a.n_head * n_piece; i += SCORE_WARPS * WARP) {
        cp_async_16(to + query_place(i / n_piece, i % n_piece), q + (size_t)i * 16, true);
    }
    const char *w = (const char *)(a.weight + (size_t)token * a.n_head);
    for (uint32_t i = threadIdx.x; i < a.n_head / 4; i += SCORE_WARPS * WARP) {
        cp_async_16(smem_address(weight) + i * 16, w + (size_t)i * 16, true);
    }
}

/* Sums of 32 keys over the heads, 8 heads (the 8-column operand) at a time; lane 4 g + t gets that
 * of key g + 8 t. */
static __device__ __forceinline__ float sum_heads(const struct score_keys &k, uint32_t n_head,
                                                  const unsigned char *codes, const float *weight)
{
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float sum[4] = {};
#pragma unroll 2
    for (uint32_t h = 0; h < n_head; h += 8) {
        uint32_t q[16];
        float c[2][4] = {};
        unpack_codes(q, *(const uint4 *)(codes + query_place(h + g, t)),
                     *(const uint4 *)(codes + query_place(h + g, 4 + t)));
        float2 w = *(const float2 *)(weight + h + 2 * t);
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                mma_f16(c[tile], k.v[tile][0][i], k.v[tile][1][i], k.v[tile][0][i + 1],
                        k.v[tile][1][i + 1], q[i], q[i + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *two = c[i / 2] + i % 2 * 2;
            sum[i] += w.x * fmaxf(two[0], 0.0f) + w.y * fmaxf(two[1], 0.0f);
        }
    }
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

/* Fast path: a block scores 128 keys for some tokens; neighbours of one request share the keys. The
 * next token's queries are on their way while one is computed. */
__global__ void __launch_bounds__(SCORE_WARPS *WARP, 4) score_kernel(const struct score_args a)
{
    SHARED_DYNAMIC(unsigned char, shared);
    const int lane = (int)threadIdx.x % WARP, first = (int)blockIdx.x * SCORE_KEYS;
    const int s0 = first + (int)threadIdx.x / WARP * WARP_KEYS, j = s0 % KV_PAGE_TOKENS;
    const int s = s0 + lane / 4 + lane % 4 * 8; /* this lane's key */
    const uint32_t end = a.first_token + min(a.n_token, (blockIdx.y + 1) * a.n_each);
    const uint32_t codes_bytes = a.n_head * KV_INDEX_DIM;
    float *weights = (float *)(shared + 2 * codes_bytes);
    struct score_keys keys;
    float scale = 0.0f;
    int request = -1;
    kernel_begin();
    uint32_t token = next_token(a, a.first_token + blockIdx.y * a.n_each, end, first);
    if (token < end) fetch_query(a, token, shared, weights);
    cp_async_commit();
    for (uint32_t turn = 0; token < end; turn ^= 1) {
        const uint32_t next = next_token(a, token + 1, end, first), other = turn ^ 1;
        if (next < end) {
            fetch_query(a, next, shared + other * codes_bytes, weights + other * a.n_head);
        }
        cp_async_commit();
        if (s0 <= a.pos[token] && a.request[token] != request) {
            request = a.request[token];
            const int32_t *pages = a.page_table + (size_t)request * a.page_stride;
            const char *page = a.kv.index + (size_t)pages[s0 / KV_PAGE_TOKENS] * a.kv.page_bytes;
            load_keys(keys, page, j);
            scale = ((const float *)(page + KV_INDEX_SCALES_OFFSET))[s % KV_PAGE_TOKENS];
        }
        cp_async_wait<1>();
        __syncthreads();
        if (s0 <= a.pos[token]) {
            float sum =
                sum_heads(keys, a.n_head, shared + turn * codes_bytes, weights + turn * a.n_head);
            if (s <= a.pos[token])
                a.score[(size_t)(token - a.first_token) * a.stride + (uint32_t)s] = sum * scale;
        }
        __syncthreads();
        token = next;
    }
}

/* ---- the largest ---- */

/* Floats in the order of unsigned integers; NaN below every number, and no number is 0. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    uint32_t u = __float_as_uint(v);
    if (v != v) return 1;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct topk_args {
    float *score; /* [piece][stride] */
    uint32_t stride, first_token, topk;
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride;
    int32_t *slots, *counts;
};

/* What a block chooses from, and what becomes of it. */
enum topk_stage {
    TOPK_ROW,   /* a whole row; slots */
    TOPK_CUT,   /* a span of a longer row; keys and positions, at its start */
    TOPK_MERGE, /* what was left of all spans; slots */
};

/* What TOPK_CUT leaves of a span: keys [topk], then positions [topk]. */
static __device__ __forceinline__ uint32_t *span_keys(float *row, uint32_t span)
{
    return (uint32_t *)row + (size_t)span * TOPK_SPAN;
}

/* Where thread's key number i lies: a warp's keys are neighbours. */
template <int ITEMS> static __device__ __forceinline__ int item_place(int i)
{
    return (int)threadIdx.x / WARP * (ITEMS * WARP) + i * WARP + (int)threadIdx.x % WARP;
}

/* The keys, 0 beyond the end. `n` is the number of scores of the row. */
template <int ITEMS, enum topk_stage STAGE>
static __device__ __forceinline__ void load_items(uint32_t (&key)[ITEMS], float *row, int n,
                                                  uint32_t topk)
{
    const int begin = STAGE == TOPK_CUT ? (int)blockIdx.y * TOPK_SPAN : 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int at = begin + item_place<ITEMS>(i);
        key[i] = 0;
        if (STAGE != TOPK_MERGE) {
            if (at < n) key[i] = order_key(row[at]);
            continue;
        }
        const uint32_t span = (uint32_t)at / topk, k = (uint32_t)at % topk;
        const int n_left = n - (int)span * TOPK_SPAN;
        if ((int)k < n_left) key[i] = span_keys(row, span)[k];
    }
}

/* Sums over the threads before this one; *all over all of them. `scratch` holds one a warp; a
 * barrier is on the way. */
static __device__ __forceinline__ int sum_before(int v, int *scratch, int *all)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int sum = v;
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        int x = shfl_up(sum, d);
        if (lane >= d) sum += x;
    }
    if (lane == WARP - 1) scratch[warp] = sum;
    __syncthreads();
    int warps = scratch[lane];
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        int x = shfl_up(warps, d);
        if (lane >= d) warps += x;
    }
    *all = shfl(warps, WARP - 1);
    const int before = shfl(warps, warp > 0 ? warp - 1 : 0);
    return sum - v + (warp > 0 ? before : 0);
}

struct topk_shared {
    int bins[N_BIN];
    int warps[TOPK_WARPS];
    uint32_t prefix;
    int rest;
};

/* The bin, counted from the highest, that the `want`-th largest is in: to s.prefix; and how many
 * are wanted of it: to s.rest. Leaves the bins empty. */
static __device__ __forceinline__ void find_bin(struct topk_shared &s, int want, uint32_t prefix,
                                                int shift)
{
    static_assert(N_BIN == 2 * TOPK_THREADS, "two bins a thread");
    const int high = N_BIN - 1 - 2 * (int)threadIdx.x;
    const int n_high = s.bins[high], n_low = s.bins[high - 1];
    int all;
    const int before = sum_before(n_high + n_low, s.warps, &all);
    s.bins[high] = s.bins[high - 1] = 0;
    if (before < want && want <= before + n_high + n_low) {
        const bool in_high = want <= before + n_high;
        s.prefix = prefix | (uint32_t)(in_high ? high : high - 1) << shift;
        s.rest = want - before - (in_high ? 0 : n_high);
    }
    __syncthreads();
}

/* The key of the `want`-th largest, and in *n_equal how many of its equals are wanted. */
template <int ITEMS>
static __device__ __forceinline__ uint32_t find_threshold(const uint32_t (&key)[ITEMS], int want,
                                                          int *n_equal)
{
    __shared__ struct topk_shared s;
    uint32_t prefix = 0;
    for (int i = (int)threadIdx.x; i < N_BIN; i += TOPK_THREADS) s.bins[i] = 0;
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < 3; pass++) { /* of 11, 11 and 10 bits */
        const int shift = pass == 0 ? 32 - BIN_BITS : pass == 1 ? 32 - 2 * BIN_BITS : 0;
        const uint32_t mask = pass == 0 ? 0 : 0xffffffffu << (pass == 1 ? 32 - BIN_BITS : 10);
        const uint32_t bits = pass == 2 ? 1023u : N_BIN - 1;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (key[i] != 0 && (key[i] & mask) == prefix)
                (void)atomicAdd(&s.bins[key[i] >> shift & bits], 1);
        }
        __syncthreads();
        find_bin(s, want, prefix, shift);
        prefix = s.prefix;
        want = s.rest;
    }
    *n_equal = want;
    return prefix;
}

/* Writes what lies above the threshold, and the first n_equal of its equals, in the order of their
 * places. */
template <int ITEMS, enum topk_stage STAGE>
static __device__ __forceinline__ void write_items(const struct topk_args &a,
                                                   const uint32_t (&key)[ITEMS], float *row,
                                                   uint32_t token, uint32_t threshold, int n_equal)
{
    __shared__ int above[TOPK_WARPS], equal[TOPK_WARPS];
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t below = (1u << lane) - 1;
    const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
    int n_above = 0, n_same = 0, all;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        n_above += key[i] > threshold;
        n_same += key[i] == threshold;
    }
    /* of the warps before; lanes are counted by the ballots */
    int before_above = shfl(sum_before(n_above, above, &all), 0);
    int before_same = shfl(sum_before(n_same, equal, &all), 0);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const unsigned lanes_above = warp_ballot(key[i] > threshold);
        const unsigned lanes_same = warp_ballot(key[i] == threshold);
        const int rank = before_same + __popc(lanes_same & below);
        const bool take = key[i] > threshold || (key[i] == threshold && rank < n_equal);
        const int to = before_above + __popc(lanes_above & below) + min(rank, n_equal);
        before_above += __popc(lanes_above);
        before_same += __popc(lanes_same);
        if (!take) continue;
        int at = item_place<ITEMS>(i);
        if (STAGE == TOPK_CUT) {
            uint32_t *left = span_keys(row, blockIdx.y);
            left[to] = key[i];
            left[a.topk + (uint32_t)to] = (uint32_t)at + blockIdx.y * TOPK_SPAN;
            continue;
        }
        if (STAGE == TOPK_MERGE) {
            const uint32_t span = (uint32_t)at / a.topk, k = (uint32_t)at % a.topk;
            at = (int)span_keys(row, span)[a.topk + k];
        }
        a.slots[(size_t)token * a.topk + (uint32_t)to] = kv_slot(pages, at);
    }
}

/* A block a token; TOPK_CUT: one a span of it. */
template <int ITEMS, enum topk_stage STAGE>
__global__ void __launch_bounds__(TOPK_THREADS, ITEMS <= 8 ? 2 : 1)
    topk_kernel(const struct topk_args a)
{
    const uint32_t token = a.first_token + blockIdx.x;
    kernel_begin();
    const int n = a.pos[token] + 1, topk = (int)a.topk;
    const int begin = STAGE == TOPK_CUT ? (int)blockIdx.y * TOPK_SPAN : 0;
    if (STAGE == TOPK_CUT && (n <= topk || n <= begin)) return;
    if (STAGE != TOPK_CUT && threadIdx.x == 0) a.counts[token] = min(n, topk);
    if (n <= topk) {
        const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
        int32_t *out = a.slots + (size_t)token * a.topk;
        for (int i = (int)threadIdx.x; i < n; i += TOPK_THREADS) out[i] = kv_slot(pages, i);
        return;
    }
    float *row = a.score + (size_t)blockIdx.x * a.stride;
    uint32_t key[ITEMS];
    load_items<ITEMS, STAGE>(key, row, n, a.topk);
    int n_equal = 0;
    uint32_t threshold = 0; /* a short last span keeps everything */
    if (n - begin > topk) threshold = find_threshold<ITEMS>(key, topk, &n_equal);
    write_items<ITEMS, STAGE>(a, key, row, token, threshold, n_equal);
}

template <enum topk_stage STAGE>
static fathom_err launch_topk(struct cuda_backend *c, const struct topk_args &k, dim3 grid,
                              uint32_t n_item)
{
    const uint32_t each = ceil_div(n_item, TOPK_THREADS);
    ASSERT(each <= TOPK_ITEMS_MAX);
    void (*kernel)(struct topk_args) = topk_kernel<TOPK_ITEMS_MAX, STAGE>;
    if (each <= 4) {
        kernel = topk_kernel<4, STAGE>;
    } else if (each <= 8) {
        kernel = topk_kernel<8, STAGE>;
    } else if (each <= 16) {
        kernel = topk_kernel<16, STAGE>;
    }
    return cuda_launch(c, "index_topk", kernel, grid, TOPK_THREADS, 0, k);
}

static fathom_err run_topk(struct cuda_backend *c, const struct topk_args &k, uint32_t n_token,
                           uint32_t max_context)
{
    const uint32_t n_span = ceil_div(max_context, TOPK_SPAN);
    if (n_span <= 1) return launch_topk<TOPK_ROW>(c, k, dim3(n_token), max_context);
    TRY(cuda_launch(c, "index_topk", topk_kernel<TOPK_ITEMS_MAX, TOPK_CUT>, dim3(n_token, n_span),
                    TOPK_THREADS, 0, k));
    return launch_topk<TOPK_MERGE>(c, k, dim3(n_token), n_span * k.topk);
}

static fathom_err run_scores(struct cuda_backend *c, const struct score_args &s,
                             uint32_t max_context)
{
    const bool tensor_cores = c->fast && s.kv.type != KV_TYPE_F32 && s.n_head % 8 == 0;
    const uint32_t n_tile = ceil_div(max_context, SCORE_KEYS);
    if (!tensor_cores) {
        return cuda_launch(c, "index scores", score_float_kernel, dim3(n_tile, s.n_token), THREADS,
                           0, s);
    }
    return cuda_launch(c, "index scores", score_kernel, dim3(n_tile, ceil_div(s.n_token, s.n_each)),
                       SCORE_WARPS * WARP, 2 * s.n_head * (KV_INDEX_DIM + sizeof(float)), s);
}

bool cuda_topk_fits(uint32_t topk, uint32_t max_context)
{
    const uint32_t n_span = ceil_div(max_context, TOPK_SPAN);
    return n_span <= 1 || (topk <= TOPK_SPAN / 2 && n_span * topk <= TOPK_SPAN);
}

fathom_err cuda_index_topk(struct backend *b, const struct index_topk_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    struct score_args s = {};
    s.q = a->query->q;
    s.f = a->query->index_f;
    s.weight = a->query->index_weight;
    s.n_head = c->c.index_n_head;
    s.pos = a->batch->pos;
    s.request = a->batch->request;
    s.page_table = a->batch->page_table;
    s.page_stride = a->batch->page_stride;
    s.kv = kv_layer_of(a->kv, a->layer);
    s.score = c->index_score;
    s.stride = cuda_score_stride(&c->c, a->batch->max_context);
    struct topk_args k = {
        c->index_score, s.stride,     0,           c->c.index_topk, s.pos, s.request, s.page_table,
        s.page_stride,  a->select->i, a->select->n};
    s.topk = c->c.index_topk;
    const uint32_t n_token = a->batch->n_token, max_context = a->batch->max_context;
    const uint32_t room = (uint32_t)(c->score_floats / s.stride);
    s.n_each = n_token <= SCORE_ALONE_MAX ? 1 : SCORE_TOKENS;
    for (uint32_t t = 0; t < n_token; t += room) {
        s.first_token = k.first_token = t;
        s.n_token = n_token - t < room ? n_token - t : room;
        TRY(run_scores(c, s, max_context));
        TRY(run_topk(c, k, s.n_token, max_context));
    }
    return FATHOM_OK;
}

/* index.cu - index scores and the choice of the largest
 *
 * Scores of a piece of the tokens go to scratch, then one block a token finds the threshold by
 * four passes of 8 bits over order-preserving keys and writes what lies above it, and as many of
 * the equal ones as are still wanted, in ascending position. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"

enum { THREADS = 256, TOPK_THREADS = 1024, SCORE_KEYS = 128 };

struct score_args {
    const uint8_t *q;    /* [T][heads][128], fast path */
    const float *f;      /* the same, float path */
    const float *weight; /* [T][heads] */
    uint32_t n_head, first_token;
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride;
    struct kv_layer kv;
    float *score; /* [piece][stride] */
    uint32_t stride;
};

/* Float path: one warp a key. */
__global__ void __launch_bounds__(THREADS) score_float_kernel(const struct score_args a)
{
    const uint32_t token = a.first_token + blockIdx.y;
    const int lane = (int)threadIdx.x % WARP;
    kernel_begin();
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

/* Fast path: a warp scores 16 keys (the 16-row operand) against groups of 8 heads. */
__global__ void __launch_bounds__(THREADS) score_kernel(const struct score_args a)
{
    const uint32_t token = a.first_token + blockIdx.y;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4, s0 = (int)blockIdx.x * SCORE_KEYS + warp * 16;
    kernel_begin();
    if (s0 > a.pos[token]) return;
    const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
    const char *block = a.kv.index + (size_t)pages[s0 / KV_PAGE_TOKENS] * a.kv.page_bytes;
    const int j = s0 % KV_PAGE_TOKENS;
    const char *key0 = block + (size_t)(j + g) * KV_INDEX_DIM + 16 * t;
    const char *key1 = key0 + 8 * KV_INDEX_DIM;
    uint4 lo0 = load_stream(key0), hi0 = load_stream(key0 + 64);
    uint4 lo1 = load_stream(key1), hi1 = load_stream(key1 + 64);
    const uint8_t *q = a.q + (size_t)token * a.n_head * KV_INDEX_DIM;
    const float *w = a.weight + (size_t)token * a.n_head;
    float sum0 = 0.0f, sum1 = 0.0f;
    for (uint32_t h = 0; h < a.n_head; h += 8) {
        const uint8_t *col = q + (h + (uint32_t)g) * KV_INDEX_DIM + 16 * t;
        uint4 lo = *(const uint4 *)col, hi = *(const uint4 *)(col + 64);
        float c[4] = {};
        mma_e4m3(c, lo0.x, lo1.x, hi0.x, hi1.x, lo.x, hi.x);
        mma_e4m3(c, lo0.y, lo1.y, hi0.y, hi1.y, lo.y, hi.y);
        mma_e4m3(c, lo0.z, lo1.z, hi0.z, hi1.z, lo.z, hi.z);
        mma_e4m3(c, lo0.w, lo1.w, hi0.w, hi1.w, lo.w, hi.w);
        float w0 = w[h + 2 * (uint32_t)t], w1 = w[h + 2 * (uint32_t)t + 1];
        sum0 += w0 * fmaxf(c[0], 0.0f) + w1 * fmaxf(c[1], 0.0f);
        sum1 += w0 * fmaxf(c[2], 0.0f) + w1 * fmaxf(c[3], 0.0f);
    }
    sum0 += shfl_xor(sum0, 1);
    sum0 += shfl_xor(sum0, 2);
    sum1 += shfl_xor(sum1, 1);
    sum1 += shfl_xor(sum1, 2);
    const float *scale = (const float *)(block + KV_INDEX_SCALES_OFFSET) + j;
    float *out = a.score + (size_t)blockIdx.y * a.stride + s0;
    if (t == 0 && s0 + g <= a.pos[token]) out[g] = sum0 * scale[g];
    if (t == 0 && s0 + g + 8 <= a.pos[token]) out[g + 8] = sum1 * scale[g + 8];
}

/* Floats in the order of unsigned integers; NaN below everything. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    uint32_t u = __float_as_uint(v);
    if (v != v) return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct topk_args {
    const float *score;
    uint32_t stride, first_token, topk;
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride;
    int32_t *slots, *counts;
};

/* The key of the `want`-th largest of n, and in *n_equal how many of its equals are wanted. */
static __device__ uint32_t find_threshold(const float *score, int n, int want, int *n_equal)
{
    __shared__ int bins[256];
    __shared__ uint32_t prefix;
    __shared__ int rest;
    if (threadIdx.x == 0) {
        prefix = 0;
        rest = want;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < 256; i += TOPK_THREADS) bins[i] = 0;
        __syncthreads();
        uint32_t mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        for (int i = (int)threadIdx.x; i < n; i += TOPK_THREADS) {
            uint32_t key = order_key(score[i]);
            if ((key & mask) == (prefix & mask)) atomicAdd(&bins[key >> shift & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bin = 255;
            while (bin > 0 && bins[bin] < rest) rest -= bins[bin--];
            prefix |= (uint32_t)bin << shift;
        }
        __syncthreads();
    }
    *n_equal = rest;
    return prefix;
}

/* One block a token. */
__global__ void __launch_bounds__(TOPK_THREADS) topk_kernel(const struct topk_args a)
{
    __shared__ int above[TOPK_THREADS / WARP], equal[TOPK_THREADS / WARP];
    const uint32_t token = a.first_token + blockIdx.x;
    kernel_begin();
    const int n = a.pos[token] + 1, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
    int32_t *out = a.slots + (size_t)token * a.topk;
    if (threadIdx.x == 0) a.counts[token] = min(n, (int)a.topk);
    if (n <= (int)a.topk) {
        for (int i = (int)threadIdx.x; i < n; i += TOPK_THREADS) out[i] = kv_slot(pages, i);
        return;
    }
    const float *score = a.score + (size_t)blockIdx.x * a.stride;
    int n_equal;
    uint32_t threshold = find_threshold(score, n, (int)a.topk, &n_equal);
    int taken = 0, seen_equal = 0;
    for (int base = 0; base < n; base += TOPK_THREADS) {
        int i = base + (int)threadIdx.x;
        uint32_t key = i < n ? order_key(score[i]) : 0;
        bool is_equal = i < n && key == threshold, is_above = i < n && key > threshold;
        unsigned equal_lanes = warp_ballot(is_equal);
        if (lane == 0) equal[warp] = __popc(equal_lanes);
        __syncthreads();
        int rank = seen_equal + __popc(equal_lanes & ((1u << lane) - 1)), all = seen_equal;
        for (int w = 0; w < TOPK_THREADS / WARP; w++) {
            if (w < warp) rank += equal[w];
            all += equal[w];
        }
        bool take = is_above || (is_equal && rank < n_equal);
        unsigned lanes = warp_ballot(take);
        if (lane == 0) above[warp] = __popc(lanes);
        __syncthreads();
        int at = taken + __popc(lanes & ((1u << lane) - 1)), sum = taken;
        for (int w = 0; w < TOPK_THREADS / WARP; w++) {
            if (w < warp) at += above[w];
            sum += above[w];
        }
        if (take) out[at] = kv_slot(pages, i);
        taken = sum;
        seen_equal = all;
        __syncthreads();
    }
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
    s.stride = ceil_div(c->c.max_context, 64) * 64;
    struct topk_args k = {
        c->index_score, s.stride,     0,           c->c.index_topk, s.pos, s.request, s.page_table,
        s.page_stride,  a->select->i, a->select->n};
    bool tensor_cores = c->fast && s.kv.type != KV_TYPE_F32 && s.n_head % 8 == 0;
    uint32_t max_context = a->batch->max_context;
    for (uint32_t t = 0; t < a->batch->n_token; t += c->score_rows) {
        uint32_t n = a->batch->n_token - t < c->score_rows ? a->batch->n_token - t : c->score_rows;
        s.first_token = k.first_token = t;
        dim3 grid(ceil_div(max_context, SCORE_KEYS), n);
        TRY(cuda_launch(c, "index scores", tensor_cores ? score_kernel : score_float_kernel, grid,
                        THREADS, 0, s));
        TRY(cuda_launch(c, "index_topk", topk_kernel, dim3(n), TOPK_THREADS, 0, k));
    }
    return FATHOM_OK;
}

/* index.cu - index scores on the float path, and the choice of the largest
 *
 * Scores of a piece of the tokens go to scratch, a row a token. A block of topk_kernel holds up to
 * TOPK_SPAN of them in registers, as keys that order like integers: three passes over histograms of
 * 11 bits find the key of the last one wanted and how many of its equals are wanted, and one more
 * writes in ascending position. A longer row is cut into spans: a block each leaves the span's
 * largest over the start of the span, and one block chooses among those. */
#include "backend/cuda/generic/front.cuh"
#include "backend/cuda/generic/index_score.cuh"
#include "backend/cuda/generic/index_topk.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/index_choose.cuh"
#include "backend/cuda/sm90/index_score.cuh"
#include "backend/cuda/sm90/index_score_alone.cuh"

enum {
    THREADS = 256,
    TOPK_THREADS = 512,
    TOPK_WARPS = TOPK_THREADS / WARP,
    TOPK_ITEMS_MAX = TOPK_SPAN / TOPK_THREADS, /* keys a thread holds */
    BIN_BITS = 11,
    N_BIN = 1 << BIN_BITS,
};
static_assert(KV_INDEX_DIM == 4 * WARP, "float path: four values of a key a lane");
static_assert(2 * BIN_BITS + 10 == 32, "three passes see every bit of a key");
static_assert(TOPK_SPAN % TOPK_THREADS == 0, "every thread holds TOPK_ITEMS_MAX keys of a span");
static_assert(TOPK_WARPS <= WARP, "a lane reads a warp's sum");

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

/* ---- the largest ---- */

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
        DCHECK(topk <= TOPK_SPAN / 2);
        const int n_left = n - (int)span * TOPK_SPAN;
        if ((int)k < n_left) key[i] = span_keys(row, span)[k];
    }
}

/* The warp's sum, and that of the warps before; a barrier is on the way. `sums` holds one a warp.
 */
static __device__ __forceinline__ int sum_warps(int v, int *sums, int *mine)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    *mine = warp_total(v);
    if (lane == 0) sums[warp] = *mine;
    __syncthreads();
    return warp_total(lane < warp ? sums[lane] : 0);
}

struct topk_shared {
    alignas(16) int bins[N_BIN];
    int sums[2][TOPK_WARPS];
    uint32_t prefix;
    int want;  /* of the keys of the bin last found */
    int n_key; /* that it holds */
};

/* The bin, counted from the highest, that the `want`-th largest is in, to s.prefix. Leaves the bins
 * empty. */
static __device__ __forceinline__ void find_bin(struct topk_shared &s, int want, uint32_t prefix,
                                                int shift)
{
    static_assert(N_BIN == 4 * TOPK_THREADS, "four bins a thread");
    const int lane = (int)threadIdx.x % WARP, low = N_BIN - 4 - 4 * (int)threadIdx.x;
    int4 *const place = (int4 *)(s.bins + low);
    DCHECK(want >= 1);
    const int4 n = *place;
    int mine, sum = n.x + n.y + n.z + n.w;
    int before = sum_warps(sum, s.sums[0], &mine);
    *place = make_int4(0, 0, 0, 0);
    if (before < want && want <= before + mine) { /* one warp's bins hold it */
        const int own = sum;
#pragma unroll
        for (int d = 1; d < WARP; d <<= 1) {
            const int x = shfl_up(sum, d);
            if (lane >= d) sum += x;
        }
        before += sum - own;
        const int counts[4] = {n.w, n.z, n.y, n.x};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (before < want && want <= before + counts[i]) {
                s.prefix = prefix | (uint32_t)(low + 3 - i) << shift;
                s.want = want - before;
                s.n_key = counts[i];
            }
            before += counts[i];
        }
    }
    __syncthreads();
}

/* To s: the key of the `want`-th largest, how many keys equal it and how many of those are wanted.
 */
template <int ITEMS>
static __device__ __forceinline__ void find_threshold(struct topk_shared &s,
                                                      const uint32_t (&key)[ITEMS], int want)
{
    uint32_t prefix = 0;
    ((int4 *)s.bins)[threadIdx.x] = make_int4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < 3; pass++) { /* of 11, 11 and 10 bits */
        const int shift = pass == 0 ? 32 - BIN_BITS : pass == 1 ? 32 - 2 * BIN_BITS : 0;
        const uint32_t bits = pass == 2 ? 1023u : N_BIN - 1;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const bool counts = pass == 0   ? key[i] != 0
                                : pass == 1 ? key[i] >> (32 - BIN_BITS) == prefix >> (32 - BIN_BITS)
                                            : key[i] >> 10 == prefix >> 10;
            if (counts) (void)atomicAdd(&s.bins[key[i] >> shift & bits], 1);
        }
        __syncthreads();
        find_bin(s, want, prefix, shift);
        prefix = s.prefix;
        want = s.want;
    }
}

/* Where a key goes that was taken as the `to`-th, `i` being the thread's number of it. */
template <int ITEMS, enum topk_stage STAGE>
static __device__ __forceinline__ void put_item(const struct topk_args &a, const int32_t *pages,
                                                float *row, uint32_t token, uint32_t key, int i,
                                                int to)
{
    uint32_t at = (uint32_t)item_place<ITEMS>(i);
    DCHECK(to >= 0 && (uint32_t)to < a.topk);
    if (STAGE == TOPK_CUT) {
        uint32_t *left = span_keys(row, blockIdx.y);
        left[to] = key;
        left[a.topk + (uint32_t)to] = at + blockIdx.y * TOPK_SPAN;
        return;
    }
    if (STAGE == TOPK_MERGE) at = span_keys(row, at / a.topk)[a.topk + at % a.topk];
    a.slots[(size_t)token * a.topk + (uint32_t)to] =
        pages[at / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + (int)(at % KV_PAGE_TOKENS);
}

/* Writes the keys from `threshold` on, of its equals the first n_equal, in the order of their
 * places. EQUALS: not all of them are wanted. */
template <int ITEMS, enum topk_stage STAGE, bool EQUALS>
static __device__ __forceinline__ void
write_items(const struct topk_args &a, struct topk_shared &s, const uint32_t (&key)[ITEMS],
            const int32_t *pages, float *row, uint32_t token, uint32_t threshold, int n_equal)
{
    const uint32_t below = (1u << threadIdx.x % WARP) - 1;
    int n_take = 0, n_same = 0, mine, before_same = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        n_take += EQUALS ? key[i] > threshold : key[i] >= threshold;
        if (EQUALS) n_same += key[i] == threshold;
    }
    int before = sum_warps(n_take, s.sums[0], &mine);
    if (EQUALS) before_same = sum_warps(n_same, s.sums[1], &mine);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        bool take = EQUALS ? key[i] > threshold : key[i] >= threshold;
        const unsigned lanes = warp_ballot(take);
        int to = before + __popc(lanes & below);
        before += __popc(lanes);
        if (EQUALS) {
            const unsigned same = warp_ballot(key[i] == threshold);
            const int i_same = before_same + __popc(same & below);
            before_same += __popc(same);
            take = take || (key[i] == threshold && i_same < n_equal);
            to += min(i_same, n_equal);
        }
        if (take) put_item<ITEMS, STAGE>(a, pages, row, token, key[i], i, to);
    }
}

/* A block a token; TOPK_CUT: one a span of it. */
template <int ITEMS, enum topk_stage STAGE>
__global__ void __launch_bounds__(TOPK_THREADS, ITEMS <= 8    ? 3
                                                : ITEMS <= 16 ? 2
                                                              : 1)
    topk_kernel(const struct topk_args a)
{
    __shared__ struct topk_shared s;
    const uint32_t token = a.first_token + blockIdx.x;
    const uint32_t to = topk_row(a, token);
    dependency_wait();
    dependency_release(); /* launch.cuh */
    const int n = a.pos[token] + 1, topk = (int)a.topk;
    const int begin = STAGE == TOPK_CUT ? (int)blockIdx.y * TOPK_SPAN : 0;
    const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
    if (STAGE == TOPK_CUT && (n <= topk || n <= begin)) return;
    if (STAGE != TOPK_CUT && threadIdx.x == 0) a.counts[to] = min(n, topk);
    if (n <= topk) {
        int32_t *out = a.slots + (size_t)to * a.topk;
        for (int i = (int)threadIdx.x; i < n; i += TOPK_THREADS) out[i] = kv_slot(pages, i);
        return;
    }
    float *row = a.score + (size_t)blockIdx.x * a.stride;
    uint32_t key[ITEMS], threshold = 1; /* a short last span keeps everything */
    bool equals = false;
    load_items<ITEMS, STAGE>(key, row, n, a.topk);
    if (n - begin > topk) {
        find_threshold(s, key, topk);
        DCHECK(s.want >= 1 && s.want <= s.n_key);
        threshold = s.prefix;
        equals = s.want < s.n_key;
    }
    if (equals) {
        write_items<ITEMS, STAGE, true>(a, s, key, pages, row, to, threshold, s.want);
    } else {
        write_items<ITEMS, STAGE, false>(a, s, key, pages, row, to, threshold, 0);
    }
}

template <enum topk_stage STAGE>
static fathom_err launch_topk(struct cuda_backend *c, const struct topk_args &k, dim3 grid,
                              uint32_t n_item)
{
    const uint32_t each = ceil_div(n_item, TOPK_THREADS);
    ASSERT(each <= TOPK_ITEMS_MAX);
    void (*kernel)(struct topk_args) = topk_kernel<TOPK_ITEMS_MAX, STAGE>;
    if (each <= 8) {
        kernel = topk_kernel<8, STAGE>;
    } else if (each <= 16) {
        kernel = topk_kernel<16, STAGE>;
    } else if (each <= 32) {
        kernel = topk_kernel<32, STAGE>;
    }
    return cuda_launch(c, "index_topk", kernel, grid, TOPK_THREADS, 0, k);
}

static fathom_err run_topk(struct cuda_backend *c, const struct topk_args &k, uint32_t n_token,
                           uint32_t max_context)
{
    const uint32_t n_span = ceil_div(max_context, TOPK_SPAN);
    ASSERT(cuda_topk_fits(k.topk, max_context) && k.stride >= max_context);
    if (n_span <= 1) return launch_topk<TOPK_ROW>(c, k, dim3(n_token), max_context);
    TRY(cuda_launch(c, "index_topk", topk_kernel<TOPK_ITEMS_MAX, TOPK_CUT>, dim3(n_token, n_span),
                    TOPK_THREADS, 0, k));
    return launch_topk<TOPK_MERGE>(c, k, dim3(n_token), n_span * k.topk);
}

static fathom_err run_scores(struct cuda_backend *c, const struct score_args &s,
                             uint32_t max_context)
{
    ASSERT((uint64_t)s.n_token * s.stride <= c->score_floats);
    if (c->fast && index_score_takes(s)) return index_score_fast(c, s, max_context);
    return cuda_launch(c, "index scores", score_float_kernel,
                       dim3(ceil_div(max_context, SCORE_KEYS), s.n_token), THREADS, 0, s);
}

bool cuda_topk_fits(uint32_t topk, uint32_t max_context)
{
    const uint32_t n_span = ceil_div(max_context, TOPK_SPAN);
    return n_span <= 1 || (topk <= TOPK_SPAN / 2 && n_span * topk <= TOPK_SPAN);
}

/* The rows that n_token tokens attend to; of a rank that has no token, nothing. */
static fathom_err choose_rows(struct cuda_backend *c, const struct index_topk_args *a,
                              struct score_args s, struct topk_args k, uint32_t n_token)
{
    const uint32_t max_context = a->batch->max_context;
    const bool ahead = c->recording && !a->owned;
    const uint64_t n_row = c->score_floats / s.stride;
    const uint32_t room = n_row < SCORE90_TOKENS_MAX ? (uint32_t)n_row : SCORE90_TOKENS_MAX;
    ASSERT(room > 0); /* else no token would be scored */
    s.n_token = n_token;
    const bool alone = index_score_alone_takes(c, s, a->batch->n_request);
    const bool few = alone && n_token <= room && index_choose_takes(c, n_token, max_context);
    c->query_early = alone && !a->owned;
    for (uint32_t t = 0; t < n_token; t += room) {
        s.first_token = k.first_token = t;
        s.n_token = n_token - t < room ? n_token - t : room;
        TRY(alone ? index_score_alone(c, s, max_context, n_token, ahead)
                  : run_scores(c, s, max_context));
        TRY(few ? index_choose(c, k, n_token, max_context, ahead)
                : run_topk(c, k, s.n_token, max_context));
    }
    return FATHOM_OK;
}

fathom_err cuda_index_topk(struct backend *b, const struct index_topk_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_index_topk(&c->c, a);
    ASSERT(a->query->kind == BUFFER_QUERY && a->select->kind == BUFFER_SELECT);
    struct batch rows = *a->batch;
    if (a->owned) front_own_batch(c, a->batch, &rows);
    struct score_args s = {};
    s.q = a->query->q;
    s.f = a->query->index_f;
    s.weight = a->query->index_weight;
    s.n_head = c->c.index_n_head;
    s.pos = rows.pos;
    s.request = rows.request;
    s.page_table = a->batch->page_table;
    s.page_stride = a->batch->page_stride;
    s.kv = kv_layer_of(a->kv, a->layer);
    s.n_page = a->kv->n_page;
    s.score = c->index_score;
    s.stride = cuda_score_stride(&c->c, a->batch->max_context);
    s.topk = c->c.index_topk;
    struct topk_args k = {};
    k.score = s.score;
    k.stride = s.stride;
    k.topk = s.topk;
    k.pos = s.pos;
    k.request = s.request;
    k.page_table = s.page_table;
    k.page_stride = s.page_stride;
    k.slots = a->select->i;
    k.counts = a->select->n;
    k.run = row_run(a->batch->n_token);
    k.rank = c->peers.rank;
    k.world = a->owned ? c->peers.world : 1;
    TRY(choose_rows(c, a, s, k, rows.n_token));
    if (!a->owned) return FATHOM_OK;
    const struct row_array selected[] = {{k.slots, k.topk * 4}, {k.counts, 4}};
    return cuda_spread(c, selected, 2, a->batch->n_token);
}

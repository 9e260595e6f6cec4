/* index_score.cu - index scores on the FP8 tensor cores of sm_90a
 *
 * score[token][key] = scale of the key * sum over 64 heads of weight * max(query . key, 0)
 *
 * A unit of work is 192 keys, a page of 64 for each of three warpgroups, and a group of up to 32
 * tokens. Keys are the 64-row operand, read from shared memory into registers once for all tokens
 * of a request in the unit; the heads of two tokens are 128 columns. A warp of its own lists what
 * is wanted, copies keys and queries ahead, and tells the warpgroups with each pair of tokens what
 * it is about. Blocks are resident: the units that hold scores are counted at the start and dealt
 * out in turn.
 *
 * A sum over heads is four chains, of the heads 8 j + 2 t and the next for t = 0 .. 3 in ascending
 * order, added as (0 + 1) + (2 + 3). */
#include "backend/cuda/sm90/index_score.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    PAGE = KV_PAGE_TOKENS,
    GROUPS = 3, /* warpgroups that multiply, a page each */
    GROUP_THREADS = 4 * WARP,
    CONSUMER_WARPS = GROUPS * 4,
    THREADS = (GROUPS + 1) * GROUP_THREADS,
    CONSUMER_REGISTERS = 152,
    PRODUCER_REGISTERS = 40,
    KEYS = GROUPS * PAGE, /* of a unit */
    HEADS = SCORE90_HEADS,
    PAIR = 2, /* tokens multiplied at a time */
    ROW_BYTES = KV_INDEX_DIM,
    PAGE_BYTES = PAGE * ROW_BYTES,
    QUERY_BYTES = HEADS * ROW_BYTES,
    WEIGHT_BYTES = HEADS * 4,
    SCALES_BYTES = PAGE * 4,
    K_STEPS = KV_INDEX_DIM / 32,
    STAGES = 7,          /* pairs under way */
    KEY_STAGES = 2,      /* units' keys under way */
    TOKENS_GROUP = WARP, /* tokens of a unit at most: a lane has one */
    TOKEN_GROUPS = 4096, /* of a call at most */
    UNITS_WANTED = 8,    /* of a block, before groups are made smaller */
};
static_assert((int)ROW_BYTES == (int)K_LINE_BYTES, "a key is a row of a permuted tile");
static_assert(PAGE == 64, "a page is the 64-row operand");
static_assert(HEADS * PAIR == 128, "columns of a product");
static_assert(TOKEN_GROUPS * TOKENS_GROUP >= SCORE90_TOKENS_MAX, "every group has a count");

struct work {
    struct score_args a;
    uint32_t group; /* tokens of a unit: a power of two */
    CUtensorMap q_map, key_map;
};

/* What a stage holds. */
struct message {
    int32_t token[PAIR], pos[PAIR]; /* -1: no second token */
    int32_t first;                  /* position of the unit's first key */
    int32_t n_page;                 /* of new keys; 0: the keys before, -1: the end */
};

struct stages {
    unsigned char keys[KEY_STAGES][GROUPS][PAGE_BYTES];
    unsigned char q[STAGES][PAIR][QUERY_BYTES];
    float weight[STAGES][PAIR][HEADS];
    float scale[KEY_STAGES][GROUPS][PAGE];
    struct message about[STAGES];
    uint64_t full[STAGES], empty[STAGES], keys_full[KEY_STAGES], keys_empty[KEY_STAGES];
    uint16_t n_tile[TOKEN_GROUPS]; /* tiles of keys that some token of the group wants */
};
static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");

/* A place in a ring of N stages. */
template <int N> struct ring_at {
    uint32_t stage, parity;
};

template <int N> static __device__ __forceinline__ void advance(struct ring_at<N> &r)
{
    if (++r.stage < N) return;
    r.stage = 0;
    r.parity ^= 1;
}

/* ---- what is wanted, and its copies ---- */

static __device__ __forceinline__ int token_pos(const struct work &w, uint32_t token)
{
    const int pos = token < w.a.n_token ? w.a.pos[w.a.first_token + token] : -1;
    return pos >= (int)w.a.topk ? pos : -1; /* others need no scores */
}

/* Every warp of the block counts. */
static __device__ __forceinline__ void count_tiles(const struct work &w, struct stages *s)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t t = threadIdx.x; t - lane < w.a.n_token; t += THREADS) {
        int last = token_pos(w, t);
        for (uint32_t d = 1; d < w.group; d <<= 1) last = max(last, shfl_xor(last, (int)d));
        if (t % w.group == 0 && t < w.a.n_token)
            s->n_tile[t / w.group] = (uint16_t)((last + KEYS) / KEYS);
    }
}

struct producer {
    struct ring_at<STAGES> at;
    struct ring_at<KEY_STAGES> keys_at;
};

/* Keys from `first` on of a request, n_page pages of them. */
static __device__ __forceinline__ void copy_keys(const struct work &w, struct stages *s,
                                                 struct producer &p, int request, int first,
                                                 int n_page)
{
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t slot = p.keys_at.stage, full = smem_address(&s->keys_full[slot]);
    const int32_t *pages = w.a.page_table + (size_t)request * w.a.page_stride + first / PAGE;
    DCHECK(n_page >= 1 && n_page <= GROUPS);
    const int page = lane < n_page ? pages[lane] : 0;
    wait_phase(&s->keys_empty[slot], p.keys_at.parity ^ 1);
    if (lane == 0) mbarrier_arrive_expect(full, (uint32_t)(n_page * (PAGE_BYTES + SCALES_BYTES)));
    __syncwarp();
    if (lane < n_page) {
        const char *block = w.a.kv.index + (size_t)page * w.a.kv.page_bytes;
        tensor_load(smem_address(s->keys[slot][lane]), &w.key_map, full, 0, 0, page);
        bulk_load(smem_address(s->scale[slot][lane]), block + KV_INDEX_SCALES_OFFSET, SCALES_BYTES,
                  full);
    }
    advance(p.keys_at);
}

/* One lane's work. */
static __device__ __forceinline__ void copy_pair(const struct work &w, struct stages *s,
                                                 uint32_t stage, const struct message &m)
{
    const uint32_t full = smem_address(&s->full[stage]);
    const int n = m.token[1] < 0 ? 1 : PAIR;
    s->about[stage] = m;
    mbarrier_arrive_expect(full, (uint32_t)(n * (QUERY_BYTES + WEIGHT_BYTES)));
#pragma unroll
    for (int i = 0; i < PAIR; i++) {
        const int token = m.token[i];
        if (i == n) break;
        DCHECK(token >= 0 && (uint32_t)token < w.a.n_token);
        tensor_load(smem_address(s->q[stage][i]), &w.q_map, full, 0, token * HEADS, 0);
        bulk_load(smem_address(s->weight[stage][i]),
                  w.a.weight + (size_t)(w.a.first_token + (uint32_t)token) * HEADS, WEIGHT_BYTES,
                  full);
    }
}

/* The tokens of a group, a lane each, that want keys from `first` on: request by request. */
static __device__ __forceinline__ void produce_unit(const struct work &w, struct stages *s,
                                                    struct producer &p, uint32_t group, int first)
{
    const uint32_t lane = threadIdx.x % WARP, token = group * w.group + lane;
    const int pos = lane < w.group ? token_pos(w, token) : -1;
    const int request = pos >= 0 ? w.a.request[w.a.first_token + token] : -1;
    uint32_t left = warp_ballot(pos >= first);
    while (left) {
        const int its = shfl(request, __ffs((int)left) - 1);
        uint32_t run = left & warp_ballot(request == its);
        left &= ~run;
        const int last = (int)warp_largest(run >> lane & 1 ? (uint32_t)pos : 0);
        int n_page = min((int)GROUPS, (last - first) / PAGE + 1);
        copy_keys(w, s, p, its, first, n_page);
        while (run) {
            const int one = __ffs((int)run) - 1;
            run &= run - 1;
            const int two = run ? __ffs((int)run) - 1 : -1;
            run &= run - 1;
            struct message m;
            m.token[0] = (int)(group * w.group) + one;
            m.token[1] = two < 0 ? -1 : (int)(group * w.group) + two;
            m.pos[0] = shfl(pos, one);
            m.pos[1] = shfl(pos, max(two, 0));
            if (two < 0) m.pos[1] = -1;
            m.first = first;
            m.n_page = n_page;
            wait_phase(&s->empty[p.at.stage], p.at.parity ^ 1);
            if (lane == 0) copy_pair(w, s, p.at.stage, m);
            __syncwarp();
            advance(p.at);
            n_page = 0;
        }
    }
}

static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    const uint32_t n_group = ceil_div(w.a.n_token, w.group);
    struct producer p = {};
    uint32_t group = 0, before = 0; /* units of the groups before */
    for (uint32_t unit = blockIdx.x;; unit += gridDim.x) {
        while (group < n_group && unit >= before + s->n_tile[group]) before += s->n_tile[group++];
        if (group == n_group) break;
        produce_unit(w, s, p, group, (int)((unit - before) * KEYS));
    }
    wait_phase(&s->empty[p.at.stage], p.at.parity ^ 1);
    if (threadIdx.x % WARP == 0) {
        s->about[p.at.stage].n_page = -1;
        mbarrier_arrive(smem_address(&s->full[p.at.stage]));
    }
}

/* ---- products ---- */

/* A warp's 16 keys as the 64-row operand, and the scale of the key whose scores the lane gets. */
struct warp_keys {
    uint32_t v[K_STEPS][4];
    float scale;
};

static __device__ __forceinline__ void load_keys(struct warp_keys &k, const struct stages *s,
                                                 uint32_t slot, int group)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % 4;
    const int row = warp * 16 + lane % 16; /* matrices: rows 0 to 7, 8 to 15, then 16 bytes on */
    const uint32_t at = smem_address(s->keys[slot][group]) + (uint32_t)(row * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < K_STEPS; i++)
        ldmatrix_x4(k.v[i], at + (uint32_t)(((2 * i + lane / 16) ^ (row & 7)) << 4));
    k.scale = s->scale[slot][group][warp * 16 + lane / 4 + lane % 2 * 8];
}

/* The sums of two tokens over the heads of rows g and g + 8: lane 4 g + t gets that of row
 * g + 8 (t % 2) and token t / 2. */
static __device__ __forceinline__ float sum_heads(const float (&c)[64],
                                                  const float (&weight)[PAIR][HEADS])
{
    const int t = (int)threadIdx.x % 4;
    float sum[4] = {}; /* token, half of the rows */
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int i = 0; i < PAIR; i++) {
            const float2 w = *(const float2 *)(weight[i] + 8 * j + 2 * t);
            const float *four = c + 4 * (8 * i + j);
            sum[2 * i] = fmaf(w.x, fmaxf(four[0], 0.0f), sum[2 * i]);
            sum[2 * i + 1] = fmaf(w.x, fmaxf(four[2], 0.0f), sum[2 * i + 1]);
            sum[2 * i] = fmaf(w.y, fmaxf(four[1], 0.0f), sum[2 * i]);
            sum[2 * i + 1] = fmaf(w.y, fmaxf(four[3], 0.0f), sum[2 * i + 1]);
        }
    }
    const bool odd = t & 1, high = t & 2;
    const float a = (odd ? sum[1] : sum[0]) + shfl_xor(odd ? sum[0] : sum[1], 1);
    const float b = (odd ? sum[3] : sum[2]) + shfl_xor(odd ? sum[2] : sum[3], 1);
    return (high ? b : a) + shfl_xor(high ? a : b, 2);
}

static __device__ __forceinline__ void consume(const struct work &w, struct stages *s, int group)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % 4;
    const int mine = group * PAGE + warp * 16 + lane / 4 + lane % 2 * 8, i = lane % 4 / 2;
    struct ring_at<STAGES> at = {
    };
    struct ring_at<KEY_STAGES> keys_at = {
    };
    struct warp_keys keys = {};
    for (;; advance(at)) {
        wait_phase(&s->full[at.stage], at.parity);
        const struct message m = s->about[at.stage];
        if (m.n_page < 0) return;
        if (m.n_page > 0) {
            wait_phase(&s->keys_full[keys_at.stage], keys_at.parity);
            if (group < m.n_page) load_keys(keys, s, keys_at.stage, group);
            __syncwarp();
            if (lane == 0) mbarrier_arrive(smem_address(&s->keys_empty[keys_at.stage]));
            advance(keys_at);
        }
        if (m.first + group * PAGE <= max(m.pos[0], m.pos[1])) {
            const uint64_t q = wgmma_operand(smem_address(s->q[at.stage]));
            float c[64];
            wgmma_fence();
            wgmma_e4m3_start(c, keys.v[0], q);
#pragma unroll
            for (int k = 1; k < K_STEPS; k++) wgmma_e4m3_add(c, keys.v[k], q + (uint64_t)(2 * k));
            wgmma_commit();
            wgmma_wait(c);
            const float sum = sum_heads(c, s->weight[at.stage]) * keys.scale;
            const int token = i ? m.token[1] : m.token[0], key = m.first + mine;
            if (key <= (i ? m.pos[1] : m.pos[0]))
                w.a.score[(size_t)(uint32_t)token * w.a.stride + (uint32_t)key] = sum;
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(smem_address(&s->empty[at.stage]));
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    index_score_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&w.q_map);
        tensor_map_prefetch(&w.key_map);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        for (int i = 0; i < KEY_STAGES; i++) {
            mbarrier_init(smem_address(&s->keys_full[i]), 1);
            mbarrier_init(smem_address(&s->keys_empty[i]), CONSUMER_WARPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    kernel_begin();
    count_tiles(w, s);
    __syncthreads();
    if (group == GROUPS) {
        registers_lower<PRODUCER_REGISTERS>();
        if (threadIdx.x / WARP == CONSUMER_WARPS) produce(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume(w, s, group);
    }
#endif
}

fathom_err index_score_sm90(struct cuda_backend *c, const struct score_args &a,
                            uint32_t max_context)
{
    ASSERT(a.n_head == HEADS && a.n_token >= 1 && a.n_token <= SCORE90_TOKENS_MAX);
    ASSERT((uintptr_t)a.q % 16 == 0 && (uintptr_t)a.weight % 16 == 0 && a.n_page >= 1);
    ASSERT(a.kv.type != KV_TYPE_F32 && a.stride >= max_context && c->limits.n_sm > 0);
    const uint32_t n_tile = ceil_div(max_context, KEYS), wanted = UNITS_WANTED * c->limits.n_sm;
    struct work w = {};
    w.a = a;
    w.group = TOKENS_GROUP;
    while (w.group > 1 && (uint64_t)ceil_div(a.n_token, w.group) * n_tile < wanted) w.group /= 2;
    const uint32_t n_group = ceil_div(a.n_token, w.group);
    ASSERT(n_group <= TOKEN_GROUPS);
    const uint8_t *q = a.q + (size_t)a.first_token * QUERY_BYTES;
    const uint32_t n_row = a.n_token * HEADS;
    CU_TRY(c, make_map(&w.q_map, q, ROW_BYTES, n_row, 1, (size_t)n_row * ROW_BYTES, HEADS),
           "index scores");
    CU_TRY(c, make_map(&w.key_map, a.kv.index, ROW_BYTES, PAGE, a.n_page, a.kv.page_bytes, PAGE),
           "index scores");
    const uint64_t n_unit = (uint64_t)n_group * n_tile;
    const uint32_t n_block = n_unit < c->limits.n_sm ? (uint32_t)n_unit : c->limits.n_sm;
    return cuda_launch(c, "index scores", index_score_sm90_kernel, dim3(n_block), THREADS,
                       sizeof(struct stages), w);
}

cudaError_t index_score_sm90_init(void)
{
    return raise_shared(index_score_sm90_kernel, sizeof(struct stages));
}

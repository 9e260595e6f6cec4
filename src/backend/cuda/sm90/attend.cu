/* attend.cu - attention on tensor cores: 16 heads of a token over groups of 64 cache rows
 *
 * Rows are taken in groups of 64 in ascending position. Four groups are a unit: its outputs are
 * summed up in registers, relative to the largest score so far. Units are merged one after the
 * other into the result. Where up to 8 tokens have 2 to 8 units each, a unit has two blocks, which
 * make half of the output's columns each; blocks of a half are a cluster that merges them. Else a
 * block takes a whole token, or one unit (attend_by_units), which combine_kernel merges. The
 * arithmetic is the same in each case, so the bits do not depend on how many tokens run. Groups are
 * computed in attend_group.cuh. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/attend.cuh"
#include "backend/cuda/sm90/attend_group.cuh"

/* What a block takes: a unit, for combine_kernel to merge; half of a unit's columns, which its
 * cluster merges; or all of a token. */
enum piece { PIECE_UNIT, PIECE_CLUSTER, PIECE_TOKEN };

enum {
    CLUSTER_PARTS = 2, /* blocks that share the columns of a unit */
    STAGES = 2,        /* groups of rows in shared memory */
    DEEP_STAGES = UNIT /* the same where tokens are fewest: all rows of a unit are on their way */
};

/* A BF16 cache's rows leave no room for more. */
template <enum kv_type TYPE> static constexpr int deep_stages(void)
{
    return TYPE == KV_TYPE_FP8 ? (int)DEEP_STAGES : (int)STAGES;
}

template <enum kv_type TYPE, enum piece PIECE, int N>
using shared_of = attend_shared<TYPE, N, PIECE == PIECE_CLUSTER ? (int)CLUSTER_PARTS : 1>;

/* ---- units ---- */

/* The result so far of two heads and 64 columns. It is touched once a unit, so it lies in local
 * memory, and registers stay with what every group needs. */
struct result {
    float4 o[8]; /* [product]: heads g, g, g + 8, g + 8 */
    float4 stat; /* maximum and sum of head g, of head g + 8 */
};

static __device__ __forceinline__ void result_clear(struct result *r)
{
#pragma unroll
    for (int n = 0; n < 8; n++) r->o[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    r->stat = make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
}

template <class SHARED>
static __device__ __forceinline__ void
result_add(const SHARED *sh, const struct outputs<SHARED::COLUMNS> &v, struct result *r)
{
    const int g = (int)threadIdx.x % WARP / 4;
    const float2 low = sh->stat[g], high = sh->stat[g + 8];
    memory_touch(r);
    const struct merge x = merge_of(r->stat.x, low.x), y = merge_of(r->stat.z, high.x);
    r->stat = make_float4(x.max, merged(x, r->stat.y, low.y), y.max, merged(y, r->stat.w, high.y));
#pragma unroll
    for (int n = 0; n < 8; n++) {
        memory_touch(r); /* few registers: one at a time */
        const float4 o = r->o[n];
        r->o[n] =
            make_float4(merged(x, o.x, v.o[n][0] * v.scale), merged(x, o.y, v.o[n][1] * v.scale),
                        merged(y, o.z, v.o[n][2] * v.scale), merged(y, o.w, v.o[n][3] * v.scale));
    }
}

/* Columns of a lane: 64w + 16t to 64w + 16t + 15 of two heads. at: of the first, for head g + 8 j
 */
static __device__ __forceinline__ size_t column_of(size_t row)
{
    const int warp = (int)threadIdx.x / WARP, t = (int)threadIdx.x % 4;
    return row * KV_LATENT + (size_t)(warp * 64 + t * 16);
}

/* Four of a lane's columns from the 4 i-th on, for head g + 8 j */
template <int COLUMNS>
static __device__ __forceinline__ float4 outputs_of(const struct outputs<COLUMNS> &v, int j, int i)
{
    const int n = i % (COLUMNS / 4) * 4, k = 2 * j + i / (COLUMNS / 4);
    return make_float4(v.o[n][k] * v.scale, v.o[n + 1][k] * v.scale, v.o[n + 2][k] * v.scale,
                       v.o[n + 3][k] * v.scale);
}

template <class SHARED>
static __device__ __forceinline__ void store_unit(const struct attend_args &a, const SHARED *sh,
                                                  uint32_t token, uint32_t head0, uint32_t unit,
                                                  const struct outputs<SHARED::COLUMNS> &v)
{
    const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4,
              t = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t head = head0 + (uint32_t)(g + 8 * j);
        if (head >= a.n_head) continue;
        DCHECK(unit < a.n_part);
        const size_t row = ((size_t)token * a.n_part + unit) * a.n_head + head;
        float4 *to = (float4 *)(a.part_out + row * KV_LATENT) + warp * 16 + t;
#pragma unroll
        for (int i = 0; i < 4; i++) to[4 * i] = outputs_of(v, j, i); /* part_place */
        if (threadIdx.x < WARP && threadIdx.x % 4 == 0)
            *(float2 *)(a.part_stat + row * 2) = sh->stat[g + 8 * j];
    }
}

static __device__ __forceinline__ void store_result(const struct attend_args &a, uint32_t token,
                                                    uint32_t head0, const struct result *r)
{
    const int g = (int)threadIdx.x % WARP / 4;
    float4 o[8];
    memory_touch(r);
#pragma unroll
    for (int n = 0; n < 8; n++) o[n] = r->o[n];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t head = head0 + (uint32_t)(g + 8 * j);
        if (head >= a.n_head) continue;
        const float inverse = 1.0f / (j ? r->stat.w : r->stat.y);
        uint32_t v[8]; /* columns 16t to 16t + 7, then those 8 further */
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            v[n / 2] =
                pack_bf16((j ? o[n].z : o[n].x) * inverse, (j ? o[n + 1].z : o[n + 1].x) * inverse);
            v[4 + n / 2] =
                pack_bf16((j ? o[n].w : o[n].y) * inverse, (j ? o[n + 1].w : o[n + 1].y) * inverse);
        }
        uint4 *to = (uint4 *)(a.out_h + column_of((size_t)token * a.n_head + head));
        to[0] = make_uint4(v[0], v[1], v[2], v[3]);
        to[1] = make_uint4(v[4], v[5], v[6], v[7]);
    }
}

/* ---- units of a cluster ----
 *
 * What the lanes of a warp have of one head each, four columns, is a run. Runs are dealt out to the
 * cluster's blocks in turn, and each block sends its unit's to those that merge them: into a stage
 * of rows that the receiver's last group leaves free. Each block tells all of them when that stage
 * is free, a word each, which is long before anybody waits for it to send. Bytes count at barriers
 * of the receiver: words at `may_send`, units at `merged`. */

enum { HALVES = 2 }; /* heads of a lane: g and g + 8 */

template <class SHARED> struct run_shape {
    enum {
        FOURS = SHARED::COLUMNS / 2, /* of a head's columns of a lane */
        OF_WARP = HALVES * FOURS,
        N = THREADS / WARP * OF_WARP,
        STATS = CLUSTER_MAX * HEADS, /* in front of the runs */
    };
    static_assert(STATS * sizeof(float2) + (N + CLUSTER_MAX) * WARP * sizeof(float4) <=
                      sizeof((SHARED *)NULL)->rows[0],
                  "a stage has room for all units' runs of a block");
};

/* The stage that is free when a unit's last group is at work, of a token with n_group of them. */
template <class SHARED> static __device__ __forceinline__ int free_stage(int n_group, int unit)
{
    return max(0, min(n_group - unit * (int)UNIT, (int)UNIT)) % SHARED::N_STAGE;
}

/* Where that of block `unit` has its runs: [unit][run of the block][lane]. */
template <class SHARED>
static __device__ __forceinline__ uint32_t runs_of(const SHARED *sh, int n_group, int unit)
{
    return smem_address(sh->rows[free_stage<SHARED>(n_group, unit)]) +
           (uint32_t)(run_shape<SHARED>::STATS * sizeof(float2));
}

/* Tells all blocks of the cluster that this one's stage is free: it has no warp left that reads it.
 */
template <class SHARED> static __device__ __forceinline__ void tell_free(const SHARED *sh)
{
    const uint32_t n_block = gridDim.x / SHARED::N_PART, to = threadIdx.x;
    cluster_wait(); /* every block's barriers are there */
    if (to >= n_block) return;
    cluster_store(cluster_address(smem_address(&sh->told[blockIdx.x % n_block]), to),
                  cluster_address(smem_address(&sh->may_send), to), 0.0f, 0.0f);
}

/* Bytes that block `block` of n_block gets of n_unit units. */
template <class SHARED>
static __device__ __forceinline__ uint32_t bytes_merged(uint32_t block, uint32_t n_block,
                                                        int n_unit)
{
    const uint32_t n_run = (run_shape<SHARED>::N - block + n_block - 1) / n_block;
    return (uint32_t)n_unit * (uint32_t)(n_run * WARP * sizeof(float4) + HEADS * sizeof(float2));
}

/* Sends the block's unit to all n_block of the cluster. */
template <class SHARED>
static __device__ __forceinline__ void send_unit(const SHARED *sh, int n_group, uint32_t unit,
                                                 uint32_t n_block,
                                                 const struct outputs<SHARED::COLUMNS> &v)
{
    typedef run_shape<SHARED> shape;
    const uint32_t lane = threadIdx.x % WARP, first = threadIdx.x / WARP * shape::OF_WARP;
    const uint32_t each = ceil_div((uint32_t)shape::N, n_block), merged = smem_address(&sh->merged);
    while (!mbarrier_try_wait(smem_address(&sh->may_send), 0)) {
    }
    uint32_t to = first % n_block, place = unit * each + first / n_block;
#pragma unroll
    for (uint32_t i = 0; i < shape::OF_WARP; i++) {
        const uint32_t at = runs_of(sh, n_group, (int)to) + (place * WARP + lane) * 16;
        const float4 x = outputs_of(v, (int)(i / shape::FOURS), (int)(i % shape::FOURS));
        cluster_store_4(cluster_address(at, to), cluster_address(merged, to),
                        make_int4((int)__float_as_uint(x.x), (int)__float_as_uint(x.y),
                                  (int)__float_as_uint(x.z), (int)__float_as_uint(x.w)));
        place += ++to == n_block;
        if (to == n_block) to = 0;
    }
    if (threadIdx.x >= n_block * HEADS) return;
    to = threadIdx.x / HEADS;
    const uint32_t head = threadIdx.x % HEADS;
    const uint32_t at = smem_address(sh->rows[free_stage<SHARED>(n_group, (int)to)]) +
                        (unit * HEADS + head) * (uint32_t)sizeof(float2);
    cluster_store(cluster_address(at, to), cluster_address(merged, to), sh->stat[head].x,
                  sh->stat[head].y);
}

/* Merges the n_unit units that a token has: the runs of block `block`. */
template <class SHARED>
static __device__ __forceinline__ void merge_runs(const struct attend_args &a, const SHARED *sh,
                                                  uint32_t token, uint32_t head0, int part,
                                                  int n_group, uint32_t block, uint32_t n_block)
{
    typedef run_shape<SHARED> shape;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int n_unit = (n_group + UNIT - 1) / UNIT,
              each = (int)ceil_div((uint32_t)shape::N, n_block);
    const float2 *stats = (const float2 *)sh->rows[free_stage<SHARED>(n_group, (int)block)];
    const float4 *runs = (const float4 *)(stats + shape::STATS);
    DCHECK(n_unit >= 1 && n_unit <= CLUSTER_MAX && (uint32_t)n_unit <= n_block);
    while (!mbarrier_try_wait(smem_address(&sh->merged), 0)) {
    }
    for (int i = warp; (int)block + i * (int)n_block < shape::N; i += THREADS / WARP) {
        const int run = (int)block + i * (int)n_block, in_warp = run % shape::OF_WARP;
        const int head = lane / 4 + in_warp / shape::FOURS * 8;
        float4 piece[CLUSTER_MAX], o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float2 stat[CLUSTER_MAX];
        float top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int u = 0; u < CLUSTER_MAX; u++) {
            if (u >= n_unit) break;
            piece[u] = runs[(u * each + i) * WARP + lane];
            stat[u] = stats[u * HEADS + head];
        }
#pragma unroll
        for (int u = 0; u < CLUSTER_MAX; u++) {
            if (u >= n_unit) break;
            const struct merge m = merge_of(top, stat[u].x);
            sum = merged(m, sum, stat[u].y);
            top = m.max;
            o = make_float4(merged(m, o.x, piece[u].x), merged(m, o.y, piece[u].y),
                            merged(m, o.z, piece[u].z), merged(m, o.w, piece[u].w));
        }
        const float inverse = 1.0f / sum;
        if (head0 + (uint32_t)head >= a.n_head) continue;
        const size_t row = (size_t)token * a.n_head + head0 + (uint32_t)head;
        const int column = part * (KV_LATENT / SHARED::N_PART) +
                           (run / shape::OF_WARP * 8 + lane % 4 * 2) * SHARED::COLUMNS +
                           in_warp % shape::FOURS * 4;
        *(uint2 *)(a.out_h + row * KV_LATENT + (size_t)column) = make_uint2(
            pack_bf16(o.x * inverse, o.y * inverse), pack_bf16(o.z * inverse, o.w * inverse));
    }
}

/* ---- kernels ---- */

/* Starts to copy rows of the groups from `first` on that are there before the kernel waits, as many
 * as `most`; returns their number. */
template <class SHARED>
static __device__ __forceinline__ int copy_ahead(const struct attend_args &a,
                                                 const struct row_list &rows, uint32_t token,
                                                 int first, int most, SHARED *sh)
{
    const int end = old_groups(a, token);
    if (first >= end) return 0;
    const int n = min(end - first, most);
    for (int i = 0; i < n; i++) copy_rows(a, rows, first + i, read_entry(rows, first + i), sh, i);
    return n;
}

/* A unit from group `first` on; rows of groups below `copied` are on their way; the token's groups
 * end at `end`. Two synchronisations a group; behind the first all warps are done with the group
 * before, whose stage then takes the next group's rows, unless each of the unit's groups has a
 * stage. entry: of group `copied`. */
template <class SHARED>
static __device__ __forceinline__ void
walk_unit(const struct attend_args &a, const struct row_list &rows, int first, int end, int part,
          const struct query &q, float scale, int &copied, int &entry, SHARED *sh,
          struct outputs<SHARED::COLUMNS> &v)
{
    enum { N = SHARED::N_STAGE };
    static_assert((int)N == (int)UNIT || (N == 2 && UNIT % (2 * N) == 0),
                  "each unit begins with the same stage; if a block has several, phase");
    const int last = min(first + UNIT, end);
    DCHECK(first % UNIT == 0 && first < end);
    struct softmax m;
    softmax_clear(m);
    outputs_clear(v);
    for (int k = first; k < last; k++) {
        const int stage = k % N;
        const uint32_t full = smem_address(&sh->full[stage]);
        const uint32_t phase = (int)N == (int)UNIT ? 0 : (uint32_t)(k / N % 2);
        while (!mbarrier_try_wait(full, phase)) {
        }
        make_scores(q, sh, stage);
        __syncthreads();
        if (SHARED::N_PART > 1 && k + 1 == last) tell_free(sh);
        if constexpr ((int)N == (int)UNIT) {
            for (; copied < end; entry = read_entry(rows, ++copied))
                copy_rows(a, rows, copied, entry, sh, copied % N);
        } else if (k + 1 == copied && copied < end) {
            copy_rows(a, rows, copied++, entry, sh, stage ^ 1);
            entry = read_entry(rows, copied);
        }
        make_weights(sh, stage, part, min(GROUP, rows.n_row - k * GROUP), scale, k + 1 == last, m);
        __syncthreads();
        outputs_rescale(sh, stage, part, v);
        add_outputs(sh, stage, part, v);
    }
}

/* Block: 16 heads of a token; the last tokens, which may see most, first. */
template <enum kv_type TYPE, enum piece PIECE, int N>
__global__ void __launch_bounds__(THREADS, TYPE == KV_TYPE_FP8 ? 2 : 1)
    attend_kernel(const struct attend_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shared = shared_of<TYPE, PIECE, N>;
    static_assert(PIECE != PIECE_TOKEN || N < UNIT, "a stage is used again");
    SHARED_DYNAMIC(unsigned char, raw);
    shared *sh = (shared *)raw;
    const uint32_t token = gridDim.y - 1 - blockIdx.y, head0 = blockIdx.z * HEADS;
    const uint32_t n_unit = gridDim.x / shared::N_PART;
    const int part = shared::N_PART == 1 ? 0 : (int)(blockIdx.x / n_unit);
    const uint32_t unit = shared::N_PART == 1 ? blockIdx.x : blockIdx.x % n_unit;
    if (threadIdx.x < N) mbarrier_init(smem_address(&sh->full[threadIdx.x]), THREADS / WARP);
    if (PIECE == PIECE_CLUSTER && threadIdx.x == 0) {
        mbarrier_init(smem_address(&sh->may_send), 1);
        mbarrier_init(smem_address(&sh->merged), 1);
        mbarrier_arrive_expect(smem_address(&sh->may_send), n_unit * (uint32_t)sizeof sh->told[0]);
    }
    mbarrier_init_fence();
    __syncthreads();
    if (PIECE == PIECE_CLUSTER) cluster_arrive_relaxed();
    dependency_release();
    const int first = PIECE == PIECE_TOKEN ? 0 : (int)unit * UNIT;
    struct row_list rows = {};
    int copied = first;
    if (a.reads_ahead) {
        rows = row_list_of(a, token);
        /* of many units one group each: all of these arrive before any second one */
        copied += copy_ahead(a, rows, token, first, PIECE == PIECE_UNIT ? 1 : N, sh);
    }
    struct query q;
    uint2 rope[2];
    const bool ahead = PIECE == PIECE_CLUSTER && a.query_early;
    if (ahead) {
        query_read<typename shared::shape, true>(a, token, head0, q, rope);
        query_prepare(sh, q, rope);
    }
    dependency_wait();
    if (a.skip_below > 0 && a.pos[token] < a.skip_below) return;
    if (!ahead) query_read<typename shared::shape, false>(a, token, head0, q, rope);
    const int early = early_entry(a, token, first);
    if (!a.reads_ahead) rows = row_list_of(a, token);
    const int n_group = (rows.n_row + GROUP - 1) / GROUP;
    const int end = PIECE == PIECE_TOKEN ? n_group : min(first + UNIT, n_group);
    if (PIECE == PIECE_UNIT && first >= end) return;
    struct outputs<shared::COLUMNS> v;
    struct result kept[PIECE == PIECE_TOKEN ? 2 : 1], *r = kept;
    if constexpr (PIECE == PIECE_TOKEN) {
        r = kept + blockIdx.x; /* 0, which the compiler does not know: memory, not registers */
        result_clear(r);
    }
    if (PIECE == PIECE_CLUSTER && threadIdx.x == 0) {
        mbarrier_arrive_expect(smem_address(&sh->merged),
                               bytes_merged<shared>(unit, n_unit, (n_group + UNIT - 1) / UNIT));
    }
    if (first < end) {
        if (copied == first) copy_rows(a, rows, copied++, first_entry(rows, first, early), sh, 0);
        if (!ahead) query_prepare(sh, q, rope);
        const float scale = a.scale * 1.44269504f; /* log2(e) */
        int entry = read_entry(rows, copied);
        if constexpr (PIECE == PIECE_TOKEN) {
            for (int k = 0; k < end; k += UNIT) {
                walk_unit(a, rows, k, end, part, q, scale, copied, entry, sh, v);
                result_add(sh, v, r);
            }
        } else {
            walk_unit(a, rows, first, end, part, q, scale, copied, entry, sh, v);
        }
    } else if constexpr (PIECE == PIECE_CLUSTER) {
        tell_free(sh);
    }
    if constexpr (PIECE == PIECE_UNIT) store_unit(a, sh, token, head0, unit, v);
    if constexpr (PIECE == PIECE_CLUSTER) {
        if (first < end) send_unit(sh, n_group, unit, n_unit, v);
        merge_runs(a, sh, token, head0, part, n_group, unit, n_unit);
    }
    if constexpr (PIECE == PIECE_TOKEN) store_result(a, token, head0, r);
#endif
}

enum { COMBINE_THREADS = KV_LATENT / 2 };
static_assert(COMBINE_THREADS % WARP == 0, "two columns a thread");

/* Block: one (token, head). Thread l: columns 2l, 2l + 1. */
__global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(const struct attend_args a)
{
    const uint32_t token = blockIdx.y, head = blockIdx.x;
    kernel_begin();
    if (a.pos[token] < a.skip_below) return;
    const size_t at = ((size_t)token * a.n_head + head) * KV_LATENT + threadIdx.x * 2;
    *(uint32_t *)(a.out_h + at) = merge_units(a, token, head, threadIdx.x);
}

fathom_err attend_combine(struct cuda_backend *c, struct attend_args a, uint32_t n_token)
{
    if (a.left) {
        c->units = {a.left, a.pos, a.slots, a.counts, a.topk, a.n_part};
        return FATHOM_OK;
    }
    return cuda_launch(c, "mla_attend", combine_kernel, dim3(a.n_head, n_token), COMBINE_THREADS, 0,
                       a);
}

template <enum kv_type TYPE, enum piece PIECE, int N>
static fathom_err launch(struct cuda_backend *c, dim3 grid, unsigned n_cluster,
                         const struct attend_args &a)
{
    return cuda_launch_clusters(c, "mla_attend", attend_kernel<TYPE, PIECE, N>, grid, n_cluster,
                                THREADS, sizeof(shared_of<TYPE, PIECE, N>), a);
}

template <enum kv_type TYPE>
static fathom_err run(struct cuda_backend *c, struct attend_args &a, uint32_t n_token,
                      uint32_t rows)
{
    ASSERT(a.h && a.out_h && rows >= 1 && (uintptr_t)a.h % 16 == 0 && (uintptr_t)a.out_h % 16 == 0);
    const uint32_t n_unit = ceil_div(rows, GROUP * UNIT), heads = ceil_div(a.n_head, HEADS);
    if (n_unit > 1 && n_unit <= CLUSTER_MAX && n_token <= ATTEND_CLUSTER_TOKENS_MAX) {
        const dim3 grid(n_unit * CLUSTER_PARTS, n_token, heads);
        if (n_token <= ATTEND_DEEP_TOKENS_MAX)
            return launch<TYPE, PIECE_CLUSTER, deep_stages<TYPE>()>(c, grid, n_unit, a);
        return launch<TYPE, PIECE_CLUSTER, STAGES>(c, grid, n_unit, a);
    }
    if (n_unit == 1 || !attend_by_units(n_token, n_unit, heads, TYPE))
        return launch<TYPE, PIECE_TOKEN, STAGES>(c, dim3(1, n_token, heads), 1, a);
    ASSERT(n_token * n_unit <= c->part_rows); /* of part_out and part_stat */
    a.n_part = n_unit;
    TRY((launch<TYPE, PIECE_UNIT, STAGES>(c, dim3(n_unit, n_token, heads), 1, a)));
    return attend_combine(c, a, n_token);
}

fathom_err attend_sm90(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                       uint32_t n_token, uint32_t max_context)
{
    ASSERT(c->sm90 && a.kv.type != KV_TYPE_F32 && n_token >= 1);
    const uint32_t rows = a.slots && max_context > a.topk ? a.topk : max_context;
    if (attend_by_pairs(a.n_head, a.kv.type)) return attend_pair(c, a, kind, n_token, rows);
    if (a.n_head >= ATTEND_HEADS) return attend_heads(c, a, kind, n_token, rows);
    return a.kv.type == KV_TYPE_FP8 ? run<KV_TYPE_FP8>(c, a, n_token, rows)
                                    : run<KV_TYPE_BF16>(c, a, n_token, rows);
}

template <enum kv_type TYPE, enum piece PIECE, int N> static cudaError_t raise_limit(void)
{
    enum { BYTES = sizeof(shared_of<TYPE, PIECE, N>) };
    static_assert((int)BYTES <= 227 << 10, "shared memory of a block");
    return cudaFuncSetAttribute(attend_kernel<TYPE, PIECE, N>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)BYTES);
}

template <enum kv_type TYPE> static fathom_err raise_limits(struct cuda_backend *c)
{
    const char *what = "mla_attend";
    CU_TRY(c, (raise_limit<TYPE, PIECE_UNIT, STAGES>()), what);
    CU_TRY(c, (raise_limit<TYPE, PIECE_CLUSTER, STAGES>()), what);
    CU_TRY(c, (raise_limit<TYPE, PIECE_CLUSTER, deep_stages<TYPE>()>()), what);
    CU_TRY(c, (raise_limit<TYPE, PIECE_TOKEN, STAGES>()), what);
    return FATHOM_OK;
}

fathom_err attend_sm90_init(struct cuda_backend *c)
{
    if (attend_by_pairs(c->c.n_head, c->c.kv.type)) return attend_pair_init(c);
    if (c->c.n_head >= ATTEND_HEADS) return attend_heads_init(c);
    return c->c.kv.type == KV_TYPE_FP8 ? raise_limits<KV_TYPE_FP8>(c)
                                       : raise_limits<KV_TYPE_BF16>(c);
}

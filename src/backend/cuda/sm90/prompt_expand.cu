/* prompt_expand.cu - keys and values of prompts' contexts on sm_90a: the plan of a pass, the cached
 * latents as bf16, their product with kv_b
 *
 * A code of the cache times its scale is a bf16 exactly, so keys and values of a row are the same
 * whether it was found in the cache or has just been written. A tile of the product is 128 context
 * rows and the 256 rows of kv_b that belong to a head. Its inputs of 512 values stay in shared
 * memory while the block goes from head to head; weights come through a ring, 64 values of K a
 * stage. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/prompt.cuh"

/* ---- the plan ---- */

enum {
    PLAN_THREADS = 512,
    BUCKETS = 2048,           /* of tiles, by their key blocks; longer ones share the last */
    SECTION_BYTES = 20 << 20, /* of keys and values that stay in L2 */
};

struct plan_shared {
    int32_t token[PROMPT_REQUESTS_MAX], pos[PROMPT_REQUESTS_MAX], n[PROMPT_REQUESTS_MAX];
    int32_t tile[PROMPT_REQUESTS_MAX + 1], context[PROMPT_REQUESTS_MAX + 1];
    int32_t bucket[BUCKETS], warp_sum[PLAN_THREADS / WARP];
};
static_assert(sizeof(struct plan_shared) <= SHARED_PLAIN_MAX, "no limit is raised for it");

/* The request whose entries, from first[r] to first[r + 1] - 1, have number i. */
static __device__ __forceinline__ int owner_of(const int32_t *first, int n, int i)
{
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first[middle] <= i) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static __device__ __forceinline__ struct prompt_tile tile_of(const struct plan_shared *s, int n,
                                                             int i)
{
    const int r = owner_of(s->tile, n, i), from = (i - s->tile[r]) * PROMPT_TILE;
    struct prompt_tile t;
    t.token = s->token[r] + from;
    t.n = min((int)PROMPT_TILE, s->n[r] - from);
    t.pos = s->pos[r] + from;
    t.row = s->context[r] * PROMPT_TILE;
    DCHECK(t.n > 0);
    return t;
}

/* Tiles of equal length are in one bucket, the longest first. */
static __device__ __forceinline__ int bucket_of(const struct prompt_tile &t)
{
    return BUCKETS - 1 - min(BUCKETS - 1, (t.pos + t.n - 1) / PROMPT_TILE);
}

/* Counts to places: what the buckets before hold. */
static __device__ __forceinline__ void place_buckets(struct plan_shared *s)
{
    enum { EACH = BUCKETS / PLAN_THREADS };
    const int thread = (int)threadIdx.x, lane = thread % WARP;
    int own[EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) sum += own[i] = s->bucket[thread * EACH + i];
    int end = sum;
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) {
        const int other = shfl(end, max(lane - d, 0));
        if (lane >= d) end += other;
    }
    if (lane == WARP - 1) s->warp_sum[thread / WARP] = end;
    __syncthreads();
    int before = end - sum;
    for (int i = 0; i < thread / WARP; i++) before += s->warp_sum[i];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        s->bucket[thread * EACH + i] = before;
        before += own[i];
    }
}

/* One block. */
__global__ void __launch_bounds__(PLAN_THREADS)
    prompt_plan_kernel(const struct prompt_args a, const struct prompt_pass p)
{
    __shared__ struct plan_shared s;
    const int thread = (int)threadIdx.x, n = (int)p.n_request;
    kernel_begin();
    for (int i = thread; i < BUCKETS; i += PLAN_THREADS) s.bucket[i] = 0;
    for (int r = thread; r < n; r += PLAN_THREADS) {
        const int32_t *first = a.first + p.request0 + r;
        s.token[r] = first[0];
        s.pos[r] = a.pos[first[0]];
        s.n[r] = max(0, min(first[1] - first[0], a.end - s.pos[r]));
    }
    __syncthreads();
    if (thread == 0) {
        s.tile[0] = s.context[0] = 0;
        for (int r = 0; r < n; r++) {
            const int tiles = (s.n[r] + PROMPT_TILE - 1) / PROMPT_TILE;
            const int rows = s.n[r] ? s.pos[r] + s.n[r] : 0;
            s.tile[r + 1] = s.tile[r] + tiles;
            s.context[r + 1] = s.context[r] + (rows + PROMPT_TILE - 1) / PROMPT_TILE;
        }
        const int n_context = s.context[n];
        const int head_bytes = PROMPT_TILE * PROMPT_HEAD_BYTES;
        DCHECK((uint32_t)n_context <= p.n_context);
        p.plan->n_tile = s.tile[n];
        p.plan->n_context = n_context;
        p.plan->section =
            min((int)a.n_head, max(1, SECTION_BYTES / head_bytes / max(1, n_context)));
    }
    __syncthreads();
    for (int i = thread; i < s.tile[n]; i += PLAN_THREADS)
        atomicAdd(&s.bucket[bucket_of(tile_of(&s, n, i))], 1);
    for (int i = thread; i < s.context[n]; i += PLAN_THREADS) {
        const int r = owner_of(s.context, n, i), from = (i - s.context[r]) * PROMPT_TILE;
        const int rest = s.pos[r] + s.n[r] - from;
        p.contexts[i] = {(int32_t)p.request0 + r, from, min((int)PROMPT_TILE, rest)};
    }
    __syncthreads();
    place_buckets(&s);
    __syncthreads();
    for (int i = thread; i < s.tile[n]; i += PLAN_THREADS) {
        const struct prompt_tile t = tile_of(&s, n, i);
        p.tiles[atomicAdd(&s.bucket[bucket_of(t)], 1)] = t;
    }
}

/* ---- cached latents ---- */

enum { GATHER_THREADS = 256, GATHER_ROWS = 8, LANE_VALUES = KV_LATENT / WARP };
static_assert((int)LANE_VALUES == 16, "a lane reads 16 codes at once");
static_assert(PROMPT_TILE % GATHER_ROWS == 0 && (int)KV_FP8_GROUP % LANE_VALUES == 0,
              "nothing is left over");

/* A lane's 16 latents of a row as bf16. */
static __device__ __forceinline__ void read_latents(const struct kv_layer &l, const char *row,
                                                    int lane, uint4 (&to)[2])
{
    if (l.type == KV_TYPE_BF16) {
        to[0] = ((const uint4 *)row)[2 * lane];
        to[1] = ((const uint4 *)row)[2 * lane + 1];
        return;
    }
    const uint4 codes = ((const uint4 *)row)[lane];
    const float scale =
        ((const float *)(row + KV_FP8_SCALES_OFFSET))[lane * LANE_VALUES / KV_FP8_GROUP];
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 x = e4m3x2_to_float2((uint16_t)(word[i / 2] >> i % 2 * 16));
        v[i] = pack_bf16(x.x * scale, x.y * scale);
    }
    to[0] = make_uint4(v[0], v[1], v[2], v[3]);
    to[1] = make_uint4(v[4], v[5], v[6], v[7]);
}

/* Block: GATHER_ROWS rows of a context tile; a warp takes one after the other. */
__global__ void __launch_bounds__(GATHER_THREADS)
    prompt_gather_kernel(const struct prompt_args a, const struct prompt_pass p)
{
    const int tile = (int)(blockIdx.x * GATHER_ROWS / PROMPT_TILE), lane = (int)threadIdx.x % WARP;
    const int row0 = (int)(blockIdx.x * GATHER_ROWS % PROMPT_TILE) + (int)threadIdx.x / WARP;
    kernel_begin();
    if (tile >= p.plan->n_context) return;
    const struct prompt_context t = p.contexts[tile];
    const int32_t *pages = a.page_table + (size_t)t.request * a.page_stride;
#pragma unroll
    for (int i = 0; i < GATHER_ROWS; i += GATHER_THREADS / WARP) {
        const int row = row0 + i;
        const size_t at = (size_t)tile * PROMPT_TILE + (size_t)row;
        uint4 v[2] = {}, rope = {};
        if (row < t.n) {
            const char *from = kv_row(a.kv, kv_slot(pages, t.pos + row));
            const size_t offset =
                a.kv.type == KV_TYPE_BF16 ? (size_t)KV_LATENT * 2 : (size_t)KV_FP8_ROPE_OFFSET;
            read_latents(a.kv, from, lane, v);
            rope = ((const uint4 *)(from + offset))[lane % (KV_ROPE / 8)];
        }
        uint4 *to = (uint4 *)(p.latent + at * KV_LATENT) + 2 * lane;
        to[0] = v[0];
        to[1] = v[1];
        if (lane < KV_ROPE / 8) ((uint4 *)(p.rope + at * KV_ROPE))[lane] = rope;
    }
}

fathom_err prompt_gather(struct cuda_backend *c, const struct prompt_args &a,
                         const struct prompt_pass &p)
{
    ASSERT(a.kv.type != KV_TYPE_F32 && p.n_request >= 1 && p.n_request <= PROMPT_REQUESTS_MAX);
    ASSERT(p.n_context <= c->prompt.n_context);
    TRY(cuda_launch(c, "mla_attend", prompt_plan_kernel, dim3(1), PLAN_THREADS, 0, a, p));
    return cuda_launch(c, "mla_attend", prompt_gather_kernel,
                       dim3(p.n_context * (PROMPT_TILE / GATHER_ROWS)), GATHER_THREADS, 0, a, p);
}

/* ---- the product ---- */

enum {
    K_SLABS = KV_LATENT / PROMPT_SLAB_VALUES,
    STAGES = 3,
    GROUPS = 2,
    GROUP_THREADS = 128,
    EXPAND_THREADS = (1 + GROUPS) * GROUP_THREADS,
    IN_BYTES = PROMPT_TILE * 128,
    W_BYTES = KV_B_ROWS * 128,
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240,
    K_STEPS = PROMPT_SLAB_VALUES / 16,
    RUN_HEADS_MAX = 8, /* heads that a block takes one after the other */
};
static_assert((int)KV_B_ROWS <= (int)TENSOR_BOX_MAX, "boxes of a tensor map");

struct alignas(1024) expand_stages {
    uint8_t in[K_SLABS][IN_BYTES];
    uint8_t w[STAGES][W_BYTES];
    uint64_t in_full[K_SLABS], in_empty;
    uint64_t w_full[STAGES], w_empty[STAGES];
};
static_assert(sizeof(struct expand_stages) <= SHARED_MAX, "shared memory of a block");

struct expand_work {
    CUtensorMap in_map, w_map;
    struct prompt_plan *plan;
    bf16 *kv;
    uint32_t head0, n_head;
};

/* Heads head to head_end of the pass, of one context tile. */
struct run {
    int tile;
    uint32_t head, head_end;
};

/* How the product is cut: runs of as many heads as leave a run to each block. */
struct cut {
    uint32_t run_heads, tile_runs, n_run;
};

static __device__ __forceinline__ struct cut cut_of(const struct expand_work &w)
{
    const uint32_t n_context = (uint32_t)w.plan->n_context;
    struct cut c;
    c.run_heads =
        min(min((uint32_t)RUN_HEADS_MAX, w.n_head), max(1u, n_context * w.n_head / gridDim.x));
    c.tile_runs = ceil_div(w.n_head, c.run_heads);
    c.n_run = n_context * c.tile_runs;
    return c;
}

/* Run i: tiles side by side, so that blocks at work read the same heads' weights. */
static __device__ __forceinline__ struct run run_of(const struct expand_work &w,
                                                    const struct cut &c, uint32_t i)
{
    const uint32_t n_tile = c.n_run / c.tile_runs;
    struct run r;
    r.tile = (int)(i % n_tile);
    r.head = i / n_tile * c.run_heads;
    r.head_end = min(r.head + c.run_heads, w.n_head);
    return r;
}

static __device__ __forceinline__ void produce(const struct expand_work &w, struct expand_stages *s)
{
    const struct cut c = cut_of(w);
    struct prompt_ring at = {0, 0};
    uint32_t parity = 1;
    for (uint32_t i = blockIdx.x; i < c.n_run; i += gridDim.x, parity ^= 1) {
        const struct run r = run_of(w, c, i);
        for (uint32_t head = r.head; head < r.head_end; head++) {
            for (int k = 0; k < K_SLABS; k++) {
                if (head == r.head) {
                    const uint32_t full = smem_address(&s->in_full[k]);
                    if (k == 0) wait_phase(&s->in_empty, parity);
                    mbarrier_arrive_expect(full, IN_BYTES);
                    tensor_load(smem_address(s->in[k]), &w.in_map, full, k * 128,
                                r.tile * PROMPT_TILE, 0);
                }
                const uint32_t full = smem_address(&s->w_full[at.stage]);
                wait_phase(&s->w_empty[at.stage], at.parity ^ 1);
                mbarrier_arrive_expect(full, W_BYTES);
                tensor_load(smem_address(s->w[at.stage]), &w.w_map, full, k * 128,
                            (int)((w.head0 + head) * KV_B_ROWS), 0);
                ring_next<STAGES>(at);
            }
        }
    }
}

static __device__ __forceinline__ void warp_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(barrier));
}

static __device__ __forceinline__ void start_slab(float (&c)[128], uint64_t in, uint64_t weight,
                                                  bool first)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        if (first && k == 0) {
            wgmma_bf16_start(c, in, weight);
        } else {
            wgmma_bf16_add(c, in + (uint64_t)(2 * k), weight + (uint64_t)(2 * k));
        }
    }
    wgmma_commit();
}

static __device__ __forceinline__ void store_head(const struct expand_work &w,
                                                  const float (&c)[128], int row, uint32_t head)
{
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bf16 *to = w.kv + ((size_t)(row + r * 8) * w.n_head + head) * KV_B_ROWS + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int j = 4 * (4 * i + k) + 2 * r;
                v[k] = pack_bf16(c[j], c[j + 1]);
            }
            quad_transpose(v);
            *(uint4 *)(to + i * 32) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

static __device__ __forceinline__ void consume(const struct expand_work &w, struct expand_stages *s,
                                               uint32_t group)
{
    const struct cut cut = cut_of(w);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % 4;
    const uint64_t in =
        wgmma_operand(smem_address(s->in[0]) + group * (uint32_t)(PROMPT_GROUP_ROWS * 128));
    const uint64_t weight = wgmma_operand(smem_address(s->w[0]));
    struct prompt_ring at = {0, 0};
    uint32_t parity = 0;
    float c[128];
    for (uint32_t i = blockIdx.x; i < cut.n_run; i += gridDim.x, parity ^= 1) {
        const struct run r = run_of(w, cut, i);
        const int row =
            r.tile * PROMPT_TILE + (int)group * PROMPT_GROUP_ROWS + warp * 16 + lane / 4;
        for (uint32_t head = r.head; head < r.head_end; head++) {
#pragma unroll
            for (int k = 0; k < K_SLABS; k++) {
                const uint32_t before = (at.stage + STAGES - 1) % STAGES;
                if (head == r.head) wait_phase(&s->in_full[k], parity);
                wait_phase(&s->w_full[at.stage], at.parity);
                start_slab(c, in + (uint64_t)(k * (IN_BYTES >> 4)),
                           weight + at.stage * (W_BYTES >> 4), k == 0);
                if (k > 0) {
                    wgmma_wait_but<1>(c);
                    warp_arrive(&s->w_empty[before]);
                }
                ring_next<STAGES>(at);
            }
            wgmma_wait_but<0>(c);
            warp_arrive(&s->w_empty[(at.stage + STAGES - 1) % STAGES]);
            if (head + 1 == r.head_end) warp_arrive(&s->in_empty);
            store_head(w, c, row, head);
        }
    }
}

__global__ void __launch_bounds__(EXPAND_THREADS, 1)
    prompt_expand_kernel(const __grid_constant__ struct expand_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct expand_stages *s = (struct expand_stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < K_SLABS; i++) mbarrier_init(smem_address(&s->in_full[i]), 1);
        mbarrier_init(smem_address(&s->in_empty), 4 * GROUPS);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->w_full[i]), 1);
            mbarrier_init(smem_address(&s->w_empty[i]), 4 * GROUPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_release();
    dependency_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0) w.plan->next = 0;
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume(w, s, (uint32_t)(group - 1));
    }
#endif
}

fathom_err prompt_expand(struct cuda_backend *c, const struct prompt_args &a,
                         const struct prompt_pass &p)
{
    struct expand_work w = {};
    const uint32_t rows = p.n_context * PROMPT_TILE, w_rows = a.n_head * KV_B_ROWS;
    const uint32_t row_bytes = KV_LATENT * 2;
    ASSERT(a.kv_b && (uint64_t)rows * p.n_head * PROMPT_HEAD_BYTES <= c->prompt.kv_bytes);
    CU_TRY(c,
           make_map(&w.in_map, p.latent, row_bytes, rows, 1, (size_t)row_bytes * rows, PROMPT_TILE),
           "mla_attend");
    CU_TRY(c,
           make_map(&w.w_map, a.kv_b, row_bytes, w_rows, 1, (size_t)row_bytes * w_rows, KV_B_ROWS),
           "mla_attend");
    w.plan = p.plan;
    w.kv = p.kv;
    w.head0 = p.head0;
    w.n_head = p.n_head;
    return cuda_launch(c, "mla_attend", prompt_expand_kernel, dim3(p.n_block), EXPAND_THREADS,
                       sizeof(struct expand_stages), w);
}

fathom_err prompt_expand_init(struct cuda_backend *c)
{
    CU_TRY(c, raise_shared(prompt_expand_kernel, sizeof(struct expand_stages)), "mla_attend");
    return FATHOM_OK;
}

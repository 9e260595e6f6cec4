/* prompt_attend.cu - causal attention of prompt rows in expanded form on sm_90a
 *
 * One resident block a multiprocessor takes tiles of 128 rows of a request and a head, the heaviest
 * first. Warpgroup 0 fills rings of key blocks and value blocks of 128 positions by tensor maps.
 * Warpgroups 1 and 2 have 64 rows each: scores of a block are two products deep in flight with the
 * outputs of the block before; the weights go from the scores' registers into those of an operand.
 * The two take turns at starting products, so that one's exponentials run beside the other's
 * products.
 *
 * Key blocks are counted from position 0 and taken in ascending order. A block that a row does not
 * see changes none of its bits: its maximum stays, so it is multiplied by 1, and zeros are added.
 *
 * Where rows select, a mask tells the positions that each sees, a bit each (prompt_mask.cu). */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/prompt.cuh"

enum {
    STAGES = 2,
    GROUPS = 2,  /* warpgroups that multiply */
    K_SLABS = 3, /* two of k_nope, one of k_pe */
    V_SLABS = 2,
    TASKS = 2,
    GROUP_THREADS = 128,
    THREADS = (1 + GROUPS) * GROUP_THREADS,
    SLAB_BYTES = PROMPT_TILE * 128,
    Q_SLAB_BYTES = PROMPT_GROUP_ROWS * 128,
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240,
    K_STEPS = PROMPT_SLAB_VALUES / 16,
    KEY_STEPS = PROMPT_TILE / 16,
};
static_assert(K_SLABS * PROMPT_SLAB_VALUES == QUERY_DIM && V_SLABS * PROMPT_SLAB_VALUES == V_DIM,
              "slabs are whole");
static_assert(GROUP_THREADS * (PRODUCER_REGISTERS + GROUPS * CONSUMER_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");

/* A tile and a head; n 0: there is no more. */
struct prompt_task {
    struct prompt_tile tile;
    uint32_t head; /* of the pass */
    uint32_t n_block;
};

struct alignas(1024) attend_stages {
    uint8_t q[GROUPS][K_SLABS][Q_SLAB_BYTES];
    uint8_t k[STAGES][K_SLABS][SLAB_BYTES];
    uint8_t v[STAGES][V_SLABS][SLAB_BYTES];
    struct prompt_task task[TASKS];
    uint64_t q_full[GROUPS], q_empty[GROUPS];
    uint64_t k_full[STAGES], k_empty[STAGES];
    uint64_t v_full[STAGES], v_empty[STAGES];
    uint64_t task_full[TASKS], task_empty[TASKS];
    uint64_t turn[GROUPS];
};
static_assert(sizeof(struct attend_stages) <= SHARED_MAX, "shared memory of a block");

struct attend_work {
    CUtensorMap query_map, kv_map, rope_map;
    struct prompt_plan *plan;
    const struct prompt_tile *tiles;
    bf16 *out;
    size_t out_stride;
    uint8_t *codes;
    float *codes_scale;
    const uint4 *mask; /* of the pass */
    uint32_t mask_stride, topk;
    uint32_t head0, n_head;
    uint32_t n_head_all; /* of the step */
    float scale;         /* times log2(e) */
};

/* ---- the producer ---- */

/* Entry i of the walk: heads of a section side by side, tile after tile, section after section. */
static __device__ __forceinline__ struct prompt_task
task_of(const struct attend_work &w, uint32_t i, uint32_t n_tile, uint32_t section)
{
    struct prompt_task t = {};
    if (i >= n_tile * w.n_head) return t;
    const uint32_t head0 = i / (n_tile * section) * section, n = min(section, w.n_head - head0);
    const uint32_t rest = i - head0 * n_tile;
    t.tile = w.tiles[rest / n];
    t.head = head0 + rest % n;
    t.n_block = (uint32_t)(t.tile.pos + t.tile.n - 1) / PROMPT_TILE + 1;
    DCHECK(t.tile.n > 0 && t.tile.n <= PROMPT_TILE);
    return t;
}

static __device__ __forceinline__ void load_query(const struct attend_work &w,
                                                  struct attend_stages *s,
                                                  const struct prompt_task &t, uint32_t parity)
{
    for (int g = 0; g < GROUPS; g++) {
        const uint32_t full = smem_address(&s->q_full[g]);
        wait_phase(&s->q_empty[g], parity);
        mbarrier_arrive_expect(full, sizeof s->q[g]);
        for (int i = 0; i < K_SLABS; i++) {
            tensor_load(smem_address(s->q[g][i]), &w.query_map, full,
                        (int)((w.head0 + t.head) * QUERY_DIM * 2) + i * 128,
                        t.tile.token + g * PROMPT_GROUP_ROWS, 0);
        }
    }
}

static __device__ __forceinline__ void load_keys(const struct attend_work &w,
                                                 struct attend_stages *s,
                                                 const struct prompt_task &t, int block,
                                                 struct prompt_ring &at)
{
    const uint32_t full = smem_address(&s->k_full[at.stage]);
    const int x = (int)t.head * PROMPT_HEAD_BYTES, y = t.tile.row + block * PROMPT_TILE;
    wait_phase(&s->k_empty[at.stage], at.parity ^ 1);
    mbarrier_arrive_expect(full, sizeof s->k[0]);
    tensor_load(smem_address(s->k[at.stage][0]), &w.kv_map, full, x, y, 0);
    tensor_load(smem_address(s->k[at.stage][1]), &w.kv_map, full, x + 128, y, 0);
    tensor_load(smem_address(s->k[at.stage][2]), &w.rope_map, full, 0, y, 0);
    ring_next<STAGES>(at);
}

static __device__ __forceinline__ void load_values(const struct attend_work &w,
                                                   struct attend_stages *s,
                                                   const struct prompt_task &t, int block,
                                                   struct prompt_ring &at)
{
    const uint32_t full = smem_address(&s->v_full[at.stage]);
    const int x = (int)t.head * PROMPT_HEAD_BYTES + NOPE_DIM * 2;
    const int y = t.tile.row + block * PROMPT_TILE;
    wait_phase(&s->v_empty[at.stage], at.parity ^ 1);
    mbarrier_arrive_expect(full, sizeof s->v[0]);
    for (int i = 0; i < V_SLABS; i++) {
        tensor_load(smem_address(s->v[at.stage][i]), &w.kv_map, full, x + i * 128, y, 0);
    }
    ring_next<STAGES>(at);
}

static __device__ __forceinline__ void produce(const struct attend_work &w, struct attend_stages *s)
{
    struct prompt_ring task = {0, 0}, k = {0, 0}, v = {0, 0};
    const uint32_t n_tile = (uint32_t)w.plan->n_tile, section = (uint32_t)w.plan->section;
    uint32_t next = atomicAdd(&w.plan->next, 1u);
    for (uint32_t parity = 1;; parity ^= 1) {
        const struct prompt_task t = task_of(w, next, n_tile, section);
        wait_phase(&s->task_empty[task.stage], task.parity ^ 1);
        s->task[task.stage] = t;
        mbarrier_arrive(smem_address(&s->task_full[task.stage]));
        ring_next<TASKS>(task);
        if (t.tile.n == 0) return;
        next = atomicAdd(&w.plan->next, 1u);
        load_keys(w, s, t, 0, k);
        load_query(w, s, t, parity);
        for (int block = 1; block < (int)t.n_block; block++) {
            load_keys(w, s, t, block, k);
            load_values(w, s, t, block - 1, v);
        }
        load_values(w, s, t, (int)t.n_block - 1, v);
    }
}

/* ---- the consumers ---- */

/* What a thread has on its way: rows lane / 4 of its warp and the eighth behind it. */
struct walk {
    struct prompt_ring k, v, task;
    uint32_t q_parity, turn_parity;
    uint32_t group;
    uint64_t query, key, value; /* operands of stage 0 */
    float top[2], sum[2];
    float scale;
    const uint4 *mask[2]; /* of the two rows */
};

static __device__ __forceinline__ void warp_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(smem_address(barrier));
}

/* Begins the scores of the next key block, once it is there. */
static __device__ __forceinline__ void start_scores(float (&s)[64], const struct walk &x)
{
    const uint64_t key = x.key + x.k.stage * (K_SLABS * SLAB_BYTES >> 4);
#pragma unroll
    for (int i = 0; i < K_SLABS; i++) {
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) {
            const uint64_t a = x.query + (uint64_t)(i * (Q_SLAB_BYTES >> 4) + 2 * k);
            const uint64_t b = key + (uint64_t)(i * (SLAB_BYTES >> 4) + 2 * k);
            if (i == 0 && k == 0) {
                wgmma_bf16_start(s, a, b);
            } else {
                wgmma_bf16_add(s, a, b);
            }
        }
    }
    wgmma_commit();
}

static __device__ __forceinline__ void
start_outputs(float (&o)[64], const uint32_t (&p)[KEY_STEPS][4], const struct walk &x)
{
    const uint64_t value = x.value + x.v.stage * (V_SLABS * SLAB_BYTES >> 4);
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        wgmma_bf16_add_turned(o, p[k], value + (uint64_t)(k * (16 * 128 >> 4)));
    }
    wgmma_commit();
}

/* Scores behind a row's own position, of which the first row's is `pos`, are none. */
static __device__ __forceinline__ void mask_scores(float (&s)[64], int pos, int block)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % 4;
    const int last = pos + warp * 16 + lane / 4 - block * PROMPT_TILE - lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 16; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (8 * j + i % 2 > last + i / 2 * 8) s[4 * j + i] = -INFINITY;
        }
    }
}

static __device__ __forceinline__ void read_masks(uint4 (&m)[2], const struct walk &x, int block)
{
    m[0] = x.mask[0][block];
    m[1] = x.mask[1][block];
}

/* Scores of positions that a row has not selected, or that are behind it, are none. */
static __device__ __forceinline__ void select_scores(float (&s)[64], const uint4 (&m)[2])
{
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t words[4] = {m[r].x, m[r].y, m[r].z, m[r].w};
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const uint32_t own = words[j / 4] >> 2 * t; /* columns 8 (j % 4) and the next */
            if (!(own & 1u << j % 4 * 8)) s[4 * j + 2 * r] = -INFINITY;
            if (!(own & 2u << j % 4 * 8)) s[4 * j + 2 * r + 1] = -INFINITY;
        }
    }
}

/* Scores to weights relative to the largest score so far; alpha: what the sums before are
 * multiplied by. A row that selects may have seen nothing yet. */
template <bool FIRST, bool MASKED>
static __device__ __forceinline__ void make_weights(float (&s)[64], struct walk &x,
                                                    float (&alpha)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(s[2 * r], s[2 * r + 1]), sum[2] = {};
#pragma unroll
        for (int j = 1; j < 16; j++)
            top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        top = fmaxf(top, shfl_xor(top, 1));
        top = fmaxf(top, shfl_xor(top, 2));
        if (!FIRST) top = fmaxf(top, x.top[r]);
        const float shift = MASKED && top == -INFINITY ? 0.0f : top, base = shift * x.scale;
#pragma unroll
        for (int j = 0; j < 16; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &v = s[4 * j + 2 * r + i];
                v = exp2_approx(fmaf(v, x.scale, -base));
                sum[i] += v;
            }
        }
        alpha[r] = FIRST ? 0.0f : exp2_approx((x.top[r] - shift) * x.scale);
        x.sum[r] = FIRST ? sum[0] + sum[1] : fmaf(x.sum[r], alpha[r], sum[0] + sum[1]);
        x.top[r] = top;
    }
}

static __device__ __forceinline__ void pack_weights(uint32_t (&p)[KEY_STEPS][4],
                                                    const float (&s)[64])
{
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
}

/* The codes of one row's rounded outputs, of which a lane has columns 32 i + 8 t to 32 i + 8 t + 7:
 * a head is one group. */
static __device__ __forceinline__ void store_codes(const struct attend_work &w, size_t head,
                                                   const uint32_t (&v)[4][4], bool present)
{
    const int t = (int)threadIdx.x % 4;
    float x[4][8], amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 pair = bf16x2_to_float2(v[i][k]);
            x[i][2 * k] = pair.x;
            x[i][2 * k + 1] = pair.y;
            amax = fmaxf(amax, fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
    }
    amax = fmaxf(amax, shfl_xor(amax, 1));
    amax = fmaxf(amax, shfl_xor(amax, 2));
    const float scale = fp8_scale(amax);
    if (!present) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *(uint2 *)(w.codes + head * V_DIM + (size_t)(i * 32 + t * 8)) =
            make_uint2(pack_e4m3(x[i], scale), pack_e4m3(x[i] + 4, scale));
    }
    if (t == 0) w.codes_scale[head] = scale;
}

/* The warp's rows of the tile to memory, 64 bytes of a row an access, and their codes. */
static __device__ __forceinline__ void store_outputs(const struct attend_work &w,
                                                     const struct prompt_task &t, struct walk &x,
                                                     const float (&o)[64])
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = x.sum[r];
        sum += shfl_xor(sum, 1);
        sum += shfl_xor(sum, 2);
        const float inverse = 1.0f / sum;
        const int row = (int)x.group * PROMPT_GROUP_ROWS + warp * 16 + lane / 4 + r * 8;
        const size_t token = (size_t)(t.tile.token + row), head = w.head0 + t.head;
        bf16 *to = w.out + token * w.out_stride + head * V_DIM + (size_t)(lane % 4 * 8);
        uint32_t v[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int j = 4 * (4 * i + k) + 2 * r;
                v[i][k] = pack_bf16(o[j] * inverse, o[j + 1] * inverse);
            }
            quad_transpose(v[i]);
            if (row < t.tile.n)
                *(uint4 *)(to + i * 32) = make_uint4(v[i][0], v[i][1], v[i][2], v[i][3]);
        }
        if (w.codes) store_codes(w, token * w.n_head_all + head, v, row < t.tile.n);
    }
}

static __device__ __forceinline__ void find_masks(const struct attend_work &w,
                                                  const struct prompt_tile &t, struct walk &x)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = (int)x.group * PROMPT_GROUP_ROWS + warp * 16 + lane / 4 + r * 8;
        x.mask[r] = w.mask + (size_t)(t.token + min(row, t.n - 1)) * w.mask_stride;
    }
}

template <bool TURNS, bool MASKED>
static __device__ __forceinline__ void attend_tile(const struct attend_work &w,
                                                   struct attend_stages *sh,
                                                   const struct prompt_task &t, struct walk &x)
{
    const int pos = t.tile.pos + (int)x.group * PROMPT_GROUP_ROWS;
    float s[64], o[64] = {}, alpha[2];
    uint32_t p[KEY_STEPS][4];
    uint4 m[2]; /* of the next block */
    if (MASKED) {
        find_masks(w, t.tile, x);
        read_masks(m, x, 0);
    }
    wait_phase(&sh->q_full[x.group], x.q_parity);
    wait_phase(&sh->k_full[x.k.stage], x.k.parity);
    wgmma_fence();
    start_scores(s, x);
    wgmma_wait_but<0>(s);
    warp_arrive(&sh->k_empty[x.k.stage]);
    ring_next<STAGES>(x.k);
    if (MASKED) {
        select_scores(s, m);
        read_masks(m, x, min(1, (int)t.n_block - 1));
    } else if (pos < PROMPT_TILE - 1) {
        mask_scores(s, pos, 0);
    }
    make_weights<true, MASKED>(s, x, alpha);
    pack_weights(p, s);
#pragma unroll 1
    for (int block = 1; block < (int)t.n_block; block++) {
        wait_phase(&sh->k_full[x.k.stage], x.k.parity);
        if (TURNS) wait_phase(&sh->turn[x.group], x.turn_parity);
        x.turn_parity ^= 1;
        wgmma_fence();
        start_scores(s, x);
        wait_phase(&sh->v_full[x.v.stage], x.v.parity);
        start_outputs(o, p, x);
        if (TURNS) warp_arrive(&sh->turn[x.group ^ 1]);
        wgmma_wait_but<1>(s);
        warp_arrive(&sh->k_empty[x.k.stage]);
        ring_next<STAGES>(x.k);
        if (MASKED) {
            select_scores(s, m);
            read_masks(m, x, min(block + 1, (int)t.n_block - 1));
        } else if (pos < block * PROMPT_TILE + PROMPT_TILE - 1) {
            mask_scores(s, pos, block);
        }
        make_weights<false, MASKED>(s, x, alpha);
        wgmma_wait_but<0>(o);
        warp_arrive(&sh->v_empty[x.v.stage]);
        ring_next<STAGES>(x.v);
#pragma unroll
        for (int j = 0; j < 64; j++) o[j] *= alpha[j / 2 % 2];
        pack_weights(p, s);
    }
    warp_arrive(&sh->q_empty[x.group]);
    x.q_parity ^= 1;
    wait_phase(&sh->v_full[x.v.stage], x.v.parity);
    wgmma_fence();
    start_outputs(o, p, x);
    wgmma_wait_but<0>(o);
    warp_arrive(&sh->v_empty[x.v.stage]);
    ring_next<STAGES>(x.v);
    store_outputs(w, t, x, o);
}

template <bool TURNS>
static __device__ __forceinline__ void consume(const struct attend_work &w,
                                               struct attend_stages *sh, uint32_t group)
{
    struct walk x = {};
    x.group = group;
    x.scale = w.scale;
    x.query = wgmma_operand(smem_address(sh->q[group]));
    x.key = wgmma_operand(smem_address(sh->k[0]));
    x.value = wgmma_operand_turned(smem_address(sh->v[0]), SLAB_BYTES);
    if (TURNS && group == 1) warp_arrive(&sh->turn[0]); /* the first group begins */
    for (;;) {
        wait_phase(&sh->task_full[x.task.stage], x.task.parity);
        const struct prompt_task t = sh->task[x.task.stage];
        warp_arrive(&sh->task_empty[x.task.stage]);
        ring_next<TASKS>(x.task);
        if (t.tile.n == 0) return;
        if (w.mask && (uint32_t)(t.tile.pos + t.tile.n) > w.topk)
            attend_tile<TURNS, true>(w, sh, t, x);
        else
            attend_tile<TURNS, false>(w, sh, t, x);
    }
}

template <bool TURNS>
__global__ void __launch_bounds__(THREADS, 1)
    prompt_attend_kernel(const __grid_constant__ struct attend_work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct attend_stages *s = (struct attend_stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPS; i++) {
            mbarrier_init(smem_address(&s->q_full[i]), 1);
            mbarrier_init(smem_address(&s->q_empty[i]), 4);
            mbarrier_init(smem_address(&s->turn[i]), 4);
        }
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->k_full[i]), 1);
            mbarrier_init(smem_address(&s->v_full[i]), 1);
            mbarrier_init(smem_address(&s->k_empty[i]), 4 * GROUPS);
            mbarrier_init(smem_address(&s->v_empty[i]), 4 * GROUPS);
        }
        for (int i = 0; i < TASKS; i++) {
            mbarrier_init(smem_address(&s->task_full[i]), 1);
            mbarrier_init(smem_address(&s->task_empty[i]), 4 * GROUPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    dependency_release();
    dependency_wait();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<TURNS>(w, s, (uint32_t)(group - 1));
    }
#endif
}

/* ---- passes ---- */

#ifndef PROMPT_TURNS
#define PROMPT_TURNS true
#endif

static fathom_err attend_pass(struct cuda_backend *c, const struct prompt_args &a,
                              const struct prompt_pass &p)
{
    struct attend_work w = {};
    const uint32_t rows = p.n_context * PROMPT_TILE;
    const size_t kv_row = (size_t)p.n_head * PROMPT_HEAD_BYTES;
    CU_TRY(c,
           make_strided_map(&w.query_map, a.query, a.n_head * QUERY_DIM * 2, a.query_stride * 2,
                            a.n_token, 1, a.query_stride * 2 * a.n_token, PROMPT_GROUP_ROWS),
           "mla_attend");
    CU_TRY(c, make_map(&w.kv_map, p.kv, (uint32_t)kv_row, rows, 1, kv_row * rows, PROMPT_TILE),
           "mla_attend");
    CU_TRY(c,
           make_map(&w.rope_map, p.rope, KV_ROPE * 2, rows, 1, (size_t)KV_ROPE * 2 * rows,
                    PROMPT_TILE),
           "mla_attend");
    w.plan = p.plan;
    w.tiles = p.tiles;
    w.out = a.out;
    w.out_stride = a.out_stride;
    w.codes = a.codes;
    w.codes_scale = a.codes_scale;
    w.n_head_all = a.n_head;
    w.mask = p.mask;
    w.mask_stride = p.mask_stride;
    w.topk = a.topk;
    w.head0 = p.head0;
    w.n_head = p.n_head;
    w.scale = a.scale * 1.44269504f; /* log2(e) */
    return cuda_launch(c, "mla_attend", prompt_attend_kernel<PROMPT_TURNS>, dim3(p.n_block),
                       THREADS, sizeof(struct attend_stages), w);
}

fathom_err prompt_attend_sm90(struct cuda_backend *c, const struct prompt_args &a)
{
    const int32_t context = min((int32_t)a.max_context, a.end);
    const uint32_t each = ceil_div((uint32_t)context, PROMPT_TILE); /* context tiles a request */
    const uint64_t head_bytes = (uint64_t)each * PROMPT_TILE * PROMPT_HEAD_BYTES;
    const uint32_t whole = min(a.n_head, (uint32_t)PROMPT_HEADS_MIN);
    ASSERT(each <= c->prompt.n_context && c->prompt.kv_bytes >= head_bytes);
    uint32_t together = min(c->prompt.n_context / each, (uint32_t)PROMPT_REQUESTS_MAX);
    together = min(together, (uint32_t)(c->prompt.kv_bytes / (head_bytes * whole)));
    struct prompt_pass p = {};
    p.n_block = c->limits.n_sm;
    p.plan = (struct prompt_plan *)c->prompt.plan;
    p.contexts = (struct prompt_context *)((char *)c->prompt.plan + PROMPT_ENTRY_BYTES);
    p.tiles = (struct prompt_tile *)((char *)p.contexts +
                                     (size_t)c->prompt.n_context * PROMPT_ENTRY_BYTES);
    p.latent = c->prompt.latent;
    p.rope = c->prompt.rope;
    p.kv = c->prompt.kv;
    if (a.slots && (uint32_t)context > a.topk) {
        p.mask = (uint4 *)c->prompt.mask;
        p.mask_stride = each;
        TRY(prompt_mask(c, a, p));
    }
    for (uint32_t r = a.first_request; r < a.n_request; r += p.n_request) {
        p.request0 = r;
        p.n_request = min(max(together, 1u), a.n_request - r);
        p.n_context = p.n_request * each;
        TRY(prompt_gather(c, a, p));
        const uint64_t fit = c->prompt.kv_bytes / (head_bytes * p.n_request);
        const uint32_t n_head = fit < a.n_head ? (uint32_t)fit : a.n_head;
        for (uint32_t h = 0; h < a.n_head; h += p.n_head) {
            p.head0 = h;
            p.n_head = min(n_head, a.n_head - h);
            TRY(prompt_expand(c, a, p));
            TRY(attend_pass(c, a, p));
        }
    }
    return FATHOM_OK;
}

fathom_err prompt_attend_sm90_init(struct cuda_backend *c)
{
    CU_TRY(c, raise_shared(prompt_attend_kernel<PROMPT_TURNS>, sizeof(struct attend_stages)),
           "mla_attend");
    return prompt_expand_init(c);
}

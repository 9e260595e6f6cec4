/* index_score_alone.cu - index scores of tokens that share no keys, on sm_90a
 *
 * A block has a run of the pages that one token sees. Each of its warpgroups streams every second
 * page through a ring of stages: products of a page's 64 keys, the operand in registers, and the
 * token's 64 heads. Two blocks a multiprocessor, so that one begins while the other streams. */
#include "backend/cuda/sm90/index_score_alone.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/index_score.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    PAGE = KV_PAGE_TOKENS,
    GROUPS = 2, /* warpgroups, a page each */
    GROUP_WARPS = 4,
    THREADS = GROUPS * GROUP_WARPS * WARP,
    SM_BLOCKS = 2, /* of a multiprocessor */
    HEADS = SCORE90_HEADS,
    WARP_KEYS = PAGE / GROUP_WARPS,
    ROW_BYTES = KV_INDEX_DIM,
    PAGE_BYTES = PAGE * ROW_BYTES,
    SCALES_BYTES = PAGE * 4,
    QUERY_BYTES = HEADS * ROW_BYTES,
    K_STEPS = KV_INDEX_DIM / 32,
    STAGES_MAX = 4,     /* of a warpgroup's pages under way */
    BLOCK_PAGES = 256,  /* of a block at most */
    REQUEST_TOKENS = 4, /* of a request at most */
    START_PAGES = 6,    /* what a block takes besides its pages, in their time */
    WAVES = 3,          /* of blocks, among which the number of a token's is chosen */
};
static_assert((int)ROW_BYTES == (int)K_LINE_BYTES, "a key is a row of a permuted tile");
static_assert(PAGE == 64 && HEADS == 64, "a product of 64 keys and 64 heads");
static_assert(BLOCK_PAGES <= THREADS, "a thread reads a page's number");

struct alone_args {
    struct score_args s;
    uint32_t n_part;  /* blocks of a token */
    uint32_t n_stage; /* up to STAGES_MAX */
    uint32_t n_step;
    bool reads_ahead;
    CUtensorMap q_map, key_map;
};

/* A block's shared memory: this, and the stages' pages [GROUPS][n_stage]. */
struct alone_shared {
    alignas(1024) unsigned char q[QUERY_BYTES];
    float scale[GROUPS][STAGES_MAX][PAGE];
    int page[BLOCK_PAGES];
    uint64_t full[GROUPS][STAGES_MAX], empty[GROUPS][STAGES_MAX], q_full;
};

/* What a block has of a token, and its warp's group of that. */
struct alone_block {
    struct alone_shared *sh;
    unsigned char *stages;
    uint32_t row, token; /* of the call, of the step */
    int pos, first_page, n_page;
    int old_pages; /* of the token's: there before the kernel waits */
    int group, group_pages;
};

/* Starts to copy the group's page number i. */
static __device__ __forceinline__ void copy_page(const struct alone_args &a,
                                                 const struct alone_block &b, int i, uint32_t stage)
{
    const int page = b.sh->page[b.group + i * GROUPS];
    const uint32_t full = smem_address(&b.sh->full[b.group][stage]);
    DCHECK(stage < a.n_stage && page >= 0 && (uint32_t)page < a.s.n_page);
    if (!elect_lane()) return;
    mbarrier_arrive_expect(full, PAGE_BYTES + SCALES_BYTES);
    tensor_load(smem_address(b.stages + stage * PAGE_BYTES), &a.key_map, full, 0, 0, page);
    bulk_load(smem_address(b.sh->scale[b.group][stage]),
              a.s.kv.index + (size_t)page * a.s.kv.page_bytes + KV_INDEX_SCALES_OFFSET,
              SCALES_BYTES, full);
}

/* Copies of the group's first pages, n of which are under way: those the step does not write, or
 * all. */
static __device__ __forceinline__ int copy_first(const struct alone_args &a,
                                                 const struct alone_block &b, int n, bool only_old)
{
    const int end = min(b.group_pages, (int)a.n_stage);
    for (; n < end; n++) {
        if (only_old && b.first_page + b.group + n * GROUPS >= b.old_pages) break;
        if (warp_id() % GROUP_WARPS == 0) copy_page(a, b, n, (uint32_t)n);
    }
    __syncwarp();
    return n;
}

/* Weights of the heads whose products a lane gets: heads 8 j + 2 t and the next. */
static __device__ __forceinline__ void read_weights(const struct alone_args &a, uint32_t token,
                                                    float2 (&weight)[8])
{
    const float *from = a.s.weight + (size_t)token * HEADS + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++) weight[j] = *(const float2 *)(from + 8 * j);
}

/* The sum over the heads of row g + 8 (t % 2), in the order of index_score.cu. */
static __device__ __forceinline__ float sum_heads(const float (&c)[32], const float2 (&weight)[8])
{
    const bool odd = threadIdx.x & 1;
    float low = 0.0f, high = 0.0f; /* of rows g and g + 8 */
#pragma unroll
    for (int j = 0; j < 8; j++) {
        low = fmaf(weight[j].x, fmaxf(c[4 * j], 0.0f), low);
        high = fmaf(weight[j].x, fmaxf(c[4 * j + 2], 0.0f), high);
        low = fmaf(weight[j].y, fmaxf(c[4 * j + 1], 0.0f), low);
        high = fmaf(weight[j].y, fmaxf(c[4 * j + 3], 0.0f), high);
    }
    const float sum = (odd ? high : low) + shfl_xor(odd ? low : high, 1);
    return sum + shfl_xor(sum, 2);
}

/* Makes the scores of a warp's keys, n of whose group's pages are on their way. */
static __device__ __forceinline__ void make_scores(const struct alone_args &a,
                                                   const struct alone_block &b, int n,
                                                   const float2 (&weight)[8])
{
    const int lane = (int)threadIdx.x % WARP, warp = warp_id() % GROUP_WARPS;
    const int n_page = (int)warp_uniform((uint32_t)b.group_pages), first = warp * WARP_KEYS;
    const int key = first + lane / 4 + lane % 2 * 8; /* whose score the lane gets */
    const int operand = (first + lane % 16) * ROW_BYTES;
    const uint64_t q = wgmma_operand(smem_address(b.sh->q));
    float *to = a.s.score + (size_t)b.row * a.s.stride;
    uint32_t stage = 0, parity = 0;
    wait_phase(&b.sh->q_full, 0);
    for (int i = 0; i < n_page; i++) {
        uint32_t v[K_STEPS][4];
        float c[32];
        wait_phase(&b.sh->full[b.group][stage], parity);
        const float scale = b.sh->scale[b.group][stage][key];
        const uint32_t at = smem_address(b.stages + stage * PAGE_BYTES + operand);
#pragma unroll
        for (int k = 0; k < K_STEPS; k++)
            ldmatrix_x4(v[k], at + (uint32_t)(((2 * k + lane / 16) ^ (lane & 7)) << 4));
        wgmma_fence();
        wgmma_e4m3_start(c, v[0], q);
#pragma unroll
        for (int k = 1; k < K_STEPS; k++) wgmma_e4m3_add(c, v[k], q + (uint64_t)(2 * k));
        wgmma_commit();
        wgmma_wait(c);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(smem_address(&b.sh->empty[b.group][stage]));
        const float score = sum_heads(c, weight) * scale;
        const int position = (b.first_page + b.group + i * GROUPS) * PAGE + key;
        if (lane % 4 < 2 && position <= b.pos) to[position] = score;
        if (warp == 0 && n < n_page) {
            wait_phase(&b.sh->empty[b.group][stage], parity);
            copy_page(a, b, n++, stage);
        }
        __syncwarp();
        if (++stage == a.n_stage) {
            stage = 0;
            parity ^= 1;
        }
    }
}

static __device__ __forceinline__ void begin(const struct alone_args &a, struct alone_shared *sh)
{
    if (threadIdx.x < GROUPS * STAGES_MAX) {
        mbarrier_init(smem_address(&sh->full[0][0] + threadIdx.x), 1);
        mbarrier_init(smem_address(&sh->empty[0][0] + threadIdx.x), GROUP_WARPS);
    }
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a.q_map);
        tensor_map_prefetch(&a.key_map);
        mbarrier_init(smem_address(&sh->q_full), 1);
    }
    mbarrier_init_fence();
    async_proxy_fence();
}

/* The block's pages; a barrier is on the way. */
static __device__ __forceinline__ void find_pages(const struct alone_args &a, struct alone_block *b)
{
    const int32_t *pages = a.s.page_table + (size_t)a.s.request[b->token] * a.s.page_stride;
    b->pos = a.s.pos[b->token];
    const int n_page = b->pos / PAGE + 1, each = (n_page + (int)a.n_part - 1) / (int)a.n_part;
    b->first_page = min((int)(blockIdx.x % a.n_part) * each, n_page);
    b->n_page = min(each, n_page - b->first_page);
    b->old_pages = max(b->pos + 1 - (int)a.n_step, 0) / PAGE;
    b->group = warp_id() / GROUP_WARPS;
    b->group_pages = (b->n_page - b->group + GROUPS - 1) / GROUPS;
    DCHECK(b->n_page <= BLOCK_PAGES);
    if ((int)threadIdx.x < b->n_page)
        b->sh->page[threadIdx.x] = pages[b->first_page + (int)threadIdx.x];
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS, SM_BLOCKS)
    score_alone_sm90_kernel(const __grid_constant__ struct alone_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, raw);
    struct alone_block b;
    int n_copied = 0;
    b.sh = (struct alone_shared *)raw;
    b.row = blockIdx.x / a.n_part;
    b.token = a.s.first_token + b.row;
    begin(a, b.sh);
    if (!a.reads_ahead) dependency_wait();
    find_pages(a, &b);
    b.stages = raw + sizeof *b.sh + (size_t)((uint32_t)b.group * a.n_stage) * PAGE_BYTES;
    const bool scores = b.pos >= (int)a.s.topk; /* else all rows are chosen */
    if (scores && a.reads_ahead) n_copied = copy_first(a, b, 0, true);
    if (a.reads_ahead) dependency_wait();
    dependency_release(); /* launch.cuh */
    if (!scores) return;
    float2 weight[8];
    if (threadIdx.x == 0) {
        const uint32_t full = smem_address(&b.sh->q_full);
        mbarrier_arrive_expect(full, QUERY_BYTES);
        tensor_load(smem_address(b.sh->q), &a.q_map, full, 0, (int)b.token * HEADS, 0);
    }
    __syncwarp();
    n_copied = copy_first(a, b, n_copied, false);
    read_weights(a, b.token, weight);
    make_scores(a, b, n_copied, weight);
#endif
}

/* ---- launches ---- */

static uint32_t shared_bytes(uint32_t n_stage)
{
    return (uint32_t)sizeof(struct alone_shared) + GROUPS * n_stage * PAGE_BYTES;
}

/* Blocks of a token: of the numbers that fill the device once, twice and so on, the one with which
 * its blocks take the least in turns. */
static uint32_t token_blocks(uint32_t n_sm, uint32_t n_token, uint32_t n_page)
{
    const uint32_t places = SM_BLOCKS * n_sm;
    const uint32_t least = ceil_div(n_page, BLOCK_PAGES), most = ceil_div(n_page, GROUPS);
    uint32_t best = 0;
    uint64_t best_pages = UINT64_MAX;
    ASSERT(n_sm >= 1 && n_token >= 1 && n_page >= 1);
    for (uint32_t wave = 1; wave <= WAVES; wave++) {
        const uint32_t wanted = wave * places / n_token;
        const uint32_t n = wanted < least ? least : wanted > most ? most : wanted;
        const uint64_t turns = ceil_div(n_token * n, places);
        const uint64_t pages = turns * (ceil_div(n_page, n) + START_PAGES);
        if (pages >= best_pages) continue;
        best_pages = pages;
        best = n;
    }
    return best;
}

cudaError_t index_score_alone_init(void)
{
    return raise_shared(score_alone_sm90_kernel, shared_bytes(STAGES_MAX));
}

bool index_score_alone_takes(const struct cuda_backend *c, const struct score_args &s,
                             uint32_t n_request)
{
    return c->sm90 && s.n_head == HEADS && s.kv.type != KV_TYPE_F32 && s.n_token >= 1 &&
           s.n_token <= REQUEST_TOKENS * n_request;
}

fathom_err index_score_alone(struct cuda_backend *c, const struct score_args &s,
                             uint32_t max_context, uint32_t n_step, bool reads_ahead)
{
    ASSERT(index_score_alone_takes(c, s, s.n_token));
    ASSERT((uintptr_t)s.q % 16 == 0 && (uintptr_t)s.weight % 16 == 0);
    struct alone_args a = {};
    const uint32_t n_page = ceil_div(max_context, PAGE);
    const uint32_t n_row = (s.first_token + s.n_token) * HEADS;
    a.s = s;
    a.n_part = token_blocks(c->limits.n_sm, s.n_token, n_page);
    a.n_step = n_step;
    a.reads_ahead = reads_ahead;
    const uint32_t group_pages = ceil_div(ceil_div(n_page, a.n_part), GROUPS);
    a.n_stage = group_pages < STAGES_MAX ? group_pages : STAGES_MAX;
    CU_TRY(c, make_map(&a.q_map, s.q, ROW_BYTES, n_row, 1, (size_t)n_row * ROW_BYTES, HEADS),
           "index scores");
    CU_TRY(c, make_map(&a.key_map, s.kv.index, ROW_BYTES, PAGE, s.n_page, s.kv.page_bytes, PAGE),
           "index scores");
    return cuda_launch(c, "index scores", score_alone_sm90_kernel, dim3(s.n_token * a.n_part),
                       THREADS, shared_bytes(a.n_stage), a);
}

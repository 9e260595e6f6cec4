/* index_choose.cu - index scores of few tokens and the choice of the largest, on sm_90a
 *
 * A cluster has a token, and each of its blocks a run of the pages that the token sees. Scores stay
 * in the block's shared memory, as keys that order like integers. Blocks of a cluster share one
 * part of the device's paths to memory, so contexts that are longer are scored by a kernel of their
 * own, whose blocks are in no cluster, and the choice reads the scores.
 *
 * The key of the last one wanted is found digit by digit, of 8 bits each: a block counts the digits
 * of its keys that share the ones before, and sends the counts to all blocks of the cluster, so all
 * of them know the digit. Behind the last one a block knows how many keys of each are above it, so
 * where among the chosen its own begin, and writes them in ascending position. */
#include "backend/cuda/sm90/index_choose.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/index_score.cuh"
#include "backend/cuda/sm90/stage.cuh"

/* What a kernel does: makes scores, for another to choose by; chooses; or both. */
enum few_work { FEW_SCORES, FEW_CHOICE, FEW_BOTH };

enum {
    PAGE = KV_PAGE_TOKENS,
    GROUPS = 4, /* warpgroups, a page each */
    GROUP_WARPS = 4,
    WARPS = GROUPS * GROUP_WARPS,
    THREADS = WARPS * WARP,
    HEADS = SCORE90_HEADS,
    WARP_KEYS = PAGE / GROUP_WARPS,
    ROW_BYTES = KV_INDEX_DIM,
    PAGE_BYTES = PAGE * ROW_BYTES,
    SCALES_BYTES = PAGE * 4,
    QUERY_BYTES = HEADS * ROW_BYTES,
    K_STEPS = KV_INDEX_DIM / 32,
    STAGES_MAX = 4,    /* of a warpgroup's pages under way */
    BLOCK_PAGES = 160, /* of a block at most: */
    BLOCKS_MAX = CLUSTER_BLOCKS_LARGE,
    BOTH_CONTEXT = 8192, /* up to which one kernel makes scores and chooses, */
    BOTH_TOKENS = 16,    /* for so many tokens */
    TOKENS_MAX = 128,    /* more are faster by kernels that fill the device, */
    REQUEST_TOKENS = 4,  /* and more of a request, whose keys those read once */
    DIGIT_BITS = 8,
    DIGITS = 32 / DIGIT_BITS,
    N_BIN = 1 << DIGIT_BITS,
    LANE_BINS = N_BIN / WARP,
    PIECE_BINS = 8,   /* counts in 16 bytes */
    ADDED_BLOCKS = 4, /* whose counts are added as they are stored, two in a word */
};
static_assert((int)ROW_BYTES == (int)K_LINE_BYTES, "a key is a row of a permuted tile");
static_assert(PAGE == 64 && HEADS == 64, "a product of 64 keys and 64 heads");
static_assert(BLOCK_PAGES <= THREADS, "a thread reads a page's number");
static_assert(ADDED_BLOCKS * BLOCK_PAGES * PAGE <= UINT16_MAX, "their sums have 16 bits");
static_assert(THREADS == BLOCKS_MAX * WARP && WARP * PIECE_BINS == N_BIN,
              "a warp sends a block's counts, a lane a piece");
static_assert((int)LANE_BINS == (int)PIECE_BINS, "a lane sums one piece of every block's");

struct few_args {
    struct score_args s;
    struct topk_args k;
    uint32_t n_part;  /* blocks of a cluster */
    uint32_t n_stage; /* up to STAGES_MAX */
    uint32_t n_token; /* of the step */
    bool reads_ahead;
    CUtensorMap q_map, key_map;
};

/* What is known of the last key wanted: digits so far, and of the keys that share them how many are
 * wanted and how many there are. */
struct few_found {
    uint32_t prefix;
    int n_digit, want, n_key;
};

/* A block's shared memory: this, the stages' pages [GROUPS][n_stage], and a key that orders like an
 * integer of each of its rows, 0 beyond the end. */
struct few_shared {
    alignas(1024) unsigned char q[QUERY_BYTES];
    int bins[DIGITS][N_BIN];
    uint16_t counts[DIGITS][BLOCKS_MAX][N_BIN]; /* bins of each block */
    struct few_found found;
    int taken[BLOCKS_MAX], same[BLOCKS_MAX]; /* keys above the last wanted, and its equals */
    int warp_taken[WARPS], warp_same[WARPS]; /* the same of this block's */
    float scale[GROUPS][STAGES_MAX][PAGE];
    int page[BLOCK_PAGES];
    uint64_t full[GROUPS][STAGES_MAX], empty[GROUPS][STAGES_MAX], q_full;
    uint64_t counts_full[DIGITS];
};

/* What a block has of a token. */
struct few_block {
    struct few_shared *sh;
    unsigned char *stages; /* this warpgroup's */
    uint32_t *keys;
    uint32_t token, rank; /* of its blocks */
    int pos;
    int first_page, n_page;
    int old_pages; /* of the token's: there before the kernel waits */
};

static __device__ __forceinline__ int warp_id(void)
{
    return shfl((int)threadIdx.x / WARP, 0);
}

/* ---- scores ---- */

/* Pages that this warp's group has of its block's. */
static __device__ __forceinline__ int group_pages(const struct few_block &b)
{
    return (b.n_page - warp_id() / GROUP_WARPS + GROUPS - 1) / GROUPS;
}

/* Starts to copy page number `page` of the cache, for the group of the warp that calls. */
static __device__ __forceinline__ void
copy_page(const struct few_args &a, const struct few_block &b, int page, uint32_t stage)
{
    const int group = warp_id() / GROUP_WARPS;
    const uint32_t full = smem_address(&b.sh->full[group][stage]);
    DCHECK(stage < a.n_stage && page >= 0 && (uint32_t)page < a.s.n_page);
    if (!elect_lane()) return;
    mbarrier_arrive_expect(full, PAGE_BYTES + SCALES_BYTES);
    tensor_load(smem_address(b.stages + stage * PAGE_BYTES), &a.key_map, full, 0, 0, page);
    bulk_load(smem_address(b.sh->scale[group][stage]),
              a.s.kv.index + (size_t)page * a.s.kv.page_bytes + KV_INDEX_SCALES_OFFSET,
              SCALES_BYTES, full);
}

/* Weights of the heads whose products a lane gets: heads 8 j + 2 t and the next. */
static __device__ __forceinline__ void read_weights(const struct few_args &a, uint32_t token,
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

/* Keeps the block's score number `place`: as a key, and counts its first digit; or in the token's
 * row. */
template <enum few_work WORK>
static __device__ __forceinline__ void put_score(const struct few_args &a,
                                                 const struct few_block &b, int place, float score)
{
    const int position = b.first_page * PAGE + place;
    const bool is_seen = position <= b.pos;
    DCHECK(place >= 0 && place < b.n_page * PAGE);
    if (WORK == FEW_SCORES) {
        if (is_seen) a.k.score[(size_t)b.token * a.k.stride + (uint32_t)position] = score;
        return;
    }
    const uint32_t key = is_seen ? order_key(score) : 0;
    b.keys[place] = key;
    if (is_seen) (void)atomicAdd(&b.sh->bins[0][key >> (32 - DIGIT_BITS)], 1);
}

/* Makes the scores of a warp's keys, n pages of whose group are on their way. */
template <enum few_work WORK>
static __device__ __forceinline__ void
make_scores(const struct few_args &a, const struct few_block &b, int n, const float2 (&weight)[8])
{
    const int lane = (int)threadIdx.x % WARP, warp = warp_id(), group = warp / GROUP_WARPS;
    const int n_page = (int)warp_uniform((uint32_t)group_pages(b)),
              first = warp % GROUP_WARPS * WARP_KEYS;
    const int row = first + lane / 4 + lane % 2 * 8; /* whose score the lane gets */
    const int operand = (first + lane % 16) * ROW_BYTES;
    const uint64_t q = wgmma_operand(smem_address(b.sh->q));
    uint32_t stage = 0, parity = 0;
    wait_phase(&b.sh->q_full, 0);
    for (int i = 0; i < n_page; i++) {
        uint32_t v[K_STEPS][4];
        float c[32];
        wait_phase(&b.sh->full[group][stage], parity);
        const float scale = b.sh->scale[group][stage][row];
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
        if (lane == 0) mbarrier_arrive(smem_address(&b.sh->empty[group][stage]));
        const float score = sum_heads(c, weight) * scale;
        if (lane % 4 < 2) put_score<WORK>(a, b, (group + i * GROUPS) * PAGE + row, score);
        if (warp % GROUP_WARPS == 0 && n < n_page) {
            wait_phase(&b.sh->empty[group][stage], parity);
            copy_page(a, b, b.sh->page[group + n++ * GROUPS], stage);
        }
        __syncwarp();
        if (++stage == a.n_stage) {
            stage = 0;
            parity ^= 1;
        }
    }
}

/* Reads scores that a kernel before has made. A row has room for whole pages. */
static __device__ __forceinline__ void read_scores(const struct few_args &a,
                                                   const struct few_block &b)
{
    const float *row = a.k.score + (size_t)b.token * a.k.stride + (size_t)b.first_page * PAGE;
    for (int i = (int)threadIdx.x; i < b.n_page * (PAGE / 4); i += THREADS) {
        const float4 v = *(const float4 *)(row + 4 * i);
        const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) put_score<FEW_CHOICE>(a, b, 4 * i + j, each[j]);
    }
}

/* ---- the last one wanted ---- */

static __device__ __forceinline__ int digit_shift(int digit)
{
    return 32 - DIGIT_BITS * (digit + 1);
}

/* Counts the digits of keys that share the ones before. */
static __device__ __forceinline__ void count_digits(const struct few_block &b, int digit,
                                                    uint32_t prefix)
{
    const int shift = digit_shift(digit), before = shift + DIGIT_BITS;
    const uint32_t wanted = prefix >> before;
    const int n = b.n_page * (PAGE / 4);
    DCHECK(digit >= 1 && digit < DIGITS);
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        const uint4 v = ((const uint4 *)b.keys)[i];
        const uint32_t each[4] = {v.x, v.y, v.z, v.w};
        bool shares[4], any = false;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            shares[j] = each[j] >> before == wanted && each[j] != 0;
            any |= shares[j];
        }
        if (!any) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (shares[j]) (void)atomicAdd(&b.sh->bins[digit][each[j] >> shift & (N_BIN - 1)], 1);
        }
    }
}

/* This block's counts to every block. */
static __device__ __forceinline__ void share_counts(const struct few_args &a,
                                                    const struct few_block &b, int digit)
{
    struct few_shared *sh = b.sh;
    const uint32_t lane = threadIdx.x % WARP, to = threadIdx.x / WARP;
    const uint32_t full = smem_address(&sh->counts_full[digit]);
    DCHECK(digit >= 0 && digit < DIGITS && a.n_part <= BLOCKS_MAX && b.rank < a.n_part);
    if (threadIdx.x == 0)
        mbarrier_arrive_expect(full, a.n_part * (uint32_t)sizeof sh->counts[0][0]);
    if (to >= a.n_part) return;
    const int4 low = *(const int4 *)&sh->bins[digit][PIECE_BINS * lane];
    const int4 high = *(const int4 *)&sh->bins[digit][PIECE_BINS * lane + 4];
    const uint32_t place = smem_address(&sh->counts[digit][b.rank][PIECE_BINS * lane]);
    cluster_store_4(cluster_address(place, to), cluster_address(full, to),
                    make_int4(low.x | low.y << 16, low.z | low.w << 16, high.x | high.y << 16,
                              high.z | high.w << 16));
}

/* n += a piece of counts, of one block or the sums of ADDED_BLOCKS */
static __device__ __forceinline__ void add_counts(int (&n)[PIECE_BINS], const uint4 &v)
{
    const uint32_t two[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < PIECE_BINS; i++) n[i] += (int)(two[i / 2] >> i % 2 * 16 & 0xffff);
}

/* One digit more, by one warp: a lane has eight bins of all blocks, the last lane the lowest. */
static __device__ __forceinline__ void find_digit(const struct few_args &a, struct few_shared *sh)
{
    const int lane = (int)threadIdx.x % WARP, first = LANE_BINS * (WARP - 1 - lane);
    struct few_found f = sh->found;
    int n[LANE_BINS] = {}, own = 0;
    wait_phase<true>(&sh->counts_full[f.n_digit], 0);
    const uint16_t *counts = &sh->counts[f.n_digit][0][first];
#pragma unroll
    for (uint32_t block = 0; block < BLOCKS_MAX; block += ADDED_BLOCKS) {
        uint4 sum = make_uint4(0, 0, 0, 0);
        if (block >= a.n_part) break;
#pragma unroll
        for (uint32_t i = block; i < block + ADDED_BLOCKS; i++) {
            const uint4 v = *(const uint4 *)(counts + i * N_BIN);
            sum = make_uint4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        add_counts(n, sum);
    }
#pragma unroll
    for (int i = 0; i < LANE_BINS; i++) own += n[i];
    int sum = own;
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        const int x = shfl_up(sum, d);
        if (lane >= d) sum += x;
    }
    __syncwarp();
    if (sum < f.want || sum - own >= f.want) return; /* it is in another lane's */
    f.want -= sum - own;
    int at = LANE_BINS - 1;
#pragma unroll
    for (int i = LANE_BINS - 1; i > 0; i--) {
        if (at != i || f.want <= n[i]) continue;
        f.want -= n[i];
        at--;
    }
    f.n_key = n[0];
#pragma unroll
    for (int i = 1; i < LANE_BINS; i++) f.n_key = at == i ? n[i] : f.n_key;
    DCHECK(f.want >= 1 && f.want <= f.n_key);
    f.prefix |= (uint32_t)(first + at) << digit_shift(f.n_digit);
    f.n_digit++;
    sh->found = f;
}

/* ---- the chosen ---- */

/* Keys of the block that the warp's number names: above the last one wanted, and those that share
 * its digits. */
static __device__ __forceinline__ void count_taken(const struct few_args &a, struct few_shared *sh,
                                                   const struct few_found &f)
{
    const int lane = (int)threadIdx.x % WARP, block = warp_id();
    const bool has_equals = f.want < f.n_key;
    int above = 0, same = 0;
    DCHECK(f.n_digit >= 1 && f.want >= 1 && f.want <= f.n_key);
    if (block >= (int)a.n_part) return;
    for (int d = 0; d < f.n_digit; d++) {
        const int found = (int)(f.prefix >> digit_shift(d) & (N_BIN - 1)), first = LANE_BINS * lane;
        int n[LANE_BINS] = {};
        add_counts(n, *(const uint4 *)&sh->counts[d][block][first]);
#pragma unroll
        for (int i = 0; i < LANE_BINS; i++) above += first + i > found ? n[i] : 0;
        same = sh->counts[d][block][found];
    }
    above = warp_total(above);
    if (lane != 0) return;
    sh->taken[block] = above + (has_equals ? 0 : same);
    sh->same[block] = same;
}

/* A thread has so many of the block's keys, neighbours. */
static __device__ __forceinline__ int keys_each(const struct few_block &b)
{
    return (b.n_page * PAGE + 4 * THREADS - 1) / (4 * THREADS) * 4;
}

/* The sum over the threads before; a barrier is on the way. before: the cluster's blocks before. */
static __device__ __forceinline__ int sum_before(int v, int *sums, const int *blocks, int rank)
{
    const int lane = (int)threadIdx.x % WARP, warp = warp_id();
    int sum = v;
    DCHECK(v >= 0 && rank >= 0 && rank < BLOCKS_MAX);
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        const int x = shfl_up(sum, d);
        if (lane >= d) sum += x;
    }
    if (lane == WARP - 1) sums[warp] = sum;
    __syncthreads();
    return sum - v +
           warp_total((lane < warp ? sums[lane % WARPS] : 0) +
                      (lane < rank ? blocks[lane % BLOCKS_MAX] : 0));
}

/* Writes this block's share of the chosen. EQUALS: not all of the last one's equals are. */
template <bool EQUALS>
static __device__ __forceinline__ void
write_chosen(const struct few_args &a, const struct few_block &b, const struct few_found &f)
{
    struct few_shared *sh = b.sh;
    const int each = keys_each(b), first = (int)threadIdx.x * each;
    const int end = min(first + each, b.n_page * PAGE);
    const uint32_t lowest = EQUALS ? f.prefix + 1 : max(f.prefix, 1u); /* of those surely chosen */
    int n_take = 0, n_same = 0;
    for (int i = first; i < end; i += 4) {
        const uint4 v = *(const uint4 *)(b.keys + i);
        n_take += (v.x >= lowest) + (v.y >= lowest) + (v.z >= lowest) + (v.w >= lowest);
        if (EQUALS)
            n_same += (v.x == f.prefix) + (v.y == f.prefix) + (v.z == f.prefix) + (v.w == f.prefix);
    }
    int to = sum_before(n_take, sh->warp_taken, sh->taken, (int)b.rank), same = 0;
    if (EQUALS) same = sum_before(n_same, sh->warp_same, sh->same, (int)b.rank);
    int32_t *slots = a.k.slots + (size_t)topk_row(a.k, b.token) * a.k.topk;
    for (int i = first; i < end; i += 4) {
        const uint4 v = *(const uint4 *)(b.keys + i);
        const uint32_t key[4] = {v.x, v.y, v.z, v.w};
        const int slot = sh->page[i / PAGE] * PAGE + i % PAGE;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const bool equal = EQUALS && key[j] == f.prefix;
            if (key[j] >= lowest || (equal && same < f.want)) {
                const int at = to + (EQUALS ? min(same, f.want) : 0);
                DCHECK(at >= 0 && (uint32_t)at < a.k.topk);
                slots[at] = slot + j;
            }
            to += key[j] >= lowest;
            same += equal;
        }
    }
}

/* All rows of a token that sees no more than are chosen. */
static __device__ __forceinline__ void write_all(const struct few_args &a,
                                                 const struct few_block &b)
{
    int32_t *slots = a.k.slots + (size_t)topk_row(a.k, b.token) * a.k.topk;
    const int end = min(b.pos + 1 - b.first_page * PAGE, b.n_page * PAGE);
    for (int i = (int)threadIdx.x; i < end; i += THREADS)
        slots[b.first_page * PAGE + i] = b.sh->page[i / PAGE] * PAGE + i % PAGE;
}

/* ---- kernels ---- */

template <enum few_work WORK>
static __device__ __forceinline__ void begin(const struct few_args &a, struct few_shared *sh)
{
    if (WORK != FEW_CHOICE && threadIdx.x < GROUPS * STAGES_MAX) {
        mbarrier_init(smem_address(&sh->full[0][0] + threadIdx.x), 1);
        mbarrier_init(smem_address(&sh->empty[0][0] + threadIdx.x), GROUP_WARPS);
    }
    if (threadIdx.x == 0) {
        if (WORK != FEW_CHOICE) {
            tensor_map_prefetch(&a.q_map);
            tensor_map_prefetch(&a.key_map);
        }
        mbarrier_init(smem_address(&sh->q_full), 1);
        for (int i = 0; i < DIGITS; i++) mbarrier_init(smem_address(&sh->counts_full[i]), 1);
    }
    mbarrier_init_fence();
    async_proxy_fence();
    if (WORK == FEW_SCORES) return;
    cluster_arrive_relaxed(); /* until all blocks are there */
    int4 *bins = (int4 *)sh->bins;
    for (uint32_t i = threadIdx.x; i < DIGITS * N_BIN / 4; i += THREADS)
        bins[i] = make_int4(0, 0, 0, 0);
}

/* The block's pages; a barrier is on the way. */
static __device__ __forceinline__ void find_pages(const struct few_args &a, struct few_block *b)
{
    const int32_t *pages = a.k.page_table + (size_t)a.k.request[b->token] * a.k.page_stride;
    b->pos = a.k.pos[b->token];
    const int n_page = b->pos / PAGE + 1, each = (n_page + (int)a.n_part - 1) / (int)a.n_part;
    b->first_page = min((int)b->rank * each, n_page);
    b->n_page = min(each, n_page - b->first_page);
    b->old_pages = max(b->pos + 1 - (int)a.n_token, 0) / PAGE;
    DCHECK(b->n_page <= BLOCK_PAGES);
    if ((int)threadIdx.x < b->n_page)
        b->sh->page[threadIdx.x] = pages[b->first_page + (int)threadIdx.x];
    __syncthreads();
}

/* Copies of a group's first pages, n of which are under way: those the step does not write, or all.
 */
static __device__ __forceinline__ int copy_first(const struct few_args &a,
                                                 const struct few_block &b, int n, bool only_old)
{
    const int group = warp_id() / GROUP_WARPS, end = min(group_pages(b), (int)a.n_stage);
    for (; n < end; n++) {
        const int i = group + n * GROUPS;
        if (only_old && b.first_page + i >= b.old_pages) break;
        if (warp_id() % GROUP_WARPS == 0) copy_page(a, b, b.sh->page[i], (uint32_t)n);
    }
    __syncwarp();
    return n;
}

/* Scores of the block's keys, n_copied pages of each group of which are under way. */
template <enum few_work WORK>
static __device__ __forceinline__ void score_pages(const struct few_args &a,
                                                   const struct few_block &b, int n_copied)
{
    float2 weight[8];
    if (threadIdx.x == 0) {
        const uint32_t full = smem_address(&b.sh->q_full);
        mbarrier_arrive_expect(full, QUERY_BYTES);
        tensor_load(smem_address(b.sh->q), &a.q_map, full, 0, (int)b.token * HEADS, 0);
    }
    __syncwarp();
    n_copied = copy_first(a, b, n_copied, false);
    read_weights(a, b.token, weight);
    make_scores<WORK>(a, b, n_copied, weight);
}

static __device__ __forceinline__ void choose(const struct few_args &a, const struct few_block &b)
{
    struct few_shared *sh = b.sh;
    struct few_found f = {0, 0, (int)a.k.topk, 0};
    if (threadIdx.x == 0) sh->found = f;
    do {
        if (f.n_digit > 0) count_digits(b, f.n_digit, f.prefix);
        __syncthreads();
        share_counts(a, b, f.n_digit);
        if (threadIdx.x < WARP) find_digit(a, sh);
        __syncthreads();
        f = sh->found;
    } while (f.n_digit < DIGITS && f.want < f.n_key); /* else lower digits do not matter */
    count_taken(a, sh, f);
    if (f.want < f.n_key) {
        write_chosen<true>(a, b, f);
    } else {
        write_chosen<false>(a, b, f);
    }
}

template <enum few_work WORK>
__global__ void __launch_bounds__(THREADS, 1)
    index_few_kernel(const __grid_constant__ struct few_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, raw);
    const int group = warp_id() / GROUP_WARPS;
    struct few_block b;
    int n_copied = 0;
    b.sh = (struct few_shared *)raw;
    b.stages = raw + sizeof *b.sh + (size_t)((uint32_t)group * a.n_stage) * PAGE_BYTES;
    b.keys = (uint32_t *)(raw + sizeof *b.sh + (size_t)(GROUPS * a.n_stage) * PAGE_BYTES);
    b.token = blockIdx.x / a.n_part;
    b.rank = blockIdx.x % a.n_part;
    begin<WORK>(a, b.sh);
    if (!a.reads_ahead) dependency_wait();
    find_pages(a, &b);
    const bool scores = b.pos >= (int)a.k.topk; /* else all rows are chosen */
    if (WORK != FEW_CHOICE && scores && a.reads_ahead) n_copied = copy_first(a, b, 0, true);
    if (a.reads_ahead) dependency_wait();
    dependency_release(); /* launch.cuh */
    if (WORK != FEW_SCORES && b.rank == 0 && threadIdx.x == 0)
        a.k.counts[topk_row(a.k, b.token)] = min(b.pos + 1, (int)a.k.topk);
    if (scores) {
        if (WORK == FEW_CHOICE) {
            read_scores(a, b);
        } else {
            score_pages<WORK>(a, b, n_copied);
        }
    }
    if (WORK == FEW_SCORES) return;
    cluster_wait();
    if (scores) {
        choose(a, b);
    } else {
        write_all(a, b);
    }
#endif
}

/* ---- launches ---- */

static uint32_t shared_bytes(uint32_t n_stage, uint32_t block_pages)
{
    return (uint32_t)(sizeof(struct few_shared) + GROUPS * n_stage * PAGE_BYTES +
                      block_pages * PAGE * sizeof(uint32_t));
}

/* Clusters of n_block blocks that the device holds at once: none where no part has room for one. */
static uint32_t count_clusters(uint32_t n_block)
{
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};
    int n = 0;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = n_block;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(n_block);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared_bytes(STAGES_MAX, BLOCK_PAGES);
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&n, index_few_kernel<FEW_BOTH>, &config) == cudaSuccess &&
        n > 0)
        return (uint32_t)n;
    (void)cudaGetLastError();
    return 0;
}

template <enum few_work WORK> static cudaError_t raise_limits(void)
{
    cudaError_t e = raise_shared(index_few_kernel<WORK>, shared_bytes(STAGES_MAX, BLOCK_PAGES));
    if (e != cudaSuccess || WORK == FEW_SCORES) return e;
    return cudaFuncSetAttribute(index_few_kernel<WORK>,
                                cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

cudaError_t index_choose_init(struct sm90_limits *limits)
{
    static_assert((int)BLOCKS_MAX >> (INDEX_CLUSTERS - 1) == (int)ADDED_BLOCKS,
                  "of 16, 8 and 4 blocks");
    cudaError_t e = raise_limits<FEW_SCORES>();
    if (e == cudaSuccess) e = raise_limits<FEW_CHOICE>();
    if (e == cudaSuccess) e = raise_limits<FEW_BOTH>();
    for (uint32_t i = 0; i < INDEX_CLUSTERS && e == cudaSuccess; i++) {
        limits->index_blocks[i] = BLOCKS_MAX >> i;
        limits->index_clusters[i] = count_clusters(BLOCKS_MAX >> i);
    }
    return e;
}

/* Blocks of a token's cluster: as many as the device has room for at once, or of those that hold
 * the contexts the fewest; 0: none does. */
static uint32_t cluster_blocks(const struct sm90_limits &limits, uint32_t n_token,
                               uint32_t max_context)
{
    const uint32_t n_page = ceil_div(max_context, PAGE);
    uint32_t fewest = 0;
    ASSERT(n_token >= 1 && max_context >= 1);
    for (uint32_t i = 0; i < INDEX_CLUSTERS; i++) {
        const uint32_t n_block = limits.index_blocks[i];
        if (limits.index_clusters[i] == 0 || n_page > n_block * BLOCK_PAGES) continue;
        if (n_token <= limits.index_clusters[i]) return n_block;
        fewest = n_block;
    }
    return fewest;
}

bool index_choose_takes(const struct cuda_backend *c, const struct score_args &s,
                        uint32_t n_request, uint32_t max_context)
{
    return c->sm90 && s.n_head == HEADS && s.kv.type != KV_TYPE_F32 && s.n_token >= 1 &&
           s.n_token <= TOKENS_MAX && s.n_token <= REQUEST_TOKENS * n_request &&
           (uint64_t)s.n_token * s.stride <= c->score_floats &&
           cluster_blocks(c->limits, s.n_token, max_context) != 0;
}

template <enum few_work WORK>
static fathom_err launch(struct cuda_backend *c, struct few_args a, uint32_t n_part,
                         uint32_t max_context)
{
    const uint32_t block_pages = ceil_div(ceil_div(max_context, PAGE), n_part);
    const uint32_t group_pages = ceil_div(block_pages, GROUPS);
    ASSERT(block_pages <= BLOCK_PAGES);
    a.n_part = n_part;
    a.n_stage = WORK == FEW_CHOICE ? 0 : group_pages < STAGES_MAX ? group_pages : STAGES_MAX;
    return cuda_launch_clusters(c, WORK == FEW_SCORES ? "index scores" : "index_topk",
                                index_few_kernel<WORK>, dim3(a.s.n_token * n_part),
                                WORK == FEW_SCORES ? 1 : n_part, THREADS,
                                shared_bytes(a.n_stage, WORK == FEW_SCORES ? 0 : block_pages), a);
}

fathom_err index_choose(struct cuda_backend *c, const struct score_args &s,
                        const struct topk_args &k, uint32_t max_context, bool reads_ahead)
{
    ASSERT(index_choose_takes(c, s, s.n_token, max_context) && s.first_token == 0);
    ASSERT((uintptr_t)s.q % 16 == 0 && (uintptr_t)s.weight % 16 == 0);
    struct few_args a = {};
    a.s = s;
    a.k = k;
    a.n_token = s.n_token;
    a.reads_ahead = reads_ahead;
    const uint32_t n_row = s.n_token * HEADS, n_page = ceil_div(max_context, PAGE);
    CU_TRY(c, make_map(&a.q_map, s.q, ROW_BYTES, n_row, 1, (size_t)n_row * ROW_BYTES, HEADS),
           "index_topk");
    CU_TRY(c, make_map(&a.key_map, s.kv.index, ROW_BYTES, PAGE, s.n_page, s.kv.page_bytes, PAGE),
           "index_topk");
    const uint32_t n_part = cluster_blocks(c->limits, s.n_token, max_context);
    if (max_context <= BOTH_CONTEXT && s.n_token <= BOTH_TOKENS)
        return launch<FEW_BOTH>(c, a, n_part, max_context);
    const uint32_t spread = c->limits.n_sm / s.n_token, most = ceil_div(n_page, GROUPS);
    const uint32_t wanted = spread < most ? spread : most;
    TRY(launch<FEW_SCORES>(c, a, wanted > n_part ? wanted : n_part, max_context));
    return launch<FEW_CHOICE>(c, a, n_part, max_context);
}

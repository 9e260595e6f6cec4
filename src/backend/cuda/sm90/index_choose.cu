/* index_choose.cu - the choice of the largest index scores, for few tokens of long contexts
 *
 * A cluster has a token, and each of its blocks a run of the pages that the token sees, whose
 * scores it keeps in shared memory, as keys that order like integers.
 *
 * The key of the last one wanted is found digit by digit, of 8 bits each: a block counts the digits
 * of its keys that share the ones before, and sends the counts to all blocks of the cluster, so all
 * of them know the digit. Behind the last one a block knows how many keys of each are above it, so
 * where among the chosen its own begin, and writes them in ascending position. */
#include "backend/cuda/sm90/index_choose.cuh"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/stage.cuh"

enum {
    PAGE = KV_PAGE_TOKENS,
    WARPS = 16,
    THREADS = WARPS * WARP,
    BLOCK_PAGES = 160, /* of a block at most: */
    BLOCKS_MAX = CLUSTER_BLOCKS_LARGE,
    TOKENS_MAX = 64,      /* more, or contexts no longer than */
    CONTEXT_SHORT = 4096, /* this, or */
    CONTEXT_ALONE = 8192, /* this of up to */
    TOKENS_ALONE = 16,    /* so many tokens, are faster by a block a token */
    DIGIT_BITS = 8,
    DIGITS = 32 / DIGIT_BITS,
    N_BIN = 1 << DIGIT_BITS,
    LANE_BINS = N_BIN / WARP,
    PIECE_BINS = 8,   /* counts in 16 bytes */
    ADDED_BLOCKS = 4, /* whose counts are added as they are stored, two in a word */
};
static_assert(BLOCK_PAGES <= THREADS, "a thread reads a page's number");
static_assert(ADDED_BLOCKS * BLOCK_PAGES * PAGE <= UINT16_MAX, "their sums have 16 bits");
static_assert(THREADS == BLOCKS_MAX * WARP && WARP * PIECE_BINS == N_BIN,
              "a warp sends a block's counts, a lane a piece");
static_assert((int)LANE_BINS == (int)PIECE_BINS, "a lane sums one piece of every block's");

struct choose_args {
    struct topk_args k;
    uint32_t n_part; /* blocks of a cluster */
    bool reads_ahead;
};

/* What is known of the last key wanted: digits so far, and of the keys that share them how many are
 * wanted and how many there are. */
struct choose_found {
    uint32_t prefix;
    int n_digit, want, n_key;
};

/* A block's shared memory: this, and a key that orders like an integer of each of its rows, 0
 * beyond the end. */
struct choose_shared {
    alignas(16) int bins[DIGITS][N_BIN];
    uint16_t counts[DIGITS][BLOCKS_MAX][N_BIN]; /* bins of each block */
    struct choose_found found;
    int taken[BLOCKS_MAX], same[BLOCKS_MAX]; /* keys above the last wanted, and its equals */
    int warp_taken[WARPS], warp_same[WARPS]; /* the same of this block's */
    int page[BLOCK_PAGES];
    alignas(16) uint64_t counts_full[DIGITS];
};

/* What a block has of a token. */
struct choose_block {
    struct choose_shared *sh;
    uint32_t *keys;
    uint32_t token, rank; /* of its blocks */
    int pos;
    int first_page, n_page;
};

/* ---- keys ---- */

/* Keeps the block's score number `place` as a key, and counts its first digit. */
static __device__ __forceinline__ void put_score(const struct choose_block &b, int place,
                                                 float score)
{
    const bool is_seen = b.first_page * PAGE + place <= b.pos;
    const uint32_t key = is_seen ? order_key(score) : 0;
    DCHECK(place >= 0 && place < b.n_page * PAGE);
    b.keys[place] = key;
    if (is_seen) (void)atomicAdd(&b.sh->bins[0][key >> (32 - DIGIT_BITS)], 1);
}

/* Reads the token's scores. A row has room for whole pages. */
static __device__ __forceinline__ void read_scores(const struct choose_args &a,
                                                   const struct choose_block &b)
{
    const float *row = a.k.score + (size_t)b.token * a.k.stride + (size_t)b.first_page * PAGE;
    for (int i = (int)threadIdx.x; i < b.n_page * (PAGE / 4); i += THREADS) {
        const float4 v = *(const float4 *)(row + 4 * i);
        const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) put_score(b, 4 * i + j, each[j]);
    }
}

/* ---- the last one wanted ---- */

static __device__ __forceinline__ int digit_shift(int digit)
{
    return 32 - DIGIT_BITS * (digit + 1);
}

/* Counts the digits of keys that share the ones before. */
static __device__ __forceinline__ void count_digits(const struct choose_block &b, int digit,
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
static __device__ __forceinline__ void share_counts(const struct choose_args &a,
                                                    const struct choose_block &b, int digit)
{
    struct choose_shared *sh = b.sh;
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
static __device__ __forceinline__ void find_digit(const struct choose_args &a,
                                                  struct choose_shared *sh)
{
    const int lane = (int)threadIdx.x % WARP, first = LANE_BINS * (WARP - 1 - lane);
    struct choose_found f = sh->found;
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
static __device__ __forceinline__ void
count_taken(const struct choose_args &a, struct choose_shared *sh, const struct choose_found &f)
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
static __device__ __forceinline__ int keys_each(const struct choose_block &b)
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
static __device__ __forceinline__ void write_chosen(const struct choose_args &a,
                                                    const struct choose_block &b,
                                                    const struct choose_found &f)
{
    struct choose_shared *sh = b.sh;
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
static __device__ __forceinline__ void write_all(const struct choose_args &a,
                                                 const struct choose_block &b)
{
    int32_t *slots = a.k.slots + (size_t)topk_row(a.k, b.token) * a.k.topk;
    const int end = min(b.pos + 1 - b.first_page * PAGE, b.n_page * PAGE);
    for (int i = (int)threadIdx.x; i < end; i += THREADS)
        slots[b.first_page * PAGE + i] = b.sh->page[i / PAGE] * PAGE + i % PAGE;
}

/* ---- kernels ---- */

static __device__ __forceinline__ void begin(struct choose_shared *sh)
{
    if (threadIdx.x == 0)
        for (int i = 0; i < DIGITS; i++) mbarrier_init(smem_address(&sh->counts_full[i]), 1);
    mbarrier_init_fence();
    async_proxy_fence();
    cluster_arrive_relaxed(); /* until all blocks are there */
    int4 *bins = (int4 *)sh->bins;
    for (uint32_t i = threadIdx.x; i < DIGITS * N_BIN / 4; i += THREADS)
        bins[i] = make_int4(0, 0, 0, 0);
}

/* The block's pages; a barrier is on the way. */
static __device__ __forceinline__ void find_pages(const struct choose_args &a,
                                                  struct choose_block *b)
{
    const int32_t *pages = a.k.page_table + (size_t)a.k.request[b->token] * a.k.page_stride;
    b->pos = a.k.pos[b->token];
    const int n_page = b->pos / PAGE + 1, each = (n_page + (int)a.n_part - 1) / (int)a.n_part;
    b->first_page = min((int)b->rank * each, n_page);
    b->n_page = min(each, n_page - b->first_page);
    DCHECK(b->n_page <= BLOCK_PAGES);
    if ((int)threadIdx.x < b->n_page)
        b->sh->page[threadIdx.x] = pages[b->first_page + (int)threadIdx.x];
    __syncthreads();
}

static __device__ __forceinline__ void choose(const struct choose_args &a,
                                              const struct choose_block &b)
{
    struct choose_shared *sh = b.sh;
    struct choose_found f = {0, 0, (int)a.k.topk, 0};
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

__global__ void __launch_bounds__(THREADS, 1)
    index_choose_kernel(const __grid_constant__ struct choose_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, raw);
    struct choose_block b;
    b.sh = (struct choose_shared *)raw;
    b.keys = (uint32_t *)(raw + sizeof *b.sh);
    b.token = blockIdx.x / a.n_part;
    b.rank = blockIdx.x % a.n_part;
    begin(b.sh);
    if (!a.reads_ahead) dependency_wait();
    find_pages(a, &b);
    if (a.reads_ahead) dependency_wait();
    dependency_release(); /* launch.cuh */
    if (b.rank == 0 && threadIdx.x == 0)
        a.k.counts[topk_row(a.k, b.token)] = min(b.pos + 1, (int)a.k.topk);
    const bool scores = b.pos >= (int)a.k.topk; /* else all rows are chosen */
    if (scores) read_scores(a, b);
    cluster_wait();
    if (scores) {
        choose(a, b);
    } else {
        write_all(a, b);
    }
#endif
}

/* ---- launches ---- */

static uint32_t shared_bytes(uint32_t block_pages)
{
    return (uint32_t)(sizeof(struct choose_shared) + block_pages * PAGE * sizeof(uint32_t));
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
    config.dynamicSmemBytes = shared_bytes(BLOCK_PAGES);
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&n, index_choose_kernel, &config) == cudaSuccess && n > 0)
        return (uint32_t)n;
    (void)cudaGetLastError();
    return 0;
}

cudaError_t index_choose_init(struct sm90_limits *limits)
{
    static_assert((int)BLOCKS_MAX >> (INDEX_CLUSTERS - 1) == (int)ADDED_BLOCKS,
                  "of 16, 8 and 4 blocks");
    cudaError_t e = raise_shared(index_choose_kernel, shared_bytes(BLOCK_PAGES));
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(index_choose_kernel,
                                 cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
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

bool index_choose_takes(const struct cuda_backend *c, uint32_t n_token, uint32_t max_context)
{
    const uint32_t alone = n_token <= TOKENS_ALONE ? CONTEXT_ALONE : CONTEXT_SHORT;
    return c->sm90 && n_token >= 1 && n_token <= TOKENS_MAX && max_context > alone &&
           cluster_blocks(c->limits, n_token, max_context) != 0;
}

fathom_err index_choose(struct cuda_backend *c, const struct topk_args &k, uint32_t n_token,
                        uint32_t max_context, bool reads_ahead)
{
    ASSERT(index_choose_takes(c, n_token, max_context) && k.first_token == 0);
    const uint32_t n_part = cluster_blocks(c->limits, n_token, max_context);
    const uint32_t block_pages = ceil_div(ceil_div(max_context, PAGE), n_part);
    ASSERT(block_pages <= BLOCK_PAGES);
    const struct choose_args a = {k, n_part, reads_ahead};
    return cuda_launch_clusters(c, "index_topk", index_choose_kernel, dim3(n_token * n_part),
                                n_part, THREADS, shared_bytes(block_pages), a);
}

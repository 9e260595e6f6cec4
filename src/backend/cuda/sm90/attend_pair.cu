/* attend_pair.cu - attention on tensor cores: 128 heads of a token by the two blocks of a cluster
 *
 * Each block has all 128 heads and half of the columns: 256 latent values and 32 rotary ones of
 * every row, which it alone of the two reads, widens and keeps. A warpgroup has 64 heads. What it
 * makes of its half are parts of scores: each warp sends its part to the warp of the other block
 * that has the same heads, takes that one's, and adds the two up, so both go on with the same bits
 * to the same weights, and from registers into the outputs of their own columns.
 *
 *   part:   free --16 bytes of each lane, eight times--> here --added, in order--> read = free
 *
 * `here` counts the bytes that have come, at the block that takes them. `read` counts a word that
 * the taker sends back: at most one group is on its way. A place of rows is full when the copying
 * warpgroup has told so, and empty when both warpgroups have.
 *
 * While a warpgroup waits for parts and makes weights, the other one's products run. Units are
 * those of attend_pair_unit; who merges them, and in which order, is as in attend_heads.cu. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/attend_heads.cuh"

enum {
    PAIR = 2, /* blocks of a cluster */
    PAIR_HEADS = ATTEND_PAIR_HEADS,
    PAIR_THREADS = 3 * WARPGROUP,
    COMPUTE_REGISTERS = 216,
    COPY_REGISTERS = 72,
    PLACES = 3,                                  /* of groups */
    ROPE_COLUMNS = TILE / PAIR,                  /* of a block */
    ROPE_BYTES = ROPE_COLUMNS * 2,               /* so a tile of 128 bytes a row has two groups */
    PART_PIECES = HEADS * GROUP / WARPGROUP / 4, /* of four values a lane */
    PART_BYTES = PART_PIECES * 16 * WARP,
    LATENT_PIECES = COLUMNS * 2 / 16,
    ROPE_PIECES = ROPE_BYTES / 16,
};

struct pair_shared {
    unsigned char query[2][HALF_TILES][TILE_BYTES]; /* of each warpgroup's heads */
    unsigned char query_rope[TILE_BYTES];           /* warpgroup w's from byte 64 w of a row on */
    unsigned char rows[PLACES][HALF_TILES][TILE_BYTES];
    unsigned char rows_rope[(PLACES + 1) / 2][TILE_BYTES]; /* place p's: p / 2, from 64 (p % 2) */
    float4 part[CONSUMERS / WARP][PART_PIECES][WARP];      /* from the other block */
    float2 word[CONSUMERS / WARP]; /* that says it has read; of no meaning */
    uint64_t here[CONSUMERS / WARP], read[CONSUMERS / WARP];
    uint64_t full[PLACES], empty[PLACES], query_here[2];
};
static_assert(sizeof(struct pair_shared) <= 227 << 10, "shared memory of a block");

/* A group's place, and how often places have been gone round */
struct turn {
    int place, parity;
};

static __device__ __forceinline__ void turn_next(struct turn &t)
{
    t.place = t.place == PLACES - 1 ? 0 : t.place + 1;
    if (t.place == 0) t.parity ^= 1;
}

static __device__ __forceinline__ void pair_barriers_init(struct pair_shared *sh)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; i++) {
            mbarrier_init(smem_address(&sh->full[i]), WARPGROUP);
            mbarrier_init(smem_address(&sh->empty[i]), CONSUMERS / WARP);
        }
        for (int i = 0; i < CONSUMERS / WARP; i++) {
            mbarrier_init(smem_address(&sh->here[i]), 1);
            mbarrier_init(smem_address(&sh->read[i]), 1);
        }
        for (int i = 0; i < 2; i++)
            mbarrier_init(smem_address(&sh->query_here[i]), WARPGROUP_WARPS);
        mbarrier_init_fence();
    }
    __syncthreads();
}

/* ---- copying rows in ---- */

/* What a thread has on its way of eight of its warp's rows: codes and rotary values of row l / 4 */
struct pair_codes {
    struct half_codes latent;
    uint4 rope;
};

static __device__ __forceinline__ void read_rows(const struct attend_args &a, int slot, int row0,
                                                 int block, struct pair_codes &c)
{
    const int lane = (int)threadIdx.x % WARP;
    read_half(a, slot, row0, block, c.latent);
    c.rope = load_stream(row_at(a.kv, shfl(slot, row0 + lane / 4), KV_ROW_BYTES_FP8) +
                         KV_FP8_ROPE_OFFSET + block * ROPE_BYTES + lane % 4 * 16);
}

static __device__ __forceinline__ void widen_rows(const struct pair_codes &c, int row0, int place,
                                                  struct pair_shared *sh)
{
    const int lane = (int)threadIdx.x % WARP;
    const int row = (int)threadIdx.x / WARP % WARPGROUP_WARPS * 16 + row0 + lane / 4;
    widen_half(c.latent, sh->rows[place], row, lane % 4);
    *(uint4 *)(sh->rows_rope[place / 2] + tile_place(row, place % 2 * ROPE_PIECES + lane % 4)) =
        c.rope;
}

/* A group is read behind the fence of the one before, which would wait for it. */
static __device__ __forceinline__ void pair_copy(const struct attend_args &a,
                                                 const struct heads_rows &r, int block, int first,
                                                 int end, int n_old, struct pair_shared *sh)
{
    DCHECK(first >= 0 && first < end);
    struct turn t = {0, 0};
    int slot = own_slot<16>(r, first);
    for (int k = first; k < end; k++, turn_next(t)) {
        struct pair_codes x, y;
        if (k >= n_old) dependency_wait();
        read_rows(a, slot, 0, block, x);
        read_rows(a, slot, 8, block, y);
        slot = own_slot<16>(r, k + 1);
        wait_for(&sh->empty[t.place], t.parity ^ 1);
        widen_rows(x, 0, t.place, sh);
        widen_rows(y, 8, t.place, sh);
        async_proxy_fence();
        mbarrier_arrive(smem_address(&sh->full[t.place]));
    }
}

/* ---- parts of scores ---- */

/* The block's columns of the warpgroup's heads into its tiles */
template <int HALF>
static __device__ __forceinline__ void load_columns(const struct attend_args &a, uint32_t token,
                                                    uint32_t head0, int block,
                                                    struct pair_shared *sh)
{
    enum { PIECES = LATENT_PIECES + ROPE_PIECES };
    const bf16 *from = a.h + ((size_t)token * a.n_head + head0) * KV_ROW;
    for (int i = (int)threadIdx.x % WARPGROUP; i < HEADS * PIECES; i += WARPGROUP) {
        const int head = i / PIECES, piece = i % PIECES, rope = piece - LATENT_PIECES;
        const bf16 *row = from + (size_t)head * KV_ROW;
        if (rope < 0) {
            cp_async_16(smem_address(sh->query[HALF][piece / 8]) + tile_place(head, piece % 8),
                        row + block * COLUMNS + piece * 8, true);
        } else {
            cp_async_16(smem_address(sh->query_rope) + tile_place(head, HALF * ROPE_PIECES + rope),
                        row + KV_LATENT + block * ROPE_COLUMNS + rope * 8, true);
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
    async_proxy_fence();
    tell(&sh->query_here[HALF]);
    wait_for(&sh->query_here[HALF], 0);
}

/* Products of the block's columns with a group's rows, once they are here, begin. */
template <int HALF>
static __device__ __forceinline__ void start_scores(struct pair_shared *sh, const struct turn &t,
                                                    int n, float (&s)[32])
{
    DCHECK(t.place < PLACES && (t.parity == 0 || t.parity == 1));
    wait_for(&sh->full[t.place], t.parity);
    wgmma_fence();
    const uint32_t zero = (uint32_t)n >> 30; /* else 18 operands are kept in registers */
    const uint64_t q = wgmma_operand(smem_address(sh->query[HALF][0])) + zero;
    const uint64_t k = wgmma_operand(smem_address(sh->rows[t.place][0]));
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) { /* four a tile */
        const uint64_t at = (uint64_t)(i / 4 * (TILE_BYTES >> 4) + i % 4 * 2);
        wgmma_scores(s, q + at, k + at, i > 0);
    }
    const uint64_t q_rope = wgmma_operand(smem_address(sh->query_rope) + HALF * ROPE_BYTES) + zero;
    const uint64_t k_rope = wgmma_operand(smem_address(sh->rows_rope[t.place / 2]) +
                                          (uint32_t)(t.place % 2) * ROPE_BYTES);
#pragma unroll
    for (int i = 0; i < ROPE_COLUMNS / 16; i++)
        wgmma_scores(s, q_rope + (uint64_t)(2 * i), k_rope + (uint64_t)(2 * i), true);
    wgmma_commit();
}

/* Where a lane's parts go in the other block, and where they count: a pair of registers for each
 * store, which would wait for the store before it to free them otherwise */
struct peer {
    uint32_t part[PART_PIECES], here[PART_PIECES];
    uint32_t word, read;
    int warp; /* of this block, and the other one's with the same heads */
};

static __device__ __forceinline__ struct peer peer_of(struct pair_shared *sh, int block)
{
    const int warp = (int)warp_uniform(threadIdx.x / WARP), lane = (int)threadIdx.x % WARP;
    const uint32_t other = (uint32_t)block ^ 1;
    struct peer p;
    p.warp = warp;
#pragma unroll
    for (int i = 0; i < PART_PIECES; i++) {
        p.part[i] = cluster_address(smem_address(&sh->part[warp][i][lane]), other);
        p.here[i] = cluster_address(smem_address(&sh->here[warp]), other);
    }
    p.word = cluster_address(smem_address(&sh->word[warp]), other);
    p.read = cluster_address(smem_address(&sh->read[warp]), other);
    return p;
}

/* Sends the parts of the n-th group, once those of the one before have been read. */
static __device__ __forceinline__ void send_parts(struct pair_shared *sh, const struct peer &p,
                                                  int n, const float (&s)[32])
{
    DCHECK(n >= 0 && p.warp < CONSUMERS / (int)WARP);
    if (n > 0) wait_for(&sh->read[p.warp], (n - 1) & 1);
    if (elect_lane()) {
        mbarrier_arrive_expect(smem_address(&sh->here[p.warp]), PART_BYTES);
        mbarrier_arrive_expect(smem_address(&sh->read[p.warp]), sizeof(float2));
    }
#pragma unroll
    for (int i = 0; i < PART_PIECES; i++) {
        const int4 v =
            make_int4((int)__float_as_uint(s[4 * i]), (int)__float_as_uint(s[4 * i + 1]),
                      (int)__float_as_uint(s[4 * i + 2]), (int)__float_as_uint(s[4 * i + 3]));
        cluster_store_4(p.part[i], p.here[i], v);
    }
}

/* s += the other block's parts of the n-th group. They are seen once their bytes have counted; to
 * acquire more, of the cluster's scope, would empty L1. The word that says they have been read
 * leaves behind the reads, whose last value it has. */
static __device__ __forceinline__ void take_parts(struct pair_shared *sh, const struct peer &p,
                                                  int n, float (&s)[32])
{
    const int lane = (int)threadIdx.x % WARP;
    wait_for(&sh->here[p.warp], n & 1);
#pragma unroll
    for (int i = 0; i < PART_PIECES; i++) {
        const float4 v = sh->part[p.warp][i][lane];
        s[4 * i] += v.x;
        s[4 * i + 1] += v.y;
        s[4 * i + 2] += v.z;
        s[4 * i + 3] += v.w;
    }
    __syncwarp();
    if (elect_lane()) cluster_store(p.word, p.read, s[4 * PART_PIECES - 2], s[4 * PART_PIECES - 1]);
}

/* ---- a group ---- */

/* Weights of a group, of which n_row rows count. Maxima are whole, so they seldom change: where no
 * lane has a larger score, none is asked. */
static __device__ __forceinline__ void weigh(int n_row, float scale, float (&s)[32],
                                             uint32_t (&w)[4][4], struct heads_sums &v)
{
    DCHECK(n_row >= 1);
    float most[2];
    mask_scores(s, n_row);
    lane_largest(s, most);
    if (warp_ballot(most[0] * scale > v.top[0] || most[1] * scale > v.top[1])) {
        float top[2];
        heads_largest(most, scale, top);
        top[0] = fmaxf(top[0], v.top[0]);
        top[1] = fmaxf(top[1], v.top[1]);
        sums_rescale(v, top);
    }
    make_weights(s, scale, v.top, v.sum, w);
}

static __device__ __forceinline__ void start_values(struct pair_shared *sh, int place,
                                                    const uint32_t (&w)[4][4], struct heads_sums &v)
{
    const uint64_t at = wgmma_operand_turned(smem_address(sh->rows[place][0]), TILE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_add_columns(v.o, w[i], at + (uint64_t)(128 * i));
    wgmma_commit();
}

/* The end of a unit: all lanes of a head have its sum of weights. */
static __device__ __forceinline__ void sums_end(struct heads_sums &v)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        v.sum[j] += shfl_xor(v.sum[j], 1);
        v.sum[j] += shfl_xor(v.sum[j], 2);
    }
}

/* ---- the kernel ---- */

template <enum piece PIECE, int HALF>
static __device__ __forceinline__ void compute(const struct attend_args &a, struct pair_shared *sh,
                                               uint32_t token, uint32_t head0, int block, int n_row,
                                               int first, int end, int unit)
{
    DCHECK(head0 + PAIR_HEADS <= a.n_head && unit >= 1);
    const float scale = a.scale * 1.44269504f; /* log2(e) */
    const struct peer p = peer_of(sh, block);
    struct heads_result kept;
    struct heads_sums v;
    struct turn t = {0, 0};
    float s[32];
    uint32_t w[4][4];
    int done = 0;
    head0 += (uint32_t)(HALF * HEADS);
    dependency_wait();
    load_columns<HALF>(a, token, head0, block, sh);
    start_scores<HALF>(sh, t, 0, s);
    wgmma_wait_but<0>(s);
    cluster_wait(); /* the other block's barriers are there */
    send_parts(sh, p, 0, s);
    sums_clear(v);
    for (int k = first; k < end - 1; k++) {
        const int n = k - first, place = t.place;
        take_parts(sh, p, n, s);
        weigh(n_row - k * GROUP, scale, s, w, v);
        turn_next(t);
        start_scores<HALF>(sh, t, n, s);
        start_values(sh, place, w, v);
        wgmma_wait_but<1>(s);
        send_parts(sh, p, n + 1, s);
        wgmma_wait_but<0>(v.o);
        tell(&sh->empty[place]);
        if (PIECE == PIECE_UNITS && ++done == unit) {
            sums_end(v);
            if (n >= unit) result_merge(&kept, v);
            result_set(&kept, v);
            sums_clear(v);
            done = 0;
        }
    }
    const int last = end - 1 - first;
    take_parts(sh, p, last, s);
    weigh(n_row - (end - 1) * GROUP, scale, s, w, v);
    start_values(sh, t.place, w, v);
    wait_for(&sh->read[p.warp], last & 1); /* nothing is on its way to a block that ends */
    wgmma_wait_but<0>(v.o);
    sums_end(v);
    if (PIECE == PIECE_UNITS && end - first > unit) result_merge(&kept, v);
    if (PIECE == PIECE_UNIT)
        store_unit(a, token, head0, block * COLUMNS, (uint32_t)(first / unit), v);
    else
        store_result(a, token, head0, block * COLUMNS, v);
}

/* Cluster: 128 heads of a token, and a unit or all of its rows. The last tokens, which may see
 * most, come first. Grid: blocks and heads, tokens, units. */
template <enum piece PIECE>
__global__ void __launch_bounds__(PAIR_THREADS, 1) attend_pair_kernel(const struct attend_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, raw);
    struct pair_shared *sh = (struct pair_shared *)raw;
    const uint32_t token = gridDim.y - 1 - blockIdx.y;
    const uint32_t head0 = blockIdx.x / PAIR * PAIR_HEADS;
    const int block = (int)cluster_rank();
    pair_barriers_init(sh);
    dependency_release();
    if (!a.reads_ahead) dependency_wait();
    if (a.pos[token] < a.skip_below) return;
    const struct heads_rows rows = heads_rows_of(a, token);
    const int n_row = (int)warp_uniform((uint32_t)rows.n_row);
    const int n_group = (n_row + GROUP - 1) / GROUP, unit = unit_groups(a, n_group);
    const int first = PIECE == PIECE_UNIT ? (int)blockIdx.z * unit : 0;
    const int end = PIECE == PIECE_UNIT ? min(first + unit, n_group) : n_group;
    if (PIECE == PIECE_UNIT && first >= end) {
        dependency_wait();
        return;
    }
    const int n_old = old_groups(a, token);
    cluster_arrive_relaxed();
    if (threadIdx.x < WARPGROUP) {
        registers_raise<COMPUTE_REGISTERS>();
        compute<PIECE, 0>(a, sh, token, head0, block, n_row, first, end, unit);
    } else if (threadIdx.x < CONSUMERS) {
        registers_raise<COMPUTE_REGISTERS>();
        compute<PIECE, 1>(a, sh, token, head0, block, n_row, first, end, unit);
    } else {
        registers_lower<COPY_REGISTERS>();
        pair_copy(a, rows, block, first, end, n_old, sh);
        dependency_wait();
        cluster_wait();
    }
#endif
}

/* ---- launches ---- */

fathom_err attend_pair(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                       uint32_t n_token, uint32_t rows)
{
    ASSERT(attend_by_pairs(a.n_head, a.kv.type));
    ASSERT(n_token >= 1 && rows >= 1);
    const char *what = "mla_attend";
    const uint32_t blocks = a.n_head / PAIR_HEADS * PAIR, bytes = sizeof(struct pair_shared);
    const dim3 whole(blocks, n_token);
    if (kind == ATTEND_PROMPT_ROWS) {
        return cuda_launch_clusters(c, what, attend_pair_kernel<PIECE_WHOLE>, whole, PAIR,
                                    PAIR_THREADS, bytes, a);
    }
    const uint32_t n_group = ceil_div(rows, GROUP),
                   n_unit = ceil_div(n_group, attend_pair_unit(n_group));
    if (n_unit == 1 || n_token * blocks > ATTEND_HEADS_UNIT_BLOCKS_MAX) {
        return cuda_launch_clusters(c, what, attend_pair_kernel<PIECE_UNITS>, whole, PAIR,
                                    PAIR_THREADS, bytes, a);
    }
    ASSERT(n_token * n_unit <= c->part_rows); /* of part_out and part_stat */
    a.n_part = n_unit;
    TRY(cuda_launch_clusters(c, what, attend_pair_kernel<PIECE_UNIT>, dim3(blocks, n_token, n_unit),
                             PAIR, PAIR_THREADS, bytes, a));
    return attend_combine(c, a, n_token);
}

fathom_err attend_pair_init(struct cuda_backend *c)
{
    const enum cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const int bytes = (int)sizeof(struct pair_shared);
    CU_TRY(c, cudaFuncSetAttribute(attend_pair_kernel<PIECE_UNIT>, limit, bytes), "mla_attend");
    CU_TRY(c, cudaFuncSetAttribute(attend_pair_kernel<PIECE_UNITS>, limit, bytes), "mla_attend");
    CU_TRY(c, cudaFuncSetAttribute(attend_pair_kernel<PIECE_WHOLE>, limit, bytes), "mla_attend");
    return FATHOM_OK;
}

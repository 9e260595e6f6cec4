/* attend_heads.cu - attention on tensor cores: 64 heads of a token over groups of 64 cache rows
 *
 * For models with many heads a device. The rows of a prompt's token are one unit, taken in one go.
 * Those of an answer's token are cut into units (heads_unit), which are summed by themselves and
 * merged one after the other: by the block that takes the whole token, or by combine_kernel where
 * tokens are few and each unit has a block. The arithmetic is the same in both cases. Shared
 * memory, copies and sums are in attend_heads.cuh. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/attend.cuh"
#include "backend/cuda/sm90/attend_heads.cuh"

/* ---- scores and weights ---- */

/* The query's heads into their tiles, zeros past the last. */
static __device__ __forceinline__ void load_query(const struct attend_args &a, uint32_t token,
                                                  uint32_t head0, struct heads_shared *sh)
{
    enum { PIECES = KV_ROW * 2 / 16 };
    const bf16 *from = a.h + ((size_t)token * a.n_head + head0) * KV_ROW;
    for (int i = (int)threadIdx.x; i < HEADS * PIECES; i += CONSUMERS) {
        const int head = i / PIECES, piece = i % PIECES;
        const bool valid = head0 + (uint32_t)head < a.n_head;
        cp_async_16(smem_address(sh->query[piece / 8]) + tile_place(head, piece % 8),
                    valid ? from + (size_t)head * KV_ROW + piece * 8 : from, valid);
    }
    cp_async_commit();
    cp_async_wait<0>();
    async_proxy_fence();
    tell(&sh->query_here);
    wait_for(&sh->query_here, 0);
}

/* Scores of the tiles [first, first + n) */
static __device__ __forceinline__ void add_scores(struct heads_shared *sh, int place, int first,
                                                  int n, bool adds, float (&s)[32])
{
    for (int tile = first; tile < first + n; tile++) {
        const uint64_t q = wgmma_operand(smem_address(sh->query[tile]));
        const uint64_t k = wgmma_operand(smem_address(sh->rows[place][tile]));
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) {
            wgmma_scores(s, q + (uint64_t)(2 * i), k + (uint64_t)(2 * i), adds || i > 0);
        }
        adds = true;
    }
}

/* Those of a group, the half first whose rows come first */
template <int PLACE>
static __device__ __forceinline__ void make_scores(struct heads_shared *sh, int parity,
                                                   float (&s)[32])
{
    wait_for(&sh->full[PLACE][PLACE], parity);
    async_proxy_fence();
    wgmma_fence();
    add_scores(sh, PLACE, PLACE * HALF_TILES, HALF_TILES, false, s);
    wgmma_commit();
    wait_for(&sh->full[PLACE][PLACE ^ 1], parity);
    async_proxy_fence();
    wgmma_fence();
    add_scores(sh, PLACE, (PLACE ^ 1) * HALF_TILES, HALF_TILES, true, s);
    add_scores(sh, PLACE, ROPE_TILE, 1, true, s);
    wgmma_commit();
    wgmma_wait_but<0>(s);
}

/* Weights times a power of two a head, for the other warpgroup */
static __device__ __forceinline__ void store_weights(const uint32_t (&p)[4][4], float low,
                                                     float high, unsigned char *tile)
{
    const int warp = (int)threadIdx.x / WARP % WARPGROUP_WARPS, lane = (int)threadIdx.x % WARP;
    const int row = warp * 16 + lane / 4, t = lane % 4;
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float factor = i % 2 ? high : low;
            *(uint32_t *)(tile + tile_place(row + i % 2 * 8, step * 2 + i / 2) + t * 4) =
                pack_bf16(__uint_as_float(p[step][i] << 16) * factor,
                          __uint_as_float(p[step][i] & 0xffff0000u) * factor);
        }
    }
    async_proxy_fence();
}

/* Reads the other warpgroup's maxima, or writes this one's. */
static __device__ __forceinline__ void read_top(const float (&top)[HEADS], float (&v)[2])
{
    const int at = (int)threadIdx.x % WARPGROUP / WARP * 16 + (int)threadIdx.x % WARP / 4;
    v[0] = top[at];
    v[1] = top[at + 8];
}

static __device__ __forceinline__ void write_top(float (&top)[HEADS], const float (&v)[2])
{
    const int at = (int)threadIdx.x % WARPGROUP / WARP * 16 + (int)threadIdx.x % WARP / 4;
    if (threadIdx.x % 4 != 0) return;
    top[at] = v[0];
    top[at + 8] = v[1];
}

/* ---- a pair of groups ---- */

/* Adds p times the values of a group to a half of the columns; p in registers or in shared memory.
 */
static __device__ __forceinline__ void add_own(struct heads_shared *sh, int place, int half,
                                               const uint32_t (&p)[4][4], struct heads_sums &v)
{
    const uint64_t at =
        wgmma_operand_turned(smem_address(sh->rows[place][half * HALF_TILES]), TILE_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) wgmma_add_columns(v.o, p[i], at + (uint64_t)(128 * i));
    wgmma_commit();
}

static __device__ __forceinline__ void add_other(struct heads_shared *sh, int place, int half,
                                                 struct heads_sums &v)
{
    const uint64_t at =
        wgmma_operand_turned(smem_address(sh->rows[place][half * HALF_TILES]), TILE_BYTES);
    const uint64_t p = wgmma_operand(smem_address(sh->rows[place][ROPE_TILE]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_add_columns(v.o, p + (uint64_t)(2 * i), at + (uint64_t)(128 * i));
    wgmma_commit();
}

/* The pair's first group, of which n_row rows count; then the second's weights. */
static __device__ __forceinline__ void first_of_pair(struct heads_shared *sh, int n_row,
                                                     float scale, int parity, struct heads_sums &v)
{
    float s[32], top[2];
    uint32_t p[4][4];
    make_scores<0>(sh, parity, s);
    largest_scores(s, n_row, scale, top);
    top[0] = fmaxf(top[0], v.top[0]);
    top[1] = fmaxf(top[1], v.top[1]);
    write_top(sh->top[0], top);
    tell(&sh->top_here);
    sums_rescale(v, top);
    make_weights(s, scale, top, v.sum, p);
    add_own(sh, 0, 0, p, v);
    wait_for(&sh->second_here, parity);
    read_top(sh->top[1], top);
    store_weights(p, power_of_two(v.top[0] - top[0]), power_of_two(v.top[1] - top[1]),
                  sh->rows[0][ROPE_TILE]);
    tell(&sh->first_here);
    wgmma_wait_but<0>(v.o);
    tell(&sh->empty[0][0]);
    sums_rescale(v, top);
    wait_for(&sh->full[1][0], parity);
    async_proxy_fence();
    add_other(sh, 1, 0, v);
    wgmma_wait_but<0>(v.o);
    tell(&sh->empty[1][0]);
}

/* The second, which may have no rows that count; then the first's weights. */
static __device__ __forceinline__ void second_of_pair(struct heads_shared *sh, int n_row,
                                                      float scale, int parity, struct heads_sums &v)
{
    float s[32], top[2], first[2];
    uint32_t p[4][4];
    make_scores<1>(sh, parity, s);
    tell(&sh->second_read);
    largest_scores(s, n_row, scale, top);
    wait_for(&sh->top_here, parity);
    read_top(sh->top[0], first);
    top[0] = fmaxf(top[0], first[0]);
    top[1] = fmaxf(top[1], first[1]);
    write_top(sh->top[1], top);
    sums_rescale(v, top);
    make_weights(s, scale, top, v.sum, p);
    wait_for(&sh->second_read, parity); /* by all four warps' products */
    store_weights(p, 1.0f, 1.0f, sh->rows[1][ROPE_TILE]);
    tell(&sh->second_here);
    add_own(sh, 1, 1, p, v);
    wait_for(&sh->full[0][1], parity);
    wait_for(&sh->first_here, parity);
    async_proxy_fence();
    add_other(sh, 0, 1, v);
    wgmma_wait_but<1>(v.o);
    tell(&sh->empty[1][1]);
    wgmma_wait_but<0>(v.o);
    tell(&sh->empty[0][1]);
}

/* The groups [first, end) as one unit. n_pair: pairs that the block has had */
template <int PLACE>
static __device__ __forceinline__ void walk_unit(struct heads_shared *sh, int n_row, int first,
                                                 int end, float scale, int &n_pair, int n_unit,
                                                 struct heads_sums &v)
{
    sums_clear(v);
    for (int k = first; k < end; k += 2, n_pair++) {
        const int left = n_row - (k + PLACE) * GROUP;
        if (PLACE == 0)
            first_of_pair(sh, left, scale, n_pair & 1, v);
        else
            second_of_pair(sh, left, scale, n_pair & 1, v);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        v.sum[j] += shfl_xor(v.sum[j], 1);
        v.sum[j] += shfl_xor(v.sum[j], 2);
    }
    write_top(sh->sum[PLACE], v.sum);
    tell(&sh->sum_here);
    wait_for(&sh->sum_here, n_unit & 1);
    float other[2];
    read_top(sh->sum[PLACE ^ 1], other);
    v.sum[0] += other[0];
    v.sum[1] += other[1];
}

/* ---- the kernel ---- */

/* A warpgroup that computes: the groups of the place in each pair, and half of the columns. */
template <enum piece PIECE, int PLACE>
static __device__ __forceinline__ void consume(const struct attend_args &a, struct heads_shared *sh,
                                               uint32_t token, uint32_t head0, int n_row, int first,
                                               int end, int unit)
{
    const float scale = a.scale * 1.44269504f; /* log2(e) */
    int n_pair = 0;
    struct heads_sums v;
    dependency_wait();
    load_query(a, token, head0, sh);
    if (PIECE == PIECE_UNITS) {
        struct heads_result kept;
        for (int k = first, n = 0; k < end; k += unit, n++) {
            walk_unit<PLACE>(sh, n_row, k, min(k + unit, end), scale, n_pair, n, v);
            if (k > first) result_merge(&kept, v);
            if (k + unit < end) result_set(&kept, v);
        }
    } else {
        walk_unit<PLACE>(sh, n_row, first, end, scale, n_pair, 0, v);
    }
    if (PIECE == PIECE_UNIT)
        store_unit(a, token, head0, PLACE * COLUMNS, (uint32_t)(first / unit), v);
    else
        store_result(a, token, head0, PLACE * COLUMNS, v);
}

/* Block: 64 heads of a token, and a unit or all of its rows. The last tokens, which may see most,
 * come first. */
template <enum kv_type TYPE, enum piece PIECE>
__global__ void __launch_bounds__(heads_block<TYPE>::THREADS, 1)
    attend_heads_kernel(const struct attend_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, raw);
    struct heads_shared *sh = (struct heads_shared *)raw;
    const uint32_t token = gridDim.y - 1 - blockIdx.y;
    const uint32_t head0 = (PIECE == PIECE_UNIT ? blockIdx.z : blockIdx.x) * HEADS;
    barriers_init<TYPE>(sh);
    dependency_release();
    if (!a.reads_ahead) dependency_wait();
    if (a.pos[token] < a.skip_below) return;
    const struct heads_rows rows = heads_rows_of(a, token);
    const int n_group = (rows.n_row + GROUP - 1) / GROUP, unit = unit_groups(a, n_group);
    const int first = PIECE == PIECE_UNIT ? (int)blockIdx.x * unit : 0;
    const int end = PIECE == PIECE_UNIT ? min(first + unit, n_group) : n_group;
    if (PIECE == PIECE_UNIT && first >= end) {
        dependency_wait();
        return;
    }
    const int n_old = old_groups(a, token);
    if (threadIdx.x < WARPGROUP) {
        registers_raise<heads_block<TYPE>::CONSUMER_REGISTERS>();
        consume<PIECE, 0>(a, sh, token, head0, rows.n_row, first, end, unit);
    } else if (threadIdx.x < CONSUMERS) {
        registers_raise<heads_block<TYPE>::CONSUMER_REGISTERS>();
        consume<PIECE, 1>(a, sh, token, head0, rows.n_row, first, end, unit);
    } else {
        registers_lower<heads_block<TYPE>::PRODUCER_REGISTERS>();
        if (TYPE == KV_TYPE_FP8)
            copy_fp8(a, rows, first, end, n_old, sh);
        else
            copy_bf16(a, rows, first, end, n_old, sh);
        dependency_wait();
    }
#endif
}

/* ---- launches ---- */

template <enum kv_type TYPE>
static fathom_err run(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                      uint32_t n_token, uint32_t rows)
{
    const char *what = "mla_attend";
    const uint32_t halves = ceil_div(a.n_head, HEADS), bytes = sizeof(struct heads_shared);
    if (kind == ATTEND_PROMPT_ROWS) {
        return cuda_launch(c, what, attend_heads_kernel<TYPE, PIECE_WHOLE>, dim3(halves, n_token),
                           heads_block<TYPE>::THREADS, bytes, a);
    }
    const uint32_t n_unit = attend_heads_units(ceil_div(rows, GROUP));
    if (n_unit == 1 || n_token * halves > ATTEND_HEADS_UNIT_BLOCKS_MAX) {
        return cuda_launch(c, what, attend_heads_kernel<TYPE, PIECE_UNITS>, dim3(halves, n_token),
                           heads_block<TYPE>::THREADS, bytes, a);
    }
    ASSERT(n_token * n_unit <= c->part_rows); /* of part_out and part_stat */
    a.n_part = n_unit;
    TRY(cuda_launch(c, what, attend_heads_kernel<TYPE, PIECE_UNIT>, dim3(n_unit, n_token, halves),
                    heads_block<TYPE>::THREADS, bytes, a));
    return attend_combine(c, a, n_token);
}

fathom_err attend_heads(struct cuda_backend *c, struct attend_args a, enum attend_rows kind,
                        uint32_t n_token, uint32_t rows)
{
    return a.kv.type == KV_TYPE_FP8 ? run<KV_TYPE_FP8>(c, a, kind, n_token, rows)
                                    : run<KV_TYPE_BF16>(c, a, kind, n_token, rows);
}

template <enum kv_type TYPE> static fathom_err raise_limits(struct cuda_backend *c)
{
    const enum cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const int bytes = (int)sizeof(struct heads_shared);
    CU_TRY(c, cudaFuncSetAttribute(attend_heads_kernel<TYPE, PIECE_UNIT>, limit, bytes),
           "mla_attend");
    CU_TRY(c, cudaFuncSetAttribute(attend_heads_kernel<TYPE, PIECE_UNITS>, limit, bytes),
           "mla_attend");
    CU_TRY(c, cudaFuncSetAttribute(attend_heads_kernel<TYPE, PIECE_WHOLE>, limit, bytes),
           "mla_attend");
    return FATHOM_OK;
}

fathom_err attend_heads_init(struct cuda_backend *c)
{
    return c->c.kv.type == KV_TYPE_FP8 ? raise_limits<KV_TYPE_FP8>(c)
                                       : raise_limits<KV_TYPE_BF16>(c);
}

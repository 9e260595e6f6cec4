/* attend_heads.cuh - 64 heads of a token: shared memory, copies of rows, weights, sums, results
 *
 * Of attend_heads.cu, but for rows, widening, weights and results, which are attend_pair.cu's too.
 *
 * Two warpgroups compute and one copies. Groups of 64 rows are taken in pairs. The first warpgroup
 * makes the scores of a pair's first group, the second those of the second; each holds half of the
 * columns of the outputs of all heads, and both weigh both groups. Weights of the own group go from
 * registers into the product, those of the other one through shared memory, where they take the
 * place of the group's rotary keys, which only scores need.
 *
 * Rows lie as bf16 in nine tiles of 64 rows x 64 values, permuted as wgmma.cuh says: a tile is an
 * operand of the scores, and turned, of the outputs. A place of a group has two halves, told free
 * and full by themselves: tiles 0 to 3 and 4 to 7, the columns of each warpgroup. Rotary keys
 * belong to the half whose warpgroup is the last to read what replaces them.
 *
 * Maxima are powers of two. So whatever is taken relative to another maximum is multiplied by a
 * power of two and keeps its bits, and most of the time the maximum stays where it is. */
#ifndef FATHOM_BACKEND_CUDA_SM90_ATTEND_HEADS_CUH
#define FATHOM_BACKEND_CUDA_SM90_ATTEND_HEADS_CUH

#include "backend/cuda/attend.cuh"
#include "backend/cuda/sm90/attend.cuh"
#include "backend/cuda/sm90/ptx90.cuh"
#include "backend/cuda/sm90/wgmma_bf16.cuh"

enum {
    HEADS = ATTEND_HEADS,
    GROUP = ATTEND_GROUP,
    WARPGROUP = 128,
    WARPGROUP_WARPS = WARPGROUP / WARP,
    CONSUMERS = 2 * WARPGROUP,
    TILE = 64, /* values: 128 bytes of bf16 */
    TILE_BYTES = 128 * GROUP,
    TILES = KV_ROW / TILE,
    HALF_TILES = 4,
    COLUMNS = HALF_TILES * TILE,
    ROPE_TILE = TILES - 1,
    FP8_WARP_ROWS = 8, /* that a warp copies of a group of an FP8 cache */
};
static_assert(TILES == 2 * HALF_TILES + 1 && 2 * COLUMNS == (int)KV_LATENT, "two halves, and one");
static_assert(HEADS == 64 && GROUP == 64, "rows of a product, and of a tile");

/* What a block takes: a unit that combine_kernel merges, a token's units, or a token in one go. */
enum piece { PIECE_UNIT, PIECE_UNITS, PIECE_WHOLE };

/* Threads of a block, and their registers, which the warpgroups share out anew. Rows of an FP8
 * cache are widened as soon as a half of a group is free, while others wait for it: by two. */
template <enum kv_type TYPE> struct heads_block {
    static constexpr int PRODUCERS = TYPE == KV_TYPE_FP8 ? 2 * WARPGROUP : WARPGROUP;
    static constexpr int THREADS = CONSUMERS + PRODUCERS;
    static constexpr int LAUNCH_REGISTERS = (64 << 10) / THREADS / 8 * 8;
    static constexpr int CONSUMER_REGISTERS = TYPE == KV_TYPE_FP8 ? 192 : 208;
    static constexpr int PRODUCER_REGISTERS = TYPE == KV_TYPE_FP8 ? 64 : 88;
    static_assert(CONSUMERS * CONSUMER_REGISTERS + PRODUCERS * PRODUCER_REGISTERS <=
                      THREADS * LAUNCH_REGISTERS,
                  "a warpgroup waits for registers that others give back");
};
static_assert(heads_block<KV_TYPE_FP8>::PRODUCERS / (int)WARP * FP8_WARP_ROWS == GROUP,
              "a warp for every row");

struct heads_shared {
    unsigned char query[TILES][TILE_BYTES];
    unsigned char rows[2][TILES][TILE_BYTES]; /* of a pair's first group, and second */
    float top[2][HEADS];                      /* largest score so far after each group */
    float sum[2][HEADS];                      /* of weights, of each warpgroup's groups */
    uint64_t full[2][2], empty[2][2];         /* [group of the pair][half] */
    uint64_t query_here;                      /* told by every warp */
    uint64_t top_here, second_read, second_here, first_here, sum_here;
};
static_assert(sizeof(struct heads_shared) <= 227 << 10, "shared memory of a block");

/* Where 16 bytes of a tile's row lie. */
static __device__ __forceinline__ uint32_t tile_place(int row, int piece)
{
    return (uint32_t)(row * 128 + ((piece ^ row) & 7) * 16);
}

static __device__ __forceinline__ void wait_for(uint64_t *barrier, int parity)
{
    const uint32_t at = smem_address(barrier);
    while (!mbarrier_try_wait(at, (uint32_t)parity)) {
    }
}

/* What a warp's lanes have done is told, by one of them. */
static __device__ __forceinline__ void tell(uint64_t *barrier)
{
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem_address(barrier));
}

/* Rotary keys of an FP8 cache are told by themselves. */
template <enum kv_type TYPE>
static __device__ __forceinline__ void barriers_init(struct heads_shared *sh)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; i++) {
            const int twice = TYPE == KV_TYPE_FP8 && i / 2 != i % 2 ? 2 : 1;
            mbarrier_init(smem_address(&sh->full[i / 2][i % 2]),
                          twice * heads_block<TYPE>::PRODUCERS);
            mbarrier_init(smem_address(&sh->empty[i / 2][i % 2]), WARPGROUP_WARPS);
        }
        mbarrier_init(smem_address(&sh->query_here), 2 * WARPGROUP_WARPS);
        mbarrier_init(smem_address(&sh->sum_here), 2 * WARPGROUP_WARPS);
        mbarrier_init(smem_address(&sh->top_here), WARPGROUP_WARPS);
        mbarrier_init(smem_address(&sh->second_read), WARPGROUP_WARPS);
        mbarrier_init(smem_address(&sh->second_here), WARPGROUP_WARPS);
        mbarrier_init(smem_address(&sh->first_here), WARPGROUP_WARPS);
        mbarrier_init_fence();
    }
    __syncthreads();
}

/* ---- copying rows in ---- */

/* The rows that a block takes: from first_row of its token's on. */
struct heads_rows {
    const int32_t *entries; /* slots, or the pages of the request */
    int n_row;              /* of the token */
    bool is_pages;
};

static __device__ __forceinline__ struct heads_rows heads_rows_of(const struct attend_args &a,
                                                                  uint32_t token)
{
    struct heads_rows r;
    const int n_visible = a.pos[token] + 1;
    r.n_row = row_count(a, token);
    DCHECK(r.n_row <= n_visible);
    r.is_pages = r.n_row == n_visible; /* whatever way they are told */
    r.entries = r.is_pages ? a.page_table + (size_t)a.request[token] * a.page_stride
                           : a.slots + (size_t)token * a.topk;
    return r;
}

/* Slot of row ROWS w + l % ROWS of a group, in lane l of warp w of the copying ones; past the end
 * that of the last row. */
template <int ROWS>
static __device__ __forceinline__ int own_slot(const struct heads_rows &r, int group)
{
    const int own = (int)threadIdx.x / WARP % (GROUP / ROWS) * ROWS + (int)threadIdx.x % ROWS;
    const int row = min(group * GROUP + own, r.n_row - 1);
    if (!r.is_pages) return r.entries[row];
    return kv_slot(r.entries, row);
}

static __device__ __forceinline__ const char *row_at(const struct kv_layer &kv, int slot,
                                                     int row_bytes)
{
    DCHECK(slot >= 0);
    return kv.latent + (size_t)(slot / KV_PAGE_TOKENS) * kv.page_bytes +
           (size_t)(slot % KV_PAGE_TOKENS * row_bytes);
}

/* Copies one half of a group, once it is free. A warp has 16 rows; lanes 8 i to 8 i + 7 copy 128
 * bytes of one. */
static __device__ __forceinline__ void copy_half(const struct attend_args &a, int slot, int place,
                                                 int half, int parity, struct heads_shared *sh)
{
    const int warp = (int)threadIdx.x / WARP % WARPGROUP_WARPS, lane = (int)threadIdx.x % WARP;
    const int piece = lane % 8;
    wait_for(&sh->empty[place][half], parity ^ 1);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 4 + lane / 8;
        const char *from =
            row_at(a.kv, shfl(slot, row), KV_ROW_BYTES_BF16) + half * (COLUMNS * 2) + piece * 16;
        const uint32_t to =
            smem_address(sh->rows[place][half * HALF_TILES]) + tile_place(warp * 16 + row, piece);
#pragma unroll
        for (int tile = 0; tile < HALF_TILES; tile++)
            cp_async_16(to + (uint32_t)(tile * TILE_BYTES), from + tile * 128, true);
        if (half != place) { /* rotary keys */
            cp_async_16(smem_address(sh->rows[place][ROPE_TILE]) +
                            tile_place(warp * 16 + row, piece),
                        from + (ROPE_TILE - half * HALF_TILES) * 128, true);
        }
    }
    mbarrier_arrive_cp_async(smem_address(&sh->full[place][half]));
}

/* Copies the groups first to end - 1; an odd one out has a second that repeats the last row. Rows
 * of groups from n_old on wait for the kernel in front. */
static __device__ __forceinline__ void copy_bf16(const struct attend_args &a,
                                                 const struct heads_rows &r, int first, int end,
                                                 int n_old, struct heads_shared *sh)
{
    int slots[2] = {own_slot<16>(r, first), own_slot<16>(r, first + 1)};
    for (int k = first, parity = 0; k < end; k += 2, parity ^= 1) {
        if (k + 2 > n_old) dependency_wait();
        const int next[2] = {own_slot<16>(r, k + 2), own_slot<16>(r, k + 3)};
        copy_half(a, slots[0], 0, 0, parity, sh);
        copy_half(a, slots[1], 1, 1, parity, sh);
        copy_half(a, slots[0], 0, 1, parity, sh);
        copy_half(a, slots[1], 1, 0, parity, sh);
        slots[0] = next[0];
        slots[1] = next[1];
    }
}

/* ---- the same for an FP8 cache, whose rows are widened on the way ---- */

/* Two codes, which `pick` names, as bf16 times 2^-120: the bits of a code where a bf16 has sign,
 * exponent and mantissa, also of those that are subnormal there. Not-a-number has those of 480. */
static __device__ __forceinline__ uint32_t place_pair(uint32_t codes, uint32_t pick)
{
    return permute_bytes(codes, codes, pick) << 4 & 0x87f087f0;
}

/* What a thread has on its way of one half: 64 bytes of row l / 4 of the warp's are four lanes' */
struct half_codes {
    uint4 codes[HALF_TILES];
    float2 scales;
};

/* Of row row0 + l / 4 of the warp's, half of the latent values */
static __device__ __forceinline__ void read_half(const struct attend_args &a, int slot, int row0,
                                                 int half, struct half_codes &c)
{
    const int lane = (int)threadIdx.x % WARP;
    const char *row = row_at(a.kv, shfl(slot, row0 + lane / 4), KV_ROW_BYTES_FP8);
#pragma unroll
    for (int tile = 0; tile < HALF_TILES; tile++)
        c.codes[tile] = load_stream(row + half * COLUMNS + tile * TILE + lane % 4 * 16);
    c.scales = *(const float2 *)(row + KV_FP8_SCALES_OFFSET + half * 8);
}

/* They, widened, to a row of four tiles: 16 values from 16 `quarter` on of each. It is exact, for
 * scales are powers of two: from 2^8 on values are multiplied twice, since 2^128 is none. */
template <bool TWICE>
static __device__ __forceinline__ void
widen_by(const struct half_codes &c, unsigned char (*tiles)[TILE_BYTES], int row, int quarter)
{
    /* of permute_bytes: bytes 0 and 1, 2 and 3, each below its sign */
    DCHECK(row < GROUP && quarter < 4);
    const uint32_t picks[2] = {0x9180, 0xb3a2}, two_to_100 = 0x71807180;
    const float rest = TWICE ? 0x1p20f : 0x1p120f;
    const uint32_t factors[2] = {pack_bf16(c.scales.x * rest, c.scales.x * rest),
                                 pack_bf16(c.scales.y * rest, c.scales.y * rest)};
#pragma unroll
    for (int tile = 0; tile < HALF_TILES; tile++) {
        const uint4 w = c.codes[tile];
        const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = place_pair(words[2 * j + i / 2], picks[i % 2]);
                if (TWICE) v[i] = mul_bf16x2(v[i], two_to_100);
                v[i] = mul_bf16x2(v[i], factors[tile / 2]);
            }
            *(uint4 *)(tiles[tile] + tile_place(row, quarter * 2 + j)) =
                make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

static __device__ __forceinline__ void
widen_half(const struct half_codes &c, unsigned char (*tiles)[TILE_BYTES], int row, int quarter)
{
    if (warp_ballot(fmaxf(c.scales.x, c.scales.y) > 0x1p7f))
        widen_by<true>(c, tiles, row, quarter);
    else
        widen_by<false>(c, tiles, row, quarter);
}

static __device__ __forceinline__ void store_half(const struct attend_args &a, int slot, int place,
                                                  int half, int parity, const struct half_codes &c,
                                                  struct heads_shared *sh)
{
    const int lane = (int)threadIdx.x % WARP;
    const int row0 = (int)threadIdx.x / WARP % (GROUP / FP8_WARP_ROWS) * FP8_WARP_ROWS;
    wait_for(&sh->empty[place][half], parity ^ 1);
    if (half != place) { /* rotary keys */
#pragma unroll
        for (int i = 0; i < FP8_WARP_ROWS; i += 4) {
            const int row = i + lane / 8, piece = lane % 8;
            cp_async_16(smem_address(sh->rows[place][ROPE_TILE]) + tile_place(row0 + row, piece),
                        row_at(a.kv, shfl(slot, row), KV_ROW_BYTES_FP8) + KV_FP8_ROPE_OFFSET +
                            piece * 16,
                        true);
        }
        mbarrier_arrive_cp_async(smem_address(&sh->full[place][half]));
    }
    widen_half(c, &sh->rows[place][half * HALF_TILES], row0 + lane / 4, lane % 4);
    async_proxy_fence();
    mbarrier_arrive(smem_address(&sh->full[place][half]));
}

static __device__ __forceinline__ void copy_fp8(const struct attend_args &a,
                                                const struct heads_rows &r, int first, int end,
                                                int n_old, struct heads_shared *sh)
{
    enum { ROWS = FP8_WARP_ROWS };
    int slots[2] = {own_slot<ROWS>(r, first), own_slot<ROWS>(r, first + 1)};
    struct half_codes x, y;
    if (first + 4 > n_old) dependency_wait();
    read_half(a, slots[0], 0, 0, x);
    for (int k = first, parity = 0; k < end; k += 2, parity ^= 1) {
        const int next[2] = {own_slot<ROWS>(r, k + 2), own_slot<ROWS>(r, k + 3)};
        read_half(a, slots[1], 0, 1, y);
        store_half(a, slots[0], 0, 0, parity, x, sh);
        read_half(a, slots[0], 0, 1, x);
        store_half(a, slots[1], 1, 1, parity, y, sh);
        read_half(a, slots[1], 0, 0, y);
        store_half(a, slots[0], 0, 1, parity, x, sh);
        if (k + 6 > n_old) dependency_wait(); /* the next pair, and one row group after it */
        read_half(a, next[0], 0, 0, x);
        store_half(a, slots[1], 1, 0, parity, y, sh);
        slots[0] = next[0];
        slots[1] = next[1];
    }
}

/* ---- sums ---- */

/* What a thread has of its warpgroup's sums: heads g and g + 8 of its warp's 16 */
struct heads_sums {
    float o[2 * COLUMNS / 4]; /* of half the columns; as wgmma.cuh lays them out */
    float top[2], sum[2];     /* logarithm of the maximum, whole; the own groups' part of weights */
};

static __device__ __forceinline__ void sums_clear(struct heads_sums &v)
{
#pragma unroll
    for (int i = 0; i < 2 * COLUMNS / 4; i++) v.o[i] = 0.0f;
    v.top[0] = v.top[1] = -INFINITY;
    v.sum[0] = v.sum[1] = 0.0f;
}

/* 2^x of a whole x <= 0; 0 below 2^-126 */
static __device__ __forceinline__ float power_of_two(float x)
{
    DCHECK(x <= 0.0f);
    return __uint_as_float((uint32_t)((int)fmaxf(x, -127.0f) + 127) << 23);
}

/* From now on relative to these maxima; changed: of the lane's heads */
static __device__ __forceinline__ void sums_rescale(struct heads_sums &v, const float (&top)[2])
{
    const float low = power_of_two(v.top[0] - top[0]), high = power_of_two(v.top[1] - top[1]);
    if (warp_ballot(low != 1.0f || high != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 2 * COLUMNS / 4; i += 4) {
            v.o[i] *= low;
            v.o[i + 1] *= low;
            v.o[i + 2] *= high;
            v.o[i + 3] *= high;
        }
    }
    v.sum[0] *= low;
    v.sum[1] *= high;
    v.top[0] = top[0];
    v.top[1] = top[1];
}

/* ---- weights ---- */

/* Rows from n_row on do not count. */
static __device__ __forceinline__ void mask_scores(float (&s)[32], int n_row)
{
    const int t = (int)threadIdx.x % 4;
    if (n_row >= GROUP) return;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        if (i / 4 * 8 + 2 * t + i % 2 >= n_row) s[i] = -INFINITY;
    }
}

/* The largest of a lane's scores of each of its heads, by four chains */
static __device__ __forceinline__ void lane_largest(const float (&s)[32], float (&most)[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m[4] = {s[2 * j], s[2 * j + 1], s[2 * j + 4], s[2 * j + 5]};
#pragma unroll
        for (int i = 8; i < 32; i += 8) {
            m[0] = fmaxf(m[0], s[i + 2 * j]);
            m[1] = fmaxf(m[1], s[i + 2 * j + 1]);
            m[2] = fmaxf(m[2], s[i + 2 * j + 4]);
            m[3] = fmaxf(m[3], s[i + 2 * j + 5]);
        }
        most[j] = fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]));
    }
}

/* Logarithms of the heads' maxima, whole: of all their lanes' */
static __device__ __forceinline__ void heads_largest(const float (&most)[2], float scale,
                                                     float (&top)[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m = fmaxf(most[j], shfl_xor(most[j], 1));
        m = fmaxf(m, shfl_xor(m, 2));
        top[j] = ceilf(m * scale);
    }
}

/* Both, with rows from n_row on left out */
static __device__ __forceinline__ void largest_scores(float (&s)[32], int n_row, float scale,
                                                      float (&top)[2])
{
    float most[2];
    mask_scores(s, n_row);
    lane_largest(s, most);
    heads_largest(most, scale, top);
}

/* Weights relative to `top`, their sums, and the weights as an operand of four products */
static __device__ __forceinline__ void make_weights(float (&s)[32], float scale,
                                                    const float (&top)[2], float (&sum)[2],
                                                    uint32_t (&p)[4][4])
{
    float own[2] = {};
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int j = i / 2 % 2;
        const float x = exp2_approx(fmaf(s[i], scale, -top[j]));
        const float y = exp2_approx(fmaf(s[i + 1], scale, -top[j]));
        own[j] += x + y;
        p[i / 8][i / 2 % 4] = pack_bf16(x, y);
    }
    sum[0] += own[0];
    sum[1] += own[1];
}

/* ---- results ---- */

enum { RESULT_AHEAD = 8 };

/* Units merged so far, which are touched once a unit: in local memory */
struct heads_result {
    float4 o[2 * COLUMNS / 16];
    float4 stat; /* maximum and sum of head g, of head g + 8 */
};

/* The first of several units */
static __device__ __forceinline__ void result_set(struct heads_result *r,
                                                  const struct heads_sums &v)
{
#pragma unroll
    for (int i = 0; i < 2 * COLUMNS / 16; i++)
        r->o[i] = make_float4(v.o[4 * i], v.o[4 * i + 1], v.o[4 * i + 2], v.o[4 * i + 3]);
    r->stat = make_float4(v.top[0], v.sum[0], v.top[1], v.sum[1]);
    memory_touch(r);
}

/* v = what there is merged with v */
static __device__ __forceinline__ void result_merge(const struct heads_result *r,
                                                    struct heads_sums &v)
{
    memory_touch(r);
    const float4 stat = r->stat;
    const struct merge x = merge_of(stat.x, v.top[0]), y = merge_of(stat.z, v.top[1]);
    v.top[0] = x.max;
    v.top[1] = y.max;
    v.sum[0] = merged(x, stat.y, v.sum[0]);
    v.sum[1] = merged(y, stat.w, v.sum[1]);
#pragma unroll
    for (int i = 0; i < 2 * COLUMNS / 16; i += RESULT_AHEAD) {
        float4 o[RESULT_AHEAD];
        memory_touch(r); /* few registers: so many at a time */
#pragma unroll
        for (int k = 0; k < RESULT_AHEAD; k++) o[k] = r->o[i + k];
#pragma unroll
        for (int k = 0; k < RESULT_AHEAD; k++) {
            float *to = v.o + 4 * (i + k);
            to[0] = merged(x, o[k].x, to[0]);
            to[1] = merged(x, o[k].y, to[1]);
            to[2] = merged(y, o[k].z, to[2]);
            to[3] = merged(y, o[k].w, to[3]);
        }
    }
}

/* Head g of a lane; its other one is 8 on. */
static __device__ __forceinline__ uint32_t head_of_lane(uint32_t head0)
{
    return head0 + threadIdx.x % WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4;
}

/* From head head0 and column column0 of the values on */
static __device__ __forceinline__ void store_unit(const struct attend_args &a, uint32_t token,
                                                  uint32_t head0, int column0, uint32_t unit,
                                                  const struct heads_sums &v)
{
    DCHECK(unit < a.n_part);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t head = head_of_lane(head0) + (uint32_t)(8 * j);
        if (head >= a.n_head) continue;
        const size_t row = ((size_t)token * a.n_part + unit) * a.n_head + head;
        float *to = a.part_out + row * KV_LATENT + column0 + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i++)
            *(float2 *)(to + 8 * i) = make_float2(v.o[4 * i + 2 * j], v.o[4 * i + 2 * j + 1]);
        if (column0 == 0 && threadIdx.x % 4 == 0)
            *(float2 *)(a.part_stat + row * 2) = make_float2(v.top[j], v.sum[j]);
    }
}

static __device__ __forceinline__ void store_result(const struct attend_args &a, uint32_t token,
                                                    uint32_t head0, int column0,
                                                    const struct heads_sums &v)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t head = head_of_lane(head0) + (uint32_t)(8 * j);
        if (head >= a.n_head) continue;
        const float inverse = 1.0f / v.sum[j];
        bf16 *to =
            a.out_h + ((size_t)token * a.n_head + head) * KV_LATENT + column0 + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i++)
            *(uint32_t *)(to + 8 * i) =
                pack_bf16(v.o[4 * i + 2 * j] * inverse, v.o[4 * i + 2 * j + 1] * inverse);
    }
}

#endif

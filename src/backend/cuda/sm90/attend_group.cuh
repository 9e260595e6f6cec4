/* attend_group.cuh - a group of 64 cache rows and 16 heads of a token: copy, scores, weights,
 * outputs
 *
 * Eight warps: warp w has slice w / 2, the latent values 128 (w / 2) and the 127 after, and with
 * them a quarter of the rotary ones. Rows lie in shared memory as in the cache; while a group is
 * computed the next one's rows are copied in. Past the end a group repeats the token's last row.
 *
 *   scores   warp w: the part of q . k that comes from its slice, for 32 keys; the query stays in
 *            registers. s = (slice 0 + slice 1) + (slice 2 + slice 3)
 *   weights  16 threads a head: the largest score m so far, p = 2^((s - m) * scale * log2(e) + 14)
 *   outputs  warp w: columns 64 w to 64 w + 63 of p . v, or where two blocks share the columns 32 w
 *            to 32 w + 31 of the block's half
 *
 * An FP8 cache has a scale per row and slice. Codes go to the tensor core as f16, which holds them
 * exactly; a slice's scores are multiplied by the row's scale, and p by the row's scale over the
 * largest of the group, rounded down to a power of two. A slice of the query is brought below 2^15
 * by a power of two. With a BF16 cache every operand is bf16.
 *
 * The order of values inside a product is free as long as both operands agree, so a lane takes 16
 * bytes of a row at once. The order of keys is free too: place p of a group has row
 *   16 (p % 4) + 8 (p / 32) + f(p / 4 % 8),  f reversing three bits.
 * Rows are 16 bytes past a multiple of 128 apart, the second half of them 32 bytes further. That
 * makes all reads free of bank conflicts. */
#ifndef FATHOM_BACKEND_CUDA_SM90_ATTEND_GROUP_CUH
#define FATHOM_BACKEND_CUDA_SM90_ATTEND_GROUP_CUH

#include "backend/cuda/attend.cuh"
#include "backend/cuda/sm90/ptx90.cuh"

enum {
    GROUP = ATTEND_GROUP,
    UNIT = ATTEND_UNIT,
    HEADS = ATTEND_HEAD_BLOCK,
    THREADS = 256,
    SLICES = 4,
    SLICE = KV_LATENT / SLICES,
    SLICE_STEPS = SLICE / 16,
    WEIGHT_SHIFT = 14,   /* p is stored times 2^14 */
    QUERY_BITS_MAX = 40, /* smaller latent values than 2^-40 add nothing to a score */
    CLUSTER_MAX = ATTEND_CLUSTER_MAX,
};
static_assert((int)CLUSTER_MAX <= (int)CLUSTER_BLOCKS_MAX, "blocks of a cluster");
static_assert((int)SLICE == (int)KV_FP8_GROUP, "a slice has one scale a row");
static_assert(THREADS / WARP == 2 * SLICES && THREADS == HEADS * 16,
              "warps a slice, threads a head");
static_assert((int)KV_ROPE == SLICES * 16, "a quarter of the rotary values a slice");
static_assert((int)KV_LATENT == THREADS / WARP * 64, "64 columns of the outputs a warp");
static_assert(GROUP == THREADS / WARP * 8, "a warp copies eight rows");

/* A row in shared memory, and what a lane takes of a slice at once. */
template <enum kv_type TYPE> struct row_shape {
    static constexpr bool FP8 = TYPE == KV_TYPE_FP8;
    static constexpr int BYTES = FP8 ? (int)KV_ROW_BYTES_FP8 : (int)KV_ROW_BYTES_BF16;
    static constexpr int PITCH = FP8 ? BYTES : BYTES + 16;
    static constexpr int STAGE = GROUP * PITCH + 32;
    static constexpr int VALUE = FP8 ? 1 : 2; /* bytes a latent value */
    static constexpr int ROPE = FP8 ? (int)KV_FP8_ROPE_OFFSET : KV_LATENT * 2;
    static constexpr int RUN = 16 / VALUE;    /* values */
    static constexpr int RUN_STEPS = RUN / 4; /* products of K = 16 that four lanes' runs feed */
    /* Where a row lies in a stage. */
    static __device__ __forceinline__ constexpr int offset(int row)
    {
        return row * PITCH + row / (GROUP / 2) * 32;
    }
    static_assert(PITCH % 128 == 16, "bank conflicts");
    static_assert(STAGE % 16 == 0 && BYTES % 16 == 0, "bulk copies");
    static_assert(SLICE_STEPS % RUN_STEPS == 0, "runs are whole");
};

/* Of a block with so many stages of rows, one of PARTS that share the columns of the outputs. */
template <enum kv_type TYPE, int STAGES, int PARTS> struct attend_shared {
    using shape = row_shape<TYPE>;
    static constexpr int N_STAGE = STAGES, N_PART = PARTS;
    static constexpr int OWN_SLICES = SLICES / PARTS; /* whose outputs the block makes */
    static constexpr int COLUMNS = 8 / PARTS; /* neighbouring ones of a lane, of each product */
    alignas(16) unsigned char rows[STAGES][shape::STAGE];
    float score[SLICES][HEADS][GROUP + 4];                          /* [..][place] */
    uint16_t p[shape::FP8 ? (int)OWN_SLICES : 1][HEADS][GROUP + 8]; /* [..][place] */
    uint4 rope[THREADS];                            /* the query's rotary values, each lane's own */
    alignas(16) float query_inverse[HEADS][SLICES]; /* one over query_factor */
    alignas(16) float scale_max[STAGES][2][SLICES]; /* of each half of a group */
    float alpha[HEADS];                             /* what outputs so far are multiplied by */
    float2 stat[HEADS];                             /* maximum and sum of a unit, at its end */
    uint64_t full[STAGES];                          /* barriers: rows have arrived */
    uint64_t may_send, merged; /* and all blocks' words, and what this block merges */
    float2 told[CLUSTER_MAX];  /* those words */
    static_assert(PARTS == 1 || PARTS == 2, "a lane's columns are read at once");
};

/* Row of place 4 c of half a group; that of place 4 c + j is 16 j rows on. */
static __device__ __forceinline__ int row_of(int half, int c)
{
    DCHECK(half >= 0 && half < 2 && c >= 0 && c < 8);
    return 8 * half + c / 4 + c / 2 % 2 * 2 + c % 2 * 4;
}

/* ---- copying rows in ---- */

/* Where the rows of a token are told: slots, or the pages of its request, one a group. */
struct row_list {
    const int32_t *entries;
    int n_row;
    bool is_pages;
};

static __device__ __forceinline__ struct row_list row_list_of(const struct attend_args &a,
                                                              uint32_t token)
{
    struct row_list l;
    const int n_visible = a.pos[token] + 1;
    const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
    l.n_row = a.slots ? a.counts[token] : n_visible;
    DCHECK(l.n_row >= 1 && l.n_row <= n_visible);
    l.is_pages = l.n_row == n_visible; /* whatever way they are told */
    l.entries = l.is_pages ? pages : a.slots + (size_t)token * a.topk;
    return l;
}

/* Row 8 w + lane of a group, for lanes 0 to 7 of warp w. */
static __device__ __forceinline__ int own_row(int group)
{
    return group * GROUP + (int)threadIdx.x / WARP * 8 + (int)threadIdx.x % 8;
}

/* The same; past the end the last row. */
static __device__ __forceinline__ int row_index(const struct row_list &l, int group)
{
    return min(own_row(group), l.n_row - 1);
}

/* The entry that copy_rows needs, read early. */
static __device__ __forceinline__ int read_entry(const struct row_list &l, int group)
{
    if (group * GROUP >= l.n_row) return 0;
    return l.entries[l.is_pages ? group : row_index(l, group)];
}

/* The slot that a selection may have for a block's first group: read before anything is known of
 * the token. */
static __device__ __forceinline__ int early_entry(const struct attend_args &a, uint32_t token,
                                                  int group)
{
    if (!a.slots) return 0;
    return a.slots[(size_t)token * a.topk + min((uint32_t)own_row(group), a.topk - 1)];
}

/* What copy_rows needs for it. */
static __device__ __forceinline__ int first_entry(const struct row_list &l, int group, int early)
{
    return !l.is_pages && own_row(group) < l.n_row ? early : read_entry(l, group);
}

/* Starts the copy of a warp's eight rows; `full` of the stage counts them. */
template <class SHARED>
static __device__ __forceinline__ void copy_rows(const struct attend_args &a,
                                                 const struct row_list &l, int group, int entry,
                                                 SHARED *sh, int stage)
{
    using shape = typename SHARED::shape;
    static_assert((int)GROUP == (int)KV_PAGE_TOKENS, "a group is a page");
    const int warp = warp_id();
    const uint32_t full = smem_address(&sh->full[stage]);
    const int page = l.is_pages ? entry : entry / KV_PAGE_TOKENS;
    const int row = (l.is_pages ? row_index(l, group) : entry) % KV_PAGE_TOKENS;
    DCHECK(stage >= 0 && stage < SHARED::N_STAGE && entry >= 0);
    const char *from = a.kv.latent + (size_t)page * a.kv.page_bytes + (size_t)(row * shape::BYTES);
    const uint32_t to = smem_address(sh->rows[stage] + shape::offset(warp * 8));
    const bool chosen = elect_lane();
    if (chosen) mbarrier_arrive_expect(full, 8 * shape::BYTES);
    if (shape::PITCH == shape::BYTES && l.is_pages && (group + 1) * GROUP <= l.n_row) {
        const char *first = (const char *)shfl((uint64_t)from, 0);
        if (chosen) bulk_load(to, first, 8 * shape::BYTES, full);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const char *each = (const char *)shfl((uint64_t)from, i);
        if (chosen) bulk_load(to + (uint32_t)(i * shape::PITCH), each, shape::BYTES, full);
    }
}

/* ---- the query ---- */

/* A operands of the warp's slice, without the rotary values */
struct query {
    uint32_t latent[SLICE_STEPS][4];
};

static __device__ __forceinline__ float2 unpack_bf16(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

/* 16 bytes of the query; EARLY: the kernel has not waited yet. */
template <bool EARLY> static __device__ __forceinline__ uint4 query_piece(const bf16 *from)
{
    if constexpr (EARLY) return load_past_l1(from);
    return *(const uint4 *)from;
}

/* Raw values of heads g and g + 8: [product][2 v + j], v telling halves of K apart */
template <class shape, bool EARLY>
static __device__ __forceinline__ void query_read(const struct attend_args &a, uint32_t token,
                                                  uint32_t head0, struct query &q, uint2 (&rope)[2])
{
    const int slice = (int)threadIdx.x / WARP / 2, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
    static_assert(shape::RUN_STEPS % 2 == 0, "16 bytes feed two products");
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t head = head0 + (uint32_t)(g + 8 * j);
        const bool valid = head < a.n_head;
        const bf16 *row = a.h + ((size_t)token * a.n_head + (valid ? head : 0)) * KV_ROW;
        const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < SLICE_STEPS; i += 2) {
            const int at = slice * SLICE + (i / shape::RUN_STEPS * 4 + t) * shape::RUN +
                           i % shape::RUN_STEPS * 4;
            const uint4 v = valid ? query_piece<EARLY>(row + at) : none;
            q.latent[i][j] = v.x;
            q.latent[i][j + 2] = v.y;
            q.latent[i + 1][j] = v.z;
            q.latent[i + 1][j + 2] = v.w;
        }
        const bf16 *rotary = row + KV_LATENT + slice * 16 + t / 2 * 8;
        const uint4 v = valid ? query_piece<EARLY>(rotary) : none;
        rope[j] = t % 2 ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y);
    }
}

static __device__ __forceinline__ float inverse_power(float power_of_two)
{
    DCHECK(power_of_two > 0.0f && (__float_as_uint(power_of_two) & 0x7fffffu) == 0);
    return __uint_as_float((254u << 23) - __float_as_uint(power_of_two));
}

/* The power of two that brings the largest latent magnitude of head g + 8 j in the warp's slice
 * into [2^14, 2^15). It is bounded, for the rotary values are multiplied by it too: magnitudes
 * below 2^-QUERY_BITS_MAX stay smaller. Both warps of a slice find the same. */
static __device__ __forceinline__ float query_factor(const struct query &q, int j)
{
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICE_STEPS * 2; i++) {
        const float2 v = unpack_bf16(q.latent[i / 2][j + i % 2 * 2]);
        amax = fmaxf(amax, fmaxf(fabsf(v.x), fabsf(v.y)));
    }
    amax = fmaxf(amax, shfl_xor(amax, 1));
    amax = fmaxf(amax, shfl_xor(amax, 2));
    const uint32_t exponent = max(__float_as_uint(amax) >> 23, 127u - QUERY_BITS_MAX);
    return __uint_as_float((127 + 127 + 14 - exponent) << 23);
}

static __device__ __forceinline__ uint32_t times_bf16(uint32_t v, float factor)
{
    const float2 x = unpack_bf16(v);
    return pack_bf16(x.x * factor, x.y * factor);
}

/* The query as operands: in registers, and the rotary values in shared memory. For an FP8 cache the
 * latent values become f16, and a slice's values are multiplied by its query_factor; scores are
 * divided by it where slices are added up. */
template <class SHARED>
static __device__ __forceinline__ void query_prepare(SHARED *sh, struct query &q, uint2 (&rope)[2])
{
    using shape = typename SHARED::shape;
    if constexpr (shape::FP8) {
        const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float factor = query_factor(q, j);
            if (threadIdx.x % 4 == 0 && warp % 2 == 0)
                sh->query_inverse[g + 8 * j][warp / 2] = inverse_power(factor);
#pragma unroll
            for (int i = 0; i < SLICE_STEPS * 2; i++) {
                uint32_t &pair = q.latent[i / 2][j + i % 2 * 2];
                const float2 v = unpack_bf16(pair);
                pair = pack_f16(v.x * factor, v.y * factor);
            }
            rope[j] = make_uint2(times_bf16(rope[j].x, factor), times_bf16(rope[j].y, factor));
        }
    }
    sh->rope[threadIdx.x] = make_uint4(rope[0].x, rope[1].x, rope[0].y, rope[1].y);
}

/* ---- scores ---- */

/* c[j] += q . k over the latent values of the slice, k[j] being this lane's first run. */
template <class shape>
static __device__ __forceinline__ void score_latent(const struct query &q, const unsigned char *k,
                                                    float (&c)[4][4])
{
#pragma unroll
    for (int i = 0; i < SLICE_STEPS / shape::RUN_STEPS; i++) {
        uint4 run[4];
#pragma unroll
        for (int j = 0; j < 4; j++) run[j] = *(const uint4 *)(k + shape::offset(16 * j) + i * 64);
#pragma unroll
        for (int s = 0; s < shape::RUN_STEPS; s++) {
            const uint32_t(&f)[4] = q.latent[i * shape::RUN_STEPS + s];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t words[4] = {run[j].x, run[j].y, run[j].z, run[j].w};
                if constexpr (shape::FP8) {
                    uint32_t b0, b1;
                    e4m3x4_to_f16x2(words[s], &b0, &b1);
                    mma_f16(c[j], f[0], f[1], f[2], f[3], b0, b1);
                } else {
                    mma_bf16(c[j], f[0], f[1], f[2], f[3], words[2 * s], words[2 * s + 1]);
                }
            }
        }
    }
}

/* c = c times the rows' scales of the slice, the largest of which is kept, plus r: an FP8 cache */
template <class SHARED>
static __device__ __forceinline__ void scale_scores(SHARED *sh, int stage, const float (&r)[4][4],
                                                    float (&c)[4][4])
{
    using shape = typename SHARED::shape;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int t = lane % 4, slice = warp / 2, half = warp % 2;
    const unsigned char *scales =
        sh->rows[stage] + shape::offset(row_of(half, 2 * t)) + KV_FP8_SCALES_OFFSET + slice * 4;
    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float scale = *(const float *)(scales + shape::offset(16 * j + 4 * i));
            c[j][i] = fmaf(c[j][i], scale, r[j][i]);
            c[j][i + 2] = fmaf(c[j][i + 2], scale, r[j][i + 2]);
            top = fmaxf(top, scale);
        }
    }
    top = fmaxf(top, shfl_xor(top, 1));
    top = fmaxf(top, shfl_xor(top, 2));
    if (lane == 0) sh->scale_max[stage][half][slice] = top;
}

/* The slice's part of 16 x 32 scores, into shared memory. Column c of product j is place 4 c + j.
 */
template <class SHARED>
static __device__ __forceinline__ void make_scores(const struct query &q, SHARED *sh, int stage)
{
    using shape = typename SHARED::shape;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4, slice = warp / 2, half = warp % 2;
    const unsigned char *rows = sh->rows[stage] + shape::offset(row_of(half, g));
    const unsigned char *rope = rows + shape::ROPE + slice * 32 + t * 8;
    const uint4 f = sh->rope[threadIdx.x];
    float r[4][4] = {}, c[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint2 b = *(const uint2 *)(rope + shape::offset(16 * j));
        mma_bf16(r[j], f.x, f.y, f.z, f.w, b.x, b.y);
    }
    if constexpr (shape::FP8) {
        score_latent<shape>(q, rows + slice * SLICE * shape::VALUE + t * 16, c);
        scale_scores(sh, stage, r, c);
    } else {
        score_latent<shape>(q, rows + slice * SLICE * shape::VALUE + t * 16, r);
    }
    const float(&sum)[4][4] = shape::FP8 ? c : r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 *to = (float4 *)&sh->score[slice][g + 8 * i][half * 32 + t * 8];
        to[0] = make_float4(sum[0][2 * i], sum[1][2 * i], sum[2][2 * i], sum[3][2 * i]);
        to[1] =
            make_float4(sum[0][2 * i + 1], sum[1][2 * i + 1], sum[2][2 * i + 1], sum[3][2 * i + 1]);
    }
}

/* ---- weights ---- */

/* What a thread knows of its head in a unit: the largest score so far, and its part of the sum of
 * weights. */
struct softmax {
    float max, sum;
};

static __device__ __forceinline__ void softmax_clear(struct softmax &m)
{
    m.max = -INFINITY;
    m.sum = 0.0f;
}

/* The largest of two scales, rounded down to a power of two, and large enough to be inverted */
static __device__ __forceinline__ float scale_power(float a, float b)
{
    return __uint_as_float(__float_as_uint(fmaxf(fmaxf(a, b), 0x1p-60f)) & 0x7f800000u);
}

/* That of a slice in the group */
template <class SHARED>
static __device__ __forceinline__ float group_scale(const SHARED *sh, int stage, int slice)
{
    using shape = typename SHARED::shape;
    if constexpr (!shape::FP8) return 1.0f;
    return scale_power(sh->scale_max[stage][0][slice], sh->scale_max[stage][1][slice]);
}

/* N neighbouring values in shared memory, by one access */
template <int N>
static __device__ __forceinline__ void read_neighbours(const void *from, float (&v)[N])
{
    static_assert(N == 2 || N == 4, "as many as one access reads");
    if constexpr (N == 4) {
        const float4 x = *(const float4 *)from;
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
        const float2 x = *(const float2 *)from;
        v[0] = x.x, v[1] = x.y;
    }
}

/* Scores of places 4 l to 4 l + 3 of a head; rows from n on do not count. */
template <class SHARED>
static __device__ __forceinline__ void read_scores(const SHARED *sh, int head, int l, int n,
                                                   float (&s)[4])
{
    float part[SLICES][4], f[SLICES] = {1.0f, 1.0f, 1.0f, 1.0f};
    if constexpr (SHARED::shape::FP8) read_neighbours(sh->query_inverse[head], f);
#pragma unroll
    for (int i = 0; i < SLICES; i++) read_neighbours(&sh->score[i][head][l * 4], part[i]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] =
            fmaf(part[0][i], f[0], part[1][i] * f[1]) + fmaf(part[2][i], f[2], part[3][i] * f[3]);
    }
    if (n >= GROUP) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (16 * i + row_of(l / 8, l % 8) >= n) s[i] = -INFINITY;
    }
}

/* Weights of places 4 l to 4 l + 3 of a head as operands of the outputs of the block's part */
template <class SHARED>
static __device__ __forceinline__ void store_weights(SHARED *sh, int stage, int part, int head,
                                                     int l, const float (&p)[4])
{
    using shape = typename SHARED::shape;
    if constexpr (shape::FP8) {
        enum { N = SHARED::OWN_SLICES };
        float low[N], high[N], scale[4][N]; /* scale: of the four rows */
        read_neighbours(&sh->scale_max[stage][0][part * N], low);
        read_neighbours(&sh->scale_max[stage][1][part * N], high);
        const unsigned char *scales = sh->rows[stage] + shape::offset(row_of(l / 8, l % 8)) +
                                      KV_FP8_SCALES_OFFSET + part * N * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) read_neighbours(scales + shape::offset(16 * i), scale[i]);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float inverse = inverse_power(scale_power(low[k], high[k]));
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = p[i] * (scale[i][k] * inverse);
            *(uint2 *)&sh->p[k][head][l * 4] =
                make_uint2(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]));
        }
    } else {
        *(uint2 *)&sh->p[0][head][l * 4] = make_uint2(pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]));
    }
}

/* p of n rows, and what outputs so far are worth; at a unit's end its maximum and sum too. */
template <class SHARED>
static __device__ __forceinline__ void make_weights(SHARED *sh, int stage, int part, int n,
                                                    float scale, bool is_end, struct softmax &m)
{
    using shape = typename SHARED::shape;
    const int head = (int)threadIdx.x / 16, l = (int)threadIdx.x % 16;
    DCHECK(n >= 1 && n <= GROUP);
    float s[4], p[4];
    read_scores(sh, head, l, n, s);
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) top = fmaxf(top, shfl_xor(top, d));
    top = fmaxf(top, m.max);
    const float alpha = exp2_approx((m.max - top) * scale);
    const float shift = fmaf(-top, scale, (float)WEIGHT_SHIFT);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        p[i] = exp2_approx(fmaf(s[i], scale, shift));
        if constexpr (!shape::FP8) p[i] = to_bf16_and_back(p[i]);
    }
    store_weights(sh, stage, part, head, l, p);
    m.max = top;
    m.sum = fmaf(m.sum, alpha, (p[0] + p[1]) + (p[2] + p[3]));
    if (l == 0) sh->alpha[head] = alpha;
    if (!is_end) return;
    float sum = m.sum;
#pragma unroll
    for (int d = 8; d > 0; d >>= 1) sum += shfl_xor(sum, d);
    if (l == 0) sh->stat[head] = make_float2(top * scale, sum);
}

/* ---- outputs ---- */

template <int N>
static __device__ __forceinline__ void read_words(const unsigned char *from, uint32_t (&v)[N])
{
    static_assert(N == 1 || N == 2 || N == 4, "as many as one access reads");
    if constexpr (N == 4) {
        const uint4 x = *(const uint4 *)from;
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else if constexpr (N == 2) {
        const uint2 x = *(const uint2 *)from;
        v[0] = x.x, v[1] = x.y;
    } else {
        v[0] = *(const uint32_t *)from;
    }
}

/* B operands of N products from two rows: product n takes column n of this lane's N. */
template <class shape, int N>
static __device__ __forceinline__ void value_pair(const unsigned char *x_row,
                                                  const unsigned char *y_row, uint32_t (&b)[N])
{
    enum { WORDS = N * shape::VALUE / 4 };
    uint32_t xs[WORDS], ys[WORDS];
    read_words(x_row, xs);
    read_words(y_row, ys);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        if constexpr (shape::FP8) {
            e4m3x4_to_f16x2(__byte_perm(xs[i], ys[i], 0x5140), &b[4 * i], &b[4 * i + 1]);
            e4m3x4_to_f16x2(__byte_perm(xs[i], ys[i], 0x7362), &b[4 * i + 2], &b[4 * i + 3]);
        } else {
            b[2 * i] = __byte_perm(xs[i], ys[i], 0x5410);
            b[2 * i + 1] = __byte_perm(xs[i], ys[i], 0x7632);
        }
    }
}

/* Outputs of a unit or of several; times `scale`, for the heads g and g + 8 of the lane. Product n
 * has the columns COLUMNS (8w + c) + n of the block's part, c being the product's column. */
template <int COLUMNS> struct outputs {
    float o[COLUMNS][4];
    float scale;
};

/* o += p . v for 16 heads and the warp's columns. */
template <class SHARED>
static __device__ __forceinline__ void add_outputs(const SHARED *sh, int stage, int part,
                                                   struct outputs<SHARED::COLUMNS> &v)
{
    using shape = typename SHARED::shape;
    enum { N = SHARED::COLUMNS };
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
    const int own_slice = warp * N * 8 / SLICE;
    const int column = part * (KV_LATENT / SHARED::N_PART) + (warp * 8 + g) * N;
    const uint32_t weights =
        smem_address(&sh->p[shape::FP8 ? own_slice : 0][lane % 16][lane / 16 * 8]);
    const unsigned char *values =
        sh->rows[stage] + shape::offset(t % 2 * 32 + t / 2 * 4) + column * shape::VALUE;
#pragma unroll
    for (int step = 0; step < GROUP / 16; step++) {
        uint32_t p[4], b[2][N];
        ldmatrix_x4(p, weights + (uint32_t)step * 32);
#pragma unroll
        for (int i = 0; i < 2; i++) { /* places 16 step + 8 i + 2 t and the next */
            const unsigned char *row = values + shape::offset(step / 2 * 8 + step % 2 + i * 2);
            value_pair<shape>(row, row + shape::offset(16), b[i]);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if constexpr (shape::FP8)
                mma_f16(v.o[n], p[0], p[1], p[2], p[3], b[0][n], b[1][n]);
            else
                mma_bf16(v.o[n], p[0], p[1], p[2], p[3], b[0][n], b[1][n]);
        }
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void outputs_clear(struct outputs<COLUMNS> &v)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) v.o[n][i] = 0.0f;
    }
    v.scale = 1.0f;
}

/* The group in `stage`, whose rows have arrived, n of which count. */
template <class SHARED>
static __device__ __forceinline__ void outputs_rescale(const SHARED *sh, int stage, int part,
                                                       struct outputs<SHARED::COLUMNS> &v)
{
    const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4;
    const int slice = part * SHARED::OWN_SLICES + warp * SHARED::COLUMNS * 8 / SLICE;
    const float scale = group_scale(sh, stage, slice);
    const float change = v.scale * inverse_power(scale);
    const float low = sh->alpha[g] * change, high = sh->alpha[g + 8] * change;
#pragma unroll
    for (int n = 0; n < SHARED::COLUMNS; n++) {
        v.o[n][0] *= low;
        v.o[n][1] *= low;
        v.o[n][2] *= high;
        v.o[n][3] *= high;
    }
    v.scale = scale;
}

#endif

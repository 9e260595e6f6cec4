/* product_u4.cu - matrix product of packed U4 weights for many rows on sm_90a
 *
 * As product_fp8.cu: tiles of 128 rows x 128 outputs, two warpgroups that multiply, one that fills
 * the ring. But weights are the 64-row operand of the warpgroup products and come from registers,
 * as in product_few_kernel.cuh: a warpgroup makes the codes (u4.cuh) of a packed tile (pack4.h) of
 * 64 outputs, which nobody else reads, and multiplies all rows of inputs with them, or 64 where the
 * task has no more. So codes do not cross shared memory, and there is nobody to wait for. A sum is
 * multiplied by two scales that depend on row and output; G is the number of groups of a K line,
 * which are summed one after the other. Experts' codes are multiplied as they are stored.
 *
 * A stage has a K line of inputs and two packed tiles:
 *
 *   empty --- copies on their way; full: their bytes, and the arrivals of all who load ---> full
 *   full ---- read by every warp that multiplies ---> empty
 *
 * The inputs' scales, and experts' sums of inputs, have a ring of their own beside the stages. Rows
 * lie far apart, so a thread reads ROW_LINES K lines of its row at a time, and puts all of them
 * where they belong once the first one's stage is empty: what was there is of lines before those of
 * that stage.
 *
 * A thread's sums have their outputs along the warpgroup's 64 and rows across; what leaves a tile
 * (product_fp8_store.cuh) has a warp's 16 rows with all outputs. So a finished tile changes hands
 * in shared memory: every warp says at `cleared` that its rows there have been read, then all put
 * their sums to the rows they belong to, say so at `spread`, and each warp goes on with its 16.
 * Rows of bf16 change hands within a warpgroup, and leave it as halves, 32 a warp. */
#include "backend/cuda/sm90/product_u4.cuh"

#include "backend/cuda/sm90/product_fp8_store.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/u4.cuh"

enum {
    TILES = BN / PACK4_ROWS,
    ROW_LINES = 2,
    FEW_ROWS = 32,  /* of an expert's last task, instead of GROUP_ROWS */
    MORE_ROWS = 96, /* instead of BM */
    HELD_BYTES = WARP_ROWS * PAIR_COLS * (int)sizeof(float),
    HALF_ROW_BYTES = GROUP_ROWS * (int)sizeof(bf16),
};
static_assert((int)GROUP_THREADS == (int)BM, "a thread copies the scales of a row");
static_assert((int)PACK4_ROWS == (int)GROUP_ROWS && (int)TILES == 2, "a warpgroup has a tile");

/* Bytes of a packed tile at most: with two groups there is no room for F32 scales and zeros. */
template <int G> constexpr uint32_t packed_bytes(void)
{
    return PACK4_CODE_BYTES + G * PACK4_ROWS * (G == 1 ? 5 : 3);
}

template <int G> struct alignas(ALIGN_BYTES) u4_stages {
    enum {
        N_STAGE = G == 1 ? 5 : 4, /* no room for two groups' sums in a fifth */
        N_LINE = N_STAGE + ROW_LINES - 1,
    };
    uint8_t in[N_STAGE][BM * BK];
    uint8_t out[CONSUMER_WARPS][BOXES][WARP_ROWS * BOX_BYTES];
    uint8_t held[CONSUMER_WARPS][HELD_BYTES]; /* OUTPUT_SWIGLU */
    uint8_t packed[N_STAGE][TILES][packed_bytes<G>()];
    float in_scale[N_LINE][BM];  /* where scale_place says; */
    float in_sum[N_LINE][G][BM]; /* mapped: likewise */
    uint64_t full[N_STAGE];
    uint64_t empty[N_STAGE];
    struct feed feed;    /* mapped; all warps read */
    uint64_t cleared[2]; /* of all warps that multiply, or of a warpgroup's */
    uint64_t spread[2];
    static_assert(packed_bytes<G>() % PIECE_BYTES == 0, "pieces");
};
static_assert(sizeof(struct u4_stages<1>) <= SHARED_MAX, "shared memory of a block");
static_assert(sizeof(struct u4_stages<2>) <= SHARED_MAX, "shared memory of a block");

struct u4_work {
    struct work w;
    struct u4_form form;
};

/* Scales of rows 8 j + 2 t and the next, and of those eight further, lie together. */
static __device__ __forceinline__ uint32_t scale_place(uint32_t row)
{
    const uint32_t j = row / 8, t = row / 2 % 4;
    return j / 2 * 16 + t * 4 + j % 2 * 2 + row % 2;
}

/* ---- the warpgroup that loads ---- */

/* By one thread: packed tiles, and rows that lie one after the other. Tiles past the matrix are not
 * copied: what is multiplied instead is nobody's. */
template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void load_tiles(const struct work &w, struct u4_stages<G> *s,
                                                  uint32_t stage, uint32_t k_line,
                                                  const struct task &t, uint32_t col)
{
    const uint32_t full = smem_address(&s->full[stage]), bytes = w.a.pack.tile_bytes;
    const uint32_t n_tile = ceil_div(w.a.n, PACK4_ROWS), in = smem_address(s->in[stage]);
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    const bool both = t.n > GROUP_ROWS;
    uint32_t tile[TILES], n = FORM == FORM_GATHER ? 0 : (both ? BM : GROUP_ROWS) * BK;
    for (uint32_t i = 0; i < TILES; i++) {
        tile[i] = OUTPUT == OUTPUT_SWIGLU ? col + i * (w.a.n / 2 / PAIR_COLS) : col * TILES + i;
        if (tile[i] < n_tile) n += bytes;
    }
    mbarrier_arrive_expect(full, n);
    for (uint32_t i = 0; i < TILES; i++) {
        if (tile[i] >= n_tile) continue;
        bulk_load(smem_address(s->packed[stage][i]),
                  from + (size_t)(tile[i] * w.n_k_line + k_line) * bytes, bytes, full);
    }
    if (FORM == FORM_GATHER) return;
    const int x = (int)k_line * BK;
    tensor_load(in, &w.in_map, full, x, t.first, 0);
    if (both) tensor_load(in + GROUP_ROWS * BK, &w.in_map, full, x, t.first + GROUP_ROWS, 0);
}

/* This thread's row of inputs; rows past the task are the last one. */
template <enum form FORM>
static __device__ __forceinline__ uint32_t input_row(const struct work &w, const struct task &t)
{
    const uint32_t row = (uint32_t)find_scales<FORM>(w, t, (int)threadIdx.x).first;
    return FORM == FORM_GATHER ? row / w.a.in_divisor : row;
}

/* A thread's row on its way to the stages: its first K line among all rows', and where the next one
 * goes, of N_LINE. */
struct row_walk {
    uint32_t first;
    uint32_t line;
};

/* N neighbours, two by two; or, where rows end in the midst of them, the n that are there. */
template <int N>
static __device__ __forceinline__ void read_values(float (&to)[N], const float *from, uint32_t n,
                                                   bool whole)
{
    static_assert(N % 2 == 0, "8 bytes");
#pragma unroll
    for (uint32_t i = 0; i < N; i += 2) {
        float2 v = {0.0f, 0.0f};
        if (whole) {
            v = *(const float2 *)(from + i);
        } else {
            if (i < n) v.x = from[i];
            if (i + 1 < n) v.y = from[i + 1];
        }
        to[i] = v.x;
        to[i + 1] = v.y;
    }
}

/* The scales and sums of ROW_LINES K lines, or of the n that are left. */
template <int G> struct row_values {
    float scale[ROW_LINES];
    float sum[ROW_LINES * G]; /* mapped */
    uint32_t n;
};

template <enum form FORM, int G>
static __device__ __forceinline__ void read_row(const struct work &w, const struct row_walk &r,
                                                uint32_t k_line, struct row_values<G> &v)
{
    const uint32_t at = r.first + k_line;
    const bool whole = w.n_k_line % ROW_LINES == 0;
    v.n = min(w.n_k_line - k_line, (uint32_t)ROW_LINES);
    read_values(v.scale, w.a.q_scale + at, v.n, whole);
    if (FORM != FORM_PLAIN) read_values(v.sum, w.a.input_sums + (size_t)at * G, v.n * G, whole);
}

template <enum form FORM, int G>
static __device__ __forceinline__ void put_row(struct u4_stages<G> *s, const struct row_walk &r,
                                               const struct row_values<G> &v)
{
    const uint32_t place = scale_place(threadIdx.x), n_line = u4_stages<G>::N_LINE;
#pragma unroll
    for (uint32_t i = 0; i < ROW_LINES; i++) {
        uint32_t line = r.line + i;
        if (i > 0 && line >= n_line) line -= n_line;
        if (i >= v.n) break;
        s->in_scale[line][place] = v.scale[i];
#pragma unroll
        for (uint32_t j = 0; j < G && FORM != FORM_PLAIN; j++)
            s->in_sum[line][j][place] = v.sum[i * G + j];
    }
}

template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void produce(const struct work &w, struct u4_stages<G> *s)
{
    struct row_walk row = {0, 0};
    struct ring at = {0, 0};
    struct run_walk runs = begin_runs<FORM>(w);
    struct feed_source source = feed_begin();
    struct run r;
    feed_run<FORM>(w, &s->feed, source, runs);
    for (;;) {
        feed_run<FORM>(w, &s->feed, source, runs);
        if (!next_run<FORM>(w, &s->feed, runs, r)) break;
        const struct task t = task_at<FORM>(w, r.row_tile);
        row.first = input_row<FORM>(w, t) * w.n_k_line;
        struct gather<GATHER_ROWS> g = {
        };
        if (FORM == FORM_GATHER) g = gather_of<GATHER_ROWS>(w, t);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line;
                 k_line++, advance_of<u4_stages<G>::N_STAGE>(at)) {
                const uint32_t full = smem_address(&s->full[at.stage]);
                struct row_values<G> v = {
                };
                if (k_line % ROW_LINES == 0) read_row<FORM, G>(w, row, k_line, v);
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (threadIdx.x == 0) {
                    load_tiles<FORM, OUTPUT, G>(w, s, at.stage, k_line, t, col);
                }
                if (FORM == FORM_GATHER) {
                    gather_k_line<GATHER_ROWS>(w, g, smem_address(s->in[at.stage]), k_line);
                    mbarrier_arrive_cp_async(full);
                }
                if (k_line % ROW_LINES == 0) put_row<FORM, G>(s, row, v);
                if (++row.line == u4_stages<G>::N_LINE) row.line = 0;
                mbarrier_arrive(full);
            }
        }
    }
    if (FORM != FORM_PLAIN && threadIdx.x == 0) feed_end(w.a.feed);
}

/* ---- the consumers ---- */

/* What a thread of them has on its way: which of a stage's tiles is its warpgroup's, and where its
 * words, and its rows' scales, are in that. */
struct u4_walk {
    struct walk x;
    uint32_t line; /* of N_LINE */
    uint32_t tile;
    uint32_t words;
    uint32_t row;
    uint32_t n_row;  /* of the tile that is finished */
    uint32_t parity; /* of cleared and spread */
};

/* Begins the products of a group of the next K line, once that is there, with N rows. */
template <enum form FORM, int G, int N>
static __device__ __forceinline__ void start_group(float (&c)[N / 2], const struct u4_form &form,
                                                   struct u4_stages<G> *s, const struct u4_walk &u,
                                                   uint32_t group)
{
    enum { STEPS = BK / 32 / G };
    const uint32_t stage = u.x.at.stage;
    const char *tile = (const char *)s->packed[stage][u.tile];
    if (group == 0) {
        wait_phase(&s->full[stage], u.x.at.parity);
        if (FORM == FORM_GATHER) async_proxy_fence();
    }
    uint32_t a[STEPS][4];
    const uint32_t at = group * PACK4_ROWS + u.row;
    uint32_t zero[2] = {};
    if (FORM == FORM_PLAIN) {
        zero[0] = u4_zero(form, tile, at);
        zero[1] = u4_zero(form, tile, at + 8);
    }
#pragma unroll
    for (uint32_t half = 0; half < STEPS / 2; half++) {
        const uint4 v = *(const uint4 *)(tile + u.words + (group + half) * 512);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t rows[2];
            if (FORM == FORM_PLAIN) {
                u4_rows(words[i], zero, rows);
            } else {
                u4_rows_stored(words[i], rows);
            }
            a[half * 2 + i / 2][i % 2 * 2] = rows[0];
            a[half * 2 + i / 2][i % 2 * 2 + 1] = rows[1];
        }
    }
    const uint64_t in = u.x.in + stage * (sizeof s->in[0] >> 4) + group * STEPS * 2;
    wgmma_fence();
    u4_start_stored<STEPS>(c, a, in);
    wgmma_commit();
}

/* What a group's products are multiplied by, for a thread's two outputs. */
struct u4_group {
    struct u4_stored out[2]; /* zeros: mapped alone */
    const float *in_scale;
    const float *in_sum;
};

template <enum form FORM, int G>
static __device__ __forceinline__ struct u4_group group_of(const struct u4_form &form,
                                                           const struct u4_stages<G> *s,
                                                           const struct u4_walk &u, uint32_t group)
{
    const uint32_t stage = u.x.at.stage, at = group * PACK4_ROWS + u.row;
    const char *tile = (const char *)s->packed[stage][u.tile];
    struct u4_group of = {};
    of.in_scale = s->in_scale[u.line] + u.x.lane % 4 * 4;
    of.in_sum = s->in_sum[u.line][group] + u.x.lane % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        if (FORM == FORM_PLAIN) {
            of.out[i].scale = u4_scale(form, tile, at + 8 * i);
        } else {
            of.out[i] = u4_stored_of(form, tile, at + 8 * i);
        }
    }
    return of;
}

/* sum -= zeros times a group's inputs; FIRST: sum is what that leaves of 0. */
template <int N, bool FIRST>
static __device__ __forceinline__ void add_zeros(float (&sum)[64], const struct u4_group &of)
{
#pragma unroll
    for (int j = 0; j < N / 2; j += 8) {
        const float4 x = *(const float4 *)(of.in_sum + j * 2);
        const float inputs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[j + i] = u4_add_zero(FIRST ? 0.0f : sum[j + i], of.out[i / 2 % 2],
                                     inputs[i / 4 * 2 + i % 2]);
        }
    }
}

/* sum += a group's sum times the scales of row and output; FIRST: sum is what that adds to 0. */
template <int N, bool FIRST>
static __device__ __forceinline__ void add_group(float (&sum)[64], const float (&c)[N / 2],
                                                 const struct u4_group &of)
{
#pragma unroll
    for (int j = 0; j < N / 2; j += 8) {
        const float4 v = *(const float4 *)(of.in_scale + j * 2);
        const float of_row[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[j + i] = u4_add_codes(FIRST ? 0.0f : sum[j + i], of.out[i / 2 % 2], c[j + i],
                                      of_row[i / 4 * 2 + i % 2]);
        }
    }
}

/* k_part += the K line whose first group is under way */
template <enum form FORM, int G, int N, bool FIRST>
static __device__ __forceinline__ void add_k_line(float (&k_part)[64], float (&c)[N / 2],
                                                  const struct u4_form &form,
                                                  struct u4_stages<G> *s, struct u4_walk &u)
{
    const uint32_t stage = u.x.at.stage;
#pragma unroll
    for (int i = 0; i < G; i++) {
        const struct u4_group of = group_of<FORM, G>(form, s, u, (uint32_t)i);
        if (i > 0) start_group<FORM, G, N>(c, form, s, u, (uint32_t)i);
        const bool fresh = FIRST && i == 0;
        wgmma_wait(c);
        if (FORM != FORM_PLAIN && fresh) add_zeros<N, true>(k_part, of);
        if (FORM != FORM_PLAIN && !fresh) add_zeros<N, false>(k_part, of);
        if (FORM == FORM_PLAIN && fresh) {
            add_group<N, true>(k_part, c, of);
        } else {
            add_group<N, false>(k_part, c, of);
        }
    }
    __syncwarp();
    if (u.x.lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
    advance_of<u4_stages<G>::N_STAGE>(u.x.at);
    if (++u.line == u4_stages<G>::N_LINE) u.line = 0;
}

/* ---- what leaves a tile ---- */

/* All warps meet. */
static __device__ __forceinline__ void meet(uint64_t *barrier, const struct u4_walk &u)
{
    __syncwarp();
    if (u.x.lane == 0) mbarrier_arrive(smem_address(barrier));
    wait_phase(barrier, u.parity);
}

/* Sums to the boxes of the warps that their rows belong to, where stage_pair puts them. */
template <int G>
static __device__ __forceinline__ void spread_sums(struct u4_stages<G> *s, const struct u4_walk &u,
                                                   const float (&sum)[64])
{
    const uint32_t col = u.tile * GROUP_ROWS + u.row, t = u.x.lane % 4;
    uint8_t *const box = s->out[0][col / (BOX_BYTES / 4)] + col % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) { /* rows 8 j + 2 t and the next, of both outputs */
        const uint32_t row = t * 2 + i % 2, piece = col / 4 % 8 + i / 2 * 2;
        uint8_t *const to = box + row * BOX_BYTES + (piece ^ row) * PIECE_BYTES;
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            uint8_t *const at = to + j / 2 * sizeof s->out[0] + j % 2 * 8 * BOX_BYTES;
            *(float *)at = sum[4 * j + i];
        }
    }
}

/* Those of the warp's rows, as stage_pair has them. */
static __device__ __forceinline__ void collect_sums(const struct walk &x, float (&sum)[64])
{
    const uint32_t row = x.lane / 4, t = x.lane % 4;
#pragma unroll
    for (uint32_t j = 0; j < 16; j++) {
        const uint8_t *from = x.boxes + j / 4 * WARP_ROWS * BOX_BYTES + row * BOX_BYTES +
                              t % 2 * 8 + ((j % 4 * 2 + t / 2) ^ row) * PIECE_BYTES;
        const float2 first = *(const float2 *)from;
        const float2 second = *(const float2 *)(from + 8 * BOX_BYTES);
        sum[4 * j] = first.x;
        sum[4 * j + 1] = first.y;
        sum[4 * j + 2] = second.x;
        sum[4 * j + 3] = second.y;
    }
}

/* A warpgroup's outputs rounded to bf16, a row of 128 bytes behind the other: their pieces are
 * permuted by the row. */
static __device__ __forceinline__ void spread_rounded(uint8_t *rows, const struct u4_walk &u,
                                                      const float (&sum)[64])
{
    const uint32_t lane = u.x.lane, in = lane % 8;
    const uint32_t piece = (u.row - lane / 4) / 8 + lane / 8 % 2;
    const uint32_t to =
        smem_address(rows) + (lane / 16 * 8 + in) * HALF_ROW_BYTES + (piece ^ in) * PIECE_BYTES;
#pragma unroll
    for (uint32_t j = 0; j < 16; j += 2) {
        const float *v = sum + 4 * j;
        if (j * 8 >= u.n_row) break;
        stmatrix_x4_turned(to + j * 8 * HALF_ROW_BYTES, pack_bf16(v[0], v[1]),
                           pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    }
}

/* A warp's 32 rows of them to device memory, four an access. */
static __device__ __forceinline__ void store_half_rows(const struct work &w, const uint8_t *rows,
                                                       const struct u4_walk &u)
{
    enum { ROW_PIECES = HALF_ROW_BYTES / PIECE_BYTES, AT_ONCE = WARP / ROW_PIECES };
    const uint32_t piece = u.x.lane % ROW_PIECES, first = u.x.lane / ROW_PIECES;
    const uint32_t col = u.tile * GROUP_ROWS + piece * 8, warp = threadIdx.x / WARP % 4;
    const bool inside = col < u.x.summed.n;
    bf16 *const out = w.a.out_h + u.x.summed.col * BN + col;
#pragma unroll
    for (uint32_t i = 0; i < WARP / AT_ONCE; i++) {
        const uint32_t r = warp * WARP + i * AT_ONCE + first;
        if (warp * WARP + i * AT_ONCE >= u.n_row) break;
        const int row = shfl(u.x.summed.row, (int)(r % WARP));
        const uint4 v =
            *(const uint4 *)(rows + r * HALF_ROW_BYTES + (piece ^ (r & 7)) * PIECE_BYTES);
        if (row >= 0 && inside) *(uint4 *)(out + (size_t)row * w.a.out_stride) = v;
    }
}

/* The same of bf16: each warpgroup for itself, since with few K lines both would go in step. */
template <int G>
static __device__ __forceinline__ void store_rounded_tile(const struct work &w,
                                                          struct u4_stages<G> *s, struct u4_walk &u,
                                                          const float (&sum)[64])
{
    uint8_t *const rows = s->out[u.tile * 4][0];
    static_assert(BM * HALF_ROW_BYTES <= 4 * sizeof s->out[0], "a warpgroup's part of it");
    meet(&s->cleared[u.tile], u);
    spread_rounded(rows, u, sum);
    meet(&s->spread[u.tile], u);
    u.parity ^= 1;
    store_half_rows(w, rows, u);
    u.x.summed.n = 0;
}

/* A finished tile; sum is lost. */
template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void store_u4_tile(const struct work &w, struct u4_stages<G> *s,
                                                     struct u4_walk &u, float (&sum)[64])
{
    const bool boxed = OUTPUT == OUTPUT_FLOAT && FORM == FORM_PLAIN;
    if (OUTPUT == OUTPUT_BF16) {
        store_rounded_tile<G>(w, s, u, sum);
        return;
    }
    if (boxed && u.x.lane == 0) bulk_wait_read();
    meet(&s->cleared[0], u);
    spread_sums<G>(s, u, sum);
    if (boxed) async_proxy_fence();
    meet(&s->spread[0], u);
    u.parity ^= 1;
    if (OUTPUT == OUTPUT_FLOAT) {
        store_staged<FORM>(w, u.x);
    } else {
        collect_sums(u.x, sum);
        __syncwarp();
        store_tile<FORM, OUTPUT, WEIGHTS_FP8>(w, u.x, sum);
    }
    u.x.summed.n = 0;
}

/* The sums of one tile of up to N rows. What the tile before it, or the part of K before, has left
 * in k_part and total is dealt with while the products that follow are under way. */
template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, int G, int N>
static __device__ __forceinline__ void sum_tile(const struct u4_work &work, struct u4_stages<G> *s,
                                                struct u4_walk &u, float (&total)[64],
                                                float (&k_part)[64])
{
    const struct work &w = work.w;
    const uint32_t n_k_part = ONE_K_PART ? 1 : w.n_k_part, n_k_line = w.n_k_line / n_k_part;
    float c[N / 2];
    for (uint32_t i = 0; i < n_k_part; i++) {
        start_group<FORM, G, N>(c, work.form, s, u, 0);
        if (!ONE_K_PART) {
            const bool fresh = i == 1 || n_k_part == 1;
#pragma unroll
            for (int j = 0; j < 64; j++) total[j] = (fresh ? 0.0f : total[j]) + k_part[j];
        }
        if (i == 0 && u.x.summed.n)
            store_u4_tile<FORM, OUTPUT, G>(w, s, u, ONE_K_PART ? k_part : total);
        add_k_line<FORM, G, N, true>(k_part, c, work.form, s, u);
        for (uint32_t j = 1; j < n_k_line; j++) {
            start_group<FORM, G, N>(c, work.form, s, u, 0);
            add_k_line<FORM, G, N, false>(k_part, c, work.form, s, u);
        }
    }
}

template <int G>
static __device__ __forceinline__ struct u4_walk begin_walk(struct u4_stages<G> *s, int group)
{
    const uint32_t warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP;
    struct u4_walk u = {};
    u.x.lane = lane;
    u.x.in = wgmma_operand(smem_address(s->in[0]));
    u.x.boxes = s->out[group * 4 + (int)warp][0];
    u.x.held = s->held[group * 4 + (int)warp];
    u.tile = (uint32_t)group;
    u.words = warp * 1024 + lane * 16;
    u.row = warp * 16 + lane / 4;
    return u;
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, int G>
static __device__ __forceinline__ void consume(const struct u4_work &work, struct u4_stages<G> *s,
                                               int group)
{
    const struct work &w = work.w;
    struct u4_walk u = begin_walk<G>(s, group);
    const int warp = (int)threadIdx.x / WARP % 4, lane = (int)u.x.lane;
    const int mine = OUTPUT == OUTPUT_BF16
                         ? warp * WARP + lane
                         : group * GROUP_ROWS + warp * WARP_ROWS + lane % WARP_ROWS;
    struct run_walk runs = begin_runs<FORM>(w);
    struct run r;
    float total[64] = {}, k_part[64] = {};
    while (next_run<FORM>(w, &s->feed, runs, r)) {
        const struct task t = task_at<FORM>(w, r.row_tile);
        int out = -1;
        if (mine < t.n) out = t.first + mine;
        if (out >= 0 && FORM != FORM_PLAIN && !w.a.out_listed) out = w.a.rows[out];
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (FORM != FORM_PLAIN && t.n <= FEW_ROWS) {
                sum_tile<FORM, OUTPUT, ONE_K_PART, G, FEW_ROWS>(work, s, u, total, k_part);
            } else if (t.n <= GROUP_ROWS) {
                sum_tile<FORM, OUTPUT, ONE_K_PART, G, GROUP_ROWS>(work, s, u, total, k_part);
            } else if (FORM != FORM_PLAIN && t.n <= MORE_ROWS) {
                sum_tile<FORM, OUTPUT, ONE_K_PART, G, MORE_ROWS>(work, s, u, total, k_part);
            } else {
                sum_tile<FORM, OUTPUT, ONE_K_PART, G, BM>(work, s, u, total, k_part);
            }
            u.x.summed = {out, col, min((uint32_t)BN, w.a.n - col * BN)};
            u.n_row = (uint32_t)t.n;
        }
    }
    if (!u.x.summed.n) return;
#pragma unroll
    for (int j = 0; j < 64; j++) {
        total[j] = ONE_K_PART || w.n_k_part == 1 ? k_part[j] : total[j] + k_part[j];
    }
    store_u4_tile<FORM, OUTPUT, G>(w, s, u, total);
    if (u.x.lane == 0) bulk_wait();
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, int G>
__global__ void __launch_bounds__(THREADS, 1)
    product_u4_sm90_kernel(const __grid_constant__ struct u4_work u)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct u4_stages<G> *s = (struct u4_stages<G> *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        if (FORM != FORM_GATHER) tensor_map_prefetch(&u.w.in_map);
        for (int i = 0; i < u4_stages<G>::N_STAGE; i++) {
            mbarrier_init(smem_address(&s->full[i]),
                          1 + GROUP_THREADS + (FORM == FORM_GATHER ? GROUP_THREADS : 0));
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        feed_init(&s->feed, THREADS / WARP);
        for (int i = 0; i < 2; i++) {
            const uint32_t n = OUTPUT == OUTPUT_BF16 ? CONSUMER_WARPS / 2 : CONSUMER_WARPS;
            mbarrier_init(smem_address(&s->cleared[i]), n);
            mbarrier_init(smem_address(&s->spread[i]), n);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    if (FORM == FORM_PLAIN) dependency_release();
    dependency_wait();
    if (FORM != FORM_PLAIN) dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<FORM, OUTPUT, G>(u.w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<FORM, OUTPUT, ONE_K_PART, G>(u, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

typedef void (*u4_kernel)(struct u4_work);

/* But for experts' down, which has few K lines, one part of K is taken as one of several. */
template <enum form FORM, int G> static u4_kernel kernel_of(enum output output, bool one_k_part)
{
    switch (output) {
    case OUTPUT_SWIGLU: return product_u4_sm90_kernel<FORM, OUTPUT_SWIGLU, false, G>;
    case OUTPUT_BF16:
        return one_k_part ? product_u4_sm90_kernel<FORM_LISTED, OUTPUT_BF16, true, G>
                          : product_u4_sm90_kernel<FORM_LISTED, OUTPUT_BF16, false, G>;
    case OUTPUT_QUERY: return product_u4_sm90_kernel<FORM_PLAIN, OUTPUT_QUERY, false, G>;
    default: return product_u4_sm90_kernel<FORM, OUTPUT_FLOAT, false, G>;
    }
}

template <int G> static u4_kernel find_kernel(enum form form, enum output output, bool one_k_part)
{
    switch (form) {
    case FORM_PLAIN: return kernel_of<FORM_PLAIN, G>(output, one_k_part);
    case FORM_LISTED: return kernel_of<FORM_LISTED, G>(output, one_k_part);
    default: return kernel_of<FORM_GATHER, G>(output, one_k_part);
    }
}

bool product_u4_takes(const struct pack4 &p)
{
    if (p.is_e2m1 || !p.tile_bytes) return false;
    return (p.n_group == 1 && p.tile_bytes <= packed_bytes<1>()) ||
           (p.n_group == 2 && p.tile_bytes <= packed_bytes<2>());
}

cudaError_t product_u4_sm90(const struct product_args &a, uint32_t n_tile,
                            const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.k % BK == 0 && a.n % 16 == 0 && a.out_stride % 4 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0 && (uintptr_t)a.out % 16 == 0);
    ASSERT(a.k / BK % ROW_LINES ||
           ((uintptr_t)a.q_scale % 8 == 0 && (uintptr_t)a.input_sums % 8 == 0));
    ASSERT(product_u4_takes(a.pack) && (!a.tasks || (a.in_divisor > 0 && a.input_sums && a.feed)));
    struct u4_work u = {};
    uint32_t n_block;
    cudaError_t e = make_work(&u.w, &n_block, a, n_tile, limits.n_sm);
    if (e != cudaSuccess || !n_block) return e;
    u.form = u4_form_of(a.pack, a.tasks != NULL);
    const enum form form = form_of(a);
    const enum output output = output_of(a);
    const bool one = a.pack.n_group == 1, one_k_part = u.w.n_k_part == 1;
    u4_kernel kernel =
        one ? find_kernel<1>(form, output, one_k_part) : find_kernel<2>(form, output, one_k_part);
    const size_t n_byte = one ? sizeof(struct u4_stages<1>) : sizeof(struct u4_stages<2>);
    return gpu_launch({dim3(n_block), 1, THREADS, n_byte, true}, stream, kernel, u);
}

template <int G> static cudaError_t init_kernels(void)
{
    for (enum form form : {FORM_PLAIN, FORM_LISTED, FORM_GATHER}) {
        for (enum output output : {OUTPUT_FLOAT, OUTPUT_BF16, OUTPUT_SWIGLU, OUTPUT_QUERY}) {
            for (bool one_k_part : {false, true}) {
                cudaError_t e = cudaFuncSetAttribute(find_kernel<G>(form, output, one_k_part),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     sizeof(struct u4_stages<G>));
                if (e != cudaSuccess) return e;
            }
        }
    }
    return cudaSuccess;
}

cudaError_t product_u4_sm90_init(void)
{
    cudaError_t e = init_kernels<1>();
    return e == cudaSuccess ? init_kernels<2>() : e;
}

/* product_fp8.cu - FP8 matrix product for many rows on sm_90a
 *
 * One resident block a multiprocessor walks over tiles of 128 rows x 128 outputs. Warpgroup 0
 * fills a ring of stages, one stage a K line of 128: the tile of inputs and the tile of weights.
 * Warpgroups 1 and 2 own 64 rows each: four products of K = 32 sum one K line in the tensor cores,
 * which keep few bits, then the sum times both scales is added in f32 to the part of K, and parts
 * to the total, in ascending order. Scales are loaded by the lanes that multiply with them, four K
 * lines at a time and four ahead. A warpgroup's way from one K line to the next is what bounds the
 * kernel, so whatever can wait (a part's sum, a finished tile's way to memory) is done while
 * products are under way, those of the next tile included.
 *
 * What leaves a tile: sums as they are; rounded to bf16; or, of gate and up, the codes of their
 * SwiGLU. There a tile of weights is 64 rows of gate and the 64 of up that belong to them, so that
 * a thread has both of a value, and two tiles, one after the other, make a group of codes.
 *
 * Plain products copy both tiles by tensor maps, and so do mapped ones whose rows lie in the order
 * of the list. Others gather their rows by 16-byte copies and take weights alone by tensor map.
 *
 * A stage goes round:
 *
 *   empty --- copies issued; full: the bytes, gathering 128 more arrivals ---> full
 *   full ---- read by every warp that multiplies ---> empty
 *
 * The parity of a stage's barrier flips each time round; struct ring holds the parity that the
 * consumers wait for, the producers wait for the other one.
 */
#include "backend/cuda/sm90/product_fp8.cuh"

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/stage.cuh"

enum {
    BM = PRODUCT_LARGE_TILE,
    BN = SCALE_BLOCK,
    BK = K_LINE_BYTES,
    GROUP_ROWS = 64, /* of a warpgroup */
    WARP_ROWS = 16,
    STAGES = 5,
    GROUP_THREADS = 128,
    CONSUMER_WARPS = 8,
    THREADS = 3 * GROUP_THREADS,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232,
    GATHER_ROWS = GROUP_THREADS / K_LINE_PIECES,
    RASTER_TILES = 16,    /* row tiles that are walked together, for reuse in L2 */
    SCALE_LINES = 4,      /* K lines whose scales are requested together */
    RUN_K_LINES_MIN = 16, /* K lines that one lookup of rows should last for */
    PAIR_COLS = BN / 2,   /* of gate, and of up, in a tile that makes both */
};
static_assert(2 * (int)PAIR_COLS == (int)FP8_GROUP, "two tiles of SwiGLU make a group");

enum { ALIGN_BYTES = 1024, BOX_BYTES = 128, BOXES = BN * sizeof(float) / BOX_BYTES };

/* Shared memory of a block. A warp's rows of `out` are BOXES tiles of 128 bytes a row, permuted as
 * operands are: a tensor map takes them away, and no access of a warp meets a bank twice. */
struct alignas(ALIGN_BYTES) stages {
    uint8_t in[STAGES][BM * BK];
    uint8_t w[STAGES][BN * BK];
    uint8_t out[CONSUMER_WARPS][BOXES][WARP_ROWS * BOX_BYTES];
    uint64_t full[STAGES];
    uint64_t empty[STAGES];
};

static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");
static_assert(BM == 2 * GROUP_ROWS && CONSUMER_WARPS * WARP_ROWS == BM, "a warp has 16 rows");
static_assert((int)BN <= (int)TENSOR_BOX_MAX && GROUP_ROWS * BK % ALIGN_BYTES == 0,
              "boxes of a tensor map");
static_assert(WARP_ROWS * BOX_BYTES % ALIGN_BYTES == 0, "boxes of outputs");

/* OUTPUT_SWIGLU: a warp's rows of codes, apart so that no access meets a bank twice, and values
 * that wait for the other half of their groups */
enum { CODES_PITCH = FP8_GROUP + PIECE_BYTES, CODES_BYTES = WARP_ROWS * CODES_PITCH };
static_assert(CODES_BYTES % PIECE_BYTES == 0 &&
                  CODES_BYTES + WARP_ROWS * PAIR_COLS * sizeof(float) <=
                      BOXES * WARP_ROWS * BOX_BYTES,
              "both fit");
static_assert(GATHER_ROWS % 8 == 0 && BM % GATHER_ROWS == 0,
              "the permutation is the same for all rows of a thread");
static_assert(PRODUCER_REGISTERS % 8 == 0 && CONSUMER_REGISTERS % 8 == 0 &&
                  GROUP_THREADS * (PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");
static_assert(BM * BK % ALIGN_BYTES == 0 && BN * BK % ALIGN_BYTES == 0, "atoms of operands");

/* Where the rows of a tile are read */
enum form {
    FORM_PLAIN,  /* one after the other */
    FORM_LISTED, /* a task's one after the other, as the list of rows has them */
    FORM_GATHER, /* anywhere: the list says where */
};

/* What is written */
enum output {
    OUTPUT_FLOAT,
    OUTPUT_BF16,
    OUTPUT_SWIGLU, /* codes */
};

/* Where a block is among the runs, without divisions from one to the next: run `rest` of a band of
 * row tiles, or of a task. */
struct cursor {
    uint32_t band;
    uint32_t rest;
};

struct work {
    CUtensorMap in_map;  /* but for FORM_GATHER */
    CUtensorMap out_map; /* where rows are stored by boxes */
    struct product_args a;
    uint32_t n_k_line;
    uint32_t n_k_part;
    uint32_t n_col_tile; /* OUTPUT_SWIGLU: even, as are the runs */
    uint32_t n_row_tile; /* plain */
    uint32_t run_cols;   /* column tiles of a run */
    uint32_t n_run_col;  /* runs of a row tile */
    uint32_t n_run_band; /* of a band, or a task */
    struct cursor step;  /* as many runs as there are blocks */
};

struct ring {
    uint32_t stage;
    uint32_t parity;
};

static __device__ __forceinline__ void advance(struct ring &r)
{
    if (++r.stage == STAGES) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* A run: column tiles of one row tile, one after the other. A block takes every gridDim.x-th.
 * Mapped: columns first, since only neighbouring tasks have an expert in common. Plain: bands of
 * RASTER_TILES row tiles, rows first inside a band. */
struct run {
    int row_tile;
    uint32_t col;
    uint32_t col_end;
};

template <enum form FORM>
static __device__ __forceinline__ uint32_t row_tile_count(const struct work &w)
{
    return FORM == FORM_PLAIN ? w.n_row_tile : (uint32_t)*w.a.n_task;
}

static __device__ __forceinline__ struct cursor block_cursor(const struct work &w)
{
    return {blockIdx.x / w.n_run_band, blockIdx.x % w.n_run_band};
}

/* Moves on by `step`; false behind the last run, where the cursor stays. */
template <enum form FORM>
static __device__ __forceinline__ bool move_on(const struct work &w, struct cursor &at,
                                               const struct cursor &step, uint32_t n_row_tile)
{
    const uint32_t height = FORM == FORM_PLAIN ? (uint32_t)RASTER_TILES : 1;
    struct cursor to = {at.band + step.band, at.rest + step.rest};
    if (to.rest >= w.n_run_band) {
        to.rest -= w.n_run_band;
        to.band++;
    }
    const uint32_t first = to.band * height;
    if (first >= n_row_tile) return false;
    if (to.rest >= min(height, n_row_tile - first) * w.n_run_col) return false;
    at = to;
    return true;
}

template <enum form FORM>
static __device__ __forceinline__ struct run run_at(const struct work &w, const struct cursor &at,
                                                    uint32_t n_row_tile)
{
    uint32_t unit = at.band, col = at.rest;
    if (FORM == FORM_PLAIN) {
        const uint32_t band = RASTER_TILES, first = at.band * band;
        const uint32_t height = min(band, n_row_tile - first);
        col = height == band ? at.rest / band : at.rest / height;
        unit = first + at.rest - col * height;
    }
    struct run r;
    DCHECK(unit < n_row_tile && col < w.n_run_col);
    r.row_tile = (int)unit;
    r.col = col * w.run_cols;
    r.col_end = min(r.col + w.run_cols, w.n_col_tile);
    return r;
}

/* The rows of a row tile: a task's, or of a plain product in the same words. */
template <enum form FORM>
static __device__ __forceinline__ struct task task_at(const struct work &w, int row_tile)
{
    if (FORM != FORM_PLAIN) return w.a.tasks[row_tile];
    struct task t = {0, row_tile * BM, min((int)BM, (int)w.a.n_token - row_tile * BM)};
    return t;
}

/* ---- the producers ---- */

/* What a producer thread copies: piece `thread % LINE_PIECES` of row thread / LINE_PIECES and of
 * every GATHER_ROWS rows on. */
struct gather {
    uint32_t from[BM / GATHER_ROWS]; /* in pieces from a.q */
    int n;                           /* how many of them */
};

static __device__ __forceinline__ struct gather gather_of(const struct work &w,
                                                          const struct task &t)
{
    const int thread = (int)threadIdx.x, first = thread / K_LINE_PIECES;
    const int divisor = (int)w.a.in_divisor;
    struct gather g;
    DCHECK(t.n > 0 && t.n <= BM);
    g.n = t.n > first ? (t.n - first - 1) / GATHER_ROWS + 1 : 0;
#pragma unroll
    for (int i = 0; i < BM / GATHER_ROWS; i++) {
        g.from[i] = (uint32_t)w.a.rows[t.first + min(first + i * GATHER_ROWS, t.n - 1)];
    }
#pragma unroll
    for (int i = 0; i < BM / GATHER_ROWS; i++) {
        uint32_t row = g.from[i] / (uint32_t)divisor;
        g.from[i] = row * (w.a.k / PIECE_BYTES) + (uint32_t)(thread % K_LINE_PIECES);
    }
    return g;
}

static __device__ __forceinline__ void gather_k_line(const struct work &w, const struct gather &g,
                                                     uint32_t dst, uint32_t k_line)
{
    const int thread = (int)threadIdx.x, first = thread / K_LINE_PIECES;
    /* GATHER_ROWS is a multiple of 8: the permutation is the same for all rows of a thread */
    dst += (uint32_t)(first * BK + ((thread % K_LINE_PIECES) ^ (first & 7)) * PIECE_BYTES);
#pragma unroll
    for (int i = 0; i < BM / GATHER_ROWS; i++) {
        if (i >= g.n) break;
        const uint8_t *src =
            w.a.q + ((size_t)g.from[i] + (size_t)k_line * K_LINE_PIECES) * PIECE_BYTES;
        cp_async_16(dst + (uint32_t)(i * GATHER_ROWS * BK), src, true);
    }
}

/* The tensor maps' copies of one stage, by one thread. Rows past the task that come along, and
 * those of a warpgroup without any, are no one's. */
template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void load_tiles(const struct work &w, struct stages *s,
                                                  uint32_t stage, uint32_t k_line,
                                                  const struct task &t, uint32_t col)
{
    const bool both = t.n > GROUP_ROWS;
    const uint32_t full = smem_address(&s->full[stage]), in = smem_address(s->in[stage]);
    const uint32_t weights = smem_address(s->w[stage]);
    const int x = (int)k_line * BK;
    const uint32_t n_in = FORM == FORM_GATHER ? 0 : both ? BM : GROUP_ROWS;
    mbarrier_arrive_expect(full, (BN + n_in) * BK);
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    for (uint32_t i = 0; i < BN / TILE_ROWS; i++) {
        uint32_t tile = (uint32_t)col * (BN / TILE_ROWS) + i;
        if (OUTPUT == OUTPUT_SWIGLU) tile = (uint32_t)col + i * (w.a.n / 2 / PAIR_COLS);
        weight_load(weights + i * TILE_BYTES, from, full, w.n_k_line, k_line, tile);
    }
    if (FORM == FORM_GATHER) return;
    tensor_load(in, &w.in_map, full, x, t.first, 0);
    if (both) tensor_load(in + GROUP_ROWS * BK, &w.in_map, full, x, t.first + GROUP_ROWS, 0);
}

template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    const int thread = (int)threadIdx.x;
    if (FORM != FORM_GATHER && thread != 0) return;
    const uint32_t n_row_tile = row_tile_count<FORM>(w);
    struct ring at = {0, 0};
    struct cursor i = {0, 0};
    for (bool more = move_on<FORM>(w, i, block_cursor(w), n_row_tile); more;
         more = move_on<FORM>(w, i, w.step, n_row_tile)) {
        const struct run r = run_at<FORM>(w, i, n_row_tile);
        const struct task t = task_at<FORM>(w, r.row_tile);
        struct gather g;
        if (FORM == FORM_GATHER) g = gather_of(w, t);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance(at)) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (thread == 0) load_tiles<FORM, OUTPUT>(w, s, at.stage, k_line, t, col);
                if (FORM != FORM_GATHER) continue;
                gather_k_line(w, g, smem_address(s->in[at.stage]), k_line);
                mbarrier_arrive_cp_async(smem_address(&s->full[at.stage]));
            }
        }
    }
}

/* ---- scales ---- */

/* Whose scales a lane loads in a run: those of rows lane / 4 of the warp and the eighth behind it,
 * by their entries in the list if they are gathered, and of the weights, in floats from w_scale. */
struct scales_at {
    int first, second;
    uint32_t w;
};

/* Lane 4 g + t has the scales of K line t of a group of SCALE_LINES: of two rows, and of the
 * weights, those of up beside gate's. */
struct scales {
    float first, second, w, up;
};

template <enum form FORM>
static __device__ __forceinline__ struct scales_at find_scales(const struct work &w,
                                                               const struct task &t, int row)
{
    int first = t.first + min(row, t.n - 1), second = t.first + min(row + 8, t.n - 1);
    if (FORM == FORM_GATHER) {
        first = w.a.rows[first];
        second = w.a.rows[second];
    }
    return {first, second, (uint32_t)t.expert * (uint32_t)w.a.w_scale_step};
}

template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ struct scales load_scales(const struct work &w,
                                                            const struct scales_at &s, uint32_t col,
                                                            uint32_t k_line, uint32_t lane)
{
    const uint32_t divisor = FORM == FORM_GATHER ? w.a.in_divisor : 1;
    const uint32_t i = min(k_line + lane % SCALE_LINES, w.n_k_line - 1);
    const uint32_t block = OUTPUT == OUTPUT_SWIGLU ? col / 2 : col;
    const float *of_w = w.a.w_scale + s.w + block * w.a.scale_stride + i;
    return {w.a.q_scale[(uint32_t)s.first / divisor * w.n_k_line + i],
            w.a.q_scale[(uint32_t)s.second / divisor * w.n_k_line + i], of_w[0],
            OUTPUT == OUTPUT_SWIGLU ? of_w[w.n_col_tile / 2 * w.a.scale_stride] : 0.0f};
}

/* ---- the consumers ---- */

/* A warp's part of a tile whose sums are there: lanes r and r + 16 have the output row of row r. */
struct finished {
    int row;      /* -1: none */
    uint32_t col; /* tile */
    uint32_t n;   /* columns */
};

/* What a consumer's thread has on its way through the tiles. */
struct walk {
    struct ring at;
    uint32_t lane;
    uint64_t in, weight;         /* operands of stage 0 */
    struct scales_at here, next; /* of this run and the next one */
    uint32_t next_col;
    struct scales ahead;           /* of the K lines behind `scale` */
    float first, second;           /* products of scales of four K lines, one a lane */
    float up_first, up_second;     /* OUTPUT_SWIGLU: of the columns of up */
    uint8_t *boxes;                /* the warp's part of `out` */
    float amax_first, amax_second; /* OUTPUT_SWIGLU: of the first tile of a pair */
    struct finished summed; /* its last part of K is in k_part, the others in total; n 0: none */
};

/* This warp has read the stage. */
static __device__ __forceinline__ void release(struct stages *s, uint32_t stage, uint32_t lane)
{
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
}

/* The scales of one K line, for the two rows of a thread. */
struct line_scales {
    float first, second, up_first, up_second;
};

/* Those of K line k_line of column tile `col`: every SCALE_LINES K lines the scales requested are
 * taken, and the next ones requested. */
template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void request_scales(const struct work &w, struct walk &x,
                                                      uint32_t col, uint32_t col_end,
                                                      uint32_t k_line)
{
    x.first = x.ahead.w * x.ahead.first;
    x.second = x.ahead.w * x.ahead.second;
    if (OUTPUT == OUTPUT_SWIGLU) {
        x.up_first = x.ahead.up * x.ahead.first;
        x.up_second = x.ahead.up * x.ahead.second;
    }
    const bool in_tile = k_line + SCALE_LINES < w.n_k_line, in_run = col + 1 < col_end;
    const struct scales_at &s = in_tile || in_run ? x.here : x.next;
    const uint32_t next_col = in_tile ? col : in_run ? col + 1 : x.next_col;
    x.ahead = load_scales<FORM, OUTPUT>(w, s, next_col, in_tile ? k_line + SCALE_LINES : 0, x.lane);
}

template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ struct line_scales
scales_of(const struct work &w, struct walk &x, uint32_t col, uint32_t col_end, uint32_t k_line)
{
    if (k_line % SCALE_LINES == 0) request_scales<FORM, OUTPUT>(w, x, col, col_end, k_line);
    const int from = (int)(x.lane - x.lane % SCALE_LINES + k_line % SCALE_LINES);
    const bool up = OUTPUT == OUTPUT_SWIGLU;
    return {shfl(x.first, from), shfl(x.second, from), up ? shfl(x.up_first, from) : 0.0f,
            up ? shfl(x.up_second, from) : 0.0f};
}

/* Begins the products of the next K line, once it is there. */
template <enum form FORM>
static __device__ __forceinline__ void start_k_line(float (&c)[64], struct stages *s,
                                                    const struct walk &x)
{
    wait_phase(&s->full[x.at.stage], x.at.parity);
    if (FORM == FORM_GATHER) async_proxy_fence();
    const uint64_t in = x.in + x.at.stage * (sizeof s->in[0] >> 4);
    const uint64_t weight = x.weight + x.at.stage * (sizeof s->w[0] >> 4);
    wgmma_fence();
    wgmma_e4m3_start(c, in, weight);
#pragma unroll
    for (int i = 1; i < BK / 32; i++) {
        wgmma_e4m3_add(c, in + (uint64_t)(2 * i), weight + (uint64_t)(2 * i));
    }
    wgmma_commit();
}

/* k_part += the K line's sum times its scales; FIRST: k_part is what that adds to 0. */
template <enum output OUTPUT, bool FIRST>
static __device__ __forceinline__ void add_k_line(float (&k_part)[64], float (&c)[64],
                                                  struct stages *s, struct walk &x,
                                                  const struct line_scales &of)
{
    wgmma_wait(c);
    release(s, x.at.stage, x.lane);
    advance(x.at);
#pragma unroll
    for (int j = 0; j < 64; j += 4) {
        const bool up = OUTPUT == OUTPUT_SWIGLU && j >= 32;
        const float first = up ? of.up_first : of.first, second = up ? of.up_second : of.second;
        k_part[j] = fmaf(c[j], first, FIRST ? 0.0f : k_part[j]);
        k_part[j + 1] = fmaf(c[j + 1], first, FIRST ? 0.0f : k_part[j + 1]);
        k_part[j + 2] = fmaf(c[j + 2], second, FIRST ? 0.0f : k_part[j + 2]);
        k_part[j + 3] = fmaf(c[j + 3], second, FIRST ? 0.0f : k_part[j + 3]);
    }
}

/* Puts two values each of rows lane / 4 and 8 on, columns 8 j + 2 t, into the warp's boxes. */
static __device__ __forceinline__ void stage_pair(const struct walk &x, uint32_t j, float2 first,
                                                  float2 second)
{
    const uint32_t row = x.lane / 4, t = x.lane % 4, box = j / 4;
    uint8_t *to = x.boxes + box * WARP_ROWS * BOX_BYTES + row * BOX_BYTES + t % 2 * 8 +
                  ((j % 4 * 2 + t / 2) ^ row) * PIECE_BYTES;
    *(float2 *)to = first;
    *(float2 *)(to + 8 * BOX_BYTES) = second;
}

/* Four values of row r of the warp, those of this lane. */
static __device__ __forceinline__ float4 staged(const struct walk &x, uint32_t r)
{
    const uint32_t box = x.lane / 8, piece = x.lane % 8 ^ (r & 7);
    return *(const float4 *)(x.boxes + (box * WARP_ROWS + r) * BOX_BYTES + piece * PIECE_BYTES);
}

/* The boxes on their way, to rows that lie one after the other. */
static __device__ __forceinline__ void store_boxes(const struct work &w, const struct walk &x)
{
    async_proxy_fence();
    __syncwarp();
    if (x.lane != 0 || x.summed.row < 0) return;
#pragma unroll
    for (uint32_t i = 0; i < BOXES; i++) {
        tensor_store(&w.out_map, smem_address(x.boxes) + i * WARP_ROWS * BOX_BYTES,
                     (int)(x.summed.col * BOXES + i) * BOX_BYTES, x.summed.row, 0);
    }
    bulk_commit();
}

/* The sums of the tile that is finished to device memory, by way of shared memory: as boxes, or a
 * row an access of the warp. */
template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void store_sums(const struct work &w, const struct walk &x,
                                                  const float (&sum)[64])
{
    DCHECK(x.summed.n <= BN && x.summed.n % 4 == 0);
    const bool boxed = FORM == FORM_PLAIN && OUTPUT == OUTPUT_FLOAT;
    if (boxed && x.lane == 0) bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < 16; j++) {
        stage_pair(x, j, make_float2(sum[4 * j], sum[4 * j + 1]),
                   make_float2(sum[4 * j + 2], sum[4 * j + 3]));
    }
    if (boxed) {
        store_boxes(w, x);
        return;
    }
    __syncwarp();
    const bool inside = x.lane * 4 < x.summed.n;
    const uint32_t col = x.summed.col * BN + x.lane * 4;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        const int row = shfl(x.summed.row, r);
        const float4 v = staged(x, (uint32_t)r);
        if (row < 0 || !inside) continue;
        const size_t at = (size_t)row * w.a.out_stride + col;
        if (OUTPUT == OUTPUT_BF16) {
            *(uint2 *)(w.a.out_h + at) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        } else {
            *(float4 *)(w.a.out + at) = v;
        }
    }
}

/* Where a lane's values of the first tile of a pair wait, eight times four of them: behind the
 * codes
 * of the warp's rows. */
static __device__ __forceinline__ float4 *waiting(const struct walk &x, uint32_t i)
{
    return (float4 *)(x.boxes + CODES_BYTES) + i * WARP + x.lane;
}

/* Puts 16 codes of rows lane / 4 and 8 on of half a group where the warp's rows of codes are made.
 * v has the sums' places: v[4 j] and the next of the first row, then of the second. */
static __device__ __forceinline__ void stage_codes(const struct walk &x, uint32_t half,
                                                   const float (&v)[32], float first, float second)
{
    uint8_t *to = x.boxes + x.lane / 4 * CODES_PITCH + half * PAIR_COLS + x.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++, to += 8) {
        *(uint16_t *)to = float2_to_e4m3x2(v[4 * j] * first, v[4 * j + 1] * first);
        *(uint16_t *)(to + 8 * CODES_PITCH) =
            float2_to_e4m3x2(v[4 * j + 2] * second, v[4 * j + 3] * second);
    }
}

/* Rows of codes from shared to device memory: eight lanes a row. */
static __device__ __forceinline__ void store_codes(const struct work &w, const struct walk &x)
{
    const uint32_t n_group = w.n_col_tile / 2, piece = x.lane % 8;
#pragma unroll
    for (uint32_t i = 0; i < WARP_ROWS / 4; i++) {
        const uint32_t r = i * 4 + x.lane / 8;
        const int row = shfl(x.summed.row, (int)r);
        const uint4 v = *(const uint4 *)(x.boxes + r * CODES_PITCH + piece * PIECE_BYTES);
        if (row < 0) continue;
        const size_t group = (size_t)row * n_group + x.summed.col / 2;
        *(uint4 *)(w.a.out_q + group * FP8_GROUP + piece * PIECE_BYTES) = v;
    }
}

/* The SwiGLU of a tile's halves. The first tile of a pair waits in shared memory for the second;
 * then the groups that both make get their scales, and rows of codes go to device memory. */
static __device__ __forceinline__ void store_swiglu(const struct work &w, struct walk &x,
                                                    const float (&sum)[64])
{
    float v[32], first = 0.0f, second = 0.0f;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) v[j + i] = silu(sum[j + i]) * sum[32 + j + i];
        first = fmaxf(first, fmaxf(fabsf(v[j]), fabsf(v[j + 1])));
        second = fmaxf(second, fmaxf(fabsf(v[j + 2]), fabsf(v[j + 3])));
    }
    if (x.summed.col % 2 == 0) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            *waiting(x, (uint32_t)j) =
                make_float4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
        x.amax_first = first;
        x.amax_second = second;
        return;
    }
    first = fmaxf(first, x.amax_first);
    second = fmaxf(second, x.amax_second);
#pragma unroll
    for (int d = 1; d < 4; d <<= 1) {
        first = fmaxf(first, shfl_xor(first, d));
        second = fmaxf(second, shfl_xor(second, d));
    }
    first = fp8_scale(first);
    second = fp8_scale(second);
    __syncwarp(); /* the codes before have been read */
    stage_codes(x, 1, v, fp8_inverse(first), fp8_inverse(second));
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 u = *waiting(x, (uint32_t)j);
        v[4 * j] = u.x;
        v[4 * j + 1] = u.y;
        v[4 * j + 2] = u.z;
        v[4 * j + 3] = u.w;
    }
    stage_codes(x, 0, v, fp8_inverse(first), fp8_inverse(second));
    const int row0 = shfl(x.summed.row, (int)x.lane / 4),
              row1 = shfl(x.summed.row, (int)x.lane / 4 + 8);
    const uint32_t n_group = w.n_col_tile / 2, group = x.summed.col / 2;
    if (x.lane % 4 == 0 && row0 >= 0) w.a.out_scale[(size_t)row0 * n_group + group] = first;
    if (x.lane % 4 == 0 && row1 >= 0) w.a.out_scale[(size_t)row1 * n_group + group] = second;
    __syncwarp();
    store_codes(w, x);
}

template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void store_tile(const struct work &w, struct walk &x,
                                                  const float (&sum)[64])
{
    if (OUTPUT == OUTPUT_SWIGLU) {
        store_swiglu(w, x, sum);
    } else {
        store_sums<FORM, OUTPUT>(w, x, sum);
    }
    x.summed.n = 0;
}

/* The sums of one tile. What the tile before it, or the part of K before, has left in k_part and
 * total is dealt with while the products that follow are under way. */
template <enum form FORM, enum output OUTPUT, bool ONE_K_PART>
static __device__ __forceinline__ void sum_tile(const struct work &w, struct stages *s,
                                                struct walk &x, float (&total)[64],
                                                float (&k_part)[64], uint32_t col, uint32_t col_end)
{
    const uint32_t n_k_part = ONE_K_PART ? 1 : w.n_k_part, n_k_line = w.n_k_line / n_k_part;
    uint32_t k_line = 0;
    float c[64];
    struct line_scales now = scales_of<FORM, OUTPUT>(w, x, col, col_end, 0);
    for (uint32_t i = 0; i < n_k_part; i++) {
        start_k_line<FORM>(c, s, x);
        if (!ONE_K_PART) {
            const bool fresh = i == 1 || n_k_part == 1;
#pragma unroll
            for (int j = 0; j < 64; j++) total[j] = (fresh ? 0.0f : total[j]) + k_part[j];
        }
        if (i == 0 && x.summed.n) store_tile<FORM, OUTPUT>(w, x, ONE_K_PART ? k_part : total);
        struct line_scales next = now;
        if (++k_line < w.n_k_line) next = scales_of<FORM, OUTPUT>(w, x, col, col_end, k_line);
        add_k_line<OUTPUT, true>(k_part, c, s, x, now);
        for (uint32_t j = 1; j < n_k_line; j++) {
            now = next;
            start_k_line<FORM>(c, s, x);
            if (++k_line < w.n_k_line) next = scales_of<FORM, OUTPUT>(w, x, col, col_end, k_line);
            add_k_line<OUTPUT, false>(k_part, c, s, x, now);
        }
        now = next;
    }
}

/* A warpgroup without rows keeps the ring going, and what is requested. */
template <enum form FORM, enum output OUTPUT>
static __device__ __forceinline__ void pass_tile(const struct work &w, struct stages *s,
                                                 struct walk &x, uint32_t col, uint32_t col_end)
{
    const bool in_run = col + 1 < col_end;
    x.ahead = load_scales<FORM, OUTPUT>(w, in_run ? x.here : x.next, in_run ? col + 1 : x.next_col,
                                        0, x.lane);
    for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance(x.at)) {
        wait_phase(&s->full[x.at.stage], x.at.parity);
        release(s, x.at.stage, x.lane);
    }
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART>
static __device__ __forceinline__ void consume(const struct work &w, struct stages *s, int group)
{
    const int warp = (int)threadIdx.x / WARP % 4;
    struct walk x = {};
    x.lane = threadIdx.x % WARP;
    x.in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * GROUP_ROWS * BK));
    x.weight = wgmma_operand(smem_address(s->w[0]));
    x.boxes = s->out[group * 4 + warp][0];
    const int first = group * GROUP_ROWS + warp * WARP_ROWS, row = first + (int)x.lane / 4;
    const int mine = first + (int)x.lane % WARP_ROWS;
    const uint32_t n_row_tile = row_tile_count<FORM>(w);
    struct cursor i = {0, 0};
    if (!move_on<FORM>(w, i, block_cursor(w), n_row_tile)) return;
    float total[64] = {}, k_part[64] = {};
    struct run r = run_at<FORM>(w, i, n_row_tile);
    bool more = move_on<FORM>(w, i, w.step, n_row_tile);
    struct run r_next = run_at<FORM>(w, i, n_row_tile);
    struct task t = task_at<FORM>(w, r.row_tile), t_next = task_at<FORM>(w, r_next.row_tile);
    x.here = find_scales<FORM>(w, t, row);
    x.ahead = load_scales<FORM, OUTPUT>(w, x.here, r.col, 0, x.lane);
    for (bool last = false; !last;) {
        last = !more;
        more = more && move_on<FORM>(w, i, w.step, n_row_tile);
        const struct run r_after = run_at<FORM>(w, i, n_row_tile);
        const struct task t_after = task_at<FORM>(w, r_after.row_tile);
        x.next = find_scales<FORM>(w, t_next, row);
        x.next_col = r_next.col;
        int out = -1;
        if (mine < t.n) out = t.first + mine;
        if (out >= 0 && FORM != FORM_PLAIN && !w.a.out_listed) out = w.a.rows[out];
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (group * GROUP_ROWS < t.n) {
                sum_tile<FORM, OUTPUT, ONE_K_PART>(w, s, x, total, k_part, col, r.col_end);
                x.summed = {out, col, min((uint32_t)BN, w.a.n - col * BN)};
            } else {
                pass_tile<FORM, OUTPUT>(w, s, x, col, r.col_end);
            }
        }
        x.here = x.next;
        r = r_next;
        t = t_next;
        r_next = r_after;
        t_next = t_after;
    }
    if (!x.summed.n) return;
#pragma unroll
    for (int j = 0; j < 64; j++) {
        total[j] = ONE_K_PART || w.n_k_part == 1 ? k_part[j] : total[j] + k_part[j];
    }
    store_tile<FORM, OUTPUT>(w, x, total);
    if (x.lane == 0) bulk_wait();
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART>
__global__ void __launch_bounds__(THREADS, 1)
    product_fp8_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        if (FORM != FORM_GATHER) tensor_map_prefetch(&w.in_map);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), FORM == FORM_GATHER ? 1 + GROUP_THREADS : 1);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
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
        produce<FORM, OUTPUT>(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<FORM, OUTPUT, ONE_K_PART>(w, s, group - 1);
    }
#endif
}

static cudaError_t make_maps(struct work *w)
{
    const struct product_args &a = w->a;
    if (!a.tasks || a.in_listed) {
        cudaError_t e =
            make_map(&w->in_map, a.q, a.k, a.n_token, 1, (size_t)a.k * a.n_token, GROUP_ROWS);
        if (e != cudaSuccess) return e;
    }
    if (!a.tasks && a.out) {
        const uint64_t pitch = a.out_stride * sizeof(float);
        cudaError_t e = make_strided_map(&w->out_map, a.out, a.n * (uint32_t)sizeof(float), pitch,
                                         a.n_token, 1, pitch * a.n_token, WARP_ROWS);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

/* The kernels. Those that write codes or bf16 take one part of K as one of several. */
typedef void (*product_kernel)(struct work);

template <enum form FORM> static product_kernel kernel_of(enum output output, bool one_k_part)
{
    if (output == OUTPUT_SWIGLU) return product_fp8_sm90_kernel<FORM, OUTPUT_SWIGLU, false>;
    if (output == OUTPUT_BF16) return product_fp8_sm90_kernel<FORM_LISTED, OUTPUT_BF16, false>;
    return one_k_part ? product_fp8_sm90_kernel<FORM, OUTPUT_FLOAT, true>
                      : product_fp8_sm90_kernel<FORM, OUTPUT_FLOAT, false>;
}

static product_kernel find_kernel(enum form form, enum output output, bool one_k_part)
{
    switch (form) {
    case FORM_PLAIN: return kernel_of<FORM_PLAIN>(output, one_k_part);
    case FORM_LISTED: return kernel_of<FORM_LISTED>(output, one_k_part);
    default: return kernel_of<FORM_GATHER>(output, one_k_part);
    }
}

static cudaError_t launch(const struct work &w, product_kernel kernel, uint32_t n_block,
                          cudaStream_t stream)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_block);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(struct stages);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, w);
}

static enum output output_of(const struct product_args &a)
{
    ASSERT(!a.out_q || (a.n % (2 * FP8_GROUP) == 0 && a.out_scale));
    ASSERT(!a.out_h || (a.in_listed && (uintptr_t)a.out_h % 16 == 0));
    return a.out_q ? OUTPUT_SWIGLU : a.out_h ? OUTPUT_BF16 : OUTPUT_FLOAT;
}

cudaError_t product_fp8_sm90(const struct product_args &a, uint32_t n_tile,
                             const struct sm90_limits &limits, cudaStream_t stream)
{
    const enum output output = output_of(a);
    ASSERT(a.k % BK == 0 && a.n % 16 == 0 && a.out_stride % 4 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0 && (uintptr_t)a.out % 16 == 0);
    ASSERT(a.tiled && (!a.tasks || a.in_divisor > 0));
    struct work w = {};
    w.a = a;
    w.n_k_line = a.k / BK;
    w.n_k_part = k_part_count(w.n_k_line);
    w.n_col_tile = ceil_div(a.n, BN);
    w.n_row_tile = n_tile;
    w.run_cols = a.tasks ? ceil_div(RUN_K_LINES_MIN, w.n_k_line) : 1;
    if (output == OUTPUT_SWIGLU) w.run_cols = ceil_div(w.run_cols, 2) * 2;
    w.n_run_col = ceil_div(w.n_col_tile, w.run_cols);
    const uint32_t n_run = n_tile * w.n_run_col;
    if (!n_run) return cudaSuccess;
    cudaError_t e = make_maps(&w);
    if (e != cudaSuccess) return e;
    const uint32_t n_block = min(n_run, limits.n_sm);
    w.n_run_band = (a.tasks ? 1 : (uint32_t)RASTER_TILES) * w.n_run_col;
    w.step = {n_block / w.n_run_band, n_block % w.n_run_band};
    const enum form form = !a.tasks ? FORM_PLAIN : a.in_listed ? FORM_LISTED : FORM_GATHER;
    return launch(w, find_kernel(form, output, w.n_k_part == 1), n_block, stream);
}

cudaError_t product_fp8_sm90_init(void)
{
    for (enum form form : {FORM_PLAIN, FORM_LISTED, FORM_GATHER}) {
        for (enum output output : {OUTPUT_FLOAT, OUTPUT_BF16, OUTPUT_SWIGLU}) {
            for (bool one_k_part : {false, true}) {
                cudaError_t e = cudaFuncSetAttribute(find_kernel(form, output, one_k_part),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     sizeof(struct stages));
                if (e != cudaSuccess) return e;
            }
        }
    }
    return cudaSuccess;
}

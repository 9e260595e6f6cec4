/* product_fp8.cu - FP8 matrix product for many rows on sm_90a
 *
 * One resident block a multiprocessor walks over tiles of 128 rows x 128 outputs. Warpgroup 0 fills
 * a ring of stages, one stage a K line of 128: the tile of inputs, the tile of weights, and their
 * scales. Warpgroups 1 and 2 own 64 rows each: four products of K = 32 sum one K line in the tensor
 * cores, which keep few bits, then the sum times both scales is added in f32 to the part of K, and
 * parts to the total, in ascending order. The ring runs on across tiles and finished rows leave by
 * bulk stores, so the next tile is loaded and begun while one is stored.
 *
 * Plain products copy both tiles by tensor maps. Mapped products gather their rows by 16-byte
 * copies and take weights alone by tensor map.
 *
 * A stage goes round:
 *
 *   empty --- all copies issued; full: 1 + 128 arrivals and the bytes ---> full
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
    RUN_K_LINES_MIN = 16, /* K lines that one lookup of rows should last for */
};

enum { ALIGN_BYTES = 1024 };

/* Shared memory of a block. Row r of `out` is rotated by ROTATE_BYTES * (r % 4), so that the four
 * rows that half a warp writes at once lie in different banks. */
struct alignas(ALIGN_BYTES) stages {
    uint8_t in[STAGES][BM * BK];
    uint8_t w[STAGES][BN * BK];
    float out[CONSUMER_WARPS][WARP_ROWS][BN];
    float in_scale[STAGES][BM];
    float w_scale[STAGES];
    uint64_t full[STAGES];
    uint64_t empty[STAGES];
};

enum { ROTATE_BYTES = 32, ROW_BYTES = BN * sizeof(float) };
static_assert(sizeof(struct stages) <= SHARED_MAX, "shared memory of a block");
static_assert(BM == 2 * GROUP_ROWS && CONSUMER_WARPS * WARP_ROWS == BM, "a warp has 16 rows");
static_assert((int)BM <= (int)TENSOR_BOX_MAX && (int)BN <= (int)TENSOR_BOX_MAX &&
                  BM <= GROUP_THREADS,
              "a producer thread copies a row's scale");
static_assert(GATHER_ROWS % 8 == 0 && BM % GATHER_ROWS == 0,
              "the permutation is the same for all rows of a thread");
static_assert(PRODUCER_REGISTERS % 8 == 0 && CONSUMER_REGISTERS % 8 == 0 &&
                  GROUP_THREADS * (PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS) <= 64 << 10,
              "registers of a multiprocessor");
static_assert(BM * BK % ALIGN_BYTES == 0 && BN * BK % ALIGN_BYTES == 0, "atoms of operands");

struct work {
    CUtensorMap in_map; /* plain only */
    CUtensorMap w_map;
    struct product_args a;
    uint32_t n_k_line;
    uint32_t n_k_part;
    uint32_t n_col_tile;
    uint32_t n_row_tile; /* plain */
    uint32_t run_cols;   /* column tiles of a run */
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

/* A run: column tiles of one row tile, one after the other. */
struct run {
    int row_tile;
    uint32_t col;
    uint32_t col_end;
};

template <bool MAPPED> static __device__ __forceinline__ uint32_t run_count(const struct work &w)
{
    uint32_t n_row = MAPPED ? (uint32_t)*w.a.n_task : w.n_row_tile;
    return n_row * ceil_div(w.n_col_tile, w.run_cols);
}

/* Mapped: columns first, since only neighbouring tasks have an expert in common. Plain: bands of
 * RASTER_TILES row tiles, rows first inside a band. */
template <bool MAPPED>
static __device__ __forceinline__ struct run run_at(const struct work &w, uint32_t i)
{
    const uint32_t n_col = ceil_div(w.n_col_tile, w.run_cols);
    uint32_t unit, col;
    if (MAPPED) {
        unit = i / n_col;
        col = i % n_col;
    } else {
        const uint32_t band = RASTER_TILES, first = i / (band * n_col) * band;
        const uint32_t height = min(band, w.n_row_tile - first), rest = i % (band * n_col);
        unit = first + rest % height;
        col = rest / height;
    }
    struct run r;
    DCHECK(col < n_col);
    r.row_tile = (int)unit;
    r.col = col * w.run_cols;
    r.col_end = min(r.col + w.run_cols, w.n_col_tile);
    return r;
}

/* What a producer thread copies: piece `thread % LINE_PIECES` of row thread / LINE_PIECES and of
 * every GATHER_ROWS rows on; the scale of row `thread`. */
struct gather {
    uint32_t from[BM / GATHER_ROWS]; /* in pieces from a.q */
    int n;                           /* how many of them */
    const float *scale;              /* NULL: no such row */
};

template <bool MAPPED>
static __device__ __forceinline__ struct gather gather_of(const struct work &w,
                                                          const struct product_rows &rows)
{
    const int thread = (int)threadIdx.x, first = thread / K_LINE_PIECES;
    struct gather g;
    g.n = MAPPED && rows.n > first ? (rows.n - first - 1) / GATHER_ROWS + 1 : 0;
    g.scale = NULL;
    if (rows.n <= 0) return g;
    const int divisor = (int)w.a.in_divisor, last = rows.n - 1, mine = min(thread, last);
    if (MAPPED) {
#pragma unroll
        for (int i = 0; i < BM / GATHER_ROWS; i++) {
            g.from[i] = (uint32_t)rows.rows[min(first + i * GATHER_ROWS, last)];
        }
#pragma unroll
        for (int i = 0; i < BM / GATHER_ROWS; i++) {
            uint32_t row = g.from[i] / (uint32_t)divisor;
            g.from[i] = row * (w.a.k / PIECE_BYTES) + (uint32_t)(thread % K_LINE_PIECES);
        }
    }
    const int row = MAPPED ? rows.rows[mine] / divisor : rows.first + mine;
    if (thread < rows.n) g.scale = w.a.q_scale + (size_t)row * w.n_k_line;
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

/* The tensor maps' copies of one stage, by one thread. */
template <bool MAPPED>
static __device__ __forceinline__ void load_tiles(const struct work &w, struct stages *s,
                                                  uint32_t stage, uint32_t k_line, int row, int col,
                                                  int expert)
{
    enum { BYTES = BN * BK + (MAPPED ? 0 : BM * BK) };
    const uint32_t full = smem_address(&s->full[stage]);
    const int x = (int)k_line * BK;
    mbarrier_arrive_expect(full, BYTES);
    tensor_load(smem_address(s->w[stage]), &w.w_map, full, x, col, expert);
    if (!MAPPED) tensor_load(smem_address(s->in[stage]), &w.in_map, full, x, row, 0);
}

template <bool MAPPED>
static __device__ __forceinline__ void produce(const struct work &w, struct stages *s)
{
    const int thread = (int)threadIdx.x;
    const uint32_t n_run = run_count<MAPPED>(w);
    struct ring at = {0, 0};
    for (uint32_t i = blockIdx.x; i < n_run; i += gridDim.x) {
        const struct run r = run_at<MAPPED>(w, i);
        const struct product_rows rows = product_rows_of(w.a, r.row_tile, BM);
        const struct gather g = gather_of<MAPPED>(w, rows);
        const int expert = MAPPED ? w.a.tasks[r.row_tile].expert : 0;
        for (uint32_t col = r.col; col < r.col_end; col++) {
            const float *w_scale = rows.w_scale + (size_t)col * w.a.scale_stride;
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (thread == 0) {
                    load_tiles<MAPPED>(w, s, at.stage, k_line, r.row_tile * BM, (int)col * BN,
                                       expert);
                    cp_async_4(smem_address(&s->w_scale[at.stage]), w_scale + k_line);
                }
                if (MAPPED) gather_k_line(w, g, smem_address(s->in[at.stage]), k_line);
                if (g.scale) {
                    cp_async_4(smem_address(&s->in_scale[at.stage][thread]), g.scale + k_line);
                }
                mbarrier_arrive_cp_async(smem_address(&s->full[at.stage]));
                advance(at);
            }
        }
    }
}

/* This warp has read the stage. */
static __device__ __forceinline__ void release(struct stages *s, uint32_t stage, uint32_t lane)
{
    __syncwarp();
    if (lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
}

/* k_part += the next K line's sum times its scales */
template <bool MAPPED>
static __device__ __forceinline__ void add_k_line(float (&k_part)[64], struct stages *s,
                                                  uint32_t stage, uint64_t in, uint64_t weight,
                                                  int row, uint32_t lane)
{
    if (MAPPED) async_proxy_fence();
    in += stage * (sizeof s->in[0] >> 4);
    weight += stage * (sizeof s->w[0] >> 4);
    float c[64];
    wgmma_fence();
    wgmma_e4m3_start(c, in, weight);
#pragma unroll
    for (int i = 1; i < BK / 32; i++) {
        wgmma_e4m3_add(c, in + (uint64_t)(2 * i), weight + (uint64_t)(2 * i));
    }
    wgmma_commit();
    const float w_scale = s->w_scale[stage];
    const float s0 = w_scale * s->in_scale[stage][row], s1 = w_scale * s->in_scale[stage][row + 8];
    wgmma_wait(c);
    release(s, stage, lane);
#pragma unroll
    for (int j = 0; j < 64; j += 4) {
        k_part[j] = fmaf(c[j], s0, k_part[j]);
        k_part[j + 1] = fmaf(c[j + 1], s0, k_part[j + 1]);
        k_part[j + 2] = fmaf(c[j + 2], s1, k_part[j + 2]);
        k_part[j + 3] = fmaf(c[j + 3], s1, k_part[j + 3]);
    }
}

/* Sends a warp's sums on their way. Row lane % 16 is `out`, NULL for none, from column 0 of the
 * tile, of which n are stored: by lane row up to where the row wraps in shared memory, the rest by
 * lane row + 16. */
static __device__ __forceinline__ void store_tile(float (*stage)[BN], const float (&sum)[64],
                                                  float *out, uint32_t n, uint32_t lane)
{
    const uint32_t base = smem_address(stage), row = lane % WARP_ROWS;
    const uint32_t at = lane % 4 * 8 + lane / 4 % 4 * ROTATE_BYTES; /* row lane / 4, columns 2 t */
    char *first = (char *)stage + lane / 4 * ROW_BYTES, *second = first + 8 * ROW_BYTES;
    DCHECK(n > 0 && n <= BN && n % 4 == 0);
    bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const uint32_t place = (at + (uint32_t)j * 32) % ROW_BYTES;
        *(float2 *)(first + place) = make_float2(sum[4 * j], sum[4 * j + 1]);
        *(float2 *)(second + place) = make_float2(sum[4 * j + 2], sum[4 * j + 3]);
    }
    async_proxy_fence();
    __syncwarp();
    const uint32_t rotation = row % 4 * ROTATE_BYTES, n_byte = n * (uint32_t)sizeof(float);
    const uint32_t head = min(n_byte, ROW_BYTES - rotation), from = base + row * ROW_BYTES;
    if (out && lane == row) bulk_store(out, from + rotation, head);
    if (out && lane != row && n_byte > head) bulk_store((char *)out + head, from, n_byte - head);
    bulk_commit();
}

template <bool MAPPED, bool ONE_K_PART>
static __device__ __forceinline__ void consume(const struct work &w, struct stages *s, int group)
{
    const uint32_t lane = threadIdx.x % WARP;
    const int warp = (int)threadIdx.x / WARP % 4;
    const int first = group * GROUP_ROWS + warp * WARP_ROWS, row = first + (int)lane / 4;
    const uint64_t in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * GROUP_ROWS * BK));
    const uint64_t weight = wgmma_operand(smem_address(s->w[0]));
    const uint32_t n_run = run_count<MAPPED>(w);
    const uint32_t n_k_part = ONE_K_PART ? 1 : w.n_k_part, n_k_line = w.n_k_line / n_k_part;
    struct ring at = {0, 0};
    for (uint32_t i = blockIdx.x; i < n_run; i += gridDim.x) {
        const struct run r = run_at<MAPPED>(w, i);
        const struct product_rows rows = product_rows_of(w.a, r.row_tile, BM);
        const int mine = first + (int)lane % WARP_ROWS;
        float *out = NULL;
        if (mine < rows.n) out = w.a.out + (size_t)out_row(rows, mine) * w.a.out_stride;
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (group * GROUP_ROWS >= rows.n) { /* no rows: keeps the ring going */
                for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance(at)) {
                    wait_phase(&s->full[at.stage], at.parity);
                    release(s, at.stage, lane);
                }
                continue;
            }
            float total[64] = {};
            for (uint32_t i_k_part = 0; i_k_part < n_k_part; i_k_part++) {
                float k_part[64] = {};
                for (uint32_t k_line = 0; k_line < n_k_line; k_line++, advance(at)) {
                    wait_phase(&s->full[at.stage], at.parity);
                    add_k_line<MAPPED>(k_part, s, at.stage, in, weight, row, lane);
                }
#pragma unroll
                for (int j = 0; j < 64; j++)
                    total[j] = ONE_K_PART ? k_part[j] : total[j] + k_part[j];
            }
            store_tile(s->out[group * 4 + warp], total, out ? out + col * BN : NULL,
                       min((uint32_t)BN, w.a.n - col * BN), lane);
        }
    }
    bulk_wait();
}

template <bool MAPPED, bool ONE_K_PART>
__global__ void __launch_bounds__(THREADS, 1)
    product_fp8_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct stages *s = (struct stages *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&w.w_map);
        if (!MAPPED) tensor_map_prefetch(&w.in_map);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), 1 + GROUP_THREADS);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    if (!MAPPED) dependency_release();
    dependency_wait();
    if (MAPPED) dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<MAPPED>(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<MAPPED, ONE_K_PART>(w, s, group - 1);
    }
#endif
}

static cudaError_t make_maps(struct work *w)
{
    const struct product_args &a = w->a;
    if (a.tasks) return make_map(&w->w_map, a.w, a.k, a.n, STACK_MATRICES, a.w_stride, BN);
    cudaError_t e = make_map(&w->in_map, a.q, a.k, a.n_token, 1, (size_t)a.k * a.n_token, BM);
    if (e != cudaSuccess) return e;
    return make_map(&w->w_map, a.w, a.k, a.n, 1, (size_t)a.k * a.n, BN);
}

template <bool MAPPED>
static cudaError_t launch(const struct work &w, uint32_t n_block, cudaStream_t stream)
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
    return w.n_k_part == 1 ? cudaLaunchKernelEx(&config, product_fp8_sm90_kernel<MAPPED, true>, w)
                           : cudaLaunchKernelEx(&config, product_fp8_sm90_kernel<MAPPED, false>, w);
}

cudaError_t product_fp8_sm90(const struct product_args &a, uint32_t n_tile,
                             const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.k % BK == 0 && a.n % 16 == 0 && a.out_stride % 4 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0 && (uintptr_t)a.out % 16 == 0);
    ASSERT(!a.tasks || (a.w_stride % a.k == 0 && a.in_divisor > 0));
    struct work w = {};
    w.a = a;
    w.n_k_line = a.k / BK;
    w.n_k_part = k_part_count(w.n_k_line);
    w.n_col_tile = ceil_div(a.n, BN);
    w.n_row_tile = n_tile;
    w.run_cols = a.tasks ? ceil_div(RUN_K_LINES_MIN, w.n_k_line) : 1;
    const uint32_t n_run = n_tile * ceil_div(w.n_col_tile, w.run_cols);
    if (!n_run) return cudaSuccess;
    cudaError_t e = make_maps(&w);
    if (e != cudaSuccess) return e;
    const uint32_t n_block = min(n_run, limits.n_sm);
    return a.tasks ? launch<true>(w, n_block, stream) : launch<false>(w, n_block, stream);
}

template <bool MAPPED, bool ONE_K_PART> static cudaError_t raise_limit(void)
{
    return cudaFuncSetAttribute(product_fp8_sm90_kernel<MAPPED, ONE_K_PART>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(struct stages));
}

cudaError_t product_fp8_sm90_init(void)
{
    cudaError_t e = raise_limit<true, true>();
    if (e == cudaSuccess) e = raise_limit<true, false>();
    if (e == cudaSuccess) e = raise_limit<false, true>();
    if (e == cudaSuccess) e = raise_limit<false, false>();
    return e;
}

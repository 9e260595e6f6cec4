/* product_u4.cu - matrix product of packed U4 weights for many rows on sm_90a
 *
 * As product_fp8.cu: tiles of 128 rows x 128 outputs, two warpgroups that multiply 64 rows each,
 * and whatever leaves a tile. A K line of weights arrives packed (pack4.h). The warpgroup that
 * loads turns it into E4M3 codes (u4.cuh) where the tensor cores take them, once for all rows, and
 * its scales into floats. Each output has a scale of its own, so sums are multiplied by two numbers
 * that depend on row and column; G is the number of groups of a K line, which are summed one after
 * the other.
 *
 * Loading is ahead of turning by AHEAD K lines. A stage goes round:
 *
 *   empty --- inputs on their way; full: their bytes, or the arrivals of who gathers, and a warp's
 *             that has turned its weights ---> full
 *   full ---- read by every warp that multiplies ---> empty
 *
 * Packed tiles have a ring of their own, between one thread and its warpgroup. Scales lie in
 * twice as many slots as there are stages: warps read them behind the stage's release, and are
 * through before the slot's turn comes again, because whoever fills it has waited for stages
 * released later. */
#include "backend/cuda/sm90/product_u4.cuh"

#include "backend/cuda/sm90/product_fp8_store.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/u4.cuh"

enum {
    U4_STAGES = 4,
    PACKED = 3, /* packed K lines */
    LOAD_REGISTERS = 56,
    MULTIPLY_REGISTERS = 224,
    AHEAD = PACKED - 1,
    LOAD_WARPS = GROUP_THREADS / WARP,
    TILES = BN / PACK4_ROWS,
};
static_assert(AHEAD < U4_STAGES - 1, "weights are turned while those before are multiplied");
static_assert((int)GROUP_THREADS == (int)BN, "a thread turns the scales of an output");
static_assert((int)PACK4_ROWS == (int)TILE_ROWS && LOAD_WARPS * 16 == (int)PACK4_ROWS, "tiles");

/* Bytes of a packed tile at most: with two groups there is no room for F32 scales and zeros. */
template <int G> constexpr uint32_t packed_bytes(void)
{
    return PACK4_CODE_BYTES + G * PACK4_ROWS * (G == 1 ? 5 : 3);
}

template <int G> struct alignas(ALIGN_BYTES) u4_stages {
    uint8_t in[U4_STAGES][BM * BK];
    uint8_t w[U4_STAGES][BN * BK];
    uint8_t out[CONSUMER_WARPS][BOXES][WARP_ROWS * BOX_BYTES];
    uint8_t packed[PACKED][TILES][packed_bytes<G>()];
    float scale[2 * U4_STAGES][G][BN]; /* times 512, where scale_place says */
    uint64_t full[U4_STAGES];
    uint64_t empty[U4_STAGES];
    uint64_t packed_full[PACKED];
    uint64_t packed_empty[PACKED];
    static_assert(packed_bytes<G>() % PIECE_BYTES == 0, "pieces");
};
static_assert(sizeof(struct u4_stages<1>) <= SHARED_MAX, "shared memory of a block");
static_assert(sizeof(struct u4_stages<2>) <= SHARED_MAX, "shared memory of a block");

struct u4_work {
    struct work w;
    struct u4_form form;
};

static __device__ __forceinline__ uint32_t scale_slot(const struct ring &at)
{
    return at.stage + at.parity * U4_STAGES;
}

/* Scales of columns 8 j + 2 t and the next, and of those eight further, lie together. */
static __device__ __forceinline__ uint32_t scale_place(uint32_t col)
{
    const uint32_t j = col / 8, t = col / 2 % 4;
    return j / 2 * 16 + t * 4 + j % 2 * 2 + col % 2;
}

/* ---- the warpgroup that loads ---- */

/* Where it is: K lines loaded so far, and the packed ring's next slot. When a line has been loaded
 * that slot has the oldest one, which is turned next. */
struct u4_load {
    uint32_t n;
    struct ring packed;
};

static __device__ __forceinline__ void advance_load(struct u4_load &x)
{
    x.n++;
    advance_of<PACKED>(x.packed);
}

static __device__ __forceinline__ uint32_t stage_of(uint32_t line)
{
    return line % U4_STAGES;
}

static __device__ __forceinline__ uint32_t parity_of(uint32_t line)
{
    return line / U4_STAGES % 2;
}

/* Tiles past the matrix are not copied: what is multiplied instead is nobody's. */
template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void load_packed(const struct work &w, struct u4_stages<G> *s,
                                                   uint32_t slot, uint32_t k_line,
                                                   const struct task &t, uint32_t col)
{
    const uint32_t full = smem_address(&s->packed_full[slot]), bytes = w.a.pack.tile_bytes;
    const uint32_t n_tile = ceil_div(w.a.n, PACK4_ROWS);
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    uint32_t tile[TILES], n = 0;
    for (uint32_t i = 0; i < TILES; i++) {
        tile[i] = OUTPUT == OUTPUT_SWIGLU ? col + i * (w.a.n / 2 / PAIR_COLS) : col * TILES + i;
        if (tile[i] < n_tile) n += bytes;
    }
    mbarrier_arrive_expect(full, n);
    for (uint32_t i = 0; i < TILES; i++) {
        if (tile[i] >= n_tile) continue;
        bulk_load(smem_address(s->packed[slot][i]),
                  from + ((size_t)tile[i] * w.n_k_line + k_line) * bytes, bytes, full);
    }
}

/* By every thread: the copies of a K line. */
template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void
load_line(const struct work &w, struct u4_stages<G> *s, struct u4_load &x,
          const struct gather<GATHER_ROWS> &g, uint32_t k_line, const struct task &t, uint32_t col)
{
    const uint32_t full = smem_address(&s->full[stage_of(x.n)]);
    const uint32_t in = smem_address(s->in[stage_of(x.n)]);
    wait_phase(&s->empty[stage_of(x.n)], parity_of(x.n) ^ 1);
    if (threadIdx.x == 0) {
        wait_phase(&s->packed_empty[x.packed.stage], x.packed.parity ^ 1);
        load_packed<FORM, OUTPUT, G>(w, s, x.packed.stage, k_line, t, col);
    }
    if (FORM == FORM_GATHER) {
        gather_k_line<GATHER_ROWS>(w, g, in, k_line);
        mbarrier_arrive_cp_async(full);
    } else if (threadIdx.x == 0) {
        const bool both = t.n > GROUP_ROWS;
        const int from = (int)k_line * BK;
        mbarrier_arrive_expect(full, (both ? BM : GROUP_ROWS) * BK);
        tensor_load(in, &w.in_map, full, from, t.first, 0);
        if (both) {
            tensor_load(in + GROUP_ROWS * BK, &w.in_map, full, from, t.first + GROUP_ROWS, 0);
        }
    }
    advance_load(x);
}

/* A tile's words: lane 4 g + t of warp i has those of rows 16 i + g and 8 further, as pack4.h says,
 * and puts each where operands have it (wgmma.cuh). */
template <int G>
static __device__ __forceinline__ void turn_tile(const struct u4_form &form, const uint8_t *packed,
                                                 uint8_t *to)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4;
    const char *tile = (const char *)packed;
    to += (warp * 16 + g) * BK + lane % 4 * 4;
    uint32_t zero[2] = {};
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint4 v = *(const uint4 *)(tile + warp * 1024 + half * 512 + lane * 16);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        if (half == 0 || G == 2) {
            const uint32_t at = half * (G - 1) * PACK4_ROWS + warp * 16 + g;
            zero[0] = u4_zero(form, tile, at);
            zero[1] = u4_zero(form, tile, at + 8);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t codes[2];
            u4_rows(words[i], zero, codes);
            uint8_t *piece = to + ((half * 4 + i) ^ g) * PIECE_BYTES;
            *(uint32_t *)piece = codes[0];
            *(uint32_t *)(piece + 8 * BK) = codes[1];
        }
    }
}

/* By every thread: the oldest K line's weights, once they are there. */
template <int G>
static __device__ __forceinline__ void turn_line(const struct u4_form &form, struct u4_stages<G> *s,
                                                 const struct u4_load &x)
{
    const uint32_t slot = x.packed.stage, line = x.n - PACKED, stage = stage_of(line);
    const uint32_t output = threadIdx.x % BN, row = output % PACK4_ROWS;
    wait_phase(&s->packed_full[slot], x.packed.parity ^ 1);
#pragma unroll 1
    for (uint32_t i = 0; i < TILES; i++) {
        turn_tile<G>(form, s->packed[slot][i], s->w[stage] + i * TILE_BYTES);
    }
    const char *tile = (const char *)s->packed[slot][output / PACK4_ROWS];
#pragma unroll
    for (uint32_t i = 0; i < G; i++) {
        s->scale[line % (2 * U4_STAGES)][i][scale_place(output)] =
            u4_scale(form, tile, i * PACK4_ROWS + row);
    }
    async_proxy_fence();
    __syncwarp();
    if (threadIdx.x % WARP == 0) {
        mbarrier_arrive(smem_address(&s->full[stage]));
        mbarrier_arrive(smem_address(&s->packed_empty[slot]));
    }
}

template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void produce(const struct u4_work &u, struct u4_stages<G> *s)
{
    const struct work &w = u.w;
    const uint32_t n_row_tile = row_tile_count<FORM>(w);
    struct u4_load x = {};
    struct cursor i = {0, 0};
    for (bool more = move_on<FORM>(w, i, block_cursor(w), n_row_tile); more;
         more = move_on<FORM>(w, i, w.step, n_row_tile)) {
        const struct run r = run_at<FORM>(w, i, n_row_tile);
        const struct task t = task_at<FORM>(w, r.row_tile);
        struct gather<GATHER_ROWS> g = {
        };
        if (FORM == FORM_GATHER) g = gather_of<GATHER_ROWS>(w, t);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++) {
                load_line<FORM, OUTPUT, G>(w, s, x, g, k_line, t, col);
                if (x.n >= PACKED) turn_line<G>(u.form, s, x);
            }
        }
    }
    const uint32_t n = x.n;
    for (uint32_t i = min(n, (uint32_t)AHEAD); i < AHEAD; i++) advance_load(x);
    for (uint32_t i = 0; i < min(n, (uint32_t)AHEAD); i++) {
        advance_load(x);
        turn_line<G>(u.form, s, x);
    }
}

/* ---- the consumers ---- */

/* Of two rows, K line k_line + lane % SCALE_LINES */
template <enum form FORM>
static __device__ __forceinline__ struct scales
load_scales(const struct work &w, const struct scales_at &s, uint32_t k_line, uint32_t lane)
{
    const uint32_t divisor = FORM == FORM_GATHER ? w.a.in_divisor : 1;
    const uint32_t i = min(k_line + lane % SCALE_LINES, w.n_k_line - 1);
    return {w.a.q_scale[(uint32_t)s.first / divisor * w.n_k_line + i],
            w.a.q_scale[(uint32_t)s.second / divisor * w.n_k_line + i], 0.0f, 0.0f};
}

/* Those behind K line k_line, the first one taken. */
template <enum form FORM>
static __device__ __forceinline__ void request_scales(const struct work &w, struct walk &x,
                                                      uint32_t col, uint32_t col_end,
                                                      uint32_t k_line)
{
    const bool in_tile = k_line + SCALE_LINES < w.n_k_line, in_run = col + 1 < col_end;
    const struct scales_at &s = in_tile || in_run ? x.here : x.next;
    x.ahead = load_scales<FORM>(w, s, in_tile ? k_line + SCALE_LINES : 0, x.lane);
}

static __device__ __forceinline__ float2 scales_at_line(const struct walk &x, uint32_t k_line)
{
    const int from = (int)(x.lane - x.lane % SCALE_LINES + k_line % SCALE_LINES);
    return make_float2(shfl(x.first, from), shfl(x.second, from));
}

static __device__ __forceinline__ void take_scales(struct walk &x)
{
    x.first = x.ahead.first;
    x.second = x.ahead.second;
}

template <enum form FORM>
static __device__ __forceinline__ float2 scales_of(const struct work &w, struct walk &x,
                                                   uint32_t col, uint32_t col_end, uint32_t k_line)
{
    if (k_line % SCALE_LINES == 0) {
        take_scales(x);
        request_scales<FORM>(w, x, col, col_end, k_line);
    }
    return scales_at_line(x, k_line);
}

template <int G>
static __device__ __forceinline__ void release(struct u4_stages<G> *s, const struct walk &x)
{
    __syncwarp();
    if (x.lane == 0) mbarrier_arrive(smem_address(&s->empty[x.at.stage]));
}

/* Begins the products of a group of the next K line, once that is there. */
template <enum form FORM, int G>
static __device__ __forceinline__ void start_group(float (&c)[64], struct u4_stages<G> *s,
                                                   const struct walk &x, uint32_t group)
{
    enum { STEPS = BK / 32 / G };
    if (group == 0) {
        wait_phase(&s->full[x.at.stage], x.at.parity);
        if (FORM == FORM_GATHER) async_proxy_fence();
    }
    const uint64_t at = group * STEPS * 2;
    const uint64_t in = x.in + x.at.stage * (sizeof s->in[0] >> 4) + at;
    const uint64_t weight = x.weight + x.at.stage * (sizeof s->w[0] >> 4) + at;
    wgmma_fence();
    wgmma_e4m3_start(c, in, weight);
#pragma unroll
    for (int i = 1; i < STEPS; i++) {
        wgmma_e4m3_add(c, in + (uint64_t)(2 * i), weight + (uint64_t)(2 * i));
    }
    wgmma_commit();
}

/* sum += a group's sum times the scales of row and column; FIRST: sum is what that adds to 0. */
template <bool FIRST>
static __device__ __forceinline__ void add_group(float (&sum)[64], const float (&c)[64],
                                                 const float *scale, const float2 &row,
                                                 uint32_t lane)
{
#pragma unroll
    for (int j = 0; j < 64; j += 8) {
        const float4 v = *(const float4 *)(scale + j * 2 + lane % 4 * 4);
        const float of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float s = of[i / 4 * 2 + i % 2] * (i % 4 < 2 ? row.x : row.y);
            sum[j + i] = fmaf(c[j + i], s, FIRST ? 0.0f : sum[j + i]);
        }
    }
}

/* k_part += the K line whose first group is under way */
template <enum form FORM, int G, bool FIRST>
static __device__ __forceinline__ void add_k_line(float (&k_part)[64], float (&c)[64],
                                                  struct u4_stages<G> *s, struct walk &x,
                                                  const float2 &row)
{
    const uint32_t slot = scale_slot(x.at);
    wgmma_wait(c);
    if (G == 2) {
        add_group<FIRST>(k_part, c, s->scale[slot][0], row, x.lane);
        start_group<FORM, G>(c, s, x, 1);
        wgmma_wait(c);
    }
    release<G>(s, x);
    advance_of<U4_STAGES>(x.at);
    add_group<FIRST && G == 1>(k_part, c, s->scale[slot][G - 1], row, x.lane);
}

/* The sums of one tile. What the tile before it, or the part of K before, has left in k_part and
 * total is dealt with while the products that follow are under way. */
template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void sum_tile(const struct work &w, struct u4_stages<G> *s,
                                                struct walk &x, float (&total)[64],
                                                float (&k_part)[64], uint32_t col, uint32_t col_end)
{
    const uint32_t n_k_line = w.n_k_line / w.n_k_part;
    uint32_t k_line = 0;
    float c[64];
    take_scales(x);
    float2 now = scales_at_line(x, 0);
    for (uint32_t i = 0; i < w.n_k_part; i++) {
        start_group<FORM, G>(c, s, x, 0);
        const bool fresh = i == 1 || w.n_k_part == 1;
#pragma unroll
        for (int j = 0; j < 64; j++) total[j] = (fresh ? 0.0f : total[j]) + k_part[j];
        if (i == 0 && x.summed.n) store_tile<FORM, OUTPUT, WEIGHTS_FP8>(w, x, total);
        if (i == 0) request_scales<FORM>(w, x, col, col_end, 0);
        float2 next = now;
        if (++k_line < w.n_k_line) next = scales_of<FORM>(w, x, col, col_end, k_line);
        add_k_line<FORM, G, true>(k_part, c, s, x, now);
        for (uint32_t j = 1; j < n_k_line; j++) {
            now = next;
            start_group<FORM, G>(c, s, x, 0);
            if (++k_line < w.n_k_line) next = scales_of<FORM>(w, x, col, col_end, k_line);
            add_k_line<FORM, G, false>(k_part, c, s, x, now);
        }
        now = next;
    }
}

/* A warpgroup without rows keeps the ring going, and what is requested. */
template <enum form FORM, int G>
static __device__ __forceinline__ void pass_tile(const struct work &w, struct u4_stages<G> *s,
                                                 struct walk &x, bool in_run)
{
    x.ahead = load_scales<FORM>(w, in_run ? x.here : x.next, 0, x.lane);
    for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++) {
        wait_phase(&s->full[x.at.stage], x.at.parity);
        release<G>(s, x);
        advance_of<U4_STAGES>(x.at);
    }
}

template <enum form FORM, enum output OUTPUT, int G>
static __device__ __forceinline__ void consume(const struct work &w, struct u4_stages<G> *s,
                                               int group)
{
    const int warp = (int)threadIdx.x / WARP % 4;
    struct walk x = {};
    x.lane = threadIdx.x % WARP;
    x.in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * GROUP_ROWS * BK));
    x.weight = wgmma_operand(smem_address(s->w[0]));
    x.boxes = s->out[group * 4 + warp][0];
    x.held = x.boxes + CODES_BYTES;
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
    x.ahead = load_scales<FORM>(w, x.here, 0, x.lane);
    for (bool last = false; !last;) {
        last = !more;
        more = more && move_on<FORM>(w, i, w.step, n_row_tile);
        const struct run r_after = run_at<FORM>(w, i, n_row_tile);
        const struct task t_after = task_at<FORM>(w, r_after.row_tile);
        x.next = find_scales<FORM>(w, t_next, row);
        int out = -1;
        if (mine < t.n) out = t.first + mine;
        if (out >= 0 && FORM != FORM_PLAIN && !w.a.out_listed) out = w.a.rows[out];
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (group * GROUP_ROWS < t.n) {
                sum_tile<FORM, OUTPUT, G>(w, s, x, total, k_part, col, r.col_end);
                x.summed = {out, col, min((uint32_t)BN, w.a.n - col * BN)};
            } else {
                pass_tile<FORM, G>(w, s, x, col + 1 < r.col_end);
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
        total[j] = w.n_k_part == 1 ? k_part[j] : total[j] + k_part[j];
    }
    store_tile<FORM, OUTPUT, WEIGHTS_FP8>(w, x, total);
    if (x.lane == 0) bulk_wait();
}

template <enum form FORM, enum output OUTPUT, int G>
__global__ void __launch_bounds__(THREADS, 1)
    product_u4_sm90_kernel(const __grid_constant__ struct u4_work u)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct u4_stages<G> *s = (struct u4_stages<G> *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        if (FORM != FORM_GATHER) tensor_map_prefetch(&u.w.in_map);
        const uint32_t n_in = FORM == FORM_GATHER ? GROUP_THREADS : 1;
        for (int i = 0; i < U4_STAGES; i++) {
            mbarrier_init(smem_address(&s->full[i]), n_in + LOAD_WARPS);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        for (int i = 0; i < PACKED; i++) {
            mbarrier_init(smem_address(&s->packed_full[i]), 1);
            mbarrier_init(smem_address(&s->packed_empty[i]), LOAD_WARPS);
        }
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    if (FORM == FORM_PLAIN) dependency_release();
    dependency_wait();
    if (FORM != FORM_PLAIN) dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<LOAD_REGISTERS>();
        produce<FORM, OUTPUT, G>(u, s);
    } else {
        registers_raise<MULTIPLY_REGISTERS>();
        consume<FORM, OUTPUT, G>(u.w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

typedef void (*u4_kernel)(struct u4_work);

template <enum form FORM, int G> static u4_kernel kernel_of(enum output output)
{
    switch (output) {
    case OUTPUT_SWIGLU: return product_u4_sm90_kernel<FORM, OUTPUT_SWIGLU, G>;
    case OUTPUT_BF16: return product_u4_sm90_kernel<FORM_LISTED, OUTPUT_BF16, G>;
    case OUTPUT_QUERY: return product_u4_sm90_kernel<FORM_PLAIN, OUTPUT_QUERY, G>;
    default: return product_u4_sm90_kernel<FORM, OUTPUT_FLOAT, G>;
    }
}

template <int G> static u4_kernel find_kernel(enum form form, enum output output)
{
    switch (form) {
    case FORM_PLAIN: return kernel_of<FORM_PLAIN, G>(output);
    case FORM_LISTED: return kernel_of<FORM_LISTED, G>(output);
    default: return kernel_of<FORM_GATHER, G>(output);
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
    ASSERT(product_u4_takes(a.pack) && (!a.tasks || a.in_divisor > 0));
    struct u4_work u = {};
    uint32_t n_block;
    cudaError_t e = make_work(&u.w, &n_block, a, n_tile, limits.n_sm);
    if (e != cudaSuccess || !n_block) return e;
    u.form = u4_form_of(a.pack);
    const bool one = a.pack.n_group == 1;
    u4_kernel kernel =
        one ? find_kernel<1>(form_of(a), output_of(a)) : find_kernel<2>(form_of(a), output_of(a));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_block);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = one ? sizeof(struct u4_stages<1>) : sizeof(struct u4_stages<2>);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, u);
}

template <int G> static cudaError_t init_kernels(void)
{
    for (enum form form : {FORM_PLAIN, FORM_LISTED, FORM_GATHER}) {
        for (enum output output : {OUTPUT_FLOAT, OUTPUT_BF16, OUTPUT_SWIGLU, OUTPUT_QUERY}) {
            cudaError_t e = cudaFuncSetAttribute(find_kernel<G>(form, output),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 sizeof(struct u4_stages<G>));
            if (e != cudaSuccess) return e;
        }
    }
    return cudaSuccess;
}

cudaError_t product_u4_sm90_init(void)
{
    cudaError_t e = init_kernels<1>();
    return e == cudaSuccess ? init_kernels<2>() : e;
}

/* product_e2m1.cu - matrix product of packed E2M1 weights for many rows on sm_90a
 *
 * As product_u4.cu: one warpgroup fills a ring, two multiply 64 outputs each, whose weights they
 * make bf16 in registers (e2m1.cuh), with rows of inputs as columns: up to 128 in steps of 32. The
 * tensor cores sum all of a part of K, so nothing is done to sums in between, and while one
 * warpgroup makes weights the other one's products run.
 *
 * A stage has a K line of inputs, 128 bf16 in two operands of 64, and two packed tiles:
 *
 *   empty --- copies on their way; full: their bytes, and the arrivals of all who copy ---> full
 *   full ---- read by every warp that multiplies ---> empty
 *
 * A thread's sums have outputs along the warpgroup's 64 and rows across; STORE_ROWS rows at a time
 * they change places among the warp's lanes in shared memory, and a row's 16 outputs are written
 * together. Warpgroups do not wait for each other. */
#include "backend/cuda/sm90/product_e2m1.cuh"

#include "backend/cuda/e2m1.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"

enum {
    N_STAGE = 5,
    TILES = BN / PACK4_ROWS, /* packed ones of a tile */
    HALVES = sizeof(bf16),   /* operands of a K line of inputs */
    HALF_BYTES = BM * BK,
    STORE_ROWS = 32,
    STORE_PITCH = WARP_ROWS + 4, /* no access of a warp meets a bank twice */
};
static_assert((int)PACK4_ROWS == (int)GROUP_ROWS && (int)TILES == 2, "a warpgroup has a tile");
static_assert((int)PACK4_COLS == (int)BK && (int)STORE_ROWS == (int)WARP, "a lane knows a row");

/* G: groups of a row in a packed tile */
template <int G> static __host__ __device__ constexpr uint32_t packed_bytes(void)
{
    return PACK4_CODE_BYTES + G * PACK4_ROWS;
}

template <int G> struct alignas(ALIGN_BYTES) e2m1_stages {
    uint8_t in[N_STAGE][HALVES][HALF_BYTES];
    float out[CONSUMER_WARPS][STORE_ROWS * STORE_PITCH];
    uint8_t packed[N_STAGE][TILES][packed_bytes<G>()];
    uint64_t full[N_STAGE];
    uint64_t empty[N_STAGE];
    struct feed feed; /* mapped; all warps read */
    static_assert(packed_bytes<G>() % PIECE_BYTES == 0, "pieces");
};
static_assert(sizeof(struct e2m1_stages<8>) <= SHARED_MAX, "shared memory of a block");

/* ---- the warpgroup that loads ---- */

/* By one thread: packed tiles, and rows that lie one after the other. Tiles past the matrix are not
 * copied: what is multiplied instead is nobody's. */
template <enum form FORM, int G>
static __device__ __forceinline__ void load_tiles(const struct work &w, struct e2m1_stages<G> *s,
                                                  uint32_t stage, uint32_t k_line,
                                                  const struct task &t, uint32_t col)
{
    const uint32_t full = smem_address(&s->full[stage]), bytes = packed_bytes<G>();
    const uint32_t n_rows = t.n > GROUP_ROWS ? BM : GROUP_ROWS, first = col * TILES;
    const uint32_t n = min((uint32_t)TILES, ceil_div(w.a.n, PACK4_ROWS) - first);
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    mbarrier_arrive_expect(full, n * bytes + (FORM == FORM_GATHER ? 0 : n_rows * HALVES * BK));
    for (uint32_t i = 0; i < n; i++) {
        bulk_load(smem_address(s->packed[stage][i]),
                  from + ((size_t)(first + i) * w.n_k_line + k_line) * bytes, bytes, full);
    }
    for (uint32_t i = 0; i < HALVES && FORM == FORM_PLAIN; i++) {
        const uint32_t in = smem_address(s->in[stage][i]);
        const int x = (int)(k_line * HALVES + i) * BK;
        for (uint32_t row = 0; row < n_rows; row += GROUP_ROWS)
            tensor_load(in + row * BK, &w.in_map, full, x, t.first + (int)row, 0);
    }
}

template <enum form FORM, int G>
static __device__ __forceinline__ void produce(const struct work &w, struct e2m1_stages<G> *s)
{
    struct ring at = {0, 0};
    struct run_walk runs = begin_runs<FORM>(w);
    struct feed_source source = feed_begin();
    struct run r;
    if (FORM == FORM_PLAIN && threadIdx.x >= WARP) return;
    feed_run<FORM>(w, &s->feed, source, runs);
    for (;;) {
        feed_run<FORM>(w, &s->feed, source, runs);
        if (!next_run<FORM>(w, &s->feed, runs, r)) break;
        const struct task t = task_at<FORM>(w, r.row_tile);
        struct gather<GATHER_ROWS> g = {
        };
        if (FORM == FORM_GATHER) g = gather_of<GATHER_ROWS>(w, t);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance_of<N_STAGE>(at)) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (threadIdx.x == 0) load_tiles<FORM, G>(w, s, at.stage, k_line, t, col);
#pragma unroll
                for (uint32_t j = 0; j < HALVES && FORM == FORM_GATHER; j++) {
                    gather_k_line<GATHER_ROWS>(w, g, smem_address(s->in[at.stage][j]),
                                               k_line * HALVES + j);
                }
                if (FORM == FORM_GATHER) mbarrier_arrive_cp_async(smem_address(&s->full[at.stage]));
            }
        }
    }
    if (FORM != FORM_PLAIN && threadIdx.x == 0) feed_end(w.a.feed);
}

/* ---- the consumers ---- */

/* What a thread of them has on its way. */
struct e2m1_walk {
    struct ring at;
    uint32_t tile; /* of a stage's */
    uint32_t warp; /* of the warpgroup's */
    uint32_t lane;
    struct e2m1_lane of_tile;
    uint64_t in;  /* operand of stage 0 */
    float *store; /* the warp's room */
    /* in fours from the first output: where rows `lane` and every WARP rows on of the task begin */
    uint32_t row[BM / WARP];
};

enum { NO_ROW = -1 };

/* sum += the next K line */
template <enum form FORM, int G, int N>
static __device__ __forceinline__ void add_line(float (&sum)[N / 2], struct e2m1_stages<G> *s,
                                                struct e2m1_walk &u)
{
    const uint32_t stage = u.at.stage;
    const uint64_t in = u.in + stage * (sizeof s->in[0] >> 4);
    struct e2m1_step a[E2M1_STEPS / 2][2];
    wait_phase(&s->full[stage], u.at.parity);
    e2m1_line<G>((const char *)s->packed[stage][u.tile], u.of_tile, a);
    if (FORM == FORM_GATHER) async_proxy_fence();
    wgmma_fence();
#pragma unroll
    for (uint32_t i = 0; i < E2M1_STEPS; i++)
        wgmma_bf16_add(sum, a[i / 2][i % 2].v, in + (i / 4 * (HALF_BYTES >> 4) + i % 4 * 2));
    wgmma_commit();
    wgmma_wait(sum);
    __syncwarp();
    if (u.lane == 0) mbarrier_arrive(smem_address(&s->empty[stage]));
    advance_of<N_STAGE>(u.at);
}

/* Sums of N rows, times the matrix's scale, to their places in rows of the output. */
template <int N, bool ROUNDS>
static __device__ __forceinline__ void store_sums(const struct work &w, const struct e2m1_walk &u,
                                                  const float (&sum)[N / 2], float scale,
                                                  uint32_t col)
{
    enum { AT_ONCE = WARP / 4 }; /* rows whose 16 outputs a warp writes */
    const uint32_t g = u.lane / 4, t = u.lane % 4;
    const uint32_t row =
        u.lane / 8 + u.lane / 4 % 2 * 4; /* of those, in an order without conflicts */
    const uint32_t column = (col * TILES + u.tile) * PACK4_ROWS + u.warp * WARP_ROWS + t * 4;
    float4 *const out = (float4 *)w.a.out + column / 4;
    uint2 *const out_h = (uint2 *)w.a.out_h + column / 4;
    float *const to = u.store + 2 * t * STORE_PITCH + g;
    const float *const from = u.store + row * STORE_PITCH + t * 4;
#pragma unroll
    for (uint32_t i = 0; i < N / STORE_ROWS; i++) {
        __syncwarp();
#pragma unroll
        for (uint32_t j = 0; j < STORE_ROWS / 8; j++) {
            const float *v = sum + (i * (STORE_ROWS / 8) + j) * 4;
            float *const at = to + 8 * j * STORE_PITCH;
            at[0] = v[0] * scale;
            at[STORE_PITCH] = v[1] * scale;
            at[8] = v[2] * scale;
            at[STORE_PITCH + 8] = v[3] * scale;
        }
        __syncwarp();
#pragma unroll
        for (uint32_t j = 0; j < STORE_ROWS / AT_ONCE; j++) {
            const uint32_t begin = shfl(u.row[i], (int)(j * AT_ONCE + row));
            const float4 v = *(const float4 *)(from + j * AT_ONCE * STORE_PITCH);
            if (begin == (uint32_t)NO_ROW || column >= w.a.n) continue;
            if (ROUNDS) {
                out_h[begin] = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
            } else {
                out[begin] = v;
            }
        }
    }
}

/* A tile of up to N rows. Parts of K are added to zero one after the other; one, added to -0, is as
 * it is. */
template <enum form FORM, bool ROUNDS, int G, int N>
static __device__ __forceinline__ void make_tile(const struct work &w, struct e2m1_stages<G> *s,
                                                 struct e2m1_walk &u, int expert, uint32_t col)
{
    const uint32_t n_k_line = w.n_k_line / w.n_k_part;
    const uint32_t last = ceil_div(w.a.n, PACK4_ROWS) - 1;
    const float scale = w.a.w_scale[(uint32_t)expert * (uint32_t)w.a.w_scale_step +
                                    min(col * TILES + u.tile, last)] *
                        e2m1_factor<G>();
    float total[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) total[i] = w.n_k_part == 1 ? -0.0f : 0.0f;
    for (uint32_t i = 0; i < w.n_k_part; i++) {
        float sum[N / 2] = {};
        for (uint32_t j = 0; j < n_k_line; j++) add_line<FORM, G, N>(sum, s, u);
#pragma unroll
        for (int j = 0; j < N / 2; j++) total[j] += sum[j];
    }
    store_sums<N, ROUNDS>(w, u, total, scale, col);
}

template <int G>
static __device__ __forceinline__ struct e2m1_walk begin_walk(struct e2m1_stages<G> *s, int group)
{
    struct e2m1_walk u = {};
    u.tile = (uint32_t)group;
    u.warp = threadIdx.x / WARP % 4;
    u.lane = threadIdx.x % WARP;
    u.of_tile = e2m1_lane_of<G>(u.warp, u.lane);
    u.in = wgmma_operand(smem_address(s->in[0][0]));
    u.store = s->out[u.tile * 4 + u.warp];
    return u;
}

template <enum form FORM, bool ROUNDS, int G>
static __device__ __forceinline__ void consume(const struct work &w, struct e2m1_stages<G> *s,
                                               int group)
{
    struct e2m1_walk u = begin_walk<G>(s, group);
    struct run_walk runs = begin_runs<FORM>(w);
    struct run r;
    while (next_run<FORM>(w, &s->feed, runs, r)) {
        const struct task t = task_at<FORM>(w, r.row_tile);
#pragma unroll
        for (int j = 0; j < BM / WARP; j++) {
            const int row = j * WARP + (int)u.lane, entry = t.first + min(row, t.n - 1);
            const int to = FORM == FORM_PLAIN ? entry : w.a.rows[entry];
            u.row[j] = row < t.n ? (uint32_t)to * (w.a.out_stride / 4) : (uint32_t)NO_ROW;
        }
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (t.n > 96) {
                make_tile<FORM, ROUNDS, G, 128>(w, s, u, t.expert, col);
            } else if (t.n > 64) {
                make_tile<FORM, ROUNDS, G, 96>(w, s, u, t.expert, col);
            } else if (t.n > 32) {
                make_tile<FORM, ROUNDS, G, 64>(w, s, u, t.expert, col);
            } else {
                make_tile<FORM, ROUNDS, G, 32>(w, s, u, t.expert, col);
            }
        }
    }
}

template <enum form FORM, bool ROUNDS, int G>
__global__ void __launch_bounds__(THREADS, 1)
    product_e2m1_sm90_kernel(const __grid_constant__ struct work w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_DYNAMIC(unsigned char, shared);
    struct e2m1_stages<G> *s = (struct e2m1_stages<G> *)shared;
    const int group = shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (threadIdx.x == 0) {
        if (FORM == FORM_PLAIN) tensor_map_prefetch(&w.in_map);
        for (int i = 0; i < N_STAGE; i++) {
            mbarrier_init(smem_address(&s->full[i]), FORM == FORM_PLAIN ? 1 : 1 + GROUP_THREADS);
            mbarrier_init(smem_address(&s->empty[i]), CONSUMER_WARPS);
        }
        feed_init(&s->feed, THREADS / WARP);
        mbarrier_init_fence();
        async_proxy_fence();
    }
    __syncthreads();
    if (FORM == FORM_PLAIN) dependency_release();
    dependency_wait();
    if (FORM != FORM_PLAIN) dependency_release(); /* launch.cuh */
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<FORM, G>(w, s);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<FORM, ROUNDS, G>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

template <enum form FORM, bool ROUNDS, int G>
static cudaError_t launch(const struct work &w, uint32_t n_block, cudaStream_t stream)
{
    return gpu_launch({dim3(n_block), 1, THREADS, sizeof(struct e2m1_stages<G>), true}, stream,
                      product_e2m1_sm90_kernel<FORM, ROUNDS, G>, w);
}

template <int G>
static cudaError_t launch_form(const struct work &w, uint32_t n_block, cudaStream_t stream)
{
    if (!w.a.tasks) return launch<FORM_PLAIN, false, G>(w, n_block, stream);
    return w.a.out_h ? launch<FORM_GATHER, true, G>(w, n_block, stream)
                     : launch<FORM_GATHER, false, G>(w, n_block, stream);
}

cudaError_t product_e2m1_sm90(const struct product_args &a, uint32_t n_tile,
                              const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(a.pack.is_e2m1 && a.k % BK == 0 && a.n % 4 == 0 && a.out_stride % 4 == 0);
    ASSERT(a.h && a.w_scale && !a.in_rows && !a.in_listed && !a.out_q && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.h % 16 == 0 && (uintptr_t)a.out % 16 == 0);
    ASSERT(a.tasks ? a.in_divisor > 0 && a.feed : a.out && !a.out_h);
    ASSERT((uint64_t)a.n_token * a.out_stride / 4 < UINT32_MAX);
    struct work w;
    uint32_t n_block;
    cudaError_t e = make_work(&w, &n_block, a, n_tile, limits.n_sm);
    if (e != cudaSuccess || !n_block) return e;
    return a.pack.n_group == 8 ? launch_form<8>(w, n_block, stream)
                               : launch_form<4>(w, n_block, stream);
}

template <enum form FORM, bool ROUNDS, int G> static cudaError_t init_kernel(void)
{
    return raise_shared(product_e2m1_sm90_kernel<FORM, ROUNDS, G>, sizeof(struct e2m1_stages<G>));
}

template <int G> static cudaError_t init_kernels(void)
{
    cudaError_t e = init_kernel<FORM_PLAIN, false, G>();
    if (e == cudaSuccess) e = init_kernel<FORM_GATHER, false, G>();
    return e == cudaSuccess ? init_kernel<FORM_GATHER, true, G>() : e;
}

cudaError_t product_e2m1_sm90_init(void)
{
    cudaError_t e = init_kernels<8>();
    return e == cudaSuccess ? init_kernels<4>() : e;
}

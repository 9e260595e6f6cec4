/* product_fp8_kernel.cuh - matrix product of codes for many rows on sm_90a: its kernel, which
 * product_fp8.cu has for FP8 weights and product_int8.cu for int8
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
 * U4 weights whose codes have been made E4M3 (product_u4_turned.cu) have a scale an output and K
 * line: those of a tile come with the stage, as F16, and a thread reads its 32 in front of the wait
 * for the K line's sum.
 *
 * Int8 is summed exactly: a K line, or with scales of rows all of K, of which one K line is in the
 * tensor cores while the next one's products begin. Nothing is scaled then but what leaves a tile.
 *
 * What leaves a tile: sums as they are; rounded to bf16, of queries with their rotary parts turned
 * before; or, of gate and up, the codes of their SwiGLU. There a tile of weights is 64 rows of gate
 * and the 64 of up that belong to them, so that a thread has both of a value, and two tiles, one
 * after the other, make a group of codes.
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
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_KERNEL_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_KERNEL_CUH

#include "backend/cuda/k_parts.h"
#include "backend/cuda/sm90/product_fp8_store.cuh"
#include "backend/cuda/sm90/product_fp8_sum.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"
#include "backend/cuda/sm90/stage.cuh"

/* ---- the producers ---- */

/* The tensor maps' copies of one stage, by one thread. Rows past the task that come along, and
 * those of a warpgroup without any, are no one's. */
template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void load_tiles(const struct work &w, struct stages *s,
                                                  uint32_t stage, uint32_t k_line,
                                                  const struct task &t, uint32_t col)
{
    const bool both = t.n > GROUP_ROWS;
    const uint32_t full = smem_address(&s->full[stage]), in = smem_address(s->in[stage]);
    const uint32_t weights = smem_address(s->w[stage]);
    const int x = (int)k_line * BK;
    const uint32_t n_in = FORM == FORM_GATHER ? 0 : both ? BM : GROUP_ROWS;
    const uint32_t n_half = WEIGHTS == WEIGHTS_U4 ? sizeof s->halves[0] : 0;
    mbarrier_arrive_expect(full, (BN + n_in) * BK + n_half);
    const char *from = (const char *)w.a.w + (size_t)t.expert * w.a.w_stride;
    for (uint32_t i = 0; i < BN / TILE_ROWS; i++) {
        uint32_t tile = (uint32_t)col * (BN / TILE_ROWS) + i;
        if (OUTPUT == OUTPUT_SWIGLU) tile = (uint32_t)col + i * (w.a.n / 2 / PAIR_COLS);
        weight_load(weights + i * TILE_BYTES, from, full, w.n_k_line, k_line, tile);
        if (WEIGHTS == WEIGHTS_U4) {
            bulk_load(smem_address(s->halves[stage][i]),
                      from + w.a.w_stride + turned_scales_at(tile, k_line, w.n_k_line),
                      TURNED_SCALE_BYTES, full);
        }
    }
    if (FORM == FORM_GATHER) return;
    tensor_load(in, &w.in_map, full, x, t.first, 0);
    if (both) tensor_load(in + GROUP_ROWS * BK, &w.in_map, full, x, t.first + GROUP_ROWS, 0);
}

template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
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
        struct gather<GATHER_ROWS> g;
        if (FORM == FORM_GATHER) g = gather_of<GATHER_ROWS>(w, t);
        for (uint32_t col = r.col; col < r.col_end; col++) {
            for (uint32_t k_line = 0; k_line < w.n_k_line; k_line++, advance_of<STAGES>(at)) {
                wait_phase(&s->empty[at.stage], at.parity ^ 1);
                if (thread == 0) load_tiles<FORM, OUTPUT, WEIGHTS>(w, s, at.stage, k_line, t, col);
                if (FORM != FORM_GATHER) continue;
                gather_k_line<GATHER_ROWS>(w, g, smem_address(s->in[at.stage]), k_line);
                mbarrier_arrive_cp_async(smem_address(&s->full[at.stage]));
            }
        }
    }
}

/* ---- the consumers ---- */

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, enum weights WEIGHTS>
static __device__ __forceinline__ void consume(const struct work &w, struct stages *s, int group)
{
    const int warp = (int)threadIdx.x / WARP % 4;
    struct walk x = {};
    x.lane = threadIdx.x % WARP;
    x.in = wgmma_operand(smem_address(s->in[0]) + (uint32_t)(group * GROUP_ROWS * BK));
    x.weight = wgmma_operand(smem_address(s->w[0]));
    look_ahead(s, x);
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
    const bool whole = WEIGHTS == WEIGHTS_INT8_ROW; /* nothing is scaled on the way */
    x.here = find_scales<FORM>(w, t, row);
    if (!whole) {
        constexpr enum output SCALES = scales_of_output(OUTPUT, WEIGHTS);
        x.ahead = load_scales<FORM, SCALES, WEIGHTS>(w, x.here, r.col, 0, x.lane);
    }
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
        const float in_first = whole ? in_scale<FORM>(w, x.here.first) : 0.0f;
        const float in_second = whole ? in_scale<FORM>(w, x.here.second) : 0.0f;
        for (uint32_t col = r.col; col < r.col_end; col++) {
            if (group * GROUP_ROWS >= t.n) {
                pass_tile<FORM, OUTPUT, WEIGHTS>(w, s, x, col, r.col_end);
                continue;
            }
            if constexpr (WEIGHTS == WEIGHTS_INT8_ROW) {
                sum_int8_tile<FORM, OUTPUT>(w, s, x, total);
            } else {
                sum_tile<FORM, OUTPUT, ONE_K_PART, WEIGHTS>(w, s, x, total, k_part, col, r.col_end);
            }
            x.summed = {out,
                        col,
                        min((uint32_t)BN, w.a.n - col * BN),
                        has_row_scales(WEIGHTS) ? (uint32_t)t.expert * (uint32_t)w.a.row_scale_step
                                                : 0,
                        in_first,
                        in_second};
            if (whole) x.summed.columns = column_scales<OUTPUT>(w, x);
        }
        x.here = x.next;
        r = r_next;
        t = t_next;
        r_next = r_after;
        t_next = t_after;
    }
    if (!x.summed.n) return;
    add_part(total, k_part, !ONE_K_PART && !whole && w.n_k_part > 1);
    store_tile<FORM, OUTPUT, WEIGHTS>(w, x, total);
    if (x.lane == 0) bulk_wait();
}

template <enum form FORM, enum output OUTPUT, bool ONE_K_PART, enum weights WEIGHTS>
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
        registers_lower<producer_registers(WEIGHTS)>();
        produce<FORM, OUTPUT, WEIGHTS>(w, s);
    } else {
        registers_raise<consumer_registers(ONE_K_PART, WEIGHTS)>();
        consume<FORM, OUTPUT, ONE_K_PART, WEIGHTS>(w, s, group - 1);
    }
#endif
}

/* ---- the host ---- */

typedef void (*product_kernel)(struct work);

static cudaError_t launch(const struct work &w, product_kernel kernel, uint32_t n_block,
                          cudaStream_t stream)
{
    return gpu_launch({dim3(n_block), 1, THREADS, sizeof(struct stages), true}, stream, kernel, w);
}

#endif

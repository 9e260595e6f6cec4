/* product_u4_turned.cu - product of packed U4 weights for very many rows on sm_90a: codes are made
 * E4M3 once, not by every tile of rows
 *
 * Two launches. The first makes a tiled matrix of the codes less their zeros, and puts the scales
 * behind it (TURNED_FACTOR, product.cuh). The second is product_fp8_kernel.cuh with a scale an
 * output and K line. A weight is what product_u4.cu multiplies, a K line's sum is multiplied by the
 * same number, and K is cut and added up in the same order: so are the bits. */
#include "backend/cuda/sm90/product_u4_turned.cuh"

#include "backend/cuda/sm90/product_fp8_kernel.cuh"
#include "backend/cuda/sm90/u4.cuh"

enum {
    TURN_THREADS = 256,
    TURN_TILES = TURN_THREADS / 128, /* of a block: four warps a tile */
    TURN_WARP_BYTES = TILE_BYTES / 4,
};
static_assert((int)TILE_ROWS == (int)PACK4_ROWS && (int)K_LINE_BYTES == (int)PACK4_COLS,
              "a packed tile is a tile");

struct turn {
    const char *from; /* packed tiles */
    uint8_t *to;
    uint8_t *scales;
    struct u4_form form;
    uint32_t tile_bytes;
    uint32_t n_k_line;
    uint32_t n_from; /* packed tiles; those behind are turned to zeros */
    uint32_t n_to;
};

/* The scales of a tile, two columns a lane. */
static __device__ __forceinline__ void turn_scales(const struct turn &a, uint32_t tile,
                                                   uint32_t lane)
{
    const uint32_t j = lane / 16 * 4 + lane % 4, col = j * 8 + lane / 4 % 4 * 2;
    const char *from = a.from + (size_t)tile * a.tile_bytes + PACK4_CODE_BYTES;
    const size_t to = turned_scales_at(tile / a.n_k_line, tile % a.n_k_line, a.n_k_line);
    *(uint32_t *)(a.scales + to + lane * 4) = *(const uint32_t *)(from + col * 2);
}

__global__ void __launch_bounds__(TURN_THREADS) turn_u4_kernel(const struct turn a)
{
    alignas(16) __shared__ uint8_t turned[TURN_THREADS / WARP][TURN_WARP_BYTES];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t tile = blockIdx.x * TURN_TILES + warp / 4;
    dependency_release();
    const bool has = tile < a.n_from;
    const char *from = a.from + (size_t)(has ? tile : 0) * a.tile_bytes;
    const uint4 *at = (const uint4 *)(from + warp % 4 * 1024) + lane;
    const uint4 words[2] = {at[0], at[WARP]};
    u4_turn_rows<1>(a.form, from, words, turned[warp]);
    __syncwarp();
    dependency_wait(); /* for who reads the room */
    if (tile >= a.n_to) return;
    const uint4 *mine = (const uint4 *)turned[warp] + lane;
    uint4 *to = (uint4 *)(a.to + (size_t)tile * TILE_BYTES + warp % 4 * TURN_WARP_BYTES) + lane;
#pragma unroll
    for (uint32_t i = 0; i < TURN_WARP_BYTES / sizeof(uint4); i += WARP)
        to[i] = has ? mine[i] : make_uint4(0, 0, 0, 0);
    if (has && warp % 4 == 0) turn_scales(a, tile, lane);
}

bool product_u4_turns(const struct pack4 &p)
{
    return p.tile_bytes && !p.is_e2m1 && p.n_group == 1 && p.scale_type == DTYPE_F16;
}

size_t product_u4_turned_bytes(uint32_t n_row, uint32_t k)
{
    ASSERT(n_row > 0 && k % K_LINE_BYTES == 0);
    const size_t n_tile = ceil_div(n_row, SCALE_BLOCK) * (SCALE_BLOCK / TILE_ROWS);
    return tiled_bytes(n_row, k) + n_tile * (k / K_LINE_BYTES) * TURNED_SCALE_BYTES;
}

static cudaError_t launch_turn(const struct product_args &a, uint8_t *room, cudaStream_t stream)
{
    struct turn t = {};
    t.from = (const char *)a.w;
    t.to = room;
    t.scales = room + tiled_bytes(a.n, a.k);
    t.form = u4_form_of(a.pack, false);
    t.tile_bytes = a.pack.tile_bytes;
    t.n_k_line = a.k / K_LINE_BYTES;
    t.n_from = (uint32_t)pack4_tile_rows(a.n) * t.n_k_line;
    t.n_to = (uint32_t)(tiled_bytes(a.n, a.k) / TILE_BYTES);
    ASSERT(t.n_from <= t.n_to);
    return gpu_launch({dim3(ceil_div(t.n_to, TURN_TILES)), 1, TURN_THREADS, 0, true}, stream,
                      turn_u4_kernel, t);
}

/* Those that write codes or bf16 take one part of K as one of several. */
static product_kernel kernel_of(enum output output, bool one_k_part)
{
    switch (output) {
    case OUTPUT_SWIGLU:
        return product_fp8_sm90_kernel<FORM_PLAIN, OUTPUT_SWIGLU, false, WEIGHTS_U4>;
    case OUTPUT_QUERY: return product_fp8_sm90_kernel<FORM_PLAIN, OUTPUT_QUERY, false, WEIGHTS_U4>;
    default: break;
    }
    return one_k_part ? product_fp8_sm90_kernel<FORM_PLAIN, OUTPUT_FLOAT, true, WEIGHTS_U4>
                      : product_fp8_sm90_kernel<FORM_PLAIN, OUTPUT_FLOAT, false, WEIGHTS_U4>;
}

cudaError_t product_u4_turned(const struct product_args &a, void *room, uint32_t n_tile,
                              const struct sm90_limits &limits, cudaStream_t stream)
{
    ASSERT(product_u4_turns(a.pack) && !a.tasks && room && (uintptr_t)room % 16 == 0);
    ASSERT(a.k % BK == 0 && a.n % 16 == 0 && a.out_stride % 4 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0 && (uintptr_t)a.out % 16 == 0);
    cudaError_t e = launch_turn(a, (uint8_t *)room, stream);
    if (e != cudaSuccess) return e;
    struct product_args turned = a;
    turned.w = room;
    turned.w_stride = tiled_bytes(a.n, a.k);
    turned.tiled = true;
    turned.pack = {};
    struct work w;
    uint32_t n_block;
    e = make_work(&w, &n_block, turned, n_tile, limits.n_sm);
    if (e != cudaSuccess || !n_block) return e;
    return launch(w, kernel_of(output_of(turned), w.n_k_part == 1), n_block, stream);
}

cudaError_t product_u4_turned_init(void)
{
    for (enum output output : {OUTPUT_FLOAT, OUTPUT_SWIGLU, OUTPUT_QUERY}) {
        for (bool one_k_part : {false, true}) {
            cudaError_t e = cudaFuncSetAttribute(kernel_of(output, one_k_part),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 sizeof(struct stages));
            if (e != cudaSuccess) return e;
        }
    }
    return cudaSuccess;
}

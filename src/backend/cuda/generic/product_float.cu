/* product_float.cu - matrix product with f32 activations and weights of any type, on any GPU
 *
 * Block: 64 rows x 64 outputs, 256 threads of 4 x 4, K in steps of 16 through shared memory. Sums
 * run over k in ascending order in one f32 accumulator, whatever the tile. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/unpack4.cuh"

enum { TILE = PRODUCT_FLOAT_TILE, STEP = 16, THREADS = 256 };
static_assert(TILE * TILE == THREADS * 4 * 4 && TILE == 16 * 4, "a thread sums 4 x 4");

template <enum dtype DT>
static __device__ __forceinline__ float
weight_at(const struct product_args &a, const struct product_rows &p, uint32_t n, uint32_t k)
{
    size_t at = (size_t)n * a.k + k;
    DCHECK(n < a.n && k < a.k);
    if constexpr (DT == DTYPE_U8)
        return pack4_value(a.pack, p.w, ceil_div(a.k, SCALE_BLOCK), p.w_scale, n, k);
    if constexpr (DT == DTYPE_I8 || DT == DTYPE_F8_E4M3) {
        const float s =
            p.w_scale[(a.row0 + n) / a.block_row * a.scale_stride + (a.col0 + k) / a.block_col];
        if constexpr (DT == DTYPE_I8)
            return (float)((const int8_t *)p.w)[at] * s;
        else
            return stored_value<DT>(p.w, at) * s;
    }
    if constexpr (DT == DTYPE_F32 || DT == DTYPE_BF16) return stored_value<DT>(p.w, at);
}

template <enum dtype DT>
__global__ void __launch_bounds__(THREADS) product_float_kernel(const struct product_args a)
{
    __shared__ float x[STEP][TILE + 4], w[STEP][TILE + 4];
    kernel_begin();
    struct product_rows p = product_rows_of(a, (int)blockIdx.y, TILE);
    if (p.n <= 0) return;
    uint32_t n0 = blockIdx.x * TILE;
    int tr = (int)threadIdx.x / 16, tn = (int)threadIdx.x % 16;
    float acc[4][4] = {};
    for (uint32_t k0 = 0; k0 < a.k; k0 += STEP) {
        for (int i = (int)threadIdx.x; i < TILE * STEP; i += THREADS) {
            int row = i / STEP, kk = i % STEP;
            bool k_ok = k0 + (uint32_t)kk < a.k;
            float v =
                row < p.n && k_ok ? a.f[(size_t)in_row(a, p, row) * a.k + k0 + (uint32_t)kk] : 0.0f;
            x[kk][row] = a.round ? to_bf16_and_back(v) : v;
            w[kk][row] = n0 + (uint32_t)row < a.n && k_ok
                             ? weight_at<DT>(a, p, n0 + (uint32_t)row, k0 + (uint32_t)kk)
                             : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < STEP; kk++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    acc[i][j] = fmaf(x[kk][tr * 4 + i], w[kk][tn * 4 + j], acc[i][j]);
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        int row = tr * 4 + i;
        if (row >= p.n) continue;
        float *out = a.out + (size_t)out_row(p, row) * a.out_stride;
        for (int j = 0; j < 4; j++) {
            uint32_t n = n0 + (uint32_t)(tn * 4 + j);
            if (n < a.n) out[n] = acc[i][j];
        }
    }
}

fathom_err product_float(struct cuda_backend *c, const struct product_args &a, enum dtype dtype,
                         uint32_t n_tile, const char *what)
{
    dim3 grid(ceil_div(a.n, TILE), n_tile);
    ASSERT(a.f && a.w && a.out);
    ASSERT((dtype != DTYPE_F8_E4M3 && dtype != DTYPE_I8) || a.w_scale);
    ASSERT(dtype != DTYPE_U8 || a.pack.tile_bytes > 0);
    switch (dtype) {
    case DTYPE_U8: return cuda_launch(c, what, product_float_kernel<DTYPE_U8>, grid, THREADS, 0, a);
    case DTYPE_I8: return cuda_launch(c, what, product_float_kernel<DTYPE_I8>, grid, THREADS, 0, a);
    case DTYPE_F32:
        return cuda_launch(c, what, product_float_kernel<DTYPE_F32>, grid, THREADS, 0, a);
    case DTYPE_BF16:
        return cuda_launch(c, what, product_float_kernel<DTYPE_BF16>, grid, THREADS, 0, a);
    default: return cuda_launch(c, what, product_float_kernel<DTYPE_F8_E4M3>, grid, THREADS, 0, a);
    }
}

/* weight_make.cu - values, codes and scales of weights that are made up */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/unpack4.cuh"

extern "C" {
#include "base/rng.h"
}

/* MADE_CODES: codes of four bits in a draw */
enum { THREADS = 256, MADE_CODES = 16 };
static_assert(THREADS / WARP <= WARP, "generate_fp8_kernel keeps a value a warp");

/* ---- generated values: a hash of (seed, row, column), normal by Box and Muller ---- */

static __device__ __forceinline__ uint32_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x >> 32);
}

static __device__ __forceinline__ float normal_at(uint64_t seed, uint64_t i)
{
    uint32_t a = mix(seed * 0x9e3779b97f4a7c15ull + i * 2);
    uint32_t b = mix(seed * 0x9e3779b97f4a7c15ull + i * 2 + 1);
    float u = ((float)(a >> 8) + 0.5f) * 0x1p-24f, v = (float)(b >> 8) * 0x1p-24f;
    return sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v);
}

/* One block a 128 x 128 square: values, their scale, their codes. Element (r, c) is number
 * first + r * stride + c of the whole matrix. */
__global__ void generate_fp8_kernel(uint8_t *q, bool tiled, float *scale, uint32_t n_row,
                                    uint32_t n_col, uint64_t first, uint64_t stride,
                                    uint32_t scale_stride, uint64_t seed, float std)
{
    __shared__ float scratch[THREADS / WARP];
    kernel_begin();
    enum { SIDE = SCALE_BLOCK, AREA = SIDE * SIDE };
    uint32_t r0 = blockIdx.y * SIDE, c0 = blockIdx.x * SIDE;
    float amax = 0.0f;
    for (uint32_t i = threadIdx.x; i < AREA; i += blockDim.x) {
        uint32_t r = r0 + i / SIDE, col = c0 + i % SIDE;
        if (r < n_row && col < n_col) {
            amax = fmaxf(amax, fabsf(std * normal_at(seed, first + r * stride + col)));
        }
    }
    amax = warp_max(amax);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = amax;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / WARP; i++) amax = fmaxf(amax, scratch[i]);
    float s = fp8_scale(amax);
    if (threadIdx.x == 0) scale[blockIdx.y * scale_stride + blockIdx.x] = s;
    for (uint32_t i = threadIdx.x; i < AREA; i += blockDim.x) {
        uint32_t r = r0 + i / SIDE, col = c0 + i % SIDE;
        if (r < n_row && col < n_col) {
            const uint64_t at = tiled ? tiled_at(r, col, n_col) : (uint64_t)r * n_col + col;
            q[at] = float_to_e4m3(std * normal_at(seed, first + r * stride + col) / s);
        }
    }
}

template <typename T>
__global__ void generate_kernel(T *p, bool tiled, uint64_t n, uint32_t n_col, uint64_t first,
                                uint64_t stride, uint64_t seed, float std)
{
    enum { SIZE = sizeof(T) };
    kernel_begin();
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t row = i / n_col, col = i % n_col;
        const uint64_t at =
            tiled ? tiled_at((uint32_t)row, (uint32_t)col * SIZE, n_col * SIZE) / SIZE : i;
        p[at] = (T)(std * normal_at(seed, first + row * stride + col));
    }
}

/* Codes that end at +-127, of the scale that tensor_view_scale says of them. */
__global__ void generate_i8_kernel(int8_t *q, bool tiled, uint64_t n, uint32_t n_col,
                                   uint64_t first, uint64_t stride, uint64_t seed,
                                   float std_in_scales)
{
    kernel_begin();
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint32_t row = (uint32_t)(i / n_col), col = (uint32_t)(i % n_col);
        const float v = std_in_scales * normal_at(seed, first + row * stride + col);
        q[tiled ? tiled_at(row, col, n_col) : i] = (int8_t)rintf(fminf(fmaxf(v, -127.0f), 127.0f));
    }
}

__global__ void fill_kernel(float *p, uint64_t n, float value)
{
    kernel_begin();
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = value;
}

/* What weight_source_make makes up, packed: the codes and scales are pack4_rows', bit for bit. The
 * view's rows and columns begin at row0 and col0 of the whole matrix. */
struct made_pack {
    struct pack4 pack;
    uint64_t seed;
    float global;
    uint32_t block_col; /* 0: all */
    uint32_t n_row, n_col, row0, col0;
};

/* The bits of the f16 nearest to v, which is not negative nor beyond its range. */
static __device__ uint16_t f16_bits(float v)
{
    const uint32_t u = __float_as_uint(v);
    if (v < 0x1p-14f) return (uint16_t)rintf(v * 0x1p24f);
    return (uint16_t)(((u + 0xfffu + (u >> 13 & 1u)) >> 13) - (112u << 10));
}

/* That of scale `at`, and its zero. */
static __device__ void store_made_scale(const struct made_pack &m, uint64_t bits, uint8_t *tile,
                                        uint32_t at)
{
    const float f = 0.75f + (float)(bits & 255) / 512.0f;
    uint8_t *to = tile + PACK4_CODE_BYTES;
    switch (m.pack.scale_type) {
    case DTYPE_F32: ((float *)to)[at] = f * m.global; break;
    case DTYPE_F16: ((uint16_t *)to)[at] = f16_bits(f * m.global); break; /* f has 9 bits */
    case DTYPE_BF16: ((bf16 *)to)[at] = float_to_bf16(to_bf16_and_back(f) * m.global); break;
    case DTYPE_F8_E4M3: to[at] = pack4_e4m3_scale(float_to_e4m3(f)); break;
    default: to[at] = pack4_exponent_scale(__float_as_uint(m.global) >> 23);
    }
    if (m.pack.has_zero) tile[pack4_zeros_at(&m.pack) + at] = (uint8_t)(6 + (bits >> 8 & 3));
}

/* The 16 codes of a row from column `col` on, which is a multiple of 16. */
static __device__ uint64_t made_codes(const struct made_pack &m, uint32_t row, uint32_t col)
{
    if (row >= m.n_row || col >= m.n_col) return 0;
    return rng_mix(m.seed, m.row0 + row, (m.col0 + col) / MADE_CODES);
}

/* Codes of U4: 16 columns from `c` on of rows r and r + 8 of a tile, which begins at (row0, col0).
 */
static __device__ void make_u4(const struct made_pack &m, uint8_t *tile, uint32_t row0,
                               uint32_t col0, uint32_t r, uint32_t c)
{
    const uint64_t low = made_codes(m, row0 + r, col0 + c);
    const uint64_t high = made_codes(m, row0 + r + 8, col0 + c);
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t shift;
        const uint32_t at = pack4_code_at(r, c + i, &shift);
        tile[at] = (uint8_t)((low >> 4 * i & 15) | (high >> 4 * i & 15) << 4);
    }
}

/* Codes of E2M1: of 32 columns and the same rows those that two of the four lanes have who share
 * them. */
static __device__ void make_e2m1(const struct made_pack &m, uint8_t *tile, uint32_t row0,
                                 uint32_t col0, uint32_t r, uint32_t c)
{
    const uint32_t first = c / 32 * 32;
    for (uint32_t t = c % 32 / 8; t < c % 32 / 8 + 2; t++) {
        uint64_t words = 0;
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t row = r + i / 8 * 8, col = i % 8 / 2 * 8 + 2 * t + i % 2;
            const uint64_t codes = made_codes(m, row0 + row, col0 + first + col / 16 * 16);
            words |= pack4_e2m1_bits(row % 16, col, codes >> col % 16 * 4 & 15);
        }
        *(uint64_t *)(tile + pack4_e2m1_at(r, first, t)) = words;
    }
}

/* A block makes tiles one after the other: a thread 16 columns of rows g and g + 8. */
__global__ void generate_packed_kernel(uint8_t *tiles, uint32_t n_tile, const struct made_pack m)
{
    enum { WORDS = PACK4_COLS / 16, GROUP_ROWS = 8 };
    static_assert(THREADS == PACK4_ROWS / 2 * WORDS, "a thread makes 16 columns of two rows");
    const uint32_t n_k_line = ceil_div(m.n_col, PACK4_COLS), group = PACK4_COLS / m.pack.n_group;
    const uint32_t word = threadIdx.x % WORDS, g = threadIdx.x / WORDS % GROUP_ROWS;
    const uint32_t r = threadIdx.x / (WORDS * GROUP_ROWS) * 16 + g;
    kernel_begin();
    for (uint32_t i = blockIdx.x; i < n_tile; i += gridDim.x) {
        const uint32_t row0 = i / n_k_line * PACK4_ROWS, col = i % n_k_line * PACK4_COLS;
        uint8_t *tile = tiles + (size_t)i * m.pack.tile_bytes;
        if (m.pack.is_e2m1)
            make_e2m1(m, tile, row0, col, r, word * 16);
        else
            make_u4(m, tile, row0, col, r, word * 16);
        for (uint32_t at = threadIdx.x; at < m.pack.n_group * PACK4_ROWS; at += THREADS) {
            const uint32_t row = row0 + at % PACK4_ROWS, c = col + at / PACK4_ROWS * group;
            if (row >= m.n_row || c >= m.n_col) continue;
            const uint32_t block = m.block_col ? (m.col0 + c) / m.block_col : 0;
            store_made_scale(m, rng_mix(~m.seed, m.row0 + row, block), tile,
                             pack4_scale_index(&m.pack, at / PACK4_ROWS, at % PACK4_ROWS));
        }
    }
}

/* ---- launches ---- */

bool cuda_makes_packed(const struct tensor_view *v)
{
    return v->source->is_made && v->source_col0 % MADE_CODES == 0 && v->n_col % MADE_CODES == 0;
}

fathom_err cuda_make_packed(struct cuda_backend *c, const struct matrix *m, void *dst,
                            const struct tensor_view *v, const char *what)
{
    const struct weight_source *s = v->source;
    const struct made_pack p = {
        .pack = m->pack,
        .seed = s->made_seed,
        .global = s->global,
        .block_col = s->form.block_col,
        .n_row = v->n_row,
        .n_col = v->n_col,
        .row0 = v->source_row0,
        .col0 = v->source_col0,
    };
    ASSERT(cuda_makes_packed(v));
    const size_t n_tile = pack4_tile_rows(v->n_row) * ceil_div(v->n_col, PACK4_COLS);
    ASSERT(n_tile <= UINT32_MAX);
    return cuda_launch(c, what, generate_packed_kernel, dim3(walk_blocks(n_tile, 1)), THREADS, 0,
                       (uint8_t *)dst, (uint32_t)n_tile, p);
}

fathom_err cuda_fill_values(struct cuda_backend *c, float *to, uint64_t n, float value,
                            const char *what)
{
    return cuda_launch(c, what, fill_kernel, dim3(1), THREADS, 0, to, n, value);
}

static fathom_err generate_i8(struct cuda_backend *c, int8_t *q, const struct matrix *m,
                              float *scale, const struct tensor_view *v, const char *what)
{
    const uint64_t n = (uint64_t)v->n_row * v->n_col;
    const uint64_t n_scale = (uint64_t)ceil_div(v->n_row, m->block_row) * m->scale_stride;
    const uint64_t first = v->generate_row0 * v->row_stride + v->generate_col0;
    const float s = tensor_view_scale(v, 0, 0);
    ASSERT(scale && s > 0);
    TRY(cuda_fill_values(c, scale, n_scale, s, what));
    return cuda_launch(c, what, generate_i8_kernel, dim3(walk_blocks(n, THREADS)), THREADS, 0, q,
                       m->tiled, n, v->n_col, first, v->row_stride, v->generate_seed,
                       v->generate_std / s);
}

fathom_err cuda_make_values(struct cuda_backend *c, const struct matrix *m, void *data,
                            float *scale, const struct tensor_view *v, const char *what)
{
    const bool tiled = m->tiled;
    const uint32_t scale_stride = m->scale_stride;
    uint64_t n = (uint64_t)v->n_row * v->n_col;
    const uint64_t stride = v->row_stride;
    const uint64_t first = v->generate_row0 * stride + v->generate_col0;
    float std = v->generate_std;
    if (v->dtype == DTYPE_F8_E4M3) {
        ASSERT(scale && scale_stride >= ceil_div(v->n_col, SCALE_BLOCK));
        dim3 grid(ceil_div(v->n_col, SCALE_BLOCK), ceil_div(v->n_row, SCALE_BLOCK));
        return cuda_launch(c, what, generate_fp8_kernel, grid, THREADS, 0, (uint8_t *)data, tiled,
                           scale, v->n_row, v->n_col, first, stride, scale_stride, v->generate_seed,
                           std);
    }
    if (v->dtype == DTYPE_I8) return generate_i8(c, (int8_t *)data, m, scale, v, what);
    if (v->dtype == DTYPE_BF16) {
        return cuda_launch(c, what, generate_kernel<bf16>, dim3(walk_blocks(n, THREADS)), THREADS,
                           0, (bf16 *)data, tiled, n, v->n_col, first, stride, v->generate_seed,
                           std);
    }
    return cuda_launch(c, what, generate_kernel<float>, dim3(walk_blocks(n, THREADS)), THREADS, 0,
                       (float *)data, tiled, n, v->n_col, first, stride, v->generate_seed, std);
}

/* product_case.cuh - what product_bench.cu multiplies: generated operands, plain and mapped cases,
 * and the product that they are compared with */
#ifndef FATHOM_BENCH_PRODUCT_CASE_CUH
#define FATHOM_BENCH_PRODUCT_CASE_CUH

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_fp8.cuh"
#include "cuda_call.cuh"

enum { K_LINE = 128, GUARD_ROWS = 8, GUARD_COLS = 16, OWNED_MAX = 256 };

#define POISON 0x7fbadbadu

/* Weak: the backend's own, where this program is linked with all of it. */
__attribute__((weak)) fathom_err cuda_check(struct cuda_backend *c, cudaError_t e, const char *call,
                                            const char *what)
{
    (void)c;
    if (e == cudaSuccess) return FATHOM_OK;
    fprintf(stderr, "%s (%s): %s\n", call, what, cudaGetErrorString(e));
    return FATHOM_EDEVICE;
}

/* The device's limits, of a product for few rows and one for many. */
static struct sm90_limits base_limits(void)
{
    struct sm90_limits limits = {};
    int n_sm = 0;
    CUDA(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
    limits.n_sm = (uint32_t)n_sm;
    CUDA(product_few_init(&limits));
    CUDA(product_fp8_sm90_init());
    return limits;
}

static void *device_bytes(size_t n)
{
    void *p = NULL;
    CUDA(cudaMalloc(&p, n));
    return p;
}

static void *device_copy(const void *from, size_t n)
{
    void *p = device_bytes(n ? n : 1);
    CUDA(cudaMemcpy(p, from, n, cudaMemcpyHostToDevice));
    return p;
}

/* ---- generated operands ---- */

static __device__ uint32_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}

static __device__ float normal_at(uint64_t seed, uint64_t i)
{
    uint64_t at = (seed << 40) + i * 2 + 0x9e3779b97f4a7c15ull;
    float u = ((float)mix(at) + 1.0f) * 0x1p-32f, v = (float)mix(at + 1) * 0x1p-32f;
    return sqrtf(-2.0f * __logf(u)) * __cosf(6.2831853f * v);
}

/* Block: `rows` rows of one K line, quantized with one power-of-two scale. Blocks differ in size by
 * up to 2^5, so that a scale used in a wrong place shows. Weights lie in tiles. */
__global__ void generate_kernel(uint8_t *q, float *scale, uint32_t rows, uint32_t n_row, uint32_t k,
                                uint64_t seed)
{
    __shared__ float largest[8];
    const uint32_t n_k_line = k / K_LINE, k_line = blockIdx.x % n_k_line,
                   block = blockIdx.x / n_k_line;
    const float size = exp2f((float)(mix(seed * 77 + blockIdx.x) % 6u) - 5.0f);
    float amax = 0.0f;
    for (uint32_t i = threadIdx.x; i < rows * K_LINE; i += blockDim.x) {
        uint64_t at = (uint64_t)(block * rows + i / K_LINE) * k + k_line * K_LINE + i % K_LINE;
        amax = fmaxf(amax, fabsf(normal_at(seed, at) * size));
    }
    amax = warp_max(amax);
    if (threadIdx.x % WARP == 0) largest[threadIdx.x / WARP] = amax;
    __syncthreads();
    amax = 0.0f;
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) amax = fmaxf(amax, largest[i]);
    const float s = fp8_scale(amax);
    if (threadIdx.x == 0) scale[blockIdx.x] = s;
    for (uint32_t i = threadIdx.x; i < rows * K_LINE; i += blockDim.x) {
        uint64_t at = (uint64_t)(block * rows + i / K_LINE) * k + k_line * K_LINE + i % K_LINE;
        const uint32_t row = block * rows + i / K_LINE, col = k_line * K_LINE + i % K_LINE;
        if (row >= n_row) continue;
        q[rows == 1 ? at : tiled_at(row, col, k)] = float_to_e4m3(normal_at(seed, at) * size / s);
    }
}

static void generate(void *q, float *scale, uint32_t rows, uint32_t n_row, uint32_t k,
                     uint64_t seed)
{
    unsigned n_block = ceil_div(n_row, rows) * (k / K_LINE);
    generate_kernel<<<n_block, rows == 1 ? 32 : 256>>>((uint8_t *)q, scale, rows, n_row, k, seed);
    CUDA(cudaGetLastError());
}

__global__ void poison_kernel(uint32_t *p, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = POISON;
}

static void poison(float *p, size_t n)
{
    poison_kernel<<<(unsigned)((n + 255) / 256), 256>>>((uint32_t *)p, n);
}

/* ---- what the product is ---- */

enum { SIDE = 32 };

/* Block: 32 x 32 outputs of row tile blockIdx.y, quarter blockIdx.z. f32 inside a K line, double
 * across lines. */
__global__ void __launch_bounds__(256) plain_product_kernel(const struct product_args a)
{
    __shared__ float x[SIDE][K_LINE + 1], w[SIDE][K_LINE + 1];
    const struct product_rows p = product_rows_of(a, (int)blockIdx.y, PRODUCT_LARGE_TILE);
    const int r0 = (int)blockIdx.z * SIDE, tr = (int)threadIdx.x / SIDE,
              tc = (int)threadIdx.x % SIDE;
    if (r0 >= p.n) return;
    const uint32_t n0 = blockIdx.x * SIDE, n_k_line = a.k / K_LINE;
    double total[4] = {};
    for (uint32_t k_line = 0; k_line < n_k_line; k_line++) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < SIDE * K_LINE; i += 256) {
            int r = i / K_LINE, k = i % K_LINE;
            int in = in_row(a, p, min(r0 + r, p.n - 1));
            uint32_t n = min(n0 + (uint32_t)r, a.n - 1);
            x[r][k] = e4m3_to_float(a.q[(size_t)in * a.k + k_line * K_LINE + (uint32_t)k]);
            w[r][k] = e4m3_to_float(
                ((const uint8_t *)p.w)[tiled_at(n, k_line * K_LINE + (uint32_t)k, a.k)]);
        }
        __syncthreads();
        const uint32_t n = min(n0 + (uint32_t)tc, a.n - 1);
        const float ws =
            row_scaled(p, n, p.w_scale[(size_t)(n / K_LINE) * a.scale_stride + k_line]);
        for (int j = 0; j < 4; j++) {
            int r = tr + 8 * j;
            float sum = 0.0f;
            for (int k = 0; k < K_LINE; k++) sum = fmaf(x[r][k], w[tc][k], sum);
            int in = in_row(a, p, min(r0 + r, p.n - 1));
            total[j] += (double)sum * (double)(ws * a.q_scale[(size_t)in * n_k_line + k_line]);
        }
    }
    for (int j = 0; j < 4; j++) {
        int r = r0 + tr + 8 * j;
        uint32_t n = n0 + (uint32_t)tc;
        if (r < p.n && n < a.n) a.out[(size_t)out_row(p, r) * a.out_stride + n] = (float)total[j];
    }
}

struct tally {
    double error, norm; /* sums of squares */
    unsigned long long n, missing, stray, differing;
};

/* got against want, words of POISON in `want` being no output; `again` bit by bit against got */
__global__ void compare_kernel(const float *got, const float *want, size_t n, struct tally *t)
{
    __shared__ double scratch[2][8];
    double error = 0.0, norm = 0.0;
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < n; i += (size_t)gridDim.x * 256) {
        uint32_t g = __float_as_uint(got[i]), r = __float_as_uint(want[i]);
        if (r == POISON) {
            if (g != POISON) atomicAdd(&t->stray, 1ull);
            continue;
        }
        if (!isfinite(got[i])) {
            atomicAdd(&t->missing, 1ull);
            continue;
        }
        double d = (double)got[i] - (double)want[i];
        error += d * d;
        norm += (double)want[i] * (double)want[i];
        atomicAdd(&t->n, 1ull);
    }
    for (int d = 16; d > 0; d >>= 1) {
        error += __shfl_xor_sync(FULL_MASK, error, d);
        norm += __shfl_xor_sync(FULL_MASK, norm, d);
    }
    if (threadIdx.x % WARP == 0) {
        scratch[0][threadIdx.x / WARP] = error;
        scratch[1][threadIdx.x / WARP] = norm;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 8; i++) {
        error += scratch[0][i];
        norm += scratch[1][i];
    }
    atomicAdd(&t->error, error);
    atomicAdd(&t->norm, norm);
}

__global__ void differ_kernel(const uint32_t *a, const uint32_t *b, size_t n, struct tally *t)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && a[i] != b[i]) atomicAdd(&t->differing, 1ull);
}

/* ---- a case ---- */

struct problem {
    struct product_args a;
    uint32_t n_tile;
    uint32_t n_out_row;   /* rows of out, guard rows included */
    const int *expert_of; /* of a row; NULL: not mapped */
    uint32_t n_expert;
    uint32_t n_listed; /* rows of all tasks */
    void *owned[OWNED_MAX];
    uint32_t n_owned;
};

static void *own(struct problem *p, void *q)
{
    p->owned[p->n_owned++] = q;
    return q;
}

static void release(struct problem *p)
{
    for (uint32_t i = 0; i < p->n_owned; i++) CUDA(cudaFree(p->owned[i]));
    p->n_owned = 0;
}

/* Weights have a scale a row, in the place of those of squares. */
static bool by_row;

static void make_row_scales(struct problem *p, uint32_t n_expert)
{
    struct product_args *a = &p->a;
    const uint32_t n_k_line = a->k / K_LINE, n = a->n * n_expert;
    float *scale = (float *)calloc(n + n_k_line, sizeof *scale);
    for (uint32_t i = 0; i < n; i++) scale[i] = 0.01f * (float)(1 + i * 7919 % 100);
    for (uint32_t i = 0; i < n_k_line; i++) scale[n + i] = 1.0f;
    a->row_scale = (float *)own(p, device_copy(scale, (n + n_k_line) * sizeof *scale));
    a->row_scale_step = a->n;
    a->w_scale = a->row_scale + n;
    a->scale_stride = 0;
    a->w_scale_step = 0;
    free(scale);
}

static struct problem make_problem(uint32_t m, uint32_t n, uint32_t k, uint32_t n_expert,
                                   uint32_t in_rows, uint32_t guard_cols)
{
    struct problem p = {};
    const uint32_t n_block = ceil_div(n, K_LINE), n_k_line = k / K_LINE;
    struct product_args *a = &p.a;
    a->n = n;
    a->k = k;
    a->scale_stride = n_k_line;
    a->w_stride = tiled_bytes(n, k);
    a->tiled = true;
    a->w_scale_step = (size_t)n_block * n_k_line;
    a->w = own(&p, device_bytes(a->w_stride * n_expert));
    a->w_scale = (float *)own(&p, device_bytes(a->w_scale_step * n_expert * 4));
    for (uint32_t e = 0; e < n_expert; e++) {
        generate((char *)a->w + e * a->w_stride, (float *)a->w_scale + e * a->w_scale_step, K_LINE,
                 n, k, e + 1);
    }
    a->q = (uint8_t *)own(&p, device_bytes((size_t)in_rows * k));
    a->q_scale = (float *)own(&p, device_bytes((size_t)in_rows * n_k_line * 4));
    generate((void *)a->q, (float *)a->q_scale, 1, in_rows, k, 1000);
    if (by_row) make_row_scales(&p, n_expert);
    a->n_token = m;
    a->out_stride = n + guard_cols;
    a->in_divisor = 1;
    p.n_out_row = m + (guard_cols ? GUARD_ROWS : 0);
    p.n_tile = ceil_div(m, PRODUCT_LARGE_TILE);
    return p;
}

__global__ void pack_kernel(uint8_t *tiles, const struct pack4 pack, uint64_t seed)
{
    uint8_t *tile = tiles + (size_t)blockIdx.x * pack.tile_bytes;
    const uint32_t zeros_at = pack4_zeros_at(&pack);
    for (uint32_t i = threadIdx.x; i < pack.tile_bytes; i += blockDim.x) {
        const uint32_t draw = mix((seed << 40) + (uint64_t)blockIdx.x * pack.tile_bytes + i);
        uint8_t v = (uint8_t)draw;
        if (i >= zeros_at) {
            v = draw % 16;
        } else if (i >= PACK4_CODE_BYTES && i % 2) {
            v = 0x20 + draw % 8; /* of F16: 2^-7 to 2^-5 */
        }
        tile[i] = v;
    }
}

/* U4 weights in groups of a K line, with zeros, in the place of FP8's; inputs have their sums. */
static void make_u4(struct problem *p, uint32_t n_matrix, uint32_t in_rows)
{
    struct product_args *a = &p->a;
    const struct weight_form form = {.code = CODE_U4,
                                     .scale_type = DTYPE_F16,
                                     .block_row = 1,
                                     .block_col = K_LINE,
                                     .has_zero = true};
    a->pack = pack4_of(&form);
    a->tiled = false;
    a->w_scale = NULL;
    a->w_scale_step = 0;
    a->w_stride = pack4_bytes(&a->pack, a->n, a->k);
    a->w = own(p, device_bytes(a->w_stride * n_matrix));
    const unsigned n_tile = (unsigned)(a->w_stride / a->pack.tile_bytes * n_matrix);
    pack_kernel<<<n_tile, 256>>>((uint8_t *)a->w, a->pack, 7);
    CUDA(cudaGetLastError());
    const struct input_sums sums = {
        (float *)own(p, device_bytes((size_t)in_rows * (a->k / K_LINE) * 4)), K_LINE};
    struct cuda_backend c = {};
    CUDA(cudaGetDeviceProperties(&c.properties, 0));
    if (cuda_input_sums(&c, a->q, a->q_scale, in_rows, a->k, sums, "sums") != FATHOM_OK) exit(1);
    a->input_sums = sums.at;
}

static struct problem plain_problem(uint32_t m, uint32_t n, uint32_t k, uint32_t guard_cols)
{
    return make_problem(m, n, k, 1, m, guard_cols);
}

/* Rows of a task of an expert with n: as moe_map.cu. */
static int32_t task_rows(int32_t n, int32_t tile)
{
    if (tile != PRODUCT_WIDE_TILE || n <= tile) return tile;
    const int32_t n_task = (n + tile - 1) / tile;
    return ((n + n_task - 1) / n_task + 63) / 64 * 64;
}

/* Lists the rows in tasks of at most `tile`, for the rest of the problem's life. */
static void map_rows(struct problem *p, uint32_t tile)
{
    const uint32_t n_row = p->a.n_token;
    int32_t *rows = (int32_t *)calloc(n_row + 1, sizeof *rows), n_task = 0, n_listed = 0;
    const uint32_t max_task = min(n_row, p->n_expert) + n_row / tile;
    struct task *tasks = (struct task *)calloc(max_task, sizeof *tasks);
    for (int e = 0; e < (int)p->n_expert; e++) {
        const int32_t first = n_listed;
        for (uint32_t i = 0; i < n_row; i++) {
            uint32_t r = (uint32_t)((uint64_t)i * 7919 % n_row); /* not in order */
            if (p->expert_of[r] == e) rows[n_listed++] = (int32_t)r;
        }
        const int32_t size = task_rows(n_listed - first, (int32_t)tile);
        for (int32_t at = first; at < n_listed; at += size) {
            int32_t left = n_listed - at;
            tasks[n_task++] = {e, at, left < size ? left : size};
        }
    }
    p->a.tasks = (struct task *)own(p, device_copy(tasks, max_task * sizeof *tasks));
    p->a.rows = (int32_t *)own(p, device_copy(rows, n_row * sizeof *rows));
    const int32_t counts[3] = {n_task, 0, 0};
    int32_t *on_device = (int32_t *)own(p, device_copy(counts, sizeof counts));
    p->a.n_task = on_device;
    p->a.feed = on_device + 1;
    p->n_tile = max_task;
    p->n_listed = (uint32_t)n_listed;
    free(rows);
    free(tasks);
}

__global__ void list_kernel(const int32_t *rows, uint32_t in_divisor, const uint8_t *q,
                            const float *scale, uint32_t k, uint8_t *to, float *to_scale)
{
    const uint32_t n_k_line = k / K_LINE, row = (uint32_t)rows[blockIdx.x] / in_divisor;
    for (uint32_t i = threadIdx.x; i < k; i += blockDim.x) {
        to[(size_t)blockIdx.x * k + i] = q[(size_t)row * k + i];
    }
    for (uint32_t i = threadIdx.x; i < n_k_line; i += blockDim.x) {
        to_scale[(size_t)blockIdx.x * n_k_line + i] = scale[(size_t)row * n_k_line + i];
    }
}

/* The same product with its inputs in the order of the list, of which p has `n_row` entries. */
static struct product_args listed(struct problem *p, uint32_t n_row)
{
    struct product_args a = p->a;
    const uint32_t n_k_line = a.k / K_LINE;
    uint8_t *q = (uint8_t *)own(p, device_bytes((size_t)n_row * a.k));
    float *scale = (float *)own(p, device_bytes((size_t)n_row * n_k_line * sizeof *scale));
    list_kernel<<<n_row, 256>>>(a.rows, a.in_divisor, a.q, a.q_scale, a.k, q, scale);
    CUDA(cudaGetLastError());
    a.q = q;
    a.q_scale = scale;
    a.n_token = n_row;
    a.in_listed = true;
    return a;
}

/* Rows 0 .. n_row - 1 belong to expert_of[row], or to none if it is negative. */
static struct problem mapped_problem(uint32_t n_row, uint32_t n, uint32_t k, uint32_t in_divisor,
                                     uint32_t n_expert, const int *expert_of, uint32_t guard_cols)
{
    struct problem p = make_problem(n_row, n, k, n_expert, ceil_div(n_row, in_divisor), guard_cols);
    p.a.in_divisor = in_divisor;
    p.expert_of = expert_of;
    p.n_expert = n_expert;
    map_rows(&p, PRODUCT_LARGE_TILE);
    return p;
}

#endif

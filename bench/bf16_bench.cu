/* bf16_bench.cu - BF16 matrix products: the same bits whichever kernel makes them, and how fast
 *
 *   bench_bf16
 *
 * A line a shape, number of rows and kernel (generic/product_bf16.cu, product_few_bf16.cu,
 * product_bf16.cu of sm90): microseconds, and what of the bandwidth (4.1 TB/s) or of the dense BF16
 * rate (989 TFLOP/s) that is; weights rotate, so that none are in L2. Experts have the
 * same number of rows each. Exit status 0: all bits were the same and all sums right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/sm90/product_bf16.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "cuda_call.cuh"

#define PEAK_TFLOPS 989.0
#define PEAK_TBS 4.1

enum { REPEAT = 12, GENERIC_MOST = PRODUCT_BF16_TILE_MAX, FEW_MOST = 256, MANY_LEAST = 16 };
enum { BYTES_ROTATED = 1 << 30, SAMPLES = 4096 };

__attribute__((weak)) fathom_err cuda_check(struct cuda_backend *c, cudaError_t e, const char *call,
                                            const char *what)
{
    (void)c;
    if (e == cudaSuccess) return FATHOM_OK;
    fprintf(stderr, "%s (%s): %s\n", call, what, cudaGetErrorString(e));
    exit(1);
}

__global__ void fill_kernel(bf16 *to, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * 256ul + threadIdx.x; i < n; i += gridDim.x * 256ul) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        to[i] = __float2bfloat16_rn((float)(int32_t)(x >> 32) * 0x1p-31f);
    }
}

struct counts {
    unsigned long long differing;
    unsigned long long wrong;
};

__global__ void differ_kernel(const float *a, const float *b, size_t n, struct counts *t)
{
    const size_t i = blockIdx.x * 256ul + threadIdx.x;
    if (i < n && __float_as_uint(a[i]) != __float_as_uint(b[i])) atomicAdd(&t->differing, 1ull);
}

/* A few sums, in double, of row `row` of experts of `rows` rows. */
__global__ void sums_kernel(const bf16 *w, const bf16 *x, const float *out, uint32_t n, uint32_t k,
                            uint32_t n_row, uint32_t rows, bool mapped, struct counts *t)
{
    const uint32_t i = blockIdx.x * 256 + threadIdx.x, row = (uint32_t)(i * 2654435761u) % n_row;
    const uint32_t col = (uint32_t)(i * 40503u + 7) % n;
    const bf16 *of = w + ((mapped ? row / rows : 0) * (size_t)n + col) * k;
    double sum = 0, size = 0;
    for (uint32_t j = 0; j < k; j++) {
        const double v = (double)__bfloat162float(of[j]) * __bfloat162float(x[(size_t)row * k + j]);
        sum += v;
        size += v * v;
    }
    if (!(fabs(sum - out[(size_t)row * n + col]) <= 1e-4 * sqrt(size) + 1e-6))
        atomicAdd(&t->wrong, 1ull);
}

struct bench {
    struct cuda_backend c;
    struct counts *counts;
    bf16 *w;
    bf16 *x;
    float *out[2];
    struct task *tasks;
    int32_t *n_task; /* and the feed, two zeros */
    int32_t *rows;
    bool failed;
};

struct shape {
    const char *name;
    uint32_t n;
    uint32_t k;
    uint32_t n_expert; /* 0: plain */
};

enum kernel { GENERIC, FEW, MANY, N_KERNEL };

static bool takes(enum kernel k, const struct shape *s, uint32_t rows)
{
    if (k == MANY) return rows >= MANY_LEAST;
    return rows <= (uint32_t)(k == FEW && !s->n_expert ? FEW_MOST : GENERIC_MOST);
}

static uint32_t tile_of(enum kernel k, uint32_t rows)
{
    if (k == MANY) return PRODUCT_LARGE_TILE;
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

static void launch(struct bench *b, const struct shape *s, const struct product_args &a,
                   enum kernel k, uint32_t tile, uint32_t n_tile)
{
    const uint32_t n_matrix = max(s->n_expert, 1u);
    if (k == GENERIC) product_bf16(&b->c, a, tile, n_tile, s->name);
    if (k == FEW) CUDA(product_few_bf16(a, tile, n_tile, n_matrix, b->c.limits, b->c.stream));
    if (k == MANY) CUDA(product_bf16_sm90(a, n_tile, n_matrix, b->c.limits, b->c.stream));
}

/* Times kernel k; its last product is of matrix 0. rows: of all, or of an expert */
static void run(struct bench *b, const struct shape *s, uint32_t rows, enum kernel k, float *out)
{
    static const char *const names[N_KERNEL] = {"generic", "few", "many"};
    const uint32_t tile = tile_of(k, rows);
    struct product_args a = {};
    a.w = b->w;
    a.n = s->n;
    a.k = s->k;
    a.h = b->x;
    a.n_token = rows;
    a.out = out;
    a.out_stride = s->n;
    a.w_stride = (size_t)s->n * s->k * 2;
    uint32_t n_tile = ceil_div(rows, tile);
    if (s->n_expert) {
        struct task *tasks = (struct task *)malloc(s->n_expert * n_tile * sizeof *tasks);
        int32_t n = 0;
        for (uint32_t e = 0; e < s->n_expert; e++) {
            for (uint32_t r = 0; r < rows; r += tile) {
                tasks[n++] = {(int32_t)e, (int32_t)(e * rows + r), (int32_t)min(tile, rows - r)};
            }
        }
        CUDA(cudaMemcpy(b->tasks, tasks, n * sizeof *tasks, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(b->n_task, &n, 4, cudaMemcpyHostToDevice));
        free(tasks);
        a.tasks = b->tasks;
        a.n_task = b->n_task;
        a.feed = b->n_task + 1;
        a.rows = b->rows;
        a.in_divisor = 1;
        a.n_token = rows * s->n_expert;
        n_tile = (uint32_t)n;
    }
    const uint32_t turn = s->n_expert ? 1 : max(1u, (uint32_t)(BYTES_ROTATED / a.w_stride));
    cudaEvent_t from, to;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    for (uint32_t i = REPEAT + 2; i-- > 0;) {
        if (i == REPEAT - 1) CUDA(cudaEventRecord(from, b->c.stream));
        a.w = b->w + (size_t)(i % turn) * s->n * s->k;
        launch(b, s, a, k, tile, n_tile);
    }
    CUDA(cudaEventRecord(to, b->c.stream));
    CUDA(cudaStreamSynchronize(b->c.stream));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, from, to));
    const double us = ms * 1e3 / REPEAT, tok = (double)a.n_token;
    const double bytes =
        (double)max(s->n_expert, 1u) * s->n * s->k * 2 + tok * (s->k * 2 + s->n * 4.0);
    const double flops = 2.0 * tok * s->n * s->k;
    printf("%-12s %6u x %-6u rows %5u %-7s %9.1f us  %5.2f TB/s %6.1f TFLOP/s  of floor %.2f\n",
           s->name, s->n, s->k, rows, names[k], us, bytes / us * 1e-6, flops / us * 1e-6,
           fmax(bytes / PEAK_TBS, flops / PEAK_TFLOPS) * 1e-6 / us);
    CUDA(cudaEventDestroy(from));
    CUDA(cudaEventDestroy(to));
}

static void check(struct bench *b, const struct shape *s, uint32_t rows)
{
    const uint32_t n_row = rows * max(s->n_expert, 1u);
    const size_t n = (size_t)n_row * s->n;
    struct counts t;
    CUDA(cudaMemset(b->counts, 0, sizeof t));
    differ_kernel<<<(unsigned)((n + 255) / 256), 256>>>(b->out[0], b->out[1], n, b->counts);
    sums_kernel<<<SAMPLES / 256, 256>>>(b->w, b->x, b->out[0], s->n, s->k, n_row, rows,
                                        s->n_expert > 0, b->counts);
    CUDA(cudaMemcpy(&t, b->counts, sizeof t, cudaMemcpyDeviceToHost));
    if (!t.differing && !t.wrong) return;
    printf("%s rows %u: %llu of %zu bits differ, %llu of %d sums wrong\n", s->name, rows,
           t.differing, n, t.wrong, SAMPLES);
    b->failed = true;
}

static void prepare(struct bench *b)
{
    const size_t n_w = (size_t)8 << 30, n_x = (size_t)1 << 28;
    struct cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    b->c.properties = p;
    b->c.sm90 = b->c.fast = true;
    CUDA(cudaStreamCreate(&b->c.stream));
    CUDA(cudaMalloc(&b->w, n_w));
    CUDA(cudaMalloc(&b->x, n_x));
    for (int i = 0; i < 2; i++) CUDA(cudaMalloc(&b->out[i], (size_t)2 << 30));
    CUDA(cudaMalloc(&b->tasks, 1 << 20));
    CUDA(cudaMalloc(&b->n_task, 3 * sizeof(int32_t)));
    CUDA(cudaMemset(b->n_task, 0, 3 * sizeof(int32_t)));
    CUDA(cudaMalloc(&b->rows, 4 << 20));
    CUDA(cudaMalloc(&b->counts, sizeof *b->counts));
    int32_t *rows = (int32_t *)malloc(4 << 20);
    for (int32_t i = 0; i < 1 << 20; i++) rows[i] = i;
    CUDA(cudaMemcpy(b->rows, rows, 4 << 20, cudaMemcpyHostToDevice));
    free(rows);
    fill_kernel<<<4096, 256>>>(b->w, n_w / 2, 1);
    fill_kernel<<<4096, 256>>>(b->x, n_x / 2, 2);
    CUDA(cudaDeviceSynchronize());
    CUDA(product_bf16_sm90_init());
    CUDA(product_few_init(&b->c.limits));
    b->c.limits.n_sm = (uint32_t)p.multiProcessorCount;
    cuda_check(NULL, product_bf16_init(&b->c) ? cudaErrorUnknown : cudaSuccess, "init", "bench");
}

int main(void)
{
    static struct bench b;
    static const struct shape shapes[] = {
        {"front", 2112, 7168, 0},       {"slice front", 2240, 7168, 0},
        {"slice q_b", 3072, 1536, 0},   {"q_b", 24576, 1536, 0},
        {"slice o", 7168, 2048, 0},     {"o", 7168, 16384, 0},
        {"gate, up", 36864, 7168, 0},   {"down", 7168, 18432, 0},
        {"experts up", 4096, 7168, 64}, {"experts down", 7168, 2048, 64},
        {"head", 129280, 7168, 0},
    };
    static const uint32_t plain_rows[] = {1, 8, 33, 64, 128, 256, 512, 1024, 4096};
    static const uint32_t expert_rows[] = {1, 4, 16, 32, 64, 256};
    prepare(&b);
    for (const struct shape &s : shapes) {
        for (int i = 0; i < (s.n_expert ? 6 : 9); i++) {
            const uint32_t rows = s.n_expert ? expert_rows[i] : plain_rows[i];
            bool first = true;
            for (int k = 0; k < N_KERNEL; k++) {
                if (!takes((enum kernel)k, &s, rows)) continue;
                run(&b, &s, rows, (enum kernel)k, b.out[!first]);
                if (!first) check(&b, &s, rows);
                first = false;
            }
        }
    }
    return b.failed;
}

/* int8_bench.cu - int8 matrix products of sm_90a: are they right, and how fast beside FP8
 *
 *   bench_int8 [check | time]
 *
 * check  products of random codes, with a scale a row and with squares, plain and mapped: the bits
 *        of product_i8 from product_few with every tile, and from product_int8 with rows as they
 *        are, gathered and in the order of the list
 * time   a recorded row of 20 launches over rotating weights, median of 9 replays, FP8 and both
 *        kinds of int8 in turn; few rows against the bytes at 4.1 TB/s, many against the dense rate
 *
 * Exit status 0: all checks passed. */
#include "backend/cuda/sm90/product_int8.cuh"
#include "product_case.cuh"

enum { REPEAT = 20, REPLAYS = 9, COPY_BYTES = 200 << 20 };

#define PEAK_TOPS 1979.0
#define PEAK_TBS 4.1

static struct sm90_limits find_limits(void)
{
    struct sm90_limits limits = base_limits();
    CUDA(product_int8_sm90_init());
    return limits;
}

/* ---- int8 in the place of e4m3 ---- */

__global__ void codes_kernel(uint8_t *q, size_t n, uint64_t seed)
{
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n) q[i] = (uint8_t)(mix(seed << 40 | i) % 255u - 127u);
}

/* A row's groups have one scale. */
__global__ void row_scale_kernel(float *scale, uint32_t n_k_line)
{
    scale[(size_t)blockIdx.x * n_k_line + threadIdx.x] = scale[(size_t)blockIdx.x * n_k_line];
}

__global__ void untile_kernel(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t k)
{
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= (size_t)n * k) return;
    to[i] = from[tiled_at((uint32_t)(i / k), (uint32_t)(i % k), k)];
}

static void fill(void *q, size_t n, uint64_t seed)
{
    codes_kernel<<<(unsigned)((n + 255) / 256), 256>>>((uint8_t *)q, n, seed);
    CUDA(cudaGetLastError());
}

/* by_row: whether weights and inputs have a scale a row */
static void make_int8(struct problem *p, uint32_t n_matrix, uint32_t in_rows)
{
    struct product_args *a = &p->a;
    a->int8 = true;
    a->block_row = by_row ? 1 : K_LINE;
    fill((void *)a->w, a->w_stride * n_matrix, 3);
    fill((void *)a->q, (size_t)in_rows * a->k, 4);
    if (by_row) row_scale_kernel<<<in_rows, a->k / K_LINE>>>((float *)a->q_scale, a->k / K_LINE);
    CUDA(cudaGetLastError());
}

/* ---- checks ---- */

static unsigned long long differing(const float *a, const float *b, size_t n)
{
    static struct tally *t = (struct tally *)device_bytes(sizeof *t);
    struct tally sum;
    CUDA(cudaMemset(t, 0, sizeof *t));
    differ_kernel<<<(unsigned)((n + 255) / 256), 256>>>((const uint32_t *)a, (const uint32_t *)b, n,
                                                        t);
    CUDA(cudaMemcpy(&sum, t, sizeof sum, cudaMemcpyDeviceToHost));
    return sum.differing;
}

/* What the portable kernel makes of the same weights, row by row. */
static void run_portable(struct problem *p, uint32_t n_matrix, float *out)
{
    struct cuda_backend c = {};
    struct product_args a = p->a;
    const size_t bytes = (size_t)a.n * a.k;
    uint8_t *rows = (uint8_t *)own(p, device_bytes(bytes * n_matrix));
    for (uint32_t i = 0; i < n_matrix; i++) {
        untile_kernel<<<(unsigned)((bytes + 255) / 256), 256>>>(
            rows + i * bytes, (const uint8_t *)a.w + i * a.w_stride, a.n, a.k);
    }
    a.w = rows;
    a.w_stride = bytes;
    a.tiled = false;
    a.out = out;
    CUDA(cudaGetDeviceProperties(&c.properties, 0));
    if (product_i8(&c, a, PRODUCT_LARGE_TILE, p->n_tile, "product_i8") != FATHOM_OK) exit(1);
    CUDA(cudaDeviceSynchronize());
}

static bool check(const char *kind, struct problem *p, uint32_t n_matrix)
{
    const struct sm90_limits limits = find_limits();
    const size_t n = (size_t)p->n_out_row * p->a.out_stride;
    float *want = (float *)own(p, device_bytes(n * 4)), *got = (float *)own(p, device_bytes(n * 4));
    unsigned long long few = 0, many = 0, in_list = 0;
    poison(want, n);
    run_portable(p, n_matrix, want);
    poison(got, n);
    struct product_args a = p->a;
    a.out = got;
    CUDA(product_int8_sm90(a, p->n_tile, limits, NULL));
    many = differing(want, got, n);
    if (p->expert_of) {
        struct product_args of_list = listed(p, p->n_listed);
        of_list.out = got;
        poison(got, n);
        CUDA(product_int8_sm90(of_list, p->n_tile, limits, NULL));
        in_list = differing(want, got, n);
    }
    for (uint32_t tile : {8u, 16u, 32u, 64u}) {
        if (p->expert_of) map_rows(p, tile);
        a = p->a;
        a.out = got;
        poison(got, n);
        CUDA(product_few(a, tile, p->expert_of ? p->n_tile : ceil_div(a.n_token, tile), limits,
                         NULL));
        few += differing(want, got, n);
    }
    CUDA(cudaDeviceSynchronize());
    const bool ok = !few && !many && !in_list;
    printf("%s %s, scales of %s: %u rows, %u x %u: other bits: few %llu, many %llu, listed %llu\n",
           ok ? "PASS" : "FAIL", kind, by_row ? "rows" : "squares", p->a.n_token, p->a.n, p->a.k,
           few, many, in_list);
    release(p);
    return ok;
}

static bool check_all(void)
{
    enum { EXPERTS = 5, ROWS = 900, DIVISOR = 9 };
    static const uint32_t plain[][3] = {{1, 2240, 7168},  {7, 3072, 1536},   {33, 7168, 2304},
                                        {129, 7168, 256}, {300, 7168, 2048}, {65, 1168, 16384}};
    static const uint32_t mapped[][3] = {
        {512, 7168, DIVISOR}, {7168, 256, 1}, {4096, 7168, DIVISOR}};
    int of[ROWS];
    bool ok = true;
    for (int i = 0; i < ROWS; i++) of[i] = i % 7 ? (i * 31) % EXPERTS : -1;
    for (const auto &s : plain) {
        struct problem p = make_problem(s[0], s[1], s[2], 1, s[0], GUARD_COLS);
        make_int8(&p, 1, s[0]);
        ok = check("plain", &p, 1) && ok;
    }
    for (const auto &s : mapped) {
        struct problem p = mapped_problem(ROWS, s[0], s[1], s[2], EXPERTS, of, GUARD_COLS);
        make_int8(&p, EXPERTS, ROWS / s[2]);
        ok = check("mapped", &p, EXPERTS) && ok;
    }
    return ok;
}

/* ---- times ---- */

static int by_value(const void *x, const void *y)
{
    float a = *(const float *)x, b = *(const float *)y;
    return a < b ? -1 : a > b;
}

static cudaError_t run_product(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                               const struct sm90_limits &limits, cudaStream_t stream)
{
    if (tile < PRODUCT_LARGE_TILE) return product_few(a, tile, n_tile, limits, stream);
    return a.int8 ? product_int8_sm90(a, n_tile, limits, stream)
                  : product_fp8_sm90(a, n_tile, limits, stream);
}

/* Microseconds a launch */
static double time_row(const struct problem &p, uint32_t n_copy, uint32_t tile)
{
    const struct sm90_limits limits = find_limits();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t at[2];
    float ms[REPLAYS];
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < REPEAT; i++) {
        struct product_args a = p.a;
        a.w = (const char *)a.w + i % n_copy * a.w_stride;
        const uint32_t n_tile = a.tasks ? p.n_tile : ceil_div(a.n_token, tile);
        CUDA(run_product(a, tile, n_tile, limits, stream));
    }
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (cudaEvent_t &e : at) CUDA(cudaEventCreate(&e));
    for (int i = -2; i < REPLAYS; i++) {
        CUDA(cudaEventRecord(at[0], stream));
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaEventRecord(at[1], stream));
        CUDA(cudaStreamSynchronize(stream));
        if (i >= 0) CUDA(cudaEventElapsedTime(&ms[i], at[0], at[1]));
    }
    for (cudaEvent_t &e : at) CUDA(cudaEventDestroy(e));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    qsort(ms, REPLAYS, sizeof *ms, by_value);
    return (double)ms[REPLAYS / 2] * 1e3 / REPEAT;
}

/* One shape as FP8, int8 with scales of rows, with squares: a line each. */
template <typename MAKE>
static void time_kinds(const char *kind, uint32_t n_copy, uint32_t in_rows, uint32_t tile,
                       double n_byte, double n_row, const MAKE &make)
{
    static const char *const names[3] = {"fp8", "int8 rows", "int8 squares"};
    double us[3];
    struct product_args a;
    for (int i = 0; i < 3; i++) {
        by_row = i == 1;
        struct problem p = make();
        if (i) make_int8(&p, n_copy, in_rows);
        p.a.out = (float *)own(&p, device_bytes((size_t)p.a.n_token * p.a.n * 4));
        if (p.expert_of) map_rows(&p, tile);
        us[i] = time_row(p, p.expert_of ? 1 : n_copy, tile);
        a = p.a;
        release(&p);
    }
    for (int i = 0; i < 3; i++) {
        printf("%s,%u,%u,%u,%u,%s,%.2f,%.2f,%.0f,%.3f\n", kind, (uint32_t)n_row, a.n, a.k, tile,
               names[i], us[i], n_byte / PEAK_TBS * 1e-6, 2e-6 * n_row * a.n * a.k / us[i],
               us[i] / us[0]);
    }
    by_row = false;
}

static void time_plain(uint32_t m, uint32_t n, uint32_t k)
{
    const uint32_t n_copy = min(COPY_BYTES / (n * k) + 1, (uint32_t)REPEAT);
    const uint32_t tile = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
    const double n_byte = (double)n * k + (double)m * k + 4.0 * m * n;
    time_kinds("plain", n_copy, m, tile, n_byte, m,
               [=] { return make_problem(m, n, k, n_copy, m, 0); });
}

/* Tokens take 8 of 256 experts at random, and the shared one. */
static void time_mapped(uint32_t n_token, uint32_t n, uint32_t k, uint32_t divisor, uint32_t tile)
{
    enum { EXPERTS = 257, SLOTS = 9 };
    const uint32_t n_row = n_token * SLOTS;
    int *of = (int *)malloc(n_row * sizeof *of);
    bool hit[EXPERTS] = {};
    uint32_t n_hit = 0;
    for (uint32_t i = 0; i < n_row; i++) {
        of[i] = i % SLOTS == SLOTS - 1 ? EXPERTS - 1 : (int)((i * 2654435761u) >> 24);
        n_hit += !hit[of[i]];
        hit[of[i]] = true;
    }
    const double n_byte = (double)n_hit * n * k + (double)n_row / divisor * k + 4.0 * n_row * n;
    time_kinds("experts", EXPERTS, n_row / divisor, tile, n_byte, n_row,
               [=] { return mapped_problem(n_row, n, k, divisor, EXPERTS, of, 0); });
    free(of);
}

/* Shapes of one rank of 8 of V3.2, and of all of V3. */
static void time_all(void)
{
    static const uint32_t shapes[][2] = {{2240, 7168}, {11264, 1536}, {7168, 2048}, {7168, 16384}};
    printf("product,rows,n,k,tile,weights,us,bytes at 4.1 TB/s us,TOPS,times fp8\n");
    for (const auto &s : shapes) {
        for (uint32_t m : {1u, 8u, 64u, 4096u}) time_plain(m, s[0], s[1]);
    }
    for (uint32_t n_token : {1u, 8u, 64u, 4096u}) {
        const uint32_t tile = n_token < 512 ? 8 : 128;
        time_mapped(n_token, 512, 7168, 9, tile);
        time_mapped(n_token, 7168, 256, 1, tile);
    }
    time_mapped(4096, 4096, 7168, 9, 128);
    time_mapped(4096, 7168, 2048, 1, 128);
}

int main(int argc, char **argv)
{
    const bool checks = argc < 2 || strcmp(argv[1], "time") != 0;
    bool ok = true;
    for (int i = 0; i < 2 && checks; i++) {
        by_row = i == 0;
        ok = check_all() && ok;
    }
    by_row = false;
    if (argc < 2 || strcmp(argv[1], "check") != 0) time_all();
    return ok ? 0 : 1;
}

/* product_check.cuh - the checks of product_bench.cu */
#ifndef FATHOM_BENCH_PRODUCT_CHECK_CUH
#define FATHOM_BENCH_PRODUCT_CHECK_CUH

#include "backend/cuda/sm90/product_fp8_wide.cuh"
#include "product_case.cuh"

enum { TILES = 4 };

static const uint32_t tiles[TILES] = {8, 16, 32, 64}; /* of product_few */

#define REL_L2_MAX 1e-3

static struct sm90_limits find_limits(void)
{
    struct sm90_limits limits = base_limits();
    CUDA(product_fp8_wide_init());
    return limits;
}

static struct tally read_tally(struct tally *device)
{
    struct tally t;
    CUDA(cudaMemcpy(&t, device, sizeof t, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(device, 0, sizeof t));
    return t;
}

static unsigned long long differing(const float *a, const float *b, size_t n, struct tally *t)
{
    differ_kernel<<<(unsigned)((n + 255) / 256), 256>>>((const uint32_t *)a, (const uint32_t *)b, n,
                                                        t);
    return read_tally(t).differing;
}

/* Outputs of product_few that are not the bits of `want`, over all tiles; with n_cluster, so many
 * clusters walk over all items: of one block, or where `shared` of as many as K has K parts. */
static unsigned long long differing_few(struct problem *p, const float *want, float *got,
                                        uint32_t n_cluster, bool shared, struct tally *t)
{
    const size_t n = (size_t)p->n_out_row * p->a.out_stride;
    struct sm90_limits limits = find_limits();
    if (n_cluster) {
        limits.n_sm = 0;
        for (auto &row : limits.few) {
            for (uint32_t &count : row) count = n_cluster;
        }
    }
    unsigned long long sum = 0;
    for (uint32_t tile : tiles) {
        if (p->expert_of) map_rows(p, tile);
        struct product_args a = p->a;
        a.out = got;
        poison(got, n);
        const uint32_t n_tile = p->expert_of ? p->n_tile : ceil_div(a.n_token, tile);
        if (shared) limits.n_sm = n_tile * ceil_div(a.n, 64) / 2 + 1;
        CUDA(product_few(a, tile, n_tile, limits, NULL));
        sum += differing(want, got, n, t);
        if (p->expert_of) continue;
        a.n_token = min(a.n_token, tile / 2 + 1); /* the first rows alone */
        poison(got, n);
        CUDA(product_few(a, tile, ceil_div(a.n_token, tile), limits, NULL));
        sum += differing(want, got, (size_t)a.n_token * a.out_stride, t);
    }
    return sum;
}

/* Codes and scales of the SwiGLU of sums [gate | up], a warp a group. */
__global__ void swiglu_codes_kernel(const float *sum, size_t n_row, uint32_t stride, uint32_t inner,
                                    uint8_t *q, float *scale)
{
    const size_t group = (size_t)blockIdx.x * 8 + threadIdx.x / WARP;
    const uint32_t n_group = inner / FP8_GROUP, lane = threadIdx.x % WARP;
    if (group >= n_row * n_group) return;
    const float *g = sum + group / n_group * stride + group % n_group * FP8_GROUP + lane * 4;
    if (__float_as_uint(*g) == POISON) return;
    float s;
    const uint32_t codes =
        quantize_group(swiglu(*(const float4 *)g, *(const float4 *)(g + inner)), &s);
    *(uint32_t *)(q + group * FP8_GROUP + lane * 4) = codes;
    if (lane == 0) scale[group] = s;
}

/* The same for product_fp8_wide, whose tasks p lists from now on. */
static struct product_args wide_args(struct problem *p, struct product_args a)
{
    map_rows(p, PRODUCT_WIDE_TILE);
    a.tasks = p->a.tasks;
    a.n_task = p->a.n_task;
    a.rows = p->a.rows;
    a.feed = p->a.feed;
    return a;
}

/* Runs it, and lists the tasks of product_fp8_sm90 again. */
static void run_wide(struct problem *p, const struct product_args &a,
                     const struct sm90_limits &limits)
{
    const struct product_args wide = wide_args(p, a);
    CUDA(product_fp8_wide(wide, p->n_tile, limits, NULL));
    map_rows(p, PRODUCT_LARGE_TILE);
}

/* Words of codes and scales made in one kernel that are not those of the sums `got`. */
static unsigned long long differing_swiglu(struct problem *p, struct product_args a,
                                           const float *got, bool wide, struct tally *t)
{
    const uint32_t inner = a.n / 2, n_group = inner / FP8_GROUP;
    const size_t n_row = p->n_out_row, n_word = n_row * inner / 4 + n_row * n_group;
    if (a.n % (2 * FP8_GROUP)) return 0;
    float *want = (float *)device_bytes(n_word * 4), *codes = (float *)device_bytes(n_word * 4);
    poison(want, n_word);
    poison(codes, n_word);
    swiglu_codes_kernel<<<(unsigned)ceil_div((uint32_t)(n_row * n_group), 8), 256>>>(
        got, n_row, a.out_stride, inner, (uint8_t *)want, want + n_row * inner / 4);
    a.out_q = (uint8_t *)codes;
    a.out_scale = codes + n_row * inner / 4;
    if (wide) {
        run_wide(p, a, find_limits());
    } else {
        CUDA(product_fp8_sm90(a, p->n_tile, find_limits(), NULL));
    }
    const unsigned long long n = differing(want, codes, n_word, t);
    CUDA(cudaFree(want));
    CUDA(cudaFree(codes));
    return n;
}

__global__ void round_kernel(const float *from, size_t n, bf16 *to)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && __float_as_uint(from[i]) != POISON) to[i] = __float2bfloat16_rn(from[i]);
}

/* Pairs of bf16 from product_fp8_wide that are not those of the sums `got`. */
static unsigned long long differing_rounded(struct problem *p, struct product_args a,
                                            const float *got, struct tally *t)
{
    const size_t n = (size_t)p->n_out_row * a.out_stride;
    if (a.out_stride % 8) return 0;
    unsigned long long sum = 0;
    float *want = (float *)device_bytes(n * 2), *rounded = (float *)device_bytes(n * 2);
    poison(want, n / 2);
    round_kernel<<<(unsigned)((n + 255) / 256), 256>>>(got, n, (bf16 *)want);
    struct sm90_limits limits = find_limits();
    for (uint32_t n_sm : {limits.n_sm, 7u}) {
        poison(rounded, n / 2);
        limits.n_sm = n_sm;
        a.out_h = (bf16 *)rounded;
        run_wide(p, a, limits);
        sum += differing(want, rounded, n / 2, t);
    }
    CUDA(cudaFree(want));
    CUDA(cudaFree(rounded));
    return sum;
}

/* Runs a case in every form; true if all of it holds. */
static bool check(const char *name, struct problem *p)
{
    const size_t n = (size_t)p->n_out_row * p->a.out_stride;
    float *want = (float *)own(p, device_bytes(n * 4)), *got = (float *)own(p, device_bytes(n * 4));
    float *again = (float *)own(p, device_bytes(n * 4));
    struct tally *t = (struct tally *)device_bytes(sizeof *t);
    CUDA(cudaMemset(t, 0, sizeof *t));
    struct product_args a = p->a;
    struct sm90_limits limits = find_limits(), small = limits;
    small.n_sm = 7;
    poison(want, n);
    a.out = want;
    plain_product_kernel<<<dim3(ceil_div(a.n, SIDE), p->n_tile, 4), 256>>>(a);
    poison(got, n);
    a.out = got;
    CUDA(product_fp8_sm90(a, p->n_tile, limits, NULL));
    compare_kernel<<<256, 256>>>(got, want, n, t);
    struct tally sum = read_tally(t);
    const double rel = sum.norm > 0.0 ? sqrt(sum.error / sum.norm) : 0.0;
    a.out = again;
    unsigned long long changed[10] = {};
    const struct sm90_limits *const devices[2] = {&limits, &small};
    for (int i = 0; i < 2; i++) {
        poison(again, n);
        CUDA(product_fp8_sm90(a, p->n_tile, *devices[i], NULL));
        changed[i] = differing(got, again, n, t);
    }
    if (!a.tasks) { /* the first rows alone */
        a.n_token = a.n_token / 2 + 1;
        poison(again, n);
        CUDA(product_fp8_sm90(a, ceil_div(a.n_token, PRODUCT_LARGE_TILE), limits, NULL));
        changed[2] = differing(got, again, (size_t)a.n_token * a.out_stride, t);
    }
    if (a.tasks) {
        struct product_args in_list = listed(p, p->n_listed);
        in_list.out = again;
        poison(again, n);
        CUDA(product_fp8_sm90(in_list, p->n_tile, limits, NULL));
        changed[5] = differing(got, again, n, t);
        changed[7] = differing_swiglu(p, in_list, got, false, t);
        if (fp8_k_part_count(a.n, a.k / K_LINE, true) == 1) {
            changed[8] = differing_swiglu(p, in_list, got, true, t);
            changed[9] = differing_rounded(p, in_list, got, t);
        }
    }
    a = p->a;
    changed[6] = differing_swiglu(p, a, got, false, t);
    changed[3] = differing_few(p, got, again, 0, false, t);
    changed[4] =
        differing_few(p, got, again, 2, false, t) + differing_few(p, got, again, 2, true, t);
    bool ok = rel <= REL_L2_MAX && sum.n + sum.missing > 0 && !sum.missing && !sum.stray;
    for (unsigned long long count : changed) ok = ok && !count;
    printf("%s %-28s rel-L2 %.2e of %llu, missing %llu, stray %llu, bits changed: repeat %llu, 7 "
           "SMs %llu, fewer rows %llu, few %llu, few in turn %llu, listed %llu, SwiGLU %llu, "
           "listed %llu, wide %llu, rounded %llu\n",
           ok ? "PASS" : "FAIL", name, rel, sum.n, sum.missing, sum.stray, changed[0], changed[1],
           changed[2], changed[3], changed[4], changed[5], changed[6], changed[7], changed[8],
           changed[9]);
    CUDA(cudaFree(t));
    release(p);
    return ok;
}

static int check_plain(void)
{
    static const uint32_t shapes[][3] = {{1, 2240, 7168},   {7, 3072, 1536},   {33, 7168, 2304},
                                         {65, 576, 7168},   {127, 2240, 1536}, {128, 512, 256},
                                         {129, 7168, 2048}, {300, 16, 128},    {640, 1168, 2304},
                                         {1200, 144, 384},  {513, 2240, 7168}, {4095, 2240, 512},
                                         {4096, 7168, 2048}};
    bool ok = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t *s = shapes[i];
        char name[64];
        (void)snprintf(name, sizeof name, "plain %u x %u x %u", s[0], s[1], s[2]);
        struct problem p = plain_problem(s[0], s[1], s[2], GUARD_COLS);
        ok = check(name, &p) && ok;
    }
    return ok ? 0 : 1;
}

/* to[r][0 .. width) = from[r][first .. first + width), elements of `size` bytes */
static void *take_columns(struct problem *p, const void *from, uint32_t n_row, uint32_t stride,
                          uint32_t first, uint32_t width, size_t size)
{
    void *to = own(p, device_bytes(n_row * width * size));
    CUDA(cudaMemcpy2D(to, width * size, (const char *)from + first * size, stride * size,
                      width * size, n_row, cudaMemcpyDeviceToDevice));
    return to;
}

__global__ void add_kernel(float *sum, const float *k_part, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] += k_part[i];
}

/* A product is the sum of the products of its parts of K, in ascending order, bit by bit. */
static int check_k_parts(void)
{
    enum { M = 200, N = 256, K = 2048, K_PARTS = 4, K_PART = K / K_PARTS, SIZE = M * N };
    struct problem whole = plain_problem(M, N, K, 0), part = {};
    const struct sm90_limits limits = find_limits();
    float *got = (float *)own(&part, device_bytes(SIZE * 4));
    float *sum = (float *)own(&part, device_bytes(SIZE * 4));
    float *k_part = (float *)own(&part, device_bytes(SIZE * 4));
    struct tally *t = (struct tally *)own(&part, device_bytes(sizeof *t));
    CUDA(cudaMemset(t, 0, sizeof *t));
    CUDA(cudaMemset(sum, 0, SIZE * 4));
    whole.a.out = got;
    CUDA(product_fp8_sm90(whole.a, whole.n_tile, limits, NULL));
    for (uint32_t i = 0; i < K_PARTS; i++) {
        struct problem slice = {};
        struct product_args a = whole.a;
        const uint32_t n_k_line = K / K_LINE, width = K_PART / K_LINE;
        a.k = K_PART;
        a.scale_stride = width;
        a.w = take_columns(&slice, whole.a.w, N / TILE_ROWS, K * TILE_ROWS, i * K_PART * TILE_ROWS,
                           K_PART * TILE_ROWS, 1); /* strips of tiles */
        a.w_stride = tiled_bytes(N, K_PART);
        a.q = (uint8_t *)take_columns(&slice, whole.a.q, M, K, i * K_PART, K_PART, 1);
        a.w_scale = (float *)take_columns(&slice, whole.a.w_scale, N / K_LINE, n_k_line, i * width,
                                          width, 4);
        a.q_scale =
            (float *)take_columns(&slice, whole.a.q_scale, M, n_k_line, i * width, width, 4);
        a.out = k_part;
        CUDA(product_fp8_sm90(a, whole.n_tile, limits, NULL));
        add_kernel<<<SIZE / 256, 256>>>(sum, k_part, SIZE);
        release(&slice);
    }
    const unsigned long long n = differing(got, sum, SIZE, t);
    printf("%s %-28s bits that are not the sum of K's parts: %llu\n", n ? "FAIL" : "PASS",
           "parts of K 200 x 256 x 2048", n);
    release(&whole);
    release(&part);
    return n ? 1 : 0;
}

/* Gives out rows to experts by counts, scattered; the rest belongs to none. */
static int *spread(uint32_t n_row, const uint32_t *counts, uint32_t n_expert)
{
    int *of = (int *)malloc(n_row * sizeof *of);
    for (uint32_t i = 0; i < n_row; i++) of[i] = -1;
    uint32_t at = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        for (uint32_t i = 0; i < counts[e]; i++, at++) of[(uint64_t)at * 3571 % n_row] = (int)e;
    }
    return of;
}

static int check_mapped(void)
{
    static const uint32_t counts[12] = {0, 1, 63, 64, 65, 127, 128, 129, 300, 0, 16, 1};
    static const struct {
        uint32_t n_row, n, k, in_divisor;
    } cases[] = {{900, 512, 7168, 9}, {900, 7168, 256, 1},  {1000, 1040, 1536, 4},
                 {900, 576, 128, 9},  {900, 4096, 7168, 9}, {900, 7168, 2048, 1}};
    bool ok = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "mapped %u x %u / %u", cases[i].n, cases[i].k,
                       cases[i].in_divisor);
        int *of = spread(cases[i].n_row, counts, 12);
        struct problem p = mapped_problem(cases[i].n_row, cases[i].n, cases[i].k,
                                          cases[i].in_divisor, 12, of, GUARD_COLS);
        ok = check(name, &p) && ok;
        free(of);
    }
    return ok ? 0 : 1;
}

#endif

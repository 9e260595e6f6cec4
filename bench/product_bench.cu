/* product_bench.cu - FP8 matrix products of sm_90a: are they right, and how fast
 *
 *   bench_product [rows] [check | time [NAME]]   NAME: sections whose name has it; rows: weights
 *                                                have a scale a row, not one a square
 *
 * check  every case against a plain f32 product of the same codes: relative L2 error at most 1e-3;
 *        rows and columns that are not the product's keep their poison; the same bits on repeat, on
 *        fewer multiprocessors, beside fewer rows, with inputs in the order of the list, and
 *        from product_few with tiles of 8 to 64 rows, all at once or one item after the other; a
 *        product's bits are the sum of its K parts'
 * time   few rows: a recorded row of 20 launches over rotating weights, against the bytes at
 *        4.1 TB/s, product_small beside it. Many rows: median of 20 launches over rotating weights,
 *        against the dense FP8 rate of the datasheet, product_fp8_large beside it. Long prompts,
 *        in turn with cuBLASLt where the machine has it. U4 weights: codes made E4M3 in every
 *        tile and once, in turn, and whether the bits are the same; experts beside FP8's
 *
 * Sections run as processes of their own under one time limit, so that one that stops or faults
 * does not take the others along. Exit status 0: all sections ended and all checks passed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/cuda/sm90/product_u4.cuh"
#include "backend/cuda/sm90/product_u4_turned.cuh"
#include "product_check.cuh"
#include "product_peer.cuh"

enum { LIMIT_S = 40, REPEAT = 20, WARM_UP = 3 };

#define PEAK_TFLOPS 1979.0
#define PEAK_TBS 4.1

/* ---- times ---- */

enum form { FORM_SM90, FORM_LARGE };

static int by_value(const void *x, const void *y)
{
    float a = *(const float *)x, b = *(const float *)y;
    return a < b ? -1 : a > b;
}

/* Weights rotate over n_copy copies, which lie one after the other. */
static void measure(const char *name, const struct problem *p, enum form form, uint32_t n_copy,
                    double n_row, double n_byte)
{
    struct cuda_backend c = {};
    CUDA(cudaGetDeviceProperties(&c.properties, 0));
    c.limits = find_limits();
    cudaEvent_t start[REPEAT], stop[REPEAT];
    for (int i = 0; i < REPEAT; i++) {
        CUDA(cudaEventCreate(&start[i]));
        CUDA(cudaEventCreate(&stop[i]));
    }
    for (int i = -WARM_UP; i < REPEAT; i++) {
        struct product_args a = p->a;
        uint32_t copy = (uint32_t)(i + WARM_UP) % n_copy;
        a.w = (const char *)a.w + copy * a.w_stride;
        a.w_scale += copy * a.w_scale_step;
        if (i >= 0) CUDA(cudaEventRecord(start[i]));
        if (form == FORM_LARGE) {
            if (product_fp8_large(&c, a, p->n_tile, name) != FATHOM_OK) exit(1);
        } else {
            CUDA(product_fp8_sm90(a, p->n_tile, c.limits, NULL));
        }
        if (i >= 0) CUDA(cudaEventRecord(stop[i]));
    }
    CUDA(cudaDeviceSynchronize());
    float ms[REPEAT];
    for (int i = 0; i < REPEAT; i++) {
        CUDA(cudaEventElapsedTime(&ms[i], start[i], stop[i]));
        CUDA(cudaEventDestroy(start[i]));
        CUDA(cudaEventDestroy(stop[i]));
    }
    qsort(ms, REPEAT, sizeof *ms, by_value);
    const double us = ((double)ms[REPEAT / 2 - 1] + (double)ms[REPEAT / 2]) * 500.0;
    const double tflops = 2.0 * n_row * p->a.n * p->a.k / us * 1e-6;
    printf(
        "%-26s %6.0f %6u %6u %9.1f us %7.0f TFLOP/s %5.1f%% of %.0f %7.0f GB/s (least %.1f us)\n",
        name, n_row, p->a.n, p->a.k, us, tflops, tflops / PEAK_TFLOPS * 100.0, PEAK_TFLOPS,
        n_byte / us * 1e-3, (double)ms[0] * 1e3);
}

static int time_plain(bool large)
{
    static const uint32_t shapes[][2] = {{7168, 2048},  {2240, 7168},  {11264, 1536},
                                         {32768, 1536}, {7168, 16384}, {36864, 7168}};
    static const uint32_t sizes[] = {4096, 2048, 1024, 512, 256, 128};
    enum { COPIES = 4 };
    for (size_t i = 0; i < (large ? 3u : 6u); i++) {
        const uint32_t n = shapes[i][0], k = shapes[i][1];
        struct problem p = make_problem(sizes[0], n, k, COPIES, sizes[0], 0);
        p.a.out = (float *)own(&p, device_bytes((size_t)sizes[0] * n * 4));
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            const uint32_t m = sizes[j];
            const double n_byte = (double)n * k + (double)m * k + 4.0 * m * n;
            p.a.n_token = m;
            p.n_tile = ceil_div(m, PRODUCT_LARGE_TILE);
            if (large) {
                if (j % 3 == 0) measure("large", &p, FORM_LARGE, COPIES, m, n_byte);
                continue;
            }
            measure("sm90", &p, FORM_SM90, COPIES, m, n_byte);
        }
        release(&p);
    }
    return 0;
}

enum { USED = 8, SLOTS = USED + 1, EXPERTS = 257 };

/* Tokens take 8 of 256 experts drawn at random, and the shared one, number 257. */
static int *draw_experts(int n_token, uint64_t state)
{
    int *of = (int *)malloc((size_t)n_token * SLOTS * sizeof *of);
    for (int t = 0; t < n_token; t++) {
        for (int s = 0; s < USED; s++) {
            int e, used;
            do {
                state = state * 6364136223846793005ull + 1442695040888963407ull;
                e = (int)(state >> 56);
                for (used = 0; used < s && of[t * SLOTS + used] != e; used++) {
                }
            } while (used < s);
            of[t * SLOTS + s] = e;
        }
        of[t * SLOTS + USED] = EXPERTS - 1;
    }
    return of;
}

static const uint32_t expert_shapes[2][3] = {{512, 7168, SLOTS}, {7168, 256, 1}};

/* A rank's experts, and a GPU's that has them whole; gathered rows, and rows in the list's order */
static int time_mapped(bool large)
{
    static const uint32_t whole_shapes[2][3] = {{4096, 7168, SLOTS}, {7168, 2048, 1}};
    static const int sizes[] = {1984, 4096, 8192};
    for (size_t i = 0; i < 12; i++) {
        const uint32_t *s = i % 4 < 2 ? expert_shapes[i % 2] : whole_shapes[i % 2];
        const int n_token = sizes[i / 4];
        const uint32_t n = s[0], k = s[1], divisor = s[2], n_row = (uint32_t)n_token * SLOTS;
        if (large && (i % 4 >= 2 || n_token != 4096)) continue;
        int *of = draw_experts(n_token, 1);
        struct problem p = mapped_problem(n_row, n, k, divisor, EXPERTS, of, 0);
        p.a.out = (float *)own(&p, device_bytes((size_t)n_row * n * 4));
        const double n_byte =
            (double)n * k * EXPERTS + (double)n_row / divisor * k + 4.0 * n_row * n;
        measure(large ? "large mapped" : "sm90 gathered", &p, large ? FORM_LARGE : FORM_SM90, 1,
                n_row, n_byte);
        if (!large) {
            p.a = listed(&p, n_row);
            measure("sm90 listed", &p, FORM_SM90, 1, n_row, n_byte);
        }
        release(&p);
        free(of);
    }
    return 0;
}

/* ---- gate and up with their SwiGLU, down with bf16 rows ---- */

enum { TURNS = 40 };

/* Median times of two ways in turn, long enough for the power limit to govern both, beside the
 * least time for the operations at the rate of the datasheet, or for the bytes. */
template <typename ONE, typename OTHER>
static void measure_turns(const char *name, const char *const (&ways)[2], double n_flop,
                          double n_byte, const ONE &one, const OTHER &other)
{
    const double floor_us = fmax(n_flop / PEAK_TFLOPS, n_byte / PEAK_TBS) * 1e-6;
    cudaEvent_t at[3];
    float us[2][TURNS];
    for (cudaEvent_t &e : at) CUDA(cudaEventCreate(&e));
    for (int i = -TURNS; i < TURNS; i++) {
        CUDA(cudaEventRecord(at[0]));
        one();
        CUDA(cudaEventRecord(at[1]));
        other();
        CUDA(cudaEventRecord(at[2]));
        CUDA(cudaEventSynchronize(at[2]));
        for (int j = 0; j < 2 && i >= 0; j++) {
            CUDA(cudaEventElapsedTime(&us[j][i], at[j], at[j + 1]));
        }
    }
    for (cudaEvent_t &e : at) CUDA(cudaEventDestroy(e));
    for (int j = 0; j < 2; j++) {
        qsort(us[j], TURNS, sizeof *us[j], by_value);
        const double t = (double)us[j][TURNS / 2] * 1e3;
        printf("%-34s %-14s %9.1f us %6.0f TFLOP/s, floor %8.1f us: %5.1f%% (least %.1f)\n", name,
               ways[j], t, n_flop / t * 1e-6, floor_us, floor_us / t * 100.0,
               (double)us[j][0] * 1e3);
    }
}

/* Long prompts, beside cuBLASLt if the machine has it. */
static int time_peer(void)
{
    enum { TOKENS = 8000 };
    static const uint32_t shapes[][2] = {{2112, 7168},  {24576, 1536}, {7168, 2048},
                                         {7168, 16384}, {4096, 7168},  {36864, 7168}};
    const struct sm90_limits limits = find_limits();
    for (const auto &s : shapes) {
        struct problem p = make_problem(TOKENS, s[0], s[1], 1, TOKENS, 0);
        p.a.out = (float *)own(&p, device_bytes((size_t)TOKENS * s[0] * 4));
        const double n_flop = 2.0 * TOKENS * s[0] * s[1];
        const double n_byte = (double)s[0] * s[1] + (double)TOKENS * (s[1] + 4.0 * s[0]);
        char name[64];
        (void)snprintf(name, sizeof name, "%u x %u, %d rows", s[0], s[1], TOKENS);
        const auto ours = [&] { CUDA(product_fp8_sm90(p.a, p.n_tile, limits, NULL)); };
        for (bool rounded : {false, true}) {
            struct peer peer;
            if (!peer_open(&peer, p.a, rounded)) {
                measure_turns(name, {"product_fp8", "no cuBLASLt"}, n_flop, n_byte, ours, [] {});
                break;
            }
            measure_turns(name, {"product_fp8", rounded ? "cuBLASLt bf16" : "cuBLASLt f32"}, n_flop,
                          n_byte, ours, [&] { peer_run(&peer, p.a); });
            peer_close(&peer);
        }
        release(&p);
    }
    return 0;
}

/* Sums and codes apart, and in one; mapped: in one, and with the tasks of product_fp8_wide. */
static void time_swiglu(const char *name, struct problem *p, uint32_t n_row, uint32_t n_expert)
{
    const struct sm90_limits limits = find_limits();
    const uint32_t inner = p->a.n / 2;
    const uint32_t n_block = ceil_div(n_row * (inner / FP8_GROUP), 8), n_tile = p->n_tile;
    uint8_t *q = (uint8_t *)own(p, device_bytes((size_t)n_row * inner));
    float *scale = (float *)own(p, device_bytes((size_t)n_row * inner / FP8_GROUP * 4));
    struct product_args apart = p->a, fused = p->a;
    fused.out_q = q;
    fused.out_scale = scale;
    const double n_flop = 2.0 * n_row * p->a.n * p->a.k;
    const double n_byte = (double)n_expert * p->a.n * p->a.k + (double)n_row * (p->a.k + inner);
    const auto in_one = [&] { CUDA(product_fp8_sm90(fused, n_tile, limits, NULL)); };
    if (p->expert_of) {
        const struct product_args wide = wide_args(p, fused);
        const auto run = [&] { CUDA(product_fp8_wide(wide, p->n_tile, limits, NULL)); };
        measure_turns(name, {"fused", "wide"}, n_flop, n_byte, in_one, run);
        return;
    }
    measure_turns(
        name, {"apart", "fused"}, n_flop, n_byte,
        [&] {
            CUDA(product_fp8_sm90(apart, n_tile, limits, NULL));
            swiglu_codes_kernel<<<n_block, 256>>>(apart.out, n_row, apart.out_stride, inner, q,
                                                  scale);
        },
        in_one);
}

/* Experts of n_token tokens: their two products. */
static void time_fused_experts(int n_token)
{
    enum { WIDTH = 7168, INNER = 2048 };
    const uint32_t n_row = (uint32_t)n_token * SLOTS;
    const struct sm90_limits limits = find_limits();
    int *of = draw_experts(n_token, 1);
    char name[64];
    struct problem p = mapped_problem(n_row, 2 * INNER, WIDTH, SLOTS, EXPERTS, of, 0);
    p.a.out = (float *)own(&p, device_bytes((size_t)n_row * 2 * INNER * 4));
    p.a = listed(&p, n_row);
    (void)snprintf(name, sizeof name, "experts 4096 x 7168, %d tokens", n_token);
    time_swiglu(name, &p, n_row, EXPERTS);
    release(&p);
    p = mapped_problem(n_row, WIDTH, INNER, 1, EXPERTS, of, 0);
    p.a = listed(&p, n_row);
    p.a.out_h = (bf16 *)own(&p, device_bytes((size_t)n_row * WIDTH * 2));
    const struct product_args large = p.a;
    const uint32_t n_tile = p.n_tile;
    const struct product_args wide = wide_args(&p, large);
    (void)snprintf(name, sizeof name, "experts 7168 x 2048, %d tokens", n_token);
    measure_turns(
        name, {"bf16", "wide"}, 2.0 * n_row * WIDTH * INNER,
        (double)EXPERTS * WIDTH * INNER + (double)n_row * (INNER + 2.0 * WIDTH),
        [&] { CUDA(product_fp8_sm90(large, n_tile, limits, NULL)); },
        [&] { CUDA(product_fp8_wide(wide, p.n_tile, limits, NULL)); });
    release(&p);
    free(of);
}

static int time_fused(void)
{
    enum { TOKENS = 8192, INNER = 18432, WIDTH = 7168 };
    struct problem p = make_problem(TOKENS, 2 * INNER, WIDTH, 1, TOKENS, 0);
    p.a.out = (float *)own(&p, device_bytes((size_t)TOKENS * 2 * INNER * 4));
    time_swiglu("dense 36864 x 7168", &p, TOKENS, 1);
    release(&p);
    for (int n_token : {8192, 4096, 6000}) time_fused_experts(n_token);
    return 0;
}

/* ---- U4 weights ---- */

static int time_u4_plain(uint32_t m, uint32_t n, uint32_t k)
{
    enum { COPIES = 8 };
    const struct sm90_limits limits = find_limits();
    struct problem p = plain_problem(m, n, k, 0);
    make_u4(&p, COPIES, m);
    const size_t n_value = (size_t)m * n;
    float *turned = (float *)own(&p, device_bytes(n_value * 4));
    void *room = own(&p, device_bytes(product_u4_turned_bytes(n, k)));
    p.a.out = (float *)own(&p, device_bytes(n_value * 4));
    uint32_t i = 0;
    const auto args = [&](float *out) {
        struct product_args a = p.a;
        a.w = (const char *)a.w + i++ / 2 % COPIES * a.w_stride;
        a.out = out;
        return a;
    };
    char name[64];
    (void)snprintf(name, sizeof name, "u4 %u x %u, %u rows", n, k, m);
    measure_turns(
        name, {"product_u4", "turned"}, 2.0 * m * n * k,
        (double)p.a.w_stride + (double)m * (k + 4.0 * n),
        [&] { CUDA(product_u4_sm90(args(p.a.out), p.n_tile, limits, NULL)); },
        [&] { CUDA(product_u4_turned(args(turned), room, p.n_tile, limits, NULL)); });
    struct tally *t = (struct tally *)own(&p, device_bytes(sizeof *t));
    (void)read_tally(t);
    const unsigned long long differ = differing(p.a.out, turned, n_value, t);
    if (differ) printf("FAIL %s: %llu outputs differ\n", name, differ);
    release(&p);
    return differ != 0;
}

/* A rank's experts of n_token tokens, beside FP8's. */
static void time_u4_experts(int n_token, bool down)
{
    const uint32_t *s = expert_shapes[down], n_row = (uint32_t)n_token * SLOTS;
    const struct sm90_limits limits = find_limits();
    int *of = draw_experts(n_token, 1);
    struct problem p = mapped_problem(n_row, s[0], s[1], s[2], EXPERTS, of, 0);
    if (down) {
        p.a = listed(&p, n_row);
        p.a.out_h = (bf16 *)own(&p, device_bytes((size_t)n_row * s[0] * 2));
        p.a.out_stride = s[0];
    } else {
        p.a.out_q = (uint8_t *)own(&p, device_bytes((size_t)n_row * s[0] / 2));
        p.a.out_scale = (float *)own(&p, device_bytes((size_t)n_row * s[0] / 2 / FP8_GROUP * 4));
    }
    const struct product_args fp8 = p.a;
    make_u4(&p, EXPERTS, down ? n_row : (uint32_t)n_token);
    char name[64];
    (void)snprintf(name, sizeof name, "experts %u x %u, %d tokens", s[0], s[1], n_token);
    measure_turns(
        name, {"product_fp8", "product_u4"}, 2.0 * n_row * s[0] * s[1],
        (double)p.a.w_stride * EXPERTS + (double)n_row * (s[1] + (down ? 2.0 * s[0] : s[0] / 2.0)),
        [&] { CUDA(product_fp8_sm90(fp8, p.n_tile, limits, NULL)); },
        [&] { CUDA(product_u4_sm90(p.a, p.n_tile, limits, NULL)); });
    release(&p);
    free(of);
}

static int time_u4(void)
{
    static const uint32_t shapes[][2] = {{2240, 7168}, {3072, 1536}, {8192, 1536},
                                         {7168, 2048}, {4608, 7168}, {7168, 2304}};
    CUDA(product_u4_sm90_init());
    CUDA(product_u4_turned_init());
    int failed = 0;
    for (const auto &s : shapes) {
        for (uint32_t m : {4096u, 1984u, 1024u, 512u}) failed |= time_u4_plain(m, s[0], s[1]);
    }
    for (int n_token : {4096, 1984}) {
        for (bool down : {false, true}) time_u4_experts(n_token, down);
    }
    return failed;
}

/* ---- times of few rows ---- */

struct shot {
    struct product_args a;
    uint32_t n_tile;
};

/* What runs: product_few with tiles of so many rows, or MANY more, product_fp8_sm90 with tasks of
 * so many rows, or SMALL, product_small with tiles of 8 to 32. */
enum { SMALL = 0, MANY = 1000 };

/* Microseconds a launch of a recorded row of n, median of 9 replays. */
static double time_row(const struct shot *shots, uint32_t n, uint32_t tile)
{
    struct cuda_backend c = {};
    CUDA(cudaGetDeviceProperties(&c.properties, 0));
    CUDA(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    c.limits = find_limits();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < n; i++) {
        const struct product_args &a = shots[i].a;
        if (tile == SMALL) {
            const uint32_t rows = a.tasks ? 8 : a.n_token <= 8 ? 8 : a.n_token <= 16 ? 16 : 32;
            const uint32_t n_tile = a.tasks ? shots[i].n_tile : ceil_div(a.n_token, rows);
            if (product_small(&c, a, rows, n_tile, "small") != FATHOM_OK) exit(1);
        } else if (tile > MANY) {
            CUDA(product_fp8_sm90(a, a.tasks ? shots[i].n_tile : ceil_div(a.n_token, 128), c.limits,
                                  c.stream));
        } else {
            CUDA(product_few(a, tile, shots[i].n_tile, c.limits, c.stream));
        }
    }
    CUDA(cudaStreamEndCapture(c.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    float ms[9];
    for (int i = -2; i < 9; i++) {
        CUDA(cudaEventRecord(start, c.stream));
        CUDA(cudaGraphLaunch(exec, c.stream));
        CUDA(cudaEventRecord(stop, c.stream));
        CUDA(cudaStreamSynchronize(c.stream));
        if (i >= 0) CUDA(cudaEventElapsedTime(&ms[i], start, stop));
    }
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(c.stream));
    qsort(ms, 9, sizeof *ms, by_value);
    return (double)ms[4] * 1e3 / n;
}

static void print_row(const char *name, uint32_t rows, const struct product_args &a, double us,
                      double n_byte)
{
    const double floor_us = n_byte / PEAK_TBS * 1e-6;
    printf("%-22s %5u rows %6u x %5u %8.2f us, floor %7.2f: %5.1f%%\n", name, rows, a.n, a.k, us,
           floor_us, floor_us / us * 100.0);
}

static int time_few_plain(void)
{
    static const uint32_t shapes[][2] = {{2240, 7168},  {3072, 1536}, {11264, 1536}, {7168, 2048},
                                         {4608, 7168},  {7168, 2304}, {7168, 16384}, {24576, 1536},
                                         {36864, 7168}, {7168, 18432}};
    static const uint32_t sizes[] = {1, 8, 16, 32, 64, 128, 256, 512};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t n = shapes[i][0], k = shapes[i][1], n_copy = (200u << 20) / (n * k) + 1;
        struct problem p = make_problem(512, n, k, n_copy, 512, 0);
        p.a.out = (float *)own(&p, device_bytes((size_t)512 * n * 4));
        for (uint32_t m : sizes) {
            const double n_byte = (double)n * k + (double)m * k + 4.0 * m * n;
            const uint32_t tile = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
            struct shot shots[REPEAT];
            for (uint32_t r = 0; r < REPEAT; r++) {
                struct shot *s = &shots[r];
                *s = {p.a, ceil_div(m, tile)};
                s->a.n_token = m;
                s->a.w = (const char *)p.a.w + r % n_copy * p.a.w_stride;
                s->a.w_scale = p.a.w_scale + r % n_copy * p.a.w_scale_step;
            }
            print_row("few", m, p.a, time_row(shots, REPEAT, tile), n_byte);
            if (m <= 64) {
                print_row("small", m, p.a, time_row(shots, REPEAT, SMALL), n_byte);
            }
            print_row("many", m, p.a, time_row(shots, REPEAT, MANY + PRODUCT_LARGE_TILE), n_byte);
        }
        release(&p);
    }
    return 0;
}

/* Each launch with other experts; tasks of `tile` rows, or SMALL, or MANY more. */
static void time_experts(struct problem *p, int n_token, uint32_t divisor, uint32_t tile)
{
    enum { DRAWS = 8 };
    struct shot shots[DRAWS];
    double n_byte = 0.0;
    for (uint32_t r = 0; r < DRAWS; r++) {
        int *of = draw_experts(n_token, r + 1);
        bool hit[EXPERTS] = {};
        for (int i = 0; i < n_token * SLOTS; i++) hit[of[i]] = true;
        for (bool h : hit) n_byte += h ? (double)p->a.n * p->a.k / DRAWS : 0.0;
        p->a.n_token = (uint32_t)n_token * SLOTS;
        p->expert_of = of;
        map_rows(p, tile == SMALL ? 8 : tile % MANY);
        shots[r] = {p->a, p->n_tile};
        free(of);
    }
    n_byte += (double)p->a.n_token * (p->a.k / divisor + 4.0 * p->a.n);
    char name[32];
    (void)snprintf(name, sizeof name, "%s tile %u",
                   tile == SMALL ? "small"
                   : tile > MANY ? "many"
                                 : "few",
                   tile == SMALL ? 8 : tile % MANY);
    print_row(name, p->a.n_token, p->a, time_row(shots, DRAWS, tile), n_byte);
}

static int time_few_mapped(void)
{
    enum { TOKENS = 2048, ROWS = TOKENS * SLOTS };
    static const struct {
        int n_token;
        uint32_t tiles[5];
    } cases[] = {{1, {SMALL, 8}},
                 {2, {8, MANY + 8}},
                 {4, {8, MANY + 8}},
                 {8, {SMALL, 8, MANY + 8}},
                 {16, {8, MANY + 8}},
                 {64, {SMALL, 8, 16, MANY + 8}},
                 {256, {8, 16, 32, MANY + 16}},
                 {512, {16, 32, 64, MANY + 32, MANY + 128}},
                 {1024, {32, 64, MANY + 128}},
                 {2048, {64, MANY + 128}}};
    int *of = draw_experts(TOKENS, 1);
    for (size_t i = 0; i < 2; i++) {
        const uint32_t divisor = expert_shapes[i][2];
        struct problem p =
            mapped_problem(ROWS, expert_shapes[i][0], expert_shapes[i][1], divisor, EXPERTS, of, 0);
        p.a.out = (float *)own(&p, device_bytes((size_t)ROWS * p.a.n * 4));
        const uint32_t n_owned = p.n_owned;
        for (const auto &c : cases) {
            for (size_t j = 0; j < 5; j++) {
                if (j > 0 && c.tiles[j] == 0) break;
                time_experts(&p, c.n_token, divisor, c.tiles[j]);
                for (; p.n_owned > n_owned; p.n_owned--) {
                    CUDA(cudaFree(p.owned[p.n_owned - 1]));
                }
            }
        }
        release(&p);
    }
    free(of);
    return 0;
}

/* ---- sections ---- */

static int time_large(void)
{
    return time_plain(true) | time_mapped(true);
}

static int time_plain_sm90(void)
{
    return time_plain(false);
}

static int time_mapped_sm90(void)
{
    return time_mapped(false);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs a section as a process, until it ends or `end_s`. */
static bool run_section(const char *name, int (*section)(void), double end_s)
{
    printf("-- %s\n", name);
    (void)fflush(stdout);
    const double start_s = now_s();
    const pid_t child = fork();
    if (child == 0) {
        (void)setvbuf(stdout, NULL, _IOLBF, 0);
        exit(section());
    }
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now_s() > end_s) {
            (void)kill(child, SIGKILL);
            (void)waitpid(child, &status, 0);
            printf("FAIL %s: stopped, out of time\n", name);
            return false;
        }
        (void)usleep(10000);
    }
    const bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("-- %s: %s, %.1f s\n", name, ok ? "ok" : "FAIL", now_s() - start_s);
    return ok;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *kind;
        int (*run)(void);
        double time_part; /* of the time limit: gone when it ends */
    } sections[] = {{"check plain", "check", check_plain, 0.35},
                    {"check mapped", "check", check_mapped, 0.5},
                    {"check parts of K", "check", check_k_parts, 0.55},
                    {"time plain, few rows", "time", time_few_plain, 0.65},
                    {"time mapped, few rows", "time", time_few_mapped, 0.75},
                    {"time plain, many rows", "time", time_plain_sm90, 0.83},
                    {"time mapped, many rows", "time", time_mapped_sm90, 0.92},
                    {"time fused outputs", "time", time_fused, 0.93},
                    {"time long prompts", "time", time_peer, 0.95},
                    {"time u4", "time", time_u4, 0.98},
                    {"time product_fp8_large", "time", time_large, 1.0}};
    const double start_s = now_s();
    bool ok = true;
    by_row = argc > 1 && strcmp(argv[1], "rows") == 0;
    argc -= by_row;
    argv += by_row;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (argc > 1 && strcmp(argv[1], sections[i].kind) != 0) continue;
        if (argc > 2 && !strstr(sections[i].name, argv[2])) continue;
        if (by_row && sections[i].run == check_k_parts) continue; /* it cuts squares out */
        const double time_part = argc > 1 ? 1.0 : sections[i].time_part;
        ok = run_section(sections[i].name, sections[i].run, start_s + LIMIT_S * time_part) && ok;
    }
    printf("%s\n", ok ? "ALL PASS" : "SOME FAILED");
    return ok ? 0 : 1;
}

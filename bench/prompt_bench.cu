/* prompt_bench.cu - attention of prompt rows in expanded form by itself: is it right, and how fast
 *
 *   bench_prompt [check | time] [bf16] [heads N]
 *
 * check  outputs against plain f32 attention over keys and values expanded in f32: relative L2
 *        error at most 6e-3; a token's bits are the same however its request is cut into steps
 * time   median of 20 runs, plan, masks, expansion and attention together
 *
 * Steps run twice where a context is longer than 2048 rows: with all rows seen, and with 2048
 * selected. A line gives microseconds and TFLOP/s: 2 H (192 + 128) a visible pair, selected or not,
 * the expansion not counted, and the share of 989 TFLOP/s. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/sm90/prompt.cuh"
#include "cuda_call.cuh"
#include "kv_case.cuh"

enum {
    CONTEXT_MAX = 8192,
    REQUEST_MAX = 8,
    TOKEN_MAX = 8192,
    TOPK = 2048,
    REPEAT = 20,
    FLUSH_BYTES = 256 << 20,
};

#define PEAK_FLOPS 989e12
#define REL_L2_MAX 6e-3
#define SOFTMAX_SCALE 0.1352338f

__global__ void fill_kernel(bf16 *q, size_t n, uint64_t seed, float scale)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) q[i] = __float2bfloat16_rn(uniform(i + (seed << 40)) * scale);
}

/* Each request's last n_token tokens of `context`. */
struct request_shape {
    uint32_t context, n_token;
};

struct bench {
    struct backend *b;
    struct cuda_backend *c;
    uint32_t n_head;
    struct kv_cache kv;
    bf16 *query, *out, *again, *kv_b;
    float *kv_plain, *want; /* [CONTEXT_MAX][H][256] of one request; [T][H * 128] */
    int32_t *pos, *first, *page_table;
    int32_t *request, *zeros;         /* [T]: of a step, of a request alone */
    int32_t *slots, *places, *counts; /* [T][TOPK] slots and positions selected, [T] */
    void *flush;
    struct prompt_args args;
    struct request_shape shapes[REQUEST_MAX];
    uint32_t n_shape;
    double pairs;
};

static void *device_bytes(size_t n)
{
    void *p = NULL;
    CUDA(cudaMalloc(&p, n));
    return p;
}

static void fill(bf16 *to, size_t n, uint64_t seed, float scale)
{
    fill_kernel<<<(unsigned)((n + 255) / 256), 256>>>(to, n, seed, scale);
}

static void open_bench(struct bench *b, enum kv_type type, uint32_t n_head, bool checks)
{
    struct backend_config c = {};
    fathom_diag d = {};
    memset(b, 0, sizeof *b);
    b->n_head = n_head;
    c.act = ACT_FP8;
    c.hidden = 256;
    c.n_head = n_head;
    c.q_lora_rank = 128;
    c.nope_dim = c.v_dim = 128;
    c.softmax_scale = SOFTMAX_SCALE;
    c.dense_inner = 128;
    c.n_vocab = 16;
    c.index_n_head = 64;
    c.index_topk = TOPK;
    kv_layout_init(&c.kv, type, 1, true);
    c.max_token = TOKEN_MAX;
    c.max_request = REQUEST_MAX;
    c.max_context = CONTEXT_MAX;
    c.max_logit_row = 1;
    c.parallel.tp.size = 1;
    if (backend_cuda_create(&b->b, &c, &d) != FATHOM_OK) {
        printf("FAIL %s\n", d.text);
        exit(1);
    }
    b->c = cuda_of(b->b);
    b->kv.n_page = REQUEST_MAX * CONTEXT_MAX / KV_PAGE_TOKENS;
    b->kv.layout = c.kv;
    b->kv.base = device_bytes((size_t)b->kv.n_page * c.kv.page_bytes);
    fill_cache_kernel<<<REQUEST_MAX * CONTEXT_MAX, 128>>>(kv_layer_of(&b->kv, 0));
    const size_t n_query = (size_t)TOKEN_MAX * n_head * KV_ROW;
    const size_t n_out = (size_t)TOKEN_MAX * n_head * KV_LATENT;
    const size_t n_kv_b = (size_t)n_head * KV_B_ROWS * KV_LATENT;
    b->query = (bf16 *)device_bytes(n_query * 2);
    b->out = (bf16 *)device_bytes(n_out * 2);
    b->again = (bf16 *)device_bytes(n_out * 2);
    b->kv_b = (bf16 *)device_bytes(n_kv_b * 2);
    if (checks) {
        b->kv_plain = (float *)device_bytes((size_t)CONTEXT_MAX * n_head * KV_B_ROWS * 4);
        b->want = (float *)device_bytes((size_t)TOKEN_MAX * n_head * V_DIM * 4);
    }
    fill(b->query, n_query, 1, 1.0f);
    fill(b->kv_b, n_kv_b, 2, 0.08f);
    b->pos = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->first = (int32_t *)device_bytes((REQUEST_MAX + 1) * 4);
    b->page_table = (int32_t *)device_bytes((size_t)b->kv.n_page * 4);
    b->request = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->zeros = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->counts = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->slots = (int32_t *)device_bytes((size_t)TOKEN_MAX * TOPK * 4);
    b->places = (int32_t *)device_bytes((size_t)TOKEN_MAX * TOPK * 4);
    CUDA(cudaMemset(b->zeros, 0, TOKEN_MAX * 4));
    b->flush = device_bytes(FLUSH_BYTES);
    CUDA(cudaDeviceSynchronize());
}

static void close_bench(struct bench *b)
{
    void *const all[] = {b->kv.base, b->query,      b->out,   b->again,   b->kv_b,  b->kv_plain,
                         b->want,    b->pos,        b->first, b->request, b->zeros, b->slots,
                         b->counts,  b->page_table, b->flush, b->places};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CUDA(cudaFree(all[i]));
    b->b->ops->destroy(b->b);
}

/* A page's place in the cache: requests' pages lie in no order. */
static int32_t page_of(uint32_t request, uint32_t page)
{
    const uint32_t pages = CONTEXT_MAX / KV_PAGE_TOKENS;
    return (int32_t)((request * pages + page) * 2741u % (REQUEST_MAX * pages));
}

/* Selected rows of the step's tokens: ascending, one of each stretch. */
static void set_selection(struct bench *b, const int32_t *pos, const int32_t *request, uint32_t n)
{
    int32_t *slots = (int32_t *)calloc((size_t)n * TOPK, 4);
    int32_t *places = (int32_t *)calloc((size_t)n * TOPK, 4), *counts = (int32_t *)malloc(n * 4);
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t seen = (uint32_t)pos[t] + 1, count = min(seen, (uint32_t)TOPK);
        counts[t] = (int32_t)count;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t lo = (uint32_t)((uint64_t)i * seen / count);
            const uint32_t hi = (uint32_t)((uint64_t)(i + 1) * seen / count);
            const uint32_t p = lo + mix(t * 4099ull + i) % (hi - lo);
            places[(size_t)t * TOPK + i] = (int32_t)p;
            slots[(size_t)t * TOPK + i] =
                page_of((uint32_t)request[t], p / KV_PAGE_TOKENS) * KV_PAGE_TOKENS +
                (int32_t)(p % KV_PAGE_TOKENS);
        }
    }
    CUDA(cudaMemcpy(b->slots, slots, (size_t)n * TOPK * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->places, places, (size_t)n * TOPK * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->counts, counts, n * 4, cudaMemcpyHostToDevice));
    free(slots);
    free(places);
    free(counts);
}

static void set_step(struct bench *b, const struct request_shape *shapes, uint32_t n, bool selects)
{
    const uint32_t pages = CONTEXT_MAX / KV_PAGE_TOKENS;
    static int32_t pos[TOKEN_MAX], request[TOKEN_MAX], first[REQUEST_MAX + 1],
        table[REQUEST_MAX * CONTEXT_MAX / 64];
    uint32_t at = 0, longest = 0;
    for (uint32_t i = 0; i < REQUEST_MAX * pages; i++) table[i] = page_of(i / pages, i % pages);
    b->pairs = 0;
    for (uint32_t r = 0; r < n; r++) {
        first[r] = (int32_t)at;
        longest = max(longest, shapes[r].context);
        b->shapes[r] = shapes[r];
        for (uint32_t i = 0; i < shapes[r].n_token; i++) {
            request[at] = (int32_t)r;
            pos[at] = (int32_t)(shapes[r].context - shapes[r].n_token + i);
            b->pairs += pos[at++] + 1;
        }
    }
    first[n] = (int32_t)at;
    b->n_shape = n;
    CUDA(cudaMemcpy(b->pos, pos, at * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->request, request, at * 4, cudaMemcpyHostToDevice));
    if (selects) set_selection(b, pos, request, at);
    CUDA(cudaMemcpy(b->first, first, (n + 1) * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->page_table, table, sizeof table, cudaMemcpyHostToDevice));
    struct prompt_args a = {};
    a.query = b->query;
    a.out = b->out;
    a.query_stride = (size_t)b->n_head * KV_ROW;
    a.out_stride = (size_t)b->n_head * KV_LATENT;
    a.pos = b->pos;
    a.first = b->first;
    a.request = b->request;
    a.slots = selects ? b->slots : NULL;
    a.counts = selects ? b->counts : NULL;
    a.topk = TOPK;
    a.page_table = b->page_table;
    a.page_stride = pages;
    a.n_token = at;
    a.n_request = n;
    a.max_context = longest;
    a.end = INT32_MAX;
    a.kv = kv_layer_of(&b->kv, 0);
    a.kv_b = b->kv_b;
    a.n_head = b->n_head;
    a.scale = SOFTMAX_SCALE;
    b->args = a;
}

static void run(struct bench *b, const struct prompt_args &a)
{
    if (prompt_attend_sm90(b->c, a) != FATHOM_OK) {
        printf("FAIL %s\n", b->c->fault);
        exit(1);
    }
}

/* ---- check ---- */

/* Block: a context row and a head; thread: a row of kv_b. */
__global__ void plain_expand_kernel(struct kv_layer l, const int32_t *pages, const bf16 *kv_b,
                                    float *kv)
{
    const uint32_t row = blockIdx.y, head = blockIdx.x, n_head = gridDim.x;
    const char *from = kv_row(l, kv_slot(pages, (int)row));
    const bf16 *w = kv_b + ((size_t)head * KV_B_ROWS + threadIdx.x) * KV_LATENT;
    float sum = 0.0f;
    for (int i = 0; i < KV_LATENT; i++)
        sum = fmaf(__bfloat162float(w[i]), kv_value(l, from, i), sum);
    kv[((size_t)row * n_head + head) * KV_B_ROWS + threadIdx.x] = sum;
}

/* Block: a token and a head; thread: an output. */
__global__ void plain_attend_kernel(struct prompt_args a, const int32_t *places, int token0,
                                    int request, const float *kv, float *out)
{
    __shared__ float score[CONTEXT_MAX], scratch[9];
    const uint32_t token = (uint32_t)token0 + blockIdx.y, head = blockIdx.x;
    const bf16 *q = a.query + token * a.query_stride + head * QUERY_DIM;
    const int32_t *pages = a.page_table + (size_t)request * a.page_stride;
    const int n = a.slots ? a.counts[token] : a.pos[token] + 1;
    const int32_t *seen = a.slots ? places + (size_t)token * TOPK : NULL;
    float top = -INFINITY, sum = 0.0f, o = 0.0f;
    for (int r = (int)threadIdx.x; r < n; r += (int)blockDim.x) {
        const int place = seen ? seen[r] : r;
        const float *key = kv + ((size_t)place * a.n_head + head) * KV_B_ROWS;
        const char *row = kv_row(a.kv, kv_slot(pages, place));
        float dot = 0.0f;
        for (int i = 0; i < NOPE_DIM; i++) dot = fmaf(__bfloat162float(q[i]), key[i], dot);
        for (int i = 0; i < KV_ROPE; i++)
            dot = fmaf(__bfloat162float(q[NOPE_DIM + i]), kv_value(a.kv, row, KV_LATENT + i), dot);
        score[r] = dot * a.scale;
    }
    __syncthreads();
    for (int r = 0; r < n; r++) top = fmaxf(top, score[r]);
    for (int r = (int)threadIdx.x; r < n; r += (int)blockDim.x) sum += expf(score[r] - top);
    sum = block_sum(sum, scratch);
    for (int r = 0; r < n; r++) {
        const size_t place = (size_t)(seen ? seen[r] : r);
        o = fmaf(expf(score[r] - top) / sum,
                 kv[(place * a.n_head + head) * KV_B_ROWS + NOPE_DIM + threadIdx.x], o);
    }
    out[((size_t)token * a.n_head + head) * V_DIM + threadIdx.x] = o;
}

/* Largest relative L2 error of a token. */
static double worst_error(const struct bench *b, uint32_t n)
{
    const size_t width = b->n_head * V_DIM, stride = b->args.out_stride;
    float *want = (float *)malloc(n * width * 4);
    uint16_t *got = (uint16_t *)malloc(n * stride * 2);
    double worst = 0;
    CUDA(cudaMemcpy(want, b->want, n * width * 4, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(got, b->out, n * stride * 2, cudaMemcpyDeviceToHost));
    for (uint32_t t = 0; t < n; t++) {
        double error = 0, norm = 0;
        for (size_t i = 0; i < width; i++) {
            uint32_t u = (uint32_t)got[t * stride + i] << 16;
            float v, w = want[t * width + i];
            memcpy(&v, &u, 4);
            error += ((double)v - (double)w) * ((double)v - (double)w);
            norm += (double)w * (double)w;
        }
        const double rel = sqrt(error / norm);
        worst = rel <= worst ? worst : rel; /* a NaN stays */
    }
    free(want);
    free(got);
    return worst;
}

/* Tokens whose bits differ when each request runs alone, `chunk` tokens a step */
static unsigned changed_tokens(struct bench *b, uint32_t chunk)
{
    const size_t stride = b->args.out_stride, width = b->n_head * V_DIM;
    const uint32_t n = b->args.n_token;
    uint16_t *x = (uint16_t *)malloc(n * stride * 2), *y = (uint16_t *)malloc(n * stride * 2);
    unsigned changed = 0;
    uint32_t token = 0;
    CUDA(cudaMemsetAsync(b->again, 0xff, n * stride * 2, b->c->stream));
    for (uint32_t r = 0; r < b->n_shape; r++) {
        for (uint32_t i = 0; i < b->shapes[r].n_token; i += chunk) {
            const uint32_t m = min(chunk, b->shapes[r].n_token - i);
            const int32_t first[2] = {0, (int32_t)m};
            struct prompt_args a = b->args;
            CUDA(cudaMemcpy(b->first, first, sizeof first, cudaMemcpyHostToDevice));
            a.query += (token + i) * a.query_stride;
            a.pos += token + i;
            a.request = b->zeros;
            if (a.slots) {
                a.slots += (size_t)(token + i) * TOPK;
                a.counts += token + i;
            }
            a.out = b->again + (token + i) * stride;
            a.page_table += r * a.page_stride;
            a.n_token = m;
            a.n_request = 1;
            a.max_context = b->shapes[r].context - b->shapes[r].n_token + i + m;
            run(b, a);
            CUDA(cudaStreamSynchronize(b->c->stream));
        }
        token += b->shapes[r].n_token;
    }
    CUDA(cudaMemcpy(x, b->again, n * stride * 2, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(y, b->out, n * stride * 2, cudaMemcpyDeviceToHost));
    for (uint32_t t = 0; t < n; t++)
        changed += memcmp(x + t * stride, y + t * stride, width * 2) != 0;
    free(x);
    free(y);
    return changed;
}

static bool check(struct bench *b, const struct request_shape *shapes, uint32_t n, bool selects)
{
    set_step(b, shapes, n, selects);
    CUDA(cudaMemsetAsync(b->out, 0xff, (size_t)b->args.n_token * b->args.out_stride * 2,
                         b->c->stream));
    run(b, b->args);
    CUDA(cudaStreamSynchronize(b->c->stream));
    int token = 0;
    for (uint32_t r = 0; r < n; r++) {
        const int32_t *pages = b->page_table + r * b->args.page_stride;
        plain_expand_kernel<<<dim3(b->n_head, shapes[r].context), KV_B_ROWS>>>(
            b->args.kv, pages, b->kv_b, b->kv_plain);
        plain_attend_kernel<<<dim3(b->n_head, shapes[r].n_token), V_DIM>>>(
            b->args, b->places, token, (int)r, b->kv_plain, b->want);
        token += (int)shapes[r].n_token;
    }
    CUDA(cudaDeviceSynchronize());
    const double rel = worst_error(b, b->args.n_token);
    const uint32_t chunks[] = {1, 37, 64, 300};
    bool ok = rel <= REL_L2_MAX;
    printf("%u requests, %u tokens, context %u%s: largest relative error %.2e, bits differ in "
           "steps of",
           n, b->args.n_token, b->args.max_context, selects ? ", 2048 selected" : "", rel);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (chunks[i] == 1 && b->args.n_token > 400) continue;
        const unsigned changed = changed_tokens(b, chunks[i]);
        printf(" %u: %u", chunks[i], changed);
        ok = ok && changed == 0;
    }
    printf(" %s\n", ok ? "PASS" : "FAIL");
    fflush(stdout);
    return ok;
}

static bool check_all(struct bench *b)
{
    const struct request_shape one[] = {{1, 1}}, short_one[] = {{300, 300}}, late[] = {{2300, 411}};
    const struct request_shape mixed[] = {{700, 700}, {1, 1}, {129, 128}, {64, 64}, {1500, 77}};
    const struct request_shape far[] = {{5000, 150}, {2100, 130}, {300, 300}};
    bool ok = check(b, one, 1, false);
    ok = check(b, short_one, 1, false) && ok;
    ok = check(b, late, 1, false) && ok;
    ok = check(b, late, 1, true) && ok;
    ok = check(b, far, 3, true) && ok;
    return check(b, mixed, 5, false) && ok;
}

/* ---- time ---- */

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void time_step(struct bench *b, const struct request_shape *shapes, uint32_t n, bool selects)
{
    cudaEvent_t begin, end;
    float ms[REPEAT];
    set_step(b, shapes, n, selects);
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = -2; i < REPEAT; i++) {
        CUDA(cudaMemcpyAsync(b->flush, (char *)b->flush + FLUSH_BYTES / 2, FLUSH_BYTES / 2,
                             cudaMemcpyDeviceToDevice, b->c->stream));
        CUDA(cudaEventRecord(begin, b->c->stream));
        run(b, b->args);
        CUDA(cudaEventRecord(end, b->c->stream));
        CUDA(cudaEventSynchronize(end));
        if (i >= 0) CUDA(cudaEventElapsedTime(&ms[i], begin, end));
    }
    qsort(ms, REPEAT, sizeof *ms, compare_floats);
    const double us = (double)ms[REPEAT / 2] * 1e3;
    const double flop = 2.0 * b->n_head * (QUERY_DIM + V_DIM) * b->pairs;
    printf(
        "%3u heads, %u x %4u of context %4u%s: %8.1f us, least %8.1f, %6.1f TFLOP/s, share %.2f\n",
        b->n_head, n, shapes[0].n_token, shapes[0].context, selects ? ", 2048 selected" : "", us,
        (double)ms[0] * 1e3, flop / us * 1e-6, flop / us * 1e6 / PEAK_FLOPS);
    fflush(stdout);
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
}

static void time_all(struct bench *b)
{
    const struct request_shape four[] = {{1984, 1984}, {1984, 1984}, {1984, 1984}, {1984, 1984}};
    const struct request_shape others[] = {
        {8000, 8000}, {8000, 2048}, {4096, 4096}, {2048, 2048}, {512, 512}};
    time_step(b, four, 4, false);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        time_step(b, &others[i], 1, false);
        if (others[i].context > TOPK) time_step(b, &others[i], 1, true);
    }
}

int main(int argc, char **argv)
{
    static struct bench b;
    enum kv_type type = KV_TYPE_FP8;
    bool checks = true, times = true, ok = true;
    uint32_t heads[] = {16, 128}, n_heads = 2;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "bf16") == 0) type = KV_TYPE_BF16;
        if (strcmp(argv[i], "check") == 0) times = false;
        if (strcmp(argv[i], "time") == 0) checks = false;
        if (strcmp(argv[i], "heads") == 0 && i + 1 < argc) {
            heads[0] = (uint32_t)atoi(argv[i + 1]);
            n_heads = 1;
        }
    }
    for (uint32_t i = 0; i < n_heads; i++) {
        open_bench(&b, type, heads[i], checks);
        if (checks) ok = check_all(&b) && ok;
        if (times) time_all(&b);
        close_bench(&b);
    }
    printf("%s\n", ok ? "ALL PASS" : "SOME FAILED");
    return ok ? 0 : 1;
}

/* attend_bench.cu - absorbed attention by itself, of one rank of 8 (16 heads) unless told
 * otherwise: is it right, and how fast
 *
 *   bench_attend [check | time] [bf16] [heads N]
 *
 * check  outputs against plain f32 attention of the same cache: relative L2 error at most 5e-3; a
 *        token's bits are the same whatever tokens run beside it
 * time   median of 20 runs, each after a copy that empties the caches; decodes and pieces of one
 *        prompt, with 2048 selected rows where the context is longer
 *
 * Pieces of prompts begin at position 16384, eight times index_topk, or later: rows before it are
 * attended in expanded form, which prompt_bench.cu measures. Steps that see all rows of long
 * contexts run on a backend without an indexer, the others on one with it.
 *
 * A line gives microseconds, GB/s and TFLOP/s of what has to be moved and computed, and the larger
 * share of two floors: 4.2 TB/s, and 600 TFLOP/s, about what mma.sync reaches on an H200. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_call.cuh"
#include "kv_case.cuh"

enum {
    N_HEAD_MAX = 128,
    TOPK = 2048,
    CONTEXT_MAX = 24576,
    SEEN_MAX = 8192, /* rows of a token */
    REQUEST_MAX = 128,
    TOKEN_MAX = 4096,
    INDEX_HEADS = 64,
    REPEAT = 20,
    FLUSH_BYTES = 256 << 20,
};

#define PEAK_BYTES 4.2e12
#define PEAK_FLOPS 600e12
#define REL_L2_MAX 5e-3
#define SOFTMAX_SCALE 0.1352338f

/* ---- a cache and queries ---- */

__global__ void fill_query_kernel(bf16 *q, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) q[i] = __float2bfloat16_rn(uniform(i + (1ull << 40)) * 0.6f);
}

/* Decodes of n_token requests at the end of `context`, with at most TOPK rows or with all; or the
 * last n_token tokens of one prompt, all at positions in absorbed form. */
enum step { DECODE, DENSE, PREFILL };

struct shape {
    uint32_t n_token, context;
    enum step step;
};

static const char *const step_names[] = {"decode", "dense", "prefill"};

struct bench {
    uint32_t n_head;
    bool has_index; /* else steps are DENSE */
    struct backend *b;
    struct cuda_backend *c;
    struct weight *w;
    struct kv_cache kv;
    struct buffer query, select, latent;
    int32_t *pos, *request, *page_table;
    int32_t *first; /* 0 and n, for each number n of a prompt's tokens */
    struct batch batch;
    bool selects;
    float *want;
    void *flush;
    double rows_seen, rows_read; /* of the step; read counts a request's row once */
};

static void *device_bytes(size_t n)
{
    void *p = NULL;
    CUDA(cudaMalloc(&p, n));
    return p;
}

static void need(fathom_err err, const char *text)
{
    if (err == FATHOM_OK) return;
    printf("FAIL %s\n", text);
    exit(1);
}

static void open_backend(struct bench *b, enum kv_type type)
{
    struct backend_config c = {};
    fathom_diag d = {};
    c.act = ACT_FP8;
    c.hidden = 256;
    c.n_head = b->n_head;
    c.q_lora_rank = 128;
    c.nope_dim = c.v_dim = 128;
    c.softmax_scale = SOFTMAX_SCALE;
    c.index_n_head = b->has_index ? INDEX_HEADS : 0;
    c.index_topk = b->has_index ? TOPK : 0;
    c.dense_inner = 128;
    c.n_vocab = 16;
    kv_layout_init(&c.kv, type, 1, b->has_index);
    c.max_token = TOKEN_MAX;
    c.max_request = REQUEST_MAX;
    c.max_context = CONTEXT_MAX;
    c.max_logit_row = 1;
    c.parallel.tp.size = 1;
    need(backend_cuda_create(&b->b, &c, &d), d.text);
    b->c = cuda_of(b->b);
    b->kv.layout = c.kv;
}

static struct tensor_view generated(enum dtype type, uint32_t n_row, uint32_t n_col)
{
    struct tensor_view v = {};
    v.dtype = type;
    v.n_row = n_row;
    v.n_col = n_col;
    v.generate_seed = 11 + n_row * 31 + n_col;
    v.generate_std = 1.0f / sqrtf((float)n_col);
    return v;
}

static void make_weight(struct bench *b)
{
    const struct backend_config *c = &b->c->c;
    const uint32_t index = c->index_n_head;
    struct mla_tensors t = {};
    fathom_diag d = {};
    t.q_a = generated(DTYPE_BF16, c->q_lora_rank, c->hidden);
    t.q_a_norm = generated(DTYPE_BF16, 1, c->q_lora_rank);
    t.q_b = generated(DTYPE_BF16, b->n_head * QUERY_DIM, c->q_lora_rank);
    t.kv_a = generated(DTYPE_BF16, KV_ROW, c->hidden);
    t.kv_a_norm = generated(DTYPE_BF16, 1, KV_LATENT);
    t.kv_b = generated(DTYPE_BF16, b->n_head * KV_B_ROWS, KV_LATENT);
    t.o = generated(DTYPE_BF16, c->hidden, b->n_head * V_DIM);
    if (index) {
        t.index_q_b = generated(DTYPE_BF16, index * KV_INDEX_DIM, c->q_lora_rank);
        t.index_k = generated(DTYPE_BF16, KV_INDEX_DIM, c->hidden);
        t.index_k_weight = generated(DTYPE_F32, 1, KV_INDEX_DIM);
        t.index_k_bias = generated(DTYPE_F32, 1, KV_INDEX_DIM);
        t.index_head = generated(DTYPE_BF16, index, c->hidden);
    }
    need(b->b->ops->prepare_mla(b->b, &t, &b->w, &d), d.text);
}

/* A request's first token and its end, as a batch of one prompt has them. */
static int32_t *make_firsts(void)
{
    static int32_t first[2 * (TOKEN_MAX + 1)];
    int32_t *to = (int32_t *)device_bytes(sizeof first);
    for (int32_t n = 0; n <= TOKEN_MAX; n++) first[2 * n + 1] = n;
    CUDA(cudaMemcpy(to, first, sizeof first, cudaMemcpyHostToDevice));
    return to;
}

static void open_bench(struct bench *b, enum kv_type type, uint32_t n_head, bool has_index)
{
    memset(b, 0, sizeof *b);
    b->n_head = n_head;
    b->has_index = has_index;
    open_backend(b, type);
    make_weight(b);
    b->kv.n_page = REQUEST_MAX * CONTEXT_MAX / KV_PAGE_TOKENS;
    b->kv.base = device_bytes((size_t)b->kv.n_page * b->kv.layout.page_bytes);
    fill_cache_kernel<<<REQUEST_MAX * CONTEXT_MAX, 128>>>(kv_layer_of(&b->kv, 0));
    const size_t n_query = (size_t)TOKEN_MAX * n_head * KV_ROW;
    const size_t n_out = (size_t)TOKEN_MAX * n_head * KV_LATENT;
    b->query.kind = BUFFER_QUERY;
    b->select.kind = BUFFER_SELECT;
    b->latent.kind = BUFFER_LATENT;
    b->query.h = (bf16 *)device_bytes(n_query * 2);
    fill_query_kernel<<<(unsigned)((n_query + 255) / 256), 256>>>(b->query.h, n_query);
    b->latent.h = (bf16 *)device_bytes(n_out * 2);
    b->want = (float *)device_bytes(n_out * 4);
    b->select.i = (int32_t *)device_bytes((size_t)TOKEN_MAX * TOPK * 4);
    b->select.n = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->pos = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->request = (int32_t *)device_bytes(TOKEN_MAX * 4);
    b->page_table = (int32_t *)device_bytes((size_t)b->kv.n_page * 4);
    b->first = make_firsts();
    b->flush = device_bytes(FLUSH_BYTES);
    CUDA(cudaDeviceSynchronize());
}

static void close_bench(struct bench *b)
{
    void *const all[] = {b->kv.base, b->query.h, b->latent.h,   b->want,  b->select.i, b->select.n,
                         b->pos,     b->request, b->page_table, b->first, b->flush};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CUDA(cudaFree(all[i]));
    b->b->ops->weight_destroy(b->b, b->w);
    b->b->ops->destroy(b->b);
}

/* A page's place in the cache: requests' pages lie in no order. */
static int32_t page_of(uint32_t request, uint32_t page)
{
    const uint32_t pages = CONTEXT_MAX / KV_PAGE_TOKENS;
    return (int32_t)((request * pages + page) * 2741u % (REQUEST_MAX * pages));
}

static void set_step(struct bench *b, struct shape s)
{
    const uint32_t n_token = s.n_token, context = s.context;
    const bool is_prefill = s.step == PREFILL;
    const uint32_t pages = CONTEXT_MAX / KV_PAGE_TOKENS;
    int32_t *pos = (int32_t *)malloc(n_token * 4), *request = (int32_t *)malloc(n_token * 4);
    int32_t *table = (int32_t *)malloc((size_t)REQUEST_MAX * pages * 4);
    int32_t *slots = (int32_t *)calloc((size_t)n_token * TOPK, 4);
    int32_t *counts = (int32_t *)malloc(n_token * 4);
    for (uint32_t i = 0; i < REQUEST_MAX * pages; i++) table[i] = page_of(i / pages, i % pages);
    b->rows_seen = 0;
    for (uint32_t t = 0; t < n_token; t++) {
        request[t] = is_prefill ? 0 : (int32_t)t;
        pos[t] = (int32_t)(is_prefill ? context - n_token + t : context - 1);
        const uint32_t n = (uint32_t)pos[t] + 1, seen = n < TOPK || s.step == DENSE ? n : TOPK;
        for (uint32_t i = 0; i < min(seen, (uint32_t)TOPK);
             i++) { /* ascending, one of each stretch of n / seen */
            uint32_t lo = (uint32_t)((uint64_t)i * n / seen);
            uint32_t hi = (uint32_t)((uint64_t)(i + 1) * n / seen);
            uint32_t p = lo + mix(t * 4099ull + i) % (hi - lo);
            slots[(size_t)t * TOPK + i] =
                page_of((uint32_t)request[t], p / KV_PAGE_TOKENS) * KV_PAGE_TOKENS +
                (int32_t)(p % KV_PAGE_TOKENS);
        }
        counts[t] = (int32_t)seen;
        b->rows_seen += seen;
    }
    b->rows_read = is_prefill ? context : b->rows_seen;
    b->selects = context > TOPK && s.step != DENSE;
    CUDA(cudaMemcpy(b->pos, pos, n_token * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->request, request, n_token * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->page_table, table, (size_t)REQUEST_MAX * pages * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->select.i, slots, (size_t)n_token * TOPK * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b->select.n, counts, n_token * 4, cudaMemcpyHostToDevice));
    b->batch = {};
    b->batch.n_token = n_token;
    b->batch.n_request = is_prefill ? 1 : n_token;
    b->batch.n_answer_token = is_prefill ? 0 : n_token;
    b->batch.n_answer_request = is_prefill ? 0 : n_token;
    b->batch.max_context = context;
    b->batch.page_stride = pages;
    b->batch.pos = b->pos;
    b->batch.request = b->request;
    b->batch.page_table = b->page_table;
    b->batch.slot = b->pos; /* there, and not read by attention */
    free(pos);
    free(request);
    free(table);
    free(slots);
    free(counts);
}

/* Tokens t0 to t0 + n - 1 of the step, in a step of their own. */
static void run(struct bench *b, uint32_t t0, uint32_t n, bf16 *out)
{
    struct batch batch = b->batch;
    struct buffer query = b->query, select = b->select, latent = b->latent;
    batch.n_token = n;
    batch.n_request = min(batch.n_request, n);
    batch.n_answer_token = min(batch.n_answer_token, n);
    batch.n_answer_request = min(batch.n_answer_request, n);
    batch.pos += t0;
    batch.request += t0;
    batch.first = b->first + 2 * n; /* of answers it is not read */
    query.h += (size_t)t0 * b->n_head * KV_ROW;
    select.i += (size_t)t0 * TOPK;
    select.n += t0;
    latent.h = out;
    struct mla_attend_args a = {};
    a.w = b->w;
    a.batch = &batch;
    a.kv = &b->kv;
    a.query = &query;
    a.select = b->selects ? &select : NULL;
    a.out = &latent;
    need(cuda_mla_attend(b->b, &a), b->c->fault);
}

/* ---- check ---- */

struct plain_rows {
    const int32_t *slots, *counts; /* slots NULL: those of the page table */
    const int32_t *page_table, *request;
};

static __device__ int plain_slot(const struct plain_rows &rows, uint32_t token, int r)
{
    if (rows.slots) return rows.slots[(size_t)token * TOPK + (size_t)r];
    const int pages = CONTEXT_MAX / KV_PAGE_TOKENS;
    return kv_slot(rows.page_table + rows.request[token] * pages, r);
}

/* Block: one (token, head); thread: two columns. */
__global__ void plain_attend_kernel(struct kv_layer l, const bf16 *query, struct plain_rows rows,
                                    float *out)
{
    __shared__ float score[SEEN_MAX], scratch[9];
    const uint32_t token = blockIdx.y, head = blockIdx.x;
    const bf16 *q = query + ((size_t)token * gridDim.x + head) * KV_ROW;
    const int n = rows.counts[token];
    float top = -INFINITY, sum = 0.0f, o[2] = {};
    for (int r = (int)threadIdx.x; r < n; r += (int)blockDim.x) {
        const char *row = kv_row(l, plain_slot(rows, token, r));
        float dot = 0.0f;
        for (int i = 0; i < KV_ROW; i++) {
            dot = fmaf(__bfloat162float(q[i]), kv_value(l, row, i), dot);
        }
        score[r] = dot * SOFTMAX_SCALE;
    }
    __syncthreads();
    for (int r = 0; r < n; r++) top = fmaxf(top, score[r]);
    for (int r = (int)threadIdx.x; r < n; r += (int)blockDim.x) sum += expf(score[r] - top);
    sum = block_sum(sum, scratch);
    for (int r = 0; r < n; r++) {
        const char *row = kv_row(l, plain_slot(rows, token, r));
        float p = expf(score[r] - top) / sum;
        for (int j = 0; j < 2; j++)
            o[j] = fmaf(p, kv_value(l, row, (int)threadIdx.x * 2 + j), o[j]);
    }
    float *to = out + ((size_t)token * gridDim.x + head) * KV_LATENT;
    to[threadIdx.x * 2] = o[0];
    to[threadIdx.x * 2 + 1] = o[1];
}

/* Largest relative L2 error of a token among the first n. */
static double worst_error(const struct bench *b, uint32_t n)
{
    const size_t width = b->n_head * KV_LATENT;
    float *want = (float *)malloc(n * width * 4);
    uint16_t *got = (uint16_t *)malloc(n * width * 2);
    double worst = 0;
    CUDA(cudaMemcpy(want, b->want, n * width * 4, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(got, b->latent.h, n * width * 2, cudaMemcpyDeviceToHost));
    for (uint32_t t = 0; t < n; t++) {
        double error = 0, norm = 0;
        for (size_t i = t * width; i < (t + 1) * width; i++) {
            uint32_t u = (uint32_t)got[i] << 16;
            float v;
            memcpy(&v, &u, 4);
            error += ((double)v - (double)want[i]) * ((double)v - (double)want[i]);
            norm += (double)want[i] * (double)want[i];
        }
        const double rel = sqrt(error / norm);
        worst = rel <= worst ? worst : rel; /* a NaN stays */
    }
    free(want);
    free(got);
    return worst;
}

/* Tokens whose bits differ when they run in steps of `chunk` */
static unsigned changed_tokens(struct bench *b, uint32_t n, uint32_t chunk)
{
    const size_t width = b->n_head * KV_LATENT;
    bf16 *again = (bf16 *)b->want;
    char *x = (char *)malloc(n * width * 2), *y = (char *)malloc(n * width * 2);
    unsigned changed = 0;
    CUDA(cudaMemsetAsync(again, 0xff, n * width * 2, b->c->stream));
    for (uint32_t t = 0; t < n; t += chunk) {
        run(b, t, n - t < chunk ? n - t : chunk, again + t * width);
    }
    CUDA(cudaStreamSynchronize(b->c->stream));
    CUDA(cudaMemcpy(x, again, n * width * 2, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(y, b->latent.h, n * width * 2, cudaMemcpyDeviceToHost));
    for (uint32_t t = 0; t < n; t++) {
        changed += memcmp(x + t * width * 2, y + t * width * 2, width * 2) != 0;
    }
    free(x);
    free(y);
    return changed;
}

static bool check(struct bench *b, struct shape s)
{
    set_step(b, s);
    CUDA(cudaMemsetAsync(b->latent.h, 0xff, (size_t)s.n_token * b->n_head * KV_LATENT * 2,
                         b->c->stream));
    run(b, 0, s.n_token, b->latent.h);
    CUDA(cudaStreamSynchronize(b->c->stream));
    const struct plain_rows rows = {b->selects ? b->select.i : NULL, b->select.n, b->page_table,
                                    b->request};
    plain_attend_kernel<<<dim3(b->n_head, s.n_token), KV_LATENT / 2>>>(kv_layer_of(&b->kv, 0),
                                                                       b->query.h, rows, b->want);
    CUDA(cudaDeviceSynchronize());
    const double rel = worst_error(b, s.n_token);
    const uint32_t chunks[] = {1, 7, 37, 64, 300};
    bool ok = rel <= REL_L2_MAX;
    printf("%s %u, context %u: largest relative error %.2e, tokens whose bits differ in steps of",
           step_names[s.step], s.n_token, s.context, rel);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks && chunks[i] < s.n_token; i++) {
        const unsigned changed = changed_tokens(b, s.n_token, chunks[i]);
        printf(" %u: %u", chunks[i], changed);
        ok = ok && changed == 0;
    }
    printf(" %s\n", ok ? "PASS" : "FAIL");
    return ok;
}

static bool check_all(struct bench *b)
{
    const struct shape shapes[] = {{1, 65, DECODE},      {8, 2048, DECODE},   {64, 2048, DECODE},
                                   {64, 8000, DECODE},   {100, 3000, DECODE}, {9, 5000, DENSE},
                                   {70, 2500, DENSE},    {64, 100, DECODE},   {400, 16784, PREFILL},
                                   {300, 19192, PREFILL}};
    bool ok = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (b->has_index == (shapes[i].step != DENSE)) ok = check(b, shapes[i]) && ok;
    return ok;
}

/* ---- time ---- */

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void time_shape(struct bench *b, struct shape s)
{
    cudaEvent_t begin, end;
    float ms[REPEAT];
    set_step(b, s);
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = -2; i < REPEAT; i++) {
        CUDA(cudaMemcpyAsync(b->flush, (char *)b->flush + FLUSH_BYTES / 2, FLUSH_BYTES / 2,
                             cudaMemcpyDeviceToDevice, b->c->stream));
        CUDA(cudaEventRecord(begin, b->c->stream));
        run(b, 0, s.n_token, b->latent.h);
        CUDA(cudaEventRecord(end, b->c->stream));
        CUDA(cudaEventSynchronize(end));
        if (i >= 0) CUDA(cudaEventElapsedTime(&ms[i], begin, end));
    }
    qsort(ms, REPEAT, sizeof *ms, compare_floats);
    const double us = (double)ms[REPEAT / 2] * 1e3;
    const double row = b->kv.layout.type == KV_TYPE_FP8 ? KV_ROW_BYTES_FP8 : KV_ROW_BYTES_BF16;
    const double bytes =
        b->rows_read * row + (double)s.n_token * b->n_head * (KV_ROW + KV_LATENT) * 2;
    const double flop = 2.0 * b->n_head * (KV_ROW + KV_LATENT) * b->rows_seen;
    const double floor_us = fmax(bytes / PEAK_BYTES, flop / PEAK_FLOPS) * 1e6;
    printf("%-8s %4u, context %4u: %8.1f us, least %7.1f  %6.0f GB/s %6.1f TFLOP/s\n",
           step_names[s.step], s.n_token, s.context, us, ms[0] * 1e3, bytes / us * 1e-3,
           flop / us * 1e-6);
    printf("                            floor %.1f us, share %.2f\n", floor_us, floor_us / us);
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
}

static void time_all(struct bench *b)
{
    const struct shape shapes[] = {
        {1, 2048, DECODE},     {8, 2048, DECODE},      {64, 2048, DECODE},
        {128, 2048, DECODE},   {1, 8192, DECODE},      {8, 8192, DECODE},
        {64, 8192, DECODE},    {128, 8192, DECODE},    {64, 8192, DENSE},
        {512, 16896, PREFILL}, {2048, 18432, PREFILL}, {4096, 20480, PREFILL},
        {4096, 24576, PREFILL}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (b->has_index == (shapes[i].step != DENSE)) time_shape(b, shapes[i]);
}

int main(int argc, char **argv)
{
    static struct bench b;
    enum kv_type type = KV_TYPE_FP8;
    bool checks = true, times = true, ok = true;
    uint32_t n_head = 16;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "bf16") == 0) type = KV_TYPE_BF16;
        if (strcmp(argv[i], "check") == 0) times = false;
        if (strcmp(argv[i], "time") == 0) checks = false;
        if (strcmp(argv[i], "heads") == 0 && i + 1 < argc) n_head = (uint32_t)atoi(argv[++i]);
    }
    if (n_head < 1 || n_head > N_HEAD_MAX) {
        printf("heads: 1 to %d\n", N_HEAD_MAX);
        return 1;
    }
    for (int has_index = 1; has_index >= 0; has_index--) {
        open_bench(&b, type, n_head, has_index != 0);
        if (checks) ok = check_all(&b) && ok;
        if (times) time_all(&b);
        close_bench(&b);
    }
    printf("%s\n", ok ? "ALL PASS" : "SOME FAILED");
    return ok ? 0 : 1;
}

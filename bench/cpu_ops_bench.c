/* cpu_ops_bench.c - the CPU backend's operators alone: products against bandwidth, and whole steps
 *
 *   bench_cpu_ops products [N_THREAD]         256 MiB of FP8 weight, 1 .. 256 rows
 *   bench_cpu_ops step [N_THREAD] [ISA]       a small model's decode and prefill, by operator
 *
 * `products` reads a weight that no cache holds and prints bytes per second beside what a plain
 * streaming read of the same memory reaches in the same minute. `step` runs the operators of the
 * embedded model's shape in the model's order over generated weights; its numbers are those of
 * operators, without engine or server. ISA: best, amx, avx512, avx2, portable. Medians of repeats;
 * the least beside them tells a quiet machine from a busy one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_isa.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"

static void die(const char *what, const fathom_diag *d)
{
    fprintf(stderr, "bench_cpu_ops: %s: %s\n", what, d ? d->text : "failed");
    exit(1);
}

static void must(fathom_err err, const char *what)
{
    if (err != FATHOM_OK) die(what, NULL);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v. */
static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

/* ---- streaming read ---- */

struct stream {
    const uint64_t *data;
    size_t n;
    uint64_t sum[64]; /* by part, so that the reads are not dropped */
};

typedef uint64_t words __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) uint64_t add_words(const words *at, size_t n)
{
    words sum[4] = {{0}};
    uint64_t total = 0;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        for (size_t j = 0; j < 4; j++) sum[j] += at[i + j];
    }
    words all = sum[0] + sum[1] + sum[2] + sum[3];
    for (int j = 0; j < 8; j++) total += all[j];
    return total;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t add_wide(const words *at, size_t n)
{
    return add_words(at, n);
}

static bool is_wide(void)
{
    return __builtin_cpu_supports("avx512f");
}
#else
static uint64_t add_wide(const words *at, size_t n)
{
    return add_words(at, n);
}

static bool is_wide(void)
{
    return false;
}
#endif

static void read_part(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct stream *s = arg;
    size_t n = s->n / n_part / 8;
    const words *at = (const words *)(s->data + s->n / n_part * part);
    (void)worker;
    s->sum[part] += is_wide() ? add_wide(at, n) : add_words(at, n);
}

/* GB/s, median of 9 */
static double read_bandwidth(unsigned n_thread, const void *data, size_t bytes)
{
    struct thread_pool *pool;
    struct stream s = {.data = data, .n = bytes / 8};
    double v[9];
    fathom_diag d = {0};
    if (thread_pool_create(&pool, n_thread, &d)) die("threads", &d);
    for (size_t i = 0; i < 9; i++) {
        uint64_t t = clock_now_ns();
        thread_pool_run(pool, n_thread, read_part, &s);
        v[i] = (double)bytes / (double)(clock_now_ns() - t);
    }
    thread_pool_destroy(pool);
    return median(v, 9);
}

/* ---- products ---- */

enum { WIDE = 16384, MAX_ROWS = 256 };

static void fill_codes(uint8_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t bits = rng_hash(i) & 0xbfbfbfbfbfbfbfbf; /* below 2: no NaN */
        memcpy(codes + i, &bits, 8);
    }
}

static void time_product(struct backend *b, const struct head_args *a, unsigned n_thread,
                         const void *memory)
{
    double v[15];
    double bytes = (double)WIDE * WIDE;
    size_t n_repeat = a->n_row > 64 ? 3 : 15;
    double stream = read_bandwidth(n_thread, memory, (size_t)WIDE * WIDE);
    for (size_t i = 0; i < n_repeat; i++) {
        uint64_t t = clock_now_ns();
        must(b->ops->head(b, a), "head");
        v[i] = (double)(clock_now_ns() - t);
    }
    double ns = median(v, n_repeat);
    printf("%u threads  M %3u  %8.3f ms  %6.1f GB/s  %4.0f %% of a read's %.1f GB/s  %7.1f Gop/s\n",
           n_thread, a->n_row, ns * 1e-6, bytes / ns, 100 * bytes / ns / stream, stream,
           2 * bytes * a->n_row / ns);
    fflush(stdout);
}

static void bench_products(unsigned n_thread)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 256};
    struct backend_config c = {.act = ACT_BF16,
                               .hidden = WIDE,
                               .n_head = 1,
                               .q_lora_rank = 32,
                               .nope_dim = 128,
                               .v_dim = 128,
                               .norm_eps = 1e-6f,
                               .n_vocab = WIDE,
                               .max_token = MAX_ROWS,
                               .max_request = 1,
                               .max_context = 64,
                               .max_logit_row = MAX_ROWS,
                               .n_thread = n_thread,
                               .parallel = {.tp = {.size = 1}}};
    struct backend *b;
    struct buffer *hidden, *logits;
    int32_t index[MAX_ROWS];
    struct weight *w;
    fathom_diag d = {0};
    float scale[WIDE / 128 * (WIDE / 128)];
    uint8_t *codes = mem_alloc_aligned(64, (size_t)WIDE * WIDE);
    float *row = mem_alloc(WIDE * sizeof *row);
    uint64_t seed = 1;
    if (!codes || !row) die("memory", NULL);
    fill_codes(codes, (size_t)WIDE * WIDE);
    for (size_t i = 0; i < sizeof scale / sizeof *scale; i++) scale[i] = 0.0078125f;
    kv_layout_init(&c.kv, KV_TYPE_BF16, 1, false);
    if (backend_cpu_create(&b, &c, &d)) die("backend", &d);
    struct tensor_view view = {.data = codes,
                               .dtype = DTYPE_F8_E4M3,
                               .n_row = WIDE,
                               .n_col = WIDE,
                               .row_stride = WIDE,
                               .scale = scale,
                               .scale_stride = WIDE / 128};
    uint64_t t = clock_now_ns();
    if (b->ops->prepare_linear(b, &view, &w, &d)) die("weight", &d);
    double s = (double)(clock_now_ns() - t) * 1e-9;
    printf("packing     %.2f GB/s\n", (double)WIDE * WIDE * 1e-9 / s);
    if (b->ops->buffer_create(b, BUFFER_NORMED, &hidden, &d)) die("buffer", &d);
    if (b->ops->buffer_create(b, BUFFER_LOGITS, &logits, &d)) die("buffer", &d);
    for (uint32_t i = 0; i < WIDE; i++) row[i] = rng_normal(&seed);
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        index[i] = (int32_t)i;
        must(b->ops->buffer_write(b, hidden, i, 1, WIDE, row), "input");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct head_args a = {
            .w = w, .hidden = hidden, .rows = index, .n_row = rows[i], .logits = logits};
        time_product(b, &a, n_thread, codes);
    }
    b->ops->buffer_destroy(b, hidden);
    b->ops->buffer_destroy(b, logits);
    b->ops->weight_destroy(b, w);
    b->ops->destroy(b);
    mem_free(codes);
    mem_free(row);
}

/* ---- a block of int8 ---- */

enum { BLOCK_HIDDEN = 4096, BLOCK_INNER = 8192, BLOCK_BYTES = 3 * BLOCK_HIDDEN * BLOCK_INNER };

static struct tensor_view int8_view(uint32_t n_row, uint32_t n_col)
{
    return (struct tensor_view){.dtype = DTYPE_I8,
                                .n_row = n_row,
                                .n_col = n_col,
                                .generate_seed = 7 + n_row,
                                .generate_std = 0.02f};
}

/* Feed-forward blocks in int8 with int8 inputs: 100 MB of weights. */
static void bench_int8(unsigned n_thread, enum cpu_isa isa)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 256};
    struct backend_config c = {.act = ACT_INT8,
                               .hidden = BLOCK_HIDDEN,
                               .n_head = 1,
                               .q_lora_rank = 32,
                               .nope_dim = 128,
                               .v_dim = 128,
                               .norm_eps = 1e-6f,
                               .dense_inner = BLOCK_INNER,
                               .n_vocab = 32,
                               .max_token = MAX_ROWS,
                               .max_request = 1,
                               .max_context = 64,
                               .max_logit_row = 1,
                               .n_thread = n_thread,
                               .parallel = {.tp = {.size = 1}}};
    struct backend *b;
    struct buffer *x, *y;
    struct weight *w;
    fathom_diag d = {0};
    const struct ffn_tensors t = {.gate = int8_view(BLOCK_INNER, BLOCK_HIDDEN),
                                  .up = int8_view(BLOCK_INNER, BLOCK_HIDDEN),
                                  .down = int8_view(BLOCK_HIDDEN, BLOCK_INNER)};
    float *row = mem_alloc(BLOCK_HIDDEN * sizeof *row);
    uint64_t seed = 1;
    if (!row) die("memory", NULL);
    kv_layout_init(&c.kv, KV_TYPE_BF16, 1, false);
    if (backend_cpu_create_isa(&b, &c, isa, &d)) die("backend", &d);
    if (b->ops->prepare_ffn(b, &t, &w, &d)) die("weight", &d);
    if (b->ops->buffer_create(b, BUFFER_NORMED, &x, &d)) die("buffer", &d);
    if (b->ops->buffer_create(b, BUFFER_DELTA, &y, &d)) die("buffer", &d);
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        for (uint32_t k = 0; k < BLOCK_HIDDEN; k++) row[k] = rng_normal(&seed);
        must(b->ops->buffer_write(b, x, i, 1, BLOCK_HIDDEN, row), "input");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct ffn_args a = {.w = w, .x = x, .y = y, .n_token = rows[i]};
        double v[15];
        const size_t n_repeat = rows[i] > 64 ? 5 : 15;
        for (size_t k = 0; k < n_repeat; k++) {
            uint64_t start_ns = clock_now_ns();
            must(b->ops->ffn(b, &a), "ffn");
            v[k] = (double)(clock_now_ns() - start_ns);
        }
        const double ns = median(v, n_repeat);
        printf("int8  %u threads  M %3u  %8.3f ms  %6.1f GB/s  %7.1f Gop/s\n", n_thread, rows[i],
               ns * 1e-6, BLOCK_BYTES / ns, 2.0 * BLOCK_BYTES * rows[i] / ns);
        fflush(stdout);
    }
    b->ops->buffer_destroy(b, x);
    b->ops->buffer_destroy(b, y);
    b->ops->weight_destroy(b, w);
    b->ops->destroy(b);
    mem_free(row);
}

/* ---- steps of a small model ---- */

enum { N_LAYER = 8, CONTEXT = 4096, MAX_TOKEN = 2048 };

enum op { EMBED, NORM, FRONT, INDEX, ATTEND, OUT, FFN, ROUTER, MOE, HEAD, SAMPLE, N_OP };

static const char *const op_names[N_OP] = {"embed",  "reduce_norm", "mla_front", "index_topk",
                                           "attend", "mla_out",     "ffn",       "router",
                                           "moe",    "head",        "sample"};

struct model {
    struct backend *b;
    const struct backend_ops *ops;
    struct backend_config c;
    struct kv_cache kv;
    struct weight *table, *head, *norm, *ffn;
    struct weight *mla[N_LAYER];
    struct weight *moe[N_LAYER];
    struct buffer *buffer[BUFFER_LOGITS + 1];
    int32_t *arrays; /* the batch */
    struct batch batch;
    uint64_t spent_ns[N_OP];
    int32_t id;
    float logprob;
    uint32_t rank;
    int32_t top_ids[SAMPLE_TOP_MAX];
    float top_logprobs[SAMPLE_TOP_MAX];
};

static struct tensor_view generated(enum dtype t, uint32_t n_row, uint32_t n_col, float std)
{
    static const uint64_t seed = 11;
    return (struct tensor_view){.dtype = t,
                                .n_row = n_row,
                                .n_col = n_col,
                                .generate_seed = seed + n_row * 31 + n_col,
                                .generate_std = std};
}

static struct tensor_view fp8(uint32_t n_row, uint32_t n_col)
{
    return generated(DTYPE_F8_E4M3, n_row, n_col, 1 / sqrtf((float)n_col));
}

static struct backend_config small_config(unsigned n_thread)
{
    struct backend_config c = {
        .act = ACT_BF16,
        .hidden = 256,
        .n_head = 4,
        .q_lora_rank = 128,
        .nope_dim = 128,
        .v_dim = 128,
        .softmax_scale = 0.1f,
        .norm_eps = 1e-6f,
        .rope_interleaved = true,
        .index_n_head = 8,
        .index_topk = 256,
        .dense_inner = 768,
        .n_expert = 16,
        .n_expert_used = 4,
        .n_group = 4,
        .topk_group = 2,
        .moe_inner = 128,
        .shared_inner = 128,
        .routed_scale = 2.5f,
        .norm_topk = true,
        .n_vocab = 4096,
        .max_token = MAX_TOKEN,
        .max_request = 64,
        .max_context = CONTEXT,
        .max_logit_row = 64,
        .n_thread = n_thread,
        .parallel = {.tp = {.size = 1}},
    };
    for (int i = 0; i < KV_ROPE / 2; i++) c.rope_freq[i] = powf(10000, -(float)i / 32);
    kv_layout_init(&c.kv, KV_TYPE_BF16, N_LAYER, true);
    return c;
}

static void make_layer(struct model *m, uint32_t i, fathom_diag *d)
{
    const struct backend_config *c = &m->c;
    struct ffn_tensors expert = {fp8(c->moe_inner, c->hidden), fp8(c->moe_inner, c->hidden),
                                 fp8(c->hidden, c->moe_inner)};
    struct ffn_tensors experts[16];
    for (uint32_t e = 0; e < c->n_expert; e++) experts[e] = expert;
    struct mla_tensors mla = {
        .q_a = fp8(c->q_lora_rank, c->hidden),
        .q_a_norm = generated(DTYPE_BF16, 1, c->q_lora_rank, 1),
        .q_b = fp8(c->n_head * 192, c->q_lora_rank),
        .kv_a = fp8(KV_ROW, c->hidden),
        .kv_a_norm = generated(DTYPE_BF16, 1, KV_LATENT, 1),
        .kv_b = fp8(c->n_head * 256, KV_LATENT),
        .o = fp8(c->hidden, c->n_head * 128),
        .index_q_b = fp8(c->index_n_head * 128, c->q_lora_rank),
        .index_k = fp8(128, c->hidden),
        .index_k_weight = generated(DTYPE_F32, 1, 128, 1),
        .index_k_bias = generated(DTYPE_F32, 1, 128, 1),
        .index_head = generated(DTYPE_BF16, c->index_n_head, c->hidden, 0.06f),
    };
    struct moe_tensors moe = {.router = generated(DTYPE_BF16, c->n_expert, c->hidden, 0.06f),
                              .router_bias = generated(DTYPE_F32, 1, c->n_expert, 0.01f),
                              .shared = expert,
                              .experts = experts};
    if (m->ops->prepare_mla(m->b, &mla, &m->mla[i], d)) die("mla", d);
    if (i > 0 && m->ops->prepare_moe(m->b, &moe, &m->moe[i], d)) die("moe", d);
}

static void make_model(struct model *m, unsigned n_thread, enum cpu_isa isa)
{
    fathom_diag d = {0};
    m->c = small_config(n_thread);
    if (backend_cpu_create_isa(&m->b, &m->c, isa, &d)) die("backend", &d);
    m->ops = m->b->ops;
    struct tensor_view table = generated(DTYPE_BF16, m->c.n_vocab, m->c.hidden, 1);
    struct tensor_view norm = generated(DTYPE_BF16, 1, m->c.hidden, 1);
    struct ffn_tensors ffn = {fp8(m->c.dense_inner, m->c.hidden),
                              fp8(m->c.dense_inner, m->c.hidden),
                              fp8(m->c.hidden, m->c.dense_inner)};
    if (m->ops->prepare_linear(m->b, &table, &m->table, &d)) die("table", &d);
    if (m->ops->prepare_linear(m->b, &table, &m->head, &d)) die("head", &d);
    if (m->ops->prepare_vector(m->b, &norm, &m->norm, &d)) die("norm", &d);
    if (m->ops->prepare_ffn(m->b, &ffn, &m->ffn, &d)) die("ffn", &d);
    for (uint32_t i = 0; i < N_LAYER; i++) make_layer(m, i, &d);
    for (int i = 0; i <= BUFFER_LOGITS; i++) {
        if (m->ops->buffer_create(m->b, (enum buffer_kind)i, &m->buffer[i], &d)) die("buffer", &d);
    }
    m->kv.layout = m->c.kv;
    m->kv.n_page = 64 * CONTEXT / KV_PAGE_TOKENS;
    if (m->ops->alloc(m->b, m->kv.n_page * m->c.kv.page_bytes, "cache", &m->kv.base, &d))
        die("cache", &d);
    m->arrays = mem_calloc(5 * MAX_TOKEN + 256 + m->kv.n_page, sizeof *m->arrays);
    if (!m->arrays) die("memory", NULL);
}

/* n_request requests, each with n_new tokens after n_past */
static void set_batch(struct model *m, uint32_t n_request, uint32_t n_past, uint32_t n_new)
{
    uint64_t state = 3;
    int32_t *a = m->arrays;
    uint32_t stride = CONTEXT / KV_PAGE_TOKENS;
    int32_t *first = a + 4 * MAX_TOKEN;
    int32_t *rows = first + 128;
    int32_t *pages = rows + 128;
    for (uint32_t i = 0; i < n_request * stride; i++) pages[i] = (int32_t)i;
    for (uint32_t r = 0, t = 0; r < n_request; r++) {
        first[r] = (int32_t)t;
        for (uint32_t k = 0; k < n_new; k++, t++) {
            uint32_t pos = n_past + k;
            a[t] = (int32_t)rng_below(&state, m->c.n_vocab);
            a[MAX_TOKEN + t] = (int32_t)pos;
            a[2 * MAX_TOKEN + t] = (int32_t)r;
            a[3 * MAX_TOKEN + t] = (int32_t)(r * stride * KV_PAGE_TOKENS + pos);
        }
        first[r + 1] = (int32_t)t;
        rows[r] = (int32_t)t - 1;
    }
    m->batch = (struct batch){.n_token = n_request * n_new,
                              .n_request = n_request,
                              .n_logit_row = n_request,
                              .max_context = n_past + n_new,
                              .page_stride = stride,
                              .ids = a,
                              .pos = a + MAX_TOKEN,
                              .request = a + 2 * MAX_TOKEN,
                              .slot = a + 3 * MAX_TOKEN,
                              .page_table = pages,
                              .first = first,
                              .logit_rows = rows};
}

#define TIMED(m, op, call)                                                                         \
    do {                                                                                           \
        uint64_t begin = clock_now_ns();                                                           \
        must((call), op_names[op]);                                                                \
        (m)->spent_ns[op] += clock_now_ns() - begin;                                               \
    } while (0)

static void run_attention(struct model *m, uint32_t layer)
{
    const struct batch *batch = &m->batch;
    bool is_long = batch->max_context > m->c.index_topk;
    struct buffer **u = m->buffer;
    struct mla_front_args front = {.w = m->mla[layer],
                                   .batch = batch,
                                   .kv = &m->kv,
                                   .layer = layer,
                                   .want_index_query = is_long,
                                   .x = u[BUFFER_NORMED],
                                   .query = u[BUFFER_QUERY]};
    struct index_topk_args topk = {.batch = batch,
                                   .kv = &m->kv,
                                   .layer = layer,
                                   .query = u[BUFFER_QUERY],
                                   .select = u[BUFFER_SELECT]};
    struct mla_attend_args attend = {.w = m->mla[layer],
                                     .batch = batch,
                                     .kv = &m->kv,
                                     .layer = layer,
                                     .query = u[BUFFER_QUERY],
                                     .select = is_long ? u[BUFFER_SELECT] : NULL,
                                     .out = u[BUFFER_LATENT]};
    struct mla_out_args out = {
        .w = m->mla[layer], .batch = batch, .z = u[BUFFER_LATENT], .y = u[BUFFER_DELTA]};
    TIMED(m, FRONT, m->ops->mla_front(m->b, &front));
    if (is_long) TIMED(m, INDEX, m->ops->index_topk(m->b, &topk));
    TIMED(m, ATTEND, m->ops->mla_attend(m->b, &attend));
    TIMED(m, OUT, m->ops->mla_out(m->b, &out));
}

static void run_step(struct model *m)
{
    struct buffer **u = m->buffer;
    uint32_t n = m->batch.n_token;
    struct embed_args embed = {
        .table = m->table, .ids = m->batch.ids, .n_token = n, .x = u[BUFFER_RESIDUAL]};
    TIMED(m, EMBED, m->ops->embed(m->b, &embed));
    for (uint32_t i = 0; i < N_LAYER; i++) {
        struct reduce_norm_args norm = {.x = u[BUFFER_RESIDUAL],
                                        .delta = i > 0 ? u[BUFFER_DELTA] : NULL,
                                        .weight = m->norm,
                                        .out = u[BUFFER_NORMED],
                                        .n_token = n};
        TIMED(m, NORM, m->ops->reduce_norm(m->b, &norm));
        run_attention(m, i);
        norm.delta = u[BUFFER_DELTA];
        TIMED(m, NORM, m->ops->reduce_norm(m->b, &norm));
        struct ffn_args ffn = {m->ffn, u[BUFFER_NORMED], u[BUFFER_DELTA], n};
        struct router_args router = {m->moe[i], u[BUFFER_NORMED], u[BUFFER_ROUTE], n, NULL};
        struct moe_args moe = {m->moe[i], u[BUFFER_NORMED], u[BUFFER_ROUTE], u[BUFFER_DELTA], n};
        if (i == 0) {
            TIMED(m, FFN, m->ops->ffn(m->b, &ffn));
            continue;
        }
        TIMED(m, ROUTER, m->ops->router(m->b, &router));
        TIMED(m, MOE, m->ops->moe(m->b, &moe));
    }
    struct reduce_norm_args norm = {.x = u[BUFFER_RESIDUAL],
                                    .delta = u[BUFFER_DELTA],
                                    .weight = m->norm,
                                    .out = u[BUFFER_NORMED],
                                    .n_token = n};
    TIMED(m, NORM, m->ops->reduce_norm(m->b, &norm));
    struct head_args head = {m->head, u[BUFFER_NORMED], m->batch.logit_rows, m->batch.n_logit_row,
                             u[BUFFER_LOGITS]};
    TIMED(m, HEAD, m->ops->head(m->b, &head));
    struct sample_row row = {.top_p = 1,
                             .repetition_penalty = 1,
                             .mask_offset = SAMPLE_NONE,
                             .n_vocab_used = m->c.n_vocab};
    struct sample_args sample = {.logits = u[BUFFER_LOGITS],
                                 .n_row = 1,
                                 .rows = &row,
                                 .ids = &m->id,
                                 .logprobs = &m->logprob,
                                 .ranks = &m->rank,
                                 .top_ids = m->top_ids,
                                 .top_logprobs = m->top_logprobs};
    TIMED(m, SAMPLE, m->ops->sample(m->b, &sample));
}

static void time_step(struct model *m, const char *what, uint32_t n_request, uint32_t n_past,
                      uint32_t n_new)
{
    enum { MAX_REPEAT = 301 };
    double v[MAX_REPEAT];
    size_t n_repeat = n_request * n_new > 64 ? 5 : MAX_REPEAT;
    set_batch(m, n_request, n_past, n_new);
    for (int i = 0; i < 3; i++) run_step(m);
    memset(m->spent_ns, 0, sizeof m->spent_ns);
    for (size_t i = 0; i < n_repeat; i++) {
        uint64_t t = clock_now_ns();
        run_step(m);
        v[i] = (double)(clock_now_ns() - t);
    }
    double ns = median(v, n_repeat);
    printf("%-8s requests %2u  past %4u  new %4u  %9.1f us (least %.1f)  %8.0f tok/s\n", what,
           n_request, n_past, n_new, ns * 1e-3, v[0] * 1e-3, n_request * n_new / ns * 1e9);
    printf("    us:");
    for (int i = 0; i < N_OP; i++)
        printf(" %s %.1f", op_names[i], (double)m->spent_ns[i] * 1e-3 / (double)n_repeat);
    printf("\n");
    fflush(stdout);
}

static void bench_steps(unsigned n_thread, enum cpu_isa isa)
{
    static struct model m;
    struct backend_caps caps;
    make_model(&m, n_thread, isa);
    m.ops->get_caps(m.b, &caps);
    printf("%s\n", caps.device);
    time_step(&m, "prefill", 1, 0, 256);
    time_step(&m, "prefill", 1, 0, 2048);
    time_step(&m, "prefill", 1, 2048, 2048);
    time_step(&m, "decode", 1, 128, 1);
    time_step(&m, "decode", 1, 1000, 1);
    time_step(&m, "decode", 1, 4000, 1);
    time_step(&m, "decode", 4, 500, 1);
    time_step(&m, "decode", 16, 500, 1);
    time_step(&m, "decode", 64, 500, 1);
    for (int i = 0; i <= BUFFER_LOGITS; i++) m.ops->buffer_destroy(m.b, m.buffer[i]);
    for (uint32_t i = 0; i < N_LAYER; i++) {
        m.ops->weight_destroy(m.b, m.mla[i]);
        m.ops->weight_destroy(m.b, m.moe[i]);
    }
    struct weight *rest[] = {m.table, m.head, m.norm, m.ffn};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) m.ops->weight_destroy(m.b, rest[i]);
    m.ops->release(m.b, m.kv.base);
    m.ops->destroy(m.b);
    mem_free(m.arrays);
}

int main(int argc, char **argv)
{
    static const char *const isas[] = {"best", "amx", "avx512", "avx2", "portable"};
    unsigned n_thread = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 2;
    enum cpu_isa isa = CPU_ISA_BEST;
    for (int i = 0; argc > 3 && i < 5; i++) {
        if (strcmp(argv[3], isas[i]) == 0) isa = (enum cpu_isa)i;
    }
    if (argc > 1 && strcmp(argv[1], "products") == 0)
        bench_products(n_thread);
    else if (argc > 1 && strcmp(argv[1], "int8") == 0)
        bench_int8(n_thread, isa);
    else if (argc > 1 && strcmp(argv[1], "step") == 0)
        bench_steps(n_thread, isa);
    else
        fprintf(stderr, "usage: bench_cpu_ops products|int8|step [N_THREAD] "
                        "[best|amx|avx512|avx2|portable]\n");
    return 0;
}

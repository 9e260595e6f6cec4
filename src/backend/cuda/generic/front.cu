/* front.cu - mla_front: projections, norms, rope, cache rows, absorbed queries, index queries */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"

enum { THREADS = 256 };

/* Rope of pair i of 32 at `position`; angles in f32. */
static __device__ __forceinline__ void rotate(float &a, float &b, float angle)
{
    float s, c;
    sincosf(angle, &s, &c);
    float x = a * c - b * s;
    b = a * s + b * c;
    a = x;
}

struct front_args {
    const float *front; /* [T][n_front] */
    uint32_t n_front, index_row, kv_row, q_lora;
    const float *q_norm, *kv_norm, *index_weight, *index_bias;
    float *qa_f;
    uint8_t *qa_q; /* NULL on the float path */
    float *qa_scale;
    const int32_t *pos, *slot;
    struct kv_layer kv;
    float freq[KV_ROPE / 2];
    bool interleaved, index_interleaved, has_index;
    float eps;
};

/* Quantizes 128 values, 4 a lane of one warp; codes and scale where they are told. */
static __device__ __forceinline__ void quantize_warp(const float v[4], uint8_t *q, float *scale)
{
    const int lane = (int)threadIdx.x % WARP;
    float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    float s = fp8_scale(warp_max(amax));
    for (int i = 0; i < 4; i++) q[lane * 4 + i] = float_to_e4m3(v[i] / s);
    if (lane == 0) *scale = s;
}

static __device__ __forceinline__ void store_latent(const struct front_args &a, const float *c,
                                                    const float *k_pe, int slot)
{
    char *row = kv_row(a.kv, slot);
    if (a.kv.type != KV_TYPE_FP8) {
        for (int i = (int)threadIdx.x; i < KV_ROW; i += THREADS) {
            float v = i < KV_LATENT ? c[i] : k_pe[i - KV_LATENT];
            if (a.kv.type == KV_TYPE_F32) {
                ((float *)row)[i] = v;
            } else {
                ((__nv_bfloat16 *)row)[i] = __float2bfloat16_rn(v);
            }
        }
        return;
    }
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    if (warp < KV_LATENT / KV_FP8_GROUP) {
        quantize_warp(c + warp * KV_FP8_GROUP + lane * 4, (uint8_t *)row + warp * KV_FP8_GROUP,
                      (float *)(row + KV_FP8_SCALES_OFFSET) + warp);
    } else if (warp == KV_LATENT / KV_FP8_GROUP) {
        for (int i = lane; i < KV_ROPE; i += WARP) {
            ((__nv_bfloat16 *)(row + KV_FP8_ROPE_OFFSET))[i] = __float2bfloat16_rn(k_pe[i]);
        }
    }
}

/* 128-point Walsh-Hadamard transform over sqrt(128), natural order: 4 values a lane, element
 * 4 * lane + i. */
static __device__ __forceinline__ void hadamard(float v[4])
{
    const int lane = (int)threadIdx.x % WARP;
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
#pragma unroll
    for (int m = 1; m < WARP; m <<= 1) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float other = shfl_xor(v[i], m);
            v[i] = lane & m ? other - v[i] : v[i] + other;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= 0.08838834764831845f;
}

/* The indexer's rope: on the first 64 of 128, values in shared memory, one warp. */
static __device__ __forceinline__ void index_rope(float *v, const float *freq, bool interleaved,
                                                  int position)
{
    int i = (int)threadIdx.x % WARP;
    int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + KV_ROPE / 2;
    rotate(v[a], v[b], (float)position * freq[i]);
}

static __device__ __forceinline__ void store_index_key(const struct front_args &a, const float *src,
                                                       float *k, int position, int slot)
{
    const int lane = (int)threadIdx.x % WARP;
    float v[4], sum = 0.0f, square = 0.0f;
    for (int i = 0; i < 4; i++) sum += v[i] = src[lane * 4 + i];
    float mean = warp_sum(sum) / KV_INDEX_DIM;
    for (int i = 0; i < 4; i++) square += (v[i] - mean) * (v[i] - mean);
    float r = rsqrtf(warp_sum(square) / KV_INDEX_DIM + 1e-6f);
    for (int i = 0; i < 4; i++) {
        int at = lane * 4 + i;
        k[at] = (v[i] - mean) * r * a.index_weight[at] + a.index_bias[at];
    }
    __syncwarp();
    index_rope(k, a.freq, a.index_interleaved, position);
    __syncwarp();
    for (int i = 0; i < 4; i++) v[i] = k[lane * 4 + i];
    hadamard(v);
    char *block = a.kv.index + (size_t)(slot / KV_PAGE_TOKENS) * a.kv.page_bytes;
    int j = slot % KV_PAGE_TOKENS;
    if (a.kv.type == KV_TYPE_F32) {
        for (int i = 0; i < 4; i++) ((float *)block)[j * KV_INDEX_DIM + lane * 4 + i] = v[i];
    } else {
        quantize_warp(v, (uint8_t *)block + j * KV_INDEX_DIM,
                      (float *)(block + KV_INDEX_SCALES_OFFSET) + j);
    }
}

/* Norm of the query latent, and its codes. */
static __device__ __forceinline__ void front_query(const struct front_args &a, const float *row,
                                                   float *scratch)
{
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.q_lora; i += THREADS) sum += row[i] * row[i];
    float r = rsqrtf(block_sum(sum, scratch) / (float)a.q_lora + a.eps);
    float *qa = a.qa_f + (size_t)blockIdx.x * a.q_lora;
    const int lane = (int)threadIdx.x % WARP;
    for (uint32_t i = threadIdx.x * 4; i < a.q_lora; i += THREADS * 4) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = row[i + (uint32_t)j] * r * a.q_norm[i + (uint32_t)j];
            qa[i + (uint32_t)j] = v[j];
        }
        if (a.qa_q) { /* a warp holds one group of 128 */
            uint32_t group = (i - (uint32_t)lane * 4) / 128;
            quantize_warp(v, a.qa_q + (size_t)blockIdx.x * a.q_lora + group * 128,
                          a.qa_scale + (size_t)blockIdx.x * (a.q_lora / 128) + group);
        }
    }
}

/* Norm of the latent, rope of the rotary key, the cache row. */
static __device__ __forceinline__ void front_latent(const struct front_args &a, const float *kv,
                                                    float *scratch, int position, int slot)
{
    __shared__ float c[KV_LATENT], k_pe[KV_ROPE];
    float sum = 0.0f;
    for (int i = (int)threadIdx.x; i < KV_LATENT; i += THREADS) sum += kv[i] * kv[i];
    float r = rsqrtf(block_sum(sum, scratch) / KV_LATENT + a.eps);
    for (int i = (int)threadIdx.x; i < KV_LATENT; i += THREADS) c[i] = kv[i] * r * a.kv_norm[i];
    if (threadIdx.x < KV_ROPE / 2) {
        int i = (int)threadIdx.x;
        int x = a.interleaved ? 2 * i : i, y = a.interleaved ? 2 * i + 1 : i + KV_ROPE / 2;
        float u = kv[KV_LATENT + x], v = kv[KV_LATENT + y];
        rotate(u, v, (float)position * a.freq[i]);
        k_pe[x] = u;
        k_pe[y] = v;
    }
    __syncthreads();
    store_latent(a, c, k_pe, slot);
}

/* Three blocks a token: the query latent, the latent row, the index key. */
__global__ void __launch_bounds__(THREADS) front_kernel(const struct front_args a)
{
    __shared__ float scratch[THREADS / WARP + 1], key[KV_INDEX_DIM];
    kernel_begin();
    const float *row = a.front + (size_t)blockIdx.x * a.n_front;
    const int position = a.pos[blockIdx.x], slot = a.slot[blockIdx.x];
    if (blockIdx.y == 0) {
        front_query(a, row, scratch);
    } else if (blockIdx.y == 1) {
        front_latent(a, row + a.kv_row, scratch, position, slot);
    } else if (threadIdx.x < WARP) {
        store_index_key(a, row + a.index_row, key, position, slot);
    }
}

struct query_args {
    const float *query; /* [T][n_query]: heads of 192, then index heads of 128 */
    uint32_t n_query, n_head, n_token;
    const __nv_bfloat16 *kv_b; /* fast path */
    const float *kv_b_f;       /* float path */
    const int32_t *pos;
    float freq[KV_ROPE / 2];
    bool interleaved;
    __nv_bfloat16 *h;
    float *f;
};

static __device__ __forceinline__ void store_query(const struct query_args &a, size_t at, float v)
{
    if (a.h) {
        a.h[at] = __float2bfloat16_rn(v);
    } else {
        a.f[at] = v;
    }
}

enum { QUERY_TOKENS = 8, QUERY_COLS = 64, QUERY_SLICES = THREADS / (QUERY_COLS / 2) };

/* Block: 64 columns of one head's W_UK^T q_nope, up to 8 tokens; a thread sums 16 of the 128 terms
 * of two columns, and the 8 sums are added in ascending order. The first block of a head also
 * turns its rotary part. */
__global__ void __launch_bounds__(THREADS) absorb_kernel(const struct query_args a)
{
    __shared__ float q[QUERY_TOKENS][192], part[QUERY_SLICES][QUERY_TOKENS][QUERY_COLS];
    const uint32_t head = blockIdx.x, col0 = blockIdx.y * QUERY_COLS,
                   t0 = blockIdx.z * QUERY_TOKENS;
    const uint32_t n = min((uint32_t)QUERY_TOKENS, a.n_token - t0);
    const int slice = (int)threadIdx.x / (QUERY_COLS / 2),
              pair = (int)threadIdx.x % (QUERY_COLS / 2);
    float2 w[128 / QUERY_SLICES];
    dependency_release();
#pragma unroll
    for (int i = 0; i < 128 / QUERY_SLICES; i++) {
        size_t d = (size_t)(slice * (128 / QUERY_SLICES) + i);
        size_t at = ((size_t)head * 256 + d) * KV_LATENT + col0 + (size_t)pair * 2;
        w[i] = a.kv_b ? __bfloat1622float2(*(const __nv_bfloat162 *)(a.kv_b + at))
                      : *(const float2 *)(a.kv_b_f + at);
    }
    dependency_wait();
    for (uint32_t i = threadIdx.x; i < QUERY_TOKENS * 192; i += THREADS) {
        uint32_t t = i / 192, d = i % 192;
        float v = t < n ? a.query[(size_t)(t0 + t) * a.n_query + head * 192 + d] : 0.0f;
        q[t][d] = a.h && d < 128 ? to_bf16_and_back(v) : v;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < QUERY_TOKENS; t++) {
        float x = 0.0f, y = 0.0f;
#pragma unroll
        for (int i = 0; i < 128 / QUERY_SLICES; i++) {
            float v = q[t][slice * (128 / QUERY_SLICES) + i];
            x = fmaf(v, w[i].x, x);
            y = fmaf(v, w[i].y, y);
        }
        part[slice][t][pair * 2] = x;
        part[slice][t][pair * 2 + 1] = y;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * QUERY_COLS; i += THREADS) {
        uint32_t t = i / QUERY_COLS, col = i % QUERY_COLS;
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < QUERY_SLICES; k++) sum += part[k][t][col];
        store_query(a, ((size_t)(t0 + t) * a.n_head + head) * KV_ROW + col0 + col, sum);
    }
    if (blockIdx.y > 0) return;
    for (uint32_t i = threadIdx.x; i < n * (KV_ROPE / 2); i += THREADS) {
        uint32_t t = i / (KV_ROPE / 2), k = i % (KV_ROPE / 2);
        uint32_t x = a.interleaved ? 2 * k : k, y = a.interleaved ? 2 * k + 1 : k + KV_ROPE / 2;
        float u = q[t][128 + x], v = q[t][128 + y];
        rotate(u, v, (float)a.pos[t0 + t] * a.freq[k]);
        size_t at = ((size_t)(t0 + t) * a.n_head + head) * KV_ROW + KV_LATENT;
        store_query(a, at + x, u);
        store_query(a, at + y, v);
    }
}

struct index_query_args {
    const float *query;
    uint32_t n_query, offset, n_head, n_token;
    const float *head_weight; /* [T][n_head], raw */
    float scale;              /* n_head^-1/2 * 128^-1/2 */
    const int32_t *pos;
    float freq[KV_ROPE / 2];
    bool interleaved, quantize;
    uint8_t *q;    /* codes, fast path */
    float *f;      /* values (codes when quantizing), float path */
    float *weight; /* [T][n_head], written */
};

/* One warp a (token, index head). */
__global__ void __launch_bounds__(THREADS) index_query_kernel(const struct index_query_args a)
{
    __shared__ float values[THREADS / WARP][KV_INDEX_DIM];
    uint32_t i = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    kernel_begin();
    if (i >= a.n_token * a.n_head) return;
    const int lane = (int)threadIdx.x % WARP;
    uint32_t token = i / a.n_head, head = i % a.n_head;
    float *v = values[threadIdx.x / WARP], x[4];
    const float *from = a.query + (size_t)token * a.n_query + a.offset + head * KV_INDEX_DIM;
    *(float4 *)(v + lane * 4) = *(const float4 *)(from + lane * 4);
    __syncwarp();
    index_rope(v, a.freq, a.interleaved, a.pos[token]);
    __syncwarp();
    for (int j = 0; j < 4; j++) x[j] = v[lane * 4 + j];
    hadamard(x);
    float scale = 1.0f;
    if (a.quantize) {
        float amax = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
        scale = fp8_scale(warp_max(amax));
    }
    for (int j = 0; j < 4; j++) {
        size_t at = (size_t)i * KV_INDEX_DIM + (size_t)(lane * 4 + j);
        uint8_t code = float_to_e4m3(x[j] / scale);
        if (a.q) a.q[at] = code;
        if (a.f) a.f[at] = a.quantize ? e4m3_to_float(code) : x[j];
    }
    if (lane == 0) a.weight[i] = a.head_weight[i] * a.scale * scale;
}

static fathom_err run_front(struct cuda_backend *c, const struct mla_front_args *a)
{
    const struct weight *w = a->w;
    struct front_args f = {};
    f.front = c->front;
    f.n_front = w->mla.front.n_row;
    f.index_row = w->mla.index_row;
    f.kv_row = w->mla.kv_row;
    f.q_lora = c->c.q_lora_rank;
    f.q_norm = w->mla.q_norm;
    f.kv_norm = w->mla.kv_norm;
    f.index_weight = w->mla.index_weight;
    f.index_bias = w->mla.index_bias;
    f.qa_f = c->qa_f;
    f.qa_q = cuda_wants_fp8(c, &w->mla.query.part[0]) ? c->qa_q : NULL;
    f.qa_scale = c->qa_scale;
    f.pos = a->batch->pos;
    f.slot = a->batch->slot;
    f.kv = kv_layer_of(a->kv, a->layer);
    for (int i = 0; i < KV_ROPE / 2; i++) f.freq[i] = c->c.rope_freq[i];
    f.interleaved = c->c.rope_interleaved;
    f.index_interleaved = c->c.index_rope_interleaved;
    f.has_index = c->c.index_n_head > 0;
    f.eps = c->c.norm_eps;
    return cuda_launch(c, "mla_front", front_kernel, dim3(a->batch->n_token, f.has_index ? 3 : 2),
                       THREADS, 0, f);
}

static fathom_err run_absorb(struct cuda_backend *c, const struct mla_front_args *a)
{
    struct query_args q = {};
    q.query = c->query;
    q.n_query = a->w->mla.query.n_row;
    q.n_head = c->c.n_head;
    q.n_token = a->batch->n_token;
    q.kv_b = a->w->mla.kv_b;
    q.kv_b_f = a->w->mla.kv_b_f;
    q.pos = a->batch->pos;
    for (int i = 0; i < KV_ROPE / 2; i++) q.freq[i] = c->c.rope_freq[i];
    q.interleaved = c->c.rope_interleaved;
    q.h = a->query->h;
    q.f = a->query->f;
    a->query->form = MLA_ABSORBED;
    dim3 grid(c->c.n_head, KV_LATENT / QUERY_COLS, ceil_div(a->batch->n_token, QUERY_TOKENS));
    return cuda_launch(c, "mla_front", absorb_kernel, grid, THREADS, 0, q);
}

static fathom_err run_index_query(struct cuda_backend *c, const struct mla_front_args *a,
                                  const struct act *x)
{
    struct index_query_args q = {};
    uint32_t n_head = c->c.index_n_head, n_token = a->batch->n_token;
    TRY(cuda_product(c, &a->w->mla.index_head, x, n_token, c->index_head, n_head, "index_head"));
    q.query = c->query;
    q.n_query = a->w->mla.query.n_row;
    q.offset = c->c.n_head * 192;
    q.n_head = n_head;
    q.n_token = n_token;
    q.head_weight = c->index_head;
    q.scale = 1.0f / sqrtf((float)n_head * (float)KV_INDEX_DIM);
    q.pos = a->batch->pos;
    for (int i = 0; i < KV_ROPE / 2; i++) q.freq[i] = c->c.rope_freq[i];
    q.interleaved = c->c.index_rope_interleaved;
    q.quantize = c->c.kv.type != KV_TYPE_F32;
    q.q = a->query->q;
    q.f = a->query->index_f;
    q.weight = a->query->index_weight;
    return cuda_launch(c, "mla_front", index_query_kernel,
                       dim3(ceil_div(n_token * n_head, THREADS / WARP)), THREADS, 0, q);
}

/* q_b, and index_q_b when an index query is wanted: rows at the end of one matrix, or the second */
static fathom_err run_query(struct cuda_backend *c, const struct mla_front_args *a,
                            const struct act *qa)
{
    struct matrix_list query = a->w->mla.query;
    if (!a->want_index_query) {
        query.n = 1;
        query.part[0].n_row = c->c.n_head * 192;
    }
    return cuda_product_list(c, &query, qa, a->batch->n_token, c->query, "q_b, index_q_b");
}

fathom_err cuda_mla_front(struct backend *b, const struct mla_front_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    if (a->form != MLA_ABSORBED) return FATHOM_EUNSUPPORTED;
    uint32_t n_token = a->batch->n_token;
    struct act x = {a->x->f, a->x->h, a->x->q, a->x->scale, c->c.hidden};
    TRY(cuda_product_list(c, &a->w->mla.front, &x, n_token, c->front, "q_a, index_k, kv_a"));
    TRY(run_front(c, a));
    bool fp8 = cuda_wants_fp8(c, &a->w->mla.query.part[0]);
    struct act qa = {c->qa_f, NULL, fp8 ? c->qa_q : NULL, c->qa_scale, c->c.q_lora_rank};
    TRY(run_query(c, a, &qa));
    TRY(run_absorb(c, a));
    return a->want_index_query ? run_index_query(c, a, &x) : FATHOM_OK;
}
